"""Export a sweep's trials to TensorBoard and MLflow; each needs an extra, imported on use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from eps.errors import ConfigError, StorageError

#: Takes the report of a sweep that has ended.
Export = Callable[[Mapping[str, Any]], None]
_STATUS = {"finished": "FINISHED", "killed": "KILLED"}
#: Timeout of each request to an MLflow server, in seconds.
ANSWER_S = 10


def exporters(tensorboard: str | None, mlflow: str | None) -> list[Export]:
    """Return the requested export functions.

    Parameters
    ----------
    tensorboard : str, optional
        A folder; a trial's curve goes to ``POLICY/TRIAL`` in it.
    mlflow : str, optional
        The address of a tracking server (``http://HOST:PORT``), or a folder; a trial becomes a run of the experiment
        ``hscheduler-POLICY``.  Other URIs as the installed version takes them: a database needs more than the extra.

    Raises
    ------
    ConfigError
        The extra is not installed, MLflow rejects the URI, or its server does not answer.
    """
    found = []
    if tensorboard is not None:
        found.append(_for_tensorboard(Path(tensorboard)))
    if mlflow is not None:
        found.append(_for_mlflow(mlflow))
    return found


def _for_tensorboard(folder: Path) -> Export:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            f"tensorboard needs tensorboardX ({error}): pip install '.[tensorboard]' in EPS's folder"
        ) from None

    def export(report: Mapping[str, Any]) -> None:
        try:
            for trial in report["trials"]:
                with SummaryWriter(str(folder / report["policy"] / trial["job_id"])) as writer:
                    for at_s, iteration, loss in trial["curve"]:
                        writer.add_scalar("loss", loss, iteration, walltime=at_s)
                    if trial["loss"] is not None:
                        writer.add_hparams(dict(trial["point"]), {report["metric"]: trial["loss"]}, name="point")
        except OSError as error:
            raise StorageError(f"tensorboard: {folder} cannot be written: {error.strerror}") from error

    return export


def _for_mlflow(uri: str) -> Export:
    try:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise ConfigError(f"mlflow needs MLflow ({error}): pip install '.[mlflow]' in EPS's folder") from None

    # MLflow rejects a folder without the first setting, and retries silently for 15 minutes without the others.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(ANSWER_S))
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    try:
        MlflowClient(uri).get_experiment_by_name("hscheduler")
    except (MlflowException, OSError) as error:
        if uri.startswith(("http:", "https:")):
            raise ConfigError(f"mlflow: no server of MLflow answers at {uri} within {ANSWER_S} s: {error}") from None
        takes = "the extra mlflow takes http://HOST:PORT of a server, or a folder; a database needs all of MLflow"
        raise ConfigError(f"mlflow: {uri} cannot be used: {takes} ({str(error).strip()})") from None

    def log(client: Any, experiment: str, report: Mapping[str, Any], trial: Mapping[str, Any], began_ms: int) -> None:
        def at_ms(seconds: float) -> int:
            return began_ms + round(1000 * seconds)

        ended_s = report["makespan_s"] if trial["finished_s"] is None else trial["finished_s"]
        run_id = client.create_run(experiment, at_ms(trial["arrived_s"]), run_name=trial["job_id"]).info.run_id
        measured = [Metric("training loss", loss, at_ms(at_s), iteration) for at_s, iteration, loss in trial["curve"]]
        for name, value in ((report["metric"], trial["loss"]), ("early feedback", trial["feedback"])):
            if value is not None:
                measured.append(Metric(name, value, at_ms(ended_s), 0))
        settings = [Param(name, str(value)) for name, value in trial["point"].items()]
        tags = [RunTag("phase", trial["phase"]), RunTag("why", trial["why"]), RunTag("job", trial["name"])]
        client.log_batch(run_id, measured, settings, tags)
        client.set_terminated(run_id, _STATUS.get(trial["phase"], "FAILED"), at_ms(ended_s))

    def export(report: Mapping[str, Any]) -> None:
        began_ms = round(1000 * (time.time() - report["makespan_s"]))
        try:
            client, name = MlflowClient(uri), f"hscheduler-{report['policy']}"
            known = client.get_experiment_by_name(name)
            experiment = client.create_experiment(name) if known is None else known.experiment_id
            for trial in report["trials"]:
                log(client, experiment, report, trial, began_ms)
        except (MlflowException, OSError) as error:
            raise StorageError(f"mlflow: {uri} does not take the trials: {error}") from error

    return export
