"""Metrics of a running job, and the last log lines of a failed one, which are printed without a request."""

from __future__ import annotations

import re
import socket
import urllib.request
from pathlib import Path

import pytest

import eps
from eps import cli
from eps.errors import ConfigError
from eps.job.status import MOST_LINES, last_log_lines
from eps.storage.jobdir import JobDir
from eps.system.waits import wait_for

pytestmark = pytest.mark.usefixtures("home", "no_leftovers")

TIMEOUT_S = 60.0
SETTINGS = {"data": "sklearn:digits", "model": "softmax", "test": "0.2", "workers": 2, "servers": 1}
DIVERGES = "--data sklearn:diabetes --model linear --optimizer sgd --learning-rate 1e30 --workers 2 --servers 1".split()


def metrics_of(address: str) -> dict[tuple[str, ...], float]:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client (of the extra dev) is missing")
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
        families = list(parser.text_string_to_metric_families(answer.read().decode()))
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_prometheus_reads_a_running_job() -> None:
    with eps.Job.start(name="a", iterations=1_000_000, metrics_port=0, **SETTINGS) as job:
        log = job.directory.log("master")
        job.wait_until_trains()
        found = re.search(r"M serves metrics at (\S+)", log.read_text())
        assert found is not None
        wait_for(lambda: metrics_of(found[1]).get(("eps_clock", "a"), 0.0) > 0, TIMEOUT_S, "the first iteration")
        metrics = metrics_of(found[1])
        assert metrics["eps_workers", "a"] == 2 and metrics["eps_servers", "a"] == 1
        assert metrics["eps_job_info", "a", "running"] == 1
        assert 0.0 < metrics["eps_loss", "a"] < 10.0
        assert 0.0 < metrics["eps_iteration_seconds", "a"] < TIMEOUT_S
        assert 0.0 <= metrics["eps_test", "a", "accuracy"] <= 1.0
        before = metrics["eps_clock", "a"]
        wait_for(lambda: metrics_of(found[1])["eps_clock", "a"] > before, TIMEOUT_S, "a further iteration")


def test_a_port_in_use_is_reported_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"metrics_port is {port},"):
            eps.Job.start(metrics_port=port, **SETTINGS)


def test_a_failed_job_shows_what_the_member_at_fault_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--name", "a", *DIVERGES, "--quiet"]) == 1
    error = capsys.readouterr().err.splitlines()
    (head,) = (k for k, line in enumerate(error) if "the last lines of the log of worker-" in line)
    assert "job 'a' failed: worker-" in error[0]
    shown = [line for line in error[head + 1 :] if line.startswith("eps:   ")]
    assert 1 <= len(shown) <= MOST_LINES
    assert any("TrainingError" in line and "training diverged" in line for line in shown)
    assert "eps resume a" in error[-1]


def test_the_log_is_that_of_the_member_in_the_reason(tmp_path: Path) -> None:
    directory = JobDir(tmp_path)
    directory.logs.mkdir()
    (directory.logs / "container-0001.log").write_text("I W[worker-1] begins\nworker one\n")
    (directory.logs / "container-0002.log").write_text(
        "".join(f"W[worker-2] {k}\n" for k in range(50_000)) + "x" * 9_999
    )
    (directory.logs / "container-0003.log").write_text("S[server-1] server one\n")
    directory.log("master").write_text("M says worker-1 is fine\n")
    head, *lines = last_log_lines(directory, "worker-2: it diverged, says server-1")
    assert head == f"the last lines of the log of worker-2 ({directory.logs / 'container-0002.log'}):"
    assert len(lines) == MOST_LINES and lines[-2] == "  W[worker-2] 49999"
    assert len(lines[-1]) < 400, "an incomplete line is truncated"
    assert last_log_lines(directory, "server-1 is lost")[1:] == ["  S[server-1] server one"]
    # A process that ended at once has not written its member's name.
    directory.log("container-0004").write_text("a library is missing\n")
    reason = "server-1 (container-0004) ended unexpectedly: exited with code 3"
    assert last_log_lines(directory, reason)[1:] == ["  a library is missing"]
    assert last_log_lines(directory, "nobody knows")[0].startswith("the last lines of the log of the job m")
    assert last_log_lines(directory, "worker-9 is not there")[0].startswith("the last lines of the log of the job m")
    assert last_log_lines(JobDir(tmp_path / "none"), "worker-1") == []
    # A master's attempts on YARN.
    for attempt in (2, 10, 9):
        directory.log(f"master-{attempt}").write_text(f"M is attempt {attempt}\n")
    assert last_log_lines(directory, "nobody knows") == [
        f"the last lines of the log of the job master ({directory.log('master-10')}):", "  M is attempt 10",
    ]  # fmt: skip
