"""Loading new rows for a trained model, exactly as its training data was loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from eps.data.cut import load_as
from eps.data.normalize import Normalizer
from eps.data.raw import Label, Matrix
from eps.data.settings import DataSettings
from eps.data.targets import encode, find_labels
from eps.errors import DataError


@dataclass(frozen=True, eq=False)
class PredictionData:
    """Rows to predict, and their targets where the file has them."""

    #: Dense float32 or CSR float32, shape (n, num_features), normalised.
    X: Matrix
    #: As in training (int32 classes or float32 values), or None.
    y: NDArray[Any] | None


def load_for_prediction(
    path: str | Path,
    settings: DataSettings,
    normalizer: Normalizer,
    num_features: int,
    classes: Sequence[Label] = (),
    *,
    labels: str | None = None,
) -> PredictionData:
    """Load and normalise rows that a trained model is to predict.

    Parameters
    ----------
    path : str or Path
        The new file.
    settings : DataSettings
        Of the training data (``DatasetInfo.settings``, which knows the index base that was found).
    normalizer : Normalizer
        Of the training data.
    num_features : int
        Width of the model.
    classes : sequence
        Classes of the model; empty for regression.
    labels : str or None
        File of labels of the new rows.

    Returns
    -------
    PredictionData
        ``y`` is None where the file has no labels, or where one label that is no class fills the column: LIBSVM
        has no way to leave it out, so people write 0.

    Raises
    ------
    DataError
        The file is missing or malformed, is wider than the model, or mixes classes with labels that are none.
    """
    format = "auto" if settings.format == "sklearn" else settings.format
    settings = replace(settings, features=num_features, format=format)
    raw = load_as(settings, str(path), labels, labels_optional=True)
    if raw.num_features != num_features:
        raise DataError(f"{path}: {raw.num_features} features: the model has {num_features}")
    X = normalizer.apply(raw.X)
    if raw.y is None:
        return PredictionData(X, None)
    if settings.task != "regression":
        found = find_labels(raw)
        if len(found) == 1 and found[0] not in classes:
            return PredictionData(X, None)
    return PredictionData(X, encode(raw, settings.task, classes))
