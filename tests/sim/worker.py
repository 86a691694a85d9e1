"""A simulated worker: the shell of ``eps.worker`` as it is, over integers, on the clock and the network of the job.

Its orders, its loop, its exchanges and its pure state are those of a process.  The session, the disk, the arithmetic
and the wire are fakes; how messages travel is left to :mod:`tests.sim.hostile` and :mod:`tests.sim.faithful`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eps.core import messages as m
from eps.core.types import Address, Role
from eps.core.worker_state import WorkerState
from eps.net.messages.codec import membership_to_pb
from eps.net.messages.exchange import PullAnswer, PullPart, PushAnswer, PushPart
from eps.pb import data_pb2 as pb
from eps.worker.loop import TrainingLoop, Wakeup
from eps.worker.push_pull import Patience, PushPull
from eps.worker.shell import WorkerShell
from eps.worker.wire import Answers, Sent
from tests.sim.process import SimProcess
from tests.sim.wire import PRIME, Again, Failed, Passed, Pull, Pulled, Push, Pushed, Stale, contribution, digest_of

#: No simulated exchange is given up: a job that hangs runs into the limit of its test.
ENDLESS = Patience(exchange_s=1e9, routing_s=1e9)
#: Seconds: a worker does not wait for events due later than this.
LATEST_S = 3000.0
NO_MAXIMA = np.empty(0, np.float32)
#: How often a part of a sum is there already when the whole arrives, as after a crash.
EARLY = 0.03


# ---- the arithmetic


class Total(int):
    """A sum of contributions modulo a prime, which knows what each split gave to it."""

    shares: dict[int, int]
    nbytes = 8


class Value(int):
    """Parameters, with the smallest clock of any split that is really in them."""

    oldest: int


@dataclass(eq=False)
class SimContribution:
    """The contribution of some splits at a clock, from a digest of all values read for it."""

    clock: int
    splits: tuple[int, ...]
    digest: int
    active: Active

    @property
    def results(self) -> tuple[m.SplitResult, ...]:
        return tuple(m.SplitResult(split, 1, 1.0) for split in self.splits)

    def push(self, partition: int) -> PushPart:
        shares = {split: contribution(self.digest, self.clock, split, partition) for split in self.splits}
        total: Any = Total(sum(shares.values()) % PRIME)
        total.shares = shares
        return PushPart(partition, self.clock, self.splits, len(self.splits), total, NO_MAXIMA)


@dataclass(eq=False)
class Active:
    """Splits that are loaded."""

    splits: tuple[int, ...]


@dataclass(eq=False)
class SimComputation:
    """A clock whose parameters come partition by partition."""

    worker: SimWorker
    active: Active
    clock: int
    values: dict[int, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.values) == self.worker.job.settings.num_partitions

    def read_again(self, partitions: Collection[int]) -> None:
        self.values = {partition: value for partition, value in self.values.items() if partition not in partitions}

    def pulls(self, min_clock: int) -> list[PullPart]:
        partitions = range(self.worker.job.settings.num_partitions)
        return [PullPart(partition, min_clock) for partition in partitions if partition not in self.values]

    def take(self, answers: Sequence[PullAnswer]) -> None:
        settings = self.worker.job.settings
        if self.clock >= settings.iterations:
            bound = settings.iterations
        elif settings.staleness < 0:
            bound = 0
        else:
            bound = self.clock - settings.staleness
        for answer in answers:
            value: Any = answer.values
            assert value.oldest >= bound, f"{self.worker.name} reads clock {value.oldest} at clock {self.clock}"
            assert answer.partition not in self.values, "the parameters of a clock are taken once"
            self.values[answer.partition] = int(value)

    def drop_splits(self) -> None:
        """Do nothing: this program computes nothing while parameters arrive."""

    def finish(self) -> SimContribution:
        assert self.complete, "computed without all parameters"
        self.worker.on_work(self.clock, self.active.splits)
        return SimContribution(self.clock, self.active.splits, digest_of(self.values), self.active)


class SimProgram:
    """Computes with integers, for as long as the job says."""

    def __init__(self, worker: SimWorker) -> None:
        self._worker = worker
        self._active: Active | None = None

    def prepare(self, splits: tuple[int, ...]) -> None:
        """Nothing takes time here."""

    @property
    def splits(self) -> tuple[int, ...]:
        return () if self._active is None else self._active.splits

    def load(self, splits: tuple[int, ...]) -> None:
        assert set(splits) <= set(self._worker.disk), f"{self._worker.name} lacks some of {splits}"
        self._active = Active(splits)

    def keep(self, splits: tuple[int, ...]) -> str:
        return ""

    def begin(self, clock: int) -> SimComputation:
        assert self._active is not None
        return SimComputation(self._worker, self._active, clock)

    def is_for(self, computation: SimComputation, clock: int) -> bool:
        return computation.clock == clock and computation.active is self._active

    def pause_s(self, contribution: SimContribution) -> float:
        return self._worker.job.compute_s()

    def alone(self, whole: SimContribution, split: int) -> SimContribution:
        self._worker.job.count("partial")
        return SimContribution(whole.clock, (split,), whole.digest, whole.active)

    def measure(self, computation: SimComputation) -> tuple[m.SplitResult, ...]:
        self._worker.on_work(computation.clock, computation.active.splits)
        return tuple(m.SplitResult(split, 1, 0.5, (1.0,)) for split in computation.active.splits)

    def forget(self) -> None:
        self._active = None


# ---- the wire


class SimWire:
    """A wire between a worker and the servers of its job; :meth:`carry` is the network's."""

    def __init__(self, worker: SimWorker) -> None:
        self.worker = worker
        #: Servers that something was sent to.
        self.used: set[Address] = set()
        self._waiting: list[Sent] = []
        self._came: deque[tuple[Sent, Answers]] = deque()
        self._exchange = 0

    def begin(self) -> None:
        self._exchange += 1
        self._waiting.clear()
        self._came.clear()

    def send(self, message: Sent) -> None:
        self.used.add(message.address)
        for push in message.pushes:
            total: Any = push.total
            if len(push.splits) > 1 and self.worker.job.chance(EARLY):
                first = push.splits[0]
                self.carry_early(
                    message.address,
                    Push(push.partition, push.clock, (first,), total.shares[first], message.incarnation),
                )
        self.carry(message)

    def carry(self, message: Sent) -> None:
        """Let a message travel; :meth:`expect` its answers, and :meth:`come` with them."""
        raise NotImplementedError

    def carry_early(self, address: Address, push: Push) -> None:
        """Let a single split of a sum travel before the sum; its answer does not matter."""
        raise NotImplementedError

    def expect(self, message: Sent) -> int:
        """Note that a message waits for its answer; return the exchange that it belongs to."""
        self._waiting.append(message)
        return self._exchange

    def come(self, exchange: int, message: Sent, answers: Answers) -> None:
        """Take the answers to a message, if its exchange is still under way."""
        if exchange == self._exchange:
            self._waiting.remove(message)
            self._came.append((message, answers))
            self.worker.wake()

    def next(self, timeout_s: float) -> tuple[Sent, Answers] | None:
        return self._came.popleft() if self._came else None

    def waiting(self) -> list[Sent]:
        return [*self._waiting, *(message for message, _ in self._came)]

    def prepare(self, addresses: Iterable[Address]) -> None:
        """Connections are made when they are needed."""

    def keep(self, addresses: Iterable[Address]) -> None:
        """Connections are not kept."""

    def rest(self) -> None:
        self.begin()
        self.keep(())


def parts_of(message: Sent) -> list[Push | Pull]:
    """Return the parts of a message as they travel here."""
    pushes: list[Push | Pull] = [
        Push(part.partition, part.clock, part.splits, int(part.total), message.incarnation) for part in message.pushes
    ]
    return pushes + [Pull(part.partition, part.min_clock, message.incarnation) for part in message.pulls]


def answers_of(parts: Sequence[Push | Pull], replies: Sequence[object]) -> Answers:
    """Return the replies to parts as the wire gives them."""
    pushed: list[PushAnswer] = []
    pulled: list[PullAnswer] = []
    for part, reply in zip(parts, replies, strict=True):
        match reply:
            case Pushed(have, accepted):
                assert isinstance(part, Push)
                pushed.append(PushAnswer(part.partition, have, accepted))
            case Pulled(clock, value, oldest):
                assert isinstance(part, Pull)
                found: Any = Value(value)
                found.oldest = oldest
                pulled.append(PullAnswer(part.partition, clock, found))
            case _:
                refusal = _refusal(reply)
                if isinstance(part, Push):
                    pushed.append(PushAnswer(part.partition, refusal=refusal))
                else:
                    pulled.append(PullAnswer(part.partition, refusal=refusal))
    return pushed, pulled


def _refusal(reply: object) -> pb.Refusal:
    match reply:
        case Stale(None) | Again():
            return pb.Refusal(retry=True)
        case Stale(membership):
            assert membership is not None
            return pb.Refusal(retry=True, membership=membership_to_pb(membership))
        case Passed():
            return pb.Refusal(passed=True)
        case Failed(why):
            return pb.Refusal(error=why)
    raise AssertionError(reply)


# ---- the process


class SimWorker(SimProcess):
    """The shell of a worker, driven by what arrives and by the job's clock."""

    role = Role.WORKER

    def on_named(self) -> None:
        #: Split -> the plan that brought it; 0 where the job began with it.
        self.disk: dict[int, int] = {}
        #: Plans that are decided, as far as this worker has been told: nothing is taken for them any more.
        self.closed: set[int] = set()
        self.state = WorkerState(self.name, self.job.settings)
        self.wire = self.make_wire()
        wakeup, program = Wakeup(lambda: self.net.now_s), SimProgram(self)
        report: Any = lambda report, can_wait=False: self.report(report)  # noqa: E731
        plane = PushPull(self.state, wakeup, program, self.wire, ENDLESS)  # type: ignore[arg-type]
        self.loop = TrainingLoop(self.state, wakeup, program, plane, report)  # type: ignore[arg-type]
        self.shell = WorkerShell(self.loop, wakeup, plane, self, self, report)  # type: ignore[arg-type]
        #: Counts the times that the loop was asked what is due; only the latest answer counts.
        self._looks = 0

    def make_wire(self) -> SimWire:
        raise NotImplementedError

    def on_order(self, order: m.Order) -> None:
        self.shell.on_order(order)
        self.wake()

    def wake(self) -> None:
        """Let the loop do what can be done now, and again when something is due."""
        if not self.alive:
            return
        self.state.validate()
        due_s = self.loop.advance()
        assert due_s is not None
        self.state.validate()
        self._looks += 1
        look = self._looks
        if due_s < self.net.now_s + LATEST_S:
            self.net.at(max(due_s, self.net.now_s), lambda: self.wake() if look == self._looks else None)

    def on_work(self, clock: int, splits: tuple[int, ...]) -> None:
        """Check what is computed."""
        assert clock <= self.state.duties.horizon, "beyond what it was granted"
        incarnation = self.state.memberships.incarnation
        if incarnation == self.job.incarnation:
            # Of an earlier one, a worker that leaves may not have heard that the job has gone back.
            assert clock <= self.job.horizon, "beyond the horizon"
        self.job.on_work(self.name, clock, splits, incarnation)

    def asks(self, address: Address) -> bool:
        return any(message.address == address for message in self.wire.waiting())

    def before_end(self, reason: str) -> None:
        if reason.startswith("removed"):
            assert self.state.duties.left and self.loop._round is None, f"{self.name} ends too early"

    # ---- the disk

    def load_initial(self, split: int) -> None:
        self.disk[split] = 0

    def activate(self, split: int) -> None:
        assert split in self.disk, f"{self.name} needs split {split}, which it lacks"

    def close_plan(self, plan_id: int, keep: bool) -> None:
        self.closed.add(plan_id)
        if keep:
            self.disk = {split: 0 if brought == plan_id else brought for split, brought in self.disk.items()}
        else:
            self.disk = {split: brought for split, brought in self.disk.items() if brought != plan_id}

    # ---- transfers

    def send(self, plan_id: int, target: m.Target) -> None:
        raise NotImplementedError

    def load(self, plan_id: int, split: int) -> None:
        raise NotImplementedError

    def forget(self, plan_id: int) -> None:
        """Connections are not kept."""
