"""A whole sweep as one application of a real YARN: its trials end with the bits of the same sweep on this host."""

from __future__ import annotations

import getpass
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from eps.cluster.yarn.application import home_location
from eps.hadoop.conf import read_configuration
from eps.system.waits import wait_for
from hscheduler.cli import main
from tests.yarn.hadoop import PATIENCE_S, Hadoop
from tests.yarn.test_jobs_on_yarn import master_process

pytestmark = pytest.mark.usefixtures("no_leftovers")

FILE = """
[cluster]
container_memory = "512MiB"
[sweep]
trials = 3
algorithm = "random"
feedback_iteration = 10
parallelism = {parallelism}
[space]
learning_rate = {{ loguniform = [1e-3, 1] }}
[job]
data = "sklearn:digits"
model = "softmax"
test = "0.2"
iterations = {iterations}
workers = 1
servers = 1
{more}
"""


@pytest.fixture
def on_yarn(hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hadoop]:
    """Give the cluster to commands of this process; afterwards no application and no container is left."""
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))
    yield hadoop
    assert not apps_of(hadoop, "states=SUBMITTED,ACCEPTED,RUNNING")
    hadoop.wait_until(lambda: hadoop.rest("/ws/v1/cluster/metrics")["clusterMetrics"]["containersAllocated"] == 0,
                      "the containers to be given back")  # fmt: skip


def apps_of(hadoop: Hadoop, query: str) -> list[dict[str, Any]]:
    return list((hadoop.rest(f"/ws/v1/cluster/apps?{query}")["apps"] or {}).get("app", []))


def sweep(folder: Path, name: str, *flags: str, **settings: Any) -> tuple[int, dict[str, Any]]:
    """Run a sweep; return the exit code, and the report."""
    file, report = folder / f"{name}.toml", folder / f"{name}.json"
    file.write_text(FILE.format(**{"parallelism": 0, "iterations": 30, "more": "", **settings}))
    code = main(["sweep", str(file), "--report", str(report), "--plain", *flags])
    return code, json.loads(report.read_text())


def staged(hadoop: Hadoop) -> list[str]:
    """Return what sweeps have on the cluster now."""
    conf = read_configuration(hadoop.conf_dir)
    return (home_location(conf, getpass.getuser()) / "sweeps").storage().names("")


def losses(report: dict[str, Any]) -> dict[str, tuple[str, float]]:
    return {trial["job_id"]: (trial["phase"], trial["loss"]) for trial in report["trials"]}


def test_a_sweep_is_one_application_and_ends_as_on_this_host(
    on_yarn: Hadoop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {app["id"] for app in apps_of(on_yarn, "")}
    code, found = sweep(tmp_path, "there", "--on", "yarn")
    told = capsys.readouterr().out
    (app,) = [app for app in apps_of(on_yarn, "") if app["id"] not in before]
    assert (code, app["applicationType"], app["finalStatus"]) == (0, "EPS-SWEEP", "SUCCEEDED"), told
    assert f"{app['id']} runs the sweep" in told and "trial-3 gives early feedback" in told
    _, local = sweep(tmp_path, "here", "--quiet")
    assert losses(found) == losses(local) and {phase for phase, _ in losses(found).values()} == {"finished"}
    assert found["best"]["loss"] == local["best"]["loss"] and found["best"]["point"] == local["best"]["point"]
    name = next(each["name"] for each in found["trials"] if each["job_id"] == found["best"]["job_id"])
    assert (tmp_path / "home" / "jobs" / name / "model.npz").is_file(), "the best model comes along"
    assert staged(on_yarn) == []


def test_a_sweep_whose_client_is_killed_is_followed_again_and_its_results_are_fetched(
    on_yarn: Hadoop, tmp_path: Path, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    if not pytestconfig.getoption("--every-hadoop"):
        pytest.skip("takes a minute: --every-hadoop")
    file, settings = tmp_path / "there.toml", {"iterations": 80, "more": "stretch_s = 0.05"}
    file.write_text(FILE.format(**{"parallelism": 0, **settings}))
    flags = ["sweep", str(file), "--on", "yarn"]
    code = "import sys; from hscheduler.cli import main; sys.exit(main(sys.argv[1:]))"
    with subprocess.Popen([sys.executable, "-c", code, *flags], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        line = next(line for line in client.stdout if "trial-1 starts" in line)
        client.kill()
    assert line and main(["sweeps"]) == 0
    (name,) = (path.name for path in (tmp_path / "home" / "sweeps").iterdir())
    (app,) = apps_of(on_yarn, "states=RUNNING")
    told = capsys.readouterr().out
    assert f"{name}  {app['id']}  running" in told and "to be fetched" in told
    report = tmp_path / "report.json"
    assert main(["sweep", "--resume", name, "--report", str(report)]) == 0
    assert "trial-1 starts" in capsys.readouterr().out, "from the beginning"
    found = json.loads(report.read_text())
    _, local = sweep(tmp_path, "here", "--quiet", **settings)
    assert losses(found) == losses(local) and staged(on_yarn) == []
    best = next(each["name"] for each in found["trials"] if each["job_id"] == found["best"]["job_id"])
    assert (tmp_path / "home" / "jobs" / best / "model.npz").is_file()
    report.unlink()
    assert main(["sweep", "--resume", app["id"], "--report", str(report)]) == 0
    assert json.loads(report.read_text()) == found, "though nothing of it is on the cluster any more"


def test_a_master_that_is_killed_is_followed_by_one_that_goes_on(
    on_yarn: Hadoop, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Trials that were over stay so; the others begin again from their checkpoints, and end with the same bits."""
    if not pytestconfig.getoption("--every-hadoop"):
        pytest.skip("takes a minute: --every-hadoop")
    settings = {"parallelism": 2, "iterations": 80, "more": 'checkpoint_every = "5"\nstretch_s = 0.05'}
    results: list[tuple[int, dict[str, Any]]] = []
    runs = threading.Thread(
        target=lambda: results.append(sweep(tmp_path, "there", "--on", "yarn", "--quiet", **settings)),
        daemon=True,
    )
    runs.start()

    def report() -> dict[str, Any]:
        (app,) = apps_of(on_yarn, "states=RUNNING")
        answer = requests.get(f"{on_yarn.rm_url}/proxy/{app['id']}/report.json", timeout=PATIENCE_S)
        return dict(next(iter(answer.json()["reports"].values())))

    def is_over_one() -> bool:
        try:
            phases = [trial["phase"] for trial in report()["trials"]]
        except (ValueError, StopIteration, requests.RequestException):
            return False
        return "finished" in phases and len(phases) == 3

    wait_for(is_over_one, 3 * PATIENCE_S, "a trial to be over, and the last to have begun")
    (app,) = apps_of(on_yarn, "states=RUNNING")
    assert master_process(app["id"], "hscheduler.application.am").send(signal.SIGKILL)
    runs.join(3 * PATIENCE_S)
    assert not runs.is_alive()
    ((code, found),) = results
    assert code == 0
    (app, *_) = sorted(apps_of(on_yarn, ""), key=lambda app: -app["startedTime"])
    attempts = on_yarn.rest(f"/ws/v1/cluster/apps/{app['id']}/appattempts")["appAttempts"]["appAttempt"]
    assert len(attempts) == 2 and app["finalStatus"] == "SUCCEEDED" and staged(on_yarn) == []
    _, local = sweep(tmp_path, "here", "--quiet", **settings)
    assert losses(found) == losses(local)
