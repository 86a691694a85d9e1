"""What a forked process does before, and after, its entry function.  L3."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import signal as signals
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from eps.cluster.supervisor.context import ContainerContext

_PR_SET_PDEATHSIG = 1
#: Loaded before the fork: a child that must not outlive its parent has no time to look a library up.
_libc = ctypes.CDLL(None, use_errno=True)


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
        Handed to the entry function.
    entry : str
        ``module:function``.
    log_path : Path
        Where stdout and stderr go.
    parent_pid : int
        The supervisor; this process ends with it.
    reset_signals : iterable of Signals
        What the supervisor handles, blocked since before the fork.
    """

    def become() -> int:
        _die_with_parent(parent_pid)
        with suppress(OSError):
            os.setpgid(0, 0)
        _take_files(log_path, keep=context.supervisor_fd)
        signals.set_wakeup_fd(-1)
        return run_entry(context, entry, reset_signals)

    exit_with(become)


def run_entry(context: ContainerContext, entry: str, reset_signals: Iterable[signals.Signals]) -> int:
    """Run ``entry`` as the process of a container, and return its exit code; parameters as of :func:`run_child`."""
    for number in reset_signals:
        signals.signal(number, signals.SIG_DFL)
    signals.pthread_sigmask(signals.SIG_UNBLOCK, reset_signals)
    faulthandler.enable()
    os.environ.update(context.env)
    if context.scratch_dir is not None:
        context.scratch_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _exit_code(load_entry(entry), context)


def exit_with(body: Callable[[], int]) -> NoReturn:
    """Run ``body``, then end this process with what it returned; with 1 and a traceback where it raised."""
    code = 1
    # ``finally`` ends the process whatever happens: a forked one must never return into the supervisor's loop.
    try:
        code = body()
    except BaseException:
        with suppress(Exception):
            traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        # Not ``sys.exit``: handlers that the supervisor registered for its own exit are not this process's, and threads
        # that are left must not hold it up.
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


def _die_with_parent(parent_pid: int) -> None:
    if _libc.prctl(_PR_SET_PDEATHSIG, int(signals.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have died before the call, and then no signal will come.
    if os.getppid() != parent_pid:
        os._exit(1)


def _take_files(log_path: Path, keep: int | None) -> None:
    """Point stdin, stdout and stderr elsewhere, and close whatever else the supervisor had open."""
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
