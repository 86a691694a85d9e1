"""Where a partition's first values come from: the seed, or an exported model."""

from __future__ import annotations

import numpy as np

from eps.errors import StorageError
from eps.spec.runtime import Runtime
from eps.storage.jobdir import JobDir


def initial_values(runtime: Runtime, start: int, stop: int) -> np.ndarray:
    """Return the values of the keys [start, stop) at clock 0, float32.

    Raises
    ------
    StorageError
        The file of the start is missing or has another size.
    """
    if not runtime.spec.init:
        return runtime.key_space.initial_values(start, stop, runtime.spec.seed)
    path = JobDir(runtime.job_dir).initial
    try:
        flat = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: cannot read the start of the parameters: {error}") from error
    if flat.shape != (runtime.key_space.num_keys,):
        raise StorageError(f"{path} has {flat.shape} values; the model has {runtime.key_space.num_keys} keys")
    return np.array(flat[start:stop], dtype=np.float32)
