"""What resizing can be worth: a fluid model of a sweep under ``sha`` and ``asha``, without costs unless they are given.

    python -m benchmarks.sweeps.fluid                 # tables for 27 and 81 trials on 16 containers
    python -m benchmarks.sweeps.fluid --efficiency 0.7 --start 0.1

All trials are equal: an iteration takes one unit in one container.  Four ways to divide the containers:

- ``fixed``: every trial has the same size, from its start to its end;
- ``between rungs``: a size for each rung, as in RubberBand (EuroSys 2021), which resizes by a restart;
- ``restarts``: containers of ended trials go to others, each resize costs a restart, as in Optimus (EuroSys 2018);
- ``instant``: containers are divided continuously, also in fractions.  Speed-ups are concave, so no division ends a
  rung earlier than the one in which all of its trials end together (Jensen's inequality).

``limit`` is the number of iterations divided by the containers: a perfect speed-up.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from random import Random

CONTAINERS = 16
GRACE, ETA, LAST = 100, 3, 2700
_CLOSE = 1e-9
#: Largest size that is considered.
MOST_SIZE = 64


@dataclass(frozen=True)
class Curve:
    """Time of an iteration by the number of containers, in units of that in one container."""

    serial: float
    member: float = 0.0

    @classmethod
    def of_efficiency(cls, efficiency: float, containers: int = CONTAINERS) -> Curve:
        """Return the curve of Amdahl's law with this efficiency in ``containers``."""
        return cls((1 / efficiency - 1) / (containers - 1))

    def time(self, size: int) -> float:
        """Return the time of an iteration in ``size`` containers."""
        return self.serial + (1 - self.serial) / size + self.member * (size - 1)

    def speed(self, size: float) -> float:
        """Return iterations per unit of time; between whole sizes, of a trial that alternates between the two."""
        low = int(size)
        below = 1 / self.time(low) if low else 0.0
        return below + (size - low) * (1 / self.time(low + 1) - below)

    def size(self, speed: float) -> float:
        """Return the smallest size with this speed; infinity if none up to :data:`MOST_SIZE` has it."""
        low = next((low for low in range(MOST_SIZE) if self.speed(low + 1) >= speed), None)
        if low is None:
            return float("inf")
        return low + (speed - self.speed(low)) / (self.speed(low + 1) - self.speed(low))


@dataclass(frozen=True)
class Sweep:
    """A sweep of equal trials."""

    trials: int
    curve: Curve
    rungs: tuple[int, ...] = (GRACE, GRACE * ETA, GRACE * ETA**2, LAST)
    eta: int = ETA
    containers: int = CONTAINERS
    #: Time from the start of a trial, or of its resumption, until its first iteration.
    start: float = 0.0
    #: Time that a trial stands still when it is resized by a restart.
    restart: float = 0.0

    def stages(self) -> list[tuple[int, int]]:
        """Return (trials, iterations) of each stage under ``sha``."""
        begins = (0, *self.rungs)
        return [
            (max(1, self.trials // self.eta**k), self.rungs[k] - begins[k])
            for k in range(len(self.rungs))
            if self.trials // self.eta**k
        ]

    def limit(self) -> float:
        """Return the shortest makespan with a perfect speed-up."""
        return sum(trials * iterations for trials, iterations in self.stages()) / self.containers


# ---- sha: every stage waits for the last of its trials


def fixed_stage(sweep: Sweep, size: int, trials: int, iterations: int) -> float:
    """Return the time of a stage with trials of one size."""
    waves = -(-trials // (sweep.containers // size))
    return waves * (sweep.start + iterations * sweep.curve.time(size))


def fixed(sweep: Sweep, size: int) -> float:
    """Return the makespan with trials of one size."""
    return sum(fixed_stage(sweep, size, *stage) for stage in sweep.stages())


def best_fixed(sweep: Sweep) -> tuple[float, int]:
    """Return the shortest makespan with trials of one size, and that size."""
    return min((fixed(sweep, size), size) for size in range(1, sweep.containers + 1))


def between_rungs(sweep: Sweep) -> float:
    """Return the shortest makespan with a size for each stage; a stage with room for all divides every container."""
    total = 0.0
    for trials, iterations in sweep.stages():
        times = [fixed_stage(sweep, size, trials, iterations) for size in range(1, sweep.containers + 1)]
        if trials <= sweep.containers:
            times.append(sweep.start + iterations * sweep.curve.time(sweep.containers // trials))
        total += min(times)
    return total


def instant(sweep: Sweep) -> float:
    """Return the shortest makespan of any division: in every stage all trials end together."""
    total = 0.0
    for trials, iterations in sweep.stages():
        total += iterations / sweep.curve.speed(sweep.containers / trials)
        # A start keeps the trial's containers, at least one, from computing.
        total += sweep.start * max(1.0, trials / sweep.containers)
    return total


def restarts(sweep: Sweep) -> float:
    """Return the makespan if trials take containers of ended ones whenever that ends their stage earlier."""
    return sum(_restarting_stage(sweep, *stage) for stage in sweep.stages())


def _restarting_stage(sweep: Sweep, trials: int, iterations: int) -> float:
    """Return the time of a stage whose trials are resized in whole containers, each time for ``sweep.restart``."""
    waiting, now = trials, 0.0
    #: Of each trial: iterations left, size, the time at which it continues.
    running: list[list[float]] = []
    while waiting or running:
        free = sweep.containers - int(sum(size for _, size, _ in running))
        starts = min(waiting, free)
        waiting, free = waiting - starts, free - starts
        new = [[float(iterations), 1.0, now + sweep.start] for _ in range(starts)]
        running += new
        while free:
            # The last to end gets the next container, if that pays for its restart.
            ends = [
                (max(now, at) - now + left * sweep.curve.time(int(size)), k)
                for k, (left, size, at) in enumerate(running)
            ]
            for end, k in sorted(ends, reverse=True):
                left, size, at = running[k]
                stop = 0.0 if running[k] in new else sweep.restart
                more = free if stop else 1
                if max(now, at) - now + stop + left * sweep.curve.time(int(size) + more) < end - _CLOSE:
                    running[k] = [left, size + more, max(now, at) + stop]
                    free -= more
                    break
            else:
                break
        end = min(max(now, at) + left * sweep.curve.time(int(size)) for left, size, at in running)
        for trial in running:
            trial[0] -= max(0.0, end - max(now, trial[2])) / sweep.curve.time(int(trial[1]))
        running = [trial for trial in running if trial[0] > _CLOSE]
        now = end
    return now


# ---- asha: a trial continues while it is among the best of those that reached its rung


@dataclass(eq=False)
class _Trial:
    rank: float
    rung: int = 0
    left: float = 0.0


@dataclass
class Asha:
    """One sweep under ``asha``: trials that arrive or pause wait; promotions go before new trials."""

    sweep: Sweep
    ranks: Sequence[float]
    waiting: list[_Trial] = field(default_factory=list)
    running: list[_Trial] = field(default_factory=list)
    #: Rung -> trials that reached it, and those of them that were promoted.
    reached: dict[int, list[_Trial]] = field(default_factory=dict)
    promoted: dict[int, list[_Trial]] = field(default_factory=dict)
    iterations: int = 0

    def promotable(self) -> _Trial | None:
        """Return a paused trial that is among the best 1 / eta of its rung, of the highest rung."""
        for rung in sorted(self.reached, reverse=True):
            best = sorted(self.reached[rung], key=lambda t: t.rank)[: len(self.reached[rung]) // self.sweep.eta]
            for trial in best:
                if trial not in self.promoted[rung]:
                    return trial
        return None

    def begin(self) -> bool:
        """Let one more trial run; return whether there was one."""
        trial = self.promotable()
        if trial is not None:
            self.promoted[trial.rung].append(trial)
            begins, trial.rung = self.sweep.rungs[trial.rung], trial.rung + 1
        elif self.waiting:
            trial, begins = self.waiting.pop(0), 0
        else:
            return False
        span = self.sweep.rungs[trial.rung] - begins
        trial.left, self.iterations = float(span), self.iterations + span
        self.running.append(trial)
        return True

    def run(self, most: int, speeds: Callable[[Sequence[_Trial]], list[float]]) -> float:
        """Run at most ``most`` trials at once, as fast as ``speeds`` says; return the makespan."""
        self.waiting, now = [_Trial(rank) for rank in self.ranks], 0.0
        while True:
            while len(self.running) < most and self.begin():
                pass
            if not self.running:
                return now
            rates = speeds(self.running)
            step = min(trial.left / rate for trial, rate in zip(self.running, rates, strict=True) if rate)
            now += step
            for trial, rate in zip(self.running, rates, strict=True):
                trial.left -= step * rate
            for trial in [trial for trial in self.running if trial.left < _CLOSE]:
                self.running.remove(trial)
                if trial.rung + 1 < len(self.sweep.rungs):
                    self.reached.setdefault(trial.rung, []).append(trial)
                    self.promoted.setdefault(trial.rung, [])


def together(sweep: Sweep, trials: Sequence[_Trial]) -> list[float]:
    """Return the speeds at which all trials end together."""
    low, high = 0.0, sum(trial.left for trial in trials) * sweep.curve.time(1)
    for _ in range(60):
        middle = (low + high) / 2
        needed = sum(sweep.curve.size(trial.left / middle) for trial in trials)
        low, high = (middle, high) if needed > sweep.containers else (low, middle)
    return [trial.left / high for trial in trials]


def _equal(rate: float, trials: Sequence[_Trial]) -> list[float]:
    return [rate] * len(trials)


def asha(sweep: Sweep, seed: int) -> dict[str, float]:
    """Return the makespans under ``asha``: the best fixed size, its size, and instant resizing; and the iterations."""
    ranks = [Random(f"{seed}:{k}").random() for k in range(sweep.trials)]
    rows = []
    for size in range(1, sweep.containers + 1):
        rate = sweep.curve.speed(size)
        run = Asha(sweep, ranks)
        rows.append((run.run(sweep.containers // size, partial(_equal, rate)), size))
    # Instant: a container each while trials wait; those at work end their rungs together.
    fluid = Asha(sweep, ranks)
    makespan = fluid.run(sweep.containers, lambda trials: together(sweep, trials))
    best, size = min(rows)
    return {"fixed": best, "size": size, "instant": makespan, "limit": fluid.iterations / sweep.containers}


def table(
    trials: int, efficiency: float, start: float = 0.0, restart: float = 0.0, last: int = LAST
) -> dict[str, float]:
    """Return the makespans under ``sha`` of trials with ``last`` iterations, and their ratios to instant resizing."""
    rungs = tuple(rung for rung in (GRACE, GRACE * ETA, GRACE * ETA**2, LAST) if rung <= last)
    sweep = Sweep(trials, Curve.of_efficiency(efficiency), rungs, start=start, restart=restart)
    best, size = best_fixed(sweep)
    ideal = instant(sweep)
    return {
        "trials": trials,
        "iterations": last,
        "efficiency_at_16": efficiency,
        "best_fixed": best,
        "best_size": size,
        "between_rungs": between_rungs(sweep),
        "restarts": restarts(sweep),
        "instant": ideal,
        "limit": sweep.limit(),
        "best_fixed_over_instant": best / ideal,
        "asked_size_over_instant": fixed(sweep, 3) / ideal,
        "between_rungs_over_instant": between_rungs(sweep) / ideal,
        "restarts_over_instant": restarts(sweep) / ideal,
        "limit_over_instant": sweep.limit() / ideal,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--efficiency", type=float, action="append", help="at 16 containers (default: 0.5, 0.7, 0.9)")
    parser.add_argument("--start", type=float, default=0.0, help="units of time that the start of a trial takes")
    parser.add_argument("--restart", type=float, default=0.0, help="units of time that a restart takes")
    options = parser.parse_args(argv)
    for trials, last in product((27, 81), (GRACE * ETA**2, LAST)):
        for efficiency in options.efficiency or (0.5, 0.7, 0.9):
            found = table(trials, efficiency, options.start, options.restart, last)
            print("  ".join(f"{name} {value:.4g}" for name, value in found.items()))
            rungs = tuple(rung for rung in Sweep(trials, Curve(0.0)).rungs if rung <= last)
            one = asha(Sweep(trials, Curve.of_efficiency(efficiency), rungs), 0)
            print("  asha:", "  ".join(f"{name} {value:.4g}" for name, value in one.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
