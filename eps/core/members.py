"""The members of a job, from the request for a container to its end: membership, silence, and their masters.

:class:`SilenceWatch` has the deadlines after which a silent member counts as lost.  :class:`Masters` knows which master
a member has heard: a master whose log misses events must not go on.  Pure.

Source: EPS §5.2 (the ApplicationMaster requests containers; processes register with it); design section 5 (a member is
lost with its connection, or with its silence).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from eps.core import events as e
from eps.core import messages as m
from eps.core.membership import Membership, PartitionTable, SplitTable, spread_evenly
from eps.core.planner import standing_followers
from eps.core.types import Address, CoreSettings, MemberId, Role, Tier, member_name


class MemberPhase(StrEnum):
    """How far a member is."""

    REQUESTED = "requested"
    GRANTED = "granted"
    LAUNCHED = "launched"
    REGISTERED = "registered"


@dataclass
class Member:
    """A process of the job; mutated by :class:`Members` alone."""

    name: MemberId
    container: str
    roles: frozenset[Role]
    #: Its place among the members of its role, in the order in which the job asked for them, from 1 on.
    rank: int
    tier: Tier = Tier.RELIABLE
    phase: MemberPhase = MemberPhase.REQUESTED
    #: Where it listens; None before it has registered.
    address: Address | None = None
    #: Of its process: as the resource manager told it, and as the process itself does once it has registered.
    launched_pid: int = 0
    pid: int = 0
    #: When its container was requested, granted and launched, in seconds on the master's clock.
    asked_s: float = 0.0
    granted_s: float = 0.0
    launched_s: float = 0.0
    #: Generation of the master that it registered with last; 0 before.
    generation: int = 0
    #: Member that it has connected to -> which way the data goes.
    ways: dict[MemberId, str] = field(default_factory=dict)

    @property
    def granted(self) -> bool:
        """True once its container is granted."""
        return self.phase is not MemberPhase.REQUESTED

    @property
    def launched(self) -> bool:
        """True once its process runs."""
        return self.phase in (MemberPhase.LAUNCHED, MemberPhase.REGISTERED)

    def is_late(self, now_s: float, patience_s: float) -> bool:
        """Return whether its process has run for so long and has not registered."""
        return self.phase is MemberPhase.LAUNCHED and now_s - self.launched_s >= patience_s


class Members:
    """Containers, names, addresses, and the memberships so far.

    Parameters
    ----------
    first_container : int
        Number of the first container: log files of an earlier run have those before.
    """

    def __init__(self, first_container: int = 1) -> None:
        self.by_name: dict[MemberId, Member] = {}
        self.by_container: dict[str, Member] = {}
        #: The newest membership; None while the job starts.
        self.membership: Membership | None = None
        #: Every membership that ever held, oldest first.
        self.memberships: list[Membership] = []
        #: Members that have not acknowledged the first membership, or the one after a recovery.
        self.unacked: set[MemberId] = set()
        #: Role -> number of the next member; numbers are never used again.
        self.next_number = dict.fromkeys(Role, 1)
        #: Address -> the member that registered last with it; some have ended.
        self._by_address: dict[Address, Member] = {}
        self._next_container = first_container
        #: Role -> members that take part and have their containers.
        self.held = dict.fromkeys(Role, 0)

    # ---- containers

    def request(self, role: Role, now_s: float) -> tuple[MemberId, list[e.Command]]:
        """Request a container for the next member of a role; return its name, which no other ever has."""
        rank = self.next_number[role]
        self.next_number[role] = rank + 1
        name = member_name(role, rank)
        return name, self._request(name, frozenset({role}), rank, now_s)

    def request_all(self, counts: Mapping[Role, int], now_s: float) -> list[e.Command]:
        """Request containers for so many members of each role."""
        return [command for role in Role for _ in range(counts[role]) for command in self.request(role, now_s)[1]]

    def request_another(self, member: Member, now_s: float) -> list[e.Command]:
        """Request another container for a member whose own has ended."""
        return self._request(member.name, member.roles, member.rank, now_s)

    def _request(self, name: MemberId, roles: frozenset[Role], rank: int, now_s: float) -> list[e.Command]:
        container_id = f"container-{self._next_container:04d}"
        self._next_container += 1
        self.by_name[name] = self.by_container[container_id] = Member(name, container_id, roles, rank, asked_s=now_s)
        return [e.RequestContainer(container_id, roles)]

    def repeat_request(self, member: Member, now_s: float) -> list[e.Command]:
        """Request the same container again: the request may have been lost with the master before."""
        member.phase, member.asked_s = MemberPhase.REQUESTED, now_s
        return [e.RequestContainer(member.container, member.roles)]

    def granted(self, container_id: str, now_s: float) -> Member | None:
        """Take in that a container was granted; return its member, None where the job does not count on it."""
        member = self.by_container.get(container_id)
        if member is not None and not member.granted:
            member.phase, member.granted_s = MemberPhase.GRANTED, now_s
        return member

    def launched(self, container_id: str, pid: int, now_s: float) -> Member | None:
        """Take in that a container's process runs; return its member."""
        member = self._runs(container_id, now_s)
        if member is not None:
            member.launched_pid = pid
            member.pid = member.pid or pid
        return member

    def pids(self) -> dict[str, int]:
        """Return the containers that were launched -> pid, as the resource manager told it."""
        return {name: member.launched_pid for name, member in self.by_container.items() if member.launched_pid}

    def _runs(self, container_id: str, now_s: float) -> Member | None:
        member = self.granted(container_id, now_s)
        if member is not None and not member.launched:
            member.phase, member.launched_s = MemberPhase.LAUNCHED, now_s
        return member

    def registered(self, event: e.MemberRegistered, generation: int, now_s: float) -> tuple[Member | None, bool]:
        """Take in that a process registered; return its member, and whether it had registered before."""
        member = self._runs(event.container_id, now_s)
        if member is None:
            return None, False
        member.pid = event.pid
        again = member.phase is MemberPhase.REGISTERED
        member.phase, member.address, member.generation = MemberPhase.REGISTERED, event.address, generation
        self._by_address[event.address] = member
        return member, again

    def ended(self, container_id: str) -> Member | None:
        """Forget a member whose container ended, and return it; None where the job did not count on it."""
        member = self.by_container.pop(container_id, None)
        if member is not None:
            del self.by_name[member.name]
            self._count()
        return member

    def dismiss(self, names: Iterable[MemberId], why: str) -> list[e.Command]:
        """Give the containers of members back; harmless where one has ended."""
        commands: list[e.Command] = []
        for name in names:
            member = self.by_name.pop(name, None)
            if member is None:
                continue
            del self.by_container[member.container]
            if member.address is not None:
                commands.append(e.Send(name, m.Shutdown(why)))
            commands.append(e.ReleaseContainer(member.container))
        return commands

    def connected(self, report: m.PeerReached) -> None:
        """Take in which way the data of one member goes to another."""
        member, peer = self.by_name.get(report.name), self._by_address.get(report.peer)
        if member is not None and peer is not None and peer.name in self.by_name:
            here = {name: way for name, way in member.ways.items() if name in self.by_name}
            member.ways = {**here, peer.name: report.way}

    def of_role(self, role: Role) -> list[Member]:
        """Return the members of a role, in the order in which their containers were requested."""
        return [member for member in self.by_name.values() if role in member.roles]

    # ---- the membership

    def first_membership(self, settings: CoreSettings) -> Membership | None:
        """Return the membership that holds from the first clock on; None while a member has not registered."""
        addresses = {name: member.address for name, member in self.by_name.items() if member.address is not None}
        if not self.by_name or len(addresses) < len(self.by_name):
            return None
        workers, servers = (
            tuple(member.name for member in sorted(self.of_role(role), key=lambda member: member.rank)) for role in Role
        )
        owners = spread_evenly(settings.num_partitions, servers)
        followers = standing_followers(owners, servers, ()) if settings.followers else ()
        return Membership(
            version=1,
            from_clock=settings.first_clock,
            workers=workers,
            servers=servers,
            partitions=PartitionTable(owners, followers),
            splits=SplitTable.of(spread_evenly(settings.num_splits, workers)),
            addresses=addresses,
        )

    def adopt(self, membership: Membership, *, waits: bool) -> None:
        """Let a membership hold; ``waits``: nothing goes on before all members have acknowledged it."""
        self.membership = membership
        self.memberships.append(membership)
        self.unacked = set(membership.members) if waits else self.unacked
        self._count()

    def announce(self, membership: Membership, turn: int) -> list[tuple[MemberId, m.Order]]:
        """Let a membership hold before which nothing goes on; return it as orders for all its members."""
        self.adopt(membership, waits=True)
        return self.orders(membership.members, turn)

    def acknowledged(self, report: m.MembershipAcked) -> None:
        """Take in that a member has a membership."""
        if self.membership is not None and report.version == self.membership.version:
            self.unacked.discard(report.name)

    def orders(self, names: Iterable[MemberId], turn: int) -> list[tuple[MemberId, m.Order]]:
        """Return the membership as an order for members; ``turn`` is that of the plan that made it, else 0."""
        if self.membership is None:
            return []
        order = m.UpdateMembership(turn, self.membership)
        return [(name, order) for name in names]

    def _count(self) -> None:
        if self.membership is not None:
            for role in Role:
                self.held[role] = sum(name in self.by_name for name in self.membership.of_role(role))

    def validate(self) -> None:
        """Assert that each container has one member in one phase, and that memberships follow each other."""
        assert {member.container: member.name for member in self.by_name.values()} == {
            container_id: member.name for container_id, member in self.by_container.items()
        }
        for member in self.by_name.values():
            assert (member.address is not None) == (member.phase is MemberPhase.REGISTERED), member
        if self.membership is None:
            return
        for role in Role:
            assert self.held[role] == len(set(self.membership.of_role(role)) & set(self.by_name)), role
        self.membership.validate()
        assert self.memberships[-1] is self.membership and self.unacked <= set(self.membership.members)
        assert [v.version for v in self.memberships] == list(range(1, len(self.memberships) + 1))
        # One that takes over from lost members holds at once.  Equal where a plan commits before any worker was granted
        # the clock of the plan before: then the later holds.
        for earlier, later in pairwise(self.memberships):
            for role in Role:
                stayed = [name for name in earlier.of_role(role) if name in later.of_role(role)]
                assert list(later.of_role(role)[: len(stayed)]) == stayed, "newcomers come after those that stay"
            assert later.takes_over or earlier.from_clock <= later.from_clock, (earlier.version, later.from_clock)
        if not any(membership.takes_over for membership in self.memberships):
            assert max(self.membership.balance()) <= 1, "loads are within one of each other"


#: What is waited for longer than this is told.
TOLD_S = 1.0


def containers_waited_for(records: Iterable[Member], now_s: float) -> str:
    """Return that these wait for containers, and for how long, as a sentence; empty where none does for long."""
    missing = [record for record in records if now_s - record.asked_s >= TOLD_S]
    if not missing:
        return ""
    count, waited_s = len(missing), now_s - min(record.asked_s for record in missing)
    names = ", ".join(record.name for record in missing)
    return f"waits for {count} container{'s' if count > 1 else ''}, asked for {waited_s:.0f} s ago: {names}"


#: A stream that broke is opened again within this long, or its member is lost.
REATTACH_S = 1.0
#: Asked this much later than the time before, the observer itself was not running.
OWN_PAUSE_S = 1.0


@dataclass(slots=True)
class _Watched:
    heard_s: float
    #: When the stream broke; None while there is one.
    broke_s: float | None = None


class SilenceWatch:
    """When each container was last heard of, and which count as lost for their silence.

    Times are seconds of one steady clock.

    Source: the restart of all deadlines after the observer's own pause follows Lifeguard (Dadgar et al., DSN 2018): a
    slow observer must not suspect others.
    """

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        #: When :meth:`silent` was called last; before that, since when a container is watched.
        self._asked_s: float | None = None

    def expect(self, container_id: str, now_s: float) -> None:
        """Wait for a container's stream from now on; one that has a stream is left as it is."""
        self._begin(now_s)
        self._watched.setdefault(container_id, _Watched(now_s))

    def attached(self, container_id: str, now_s: float) -> None:
        """A container opened a stream."""
        self._begin(now_s)
        self._watched[container_id] = _Watched(now_s)

    def _begin(self, now_s: float) -> None:
        """From the first container on questions are due: an observer that does not come to its first one is late."""
        if self._asked_s is None:
            self._asked_s = now_s

    def heard(self, container_id: str, now_s: float) -> None:
        """A container said something; of one that is not watched (any more) it means nothing."""
        watched = self._watched.get(container_id)
        if watched is not None:
            watched.heard_s = now_s

    def broke(self, container_id: str, now_s: float) -> None:
        """A container's stream broke."""
        watched = self._watched.get(container_id)
        if watched is not None:
            watched.broke_s = now_s

    def forget(self, container_id: str) -> None:
        """A container has ended, or is to end: its silence means nothing."""
        self._watched.pop(container_id, None)

    def silent(self, now_s: float, timeout_s: float) -> list[tuple[str, str]]:
        """Return (container, why) of those that count as lost, each once.

        Called much later than the time before, or for the first time much later than a container was watched, returns
        none and starts every deadline anew: the caller could not have heard anything meanwhile.
        """
        late = self._asked_s is not None and now_s - self._asked_s > OWN_PAUSE_S
        self._asked_s = now_s
        if late:
            for watched in self._watched.values():
                watched.heard_s = now_s
                if watched.broke_s is not None:
                    watched.broke_s = now_s
            return []
        lost: list[tuple[str, str]] = []
        for container_id, watched in self._watched.items():
            if now_s - watched.heard_s >= timeout_s:
                lost.append((container_id, f"said nothing for {timeout_s:g} s"))
            elif watched.broke_s is not None and now_s - watched.broke_s >= min(REATTACH_S, timeout_s):
                within_s = min(REATTACH_S, timeout_s)
                lost.append((container_id, f"lost its session and did not come back within {within_s:g} s"))
        for container_id, _ in lost:
            del self._watched[container_id]
        return lost


#: Why a job ends whose log misses records.
MISSING = (
    "the job master cannot go on: records are missing from its log, for {who} has heard of more than they say; nothing "
    "can be restored: eps resume goes on from the latest checkpoint, or the seed"
)


class Masters:
    """The masters that a job has had, and what each has logged.

    A master that cannot log goes on, and what it tells its members is unknown to the next master.  So every order
    carries the number of the last logged event, and members say the highest number that they have heard.  A master
    whose log is shorter than that must not go on: the job ends, and ``eps resume`` continues it.

    Source: a candidate with a shorter log than a voter leads nobody: Raft (Ongaro and Ousterhout 2014, section 5.4.1).
    """

    def __init__(self) -> None:
        #: Counts the masters.
        self.generation = 1
        #: Events taken in.
        self.steps = 0
        #: Generation of each master before this one -> the events of which there are records.
        self._logged: dict[int, int] = {}

    def begin(self, generation: int) -> None:
        """Another process is the master from the event on that is being taken in."""
        self._logged[self.generation] = self.steps - 1
        self.generation = generation

    def miss(self, registered_with: int, heard_generation: int, heard_step: int) -> bool:
        """Return whether a member has heard of events that the log does not have.

        Parameters
        ----------
        registered_with : int
            Generation of the master that the member registered with last, as the log says.
        heard_generation, heard_step : int
            Of the last order that the member has heard.
        """
        # A member hears nothing of a master before it has registered there.
        unknown = heard_generation > registered_with
        return unknown or heard_step > self._logged.get(heard_generation, self.steps)
