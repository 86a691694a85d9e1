"""What must be set, and what is imported, before the first fork.  L2; imports nothing heavy itself."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from collections.abc import Iterable, MutableMapping
from pathlib import Path

#: Imported once in the supervisor, so that no container waits for them.
PRELOAD: tuple[str, ...] = ("numpy", "scipy.sparse", "grpc")

#: A BLAS pool would be threads before the fork, and more threads than cores after it.
_FORCED = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # gRPC's fork handlers are for processes that used it before they forked; the supervisor never does.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
_DEFAULTS = {"GRPC_VERBOSITY": "ERROR"}


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """Set what NumPy and gRPC read when they are imported."""
    environ.update(_FORCED)
    for name, value in _DEFAULTS.items():
        environ.setdefault(name, value)


def preload(modules: Iterable[str]) -> list[str]:
    """Import ``modules`` and freeze what they made; return a traceback for each that could not be imported.

    A module that fails here fails again, with its traceback in the log, in the container that needs it.
    """
    failures = []
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:
            failures.append(f"{name} could not be imported:\n{traceback.format_exc()}")
    # Collections in children would otherwise write to, and so copy, every page of what is shared.
    gc.collect()
    gc.freeze()
    return failures


def preload_kernels(job_json: Path) -> None:
    """Compile what a large model needs, once for all processes of the job; a job without settings needs nothing."""
    try:
        text = job_json.read_text(encoding="utf-8")
    except OSError:
        return
    import numpy as np

    from eps.errors import EpsError
    from eps.ml import kernels, steps
    from eps.runtime import Runtime

    try:
        runtime = Runtime.from_json(text)
        kernels.preload(runtime.key_space.num_keys)
        sums = runtime.grid.dtype if runtime.settings.reproducible else np.dtype(np.float32)
        steps.prepare(runtime.optimizer, sums)
    except (EpsError, ValueError, KeyError, TypeError) as error:
        # The container that needs them fails in the same way, and says so.
        print(f"eps.supervisor: no compiled kernels: {error}", file=sys.stderr)


def num_threads() -> int:
    """Return how many threads this process has."""
    return len(os.listdir(Path("/proc/self/task")))
