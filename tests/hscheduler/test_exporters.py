"""A report's trials in TensorBoard and MLflow; a missing package is reported before a sweep starts."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from eps.errors import ConfigError, StorageError
from hscheduler import cli
from hscheduler.reports import exporters as exporters_module
from hscheduler.reports.exporters import exporters

REPORT: dict[str, Any] = {
    "policy": "elastic",
    "metric": "accuracy",
    "makespan_s": 10.0,
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
    content, scalars = path.read_bytes(), []
    while content:
        length = int.from_bytes(content[:8], "little")
        assert int.from_bytes(content[8:12], "little") == masked_crc32c(content[:8])
        event = event_pb2.Event.FromString(content[12 : 12 + length])
        scalars += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
        content = content[16 + length :]
    assert scalars == [(1, "loss", 2.5), (50, "loss", 1.5), (100, "loss", 0.5)]
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
    export(REPORT)
    export(REPORT)
    client = tracking.MlflowClient(uri)
    experiment = client.get_experiment_by_name("hscheduler-elastic").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment], order_by=["attributes.start_time"])}
    first, second = runs["trial-1"], runs["trial-2"]
    assert first.data.params == {"learning_rate": "0.1", "optimizer": "sgd"}
    assert first.data.metrics["accuracy"] == 0.75 and first.data.metrics["early feedback"] == 0.5
    curve = client.get_metric_history(first.info.run_id, "training loss")
    assert [(point.step, point.value) for point in curve] == [(1, 2.5), (50, 1.5), (100, 0.5)]
    assert curve[1].timestamp - curve[0].timestamp == 4000
    assert (first.info.status, second.info.status) == ("FINISHED", "FAILED")
    assert second.data.tags["why"] == "it diverged"


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="TensorBoard's extra is not installed")
    (tmp_path / "file").write_text("")
    (export,) = exporters(str(tmp_path / "file"), None)
    with pytest.raises(StorageError, match=r"tensorboard: .*file"):
        export(REPORT)
