"""What an application master decides about its containers, against a cluster that plays dice."""

from __future__ import annotations

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
    ROOM,
    made,
    name,
    yarn_name,
)


class RandomYarn:
    """A ResourceManager that grants, loses, repeats and forgets; a dumb reference of what it holds."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.asked: dict[int, Ask] = {}
        self.held: dict[str, Grant] = {}
        self.sequence = 1
        self.said: list[int] = []
        self.unsaid: list[Completed] = []

    def turn(self, turn: Turn) -> None:
        for wanted in turn.asks:
            assert wanted.number not in self.asked
            self.asked[wanted.number] = wanted
            self.said.append(wanted.number)
        for number in turn.withdrawn:
            self.asked.pop(number, None)
        for container in turn.releases:
            self.complete(container, -100)

    def complete(self, container: str, status: int) -> None:
        if self.held.pop(container, None) is not None:
            self.unsaid.append(Completed(container, status))

    def give(self, number: int) -> Grant:
        self.sequence += 1
        found = Grant(yarn_name(self.sequence), f"node-{self.rng.integers(3)}:1", number, ROOM)
        self.held[found.container] = found
        return found

    def answer(self, granting: float) -> AllocateResult:
        granted = []
        for number in sorted(self.asked):
            if self.rng.random() < granting:
                del self.asked[number]
                granted.append(self.give(number))
                if self.rng.random() < 0.1:
                    granted.append(self.give(number))
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

    def beat(granting: float) -> None:
        turn = allocation.take_turn()
        yarn.turn(turn)
        allocation.on_allocated(yarn.answer(granting), now_s)
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

    for step in range(60):
        now_s += 1.0
        action = rng.random()
        if action < 0.4 and len(wanted) < 20:
            wanted.append(name(len(wanted) + 1))
            allocation.request(ContainerRequest(wanted[-1], "worker"), now_s)
        elif action < 0.6 and wanted:
            act, chosen = [allocation.release, allocation.kill, allocation.withdraw][step % 3], str(rng.choice(wanted))
            act(chosen)
            killed |= {chosen} if act == allocation.kill else set()
        elif action < 0.65:
            # Forgets what it has not answered, and grants that it has not said; running containers come back.
            yarn.asked.clear()
            forgotten += 1
            allocation.on_forgotten(Registration(REGISTRATION.largest, kept=tuple(yarn.held.values())))
        collect()
        beat(rng.random())
    allocation.end()
    for _ in range(20):
        now_s += 1.0
        beat(1.0)
    assert not yarn.held and not yarn.asked, f"seed {seed}: {yarn.held} {yarn.asked}"
    for container_id in wanted:
        _check_life(events.get(container_id, []), f"seed {seed}: {container_id}")
    numbers = [n for n in set(yarn.said) if yarn.said.count(n) > 1 + forgotten]
    assert not numbers, f"seed {seed}: asked twice: {numbers}"


def _holds(said: Sequence[object]) -> bool:
    return any(isinstance(e, Allocated) for e in said) and not any(isinstance(e, Exited) for e in said)


def _check_life(said: Sequence[object], what: str) -> None:
    kinds = [type(event) for event in said]
    assert kinds in ([Exited], [Allocated, Exited], [Allocated, Running, Exited]), f"{what}: {said}"


@pytest.mark.parametrize("block", range(4))
def test_whatever_yarn_does_every_request_ends_once_and_nothing_is_kept(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        play(seed)
