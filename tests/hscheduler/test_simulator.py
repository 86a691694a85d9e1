"""The simulator: results computed by hand, determinism, and its comparison of policies."""

from __future__ import annotations

import dataclasses
import json

import pytest

from hscheduler import cli
from hscheduler.core import events as e
from hscheduler.core.jobs import JobRequest, Phase
from hscheduler.core.resources import Resources
from hscheduler.core.rungs import Stopping
from hscheduler.policies import POLICIES
from hscheduler.reports.measures import Target, with_target
from hscheduler.simulator.engine import Simulation
from hscheduler.simulator.models import Costs, SpeedModel
from hscheduler.simulator.run import simulate
from hscheduler.simulator.workload import SimulatedJob
from hscheduler.spec import Spec
from tests.hscheduler.toy import UNIT, nodes, request

COSTS = Costs(start_s=1.0, add_s=0.5, remove_s=0.25, pause_s=0.125, end_s=0.5, restart_s=2.0)
#: 12 splits of 1/8 s: 1.5 s an iteration with one worker, 0.75 with two, 0.5 with three.
SPEED = SpeedModel(12, 0.125, 0.0)


def job(name: str, arrives_s: float, *, workers: int = 2, most: int = 2, feedback: float = 0.5) -> SimulatedJob:
    request = JobRequest(name, "sweep", workers, 1, UNIT, UNIT, UNIT, most, 1)
    return SimulatedJob(arrives_s, request, 40, SPEED, feedback, feedback / 2)


def play(policy: str, jobs: list[SimulatedJob], number: int = 1, **options) -> Simulation:
    simulation = Simulation(nodes(number), POLICIES[policy], jobs, COSTS, 10, **options)
    simulation.run()
    assert simulation.scheduler.ledger.all() == []
    return simulation


def test_one_job_by_hand():
    record = play("static", [job("a", 3.0)]).record
    trial = record.trials["a"]
    assert trial.arrived_s == trial.started_s == 3.0
    # One second to start, then 0.75 s an iteration.
    assert trial.first_iteration_s == 4.75
    assert trial.early_feedback_s == 1.0 + 10 * 0.75
    assert trial.finished_s == record.end_s == 3.0 + 1.0 + 40 * 0.75
    assert record.utilisation() == pytest.approx(1.0), "four containers on four processors; time begins at its arrival"


def test_a_job_grows_by_hand():
    record = play("elastic", [job("a", 0.0, workers=1, most=2)]).record
    trial = record.trials["a"]
    # Ten iterations of 1.5 s; the growth takes 0.5 s, the eleventh goes on meanwhile; a pause of 0.125 s.
    grown_s = 1.0 + 15.0 + 0.5
    done = 10 + 0.5 / 1.5
    assert trial.sizes == [(1.0, 1, 1), (grown_s, 2, 1), (trial.finished_s, 0, 0)]
    assert trial.finished_s == pytest.approx(grown_s + 0.125 + (40 - done) * 0.75)
    assert trial.resize_pause_s == 0.125


def test_a_newcomer_gets_a_worker_by_hand():
    record = play("elastic", [job("a", 0.0, workers=2), job("b", 10.0, workers=1, most=1)], number=2).record
    first, second = record.trials["a"], record.trials["b"]
    assert second.started_s == 10.0, "eight processors hold both"
    assert first.resize_pause_s == 0.0
    tight = play("elastic", [job("a", 0.0, workers=5, most=5), job("b", 10.0, workers=1, most=1)], number=2).record
    # One is free, two more are the other's workers: 0.25 s until they are gone, a pause of 0.125 s.
    assert tight.trials["b"].started_s == pytest.approx(10.25)
    assert [size[1:] for size in tight.trials["a"].sizes[:2]] == [(5, 1), (3, 1)]
    assert tight.trials["a"].resize_pause_s == pytest.approx(0.125)


def test_a_restart_resumes_at_its_iteration():
    simulation = play("kill", [job("a", 0.0, workers=1, most=2)])
    trial = simulation.record.trials["a"]
    assert trial.restarts == 1
    # Ended with ten whole iterations, 0.5 s to end, 2 s for the checkpoint, 1 s to start.
    assert trial.resize_pause_s == pytest.approx(3.5)
    assert trial.finished_s == pytest.approx(1.0 + 15.0 + 3.5 + 30 * 0.75)


def test_the_worst_is_stopped_and_is_never_the_best():
    opened = e.SweepOpened("sweep", threshold=1)
    simulation = play("elastic", [job("good", 0.0, feedback=0.2), job("bad", 0.0, feedback=0.9)], 4, sweeps=[opened])
    assert simulation.record.trials["bad"].phase is Phase.KILLED
    assert simulation.losses == {"good": 0.1}


@pytest.mark.parametrize("finish_s", [0.0, 3.0])
def test_a_job_stopped_at_its_last_iteration_finishes(finish_s):
    costs = dataclasses.replace(COSTS, finish_s=finish_s)
    requests = [JobRequest(name, "sweep", 2, 1, UNIT, UNIT, UNIT, 2, 1) for name in ("good", "bad")]
    jobs = [
        SimulatedJob(0.0, asked, iterations, SPEED, feedback, feedback)
        for asked, iterations, feedback in zip(requests, (90, 10), (0.2, 0.9), strict=True)
    ]
    opened = e.SweepOpened("sweep", threshold=1)
    record = Simulation(nodes(2), POLICIES["elastic"], jobs, costs, 10, [opened]).run()
    assert [decision.sentence[:13] for decision in record.decisions if "killed" in decision.sentence] == [
        "bad is killed"
    ]
    bad = record.trials["bad"]
    assert (bad.phase, bad.why) == (Phase.FINISHED, ""), "like a real job whose order came too late"
    assert bad.finished_s == pytest.approx(1.0 + 10 * 0.75 + finish_s)
    assert record.trials["good"].phase is Phase.FINISHED


def test_parallelism_limits_the_trials_at_once():
    record = play("static", [job(name, 0.0) for name in "abc"], 4, parallelism=1).record
    assert record.trials["b"].arrived_s == record.trials["a"].finished_s
    assert record.trials["c"].arrived_s == record.trials["b"].finished_s


SPEC = {
    "cluster": {"nodes": 4, "vcores": 4, "memory": "16GiB"},
    "sweep": {"trials": 24, "arrival": "poisson:4s", "threshold": 4, "seed": 1},
    "space": {"learning_rate": {"loguniform": [1e-4, 1]}},
    "job": {"workers": 2, "servers": 1, "iterations": 1000, "stretch_s": 0.1 / 12},
}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_same_sweep_twice_is_the_same_and_leaks_nothing(policy):
    first, second = simulate(Spec.of(SPEC), policy), simulate(Spec.of(SPEC), policy)
    assert first == second
    assert first["resources"] == {"leaked": 0}
    assert len(first["trials"]) == 24
    assert all(trial["phase"] in ("finished", "killed") for trial in first["trials"])
    assert 0.0 < first["utilisation"] <= 1.0
    assert {"policy", "makespan_s", "best", "completed", "trials", "utilisation", "decisions", "resources"} <= set(
        first
    )
    json.dumps(first, allow_nan=False)


def test_arrivals_are_the_same_under_all_policies():
    arrivals = {tuple(t["arrived_s"] for t in simulate(Spec.of(SPEC), policy)["trials"]) for policy in POLICIES}
    assert len(arrivals) == 1


def test_simulated_accuracies_are_between_0_and_1():
    sweep = {**SPEC["sweep"], "trials": 100, "metric": "accuracy"}
    job = {**SPEC["job"], "data": "sklearn:digits", "test": 0.2}
    found = simulate(Spec.of({**SPEC, "sweep": sweep, "job": job}), "elastic")
    values = [t[name] for t in found["trials"] for name in ("feedback", "latest") if t[name] is not None]
    assert len(values) > 100 and all(0 < value < 1 for value in values)
    assert found["best"]["loss"] == max(t["value"] for t in found["trials"] if t["phase"] == "finished")
    assert with_target(found, Target.of("accuracy=0.9"))["time_to_target_s"] < found["makespan_s"]


def test_elastic_beats_the_others_in_virtual_time():
    """The order of EPS Fig. 14, and of Fig. 17 for early feedback."""
    reports = {policy: simulate(Spec.of(SPEC), policy) for policy in POLICIES}
    elastic = reports.pop("elastic")
    # Not from the paper.
    del reports["gain"]
    for other in reports.values():
        assert elastic["makespan_s"] < other["makespan_s"]
        assert elastic["summary"]["early_feedback_mean_s"] < other["summary"]["early_feedback_mean_s"]
    assert elastic["best"]["loss"] <= reports["static"]["best"]["loss"] * 1.01
    assert elastic["summary"]["resizing_share"] < 0.005


def test_a_growth_that_is_slower_is_undone():
    slow = SpeedModel(12, 0.125, 0.0, member_s=0.5)
    request = JobRequest("a", "sweep", 2, 1, UNIT, UNIT, UNIT, 4, 2)
    record = play("elastic", [SimulatedJob(0.0, request, 60, slow, 0.5, 0.1)], 4).record
    assert [size[1:] for size in record.trials["a"].sizes] == [(2, 1), (4, 2), (2, 1), (0, 0)]
    assert any("longer with them" in decision.sentence for decision in record.decisions)


def test_a_growth_after_a_shrink_is_judged_too():
    slow = SpeedModel(8, 0.02, member_s=0.05)
    first = JobRequest("a", "sweep", 2, 1, UNIT, UNIT, UNIT, 8, 4)
    second = JobRequest("b", "sweep", 3, 2, UNIT, UNIT, UNIT, 3, 2)
    jobs = [SimulatedJob(0.0, first, 1000, slow, 0.1, 0.1), SimulatedJob(50.0, second, 50, slow, 0.2, 0.2)]
    simulation = Simulation({"node": Resources(9, 9 * 4096)}, POLICIES["elastic"], jobs, COSTS, 10)
    sizes = [size[1:] for size in simulation.run().trials["a"].sizes]
    assert sizes == [(2, 1), (4, 2), (2, 1), (1, 1), (2, 2), (1, 1), (0, 0)], "each growth makes it slower"


def test_a_member_computes_only_once_it_has_joined():
    costs = dataclasses.replace(COSTS, add_s=20.0)
    jobs = [job("a", 0.0, most=4), job("b", 10.0, workers=1, most=1)]
    trial = Simulation({"node": Resources(8, 8 * 4096)}, POLICIES["elastic"], jobs, costs, 10).run().trials["a"]
    # Two workers are to come from 8.5 s to 28.5 s.  The newcomer takes one of them: gone at 10.25 s, then a pause.
    done = (10.25 - 1.0) / 0.75 + (28.5 - 10.375) / 0.75
    assert trial.finished_s == pytest.approx(28.5 + 0.125 + (40 - done) * 0.5)


def test_jobs_that_wait_for_ever_are_an_error_and_not_a_hang():
    simulation = Simulation(nodes(1), POLICIES["static"], [job("a", 0.0)], COSTS, 10)
    simulation.scheduler.step(e.NodeLost("node0"))
    simulation.scheduler.step(e.NodeCame("node0", Resources(3, 16384)))
    record = simulation.run()
    assert record.trials["a"].phase is Phase.FAILED, "the cluster is too small now"
    stuck = Simulation(nodes(1), POLICIES["static"], [job("a", 0.0), job("b", 0.0)], COSTS, 10)
    stuck.scheduler.step(e.JobSubmitted(job("b2", 0.0).request))
    with pytest.raises(RuntimeError, match="wait for ever, as b2"):
        stuck.run()


class TestCommand:
    @pytest.fixture
    def spec(self, tmp_path):
        path = tmp_path / "sweep.toml"
        path.write_text("[sweep]\ntrials = 6\n[job]\nworkers = 2\nservers = 1\nstretch_s = 0.01\n")
        return str(path)

    def test_it_prints_a_table_and_writes_the_report(self, spec, tmp_path, capsys):
        target = tmp_path / "report.json"
        assert cli.main(["simulate", spec, "--policy", "elastic,static", "--report", str(target)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == 2 * ["policy", "elastic", "static"]
        found = json.loads(target.read_text())
        assert set(found) == {"elastic", "static"}
        assert len(found["static"]["trials"]) == 6

    def test_one_policy_is_the_report_itself(self, spec, tmp_path):
        target = tmp_path / "report.json"
        assert cli.main(["simulate", spec, "--trials", "2", "--seed", "5", "--report", str(target)]) == 0
        found = json.loads(target.read_text())
        assert found["policy"] == "elastic" and len(found["trials"]) == 2

    def test_decisions_are_printed(self, spec, capsys):
        assert cli.main(["simulate", spec, "--verbose"]) == 0
        assert "trial-1 starts with 2 workers and 1 server: they are free" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--policy", "best"], "policy is 'best', but must be one of elastic"),
            (["--policy", ","], "policy is ','"),
            (["--trials", "0"], "trials is 0, but must be at least 1"),
            (["--report", "/no/such/folder/report.json"], "must be a file in a writable directory"),
        ],
    )
    def test_bad_arguments_are_refused(self, spec, words, message, capsys):
        assert cli.main(["simulate", spec, *words]) == 2
        assert message in capsys.readouterr().err


def test_a_growth_that_a_pause_overtakes_is_void():
    """Its members would join after the job has resumed in other containers."""
    opened = e.SweepOpened("sweep", feedback_iteration=10, stopping=Stopping("sha", 3, 10, 90), trials=9)
    asked = [(f"t{k}", 1.0 - k / 100) for k in range(9)]
    jobs = [SimulatedJob(0.0, request(name, 1, 1), 90, SpeedModel(48, 0.002), value, 0.5) for name, value in asked]
    costs = Costs(start_s=0.05, add_s=2.0, end_s=0.05)
    simulation = Simulation(nodes(4), POLICIES["gain"], jobs, costs, 10, [opened])
    simulation.run()
    assert simulation.scheduler.ledger.all() == []
