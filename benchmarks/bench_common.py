"""Shared code of the benchmarks: statistics, a description of the machine, and samples on a quiet machine."""

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
from eps.storage.atomic import PUBLIC_MODE, write_bytes_atomic

ResultT = TypeVar("ResultT")

#: A sample is repeated if other processes used more than this many cores meanwhile.
MOST_FOREIGN_CORES = 0.3
#: Error if matplotlib is missing, raised before any measurement.
NO_PICTURE = "pictures need matplotlib: pip install '.[benchmarks]'"
#: Shortest sample for which the kernel's count of busy time, in hundredths of a second, is precise enough.
_LOOK_S = 0.2
#: Bits of the id of a process's processor clock on Linux.
_CPU_CLOCK_KIND = 2


def say(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr, flush=True)


def rounded(value: float) -> float:
    """Return a measurement rounded to its significant digits."""
    return round(value, 5)


def ratio(a: float, b: float, digits: int = 2) -> float | None:
    """Return a / b, or None if b is not positive."""
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
    """Return a description of the machine."""
    return {
        "cpus": os.cpu_count(),
        "cpu": _cpu_model(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load_5_minutes": os.getloadavg()[1],
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def plotting() -> Any:
    """Return ``matplotlib.pyplot``, ready to draw into files; ask :func:`can_draw` before measuring."""
    pyplot = importlib.import_module("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    return pyplot


def can_draw() -> bool:
    """Return whether matplotlib is installed, without importing it."""
    return importlib.util.find_spec("matplotlib") is not None


def process_cpu_s(pid: int) -> float:
    """Return the processor time of a process, its threads included, in seconds with the precision of the scheduler."""
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK_KIND)


@dataclass(frozen=True)
class Bar:
    """A performance bar and its measured value."""

    name: str
    measured: float | None
    limit: float
    #: Whether larger values are better.
    at_least: bool
    note: str = ""
    #: Noise of a ratio: how far the ratio of two equal variants differed from 1 in the same run.
    noise: float = 0.0

    @property
    def passed(self) -> bool | None:
        """Whether the bar is met; None if that is within the noise.  False without a measured value."""
        if self.measured is None:
            return False
        worse = 1 - self.measured if self.at_least else self.measured - 1
        if self.noise > abs(self.limit - 1) and worse <= self.noise:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    @property
    def verdict(self) -> str:
        """The verdict as text."""
        return {True: "pass", False: "FAIL", None: "within noise"}[self.passed]

    def as_dict(self) -> dict[str, Any]:
        """Return the bar for JSON; ``passed`` is null within the noise."""
        kind = "at_least" if self.at_least else "at_most"
        values = {"name": self.name, "measured": self.measured, kind: self.limit}
        values |= {"passed": self.passed, "verdict": self.verdict}
        return {**values, "note": self.note} if self.note else values

    def line(self) -> str:
        """Return the bar as a line of text."""
        sign = ">=" if self.at_least else "<="
        shown = "-" if self.measured is None else f"{self.measured:g}"
        note = f"  ({self.note})" if self.note else ""
        return f"{self.verdict}  {self.name}: {shown} (bar {sign} {self.limit:g}){note}"


@dataclass(frozen=True)
class Used:
    """Processor use during a sample."""

    wall_s: float
    #: Processor time of this process, then of the benchmark's other processes, in seconds.
    cpu_s: tuple[float, ...]
    #: Cores used by all other processes, on average.
    foreign_cores: float


@dataclass
class Sampler:
    """Takes samples while the machine is quiet.

    Before a sample it waits until other processes use less than :data:`~benchmarks.peers_watch.QUIET_CORES`.  If they
    used more than :data:`MOST_FOREIGN_CORES` during the sample, it is repeated; the quietest attempt counts.

    Parameters
    ----------
    pids : sequence of int
        Processes that belong to the benchmark, besides this one.
    patience_s : float
        Limit of all waits together; after it, every first attempt counts.
    """

    pids: Sequence[int] = ()
    patience_s: float = 240.0
    tries: int = 3
    #: Cores used by other processes in the samples that counted, and the number of repeated samples.
    foreign_cores: list[float] = field(default_factory=list)
    repeated: int = 0

    def take(self, measure: Callable[[], ResultT]) -> tuple[ResultT, Used]:
        """Return the result and the processor use of the quietest call of ``measure``."""
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
        """Wait until the machine is quiet, within the limit of all waits."""
        while self.patience_s > 0:
            busy_s, own_s, began_s = machine_busy_s(), sum(self._cpu_s()), time.monotonic()
            time.sleep(_LOOK_S)
            looked_s = time.monotonic() - began_s
            if (machine_busy_s() - busy_s - (sum(self._cpu_s()) - own_s)) / looked_s < QUIET_CORES:
                return
            self.patience_s -= looked_s

    def noise(self) -> dict[str, Any]:
        """Return the use of the machine by others in the samples that counted."""
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
    """Return a number of rounds or iterations; an argument type for :mod:`argparse`.

    Raises
    ------
    argparse.ArgumentTypeError
        The text is not a whole number, at least 1.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least 1")
    return int(text)


def new_file(text: str) -> Path:
    """Return the path of a result, checked before the measurement; an argument type for :mod:`argparse`.

    Raises
    ------
    argparse.ArgumentTypeError
        The folder is missing or not writable.
    """
    path = Path(text).absolute()
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} must be a file in a folder that can be written")
    return path


def picture_file(text: str) -> Path:
    """Return the path of a picture; an argument type for :mod:`argparse`.

    Raises
    ------
    argparse.ArgumentTypeError
        The folder is not writable, or matplotlib is not installed.
    """
    path = new_file(text)
    if not can_draw():
        raise argparse.ArgumentTypeError(NO_PICTURE)
    return path


def parse_with_results(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, quick: str, picture: Callable[[str], Path]
) -> argparse.Namespace:
    """Add the options of results to a command line and parse it; ``quick`` is the help of ``--quick``."""
    parser.add_argument("--output", type=new_file, help="also write the JSON to this file")
    parser.add_argument("--picture", type=picture, help="draw the result into this file")
    parser.add_argument("--redraw", type=Path, metavar="JSON", help="measure nothing: draw an earlier --output")
    parser.add_argument("--quick", action="store_true", help=quick)
    args = parser.parse_args(argv)
    if args.redraw and not args.picture:
        parser.error("--redraw needs --picture, the file to draw into")
    return args


def redrawn(args: argparse.Namespace, draw: Callable[[Any, Path], None]) -> bool:
    """Draw an earlier result if ``--redraw`` names one; return whether it did."""
    if args.redraw:
        draw(json.loads(args.redraw.read_text(encoding="utf-8")), args.picture)
    return bool(args.redraw)


def exit_code(bars: Iterable[Bar], quick: bool) -> int:
    """Return 1 if a bar is missed; with ``--quick`` 0, because the measurement is too short for bars."""
    return 0 if quick or all(bar.verdict != "FAIL" for bar in bars) else 1


def conclude(benchmark: str, results: Mapping[str, Any], bars: Sequence[Bar], output: Path | None, quick: bool) -> int:
    """Print the bars, write and print the results; return the exit code."""
    for bar in bars:
        say(bar.line())
    document = {"benchmark": benchmark, "machine": machine(), **results, "bars": [bar.as_dict() for bar in bars]}
    text = json.dumps(document, indent=1)
    write_json(output, text)
    print(text)
    return exit_code(bars, quick)


def run_to_the_end(main: Callable[[], int]) -> NoReturn:
    """Run a benchmark and exit with its code, or with 130 and a message if interrupted."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)


def end_in_order() -> None:
    """Handle SIGTERM like Ctrl-C, so that all processes are ended."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def write_results(path: Path, document: Mapping[str, Any]) -> None:
    """Write a result file atomically: what people read first, then each of its ``runs`` on a line of its own."""
    head = json.dumps({**document, "runs": []}, indent=1)
    assert head.endswith('"runs": []\n}'), "runs are the last key"
    runs = ",\n".join(f"  {json.dumps(run)}" for run in document["runs"])
    write_bytes_atomic(path, f"{head[:-3]}\n{runs}\n ]\n}}\n".encode(), mode=PUBLIC_MODE)


def write_json(path: Path | None, text: str) -> None:
    """Write the results to ``--output``."""
    if path is not None:
        path.write_text(text + "\n", encoding="utf-8")
