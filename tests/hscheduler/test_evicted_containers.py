"""Containers that the cluster takes from jobs: the scheduler gives the reason, and replaces them once it can."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest

from hscheduler.core import events as e
from hscheduler.core.codec import decoded, encoded
from hscheduler.core.decisions import Grow
from hscheduler.core.jobs import Phase
from hscheduler.core.resources import Role
from hscheduler.policies import POLICIES
from hscheduler.stopping import RULES
from tests.hscheduler.toy import NODE, Toy, request

WHY = "its container is preempted"


def started(policy: str, number: int, *sizes: tuple[int, int]) -> Toy:
    """Return a cluster of this many nodes with jobs ``a``, ``b`` and so on, which may not grow."""
    toy = Toy.of(number, POLICIES[policy])
    for name, (workers, servers) in zip("abcdef", sizes, strict=False):
        toy.submit(request(name, workers, servers, most_workers=workers, most_servers=servers))
    toy.settle()
    return toy


def take(toy: Toy, job_id: str, role: Role, count: int = 1, why: str = WHY) -> tuple[str, ...]:
    """Take a job's newest containers."""
    taken = tuple(c.container_id for c in toy.scheduler.containers(toy.job(job_id), role)[:count])
    toy.living[job_id] -= set(taken)
    toy.send(e.ContainersGone(job_id, taken, why))
    return taken


def orders(toy: Toy, kind: type) -> list[e.Command]:
    return [command for command in toy.commands if isinstance(command, kind)]


# Under gain the job does not keep the size that it asks for.
@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {"gain"}))
def test_taken_containers_are_replaced_once_there_is_space_and_decisions_give_the_reason(policy: str) -> None:
    toy = started(policy, 2, (3, 2))
    taken = take(toy, "a", Role.WORKER, 2)
    assert toy.sentences[-2:] == [
        f"a loses 2 workers: {WHY}", f"a gets 2 workers again, which the cluster took ({WHY})",
    ]  # fmt: skip
    explained = orders(toy, e.Explain)[-1]
    assert isinstance(explained, e.Explain) and explained.jobs == ("a",)
    (action,) = explained.actions
    assert isinstance(action, Grow) and action.replaces
    (grow,) = orders(toy, e.GrowJob)
    assert isinstance(grow, e.GrowJob) and not {c.container_id for c in grow.containers} & set(taken)
    toy.settle()
    assert toy.job("a").size == (3, 2) and toy.job("a").due is None
    assert len(orders(toy, e.GrowJob)) == 1, "once"


def test_a_container_taken_while_it_is_released_is_not_replaced() -> None:
    toy = started("elastic", 2, (5, 2))
    toy.send(e.FeedbackGiven("a", 1.0))
    toy.submit(request("b", 1, 1, most_workers=1, most_servers=1))
    (shrink,) = orders(toy, e.ShrinkJob)
    assert isinstance(shrink, e.ShrinkJob)
    toy.answers.clear()
    # The cluster takes them before the job releases them.
    toy.send(e.ContainersGone("a", shrink.containers, WHY))
    assert toy.job("a").due is None and not orders(toy, e.GrowJob)
    assert toy.job("b").phase is Phase.STARTING


def test_a_replacement_is_not_judged_as_a_growth() -> None:
    toy = started("elastic", 2, (3, 1))
    toy.feed("a", 1.0)
    toy.iterate("a", 1.0)
    take(toy, "a", Role.WORKER)
    toy.settle()
    assert toy.job("a").size == (3, 1)
    toy.iterate("a", 9.0)
    assert toy.job("a").size == (3, 1), "the same size, also on a slow node"


def test_a_failed_replacement_is_retried_with_backoff() -> None:
    toy = started("static", 2, (3, 1))
    toy.faults = 1.0
    take(toy, "a", Role.WORKER)
    at = [toy.job("a").iteration]
    for _ in range(70):
        toy.settle()
        before = len(orders(toy, e.GrowJob))
        toy.iterate_now("a", 1.0, 1)
        if len(orders(toy, e.GrowJob)) > before:
            at.append(toy.job("a").iteration)
    assert at == [0, 10, 30, 70]
    assert toy.job("a").why == "it was given up"
    # A larger cluster ends the wait at once.
    toy.faults = 0.0
    toy.settle()
    toy.send(e.NodeCame("more", NODE))
    toy.settle()
    assert toy.job("a").size == (3, 1)


@pytest.mark.parametrize(("policy", "at_once"), [("static", True), ("elastic", False)])
def test_a_queued_job_goes_before_a_replacement_that_it_could_claim(policy: str, at_once: bool) -> None:
    toy = started(policy, 2, (3, 1))
    toy.send(e.FeedbackGiven("a", 1.0))
    toy.submit(request("b", 5, 1, most_workers=5, most_servers=1))
    toy.settle()
    assert toy.job("b").phase is Phase.QUEUED and toy.job("a").size == (3, 1)
    take(toy, "a", Role.WORKER)
    assert bool(orders(toy, e.GrowJob)) is at_once
    # Once no job waits, it has its size again.
    toy.send(e.CancelAsked("b", "not wanted"))
    toy.settle()
    assert toy.job("a").size == (3, 1)


def test_a_job_before_its_feedback_is_restored_first() -> None:
    toy = started("elastic", 2, (3, 1))
    toy.submit(request("b", 3, 1, most_workers=3, most_servers=1))
    assert toy.job("b").phase is Phase.QUEUED
    take(toy, "a", Role.WORKER)
    toy.settle()
    assert toy.job("a").size == (3, 1) and toy.job("b").phase is Phase.QUEUED


def test_a_retired_node_revokes_promises_and_keeps_running_containers() -> None:
    toy = started("static", 3, (3, 1), (3, 1))
    before = {name: toy.job(name).size for name in "ab"}
    (master,) = toy.scheduler.ledger.of_job("a", Role.MASTER)
    toy.send(e.NodeLeft(master.node, "node h was decommissioned"))
    assert toy.sentences[-1] == "node h was decommissioned: the cluster has 2 nodes left"
    assert {name: toy.job(name).size for name in "ab"} == before and not toy.over
    # Ten run and eight fit: after two ends no job starts before their containers are free.
    toy.submit(request("c", 1, 1, most_workers=1, most_servers=1))
    assert toy.job("c").phase is Phase.QUEUED
    take(toy, "a", Role.WORKER)
    take(toy, "b", Role.WORKER)
    toy.settle()
    assert [toy.job(name).size for name in "ab"] == [(2, 1)] * 2, "no space to replace them"
    assert len(toy.scheduler.ledger.capacity) == 2
    toy.send(e.NodeCame("node9", NODE))
    toy.settle()
    assert [toy.job(name).size for name in "ab"] == [(3, 1)] * 2, "capacity that returns is used again"
    for name in "abc":
        if toy.job(name).phase.runs:
            toy.finish(name)
    assert toy.job("c").phase is Phase.FINISHED


def test_a_start_promised_on_a_retired_node_is_planned_again() -> None:
    toy = started("elastic", 2, (3, 2))
    toy.send(e.FeedbackGiven("a", 1.0))
    toy.submit(request("b", 2, 1, most_workers=2, most_servers=1))
    assert toy.job("b").phase is Phase.STARTING
    (node,) = {c.node for c in toy.scheduler.ledger.of_job("b", Role.MASTER)}
    toy.send(e.NodeLeft(node, "node h was decommissioned"))
    assert toy.job("b").phase is Phase.QUEUED and not toy.scheduler.ledger.of_job("b")
    toy.settle()
    toy.send(e.NodeCame("node9", NODE))
    toy.settle()
    assert toy.job("b").phase is Phase.EARLY_FEEDBACK


def test_a_node_that_comes_back_under_its_name_is_whole_again() -> None:
    toy = started("static", 2, (4, 2))
    toy.send(e.NodeLeft("node1", "node h is lost"))
    assert toy.scheduler.ledger.in_use() == ["node0"]
    toy.send(e.NodeCame("node1", NODE))
    assert sum(c.vcores for c in toy.scheduler.ledger.capacity.values()) == 8
    toy.send(e.NodeLeft("nowhere", "it was never there"))
    toy.finish("a")
    assert toy.scheduler.ledger.all() == [] and toy.scheduler.ledger.used().vcores == 0


@pytest.mark.parametrize("policy", ["static", "elastic"])
def test_a_restored_snapshot_continues_like_the_original(policy: str) -> None:
    toy = started(policy, 2, (3, 1))
    toy.faults = 1.0
    take(toy, "a", Role.WORKER)
    toy.send(e.NodeLeft("node1", "node h was decommissioned"))
    toy.settle()
    taken = json.loads(json.dumps(encoded(toy.scheduler)))
    again = Toy(decoded(taken, POLICIES[policy], RULES), living=deepcopy(toy.living))
    before, toy.faults = len(toy.commands), 0.0
    for each in (toy, again):
        each.send(e.NodeCame("node9", NODE))
        each.settle()
        assert each.job("a").size == (3, 1)
    assert again.commands == toy.commands[before:]


def test_a_resting_scheduler_plans_nothing() -> None:
    toy = started("elastic", 1, (2, 1))
    toy.submit(request("b"), request("c"))
    toy.scheduler.rest()
    take(toy, "a", Role.WORKER)
    toy.finish("a")
    assert [command for command in toy.commands if isinstance(command, e.StartJob) and command.job_id != "a"] == []
    assert [job.job_id for job in toy.scheduler.queue] == ["b", "c"]
