"""What must be set, and what is imported, before the first fork.  L2; imports nothing heavy itself."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, MutableMapping
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
#: What concerns members in containers of a runtime, too.  OpenBLAS rounds as the kernel does that it chooses: members
#: on which another one was forced would train other bits.
PASSED_ON = ("EPS_LOG", "EPS_KERNELS", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of whoever starts a job that members in other containers must have, too."""
    return {name: environ[name] for name in PASSED_ON if name in environ}


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """Set what NumPy and gRPC read when they are imported."""
    environ.update(_FORCED)
    for name, value in _DEFAULTS.items():
        environ.setdefault(name, value)


def buffer_lines() -> None:
    """Let each line of stdout and stderr leave as soon as it is whole: whoever is killed must not take it along."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True, errors="backslashreplace")


def preload(modules: Iterable[str]) -> list[str]:
    """Import ``modules`` and freeze what they made; return a traceback for each that could not be imported.

    A module that fails here fails again, with its traceback in the log, in the container that needs it.
    """
    failures = []
    # What modules make stays: a tenth of the time would go into looking through it again and again.
    gc.disable()
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:
            failures.append(f"{name} could not be imported:\n{traceback.format_exc()}")
    # Collections in children would otherwise write to, and so copy, every page of what is shared.
    gc.collect()
    gc.freeze()
    gc.enable()
    return failures


def num_threads() -> int:
    """Return how many threads this process has."""
    return len(os.listdir(Path("/proc/self/task")))
