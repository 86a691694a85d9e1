"""An application master's decisions about its containers, event by event."""

from __future__ import annotations

import pytest

from eps.cluster.api import WITHDRAWN, Allocated, ContainerRequest, EvictionWarning, Exited, Running
from eps.cluster.yarn.allocation import (
    PREEMPTED,
    RELEASED,
    WANTED_BACK,
    Allocation,
    Limits,
    Placement,
    StartContainer,
    StopContainer,
    Turn,
)
from eps.cluster.yarn.killed_containers import KILLED
from eps.cluster.yarn.launch import LaunchTemplate, RoleTemplate, build_launch
from eps.cluster.yarn.types import (
    AllocateResult,
    Ask,
    Completed,
    ContainerState,
    Execution,
    Grant,
    NodeChange,
    NodeUpdate,
    Preemption,
    Registration,
    Resource,
)
from eps.errors import ConfigError, ResourceError
from tests.cluster.allocation_world import (
    ASK,
    PLACEMENTS,
    REGISTRATION,
    ROOM,
    asked,
    grant,
    made,
    name,
    started,
    yarn_name,
)

# ---- requests


def test_a_request_is_asked_once_with_what_its_role_and_it_say() -> None:
    allocation = made()
    allocation.request(ContainerRequest(name(1), "server", memory_mb=2048, vcores=2), 0.0)
    wanted = Ask(1, Resource(2048, 2), 3, ("node-1",), "reliable", Execution.OPPORTUNISTIC)
    assert allocation.has_turn
    assert allocation.take_turn() == Turn(asks=(wanted,))
    allocation.on_allocated(AllocateResult(), 1.0)
    assert allocation.take_turn() == Turn() and not allocation.has_turn


def test_a_granted_request_is_allocated_started_and_runs() -> None:
    allocation = asked(1)
    allocation.on_allocated(AllocateResult((grant(2),)), 1.0)
    assert allocation.take_events() == [Allocated(name(1))]
    assert allocation.take_orders() == [StartContainer(ContainerRequest(name(1), "worker"), grant(2))]
    assert allocation.is_starting(name(1))
    allocation.on_started(name(1))
    assert allocation.take_events() == [Running(name(1), 2, "node-1")]
    assert not allocation.is_starting(name(1)) and allocation.has_containers


def test_yarns_names_are_told_of_what_is_granted() -> None:
    allocation = asked(1, 2)
    allocation.on_allocated(AllocateResult((grant(3),)), 1.0)
    assert allocation.granted() == {name(1): yarn_name(3)}
    allocation.on_allocated(AllocateResult(completed=(Completed(yarn_name(3), 0, ""),)), 2.0)
    assert allocation.granted() == {}


def test_equal_asks_share_a_number_and_a_grant_goes_to_the_oldest_request_of_its_number() -> None:
    allocation = made()
    for number, role, memory_mb in ((1, "worker", 1024), (2, "server", 1024), (3, "worker", 512), (4, "worker", 1024)):
        allocation.request(ContainerRequest(name(number), role, memory_mb), 0.0)
    server = Ask(2, ROOM, 3, ("node-1",), "reliable", Execution.OPPORTUNISTIC)
    assert allocation.take_turn().asks == (ASK, ASK, server, Ask(3, Resource(512, 1)))
    allocation.on_allocated(AllocateResult((grant(9, number=3), grant(8), grant(7))), 1.0)
    assert allocation.take_events() == [Allocated(name(3)), Allocated(name(1)), Allocated(name(4))]
    allocation.on_allocated(AllocateResult((grant(6, number=2),)), 1.0)
    assert allocation.take_events() == [Allocated(name(2))]
    assert allocation.take_turn() == Turn()


def test_a_container_id_is_used_once_and_has_a_role() -> None:
    allocation = asked(1)
    with pytest.raises(ResourceError, match="container-0001"):
        allocation.request(ContainerRequest(name(1), "worker"), 0.0)
    with pytest.raises(ResourceError, match="'gpu'"):
        allocation.request(ContainerRequest(name(2), "gpu"), 0.0)
    assert allocation.take_events() == []


@pytest.mark.parametrize(
    ("container", "number"),
    [
        ("container_1700000000000_0001_01_000005", 5),
        ("container_1700000000000_0001_02_000005", 1_000_005),
        ("container_e17_1700000000000_0001_01_000005", 17_000_000_005),
        ("container_e17_1700000000000_0001_03_000005", 17_002_000_005),
    ],
)
def test_the_number_of_a_container_is_its_own_over_attempts_and_resource_managers(container: str, number: int) -> None:
    assert Grant(container, "node-1:8041", 1, ROOM).pid == number


def test_a_request_beyond_what_one_container_may_have_ends_at_once() -> None:
    allocation = made()
    allocation.request(ContainerRequest(name(1), "worker", memory_mb=9000), 0.0)
    (exited,) = allocation.take_events()
    assert isinstance(exited, Exited)
    assert exited.code is None and "9000 MB" in exited.reason and "at most 4096 MB" in exited.reason
    assert allocation.take_turn() == Turn()


def test_a_request_beyond_the_limit_is_not_asked_until_another_has_ended() -> None:
    allocation = made(max_containers=1)
    for number in (1, 2):
        allocation.request(ContainerRequest(name(number), "worker"), 0.0)
    assert allocation.take_turn().asks == (ASK,)
    allocation.on_allocated(AllocateResult((grant(2),)), 1.0)
    allocation.release(name(1))
    assert allocation.take_turn() == Turn(releases=(yarn_name(2),))
    allocation.on_allocated(AllocateResult(completed=(Completed(yarn_name(2), -100),)), 2.0)
    assert allocation.take_turn().asks == (ASK,)


def test_a_limit_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_containers is -1"):
        Allocation(PLACEMENTS, max_containers=-1)


# ---- what is wanted no more


def test_a_request_that_was_not_said_yet_is_withdrawn_without_a_word_to_yarn() -> None:
    allocation = made()
    allocation.request(ContainerRequest(name(1), "worker"), 0.0)
    assert allocation.withdraw(name(1)) and not allocation.withdraw(name(1))
    assert allocation.take_events() == [Exited(name(1), None, WITHDRAWN)]
    assert allocation.take_turn() == Turn()


def test_a_request_that_was_said_is_withdrawn_and_its_late_grant_given_back() -> None:
    allocation = asked(1)
    allocation.release(name(1))
    assert allocation.take_events() == [Exited(name(1), None, WITHDRAWN)]
    assert allocation.take_turn() == Turn(withdrawn=(1,))
    allocation.on_allocated(AllocateResult((grant(2),)), 1.0)
    assert allocation.take_turn() == Turn(releases=(yarn_name(2),))
    allocation.on_allocated(AllocateResult(completed=(Completed(yarn_name(2), -100),)), 2.0)
    assert allocation.take_events() == [] and allocation.take_orders() == []


def test_a_withdrawal_and_a_new_request_of_the_same_number_leave_nothing_to_say() -> None:
    allocation = asked(1, 2)
    allocation.withdraw(name(1))
    allocation.request(ContainerRequest(name(3), "worker"), 1.0)
    assert allocation.take_turn() == Turn()
    allocation.withdraw(name(2))
    allocation.withdraw(name(3))
    assert allocation.take_turn() == Turn(withdrawn=(1, 1))


def test_a_grant_that_crosses_with_withdrawals_goes_to_a_request_that_is_left_and_the_count_comes_out_right() -> None:
    allocation = asked(1, 2, 3)
    allocation.withdraw(name(1))
    allocation.withdraw(name(2))
    # Not said yet: YARN's client counts three, and two after the grant.
    allocation.on_allocated(AllocateResult((grant(2),)), 1.0)
    assert allocation.granted() == {name(3): yarn_name(2)}
    assert allocation.take_turn() == Turn(withdrawn=(1, 1))
    # Said: it counts none, and this one was granted before it heard that.
    allocation.on_allocated(AllocateResult((grant(3),)), 2.0)
    allocation.request(ContainerRequest(name(4), "worker"), 2.0)
    assert allocation.take_turn() == Turn(asks=(ASK,), releases=(yarn_name(3),))


def test_a_grant_that_comes_before_the_withdrawal_is_said_makes_up_for_it() -> None:
    allocation = asked(1)
    allocation.withdraw(name(1))
    allocation.on_allocated(AllocateResult((grant(2),)), 1.0)
    # YARN's client counts none any more: what is requested now is asked.
    allocation.request(ContainerRequest(name(2), "worker"), 1.0)
    assert allocation.take_turn() == Turn(asks=(ASK,), releases=(yarn_name(2),))


def test_a_grant_beyond_what_was_said_goes_to_a_request_that_was_not_said_yet() -> None:
    allocation = asked(1)
    allocation.request(ContainerRequest(name(2), "worker"), 1.0)
    allocation.on_allocated(AllocateResult((grant(2), grant(3))), 1.0)
    assert allocation.granted() == {name(1): yarn_name(2), name(2): yarn_name(3)}
    assert allocation.take_turn() == Turn()


def test_what_yarn_gives_beyond_what_was_asked_is_given_back_by_name() -> None:
    allocation = started(1)
    surplus = (grant(7), grant(8, number=99), grant(9, number=-1))
    allocation.on_allocated(AllocateResult(surplus), 1.0)
    assert allocation.take_turn() == Turn(releases=(yarn_name(7), yarn_name(8), yarn_name(9)))
    assert allocation.take_events() == [] and allocation.take_orders() == []


def test_a_grant_that_is_said_twice_counts_once() -> None:
    allocation = started(1)
    allocation.on_allocated(AllocateResult((grant(2),)), 1.0)
    assert allocation.take_turn() == Turn() and allocation.take_events() == []


def test_a_released_container_ends_once_when_yarn_says_so() -> None:
    allocation = started(1, 2)
    allocation.release(name(1))
    allocation.release(name(1))
    assert allocation.take_turn() == Turn(releases=(yarn_name(2),))
    assert allocation.take_events() == []
    completed = Completed(yarn_name(2), -100, "Container released by application")
    for _ in range(2):
        allocation.on_allocated(AllocateResult(completed=(completed,)), 1.0)
    assert allocation.take_events() == [Exited(name(1), None, RELEASED)]
    allocation.release(name(1))
    assert allocation.take_turn() == Turn()


def test_a_container_that_is_released_before_it_is_started_is_not_said_to_run() -> None:
    allocation = asked(1)
    allocation.on_allocated(AllocateResult((grant(2),)), 1.0)
    allocation.release(name(1))
    assert not allocation.is_starting(name(1))
    allocation.on_started(name(1))
    allocation.on_start_failed(name(1), "too late")
    assert allocation.take_events() == [Allocated(name(1))]
    allocation.on_allocated(AllocateResult(completed=(Completed(yarn_name(2), -100),)), 2.0)
    assert allocation.take_events() == [Exited(name(1), None, RELEASED)]


def test_a_killed_container_is_stopped_at_its_node_and_given_back() -> None:
    allocation = started(1)
    allocation.kill(name(1))
    assert allocation.take_orders() == [StopContainer(yarn_name(2), "node-1:8041")]
    assert allocation.take_turn() == Turn(releases=(yarn_name(2),))
    allocation.on_allocated(AllocateResult(completed=(Completed(yarn_name(2), 137),)), 1.0)
    assert allocation.take_events() == [Exited(name(1), None, KILLED)]


def test_a_container_that_was_released_and_stays_can_be_killed() -> None:
    allocation = started(1)
    allocation.release(name(1))
    allocation.take_turn()
    allocation.kill(name(1))
    assert allocation.take_orders() == [StopContainer(yarn_name(2), "node-1:8041")]
    assert allocation.take_turn() == Turn()
    allocation.kill(name(9))
    assert allocation.take_orders() == []


def test_the_end_of_a_job_withdraws_and_releases_everything_and_counts_the_rest_as_ended() -> None:
    allocation = asked(1, 2)
    allocation.on_allocated(AllocateResult((grant(2),)), 1.0)
    allocation.take_events()
    allocation.end()
    assert allocation.take_turn() == Turn(withdrawn=(1,), releases=(yarn_name(2),))
    allocation.finish()
    allocation.finish()
    assert allocation.take_events() == [Exited(name(2), None, WITHDRAWN), Exited(name(1), None, RELEASED)]
    assert not allocation.has_containers


# ---- ends


def test_the_end_of_a_container_says_how_its_process_ended() -> None:
    allocation = started(1, 2)
    ends = (Completed(yarn_name(3), 7), Completed(yarn_name(2), 137))
    allocation.on_allocated(AllocateResult(completed=ends), 1.0)
    assert allocation.take_events() == [
        Exited(name(2), 7, "exited with code 7"),
        Exited(name(1), None, "was ended by SIGKILL"),
    ]


def test_a_process_that_has_ended_before_its_start_was_heard_of_is_not_said_to_run() -> None:
    allocation = asked(1)
    allocation.on_allocated(AllocateResult((grant(2),)), 1.0)
    allocation.on_allocated(AllocateResult(completed=(Completed(yarn_name(2), 0),)), 2.0)
    allocation.on_started(name(1))
    assert allocation.take_events() == [Allocated(name(1)), Exited(name(1), 0, "exited with code 0")]


def test_of_one_heartbeat_ends_come_before_grants() -> None:
    allocation = started(1)
    allocation.request(ContainerRequest(name(2), "worker"), 0.0)
    allocation.on_allocated(AllocateResult((grant(3),), (Completed(yarn_name(2), 0),)), 1.0)
    assert [type(event) for event in allocation.take_events()] == [Exited, Allocated]


def test_a_container_that_is_taken_back_before_it_was_given_is_allocated_and_ends() -> None:
    allocation = asked(1)
    allocation.on_allocated(AllocateResult((grant(2),), (Completed(yarn_name(2), -102),)), 1.0)
    allocated, exited = allocation.take_events()
    assert allocated == Allocated(name(1)) and isinstance(exited, Exited)
    assert not allocation.is_starting(name(1))


def test_a_container_that_cannot_be_started_is_given_back_and_says_why() -> None:
    allocation = asked(1)
    allocation.on_allocated(AllocateResult((grant(2),)), 1.0)
    allocation.take_events()
    allocation.on_start_failed(name(1), "no such user")
    assert allocation.take_events() == [Exited(name(1), None, "could not be started on node-1: no such user")]
    assert allocation.take_turn() == Turn(releases=(yarn_name(2),))
    assert not allocation.has_containers


def test_a_host_on_which_nothing_can_be_started_is_avoided() -> None:
    allocation = asked(1, 2, 3, 4, 5)
    for number in (1, 2, 3, 4):
        allocation.on_allocated(AllocateResult((grant(number + 1),)), 1.0)
        if number == 2:
            # One that starts makes up for those before it.
            allocation.on_started(name(number))
        else:
            allocation.on_start_failed(name(number), "no")
    assert allocation.take_turn().blacklist == ()
    allocation.on_allocated(AllocateResult((grant(6),)), 1.0)
    allocation.on_start_failed(name(5), "no")
    assert allocation.take_turn().blacklist == ("node-1",)


def test_an_avoided_host_is_wanted_again_once_yarn_can_use_a_node_of_it_again() -> None:
    allocation = asked(1, 2, limits=Limits(start_failures=1))
    allocation.on_allocated(AllocateResult((grant(2),)), 1.0)
    allocation.on_start_failed(name(1), "no")
    assert allocation.take_turn() == Turn(releases=(yarn_name(2),), blacklist=("node-1",))
    for change in (NodeChange.UNUSABLE, NodeChange.DECOMMISSIONING):
        allocation.on_allocated(AllocateResult(nodes=(NodeUpdate("node-1:8041", change),)), 2.0)
    allocation.on_allocated(AllocateResult(nodes=(NodeUpdate("node-9:1", NodeChange.USABLE),)), 2.0)
    assert not allocation.has_turn
    allocation.on_allocated(AllocateResult(nodes=(NodeUpdate("node-1:8041", NodeChange.USABLE),)), 3.0)
    assert allocation.has_turn and allocation.take_turn() == Turn(unblacklist=("node-1",))
    assert not allocation.has_turn
    # A ResourceManager that forgets is not told of it; its failures count from the first again.
    allocation.on_forgotten(REGISTRATION)
    turn = allocation.take_turn()
    assert turn.blacklist == turn.unblacklist == ()
    allocation.on_allocated(AllocateResult((grant(3),)), 4.0)
    allocation.on_start_failed(name(2), "no")
    assert allocation.take_turn().blacklist == ("node-1",)


def test_a_host_that_comes_back_before_yarn_has_heard_of_it_is_not_spoken_of() -> None:
    allocation = asked(1, limits=Limits(start_failures=1))
    allocation.on_allocated(AllocateResult((grant(2),)), 1.0)
    allocation.on_start_failed(name(1), "no")
    allocation.on_allocated(AllocateResult(nodes=(NodeUpdate("node-1:8041", NodeChange.USABLE),)), 2.0)
    assert allocation.take_turn() == Turn(releases=(yarn_name(2),))


def test_an_ask_that_yarn_refuses_ends_with_its_words() -> None:
    allocation = made()
    allocation.request(ContainerRequest(name(1), "server"), 0.0)
    turn = allocation.take_turn()
    allocation.on_refused(turn.asks, "the queue may not use the label 'reliable'")
    reason = "was refused by YARN: the queue may not use the label 'reliable'"
    assert allocation.take_events() == [Exited(name(1), None, reason)]
    allocation.on_refused(turn.asks, "too late")
    assert allocation.take_events() == [] and allocation.take_turn() == Turn()


def test_of_several_numbers_the_one_that_yarn_refuses_is_found_and_the_others_go_on() -> None:
    allocation = made()
    # Containers 1 and 11 have the number 1, and so on.
    for number in (1, 2, 3, 4, 11, 12):
        allocation.request(ContainerRequest(name(number), "worker", memory_mb=100 * (number % 10)), 0.0)
    turn = allocation.take_turn()
    assert [ask.number for ask in turn.asks] == [1, 1, 2, 2, 3, 4]
    allocation.withdraw(name(4))
    allocation.on_refused(turn.asks, "no")
    taken = []
    while allocation.has_turn:
        turn = allocation.take_turn()
        numbers = {ask.number for ask in turn.asks}
        assert len(numbers) <= 1
        if numbers == {2}:
            allocation.on_refused(turn.asks, "no")
        taken += [ask.number for ask in turn.asks]
        if taken == [1, 1]:
            # A new one waits for its turn.
            allocation.request(ContainerRequest(name(5), "worker", memory_mb=500), 0.0)
    assert taken == [1, 1, 2, 2, 3, 5]
    assert allocation.take_events() == [
        Exited(name(4), None, WITHDRAWN),
        Exited(name(2), None, "was refused by YARN: no"),
        Exited(name(12), None, "was refused by YARN: no"),
    ]


def test_a_refusal_ends_what_was_refused_and_nothing_that_yarn_took_before() -> None:
    allocation = asked(1, 2)
    for number in (3, 4):
        allocation.request(ContainerRequest(name(number), "worker"), 0.0)
    allocation.on_refused(allocation.take_turn().asks, "no")
    assert allocation.take_events() == [Exited(name(n), None, "was refused by YARN: no") for n in (3, 4)]
    allocation.on_allocated(AllocateResult((grant(2), grant(3))), 1.0)
    assert set(allocation.granted()) == {name(1), name(2)} and allocation.take_turn() == Turn()


# ---- never granted


def waited(result: AllocateResult) -> Exited:
    allocation = asked(1, limits=Limits(grant_s=60.0))
    allocation.on_allocated(result, 59.9)
    assert allocation.take_events() == []
    allocation.on_allocated(result, 60.0)
    (exited,) = allocation.take_events()
    assert isinstance(exited, Exited) and exited.code is None
    assert allocation.take_turn() == Turn(withdrawn=(1,))
    return exited


def test_a_request_that_is_never_granted_ends_with_what_yarn_has_left() -> None:
    reason = waited(AllocateResult(headroom=Resource(512, 1), num_nodes=3)).reason
    assert "not granted within 60 s" in reason and "1024 MB and 1 vcore" in reason
    assert "512 MB and 1 vcore left for this job (its queue's share" in reason


def test_a_request_for_which_no_node_has_room_says_that() -> None:
    reason = waited(AllocateResult(headroom=Resource(8192, 9), num_nodes=1)).reason
    assert "8192 MB and 9 vcores left" in reason and "has not found that much on one of its 1 node yet" in reason


def test_a_request_that_is_never_granted_ends_with_what_to_do() -> None:
    reason = waited(AllocateResult(headroom=Resource(512, 1), num_nodes=3)).reason
    assert "--memory-mb" in reason and "--workers" in reason and "--container-timeout" in reason


def test_without_a_limit_a_request_waits_and_it_is_known_why() -> None:
    allocation = asked(1)
    allocation.on_allocated(AllocateResult(headroom=Resource(512, 1), num_nodes=3), 1e6)
    assert allocation.take_events() == []
    (why,) = allocation.waiting().values()
    assert why.startswith("it asks for 1024 MB and 1 vcore; YARN has 512 MB and 1 vcore left for this job")
    assert "has not answered for 7 s" in allocation.waiting(7.0)[name(1)]
    assert started(1).waiting() == {}


# ---- evictions


def test_a_preemption_message_warns_of_each_container_once() -> None:
    allocation = started(1, 2, 3)
    message = Preemption(strict=(yarn_name(2),), negotiable=(yarn_name(4), yarn_name(77)))
    allocation.on_allocated(AllocateResult(preemption=message), 5.0)
    assert allocation.take_events() == [
        EvictionWarning(name(1), 15.0, PREEMPTED, for_others=True),
        EvictionWarning(name(3), 15.0, WANTED_BACK, for_others=True),
    ]
    allocation.on_allocated(AllocateResult(preemption=message), 6.0)
    assert allocation.take_events() == []


def test_a_preempted_container_that_was_not_drained_ends_as_preempted() -> None:
    allocation = started(1)
    allocation.on_allocated(AllocateResult(preemption=Preemption(negotiable=(yarn_name(2),))), 5.0)
    allocation.on_allocated(AllocateResult(completed=(Completed(yarn_name(2), -102),)), 20.0)
    _, exited = allocation.take_events()
    assert isinstance(exited, Exited) and "was preempted" in exited.reason and exited.taken


def test_a_container_that_leaves_already_is_not_warned_of() -> None:
    allocation = started(1)
    allocation.release(name(1))
    allocation.on_allocated(AllocateResult(preemption=Preemption((yarn_name(2),))), 5.0)
    assert allocation.take_events() == []


def test_a_node_that_is_decommissioned_warns_of_its_containers_with_their_deadline() -> None:
    allocation = started(1, 2)
    leaving = NodeUpdate("node-2:8041", NodeChange.DECOMMISSIONING, "DECOMMISSIONING", 30.0)
    allocation.on_allocated(AllocateResult(nodes=(leaving,)), 5.0)
    decommissioned = "is on node node-2, which is decommissioned within 30 s"
    assert allocation.take_events() == [EvictionWarning(name(2), 30.0, decommissioned)]
    # Said again later, it is the same moment.
    allocation.on_allocated(AllocateResult(nodes=(NodeUpdate(leaving.node, leaving.change, "", 20.0),)), 15.0)
    assert allocation.take_events() == []
    # An earlier end is news.
    allocation.on_allocated(AllocateResult(preemption=Preemption((yarn_name(3),))), 16.0)
    assert allocation.take_events() == [EvictionWarning(name(2), 15.0, PREEMPTED, for_others=True)]


def test_a_node_without_a_deadline_has_that_of_yarn() -> None:
    allocation = started(1)
    leaving = NodeUpdate("node-1:8041", NodeChange.DECOMMISSIONING)
    allocation.on_allocated(AllocateResult(nodes=(leaving,)), 5.0)
    (warning,) = allocation.take_events()
    assert warning == EvictionWarning(name(1), 3600.0, "is on node node-1, which is decommissioned within 3600 s")


def test_a_container_that_is_granted_on_a_node_that_leaves_is_warned_of_at_once() -> None:
    allocation = asked(1, 2)
    leaving = NodeUpdate("node-1:8041", NodeChange.DECOMMISSIONING, deadline_s=30.0)
    allocation.on_allocated(AllocateResult(nodes=(leaving,)), 5.0)
    allocation.on_allocated(AllocateResult((grant(2),)), 15.0)
    decommissioned = "is on node node-1, which is decommissioned within 20 s"
    assert allocation.take_events() == [Allocated(name(1)), EvictionWarning(name(1), 20.0, decommissioned)]
    back = NodeUpdate("node-1:8041", NodeChange.USABLE)
    allocation.on_allocated(AllocateResult((grant(3),), nodes=(back,)), 16.0)
    assert allocation.take_events() == [Allocated(name(2))]


def test_containers_of_a_lost_node_end_when_yarn_says_so() -> None:
    allocation = started(1, 2)
    lost = NodeUpdate("node-1:8041", NodeChange.UNUSABLE, "LOST")
    completed = Completed(yarn_name(2), -100, "Container released on a *lost* node")
    allocation.on_allocated(AllocateResult(nodes=(lost,), completed=(completed,)), 5.0)
    assert allocation.take_events() == [Exited(name(1), None, "was lost with its node node-1", taken=True)]


def test_containers_of_an_unusable_node_that_nobody_speaks_of_count_as_ended_after_a_while() -> None:
    allocation = started(1, 2)
    lost = NodeUpdate("node-1:8041", NodeChange.UNUSABLE, "UNHEALTHY")
    allocation.on_allocated(AllocateResult(nodes=(lost,)), 5.0)
    allocation.on_allocated(AllocateResult(), 34.9)
    assert allocation.take_events() == []
    allocation.on_allocated(AllocateResult(), 35.0)
    assert allocation.take_events() == [Exited(name(1), None, "was lost with its node node-1", taken=True)]
    assert allocation.take_turn() == Turn(releases=(yarn_name(2),))


def test_a_node_that_comes_back_in_time_keeps_its_containers() -> None:
    allocation = started(1)
    for change, now_s in ((NodeChange.UNUSABLE, 5.0), (NodeChange.USABLE, 6.0), (NodeChange.USABLE, 99.0)):
        allocation.on_allocated(AllocateResult(nodes=(NodeUpdate("node-1:8041", change),)), now_s)
    assert allocation.take_events() == []


# ---- attempts, and a ResourceManager that starts again


def test_containers_of_the_attempt_before_are_adopted_if_they_are_known_and_run() -> None:
    allocation = Allocation(PLACEMENTS, max_containers=2)
    allocation.on_registered(Registration(Resource(4096, 4), kept=tuple(grant(n) for n in (2, 3, 4, 5))))
    states = {
        yarn_name(2): ContainerState.RUNNING,
        yarn_name(3): ContainerState.COMPLETE,
        yarn_name(4): ContainerState.UNKNOWN,
        yarn_name(5): ContainerState.RUNNING,
    }
    known = {name(1): 2, name(2): 3, name(3): 4, name(9): 9}
    assert allocation.adopt(known, states) == {name(1): 2}
    # Never started, or of no request: given back.  Ended: YARN says so anyway.
    assert allocation.take_turn() == Turn(releases=(yarn_name(4), yarn_name(5)))
    assert allocation.take_events() == []
    with pytest.raises(ResourceError, match="requested before"):
        allocation.request(ContainerRequest(name(1), "worker"), 0.0)
    # One that was granted and never started is asked again, and counts like others.
    allocation.request(ContainerRequest(name(3), "worker"), 0.0)
    allocation.request(ContainerRequest(name(4), "worker"), 0.0)
    assert allocation.take_turn().asks == (ASK,)
    allocation.release(name(1))
    assert allocation.take_turn() == Turn(releases=(yarn_name(2),))
    allocation.on_allocated(AllocateResult(completed=(Completed(yarn_name(2), -100),)), 1.0)
    assert allocation.take_events() == [Exited(name(1), None, RELEASED)]


def test_what_is_heard_of_kept_containers_before_they_are_adopted_counts() -> None:
    allocation = Allocation(PLACEMENTS)
    allocation.on_registered(Registration(Resource(4096, 4), kept=tuple(grant(n) for n in (2, 3, 4))))
    allocation.on_allocated(AllocateResult(completed=(Completed(yarn_name(2), 7),)), 1.0)
    allocation.on_allocated(AllocateResult(preemption=Preemption((yarn_name(3),)), kept=(grant(9),)), 2.0)
    # A ResourceManager that starts again meanwhile has found them, too.
    allocation.on_forgotten(Registration(Resource(4096, 4), kept=(grant(3), grant(4))))
    assert allocation.take_turn() == Turn() and allocation.take_events() == []
    states = dict.fromkeys(map(yarn_name, (2, 3, 4)), ContainerState.RUNNING)
    known = {name(1): 2, name(2): 3, name(3): 4}
    assert allocation.adopt(known, states) == known
    assert allocation.take_events() == [
        Exited(name(1), 7, "exited with code 7"),
        EvictionWarning(name(2), 15.0, PREEMPTED, for_others=True),
    ]
    assert allocation.take_turn() == Turn(releases=(yarn_name(9),))
    assert set(allocation.granted()) == {name(2), name(3)}


def test_containers_of_the_attempt_before_that_are_found_late_are_given_back() -> None:
    allocation = started(1)
    late = (grant(2), grant(9))
    allocation.on_allocated(AllocateResult(kept=late), 1.0)
    assert allocation.take_turn() == Turn(releases=(yarn_name(9),))
    assert allocation.take_events() == []


def test_a_resource_manager_that_has_forgotten_is_told_what_is_outstanding_and_nothing_else() -> None:
    allocation = asked(1, 2, 3, 4)
    allocation.on_allocated(AllocateResult((grant(2), grant(3))), 1.0)
    for number in (1, 2):
        allocation.on_started(name(number))
    allocation.release(name(2))
    allocation.withdraw(name(4))
    # Given to a heartbeat that did not arrive.
    assert allocation.take_turn() == Turn(withdrawn=(1,), releases=(yarn_name(3),))
    allocation.take_events()
    allocation.on_forgotten(Registration(REGISTRATION.largest, kept=(grant(2),)))
    assert allocation.take_turn() == Turn(asks=(ASK,), releases=(yarn_name(3),))
    assert allocation.take_events() == []


def test_a_resource_manager_that_has_forgotten_is_told_the_hosts_to_avoid() -> None:
    allocation = asked(1, limits=Limits(start_failures=1))
    allocation.on_allocated(AllocateResult((grant(2),)), 1.0)
    allocation.on_start_failed(name(1), "no")
    assert allocation.take_turn().blacklist == ("node-1",)
    allocation.on_forgotten(REGISTRATION)
    assert allocation.take_turn().blacklist == ("node-1",)


# ---- launches


def test_a_launch_says_who_it_is_and_where_and_the_request_goes_first() -> None:
    template = LaunchTemplate({"worker": RoleTemplate("python -m x", {"A": "1", "B": "1"})}, b"tokens")
    launch = build_launch(template, ContainerRequest(name(1), "worker", env={"B": "2"}), grant(2))
    assert launch.command == "exec python -m x 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr"
    assert launch.env == {
        "A": "1", "B": "2", "EPS_ROLE": "worker", "EPS_CONTAINER_ID": name(1), "EPS_HOST": "node-1",
    }  # fmt: skip
    assert launch.credentials == b"tokens" and "tokens" not in repr(template)
    assert template.placements == {"worker": Placement()}
