"""``hscheduler serve --on yarn`` over fakes: one application, found by its directory; its results are downloaded."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from eps.cluster.yarn.application import RESULTS, Application
from eps.cluster.yarn.types import Submission
from eps.core.types import Address
from eps.errors import ConfigError, JobNotFoundError
from eps.hadoop.conf import HadoopConf
from eps.job.yarn.shared_application import JOBS
from eps.job.yarn.sweeps import report_file
from eps.storage.api import Storage
from eps.storage.jobdir import JobDir, jobs_dir
from eps.storage.locations import RemotePath, open_storage
from hscheduler.application.staged_files import SERVICE_FILE, SERVICE_TYPE
from hscheduler.cli import main
from hscheduler.cli.commands.common import client_of, staged_tables
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec
from tests.fakes.patient_hdfs import hdfs as hdfs
from tests.fakes.webhdfs import FakeHdfs
from tests.fakes.yarn_client import ID, FakeYarnClient

pytest.importorskip("requests")


class RunningService(FakeYarnClient):
    """A YARN whose application listens at once; a sweep of it and a job without a sweep have ended.

    Parameters
    ----------
    state : Path
        The service's directory.
    reports : mapping
        Sweep -> its report.
    """

    def __init__(self, state: Path, reports: dict[str, Any]) -> None:
        super().__init__(directory=JobDir(state))
        self.left = reports
        self.said = ["RUNNING"]

    def submit(self, application_id: str, submission: Submission) -> None:
        super().submit(application_id, submission)
        assert self.noted is not None
        self.leave(open_storage(self.noted.shared))

    def leave(self, shared: Storage) -> None:
        """Write the reports, and the models of their trials."""
        left = {report_file(sweep): json.dumps(report) for sweep, report in self.left.items()}
        names = [trial["name"] for report in self.left.values() for trial in report["trials"]]
        left |= {f"{JOBS}/{name}/{RESULTS}/model.npz": f"model of {name}" for name in names}
        for path, content in {**left, SERVICE_FILE: '{"host": "n1", "port": 7}'}.items():
            with shared.write(path) as file:
                file.write(content.encode())


def report_of(sweep: str) -> dict[str, Any]:
    found = simulate(Spec.of({"sweep": {"trials": 2}, "job": {"stretch_s": 0.01}}), "elastic")
    trials = [{**trial, "name": f"{sweep}-{trial['job_id']}"} for trial in found["trials"]]
    return {**json.loads(json.dumps(found)), "trials": trials}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    return tmp_path / "state"


@pytest.fixture
def yarn(hdfs: FakeHdfs, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunningService:
    found = RunningService(state, {name: report_of(name) for name in ("jobs", "mine")})
    conf = HadoopConf({}, str(tmp_path), {})
    command = "hscheduler.cli.commands.serve"
    monkeypatch.setattr(f"{command}.environment_configuration", lambda: conf)
    monkeypatch.setattr(f"{command}.YarnClient", lambda conf: found)
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    # No process listens at the application's address.
    monkeypatch.setattr("hscheduler.application.monitor.GIVE_UP_S", 0.0)
    (tmp_path / "application.toml").write_text(
        f'staging = "webhdfs://{hdfs.authority}/eps"\ntags = "nightly"\npriority = 4\nlifetime = 600\n'
        'acl = ["view=ann"]\ncontainer_timeout = 90\n'
    )
    return found


def serve(state: Path, *flags: str) -> int:
    file = state.parent / "application.toml"
    size = ["--container-memory", "512MiB"]
    return main(["serve", "--on", "yarn", "--state", str(state), "--application", str(file), *size, *flags])


def unknown(client: SchedulerClient, sweep: str) -> None:
    raise JobNotFoundError(f"there is no job or sweep {sweep!r}")


def staged(hdfs: FakeHdfs) -> list[str]:
    return [path for path in hdfs.nodes if path.startswith("/eps/sweeps/")]


@pytest.fixture
def detached(yarn: RunningService, state: Path, capsys: pytest.CaptureFixture[str]) -> RunningService:
    """Submit the application, and detach."""
    assert serve(state, "--detach", "--policy", "static") == 0, capsys.readouterr().err
    return yarn


def test_a_detached_service_is_one_application(
    detached: RunningService, state: Path, hdfs: FakeHdfs, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = detached.submission
    assert asked is not None and (asked.application_type, asked.tags) == (SERVICE_TYPE, ("nightly",))
    assert (asked.priority, asked.lifetime_s, asked.launch.access) == (4, 600.0, {"view": "ann"})
    noted, directory = Application.read(JobDir(state)), ServiceDir(state)
    assert noted is not None and noted.application_id == ID and noted.shared.startswith("webhdfs://")
    assert not directory.is_running() and directory.address() == Address("n1", 7)
    assert staged(hdfs) and not detached.killed


def test_it_prints_its_application_and_how_to_end_it(
    yarn: RunningService, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(state, "--detach") == 0
    told = capsys.readouterr().out.splitlines()
    ends = f"Ctrl-C, or yarn application -kill {ID}, ends it and its jobs; state in {state}"
    assert told[0] == f"{ID} is H-scheduler: {ends}"
    assert told[1] == "H-scheduler listens on n1:7; its page: http://rm/proxy/"
    assert told[2].startswith(f"{ID} continues: hscheduler serve --on yarn --state {state} follows it again")


def test_the_same_command_follows_it_again_and_ctrl_c_ends_it_and_downloads_its_results(
    detached: RunningService, state: Path, hdfs: FakeHdfs, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    submitted, detached.submission = detached.submission, None
    detached.said = ["RUNNING", "RUNNING", KeyboardInterrupt(), "KILLED"]
    assert serve(state) == 0 and submitted is not None
    assert detached.submission is None and detached.killed == [ID]
    told = capsys.readouterr()
    how = f"hscheduler results SWEEP --state {state} shows the results of a sweep"
    assert told.out.splitlines()[4:] == [f"H-scheduler and its jobs have ended; {how}"] and not told.err
    assert staged(hdfs) == []
    best = report_of("mine")["best"]["job_id"]
    there = {path.parent.name for path in jobs_dir().glob("*/model.npz")}
    assert there == {f"mine-{best}", *(trial["name"] for trial in report_of("jobs")["trials"])}
    assert main(["results", "mine", "--state", str(state)]) == 0
    assert best in capsys.readouterr().out
    model = state.parent / "best.npz"
    assert main(["results", "mine", "--state", str(state), "--export-best", str(model)]) == 0
    assert model.read_text() == f"model of mine-{best}"
    assert main(["results", "other", "--state", str(state)]) == 2
    assert "sweep is 'other', but must be one of jobs, mine" in capsys.readouterr().err
    # The next one is another application.
    detached.said = ["RUNNING"]
    assert serve(state, "--detach") == 0
    noted = Application.read(JobDir(state))
    assert noted is not None and noted.application_id == "application_1_0002"
    capsys.readouterr()
    monkeypatch.setattr(SchedulerClient, "report", unknown)
    assert main(["results", "mine", "--state", str(state)]) == 0
    assert best in capsys.readouterr().out, "the results of the previous application"
    assert main(["results", "other", "--state", str(state)]) == 4
    # A download of the same name does not replace it.
    detached.said = ["RUNNING", "RUNNING", KeyboardInterrupt(), "KILLED"]
    detached.left["mine"] = {**report_of("mine"), "policy": "static"}
    detached.leave(open_storage(noted.shared))
    assert serve(state) == 0
    for name, policy in (("mine", "static"), ("mine~1", "elastic")):
        capsys.readouterr()
        assert main(["results", name, "--state", str(state)]) == 0
        assert capsys.readouterr().out.startswith(f"{policy}: ")


def test_results_of_a_service_ended_elsewhere_are_downloaded(
    detached: RunningService, state: Path, hdfs: FakeHdfs, capsys: pytest.CaptureFixture[str]
) -> None:
    detached.said = ["RUNNING", "FAILED"]
    assert serve(state) == 1
    told = capsys.readouterr().err
    assert f"{ID} failed: " in told and f"logs of its containers: yarn logs -applicationId {ID}" in told
    assert staged(hdfs) == [] and (state / report_file("mine")).exists()


def test_a_local_service_does_not_take_the_directory_of_a_running_one(
    detached: RunningService, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--state", str(state)]) == 2
    assert f"{state} belongs to {ID} on YARN: hscheduler serve --on yarn --state {state}" in capsys.readouterr().err


def test_commands_find_its_address_on_the_cluster_and_upload_their_files(
    detached: RunningService, state: Path, hdfs: FakeHdfs
) -> None:
    noted = Application.read(JobDir(state))
    assert noted is not None
    with open_storage(noted.shared).write(SERVICE_FILE) as file:
        file.write(b'{"host": "n2", "port": 8}')
    args = argparse.Namespace(state=str(state), scheduler=None)
    with client_of(args):
        assert ServiceDir(state).address() == Address("n2", 8)
    (state.parent / "x.csv").write_text("1,2\n")
    tables = {"job": {"data": str(state.parent / "x.csv")}, "space": {}}
    moved = staged_tables(args, tables)["job"]["data"]
    assert RemotePath.parse(moved).read_bytes() == b"1,2\n" and moved.startswith(
        f"webhdfs://{hdfs.authority}/eps/cache/"
    )
    (state.parent / "mine.py").write_text("code")
    with pytest.raises(ConfigError, match=r"mine\.py, .* cannot read"):
        staged_tables(args, {"job": {"model": f"{state.parent}/mine.py:Mine"}, "space": {}})
    assert staged_tables(argparse.Namespace(state=str(state.parent), scheduler=None), tables) == tables


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--on", "yarn", "--nodes", "3"], "nodes is 3, but not possible on YARN"),
        (["--on", "yarn", "--listen", "h:1"], "listen is h:1, but not possible on YARN"),
        (["--on", "yarn", "--web", "0"], "web is 0, but not possible on YARN: the page is at the tracking URL"),
        (["--on", "yarn", "--application", "job.toml"], "iterations does not apply to the application, only queue, "),
        (["--on", "yarn"], "HADOOP_CONF_DIR is not set"),
        (["--detach"], "detach is only for a service on YARN: add --on yarn"),
        (["--on", "mars"], "on is 'mars', but must be one of local, docker, yarn"),
    ],
)
def test_flags_that_would_have_no_effect_are_refused(
    flags: list[str], reason: str, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.chdir(state.parent)
    Path("job.toml").write_text("iterations = 3\n")
    assert main(["serve", "--state", str(state), *flags]) == 2
    assert reason in capsys.readouterr().err
