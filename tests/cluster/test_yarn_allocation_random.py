"""An application master's decisions about its containers, against a random cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from eps.cluster.api import Allocated, ContainerRequest, Exited, Running
from eps.cluster.yarn.allocation import (
    StartContainer,
    StopContainer,
    Turn,
)
from eps.cluster.yarn.types import (
    AllocateResult,
    Ask,
    Completed,
    Grant,
    Registration,
)
from tests.cluster.allocation_world import (
    REGISTRATION,
    made,
    name,
    yarn_name,
)


class RandomYarn:
    """A ResourceManager that grants, loses, repeats and forgets, with Hadoop's client before it; a dumb reference.

    The client says how many it wants of a number, and takes one off for each grant that it hears of; until then the
    ResourceManager may have granted some of them, which it grants once more.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        #: By number: how many the client wants, and how many are still to be granted.
        self.client: Counter[int] = Counter()
        self.wanted: Counter[int] = Counter()
        self.asks: dict[int, Ask] = {}
        self.held: dict[str, Grant] = {}
        self.sequence = 1
        self.num_said = 0
        #: Granted, and not heard of.
        self.unheard: list[Grant] = []
        self.unsaid: list[Completed] = []
        #: Numbers whose count the client has to say.
        self.late: set[int] = set()

    def turn(self, turn: Turn) -> None:
        asked = {ask.number for ask in turn.asks}
        assert asked.isdisjoint(turn.withdrawn)
        for ask in turn.asks:
            assert self.asks.setdefault(ask.number, ask) == ask
            self.client[ask.number] += 1
            self.num_said += 1
        for number in turn.withdrawn:
            assert self.client[number], "more is withdrawn than was asked for"
            self.client[number] -= 1
        for number in asked.union(turn.withdrawn, self.late):
            self.wanted[number] = self.client[number]
        for container in turn.releases:
            self.complete(container, -100)

    def forget(self) -> None:
        self.client.clear()
        self.wanted.clear()
        # Granted, and never heard of: it is over.
        for grant in self.unheard:
            del self.held[grant.container]
        self.unheard = []

    def complete(self, container: str, status: int) -> None:
        if self.held.pop(container, None) is not None:
            self.unsaid.append(Completed(container, status))

    def give(self, number: int) -> Grant:
        self.sequence += 1
        ask = self.asks[number]
        found = Grant(yarn_name(self.sequence), f"node-{self.rng.integers(3)}:1", number, ask.resource)
        self.held[found.container] = found
        return found

    def grant(self, chance: float) -> None:
        """What nodes do between two heartbeats of the application master."""
        for number in sorted(self.asks):
            for _ in range(self.wanted[number]):
                if self.rng.random() < chance:
                    self.wanted[number] -= 1
                    self.unheard.append(self.give(number))
                    if self.rng.random() < 0.1:
                        self.unheard.append(self.give(number))

    def answer(self) -> AllocateResult:
        granted, self.unheard = self.unheard, []
        # Said with the next heartbeat, whatever is granted before it.
        self.late = {grant.number for grant in granted}
        for grant in granted:
            self.client[grant.number] = max(0, self.client[grant.number] - 1)
        if self.rng.random() < 0.3 and self.held:
            self.complete(str(self.rng.choice(sorted(self.held))), int(self.rng.choice([0, 1, 137, -100, -102, -108])))
        completed, self.unsaid = self.unsaid, []
        if self.rng.random() < 0.1:
            completed += completed
        return AllocateResult(tuple(granted), tuple(completed))


def play(seed: int) -> None:
    rng = np.random.default_rng(seed)
    limit = int(rng.integers(0, 4))
    yarn, allocation = RandomYarn(rng), made(max_containers=limit)
    events: dict[str, list[object]] = {}
    wanted: list[str] = []
    killed: set[str] = set()
    #: What nodes were told to stop, and have not answered.
    unanswered: list[StopContainer] = []
    now_s, forgotten = 0.0, 0

    def collect() -> None:
        for event in allocation.take_events():
            events.setdefault(event.container_id, []).append(event)

    def act() -> None:
        action = rng.random()
        if action < 0.4 and len(wanted) < 20:
            wanted.append(name(len(wanted) + 1))
            role, memory_mb = [("worker", 1024), ("worker", 512), ("server", 1024)][rng.integers(3)]
            allocation.request(ContainerRequest(wanted[-1], role, memory_mb), now_s)
        elif action < 0.6 and wanted:
            acts, chosen = (allocation.release, allocation.kill, allocation.withdraw), str(rng.choice(wanted))
            chosen_act = acts[rng.integers(3)]
            chosen_act(chosen)
            if chosen_act == allocation.kill:
                killed.add(chosen)

    def beat(granting: float, *, acting: bool = False) -> None:
        nobodys = set(yarn.held) - set(allocation.granted().values())
        # Some of it before the turn is heard.
        yarn.grant(granting * rng.random())
        yarn.turn(allocation.take_turn())
        assert nobodys.isdisjoint(yarn.held), f"seed {seed}: {nobodys} are not given back"
        yarn.grant(granting)
        if acting:
            # While YARN's answer is on its way.
            act()
        allocation.on_allocated(yarn.answer(), now_s)
        for order in allocation.take_orders():
            if isinstance(order, StartContainer):
                if rng.random() < 0.1:
                    allocation.on_start_failed(order.request.container_id, "scripted")
                else:
                    allocation.on_started(order.request.container_id)
            else:
                unanswered.append(order)
        for order in [order for order in unanswered if rng.random() < 0.5]:
            unanswered.remove(order)
            if allocation.on_stopping(order, now_s):
                allocation.on_stopped(order, reached=bool(rng.random() < 0.5))
        collect()
        if limit:
            here = [c for c, said in events.items() if _holds(said) and c in allocation.granted()]
            late = [c for c, said in events.items() if _holds(said) and c not in allocation.granted()]
            assert set(late) <= killed, f"seed {seed}: {late}"
            assert len(here) <= limit, f"seed {seed}: {here}"

    for _ in range(60):
        now_s += 1.0
        act()
        if rng.random() < 0.05:
            # Forgets what it has not answered, and grants that it has not said; running containers come back.
            yarn.forget()
            forgotten += 1
            allocation.on_forgotten(Registration(REGISTRATION.largest, kept=tuple(yarn.held.values())))
        collect()
        beat(rng.random(), acting=True)
    for _ in range(20):
        if not allocation.waiting():
            break
        now_s += 1.0
        beat(1.0)
    assert not allocation.waiting(), f"seed {seed}: {allocation.waiting()} are asked for, and YARN does not know"
    allocation.end()
    for _ in range(20):
        now_s += 1.0
        beat(1.0)
    assert not yarn.held and not +yarn.client and not +yarn.wanted, f"seed {seed}: {yarn.held} {yarn.client}"
    for container_id in wanted:
        _check_life(events.get(container_id, []), f"seed {seed}: {container_id}")
    assert len(yarn.asks) <= 3, f"seed {seed}: {yarn.asks}"
    assert yarn.num_said <= len(wanted) * (1 + forgotten), f"seed {seed}: asked more often than requested"


def _holds(said: Sequence[object]) -> bool:
    return any(isinstance(e, Allocated) for e in said) and not any(isinstance(e, Exited) for e in said)


def _check_life(said: Sequence[object], what: str) -> None:
    kinds = [type(event) for event in said]
    assert kinds in ([Exited], [Allocated, Exited], [Allocated, Running, Exited]), f"{what}: {said}"


@pytest.mark.parametrize("block", range(4))
def test_whatever_yarn_does_every_request_ends_once_and_nothing_is_kept(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        play(seed)
