"""One resource manager for several jobs: who sees what, who may have how much, and what is left of whom."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from eps.cluster.api import Allocated, ContainerRequest, EvictionWarning, Exited, Running
from eps.cluster.broker.calls import wish_from_pb, wish_to_pb
from eps.cluster.broker.share import ReleaseContainer, Share, WantContainer
from eps.cluster.container import ROLE
from eps.errors import ConfigError, PeerUnavailableError, ResourceError, TakenOverError
from eps.system.waits import wait_for
from tests.contract.test_resources_contract import FAST, collect, running
from tests.fakes.brokered import BrokeredYarn

DEADLINE_S = 30.0


@pytest.fixture
def two() -> Iterator[BrokeredYarn]:
    """Give a broker with the jobs ``one`` and ``two``."""
    found = BrokeredYarn(FAST)
    found.add("one")
    found.add("two")
    yield found
    found.close()


def num_containers(two: BrokeredYarn) -> int:
    with two.yarn.lock:
        return len(two.yarn.containers)


def test_jobs_have_containers_of_the_same_id_and_hear_of_their_own_only(two: BrokeredYarn) -> None:
    one, other = two.master("one"), two.master("two")
    running(one, "c-1")
    running(other, "c-1")
    # They want the same, so that YARN has one number for both.
    assert two.yarn.said_asks == [1, 1]
    one.release("c-1")
    assert collect(one, (Exited, "c-1"))
    assert not other.wait(0.0)
    other.release("c-1")
    assert collect(other, (Exited, "c-1"))
    one.close()
    other.close()


def test_only_the_jobs_own_folder_leads_to_its_containers(two: BrokeredYarn) -> None:
    line = two.line("one", by="two")
    with pytest.raises(PeerUnavailableError):
        line.open("a session")
    line.close()


def test_a_container_that_hosts_a_worker_and_a_server_is_one_of_its_tier_in_the_application() -> None:
    request = ContainerRequest("c-1", "server+worker", 512, 1, {"A": "b"}, tier="reliable")
    assert wish_from_pb(wish_to_pb(1, WantContainer(request))) == WantContainer(request)
    share = Share("one", lambda: "a-1", lambda kind: f"one/{kind}")
    (order,) = share.take(WantContainer(request))
    assert isinstance(order, WantContainer) and order.request.kind == "one/reliable"
    assert order.request.env[ROLE] == "server+worker", "both begin in its process"


def test_nothing_is_asked_for_beyond_what_the_scheduler_grants(two: BrokeredYarn) -> None:
    two.broker.lease({"one": 1})
    one, other = two.master("one"), two.master("two")
    running(one, "c-1")
    one.request(ContainerRequest("c-2", "worker"))
    other.request(ContainerRequest("c-1", "worker"))
    # Both are heard by now: wishes are taken in order.
    one.end_job(0, "finished")
    collect(one, (Exited, "c-1"), (Exited, "c-2"))
    assert two.yarn.said_asks == [1]
    two.broker.lease({"two": 1})
    collect(other, (Running, "c-1"))
    assert len(two.yarn.said_asks) == 2
    one.close()
    other.close()


def test_what_a_job_has_when_it_is_removed_is_given_back(two: BrokeredYarn) -> None:
    one, other = two.master("one"), two.master("two")
    running(one, "c-1")
    left = running(other, "c-1")
    two.broker.remove("one")
    two.broker.remove("one")
    wait_for(lambda: num_containers(two) == 1, DEADLINE_S, "the container to be given back")
    with two.yarn.lock:
        assert [container.grant.pid for container in two.yarn.containers.values()] == [left.pid]
    one.close()
    other.close()


def test_a_job_of_a_name_that_is_there_is_refused(two: BrokeredYarn) -> None:
    with pytest.raises(ConfigError, match="'one'"):
        two.add("one")
    two.broker.remove("one")
    two.add("one")
    two.master("one").close()


def test_a_master_that_another_has_replaced_is_not_listened_to(two: BrokeredYarn) -> None:
    line = two.line("one")
    assert line.open("first") == {}
    line.wish("first", [(1, WantContainer(ContainerRequest("c-1", "worker")))])
    second = two.master("one")
    with pytest.raises(TakenOverError):
        line.wish("first", [(2, WantContainer(ContainerRequest("c-2", "worker")))])
    with pytest.raises(TakenOverError):
        line.hear("first", 0, 0.0)
    line.close()
    second.close()


def test_a_wish_that_is_said_twice_is_taken_once_and_news_are_kept_until_they_are_taken(two: BrokeredYarn) -> None:
    line = two.line("one")
    line.open("s")
    wishes = [(1, WantContainer(ContainerRequest("c-1", "worker")))]
    line.wish("s", wishes)
    line.wish("s", wishes)
    first = line.hear("s", 0, DEADLINE_S)
    assert first[0] == (1, Allocated("c-1"))
    again = line.hear("s", 0, DEADLINE_S)
    assert again[: len(first)] == first
    wait_for(lambda: len(line.hear("s", 0, 0.0)) == 2, DEADLINE_S, "the container to run")
    assert [number for number, _ in line.hear("s", 1, DEADLINE_S)] == [2]
    line.wish("s", [*wishes, (2, ReleaseContainer("c-1"))])
    ((number, event),) = line.hear("s", 2, DEADLINE_S)
    assert number == 3 and isinstance(event, Exited)
    assert line.hear("s", 3, 0.0) == []
    line.close()


def test_an_end_says_whether_the_cluster_took_the_container(two: BrokeredYarn) -> None:
    one = two.master("one")
    running(one, "c-1")
    running(one, "c-2")
    two.yarn.crash("c-1", -102, "")
    two.yarn.crash("c-2", 139, "")
    ended = [e for e in collect(one, (Exited, "c-1"), (Exited, "c-2")) if isinstance(e, Exited)]
    assert {e.container_id: e.taken for e in ended} == {"c-1": True, "c-2": False}
    one.close()


def test_a_warning_arrives_with_all_that_is_known_of_it(two: BrokeredYarn) -> None:
    one = two.master("one")
    running(one, "c-1")
    two.yarn.preempt("c-1")
    (warning,) = collect(one, (EvictionWarning, "c-1"))
    assert isinstance(warning, EvictionWarning) and warning.for_others and warning.reason and warning.deadline_s > 0
    one.close()


def test_a_master_that_takes_over_is_warned_of_what_the_one_before_heard(two: BrokeredYarn) -> None:
    one = two.master("one")
    running(one, "c-1")
    two.yarn.preempt("c-1")
    (before,) = collect(one, (EvictionWarning, "c-1"))
    one.close()
    again = two.master("one")
    assert set(again.adopt({})) == {"c-1"}
    (warning,) = collect(again, (EvictionWarning, "c-1"))
    assert isinstance(before, EvictionWarning) and isinstance(warning, EvictionWarning)
    assert (warning.reason, warning.for_others) == (before.reason, True)
    assert 0.0 <= warning.deadline_s < before.deadline_s
    again.close()


def test_the_end_of_the_application_reaches_every_job(two: BrokeredYarn) -> None:
    one = two.master("one")
    running(one, "c-1")
    two.yarn.end_attempt("killed by a test")
    collect(one, (Exited, "c-1"))
    assert one.wait(DEADLINE_S)
    with pytest.raises(ResourceError, match="killed by a test"):
        one.poll()
    assert "killed by a test" in two.broker.gone
    one.close()
