"""Predicting with an exported model: new rows are read and normalised exactly as those it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eps.data.cut import load_for_prediction
from eps.data.formats import is_builtin
from eps.data.raw import Label
from eps.ml.metrics import exact_metrics
from eps.spec.model_file import ExportedModel, read_model
from eps.storage.locations import Location, location, write_public


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says about new rows."""

    #: One for each row: its class, or a value in the units of the labels.
    values: Sequence[Label]
    #: Shape (n,) or (n, k), float32: above 0 is the second of two classes, the largest of several wins.
    scores: NDArray[np.float32]
    #: Where the rows have labels; empty where not.
    metrics: dict[str, float]


def predict(
    model: ExportedModel | str | Path, data: str, labels: str = "", *, code: str = "", format: str = ""
) -> Prediction:
    """Return what a model says about the rows of a file.

    Parameters
    ----------
    model : ExportedModel or path
        May be on HDFS, as the data may.
    data : str
        A file as in training, or ``sklearn:NAME``.
    labels : str, optional
        File of labels, where they are not in the data.
    code : str, optional
        ``path.py:Class``, where the file of a user's own model is no longer where it was.
    format : str, optional
        Format of the data, where it is another than that of the training data.

    Raises
    ------
    DataError
        The model or the data cannot be used.
    ConfigError
        The class of the model cannot be loaded.
    """
    exported = model if isinstance(model, ExportedModel) else read_model(location(model))
    maker = exported.make_model(code)
    settings = exported.data_settings(data, format or ("sklearn" if is_builtin(data) else ""))
    loaded = load_for_prediction(
        data, settings, exported.normalizer, exported.num_features, exported.classes, labels=labels or None
    )
    scores = maker.decision(exported.tensors, loaded.X)
    task = maker.task_for(maker.chosen)
    metrics = {} if loaded.y is None else exact_metrics(task, scores, loaded.y)
    values: list[Any]
    if task == "regression":
        values = (scores.astype(np.float64) * exported.target_scale).tolist()
    else:
        chosen = (scores > 0).astype(np.int64) if task == "binary" else np.argmax(scores, axis=1)
        values = [exported.classes[i] for i in chosen.tolist()]
    return Prediction(values, scores, metrics)


def values_text(values: Sequence[Label]) -> str:
    """Return one value a line; numbers with all the digits of a float32."""
    return "".join(f"{value:.9g}\n" if isinstance(value, float) else f"{value}\n" for value in values)


def write_values(path: Location, values: Sequence[Label]) -> None:
    """Write one value a line.

    Raises
    ------
    StorageError
        The file cannot be written.
    """
    write_public(path, values_text(values).encode("utf-8"))
