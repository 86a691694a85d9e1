"""The life of a plan: its phases, the paper's barriers as states of it, and the transition table.

The table is the truth: the master steps by it, tests walk it, and ARCHITECTURE.md shows the diagram that
:func:`diagram` draws from it.  L0.

Source: EPS §3.2 Fig. 5 (adding, barriers 1 to 4), §3.3 Fig. 10 (removing).

Deviation: the paper stops between two iterations (barrier 2 "finishing the previous iteration") and moves bytes while
the job waits.  Here training goes on while bytes move: barrier 3 updates address lists only, routing changes at the
commit clock, and no barrier waits for an iteration to end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from eps.core.membership import Membership
from eps.core.planner import TransferPlan
from eps.core.types import NO_TEAM, MemberId, Role, Team
from eps.errors import IllegalTransitionError


class Operation(StrEnum):
    """The four operations of EPS §3 and §5.2, and two that a job asks of itself."""

    ADD_SERVERS = "add-servers"
    ADD_WORKERS = "add-workers"
    REMOVE_SERVERS = "remove-servers"
    REMOVE_WORKERS = "remove-workers"
    #: Asked by the job itself: partitions that lack a standing follower get one.
    FOLLOW = "follow"
    #: Asked by the job itself: workers and servers leave whose containers will be taken away (Proteus §3.3).  Where
    #: they are all that there is of a role, one comes in their place.
    DRAIN = "drain"

    @property
    def role(self) -> Role:
        """The kind of member that comes or goes; a drain may concern both."""
        assert self is not Operation.DRAIN
        return Role.WORKER if self in (Operation.ADD_WORKERS, Operation.REMOVE_WORKERS) else Role.SERVER

    @property
    def adds(self) -> bool:
        """True for the two additions."""
        return self in (Operation.ADD_SERVERS, Operation.ADD_WORKERS)


class Purpose(StrEnum):
    """Who wants a change, and what for: decides how its plan is counted, given up and repeated."""

    #: A user or a scheduler asked for it.
    ASKED = "asked"
    #: Another application of the job's queue needs the room: what is removed is lent, what is added is taken back.
    LEND = "queue"
    #: The job replaces members that it lost.
    REPLACE = "size"
    #: The job asks again for members that others were to get the room of.
    REGAIN = "return"
    #: The job gives partitions a follower.
    FOLLOW = "followers"
    #: The job drains members whose containers will be taken away.
    DRAIN = "eviction"

    @property
    def own(self) -> bool:
        """True where the job itself wants the change."""
        return self not in (Purpose.ASKED, Purpose.LEND)

    @property
    def keeps_size(self) -> bool:
        """True where the change brings the job to the size that it was asked to have."""
        return self in (Purpose.REPLACE, Purpose.REGAIN)


#: What a user may ask for.
OPERATIONS = tuple(operation for operation in Operation if operation not in (Operation.FOLLOW, Operation.DRAIN))


class Phase(StrEnum):
    """Where a plan is."""

    #: Accepted and waiting for the plans before it.
    QUEUED = "queued"
    #: The next to change the job: planned, its containers asked for.
    PROPOSED = "proposed"
    #: Its new members are registered (an addition), or nothing is needed (a removal).
    PREPARED = "prepared"
    #: Every member has the newcomers in its address lists.
    LISTS_UPDATED = "lists-updated"
    #: Every byte is acknowledged by checksum; followers follow.
    COPIED = "copied"
    #: The record is on disk: the plan can only go forward.
    COMMITTED = "committed"
    #: Every member works under the new membership.
    SWITCHED = "switched"
    #: Donors dropped what they gave; containers of removed members are released.
    RELEASED = "released"
    #: Ended before commit; left no trace.
    ABORTED = "aborted"


TRANSITIONS: dict[Phase, tuple[Phase, ...]] = {
    Phase.QUEUED: (Phase.PROPOSED, Phase.ABORTED),
    Phase.PROPOSED: (Phase.PREPARED, Phase.ABORTED),
    Phase.PREPARED: (Phase.LISTS_UPDATED, Phase.ABORTED),
    Phase.LISTS_UPDATED: (Phase.COPIED, Phase.ABORTED),
    Phase.COPIED: (Phase.COMMITTED, Phase.ABORTED),
    Phase.COMMITTED: (Phase.SWITCHED,),
    Phase.SWITCHED: (Phase.RELEASED,),
    Phase.RELEASED: (),
    Phase.ABORTED: (),
}

#: Which phase ends at which barrier of the paper (Fig. 5 for additions, Fig. 10 for removals).
BARRIERS: dict[bool, dict[Phase, str]] = {
    True: {Phase.PREPARED: "B2", Phase.LISTS_UPDATED: "B3", Phase.SWITCHED: "B4"},
    False: {Phase.PREPARED: "B1", Phase.COPIED: "B2", Phase.SWITCHED: "B4", Phase.RELEASED: "B3"},
}

#: Phases in which a plan is alive and may still be aborted.
UNCOMMITTED = (Phase.QUEUED, Phase.PROPOSED, Phase.PREPARED, Phase.LISTS_UPDATED, Phase.COPIED)
#: Phases in which a plan has ended.
ENDED = (Phase.RELEASED, Phase.ABORTED)


@dataclass(frozen=True, slots=True)
class Change:
    """What is asked for: one operation, by count or by name."""

    operation: Operation
    #: Number of members; for a removal by name, and for a drain, the number of names.
    count: int
    #: Names to remove; empty for a removal by count (those that joined last go first) and for additions.
    names: tuple[MemberId, ...] = ()

    def __str__(self) -> str:
        return f"{self.operation}={','.join(self.names) if self.names else self.count}"


@dataclass
class Plan:
    """One change of size on its way, with its record.  Mutated only by the master's state."""

    plan_id: int
    #: The client's name for its request; says nothing about the plan.  Empty where no client asked.
    request_id: str
    change: Change
    phase: Phase = Phase.QUEUED
    purpose: Purpose = Purpose.ASKED
    #: The clock of a change that was asked for beforehand (``--at``).
    asked_at: int | None = None
    #: The number by which members know it, set when proposed: what they have of a plan with a lower one is void.  It is
    #: the plan's id, unless one that was asked for later went before it.
    turn: int = 0
    #: Members that come; named when proposed, never used again.
    coming: Team = NO_TEAM
    #: Members that go.
    going: Team = NO_TEAM
    #: Set when proposed.
    transfer: TransferPlan | None = None
    #: Set when committed.
    membership: Membership | None = None
    #: First clock under the new membership; set when committed.
    commit_clock: int | None = None
    #: Phase -> time of reaching it, seconds on the master's clock.
    reached_s: dict[Phase, float] = field(default_factory=dict)
    #: Barrier of the paper -> time of passing it.
    barriers_s: dict[str, float] = field(default_factory=dict)
    #: Bytes of partitions and splits that were sent for it.
    bytes_moved: int = 0
    #: Why it was aborted.
    reason: str = ""

    def enter(self, phase: Phase, now_s: float) -> None:
        """Move to ``phase``.

        Raises
        ------
        IllegalTransitionError
            The table has no such transition.
        """
        if phase not in TRANSITIONS[self.phase]:
            story = tuple(f"{p} at {t:.3f} s" for p, t in self.reached_s.items())
            raise IllegalTransitionError(f"plan {self.plan_id} cannot go from {self.phase} to {phase}", story)
        self.phase = phase
        self.reached_s[phase] = now_s
        barrier = BARRIERS[self.change.operation.adds].get(phase)
        if barrier is not None:
            self.barriers_s[barrier] = now_s

    @property
    def added(self) -> tuple[MemberId, ...]:
        """Members that come."""
        return self.coming.members

    @property
    def removed(self) -> tuple[MemberId, ...]:
        """Members that go."""
        return self.going.members

    @property
    def ended(self) -> bool:
        """True once released or aborted."""
        return self.phase in ENDED

    @property
    def undecided(self) -> bool:
        """True while the plan may still be aborted."""
        return self.phase in UNCOMMITTED


def diagram() -> str:
    """Return the life of a plan as text, drawn from :data:`TRANSITIONS` and :data:`BARRIERS`."""
    lines = []
    for phase, following in TRANSITIONS.items():
        ahead = [p for p in following if p is not Phase.ABORTED]
        marks = [
            f"{BARRIERS[adds][phase]} ({'adding, Fig. 5' if adds else 'removing, Fig. 10'})"
            for adds in (True, False)
            if phase in BARRIERS[adds]
        ]
        arrow = f" -> {ahead[0]}" if ahead else ""
        abort = "  | abort" if Phase.ABORTED in following else ""
        lines.append(f"{phase:<14}{arrow:<18}{abort:<9}{'  ends at ' + ', '.join(marks) if marks else ''}".rstrip())
    return "\n".join(lines)
