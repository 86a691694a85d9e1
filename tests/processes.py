"""Processes that tests find and strike, each known by its pid and the moment of its start."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eps.cluster.devcluster.lifecycle import processes_with

#: What was killed is gone after this long, also on a busy machine.
GONE_S = 20.0


@dataclass(frozen=True, slots=True)
class Process:
    """A process: its pid alone may have been given to another one."""

    pid: int
    #: In ticks since the host was booted; -1 of one that has ended.
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return the process that has a pid now."""
        return cls(pid, _started_at(pid))

    def is_alive(self) -> bool:
        """Return whether it runs; a zombie does not."""
        return _started_at(self.pid) == self.started >= 0

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False where the process has gone."""
        if not self.is_alive():
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; False where it has not in ``timeout_s``."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            return not self.is_alive() or bool(poll.poll(timeout_s * 1000))
        finally:
            os.close(fd)


def _started_at(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return -1
    # The command stands in parentheses and may hold some itself.
    state, *fields = stat.rpartition(")")[2].split()
    return -1 if state in "ZX" else int(fields[18])


def kill_all(processes: Sequence[Process]) -> None:
    """Kill processes (SIGKILL), and wait until they are gone."""
    for process in processes:
        process.send(signal.SIGKILL)
    for process in processes:
        assert process.wait(GONE_S), process


def with_variable(name: str, beginning: str) -> list[Process]:
    """Return our user's processes in whose environment ``name`` has a value that begins so."""
    return [Process.of(pid) for pid in processes_with("environ", f"{name}={beginning}")]
