"""The speed of a job by its number of containers, from measured iteration times.

A job's curve is ``serial_s + work_s / size + member_s * size``.  It is fitted to the medians that the job measured, and
to those of the other jobs of its sweep: they have the same data and model, so their curves have one shape, while
hyperparameters may scale it.  What nothing has measured follows :data:`PRIOR`.

Source: Optimus (EuroSys 2018) fits such a curve by non-negative least squares; Pollux (OSDI 2021) explores at most
twice the sizes that it has measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from hscheduler.core.jobs import Job

#: Durations at one size that are kept; their median counts.
KEPT = 10
#: Fewer durations at a size say nothing: the first iterations after a change are often slower.
LEAST_MEASURED = 3
#: Jobs of a sweep that are kept for the shape of its curve: those that run, and the latest of the others.
KEPT_JOBS = 64
#: Sweeps that are kept: those with jobs that run, and the latest of the others.
KEPT_SWEEPS = 64
#: Weight of the assumed shape at each of :data:`PRIOR_SIZES`, where a measured size has 1.
PRIOR_WEIGHT = 0.005
#: Weight of the sweep's shape in the curve of one of its jobs.
SWEEP_WEIGHT = 0.3
PRIOR_SIZES = (1, 2, 4, 8, 16)
#: Seconds of a change of size until one has been measured.
ASSUMED_CHANGE_S = 0.5


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of an iteration by the number of containers."""

    serial_s: float
    work_s: float
    member_s: float = 0.0

    def seconds(self, size: int) -> float:
        """Return the seconds of an iteration in ``size`` containers."""
        return self.serial_s + self.work_s / size + self.member_s * size

    def scaled(self, factor: float) -> Curve:
        """Return the curve with all times multiplied."""
        return Curve(self.serial_s * factor, self.work_s * factor, self.member_s * factor)


#: Assumed of jobs that nothing is known of: an efficiency of 0.7 in 16 containers.
PRIOR = Curve(0.0285, 0.9715)

#: Size, seconds, weight.
Point = tuple[int, float, float]


def fit(points: Iterable[Point]) -> Curve:
    """Return the curve with the smallest weighted squares of relative errors; no term is negative.

    Parameters
    ----------
    points : iterable of (int, float, float)
        Size, seconds and weight; at least one.  Seconds are positive.
    """
    rows = [((1 / seconds, 1 / (size * seconds), size / seconds), weight) for size, seconds, weight in points]
    best: tuple[float, list[float]] | None = None
    # Three terms have seven sets of positive ones: the exact solution is among their unconstrained ones.
    for number in (1, 2, 3):
        for terms in combinations(range(3), number):
            found = _least_squares(rows, terms)
            if found is None or min(found) < 0:
                continue
            error = sum(
                weight * (sum(found[k] * row[term] for k, term in enumerate(terms)) - 1) ** 2 for row, weight in rows
            )
            # A further term must explain something: else sizes that were not measured would depend on rounding.
            if best is None or error < best[0] - 1e-12:
                values = [0.0, 0.0, 0.0]
                for k, term in enumerate(terms):
                    values[term] = found[k]
                best = error, values
    assert best is not None, "one term alone always fits"
    return Curve(*best[1])


def _least_squares(rows: Sequence[tuple[Sequence[float], float]], terms: Sequence[int]) -> list[float] | None:
    """Return the values of these terms that bring each row nearest to 1; None if the rows cannot tell them apart."""
    matrix = [
        [sum(w * row[a] * row[b] for row, w in rows) for b in terms] + [sum(w * row[a] for row, w in rows)]
        for a in terms
    ]
    size = len(terms)
    for k in range(size):
        pivot = max(range(k, size), key=lambda r: abs(matrix[r][k]))
        if abs(matrix[pivot][k]) < 1e-12 * max(abs(value) for row in matrix for value in row):
            return None
        matrix[k], matrix[pivot] = matrix[pivot], matrix[k]
        for r in range(k + 1, size):
            factor = matrix[r][k] / matrix[k][k]
            matrix[r] = [x - factor * y for x, y in zip(matrix[r], matrix[k], strict=True)]
    values = [0.0] * size
    for k in reversed(range(size)):
        values[k] = (matrix[k][size] - sum(matrix[k][j] * values[j] for j in range(k + 1, size))) / matrix[k][k]
    return values


def with_prior(points: Sequence[Point], prior: Curve, weight: float) -> Curve:
    """Return the curve through measured points that elsewhere has the shape of ``prior``.

    Parameters
    ----------
    points : sequence of (int, float, float)
        Empty: the prior itself.
    prior : Curve
        Its scale follows from the points.
    weight : float
        Of the prior at each of :data:`PRIOR_SIZES`.
    """
    if not points:
        return prior
    scaled = prior.scaled(level(points, prior))
    if len(points) == 1:
        return scaled
    assumed = [(size, scaled.seconds(size)) for size in PRIOR_SIZES]
    # Errors of the prior count in relation to one container: at large sizes a small time would make them huge.
    alone_s = scaled.seconds(1)
    return fit([*points, *((size, seconds, weight * (seconds / alone_s) ** 2) for size, seconds in assumed)])


def level(points: Sequence[Point], shape: Curve) -> float:
    """Return the factor that brings a shape to the level of measured points: a median, robust to an outlier."""
    return median(seconds / shape.seconds(size) for size, seconds, _ in points)


class Speeds:
    """Measured speeds of all jobs, by sweep, and the cost of changing a size."""

    def __init__(self) -> None:
        #: Sweep -> job, by arrival number -> size -> its latest durations in seconds.
        self._durations: dict[str, dict[int, dict[int, list[float]]]] = {}
        #: Sweep -> its jobs that were measured and have not ended, by arrival number.
        self._running: dict[str, set[int]] = {}
        self._shapes: dict[str, Curve] = {}
        #: Sweep -> job, by arrival number -> its curve.
        self._curves: dict[str, dict[int, Curve]] = {}
        #: Sweep -> the largest measured size.
        self._largest: dict[str, int] = {}
        #: Job -> its iteration when its growth was ordered, and the seconds of one.
        self._begun: dict[int, tuple[int, float]] = {}
        self._changes_s: list[float] = []

    def note(self, job: Job, durations_s: Sequence[float]) -> None:
        """Add the durations of iterations at a job's current size."""
        sweep, size = job.request.sweep, job.workers + job.servers
        if not size:
            # Late iterations of members whose containers are lost.
            return
        jobs = self._durations.setdefault(sweep, {})
        sizes = jobs.setdefault(job.number, {})
        self._running.setdefault(sweep, set()).add(job.number)
        kept = sizes.setdefault(size, [])
        before = len(kept)
        kept.extend(durations_s)
        del kept[:-KEPT]
        self._forget_curve(job)
        # The shape of the sweep changes with a new size only: else each report would lead to a fit of all jobs.
        if before < LEAST_MEASURED <= len(kept):
            self._shapes.pop(sweep, None)
            self._curves.pop(sweep, None)
            self._largest[sweep] = max(size, self.largest(sweep))

    def _forget_curve(self, job: Job) -> None:
        self._curves.get(job.request.sweep, {}).pop(job.number, None)

    def _points(self, sizes: Mapping[int, Sequence[float]]) -> list[Point]:
        # Sorted: reports may be processed in another order when a record is replayed, and sums depend on it.
        found = [(size, median(kept), 1.0) for size, kept in sorted(sizes.items()) if len(kept) >= LEAST_MEASURED]
        # A clock may be too coarse for a fast job.
        return [point for point in found if point[1] > 0]

    def largest(self, sweep: str) -> int:
        """Return the largest measured size of a sweep's jobs; 0 if there is none."""
        return self._largest.get(sweep, 0)

    def shape(self, sweep: str) -> Curve:
        """Return the curve that a sweep's jobs have in common."""
        if sweep not in self._shapes:
            self._shapes[sweep] = self._shape(sweep)
        return self._shapes[sweep]

    def _shape(self, sweep: str) -> Curve:
        jobs = [points for sizes in self._durations.get(sweep, {}).values() if (points := self._points(sizes))]
        shape = PRIOR
        # The levels of jobs depend on the shape and the other way round: two rounds settle both.
        for _ in range(2):
            by_size: dict[int, list[float]] = {}
            for points in jobs:
                factor = level(points, shape)
                for size, seconds, _w in points:
                    by_size.setdefault(size, []).append(seconds / factor)
            pooled = [(size, median(values), 1.0) for size, values in sorted(by_size.items())]
            shape = with_prior(pooled, PRIOR, PRIOR_WEIGHT)
        if jobs:
            # A job that was not measured yet is assumed to be as fast as the others.
            shape = shape.scaled(median(level(points, shape) for points in jobs))
        return shape

    def curve(self, job: Job) -> Curve:
        """Return the curve of a job, from what it and the other jobs of its sweep measured."""
        sweep = job.request.sweep
        curves = self._curves.setdefault(sweep, {})
        if job.number not in curves:
            sizes = self._durations.get(sweep, {}).get(job.number, {})
            curves[job.number] = with_prior(self._points(sizes), self.shape(sweep), SWEEP_WEIGHT)
        return curves[job.number]

    # ---- changes of size

    def begin_change(self, job: Job) -> None:
        """Note that a growth of a job was ordered."""
        size = job.workers + job.servers
        if size and self.largest(job.request.sweep):
            self._begun[job.number] = job.iteration, self.curve(job).seconds(size)

    def end_change(self, job: Job) -> None:
        """Note that the new members of a job have joined: its iterations meanwhile say how long that took."""
        begun, iteration_s = self._begun.pop(job.number, (job.iteration, 0.0))
        if iteration_s:
            self._changes_s.append((job.iteration - begun) * iteration_s)
            del self._changes_s[:-KEPT]

    def change_s(self) -> float:
        """Return the seconds from an order to grow until the new members take part: a median."""
        return median(self._changes_s) if self._changes_s else ASSUMED_CHANGE_S

    def end(self, job: Job) -> None:
        """Drop what only a running job needs; the measured speeds of the sweep's latest jobs stay."""
        sweep = job.request.sweep
        self._begun.pop(job.number, None)
        self._forget_curve(job)
        running = self._running.get(sweep, set())
        running.discard(job.number)
        jobs = self._durations.get(sweep, {})
        for number in sorted(jobs.keys() - running)[: max(0, len(jobs) - KEPT_JOBS)]:
            del jobs[number]
        over = sorted((max(jobs), name) for name, jobs in self._durations.items() if jobs and not self._running[name])
        for _, name in over[: max(0, len(self._durations) - KEPT_SWEEPS)]:
            for kept in (self._durations, self._running, self._shapes, self._curves, self._largest):
                kept.pop(name, None)
