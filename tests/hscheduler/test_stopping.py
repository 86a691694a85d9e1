"""Stopping rules by themselves: hand-made tables, and successive halving against a brute-force oracle."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from hscheduler import cli
from hscheduler.core import events as e
from hscheduler.core.codec import decoded, encoded
from hscheduler.core.cohort import Cohort
from hscheduler.core.decisions import Kill, Pause, Promote
from hscheduler.core.jobs import Direction, Job, Phase, badness
from hscheduler.core.rungs import Rungs, Stopping
from hscheduler.core.training import Training
from hscheduler.policies import POLICIES
from hscheduler.simulator.engine import Simulation
from hscheduler.simulator.models import Costs, SpeedModel
from hscheduler.simulator.run import simulate_jobs
from hscheduler.simulator.workload import SimulatedJob
from hscheduler.spec import Spec
from hscheduler.stopping import RULES
from tests.hscheduler.toy import Toy, nodes, request

LIMITED = ("median", "sha", "asha")


class Table:
    """A sweep whose rule decides about values that a test gives; decisions are carried out at once."""

    def __init__(self, rule: str, trials: int, *, eta: int = 3, grace: int = 1, arrive: bool = True) -> None:
        self.rule = RULES[rule]
        self.cohort = Cohort("sweep", Training())
        self.cohort.stopping = Stopping(rule, eta, grace)
        self.cohort.rungs = self.rule.rungs(self.cohort.stopping)
        self.cohort.trials = trials
        self.jobs: list[Job] = []
        self.said: list[str] = []
        #: What was decided about each trial since the last call of :meth:`reach` and the like.
        self.done: dict[int, str] = {}
        for _ in range(trials if arrive else 0):
            self.arrive()

    def arrive(self, retry_of: str = "") -> None:
        job = Job(replace(request(f"t{len(self.jobs)}"), retry_of=retry_of), len(self.jobs))
        self.jobs.append(job)
        self.cohort.arrive(job)

    def reach(self, number: int, value: float) -> dict[int, str]:
        self.cohort.reach(self.jobs[number], value)
        return self.judge()

    def end(self, number: int, value: float | None = None) -> dict[int, str]:
        self.cohort.end(self.jobs[number], value)
        return self.judge()

    def judge(self) -> dict[int, str]:
        self.done = {}
        for _ in range(100):
            decision = self.rule.judge(self.cohort)
            if not decision.actions:
                self.cohort.judged()
                return self.done
            assert decision.sentence
            self.said.append(decision.sentence)
            for action in decision.actions:
                number = int(action.job_id[1:])
                job = self.jobs[number]
                match action:
                    case Kill():
                        self.cohort.end(job, None)
                    case Pause():
                        self.cohort.pause(job)
                    case Promote():
                        self.cohort.promote(job)
                self.done[number] = type(action).__name__
        raise AssertionError("the rule does not stop")


def test_rungs_are_below_their_end():
    geometric = Rungs(100, 3, 1000)
    assert [geometric.at(k) for k in range(4)] == [100, 300, 900, None]
    assert [geometric.until(900).at(k) for k in range(3)] == [100, 300, None]
    assert [Rungs(100, 0, 400).at(k) for k in range(4)] == [100, 200, 300, None]
    assert Rungs(100, 3).until(0).at(9) == 100 * 3**9
    assert Rungs(100, 3).until(300) == Rungs(100, 3, 300)
    assert Rungs().at(0) is None


def test_sha_waits_until_a_place_is_certain():
    table = Table("sha", 6, eta=3)
    assert table.reach(0, 0.5) == {0: "Pause"}
    assert table.reach(1, 0.4) == {1: "Pause"}
    assert table.reach(2, 0.3) == {2: "Pause", 0: "Kill"}, "two are better, and two go on"
    assert table.reach(3, 0.6) == {3: "Kill"}
    assert table.said[-1] == "t3 is killed: its 0.6 is not among the best 2 of 6 at iteration 1"
    assert table.reach(4, 0.35) == {2: "Promote", 4: "Pause", 1: "Kill"}, "at most one can still be better than 0.3"
    assert table.said[-1].startswith("t2 resumes: it is among the best 2 of 6 at iteration 1; t4 is paused")
    assert table.reach(5, 0.1) == {4: "Kill"}, "the last one goes on without a pause"


def test_a_tie_at_a_rung_goes_to_the_earlier_trial_and_the_sentence_says_so():
    for rule, trials in (("sha", 4), ("asha", 2)):
        table = Table(rule, trials, eta=2)
        for number in range(trials):
            table.reach(number, 0.5)
        told = "of equal ones, the trial that arrived earlier is better"
        assert told in table.said[-1], rule
        assert table.done[trials - 1] in ("Kill", "Pause"), "the latest one"


def test_asha_awaits_the_last_trial_also_after_a_retry():
    table = Table("asha", 3, eta=3, arrive=False)
    table.arrive()
    table.end(0)
    table.arrive(retry_of="t0")
    table.arrive()
    table.end(1, 0.5)
    assert table.reach(2, 0.7) == {2: "Pause"} and not table.cohort.gets_no_more, "one of three has not arrived"


@pytest.mark.parametrize("values", [(0.5, 0.5, 0.4), (0.5, 0.6, 0.4)])
def test_a_tie_of_early_feedback_stops_the_later_trial_and_the_sentence_says_so(values):
    toy = Toy.of(3, POLICIES["static-stop"])
    toy.send(e.SweepOpened("sweep", threshold=2))
    for job_id in "abc":
        toy.send(e.JobSubmitted(request(job_id, 1)))
    toy.settle()
    for job_id, value in zip("abc", values, strict=True):
        toy.feed(job_id, value)
    (sentence,) = (each for each in toy.sentences if "is killed" in each)
    assert sentence.startswith("b is killed")
    assert ("of equal ones, the trial that arrived earlier is better" in sentence) is (values[0] == values[1])


def test_sha_trains_at_least_one_trial_to_its_end():
    table = Table("sha", 2, eta=3)
    assert table.reach(0, 0.5) == {0: "Pause"}
    assert table.reach(1, 0.6) == {0: "Promote", 1: "Kill"}
    assert table.reach(0, 0.5) == {}, "alone at the second rung"


def test_sha_counts_trials_that_ended_as_the_worst():
    table = Table("sha", 4, eta=2)
    table.reach(0, math.nan)
    assert table.end(1) == {}
    table.cohort.refuse(9)
    assert table.end(2) == {0: "Promote"}, "a NaN is better than no value"
    assert table.cohort.arrived == 5


def test_sha_does_not_wait_for_trials_of_a_closed_sweep():
    table = Table("sha", 9, arrive=False)
    for _ in range(3):
        table.arrive()
    assert table.reach(0, 0.5) == {0: "Pause"} and table.reach(1, 0.6) == {1: "Pause"}
    assert table.reach(2, 0.4) == {2: "Pause"}
    table.cohort.closed_because = "enough"
    assert table.judge() == {2: "Promote", 0: "Kill", 1: "Kill"}


def test_asha_promotes_a_third_of_what_has_arrived():
    """Li et al. (MLSys 2020), Algorithm 2: of a rung with n trials the best n // eta may be promoted."""
    table = Table("asha", 9, eta=3)
    assert table.reach(0, 0.5) == {0: "Pause"} and table.reach(1, 0.4) == {1: "Pause"}
    assert table.said[-1] == "t1 is paused: its 0.4 is not among the best 0 of 2 at iteration 1"
    assert table.reach(2, 0.6) == {1: "Promote", 2: "Pause"}, "one of three: the best so far"
    assert table.reach(3, 0.3) == {}, "better than the best: it goes on at once"
    assert table.reach(4, 0.35) == {4: "Pause"}, "one of five, and that is the fourth"
    assert table.reach(5, 0.9) == {4: "Promote", 5: "Pause"}, "two of six"


def test_asha_fills_a_rung_with_the_promoted():
    table = Table("asha", 9, eta=3)
    for number in range(9):
        table.reach(number, 0.1 * (9 - number))
    went_on = [job.number for job in table.jobs if job.rungs_passed == 1]
    assert set(went_on) == {2, 3, 4, 5, 6, 7, 8}, "each was the best when it came"
    stopped = [number for number in went_on if table.reach(number, 0.5 - 0.01 * number)]
    assert stopped == [2, 3], "the third is the best of three, and each later one is the best so far"


def test_asha_ends_what_nothing_can_promote_and_finishes_one():
    table = Table("asha", 2, eta=3)
    assert table.reach(0, 0.5) == {0: "Pause"}
    assert table.reach(1, 0.4) == {1: "Promote"}, "all are paused: the best trains to its end"
    assert "none has finished" in table.said[-1]
    assert table.end(1, 0.1) == {0: "Kill"}
    assert table.said[-1] == "t0 is killed: no trial is left whose result could promote it"


def test_asha_counts_a_trial_that_failed_at_its_next_rung_only():
    table = Table("asha", 9, eta=3)
    table.reach(0, 0.5)
    table.end(1)
    assert table.end(2) == {0: "Promote"}, "one of three"
    assert table.reach(0, 0.4) == {0: "Pause"}, "they never were to reach the second rung"


def test_a_retry_under_sha_takes_the_place_of_its_failed_attempt():
    table = Table("sha", 3)
    table.reach(0, 0.1)
    table.reach(1, 0.2)
    assert table.reach(2, 0.3) == {0: "Promote", 2: "Kill"}
    table.end(0)
    table.arrive(retry_of="t0")
    assert table.cohort.total == table.cohort.arrived == 3
    assert table.reach(3, 0.1) == {}, "it goes on at once"
    assert table.cohort.ranking(0) == [3, 1, 2]
    assert table.reach(3, 0.05) == {}


def test_a_retry_under_asha_takes_the_place_of_its_failed_attempt():
    table = Table("asha", 4)
    for number in range(3):
        table.reach(number, 0.1 * (number + 1))
    table.end(0)
    table.arrive(retry_of="t0")
    assert table.reach(4, 0.1) == {}, "it is the best of three"
    table.end(4)
    table.arrive(retry_of="t4")
    assert table.reach(5, 0.5) == {1: "Promote", 5: "Pause"}, "neither failed attempt is the best of three"


def test_under_median_a_retry_is_not_compared_with_its_failed_attempt():
    table = Table("median", 4)
    for number in range(3):
        table.reach(number, 0.1)
    table.end(0)
    table.arrive(retry_of="t0")
    assert table.reach(4, 0.5) == {}, "two others are too few to compare with"


def test_a_retry_of_a_trial_whose_failed_attempt_is_not_known_is_a_trial():
    table = Table("sha", 1, arrive=False)
    table.arrive(retry_of="lost")
    assert table.cohort.arrived == 1 and table.reach(0, 0.5) == {}


@pytest.mark.parametrize("direction", list(Direction))
def test_median_kills_what_is_worse_than_the_average_of_others(direction):
    sign = 1 if direction is Direction.MINIMIZE else -1
    table = Table("median", 5)
    table.cohort._training.set_direction("sweep", direction)
    for number, value in enumerate((0.4, 0.5, 0.6)):
        assert table.reach(number, sign * value) == {}, "too few to compare with"
    assert table.reach(3, sign * 0.51) == {3: "Kill"}
    assert table.reach(4, sign * 0.5) == {}, "its value is the median's"
    # The averages of two rungs: 0.4, 0.5, 0.6 for the others.
    for number, value in enumerate((0.4, 0.5, 0.6)):
        table.reach(number, sign * value)
    assert table.reach(4, sign * 0.9) == {}, "its best value counts"
    assert "the median of the averages of 3 other trials" in table.said[0]


def test_median_ignores_nan_and_kills_it():
    table = Table("median", 5)
    for number in range(3):
        table.reach(number, 0.5)
    assert table.reach(3, math.nan) == {3: "Kill"}
    assert table.reach(4, 0.5) == {}


# ---- against a brute-force oracle


def survivors(values: Sequence[Sequence[float]], eta: int, rungs: int, direction: Direction) -> list[int]:
    """Return how many rungs each trial passes under synchronous successive halving."""
    alive = list(range(len(values)))
    passed = [0] * len(values)
    for rung in range(rungs):
        alive = sorted(alive, key=lambda n: (badness(values[n][rung], direction), n))[: max(1, len(alive) // eta)]
        for number in alive:
            passed[number] += 1
    return passed


@pytest.mark.parametrize("seed", range(60))
def test_sha_keeps_the_trials_of_the_oracle_in_any_order(seed):
    draw = Random(seed)
    trials, eta, direction = draw.randint(1, 40), draw.randint(2, 5), draw.choice(list(Direction))
    rungs = draw.randint(1, 4)
    pool = [*(draw.random() for _ in range(20)), math.nan, math.inf]
    values = [[draw.choice(pool) for _ in range(rungs)] for _ in range(trials)]
    table = Table("sha", trials, eta=eta)
    table.cohort._training.set_direction("sweep", direction)
    running = set(range(trials))
    while running:
        number = draw.choice(sorted(running))
        job = table.jobs[number]
        if len(job.rungs) == rungs:
            running.discard(number)
            table.end(number, 0.0)
            continue
        done = table.reach(number, values[number][len(job.rungs)])
        for each, what in done.items():
            (running.add if what == "Promote" else running.discard)(each)
    assert [job.rungs_passed for job in table.jobs] == survivors(values, eta, rungs, direction)
    assert not table.cohort.paused()


# ---- with the policies, in the simulator


def jobs_of(seed: int, trials: int, gap_s: float, *, end: int = 120) -> list[SimulatedJob]:
    """Return random trials: sizes, arrivals and curves."""
    draw = Random(f"jobs:{seed}")
    speed = SpeedModel(12, 0.01, 0.002, 0.01)
    found, now_s = [], 0.0
    for number in range(trials):
        asked = request(f"t{number}", draw.randint(1, 3), draw.randint(1, 2), most_workers=8, most_servers=4)
        curve = tuple(
            (at, draw.choice([draw.random(), math.nan]) if at < end else 0.5) for at in range(10, end + 1, 10)
        )
        found.append(SimulatedJob(now_s, asked, end, speed, curve[0][1], draw.random(), curve))
        now_s += draw.expovariate(1 / gap_s) if gap_s else 0.0
    return found


def play(policy: str, rule: str, jobs: list[SimulatedJob], **options: object) -> Simulation:
    stopping = Stopping(rule, 3, 10)
    opened = e.SweepOpened("sweep", threshold=3, feedback_iteration=10, stopping=stopping, trials=len(jobs))
    simulation = Simulation(nodes(3), POLICIES[policy], jobs, Costs(), 10, [opened], **options)  # type: ignore[arg-type]
    simulation.run()
    return simulation


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_rule_works_with_every_policy(policy, rule):
    for seed in range(6):
        trials, gap_s, parallelism = 3 + 4 * seed, (0.0, 2.0)[seed % 2], (0, 2, 5)[seed % 3]
        simulation = play(policy, rule, jobs_of(seed, trials, gap_s), seed=seed, parallelism=parallelism)
        found = simulation.record.trials
        assert len(found) == trials and all(trial.phase.ended for trial in found.values())
        assert any(trial.phase is Phase.FINISHED for trial in found.values())
        assert simulation.scheduler.ledger.all() == [] and not simulation.scheduler.queue
        for trial in found.values():
            assert (trial.phase is Phase.KILLED) == bool(trial.why), "a trial that was stopped says why"
            assert trial.overshoot == 0
            assert rule in LIMITED or not trial.rungs
            assert RULES[rule].pauses or not trial.pauses


@pytest.mark.parametrize("seed", range(4))
def test_under_sha_all_policies_train_the_same_iterations(seed):
    jobs = jobs_of(seed, 20, 0.0)
    values = [[dict(job.curve)[at] for at in (10, 30, 90)] for job in jobs]
    passed = survivors(values, 3, 3, Direction.MINIMIZE)
    expected = {job.request.job_id: (10, 30, 90, 120)[rungs] for job, rungs in zip(jobs, passed, strict=True)}
    for policy in POLICIES:
        for gap_s in (0.0, 3.0):
            arriving = jobs_of(seed, 20, gap_s)
            simulation = play(policy, "sha", arriving, seed=seed)
            trained = {name: trial.iteration for name, trial in simulation.record.trials.items()}
            if not gap_s:
                assert trained == expected, policy
            assert sum(trained.values()) == sum(expected.values())


def test_paused_trials_do_not_count_towards_the_parallelism():
    simulation = play("static", "sha", jobs_of(1, 9, 0.0), parallelism=1)
    assert sum(trial.pauses for trial in simulation.record.trials.values()) > 0
    assert sum(trial.phase is Phase.FINISHED for trial in simulation.record.trials.values()) == 1


# ---- in the scheduler


def sweep_of(rule: str, trials: int = 3, **stopping: int) -> Toy:
    toy = Toy.of(4, POLICIES["static"])
    toy.send(e.SweepOpened("sweep", stopping=Stopping(rule, **{"grace_iterations": 10, **stopping}), trials=trials))
    for number in range(trials):
        toy.submit(request(f"t{number}", 1, 1))
    toy.settle()
    return toy


def at_rung(toy: Toy, number: int, value: float, iteration: int = 10) -> None:
    toy.send(e.Iterated(f"t{number}", iteration + 3))
    toy.send(e.RungReached(f"t{number}", iteration, value))


def test_a_paused_job_has_no_containers_and_resumes_from_its_rung():
    toy = sweep_of("sha")
    at_rung(toy, 0, 0.1)
    (order,) = [command for command in toy.commands if isinstance(command, e.EndJob)]
    assert (order.job_id, order.restarts, order.after) == ("t0", True, 10)
    assert toy.job("t0").phase is Phase.PAUSING
    toy.settle()
    job = toy.job("t0")
    assert (job.phase, job.iteration, job.size) == (Phase.PAUSED, 10, (0, 0))
    assert not toy.scheduler.ledger.of_job("t0")
    at_rung(toy, 1, 0.2)
    at_rung(toy, 2, 0.3)
    start = [command for command in toy.commands if isinstance(command, e.StartJob)][-1]
    assert (start.job_id, start.resumes) == ("t0", True)
    toy.settle()
    assert toy.over == {"t1": Phase.KILLED, "t2": Phase.KILLED}
    assert toy.job("t0").phase.runs and toy.scheduler.milestone(toy.job("t0")) == 30
    toy.finish("t0")
    assert toy.scheduler.ledger.all() == []


@pytest.mark.parametrize("settled", [True, False])
def test_a_paused_job_that_is_cancelled_ends(settled):
    toy = sweep_of("sha")
    at_rung(toy, 0, 0.1)
    if settled:
        toy.settle()
    toy.send(e.CancelAsked("t0", "the user wants it"))
    toy.settle()
    assert toy.over == {"t0": Phase.KILLED}
    assert toy.job("t0").why == "the user wants it"
    at_rung(toy, 1, 0.2)
    at_rung(toy, 2, 0.3)
    toy.settle()
    assert toy.job("t1").phase.runs, "it counts as the worst"


def test_a_job_that_crashes_while_it_pauses_has_failed():
    toy = sweep_of("sha")
    at_rung(toy, 0, 0.1)
    toy.answers.clear()
    toy.living.pop("t0", None)
    toy.send(e.JobEnded("t0", Phase.FAILED, "its supervisor crashed"))
    at_rung(toy, 1, 0.2)
    at_rung(toy, 2, 0.3)
    toy.settle()
    assert toy.over == {"t0": Phase.FAILED, "t2": Phase.KILLED}


def test_a_job_is_promoted_before_it_has_stopped():
    toy = sweep_of("asha")
    at_rung(toy, 0, 0.1)
    at_rung(toy, 1, 0.2)
    at_rung(toy, 2, 0.3)
    assert toy.job("t0").phase is Phase.RESTARTING
    toy.settle()
    assert toy.job("t0").phase.runs


def test_a_promoted_job_that_no_longer_fits_fails():
    toy = sweep_of("sha")
    for number in (0, 1):
        at_rung(toy, number, 0.1 * number)
    toy.settle()
    toy.job("t0").restart_size = (16, 16)
    at_rung(toy, 2, 0.3)
    toy.settle()
    assert toy.over["t0"] is Phase.FAILED and "what is left of the cluster" in toy.job("t0").why


def test_rungs_that_a_job_passes_while_it_pauses_count_when_it_resumes():
    toy = sweep_of("asha")
    at_rung(toy, 0, 0.1)
    toy.send(e.RungReached("t0", 30, 0.05))
    assert toy.job("t0").rungs == [0.1]
    at_rung(toy, 1, 0.2)
    at_rung(toy, 2, 0.3)
    toy.settle()
    at_rung(toy, 0, 0.05, 30)
    assert toy.job("t0").rungs == [0.1, 0.05]


def test_promoted_jobs_are_queued_before_new_ones():
    toy = Toy.of(1, POLICIES["static"])
    toy.send(e.SweepOpened("sweep", stopping=Stopping("asha", 2, 10), trials=6))
    for number in range(6):
        toy.submit(request(f"t{number}", 2, 1))
    toy.settle()
    at_rung(toy, 0, 0.1)
    toy.settle()
    at_rung(toy, 1, 0.2)
    toy.settle()
    assert toy.job("t0").phase.runs, "it has resumed before the third trial begins"
    assert [job.job_id for job in toy.scheduler.queue] == ["t2", "t3", "t4", "t5"]


def test_a_sweep_that_is_opened_again_may_know_its_number_of_trials():
    toy = Toy.of(4, POLICIES["static"])
    opened = e.SweepOpened("sweep", stopping=Stopping("sha", 3, 10), trials=9)
    toy.send(opened)
    for number in range(2):
        toy.submit(request(f"t{number}", 1, 1))
    toy.settle()
    at_rung(toy, 0, 0.1)
    at_rung(toy, 1, 0.2)
    assert toy.job("t1").phase is Phase.PAUSING
    toy.send(e.SweepOpened("sweep", stopping=Stopping("sha", 3, 10), trials=2))
    toy.settle()
    assert toy.over == {"t1": Phase.KILLED} and toy.job("t0").phase.runs


@pytest.mark.parametrize(("policy", "rule"), [("static", "none"), ("static-stop", "threshold"), ("gain", "threshold")])
def test_a_sweep_without_a_rule_has_that_of_its_policy(policy, rule):
    toy = Toy.of(4, POLICIES[policy])
    toy.submit(request("a"))
    assert toy.scheduler._cohorts["sweep"].stopping.rule == rule


def test_the_milestone_of_a_job_is_its_next_judgement():
    toy = Toy.of(4, POLICIES["elastic"])
    toy.send(e.SweepOpened("sweep", feedback_iteration=7))
    toy.submit(request("a"))
    toy.settle()
    assert toy.scheduler.milestone(toy.job("a")) == 7
    toy.feed("a", 0.5)
    assert toy.scheduler.milestone(toy.job("a")) == 0, "its number of iterations is unknown"


@pytest.mark.parametrize("rule", LIMITED)
def test_a_restored_scheduler_decides_the_same(rule):
    first = sweep_of(rule, 9)
    for number in range(5):
        at_rung(first, number, 0.1 * number)
    first.settle()
    policy = POLICIES["static"]
    second = Toy(decoded(json.loads(json.dumps(encoded(first.scheduler))), policy, RULES))
    second.living, second.over = dict(first.living), dict(first.over)
    first.commands.clear()
    for toy in (first, second):
        for number in range(5, 9):
            if toy.job(f"t{number}").phase.runs:
                at_rung(toy, number, 0.1 * (9 - number))
        toy.settle()
    assert first.commands == second.commands and first.commands


# ---- in commands


def test_a_flag_replaces_the_rule_of_the_file(tmp_path, capsys):
    path, target = tmp_path / "sweep.toml", tmp_path / "report.json"
    path.write_text(
        '[sweep]\ntrials = 9\nstop = "none"\nalgorithm = "random"\ngrace_iterations = 50\n[job]\niterations = 400\n'
    )
    for rule, finished in (("sha", 1), ("none", 9)):
        command = ["simulate", str(path), "--policy", "elastic,static", "--stop", rule, "--report", str(target)]
        assert cli.main(command) == 0
        for report in json.loads(target.read_text()).values():
            assert (report["stop"], report["completed"]) == (rule, finished)
    assert cli.main(["simulate", str(path), "--stop", "halving"]) == 2
    assert "stop is 'halving', but must be one of none, threshold" in capsys.readouterr().err
    path.write_text("[sweep]\ntrials = 9\n[job]\niterations = 80\n")
    assert cli.main(["simulate", str(path), "--stop", "median"]) == 2
    assert "must be below iterations, which is 80" in capsys.readouterr().err


def test_a_rule_works_with_the_jobs_of_a_trace(tmp_path):
    spec = Spec.of({"sweep": {"stop": "asha", "grace_iterations": 10}})
    jobs = jobs_of(3, 12, 1.0)
    report = simulate_jobs(spec, jobs, "static")
    assert report["phases"]["killed"] > 0 and report["completed"] > 0
