"""The stopping rule of a sweep with its parameters, and the rungs: the iterations at which a rule judges a trial.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (MLSys 2020), section 3: rung k is at
``r * eta**k`` iterations, r the least resource of a trial.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, takewhile


@dataclass(frozen=True, slots=True)
class Stopping:
    """A stopping rule by name, and its parameters."""

    #: A name of :data:`hscheduler.stopping.RULES`; empty: that of the scheduler, else that of the policy.
    rule: str = ""
    #: Of the trials at a rung, one in ``eta`` goes on.
    eta: int = 3
    #: The first rung; 0: the feedback iteration.
    grace_iterations: int = 0
    #: Rungs are below it; 0: below the iterations of each trial.
    max_iterations: int = 0


#: The rule and the parameters of a sweep that sets none.
DEFAULT = Stopping()


@dataclass(frozen=True, slots=True)
class Rungs:
    """The iterations at which a trial is judged."""

    #: The first one; 0: there is none.
    first: int = 0
    #: Each is this many times the one before; 0: all are multiples of the first.
    eta: int = 0
    #: All are below it; 0: there is no end.
    end: int = 0

    def at(self, number: int) -> int | None:
        """Return the iteration of a rung, counted from 0; None if there is no such rung."""
        iteration = self.first * (self.eta**number if self.eta else number + 1)
        return iteration if iteration and (not self.end or iteration < self.end) else None

    def all(self) -> tuple[int, ...]:
        """Return the iterations of all rungs, which have an end."""
        return tuple(takewhile(bool, (self.at(number) or 0 for number in count())))

    def until(self, end: int) -> Rungs:
        """Return the rungs below ``end``; 0 is no limit."""
        return Rungs(self.first, self.eta, min(self.end or end, end or self.end))


#: Those of a rule that judges at no iteration.
NO_RUNGS = Rungs()
