"""What scripts call from Python: names, parameters, and what comes of a call."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import eps
import hscheduler
from eps import errors
from hscheduler.service.client import SchedulerClient
from tests.surface.conftest import Served
from tests.surface.programs import DEADLINE_S, misfits, wait_until
from tests.surface.table_files import CHANGE, JOB_REPORT, LIVE_STATUS, SERVICE_JOB, STATUS, SWEEP_REPORT
from tests.surface.table_python import ERRORS, KINDS_OF, MODULES, PROPERTIES, SIGNATURES

#: What short jobs have in common.
SHORT: dict[str, Any] = {"model": "softmax", "workers": 1, "servers": 1, "iterations": 10}


def named(path: str) -> Any:
    """Return what a dotted name of the table stands for."""
    module = max((name for name in MODULES if path.startswith(f"{name}.")), key=len)
    found: Any = importlib.import_module(module)
    for name in path.removeprefix(f"{module}.").split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_its_names(module: str) -> None:
    found = importlib.import_module(module)
    assert not [name for name in MODULES[module] if not hasattr(found, name)]


@pytest.mark.parametrize("path", SIGNATURES)
def test_a_call_is_possible_as_the_table_says(path: str) -> None:
    wanted = inspect.signature(eval(f"lambda {SIGNATURES[path]}: None"))
    found = dict(inspect.signature(named(path)).parameters)
    found.pop("self", None)
    for position, parameter in enumerate(wanted.parameters.values()):
        ours = found.get(parameter.name)
        assert ours is not None, f"{path} has no parameter {parameter.name}"
        assert ours.default == parameter.default, parameter.name
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            assert ours.kind is parameter.kind and list(found).index(parameter.name) == position, parameter.name
        elif parameter.kind is parameter.KEYWORD_ONLY:
            assert ours.kind in (parameter.kind, parameter.POSITIONAL_OR_KEYWORD), parameter.name
        else:
            assert ours.kind is parameter.kind, parameter.name
    needed = [
        p.name for p in found.values() if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    assert not set(needed) - wanted.parameters.keys(), "what the table calls without it fails"


@pytest.mark.parametrize("path", PROPERTIES)
def test_a_property_is_one(path: str) -> None:
    assert isinstance(named(path), property)


def test_errors_can_be_caught() -> None:
    for name, kinds in ERRORS.items():
        assert issubclass(getattr(errors, name), (errors.EpsError, Exception)), name
        assert all(issubclass(getattr(errors, name), kind) for kind in kinds), name
        assert issubclass(getattr(errors, name), errors.EpsError)
    for name, kind in KINDS_OF.items():
        assert issubclass(getattr(errors, name), getattr(errors, kind)), name


# ---- jobs


def test_run_returns_the_report_and_writes_the_results(folder: Path, tmp_path: Path) -> None:
    path, model = tmp_path / "r.json", tmp_path / "m.npz"
    report = eps.run(
        name="run", data=folder / "rows.svm", test=0.25, **SHORT, at=["3:add-workers=1"], checkpoint_every=4,
        report=path, export=str(model),
    )  # fmt: skip
    assert not misfits(JOB_REPORT, report)
    assert json.loads(path.read_text()) == report and model.stat().st_size > 0
    # A job that has finished makes room for the next one of its name.
    again = eps.run(name="run", data=folder / "rows.svm", init=model, **SHORT)
    assert again["history"][0]["loss"] < report["history"][0]["loss"]


@pytest.mark.parametrize("kind", ["array", "sparse", "frame"])
def test_ones_own_data_is_trained_on_and_predicted(kind: str, tmp_path: Path) -> None:
    import numpy as np

    rng = np.random.default_rng(3)
    X = rng.normal(size=(90, 4))
    y = np.where(X[:, 1] > 0.6, "high", np.where(X[:, 1] < -0.6, "low", "7"))
    given: dict[str, Any] = {"data": X, "labels": y, "test": (X[:20], y[:20])}
    if kind == "sparse":
        sparse = pytest.importorskip("scipy.sparse")
        given |= {"data": sparse.csr_array(X), "test": (sparse.csr_array(X[:20]), y[:20])}
    elif kind == "frame":
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(X, columns=["a", "b", "c", "d"]).assign(level=y)
        given = {"data": frame, "labels": "level", "test": frame[:20]}
    settings = {**SHORT, "iterations": 40, "optimizer": "adam", "learning_rate": 0.2}
    report = eps.run(name=f"own-{kind}", **given, **settings, export=tmp_path / "m.npz")
    assert report["metrics"]["test"]["accuracy"] > 0.8
    model = eps.load(tmp_path / "m.npz")
    assert model.classes == ("7", "high", "low")
    rows = frame if kind == "frame" else given["data"]
    found = model.predict(rows)
    assert (found == y).mean() > 0.8
    chances = model.predict_proba(rows)
    assert np.allclose(chances.sum(axis=1), 1, atol=1e-6)
    assert (np.array(model.classes)[chances.argmax(axis=1)] == found).all()
    with pytest.raises(errors.DataError, match=r"3 columns, .* 4 features"):
        model.predict(X[:, :3])


def test_a_job_is_started_found_waited_for_and_exported(folder: Path, tmp_path: Path) -> None:
    spec = eps.JobSpec.from_dict({"data": str(folder / "rows.svm"), **SHORT, "iterations": 60, "stretch": 0.001})
    with eps.Job.start(spec, name="started") as job:
        assert job.name == "started" and job.running
        with pytest.raises(errors.DeadlineError):
            job.wait(timeout_s=0.0)
        report = job.wait()
        assert not job.running and report["state"] == "finished"
        assert job.report() == report == eps.Job.find("started").report()
        assert not misfits(STATUS, job.status())
        assert [entry["clock"] for entry in job.history()] == list(range(61))
        job.export(tmp_path / "m.npz")
        assert (tmp_path / "m.npz").stat().st_size > 0
        job.kill()
    with pytest.raises(errors.JobFinishedError):
        job.add_workers(1)
    with pytest.raises(errors.JobFinishedError):
        eps.Job.resume("started")


def test_a_job_ends_with_its_context_and_is_resumed_detached(folder: Path) -> None:
    with eps.Job.start(name="left", data=folder / "rows.svm", **{**SHORT, "iterations": 100_000}) as job:
        wait_until(lambda: job.status()["clock"] > 0, "the first iteration")
    wait_until(lambda: not job.running, "the end of the job")
    with pytest.raises(errors.JobFinishedError):
        eps.Job.attach("left")
    resumed = eps.Job.resume("left", workers=2, detach=True)
    resumed.close()
    found = eps.Job.attach("left")
    wait_until(lambda: found.status()["clock"] > 0, "the first iteration")
    assert found.status()["workers"] == 2
    found.kill()
    assert found.wait()["state"] == found.status()["state"] == "killed"
    found.close()


def members(job: eps.Job, role: str) -> list[str]:
    return [member["name"] for member in job.status()["members"] if member["role"] == role]


@pytest.mark.parametrize("role", ["worker", "server"])
def test_a_job_grows_and_shrinks_and_the_same_request_counts_once(role: str, live: eps.Job) -> None:
    found = eps.Job.find("live")
    add, remove = getattr(live, f"add_{role}s"), getattr(found, f"remove_{role}s")
    before = members(live, role)
    first = add(2, request_id=f"add-{role}")
    assert not misfits(CHANGE, first)
    assert (first["operation"], first["phase"], first["asked"]) == (f"add-{role}s", "released", 2)
    assert add(2, request_id=f"add-{role}")["plan_id"] == first["plan_id"]
    after = members(live, role)
    assert sorted(after) == sorted([*before, *first["added"]]) and len(first["added"]) == 2
    assert live.status()[f"{role}s"] == len(after)
    # By name, then by number: without an id each is a new request.
    assert remove([first["added"][0]], request_id=f"remove-{role}")["removed"] == first["added"][:1]
    assert remove([first["added"][0]], request_id=f"remove-{role}")["removed"] == first["added"][:1]
    assert len(members(live, role)) == len(before) + 1
    assert remove(1)["removed"] == first["added"][1:]
    assert sorted(members(live, role)) == sorted(before)
    assert live.plan(first["plan_id"])["phase"] == "released"
    found.close()


def test_a_job_is_scaled_by_one_plan(live: eps.Job) -> None:
    before = (members(live, "worker"), members(live, "server"))
    scaled = live.scale(workers=+2, servers=-1, request_id="scale")
    assert not misfits(CHANGE, scaled)
    assert (scaled["operation"], scaled["asked"], scaled["phase"]) == ("scale", "workers=+2,servers=-1", "released")
    assert (len(scaled["added"]), scaled["removed"]) == (2, before[1][-1:])
    assert live.scale(workers=+2, servers=-1, request_id="scale")["plan_id"] == scaled["plan_id"]
    assert "server" in live.dry_run("scale", "workers=-2,servers=+1")
    assert live.scale(workers=-2, servers=+1)["removed"] == scaled["added"]
    with pytest.raises(errors.PlanError):
        live.scale(workers=-1, servers=-1000)
    assert [len(members(live, role)) for role in ("worker", "server")] == [len(each) for each in before]


def test_a_change_is_accepted_without_waiting_looked_at_and_refused(live: eps.Job) -> None:
    assert "worker" in live.dry_run("add-workers", 1)
    assert not misfits(LIVE_STATUS, live.status())
    record = live.add_workers(1, wait=False)
    try:
        assert live.cancel(record["plan_id"]) == record["plan_id"]
        wait_until(lambda: live.plan(record["plan_id"])["phase"] == "aborted", "the end of the plan")
    except errors.PlanError:
        # It was committed before.
        wait_until(lambda: live.plan(record["plan_id"])["phase"] == "released", "the end of the plan")
        live.remove_workers(1)
    for refused in (
        lambda: live.remove_workers(["worker-1000"]),
        lambda: live.remove_servers(1000),
        lambda: live.add_workers(1000),
        lambda: live.cancel(100_000),
        lambda: live.report(),
        lambda: live.plan(100_000),
    ):
        with pytest.raises(errors.PlanError):
            refused()


def test_what_cannot_work_is_raised(folder: Path, live: eps.Job) -> None:
    rows = folder / "rows.svm"
    for kind, call in (
        (errors.ConfigError, lambda: eps.run(data=rows, wrokers=3)),
        (errors.ConfigError, lambda: eps.run(data=rows, workers="many")),
        (errors.ConfigError, lambda: eps.JobSpec(workers=0)),
        (errors.DataError, lambda: eps.run(data=folder / "none.svm")),
        (errors.JobExistsError, lambda: eps.run(name="live", data=rows, **SHORT)),
        (errors.JobNotFoundError, lambda: eps.Job.find("no-such-job")),
        (
            errors.TrainingError,
            lambda: eps.run(
                data=rows, **{**SHORT, "model": "linear", "optimizer": "sgd", "learning_rate": 1e30, "iterations": 50}
            ),
        ),
    ):
        with pytest.raises(kind):
            call()


# ---- sweeps


def test_a_sweep_from_python(folder: Path, tmp_path: Path) -> None:
    tables = {
        "cluster": {"nodes": 2},
        "sweep": {"trials": 3, "algorithm": "random", "feedback_iteration": 5},
        "space": {"learning_rate": {"loguniform": [0.01, 1]}},
        "job": {"data": str(folder / "rows.svm"), **SHORT},
    }
    path, page = tmp_path / "r.json", tmp_path / "p.html"
    events: list[float] = []
    found = hscheduler.sweep(
        tables, policy="static", trials=2, seed=2, report=path, page=page, on_event=lambda at_s, *_: events.append(at_s)
    )
    assert isinstance(found, hscheduler.SweepReport) and not misfits(SWEEP_REPORT, dict(found))
    assert len(found["trials"]) == 2 and found["policy"] == "static"
    assert found.best_point == found["best"]["point"]
    assert found["best"]["loss"] == min(trial["loss"] for trial in found["trials"])
    assert json.loads(path.read_text()) == dict(found)
    assert page.exists() and events and str(found)
    found.write_page(tmp_path / "again.html")
    assert (tmp_path / "again.html").exists()
    with pytest.raises(errors.ConfigError):
        hscheduler.sweep({**tables, "sweep": {"trails": 3}})


def test_points_of_a_study_of_ones_own(folder: Path) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    space = {"learning_rate": {"loguniform": [0.01, 1]}}
    job = {"data": str(folder / "rows.svm"), **SHORT}
    found = hscheduler.sweep({"sweep": {"trials": 1}, "space": space, "job": job}, study=study)
    assert len(study.trials) == 1 and study.best_params == found.best_point


@pytest.mark.parametrize(("where", "evaluations"), [("its own scheduler", 3), ("a service", 1)])
def test_htrials_are_trials_of_hyperopt(
    where: str, evaluations: int, folder: Path, request: pytest.FixtureRequest
) -> None:
    hyperopt = pytest.importorskip("hyperopt")
    import numpy as np

    def objective(point: dict[str, Any]) -> dict[str, Any]:
        report = eps.run(data=folder / "rows.svm", **SHORT, **point)
        return {"status": hyperopt.STATUS_OK, "loss": report["metrics"]["train_loss"]}

    given: dict[str, Any] = {"parallelism": 2, "retries": 0}
    if where == "a service":
        given["state"] = request.getfixturevalue("served").state
    trials = hscheduler.HTrials(**given)
    best = hyperopt.fmin(
        objective,
        {"learning_rate": hyperopt.hp.loguniform("learning_rate", -4, 0)},
        algo=hyperopt.tpe.suggest,
        max_evals=evaluations,
        trials=trials,
        rstate=np.random.default_rng(2),
        show_progressbar=False,
    )
    assert isinstance(trials, hyperopt.Trials) and len(trials) == evaluations
    assert best == trials.argmin and trials.best_trial["result"]["loss"] == min(trials.losses())
    assert all(len(trial["misc"]["jobs"]) == 1 for trial in trials.trials)


def test_a_client_of_a_service(served: Served, folder: Path, tmp_path: Path) -> None:
    job = {"data": str(folder / "rows.svm"), **SHORT}
    with SchedulerClient(str(served.state)) as client, SchedulerClient(served.state, served.address) as other:
        submitted = client.submit_job("client-job", eps.JobSpec.from_dict(job), "client-jobs")
        # The same once more is the same job.
        assert other.submit_job("client-job", eps.JobSpec.from_dict(job), "client-jobs").name == submitted.name
        client.wait(submitted, timeout_s=DEADLINE_S)
        told = other.job("client-job")
        assert not misfits(SERVICE_JOB, told) and told["phase"] == "finished"
        jobs, scheduler = client.jobs("client-jobs")
        assert [each["job_id"] for each in jobs] == ["client-job"] and scheduler["policy"] == "elastic"
        client.save_model("client-job", str(tmp_path / "m.npz"))
        assert (tmp_path / "m.npz").stat().st_size > 0
        tables = {"sweep": {"trials": 2}, "space": {"learning_rate": {"choice": [0.1, 0.2]}}, "job": job}
        assert client.run_sweep(tables, "client-sweep") == "client-sweep"
        texts = [news.text for news in client.watch("client-sweep")]
        report, ended = client.report("client-sweep", wait_s=1.0)
        assert ended and texts and not misfits(SWEEP_REPORT, report)
        endless = client.submit_job("", eps.JobSpec.from_dict({**job, "iterations": 1_000_000}))
        assert client.cancel(endless.job_id, "enough") == [endless.job_id]
        client.wait(endless, timeout_s=DEADLINE_S)
        assert client.job(endless.job_id)["why"] == "enough"
        with pytest.raises(errors.JobNotFoundError):
            client.job("no-such-job")
        with pytest.raises(errors.ConfigError):
            client.submit_job("client-job", eps.JobSpec.from_dict({**job, "iterations": 11}))
