"""What a worker keeps of a clock that it has computed.

Source: design section 5 (a worker never overwrites its only copy of a clock that may have to be computed again).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eps.core import messages as m
from eps.worker.compute import ActiveSet, ClockWork, Parameters


@dataclass(slots=True, eq=False)
class Kept:
    """What was computed, until it is known that nobody can lose it any more.

    Under BSP that is so when the next clock's parameters have come; otherwise when every server has acknowledged it.
    Until then everything is there to push it again, or a part of it.
    """

    done: ClockWork
    active: ActiveSet
    parameters: Parameters
    report: m.ClockReported
    #: By the memberships that are known.
    pushed: bool = False
    #: Partitions whose owner has it, whole.
    acked: set[int] = field(default_factory=set)
    told: bool = False
