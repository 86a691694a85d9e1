"""Jobs whose containers host a worker and a server each, under every policy; masters without a container."""

from __future__ import annotations

from typing import Any

import pytest

from eps.errors import ConfigError
from hscheduler.core import events as e
from hscheduler.core.jobs import JobRequest, Phase
from hscheduler.core.resources import NOTHING, Role
from hscheduler.core.words import count_of, request_text, words_of
from hscheduler.policies import POLICIES
from hscheduler.policies.kill import scaled
from hscheduler.policies.placing import interleaved, roles_of
from hscheduler.simulator.models import SpeedModel
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec
from tests.hscheduler.toy import UNIT, Toy, nodes, request


def hosted(job_id: str, containers: int = 1, most: int = 16) -> JobRequest:
    return request(job_id, containers, 0, most_workers=most, most_servers=0, master=NOTHING)


def sweep(**job: Any) -> Spec:
    return Spec.of(
        {
            "cluster": {"nodes": 2, "vcores": 4},
            "sweep": {"trials": 8, "threshold": 3, "feedback_iteration": 20, "arrival": "poisson:2s"},
            "space": {"learning_rate": {"uniform": [0.0, 1.0]}},
            "job": {"iterations": 200, "stretch_s": 0.01, **job},
        }
    )


def test_a_request_of_containers_that_host_both() -> None:
    asked = hosted("a", 3)
    assert asked.hosts and asked.least == 1 and not request("b").hosts
    assert [asked.count(role) for role in Role] == [0, 3, 0]
    assert [asked.most(role) for role in Role] == [0, 16, 0]
    assert roles_of(asked, 3, 0) == interleaved(3, 0) == [Role.WORKER] * 3
    assert [scaled(asked, members) for members in (1, 2, 30)] == [(1, 0), (2, 0), (16, 0)]
    with pytest.raises(ValueError, match="servers is 0, but must be at least 1"):
        request("a", 1, 0)
    with pytest.raises(ValueError, match="workers is 0"):
        hosted("a", 0)


def test_such_containers_are_named_containers() -> None:
    assert (count_of(3, 0), count_of(1, 0)) == ("3 containers", "1 container")
    assert words_of([Role.WORKER] * 2, hosts=True) == "2 containers"
    assert words_of([Role.WORKER] * 2, hosts=False) == "2 workers"
    assert request_text(hosted("a", 2)) == f"2 containers of {UNIT}"
    assert request_text(request("a")) == f"2 workers of {UNIT}, 1 server of {UNIT} and a master of {UNIT}"
    assert request_text(request("a", master=NOTHING)) == f"2 workers of {UNIT} and 1 server of {UNIT}"


def test_a_master_without_a_container_is_not_in_the_ledger() -> None:
    toy = Toy.of(1, POLICIES["static"])
    toy.submit(hosted("a", 4), request("b", 2, 2, master=NOTHING))
    toy.settle()
    assert toy.job("a").phase is Phase.EARLY_FEEDBACK and len(toy.scheduler.ledger.all()) == 4
    assert toy.job("b").why == "waits because 2 workers and 2 servers are not free together"
    toy.finish("a")
    assert toy.job("b").phase is Phase.EARLY_FEEDBACK
    assert all(container.role is not Role.MASTER for container in toy.scheduler.ledger.all())


def test_every_container_trains_a_job() -> None:
    for policy in POLICIES.values():
        toy = Toy.of(4, policy)
        toy.submit(*(hosted(f"job{number}") for number in range(17)))
        toy.settle()
        assert [toy.job(f"job{number}").size for number in range(17)] == [(1, 0)] * 16 + [(0, 0)]


def test_elastic_takes_containers_and_gives_them_back() -> None:
    toy = Toy.of(1, POLICIES["elastic"])
    toy.send(e.SweepOpened("sweep", threshold=9))
    toy.submit(hosted("a"))
    toy.settle()
    toy.feed("a", 0.5)
    for _ in range(2):
        toy.iterate("a", 1.0)
    assert toy.job("a").size == (4, 0)
    assert toy.sentences[-1] == "nothing waits and there is room: a gets 2 containers"
    toy.submit(hosted("b", 2))
    toy.settle()
    assert (toy.job("a").size, toy.job("b").size) == ((2, 0), (2, 0))
    assert toy.sentences[-1] == "b starts with 2 containers: a gives 2 containers"


def test_kill_restarts_jobs_of_containers() -> None:
    toy = Toy.of(1, POLICIES["kill"])
    toy.send(e.SweepOpened("sweep", threshold=9))
    toy.submit(hosted("a", 4))
    toy.settle()
    toy.feed("a", 0.5)
    toy.submit(hosted("b", 2))
    toy.settle()
    assert (toy.job("a").size, toy.job("b").size) == ((2, 0), (2, 0))
    assert any("with 2 containers instead of 4 containers" in sentence for sentence in toy.sentences)
    toy.submit(hosted("c"))
    toy.settle()
    assert toy.job("a").size == toy.job("c").size == (1, 0)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_simulates_a_sweep_of_containers(policy: str) -> None:
    found = simulate(sweep(reliable=1), policy)
    assert found["resources"] == {"leaked": 0} and len(found["trials"]) == 8
    assert all(servers == 0 for trial in found["trials"] for _, _, servers in trial["containers"])
    if policy == "elastic":
        assert max(workers for trial in found["trials"] for _, workers, _ in trial["containers"]) > 1


def test_a_container_that_hosts_both_counts_as_a_worker_and_a_server() -> None:
    speed = SpeedModel(12, 0.1, 0.0, exchange_s=0.6, member_s=0.01)
    assert speed.iteration_s(3, 0) == speed.iteration_s(3, 3)


def test_the_settings_of_a_sweep() -> None:
    asked = sweep(reliable=2).request("a", "s")
    assert (asked.workers, asked.servers, asked.most_workers, asked.most_servers) == (2, 0, 24, 0)
    assert asked.master == NOTHING
    with pytest.raises(ConfigError, match="transient is 1, but must be 0"):
        sweep(reliable=1, transient=1).request("a", "s")
    with pytest.raises(ConfigError, match="reliable and servers exclude each other"):
        sweep(reliable=1, servers=2)
    paper = Spec.of({"cluster": {"master_container": True}}).request("a", "s")
    assert paper.master == paper.worker
    with pytest.raises(ConfigError, match=r"cluster.master_container is 1, but must be true or false"):
        Spec.of({"cluster": {"master_container": 1}})


def test_splits_are_enough_for_the_largest_size() -> None:
    def splits(nodes: int, **job: Any) -> int:
        return Spec.of({"cluster": {"nodes": nodes}, "job": job}).job_spec().splits

    assert [splits(number) for number in (1, 4, 16, 1000)] == [12, 48, 192, 192]
    assert splits(4, splits=20) == 20
    spec = Spec.of({"space": {"splits": {"choice": [7, 9]}}})
    assert spec.job_spec({"splits": 7}).splits == 7


def test_a_job_without_a_master_container_survives_its_node() -> None:
    toy = Toy.of(2, POLICIES["static"])
    toy.submit(hosted("a", 8))
    toy.settle()
    lost = {c.container_id for c in toy.scheduler.ledger.containers_on("node1")}
    toy.living["a"] -= lost
    toy.send(e.NodeLost("node1"))
    toy.settle()
    assert toy.job("a").size == (4, 0) and toy.job("a").phase.runs
    assert set(nodes(1)) == set(toy.scheduler.ledger.capacity)
