"""The job master's members: from the request for a container to the end of its process.  L0, pure.

The lowest layer of :class:`eps.core.master_state.MasterState`: what it is made of, and who is there.

Source: EPS §5.2 (the ApplicationMaster asks for containers; processes register with it).
"""

from __future__ import annotations

from abc import abstractmethod

from eps.core import events as e
from eps.core import messages as m
from eps.core.events import Command, JobState
from eps.core.membership import Membership
from eps.core.plan_driver import PlanDriver
from eps.core.progress import ClockProgress
from eps.core.reconfig import Plan
from eps.core.recovery import Recovery, standing_followers
from eps.core.settings import CoreSettings
from eps.core.tables import PartitionTable, SplitTable, spread_evenly
from eps.core.types import Address, MemberId, MemberRecord, Role, member_name, member_number
from eps.errors import PlanError


class JobMembers:
    """The members of a job, their containers, and the first membership.

    Parameters
    ----------
    settings : CoreSettings
    num_workers, num_servers : int
        The size that the job starts with.

    Raises
    ------
    PlanError
        There would be more members than they have work for.
    """

    def __init__(self, settings: CoreSettings, num_workers: int, num_servers: int) -> None:
        if not 1 <= num_workers <= settings.num_splits:
            raise PlanError(f"{num_workers} workers for {settings.num_splits} splits: need 1 to {settings.num_splits}")
        if not 1 <= num_servers <= settings.num_partitions:
            raise PlanError(
                f"{num_servers} servers for {settings.num_partitions} partitions: need 1 to {settings.num_partitions}"
            )
        self.settings = settings
        #: Counts the processes that have had this state.
        self.generation = 1
        #: Events taken in.  Orders tell, so members know what a master that is restored must know.
        self.steps = 0
        #: Generation of each master before this one -> the events of which there are records.
        self._logged: dict[int, int] = {}
        self.state = JobState.STARTING
        #: Why the job ended as it did.
        self.reason = ""
        self.progress = ClockProgress(settings)
        self.membership: Membership | None = None
        #: Every membership that ever held, oldest first.
        self.memberships: list[Membership] = []
        #: Every plan ever accepted, by number.
        self.plans: dict[int, Plan] = {}
        self.members: dict[MemberId, MemberRecord] = {}
        self.horizon = settings.first_clock - 1
        self.driver: PlanDriver | None = None
        #: Members were lost, and it is not decided yet who takes over.
        self.recovery: Recovery | None = None
        self._by_container: dict[str, MemberRecord] = {}
        #: Who registered last with an address; some have ended.
        self._by_address: dict[Address, MemberRecord] = {}
        #: Members that have not acknowledged the first membership, or the one that took over from lost members.
        self._unacked: set[MemberId] = set()
        self._next_number = {Role.WORKER: num_workers + 1, Role.SERVER: num_servers + 1}
        self._next_container = 1
        #: The members that the job begins with -> their roles.
        self._initial = {member_name(Role.WORKER, i + 1): Role.WORKER for i in range(num_workers)}
        self._initial |= {member_name(Role.SERVER, i + 1): Role.SERVER for i in range(num_servers)}
        self._out: list[Command] = []
        self._now_s = 0.0

    def _request_container(self, name: MemberId, role: Role) -> None:
        container_id = f"container-{self._next_container:04d}"
        self._next_container += 1
        record = MemberRecord(name, container_id, role, asked_s=self._now_s)
        self.members[name] = record
        self._by_container[container_id] = record
        self._out.append(e.RequestContainer(container_id, role))

    def _new_name(self, role: Role) -> MemberId:
        """Return a name that was never used."""
        name = member_name(role, self._next_number[role])
        self._next_number[role] += 1
        return name

    def _on_granted(self, container_id: str) -> None:
        record = self._by_container.get(container_id)
        if record is None:
            return
        if not record.granted:
            record.granted, record.granted_s = True, self._now_s
        if self.driver is None or record.name not in self.driver.plan.added:
            return
        if record.name not in self.driver.granted:
            self.driver.granted.add(record.name)
            self.driver.granted_s = self._now_s

    def _on_launched(self, event: e.ContainerLaunched) -> None:
        record = self._by_container.get(event.container_id)
        if record is None:
            return
        self._on_granted(event.container_id)
        if not record.launched:
            record.launched, record.launched_s = True, self._now_s
        record.pid = event.pid
        if self.driver is not None and record.name in self.driver.plan.added:
            self.driver.launched.add(record.name)
            self.driver.note_launched(self._now_s)

    def _on_registered(self, event: e.MemberRegistered) -> None:
        record = self._by_container.get(event.container_id)
        if record is None:
            self._out.append(e.ReleaseContainer(event.container_id))
            return
        self._on_launched(e.ContainerLaunched(event.container_id, event.pid))
        record.generation = self.generation
        again, record.address, record.pid = record.address is not None, event.address, event.pid
        self._by_address[event.address] = record
        self._out.append(e.Name(event.container_id, record.name))
        if again:
            self._say_again(record.name)
        elif self.driver is not None and record.name in self.driver.plan.added:
            self.driver.newcomers[record.name] = event.address
        elif self.recovery is not None and record.name in self.recovery.newcomers:
            self.recovery.newcomers[record.name] = event.address
        elif self.state is JobState.STARTING and self._is_complete():
            self._begin()

    def _initial_of(self, role: Role) -> list[MemberId]:
        return [name for name, each in self._initial.items() if each is role]

    def _is_complete(self) -> bool:
        """Return whether all first members are there."""
        return all(self.members[name].address for name in self._initial)

    def _begin(self) -> None:
        """Everybody is there: the first membership holds from the first clock."""
        if self.membership is not None:
            return
        workers, servers = (tuple(sorted(self._initial_of(role), key=member_number)) for role in Role)
        addresses = {n: a for n in self._initial if (a := self.members[n].address) is not None}
        owners = spread_evenly(self.settings.num_partitions, servers)
        followers = standing_followers(owners, servers, ()) if self.settings.followers else ()
        self.membership = Membership(
            version=1,
            from_clock=self.settings.first_clock,
            workers=workers,
            servers=servers,
            partitions=PartitionTable(owners, followers),
            splits=SplitTable.of(spread_evenly(self.settings.num_splits, workers)),
            addresses=addresses,
        )
        self.memberships.append(self.membership)
        self._journal({"kind": "membership", "version": 1, "from_clock": self.settings.first_clock}, sync=True)
        self._announce()

    def _announce(self) -> None:
        """Tell everybody the membership; nothing is granted until all have acknowledged it."""
        assert self.membership is not None
        self._unacked = set(self.membership.members)
        order = self._membership_order()
        for name in self.membership.members:
            self._send(name, order)

    def _membership_order(self) -> m.UpdateMembership:
        assert self.membership is not None
        # A plan that is not committed has no part in it: whoever hears its number keeps what the plan brought.
        plan = self.driver.plan if self.driver is not None else None
        return m.UpdateMembership(plan.turn if plan is not None and not plan.undecided else 0, self.membership)

    def _on_reached(self, report: m.PeerReached) -> None:
        record, peer = self.members.get(report.name), self._by_address.get(report.peer)
        if record is not None and peer is not None and peer.name in self.members:
            here = {name: way for name, way in record.ways.items() if name in self.members}
            record.ways = {**here, peer.name: report.way}

    def _dismiss(self, name: MemberId, why: str) -> None:
        """Give back what a member has that is not to take part; harmless where it has ended."""
        record = self.members.pop(name, None)
        if record is None:
            return
        self._by_container.pop(record.container_id, None)
        if record.address is not None:
            self._send(name, m.Shutdown(why))
        self._out.append(e.ReleaseContainer(record.container_id))

    @abstractmethod
    def _say_again(self, name: MemberId) -> None: ...

    def _send(self, to: MemberId, order: m.Order) -> None:
        self._out.append(e.Send(to, order))

    def _journal(self, record: dict[str, object], *, sync: bool = False) -> None:
        self._out.append(e.Journal({**record, "at_s": round(self._now_s, 6)}, sync))
