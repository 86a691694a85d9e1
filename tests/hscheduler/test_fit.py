"""Models fitted to reports: the parameters of a synthetic report are recovered, and predict its makespan."""

from __future__ import annotations

import dataclasses
import json

import pytest

from eps.cli.exits import EXIT_BAD_INPUT
from eps.errors import ConfigError, DataError
from hscheduler import cli
from hscheduler.core.jobs import Phase
from hscheduler.simulator.engine import Simulation
from hscheduler.simulator.fit import Measured, Model, fit, fit_speed, reports_in
from hscheduler.simulator.models import Costs, SpeedModel
from hscheduler.simulator.run import costs_of, simulate, simulate_like
from hscheduler.spec import Spec
from tests.hscheduler.test_simulator import job as simulated
from tests.hscheduler.test_simulator import play

TABLES = {
    "cluster": {"nodes": 4, "vcores": 4, "memory": "16GiB", "master_container": True},
    "sweep": {"trials": 16, "arrival": "poisson:4s", "threshold": 4, "seed": 1, "feedback_iteration": 20},
    "space": {"learning_rate": {"loguniform": [1e-4, 1]}},
    "job": {"model": "softmax", "workers": 2, "servers": 1, "splits": 12, "iterations": 300, "stretch_s": 0.005},
}
#: Parameters of the synthetic reports.
TRUE = Model(
    {"softmax": {"fixed_s": 0.004, "split_s": 0.002, "exchange_s": 0.0, "member_s": 0.0}},
    Costs(start_s=1.5, add_s=0.75, remove_s=0.25, pause_s=0.05, end_s=0.3, restart_s=0.8, finish_s=0.4),
    {},
)


@pytest.fixture(scope="module")
def made() -> dict[str, dict[str, object]]:
    """Return reports by policy, of synthetic jobs."""
    policies = ("elastic", "static", "static-stop", "kill", "priority")
    found = {policy: simulate(Spec.of(TABLES), policy, model=TRUE) for policy in policies}
    for report in found.values():
        for trial in report["trials"]:
            trial["name"] = f"sweep-{trial['job_id']}"
    return found


def test_speed_and_costs_are_recovered(made):
    found = fit(list(made.values()))
    job = Spec.of(TABLES).job_spec()
    for size in ((1, 1), (2, 1), (4, 2), (6, 3), (12, 4)):
        assert found.speed(job).iteration_s(*size) == pytest.approx(TRUE.speed(job).iteration_s(*size), rel=0.02)
    assert found.found["trials"] == 80
    assert found.found["relative_error"]["softmax"] < 0.01
    costs, true = dataclasses.asdict(found.costs), dataclasses.asdict(TRUE.costs)
    for name in ("start_s", "pause_s", "end_s", "finish_s"):
        assert costs[name] == pytest.approx(true[name], rel=0.05), name
    # Some changes of one decision were carried out later, after other jobs had released containers.
    assert true["add_s"] <= costs["add_s"] <= true["add_s"] + true["remove_s"]
    assert costs["remove_s"] == pytest.approx(true["remove_s"], rel=0.1)
    assert costs["restart_s"] == pytest.approx(true["restart_s"], abs=0.2)


def test_changes_without_a_decision_are_ignored(made):
    report = made["elastic"]
    ends = [
        {"at_s": at_s + 1e-3, "sentence": "it was killed", "jobs": [trial["job_id"]], "plan": []}
        for trial in report["trials"]
        for at_s, *_ in trial["containers"]
    ]
    assert fit([{**report, "decisions": [*report["decisions"], *ends]}]).costs == fit([report]).costs


def test_a_real_run_is_predicted_from_its_own_arrivals_and_feedback(made):
    """The predicted makespan must be within a tenth of the real one; here of synthetic reports."""
    model = fit(list(made.values()))
    for policy, real in made.items():
        found = simulate_like(Spec.of(TABLES), real, policy, model)
        assert found["like"]["real_makespan_s"] == real["makespan_s"]
        assert 0.97 <= found["like"]["predicted_over_real"] <= 1.03, policy
        assert [t["point"] for t in found["trials"]] == [t["point"] for t in real["trials"]]
        assert [t["arrived_s"] for t in found["trials"]] == [t["arrived_s"] for t in real["trials"]]
        feedback = {t["job_id"]: t["feedback"] for t in real["trials"]}
        assert all(t["feedback"] in (None, feedback[t["job_id"]]) for t in found["trials"])
        assert found["best"]["loss"] == real["best"]["loss"]
        without = simulate_like(Spec.of(TABLES), real, policy)["like"]["predicted_over_real"]
        assert not 0.97 <= without <= 1.03, "the declared model does not know these jobs"


@pytest.mark.parametrize(
    "how", [{"phase": "failed"}, {"phase": "killed", "early_feedback_s": None}, {"phase": "finished"}]
)
def test_trials_that_diverged_hold_their_containers(made, how):
    """Their feedback is NaN, which a report omits; they iterated as long as the others."""
    real = json.loads(json.dumps(made["static"]))
    for trial in real["trials"][2:6]:
        trial.update(feedback=None, loss=None, latest=None, **how)
    found = simulate_like(Spec.of(TABLES), real, "static", TRUE)
    assert found["like"]["left_out"] == 0
    assert found["like"]["predicted_over_real"] == pytest.approx(1.0, abs=0.01)
    assert found["best"]["job_id"] not in {trial["job_id"] for trial in real["trials"][2:6]}


def test_trials_that_failed_early_end_when_they_failed(made):
    real = json.loads(json.dumps(made["static"]))
    for trial in real["trials"]:
        trial.update(phase="failed", iterations=30, loss=None)
    found = simulate_like(Spec.of(TABLES), real, "static", TRUE)
    assert {trial["iterations"] for trial in found["trials"]} == {30}
    assert found["makespan_s"] < made["static"]["makespan_s"]


def test_trials_that_the_rule_stopped_train_on_without_it_but_not_those_that_something_else_stopped(made):
    real = made["elastic"]
    assert real["phases"]["killed"]
    found = simulate_like(Spec.of(TABLES), real, "static", TRUE)
    assert {trial["iterations"] for trial in found["trials"]} == {300}
    stopped = {**real, "trials": [{**trial, "why": "stopped on the page"} for trial in real["trials"]]}
    found = simulate_like(Spec.of(TABLES), stopped, "static", TRUE)
    assert [trial["iterations"] for trial in found["trials"]] == [trial["iterations"] for trial in real["trials"]]


def test_trials_that_never_trained_are_left_out(made):
    real = json.loads(json.dumps(made["static"]))
    real["trials"][3].update(feedback=None, loss=None, latest=None, phase="failed", iterations=0)
    found = simulate_like(Spec.of(TABLES), real, "static", TRUE)
    assert found["like"]["left_out"] == 1 and len(found["trials"]) == 15
    for trial in real["trials"]:
        trial["iterations"] = 0
    with pytest.raises(DataError, match="nothing to simulate"):
        simulate_like(Spec.of(TABLES), real, "static", TRUE)


def test_the_fewest_terms_are_taken():
    grid = [(workers, servers) for workers in (1, 2, 3, 4, 6) for servers in (1, 2, 3)]

    def measured(speed: SpeedModel, stretch_s: float = 0.0) -> list[Measured]:
        slept = SpeedModel(12, stretch_s, 0.0)
        return [Measured(12, w, s, speed.iteration_s(w, s) + slept.iteration_s(w, s), 10.0, stretch_s) for w, s in grid]

    for speed in (
        SpeedModel(12, 0.01, 0.0),
        SpeedModel(12, 0.01, 0.02),
        SpeedModel(12, 0.01, 0.0, exchange_s=0.05),
        SpeedModel(12, 0.01, 0.2, exchange_s=0.2, member_s=0.02),
    ):
        for stretch_s in (0.0, 0.03):
            terms, error = fit_speed(measured(speed, stretch_s))
            assert terms == pytest.approx(
                {
                    "fixed_s": speed.fixed_s,
                    "split_s": speed.split_s,
                    "exchange_s": speed.exchange_s,
                    "member_s": speed.member_s,
                },
                abs=1e-9,
            )
            assert error < 1e-9
    # With one size only, all costs but the declared sleep stay fixed.
    terms, _ = fit_speed([Measured(12, 2, 1, 0.1, 5.0, 0.01)])
    assert terms == pytest.approx({"fixed_s": 0.04, "split_s": 0.0, "exchange_s": 0.0, "member_s": 0.0})


def test_a_job_holds_its_containers_until_it_has_finished():
    costs = Costs(start_s=1.0, end_s=0.5, finish_s=2.0)
    simulation = Simulation(
        {"a": Spec.of({}).cluster.capacities()["node-1"]}, _static(), [simulated("a", 0.0)], costs, 10
    )
    record = simulation.run()
    assert record.trials["a"].last_iteration_s == 1.0 + 40 * 0.75
    assert record.trials["a"].finished_s == record.trials["a"].last_iteration_s + 2.0
    assert record.trials["a"].phase is Phase.FINISHED
    assert record.trials["a"].iteration == 40


def _static():
    from hscheduler.policies import POLICIES

    return POLICIES["static"]


def test_iterations_are_counted_for_the_size_that_a_job_really_had():
    record = play("elastic", [simulated("a", 0.0, workers=1, most=2)]).record
    speeds = record.trials["a"].speeds
    assert {size: seconds / number for size, (number, seconds) in speeds.items()} == {(1, 1): 1.5, (2, 1): 0.75}


def test_a_declared_restart_is_from_the_order_to_the_end():
    declared = Spec.of({**TABLES, "sweep": {**TABLES["sweep"], "kill_restart_s": 5.0}})
    for model in (None, TRUE):
        costs = costs_of(declared, model)
        again_s = 0.0 if model is None else TRUE.costs.restart_s
        assert costs.end_s + costs.restart_s == pytest.approx(5.0 + again_s)


class TestCommands:
    @pytest.fixture
    def report(self, made, tmp_path):
        path = tmp_path / "report.json"
        path.write_text(json.dumps({"policies": made, "makespan_over": {"of": "elastic"}}))
        return path

    def test_fit_and_like(self, report, tmp_path, capsys):
        model, target = tmp_path / "model.json", tmp_path / "like.json"
        assert cli.main(["fit", str(report), "--model", str(model)]) == 0
        assert "fitted to 80 trials" in capsys.readouterr().out
        assert Model.read(model) == fit(reports_in(report))
        words = ["simulate", "--like", str(report), "--model", str(model)]
        assert cli.main([*words, "--policy", "elastic,kill", "--report", str(target)]) == 0
        lines = capsys.readouterr().out.splitlines()
        tables = 2 * ["policy", "elastic", "kill"]
        assert [line.split()[0] for line in lines] == [*tables, "elastic:", "kill:"]
        assert "predicted / real 1.0" in lines[-2] or "predicted / real 0.9" in lines[-2]
        assert set(json.loads(target.read_text())) == {"elastic", "kill"}

    def test_simulated_jobs_are_not_fitted(self, report, tmp_path, capsys):
        path, spec = tmp_path / "simulated.json", tmp_path / "sweep.toml"
        spec.write_text("[sweep]\ntrials = 2\n[space]\nl2 = { choice = [0, 1] }\n")
        assert cli.main(["simulate", str(spec), "--report", str(path)]) == 0
        assert cli.main(["fit", str(report), str(path)]) == 2
        assert "simulated.json has simulated jobs, but fit needs real ones" in capsys.readouterr().err
        values = json.loads(path.read_text())
        for trial in values["trials"]:
            # From a real run of an earlier version.
            del trial["name"]
        path.write_text(json.dumps(values))
        assert cli.main(["fit", str(path)]) == 0

    @pytest.mark.parametrize("command", [["fit"], ["simulate", "--like"]])
    def test_text_that_is_not_json_is_refused(self, command, tmp_path, capsys):
        path = tmp_path / "notes.txt"
        path.write_text("[job] not JSON")
        assert cli.main([*command, str(path)]) == EXIT_BAD_INPUT
        assert "notes.txt: not a report or model of hscheduler: it is not JSON" in capsys.readouterr().err

    def test_a_model_is_used_for_a_sweep(self, report, tmp_path, capsys):
        spec, model = tmp_path / "sweep.toml", tmp_path / "model.json"
        spec.write_text('[sweep]\ntrials = 2\n[job]\nmodel = "softmax"\nworkers = 2\nservers = 1\n')
        assert cli.main(["fit", str(report), "--model", str(model)]) == 0
        target = tmp_path / "found.json"
        assert cli.main(["simulate", str(spec), "--model", str(model), "--report", str(target)]) == 0
        first = json.loads(target.read_text())["trials"][0]
        assert first["first_iteration_s"] == pytest.approx(1.5 + 0.004 + 6 * 0.002, rel=0.02)
        spec.write_text('[sweep]\ntrials = 2\n[job]\nmodel = "svm"\n')
        assert cli.main(["simulate", str(spec), "--model", str(model)]) == 2
        assert "model is 'svm', but speeds were fitted for softmax" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["fit", "REPORT", "--model", "/no/such/folder/model.json"], "must be a file in a writable directory"),
            (["fit", "/no/such/report.json"], "No such file"),
            (["simulate", "--like", "REPORT", "--paper"], "--like and --paper exclude each other"),
            (["simulate", "--like", "REPORT", "--policy", "elastic", "--trials", "3"], "--trials is not possible"),
            (["simulate", "--trace", "x.csv", "--model", "REPORT"], "--model is not possible"),
            (["simulate", "--paper", "--trials", "3"], "--paper allows only"),
            (["simulate", "--paper", "--model", "REPORT"], "not a model that hscheduler fit wrote"),
        ],
    )
    def test_bad_arguments_are_refused(self, report, words, message, capsys):
        assert cli.main([str(report) if word == "REPORT" else word for word in words]) in (1, 2)
        assert message in capsys.readouterr().err

    def test_json_that_is_no_report_is_refused(self, tmp_path):
        path = tmp_path / "report.json"
        for text, message in (("{}", "not a report"), ("[", "Expecting"), ('{"trials": []}', "not a report")):
            path.write_text(text)
            with pytest.raises(DataError, match=message):
                reports_in(path)
        with pytest.raises(DataError, match="no iterations"):
            fit([{"trials": [], "spec": {}, "policy": "static", "makespan_s": 0.0, "decisions": []}])
        with pytest.raises(ConfigError, match="fitted for softmax"):
            TRUE.speed(Spec.of({"job": {"model": "svm"}}).job_spec())
