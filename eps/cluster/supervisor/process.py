"""A process of a job: its context, the environment and imports before the fork, and the call of its entry function.

This module imports nothing heavy: variables that NumPy and gRPC read must be set before their import.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import os
import signal as signals
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

#: Role, and container id, of the job master.
MASTER = "master"
#: Role whose entry function the supervisor calls before it forks, with the job's runtime values.
SUPERVISOR = "supervisor"
#: The signal that ends a container's process at once.  SIGTERM, which others send, may be a warning to it.
END = signals.SIGHUP
#: Environment of a container that no supervisor forked; see ``eps.cluster.container``.
ROLE, CONTAINER_ID, JOB_DIR = "EPS_ROLE", "EPS_CONTAINER_ID", "EPS_JOB_DIR"
MASTER_ADDRESS, HOST, TIED = "EPS_MASTER_ADDRESS", "EPS_HOST", "EPS_TIED"

#: Imported once, in the supervisor, so that containers start without these imports.
PRELOAD: tuple[str, ...] = ("numpy", "scipy.sparse", "grpc")

#: A BLAS pool would mean threads before the fork, and more threads than cores after it.
_FORCED = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # gRPC needs its fork handlers only if it was used before the fork; the supervisor never uses it.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
_DEFAULTS = {"GRPC_VERBOSITY": "ERROR"}
#: Variables that members in containers of a runtime need too.  OpenBLAS rounds differently with each kernel, so a
#: member with another kernel would train other bits.
PASSED_ON = ("EPS_LOG", "EPS_KERNELS", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")

_PR_SET_PDEATHSIG = 1
#: Loaded before the fork: the child must request its death signal without delay.
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class ContainerContext:
    """The argument of an entry function."""

    #: Absolute.
    job_dir: Path
    #: ``master``, ``server`` or ``worker``.
    role: str
    container_id: str
    #: Address of the job master's control plane, from ``EPS_MASTER_ADDRESS``; None for the master.
    master_address: str | None = None
    #: Open descriptor of the channel to the supervisor; only the master has it.
    supervisor_fd: int | None = None
    #: Variables of the launch request, already in ``os.environ``.
    env: Mapping[str, str] = field(default_factory=dict)
    #: Running containers -> pid; empty unless this master replaces another.
    running: Mapping[str, int] = field(default_factory=dict)
    #: Role -> ``module:function``, for a master that starts containers in a runtime.
    entry_points: Mapping[str, str] = field(default_factory=dict)
    #: The container's own directory; removed when the container ends.
    scratch_dir: Path | None = None
    #: Name or address under which others reach this container, and on which it listens if members use TCP.
    host: str = "127.0.0.1"


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the starting process that members in other containers need too."""
    return {name: environ[name] for name in PASSED_ON if name in environ}


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """Set the variables that NumPy and gRPC read during their import."""
    environ.update(_FORCED)
    for name, value in _DEFAULTS.items():
        environ.setdefault(name, value)


def buffer_lines() -> None:
    """Flush stdout and stderr after each line, so that a killed process does not lose any."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True, errors="backslashreplace")


def preload(modules: Iterable[str]) -> list[str]:
    """Import ``modules`` and freeze their objects; return a traceback for each failed import.

    A failed module fails again, with its traceback in the log, in the container that needs it.
    """
    failures = []
    # Objects of modules live on; collections during the imports would cost a tenth of the time.
    gc.disable()
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:
            failures.append(f"{name} could not be imported:\n{traceback.format_exc()}")
    # Otherwise, collections in children would write to, and so copy, all shared pages.
    gc.collect()
    gc.freeze()
    gc.enable()
    return failures


def num_threads() -> int:
    """Return the number of threads of this process."""
    return len(os.listdir(Path("/proc/self/task")))


def run_child(
    context: ContainerContext,
    entry: str,
    *,
    log_path: Path,
    parent_pid: int,
    reset_signals: Iterable[signals.Signals],
) -> NoReturn:
    """Become the process of a container: run ``entry``, then exit.

    Parameters
    ----------
    context : ContainerContext
        Argument of the entry function.
    entry : str
        ``module:function``.
    log_path : Path
        File for stdout and stderr.
    parent_pid : int
        The supervisor; this process ends with it.
    reset_signals : iterable of Signals
        Signals that the supervisor handles, blocked since before the fork.
    """

    def become() -> int:
        die_with_parent(parent_pid)
        with suppress(OSError):
            os.setpgid(0, 0)
        _take_files(log_path, keep=context.supervisor_fd)
        signals.set_wakeup_fd(-1)
        return run_entry(context, entry, reset_signals)

    exit_with(become)


def run_entry(context: ContainerContext, entry: str, reset_signals: Iterable[signals.Signals]) -> int:
    """Run ``entry`` as the process of a container and return its exit code; see :func:`run_child`."""
    for number in reset_signals:
        signals.signal(number, signals.SIG_DFL)
    signals.pthread_sigmask(signals.SIG_UNBLOCK, reset_signals)
    faulthandler.enable()
    os.environ.update(context.env)
    if context.scratch_dir is not None:
        context.scratch_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _exit_code(load_entry(entry), context)


def exit_with(body: Callable[[], int]) -> NoReturn:
    """Run ``body`` and end this process with its return value; with 1 and a traceback if it raised."""
    code = 1
    # ``finally`` always ends the process: a forked one must never return into the supervisor's loop.
    try:
        code = body()
    except BaseException:
        with suppress(Exception):
            traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        # Not ``sys.exit``: it would run the supervisor's exit handlers and wait for remaining threads.
        os._exit(code)


def load_entry(entry: str) -> Callable[..., object]:
    """Return the function that ``module:function`` names."""
    module, _, name = entry.partition(":")
    function: Callable[..., object] = getattr(importlib.import_module(module), name)
    return function


def _exit_code(function: Callable[[ContainerContext], object], context: ContainerContext) -> int:
    try:
        result = function(context)
    except SystemExit as end:
        result = end.code
    if result is None:
        return 0
    if isinstance(result, int):
        return result & 0xFF
    print(result, file=sys.stderr)
    return 1


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    if _libc.prctl(_PR_SET_PDEATHSIG, int(signals.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # If the parent died before the call, no signal will come.
    if os.getppid() != parent_pid:
        os._exit(1)


def _take_files(log_path: Path, keep: int | None) -> None:
    """Redirect stdin, stdout and stderr, and close all other descriptors of the supervisor but ``keep``."""
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for text in os.listdir("/proc/self/fd"):
        fd = int(text)
        if fd > 2 and fd != keep:
            # The listing's own descriptor is closed by now.
            with suppress(OSError):
                os.close(fd)
