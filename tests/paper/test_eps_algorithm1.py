"""EPS Algorithm 1, line by line, and the cases that sections 2.3, 6 and 7.1 describe."""

from __future__ import annotations

import math

import pytest

from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, Phase, worst
from hscheduler.core.resources import Resources, Role
from hscheduler.policies import POLICIES
from hscheduler.policies.elastic import divide, one_each, round_robin
from hscheduler.policies.placing import interleaved
from tests.hscheduler.toy import UNIT, Toy, request


class TestLines2To6:
    """Free resources are divided by the ratio of the request; what fits starts at once."""

    def test_free_resources_are_divided_by_the_ratio_of_workers_to_servers(self):
        order = interleaved(8, 4)
        for taken in range(1, 13):
            workers = order[:taken].count(Role.WORKER)
            assert abs(workers - taken * 8 / 12) < 1
        assert order.count(Role.WORKER) == 8 and order.count(Role.SERVER) == 4

    def test_a_job_that_fits_starts_and_nothing_is_removed(self):
        toy = Toy.of(4, POLICIES["elastic"])
        toy.submit(request("a", 8, 4))
        assert [type(command) for command in toy.commands] == [e.Explain, e.StartJob]
        toy.settle()
        assert toy.job("a").phase is Phase.EARLY_FEEDBACK


class TestLines7To16:
    """How many are missing, and who is removable."""

    def test_what_is_missing_is_removed_and_no_more(self):
        toy = Toy.of(4, POLICIES["elastic"])
        toy.submit(request("a", 8, 4, most_workers=8, most_servers=4))
        toy.settle()
        toy.feed("a", 1.0)
        # 16 - 13 = 3 are free: a master, one worker, one server.  Missing of (3, 2): two workers, one server.
        toy.submit(request("b", 3, 2))
        assert toy.job("a").size == (6, 3)
        assert toy.job("b").size == (3, 2)

    def test_a_job_without_early_feedback_is_not_removable(self):
        toy = Toy.of(4, POLICIES["elastic"])
        toy.submit(request("a", 8, 4, most_workers=8, most_servers=4))
        toy.settle()
        toy.submit(request("b", 3, 2))
        assert toy.job("a").size == (8, 4)
        assert toy.job("b").phase is Phase.QUEUED
        assert toy.job("b").why.startswith("waits for a job to end:")

    def test_a_job_with_one_worker_gives_servers_only(self):
        """Lines 13 to 16 test workers and servers apart, where the text asks for one of both.

        What is missing of workers is given as servers: line 27 alone would let the third job wait for ever.
        """
        toy = Toy.of(4, POLICIES["elastic"])
        toy.send(e.SweepOpened("sweep", threshold=3))
        toy.submit(request("a", 1, 11, most_workers=1, most_servers=11))
        toy.settle()
        toy.feed("a", 1.0)
        toy.submit(request("b", 1, 2))
        assert toy.job("a").size == (1, 10)
        toy.settle()
        toy.feed("b", 1.0)
        toy.submit(request("c", 1, 1))
        assert toy.job("c").phase is Phase.STARTING
        assert toy.job("a").size == (1, 8) and toy.job("b").size == (1, 1)

    def test_a_negative_number_to_remove_is_none(self):
        """Line 7 subtracts also where there is enough of one kind."""
        toy = Toy.of(4, POLICIES["elastic"])
        toy.submit(request("a", 9, 4, most_workers=9, most_servers=4))
        toy.settle()
        toy.feed("a", 1.0)
        # Two are free: a master and a worker.  Only a server is missing.
        toy.submit(request("b", 1, 1))
        assert toy.job("a").size == (9, 3)


class TestLines17To27:
    """Round-robin over the removable jobs, those with most first."""

    @pytest.mark.parametrize(
        ("counts", "wanted", "removed"),
        [
            ([8, 6, 4], 1, [1, 0, 0]),
            ([8, 6, 4], 3, [1, 1, 1]),
            ([8, 6, 4], 4, [2, 1, 1]),
            # The last falls to one worker after three rounds, and the others go on.
            ([8, 6, 4], 11, [4, 4, 3]),
            ([8, 6, 4], 15, [7, 5, 3]),
            ([2, 2], 2, [1, 1]),
            ([5], 4, [4]),
            ([], 0, []),
        ],
    )
    def test_one_from_each_in_turn(self, counts, wanted, removed):
        assert round_robin(counts, wanted) == removed

    @pytest.mark.parametrize(("counts", "wanted"), [([8, 6, 4], 16), ([1, 1], 1), ([], 1)])
    def test_the_loop_that_would_never_end_says_so(self, counts, wanted):
        assert round_robin(counts, wanted) is None

    def test_jobs_with_most_workers_give_first(self):
        toy = Toy.of(7, POLICIES["elastic"])
        toy.send(e.SweepOpened("sweep", threshold=9))
        for name, workers in (("small", 4), ("large", 12), ("middle", 6)):
            toy.submit(request(name, workers, 1, most_workers=workers, most_servers=1))
            toy.settle()
            toy.feed(name, 1.0)
        # All 28 are taken.  A master, three workers and, as nobody has a server to give, a server: five workers.
        toy.submit(request("new", 3, 1))
        assert [toy.job(name).workers for name in ("large", "middle", "small")] == [10, 4, 3]

    def test_it_waits_for_an_end_where_all_fall_to_one(self):
        toy = Toy.of(4, POLICIES["elastic"])
        toy.submit(*[request(name, 3, 2, most_workers=3, most_servers=2) for name in "ab"])
        toy.settle()
        for name in ("a", "b"):
            toy.feed(name, 1.0)
        # 4 are free; the others can give 4 workers and 2 servers: ten for a job of 6 and 3 and a master, one more not.
        toy.submit(request("c", 7, 3))
        assert "waits for a job to end:" in toy.job("c").why
        assert toy.job("a").size == toy.job("b").size == (3, 2)
        toy.submit(request("d", 6, 3))
        assert toy.job("d").phase is Phase.STARTING
        assert toy.job("a").size == toy.job("b").size == (1, 1)

    def test_containers_are_counted_node_by_node(self):
        """8 x 4 GB free are not one container of 8 GB: one more is removed until a node has room."""
        toy = Toy.of(2, POLICIES["elastic"])
        toy.submit(request("a", 4, 2, most_workers=4, most_servers=2))
        toy.settle()
        toy.feed("a", 1.0)
        big = Resources(1, 8192)
        toy.submit(request("b", 1, 1, worker=big, most_workers=1, most_servers=1))
        toy.settle()
        assert toy.job("b").phase is Phase.EARLY_FEEDBACK
        assert sum(toy.job("a").size) == 6 - 3, "a master, a server and the two places of the big worker, less one free"

    def test_as_many_more_are_removed_as_a_large_container_needs(self):
        toy = Toy.of(0, POLICIES["elastic"])
        toy.send(e.NodeCame("node", Resources(40, 40 * 4096)))
        toy.send(e.SweepOpened("sweep", threshold=9))
        for name in "abc":
            toy.submit(request(name, 9, 3, most_workers=9, most_servers=3))
            toy.settle()
            toy.feed(name, 1.0)
        # One is free; a master, a server and a worker of eight places need nine more.
        big = Resources(8, 8 * 4096)
        toy.submit(request("d", 1, 1, worker=big, most_workers=1, most_servers=1))
        assert toy.job("d").phase is Phase.STARTING
        assert sum(sum(toy.job(name).size) for name in "abc") == 36 - 9


class TestLines29To40:
    """What nobody waits for goes to jobs in the training phase."""

    def test_numbers_to_add_have_the_ratio_of_the_cluster(self):
        toy = Toy.of(4, POLICIES["static"])
        toy.submit(request("a", 4, 2))
        toy.settle()
        toy.iterate("a", 1.0)
        toy.feed("a", 1.0)
        jobs = {role: list(toy.scheduler.growable(role)) for role in (Role.WORKER, Role.SERVER)}
        # Nine are free; at most twice as many as it has.
        assert divide(toy.scheduler.room(), jobs, (4, 2)) == (4, 2)
        assert divide(toy.scheduler.room(), jobs, (1, 1)) == (4, 2)
        room = toy.scheduler.room()
        for _ in range(3):
            room.take(UNIT)
        assert divide(room, jobs, (4, 2)) == (4, 2)
        room = toy.scheduler.room()
        for _ in range(6):
            room.take(UNIT)
        assert divide(room, jobs, (4, 2)) == (2, 1)

    def test_one_to_each_in_turn_those_with_least_first(self):
        toy = Toy.of(6, POLICIES["static"])
        for name, workers in (("a", 4), ("b", 2), ("c", 3)):
            toy.submit(request(name, workers, 1))
            toy.settle()
            toy.iterate(name, 1.0)
            toy.feed(name, 1.0)
        jobs = list(toy.scheduler.growable(Role.WORKER))
        assert [job.job_id for job in jobs] == ["b", "c", "a"]
        given = [job.job_id for job, _ in one_each(toy.scheduler.room(), jobs, Role.WORKER, 5)]
        assert given == ["b", "c", "a", "b", "c"], "more than one pass, as the text says round-robin"

    def test_a_job_in_the_early_feedback_phase_gets_nothing(self):
        toy = Toy.of(4, POLICIES["elastic"])
        toy.submit(request("a", 2, 1))
        toy.settle()
        toy.iterate("a", 1.0)
        assert toy.job("a").size == (2, 1)
        toy.feed("a", 1.0)
        assert toy.job("a").size == (4, 2)

    def test_nothing_is_added_while_a_job_waits(self):
        toy = Toy.of(2, POLICIES["elastic"])
        toy.submit(request("a", 2, 1))
        toy.settle()
        toy.submit(request("b", 3, 1))
        toy.settle()
        assert toy.job("b").phase is Phase.QUEUED
        toy.feed("a", 1.0)
        assert toy.job("b").phase is not Phase.QUEUED, "what a can give goes to the head of the queue"
        assert toy.job("a").size == (1, 1)

    def test_an_addition_that_makes_a_job_slower_is_taken_back(self):
        """EPS §4.2; the median of ten iterations, over 5 % longer."""
        toy = Toy.of(4, POLICIES["elastic"])
        toy.submit(request("a", 2, 1))
        toy.settle()
        toy.iterate("a", 1.0)
        toy.feed("a", 1.0)
        assert toy.job("a").size == (4, 2)
        toy.iterate("a", 1.06)
        assert toy.job("a").size == (2, 1)
        assert "6 % longer" in toy.sentences[-1]
        toy.iterate("a", 1.0, 30)
        assert toy.job("a").size == (2, 1), "it is not tried again"
        toy.send(e.NodeCame("new", Resources(4, 16384)))
        assert toy.job("a").size == (4, 2), "until the cluster is another"

    def test_an_addition_that_does_not_is_kept_and_more_follows(self):
        toy = Toy.of(4, POLICIES["elastic"])
        toy.submit(request("a", 2, 1))
        toy.settle()
        toy.iterate("a", 1.0)
        toy.feed("a", 1.0)
        toy.iterate("a", 1.05)
        assert toy.job("a").workers > 4, "as soon as it is known, whatever else happens or does not"

    def _behind_a_large_one(self) -> Toy:
        """Return a job that has given workers and servers to one that runs, and behind both one of 14 containers."""
        toy = Toy.of(4, POLICIES["elastic"])
        toy.submit(request("gave", 8, 4))
        toy.settle()
        toy.feed("gave", 1.0)
        toy.submit(request("took", 3, 2, most_workers=3, most_servers=2))
        toy.settle()
        toy.submit(request("large", 9, 4))
        assert toy.job("gave").size == (6, 3) and toy.job("large").why.startswith("waits for a job to end")
        return toy

    def test_behind_a_job_that_waits_for_ends_only_who_gave_gets_it_back(self):
        toy = self._behind_a_large_one()
        toy.feed("took", 2.0)
        toy.finish("took")
        toy.iterate("gave", 1.0)
        assert toy.job("gave").size == (8, 4), "what it asked for, although it may grow"
        assert toy.sentences[-1].startswith("no queued job fits before a running one ends: gave gets 2 workers")
        assert toy.job("large").why.startswith("waits for a job to end")
        toy.iterate("gave", 1.0)
        assert toy.job("gave").size == (8, 4)
        toy.send(e.NodeCame("new", UNIT))
        assert toy.job("gave").size == (1, 1) and toy.job("large").phase is Phase.STARTING, "it gives it again"

    def test_while_early_feedback_is_awaited_nobody_gets_anything_back(self):
        toy = self._behind_a_large_one()
        toy.send(e.NodeCame("new", Resources(2, 2 * 4096)))
        toy.iterate("gave", 1.0)
        assert toy.job("gave").size == (6, 3)


class TestSection6:
    """The threshold, the stopping rule, and the kill-based approach."""

    def test_the_threshold_of_the_paper_is_11(self):
        toy = Toy.of(36, POLICIES["elastic"])
        toy.submit(request("a", 8, 4))
        assert toy.scheduler.threshold("sweep") == 11

    @pytest.mark.parametrize("policy", ["elastic", "kill", "static-stop"])
    def test_past_the_threshold_the_worst_is_killed(self, policy):
        toy = Toy.of(12, POLICIES[policy])
        toy.send(e.SweepOpened("sweep", Direction.MINIMIZE, 2))
        toy.submit(*[request(name, most_workers=2, most_servers=1) for name in "abc"])
        toy.settle()
        toy.feed("a", 0.5)
        toy.feed("b", 0.9)
        assert not toy.over
        toy.feed("c", 0.7)
        assert toy.over == {"b": Phase.KILLED}
        assert "0.9 is the worst" in toy.sentences[-1]

    @pytest.mark.parametrize("policy", ["static", "priority"])
    def test_the_others_never_kill(self, policy):
        toy = Toy.of(12, POLICIES[policy])
        toy.send(e.SweepOpened("sweep", Direction.MINIMIZE, 1))
        toy.submit(*[request(name) for name in "abc"])
        toy.settle()
        for name in "abc":
            toy.feed(name, 1.0)
        assert not toy.over

    def test_jobs_are_ranked_within_their_sweep(self):
        toy = Toy.of(12, POLICIES["elastic"])
        for sweep in ("one", "two"):
            toy.send(e.SweepOpened(sweep, Direction.MINIMIZE, 1))
        toy.submit(request("a", sweep="one"), request("b", sweep="two"), request("c", sweep="two"))
        toy.settle()
        toy.feed("a", 9.0)
        toy.feed("b", 1.0)
        toy.feed("c", 2.0)
        assert toy.over == {"c": Phase.KILLED}

    def test_nan_is_worst_and_ties_go_against_the_newest(self):
        assert worst([(1.0, 0), (math.nan, 1), (math.inf, 2)], Direction.MINIMIZE) == 1
        assert worst([(1.0, 0), (math.nan, 1), (-math.inf, 2)], Direction.MAXIMIZE) == 1
        assert worst([(1.0, 0), (2.0, 1), (2.0, 2)], Direction.MINIMIZE) == 2
        assert worst([(1.0, 0), (2.0, 1), (1.0, 2)], Direction.MAXIMIZE) == 2
        assert worst([(math.nan, 0), (math.nan, 1)], Direction.MAXIMIZE) == 1

    def test_kill_restarts_the_worst_and_shares(self):
        """With 13 containers and two masters there are eleven members for two jobs that ask for twelve each."""
        toy = Toy.of(1, POLICIES["kill"])
        toy.send(e.NodeCame("node0", Resources(13, 13 * 4096)))
        toy.submit(request("a", 8, 4, most_workers=8, most_servers=4))
        toy.settle()
        toy.feed("a", 1.0)
        toy.submit(request("b", 8, 4, most_workers=8, most_servers=4))
        assert toy.job("a").phase is Phase.RESTARTING
        toy.settle()
        assert toy.job("a").phase is Phase.TRAINING, "it has given its feedback before"
        assert toy.job("b").phase is Phase.EARLY_FEEDBACK
        assert sum(toy.job("b").size) == 5 and sum(toy.job("a").size) == 6
        resumes = {c.job_id: c.resumes for c in toy.commands if isinstance(c, e.StartJob)}
        assert resumes == {"a": True, "b": False}

    def test_kill_restarts_several_where_the_worst_has_too_little(self):
        """Four jobs of 2 + 1 and their masters fill 16 containers; each gives one for a fifth."""
        toy = Toy.of(4, POLICIES["kill"])
        toy.send(e.SweepOpened("sweep", threshold=4))
        for name, feedback in (("a", 0.3), ("b", 0.1), ("c", 0.4), ("d", 0.2)):
            toy.submit(request(name, most_workers=2, most_servers=1))
            toy.settle()
            toy.feed(name, feedback)
        toy.submit(request("new"))
        toy.settle()
        assert toy.job("new").size == (2, 1), "what it asks for"
        assert {toy.job(name).size for name in "abcd"} == {(1, 1)}
        why = "new starts with 2 workers and 1 server: as c, whose early feedback 0.4 is the worst, has too little"
        assert any(sentence.startswith(why) for sentence in toy.sentences)
        assert [job.phase for job in toy.scheduler.running()] == [Phase.TRAINING] * 4 + [Phase.EARLY_FEEDBACK]

    def test_kill_restarts_no_more_than_it_takes(self):
        """One container is free; for a job of 1 + 1 and its master the two worst of three give one each."""
        toy = Toy.of(1, POLICIES["kill"])
        toy.send(e.NodeCame("node0", Resources(13, 13 * 4096)))
        for name, feedback in (("a", 0.3), ("b", 0.1), ("c", 0.4)):
            toy.submit(request(name, most_workers=2, most_servers=1))
            toy.settle()
            toy.feed(name, feedback)
        toy.submit(request("new", 1, 1))
        toy.settle()
        assert toy.job("new").size == (1, 1)
        assert [toy.job(name).size for name in "abc"] == [(1, 1), (2, 1), (1, 1)]

    def test_static_queues(self):
        toy = Toy.of(1, POLICIES["static"])
        toy.submit(request("a"), request("b"))
        toy.settle()
        toy.feed("a", 1.0)
        assert toy.job("b").phase is Phase.QUEUED
        assert "not free together" in toy.job("b").why
        toy.finish("a")
        assert toy.job("b").phase is Phase.EARLY_FEEDBACK

    def test_priority_takes_random_workers_from_random_jobs_and_no_servers(self):
        seen = set()
        for seed in range(8):
            toy = Toy.of(6, POLICIES["priority"])
            toy.scheduler.seed = seed
            for name in "abc":
                toy.submit(request(name, 4, 3))
            toy.settle()
            for name in "abc":
                toy.feed(name, 1.0)
            toy.submit(request("new", 2, 1))
            toy.settle()
            assert toy.job("new").phase is Phase.EARLY_FEEDBACK
            assert all(toy.job(name).servers == 3 for name in "abc")
            assert all(1 <= toy.job(name).workers <= 4 for name in "abc")
            seen.add(tuple(toy.job(name).workers for name in "abc"))
        assert len(seen) > 1


class TestSection23:
    """The case study: job 1 has all, job 2 wants one worker and one server (here the masters have a place too)."""

    def start(self, policy):
        toy = Toy.of(1, POLICIES[policy])
        toy.send(e.NodeCame("node0", Resources(8, 8 * 4096)))
        toy.submit(request("job1", 3, 3, most_workers=3, most_servers=3))
        toy.settle()
        toy.feed("job1", 0.1)
        toy.submit(request("job2", 1, 1, most_workers=1, most_servers=1))
        toy.settle()
        return toy

    def test_default_ps(self):
        toy = self.start("static")
        assert toy.job("job2").phase is Phase.QUEUED
        toy.finish("job1")
        assert toy.job("job2").phase is Phase.EARLY_FEEDBACK

    @pytest.mark.parametrize("policy", ["kill", "elastic"])
    def test_job_2_starts_and_job_1_gets_back_what_it_leaves(self, policy):
        toy = self.start(policy)
        assert toy.job("job2").phase is Phase.EARLY_FEEDBACK
        assert toy.job("job1").size == (2, 2)
        restarted = sum(isinstance(command, e.EndJob) for command in toy.commands)
        assert restarted == (1 if policy == "kill" else 0)
        toy.iterate("job1", 1.0)
        toy.send(e.CancelAsked("job2", "the user saw its early feedback"))
        toy.settle()
        assert toy.over == {"job2": Phase.KILLED}
        assert toy.job("job1").size == (3, 3)


class TestSection71:
    """What each approach cannot do."""

    def test_static_leaves_free_containers_idle_and_elastic_does_not(self):
        sizes = {}
        for policy in ("static", "elastic", "kill"):
            toy = Toy.of(4, POLICIES[policy])
            toy.submit(request("a", 4, 2))
            toy.settle()
            toy.iterate("a", 1.0)
            toy.feed("a", 1.0)
            sizes[policy] = sum(toy.job("a").size)
        assert sizes == {"static": 6, "elastic": 12, "kill": 12}

    def test_priority_asks_again_where_the_lot_gave_too_little(self):
        calls = []
        for seed in range(20):
            toy = Toy.of(4, POLICIES["priority"])
            toy.scheduler.seed = seed
            toy.submit(request("a", 7, 1), request("b", 5, 1))
            toy.settle()
            toy.submit(request("new", 4, 1))
            toy.settle()
            calls.append(sum(isinstance(command, e.ShrinkJob) for command in toy.commands))
            assert toy.job("new").phase is Phase.EARLY_FEEDBACK
        assert max(calls) > 2, "more than one draw"
