"""The service as a process: its jobs and sweeps survive a kill, and no other user's process gets access."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eps
from eps.errors import (
    ConfigError,
    JobNotFoundError,
    PeerUnavailableError,
    PlanError,
    StorageError,
)
from eps.job.client import Job
from eps.net.calls.call import call, channel
from eps.spec.job_spec import JobSpec
from eps.system.waits import wait_for
from hscheduler import cli
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.pb import scheduler_pb2 as pb
from hscheduler.pb.scheduler_pb2_grpc import HSchedulerStub
from hscheduler.record.sqlite import SqliteRecord
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from tests.fakes.slow_model import NO_GRADIENT, SlowModel, broken_model

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("home", "no_leftovers")

TIMEOUT_S = 120.0
JOB: dict[str, Any] = {
    "data": "sklearn:digits", "model": "softmax", "test": "0.2", "workers": 2, "servers": 1, "iterations": 60,
    "stretch_s": 0.002,
}  # fmt: skip
TABLES = {
    "sweep": {"trials": 4, "algorithm": "tpe", "threshold": 1, "feedback_iteration": 10, "seed": 3},
    "space": {"learning_rate": {"loguniform": [1e-3, 1]}},
    "job": JOB,
}


class Served:
    """A service's process, restarted with the same directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[str] | None = None

    def start(self, *flags: str) -> None:
        self._launch(*flags)
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("H-scheduler listens "), line + self.process.stdout.read()

    def start_in_vain(self, *flags: str) -> str:
        """Start a service that cannot work, and return its output."""
        self._launch(*flags)
        assert self.process is not None
        out, _ = self.process.communicate(timeout=TIMEOUT_S)
        assert self.process.returncode != 0, out
        self.process = None
        return out

    def _launch(self, *flags: str) -> None:
        code = "import sys; from hscheduler.cli import main; sys.exit(main(sys.argv[1:]))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "serve", "--state", str(self.directory), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def end(self, number: int) -> str:
        """Send a signal, wait for the end, and return the output."""
        assert self.process is not None
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=TIMEOUT_S)
        self.process = None
        return out

    def client(self) -> SchedulerClient:
        return SchedulerClient(ServiceDir(self.directory))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path / "service")
    found.start("--nodes", "2")
    yield found
    if found.process is None:
        # The remaining processes belong to a service that was killed.
        found.start()
    assert "ends its jobs and exits" in found.end(signal.SIGINT)


def test_a_job_is_submitted_waited_for_and_explained(served: Served, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "job.toml"
    path.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in JOB.items()))
    state = ["--state", str(served.directory)]
    assert cli.main(["submit", str(path), "--name", "digits", "--wait", *state]) == 0
    assert "digits has ended (finished, loss 0." in capsys.readouterr().out
    assert cli.main(["why", "digits", *state]) == 0
    assert capsys.readouterr().out.startswith("digits has ended (finished, loss 0.")
    assert cli.main(["jobs", "--all", *state]) == 0
    out = capsys.readouterr().out
    assert "digits  jobs   finished" in out and "elastic: 0 of 8 vcores in use" in out
    with served.client() as client:
        client.save_model("digits", tmp_path / "model.npz")
        with pytest.raises(ConfigError, match=r"'digits', .* another job"):
            client.submit_job("digits", JobSpec.from_dict({**JOB, "iterations": 7}))
        # A repeated submission is the same job.
        assert client.submit_job("digits", JobSpec.from_dict(JOB)).phase is Phase.FINISHED
        with pytest.raises(JobNotFoundError, match="there is no job 'nobody'"):
            client.job("nobody")
    assert (tmp_path / "model.npz").stat().st_size > 1000
    assert cli.main(["why", "nobody", *state]) == 4
    assert "there is no job 'nobody'" in capsys.readouterr().err


@pytest.fixture
def slow(tmp_path: Path) -> SlowModel:
    """Return the model of jobs that must not end while the service is down."""
    return SlowModel(tmp_path, 0.015)


def lasting(slow: SlowModel) -> JobSpec:
    """Return a job that lasts until it is hurried, or a dozen seconds and more."""
    return JobSpec.from_dict({**JOB, "model": slow.setting, "stretch_s": 0.0, "iterations": 200})


def test_jobs_outlive_a_killed_service_and_are_resumed(served: Served, slow: SlowModel) -> None:
    spec = lasting(slow)
    with served.client() as client:
        client.open_sweep(e.SweepOpened("mine", threshold=2, feedback_iteration=5))
        jobs = [client.submit_job(f"job-{number}", spec, "mine") for number in (1, 2, 3)]
        wait_for(lambda: client.job("job-1")["iteration"] > 10, TIMEOUT_S, "the first job to iterate")
        served.end(signal.SIGKILL)
        assert Job.find(client_name(served, "job-1")).running
        served.start()
        slow.hurry()
        for job in jobs:
            client.wait(job, TIMEOUT_S)
        assert {job.phase for job in jobs} <= {Phase.FINISHED, Phase.KILLED}
        assert sum(job.phase is Phase.FINISHED for job in jobs) >= 2
        report, _ = client.report("mine")
        assert report["resources"] == {"leaked": 0}
        for trial in report["trials"]:
            assert trial["arrived_s"] <= trial["started_s"] <= trial["finished_s"]


def client_name(served: Served, job_id: str) -> str:
    """Return the name of a job under EPS_HOME, from the record: no service runs."""
    with closing(SqliteRecord(served.directory / "record.sqlite")) as record:
        for entry in record.entries():
            if isinstance(entry.event, e.JobSubmitted) and entry.event.job_id == job_id:
                return str(entry.details["name"])
    raise AssertionError(f"{job_id} is not in the record")


def test_a_sweep_continues_without_its_client_and_after_a_kill_of_its_service(served: Served, capsys: Any) -> None:
    with served.client() as client:
        name = client.run_sweep(TABLES, "digits")
        assert client.run_sweep(TABLES, "digits") == name, "a repeated call is the same sweep"
        with pytest.raises(ConfigError, match="unused name"):
            client.run_sweep({**TABLES, "sweep": {"trials": 2}}, "digits")
        wait_for(lambda: client.report(name)[0]["decisions"], TIMEOUT_S, "the first decision")
    served.end(signal.SIGKILL)
    served.start()
    with served.client() as client:
        texts = [news.text for news in client.watch(name)]
        report, ended = client.report(name)
    assert ended and len(report["trials"]) == 4
    assert {trial["phase"] for trial in report["trials"]} <= {"finished", "killed"}
    assert report["best"]["point"] in [trial["point"] for trial in report["trials"]]
    assert any("finished" in text for text in texts)
    # The same from the running service, and from its record after its end.
    state = ["--state", str(served.directory)]
    assert cli.main(["results", "digits", "--csv", *state]) == 0
    running = capsys.readouterr().out
    assert len(running.splitlines()) == 5
    served.end(signal.SIGTERM)
    assert cli.main(["results", "digits", "--csv", *state]) == 0
    assert capsys.readouterr().out == running
    page = served.directory / "page.html"
    assert cli.main(["page", "digits", "--out", str(page), *state]) == 0
    assert "digits-trial-4" in page.read_text()
    assert cli.main(["results", "nobody", *state]) == 2
    assert "sweep is 'nobody', but must be one of digits" in capsys.readouterr().err


def test_a_killed_sweep_stays_killed(served: Served) -> None:
    # The policy stops no job.
    tables = {**TABLES, "sweep": {**TABLES["sweep"], "threshold": 4}, "job": {**JOB, "iterations": 100000}}
    with served.client() as client:
        name = client.run_sweep(tables, "long")
        wait_for(lambda: any(job["iteration"] for job in client.jobs(name)[0]), TIMEOUT_S, "a trial to iterate")
        assert client.cancel(name, "enough")
        wait_for(lambda: client.report(name)[1], TIMEOUT_S, "the end of the sweep")
        before = len(client.jobs(name)[0])
    served.end(signal.SIGKILL)
    served.start()
    with served.client() as client:
        wait_for(lambda: client.report(name)[1], TIMEOUT_S, "the end of the sweep")
        jobs, _ = client.jobs(name)
    assert len(jobs) == before and {job["phase"] for job in jobs} == {"killed"}
    assert {job["why"] for job in jobs} == {"enough"}


def test_a_stopped_service_leaves_its_jobs_for_the_next(served: Served, slow: SlowModel) -> None:
    with served.client() as client:
        job = client.submit_job("job-1", lasting(slow))
        wait_for(lambda: client.job("job-1")["iteration"] > 0, TIMEOUT_S, "the job to iterate")
        with Job.find(client.job("job-1")["name"]) as found:
            # Its containers are what the scheduler granted: a user cannot take more behind its back.
            with pytest.raises(PlanError, match=r"only H-scheduler [0-9a-f]+"):
                found.add_workers(1)
            with pytest.raises(PlanError, match="remove-workers: only"):
                found.remove_workers(1)
            assert found.dry_run("add-workers", 1)
        assert "its jobs continue" in served.end(signal.SIGTERM)
        served.start()
        slow.hurry()
        client.wait(job, TIMEOUT_S)
        assert job.phase is Phase.FINISHED and job.loss is not None


def test_a_service_that_fails_leaves_its_jobs_for_the_next(served: Served, slow: SlowModel) -> None:
    with served.client() as client, socket.create_server(("127.0.0.1", 0)) as taken:
        job = client.submit_job("job-1", lasting(slow))
        wait_for(lambda: client.job("job-1")["iteration"] > 0, TIMEOUT_S, "the job to iterate")
        served.end(signal.SIGKILL)
        assert "that port cannot be used" in served.start_in_vain("--web", str(taken.getsockname()[1]))
        served.start()
        slow.hurry()
        client.wait(job, TIMEOUT_S)
        assert job.phase is Phase.FINISHED


def test_clients_of_other_hosts_need_its_certificates(tmp_path: Path) -> None:
    served = Served(tmp_path / "service")
    served.start("--listen", "127.0.0.1:0")
    address = ServiceDir(served.directory).address()
    assert not address.is_unix
    with channel(address) as plain:
        stub = HSchedulerStub(plain)
        for method, request in (("ListJobs", pb.ListJobsRequest()), ("Kill", pb.KillRequest(name="x"))):
            with pytest.raises(PeerUnavailableError):
                call(getattr(stub, method), request, 10.0, method)
    other = ServiceDir(tmp_path / "other")
    other.path.mkdir()
    with pytest.raises(StorageError, match="is missing: copy it from"):
        SchedulerClient(other, str(address))
    other.security(between_hosts=True)
    with SchedulerClient(other, str(address), give_up_s=1.0) as client, pytest.raises(PeerUnavailableError):
        client.jobs()
    shutil.rmtree(other.tls)
    shutil.copytree(ServiceDir(served.directory).tls, other.tls)
    with SchedulerClient(other, str(address)) as client:
        assert client.jobs()[0] == []
    served.end(signal.SIGINT)


def test_without_an_address_it_is_reached_only_through_its_folder(served: Served) -> None:
    directory = ServiceDir(served.directory)
    assert directory.address().is_unix and not directory.tls.exists()
    folder = served.directory / "sockets"
    assert folder.stat().st_mode & 0o777 == 0o700
    served.end(signal.SIGKILL)
    served.start()
    assert len(list(folder.iterdir())) == 1, "those of one that was killed are gone"


def test_garbage_gets_a_clear_answer(served: Served) -> None:
    directory = ServiceDir(served.directory)
    with channel(directory.address(), directory.known_security()) as line:
        stub = HSchedulerStub(line)
        for request, message in (
            (pb.SubmitJobRequest(job_id="a", settings_json="{"), "settings must be JSON"),
            (pb.SubmitJobRequest(job_id="a", settings_json="[]"), r"settings is \[\], but must be a JSON object"),
            (pb.SubmitJobRequest(job_id="a", settings_json='{"wrokers": 1}'), "did you mean workers"),
            (pb.SubmitJobRequest(settings_json="{}"), "job id is empty"),
            (pb.SubmitJobRequest(job_id="a", settings_json='{"at": ["4:add-workers=2"]}'), "the scheduler decides"),
        ):
            with pytest.raises(ConfigError, match=message):
                call(stub.SubmitJob, request, 10.0, "submit")
        with pytest.raises(ConfigError, match="'trails'"):
            call(stub.RunSweep, pb.RunSweepRequest(sweep="s", tables_json='{"sweep": {"trails": 3}}'), 10.0, "run")
        with pytest.raises(ConfigError, match="wait_s is -1"):
            call(stub.GetReport, pb.GetReportRequest(wait_s=-1), 10.0, "report")


def test_a_service_has_a_page_and_metrics(tmp_path: Path) -> None:
    served = Served(tmp_path / "service")
    served.start("--web", "0")
    assert served.process is not None and served.process.stdout is not None
    address = re.search(r"http://[^ #]+", served.process.stdout.readline())
    assert address is not None
    with served.client() as client:
        job = client.submit_job("digits", JobSpec.from_dict(JOB))
        client.wait(job, TIMEOUT_S)
    with urllib.request.urlopen(f"{address[0]}metrics", timeout=10.0) as reply:
        assert 'hscheduler_jobs{phase="finished"} 1' in reply.read().decode()
    served.end(signal.SIGKILL)
    served.start()
    with served.client() as client:
        # Counters are restored from the record.
        assert [each["phase"] for each in client.jobs()[0]] == ["finished"]
    served.end(signal.SIGINT)


def test_a_flood_of_requests_to_the_page_does_not_stop_jobs(tmp_path: Path) -> None:
    served = Served(tmp_path / "service")
    served.start("--web", "0")
    assert served.process is not None and served.process.stdout is not None
    address = re.search(r"http://127.0.0.1:(\d+)/", served.process.stdout.readline())
    assert address is not None
    _, most = resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (256, most))
    with ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(socket.create_connection(("127.0.0.1", int(address[1])), TIMEOUT_S))
        with served.client() as client:
            job = client.submit_job("job", JobSpec.from_dict(JOB))
            client.wait(job, TIMEOUT_S)
            assert job.phase is Phase.FINISHED
    served.end(signal.SIGINT)


def test_the_log_of_a_failed_job_reaches_watching_clients(served: Served, tmp_path: Path) -> None:
    linear = {"model": broken_model(tmp_path), "data": "sklearn:diabetes", "test": ""}
    tables = {"sweep": {"trials": 1, "retries": 0}, "job": {**JOB, **linear}}
    with served.client() as client:
        name = client.run_sweep(tables, "bad")
        texts = [news.text for news in client.watch(name)]
        report, _ = client.report(name)
    failed = [k for k, text in enumerate(texts) if text.startswith("bad-trial-1 failed: ")]
    assert len(failed) == 1 and NO_GRADIENT in texts[failed[0]], texts
    assert "the last lines of the log of" in texts[failed[0] + 1], texts
    assert report["best"] is None and report["phases"]["failed"] == 1


def test_one_directory_has_one_service(served: Served, capsys: Any) -> None:
    assert cli.main(["serve", "--state", str(served.directory)]) == 2
    assert "belongs to a running H-scheduler" in capsys.readouterr().err


def test_clients_without_a_service_say_so(tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["jobs", "--state", str(tmp_path)]) == 4
    assert "start it with hscheduler serve" in capsys.readouterr().err
    assert cli.main(["jobs", "--scheduler", "nowhere"]) == 2
    assert "address is 'nowhere', but must be HOST:PORT" in capsys.readouterr().err
    directory = ServiceDir(tmp_path)
    directory.security(between_hosts=True)
    with SchedulerClient(directory, "127.0.0.1:1", give_up_s=0.2) as client, pytest.raises(PeerUnavailableError):
        client.jobs()


def test_the_command_has_a_service_run_a_sweep(served: Served, tmp_path: Path, capsys: Any) -> None:
    path, target = tmp_path / "sweep.toml", tmp_path / "report.json"
    sections = ("[sweep]", "trials = 2", "[space]", "learning_rate = { loguniform = [1e-3, 1] }", "[job]")
    settings = [f"{name} = {json.dumps(value)}" for name, value in JOB.items()]
    path.write_text("\n".join([*sections, *settings]))
    command = ["sweep", str(path), "--state", str(served.directory), "--name", "mine", "--report", str(target)]
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert "the service runs sweep mine" in out
    assert "mine-trial-1 starts with 2 workers and 1 server" in out
    assert "best: mine-trial-" in out.splitlines()[-1]
    assert json.loads(target.read_text())["completed"] == 2
    assert cli.main([*command, "--web", "0"]) == 2
    path.write_text(path.read_text().replace("trials = 2", "trails = 2"))
    assert cli.main(command) == 2
    assert "did you mean trials" in capsys.readouterr().err


def test_objectives_submit_to_a_service(served: Served, tmp_path: Path) -> None:
    hyperopt = pytest.importorskip("hyperopt")
    from hscheduler.trials import HTrials

    def objective(rate: float) -> dict[str, Any]:
        report = eps.run(**{**JOB, "learning_rate": rate, "export": str(tmp_path / f"{rate}.npz")})
        return {"status": "ok", "loss": report["history"][-1]["loss"]}

    with served.client() as client:
        trials = HTrials(client, parallelism=2)
        space = hyperopt.hp.loguniform("rate", -5, 0)
        hyperopt.fmin(
            objective, space, hyperopt.rand.suggest, 3, trials=trials, rstate=np.random.default_rng(1), verbose=False
        )
        jobs, _ = client.jobs()
    assert len(trials) == 3 and {trial["state"] for trial in trials.trials} == {hyperopt.JOB_STATE_DONE}
    assert len(jobs) == 3 and {job["phase"] for job in jobs} == {"finished"}
    assert len(list(tmp_path.glob("*.npz"))) == 3
