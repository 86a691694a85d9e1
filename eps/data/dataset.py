"""A prepared data set: a folder of split files with ``dataset.json`` that describes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eps.data.normalize import Normalizer
from eps.data.raw import Label, Matrix
from eps.data.settings import DataSettings
from eps.data.splitfile import read_split
from eps.errors import StorageError
from eps.storage.locations import Location, RemotePath, location, read_file

#: Increased whenever equal settings and inputs would give other files.
FORMAT_VERSION = 2
INFO_NAME = "dataset.json"
NORMALIZER_NAME = "normalizer.npz"
TEST_NAME = "test.eps"


def split_name(split: int) -> str:
    """Return the file name of a split."""
    return f"split-{split:05d}.eps"


@dataclass(frozen=True)
class DatasetInfo:
    """Description of a prepared data set; independent of workers and servers."""

    #: Folder of the files; not part of the description.
    directory: Location
    #: Settings of the job, with what was detected and rows to predict might not reveal.
    settings: DataSettings
    #: SHA-256 of the settings and of the input files: equal keys mean equal files.
    key: str
    #: Training rows.
    num_rows: int
    num_features: int
    #: Sorted classes; the target of a row is a position in it.  Empty for regression.
    classes: tuple[Label, ...]
    #: Whether ``X`` of the splits is CSR and localised.
    is_sparse: bool
    #: Samples of each split: training rows, which differ by at most one, or tokens for topics.
    split_rows: tuple[int, ...]
    #: Test rows of each split; they differ by at most one and may be 0.
    split_test_rows: tuple[int, ...]
    #: SHA-256 of each split file.
    split_checksums: tuple[str, ...]
    split_size_bytes: tuple[int, ...]
    #: Names of the feature columns, if the file has a header.
    feature_names: tuple[str, ...] | None
    #: Summary of the input, for people.
    source: str

    @property
    def task(self) -> str:
        """``binary``, ``multiclass``, ``regression`` or ``topics``."""
        return self.settings.task

    @property
    def num_splits(self) -> int:
        """Number of splits of the training data."""
        return len(self.split_rows)

    @property
    def num_test_rows(self) -> int:
        """Rows of the test set; 0 if there is none."""
        return sum(self.split_test_rows)

    def split_path(self, split: int) -> Location:
        """Return the file of a split, numbered from 0."""
        return self.directory / split_name(split)

    def load_test(self) -> tuple[Matrix, NDArray[Any]]:
        """Return the whole test set at full width, normalised, in the order of the file: ``X`` and targets.

        Raises
        ------
        TransferError
            The file is damaged.
        StorageError
            The file cannot be read.
        """
        test = read_split(self.directory / TEST_NAME)
        return test.test_X, test.test_y

    def load_normalizer(self) -> Normalizer:
        """Return the normaliser for rows to predict."""
        path = self.directory / NORMALIZER_NAME
        try:
            with read_file(path) as file, np.load(file, allow_pickle=False) as arrays:
                return Normalizer.from_arrays(dict(arrays))
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(error.errno, f"{path}: cannot be read: {error.strerror}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return the description as JSON values, without the directory."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "directory"}
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        summary = {"task": self.task, "num_splits": self.num_splits, "num_test_rows": self.num_test_rows}
        return {"version": FORMAT_VERSION, **summary, **values, "settings": self.settings.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], directory: Location) -> DatasetInfo:
        """Return the description that :meth:`to_dict` returned.

        Raises
        ------
        StorageError
            The description has another version or lacks fields.
        """
        if values.get("version") != FORMAT_VERSION:
            raise StorageError(
                f"{directory}: data set of version {values.get('version')}, but must be {FORMAT_VERSION}: "
                "prepare it again"
            )
        names = [field.name for field in fields(cls) if field.name != "directory"]
        missing = [name for name in names if name not in values]
        if missing:
            raise StorageError(f"{directory}: {INFO_NAME} lacks {', '.join(missing)}: prepare it again")
        chosen: dict[str, Any] = {
            name: tuple(values[name]) if isinstance(values[name], list) else values[name] for name in names
        }
        chosen["settings"] = DataSettings.from_dict(values["settings"])
        return cls(directory=directory, **chosen)


def open_dataset(directory: Location | str) -> DatasetInfo:
    """Return the description of a prepared data set.

    Split files may be missing: a worker may hold only a few.

    Raises
    ------
    StorageError
        ``directory`` holds no data set, or its description is unusable.
    """
    place = location(directory)
    path = place / INFO_NAME
    try:
        with read_file(path) as file:
            values = json.load(file)
    except StorageError as error:
        raise StorageError(f"no prepared data set: {error}") from error
    except OSError as error:
        raise StorageError(error.errno, f"{path}: no prepared data set: {error.strerror}") from error
    except ValueError as error:
        raise StorageError(f"{path}: damaged description: {error}") from error
    return DatasetInfo.from_dict(values, place)


def is_complete(info: DatasetInfo) -> bool:
    """Return whether all files exist with their recorded sizes."""
    place = info.directory
    if isinstance(place, RemotePath):
        found = place.sizes()
        sizes = tuple(found.get(split_name(split), -1) for split in range(info.num_splits))
        return sizes == info.split_size_bytes and {NORMALIZER_NAME, TEST_NAME} <= set(found)
    try:
        sizes = tuple((place / split_name(split)).stat().st_size for split in range(info.num_splits))
    except OSError:
        return False
    others = all((place / name).is_file() for name in (NORMALIZER_NAME, TEST_NAME))
    return sizes == info.split_size_bytes and others


def relocated(info: DatasetInfo, directory: Location) -> DatasetInfo:
    """Return the description of a copy in another folder."""
    return replace(info, directory=directory)
