"""A report's trials in TensorBoard, MLflow and Optuna; a missing package is reported before a sweep starts."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from eps.errors import ConfigError, StorageError
from hscheduler import cli
from hscheduler.reports import exporters as exporters_module
from hscheduler.reports.exporters import exporters
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec

REPORT: dict[str, Any] = {
    "policy": "elastic",
    "metric": "accuracy",
    "makespan_s": 10.0,
    "end_s": 10.0,
    "down": [],
    "trials": [
        {
            "job_id": "trial-1", "name": "sweep-x-trial-1", "phase": "finished", "why": "", "loss": 0.75,
            "feedback": 0.5,
            "point": {"learning_rate": 0.1, "optimizer": "sgd"}, "arrived_s": 0.0, "finished_s": 9.0,
            "curve": [[1.0, 1, 2.5], [5.0, 50, 1.5], [9.0, 100, 0.5]],
        },
        {
            "job_id": "trial-2", "name": "", "phase": "failed", "why": "it diverged", "loss": None, "feedback": None,
            "point": {}, "arrived_s": 1.0, "finished_s": None, "curve": [],
        },
    ],
}  # fmt: skip


@pytest.mark.parametrize(("flag", "package", "extra"), [
    ("--tensorboard", "tensorboardX", "'.[tensorboard]'"), ("--mlflow", "mlflow.entities", "'.[mlflow]'"),
    ("--optuna-storage", "optuna", "'.[optuna]'"),
])  # fmt: skip
def test_a_missing_package_is_reported_before_anything_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flag: str,
    package: str,
    extra: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    spec = tmp_path / "sweep.toml"
    spec.write_text('[sweep]\ntrials = 1\nalgorithm = "random"\n[job]\ndata = "sklearn:digits"\nmodel = "softmax"\n')
    assert cli.main(["sweep", str(spec), flag, str(tmp_path)]) == 2
    assert f"install {extra}" in capsys.readouterr().err


def test_curves_and_points_are_written_to_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="TensorBoard's extra is not installed")
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import masked_crc32c

    (export,) = exporters(str(tmp_path), None)
    export(REPORT)
    (path,) = (tmp_path / "elastic" / "trial-1").glob("events*")
    content, scalars, times = path.read_bytes(), [], []
    while content:
        length = int.from_bytes(content[:8], "little")
        assert int.from_bytes(content[8:12], "little") == masked_crc32c(content[:8])
        event = event_pb2.Event.FromString(content[12 : 12 + length])
        times.append(event.wall_time)
        scalars += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
        content = content[16 + length :]
    assert scalars == [(1, "loss", 2.5), (50, "loss", 1.5), (100, "loss", 0.5)]
    assert min(times) > time.time() - 3600, "seconds since 1970"
    assert list((tmp_path / "elastic" / "trial-1" / "point").glob("events*")), "the hyperparameters"


@pytest.fixture
def tracking(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return MLflow as a user has it without settings; it would send telemetry."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    for name in ("ALLOW_FILE_STORE", "HTTP_REQUEST_TIMEOUT", "HTTP_REQUEST_MAX_RETRIES"):
        # Settings of the test are undone at its end.
        monkeypatch.setenv(f"MLFLOW_{name}", "")
        monkeypatch.delenv(f"MLFLOW_{name}")
    return pytest.importorskip("mlflow.tracking", reason="MLflow's extra is not installed")


@pytest.mark.usefixtures("tracking")
def test_an_mlflow_server_that_does_not_answer_is_reported_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporters_module, "ANSWER_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"{uri} within 1 s"):
            exporters(None, uri)


@pytest.mark.usefixtures("tracking")
def test_values_that_mlflow_refuses_are_reported_with_the_rule() -> None:
    with pytest.raises(ConfigError, match=r"nonsense://x .*http://"):
        exporters(None, "nonsense://x")


@pytest.mark.parametrize("as_uri", [False, True])
def test_trials_become_runs_of_mlflow(tmp_path: Path, tracking: Any, as_uri: bool) -> None:
    uri = (tmp_path / "runs").as_uri() if as_uri else str(tmp_path / "runs")
    (export,) = exporters(None, uri)
    report = {**REPORT, "down": [[6.0, 3606.0]]}
    export(report)
    export(report)
    client = tracking.MlflowClient(uri)
    experiment = client.get_experiment_by_name("hscheduler-elastic").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment], order_by=["attributes.start_time"])}
    first, second = runs["trial-1"], runs["trial-2"]
    assert first.data.params == {"learning_rate": "0.1", "optimizer": "sgd"}
    assert first.data.metrics["accuracy"] == 0.75 and first.data.metrics["early feedback"] == 0.5
    curve = client.get_metric_history(first.info.run_id, "training loss")
    assert [(point.step, point.value) for point in curve] == [(1, 2.5), (50, 1.5), (100, 0.5)]
    assert curve[1].timestamp - curve[0].timestamp == 4000
    assert curve[2].timestamp - curve[1].timestamp == 4000 + 3_600_000, "an hour in which no scheduler ran"
    assert (first.info.status, second.info.status) == ("FINISHED", "FAILED")
    assert second.data.tags["why"] == "it diverged"


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="TensorBoard's extra is not installed")
    (tmp_path / "file").write_text("")
    (export,) = exporters(str(tmp_path / "file"), None)
    with pytest.raises(StorageError, match=r"tensorboard: .*file"):
        export(REPORT)


def swept(url: str) -> Any:
    """Return the study of a simulated sweep with one killed and one failed trial, as its storage has it."""
    tables = {
        "sweep": {"trials": 6, "seed": 3, "algorithm": "random", "metric": "accuracy", "direction": "maximize"},
        "space": {
            "learning_rate": {"loguniform": [1e-3, 1]}, "l2": {"choice": [0, 1e-4]},
            "optimizer": {"choice": ["sgd", "adam"]}, "batch_size": {"quniform": [16, 64, 16]},
        },
        "job": {"test": "0.2"},
    }  # fmt: skip
    report = simulate(Spec.of(tables), "elastic")
    first, second, third = report["trials"][:3]
    first["values"] = [[1.0, 10, 0.5], [2.0, 20, 0.75]]
    second |= {"phase": "killed", "loss": None, "latest": second["feedback"], "why": "worst of 3"}
    third |= {"phase": "failed", "loss": None, "feedback": None}
    # Trials of a conditional space do not have every setting.
    del third["point"]["l2"]
    (export,) = exporters(None, None, url)
    export(report)
    return report


def test_a_sweep_becomes_a_study_of_optuna(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna", reason="Optuna's extra is not installed")
    url = f"sqlite:///{tmp_path / 'sweep.db'}"
    report = swept(url)
    study = optuna.load_study(study_name="hscheduler-elastic", storage=url)
    assert study.user_attrs == {"metric": "accuracy", "policy": "elastic"} and study.direction.name == "MAXIMIZE"
    assert [each.state.name for each in study.trials] == ["COMPLETE", "PRUNED", "FAIL", *["COMPLETE"] * 3]
    assert [each.params for each in study.trials] == [each["point"] for each in report["trials"]]
    first, second = study.trials[:2]
    assert first.value == report["trials"][0]["loss"] and first.intermediate_values == {10: 0.5, 20: 0.75}
    assert second.intermediate_values == {100: second.value} and second.value == report["trials"][1]["feedback"]
    assert second.user_attrs["why"] == "worst of 3" and second.user_attrs["trial"] == "trial-2"
    assert first.distributions["learning_rate"] == optuna.distributions.FloatDistribution(1e-3, 1, log=True)
    assert first.distributions["l2"] == optuna.distributions.CategoricalDistribution([0, 1e-4])
    assert study.best_trial.value == max(each["loss"] for each in report["trials"] if each["loss"] is not None)
    # What a dashboard computes: importance, and the times of its timeline.
    assert set(optuna.importance.get_param_importances(study)) <= set(report["spec"]["space"])
    taken = first.datetime_complete - first.datetime_start
    assert taken.total_seconds() == pytest.approx(
        report["trials"][0]["finished_s"] - report["trials"][0]["started_s"], abs=0.01
    )
    # Another sweep is a study of its own.
    swept(url)
    names = {each.study_name for each in optuna.get_all_study_summaries(url)}
    assert names == {"hscheduler-elastic", "hscheduler-elastic-2"}


@pytest.mark.parametrize("url", ["nonsense://x", "sqlite:////no/such/folder/sweep.db"])
def test_a_storage_that_optuna_refuses_is_reported_before_anything_runs(url: str) -> None:
    pytest.importorskip("optuna", reason="Optuna's extra is not installed")
    with pytest.raises(ConfigError, match=rf"optuna_storage is '{url}', which Optuna cannot use: "):
        exporters(None, None, url)


def test_results_are_written_to_optuna(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    optuna = pytest.importorskip("optuna", reason="Optuna's extra is not installed")
    url = f"sqlite:///{tmp_path / 'sweep.db'}"
    path = tmp_path / "report.json"
    path.write_text(json.dumps(simulate(Spec.of({"sweep": {"trials": 2}}), "elastic")))
    assert cli.main(["results", str(path), "--optuna-storage", url]) == 0
    assert len(optuna.load_study(study_name="hscheduler-elastic", storage=url).trials) == 2
