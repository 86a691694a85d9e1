"""Files have the keys of the tables, and the environment says what it says there."""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import io
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eps
from tests.surface.conftest import Served, Swept, Trained, toml_of
from tests.surface.programs import Ended, call, misfits, run
from tests.surface.table_commands import CORE_FLAGS, MORE_FLAGS, POLICIES, RESULT_FLAGS, Flag
from tests.surface.table_files import (
    COMPARISON,
    ENVIRONMENT,
    EVALUATED,
    EXTRAS,
    FOLDS_REPORT,
    JOB_REPORT,
    JOB_STATES,
    LISTED,
    LIVE_STATUS,
    MODEL_ARRAYS,
    MODEL_META,
    PREDICTED,
    PROGRAMS,
    REGRESSION_METRICS,
    RESULT_COLUMNS,
    SERVICE_JOB,
    SERVICE_JOBS,
    SHA256_DIGITS,
    SIMULATED_REPORT,
    STATUS,
    SWEEP_FILE,
    SWEEP_REPORT,
    SWEEP_WORDS,
    TRIAL_PHASES,
)

ROOT = Path(__file__).resolve().parents[2]


def told(ended: Ended) -> Any:
    assert ended.code == 0, ended
    return json.loads(ended.out)


# ---- jobs


def test_the_report_of_a_job(trained: Trained) -> None:
    report = trained.report
    assert not misfits(JOB_REPORT, report)
    assert report["state"] in JOB_STATES and len(report["model_sha256"]) == SHA256_DIGITS
    assert [entry["clock"] for entry in report["history"]] == list(range(31)), "of 30 iterations, and what they led to"
    assert not misfits(EVALUATED, report["history"][-1])
    assert report["changes"][0]["operation"] == "add-workers" and report["changes"][0]["asked"] == 1
    assert report["ledger"]["applied"] == report["ledger"]["expected"]
    assert report == eps.Job.find("trained").report()


def test_the_report_of_a_cross_validation(folder: Path) -> None:
    report = eps.run(data=folder / "rows.svm", model="softmax", workers=1, servers=1, iterations=5, folds=2)
    assert not misfits(FOLDS_REPORT, report)
    assert len(report["folds"]) == 2


@pytest.mark.parametrize("name", ["live", "trained"])
def test_the_status_of_a_job(name: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(name)
    status = told(call("eps", ["status", name, "--json"]))
    assert not misfits(LIVE_STATUS if name == "live" else STATUS, status)
    assert status["state"] == {"live": "running", "trained": "finished"}[name]
    with eps.Job.find(name) as job:
        assert status.keys() == job.status().keys()


def test_the_list_of_jobs(trained: Trained, live: eps.Job) -> None:
    found = told(call("eps", ["list", "--json"]))
    assert not misfits(LISTED, found)
    assert {"trained", "live"} <= {job["name"] for job in found}
    assert {job["state"] for job in found} <= JOB_STATES


def test_an_exported_model_is_read_without_eps(trained: Trained) -> None:
    digest = hashlib.sha256()
    with np.load(trained.model, allow_pickle=False) as arrays:
        meta = json.loads(bytes(arrays["__meta__"]))
        assert not misfits(MODEL_META, meta)
        for name, shape in meta["tensors"]:
            assert (str(arrays[name].dtype), arrays[name].shape) == MODEL_ARRAYS[name]
            assert list(arrays[name].shape) == shape
            digest.update(arrays[name].tobytes())
    assert {name for name, _ in meta["tensors"]} == MODEL_ARRAYS.keys()
    assert digest.hexdigest() == trained.report["model_sha256"]


def test_predictions(trained: Trained, folder: Path) -> None:
    out = folder / "classes.txt"
    words = ["predict", "--model", str(trained.model), "--data", str(folder / "rows.svm"), "--json", "--out", str(out)]
    found = told(call("eps", words))
    assert not misfits(PREDICTED, found)
    lines = out.read_text().splitlines()
    assert len(lines) == found["rows"] == 120 and set(lines) <= {"0", "1", "2"}


# ---- files with settings


@pytest.mark.parametrize("flag", (*RESULT_FLAGS, *CORE_FLAGS, *MORE_FLAGS), ids=lambda flag: " ".join(flag.words))
def test_a_flag_is_a_key_of_a_job_file_and_an_argument_in_python(flag: Flag, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    # That the report cannot be written is found when all keys are read.
    sentinel = ("--export" if flag.flag == "--report" else "--report", "nowhere/at/all")
    for key in {flag.key, flag.key.replace("_", "-")}:
        for name, is_known in ((key, True), (f"{key}-x", False)):
            path.write_text(f"{name} = {json.dumps(flag.value)}\n")
            ended = call("eps", ["run", str(path), *sentinel])
            assert ended.code == 2 and ("nowhere/at/all" in ended.err) == is_known, ended
    if flag not in RESULT_FLAGS:
        settings = eps.JobSpec.from_dict({flag.key: flag.value}).values()
        found = settings[flag.key] if flag.key in settings else settings[f"{flag.key}_s"]
        assert found in (flag.value, str(flag.value), tuple(flag.value) if isinstance(flag.value, list) else None)


USERS_MODEL = """
import numpy as np

from eps.ml.layout import TensorSpec
from eps.ml.models import Model


class Mean(Model):
    task = "regression"
    options = {"slope": 1.0}

    def tensors(self):
        return (
            TensorSpec("weights", (self.num_features,), rows_are_features=True),
            TensorSpec("intercept", (1,), penalised=False, init_scale=0.1),
        )

    def decision(self, params, X):
        return np.asarray(self.chosen["slope"] * (X @ params["weights"]) + params["intercept"], np.float32)

    def loss_and_gradient(self, params, X, y):
        off = self.decision(params, X) - y
        gradient = {"weights": np.float32(self.chosen["slope"]) * (X.T @ off), "intercept": off.sum(keepdims=True)}
        return float(off @ off) / 2, gradient
"""


def test_a_job_file_with_a_model_of_the_users_own_and_flags_over_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USERS_MODEL)
    (tmp_path / "rows.svm").write_text((folder / "rows.svm").read_text())
    (tmp_path / "job.toml").write_text(
        'name = "file"\nmodel = "mine.py:Mean"\nmodel_options = \'{"slope": 2.0}\'\ndata = ["rows.svm"]\n'
        "test = 0.25\nworkers = 1\nservers = 1\niterations = 1000\nlearning-rate = 0.5\nstretch = 0.0\n"
        'report = "report.json"\ncheckpoint-every = "2"\n[checkpoints]\nkeep = 3\ncheckpoint-dir = "saved"\n'
        '[yarn]\nqueue = "research"\n'
    )
    # Paths count from the file's folder, not from that of the command.
    ended = run("eps", "run", tmp_path / "job.toml", "--iterations", "5", "--quiet", cwd=folder)
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["name"], report["clock"], report["settings"]["learning_rate"]) == ("file", 5, 0.5)
    found = {key: report["settings"][key] for key in ("keep", "checkpoint_dir", "queue")}
    assert found == {"keep": 3, "checkpoint_dir": str(tmp_path / "saved"), "queue": "research"}
    assert not misfits(REGRESSION_METRICS, report["metrics"]["test"])


def test_a_sweep_file_reaches_the_sweep(swept: Swept, folder: Path) -> None:
    # Paths count from the file's folder.
    rows = str(folder / "rows.svm")
    job, sweep = {**SWEEP_FILE["job"], "data": rows}, {**SWEEP_FILE["sweep"], "final_test": rows}
    wanted = {**SWEEP_FILE, "job": job, "sweep": sweep}
    found = swept.report["spec"]
    for section, table in wanted.items():
        for key, value in table.items():
            assert found[section][key] == value, key
    assert {key for trial in swept.report["trials"] for key in trial["point"]} == wanted["space"].keys()


@pytest.mark.parametrize(("key", "word"), [(key, word) for key, words in SWEEP_WORDS.items() for word in words])
def test_a_word_of_a_sweep_file(key: str, word: str, tmp_path: Path) -> None:
    sweep = {"trials": 1, "metric": "loss", "direction": "minimize", "feedback_iteration": 5, key: word}
    path, report = tmp_path / "sweep.toml", tmp_path / "report.json"
    path.write_text(toml_of({"sweep": sweep, "job": {**SWEEP_FILE["job"], "iterations": 10}}))
    assert call("hscheduler", ["simulate", str(path), "--report", str(report)]).code == 0
    assert json.loads(report.read_text())["spec"]["sweep"][key] == word


@pytest.mark.parametrize("section", SWEEP_FILE)
def test_a_key_that_there_is_not_is_refused(section: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(f"[{section}]\nno_such_key = 1\n")
    ended = call("hscheduler", ["simulate", str(path)])
    assert ended.code == 2 and "no_such_key" in ended.err


# ---- sweeps


def test_the_report_of_a_sweep(swept: Swept, folder: Path) -> None:
    report = swept.report
    assert not misfits(SWEEP_REPORT, report)
    assert report["policy"] == "elastic" and report["resources"] == {"leaked": 0}
    assert not misfits({"test": {"accuracy": float, "f1": float}}, report["best"])
    assert {trial["phase"] for trial in report["trials"]} <= TRIAL_PHASES and len(report["trials"]) == 3
    for trial in report["trials"]:
        assert eps.Job.find(trial["name"]).status()["state"] in JOB_STATES
    assert "trial-1" in (folder / "sweep.html").read_text()


def test_the_report_of_a_comparison(folder: Path, sweep_file: Path) -> None:
    path = folder / "compare.json"
    words = ["--policies", "elastic,static", "--trials", "1", "--report", str(path), "--quiet"]
    assert call("hscheduler", ["compare", str(sweep_file), *words]).code == 0
    found = json.loads(path.read_text())
    assert not misfits(COMPARISON, found)
    assert found["policies"].keys() == {"elastic", "static"} and found["makespan_over"]["of"] == "elastic"


def test_the_report_of_a_simulation(tmp_path: Path, sweep_file: Path) -> None:
    one, several = tmp_path / "one.json", tmp_path / "several.json"
    assert call("hscheduler", ["simulate", str(sweep_file), "--report", str(one)]).code == 0
    assert not misfits(SIMULATED_REPORT, json.loads(one.read_text()))
    words = ["simulate", str(sweep_file), "--policy", ",".join(POLICIES), "--report", str(several)]
    assert call("hscheduler", words).code == 0
    found = json.loads(several.read_text())
    assert not misfits(dict.fromkeys(POLICIES, SIMULATED_REPORT), found)
    assert all(report["policy"] == policy for policy, report in found.items())


def test_what_is_made_of_a_sweep_report(swept: Swept, tmp_path: Path) -> None:
    model, page, fitted, like = (str(tmp_path / name) for name in ("m.npz", "p.html", "m.json", "l.json"))
    ended = call("hscheduler", ["results", str(swept.path), "--csv", "--export-best", model])
    rows = list(csv.reader(io.StringIO(ended.out)))
    metric, point = swept.report["metric"], swept.report["trials"][0]["point"]
    columns = [metric if name == "loss" else name for name in RESULT_COLUMNS]
    assert ended.code == 0 and rows[0] == [*columns, *point] and len(rows) == 4
    with np.load(model) as arrays:
        assert "__meta__" in arrays
    assert call("hscheduler", ["page", str(swept.path), "--out", page]).code == 0
    assert "trial-1" in Path(page).read_text()
    assert call("hscheduler", ["fit", str(swept.path), "--model", fitted]).code == 0
    words = ["simulate", "--like", str(swept.path), "--model", fitted, "--report", like]
    assert call("hscheduler", words).code == 0
    assert json.loads(Path(like).read_text())["policy"] == "elastic"


def test_the_jobs_of_a_service(served: Served, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(f'data = "{folder}/rows.svm"\nmodel = "softmax"\nworkers = 1\nservers = 1\niterations = 10\n')
    state = ["--state", str(served.state)]
    assert call("hscheduler", ["submit", str(path), "--name", "mine", "--sweep", "ours", "--wait", *state]).code == 0
    found = told(call("hscheduler", ["jobs", "ours", "--all", "--json", *state]))
    assert not misfits(SERVICE_JOBS, found)
    assert [(job["job_id"], job["sweep"], job["phase"]) for job in found["jobs"]] == [("mine", "ours", "finished")]
    with served.client() as client:
        assert not misfits(SERVICE_JOB, client.job("mine"))
    assert eps.Job.find(found["jobs"][0]["name"]).status()["state"] == "finished"
    assert call("hscheduler", ["why", "mine", *state]).code == 0
    assert call("hscheduler", ["kill", "mine", *state]).code == 0, "harmless: it is over"
    report = tmp_path / "report.json"
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(toml_of({"sweep": {"trials": 1}, "job": tomllib.loads(path.read_text())}))
    words = ["sweep", str(sweep), "--name", "small", "--scheduler", served.address, "--report", str(report), *state]
    assert call("hscheduler", words).code == 0
    found = json.loads(report.read_text())
    assert not misfits({**SWEEP_REPORT, "best": {"job_id": str}, "trials": [{"job_id": str}]}, found)
    assert call("hscheduler", ["results", "small", *state]).code == 0


# ---- the package, and the environment


def test_extras_and_programs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert EXTRAS <= project["optional-dependencies"].keys()
    for name, target in PROGRAMS.items():
        (found,) = importlib.metadata.entry_points(group="console_scripts", name=name)
        assert found.value == project["scripts"][name] == target
        ended = run(name, "--version")
        assert (ended.code, ended.out) == (0, f"{name} {eps.__version__}\n")


def test_the_environment(
    folder: Path, closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    rows = str(folder / "rows.svm")
    seen: dict[str, bool] = {}
    monkeypatch.setenv("DOCKER_HOST", f"tcp://{closed}")
    seen["DOCKER_HOST"] = closed in call("eps", ["run", "--on", "docker", "--data", rows]).err
    request.getfixturevalue("hadoop_is_away")
    seen["HADOOP_CONF_DIR"] = closed in call("eps", ["submit", "--data", rows]).err
    words = ["run", "--data", f"webhdfs://{closed}/x.svm"]
    # The fixture has set it to 0, and this ends at once.
    seen["EPS_HDFS_PATIENCE_S"] = "EPS_HDFS_PATIENCE_S" in call("eps", words).err
    monkeypatch.setenv("EPS_HDFS_TOKEN", "none")
    seen["EPS_HDFS_TOKEN"] = "EPS_HDFS_TOKEN" in call("eps", words).err
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "another"))
    seen["EPS_HOME"] = told(call("eps", ["list", "--json"])) == []
    assert seen == dict.fromkeys(ENVIRONMENT, True)
