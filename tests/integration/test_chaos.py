"""``python -m tools.chaos``: jobs with random faults end as they must; a job that does not is reported."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from eps.errors import ConfigError
from eps.spec.file import RunRequest
from eps.storage.atomic import read_json
from eps.storage.jobdir import jobs_dir
from eps.system.waits import wait_for
from tests.conftest import lacks, require
from tests.integration.conftest import processes_with
from tests.integration.test_operations import TIMEOUT_S
from tests.tiers import of_tier
from tools.chaos.__main__ import main
from tools.chaos.processes import marked, parent_of, with_mark
from tools.chaos.run import COMMAND, Chaos, ChaosRequest, Undisturbed, optimizers_of

#: Some 60 iterations a second on one core, so that several are left between two events.
JOB = {
    "data": "sklearn:digits", "model": "softmax", "iterations": 100, "workers": 2, "servers": 3,
    "member_timeout_s": 1.5, "learning_rate": 0.01, "stretch_s": 0.01,
}  # fmt: skip


def job_file(folder: Path) -> Path:
    path = folder / "job.toml"
    path.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in JOB.items()))
    return path


def test_jobs_with_faults_end_with_the_undisturbed_model(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    out, events = tmp_path / "chaos.json", str(of_tier(pytestconfig, 6, 24))
    code = main([str(job_file(tmp_path)), "--seed", "11", "--events", events, "--per-job", "6", "--json", str(out)])
    shown = capsys.readouterr().out
    assert code == 0, shown
    record = json.loads(out.read_text())
    assert record["summary"]["failed"] == 0 and record["summary"]["events"] >= int(events)
    assert all(job["ok"] and job["num_events"] for job in record["jobs"])
    assert all((job["lost"], job["applied_twice"], job["hung"]) == (0, 0, False) for job in record["jobs"])
    assert all(job["model_sha256"] == job["undisturbed_sha256"] != "" for job in record["jobs"])
    assert "0 updates lost, 0 applied twice, 0 hung" in shown.splitlines()[-1]
    # The requested report is readable, and a repeated command writes it again.
    assert stat.S_IMODE(out.stat().st_mode) == 0o644
    words = [*COMMAND.split(), str(job_file(tmp_path)), "--seed", "11", "--events", events]
    assert shlex.split(record["command"])[: len(words)] == words
    assert "--per-job 6" in record["command"]
    assert "seed" in shown.splitlines()[0] and f"{record['summary']['events']}/{events}" in shown
    # A successful run leaves no files.
    assert list(jobs_dir().glob("chaos-*")) == []


def test_another_model_is_reported_with_the_command_that_repeats_it(home: Path) -> None:
    chaos = Chaos(ChaosRequest(RunRequest.from_values(JOB), seed=5, events=2, job_file="job.toml"))
    chaos._undisturbed["adam"] = Undisturbed("cd" * 32, 1.0)
    verdicts = list(chaos.run())
    assert len(verdicts) == 1 and not verdicts[0].ok
    assert "undisturbed it is cdcdcd" in verdicts[0].faults[0]
    assert verdicts[0].repeat.startswith(f"{COMMAND} job.toml --seed 5 --events 2")
    (directory,) = jobs_dir().glob("chaos-*-5")
    kept = read_json(directory / "chaos.json")
    assert kept is not None and len(kept["schedule"]) == 2 and kept["story"]


def test_an_interrupt_ends_the_job_and_leaves_nothing(home: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.chaos", str(job_file(tmp_path)), "--events", "9", "--kinds", "stop"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_for(lambda: bool(list(jobs_dir().glob("chaos-*-0/master.json"))), TIMEOUT_S, "the job that is to be hit")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130
    wait_for(lambda: not processes_with(str(home)), TIMEOUT_S, "its processes to end")
    assert list(jobs_dir().glob("*-*")) == []


def test_a_job_killed_as_a_whole_is_resumed_and_ends_with_the_undisturbed_model(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    words = ["--seed", "4", "--events", "2", "--kinds", "resume", "--json", str(out)]
    assert main([str(job_file(tmp_path)), *words]) == 0
    assert sum(job["events"]["resume-supervisor"] for job in json.loads(out.read_text())["jobs"]) >= 2
    wait_for(lambda: not processes_with(str(home)), TIMEOUT_S, "the processes of the runs before to end")


@pytest.mark.parametrize("kind", ["partition", "delay"])
def test_unreachable_members_and_late_packets_change_no_bit(home: Path, tmp_path: Path, kind: str) -> None:
    require("root")
    if not shutil.which("ip"):
        lacks("root", "there is no ip to make network namespaces with (apt install iproute2)")
    # In this process the namespace would remain.
    out = tmp_path / "chaos.json"
    command = [sys.executable, "-m", "tools.chaos", str(job_file(tmp_path)), "--seed", "1", "--events", "2"]
    done = subprocess.run(
        [*command, "--kinds", kind, "--json", str(out)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if "need root" in done.stderr or "needs root" in done.stderr:
        lacks("root", done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    happened = [name for job in json.loads(out.read_text())["jobs"] for name in job["events"]]
    assert happened and all(name.startswith(f"{kind}-") for name in happened)


@pytest.mark.parametrize("words", [["--events", "0"], ["--per-job", "-1"], ["--json", "nowhere/x.json"]])
def test_impossible_faults_are_refused_before_anything_starts(
    home: Path, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(job_file(tmp_path)), *words]) == 2
    assert capsys.readouterr().err.startswith("chaos: ")
    assert not jobs_dir().exists()


def test_optimizers_are_named_or_all() -> None:
    assert optimizers_of("") == () and optimizers_of("sgd,adam") == ("sgd", "adam")
    assert set(optimizers_of("all")) == {"sgd", "momentum", "adagrad", "adam", "ftrl"}
    with pytest.raises(ConfigError, match="'newton'"):
        optimizers_of("newton")


def test_processes_are_found_by_their_mark() -> None:
    with marked() as mark:
        assert with_mark(mark) == []
    assert parent_of(0) == 0
