"""The results file of the benchmark: runs of parts that were made one after the other, their medians and the bars."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench_common import Bar, machine, rounded, spread, write_results
from benchmarks.sweeps import speedup
from benchmarks.sweeps.cases import CURVE, PARTS, trials_of
from benchmarks.sweeps.fluid import best_fixed, fixed, instant
from benchmarks.sweeps.fluid import between_rungs as best_between_rungs
from benchmarks.sweeps.running import sweep_of
from benchmarks.sweeps.workload import CONTAINERS, FEW, MANY, Pace, sha_iterations
from eps.errors import ConfigError

TITLE = "compute is emulated: workers, and Ray's trials, sleep; processes, exchange and changes of size are EPS's own"
Run = Mapping[str, Any]


class Results:
    """The runs so far, kept in a file.

    Parameters
    ----------
    path : Path, optional
        Written after every run.  If it exists, its runs are kept, so that parts can be run one after the other.
    pace : Pace

    Raises
    ------
    ConfigError
        The file has results of another pace, or is no result of this benchmark.
    """

    def __init__(self, path: Path | None, pace: Pace) -> None:
        self._path, self.pace = path, pace
        #: Of the peers.
        self.versions: dict[str, str] = {}
        self.runs: list[dict[str, Any]] = []
        if path is not None and path.exists():
            try:
                before = json.loads(path.read_text(encoding="utf-8"))
                theirs, runs = before["settings"]["pace"], before["runs"]
            except (ValueError, KeyError, TypeError):
                raise ConfigError(f"output is {str(path)!r}, which is not a result of this benchmark") from None
            if theirs != pace.as_dict():
                raise ConfigError(f"output is {str(path)!r}, which has results of another pace: name another file")
            self.runs, self.versions = runs, before["settings"]["versions"]

    def add(self, part: str, case: str, repeat: int, found: Mapping[str, Any]) -> None:
        """Keep a run, and write the file."""
        self.runs.append({"part": part, "case": case, "repeat": repeat, **found})
        if self._path is not None:
            write_results(self._path, self.as_dict())

    def has(self, part: str, case: str, repeat: int) -> bool:
        """Return whether a run was made and counts."""
        return any(_key(run) == (part, case, repeat) and not run.get("void") for run in self.runs)

    def of(self, part: str, repeat: int | None = None) -> dict[str, list[Run]]:
        """Return the runs of a part that count, by case."""
        found: dict[str, list[Run]] = {}
        for run in self.runs:
            if run["part"] == part and not run.get("void") and repeat in (None, run["repeat"]):
                found.setdefault(run["case"], []).append(run)
        return found

    def makespans(self, part: str, repeat: int) -> dict[str, float]:
        """Return the makespans of a repeat, by case."""
        return {case: runs[-1]["makespan_s"] for case, runs in self.of(part, repeat).items()}

    def seconds(self) -> dict[int, float]:
        """Return containers -> seconds of an iteration, of all repeats; empty before all sizes were measured."""
        found = speedup.curve_of([run for runs in self.of(CURVE).values() for run in runs])
        return found if set(speedup.MEASURED_SIZES) <= set(found) else {}

    def as_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        settings = {"pace": self.pace.as_dict(), "containers": CONTAINERS, "versions": self.versions}
        parts = [part for part in PARTS if any(run["part"] == part for run in self.runs)]
        return {
            "benchmark": "sweeps/real",
            "title": TITLE,
            "machine": machine(),
            "settings": settings,
            "curve": curve_summary(self.seconds(), self.pace) if self.seconds() else None,
            "model": models(self.seconds(), self.pace, parts) if self.seconds() else None,
            "cases": {part: cases_summary(self.of(part)) for part in parts if part != CURVE},
            "bars": [bar.as_dict() for bar in bars(self)],
            "void": [list(_key(run)) for run in self.runs if run.get("void")],
            "runs": self.runs,
        }


def _key(run: Run) -> tuple[str, str, int]:
    return run["part"], run["case"], run["repeat"]


def curve_summary(seconds: Mapping[int, float], pace: Pace) -> dict[str, Any]:
    """Return the speed-up of a job."""
    return {
        "iteration_s": {str(size): rounded(value) for size, value in seconds.items()},
        "beyond_compute_s": {str(size): rounded(value - pace.work_s / size) for size, value in seconds.items()},
        "efficiency": {str(size): round(speedup.efficiency(seconds, size), 3) for size in seconds},
    }


def models(seconds: Mapping[int, float], pace: Pace, parts: Iterable[str]) -> dict[str, Any]:
    """Return what the fluid model says of ``sha`` on the measured speed-up, in seconds."""
    found = {}
    for trials in sorted({trials_of(part) for part in parts if part != CURVE}):
        sweep = sweep_of(trials, pace, seconds)
        best, size = best_fixed(sweep)
        found[str(trials)] = {
            "best_fixed_s": rounded(best * seconds[1]),
            "best_size": size,
            "between_rungs_s": rounded(best_between_rungs(sweep) * seconds[1]),
            "instant_s": rounded(instant(sweep) * seconds[1]),
            "limit_s": rounded(sweep.limit() * seconds[1]),
            "fixed_s": {str(k): rounded(fixed(sweep, k) * seconds[1]) for k in seconds},
        }
    return found


def cases_summary(cases: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """Return medians and spread of each case."""
    names = (
        "makespan_s",
        "iterations_trained",
        "early_feedback_s",
        "best_value",
        "target_s",
        "useful_share",
        "idle_share",
        "cores",
    )
    return {
        case: {name: spread(values) for name in names if (values := [r[name] for r in runs if r.get(name) is not None])}
        for case, runs in cases.items()
    }


# ---- bars


def ratios(results: Results, part: str, case: str, base: str, name: str = "makespan_s") -> list[float]:
    """Return a case over another, of each repeat that has both."""
    ours, theirs = results.of(part).get(case, []), results.of(part).get(base, [])
    by_repeat = {run["repeat"]: run[name] for run in theirs if run.get(name)}
    return [run[name] / by_repeat[run["repeat"]] for run in ours if run.get(name) and run["repeat"] in by_repeat]


def fastest(results: Results, part: str, prefix: str, name: str = "makespan_s") -> str | None:
    """Return the case with the smallest median, of those with this prefix that were repeated most often."""
    found = {case: runs for case, runs in results.of(part).items() if case.startswith(prefix)}
    most = max((len(runs) for runs in found.values()), default=0)
    medians = {
        case: statistics.median(values)
        for case, runs in found.items()
        if len(runs) == most and (values := [run[name] for run in runs if run.get(name) is not None])
    }
    return min(medians, key=lambda case: medians[case]) if medians else None


def _bar(name: str, values: Sequence[float], limit: float, *, at_least: bool = True, note: str = "") -> list[Bar]:
    return [Bar(name, rounded(statistics.median(values)), limit, at_least, note)] if values else []


def _over(results: Results, part: str, case: str | None, limit: float, what: str) -> list[Bar]:
    if case is None:
        return []
    values = ratios(results, part, case, "gain")
    note = f"{case}; {len(values)} repeats, {min(values):.3f} to {max(values):.3f}" if values else case
    return _bar(f"{part}: {what} / gain", values, limit, note=note)


def bars(results: Results) -> list[Bar]:
    """Return the bars that the runs so far allow."""
    found: list[Bar] = []
    seconds = results.seconds()
    if seconds:
        efficiency = round(speedup.efficiency(seconds), 3)
        found.append(Bar(f"efficiency of a job at {CONTAINERS} containers", efficiency, 0.5, True))
        found.append(Bar(f"efficiency of a job at {CONTAINERS} containers", efficiency, 0.9, False))
    for trials in (FEW, MANY):
        found += sha_bars(results, f"sha{trials}", trials, seconds)
        few = trials == FEW
        asha = f"asha{trials}"
        found += _over(results, asha, "ray-1", 1.8 if few else 1.25, "Ray Tune's ASHA, one slot a trial")
        found += _over(results, asha, fastest(results, asha, "ray-", "makespan_s"), 1.15, "Ray Tune's ASHA, best width")
        resizing = fastest(results, asha, "tune-resizing")
        found += _over(results, asha, resizing, 1.3, "Ray's ResourceChangingScheduler + ASHA")
        found += arrival_bars(results, f"poisson{trials}")
    return found


def sha_bars(results: Results, part: str, trials: int, seconds: Mapping[int, float]) -> list[Bar]:
    """Return the bars under ``sha``."""
    found = _over(results, part, fastest(results, part, "static-"), 1.2, "the best fixed size")
    found += _over(results, part, "asked", 1.5, "2 workers and 1 server")
    found += _over(results, part, "rungs", 1.15, "resizing only between rungs")
    found += _over(results, part, "kill", 1.2 if trials == FEW else 1.05, "kill")
    gains = [run["makespan_s"] for run in results.of(part).get("gain", [])]
    if gains and seconds:
        sweep = sweep_of(trials, results.pace, seconds)
        for what, value, limit in (
            (f"the limit ({sha_iterations(trials, results.pace)} iterations / {CONTAINERS})", sweep.limit(), 0.75),
            ("the simulated optimum", instant(sweep), 0.9),
        ):
            found += _bar(f"{part}: {what} / gain", [value * seconds[1] / gain for gain in gains], limit)
    return found


def arrival_bars(results: Results, part: str) -> list[Bar]:
    """Return the bars with trials that arrive one by one."""
    best = fastest(results, part, "static-")
    if best is None:
        return []
    found = _bar(
        f"{part}: early feedback, the best fixed size / gain",
        ratios(results, part, best, "gain", "early_feedback_s"),
        2.5,
        note=best,
    )
    return found + _bar(
        f"{part}: makespan, gain / the best fixed size",
        ratios(results, part, "gain", best),
        1.0,
        at_least=False,
        note=best,
    )


def table(results: Results, part: str) -> str:
    """Return the cases of a part as a table."""
    heads = f"{'iterations':>10s} {'feedback s':>10s} {'useful':>6s} {'cores':>5s} {'void':>4s}"
    lines = [f"{part:20s} {'makespan s':>22s} {heads}"]
    voids = [run["case"] for run in results.runs if run["part"] == part and run.get("void")]
    for case, runs in results.of(part).items():
        spans = [run["makespan_s"] for run in runs]

        def middle(name: str, form: str, runs: Sequence[Run] = runs) -> str:
            values = [run[name] for run in runs if run.get(name) is not None]
            return format(statistics.median(values), form) if values else "-"

        lines.append(
            f"{case:20s} {statistics.median(spans):8.1f} {f'({min(spans):.1f}-{max(spans):.1f})':>13s} "
            f"{middle('iterations_trained', '.0f'):>10s} {middle('early_feedback_s', '.1f'):>10s} "
            f"{middle('useful_share', '.2f'):>6s} {middle('cores', '.2f'):>5s} {voids.count(case):>4d}"
        )
    return "\n".join(lines)
