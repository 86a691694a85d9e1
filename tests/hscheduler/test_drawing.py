"""Trials that are drawn when they can start."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.rungs import Stopping
from hscheduler.live.sweep import Sweep
from hscheduler.policies import POLICIES
from hscheduler.simulator.models import Costs
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec
from tests.hscheduler.test_random_histories import History
from tests.hscheduler.toy import Toy, nodes, request

#: The longest time in which running jobs make room for a trial: a release, or a restart.
ROOM_S = Costs().remove_s + Costs().end_s + Costs().restart_s + Costs().start_s


def tables(**sweep: Any) -> dict[str, Any]:
    return {
        "cluster": {"nodes": 3},
        "sweep": {
            "trials": 18, "algorithm": "random", "feedback_iteration": 30, "threshold": 3, "grace_iterations": 30,
            **sweep,
        },
        "space": {"l2": {"uniform": [0, 1]}},
        "job": {"workers": 2, "servers": 1, "iterations": 600, "stretch_s": 0.01},
    }  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stop", ["none", "threshold", "median", "sha", "asha"])
def test_a_trial_is_drawn_when_it_can_start_and_the_cluster_is_as_full_as_with_all_trials_queued(policy, stop):
    found = simulate(Spec.of(tables(stop=stop)), policy)
    burst = simulate(Spec.of(tables(stop=stop, arrival="burst")), policy)
    assert len(found["trials"]) == 18
    # Trials that a rule promotes start before those that have just been drawn.
    most_s = ROOM_S if stop not in ("sha", "asha") else 2 * ROOM_S
    assert all(trial["started_s"] - trial["arrived_s"] <= most_s for trial in found["trials"])
    assert found["makespan_s"] <= 1.1 * burst["makespan_s"]
    assert found["utilisation"] >= burst["utilisation"] - 0.05


@pytest.mark.parametrize("policy", POLICIES)
def test_parallelism_limits_the_trials_that_are_drawn(policy):
    found = simulate(Spec.of(tables(stop="none", parallelism=2)), policy)
    ends = sorted((trial["arrived_s"], trial["finished_s"]) for trial in found["trials"])
    assert all(sum(a <= at < b for a, b in ends) <= 2 for at, _ in ends)
    assert len(ends) == 18


def drawing(sweep: str, trials: int, **sizes: int) -> e.SweepOpened:
    coming = request(f"the next trial of {sweep}", sweep=sweep, **sizes)
    return e.SweepOpened(sweep, threshold=9, trials=trials, coming=coming)


def wanted(commands: list[e.Command]) -> list[str]:
    return [command.sweep for command in commands if isinstance(command, e.TrialWanted)]


def submit(toy: Toy, job_id: str, sweep: str, *, retry_of: str = "") -> list[str]:
    asked = dataclasses.replace(request(job_id, sweep=sweep), retry_of=retry_of)
    return wanted(toy.send(e.JobSubmitted(asked)))


def test_the_scheduler_says_once_that_a_trial_can_start_until_it_arrives():
    toy = Toy.of(2, POLICIES["static"])
    assert wanted(toy.send(drawing("s", 3))) == ["s"]
    assert wanted(toy.send(e.NodeCame("node9", nodes(1)["node0"]))) == []
    assert toy.scheduler.wants_trial("s")
    assert submit(toy, "a", "s") == ["s"], "and so can the next one"
    toy.settle()
    assert submit(toy, "b", "s") == ["s"]
    assert submit(toy, "c", "s") == [], "the last one has arrived"
    assert not toy.scheduler.wants_trial("s")


def test_running_jobs_leave_room_for_a_trial_that_is_about_to_be_drawn():
    toy = Toy.of(2, POLICIES["elastic"])
    toy.send(drawing("s", 3))
    for job_id in ("a", "b"):
        submit(toy, job_id, "s")
        toy.settle()
        toy.send(e.Iterated(job_id, 10, (0.1,) * 10))
        toy.send(e.FeedbackGiven(job_id, 1.0))
    toy.settle()
    toy.send(e.JobEnded("a", Phase.FINISHED, "", None, 0.5))
    assert toy.scheduler.wants_trial("s")
    assert toy.job("b").size == (2, 1), "it would double otherwise"
    submit(toy, "c", "s")
    toy.settle()
    assert toy.job("c").phase is Phase.EARLY_FEEDBACK


def test_a_retry_is_no_further_trial():
    toy = Toy.of(2, POLICIES["static"])
    toy.send(drawing("s", 2))
    submit(toy, "a", "s")
    toy.settle()
    toy.send(e.JobEnded("a", Phase.FAILED, "it crashed"))
    assert submit(toy, "a-again-1", "s", retry_of="a") == ["s"], "one of two was drawn"
    assert submit(toy, "b", "s") == []


def test_a_refused_trial_counts_as_drawn_and_a_closed_sweep_draws_none():
    toy = Toy.of(4, POLICIES["static"])
    assert wanted(toy.send(drawing("s", 2))) == ["s"]
    assert wanted(toy.send(e.JobRefused("a", "s", "bad"))) == ["s"]
    assert wanted(toy.send(e.JobRefused("b", "s", "bad"))) == []
    assert wanted(toy.send(drawing("t", 2))) == ["t"]
    toy.send(e.SweepClosed("t", "a user ended it"))
    assert not toy.scheduler.wants_trial("t")


def test_the_end_of_a_sweep_ends_its_jobs_and_those_that_come_later():
    toy = Toy.of(1, POLICIES["static"])
    toy.submit(request("a"), request("b"), request("c", sweep="other"))
    ends = [each for each in toy.send(e.SweepClosed("sweep", "enough")) if isinstance(each, e.EndJob | e.JobOver)]
    assert ends == [e.EndJob("a", False, "enough"), e.JobOver("b", Phase.KILLED, "enough")]
    assert e.JobOver("d", Phase.KILLED, "enough") in toy.send(e.JobSubmitted(request("d")))
    toy.settle()
    assert toy.scheduler.jobs["a"].phase is Phase.KILLED and toy.scheduler.jobs["a"].why == "enough"
    assert toy.scheduler.jobs["c"].phase.runs


def test_the_sweep_with_fewer_trials_draws_first():
    toy = Toy.of(2, POLICIES["static"])
    toy.send(drawing("s", 9))
    submit(toy, "a", "s")
    assert wanted(toy.send(drawing("t", 9))) == ["t"], "there is room for one"
    assert not toy.scheduler.wants_trial("s")


def test_a_trial_that_no_longer_fits_is_drawn_and_fails_with_the_reason():
    toy = Toy.of(1, POLICIES["static"])
    assert wanted(toy.send(drawing("s", 1, workers=8))) == ["s"]
    toy.send(e.JobSubmitted(request("a", 8, sweep="s")))
    assert toy.over == {"a": Phase.FAILED}


def test_the_size_to_wait_for_is_the_smallest_one_that_is_searched():
    searched = {**tables(), "space": {"workers": {"choice": [5, 1, 3]}}, "job": {"servers": 1}}
    opened = Spec.of(searched).opened("s")
    assert opened.coming is not None
    assert (opened.coming.workers, opened.coming.servers) == (1, 1)
    assert Spec.of(tables(arrival="burst")).opened("s").coming is None


def test_a_sweep_whose_points_never_work_does_not_wait_for_a_cluster_that_could_start_them():
    job = {"model": "softmax", "data": "sklearn:digits", "workers": 1, "servers": 99}
    spec = Spec.of({"sweep": {"trials": 3, "algorithm": "random"}, "space": {"l2": {"uniform": [0, 1]}}, "job": job})
    assert spec.opened("s").coming is None
    found = Sweep(spec, "static").run()
    assert [trial["phase"] for trial in found["trials"]] == ["failed"] * 3
    assert all("servers is 99" in trial["why"] for trial in found["trials"])


class Drawing(History):
    """A random history of two sweeps that draw their trials when they can start; some want more than was expected."""

    EACH = 8

    def __init__(self, policy: str, seed: int, faults: float, stop: str) -> None:
        super().__init__(policy, seed, faults)
        self.asked: list[str] = []
        for sweep in ("one", "two"):
            parallelism = self.draw.choice([0, 0, 2])
            opened = drawing(sweep, self.EACH, workers=self.draw.randint(1, 2))
            stopping = Stopping(stop, 2, 10)
            self.toy.send(dataclasses.replace(opened, stopping=stopping, parallelism=parallelism))

    def submit(self) -> None:
        wants = [sweep for sweep in ("one", "two") if self.toy.scheduler.wants_trial(sweep)]
        busy = self.toy.answers or self.toy.scheduler.running() or self.toy.scheduler.queue
        assert wants or busy, "nothing happens, and no trial is wanted"
        if wants:
            sweep, self.submitted = self.draw.choice(wants), self.submitted + 1
            self.asked.append(sweep)
            self.toy.submit(request(f"job{self.submitted}", self.draw.randint(1, 3), sweep=sweep))


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("stop", ["none", "threshold", "median", "sha", "asha"])
def test_all_trials_are_drawn_and_end_whatever_happens(policy, stop):
    for seed in range(12):
        history = Drawing(policy, seed, (0.0, 0.3)[seed % 2], stop)
        history.run(jobs=2 * Drawing.EACH)
        assert sorted(history.asked) == ["one"] * Drawing.EACH + ["two"] * Drawing.EACH
        assert history.toy.scheduler.ledger.all() == [], (policy, seed)
        told = [command.sweep for command in history.toy.commands if isinstance(command, e.TrialWanted)]
        assert all(told.count(sweep) >= Drawing.EACH for sweep in ("one", "two"))
