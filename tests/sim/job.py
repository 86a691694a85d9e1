"""A whole job in one thread: the master's, the servers' and the workers' states over a network that misbehaves.

There are two networks, each with processes that suit it: :mod:`tests.sim.faithful` plays the real shells on connections
that break, :mod:`tests.sim.hostile` loses and repeats every message.

Source: EPS §3; design sections 3 to 7; style section 14.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from eps.core import events as e
from eps.core import messages as m
from eps.core.events import ENDED_STATES, JobState
from eps.core.job import Job
from eps.core.members import container_of, seat_of
from eps.core.membership import Membership
from eps.core.reconfig import Change, Phase, Plan, Trigger
from eps.core.recovery import Inquiry
from eps.core.tiers import StageRule
from eps.core.types import Address, CoreSettings, MemberId, Role, Tier
from tests.fakes.network import FakeNetwork, Faults, Line
from tests.sim.faithful import Breaks, FaithfulServer, FaithfulWorker
from tests.sim.hostile import HostileServer, HostileWorker
from tests.sim.process import SimProcess
from tests.sim.server import SimServer
from tests.sim.wire import oracle
from tests.sim.worker import SimWorker

#: Time for all messages in flight at the end of the training.
EXPORT_S = 4.0
#: In the hostile mode, an addition whose containers do not come is cancelled after this time.
GIVE_UP_S = 4.0
#: Reason of the end of an evicted container.
TAKEN = "evicted"
#: How a process ends that is shut down.
SHUT_DOWN = "ended"
#: Number of events in the message of a failed job.
STORY = 40


@dataclass(frozen=True, slots=True)
class Chaos:
    """Disturbances of changes in flight, as probabilities."""

    #: A container of an addition never comes; the first ones of a job, and those without which it cannot go on, do.
    never: float = 0.0
    #: At each event of the master: a newcomer of the plan in flight ends.
    vanish: float = 0.0
    #: At each event of the master: the plan in flight is cancelled.
    cancel: float = 0.0
    #: A process of an addition starts and never registers (faithful mode).
    mute: float = 0.0


def _is_unreadable(before: Membership, inquiry: Inquiry) -> bool:
    """Return whether some partition has no copy with the version of the clock that another one has yet to complete."""
    copies: dict[int, list[m.HeldPartition]] = {partition: [] for partition in range(len(before.partitions))}
    for inventory in inquiry.inventories.values():
        for held in inventory.partitions:
            copies[held.partition].append(held)
    if not all(copies.values()):
        return False
    lowest = min(max(min(held.next_clock) for held in found) for found in copies.values())
    return any(min(held.oldest_clock for held in found) > lowest for found in copies.values())


CALM = Chaos()
FAULTY = Faults()


class SimJob:
    """One job; :meth:`run` plays it to its end.

    Parameters
    ----------
    seed : int
        Everything random is drawn from it.
    releases_at_once : bool
        Workers that stay release a plan as soon as they are asked, and not beyond its commit clock as ``eps.worker``
        does (hostile mode).
    breaks : Breaks, optional
        Given: the faithful mode, where ``faults`` should only delay.  Not given: the hostile mode.
    managed : bool
        Whether a scheduler decides the job's size.
    tiers : mapping, optional
        Number of containers of each tier: each has a worker and a server.
    stage_rule : StageRule
        How the job with tiers chooses the stage.
    max_lag_s : float
        By how much its consistent clock may lag behind; 0: by any time.
    """

    def __init__(
        self,
        seed: int,
        settings: CoreSettings,
        num_workers: int,
        num_servers: int,
        triggers: Sequence[Trigger] = (),
        *,
        faults: Faults = FAULTY,
        chaos: Chaos = CALM,
        iteration_s: float = 0.05,
        releases_at_once: bool = False,
        breaks: Breaks | None = None,
        managed: bool = False,
        tiers: Mapping[Tier, int] | None = None,
        stage_rule: StageRule = StageRule.AUTO,
        max_lag_s: float = 0.0,
    ) -> None:
        self.seed = seed
        self.settings = settings
        self.faithful = breaks is not None
        self.breaks = breaks or Breaks()
        self.releases_at_once = releases_at_once
        self.net = FakeNetwork(seed, faults)
        self.master = Job(
            settings,
            num_workers,
            num_servers,
            triggers,
            managed=managed,
            tiers=tiers,
            stage_rule=stage_rule,
            max_lag_s=max_lag_s,
        )
        self.counted: Counter[str] = Counter()
        self.answers: dict[str, e.Answer] = {}
        self.processes: dict[str, SimProcess] = {}
        self.worked: dict[tuple[int, int, int], MemberId] = {}
        #: Members that crashed.
        self.lost: list[MemberId] = []
        self.ended: e.EndJob | None = None
        self._random = Random(seed + 1)
        self._chaos = chaos
        self._iteration_s = iteration_s
        self._first = sum(tiers.values()) if tiers is not None else num_workers + num_servers
        self._containers = Line(self.net)
        self._at: dict[Address, SimProcess] = {}
        self._named: dict[MemberId, str] = {}
        self._requested: dict[str, frozenset[Role]] = {}
        self._exited: set[str] = set()
        self._version = 0
        self._story: deque[tuple[float, str, object]] = deque(maxlen=STORY)

    # ---- what the processes use

    def note(self, who: str, event: object) -> None:
        if not isinstance(event, e.Tick):
            self._story.append((self.net.now_s, who, event))

    def count(self, what: str) -> None:
        self.counted[what] += 1

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def compute_s(self) -> float:
        return self._random.uniform(0.5, 1.5) * self._iteration_s

    def line(self) -> Line:
        """Return one direction of a new connection; some are slow."""
        return Line(self.net, self._random.choice((1.0, 1.0, 1.0, 8.0)))

    def share(self) -> float:
        return self._random.random()

    def registers(self) -> bool:
        """Return whether a process that starts now will register."""
        first = self.master.membership is None or len(self.processes) < self._first
        heard = first or not self.chance(self._chaos.mute)
        if not heard:
            self.count("mute")
        return heard

    def listener(self, address: Address) -> SimProcess | None:
        """Return the process that listens on an address, if there is one."""
        process = self._at.get(address)
        return process if process is not None and process.alive else None

    def asking(self, address: Address) -> list[MemberId]:
        """Return the workers that wait for an answer from an address."""
        live = [p for p in self.processes.values() if p.alive and p.role is Role.WORKER and p.name]
        return [p.name for p in live if p.asks(address)]

    def on_work(self, worker: MemberId, clock: int, splits: tuple[int, ...], incarnation: int) -> None:
        """Every split of a clock is computed once, by the worker that the membership names, unless members are lost."""
        for split in splits:
            name = incarnation, clock, split
            assert name not in self.worked or self.taken_over, f"split {split} of clock {clock} twice"
            self.worked[name] = worker

    @property
    def horizon(self) -> int:
        """The last clock that workers may have been granted."""
        return self.master.progress.horizon

    @property
    def incarnation(self) -> int:
        """Number of rollbacks of the job."""
        return 0 if self.master.membership is None else self.master.membership.incarnation

    @property
    def taken_over(self) -> bool:
        """Whether members were lost, so that others may repeat their work."""
        return any(membership.takes_over for membership in self.master.members.memberships)

    def parts_of(self, checkpoint: str) -> Mapping[int, m.CheckpointPartWritten]:
        """Return the parts of a checkpoint by their partitions; none if the job restarts from its seed."""
        assert not checkpoint, f"no checkpoint is taken here, but {checkpoint} is to be restored"
        return {}

    def on_process_ended(self, seat: str, reason: str) -> None:
        container_id = container_of(seat)
        if reason == SHUT_DOWN and seat != container_id and container_id not in self._exited:
            # The process of a host goes on, with another member.
            self._begin(seat)
            return
        for process in self.inside(container_id):
            process.vanish()
        if container_id not in self._exited:
            self._exited.add(container_id)
            self._on_container(e.ContainerExited(container_id, reason, taken=reason == TAKEN))

    def _on_container(self, event: e.Event) -> None:
        """Let the master hear from the resource manager: in order there, but not with what its members say."""
        if self.faithful:
            self._containers.send(lambda: self.on_event(event))
        else:
            self.on_event(event)

    # ---- the master's shell

    def on_event(self, event: e.Event) -> Sequence[e.Command]:
        """Step the master with an event, execute its commands, and return them."""
        self.note("master", event)
        before, completed = self.master.membership, self.master.progress.completed
        inquiry = self.master.recovery.inquiry
        commands = self.master.step(event, self.net.now_s)
        self.master.validate()
        if before is not None and self.master.membership is not before:
            self._check_going_back(before, inquiry, completed)
        self._execute(commands)
        self._disturb()
        if self.master.membership is not None and self.master.membership.version != self._version:
            self._version = self.master.membership.version
            self._check_copies()
        return commands

    def _check_going_back(self, before: Membership, inquiry: Inquiry | None, completed: int) -> None:
        """Assert that a job loses clocks only if an owner was lost, or if it was already rolling back.

        Under BSP a plan that has just sent a partition with only its newest version is a third reason, if another
        partition has not reached that clock: then heirs cannot read the copy.
        """
        after, recovery = self.master.membership, self.master.recovery
        if after is not None and after.goes_back and not before.goes_back and completed > max(0, after.from_clock):
            if {loss.name for loss in recovery.losses} & set(before.partitions.owners):
                return
            plan = self.master.plans.flight.committed
            moving = self.settings.bsp and plan is not None and plan.transfer and plan.transfer.partition_moves
            unread = moving and inquiry is not None and _is_unreadable(before, inquiry)
            assert unread, f"back to clock {after.from_clock}, though no owner was lost"

    def _execute(self, commands: Sequence[e.Command]) -> None:
        for command in commands:
            match command:
                case e.RequestContainer(container_id, roles):
                    self._requested[container_id] = roles
                    self._grant(container_id)
                case e.ReleaseContainer(container_id) | e.KillContainer(container_id):
                    self._give_back(container_id)
                case e.Name(seat, name):
                    self._named[name] = seat
                    self._tell(seat, lambda p, n=name: p.on_name(n))
                case e.Send(to, order):
                    self._tell(self._named.get(to, ""), lambda p, n=to, o=order: p.receive(o) if n in p.names else None)
                case e.Answer(request_id):
                    self.answers[request_id] = command
                case e.StartExport(number):
                    self.net.after(EXPORT_S, lambda n=number: self.on_event(e.ExportDone(number=n)))
                case e.EndJob():
                    self.ended = command
                    for container_id in self._requested:
                        self._give_back(container_id)
                case e.Journal():
                    pass

    def _tell(self, seat: str, act: Callable[[SimProcess], None]) -> None:
        process = self.processes.get(seat)
        if process is not None:
            process.deliver(lambda: act(process))

    # ---- containers

    def _grant(self, container_id: str) -> None:
        added = len(self._requested) > self._first
        if added and not self._is_needed(container_id) and self.chance(self._chaos.never):
            self.count("never granted")
            return
        granted_s = self._random.uniform(0.05, 0.6)
        slow_s = self._random.choice((0.0, 0.0, 1.5)) if added else 0.0
        self.net.after(granted_s, lambda: self._granted(container_id))
        self.net.after(granted_s + slow_s, lambda: self._launch(container_id))

    def _is_needed(self, container_id: str) -> bool:
        """Return whether the job cannot go on without it: it begins, or every server was lost, or every worker."""
        if self.master.membership is None:
            return True
        recovery = self.master.recovery.inquiry
        newcomers = recovery.newcomers if recovery is not None else {}
        return any(self.master.members.by_name[name].container == container_id for name in newcomers)

    def _granted(self, container_id: str) -> None:
        if container_id not in self._exited:
            self._on_container(e.ContainerGranted(container_id))

    def _launch(self, container_id: str) -> None:
        if container_id in self._exited:
            return
        self._on_container(e.ContainerLaunched(container_id, 1))
        roles = self._requested[container_id]
        for seat in [seat_of(container_id, role) for role in sorted(roles)] if len(roles) > 1 else [container_id]:
            self._begin(seat)

    def _begin(self, seat: str) -> None:
        """Start a member's process, or the next member in the process of a host."""
        address = Address("sim", len(self._at) + 1)
        worker, server = (FaithfulWorker, FaithfulServer) if self.faithful else (HostileWorker, HostileServer)
        container_id, _, role = seat.partition("/")
        is_worker = role == Role.WORKER or self._requested[container_id] == {Role.WORKER}
        kind: type[SimProcess] = worker if is_worker else server
        process = kind(self, seat, address)
        self.processes[seat] = self._at[address] = process

    def inside(self, container_id: str) -> list[SimProcess]:
        """Return the processes of a container that run."""
        return [
            process for seat, process in self.processes.items() if container_of(seat) == container_id and process.alive
        ]

    def _give_back(self, container_id: str) -> None:
        for process in self.inside(container_id):
            process.end("released")
        began = any(container_of(seat) == container_id for seat in self.processes)
        if not began and container_id in self._requested and container_id not in self._exited:
            # Otherwise the master died before it requested the container, so there is no event.
            self.net.after(0.01, lambda: self.on_process_ended(container_id, "withdrawn"))

    def _disturb(self) -> None:
        """Cancel the plan on its way, or end one of its newcomers, at any moment before it is decided."""
        driver = self.master.plans.flight.driver
        if driver is None or not driver.plan.undecided:
            return
        plan = driver.plan
        if self.chance(self._chaos.cancel):
            self.count("cancelled on its way")
            self.net.after(0.0, lambda: self.on_event(e.CancelRequested("disturb", plan.plan_id)))
        here = [n for n in plan.added if n in self._named and self.processes[self._named[n]].alive]
        if here and self.chance(self._chaos.vanish):
            self.count("vanished")
            name = self._random.choice(here)
            self.net.after(0.0, lambda: self._vanish(name, plan.plan_id))

    def _vanish(self, name: MemberId, plan_id: int) -> None:
        container_id = self._named[name]
        process = self.processes[container_id]
        if self.master.plans.all[plan_id].undecided and process.alive:
            process.vanish()
            self.on_process_ended(container_of(container_id), "taken away")

    def plan_of(self, turn: int) -> Plan:
        """Return the plan with this turn."""
        return next(plan for plan in self.master.plans.all.values() if plan.turn == turn)

    def process_of(self, name: MemberId) -> SimProcess:
        """Return a member's process."""
        return self.processes[self._named[name]]

    def kill(self, name: MemberId) -> None:
        """End a member's process as a crash does."""
        self.lost.append(name)
        self.count("crashed")
        self.process_of(name).end("killed")

    # ---- driving

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call a function at a time of the job, if it still runs."""
        self.net.after(delay_s, lambda: None if self.master.state in ENDED_STATES else action())

    def ask(self, request_id: str, change: Change) -> None:
        """Request a change, perhaps twice with the same id; both answers are the same."""
        self.on_event(e.ChangeRequested(request_id, change))
        if self.chance(0.2):
            first, plans = self.answers[request_id], len(self.master.plans.all)
            self.on_event(e.ChangeRequested(request_id, change))
            assert first.error is not None or self.answers[request_id] == first
            assert first.error is not None or len(self.master.plans.all) == plans

    def _tick(self) -> None:
        if self.master.state in ENDED_STATES:
            return
        is_due = self.master.tick_due_s <= self.net.now_s
        commands = self.on_event(e.Tick())
        assert is_due or not commands, "a tick that is not due brings nothing"
        if not self.faithful:
            self._help()
        self.net.after(0.25, self._tick)

    def heard_by(self, process: SimProcess) -> tuple[int, int]:
        """Return generation and step of an order that a process has heard: the one that names it, or none."""
        return (self.master.masters.generation, 1) if process.name else (0, 0)

    def _help(self) -> None:
        """Register members again that never left, and cancel plans that wait long."""
        here = sorted(name for name, container in self._named.items() if self.processes[container].alive)
        if here and self.chance(0.1):
            process = self.process_of(self._random.choice(here))
            self.on_event(e.MemberRegistered(process.seat, process.address, 1, *self.heard_by(process)))
        for plan in list(self.master.plans.all.values()):
            if plan.phase is Phase.PROPOSED and self.net.now_s - plan.reached_s[Phase.PROPOSED] > GIVE_UP_S:
                self.count("given up")
                self.on_event(e.CancelRequested(f"give-up-{plan.plan_id}", plan.plan_id))

    def run(self, limit_s: float = 120.0) -> None:
        """Run the job to its end; any failure is raised with the seed and the last events."""
        try:
            self._execute(self.master.start(0.0))
            self.net.after(0.25, self._tick)
            ended = self.net.run(lambda: self.ended is not None and self._all_gone(), limit_s)
            assert ended, f"still {self.master.state} after {limit_s} s: {self._waits()}"
        except Exception as error:
            raise AssertionError(f"seed {self.seed}: {type(error).__name__}: {error}\n{self.story()}") from error

    def _all_gone(self) -> bool:
        return set(self._requested) == self._exited

    def _waits(self) -> str:
        driver, progress = self.master.plans.flight.driver, self.master.progress
        waits = [] if driver is None else [f"plan {driver.plan.plan_id} {driver.plan.phase}", *driver.missing()]
        waits.append(f"completed {progress.completed}, horizon {self.master.progress.horizon}")
        for address, process in self._at.items():
            waits += [f"{name} for {process.name}" for name in self.asking(address)]
        return "; ".join(waits)

    def story(self) -> str:
        """Return the last events, oldest first."""
        return "\n".join(f"  {at_s:8.3f} {who:10} {event}"[:400] for at_s, who, event in self._story)

    # ---- checks

    def live(self, kind: type[SimProcess]) -> dict[MemberId, SimProcess]:
        """Return the processes of the members, by name."""
        assert self.master.membership is not None
        found = {name: self.processes[self._named[name]] for name in self.master.membership.members}
        return {name: process for name, process in found.items() if isinstance(process, kind)}

    def _check_copies(self) -> None:
        """A committed split table says only what is true: the copies are on the workers' disks."""
        assert self.master.membership is not None
        splits = self.master.membership.splits
        if self._version == 1 or self.master.membership.takes_over:
            # Missing splits are loaded when the membership arrives.
            return
        for name, worker in self.live(SimWorker).items():
            assert isinstance(worker, SimWorker)
            told = set(splits.active_on(name)) | set(splits.inactive_on(name))
            assert told <= set(worker.disk), f"{name} has {sorted(worker.disk)}, the table says {sorted(told)}"

    def check_finished(self) -> None:
        """Check all invariants of a finished job."""
        try:
            self._check_finished()
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}\n{self.story()}") from error

    def _check_finished(self) -> None:
        master, settings = self.master, self.settings
        assert master.state is JobState.FINISHED, f"{master.state}: {master.reason}"
        for plan in master.plans.all.values():
            assert plan.ended, f"plan {plan.plan_id} is still {plan.phase}"
            assert bool(plan.reason) == (plan.phase is Phase.ABORTED), f"{plan.phase}: {plan.reason!r}"
        assert [r.clock for r in master.progress.history] == list(range(settings.iterations + 1))
        assert {r.samples for r in master.progress.history} == {settings.num_splits}
        clocks = range(settings.first_clock, settings.iterations + 1)
        worked = {(clock, split) for _, clock, split in self.worked}
        assert worked == {(c, s) for c in clocks for s in range(settings.num_splits)}
        self._check_memberships()
        self._check_servers()
        assert set(self._requested) == self._exited

    def _check_memberships(self) -> None:
        """Assert that each split was computed by the worker that the membership of its clock names."""
        for (_, clock, split), worker in self.worked.items() if not self.taken_over else ():
            at = [v for v in self.master.members.memberships if v.from_clock <= clock][-1]
            assert at.splits.active[split] == worker, f"split {split} of clock {clock} on {worker}"

    def _check_told(self, name: MemberId, server: SimServer, membership: Membership) -> None:
        assert server.state.version == membership.version, f"{name} has an old membership"
        assert set(server.state.clock_list()) == set(membership.workers)
        followed = set(membership.partitions.followed_by(name))
        assert set(server.stores) == set(server.state.owned()) | followed, f"{name} keeps more than it holds"
        for partition, state in server.state.partitions.items():
            assert not state.held, f"{name} still holds requests for partition {partition}"
            standing = membership.partitions.followers_of(partition) if state.holding == "owner" else ()
            assert tuple(state.followers) == standing, f"{name} sends partition {partition} to {state.followers}"

    def _check_servers(self) -> None:
        master, settings = self.master, self.settings
        assert master.membership is not None
        expected = oracle(settings) if settings.bsp else {}
        owned: dict[int, MemberId] = {}
        for name, server in self.live(SimServer).items():
            assert isinstance(server, SimServer) and server.state.membership is not None
            owned.update(dict.fromkeys(server.state.owned(), name))
            if name not in master.members.unacked:
                # Else the model was written before it heard who takes over from somebody who was lost meanwhile.
                self._check_told(name, server, master.membership)
            for partition in server.state.owned():
                state, store = server.state.partitions[partition], server.stores[partition]
                assert store.ledger == [settings.iterations] * settings.num_splits, f"{partition}: {store.ledger}"
                assert state.clocks.applied == settings.iterations * settings.num_splits
                if settings.bsp:
                    assert store.value == expected[partition], f"partition {partition} differs from the oracle"
        assert owned == dict(enumerate(master.membership.partitions.owners))
