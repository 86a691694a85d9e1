"""A growth and its new members are one event: a crash at any moment does not repeat the growth."""

from __future__ import annotations

import pytest

from hscheduler.core import events as e
from hscheduler.core.outstanding import Outstanding
from hscheduler.core.state import Scheduler
from hscheduler.policies.elastic import elastic
from hscheduler.stopping import RULES
from tests.hscheduler.toy import nodes, request


class Growing:
    """A job that was ordered to grow, as its scheduler and the next one see it."""

    def __init__(self) -> None:
        self.scheduler, self.outstanding = Scheduler(nodes(2), elastic, RULES), Outstanding()
        (start,) = self.send(e.JobSubmitted(request("a")))
        assert isinstance(start, e.StartJob)
        first = tuple((c.container_id, f"{c.role}-1") for c in start.containers if c.role != "master")
        self.members = dict(first)
        self.send(e.MembersFound("a", first))
        self.send(e.JobStarted("a"))
        self.send(e.Iterated("a", 10, (0.1,) * 10))
        (self.grow,) = self.send(e.FeedbackGiven("a", 0.5))
        assert isinstance(self.grow, e.GrowJob)
        self.new = {c.container_id: f"{c.role}-{number}" for number, c in enumerate(self.grow.containers, 7)}

    def send(self, event: e.Event) -> list[e.Order]:
        return [order for _, order in self.outstanding.take(event, self.scheduler.step(event))]

    def ordered_again(self) -> list[e.Order]:
        """Return the growths that the next scheduler orders."""
        return [order for _, order in self.outstanding.of("a") if isinstance(order, e.GrowJob)]

    def goes_on_with(self) -> dict[str, str]:
        """Return the members that the next scheduler passes to the job, if the job's machine was lost, too."""
        return dict(self.scheduler.jobs["a"].members)


@pytest.fixture
def growing() -> Growing:
    found = Growing()
    assert found.ordered_again() == [found.grow] and found.goes_on_with() == found.members
    return found


def test_members_that_joined_are_not_ordered_again(growing: Growing) -> None:
    there = growing.members | growing.new
    growing.send(e.GrowthDone("a", tuple(there.items())))
    assert growing.goes_on_with() == there and growing.grow not in growing.ordered_again()


def test_members_that_joined_in_a_partly_failed_growth_are_known(growing: Growing) -> None:
    failed, *came = growing.new
    there = growing.members | {name: growing.new[name] for name in came}
    growing.send(e.GrowthFailed("a", (failed,), "no container was had", tuple(there.items())))
    assert growing.goes_on_with() == there and growing.ordered_again() == []
    held = {container.container_id for container in growing.scheduler.ledger.of_job("a")}
    assert failed not in held and held >= there.keys()


def test_a_node_lost_during_a_growth_loses_its_containers_once(growing: Growing) -> None:
    job, ledger = growing.scheduler.jobs["a"], growing.scheduler.ledger
    node = growing.grow.containers[-1].node
    lost = {container.container_id for container in ledger.containers_on(node)}
    growing.send(e.NodeLost(node))
    size = job.size
    growing.send(e.GrowthDone("a", tuple((growing.members | growing.new).items())))
    ledger.check()
    assert job.size == size
    assert not lost & {container.container_id for container in ledger.of_job("a")}


def test_members_are_kept_if_a_growth_does_not_report_them(growing: Growing) -> None:
    # As in a record of an earlier version.
    there = growing.members | growing.new
    growing.send(e.MembersFound("a", tuple(there.items())))
    growing.send(e.GrowthDone("a"))
    assert growing.goes_on_with() == there and growing.grow not in growing.ordered_again()


def test_a_growth_that_was_aborted_for_a_shrink_may_be_tried_again(growing: Growing) -> None:
    (shrink,) = (order for order in growing.send(e.JobSubmitted(request("b"))) if isinstance(order, e.ShrinkJob))
    growing.send(e.GrowthFailed("a", tuple(growing.new), "cancelled", tuple(growing.members.items())))
    growing.send(e.ContainersGone("a", shrink.containers))
    assert growing.scheduler.jobs["a"].no_growth_from is None
    growing.send(e.GrowthFailed("a", (), "no container was had", ()))
    assert growing.scheduler.jobs["a"].no_growth_from == growing.scheduler.jobs["a"].size
