"""The data of ``peers.py``: random rows, written in EPS's format and as raw arrays for the peers.

Each row has eleven values.  Features follow a power law: the k-th most frequent of F features has a probability
proportional to 1/k.  Their numbers are permuted at random.  With 10 million features, 100 thousand rows touch about 369
thousand of them, and 200 thousand rows 644 thousand, similar to kdd2012.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.sparse import _sparsetools

#: Goes up when the files of the same case change.
VERSION = 1
NONZEROS = 11
WORKERS = 2


@dataclass(frozen=True)
class Case:
    """One data set and how it is trained."""

    name: str
    num_features: int
    rows_per_worker: int
    #: Whether only the features that rows touch are exchanged, or all parameters.
    sparse: bool
    learning_rate: float
    seed: int = 7

    @property
    def num_rows(self) -> int:
        """Rows over all workers."""
        return self.rows_per_worker * WORKERS


CASES = (
    Case("dense", num_features=1_000_000, rows_per_worker=20_000, sparse=False, learning_rate=10.0),
    Case("sparse", num_features=10_000_000, rows_per_worker=100_000, sparse=True, learning_rate=10.0),
)


@dataclass(frozen=True)
class CaseFiles:
    """The files of a case: ``X.npz`` and ``y.npy`` for EPS, ``*.RANK.bin`` for the peers."""

    case: Case
    folder: Path
    #: Number of features touched by each worker's rows, and by all rows.
    touched: tuple[int, ...]
    union: int

    @property
    def matrix(self) -> Path:
        """File of all rows, as SciPy CSR."""
        return self.folder / "X.npz"

    @property
    def labels(self) -> Path:
        """File of all labels, 0 or 1."""
        return self.folder / "y.npy"


def draw(case: Case) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Return rows, float32 CSR with sorted columns, and labels, shape (n,), float32, 0 or 1."""
    rng = np.random.default_rng(case.seed)
    count = case.num_rows * NONZEROS
    ranks = np.exp(rng.random(count) * np.log(case.num_features)).astype(np.int64) - 1
    numbers = rng.permutation(case.num_features)
    columns = numbers[np.minimum(ranks, case.num_features - 1)]
    values = (rng.uniform(0.5, 1.5, count) / np.sqrt(NONZEROS)).astype(np.float32)
    rows = np.arange(case.num_rows + 1) * NONZEROS
    X = sparse.csr_matrix((values, columns, rows), shape=(case.num_rows, case.num_features))
    X.sum_duplicates()
    truth = (2 * rng.standard_normal(case.num_features)).astype(np.float32)
    chances = 1 / (1 + np.exp(-(X @ truth).astype(np.float64)))
    return X, (rng.random(case.num_rows) < chances).astype(np.float32)


def prepare(case: Case, cache: Path) -> CaseFiles:
    """Return the files of a case, from ``cache`` if present."""
    folder = cache / f"data-{case.name}-{case.num_features}-{case.num_rows}-{case.seed}-v{VERSION}"
    if not (folder / "info.json").is_file():
        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".data-", dir=cache))
        try:
            _write(case, made)
            os.rename(made, folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    info = json.loads((folder / "info.json").read_text(encoding="utf-8"))
    return CaseFiles(case, folder, tuple(info["touched"]), info["union"])


def _write(case: Case, folder: Path) -> None:
    X, y = draw(case)
    sparse.save_npz(folder / "X.npz", X, compressed=False)
    np.save(folder / "y.npy", y)
    all_keys = []
    for rank in range(WORKERS):
        mine = slice(rank * case.rows_per_worker, (rank + 1) * case.rows_per_worker)
        rows = X[mine]
        keys = np.unique(rows.indices).astype(np.int64)
        all_keys.append(keys)
        arrays = {
            "indptr": rows.indptr.astype(np.int32),
            "columns": rows.indices.astype(np.int32),
            "local": np.searchsorted(keys, rows.indices).astype(np.int32),
            "values": rows.data.astype(np.float32),
            "labels": y[mine],
            "keys": keys,
        }
        for name, array in arrays.items():
            array.tofile(folder / f"{name}.{rank}.bin")
    union = np.unique(np.concatenate(all_keys))
    info = {"case": asdict(case), "touched": [len(keys) for keys in all_keys], "union": len(union)}
    (folder / "info.json").write_text(json.dumps(info), encoding="utf-8")


def oracle(files: CaseFiles, iterations: int) -> float:
    """Return the mean loss after ``iterations``, computed in this process with float64 parameters."""
    case = files.case
    X, y = sparse.load_npz(files.matrix), np.load(files.labels).astype(np.float64)
    keys, columns = np.unique(X.indices, return_inverse=True)
    n, d = case.num_rows, len(keys)
    indptr, columns, values = X.indptr.astype(np.int32), columns.astype(np.int32), X.data.astype(np.float64)
    weights = np.zeros(d)

    def scores() -> np.ndarray:
        z = np.zeros(n)
        _sparsetools.csr_matvec(n, d, indptr, columns, values, weights, z)
        return z

    for _ in range(iterations):
        residuals = 1 / (1 + np.exp(-scores())) - y
        gradient = np.zeros(d)
        _sparsetools.csc_matvec(d, n, indptr, columns, values, residuals, gradient)
        weights -= case.learning_rate / n * gradient
    return float(np.logaddexp(0, -(2 * y - 1) * scores()).mean())
