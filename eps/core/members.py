"""The members of a job, from the request for a container to its end: membership, silence, and their masters.

:class:`SilenceWatch` has the deadlines after which a silent member counts as lost.  :class:`Masters` tracks which
master's orders each member has received: a master whose log lacks such events must not continue.  Pure.

Source: EPS §5.2 (the ApplicationMaster requests containers; processes register with it); design section 5 (a member is
lost when its connection breaks or it falls silent).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from eps.core import events as e
from eps.core import messages as m
from eps.core.membership import Membership, PartitionTable, SplitTable, spread_evenly
from eps.core.planner import standing_followers
from eps.core.types import Address, CoreSettings, MemberId, Role, Tier, member_name


class MemberPhase(StrEnum):
    """The stage of a member's start."""

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
    #: Its number within its role, from 1, in the order of requests.
    rank: int
    tier: Tier = Tier.RELIABLE
    #: The name under which its process registers: that of its container, unless another member shares the container.
    seat: str = ""
    phase: MemberPhase = MemberPhase.REQUESTED
    #: Where it listens; None until it registers.
    address: Address | None = None
    #: Process id: reported by the resource manager at launch, and by the process itself when it registers.
    launched_pid: int = 0
    pid: int = 0
    #: When its container was requested, granted and launched, in seconds on the master's clock.
    asked_s: float = 0.0
    granted_s: float = 0.0
    launched_s: float = 0.0
    #: Generation of the master with which it registered last; 0 if none.
    generation: int = 0
    #: Connected member -> transport of the data.
    ways: dict[MemberId, str] = field(default_factory=dict)

    @property
    def granted(self) -> bool:
        """Return whether its container is granted."""
        return self.phase is not MemberPhase.REQUESTED

    @property
    def launched(self) -> bool:
        """Return whether its process was launched."""
        return self.phase in (MemberPhase.LAUNCHED, MemberPhase.REGISTERED)

    @property
    def is_ready(self) -> bool:
        """Return whether a job may start with it: a member of a host must have registered, others a container.

        A host that registers later joins the job then.  YARN grants opportunistic containers before it runs them.
        """
        return self.granted if self.seat == self.container else self.address is not None

    def __post_init__(self) -> None:
        self.seat = self.seat or self.container

    def is_late(self, now_s: float, patience_s: float) -> bool:
        """Return whether its process has run for ``patience_s`` without registering."""
        return self.phase is MemberPhase.LAUNCHED and now_s - self.launched_s >= patience_s


def seat_of(container_id: str, role: Role) -> str:
    """Return the name under which the member of a role registers that shares its container."""
    return f"{container_id}/{role}"


def container_of(seat: str) -> str:
    """Return the container of a seat."""
    return seat.partition("/")[0]


@dataclass
class Host:
    """A container with a worker and a server in one process (Proteus §3.1); a member that leaves has a successor there.

    Mutated by :class:`Members` alone.
    """

    container: str
    tier: Tier
    #: Its number, from 1, in the order of requests: the lowest runs longest.
    rank: int
    #: As the resource manager reported it at launch; 0 before.
    pid: int = 0


class Members:
    """Containers, names, addresses, and the memberships so far.

    Parameters
    ----------
    first_container : int
        Number of the first container; lower numbers belong to log files of earlier runs.
    """

    def __init__(self, first_container: int = 1) -> None:
        self.by_name: dict[MemberId, Member] = {}
        self.by_seat: dict[str, Member] = {}
        #: The containers that the job uses or has requested.
        self.containers: set[str] = set()
        #: How often a member, its address or a host has come or gone: what depends on them alone holds until then.
        self.changes = 0
        #: Container -> host; empty if every container has one member.
        self.hosts: dict[str, Host] = {}
        #: The newest membership; None while the job starts.
        self.membership: Membership | None = None
        #: Every membership so far, oldest first.
        self.memberships: list[Membership] = []
        #: Members that have yet to acknowledge the first membership, or the one after a recovery.
        self.unacked: set[MemberId] = set()
        #: Role -> number of the next member; numbers are never reused.
        self.next_number = dict.fromkeys(Role, 1)
        #: Address -> the member that registered last with it, which may have ended.
        self._by_address: dict[Address, Member] = {}
        self._next_container = first_container
        self._next_host = 1
        #: Role -> how many members of the membership have their containers.
        self.held = dict.fromkeys(Role, 0)

    # ---- containers

    def request(self, role: Role, now_s: float) -> tuple[MemberId, list[e.Command]]:
        """Request a container for the next member of a role; return the member's new name and the commands."""
        rank = self.next_number[role]
        self.next_number[role] = rank + 1
        name = member_name(role, rank)
        return name, self._request(name, frozenset({role}), rank, now_s)

    def request_all(self, counts: Mapping[Role, int], now_s: float) -> list[e.Command]:
        """Request containers for ``counts`` new members of each role."""
        return [command for role in Role for _ in range(counts[role]) for command in self.request(role, now_s)[1]]

    def request_another(self, member: Member, now_s: float) -> list[e.Command]:
        """Request a new container for a member whose container has ended."""
        return self._request(member.name, member.roles, member.rank, now_s)

    def request_host(self, tier: Tier, now_s: float) -> list[e.Command]:
        """Request a container for a worker and a server, both of which are members from now on."""
        container_id = self._new_container()
        self.hosts[container_id] = Host(container_id, tier, self._next_host)
        self._next_host += 1
        for role in Role:
            self._seat(container_id, role, now_s)
        return [e.RequestContainer(container_id, frozenset(Role), tier)]

    def _seat(self, container_id: str, role: Role, now_s: float) -> Member:
        """Return a new member of a role in a host."""
        rank = self.next_number[role]
        self.next_number[role] = rank + 1
        name, seat = member_name(role, rank), seat_of(container_id, role)
        found = Member(
            name, container_id, frozenset({role}), rank, self.hosts[container_id].tier, seat=seat, asked_s=now_s
        )
        self.by_name[name] = self.by_seat[seat] = found
        self.changes += 1
        return found

    def _request(self, name: MemberId, roles: frozenset[Role], rank: int, now_s: float) -> list[e.Command]:
        container_id = self._new_container()
        self.by_name[name] = self.by_seat[container_id] = Member(name, container_id, roles, rank, asked_s=now_s)
        self.changes += 1
        return [e.RequestContainer(container_id, roles)]

    def _new_container(self) -> str:
        container_id = f"container-{self._next_container:04d}"
        self._next_container += 1
        self.containers.add(container_id)
        return container_id

    def repeat_request(self, container_id: str, now_s: float) -> list[e.Command]:
        """Request the same container again: a restart of the master may have lost the request."""
        host = self.hosts.get(container_id)
        # A job may have started without the members of a host that was not granted.
        roles = frozenset(Role if host is not None else ())
        for member in self.in_container(container_id):
            member.phase, member.asked_s = MemberPhase.REQUESTED, now_s
            roles |= member.roles
        return [e.RequestContainer(container_id, roles, host.tier if host is not None else None)]

    def in_container(self, container_id: str) -> list[Member]:
        """Return the members of a container, workers first; none if the container is unknown."""
        seats = [seat_of(container_id, role) for role in Role] if container_id in self.hosts else [container_id]
        return [self.by_seat[seat] for seat in seats if seat in self.by_seat]

    def runs(self, container_id: str) -> bool:
        """Return whether the container's process was launched."""
        host = self.hosts.get(container_id)
        return any(member.launched for member in self.in_container(container_id)) or bool(host is not None and host.pid)

    def granted(self, container_id: str, now_s: float) -> list[Member]:
        """Record that a container was granted; return its members."""
        members = self.in_container(container_id)
        for member in members:
            if not member.granted:
                member.phase, member.granted_s = MemberPhase.GRANTED, now_s
        return members

    def launched(self, container_id: str, pid: int, now_s: float) -> list[Member]:
        """Record that a container's process runs; return its members."""
        if container_id in self.hosts:
            self.hosts[container_id].pid = pid
        members = self._runs(container_id, now_s)
        for member in members:
            member.launched_pid = pid
            member.pid = member.pid or pid
        return members

    def pids(self) -> dict[str, int]:
        """Return launched containers -> pid, as the resource manager reported it."""
        found = {member.container: member.launched_pid for member in self.by_name.values() if member.launched_pid}
        return found | {name: host.pid for name, host in self.hosts.items() if host.pid}

    def _runs(self, container_id: str, now_s: float) -> list[Member]:
        members = self.granted(container_id, now_s)
        for member in members:
            if not member.launched:
                member.phase, member.launched_s = MemberPhase.LAUNCHED, now_s
        return members

    def successor(self, seat: str, now_s: float) -> Member | None:
        """Return a new member for a process of a host that registers although no member has its seat; else None."""
        container_id, _, role = seat.partition("/")
        if container_id not in self.hosts or seat in self.by_seat:
            return None
        found = self._seat(container_id, Role(role), now_s)
        self.launched(container_id, self.hosts[container_id].pid, now_s)
        return found

    def registered(self, event: e.MemberRegistered, generation: int, now_s: float) -> tuple[Member | None, bool]:
        """Record that a process registered; return its member and whether it had registered before."""
        member = self.by_seat.get(event.seat)
        if member is None:
            return None, False
        self._runs(member.container, now_s)
        member.pid = event.pid
        again = member.phase is MemberPhase.REGISTERED
        member.phase, member.address, member.generation = MemberPhase.REGISTERED, event.address, generation
        self._by_address[event.address] = member
        self.changes += 1
        return member, again

    def ended(self, container_id: str) -> list[Member]:
        """Remove and return the members whose container ended."""
        members = self.in_container(container_id)
        self._ended(container_id)
        for member in members:
            self.left(member)
        return members

    def _ended(self, container_id: str) -> None:
        self.hosts.pop(container_id, None)
        # A container that was released before ends later.
        self.changes += container_id in self.containers
        self.containers.discard(container_id)

    def left(self, member: Member) -> None:
        """Remove a member whose process has ended; a host goes on."""
        del self.by_seat[member.seat], self.by_name[member.name]
        self.changes += 1
        for role in member.roles:
            self.held[role] -= self.membership is not None and member.name in self.membership.addresses

    def dismiss(self, names: Iterable[MemberId], why: str) -> list[e.Command]:
        """Shut members down and release their containers, except hosts; unknown names are skipped."""
        commands: list[e.Command] = []
        for name in names:
            member = self.by_name.pop(name, None)
            if member is None:
                continue
            del self.by_seat[member.seat]
            self.changes += 1
            if member.address is not None:
                commands.append(e.Send(name, m.Shutdown(why)))
            if member.container not in self.hosts:
                self.containers.discard(member.container)
                commands.append(e.ReleaseContainer(member.container))
        return commands

    def release_host(self, container_id: str, why: str) -> list[e.Command]:
        """Release a host; its members, if any, are not in the membership."""
        commands = self.dismiss([member.name for member in self.in_container(container_id)], why)
        self._ended(container_id)
        return [*commands, e.ReleaseContainer(container_id)]

    def connected(self, report: m.PeerReached) -> None:
        """Record the transport between two members."""
        member, peer = self.by_name.get(report.name), self._by_address.get(report.peer)
        if member is not None and peer is not None and peer.name in self.by_name:
            here = {name: way for name, way in member.ways.items() if name in self.by_name}
            member.ways = {**here, peer.name: report.way}

    def of_role(self, role: Role) -> list[Member]:
        """Return the members of a role, in the order of their container requests."""
        return [member for member in self.by_name.values() if role in member.roles]

    # ---- the membership

    def first_membership(
        self, settings: CoreSettings, chosen: Collection[MemberId] = (), keepers: Sequence[MemberId] = ()
    ) -> Membership | None:
        """Return the first membership; None while a member has not registered.

        Parameters
        ----------
        settings : CoreSettings
        chosen : collection of str
            The members that take part; by default all.
        keepers : sequence of str
            Workers that hold, in turns, an inactive copy of the splits of all other workers.
        """
        names = chosen or self.by_name
        addresses = {n: member.address for n in names if (member := self.by_name[n]).address is not None}
        if not names or len(addresses) < len(names):
            return None
        workers, servers = (
            tuple(m.name for m in sorted(self.of_role(role), key=lambda member: member.rank) if m.name in names)
            for role in Role
        )
        owners = spread_evenly(settings.num_partitions, servers)
        active = spread_evenly(settings.num_splits, workers)
        inactive = [
            (keepers[split % len(keepers)],) if keepers and holder not in keepers else ()
            for split, holder in enumerate(active)
        ]
        followers = standing_followers(owners, servers, ()) if settings.followers else ()
        return Membership(
            version=1,
            from_clock=settings.first_clock,
            workers=workers,
            servers=servers,
            partitions=PartitionTable(owners, followers),
            splits=SplitTable(active, tuple(inactive)),
            addresses=addresses,
        )

    def adopt(self, membership: Membership, *, waits: bool) -> None:
        """Install a membership.  With ``waits`` the job pauses until all its members have acknowledged it."""
        self.membership = membership
        self.memberships.append(membership)
        self.unacked = set(membership.members) if waits else self.unacked
        self._count()

    def announce(self, membership: Membership, turn: int) -> list[tuple[MemberId, m.Order]]:
        """Install a membership for which the job waits; return it as orders for all its members."""
        self.adopt(membership, waits=True)
        return self.orders(membership.members, turn)

    def acknowledged(self, report: m.MembershipAcked) -> None:
        """Record that a member has installed a membership."""
        if self.membership is not None and report.version == self.membership.version:
            self.unacked.discard(report.name)

    def orders(self, names: Iterable[MemberId], turn: int) -> list[tuple[MemberId, m.Order]]:
        """Return the membership as orders for members; ``turn`` is that of the plan that made it, 0 if none did."""
        if self.membership is None:
            return []
        order = m.UpdateMembership(turn, self.membership)
        return [(name, order) for name in names]

    def _count(self) -> None:
        if self.membership is not None:
            for role in Role:
                self.held[role] = sum(name in self.by_name for name in self.membership.of_role(role))

    def validate(self) -> None:
        """Assert that each seat has one member in one phase, and that memberships are consecutive."""
        assert {member.seat: member.name for member in self.by_name.values()} == {
            seat: member.name for seat, member in self.by_seat.items()
        }
        assert self.containers == {member.container for member in self.by_name.values()} | set(self.hosts)
        for member in self.by_name.values():
            assert (member.address is not None) == (member.phase is MemberPhase.REGISTERED), member
        if self.membership is None:
            return
        for role in Role:
            assert self.held[role] == len(set(self.membership.of_role(role)) & set(self.by_name)), role
        self.membership.validate()
        assert self.memberships[-1] is self.membership and self.unacked <= set(self.membership.members)
        assert [v.version for v in self.memberships] == list(range(1, len(self.memberships) + 1))
        # A take-over holds at once, so its clock may be smaller.  Two plans may commit at the same clock if no worker
        # was granted it in between: then the later one holds.
        for earlier, later in pairwise(self.memberships):
            for role in Role:
                stayed = [name for name in earlier.of_role(role) if name in later.of_role(role)]
                assert list(later.of_role(role)[: len(stayed)]) == stayed, "newcomers come after those that stay"
            assert later.takes_over or earlier.from_clock <= later.from_clock, (earlier.version, later.from_clock)
        if not any(membership.takes_over for membership in self.memberships):
            assert max(self.membership.balance(with_backups=bool(self.hosts))) <= 1, (
                "loads are within one of each other"
            )


#: Shorter waits for containers are not reported.
REPORTED_WAIT_S = 1.0


def containers_waited_for(records: Iterable[Member], now_s: float) -> str:
    """Return a sentence about the members that wait for containers; empty if none has waited long."""
    missing = [record for record in records if now_s - record.asked_s >= REPORTED_WAIT_S]
    if not missing:
        return ""
    count, waited_s = len(missing), now_s - min(record.asked_s for record in missing)
    names = ", ".join(record.name for record in missing)
    return f"waits for {count} container{'s' if count > 1 else ''}, asked for {waited_s:.0f} s ago: {names}"


#: A member whose stream broke is lost unless it reconnects within this time.
REATTACH_S = 1.0
#: A longer gap between two checks means that the observer itself was paused.
OWN_PAUSE_S = 1.0


@dataclass(slots=True)
class _Watched:
    heard_s: float
    #: When the stream broke; None while there is one.
    broke_s: float | None = None


class SilenceWatch:
    """Tracks when each container was last heard, and decides which containers count as lost.

    Times are seconds of one steady clock.

    Source: the restart of all deadlines after the observer's own pause follows Lifeguard (Dadgar et al., DSN 2018): a
    slow observer must not suspect others.
    """

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        #: Time of the last call of :meth:`silent`; before the first, the time since which a container is watched.
        self._asked_s: float | None = None

    def expect(self, container_id: str, now_s: float) -> None:
        """Start waiting for a container's stream; no effect if it is watched already."""
        self._begin(now_s)
        self._watched.setdefault(container_id, _Watched(now_s))

    def attached(self, container_id: str, now_s: float) -> None:
        """Record that a container opened a stream."""
        self._begin(now_s)
        self._watched[container_id] = _Watched(now_s)

    def _begin(self, now_s: float) -> None:
        """Start the watch with the first container, so that a late first check is recognised as a pause."""
        if self._asked_s is None:
            self._asked_s = now_s

    def heard(self, container_id: str, now_s: float) -> None:
        """Record a message of a container; ignored if it is not watched."""
        watched = self._watched.get(container_id)
        if watched is not None:
            watched.heard_s = now_s

    def broke(self, container_id: str, now_s: float) -> None:
        """Record that a container's stream broke."""
        watched = self._watched.get(container_id)
        if watched is not None:
            watched.broke_s = now_s

    def forget(self, container_id: str) -> None:
        """Stop watching a container, or one seat of it, that has ended or will be ended."""
        for seat in [seat for seat in self._watched if container_id in (seat, container_of(seat))]:
            del self._watched[seat]

    def silent(self, now_s: float, timeout_s: float) -> list[tuple[str, str]]:
        """Return (container, reason) for each container that counts as lost, once each.

        A check that comes much later than the one before returns none and restarts every deadline: the paused caller
        could not receive anything meanwhile.  The same holds for a late first check.
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
                lost.append((container_id, f"lost its connection and did not reconnect within {within_s:g} s"))
        for container_id, _ in lost:
            del self._watched[container_id]
        return lost


#: Why a job whose log lacks records ends.
MISSING = (
    "records are missing from the job master's log: {who} has received orders of which the log knows nothing; the job "
    "cannot continue; run eps resume to restart it from its latest checkpoint, or from its seed if there is none"
)


class Masters:
    """The masters that a job has had, and how much each has logged.

    A master that cannot log continues, but the next master does not know what it ordered.  So every order carries the
    number of the last logged event, and members report the highest number that they received.  A master whose log is
    shorter must not continue: the job ends, and ``eps resume`` restarts it.

    Source: a candidate whose log is shorter than a voter's cannot become the leader: Raft (Ongaro and Ousterhout 2014,
    section 5.4.1).
    """

    def __init__(self) -> None:
        #: Counts the masters.
        self.generation = 1
        #: Events processed.
        self.steps = 0
        #: Generation of each earlier master -> the number of events that it logged.
        self._logged: dict[int, int] = {}

    def begin(self, generation: int) -> None:
        """Record that another process is the master, from the event that is being processed."""
        self._logged[self.generation] = self.steps - 1
        self.generation = generation

    def miss(self, registered_with: int, heard_generation: int, heard_step: int) -> bool:
        """Return whether a member has received an order that follows from an event missing in the log.

        Parameters
        ----------
        registered_with : int
            Generation of the master with which the member registered last, according to the log.
        heard_generation, heard_step : int
            From the latest order that the member received.
        """
        # A member receives orders of a master only after it has registered there.
        unknown = heard_generation > registered_with
        return unknown or heard_step > self._logged.get(heard_generation, self.steps)
