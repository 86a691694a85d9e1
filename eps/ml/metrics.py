"""Model quality: sums that add up over shards, and metrics of a whole set of scores.

Evaluation in an iteration runs where the data is: every worker sums up its shards, and the job master adds the sums in
split order.  So the figures do not depend on who held which split.  The area under the ROC curve does not add up: in an
iteration it is computed from counts of binned scores, which add up, and at the end from all scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eps.errors import ProtocolError
from eps.ml.arrays import BoolArray, Float32Array, Float64Array, Matrix, Targets
from eps.ml.models.base import Model, Params, Task, predicted

_SCALARS = 5
#: Bins of the scores of a binary model.  A bin is about a fifth as wide as its score is large, so the area under the
#: curve is off by less than 0.003 for scores from 0.01 to 300.
SCORE_BINS = 128
#: Metrics that are approximate in an iteration, and exact at the end of a job.
APPROXIMATE = ("auc",)
#: Metrics of which less, or more, is better.
MINIMIZED = ("loss", "test_loss", "rmse", "mae")
MAXIMIZED = ("accuracy", "f1", "auc", "r2", "precision", "recall")


@dataclass(frozen=True)
class EvalSums:
    """Additive statistics of the predictions for a shard of rows."""

    task: Task
    #: Rows.
    n: int
    #: Sum of the loss, without penalties.
    loss_sum: float
    #: Rows with the right class; 0 for regression.
    correct: int
    #: Sum of (score - label)^2; 0 for classification.
    squared_error_sum: float
    #: Sum of |score - label|; 0 for classification.
    absolute_error_sum: float
    #: True positives, false positives and false negatives of each class; empty for regression.
    tp: tuple[int, ...] = ()
    fp: tuple[int, ...] = ()
    fn: tuple[int, ...] = ()
    #: Positive and negative rows of each bin of the scores, in ascending order; empty unless the task is binary.
    positive: tuple[int, ...] = ()
    negative: tuple[int, ...] = ()
    #: Sums of the labels and of their squares; 0 for classification.
    label_sum: float = 0.0
    label_square_sum: float = 0.0

    @classmethod
    def of(cls, model: Model, params: Params, X: Matrix, y: Targets) -> EvalSums:
        """Return the sums of a model's predictions for ``X``, which may have no rows."""
        task = model.task_for(model.chosen)
        if X.shape[0] == 0:
            return cls.zero(task, model.num_outputs)
        scores = model.decision(params, X)
        loss = model.loss_of_scores(scores, y)
        if loss is None:
            loss = model.loss(params, X, y)
        return cls.from_scores(task, scores, y, num_outputs=model.num_outputs, loss_sum=loss)

    @classmethod
    def zero(cls, task: Task, num_outputs: int) -> EvalSums:
        """Return the sums of no rows."""
        none = () if task == "regression" else (0,) * num_outputs
        bins = (0,) * SCORE_BINS if task == "binary" else ()
        return cls(task, 0, 0.0, 0, 0.0, 0.0, none, none, none, bins, bins)

    @classmethod
    def from_scores(
        cls, task: Task, scores: Float32Array, y: Targets, *, num_outputs: int, loss_sum: float = math.nan
    ) -> EvalSums:
        """Return the sums for targets and scores, which are those of :meth:`Model.decision`."""
        if task == "regression":
            errors = scores.astype(np.float64) - y
            labels = y.astype(np.float64)
            return cls(
                task, len(y), loss_sum, 0, float(np.square(errors).sum()), float(np.abs(errors).sum()),
                label_sum=float(labels.sum()), label_square_sum=float(np.square(labels).sum()),
            )  # fmt: skip
        guess = predicted(task, scores)
        hit = guess == y
        tp = np.bincount(y[hit], minlength=num_outputs)
        counts = (tp, np.bincount(guess, minlength=num_outputs) - tp, np.bincount(y, minlength=num_outputs) - tp)
        tp_, fp, fn = (tuple(int(count) for count in each) for each in counts)
        positive, negative = _binned(scores, y == 1) if task == "binary" else ((), ())
        return cls(task, len(y), loss_sum, int(hit.sum()), 0.0, 0.0, tp_, fp, fn, positive, negative)

    def to_vector(self) -> tuple[float, ...]:
        """Return the sums as numbers that add up element by element; counts are exact below 2^53."""
        scalars = (self.n, self.loss_sum, self.correct, self.squared_error_sum, self.absolute_error_sum)
        labels = (self.label_sum, self.label_square_sum) if self.task == "regression" else ()
        counts = (*self.tp, *self.fp, *self.fn, *self.positive, *self.negative)
        return tuple(float(value) for value in (*scalars, *labels, *counts))

    @classmethod
    def from_vector(cls, model: Model, values: Sequence[float]) -> EvalSums:
        """Return the sums from the values of :meth:`to_vector`, for the same model.

        Raises
        ------
        ProtocolError
            The length does not fit the model.
        """
        task = model.task_for(model.chosen)
        k = 0 if task == "regression" else model.num_outputs
        expected = _SCALARS + 3 * k + {"regression": 2, "binary": 2 * SCORE_BINS}.get(task, 0)
        if len(values) != expected:
            raise ProtocolError(f"{len(values)} evaluation sums given, but {expected} were expected")
        n, loss_sum, correct, squared, absolute = values[:_SCALARS]
        if task == "regression":
            labels = values[_SCALARS:]
            return cls(
                task, int(n), loss_sum, 0, squared, absolute, label_sum=labels[0], label_square_sum=labels[1]
            )  # fmt: skip
        counts = [int(value) for value in values[_SCALARS:]]
        bins = counts[3 * k :]
        return cls(
            task, int(n), loss_sum, int(correct), squared, absolute,
            tuple(counts[:k]), tuple(counts[k : 2 * k]), tuple(counts[2 * k : 3 * k]),
            tuple(bins[: len(bins) // 2]), tuple(bins[len(bins) // 2 :]),
        )  # fmt: skip

    def summary(self) -> dict[str, float]:
        """Return the metrics by name; empty if there are no rows.

        Always ``loss`` (mean).  Classification: ``accuracy`` and ``f1``, of the positive class or as the mean over the
        classes that occur; if binary, ``precision``, ``recall`` and, from binned scores, ``auc``, too, the latter if
        both classes occur.  Regression: ``rmse``, ``mae``, and ``r2`` unless all labels are equal.
        """
        if self.n == 0:
            return {}
        found = {"loss": self.loss_sum / self.n} if not math.isnan(self.loss_sum) else {}
        if self.task == "regression":
            found["rmse"] = math.sqrt(self.squared_error_sum / self.n)
            found["mae"] = self.absolute_error_sum / self.n
            spread = self.label_square_sum - self.label_sum * self.label_sum / self.n
            # A smaller one is a rounding error.
            if spread > 1e-12 * self.label_square_sum:
                found["r2"] = 1.0 - self.squared_error_sum / spread
            return found
        found["accuracy"] = self.correct / self.n
        if self.task == "binary":
            tp, fp, fn = self.tp[1], self.fp[1], self.fn[1]
            found["precision"] = tp / (tp + fp) if tp + fp else 0.0
            found["recall"] = tp / (tp + fn) if tp + fn else 0.0
            found["f1"] = 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0.0
            if any(self.positive) and any(self.negative):
                found["auc"] = _area_of_bins(self.positive, self.negative)
            return found
        each = [
            2 * tp / (2 * tp + fp + fn) for tp, fp, fn in zip(self.tp, self.fp, self.fn, strict=True) if tp + fp + fn
        ]
        found["f1"] = sum(each) / len(each)
        return found


def summary_names(task: Task) -> tuple[str, ...]:
    """Return the metrics that :meth:`EvalSums.summary` can have; ``loss`` may be missing with a user's own model."""
    if task == "regression":
        return ("loss", "rmse", "mae", "r2")
    return ("loss", "accuracy", "precision", "recall", "f1", "auc") if task == "binary" else ("loss", "accuracy", "f1")


def exact_metrics(task: Task, scores: Float32Array, y: Targets) -> dict[str, float]:
    """Return the metrics of a whole set: :meth:`EvalSums.summary`, and ``auc`` (binary) or ``r2`` (regression).

    ``auc`` is omitted if only one class occurs, ``r2`` if all labels are equal.
    """
    num_outputs = {"binary": 2, "regression": 1}.get(task) or int(scores.shape[1])
    found = EvalSums.from_scores(task, scores, y, num_outputs=num_outputs).summary()
    if task == "binary":
        area = area_under_curve(scores, y == 1)
        if area is not None:
            found["auc"] = area
    if task == "regression" and len(y):
        labels = y.astype(np.float64)
        spread = float(np.square(labels - labels.mean()).sum())
        if spread > 0:
            found["r2"] = 1.0 - float(np.square(scores.astype(np.float64) - labels).sum()) / spread
    return found


def area_under_curve(scores: Float32Array | Float64Array, positive: BoolArray) -> float | None:
    """Return the exact area under the ROC curve, with ties counted half; None if only one class occurs.

    Computed from the mean ranks of tied scores as the probability that a positive scores above a negative (Mann and
    Whitney).
    """
    num_positive = int(positive.sum())
    num_negative = len(positive) - num_positive
    if num_positive == 0 or num_negative == 0:
        return None
    _, group, size = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(size) - (size - 1) / 2.0
    rank_sum = float(mean_rank[group[positive]].sum())
    return (rank_sum - num_positive * (num_positive + 1) / 2.0) / (num_positive * num_negative)


def _binned(scores: Float32Array, positive: BoolArray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many positive and negative rows have a score in each bin; NaN counts as 0."""
    finite = np.clip(np.nan_to_num(scores.astype(np.float64), nan=0.0), -1e30, 1e30)
    root = np.sqrt(np.abs(finite))
    share = 0.5 + 0.5 * np.sign(finite) * root / (1.0 + root)
    bins = np.minimum((share * SCORE_BINS).astype(np.int64), SCORE_BINS - 1)
    counts = [np.bincount(bins[rows], minlength=SCORE_BINS) for rows in (positive, ~positive)]
    return tuple(int(each) for each in counts[0]), tuple(int(each) for each in counts[1])


def _area_of_bins(positive: Sequence[int], negative: Sequence[int]) -> float:
    """Return the area under the ROC curve, with the scores of a bin counted as ties, each by half."""
    area, below = 0.0, 0
    for above, others in zip(positive, negative, strict=True):
        area += above * (below + others / 2)
        below += others
    return area / (sum(positive) * below)
