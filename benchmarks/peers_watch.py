"""Processes of a benchmark: start them, sample their processor use and that of others, end them.

The benchmark becomes the reaper of its descendants, so that orphans are found and ended, too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SAMPLE_S = 0.05
#: Interval of the search for new processes.
SCAN_S = 0.4
#: A machine is quiet if other processes use fewer cores than this.
QUIET_CORES = 0.25
END_GRACE_S = 3.0


class RunError(Exception):
    """A run of a system failed; the text says why."""


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int | None = None) -> list[int]:
    """Return the descendants of ``root`` (default: this process)."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError, ValueError, IndexError):
                fields = _stat_fields(int(entry))
                children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    waiting = [root or os.getpid()]
    while waiting:
        under = children.get(waiting.pop(), [])
        found += under
        waiting += under
    return found


def _stat_fields(pid: int) -> list[str]:
    # The name of the command may contain blanks and parentheses.
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _cpu_s(pid: int) -> float:
    fields = _stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def machine_busy_s() -> float:
    """Return the processor seconds used on this machine since it booted.

    Those of processes with a lowered priority (``nice``) do not count: they give way.
    """
    with open("/proc/stat", encoding="ascii") as stream:
        fields = [int(text) for text in stream.readline().split()[1:9]]
    _, nice, _, idle, waiting, *_ = fields
    return (sum(fields) - nice - idle - waiting) / _TICKS_PER_S


def end_descendants(keep: Sequence[int] = ()) -> None:
    """Kill all descendants of this process except those to keep, and wait until they have exited."""
    deadline = time.monotonic() + END_GRACE_S
    sent = signal.SIGTERM
    while True:
        left = [pid for pid in descendants() if pid not in keep]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, sent)
        _reap(left)
        # Orphans of the killed processes become children of this one only now, so repeat until there are none.
        if not left:
            return
        if time.monotonic() > deadline:
            if sent is signal.SIGKILL:
                if not any(_alive(pid) for pid in left):
                    return
                raise RunError(f"processes {left} cannot be ended")
            sent, deadline = signal.SIGKILL, time.monotonic() + END_GRACE_S
        time.sleep(0.02)


def _reap(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _alive(pid: int) -> bool:
    try:
        return _stat_fields(pid)[0] not in "ZX"
    except OSError:
        return False


def wait_until_quiet(patience_s: float) -> None:
    """Wait until the machine is quiet, at most ``patience_s`` seconds."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        before, began = machine_busy_s() - time.process_time(), time.monotonic()
        time.sleep(0.25)
        used = machine_busy_s() - time.process_time() - before
        if used / (time.monotonic() - began) < QUIET_CORES:
            return


@dataclass(frozen=True)
class Use:
    """Processor use during an interval."""

    #: Processor seconds of the watched processes.
    own_s: float
    #: Cores used by all other processes, on average.
    foreign_cores: float


class Watch:
    """Samples the processor time of all descendants of this process while a ``with`` block runs."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float, float]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._cpu_s: dict[int, float] = {}

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        scan_due = 0.0
        while not self._done.is_set():
            now = time.monotonic()
            if now >= scan_due:
                for pid in descendants():
                    self._cpu_s.setdefault(pid, 0.0)
                scan_due = now + SCAN_S
            for pid in self._cpu_s:
                with suppress(OSError):
                    self._cpu_s[pid] = _cpu_s(pid)
            self._samples.append((time.monotonic(), sum(self._cpu_s.values()), machine_busy_s()))
            self._done.wait(SAMPLE_S)

    def use(self, begin_s: float, end_s: float) -> Use:
        """Return the use between two times of :func:`time.monotonic`, interpolated between samples."""
        own_s = self._at(end_s, 1) - self._at(begin_s, 1)
        all_s = self._at(end_s, 2) - self._at(begin_s, 2)
        return Use(own_s, max(0.0, (all_s - own_s) / (end_s - begin_s)))

    def _at(self, when_s: float, column: int) -> float:
        before = self._samples[0]
        for sample in self._samples:
            if sample[0] >= when_s:
                share = (when_s - before[0]) / (sample[0] - before[0]) if sample[0] > before[0] else 0.0
                return before[column] + share * (sample[column] - before[column])
            before = sample
        return before[column]


@dataclass(frozen=True)
class Command:
    """One process of a run."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


def run_together(commands: Sequence[Command], log: Path, deadline_s: float) -> None:
    """Run processes side by side until all have ended.

    Raises
    ------
    RunError
        A process failed, or the deadline passed; the text ends with the last lines of their output.
    """
    deadline = time.monotonic() + deadline_s
    processes: list[subprocess.Popen[bytes]] = []
    with log.open("wb") as stream:
        try:
            for command in commands:
                processes.append(
                    subprocess.Popen(
                        command.arguments,
                        env={**os.environ, **command.environment},
                        stdin=subprocess.DEVNULL,
                        stdout=stream,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
            while any(process.poll() is None for process in processes):
                failed = [process.returncode for process in processes if process.returncode]
                if failed:
                    raise RunError(f"a process ended with {failed[0]}: {_tail(log)}")
                if time.monotonic() > deadline:
                    raise RunError(f"not done after {deadline_s:g} s: {_tail(log)}")
                time.sleep(0.02)
            failed = [process.returncode for process in processes if process.returncode]
            if failed:
                raise RunError(f"a process ended with {failed[0]}: {_tail(log)}")
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " | ".join(lines[-4:]) or "no output"
