"""Run jobs with ``eps run`` and collect report, logs, traffic of each member and memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.bench_common import MOST_FOREIGN_CORES, say
from benchmarks.peers_watch import RunError, Watch, descendants, wait_until_quiet

TIMEOUT_S = 560.0
MEMORY_SAMPLE_S = 0.15
#: Iterations before the speed of a job is steady.
SETTLING = 3
_TRAFFIC = re.compile(
    r"(?P<kind>[WS])\[(?P<name>[^]]+)\] data plane: (\d+) messages of (\d+) bytes out, (\d+) of (\d+) in; ([\d.]+) s"
)
_ROLE = re.compile(r" ([WS])\[[^]]+\] M ready")


@dataclass(frozen=True)
class Member:
    """The counts of a worker or server, from its start to its end."""

    kind: str
    name: str
    messages_out: int
    bytes_out: int
    messages_in: int
    bytes_in: int
    cpu_s: float


@dataclass
class Memory:
    """Largest observed memory of a job's processes."""

    #: Log file of a process -> largest (own memory, Pss, Rss).  Own memory is anonymous memory and the segments of
    #: shared memory that the process created.  Pss divides shared memory by the number of processes.
    peaks: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    total_pss_bytes: int = 0
    #: At the time of the largest sum: log file -> Pss.
    at_total: dict[str, int] = field(default_factory=dict)


@dataclass
class Ran:
    """The results of an ended job."""

    directory: Path
    report: dict[str, Any]
    members: list[Member]
    memory: Memory
    #: Wall-clock time at which the command was started.
    began_s: float
    foreign_cores: float

    @property
    def iteration_s(self) -> list[float]:
        """Durations of the iterations without the first ones."""
        seconds = [entry["seconds"] for entry in self.report["history"]]
        return [b - a for a, b in pairwise(seconds)][SETTLING:]

    def of_kind(self, kind: str) -> list[Member]:
        """Return the workers (``W``) or servers (``S``)."""
        return [member for member in self.members if member.kind == kind]

    def logs_of(self, kind: str) -> list[str]:
        """Return the names of the log files of the workers or servers."""
        return [name for name, found in self._roles() if found == kind]

    def _roles(self) -> list[tuple[str, str]]:
        found = []
        for path in sorted((self.directory / "logs").glob("container-*.log")):
            match = _ROLE.search(path.read_text(encoding="utf-8"))
            if match:
                found.append((path.name, match[1]))
        return found


def flags(settings: Mapping[str, object]) -> list[str]:
    """Return settings as a command line."""
    found = []
    for name, value in settings.items():
        option = name.replace("_", "-")
        found += [f"--{'' if value else 'no-'}{option}"] if isinstance(value, bool) else [f"--{option}", str(value)]
    return found


def run_job(home: Path, name: str, settings: Mapping[str, object], *, memory: bool = False) -> Ran:
    """Run ``eps run`` and return its results.

    Raises
    ------
    RunError
        The job failed.
    """
    command = [sys.executable, "-m", "eps", "run", "--quiet", "--name", name, *flags(settings)]
    directory = home / "jobs" / name
    found = Memory()
    began_s, began = time.time(), time.monotonic()
    with Watch() as watch:
        process = subprocess.Popen(
            command, env={**os.environ, "EPS_HOME": str(home)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        sampler = _MemorySampler(process.pid, found) if memory else None
        try:
            _, errors = process.communicate(timeout=TIMEOUT_S)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            if sampler is not None:
                sampler.stop()
    if process.returncode:
        raise RunError(f"job {name} ended with {process.returncode}: {errors.decode()[-400:]}")
    used = watch.use(began, time.monotonic())
    report = json.loads((directory / "report.json").read_text(encoding="utf-8"))
    return Ran(directory, report, _members(directory), found, began_s, used.foreign_cores)


def quiet_job(run: Callable[[], Ran], patience_s: float, tries: int = 3) -> Ran:
    """Run a job while the machine is quiet; the quietest of several attempts counts."""
    deadline = time.monotonic() + patience_s
    found: list[Ran] = []
    while len(found) < tries:
        wait_until_quiet(max(0.0, min(20.0, deadline - time.monotonic())))
        found.append(run())
        if found[-1].foreign_cores <= MOST_FOREIGN_CORES or time.monotonic() > deadline:
            break
        say(f"  others used {found[-1].foreign_cores:.2f} cores")
    return min(found, key=lambda ran: ran.foreign_cores)


def _members(directory: Path) -> list[Member]:
    found = []
    for path in sorted((directory / "logs").glob("container-*.log")):
        for match in _TRAFFIC.finditer(path.read_text(encoding="utf-8")):
            kind, name, *counts, cpu_s = match.groups()
            found.append(Member(kind, name, *map(int, counts), float(cpu_s)))
    return found


class _MemorySampler:
    """Samples the memory of a command and all its descendants."""

    def __init__(self, root: int, memory: Memory) -> None:
        self._root = root
        self._memory = memory
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(MEMORY_SAMPLE_S):
            now: dict[str, int] = {}
            for pid in (self._root, *descendants(self._root)):
                with suppress(OSError):
                    # The standard error of a process is its log file, which names the member.
                    name = os.path.basename(os.readlink(f"/proc/{pid}/fd/2"))
                    # A process without one belongs to the pool from which members are forked.
                    name = {"null": "no log"}.get(name, name) if pid != self._root else "command"
                    own, pss, rss = _memory_of(pid)
                    now[name] = now.get(name, 0) + pss
                    old = self._memory.peaks.get(name, (0, 0, 0))
                    self._memory.peaks[name] = (max(old[0], own), max(old[1], pss), max(old[2], rss))
            if sum(now.values()) > self._memory.total_pss_bytes:
                self._memory.total_pss_bytes, self._memory.at_total = sum(now.values()), now

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()


def _memory_of(pid: int) -> tuple[int, int, int]:
    values = {"Pss:": 0, "Rss:": 0, "Pss_Anon:": 0}
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as stream:
        for line in stream:
            words = line.split()
            if words[0] in values:
                values[words[0]] = int(words[1]) * 1024
    segments: dict[int, list[int]] = {}
    for entry in os.scandir(f"/proc/{pid}/fd"):
        if os.readlink(entry.path).startswith("/memfd:"):
            found = os.stat(entry.path)
            segments.setdefault(found.st_ino, []).append(found.st_blocks * 512)
    # The creator of a segment has it open twice, by its own descriptor and by that of Python's mapping; a peer has only
    # the latter.
    made = sum(sizes[0] for sizes in segments.values() if len(sizes) > 1)
    return values["Pss_Anon:"] + made, values["Pss:"], values["Rss:"]
