"""What the benchmarks share: spreads and ratios, what they ran on, and samples taken while others leave it alone."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from benchmarks.peers_watch import QUIET_CORES, machine_busy_s

ResultT = TypeVar("ResultT")

#: A sample during which others used more of the machine than this many cores is taken again, if it may.
MOST_FOREIGN_CORES = 0.3
#: Said before anything is measured or simulated.
NO_PICTURE = "pictures need matplotlib: pip install '.[benchmarks]'"
#: Shortest stretch over which the kernel's count of busy time (in hundredths of a second) says anything.
_LOOK_S = 0.2
#: How a process's own processor clock is named from outside: POSIX leaves it open, this is Linux.
_CPU_CLOCK_KIND = 2


def say(text: str) -> None:
    """Tell whoever watches."""
    print(text, file=sys.stderr, flush=True)


def rounded(value: float) -> float:
    """Return a measurement with the digits that mean something."""
    return round(value, 5)


def ratio(a: float, b: float, digits: int = 2) -> float | None:
    """Return a / b, None where b is not positive."""
    return round(a / b, digits) if b > 0 else None


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return median, range and values of some measurements."""
    return {
        "median": rounded(statistics.median(values)),
        "min": rounded(min(values)),
        "max": rounded(max(values)),
        "values": [rounded(v) for v in values],
    }


def machine() -> dict[str, Any]:
    """Return what a benchmark ran on."""
    return {
        "cpus": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load_5_minutes": os.getloadavg()[1],
    }


def plotting() -> Any:
    """Return ``matplotlib.pyplot``, ready to draw into files; ask :func:`can_draw` before measuring."""
    pyplot = importlib.import_module("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    return pyplot


def can_draw() -> bool:
    """Tell whether matplotlib is installed, without importing it."""
    return importlib.util.find_spec("matplotlib") is not None


def process_cpu_s(pid: int) -> float:
    """Return the processor time of a process, its threads included, in seconds with the precision of the scheduler."""
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK_KIND)


@dataclass(frozen=True)
class Bar:
    """One promise, and what was measured."""

    name: str
    measured: float | None
    limit: float
    #: True where more is better.
    at_least: bool
    note: str = ""
    #: Of a ratio: by how much that of two like things differed from 1 in the same run.
    noise: float = 0.0

    @property
    def passed(self) -> bool | None:
        """Whether it is kept; None where it is within the noise.  A value that could not be measured keeps nothing."""
        if self.measured is None:
            return False
        worse = 1 - self.measured if self.at_least else self.measured - 1
        if self.noise > abs(self.limit - 1) and worse <= self.noise:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    @property
    def verdict(self) -> str:
        """What is made of it, in words."""
        return {True: "pass", False: "FAIL", None: "within noise"}[self.passed]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON; ``passed`` is null within the noise."""
        kind = "at_least" if self.at_least else "at_most"
        values = {"name": self.name, "measured": self.measured, kind: self.limit}
        values |= {"passed": self.passed, "verdict": self.verdict}
        return {**values, "note": self.note} if self.note else values

    def line(self) -> str:
        """Return it for people."""
        sign = ">=" if self.at_least else "<="
        shown = "-" if self.measured is None else f"{self.measured:g}"
        note = f"  ({self.note})" if self.note else ""
        return f"{self.verdict}  {self.name}: {shown} (bar {sign} {self.limit:g}){note}"


@dataclass(frozen=True)
class Used:
    """What a sample cost."""

    wall_s: float
    #: Processor time of this process, then of each that belongs to the benchmark.
    cpu_s: tuple[float, ...]
    #: Cores that all others used on average.
    foreign_cores: float


@dataclass
class Sampler:
    """Takes samples while others leave the machine alone.

    Each waits until others use less than :data:`~benchmarks.peers_watch.QUIET_CORES`, and is repeated where they used
    more than :data:`MOST_FOREIGN_CORES` meanwhile; the quietest try counts.

    Parameters
    ----------
    pids : sequence of int
        Processes that belong to the benchmark, besides this one.
    patience_s : float
        For all waiting together; afterwards every first try counts.
    """

    pids: Sequence[int] = ()
    patience_s: float = 240.0
    tries: int = 3
    #: Cores that others used in the samples that counted, and how many were not quiet.
    foreign_cores: list[float] = field(default_factory=list)
    repeated: int = 0

    def take(self, measure: Callable[[], ResultT]) -> tuple[ResultT, Used]:
        """Return what ``measure`` returned in the quietest try, and what that try cost."""
        found: list[tuple[ResultT, Used]] = []
        while True:
            self.wait()
            busy_s, cpu_s, began_s = machine_busy_s(), self._cpu_s(), time.monotonic()
            result = measure()
            wall_s = time.monotonic() - began_s
            spent_s = tuple(after - before for after, before in zip(self._cpu_s(), cpu_s, strict=True))
            foreign = max(0.0, machine_busy_s() - busy_s - sum(spent_s)) / wall_s
            found.append((result, Used(wall_s, spent_s, foreign)))
            if foreign <= MOST_FOREIGN_CORES or len(found) == self.tries or self.patience_s <= 0:
                break
            self.patience_s -= wall_s
            self.repeated += 1
        best = min(found, key=lambda entry: entry[1].foreign_cores)
        self.foreign_cores.append(best[1].foreign_cores)
        return best

    def _cpu_s(self) -> tuple[float, ...]:
        return (time.process_time(), *map(process_cpu_s, self.pids))

    def wait(self) -> None:
        """Wait until others are quiet, as long as patience lasts."""
        while self.patience_s > 0:
            busy_s, own_s, began_s = machine_busy_s(), sum(self._cpu_s()), time.monotonic()
            time.sleep(_LOOK_S)
            looked_s = time.monotonic() - began_s
            if (machine_busy_s() - busy_s - (sum(self._cpu_s()) - own_s)) / looked_s < QUIET_CORES:
                return
            self.patience_s -= looked_s

    def noise(self) -> dict[str, Any]:
        """Return how quiet the machine was in the samples that counted."""
        values = sorted(self.foreign_cores) or [0.0]
        return {
            "foreign_cores_median": rounded(statistics.median(values)),
            "foreign_cores_p90": rounded(values[int(0.9 * (len(values) - 1))]),
            "foreign_cores_max": rounded(values[-1]),
            "samples": len(self.foreign_cores),
            "samples_above_limit": sum(value > MOST_FOREIGN_CORES for value in values),
            "repeated": self.repeated,
        }


def positive(text: str) -> int:
    """Return a number of rounds, repeats or iterations: a type of :mod:`argparse`.

    Raises
    ------
    argparse.ArgumentTypeError
        It is no whole number from 1 on.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least 1")
    return int(text)


def new_file(text: str) -> Path:
    """Return a file that can be written: said before anything is measured, not after; a type of :mod:`argparse`.

    Raises
    ------
    argparse.ArgumentTypeError
        Its folder is missing, or may not be written.
    """
    path = Path(text).absolute()
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} must be a file in a folder that can be written")
    return path


def picture_file(text: str) -> Path:
    """Return a file for a picture, where there is something to draw it with; a type of :mod:`argparse`.

    Raises
    ------
    argparse.ArgumentTypeError
        It cannot be written, or matplotlib is not installed.
    """
    path = new_file(text)
    if not can_draw():
        raise argparse.ArgumentTypeError(NO_PICTURE)
    return path


def exit_code(bars: Iterable[Bar], quick: bool) -> int:
    """Return 1 where a promise is not kept, and 0 with ``--quick``, which is too short to say so."""
    return 0 if quick or all(bar.verdict != "FAIL" for bar in bars) else 1


def conclude(benchmark: str, results: Mapping[str, Any], bars: Sequence[Bar], output: Path | None, quick: bool) -> int:
    """Say how the bars were met, write and print what was found; return the exit code."""
    for bar in bars:
        say(bar.line())
    document = {"benchmark": benchmark, "machine": machine(), **results, "bars": [bar.as_dict() for bar in bars]}
    text = json.dumps(document, indent=1)
    write_json(output, text)
    print(text)
    return exit_code(bars, quick)


def run_to_the_end(main: Callable[[], int]) -> NoReturn:
    """Be a benchmark's process: end with its exit code, or with 130 and a word where it is interrupted."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)


def end_in_order() -> None:
    """Take SIGTERM as Ctrl-C: what was begun is ended, and nothing is left behind."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def write_json(path: Path | None, text: str) -> None:
    """Write the results where they were asked for."""
    if path is not None:
        path.write_text(text + "\n", encoding="utf-8")
