"""Predict with an exported model; new rows are read and normalised like the training data."""

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
        """Name of the model, such as ``softmax`` or ``path.py:Class``."""
        return self.exported.name

    @property
    def classes(self) -> tuple[Label, ...]:
        """Sorted labels of the classes, as in the training data; empty for regression."""
        return self.exported.classes

    @property
    def num_features(self) -> int:
        """Number of columns that the model expects."""
        return self.exported.num_features

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of these columns; empty if the training data had none."""
        return self.exported.feature_names

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of each row, or its value in the units of the labels; shape (n,).

        Raises
        ------
        DataError
            ``X`` has another number of columns, or values that are not finite numbers.
        """
        return self.of_scores(self.scores(X))

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Return the probability of each class, in the order of :attr:`classes`; shape (n, k).

        Raises
        ------
        ConfigError
            The model gives no probabilities: it is a regression or an svm, or your own class does not declare them.
        DataError
            See :meth:`predict`.
        """
        if self._task == "regression" or not self._model.gives_probabilities:
            raise ConfigError(f"model {self.name} has no probabilities; logistic, softmax and dnn have")
        return probabilities(self.scores(X))

    def scores(self, X: Any) -> NDArray[np.float32]:
        """Return the decision scores of each row; errors are those of :meth:`predict`.

        Shape (n,): the value of a regression, or above 0 for the second of two classes.  Shape (n, k): one score for
        each class, the largest wins.
        """
        if self._is_of_ratings and not sparse.issparse(X):
            X = rows_of_pairs(X, self.feature_names)
        rows, _ = matrix_of(X, "X", self.feature_names)
        if rows.shape[1] != self.num_features:
            raise DataError(f"X has {rows.shape[1]} columns, but the model was trained on {self.num_features} features")
        return self._model.decision(self.exported.tensors, self.exported.normalizer.apply(rows))

    def of_scores(self, scores: NDArray[np.float32]) -> NDArray[Any]:
        """Return the predictions that belong to ``scores``."""
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
    """Load a trained model from a file that ``export`` has written.

    Parameters
    ----------
    path : str or Path
        A local file or an ``hdfs://`` URL.
    code : str, optional
        ``path.py:Class`` of your own model, if its file has moved since the training.

    Raises
    ------
    DataError
        There is no such file, or it is not an exported model.
    ConfigError
        The class of the model cannot be loaded.

    Examples
    --------
    ::

        model = eps.load("digits.npz")
        model.predict(X)
    """
    return TrainedModel(read_model(location(path)), code)


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions for new rows."""

    #: For each row its class, or a value in the units of the labels.
    values: Sequence[Label]
    #: See :meth:`TrainedModel.scores`.
    scores: NDArray[np.float32]
    #: Empty if the rows have no labels.
    metrics: Mapping[str, float]


def predict_file(model: TrainedModel, data: str, labels: str = "", *, format: str = "") -> Prediction:
    """Return predictions for the rows of a file.

    Parameters
    ----------
    model : TrainedModel
    data : str
        A local file, an ``hdfs://`` URL or ``sklearn:NAME``, as in training.
    labels : str, optional
        File of labels, if they are not in the data.
    format : str, optional
        Format of the data, if not that of the training data.

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
