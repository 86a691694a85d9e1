"""H-scheduler as one application of a real YARN: models are bit-identical to those of the same sweep on this host."""

from __future__ import annotations

import csv
import getpass
import json
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

import eps
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
trials = {trials}
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
# By default they depend on the size of the cluster.
splits = 12
{size}
{more}
"""
SIZE = "workers = 1\nservers = 1"


@pytest.fixture
def on_yarn(hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hadoop]:
    """Configure commands of this process for the cluster; at the end no application and no container may be left."""
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
    file.write_text(
        FILE.format(**{"trials": 3, "parallelism": 0, "iterations": 30, "size": SIZE, "more": "", **settings})
    )
    code = main(["sweep", str(file), "--report", str(report), "--plain", *flags])
    return code, json.loads(report.read_text())


def staged(hadoop: Hadoop) -> list[str]:
    """Return the files of sweeps on the cluster."""
    conf = read_configuration(hadoop.conf_dir)
    return (home_location(conf, getpass.getuser()) / "sweeps").storage().names("")


def losses(report: dict[str, Any]) -> dict[str, tuple[str, float]]:
    # On this host the names of trials begin with that of their sweep.
    numbers = (trial["job_id"].rpartition("trial-")[2] for trial in report["trials"])
    return {number: (trial["phase"], trial["loss"]) for number, trial in zip(numbers, report["trials"], strict=True)}


def test_a_sweep_is_one_application_with_the_results_of_this_host(
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
    assert (tmp_path / "home" / "jobs" / name / "model.npz").is_file(), "the best model is downloaded, too"
    assert staged(on_yarn) == []


def test_trials_begin_in_one_container_and_grow(on_yarn: Hadoop, tmp_path: Path) -> None:
    settings = {"trials": 2, "size": "reliable = 1", "iterations": 150, "more": "stretch_s = 0.005"}
    code, found = sweep(tmp_path, "there", "--on", "yarn", "--policy", "elastic", **settings)
    assert code == 0 and found["resources"] == {"leaked": 0}
    sizes = [tuple(size) for trial in found["trials"] for _, *size in trial["containers"]]
    assert (1, 0) in sizes and max(sizes) > (1, 0) and {servers for _, servers in sizes} == {0}
    _, local = sweep(tmp_path, "here", "--quiet", **settings)
    assert losses(found) == losses(local) and {phase for phase, _ in losses(found).values()} == {"finished"}


def test_a_service_is_one_application_that_accepts_jobs_and_sweeps(
    on_yarn: Hadoop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ["--state", str(tmp_path / "state")]
    assert main(["serve", "--on", "yarn", "--detach", "--container-memory", "512MiB", *state]) == 0
    told = capsys.readouterr().out
    (app,) = apps_of(on_yarn, "states=RUNNING")
    assert app["applicationType"] == "EPS-SCHEDULER" and f"{app['id']} is H-scheduler" in told, told
    report, model = tmp_path / "alone.json", tmp_path / "alone.npz"
    job = FILE.partition("[job]")[2].format(iterations=30, size=SIZE, more="")
    (tmp_path / "job.toml").write_text(f'{job}report = "{report}"\nexport = "{model}"\n')
    assert main(["submit", str(tmp_path / "job.toml"), "--wait", "--name", "alone", *state]) == 0
    assert main(["why", "alone", *state]) == 0 and "alone has ended (finished" in capsys.readouterr().out
    local = eps.run(**tomllib.loads(job))
    assert json.loads(report.read_text())["model_sha256"] == local["model_sha256"] and model.is_file()
    code, found = sweep(tmp_path, "there", *state, "--name", "mine")
    _, here = sweep(tmp_path, "here", "--quiet")
    assert code == 0 and [phase for phase, _ in losses(found).values()] == ["finished"] * 3
    assert sorted(loss for _, loss in losses(found).values()) == sorted(loss for _, loss in losses(here).values())
    (tmp_path / "endless.toml").write_text(FILE.partition("[job]")[2].format(iterations=1_000_000, size=SIZE, more=""))
    assert main(["submit", str(tmp_path / "endless.toml"), "--name", "endless", *state]) == 0
    # The same command follows it again; interrupted, it downloads the results so far.
    code = "import sys; from hscheduler.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["serve", "--on", "yarn", *state]
    with subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None and "listens on" in next(client.stdout)
        client.send_signal(signal.SIGINT)
        assert client.wait(2 * PATIENCE_S) == 0
    assert staged(on_yarn) == [] and main(["results", "mine", *state]) == 0
    assert found["best"]["job_id"] in capsys.readouterr().out
    assert main(["results", "jobs", "--csv", *state]) == 0
    jobs = {row["job_id"]: row for row in csv.DictReader(capsys.readouterr().out.splitlines())}
    assert {name: row["phase"] for name, row in jobs.items()} == {"alone": "finished", "endless": "killed"}
    assert jobs["endless"]["why"] == "H-scheduler ends"
    there = {path.parent.name for path in (tmp_path / "home" / "jobs").glob("*/model.npz")}
    best = next(each["name"] for each in found["trials"] if each["job_id"] == found["best"]["job_id"])
    assert best in there and any(name.endswith("-alone") for name in there)


@pytest.mark.tier("all")
def test_a_sweep_continues_without_a_decommissioned_node(on_yarn: Hadoop, tmp_path: Path) -> None:
    results: list[tuple[int, dict[str, Any]]] = []
    flags, iterations = ["--policy", "static", "--quiet"], 100

    def there() -> None:
        results.append(sweep(tmp_path, "there", "--on", "yarn", *flags, iterations=iterations, more="stretch_s = 0.05"))

    runs = threading.Thread(target=there, daemon=True)
    runs.start()

    def nodes() -> set[str]:
        """Return the hosts with containers of an application whose trials all train, without its master's."""
        apps = apps_of(on_yarn, "states=RUNNING")
        if not apps or apps[0]["runningContainers"] < 7:
            return set()
        hosts = {node for node in on_yarn.nodes if on_yarn.containers(node)}
        return hosts - {apps[0]["amHostHttpAddress"].partition(":")[0]}

    wait_for(nodes, 3 * PATIENCE_S, "the trials")
    node = sorted(nodes())[0]
    on_yarn.decommission(node, 60)
    try:
        runs.join(3 * PATIENCE_S)
    finally:
        on_yarn.recommission(node)
    ((code, found),) = results
    told = [decision["sentence"] for decision in found["decisions"]]
    assert code == 0 and f"node {node} is being decommissioned: the cluster has 2 nodes left" in told, told
    _, local = sweep(tmp_path, "here", *flags, iterations=iterations)
    assert losses(found) == losses(local)


@pytest.mark.tier("all")
def test_a_sweep_whose_client_is_killed_is_followed_again_and_its_results_are_fetched(
    on_yarn: Hadoop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, settings = tmp_path / "there.toml", {"iterations": 80, "more": "stretch_s = 0.05"}
    file.write_text(FILE.format(**{"trials": 3, "parallelism": 0, "size": SIZE, **settings}))
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
    assert json.loads(report.read_text()) == found, "although its files on the cluster are gone"


@pytest.mark.tier("all")
def test_a_killed_master_of_a_sweep_is_followed_by_one_that_resumes(on_yarn: Hadoop, tmp_path: Path) -> None:
    """Trials that were over stay so; the others begin again from their checkpoints, and end with the same bits."""
    settings: dict[str, Any] = {"trials": 12, "iterations": 80}
    slow = 'checkpoint_every = "5"\nstretch_s = 0.05'
    flags = ["--policy", "static", "--quiet"]
    results: list[tuple[int, dict[str, Any]]] = []
    runs = threading.Thread(
        target=lambda: results.append(sweep(tmp_path, "there", "--on", "yarn", *flags, **settings, more=slow)),
        daemon=True,
    )
    runs.start()

    def report() -> dict[str, Any]:
        (app,) = apps_of(on_yarn, "states=RUNNING")
        answer = requests.get(f"{on_yarn.rm_url}/proxy/{app['id']}/page.json", timeout=PATIENCE_S)
        return dict(answer.json()["reports"][0])

    def is_over_one() -> bool:
        try:
            phases = [trial["state"] for trial in report()["trials"]]
        except (ValueError, IndexError, requests.RequestException):
            return False
        return phases.count("finished") >= 3 and phases.count("finished") < 9

    wait_for(is_over_one, 3 * PATIENCE_S, "some of the trials to be over")
    (app,) = apps_of(on_yarn, "states=RUNNING")
    assert master_process(app["id"], "hscheduler.application.am").send(signal.SIGKILL)
    runs.join(3 * PATIENCE_S)
    assert not runs.is_alive()
    ((code, found),) = results
    assert code == 0
    (app, *_) = sorted(apps_of(on_yarn, ""), key=lambda app: -app["startedTime"])
    attempts = on_yarn.rest(f"/ws/v1/cluster/apps/{app['id']}/appattempts")["appAttempts"]["appAttempt"]
    assert len(attempts) == 2 and app["finalStatus"] == "SUCCEEDED" and staged(on_yarn) == []
    _, local = sweep(tmp_path, "here", *flags, **settings)
    assert losses(found) == losses(local)


@pytest.mark.tier("all")
@pytest.mark.parametrize("how", ["interrupted", "killed by YARN"])
def test_another_application_continues_a_sweep_with_every_result(on_yarn: Hadoop, tmp_path: Path, how: str) -> None:
    """Trials that were over stay so; the others begin again from their checkpoints, and end with the same bits."""
    settings: dict[str, Any] = {"trials": 8, "iterations": 40}
    slow, flags = 'checkpoint_every = "5"\nstretch_s = 0.03', ["--policy", "static"]
    file, report = tmp_path / "there.toml", tmp_path / "report.json"
    file.write_text(FILE.format(**{"parallelism": 0, "size": SIZE, "more": slow, **settings}))
    code = "import sys; from hscheduler.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["sweep", str(file), "--on", "yarn", "--name", "mine", "--report", str(report), *flags]
    with subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        lines = (line for line in client.stdout if " finished" in line)
        for _ in range(3):
            next(lines)
        (app,) = apps_of(on_yarn, "states=RUNNING")
        if how == "interrupted":
            client.send_signal(signal.SIGINT)
        else:
            on_yarn.run_cli("yarn", "application", "-kill", app["id"])
        client.stdout.read()
        assert client.wait(2 * PATIENCE_S) == (130 if how == "interrupted" else 1)
    before = json.loads(report.read_text())
    over = {trial["job_id"]: trial for trial in before["trials"] if trial["phase"] == "finished"}
    assert before["state"] == "interrupted" and len(over) < 8 and staged(on_yarn) != []
    # The report that the master had stored is some seconds old.
    assert len(over) >= 3 or how == "killed by YARN"
    assert main(["sweep", "--resume", "mine", "--report", str(report)]) == 0
    found = json.loads(report.read_text())
    for trial in found["trials"]:
        if (earlier := over.get(trial["job_id"])) is not None:
            assert (trial["finished_s"], trial["loss"]) == (earlier["finished_s"], earlier["loss"])
    (new,) = [each for each in apps_of(on_yarn, "") if each["id"] > app["id"]]
    assert new["finalStatus"] == "SUCCEEDED" and staged(on_yarn) == []
    _, local = sweep(tmp_path, "here", *flags, "--quiet", **settings)
    assert losses(found) == losses(local) and found["resources"] == {"leaked": 0}


@pytest.mark.tier("all")
def test_trials_pause_at_rungs_and_go_on_with_the_same_bits(on_yarn: Hadoop, tmp_path: Path) -> None:
    # Slow enough for a report to come back before the next rung.
    settings, flags = {"trials": 6, "iterations": 40, "more": "stretch_s = 0.03"}, ["--stop", "sha", "--quiet"]
    code, found = sweep(tmp_path, "there", "--on", "yarn", *flags, **settings)
    assert code == 0 and found["resources"] == {"leaked": 0} and sum(trial["pauses"] for trial in found["trials"])
    _, local = sweep(tmp_path, "here", *flags, **settings)
    assert losses(found) == losses(local)
    assert sorted(trial["iterations"] for trial in found["trials"]) == [10, 10, 10, 10, 30, 40]
