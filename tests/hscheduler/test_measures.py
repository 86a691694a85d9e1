"""Measures of sweeps: what containers did, when values were known, targets and regret."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from eps.errors import ConfigError
from hscheduler import cli
from hscheduler.cli.commands.common import print_best
from hscheduler.cli.commands.sizes import check_flag
from hscheduler.core.jobs import Direction, Phase
from hscheduler.core.resources import Container, Resources, Role
from hscheduler.core.timeline import TrialRecord
from hscheduler.core.use import Use
from hscheduler.live.checks import check_sweep
from hscheduler.live.inbox import HeldNews
from hscheduler.live.job_state import HistoryReader
from hscheduler.policies import POLICIES
from hscheduler.reports.measures import Target, anytime, no_regret_text, regret, with_regret, with_target
from hscheduler.reports.report import measures_table
from hscheduler.runners import Here, Viewers
from hscheduler.simulator.run import simulate
from hscheduler.simulator.static_sizes import MOST_SIZES, fixed_sizes, sizes_of
from hscheduler.spec import Spec

SWEEP: dict[str, Any] = {
    "cluster": {"nodes": 4},
    "sweep": {"trials": 16, "algorithm": "random", "arrival": "poisson:4s", "threshold": 3, "feedback_iteration": 20},
    "space": {"learning_rate": {"uniform": [0.1, 1]}},
    "job": {"workers": 2, "servers": 1, "splits": 12, "iterations": 200, "stretch_s": 0.01},
}


def container(name: str, cores: int = 1) -> Container:
    return Container(name, "a", Role.WORKER, Resources(cores, 1024), "node")


def test_containers_compute_from_the_first_iteration_to_the_last() -> None:
    use = Use()
    use.start([container("w", 2), container("s")])
    use.iterated(10.0)
    use.iterated(14.0)
    use.end(20.0, 0.0)
    assert use.computed_s == 12.0 and use.changed_s == 0.0


def test_a_late_report_says_since_when_a_job_computes() -> None:
    use = Use()
    use.start([container("w")])
    use.iterated(10.0, 4.0)
    use.iterated(12.0, 1.0)
    assert use.computed_s == 6.0
    use.stop(12.0, True)
    # It trains until it stops.
    use.iterated(13.0)
    assert use.computed_s == 6.0
    use.start([container("w")])
    # Not before the order to stop.
    use.iterated(15.0, 9.0)
    assert use.computed_s == 9.0 and use.stood_s == 0.0


def test_a_member_computes_from_its_join_until_its_container_is_gone() -> None:
    use = Use()
    use.start([container("w")])
    use.iterated(0.0)
    use.grow(1.0, [container("v"), container("lost")])
    use.joined(3.0, ["lost"])
    use.shrink(5.0, ["v"])
    use.gone(6.0, ["v"])
    use.iterated(10.0)
    assert use.computed_s == 10.0 + 3.0
    assert use.changed_s == 2.0 + 1.0
    use.end(12.0, 0.0)
    assert use.steps == [(0.0, 1), (3.0, 2), (6.0, 1), (10.0, 0)]


def test_pauses_of_changes_do_not_compute() -> None:
    use = Use()
    use.start([container("w"), container("v")])
    use.iterated(0.0)
    use.paused(0.5)
    use.iterated(10.0)
    use.end(10.0, 0.0)
    assert use.computed_s == 19.0
    told = Use()
    told.start([container("w"), container("v")])
    told.iterated(0.0)
    told.iterated(10.0)
    told.end(10.0, 2.5)
    assert told.computed_s == 15.0


def test_a_restart_neither_computes_nor_counts_as_a_pause_too() -> None:
    use = Use()
    use.start([container("w")])
    use.iterated(0.0)
    use.stop(4.0, True)
    use.paused(6.0)
    use.end(6.0, 0.0)
    use.start([container("v")])
    use.iterated(10.0)
    use.iterated(13.0)
    use.end(14.0, 0.0)
    assert use.computed_s == 4.0 + 3.0
    assert use.changed_s == 6.0 and use.stood_s == 6.0


def test_reports_of_later_attempts_count_earlier_pauses_again() -> None:
    use = Use()
    use.start([container("w")])
    use.iterated(0.0)
    use.iterated(10.0)
    for _ in range(2):
        use.end(10.0, 2.5)
    assert use.computed_s == 7.5


def test_a_failed_release_ends_a_change() -> None:
    use = Use()
    use.start([container("w"), container("v")])
    use.iterated(0.0)
    use.shrink(1.0, ["v"])
    use.kept(4.0, ["v"])
    use.iterated(5.0)
    assert use.computed_s == 10.0 and use.changed_s == 3.0


@pytest.mark.parametrize("policy", POLICIES)
def test_containers_compute_wait_or_are_idle(policy: str) -> None:
    found = simulate(Spec.of(SWEEP), policy)
    shares = [found[f"{name}_share"] for name in ("useful", "waiting", "idle")]
    assert sum(shares) == pytest.approx(1.0, abs=1e-5) and all(0.0 < share < 1.0 for share in shares)
    assert found["idle_share"] == pytest.approx(1 - found["utilisation"], abs=1e-5)
    assert sum(found["container_s"].values()) == pytest.approx(16 * found["makespan_s"], rel=1e-5)
    assert sum(trial["container_s"] for trial in found["trials"]) == pytest.approx(found["container_s"]["computing"])


def test_fixed_sizes_compute_what_their_trials_took() -> None:
    found = simulate(Spec.of(SWEEP), "static")
    # Two workers and a server each.
    taken = sum(3 * (trial["finished_s"] - trial["first_iteration_s"]) for trial in found["trials"])
    assert found["container_s"]["computing"] == pytest.approx(taken)
    assert found["iterations_trained"] == 16 * 200
    assert found["summary"]["changing_share"] == 0.0
    assert found["summary"]["first_iteration_max_s"] >= found["summary"]["first_iteration_median_s"]
    assert found["summary"]["early_feedback_max_s"] >= found["summary"]["early_feedback_median_s"]


def test_the_time_of_changes_contains_their_pauses() -> None:
    for policy in ("elastic", "kill"):
        summary = simulate(Spec.of(SWEEP), policy)["summary"]
        assert 0.0 < summary["resizing_share"] <= summary["changing_share"] < 1.0


def test_wide_containers_count_once() -> None:
    wide = {**SWEEP, "cluster": {"nodes": 4, "vcores": 8, "container_vcores": 2, "memory": "16GiB"}}
    found, other = simulate(Spec.of(wide), "static"), simulate(Spec.of(SWEEP), "static")
    assert found["container_s"] == other["container_s"] and found["useful_share"] == other["useful_share"]
    for mine, theirs in zip(found["trials"], other["trials"], strict=True):
        assert mine["computing"] == theirs["computing"] and mine["container_s"] == theirs["container_s"]
        assert mine["computing"][0][1] == 3 and mine["computing"][-1][1] == 0


def trial(job_id: str, *points: tuple[float, float], **fields: Any) -> TrialRecord:
    made = TrialRecord(job_id, "s", 0.0, **fields)
    for number, (at_s, value) in enumerate(points, 1):
        made.curve.add((at_s, number, value))
        made.values.add((at_s, number, 1 - value))
    return made


TRIALS = (
    trial("a", (1.0, 0.9), (2.0, 0.5), (9.0, 0.4)),
    trial("b", (1.5, 0.6), (2.5, math.nan), (3.0, 0.7), phase=Phase.FINISHED, finished_s=4.0),
    trial("c", feedback_s=5.0, feedback=0.45, phase=Phase.KILLED, finished_s=5.0),
)


def test_the_best_value_so_far_comes_from_curves_feedback_and_ends() -> None:
    steps = anytime(TRIALS, {"b": 0.42}, "loss", Direction.MINIMIZE)
    assert steps == [(1.0, 0.9, "a"), (1.5, 0.6, "b"), (2.0, 0.5, "a"), (4.0, 0.42, "b"), (9.0, 0.4, "a")]
    assert anytime(TRIALS, {}, "loss", None) == []


def test_of_a_metric_that_is_not_the_loss_its_own_values_count() -> None:
    steps = anytime(TRIALS[:2], {}, "accuracy", Direction.MAXIMIZE)
    assert [(at_s, round(value, 3)) for at_s, value, _ in steps] == [(1.0, 0.1), (1.5, 0.4), (2.0, 0.5), (9.0, 0.6)]


REPORT: dict[str, Any] = {"metric": "accuracy", "direction": "maximize", "anytime": [[1.0, 0.5, "a"], [7.0, 0.9, "b"]]}


@pytest.mark.parametrize(
    ("text", "at_s"), [("accuracy=0.4", 1.0), ("accuracy=0.9", 7.0), ("accuracy = 0.91", None), ("accuracy=2", None)]
)
def test_a_target_is_found_at_its_first_value_or_never(text: str, at_s: float | None) -> None:
    found = with_target(REPORT, Target.of(text))
    assert found["time_to_target_s"] == at_s and found["target"]["metric"] == "accuracy"


def test_a_lower_loss_reaches_a_target() -> None:
    losses = {"metric": "loss", "direction": "minimize", "anytime": [[1.0, 0.5, "a"], [7.0, 0.1, "b"]]}
    assert with_target(losses, Target.of("loss=0.2"))["time_to_target_s"] == 7.0
    assert with_target(losses, None) == losses


@pytest.mark.parametrize("text", ["accuracy", "accuracy=", "=0.5", "accuracy=nan", "accuracy=inf", "accuracy=high", ""])
def test_a_target_is_a_metric_and_a_number(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a metric and a number"):
        Target.of(text)


def test_a_metric_that_the_sweep_does_not_measure_is_no_target(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the sweep's metric is accuracy"):
        with_target(REPORT, Target.of("f1=0.5"))


def test_regret_is_how_much_worse_a_result_is() -> None:
    assert regret(0.5, 0.2, "minimize") == pytest.approx(0.3)
    assert regret(0.5, 0.7, "maximize") == pytest.approx(0.2)
    assert regret(None, 0.7, "maximize") is None and regret(0.5, None, "maximize") is None


def test_regret_needs_a_report_that_trained_every_point() -> None:
    full, stopped = ({**simulate(Spec.of(SWEEP), policy), "regret": None} for policy in ("static", "elastic"))
    found = with_regret({"static": full, "elastic": stopped})
    assert found["static"]["regret"] == 0.0
    assert found["elastic"]["regret"] == stopped["best"]["loss"] - full["best"]["loss"] >= 0.0
    assert with_regret({"elastic": stopped})["elastic"]["regret"] is None
    learnt = {**full, "spec": {**full["spec"], "sweep": {**full["spec"]["sweep"], "algorithm": "tpe"}}}
    assert with_regret({"static": learnt, "elastic": stopped})["elastic"]["regret"] is None
    assert with_regret({"static": {**full, "trials": full["trials"][1:]}})["static"]["regret"] is None


@pytest.mark.parametrize(
    ("why", "is_known"),
    [
        ("trial-2 is killed: training diverged: its loss grew from 1 to 1e+06", True),
        ("the gradient of split 3 is not finite: training diverged; a smaller learning rate may help", True),
        ("trial-2 is killed: its 0.5 is not among the best 1 of 3 at iteration 20", False),
        ("by the user", False),
    ],
)
def test_a_diverged_trial_counts_as_trained_to_its_end(why: str, is_known: bool) -> None:
    full = {**simulate(Spec.of(SWEEP), "static"), "regret": None}
    other = next(each for each in full["trials"] if each["job_id"] != full["best"]["job_id"])
    other |= {"phase": "killed", "why": why}
    assert (with_regret({"static": full})["static"]["regret"] == 0.0) is is_known


@pytest.mark.parametrize(("phase", "is_known"), [("failed", True), ("killed", False)])
def test_a_point_that_cannot_train_is_no_gap(phase: str, is_known: bool) -> None:
    full = {**simulate(Spec.of(SWEEP), "static"), "regret": None}
    other = next(each for each in full["trials"] if each["job_id"] != full["best"]["job_id"])
    other |= {"phase": phase, "why": "batch_size is too large", "started_s": None}
    assert (with_regret({"static": full})["static"]["regret"] == 0.0) is is_known


def test_a_regret_that_is_unknown_has_a_reason() -> None:
    full, stopped = ({**simulate(Spec.of(SWEEP), policy), "regret": None} for policy in ("static", "elastic"))
    assert no_regret_text(with_regret({"static": full, "elastic": stopped})) == ""
    assert "run the same points with --stop none" in no_regret_text(with_regret({"elastic": stopped}))
    learnt = {**full, "spec": {**full["spec"], "sweep": {**full["spec"]["sweep"], "algorithm": "tpe"}}}
    assert 'set algorithm = "random"' in no_regret_text(with_regret({"static": learnt}))


def test_the_simulator_knows_the_regret_of_every_policy() -> None:
    for policy in POLICIES:
        found = simulate(Spec.of(SWEEP), policy)
        assert found["regret"] >= 0.0, policy


def test_the_evaluation_of_final_parameters_is_no_iteration() -> None:
    reader = HistoryReader("a", "loss", 100, iterations=100)
    history = [{"clock": clock, "seconds": float(clock), "loss": 0.5} for clock in (99, 100)]
    assert [reader.iterated([entry], -1).iteration for entry in history] == [100, 100]


def test_jobs_report_the_metric_of_their_test_data_beside_the_loss() -> None:
    reader = HistoryReader("a", "accuracy", 100)
    history = [
        {"clock": k, "seconds": 0.5 * k, "loss": 1.0, **({"accuracy": 0.1 * k} if k % 2 else {})} for k in range(4)
    ]
    news = reader.iterated(history, -1)
    assert news.values == ((1.0, 2, pytest.approx(0.1)), (0.0, 4, pytest.approx(0.3)))
    assert HistoryReader("a", "loss", 100).iterated(history, -1).values == ()
    held = HeldNews("a")
    held.add(10.0, news)
    assert [(number, value) for _, number, value in held.event(11.0).values] == [(2, 0.1), (4, pytest.approx(0.3))]


@pytest.mark.parametrize(("value", "told"), [("100", "reached after "), ("-1", "never reached")])
def test_a_sweep_tells_when_its_target_was_reached(value: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = with_target(simulate(Spec.of(SWEEP), "static"), Target.of(f"loss={value}"))
    assert print_best(found, None) == 0
    assert f"\ntarget loss {value}: {told}" in capsys.readouterr().out


def test_the_table_has_a_target_only_if_one_is_named() -> None:
    found = simulate(Spec.of(SWEEP), "static")
    assert "to target" not in measures_table([found])
    shown = measures_table([with_target(found, Target.of("loss=-1"))]).splitlines()
    assert shown[0].endswith("to target") and shown[1].endswith("never")


def test_static_tries_all_sizes_and_the_best_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = tmp_path / "sweep.toml", tmp_path / "report.json"
    path.write_text("[sweep]\ntrials = 40\n[job]\nworkers = 3\nservers = 2\nstretch_s = 0.01\n")
    words = ["simulate", str(path), "--policy", "static,elastic", "--size", "best", "--target", "loss=0.9"]
    assert cli.main([*words, "--report", str(target)]) == 0
    found = json.loads(target.read_text())["static"]
    tried = {each["size"]: each["makespan_s"] for each in found["sizes"]}
    names = [f"{number} container{'s' if number > 1 else ''}" for number in (1, 2, 3, 4, 5, 8, 16)]
    assert list(tried) == ["3 workers and 2 servers", *names]
    assert found["makespan_s"] == min(tried.values()) == tried[found["size"]]
    assert all(each["time_to_target_s"] > 0 for each in found["sizes"])
    assert f"static is best with {found['size']}: 3 workers and 2 servers " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--size", "5"], "size is '5', but must be best"),
        (["--size", "best"], "size best is for the policy static, but policies are elastic"),
        (["--size", "best", "--paper"], "--size is not possible with --paper"),
    ],
)
def test_a_size_that_cannot_be_tried_is_refused(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text("[sweep]\ntrials = 2\n")
    given = words if "--paper" in words else [str(path), *words]
    assert cli.main(["simulate", *given]) == 2
    assert told in capsys.readouterr().err


def test_a_cluster_whose_size_the_file_does_not_have_has_no_best_size() -> None:
    with pytest.raises(ConfigError, match="not possible on YARN"):
        check_flag("best", ["static"], Spec.of({"job": {"on": "yarn"}}))
    asked = sizes_of(Spec.of({"cluster": {"nodes": 2}, "job": {"reliable": 3, "splits": 4}}))
    assert [(name, spec.job["reliable"]) for name, spec in asked.items()] == [
        ("1 container", 1),
        ("2 containers", 2),
        ("3 containers", 3),
        ("4 containers", 4),
    ]


def test_each_fixed_size_is_the_largest_for_a_number_of_trials() -> None:
    assert fixed_sizes(16) == [1, 2, 3, 4, 5, 8, 16]
    assert fixed_sizes(1) == [1]
    for containers in (7, 64, 100):
        found = fixed_sizes(containers)
        assert found == [n for n in range(1, containers + 1) if n == containers // (containers // n)]


def test_of_many_sizes_some_are_tried_with_the_smallest_and_the_largest() -> None:
    tried = {nodes: [spec.job["reliable"] for spec in sizes(nodes)] for nodes in (20, 37)}
    assert tried[20] == fixed_sizes(80)
    assert len(tried[37]) == MOST_SIZES and set(tried[37]) < set(fixed_sizes(148))
    assert tried[37][0] == 1 and tried[37][-1] == 148


def test_a_master_in_a_container_makes_the_sizes_smaller_by_one() -> None:
    assert [spec.job["reliable"] for spec in sizes(4, master_container=True)] == [1, 2, 3, 4, 7, 15]


def sizes(nodes: int, **cluster: Any) -> list[Spec]:
    """Return the sweep at each size, on nodes of four containers; its file asks for one container."""
    spec = Spec.of({"cluster": {"nodes": nodes, **cluster}, "job": {"reliable": 1, "splits": 192}})
    return list(sizes_of(spec).values())


def test_the_command_writes_when_the_target_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = tmp_path / "sweep.toml", tmp_path / "report.json"
    path.write_text("[sweep]\ntrials = 4\n")
    assert cli.main(["simulate", str(path), "--target", "loss=0.9", "--report", str(target)]) == 0
    found = json.loads(target.read_text())
    assert found["target"] == {"metric": "loss", "value": 0.9} and found["time_to_target_s"] > 0.0
    assert cli.main(["simulate", str(path), "--target", "accuracy=0.9"]) == 2
    assert "the sweep's metric is loss" in capsys.readouterr().err


def final(tmp_path: Path, name: str, **job: Any) -> Spec:
    tables = {"trials": 1, "feedback_iteration": 5, "final_test": name}
    return Spec.of({"sweep": tables, "job": {"data": "sklearn:digits", "iterations": 10, **job}})


def test_the_best_model_is_evaluated_once_on_data_that_no_trial_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn", reason="the data is scikit-learn's")
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    rows = [f"{k % 2} {1 + k % 2}:{1 + k / 9:.3f}" for k in range(20)]
    (tmp_path / "train.svm").write_text("\n".join(rows) + "\n")
    (tmp_path / "final.svm").write_text("\n".join(rows[:10]) + "\n")
    job = {"data": str(tmp_path / "train.svm"), "model": "logistic", "workers": 1, "servers": 1, "splits": 2}
    quiet = Viewers(lambda line: None, lambda line: None)
    outcome = Here(final(tmp_path, str(tmp_path / "final.svm"), **job), "static").run(quiet)
    assert outcome.report is not None and not outcome.problems
    assert outcome.report["best"]["test"]["accuracy"] == 1.0
    (tmp_path / "wide.svm").write_text("no label\n")
    outcome = Here(final(tmp_path, str(tmp_path / "wide.svm"), **job), "static").run(quiet)
    # The sweep keeps its results.
    assert outcome.report is not None and outcome.report["best"] and "test" not in outcome.report["best"]
    (problem,) = outcome.problems
    assert problem.startswith("the best model could not be evaluated on final_test: ")


def test_final_test_data_must_exist_before_a_sweep_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"final_test is .*must be a file of test data with labels"):
        check_sweep(final(tmp_path, "nowhere.svm"))


def test_final_test_needs_a_sweep_on_this_host(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be empty for a sweep in a service or on YARN"):
        check_sweep(final(tmp_path, "sklearn:digits"), reads_data=False)
    with pytest.raises(ConfigError, match="must be empty for a sweep in a service or on YARN"):
        check_sweep(final(tmp_path, "sklearn:digits", on="yarn"))


def test_the_path_of_final_test_data_starts_at_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text('[sweep]\nfinal_test = "last.svm"\n')
    assert Spec.read(path).sweep.final_test == str(tmp_path / "last.svm")
