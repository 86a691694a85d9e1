"""Trained models as files: ``model.npz`` with one array per tensor and a description of how to use them.

Readable without EPS: ``numpy.load`` gives the tensors by name, and ``__meta__`` is JSON as bytes.  Nothing is pickled,
and the same model gives the same file.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eps.data.dataset import open_dataset
from eps.data.normalize import Normalizer
from eps.data.numpy_files import write_npz
from eps.data.raw import Label
from eps.data.settings import DataSettings
from eps.errors import ConfigError, DataError, EpsError, StorageAwayError, StorageError
from eps.ml.models import Model, load_model
from eps.spec.runtime import Runtime, model_options
from eps.storage.atomic import PUBLIC_MODE, atomic_writer
from eps.storage.locations import Location, read_file

META = "__meta__"
NORMALIZER_PREFIX = "__normalizer_"
FORMAT_VERSION = 1
#: Settings of the training data for reading new rows; without its location, which is private.
READING = ("task", "format", "label_column", "columns", "delimiter", "index_base", "normalize", "features")


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """A trained model, as read from its file."""

    #: ``logistic``, or ``path.py:Class``.
    name: str
    options: Mapping[str, Any]
    intercept: bool
    num_features: int
    num_outputs: int
    #: What the outputs of a classifier stand for; empty for regression.
    classes: tuple[Label, ...]
    #: Names of the columns trained on, in their order; empty where they had none.
    feature_names: tuple[str, ...]
    #: How to read new rows, as :meth:`eps.data.settings.DataSettings.to_dict` gives it; without paths.
    reading: Mapping[str, Any]
    #: What was done to the rows trained on, and is to be done to new ones.
    normalizer: Normalizer
    #: A regression's labels were divided by this.
    target_scale: float
    #: In declared order, float32.
    tensors: Mapping[str, NDArray[np.float32]]
    sha256: str

    def data_settings(self, data: str, format: str = "") -> DataSettings:
        """Return the settings to read new rows of ``data`` with; ``format`` where it is not that of training."""
        changed = {"format": format} if format else {}
        return DataSettings.from_dict({**self.reading, **changed, "data": data, "num_splits": 1})

    def make_model(self, name: str = "") -> Model:
        """Return the model, ready to predict.

        Parameters
        ----------
        name : str, optional
            Where to find a user's own class, ``path.py:Class``, if it is no longer where it was in training.

        Raises
        ------
        ConfigError
            The class cannot be loaded.
        DataError
            The tensors are not those of the class.
        """
        try:
            cls = load_model(name or self.name)
        except ConfigError as error:
            if name:
                raise
            raise ConfigError(f"{error}: if it has moved, give it with --code (code=)") from error
        model = cls(self.num_features, self.num_outputs, intercept=self.intercept, **self.options)
        declared = [(t.name, t.shape) for t in model.tensors()]
        found = [(n, array.shape) for n, array in self.tensors.items()]
        if declared != found:
            raise DataError(f"model {name or self.name} has tensors {_shown(declared)}; the export has {_shown(found)}")
        return model


def model_sha256(arrays: Iterable[NDArray[Any]]) -> str:
    """Return the SHA-256, in hex, of tensors in declared order: float32, little-endian, rows first."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype="<f4").reshape(-1).data)
    return digest.hexdigest()


def write_model(path: Path, runtime: Runtime, tensors: Mapping[str, NDArray[Any]]) -> str:
    """Write a trained model to ``path``, whole or not at all, and return its :func:`model_sha256`.

    A value that is not a number (``--on-divergence continue``) is written with the bits of NumPy's: those that it had
    came of the instructions that computed it, and differ between the kernels.

    Parameters
    ----------
    path : Path
    runtime : Runtime
        Its prepared data set knows the classes and the normalisation.
    tensors : mapping of str to ndarray
        All that the model declares, as ``runtime.key_space.unpack`` gives them.

    Raises
    ------
    StorageError
        The data set cannot be read, or the file cannot be written.
    """
    info = open_dataset(runtime.dataset_dir)
    normalizer = info.load_normalizer().to_arrays()
    ordered = {t.name: _with_one_nan(tensors[t.name]).reshape(t.shape) for t in runtime.key_space.tensors}
    settings = info.settings.to_dict()
    meta = {
        "version": FORMAT_VERSION,
        # The job's copy of a user's file goes with the job.
        "model": runtime.model_source or runtime.spec.model,
        "options": model_options(runtime.spec),
        "intercept": runtime.spec.intercept,
        "num_features": runtime.shape.num_features,
        "num_outputs": runtime.shape.num_outputs,
        "classes": list(info.classes),
        "feature_names": list(info.feature_names or ()),
        "reading": {name: settings[name] for name in READING if name in settings},
        "normalizer": [f"{NORMALIZER_PREFIX}{name}__" for name in normalizer],
        "target_scale": runtime.spec.reading.target_scale,
        "tensors": [[name, list(array.shape)] for name, array in ordered.items()],
    }
    arrays = {META: np.frombuffer(json.dumps(meta, sort_keys=True).encode("utf-8"), np.uint8), **ordered}
    arrays.update({f"{NORMALIZER_PREFIX}{name}__": array for name, array in normalizer.items()})
    with atomic_writer(path, mode=PUBLIC_MODE) as file:
        write_npz(file, arrays)
    return model_sha256(ordered.values())


def _with_one_nan(values: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(values, dtype="<f4")
    # The smallest value is NaN where any is; what is well needs neither a mask nor a copy.
    if np.isnan(array.min(initial=0.0)):
        array = np.where(np.isnan(array), np.array(np.nan, "<f4"), array)
    return array


def read_model(path: Location) -> ExportedModel:
    """Return the model in ``path``.

    Raises
    ------
    DataError
        There is no such file, it cannot be read, or it is not an exported model.
    StorageAwayError
        It is on HDFS, which cannot be reached.
    """
    try:
        # Opened here: numpy leaves a damaged archive open.
        with read_file(path) as file:
            # Of anything else NumPy says how to have it run what is in it.
            if not zipfile.is_zipfile(file):
                raise DataError("not a model exported by EPS: it is no archive of arrays")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                return _read(archive)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file: expected a model exported by EPS") from None
    except StorageAwayError:
        raise
    except StorageError as error:
        raise DataError(str(error)) from error
    except EpsError as error:
        raise DataError(f"{path}: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not a model exported by EPS: {error}") from error


def _read(archive: Any) -> ExportedModel:
    meta = json.loads(archive[META].tobytes().decode("utf-8"))
    if meta["version"] != FORMAT_VERSION:
        raise DataError(f"export of version {meta['version']}, but this EPS reads version {FORMAT_VERSION}")
    tensors = {}
    for name, shape in meta["tensors"]:
        array = archive[name]
        if array.shape != tuple(shape) or array.dtype != np.float32:
            raise DataError(f"tensor {name!r} is {array.dtype} {array.shape}, but was declared float32 {tuple(shape)}")
        tensors[name] = array
    normalizer = {name[len(NORMALIZER_PREFIX) : -2]: archive[name] for name in meta["normalizer"]}
    return ExportedModel(
        name=meta["model"],
        options=meta["options"],
        intercept=bool(meta["intercept"]),
        num_features=int(meta["num_features"]),
        num_outputs=int(meta["num_outputs"]),
        classes=tuple(meta["classes"]),
        # Models of earlier versions have none.
        feature_names=tuple(meta.get("feature_names", ())),
        reading=meta["reading"],
        normalizer=Normalizer.from_arrays(normalizer),
        target_scale=float(meta["target_scale"]),
        tensors=tensors,
        sha256=model_sha256(tensors.values()),
    )


def _shown(tensors: list[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in tensors)
