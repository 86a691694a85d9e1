"""A change of size: which changes are possible, which members they concern, and the phases of a plan as one table.

The table is authoritative: the master steps by it, tests walk it, and :func:`diagram` draws the diagram of
ARCHITECTURE.md from it.  Whether a change is possible depends on counts and names only.

Source: EPS §3.2 Fig. 5 (adding, barriers 1 to 4), §3.3 Fig. 10 (removing); design section 4 ("refuses what would break
a job").

Deviation: the paper stops between two iterations (barrier 2 "finishing the previous iteration") and moves bytes while
the job waits.  Here training continues while bytes move: barrier 3 updates address lists only, routing changes at the
commit clock, and no barrier waits for an iteration to end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from eps.core.membership import Membership
from eps.core.planner import TransferPlan
from eps.core.tiers import Deltas, TiersView, decide, deltas_text, resized, without_text
from eps.core.types import MOST_MEMBERS, NO_TEAM, CoreSettings, MemberId, Role, Team, member_name
from eps.errors import IllegalTransitionError, PlanError, UnknownMemberError


class Operation(StrEnum):
    """The four operations of EPS §3 and §5.2, several of them at once, and two that a job requests itself."""

    ADD_SERVERS = "add-servers"
    ADD_WORKERS = "add-workers"
    REMOVE_SERVERS = "remove-servers"
    REMOVE_WORKERS = "remove-workers"
    #: Workers and servers in one plan.
    SCALE = "scale"
    #: Requested by the job: gives a standing follower to partitions without one.
    FOLLOW = "follow"
    #: Transient containers are evicted, with a warning, or fail, without one: to try a job out.
    EVICT = "evict"
    FAIL = "fail"
    #: Of a job on reliable and transient containers: changes how many there are, or what they host (Proteus §3.3).
    TIERS = "tiers"
    #: Requested by the job: removes workers and servers whose containers will be taken away (Proteus §3.3).  If all
    #: members of a role must leave, adds a successor.
    DRAIN = "drain"

    @property
    def role(self) -> Role:
        """The role of the members that are added or removed; undefined for drain and scale, which may concern both."""
        assert self not in (Operation.DRAIN, Operation.SCALE, Operation.TIERS, Operation.EVICT, Operation.FAIL)
        return Role.WORKER if self in (Operation.ADD_WORKERS, Operation.REMOVE_WORKERS) else Role.SERVER

    @property
    def adds(self) -> bool:
        """Whether the operation is add-servers or add-workers."""
        return self in (Operation.ADD_SERVERS, Operation.ADD_WORKERS)


class Purpose(StrEnum):
    """The reason for a change; decides how its plan is counted, aborted and retried."""

    #: A user or a scheduler requested it.
    ASKED = "asked"
    #: The job replaces members that it lost.
    REPLACE = "size"
    #: The job requests members again that were preempted for other applications.
    REGAIN = "return"
    #: The job gives partitions a follower.
    FOLLOW = "followers"
    #: The job drains members whose containers will be taken away.
    DRAIN = "eviction"
    #: The job changes which of its containers work and serve.
    ARRANGE = "tiers"

    @property
    def own(self) -> bool:
        """Return whether the job itself requests the change."""
        return self is not Purpose.ASKED

    @property
    def keeps_size(self) -> bool:
        """Return whether the change restores the size that users requested."""
        return self in (Purpose.REPLACE, Purpose.REGAIN)


#: What a trigger does to transient containers.
TAKINGS = (Operation.EVICT, Operation.FAIL)
#: The four operations of EPS §5.2.
OPERATIONS = (Operation.ADD_SERVERS, Operation.ADD_WORKERS, Operation.REMOVE_SERVERS, Operation.REMOVE_WORKERS)


class Phase(StrEnum):
    """The phase of a plan."""

    #: Accepted and waiting for the plans before it.
    QUEUED = "queued"
    #: In flight: planned, its containers requested.
    PROPOSED = "proposed"
    #: Its new members have registered (an addition), or none are needed (a removal).
    PREPARED = "prepared"
    #: Every member has the newcomers in its address lists.
    LISTS_UPDATED = "lists-updated"
    #: Every byte is acknowledged by checksum; followers receive updates.
    COPIED = "copied"
    #: The record is on disk: the plan can only roll forward.
    COMMITTED = "committed"
    #: Every member works under the new membership.
    SWITCHED = "switched"
    #: Donors dropped what they gave; containers of removed members are released.
    RELEASED = "released"
    #: Ended before its commit, without effect.
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

#: Phases in which a plan can still be aborted.
UNCOMMITTED = (Phase.QUEUED, Phase.PROPOSED, Phase.PREPARED, Phase.LISTS_UPDATED, Phase.COPIED)
#: Phases in which a plan has ended.
ENDED = (Phase.RELEASED, Phase.ABORTED)


@dataclass(frozen=True, slots=True)
class Change:
    """A requested change: one operation, by count or by name, or several at once."""

    operation: Operation
    #: Number of members; equals the number of names if there are any.  For a scale, the sum over its parts; for tiers,
    #: evictions and failures, the number of containers (0: all of them).
    count: int
    #: Names to remove, for tiers of containers; empty for additions and for removals by count, which remove the latest
    #: members first.
    names: tuple[MemberId, ...] = ()
    #: For a scale: one addition or removal by count for each role that changes.
    parts: tuple[Change, ...] = ()
    #: For tiers: how many containers come or leave; empty if they have names, or only what they host changes.
    containers: Deltas = ()
    #: Of an addition or removal by count: whether the user wrote it as a scale.
    by_scale: bool = field(default=False, compare=False)

    @property
    def adds_members(self) -> bool:
        """Whether the change adds members; a scale may remove others."""
        more = any(number > 0 for _, number in self.containers)
        return self.operation.adds or more or any(part.adds_members for part in self.parts)

    @property
    def removes_members(self) -> bool:
        """Whether the change removes members; a scale may add others."""
        fewer = any(number < 0 for _, number in self.containers)
        return not self.adds_members or fewer or any(not part.adds_members for part in self.parts)

    @property
    def asked(self) -> int | str:
        """The number or the names of the members; for a scale or tiers, text such as ``workers=+2,servers=-1``."""
        if self.parts:
            return _scale_text(self.parts)
        if self.containers:
            return deltas_text(self.containers)
        if self.operation in TAKINGS:
            return self.count or "all"
        if self.names and self.operation is Operation.TIERS:
            return without_text(self.names)
        return ",".join(self.names) or self.count

    def __str__(self) -> str:
        if self.by_scale:
            return _scale_text((self,))
        is_scale = self.parts or self.containers or (self.names and self.operation is Operation.TIERS)
        return str(self.asked) if is_scale else f"{self.operation}={self.asked}"


def _scale_text(parts: Iterable[Change]) -> str:
    return ",".join(f"{part.operation.role}s={'+' if part.adds_members else '-'}{part.count}" for part in parts)


@dataclass
class Plan:
    """One change of size, with its record.  Mutated only by the master's state."""

    plan_id: int
    #: The client's id of its request; empty if no client requested it.
    request_id: str
    change: Change
    phase: Phase = Phase.QUEUED
    purpose: Purpose = Purpose.ASKED
    #: The clock of a change that was scheduled in advance (``--at``).
    asked_at: int | None = None
    #: The number by which members know the plan, set when proposed: data of plans with lower turns is void.  Equals the
    #: plan's id, unless a plan that was requested later went before it.
    turn: int = 0
    #: Members to add; named when proposed, names are never reused.
    coming: Team = NO_TEAM
    #: Members to remove.
    going: Team = NO_TEAM
    #: For tiers, set when proposed: containers that were requested for it, and those that it releases.
    requested: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    #: For tiers, set when proposed: how many reliable containers the job has more with it.
    more_reliable: int = 0
    #: Set when proposed.
    transfer: TransferPlan | None = None
    #: Set when committed.
    membership: Membership | None = None
    #: First clock under the new membership; set when committed.
    commit_clock: int | None = None
    #: Phase -> time of entering it, in seconds on the master's clock.
    reached_s: dict[Phase, float] = field(default_factory=dict)
    #: Barrier of the paper -> time of passing it.
    barriers_s: dict[str, float] = field(default_factory=dict)
    #: Bytes of partitions and splits sent for it.
    bytes_moved: int = 0
    #: Why it was aborted.
    reason: str = ""

    def enter(self, phase: Phase, now_s: float) -> None:
        """Move to ``phase``.

        Raises
        ------
        IllegalTransitionError
            :data:`TRANSITIONS` has no such transition.
        """
        if phase not in TRANSITIONS[self.phase]:
            story = tuple(f"{p} at {t:.3f} s" for p, t in self.reached_s.items())
            raise IllegalTransitionError(f"plan {self.plan_id} cannot go from {self.phase} to {phase}", story)
        self.phase = phase
        self.reached_s[phase] = now_s
        barrier = BARRIERS[self.change.adds_members].get(phase)
        if barrier is not None:
            self.barriers_s[barrier] = now_s

    @property
    def added(self) -> tuple[MemberId, ...]:
        """The members to add."""
        return self.coming.members

    @property
    def removed(self) -> tuple[MemberId, ...]:
        """The members to remove."""
        return self.going.members

    @property
    def ended(self) -> bool:
        """Return whether it was released or aborted."""
        return self.phase in ENDED

    @property
    def undecided(self) -> bool:
        """Return whether it can still be aborted."""
        return self.phase in UNCOMMITTED


def diagram() -> str:
    """Return the phases of a plan as text, drawn from :data:`TRANSITIONS` and :data:`BARRIERS`."""
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


@dataclass(frozen=True, slots=True)
class Trigger:
    """A change that is requested when ``clock`` iterations are complete (``--at K:...``)."""

    clock: int
    change: Change


#: A message lists at most this many members by name.
_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class Roster:
    """The members after all open plans, in the order in which they joined."""

    workers: tuple[MemberId, ...]
    servers: tuple[MemberId, ...]
    #: Numbers of the next worker and the next server; numbers are never reused.
    next_worker: int
    next_server: int
    #: The containers of a job on reliable and transient containers; None for other jobs.
    tiers: TiersView | None = None
    #: Servers that own partitions, if not all do.
    owners: tuple[MemberId, ...] | None = None

    def of_role(self, role: Role) -> tuple[MemberId, ...]:
        """Return the members of one role."""
        return self.workers if role is Role.WORKER else self.servers

    def next_number(self, role: Role) -> int:
        """Return the number of the next member of a role."""
        return self.next_worker if role is Role.WORKER else self.next_server


def resolve(roster: Roster, change: Change, settings: CoreSettings) -> tuple[Roster, Team, Team]:
    """Return the roster after ``change``, the members it adds and the members it removes.

    Raises
    ------
    PlanError
        The change would leave no worker or no server, more workers than splits, more servers than partitions, or
        asks for nothing.
    UnknownMemberError
        A name is not a member, or not of the operation's role.
    """
    if change.operation is Operation.DRAIN:
        return _resolve_drain(roster, change.names)
    if change.operation is Operation.SCALE:
        return _resolve_scale(roster, change, settings)
    if change.operation is Operation.FOLLOW:
        return roster, Team(), Team()
    if change.operation is Operation.TIERS:
        return _resolve_tiers(roster, change, settings)
    if roster.tiers is not None:
        raise PlanError(
            f"{change}: this job decides who works and who serves; change the number of its containers, as in "
            "transient=+2"
        )
    role = change.operation.role
    present = roster.of_role(role)
    if change.count < 1:
        raise PlanError(f"{change.operation} asks for {change.count} members; a change concerns at least one")
    if change.operation.adds:
        limit = settings.num_splits if role is Role.WORKER else settings.num_partitions
        items = "splits" if role is Role.WORKER else "partitions"
        if len(present) + change.count > MOST_MEMBERS:
            raise PlanError(f"{change}: a job has at most {MOST_MEMBERS} {role}s, and this one has {len(present)}")
        if len(present) + change.count > limit:
            raise PlanError(
                f"{change}: {len(present)} + {change.count} {role}s would share {limit} {items}; "
                f"a job has at most one {role} for each of its {items}"
            )
        # Only after the checks above: a count from outside may be any number.
        first = roster.next_number(role)
        added = tuple(member_name(role, first + i) for i in range(change.count))
        return _with(roster, role, present + added, first + change.count), Team.of(role, added), Team()
    if change.names:
        _check_names(change.names, present, role)
        removed = tuple(name for name in present if name in change.names)
    else:
        if change.count >= len(present):
            raise PlanError(
                f"{change}: the job has {len(present)} {role}{'s' * (len(present) != 1)} and must keep at least one"
            )
        removed = present[-change.count :]
    if len(removed) >= len(present):
        raise PlanError(f"{change}: the job has {len(present)} {role}s and must keep at least one")
    going = frozenset(removed)
    staying = tuple(m for m in present if m not in going)
    return _with(roster, role, staying, roster.next_number(role)), Team(), Team.of(role, removed)


def _resolve_scale(roster: Roster, change: Change, settings: CoreSettings) -> tuple[Roster, Team, Team]:
    """Return what :func:`resolve` does for each part of a change, one after the other."""
    coming = going = NO_TEAM
    for part in change.parts:
        roster, comes, goes = resolve(roster, part, settings)
        coming = Team(coming.workers + comes.workers, coming.servers + comes.servers)
        going = Team(going.workers + goes.workers, going.servers + goes.servers)
    return roster, coming, going


def _resolve_tiers(roster: Roster, change: Change, settings: CoreSettings) -> tuple[Roster, Team, Team]:
    """Return what :func:`resolve` does for containers of reliable and transient tiers."""
    if roster.tiers is None:
        raise PlanError(f"{change}: the job has no tiers; it was started with --workers and --servers")
    tiers = resized(roster.tiers, change.containers, roster.next_worker, roster.next_server, change.names)
    decision = decide(tiers)
    if decision is None:
        raise PlanError(f"{change}: no container is left that could have workers, or servers")
    number, limit = len(tiers.hosts), settings.num_splits
    # A decision of the job's own leaves out workers beyond the limit.  A container without partitions only works.
    if number > limit and change.containers:
        raise PlanError(f"{change}: {number} workers would share {limit} splits, which a running job cannot change")
    wanted = {Role.WORKER: decision.workers, Role.SERVER: decision.servers}
    coming, going, after = {}, {}, {}
    for role in Role:
        present, stays, here = roster.of_role(role), frozenset(wanted[role]), frozenset(roster.of_role(role))
        coming[role] = tuple(name for name in wanted[role] if name not in here)
        going[role] = tuple(name for name in present if name not in stays)
        after[role] = tuple(name for name in present if name in stays) + coming[role]
    new = sum(max(0, number) for _, number in change.containers)
    numbers = roster.next_worker + new, roster.next_server + new
    found = Roster(after[Role.WORKER], after[Role.SERVER], *numbers, tiers, decision.owners)
    return found, Team(coming[Role.WORKER], coming[Role.SERVER]), Team(going[Role.WORKER], going[Role.SERVER])


def _resolve_drain(roster: Roster, names: Sequence[MemberId]) -> tuple[Roster, Team, Team]:
    """Return what :func:`resolve` does for members that must leave; the last of a role get a successor."""
    coming: dict[Role, tuple[MemberId, ...]] = {}
    going: dict[Role, tuple[MemberId, ...]] = {}
    for role in Role:
        present, number = roster.of_role(role), roster.next_number(role)
        going[role] = tuple(name for name in names if name in present)
        staying = tuple(name for name in present if name not in going[role])
        coming[role] = () if staying else (member_name(role, number),)
        roster = _with(roster, role, staying + coming[role], number + len(coming[role]))
    unknown = sorted(set(names).difference(*going.values()))
    if unknown:
        raise UnknownMemberError(f"{', '.join(unknown)}: not a member of the job")
    added, removed = (Team(found[Role.WORKER], found[Role.SERVER]) for found in (coming, going))
    return roster, added, removed


def after_plans(roster: Roster, plans: Iterable[Plan], settings: CoreSettings) -> Roster:
    """Return the roster after ``plans``, in order; plans that have become impossible change nothing."""
    for plan in plans:
        if plan.phase is not Phase.QUEUED:
            # Its newcomers are already named, so their numbers are used.
            removed = frozenset(plan.removed)
            for role in Role:
                staying = tuple(name for name in roster.of_role(role) if name not in removed)
                roster = _with(roster, role, staying + plan.coming.of_role(role), roster.next_number(role))
            continue
        try:
            roster = resolve(roster, plan.change, settings)[0]
        except PlanError:
            continue
    return roster


def _check_names(names: Iterable[MemberId], present: Sequence[MemberId], role: Role) -> None:
    seen: set[MemberId] = set()
    there = frozenset(present)
    for name in names:
        if name in seen:
            raise PlanError(f"{name} is named twice")
        seen.add(name)
        if name not in there:
            more = f" and {len(present) - _MOST_NAMED} more" * (len(present) > _MOST_NAMED)
            raise UnknownMemberError(
                f"{name} is not a {role} of the job; it has {', '.join(present[:_MOST_NAMED])}{more}"
            )


def _with(roster: Roster, role: Role, members: tuple[MemberId, ...], following: int) -> Roster:
    if role is Role.WORKER:
        return Roster(members, roster.servers, following, roster.next_server, roster.tiers)
    return Roster(roster.workers, members, roster.next_worker, following, roster.tiers)
