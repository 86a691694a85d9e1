"""A job master whose members do as they are told, one act at a time: for tests that look between the acts."""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import Any

from eps.core import events as e
from eps.core import messages as m
from eps.core.job import Job
from eps.core.membership import Membership
from eps.core.partition_state import Holding
from eps.core.plans import RETRIES, PlanDriver
from eps.core.reconfig import Change, Operation, Plan, Purpose, Trigger
from eps.core.types import Address, CoreSettings, MemberId, Role
from eps.errors import EpsError

#: Pauses before a job asks again for members in the place of lost ones, and before it tries a drain again.
REPLACE_S, DRAIN_AGAIN_S = (RETRIES[purpose][0] for purpose in (Purpose.REPLACE, Purpose.DRAIN))


class ScriptedMaster:
    """Drives a ``Job`` and answers for all other processes; time moves by a millisecond with each event."""

    def __init__(
        self,
        settings: CoreSettings,
        num_workers: int,
        num_servers: int,
        triggers: Sequence[Trigger] = (),
        *,
        managed: bool = False,
        start_with: float = 0.5,
    ) -> None:
        self.state = Job(
            settings,
            num_workers,
            num_servers,
            triggers,
            managed=managed,
            start_with=start_with,
        )
        self.now_s = 0.0
        self.all: list[e.Command] = []
        self.last: list[e.Command] = []
        self._unread: list[tuple[MemberId, m.Order]] = []
        self._requests = 0
        self._containers: dict[MemberId, str] = {}

    # ---- looking

    @property
    def membership(self) -> Membership:
        assert self.state.membership is not None
        return self.state.membership

    @property
    def driver(self) -> PlanDriver:
        assert self.state.plans.flight.driver is not None
        return self.state.plans.flight.driver

    def commands(self, kind: type[Any] | UnionType) -> list[Any]:
        """Return every command of a kind since the start."""
        return [c for c in self.all if isinstance(c, kind)]

    def sent(self, kind: type[Any] | UnionType) -> list[tuple[MemberId, Any]]:
        """Return the orders of a kind that were not looked at yet, and forget the others."""
        found = [(to, order) for to, order in self._unread if isinstance(order, kind)]
        self._unread.clear()
        return found

    def container_of(self, name: MemberId) -> str:
        return self._containers[name]

    def address_of(self, name: MemberId) -> Address:
        return Address(name, 1)

    # ---- acting

    def step(self, event: e.Event, after_s: float = 0.001) -> list[e.Command]:
        self.now_s += after_s
        is_due = not isinstance(event, e.Tick) or self.state.tick_due_s <= self.now_s
        commands = self._take(self.state.step(event, self.now_s))
        assert is_due or not commands, "a tick that is not due brings nothing"
        return commands

    def _take(self, commands: list[e.Command]) -> list[e.Command]:
        self.state.validate()
        self._containers.update({name: r.container for name, r in self.state.members.by_name.items()})
        self.last = list(commands)
        self.all.extend(commands)
        self._unread.extend((c.to, c.order) for c in commands if isinstance(c, e.Send))
        return self.last

    def request_containers(self) -> list[e.Command]:
        return self._take(self.state.start(self.now_s))

    def start(self) -> None:
        """Register all members; the job runs afterwards."""
        self.request_containers()
        for name in sorted(self.state.members.by_name):
            self.register(name)
        for name in self.membership.members:
            self.report(m.MembershipAcked(name, 1))

    def report(self, report: m.Report) -> None:
        self.step(e.ReportReceived(report))

    def launch(self, name: MemberId) -> None:
        self.step(e.ContainerLaunched(self._containers[name], 1))

    def register(self, name: MemberId) -> None:
        self.step(e.MemberRegistered(self._containers[name], self.address_of(name), 1))

    def exit(self, name: MemberId, reason: str = "ended", *, taken: bool = False) -> None:
        self.step(e.ContainerExited(self._containers[name], reason, taken))

    def request(self, change: Change, *, dry_run: bool = False, request_id: str = "") -> e.Answer:
        """Ask for a change and return the answer."""
        self._requests += 1
        commands = self.step(e.ChangeRequested(request_id or f"request-{self._requests}", change, dry_run))
        return next(c for c in commands if isinstance(c, e.Answer))

    def ask(self, change: Change) -> Plan:
        """Ask for a change that is accepted."""
        answer = self.request(change)
        assert answer.error is None, answer.error
        return self.state.plans.all[answer.plan_id]

    def tick(self, after_s: float = 1.0) -> None:
        self.step(e.Tick(), after_s)

    def clock(self, clock: int, loss_sum: float = 1.0) -> None:
        """Report a clock for every split at once."""
        results = tuple(m.SplitResult(s, 1, loss_sum) for s in range(self.state.settings.num_splits))
        self.report(m.ClockReported(self.membership.workers[0], clock, results))

    # ---- members are lost

    def lose(self, *names: MemberId) -> None:
        """End members without having been asked to."""
        for name in names:
            self.exit(name, "signal 9")

    def inventory(
        self, name: MemberId, clock: int = 0, read_clock: int | None = None, without: Sequence[int] = ()
    ) -> m.Inventory:
        """Return what a member says that has everything the membership gives it, at one clock."""
        recovery = self.state.recovery.inquiry
        assert recovery is not None
        if name in self.membership.workers or recovery.roles.get(name) is Role.WORKER:
            return m.Inventory(name, recovery.number, clock if read_clock is None else read_clock)
        table, splits = self.membership.partitions, self.state.settings.num_splits
        held = [(p, Holding.OWNER) for p in table.owned_by(name)] + [
            (p, Holding.FOLLOWER) for p in table.followed_by(name)
        ]
        partitions = tuple(m.HeldPartition(p, h, (clock,) * splits) for p, h in sorted(held) if p not in without)
        return m.Inventory(name, recovery.number, partitions=partitions)

    def answer_inventories(self, clock: int = 0) -> None:
        """Let all remaining members report the same clock."""
        recovery = self.state.recovery.inquiry
        assert recovery is not None
        for name in recovery.survivors(self.membership):
            self.report(self.inventory(name, clock))

    def acknowledge(self) -> None:
        """Let every member acknowledge the newest membership."""
        for name in self.membership.members:
            self.report(m.MembershipAcked(name, self.membership.version))

    def recover(self, clock: int = 0) -> None:
        """Take the loss of members to the end of their recovery."""
        self.answer_inventories(clock)
        self.acknowledge()

    def journaled(self, kind: str) -> list[dict[str, Any]]:
        """Return the journal's records of a kind."""
        return [dict(c.record) for c in self.commands(e.Journal) if c.record["kind"] == kind]

    # ---- the life of a plan

    def acknowledge_lists(self) -> None:
        plan_id, names = self.driver.plan.turn, self.driver.concerned
        for name in names:
            self.report(m.ListsUpdated(name, plan_id))

    def copy(self) -> None:
        plan_id, transfer = self.driver.plan.turn, self.driver.transfer
        for move in transfer.partition_moves:
            self.report(m.PartitionSent(move.source, plan_id, move.item, 100, "sum"))
            self.report(m.PartitionCaughtUp(move.target, plan_id, move.item, "sum"))
        for move in transfer.split_moves:
            # A copy that is there is only read.
            size_bytes = 100 if move.sends_bytes else 0
            self.report(m.SplitReceived(move.target, plan_id, move.item, size_bytes))

    def acknowledge_membership(self) -> None:
        driver = self.driver
        for move in driver.transfer.partition_moves:
            self.report(m.PartitionPromoted(move.target, driver.plan.turn, move.item))
        for name in driver.concerned:
            self.report(m.MembershipAcked(name, self.membership.version))

    def report_released(self) -> None:
        driver = self.driver
        for name in driver.concerned:
            self.report(m.PlanReleased(name, driver.plan.turn))

    def release(self) -> None:
        removed = self.driver.plan.removed
        self.report_released()
        for name in removed:
            self.exit(name)

    def carry_out(self, change: Change) -> Plan:
        """Take a change from its request to its release."""
        plan = self.ask(change)
        for name in plan.added:
            self.register(name)
        self.acknowledge_lists()
        if self.state.plans.flight.driver is not None and plan.undecided:
            self.copy()
        self.acknowledge_membership()
        self.release()
        return plan


ADD_WORKER, ADD_SERVER = Change(Operation.ADD_WORKERS, 1), Change(Operation.ADD_SERVERS, 1)
REMOVE_WORKER, REMOVE_SERVER = Change(Operation.REMOVE_WORKERS, 1), Change(Operation.REMOVE_SERVERS, 1)


def starting(iterations: int = 100, triggers: tuple[Trigger, ...] = (), followers: int = 0) -> ScriptedMaster:
    """Three workers, two servers, six splits, four partitions: no member has registered yet."""
    settings = CoreSettings(6, 4, iterations, reproducible=False, followers=followers)
    return ScriptedMaster(settings, 3, 2, triggers)


def running(iterations: int = 100, triggers: tuple[Trigger, ...] = (), followers: int = 0) -> ScriptedMaster:
    """The same job, running."""
    master = starting(iterations, triggers, followers)
    master.start()
    return master


def refusal(answer: e.Command) -> EpsError:
    """Return why a request was refused."""
    assert isinstance(answer, e.Answer) and answer.error is not None
    return answer.error
