"""Members that an application master killed for their silence: they hung, or their machines are lost."""

from __future__ import annotations

import pytest

from eps.cluster.api import ContainerEvent, ContainerRequest, Exited
from eps.cluster.yarn.allocation import Allocation, Limits, StopContainer
from eps.cluster.yarn.killed_containers import KILLED
from eps.cluster.yarn.types import AllocateResult, Completed, NodeChange, NodeUpdate
from tests.cluster.allocation_world import ASK, grant, made, name, started, yarn_name

#: What a ResourceManager says of whatever it is given back, as soon as it is.
RELEASED = "Container released by application"
LOST = Exited(name(1), None, "was lost with its node node-1", taken=True)
HUNG = Exited(name(1), None, KILLED, taken=False)


def killed(*numbers: int) -> tuple[Allocation, dict[int, StopContainer]]:
    """Return one whose containers were killed, and what their nodes are told, since 0.5 s."""
    allocation = started(*numbers)
    orders = {number: kill(allocation, number) for number in numbers}
    for order in orders.values():
        assert allocation.on_stopping(order, 0.5)
    allocation.take_turn()
    return allocation, orders


def kill(allocation: Allocation, number: int) -> StopContainer:
    """Return what its node is to be told."""
    allocation.kill(name(number))
    (order,) = allocation.take_orders()
    assert isinstance(order, StopContainer)
    return order


def two_on_one_node() -> Allocation:
    allocation = started(1)
    allocation.request(ContainerRequest(name(2), "worker"), 0.0)
    allocation.on_allocated(AllocateResult((grant(3),)), 0.0)
    allocation.on_started(name(2))
    allocation.take_orders()
    allocation.take_events()
    return allocation


def release(allocation: Allocation, *numbers: int, now_s: float = 1.0) -> list[ContainerEvent]:
    completed = tuple(Completed(yarn_name(number + 1), -100, RELEASED) for number in numbers)
    allocation.on_allocated(AllocateResult(completed=completed), now_s)
    return allocation.take_events()


def on_node(change: NodeChange, number: int = 1) -> AllocateResult:
    return AllocateResult(nodes=(NodeUpdate(f"node-{number}:8041", change),))


@pytest.mark.parametrize(("reached", "end"), [(True, HUNG), (False, LOST)])
@pytest.mark.parametrize("first", ["node", "YARN"])
def test_its_node_says_whether_what_was_killed_hung_or_was_lost(reached: bool, end: Exited, first: str) -> None:
    allocation, orders = killed(1)
    if first == "node":
        allocation.on_stopped(orders[1], reached=reached)
        assert allocation.take_events() == []
        assert release(allocation, 1) == [end]
    else:
        assert release(allocation, 1) == []
        allocation.on_stopped(orders[1], reached=reached)
        assert allocation.take_events() == [end]
    allocation.on_allocated(AllocateResult(), 1e6)
    allocation.finish()
    assert allocation.take_events() == [], "once"


def test_a_node_that_says_nothing_of_what_it_was_told_to_end_counts_as_lost_after_a_while() -> None:
    allocation, _ = killed(1)
    answer_s = Limits().answer_s
    assert release(allocation, 1, now_s=1.0) == []
    allocation.check_deadlines(0.9 + answer_s)
    assert allocation.take_events() == []
    allocation.check_deadlines(1.0 + answer_s)
    assert allocation.take_events() == [LOST]


def test_a_node_that_nobody_has_asked_yet_is_waited_for() -> None:
    """More may be told to end than there are threads that tell; each of a lost machine holds one up for long."""
    allocation = started(1)
    order = kill(allocation, 1)
    assert release(allocation, 1, now_s=1.0) == []
    allocation.check_deadlines(1000.0)
    assert allocation.take_events() == []
    assert allocation.on_stopping(order, 1000.0)
    allocation.check_deadlines(999.9 + Limits().answer_s)
    assert allocation.take_events() == []
    allocation.on_stopped(order, reached=True)
    assert allocation.take_events() == [HUNG]


@pytest.mark.parametrize("silence", ["an error", "no answer"])
def test_a_node_that_does_not_answer_is_told_nothing_of_what_waits(silence: str) -> None:
    allocation = two_on_one_node()
    first, second = kill(allocation, 1), kill(allocation, 2)
    assert allocation.on_stopping(first, 0.0)
    if silence == "an error":
        allocation.on_stopped(first, reached=False)
        events = release(allocation, 1, 2)
    else:
        assert release(allocation, 1, 2, now_s=0.0) == []
        allocation.check_deadlines(Limits().answer_s)
        events = allocation.take_events()
    assert [event for event in events if isinstance(event, Exited) and event.taken] == events and len(events) == 2
    assert not allocation.on_stopping(second, 6.0)


def test_a_node_that_did_not_answer_is_asked_again_for_what_is_killed_later() -> None:
    allocation = two_on_one_node()
    first = kill(allocation, 1)
    assert allocation.on_stopping(first, 0.0)
    allocation.on_stopped(first, reached=False)
    second = kill(allocation, 2)
    assert allocation.on_stopping(second, 1.0)
    allocation.on_stopped(second, reached=True)
    assert release(allocation, 1, 2) == [LOST, Exited(name(2), None, KILLED, taken=False)]


def test_of_what_is_killed_twice_before_its_node_is_asked_it_is_asked_once() -> None:
    allocation = started(1)
    first, second = kill(allocation, 1), kill(allocation, 1)
    assert allocation.on_stopping(first, 0.0) and not allocation.on_stopping(second, 0.0)
    assert allocation.on_stopping(kill(allocation, 1), 1.0), "the first call may have been lost"


def test_a_node_that_cannot_be_reached_tells_of_all_that_was_killed_there_and_of_no_other_node() -> None:
    allocation = started(1)
    allocation.request(ContainerRequest(name(2), "worker"), 0.0)
    allocation.request(ContainerRequest(name(3), "worker"), 0.0)
    allocation.on_allocated(AllocateResult((grant(3), grant(4, node="node-3:8041"))), 0.0)
    for number in (1, 2, 3):
        allocation.kill(name(number))
    first, *_ = [order for order in allocation.take_orders() if isinstance(order, StopContainer)]
    allocation.take_events()
    allocation.on_stopped(first, reached=False)
    assert [event.container_id for event in release(allocation, 1, 2, 3)] == [name(1), name(2)]


@pytest.mark.parametrize("when", ["before it was killed", "before it has ended", "afterwards"])
def test_what_was_killed_on_a_node_that_yarn_cannot_use_is_lost_whatever_the_node_answers(when: str) -> None:
    allocation = started(1)
    if when == "before it was killed":
        allocation.on_allocated(on_node(NodeChange.UNUSABLE), 0.5)
    allocation.kill(name(1))
    (order,) = allocation.take_orders()
    assert isinstance(order, StopContainer)
    if when == "before it has ended":
        allocation.on_allocated(on_node(NodeChange.UNUSABLE), 0.5)
    if when == "afterwards":
        assert release(allocation, 1) == []
        allocation.on_allocated(on_node(NodeChange.UNUSABLE), 1.5)
        assert allocation.take_events() == [LOST]
    else:
        allocation.on_stopped(order, reached=True)
        assert release(allocation, 1) == [LOST]


def test_what_yarn_says_was_lost_is_lost_whatever_was_done_to_it() -> None:
    allocation, orders = killed(1)
    allocation.on_stopped(orders[1], reached=True)
    completed = Completed(yarn_name(2), -100, "Container released on a *lost* node")
    allocation.on_allocated(AllocateResult(completed=(completed,)), 1.0)
    assert allocation.take_events() == [LOST]


def test_what_was_killed_on_a_node_that_yarn_cannot_use_and_says_nothing_of_is_lost() -> None:
    allocation, _ = killed(1)
    allocation.on_allocated(on_node(NodeChange.UNUSABLE), 0.5)
    allocation.check_deadlines(0.5 + Limits().lost_node_s)
    assert allocation.take_events() == [LOST]


@pytest.mark.parametrize("status", [137, 143, -105])
def test_what_its_node_says_it_has_ended_had_hung(status: int) -> None:
    allocation, orders = killed(1)
    # Cut off from the job master, not from YARN.
    allocation.on_stopped(orders[1], reached=False)
    allocation.on_allocated(AllocateResult(completed=(Completed(yarn_name(2), status),)), 1.0)
    assert allocation.take_events() == [HUNG]


def test_what_the_job_gave_back_waits_for_nobody() -> None:
    allocation = started(1)
    allocation.release(name(1))
    allocation.kill(name(1))
    assert release(allocation, 1) == [Exited(name(1), None, "was released")]


def test_what_waits_for_its_nodes_word_takes_nobodys_room_and_ends_with_the_job() -> None:
    allocation = made(max_containers=1)
    for number in (1, 2):
        allocation.request(ContainerRequest(name(number), "worker"), 0.0)
    allocation.take_turn()
    allocation.on_allocated(AllocateResult((grant(2),)), 0.0)
    allocation.on_started(name(1))
    allocation.kill(name(1))
    allocation.take_turn()
    allocation.take_events()
    assert release(allocation, 1) == []
    assert allocation.take_turn().asks == (ASK,)
    assert allocation.granted() == {} and not allocation.has_containers
    # Nothing comes of what was over.
    allocation.kill(name(1))
    allocation.release(name(1))
    assert not allocation.has_turn
    allocation.finish()
    ends = [event for event in allocation.take_events() if event.container_id == name(1)]
    assert len(ends) == 1
