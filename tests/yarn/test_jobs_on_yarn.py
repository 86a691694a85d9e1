"""Whole jobs as applications of a real YARN: their models are bit-identical to those of local jobs."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

import eps
from eps.cli.commands.inspect import logs
from eps.cluster.yarn.application import PAGE_FILE, RESULTS
from eps.errors import ConfigError, TrainingError
from eps.job.client import Job
from eps.job.status import application_id_of
from eps.job.yarn.remote import YarnJob
from eps.spec.model_file import read_model
from eps.storage.api import Storage
from eps.storage.atomic import read_json
from eps.storage.locations import location
from eps.system.waits import wait_for
from tests.fakes.slow_model import SlowModel
from tests.integration.conftest import asked_phases
from tests.processes import Process, with_variable
from tests.yarn.hadoop import PATIENCE_S, Hadoop

pytestmark = pytest.mark.usefixtures("no_leftovers")

JOB: dict[str, Any] = {
    "data": "sklearn:digits", "model": "softmax", "test": "0.2", "iterations": 60, "workers": 2, "servers": 2,
    "memory_mb": "512",
}  # fmt: skip
A9A: dict[str, Any] = {**JOB, "model": "logistic", "test": "", "splits": 6}


def master_of(job: Job) -> Process:
    """Return the process of a job's application master."""
    return master_process(application_of(job), "eps.job.yarn.am")


def master_process(application_id: str, module: str) -> Process:
    """Return the process of an application's master in this cluster; another cluster may be on this host."""
    number = application_id.removeprefix("application_")
    found = [
        process
        for process in with_variable("CONTAINER_ID", "container_")
        if _words(process.pid, "cmdline")[-1:] == [module]
        and any(word.startswith("CONTAINER_ID=") and f"_{number}_" in word for word in _words(process.pid, "environ"))
    ]
    # Its child has the same command line until it calls exec.
    return min(found, key=lambda process: process.started)


def _words(pid: int, file: str) -> list[str]:
    """Return a process's command line; empty if it has exited since it was found."""
    try:
        return Path(f"/proc/{pid}/{file}").read_text().split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def reach(job: Job, clock: int) -> None:
    wait_for(lambda: job.status()["clock"] >= clock, PATIENCE_S, f"clock {clock} of {job.name}")


def test_a9a_on_yarn_with_adds_and_removes_is_the_local_model(on_yarn: Hadoop, shared_data: Path) -> None:
    data = str(shared_data / "sparse_binary" / "a9a" / "a9a.gz")
    local = eps.run(**{**A9A, "data": data})
    changes = ("10:add-workers=1", "20:add-servers=1", "30:remove-workers=worker-1", "40:remove-servers=1")
    report = eps.run(**{**A9A, "data": data}, on="yarn", name="a9a", at=changes)
    assert report["model_sha256"] == local["model_sha256"]
    assert asked_phases(report) == ["released"] * 4
    assert (report["ledger"]["lost"], report["ledger"]["applied_twice"]) == (0, 0)
    on_yarn.wait_until(lambda: on_yarn.rest("/ws/v1/cluster/metrics")["clusterMetrics"]["containersAllocated"] == 0,
                       "the containers to be given back")  # fmt: skip
    (app,) = [app for app in on_yarn.rest("/ws/v1/cluster/apps")["apps"]["app"] if app["name"] == "a9a"]
    assert (app["finalStatus"], app["applicationType"]) == ("SUCCEEDED", "EPS")


def test_a_submitted_job_downloads_its_report_and_writes_its_model_to_hdfs(on_yarn: Hadoop, tmp_path: Path) -> None:
    words = [*(f"--{key.replace('_', '-')}={value}" for key, value in JOB.items()), "--export", "hdfs:/brought.npz"]
    words += ["--name", "brought", "--report", str(tmp_path / "r.json")]
    told = subprocess.run([sys.executable, "-m", "eps", "submit", *words], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    job = Job.find("brought")
    report = job.wait(PATIENCE_S)
    job.close()
    assert (report["state"], job.status()["reason"]) == ("finished", "")
    assert read_json(tmp_path / "r.json") == report
    assert read_model(location("hdfs:/brought.npz")).sha256 == report["model_sha256"]


def test_a_job_is_found_by_its_name_without_its_client(on_yarn: Hadoop) -> None:
    words = ["--name", "alone", *(f"--{key.replace('_', '-')}={value}" for key, value in JOB.items())]
    told = subprocess.run(
        [sys.executable, "-m", "eps", "submit", *words, "--iterations", "100000"], capture_output=True, text=True
    )
    assert told.returncode == 0 and told.stdout.startswith("alone: application_"), told.stderr
    with Job.find("alone") as submitted:
        reach(submitted, 1)
    # The job's local files are lost; the job runs on, and clients find it.
    shutil.rmtree(submitted.directory.path)
    job = Job.find("alone")
    application = application_of(job)
    assert job.running and job.directory.path.is_dir()
    assert job.add_workers(1)["phase"] == "released"
    assert job.status()["state"] == "running"
    assert logs(argparse.Namespace(name="alone", member="worker-3", follow=False)) == 0
    page = requests.get(f"{on_yarn.rm_url}/proxy/{application}/", timeout=PATIENCE_S).text
    assert "<h1>alone: running</h1>" in page and "worker-3" in page
    assert (
        requests.get(f"{on_yarn.rm_url}/proxy/{application}/status.json", timeout=PATIENCE_S).json()["name"] == "alone"
    )
    assert "State : RUNNING" in on_yarn.run_cli("yarn", "application", "-status", application)
    # YARN reveals the address of the proxy, not that of the page or its secret.
    app = on_yarn.rest(f"/ws/v1/cluster/apps/{application}")["app"]
    assert urlsplit(app["trackingUrl"]).path.rstrip("/") == f"/proxy/{application}"
    job.kill("enough")
    report = job.wait(PATIENCE_S)
    job.close()
    assert (report["state"], report["reason"]) == ("killed", "enough")
    assert "Final-State : KILLED" in on_yarn.run_cli("yarn", "application", "-status", application)
    assert logs(argparse.Namespace(name="alone", member="master", follow=False)) == 0


def test_containers_that_yarn_takes_are_drained_before(on_yarn: Hadoop, tmp_path: Path) -> None:
    """A queue below its share preempts containers of another queue's job, and a node is decommissioned."""
    settings = {**JOB, "workers": 4, "servers": 3, "iterations": 500}
    local = eps.run(**settings)
    slow = SlowModel(tmp_path, 0.05)
    with Job.start(**{**settings, "model": slow.setting}, on="yarn", name="giving") as job:
        reach(job, 3)
        # 12 vcores: this job has 8 in a queue with a share of 6; the other queue uses none.
        with Job.start(
            **{**JOB, "workers": 3, "iterations": 100_000}, on="yarn", queue="batch", name="taking"
        ) as other:
            wait_for(lambda: job.status()["evictions"]["drained"] >= 1, PATIENCE_S, "a container to be given back")
            reach(other, 1)
            other.kill("enough")
        # One of the job's nodes without its master; five or more containers never fit on one node of four.
        master, hosts = master_host(job), hosts_of(job)
        node = next(host for host in sorted(hosts) if host != master)
        before = job.status()["evictions"]["drained"]
        on_yarn.decommission(node, 120)
        try:
            wait_for(lambda: job.status()["evictions"]["drained"] > before, PATIENCE_S, f"{node} to be drained")
            wait_for(lambda: node not in hosts_of(job), PATIENCE_S, f"everybody to have left {node}")
            slow.hurry()
            report = job.wait(PATIENCE_S)
        finally:
            on_yarn.recommission(node)
    assert report["model_sha256"] == local["model_sha256"]
    assert report["evictions"]["lost"] == 0 and report["losses"] == []
    assert (report["ledger"]["lost"], report["ledger"]["applied_twice"]) == (0, 0)


def master_host(job: Job) -> str:
    """Return the node of a job's master, by YARN."""
    address = YarnJob(job.directory).address()
    assert address is not None
    return address.host


def hosts_of(job: Job) -> set[str]:
    """Return the nodes of a job's workers and servers."""
    return {member["host"] for member in job.status()["members"] if member["host"]}


def test_a_job_killed_by_yarn_keeps_its_last_status(on_yarn: Hadoop) -> None:
    with Job.start(**{**JOB, "iterations": 100_000}, on="yarn", name="by-yarn") as job:
        reach(job, 1)
        job.add_workers(1)
        shared = YarnJob(job.directory).application.storage()
        on_yarn.wait_until(lambda: _status_left(shared).get("changes"), "the change to be left on HDFS")
        on_yarn.run_cli("yarn", "application", "-kill", application_of(job))
        report = job.wait(PATIENCE_S)
        status = job.status()
        assert PAGE_FILE in shared.names(RESULTS)
    assert report["state"] == "killed" and report["history"] and report["changes"] == status["changes"]
    assert status["clock"] >= 1 and status["changes"][0]["phase"] == "released"


def _status_left(shared: Storage) -> dict[str, Any]:
    if "status.json" not in shared.names(RESULTS):
        return {}
    with shared.read(f"{RESULTS}/status.json") as file:
        return dict(json.loads(file.read()))


def application_of(job: Job) -> str:
    return application_id_of(job.directory)


def test_a_job_whose_model_raises_shows_its_log(on_yarn: Hadoop, tmp_path: Path) -> None:
    model = tmp_path / "mine.py"
    model.write_text("from eps.ml.models import Softmax\nraise RuntimeError('this node has no such library')\n")
    with pytest.raises((TrainingError, ConfigError), match="no such library"):
        eps.run(**{**JOB, "model": f"{model}:Mine"}, on="yarn")


def test_an_unknown_queue_is_refused_at_once(on_yarn: Hadoop) -> None:
    with pytest.raises(ConfigError, match="queue is 'nope'"):
        eps.run(**JOB, on="yarn", queue="nope")
