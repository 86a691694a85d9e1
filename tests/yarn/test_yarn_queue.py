"""H-scheduler beside an unmodified ResourceManager: a job starts in what another gives, and that one has it again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import eps
from eps.job.client import Job
from eps.system.waits import wait_for
from tests.yarn.hadoop import PATIENCE_S, Hadoop

pytestmark = pytest.mark.usefixtures("no_leftovers")

JOB: dict[str, Any] = {
    "data": "sklearn:digits", "model": "softmax", "test": "0.2", "iterations": 300, "splits": 6, "partitions": 4,
    "memory_mb": "512",
}  # fmt: skip
MAIN = "import sys; from hscheduler.cli import main; sys.exit(main(sys.argv[1:]))"
#: Takes its time until a file is there: a job of it lasts until the other is over, however long that takes.
UNHURRIED = """
import os, time
from eps.ml.models import Softmax

class Unhurried(Softmax):
    def loss_and_gradient(self, params, X, y):
        if not os.path.exists({go!r}):
            time.sleep(0.1)
        return super().loss_and_gradient(params, X, y)
"""


@contextmanager
def scheduler(hadoop: Hadoop, folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Run H-scheduler for a queue, knowing nothing of who submits what; its words are there when it has ended."""
    command = [sys.executable, "-c", MAIN, "yarn-queue", "default", "--feedback-iteration", "3", "--json"]
    command += ["--every", "0.3", "--give-back", "1"]
    words: list[dict[str, Any]] = []
    env = {**hadoop.env, "EPS_HOME": str(folder / "elsewhere")}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield words
        finally:
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, error) == (0, "H-scheduler makes room in default\n")
    words += [json.loads(line) for line in out.splitlines()]


def test_job_that_waits_starts_in_what_another_gives_and_that_has_it_again(
    hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))
    local = eps.run(**JOB)
    go, model = tmp_path / "go", tmp_path / "unhurried.py"
    model.write_text(UNHURRIED.format(go=str(go)))
    with scheduler(hadoop, tmp_path) as words:
        # The server has the labelled node, and each worker most of another: no job master fits beside them.
        size = {"memory_mb": "3648,master=448,server=4096", "label": "server=transient"}
        holds = {**JOB, **size, "model": f"{model}:Unhurried", "workers": 2, "servers": 1}
        with Job.start(**holds, on="yarn", name="holds") as job:
            wait_for(lambda: job.status()["state"] == "running", PATIENCE_S, "the first job")
            nodes = hadoop.rest("/ws/v1/cluster/nodes?states=RUNNING")["nodes"]["node"]
            assert len(nodes) == 3 and all(node["availMemoryMB"] < 512 for node in nodes), nodes
            with Job.start(**{**JOB, "workers": 1, "servers": 1}, on="yarn", name="waits") as late:
                wait_for(lambda: late.status()["clock"] >= 1, PATIENCE_S, "the job that waits to iterate")
                status = job.status()
                assert status["state"] == "running", "it began in what was given, not in what had ended"
                assert (status["workers"], status["lent"]) == (1, {"worker": 1, "server": 0})
                assert status["labels"] == {"worker": "", "server": "transient"}
                report = late.wait(PATIENCE_S)
            wait_for(lambda: job.status()["workers"] == 2, PATIENCE_S, "what it gave to be given back")
            go.touch()
            gave = job.wait(PATIENCE_S)
    assert report["model_sha256"] == gave["model_sha256"] == local["model_sha256"]
    happened = [change["operation"] for change in gave["changes"] if change["phase"] == "released"]
    assert happened == ["remove-workers", "add-workers"]
    assert (gave["ledger"]["lost"], gave["ledger"]["applied_twice"], gave["losses"]) == (0, 0, [])
    told = [word["sentence"] for word in words]
    assert any("(waits) waits for its job master" in text and "(holds) gives 1 worker" in text for text in told), told
    assert any("(waits) has priority 1 until it has what it asks for" in text for text in told), told
    assert any("(holds) gets 1 worker back: nobody waits, and there is room" in text for text in told), told
