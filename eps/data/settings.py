"""A job's data settings, validated on creation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from eps.errors import ConfigError
from eps.system.nearest import one_of

Task = Literal["binary", "multiclass", "regression", "topics"]

TASKS = ("binary", "multiclass", "regression", "topics")
FORMATS = ("auto", "libsvm", "csv", "dense", "npz", "npy", "idx", "text", "ratings", "docword", "ldac", "sklearn")
NORMALIZATIONS = ("none", "l2", "standard", "tfidf", "binary")
INDEX_BASES = ("auto", "0", "1")
#: ``test`` with this prefix takes the last rows of the file: ``last:5000``.
LAST_ROWS_PREFIX = "last:"


@dataclass(frozen=True, slots=True)
class DataSettings:
    """The location of the data, how to read it, and how to divide and cut it.

    Nothing here depends on the number of workers or servers.

    Raises
    ------
    ConfigError
        A value is invalid.
    """

    #: A path, paths separated by commas (text, one class per file), or ``sklearn:NAME``.
    data: str
    task: Task
    #: Number of splits of the training data, at least one.
    num_splits: int
    #: Seed of the division into training and test rows and of the order of the training rows.
    seed: int = 0
    #: Label file, if ``data`` holds features only.
    labels: str | None = None
    #: A path, a fraction of the rows (``0.2``), the last rows (``last:5000``), or None.
    test: str | None = None
    #: Label file of ``test``.
    test_labels: str | None = None
    #: Number of folds of a cross-validation; fold ``fold`` is the test set.
    folds: int | None = None
    fold: int = 0
    format: str = "auto"
    #: Width (LIBSVM, sparse), required width (dense), or number of hash buckets (text).
    features: int | None = None
    #: See :func:`eps.data.table.parse_table`.
    label_column: str = "auto"
    #: Feature columns of a table to keep, by name or number from 0; empty keeps all.
    columns: tuple[str, ...] = ()
    delimiter: str = "auto"
    #: Number of the first feature of LIBSVM files: "auto", "0" or "1".
    index_base: str = "auto"
    normalize: str = "none"
    #: A regression's labels are divided by this.
    target_scale: float = 1.0
    #: The mean of the training labels is subtracted from all labels of a regression; of ratings always.
    centred: bool = False

    def __post_init__(self) -> None:
        if not self.data:
            raise ConfigError("data is empty, but must be a path or sklearn:NAME: --data is required")
        if not self.target_scale or self.target_scale != self.target_scale:
            raise ConfigError(f"target_scale is {self.target_scale}, but labels are divided by it")
        _check_choice("task", self.task, TASKS)
        if self.target_scale != 1 and self.task != "regression":
            raise ConfigError(
                f"target_scale is {self.target_scale}, but only a regression's labels are divided by it: leave it out"
            )
        _check_choice("format", self.format, FORMATS)
        _check_choice("normalize", self.normalize, NORMALIZATIONS)
        _check_choice("index_base", self.index_base, INDEX_BASES)
        if self.format == "ratings" and self.normalize != "none":
            raise ConfigError(f"normalize is {self.normalize!r}, but ratings are not normalised: leave it out")
        if self.num_splits < 1:
            raise ConfigError(f"splits is {self.num_splits}, but must be at least 1")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}, but must be in 0 .. 2^63 - 1")
        if self.features is not None and self.features < 1:
            raise ConfigError(f"features is {self.features}, but must be at least 1")
        if self.folds is not None and self.folds < 2:
            raise ConfigError(f"folds is {self.folds}, but must be at least 2")
        if self.folds is None and self.fold != 0:
            raise ConfigError(f"fold is {self.fold}, but there are no folds: set the number of folds")
        if self.folds is not None and not 0 <= self.fold < self.folds:
            raise ConfigError(f"fold is {self.fold}, but must be in 0 .. {self.folds - 1}")
        if self.folds is not None and self.test is not None:
            raise ConfigError(f"both folds ({self.folds}) and test ({self.test!r}) are set, but only one may be")
        if self.test_labels is not None and self.test_path is None:
            raise ConfigError(f"test labels is {self.test_labels!r}, but test is not a file: {self.test!r}")
        _ = self.test_fraction, self.last_rows

    @property
    def test_fraction(self) -> float | None:
        """Part of the rows for the test set, if ``test`` is a number.

        Raises
        ------
        ConfigError
            The number is not between 0 and 1.
        """
        if self.test is None:
            return None
        try:
            fraction = float(self.test)
        except ValueError:
            return None
        if not 0 < fraction < 1:
            raise ConfigError(f"test is {self.test}, but a fraction must be above 0 and below 1")
        return fraction

    @property
    def last_rows(self) -> int | None:
        """Number of last rows for the test set, if ``test`` is ``last:N``."""
        if self.test is None or not self.test.startswith(LAST_ROWS_PREFIX):
            return None
        count = self.test.removeprefix(LAST_ROWS_PREFIX)
        if not count.isdecimal() or int(count) < 1:
            raise ConfigError(f"test is {self.test!r}, but must be last:N with N at least 1")
        return int(count)

    @property
    def test_path(self) -> str | None:
        """The test file, if ``test`` is a path."""
        return self.test if self.test_fraction is None and self.last_rows is None else None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**asdict(self), "columns": list(self.columns)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DataSettings:
        """Return settings with these values.

        Raises
        ------
        ConfigError
            A name is unknown or missing, or a value is invalid.
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ConfigError(f"unknown data settings {', '.join(unknown)}: must be among {', '.join(known)}")
        missing = [name for name in ("data", "task", "num_splits") if name not in values]
        if missing:
            raise ConfigError(f"data settings lack {', '.join(missing)}")
        return cls(**{**values, "columns": tuple(values.get("columns", ()))})


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{what} is {value!r}, but must be {one_of(value, choices)}")
