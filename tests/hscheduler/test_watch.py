"""A growth is judged by iterations at both sizes, and always judged."""

from __future__ import annotations

from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.resources import Resources
from hscheduler.policies import POLICIES
from tests.hscheduler.toy import Toy, request


def one_that_grew(policy: str = "elastic") -> Toy:
    """Return nine containers: a job with a master grew from 2 and 1 to 4 and 2, of 0.1 s an iteration; two are free."""
    toy = Toy.of(0, POLICIES[policy])
    toy.send(e.NodeCame("node", Resources(9, 9 * 4096)))
    toy.submit(request("a", most_workers=4, most_servers=2))
    toy.settle()
    toy.iterate("a", 0.2)
    toy.feed("a", 0.5)
    toy.iterate("a", 0.1)
    assert toy.job("a").size == (4, 2)
    return toy


def shrunk(toy: Toy) -> None:
    """Let another job arrive, which takes two of its containers; the shrink is not complete."""
    toy.submit(request("b", most_workers=2, most_servers=1))
    assert toy.scheduler.ledger.is_releasing("a")


def test_iterations_of_the_old_size_are_no_baseline_of_the_next_growth():
    toy = one_that_grew()
    shrunk(toy)
    small = toy.job("a").size
    # It still has all of its members.
    toy.iterate_now("a", 0.1, 9)
    toy.settle()
    toy.iterate("a", 0.3, 4)
    toy.finish("b")
    toy.iterate("a", 0.3, 6)
    assert toy.job("a").size > small
    toy.iterate("a", 0.15)
    assert toy.job("a").size == (4, 2), "it is faster, but slower than its best"
    assert not any("longer with them" in sentence for sentence in toy.sentences)


def test_a_job_grows_only_when_its_speed_is_known():
    toy = Toy.of(2, POLICIES["elastic"])
    toy.submit(request("a"))
    toy.settle()
    toy.feed("a", 0.5)
    toy.iterate("a", 0.1, 9)
    assert toy.job("a").size == (2, 1), "a growth could not be judged"
    toy.iterate("a", 0.1, 1)
    assert toy.job("a").size == (4, 2), "as soon as it is known, without another event"
    toy.iterate("a", 10.0)
    assert toy.job("a").size == (2, 1)


def test_a_growth_soon_after_a_shrink_is_judged():
    toy = one_that_grew()
    shrunk(toy)
    toy.settle()
    small = toy.job("a").size
    toy.iterate("a", 0.1, 5)
    toy.finish("b")
    assert toy.job("a").size == small
    toy.iterate("a", 0.1, 5)
    assert toy.job("a").size > small
    toy.iterate("a", 0.2)
    assert toy.job("a").size == small
    assert "100 % longer" in toy.sentences[-1]


def test_iterations_of_zero_seconds_decide_nothing():
    toy = Toy.of(2, POLICIES["elastic"])
    toy.submit(request("a"))
    toy.settle()
    toy.iterate("a", 0.0)
    toy.feed("a", 0.5)
    toy.iterate("a", 0.1)
    assert toy.job("a").workers >= 4 and toy.job("a").slowed is None


def test_lost_containers_invalidate_the_measured_speed():
    toy = Toy.of(2, POLICIES["elastic"])
    toy.submit(request("a"))
    toy.settle()
    toy.iterate("a", 0.1)
    toy.feed("a", 0.5)
    assert toy.job("a").size == (4, 2)
    lost = sorted(toy.living["a"])[-1]
    toy.living["a"].remove(lost)
    toy.send(e.ContainersGone("a", (lost,)))
    assert toy.job("a").watched is None and toy.job("a").recent_s == []


def shrinks(toy: Toy) -> list[e.ShrinkJob]:
    """Return the containers that jobs were ordered to release so far."""
    return [command for command in toy.commands if isinstance(command, e.ShrinkJob)]


class TestAShrinkThatFails:
    def fail(self, toy: Toy) -> None:
        *_, shrink = asked = shrinks(toy)
        toy.answers.clear()
        toy.living[shrink.job_id] |= set(shrink.containers)
        toy.send(e.ShrinkFailed(shrink.job_id, shrink.containers, "a worker is being replaced"))
        assert shrinks(toy) == asked, "not at once"

    def test_it_is_retried_after_a_while(self):
        toy = one_that_grew()
        shrunk(toy)
        self.fail(toy)
        assert toy.job("b").phase is Phase.QUEUED
        assert toy.job("b").why.startswith("waits because"), "it does not wait for an end"
        assert toy.job("b").why.endswith("a could not shrink and is asked again after its iteration 30")
        toy.iterate("a", 0.1, 9)
        assert toy.job("b").phase is Phase.QUEUED
        toy.iterate("a", 0.1, 1)
        assert toy.job("b").phase is Phase.EARLY_FEEDBACK

    def test_retries_back_off(self):
        toy = one_that_grew()
        shrunk(toy)
        asked_at = []
        self.fail(toy)
        for iteration in range(21, 171):
            asked = len(shrinks(toy))
            toy.send(e.Iterated("a", iteration, (0.1,)))
            if len(shrinks(toy)) > asked:
                asked_at.append(iteration)
                self.fail(toy)
        assert asked_at == [30, 50, 90, 170]

    def test_progress_that_ends_the_wait_is_not_idle(self):
        toy = one_that_grew()
        shrunk(toy)
        self.fail(toy)
        toy.iterate("a", 0.1, 5)
        toy.job("a").recent_s[:] = [0.1] * 10
        assert toy.scheduler.is_idle_news(e.Iterated("a", 29, (0.1,)))
        assert not toy.scheduler.is_idle_news(e.Iterated("a", 30, (0.1,)))

    def test_priority_waits_too(self):
        toy = Toy.of(0, POLICIES["priority"])
        toy.send(e.NodeCame("node", Resources(6, 6 * 4096)))
        toy.submit(request("a", 4, 1))
        toy.settle()
        toy.submit(request("b", 1, 1))
        self.fail(toy)
        assert "no job can give a worker" in toy.job("b").why
        toy.iterate("a", 0.1, 10)
        assert len(shrinks(toy)) > 1
