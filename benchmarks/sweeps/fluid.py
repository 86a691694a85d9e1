"""What resizing can be worth: a fluid model of a sweep under ``sha``.

All trials are equal: an iteration takes one unit in one container.  Three ways to divide the containers:

- ``fixed``: every trial has the same size, from its start to its end;
- ``between rungs``: a size for each rung, as in RubberBand (EuroSys 2021);
- ``instant``: containers are divided continuously, also in fractions.  Speed-ups are concave, so no division ends a
  rung earlier than the one in which all of its trials end together (Jensen's inequality).

``limit`` is the number of iterations divided by the containers: a perfect speed-up.
"""

from __future__ import annotations

from dataclasses import dataclass

CONTAINERS = 16
GRACE, ETA, LAST = 100, 3, 2700


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
