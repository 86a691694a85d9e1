"""What a server knows of one partition: what it is to it, how far it is, who follows, who waits.  L0, pure.

Source: EPS §2.2 Fig. 1c; design sections 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from eps.core import server_events as s
from eps.core.types import MemberId

#: Updates of one incarnation have numbers below 2**32.
INCARNATION_BITS = 32


class Holding(StrEnum):
    """What a server is to a partition that it holds."""

    OWNER = "owner"
    #: Applies the owner's updates; becomes the owner at a commit.
    FOLLOWER = "follower"
    #: Gave the partition away; answers for the clocks before, refuses the rest.
    FORWARDER = "forwarder"


@dataclass
class PartitionState:
    """Clocks, followers and waiting requests of one partition on one server."""

    partition: int
    holding: Holding
    #: Per split, the next clock that it contributes.  Invariant: ``completed == min(next_clock)``.
    next_clock: list[int]
    completed: int
    #: BSP: the first clock whose parameters are still here; what came in one piece has the newest version only.
    oldest_clock: int = -1
    #: Contributions, one for each (clock, split), that were added to the parameters.
    applied: int = 0
    duplicates_refused: int = 0
    #: Splits that contributed to clock ``completed`` (BSP).
    arrived: set[int] = field(default_factory=set)
    #: Number of the next update for followers, or expected from the owner.
    sequence: int = 0
    #: Number of the first update of its own: nobody else can have made one with that number, or a later one.
    owned_from: int | None = None
    #: Donor side: follower -> plan; 0 is a standing one.
    followers: dict[MemberId, int] = field(default_factory=dict)
    #: Followers that have caught up -> number of the first update that they have not acknowledged.  Under BSP
    #: nothing is served that one of them lacks.
    in_sync: dict[MemberId, int] = field(default_factory=dict)
    #: Those of them that a plan may not count on yet -> number of the first update that was made when they had their
    #: snapshot: what was served or acknowledged to workers before that, they must have.
    joining: dict[MemberId, int] = field(default_factory=dict)
    #: SSP and ASP: acknowledgements that wait for followers, with the sequence number that these must have reached.
    unstable: list[tuple[int, s.AckPush]] = field(default_factory=list)
    #: Follower side: the plan that brought it.
    plan_id: int = 0
    #: BSP: the clock at which this server becomes, or stops being, the owner.
    promote_at: int | None = None
    #: The arrays are gone; only where they went is known.
    dropped: bool = False
    held: list[s.PushArrived | s.PullArrived] = field(default_factory=list)
    #: Updates that overtook earlier ones, by sequence number.
    early: dict[int, s.UpdateArrived | s.PromoteArrived] = field(default_factory=dict)

    @property
    def readable_from(self) -> int:
        """The first clock whose parameters are kept; with the first push of a clock the version before goes."""
        return self.completed if self.arrived else self.oldest_clock

    @property
    def stable(self) -> bool:
        """True while every follower that has caught up has everything that was applied."""
        return not self.in_sync or min(self.in_sync.values()) >= self.sequence
