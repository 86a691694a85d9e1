"""The problem that every peer solves: logistic regression on rows of a file, with the fastest kernels found.

The scripts beside it import it in the benchmark's own environment, so it uses only NumPy and SciPy, nothing of EPS.

Kernels: SciPy's compiled ``csr_matvec`` computes the scores, ``csc_matvec`` the gradient, both into reused memory.
Others were measured on one thread, with 20 thousand and 100 thousand rows of 11 values.  PyTorch's sparse product takes
1.0 to 1.6 times as long for the scores.  A transposed copy of the rows takes 2 to 5 times as long for the gradient.
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import _sparsetools

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep_memory() -> None:
    """Let malloc keep freed memory, instead of mapping and unmapping every large array (glibc only)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_TOP_PAD, 64 << 20)


@dataclass(frozen=True)
class Task:
    """The settings of one run; the benchmark writes them as JSON."""

    #: Folder with the rows of each worker as raw arrays.
    data: Path
    #: Folder for results and meeting points.
    folder: Path
    sparse: bool
    num_workers: int
    #: Parameters of the whole model.
    num_features: int
    #: Rows over all workers.
    num_rows: int
    learning_rate: float
    #: Iterations before the clock starts, and those that are measured.
    warm_up: int
    iterations: int
    deadline_s: float
    #: Pieces in which a peer exchanges the vector, if it can.
    pieces: int

    @classmethod
    def read(cls, path: Path) -> Task:
        """Return the task of a file."""
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**values, "data": Path(values["data"]), "folder": Path(values["folder"])})

    @property
    def step(self) -> np.float32:
        """Factor of a summed gradient: the learning rate over the rows of the iteration."""
        return np.float32(self.learning_rate / self.num_rows)

    def keys(self, rank: int) -> np.ndarray:
        """Return the features that a worker's rows touch, ascending, int64."""
        return np.fromfile(self.data / f"keys.{rank}.bin", np.int64)

    def report(self, rank: int, **values: float) -> None:
        """Write the results of one process."""
        (self.folder / f"result.{rank}.json").write_text(json.dumps({"rank": rank, **values}), encoding="utf-8")


@dataclass
class Rows:
    """The rows of one worker as CSR, with columns of a vector of ``width`` parameters.

    Shapes: ``indptr`` (n + 1,), int32; ``columns`` and ``values`` (nonzeros,), int32 and float32; ``labels`` (n,),
    float32, 0 or 1.
    """

    indptr: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    labels: np.ndarray
    width: int
    _scores: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self._scores = np.empty(len(self.labels), np.float32)

    @classmethod
    def read(cls, task: Task, rank: int) -> Rows:
        """Read a worker's rows; sparse ones have the positions in :meth:`Task.keys` as columns."""

        def array(name: str, dtype: type) -> np.ndarray:
            return np.fromfile(task.data / f"{name}.{rank}.bin", dtype)

        width = len(task.keys(rank)) if task.sparse else task.num_features
        columns = array("local" if task.sparse else "columns", np.int32)
        return cls(array("indptr", np.int32), columns, array("values", np.float32), array("labels", np.float32), width)

    def scores(self, weights: np.ndarray) -> np.ndarray:
        """Return ``X w``, shape (n,), in memory that the next call overwrites."""
        self._scores.fill(0)
        n = len(self.labels)
        _sparsetools.csr_matvec(n, self.width, self.indptr, self.columns, self.values, weights, self._scores)
        return self._scores

    def residuals(self, weights: np.ndarray) -> np.ndarray:
        """Return ``sigmoid(X w) - y``, shape (n,), in memory that the next call overwrites."""
        z = self.scores(weights)
        np.negative(z, out=z)
        np.exp(z, out=z)
        z += 1
        np.reciprocal(z, out=z)
        z -= self.labels
        return z

    def gradient(self, weights: np.ndarray, out: np.ndarray) -> None:
        """Write the gradient summed over the rows to ``out``, shape (width,)."""
        self.scatter(self.residuals(weights), out)

    def scatter(self, residuals: np.ndarray, out: np.ndarray) -> None:
        """Write ``X^T r`` to ``out``, shape (width,)."""
        out.fill(0)
        n = len(self.labels)
        _sparsetools.csc_matvec(self.width, n, self.indptr, self.columns, self.values, residuals, out)

    def loss(self, weights: np.ndarray) -> float:
        """Return the loss summed over the rows."""
        margins = (2 * self.labels - 1).astype(np.float64) * self.scores(weights)
        return float(np.logaddexp(0, -margins).sum())
