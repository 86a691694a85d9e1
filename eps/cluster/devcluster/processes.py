"""Processes that outlive the command that starts them, and that are only ever ended by name and birth.

A process is its pid and the moment of its start: a pid alone may be somebody else's by now.  Signals go to a pidfd that
was opened before the moment was compared, so that nothing can happen in between.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from eps.errors import ResourceError

#: A daemon that SIGTERM has not ended after this long is killed.
GRACE_S = 15.0
#: What was killed is gone after this long, also on a busy machine.
GONE_S = 20.0
_SPAWN_TIMEOUT_S = 30.0
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
#: Of /proc/PID/stat, counted after the command: the state, and when the process started.
_STATE, _STARTED = 0, 19
#: The shell starts the daemon in the background and goes: it is nobody's child, has no terminal, and says its pid.
_DETACH = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'


@dataclass(frozen=True, slots=True)
class Process:
    """A process on this host since it was last booted.

    Parameters
    ----------
    pid : int
    started : int
        When, in ticks since the host was booted.
    """

    pid: int
    started: int

    def is_alive(self) -> bool:
        """Return whether it runs; one that has ended and that nobody has waited for does not."""
        return started_at(self.pid) == self.started

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False where the process has gone."""
        fd = self._open()
        if fd is None:
            return False
        try:
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; False where it has not in ``timeout_s``."""
        fd = self._open()
        if fd is None:
            return True
        try:
            # A pidfd is readable as soon as its process has ended, whoever's child that was.
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            return bool(poll.poll(max(timeout_s, 0.0) * 1000))
        finally:
            os.close(fd)

    def _open(self) -> int | None:
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self.is_alive():
            return fd
        os.close(fd)
        return None


def started_at(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None where there is none, or it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command stands in parentheses and may hold some itself.
    fields = stat.rpartition(")")[2].split()
    return None if fields[_STATE] in "ZX" else int(fields[_STARTED])


def boot_id() -> str:
    """Return what changes with each boot of this host: pids and ticks of before mean nothing then."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def spawn(command: Sequence[str], environment: Mapping[str, str], log: Path, directory: Path) -> Process:
    """Start a process that no end of ours ends; what it writes is added to ``log``.

    Raises
    ------
    ResourceError
        It cannot be started.
    """
    try:
        with _uninterrupted():
            shell = subprocess.run(
                ["/bin/sh", "-c", _DETACH, "sh", str(log), *command],
                env=dict(environment),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                timeout=_SPAWN_TIMEOUT_S,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ResourceError(f"{command[0]} cannot be started: {error}") from error
    said = shell.stdout.decode(errors="replace").strip()
    if shell.returncode or not said.isdigit():
        raise ResourceError(f"{command[0]} cannot be started: {said or f'exit code {shell.returncode}'}")
    # One that has ended already has no moment of start; nobody's has it.
    return Process(int(said), started_at(int(said)) or -1)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let interrupts wait until this is over: a process that is being started has no name yet by which to end it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []
    before = {number: signal.signal(number, lambda got, _: noted.append(got)) for number in _INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in noted:
            signal.raise_signal(late)


def end_all(processes: Iterable[Process], grace_s: float) -> list[Process]:
    """End processes: SIGTERM to all, and SIGKILL to those that are left after ``grace_s``.

    Returns
    -------
    list of Process
        Those that had to be killed.

    Raises
    ------
    ResourceError
        One is still there after SIGKILL, as where it hangs in the kernel.
    """
    told = [process for process in processes if process.send(signal.SIGTERM)]
    # One that was stopped hears nothing until it goes on.
    for process in told:
        process.send(signal.SIGCONT)
    deadline = time.monotonic() + grace_s
    left = [process for process in told if not process.wait(deadline - time.monotonic())]
    kill_all(left)
    return left


def kill_all(processes: Sequence[Process]) -> None:
    """Kill processes, and wait until they are gone.

    Raises
    ------
    ResourceError
        One is still there.
    """
    for process in processes:
        process.send(signal.SIGKILL)
    deadline = time.monotonic() + GONE_S
    for process in processes:
        if not process.wait(deadline - time.monotonic()):
            raise ResourceError(f"process {process.pid} was killed, and is still there after {GONE_S:g} s")


def marked(mark: str) -> list[Process]:
    """Return our user's processes whose command line has ``mark`` as a word of its own."""
    return _having("cmdline", lambda words: mark.encode() in words)


def with_variable(name: str, value_prefix: str) -> list[Process]:
    """Return our user's processes in whose environment ``name`` has a value that begins with ``value_prefix``."""
    beginning = f"{name}={value_prefix}".encode()
    return _having("environ", lambda words: any(word.startswith(beginning) for word in words))


def _having(file: str, test: Callable[[list[bytes]], bool]) -> list[Process]:
    found = []
    for pid in _pids():
        started = started_at(pid)
        with suppress(OSError):
            if started is not None and test(Path(f"/proc/{pid}/{file}").read_bytes().split(b"\0")):
                found.append(Process(pid, started))
    return found


def _pids() -> Iterator[int]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if entry.stat().st_uid == os.getuid():
                    yield int(entry.name)
