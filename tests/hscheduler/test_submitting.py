"""Commands send absolute file names to a service, which runs in another directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eps.job.client import Job
from eps.spec.file import RunRequest, located
from eps.spec.job_spec import SETTINGS, JobSpec
from eps.spec.results import deliver_results
from eps.storage.jobdir import create_job_dir
from hscheduler import cli
from hscheduler.cli.commands import remote, sweep
from hscheduler.core.jobs import Phase
from hscheduler.live.submission import Submission
from hscheduler.live.sweep import Sweep
from hscheduler.spec import Spec


class Client:
    """Stands in for a client: records its calls."""

    def __init__(self) -> None:
        self.jobs: list[tuple[str, JobSpec, str]] = []
        self.sweeps: list[tuple[dict[str, Any], str]] = []

    def run_sweep(self, tables: dict[str, Any], name: str) -> str:
        self.sweeps.append((tables, name))
        return name

    def report(self, name: str) -> tuple[dict[str, Any], bool]:
        return {}, False

    def deliver(self, submission: Submission, request: RunRequest) -> None:
        deliver_results(Job.find(submission.name).directory, request)

    def submit_job(self, job_id: str, spec: JobSpec, sweep: str) -> Submission:
        self.jobs.append((job_id, spec, sweep))
        return Submission("a", sweep, "name", spec)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "here"
    found.mkdir()
    monkeypatch.chdir(found)
    for name in ("x.csv", "y.npy", "t.csv", "u.npy", "m.npz", "own.py"):
        (found / name).touch()
    return found


FILES = {
    "data": "x.csv",
    "labels": "y.npy",
    "test": "t.csv",
    "test_labels": "u.npy",
    "init": "m.npz",
    "model": "own.py:Net",
}


def test_files_of_a_job_count_from_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    monkeypatch.setattr(remote, "client_of", lambda args: client)
    path = folder / "job.toml"
    path.write_text("".join(f'{name.replace("_", "-")} = "{value}"\n' for name, value in FILES.items()))
    monkeypatch.chdir(folder.parent)
    assert cli.main(["submit", str(path), "--name", "a", "--sweep", "s"]) == 0
    ((job_id, spec, sweep),) = client.jobs
    assert (job_id, sweep) == ("a", "s")
    assert {name: spec.values()[name] for name in FILES} == {name: f"{folder}/{file}" for name, file in FILES.items()}


@pytest.mark.parametrize("phase", ["finished", "failed"])
def test_report_and_model_of_a_job_go_where_its_file_says_when_it_has_ended(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], phase: str
) -> None:
    """A job that never ran has no results; without --wait no process would write them."""
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    client = Client()
    monkeypatch.setattr(remote, "client_of", lambda args: client)

    def wait(submission: Submission) -> None:
        submission.end(Phase(phase))
        if phase == "finished":
            directory, lock = create_job_dir("name")
            lock.close()
            directory.report.write_text("{}")
            directory.model.write_bytes(b"npz")

    ended = dict.fromkeys(("workers", "servers", "iteration", "iterations"), 0)
    ended |= {"job_id": "a", "phase": phase, "why": "", "is_over": True, "metric": "loss", "value": None}
    monkeypatch.setattr(Client, "wait", lambda _, submission: wait(submission), raising=False)
    monkeypatch.setattr(Client, "job", lambda _, job_id: ended, raising=False)
    (folder / "job.toml").write_text('data = "x.csv"\nreport = "r.json"\nexport = "model.npz"\n')
    assert cli.main(["submit", str(folder / "job.toml")]) == 2
    assert f"report is {folder}/r.json, but " in capsys.readouterr().err and not client.jobs
    code = cli.main(["submit", str(folder / "job.toml"), "--wait"])
    if phase == "finished":
        assert code == 0 and (folder / "r.json").read_text() == "{}" and (folder / "model.npz").read_bytes() == b"npz"
    else:
        assert code == 1 and not (folder / "r.json").exists()
    (folder / "job.toml").write_text('data = "x.csv"\nreport = "none/r.json"\n')
    client.jobs.clear()
    assert cli.main(["submit", str(folder / "job.toml"), "--wait"]) == 2
    assert f"its folder {folder}/none must exist" in capsys.readouterr().err and not client.jobs


def test_files_of_a_sweep_count_from_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "sweep.toml"
    path.write_text("[job]\n" + "".join(f'{name.replace("_", "-")} = "{value}"\n' for name, value in FILES.items()))
    monkeypatch.chdir(folder.parent)
    spec = Spec.read(path)
    assert {name: spec.job_spec().values()[name] for name in FILES} == {n: f"{folder}/{f}" for n, f in FILES.items()}
    path.write_text('[job]\ndata = "x.csv, t.csv"\ntest = "gone.csv"\n')
    job = Spec.read(path).job_spec()
    assert job.data == f"{folder}/x.csv,{folder}/t.csv" and job.test == f"{folder}/gone.csv"


def test_values_that_name_no_file_stay_as_they_are(folder: Path) -> None:
    (folder / "svm").touch()
    path = folder / "sweep.toml"
    path.write_text('[job]\ndata = "sklearn:digits"\ntest = "0.2"\nmodel = "svm"\ninit = ""\nl2 = 0.5\n')
    known = {"data": "sklearn:digits", "test": "0.2", "model": "svm", "init": "", "l2": 0.5}
    assert dict(Spec.read(path).job) == known
    path.write_text('[job]\ndata = ["x.csv"]\n[space]\nfeatures = { randint = [1, 9] }\n')
    assert Spec.read(path).job_spec().data == f"{folder}/x.csv"


def test_every_setting_that_may_be_a_path_counts_from_the_file() -> None:
    paths = {setting.name for setting in SETTINGS.values() if "PATH" in setting.metavar}
    assert {name for name in paths if located(name, "x", Path("/a")) in ("/a/x", ["/a/x"])} == paths


def test_files_that_a_sweep_searches_count_from_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "sweep.toml"
    text = '[space]\nmodel = { choice = ["svm", "own.py:Net"] }\ndata = { choice = ["x.csv", "sklearn:digits"] }\n'
    path.write_text(f"{text}l2 = {{ uniform = [0, 1] }}\n")
    monkeypatch.chdir(folder.parent)
    assert Spec.read(path).tables()["space"] == {
        "model": {"choice": ["svm", f"{folder}/own.py:Net"]},
        "data": {"choice": [f"{folder}/x.csv", "sklearn:digits"]},
        "l2": {"uniform": [0, 1]},
    }


def test_a_service_gets_absolute_names_of_a_sweeps_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    monkeypatch.setattr(sweep, "client_of", lambda args: client)
    path = folder / "sweep.toml"
    path.write_text('[sweep]\ntrials = 5\n[job]\ndata = "x.csv"\n')
    monkeypatch.chdir(folder.parent)
    flags = ["--state", str(folder), "--detach", "--trials", "3", "--name", "mine"]
    assert cli.main(["sweep", str(path), *flags]) == 0
    ((tables, name),) = client.sweeps
    assert tables["job"] == {"data": f"{folder}/x.csv"} and tables["sweep"]["trials"] == 3 and name == "mine"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--detach"], "detach is only for sweeps in a service: add --state DIR or --scheduler HOST:PORT"),
        (["--state", "state", "--policy", "elastic"], "policy is not possible with a service"),
        (["--state", "state", "--web", "0"], "web is not possible with a service"),
        (["--state", "state", "--detach", "--report", "r.json"], "report is not possible with detach"),
        (["--state", "state", "--detach", "--mlflow", "mlruns"], "mlflow is not possible with detach"),
    ],
)
def test_flags_that_would_have_no_effect_are_refused(
    flags: list[str], why: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Client()
    monkeypatch.setattr(sweep, "client_of", lambda args: client)
    monkeypatch.setattr(Sweep, "run", lambda sweep: pytest.fail("it was begun here"))
    path = folder / "sweep.toml"
    path.write_text('[job]\ndata = "sklearn:digits"\n[sweep]\ntrials = 1\n')
    assert cli.main(["sweep", str(path), *flags]) == 2
    assert why in capsys.readouterr().err and not client.sweeps
