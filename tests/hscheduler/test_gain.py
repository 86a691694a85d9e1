"""The policy ``gain``: worked examples of who gets which containers, and why."""

from __future__ import annotations

from random import Random

import pytest

from hscheduler.core import events as e
from hscheduler.core.jobs import Job, JobRequest, Phase
from hscheduler.core.ledger import Hold
from hscheduler.core.resources import NOTHING, Resources, Role
from hscheduler.core.rungs import Stopping
from hscheduler.core.speed import Curve
from hscheduler.policies import POLICIES
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec
from tests.hscheduler.toy import UNIT, Toy

CURVE = Curve(0.0285, 0.9715)


def hosted(job_id: str, *, sweep: str = "sweep", iterations: int = 2700, most: int = 48) -> JobRequest:
    return JobRequest(job_id, sweep, 1, 0, UNIT, UNIT, NOTHING, most, 0, iterations)


def cluster(nodes: int = 4, *, trials: int = 0, stop: str = "sha", sweep: str = "sweep") -> Toy:
    toy = Toy.of(nodes, POLICIES["gain"])
    opened = e.SweepOpened(sweep, feedback_iteration=100, stopping=Stopping(stop, 3, 100, 2700), trials=trials)
    toy.send(opened)
    return toy


def sizes(toy: Toy) -> dict[str, int]:
    return {name: job.workers for name, job in toy.scheduler.jobs.items() if not job.phase.ended}


def train(toy: Toy, job_id: str, iterations: int = 10, curve: Curve = CURVE) -> None:
    """Complete iterations of a job, as fast as a curve says."""
    toy.iterate(job_id, curve.seconds(toy.job(job_id).workers), iterations)


def learn(toy: Toy, *names: str) -> None:
    """Let jobs measure sizes until they grow no more."""
    for _ in range(6):
        for name in names:
            train(toy, name)


def test_a_new_trial_starts_in_one_container() -> None:
    toy = cluster()
    toy.submit(hosted("a"))
    assert sizes(toy) == {"a": 1}
    assert toy.sentences[-1] == "a starts in 1 container: nothing else uses them"


def test_sixteen_containers_train_sixteen_trials_and_the_others_wait() -> None:
    toy = cluster()
    for number in range(18):
        toy.submit(hosted(f"a{number}"))
    toy.settle()
    assert list(sizes(toy).values()) == [1] * 16 + [0] * 2
    assert toy.job("a16").why == "waits because 1 container is not free, and no job can give more"


def test_a_lone_trial_doubles_until_its_curve_is_known_and_gets_the_whole_cluster() -> None:
    toy = cluster()
    toy.submit(hosted("a"))
    toy.settle()
    seen = [1]
    for _ in range(5):
        train(toy, "a")
        if sizes(toy)["a"] != seen[-1]:
            seen.append(sizes(toy)["a"])
    assert seen == [1, 2, 4, 8, 16]


def test_a_trial_that_does_not_become_faster_gives_back() -> None:
    toy = cluster()
    toy.submit(hosted("a"))
    toy.settle()
    for _ in range(8):
        train(toy, "a", curve=Curve(1.0, 0.0))
    assert sizes(toy) == {"a": 1}
    assert "gives" in " ".join(toy.sentences) and "back" in " ".join(toy.sentences)
    before = len(toy.commands)
    for _ in range(5):
        train(toy, "a", curve=Curve(1.0, 0.0))
    assert len(toy.commands) == before, "it is not tried again"


def test_a_growth_that_makes_a_trial_slower_is_undone() -> None:
    toy = cluster()
    toy.submit(hosted("a"))
    toy.settle()
    for _ in range(8):
        train(toy, "a", curve=Curve(0.1, 1.0, 0.3))
    # 1.4, 1.2 and 1.55 seconds in one, two and four containers.
    assert sizes(toy) == {"a": 2}


def test_a_new_trial_takes_containers_of_running_ones() -> None:
    toy = cluster(trials=9)
    toy.submit(hosted("a"))
    toy.settle()
    learn(toy, "a")
    assert sizes(toy) == {"a": 16}
    toy.submit(hosted("b"))
    assert sizes(toy)["b"] >= 1 and sum(sizes(toy).values()) == 16
    assert "a gives" in toy.sentences[-1] and "b starts in" in toy.sentences[-1]


def test_equal_trials_get_equal_shares() -> None:
    toy = cluster()
    for name in "abc":
        toy.submit(hosted(name))
    toy.settle()
    learn(toy, "a", "b", "c")
    assert sorted(sizes(toy).values()) == [5, 5, 6]


def test_the_trial_that_would_be_last_gets_more() -> None:
    toy = cluster(stop="none")
    toy.submit(hosted("short", iterations=400), hosted("long", iterations=2000))
    toy.settle()
    learn(toy, "short", "long")
    assert sizes(toy)["long"] > 2 * sizes(toy)["short"]


def test_the_containers_of_a_trial_that_ends_go_to_the_others() -> None:
    toy = cluster()
    for name in "abc":
        toy.submit(hosted(name))
    toy.settle()
    learn(toy, "a", "b", "c")
    toy.finish("c")
    assert sorted(sizes(toy).values()) == [8, 8]
    assert "it is judged" in toy.sentences[-1] and "s sooner" in toy.sentences[-1]
    train(toy, "a")
    toy.finish("b")
    assert sizes(toy) == {"a": 16}


def test_promoted_trials_start_in_their_shares() -> None:
    toy = cluster(trials=9)
    names = [f"a{number}" for number in range(9)]
    for name in names:
        toy.submit(hosted(name))
    toy.settle()
    learn(toy, *names)
    for rank, name in enumerate(names):
        toy.send(e.Iterated(name, 100))
        toy.send(e.RungReached(name, 100, float(rank)))
        toy.settle()
        toy.send(e.FeedbackGiven(name, float(rank)))
        toy.settle()
    running = {name: size for name, size in sizes(toy).items() if size}
    assert list(running) == ["a0", "a1", "a2"]
    assert sum(running.values()) >= 12, "up to twice the size that was measured"


def test_a_trial_at_its_rung_gets_nothing_until_it_is_judged() -> None:
    toy = cluster(trials=2)
    toy.submit(hosted("a"), hosted("b"))
    toy.settle()
    learn(toy, "a", "b")
    toy.send(e.Iterated("a", 100))
    toy.send(e.FeedbackGiven("a", 1.0))
    toy.finish("b")
    assert toy.job("a").workers < 16


def test_a_resize_that_takes_longer_than_the_rung_does_not_take_place() -> None:
    toy = cluster()
    toy.submit(hosted("a", iterations=30), hosted("b", iterations=30))
    toy.settle()
    train(toy, "a", 10, Curve(0.0, 0.01))
    train(toy, "b", 10, Curve(0.0, 0.01))
    assert sizes(toy) == {"a": 1, "b": 1}, "20 iterations take 0.2 s, a change is assumed to take 0.5 s"


def test_a_trial_with_large_containers_is_passed_a_bounded_number_of_times() -> None:
    toy = cluster(nodes=1)
    large = Resources(4, 16384)
    toy.submit(hosted("runs"))
    toy.settle()
    toy.submit(JobRequest("large", "sweep", 1, 0, large, large, NOTHING, 48, 0, 2700))
    assert toy.job("large").phase is Phase.QUEUED
    for number in range(6):
        toy.submit(hosted(f"small{number}", most=1))
        toy.settle()
        if toy.job(f"small{number}").phase is not Phase.QUEUED:
            toy.finish(f"small{number}")
    assert sum(phase is Phase.FINISHED for phase in toy.over.values()) == 3
    toy.finish("runs")
    assert toy.job("large").phase is not Phase.QUEUED


def test_a_growth_that_failed_is_tried_again() -> None:
    toy = cluster(stop="none")
    toy.submit(hosted("a"))
    toy.settle()
    toy.faults = 1.0
    train(toy, "a")
    assert sizes(toy) == {"a": 1}
    toy.faults = 0.0
    train(toy, "a", 5)
    assert sizes(toy) == {"a": 1}, "not at once"
    learn(toy, "a")
    assert sizes(toy) == {"a": 16}


@pytest.mark.parametrize(("stop", "grown"), [("none", 16), ("median", 16), ("sha", 1), ("asha", 1)])
def test_a_trial_that_goes_on_at_its_rungs_grows_although_they_are_shorter_than_a_change(stop: str, grown: int) -> None:
    toy = cluster(stop=stop)
    toy.submit(hosted("a", iterations=10_000))
    toy.settle()
    for _ in range(8):
        train(toy, "a", curve=CURVE.scaled(0.004))
    assert sizes(toy) == {"a": grown}


def test_jobs_with_workers_and_servers_keep_their_ratio() -> None:
    toy = cluster(nodes=3, stop="none")
    toy.submit(JobRequest("a", "sweep", 2, 1, UNIT, UNIT, NOTHING, 48, 48, 2700))
    toy.settle()
    assert toy.job("a").size == (1, 1)
    for _ in range(6):
        toy.iterate("a", CURVE.seconds(sum(toy.job("a").size)), 10)
    assert toy.job("a").size == (8, 4)


@pytest.mark.parametrize("seed", range(25))
def test_no_container_idles_that_a_trial_could_use(seed: int) -> None:
    """Whenever everything is settled and measured, a free container would make no trial reach its milestone sooner."""
    draw = Random(seed)
    toy = cluster(trials=draw.choice([0, 6]), stop=draw.choice(["none", "sha", "asha", "threshold"]))
    submitted = 0
    for _ in range(60):
        running = [job for job in toy.scheduler.jobs.values() if job.phase.runs]
        if submitted < 6 and (not running or draw.random() < 0.15):
            submitted += 1
            toy.submit(hosted(f"a{submitted}"))
            toy.settle()
        elif running:
            advance(toy, draw.choice(running))
        held = sum(toy.scheduler.ledger.hold(c.container_id) is not Hold.RELEASING for c in toy.scheduler.ledger.all())
        assert held <= 16
    running = [job for job in toy.scheduler.jobs.values() if job.phase.runs]
    for _ in range(12):
        # Measure, without passing a rung.
        for job in running:
            if job.phase.runs and job.iteration + 10 < toy.scheduler.milestone(job):
                train(toy, job.job_id)
    free = 16 - sum(job.workers for job in toy.scheduler.jobs.values())
    waiting = [job.job_id for job in toy.scheduler.queue]
    assert not (free and waiting), (free, waiting)
    for job in running:
        left = toy.scheduler.milestone(job) - job.iteration
        if job.phase.runs and left > 30:
            assert not free, (free, job.job_id, job.workers, left)


def advance(toy: Toy, job: Job) -> None:
    """Complete iterations of a job, up to its milestone at most; report that and its feedback there."""
    milestone = toy.scheduler.milestone(job)
    train(toy, job.job_id, min(30, milestone - job.iteration))
    if job.iteration >= 2700:
        toy.finish(job.job_id)
    elif job.iteration >= milestone:
        if job.feedback is None:
            toy.feed(job.job_id, job.number / 10)
        if job.phase.runs and toy.scheduler.next_rung(job) == job.iteration:
            toy.send(e.RungReached(job.job_id, job.iteration, job.number / 10))
            toy.settle()


def test_every_decision_has_a_sentence() -> None:
    toy = cluster(trials=9)
    for number in range(9):
        toy.submit(hosted(f"a{number}"))
        toy.settle()
        learn(toy, f"a{number}")
    explained = [command for command in toy.commands if isinstance(command, e.Explain)]
    assert len(explained) > 9
    for each in explained:
        assert each.sentence and all(name in each.sentence or "more" in each.sentence for name in each.jobs)


def test_containers_of_a_lost_node_do_not_stop_it() -> None:
    toy = cluster()
    toy.submit(hosted("a"), hosted("b"))
    toy.settle()
    learn(toy, "a", "b")
    toy.send(e.NodeLost("node3"))
    toy.settle()
    learn(toy, "a", "b")
    assert sum(sizes(toy).values()) == 12
    assert all(c.role is Role.WORKER for c in toy.scheduler.ledger.all())


def test_trials_of_a_file_begin_in_one_container_whatever_it_asks_for() -> None:
    spec = Spec.of({"job": {"workers": 4, "servers": 2, "iterations": 50}})
    request = spec.under("gain").request("a", "sweep")
    assert (request.workers, request.servers) == (1, 0)
    assert spec.under("elastic") is spec
    searched = Spec.of({"space": {"workers": {"choice": [1, 2]}}, "job": {"iterations": 50}})
    assert searched.under("gain") is searched


@pytest.mark.parametrize("stop", ["none", "threshold", "median", "sha", "asha"])
def test_every_sweep_ends_under_every_stopping_rule(stop: str) -> None:
    table = {"trials": 27, "stop": stop, "arrival": "poisson:2s", "max_iterations": 900}
    spec = Spec.of({"sweep": table, "job": {"iterations": 900, "stretch_s": 0.002}})
    report = simulate(spec, "gain")
    assert report["resources"] == {"leaked": 0}
    assert all(trial["phase"] in ("finished", "killed") for trial in report["trials"])
    assert report["makespan_s"] <= 1.02 * simulate(spec, "static")["makespan_s"]
