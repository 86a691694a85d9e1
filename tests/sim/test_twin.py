"""The simulator's server is held against the server that runs: the same history brings the same answers and reports.

Histories of one server are random: pushes and pulls of all kinds, an owner's snapshot and updates in any order, a
partition that is promoted, orders that come again.  Real time and threads stay out of it: nothing is sent to others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest

from eps.core import messages as m
from eps.core.events import ReportReceived
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.partition_state import Holding
from eps.core.server_events import Counters
from eps.core.types import Address
from eps.errors import EpsError, TakenOverError
from eps.net.arrays.api import Message, Seal
from eps.net.arrays.frames import checksum_of
from eps.net.arrays.in_process import InProcessVan
from eps.net.messages.exchange import PullAnswer, PullPart, PushAnswer, PushPart, build_exchange, parse_reply, simple
from eps.server.partition_store import PartitionStore
from eps.server.partitions import initial_values
from eps.server.shell import ServerShell
from eps.spec.runtime import Runtime
from tests.server.test_shell import make_runtime
from tests.sim.faithful import FaithfulServer
from tests.sim.wire import Again, Answers, Done, Exchange, Failed, Fenced, Passed, Pull, Pulled, Push, Pushed, Stale
from tests.sim.wire import Promote as SimPromote
from tests.sim.wire import Snapshot as SimSnapshot
from tests.sim.wire import Update as SimUpdate

SPLITS, ITERATIONS, STEPS = 3, 6, 80
ME, OTHER = "server-1", "server-2"
PLAN = 1


class Line:
    """A network that delivers at once."""

    def send(self, action: Callable[[], None]) -> None:
        action()

    def cut(self, share: float = 0.0) -> None:
        """Nothing is on its way."""


@dataclass
class StubJob:
    """The part of a job that a simulated server uses, without faults."""

    runtime: Runtime
    reports: list[object] = field(default_factory=list)
    net: Any = None
    taken_over: bool = False

    def __post_init__(self) -> None:
        self.settings = self.runtime.settings

    def line(self) -> Line:
        return Line()

    def registers(self) -> bool:
        return False

    def note(self, name: str, what: object) -> None:
        """Nothing is drawn."""

    def count(self, what: str) -> None:
        """Nothing is counted."""

    def on_event(self, event: object) -> None:
        assert isinstance(event, ReportReceived)
        self.reports.append(plain(event.report))


class Twin(FaithfulServer):
    def note_results(self, body: Push) -> None:
        """The messages of this test bring none."""


def plain(report: m.Report) -> object:
    """Return a report without what depends on arrays."""
    return replace(report, checksum="") if isinstance(report, m.PartitionCaughtUp) else report


@dataclass
class Answer:
    """The way back of one request to the real server."""

    found: object = None

    def send(self, message: Message) -> None:
        assert self.found is None, "answered twice"
        if not message.arrays and message.header == simple("done"):
            self.found = "done"
            return
        self.found = [shown(answer) for answer in sum(map(list, parse_reply(message)), list[Any]())]

    def fail(self, error: EpsError) -> None:
        assert self.found is None, "answered twice"
        self.found = "fenced" if isinstance(error, TakenOverError) else f"failed: {error}"


def shown(answer: PushAnswer | PullAnswer) -> tuple[object, ...]:
    """Return what a part was answered, as :func:`told` does."""
    kind = "push" if isinstance(answer, PushAnswer) else "pull"
    refusal = answer.refusal
    if refusal is not None:
        what = "failed" if refusal.error else "passed" if refusal.passed else "stale"
        return kind, answer.partition, what if what != "stale" or refusal.HasField("membership") else "again"
    return (kind, answer.partition, answer.have, answer.accepted) if isinstance(answer, PushAnswer) else (
        kind, answer.partition, answer.clock
    )  # fmt: skip


def told(exchange: Exchange, answers: Answers) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for part, answer in zip(exchange.parts, answers.replies, strict=True):
        kind = "push" if isinstance(part, Push) else "pull"
        names = {Stale: "stale", Failed: "failed", Passed: "passed", Again: "again"}
        if isinstance(answer, Pushed):
            found.append((kind, part.partition, answer.have, answer.accepted))
        elif isinstance(answer, Pulled):
            found.append((kind, part.partition, answer.clock))
        else:
            found.append((kind, part.partition, names[type(answer)]))
    return found


class Both:
    """A real server and its twin, which are given the same."""

    def __init__(self, consistency: str) -> None:
        self.runtime = make_runtime(
            splits=SPLITS, iterations=ITERATIONS, servers=2, followers=0, consistency=consistency
        )
        self.reports: list[object] = []
        van = InProcessVan()
        self.shell = ServerShell(self.runtime, ME, van, lambda report: self.reports.append(plain(report)))
        self.job = StubJob(self.runtime)
        self.twin = Twin(cast(Any, self.job), "container-1", Address("x", 1))
        self.twin.on_name(ME)
        #: Of the real server and of its twin, by the number of the request.
        self.real: list[Answer] = []
        self.simulated: list[object] = []
        addresses = {"worker-1": Address("x", 3), ME: Address("x", 1), OTHER: Address("x", 2)}
        table = PartitionTable((ME, OTHER))
        workers = ("worker-1",)
        self.first = Membership(1, -1, workers, (ME, OTHER), table, SplitTable.of(workers * SPLITS), addresses)
        self.order(m.UpdateMembership(0, self.first))

    def order(self, order: m.Order) -> None:
        self.shell.on_order(order)
        self.twin.receive(order)

    def exchange(self, *parts: Push | Pull) -> None:
        number = self._begin()
        pushes = [self._push(part) for part in parts if isinstance(part, Push)]
        pulls = [PullPart(part.partition, part.min_clock) for part in parts if isinstance(part, Pull)]
        message = build_exchange(pushes, pulls, incarnation=parts[0].incarnation)
        self.shell.handle(message, self.real[number])
        exchange = Exchange(parts)

        def answered(answers: object) -> None:
            assert isinstance(answers, Answers) and self.simulated[number] is None
            # The real one answers what is served as it is first.
            self.simulated[number] = told(exchange, answers)

        self.twin.on_request(exchange, answered)

    def _push(self, part: Push) -> PushPart:
        size, blocks = self._sizes(part.partition, part.clock)
        dtype = self.runtime.grid.dtype if self.runtime.settings.reproducible else np.dtype(np.float32)
        maxima = np.ones(blocks, np.float32)
        return PushPart(part.partition, part.clock, part.splits, 10, np.ones(size, dtype), maxima)

    def _sizes(self, partition: int, clock: int) -> tuple[int, int]:
        """Return the keys that a contribution has, and the blocks."""
        start, stop = self.runtime.ranges[partition]
        settings = self.runtime.settings
        blocks = self.runtime.grid.num_blocks(stop - start) if settings.reproducible else 0
        return 0 if clock < 0 else stop - start, blocks

    def snapshot(self, partition: int) -> None:
        """Send a partition as it is at the start."""
        clock = self.runtime.settings.seeded_clock
        store = PartitionStore(self.runtime, partition, initial_values(self.runtime, *self.runtime.ranges[partition]))
        arrays, _ = store.snapshot()
        clocks = (clock,) * SPLITS
        header = simple("snapshot", plan_id=PLAN, partition=partition, completed=clock, next_clock=clocks)
        checksum = checksum_of(header, arrays)
        body = SimSnapshot(PLAN, partition, 0, Counters(clocks), 1, clocks)
        self._transfer(Message(header, arrays, Seal(checksum, checksum)), body)

    def update(self, partition: int, sequence: int) -> None:
        """Send the update with a number: of a clock, or of a clock of one split."""
        settings = self.runtime.settings
        clock, splits = settings.seeded_clock + sequence, tuple(range(SPLITS))
        if not settings.bsp:
            clock, splits = settings.seeded_clock + sequence // SPLITS, (sequence % SPLITS,)
        if clock >= ITERATIONS:
            return
        size, blocks = self._sizes(partition, clock)
        header = simple(
            "update", plan_id=PLAN, partition=partition, sequence=sequence, clock=clock, splits=splits, rate_scale=1.0
        )
        arrays = np.zeros(size, np.float32), np.zeros(blocks, np.int16)
        self._transfer(Message(header, arrays), SimUpdate(PLAN, partition, sequence, clock, splits, 1))

    def promote(self, partition: int, sequence: int) -> None:
        header = simple("promote", plan_id=PLAN, partition=partition, sequence=sequence)
        # The twin looks at the value only of what it has just been promoted with.
        value = self.twin.stores[partition].value if partition in self.twin.stores else 0
        self._transfer(Message(header), SimPromote(PLAN, partition, sequence, value))

    def _transfer(self, message: Message, body: object) -> None:
        number = self._begin()
        self.shell.handle(message, self.real[number])

        def answered(answer: object) -> None:
            self.simulated[number] = {Done: "done", Fenced: "fenced"}[type(answer)]

        self.twin.on_request(body, answered)

    def _begin(self) -> int:
        self.real.append(Answer())
        self.simulated.append(None)
        return len(self.real) - 1

    def check(self, what: str) -> None:
        for number, (real, simulated) in enumerate(zip(self.real, self.simulated, strict=True)):
            found = real.found
            if isinstance(found, list) and isinstance(simulated, list):
                found, simulated = sorted(found), sorted(simulated)
            assert found == simulated, f"{what}: request {number}"
        assert self.reports == self.job.reports, what
        stores = self.shell._partitions.stores
        assert stores.keys() == self.twin.stores.keys(), what
        for partition, store in stores.items():
            begun = self.twin.state.partitions[partition].clocks.arrived
            applied = [max(0, clock - (i in begun)) for i, clock in enumerate(self.twin.stores[partition].ledger)]
            assert store.applications.tolist() == applied, f"{what}: partition {partition}"


def splits_of(rng: np.random.Generator) -> tuple[int, ...]:
    """Return splits of a push, sometimes such as no job has."""
    if rng.random() < 0.05:
        return (0, 0) if rng.random() < 0.5 else (SPLITS,)
    return tuple(sorted(rng.choice(SPLITS, int(rng.integers(1, SPLITS + 1)), replace=False).tolist()))


def random_step(both: Both, rng: np.random.Generator, transferred: list[int]) -> str:
    """Give both servers the next thing; return what it was."""
    state = both.twin.state
    chance = rng.random()
    if chance < 0.65:
        pushes, pulls = list[Push](), list[Pull]()
        incarnation = 0 if rng.random() < 0.95 else 1
        for partition in (0, 1):
            known = state.partitions.get(partition)
            at = both.runtime.settings.first_clock if known is None else known.clocks.completed
            clock = at + int(rng.choice([0, 0, 0, 0, -1, 1]))
            first = both.runtime.settings.first_clock
            if rng.random() < 0.6:
                pushes.append(Push(partition, max(first, clock), splits_of(rng), 1, incarnation))
            if rng.random() < 0.4:
                pulls.append(Pull(partition, max(first, at + int(rng.choice([0, 1, 1, -1, ITERATIONS]))), incarnation))
        if pushes or pulls:
            both.exchange(*pushes, *pulls)
        return f"exchange {pushes} {pulls}"
    if chance < 0.70:
        both.snapshot(1)
        return "snapshot"
    if chance < 0.88:
        # In order mostly; else it comes again, or early.
        late = max(0, transferred[0] + int(rng.choice([0, 0, 0, 0, -1, 1])))
        both.update(1, late)
        transferred[0] += late == transferred[0]
        return f"update {late}"
    if chance < 0.92:
        both.order(m.TakeInventory(0, 0))
        return "inventory"
    if chance < 0.95 and state.version == 1:
        known = state.partitions.get(1)
        if known is not None and known.holding is Holding.FOLLOWER:
            bsp = both.runtime.settings.bsp
            from_clock = known.clocks.completed + 1 if bsp else known.clocks.completed
            second = replace(both.first, version=2, from_clock=from_clock, partitions=PartitionTable((ME, ME)))
            both.order(m.UpdateMembership(PLAN, second))
            return "membership"
    if chance < 0.97 and not both.runtime.settings.bsp and state.version == 2:
        both.promote(1, transferred[0])
        return "promote"
    if chance < 0.98:
        both.order(m.UpdateMembership(0, both.first))
        return "the first membership again"
    if chance > 0.995:
        both.order(m.AbortPlan(PLAN))
        return "abort"
    return "nothing"


@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
def test_the_simulated_server_does_what_the_real_one_does(consistency: str) -> None:
    kinds: set[str] = set()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        both = Both(consistency)
        transferred = [0]
        try:
            for number in range(STEPS):
                what = random_step(both, rng, transferred)
                both.check(f"seed {seed}, step {number}: {what}")
                kinds.add(what.split()[0])
        finally:
            both.shell.close()
        for answers in both.simulated:
            kinds |= {str(one[-1]) for one in answers} if isinstance(answers, list) else {str(answers)}
    expected = {"exchange", "snapshot", "update", "membership", "True", "False", "stale", "failed", "again", "done"}
    assert kinds >= (expected | ({"passed"} if consistency == "bsp" else {"promote"})), kinds
