"""A sweep whose processes are all killed at any moment continues with every result, and trains no ended trial again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eps.storage.jobdir import list_jobs
from eps.system.waits import wait_for
from hscheduler.service.recorded_sweep import RecordedSweep
from tests.integration.conftest import processes_with
from tests.tiers import rotating

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("home", "no_leftovers")

TIMEOUT_S = 120.0
FILE = """
[cluster]
nodes = 1
vcores = 2
[sweep]
trials = 3
algorithm = "random"
parallelism = 1
stop = "none"
seed = 4
[space]
learning_rate = { loguniform = [1e-2, 1] }
[job]
data = "sklearn:digits"
model = "softmax"
workers = 1
servers = 1
splits = 2
iterations = 80
checkpoint_every = "10"
stretch_s = 0.01
"""
CODE = "import sys; from hscheduler.cli import main; sys.exit(main(sys.argv[1:]))"


class Client:
    """The process of a sweep, until it is killed, and its output."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE, "sweep", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.lines: list[str] = []
        assert self.process.stdout is not None
        # From this line on the sweep can be resumed.
        self.lines.append(self.process.stdout.readline())
        assert self.lines[0].startswith("sweep "), self.lines[0] + self.process.stdout.read()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines += self.process.stdout
        self.process.stdout.close()

    def runs_for(self, seconds: float) -> None:
        """Return after these seconds, or at its end."""
        self._reader.join(seconds)

    def end(self, number: int) -> str:
        """Send a signal, wait for the end and return the output."""
        self.process.send_signal(number)
        self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return "".join(self.lines)


def kill_all(client: Client, home: Path) -> None:
    """Kill the client first, as a power failure would: it sees none of its jobs die."""
    client.process.kill()
    client.process.wait(TIMEOUT_S)

    def are_gone() -> bool:
        for pid in (found := processes_with(str(home))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    wait_for(are_gone, TIMEOUT_S, "the end of all processes")
    client.runs_for(TIMEOUT_S)


def run(target: Path, *flags: str) -> dict[str, Any]:
    """Run a sweep to its end, in a process of its own, and return its report."""
    command = [sys.executable, "-c", CODE, "sweep", *flags, "--report", str(target), "--quiet"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=TIMEOUT_S)
    report: dict[str, Any] = json.loads(target.read_text())
    assert report["state"] == "ended" and report["resources"] == {"leaked": 0} and report["completed"] == 3
    return report


def points_and_losses(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(t["job_id"], t["phase"], t["point"], t["loss"]) for t in report["trials"]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "small.toml"
    found.write_text(FILE)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the report of the sweep that nothing disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    path = folder / "small.toml"
    path.write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPS_HOME", str(folder / "home"))
        return run(folder / "report.json", str(path), "--name", "mine")


@pytest.mark.parametrize("seed", rotating(1))
def test_every_process_may_be_killed_at_any_moment(
    seed: int, undisturbed: dict[str, Any], path: Path, home: Path, tmp_path: Path
) -> None:
    draw, target = Random(f"killed:{seed}"), tmp_path / "report.json"
    client = Client(str(path), "--name", "mine", "--report", str(target))
    client.runs_for(draw.uniform(0.0, undisturbed["makespan_s"]))
    kill_all(client, home)
    before = RecordedSweep.named("mine").report()
    over = {trial["job_id"]: trial for trial in before["trials"] if trial["phase"] == "finished"}
    report = run(target, "--resume", "mine")
    assert points_and_losses(report) == points_and_losses(undisturbed), "no result is lost"
    assert report["best"] == undisturbed["best"]
    after = {trial["job_id"]: trial for trial in report["trials"]}
    for job_id, trial in over.items():
        assert after[job_id]["attempts"] == trial["attempts"], "it is not trained again"
    arrivals = [trial["arrived_s"] for trial in report["trials"]]
    assert arrivals == sorted(arrivals)
    assert arrivals[: len(before["trials"])] == [trial["arrived_s"] for trial in before["trials"]]
    assert {job.name for job in list_jobs()} == set(after), "each trial is one job, of the same name"


def test_an_interrupted_sweep_continues_from_its_checkpoints(
    undisturbed: dict[str, Any], path: Path, home: Path, tmp_path: Path
) -> None:
    target = tmp_path / "report.json"
    client = Client(str(path), "--name", "mine", "--report", str(target))
    # The first of two is complete.
    wait_for(lambda: len(list(home.glob("jobs/*-trial-2/checkpoints/*"))) > 1, TIMEOUT_S, "checkpoints")
    assert json.loads(target.read_text())["state"] == "running"
    told = client.end(signal.SIGTERM)
    assert client.process.returncode == 130 and "hscheduler sweep --resume mine continues it" in told
    assert json.loads(target.read_text())["state"] == "interrupted"
    report = run(target, "--resume", "mine")
    assert points_and_losses(report) == points_and_losses(undisturbed)
    (second,) = (job for job in list_jobs() if job.name.endswith("-trial-2"))
    checkpoints = json.loads(second.report.read_text())["checkpoints"]
    assert checkpoints["epoch"] == 2 and checkpoints["outcomes"][0]["clock"] > 10
