"""``eps`` as a user runs it: real processes, a terminal or a pipe, Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import eps
from eps.cli import main
from eps.storage.jobdir import JobDir, jobs_dir

ROOT = Path(eps.__file__).parent.parent
DEADLINE_S = 120.0
IRIS = ("--data", "sklearn:iris", "--model", "softmax")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "eps", *words]


def run_eps(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE_S, stdin=subprocess.DEVNULL
    )


def wait_until_ended(job: JobDir) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while job.is_running():
        assert time.monotonic() < end_s, f"{job.name} still runs"
        select.select([], [], [], 0.02)


@pytest.fixture
def job(home: Path) -> Iterator[JobDir]:
    """The directory of the job ``j``, which must have ended at the end of the test."""
    found = JobDir(jobs_dir(home) / "j")
    yield found
    running = found.is_running()
    if running:
        run_eps("kill", "j")
    assert not running, "the job outlived its test"


class Terminal:
    """A process on its own pseudo-terminal."""

    def __init__(self, *words: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command(*words),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def read_until(self, text: str) -> None:
        """Read the output until it contains ``text``."""
        end_s = time.monotonic() + DEADLINE_S
        while text not in self.seen:
            ready, _, _ = select.select([self._master], [], [], max(0.0, end_s - time.monotonic()))
            assert ready, f"{text!r} did not come: {self.seen[-2000:]}"
            try:
                shown = os.read(self._master, 65536).decode("utf-8", "replace")
            except OSError:
                # The process has exited and closed its end of the terminal.
                shown = ""
            assert shown, f"ended before {text!r} came: {self.seen[-2000:]}"
            self.seen += shown

    def close(self) -> None:
        os.close(self._master)
        self.process.kill()
        self.process.wait(DEADLINE_S)


def test_run_on_a_pipe_tells_changes_and_a_summary_and_writes_results(job: JobDir, tmp_path: Path) -> None:
    report, model = tmp_path / "r.json", tmp_path / "m.npz"
    done = run_eps(
        "run", "--name", "j", *IRIS, "--test", "0.2", "--iterations", "80", "--at", "20:add-workers=1",
        "--at", "30:remove-servers=server-1", "--report", str(report), "--export", str(model),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "plan 1 add-workers=1: " in done.stdout and "plan 2 remove-servers=server-1: " in done.stdout
    found = json.loads(report.read_text())
    assert (found["state"], found["clock"]) == ("finished", 80)
    assert f"sha256 {found['model_sha256']}" in done.stdout
    classes = tmp_path / "classes.txt"
    predicted = run_eps("predict", "--model", str(model), "--data", "sklearn:iris", "--json", "--out", str(classes))
    told = json.loads(predicted.stdout)
    assert (predicted.returncode, told["rows"], len(classes.read_text().splitlines())) == (0, 150, 150)
    assert told["metrics"]["accuracy"] > 0.9


def test_ctrl_c_ends_the_job_and_its_processes(job: JobDir) -> None:
    terminal = Terminal("run", "--name", "j", *IRIS, "--iterations", "1000000")
    try:
        terminal.read_until("ETA")
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.read_until("interrupted")
        assert terminal.process.wait(DEADLINE_S) == 130
        assert not job.is_running()
        assert json.loads(job.report.read_text())["state"] == "killed"
    finally:
        terminal.close()
    assert "\r\x1b[2K[" in terminal.seen


def test_job_ends_with_the_command_that_runs_it(job: JobDir) -> None:
    terminal = Terminal("run", "--name", "j", *IRIS, "--iterations", "1000000")
    try:
        terminal.read_until("ETA")
        terminal.process.kill()
        terminal.process.wait(DEADLINE_S)
        wait_until_ended(job)
    finally:
        terminal.close()


def test_detached_job_is_found_resized_and_killed_by_name(job: JobDir, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        return code, *capsys.readouterr()

    started = run_eps("run", "--name", "j", *IRIS, "--iterations", "1000000", "--detach")
    try:
        assert (started.returncode, started.stdout) == (
            0, "j: running; follow it with: eps status j, eps logs j --follow\n",
        )  # fmt: skip
        assert said("run", "--name", "j", *IRIS)[0] == 2
        code, out, _ = said("add-workers", "j", "2")
        assert code == 0 and "added worker-4, worker-5" in out
        code, _, err = said("remove-servers", "j", "3")
        assert code == 3 and "must keep at least one" in err
        members = json.loads(said("status", "j", "--json")[1])["members"]
        assert sum(len(m["holds"]) for m in members if m["role"] == "worker") == 12
        ways = [m["ways"] for m in members if m["role"] == "worker"]
        assert all({"server-1", "server-2"} <= set(way) and set(way.values()) == {"shm"} for way in ways), ways
        assert "W[worker-4]" in said("logs", "j", "worker-4")[1]
    finally:
        killed = run_eps("kill", "j")
    assert (killed.returncode, killed.stdout) == (0, "j: killed\n")


def test_job_that_fails_ends_with_1_and_the_reason(job: JobDir) -> None:
    done = run_eps(
        "run", "--name", "j", "--data", "sklearn:diabetes", "--model", "linear", "--optimizer", "sgd",
        "--learning-rate", "1e30", "--iterations", "50",
    )  # fmt: skip
    assert done.returncode == 1
    assert "eps: job 'j' failed: " in done.stderr and "learning rate" in done.stderr


def test_users_model_is_copied_into_the_job(job: JobDir, tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text("from eps.ml.models import LinearModel, MODELS\n\nclass Mine(MODELS['linear']):\n    pass\n")
    done = run_eps(
        "run", "--name", "j", "--data", "sklearn:diabetes", "--model", f"{code}:Mine", "--iterations", "5", "--quiet"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (job.path / "model-code" / "mine.py").read_text() == code.read_text()
