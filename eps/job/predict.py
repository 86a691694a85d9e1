"""Predict with an exported model: read and normalise new rows exactly as in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from eps.data.arrays import matrix_of
from eps.data.cut import load_for_prediction
from eps.data.formats import is_builtin
from eps.data.ratings import RATINGS, rows_of_pairs
from eps.data.raw import Label
from eps.errors import ConfigError, DataError
from eps.ml.metrics import exact_metrics
from eps.ml.models.base import predicted, probabilities
from eps.spec.model_file import ExportedModel, read_model
from eps.storage.locations import Location, location, write_public


class TrainedModel:
    """A trained model; made by :func:`load`.

    Rows are a NumPy array, a SciPy sparse matrix or a pandas frame of shape (n, ``num_features``).  A frame may have
    further columns: the model takes its own by name.
    A model of ratings takes pairs of user and item, shape (n, 2), or a frame with such columns.
    """

    def __init__(self, exported: ExportedModel, code: str = "") -> None:
        self.exported = exported
        self._model = exported.make_model(code)
        self._task = self._model.task_for(self._model.chosen)
        self._is_of_ratings = exported.reading.get("format") == RATINGS

    def __repr__(self) -> str:
        return f"<TrainedModel {self.name} of {self.num_features} features>"

    @property
    def name(self) -> str:
        """Name of the model: ``softmax``, or ``path.py:Class``."""
        return self.exported.name

    @property
    def classes(self) -> tuple[Label, ...]:
        """Sorted classes, as in the labels of the training data; empty for regression."""
        return self.exported.classes

    @property
    def num_features(self) -> int:
        """Number of columns of its rows."""
        return self.exported.num_features

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns; empty if the training data had none."""
        return self.exported.feature_names

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of each row, or its value in the units of the labels; shape (n,).

        Raises
        ------
        DataError
            ``X`` has another number of columns, or values that are not finite.
        """
        return self.of_scores(self.scores(X))

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Return the probability of each class in :attr:`classes`; shape (n, k).

        Raises
        ------
        ConfigError
            The model has no probabilities: a regression, an svm, or a user's model without ``gives_probabilities``.
        DataError
            See :meth:`predict`.
        """
        if self._task == "regression" or not self._model.gives_probabilities:
            raise ConfigError(f"model {self.name} has no probabilities; logistic, softmax and dnn have")
        return probabilities(self.scores(X))

    def scores(self, X: Any) -> NDArray[np.float32]:
        """Return the decision scores; shape (n,), or (n, k) for several classes.

        A score above 0 means the second of two classes; of several classes the one with the largest score.  Raises the
        errors of :meth:`predict`.
        """
        if self._is_of_ratings and not sparse.issparse(X):
            X = rows_of_pairs(X, self.feature_names)
        rows, _ = matrix_of(X, "X", self.feature_names)
        if rows.shape[1] != self.num_features:
            raise DataError(f"X has {rows.shape[1]} columns, but the model was trained on {self.num_features} features")
        return self._model.decision(self.exported.tensors, self.exported.normalizer.apply(rows))

    def of_scores(self, scores: NDArray[np.float32]) -> NDArray[Any]:
        """Return the predictions of :meth:`predict` from the result of :meth:`scores`."""
        found = predicted(self._task, scores)
        if self._task == "regression":
            return (found.astype(np.float64) + self.exported.normalizer.target_mean) * self.exported.target_scale
        return np.array(self.classes)[found]

    def metrics(self, scores: NDArray[np.float32], targets: NDArray[Any]) -> dict[str, float]:
        """Return the metrics of scores in the units of training, given the classes' numbers or the values."""
        if self._task == "regression":
            scaled = np.asarray(targets, np.float64) / self.exported.target_scale
            targets = np.asarray(scaled - self.exported.normalizer.target_mean, np.float32)
        return exact_metrics(self._task, scores, targets)


def load(path: str | Path, *, code: str = "") -> TrainedModel:
    """Return the model in a file that a job has exported.

    Parameters
    ----------
    path : str or Path
        May be on HDFS.
    code : str, optional
        ``path.py:Class``: new location of a user's own model class, if its file has moved.

    Raises
    ------
    DataError
        The file does not exist, or is no exported model.
    ConfigError
        The class of the model cannot be loaded.
    """
    return TrainedModel(read_model(location(path)), code)


@dataclass(frozen=True, eq=False)
class Prediction:
    """A model's predictions for the rows of a file."""

    #: For each row its class, or a value in the units of the labels.
    values: Sequence[Label]
    #: Result of :meth:`TrainedModel.scores`.
    scores: NDArray[np.float32]
    #: Empty if the rows have no labels.
    metrics: Mapping[str, float]


def predict_file(model: TrainedModel, data: str, labels: str = "", *, format: str = "") -> Prediction:
    """Return a model's predictions for the rows of a file.

    Parameters
    ----------
    model : TrainedModel
    data : str
        A file as in training, also on HDFS, or ``sklearn:NAME``.
    labels : str, optional
        File of labels, if they are not in the data.
    format : str, optional
        Format of the data, if it differs from that of the training data.

    Raises
    ------
    DataError
        The data cannot be used.
    """
    settings = model.exported.data_settings(data, format or ("sklearn" if is_builtin(data) else ""))
    rows = load_for_prediction(
        data, settings, model.num_features, model.classes, labels=labels or None, names=model.feature_names
    )
    scores = model.scores(rows.X)
    metrics = {} if rows.y is None else model.metrics(scores, rows.y)
    return Prediction(model.of_scores(scores).tolist(), scores, metrics)


def values_text(values: Sequence[Label]) -> str:
    """Return one value a line; numbers with all digits of a float32."""
    return "".join(f"{value:.9g}\n" if isinstance(value, float) else f"{value}\n" for value in values)


def write_values(path: Location, values: Sequence[Label]) -> None:
    """Write one value a line.

    Raises
    ------
    StorageError
        The file cannot be written.
    """
    write_public(path, values_text(values).encode("utf-8"))
