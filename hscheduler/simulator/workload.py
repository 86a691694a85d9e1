"""Jobs to simulate: their arrivals, requests, and losses."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from hscheduler.core.jobs import JobRequest
from hscheduler.simulator.models import SpeedModel


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """One job of a workload."""

    arrives_s: float
    request: JobRequest
    iterations: int
    speed: SpeedModel
    #: Early feedback and final loss.
    feedback: float
    loss: float
    #: Values of the metric, as (completed iterations, value) in ascending order; empty: between feedback and loss.
    curve: tuple[tuple[int, float], ...] = ()

    def value(self, iteration: int, feedback_iteration: int) -> float:
        """Return the value of the metric at an iteration: the next one of the curve.

        Without a curve, the value moves from the early feedback to the final loss in proportion to the logarithm of the
        iterations, and is the early feedback before that.
        """
        if self.curve:
            later = bisect_left(self.curve, iteration, key=lambda point: point[0])
            return self.curve[min(later, len(self.curve) - 1)][1]
        if not feedback_iteration < iteration <= self.iterations:
            return self.feedback if iteration <= feedback_iteration else self.loss
        share = math.log(iteration / feedback_iteration) / math.log(self.iterations / feedback_iteration)
        return self.feedback + share * (self.loss - self.feedback)


@dataclass(frozen=True, slots=True)
class Arrival:
    """Arrivals of trials: all at once, or with exponential gaps.

    Source: EPS §6 ("the jobs are submitted in an exponential distribution").
    """

    mean_gap_s: float = 0.0

    def times_s(self, draw: Random) -> Iterator[float]:
        """Yield the time of each arrival, from 0."""
        now_s = 0.0
        while True:
            yield now_s
            if self.mean_gap_s:
                now_s += draw.expovariate(1.0 / self.mean_gap_s)


def qualities(draw: Random) -> Iterator[tuple[float, float]]:
    """Yield (early feedback, final loss) of jobs.

    Final losses are uniform between 0.1 and 1.  Early feedback is 0.3 above them, with noise of a tenth of the range.
    """
    while True:
        loss = draw.uniform(0.1, 1.0)
        yield loss + 0.3 + draw.gauss(0.0, 0.09), loss
