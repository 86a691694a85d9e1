"""Export a sweep's trials to TensorBoard, MLflow and Optuna; each needs an extra, imported on use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from eps.errors import ConfigError, StorageError
from hscheduler.core.jobs import Phase

#: Takes the report of a sweep that has ended.
Export = Callable[[Mapping[str, Any]], None]
_STATUS = {"finished": "FINISHED", "killed": "KILLED"}
#: Timeout of each request to an MLflow server, in seconds.
ANSWER_S = 10


def exporters(tensorboard: str | None, mlflow: str | None, optuna: str | None = None) -> list[Export]:
    """Return the requested export functions.

    Parameters
    ----------
    tensorboard : str, optional
        A folder; a trial's curve goes to ``POLICY/TRIAL`` in it.
    mlflow : str, optional
        The address of a tracking server (``http://HOST:PORT``), or a folder; a trial becomes a run of the experiment
        ``hscheduler-POLICY``.  Other URIs as the installed version takes them: a database needs more than the extra.
    optuna : str, optional
        The URL of a storage of Optuna (``sqlite:///sweep.db``); each sweep becomes a study of its own.

    Raises
    ------
    ConfigError
        The extra is not installed, MLflow or Optuna rejects the URI, or MLflow's server does not answer.
    """
    found = []
    if tensorboard is not None:
        found.append(_for_tensorboard(Path(tensorboard)))
    if mlflow is not None:
        found.append(_for_mlflow(mlflow))
    if optuna is not None:
        found.append(_for_optuna(optuna))
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
            began_at = _began_at(report)
            for trial in report["trials"]:
                with SummaryWriter(str(folder / report["policy"] / trial["job_id"])) as writer:
                    for at_s, iteration, loss in trial["curve"]:
                        writer.add_scalar("loss", loss, iteration, walltime=began_at + _passed_s(report, at_s))
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
            return began_ms + round(1000 * _passed_s(report, seconds))

        ended_s = report["end_s"] if trial["finished_s"] is None else trial["finished_s"]
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
        began_ms = round(1000 * _began_at(report))
        try:
            client, name = MlflowClient(uri), f"hscheduler-{report['policy']}"
            known = client.get_experiment_by_name(name)
            experiment = client.create_experiment(name) if known is None else known.experiment_id
            for trial in report["trials"]:
                log(client, experiment, report, trial, began_ms)
        except (MlflowException, OSError) as error:
            raise StorageError(f"mlflow: {uri} does not take the trials: {error}") from error

    return export


def _for_optuna(url: str) -> Export:
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(f"optuna_storage needs Optuna ({error}): pip install '.[optuna]' in EPS's folder") from None

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = optuna.storages.get_storage(url)
    except Exception as error:
        # Optuna and SQLAlchemy raise arbitrary exceptions for a URL or a database that they cannot use.
        told = str(error).strip().partition("\n")[0]
        raise ConfigError(f"optuna_storage is {url!r}, which Optuna cannot use: {told}") from None

    def export(report: Mapping[str, Any]) -> None:
        known = {study.study_name for study in optuna.get_all_study_summaries(storage)}
        first = str(report.get("name") or f"hscheduler-{report['policy']}")
        name, number = first, 1
        while name in known:
            number += 1
            name = f"{first}-{number}"
        try:
            study = optuna.create_study(
                storage=storage, study_name=name, direction=report.get("direction") or "minimize"
            )
            for key in ("metric", "policy"):
                study.set_user_attr(key, report[key])
            distributions = _distributions(optuna.distributions, report)
            study.add_trials([_frozen(optuna.trial, trial, report, distributions) for trial in report["trials"]])
        except Exception as error:
            told = str(error).strip().partition("\n")[0]
            raise StorageError(f"optuna_storage: {url} does not take the trials: {told}") from error

    return export


def _began_at(report: Mapping[str, Any]) -> float:
    """Return when a sweep began, in seconds since 1970; if it was simulated, as if it ended now."""
    known: float | None = report.get("began_at")
    return time.time() - report["makespan_s"] if known is None else known


def _passed_s(report: Mapping[str, Any], at_s: float) -> float:
    """Return the seconds from the begin of a sweep to a time of its report, also those in which no scheduler ran."""
    for from_s, until_s in report["down"]:
        if at_s > from_s:
            at_s += until_s - from_s
    return at_s


def _frozen(
    optuna_trial: Any, trial: Mapping[str, Any], report: Mapping[str, Any], distributions: Mapping[str, Any]
) -> Any:
    """Return a trial as Optuna's; its curve of the sweep's metric gives the intermediate values."""
    states = optuna_trial.TrialState
    ended = {Phase.FINISHED: states.COMPLETE, Phase.KILLED: states.PRUNED, Phase.FAILED: states.FAIL}
    state = ended.get(Phase(trial["phase"]), states.WAITING if trial.get("started_s") is None else states.RUNNING)
    if state is states.COMPLETE and trial["loss"] is None:
        state = states.FAIL
    began = datetime.fromtimestamp(_began_at(report))
    started_s = trial["arrived_s"] if trial.get("started_s") is None else trial["started_s"]
    ended_s = report["end_s"] if trial["finished_s"] is None else trial["finished_s"]
    curve = trial["curve"] if report["metric"] == "loss" else trial["values"]
    spec = report["spec"]
    values = {int(iteration): float(value) for _, iteration, value in curve}
    if not values and trial["feedback"] is not None and spec is not None:
        values = {int(spec["sweep"]["feedback_iteration"]): float(trial["feedback"])}
    point = {name: _categorical(value) for name, value in trial["point"].items()}
    return optuna_trial.FrozenTrial(
        number=-1,
        trial_id=-1,
        state=state,
        # As Optuna itself does: a pruned trial has its latest value.
        value=trial["latest"] if state in (states.COMPLETE, states.PRUNED) else None,
        datetime_start=None if state is states.WAITING else began + timedelta(seconds=_passed_s(report, started_s)),
        datetime_complete=began + timedelta(seconds=_passed_s(report, ended_s)) if state.is_finished() else None,
        params=point,
        distributions={name: distributions[name] for name in point},
        user_attrs={"trial": trial["job_id"], "why": trial["why"], "job": trial.get("name", "")},
        system_attrs={},
        intermediate_values=values,
    )


def _distributions(optuna_distributions: Any, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the distribution of each setting: as the sweep's space says, and wide enough for the points tried."""
    found = {}
    space = (report.get("spec") or {}).get("space", {})
    for name in dict.fromkeys(name for trial in report["trials"] for name in trial["point"]):
        values = [_categorical(trial["point"][name]) for trial in report["trials"] if name in trial["point"]]
        declared = space.get(name)
        kind, given = next(iter(declared.items()), ("", [])) if isinstance(declared, Mapping) else ("", [])
        if kind == "choice" or not all(type(value) in (int, float) for value in values):
            # A choice among sub-spaces names no value of its own.
            options = [value for value in given if not isinstance(value, Mapping)] if kind == "choice" else []
            choices = [_categorical(value) for value in options]
            found[name] = optuna_distributions.CategoricalDistribution(list(dict.fromkeys([*choices, *values])))
            continue
        bounds = [each for each in given[:2] if type(each) in (int, float)]
        low, high = min([*bounds, *values]), max([*bounds, *values])
        if all(type(value) is int for value in [*values, *bounds]):
            found[name] = optuna_distributions.IntDistribution(low, high)
        else:
            found[name] = optuna_distributions.FloatDistribution(low, high, log=kind == "loguniform" and low > 0)
    return found


def _categorical(value: Any) -> Any:
    """Return a value as Optuna keeps it: only numbers, texts, booleans and None."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
