"""Commands print what they should and end with the code that says how it went."""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import eps
import hscheduler.cli
from eps.cli import main
from eps.cli.commands import change, run
from eps.cli.exits import printable
from eps.cli.parser import build_parser
from eps.cluster.docker.container import CHECK_IMAGE
from eps.cluster.yarn.advice import CHECK_PYTHON
from eps.errors import ConfigError, PeerUnavailableError, PlanError, StorageError
from eps.job import master_link
from eps.job.client import Job
from eps.job.display import summary_text
from eps.job.master_link import Progress
from eps.job.page import JobPageServer
from eps.spec.file import RunRequest
from eps.storage.atomic import write_json_atomic
from eps.storage.jobdir import JobDir, create_job_dir
from tests.cli.conftest import FakeJob, change_of, status_of
from tests.fakes.records import note_application, note_end, note_ended, note_settings

ROOT = Path(eps.__file__).parent.parent


def test_status_prints_json_when_asked(fake: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "fake", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == status_of()
    assert main(["status", "fake"]) == 0
    assert capsys.readouterr().out.startswith("fake: running\n")


def test_a_job_on_yarn_says_its_application_and_where_its_model_will_be(
    fake: FakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    note_application(fake.dir, "application_1_0001")
    monkeypatch.setattr(Job, "_look_for_application", lambda job: False)
    monkeypatch.setattr(run, "_started", lambda *request, detach: Job(fake.dir))
    assert main(["submit", "--name", "fake", "--data", "sklearn:digits", "--model", "softmax"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "fake: application_1_0001; follow it with: eps status fake"
    places = f"its report to {fake.dir.report} and its model to {fake.dir.model}"
    assert second == f"when it has ended, eps fetch fake downloads {places}"
    assert main(["status", "fake", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["application_id"] == "application_1_0001"
    fake.end()
    assert main(["status", "fake", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["application_id"] == "application_1_0001"


def test_list_shows_running_and_ended_jobs(home: Path, fake: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    other = FakeJob(home, "ended")
    other.end("failed", "no luck")
    other.close()
    assert main(["list", "--json"]) == 0
    assert [(j["name"], j["state"]) for j in json.loads(capsys.readouterr().out)] == [
        ("ended", "failed"),
        ("fake", "running"),
    ]


def test_list_of_nothing_is_no_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out == "no jobs\n"


def test_list_that_finds_nothing_says_what_it_looked_for(fake: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "fakes"]) == main(["list", "--state", "failed"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == ["no job's name begins with 'fakes'; did you mean fake?", "no jobs that are failed"]
    assert main(["list", "fakes", "--json"]) == 0 and json.loads(capsys.readouterr().out) == []
    assert main(["list", "--state", "runing"]) == 2
    assert capsys.readouterr().err.endswith("; did you mean running?\n")


def test_list_shows_no_clock_that_is_older_than_the_first(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = FakeJob(home)
    write_json_atomic(job.dir.status_json, status_of(clock=0, as_of_s=1.0))
    job.end("killed")
    job.close()
    assert main(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[5] == "-"


def test_change_prints_its_phases_and_ends_with_0(fake: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    fake.master.plans = [change_of(phase="queued"), change_of()]
    assert main(["add-workers", "fake", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("plan 1 add-workers=2: proposed +10 ms, prepared")


IRIS = ["run", "--data", "sklearn:iris", "--model", "softmax", "--iterations", "5"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["add-workers", "fake", "1000000000"], 2),
        (["add-workers", "fake", "9" * 5000], 2),
        (["add-workers", "fake", "1", "--request-id", "x" * 1000], 2),
        (["remove-servers", "fake", "1000000000", "--dry-run"], 2),
        (["remove-servers", "fake", f"server-{'9' * 5000}"], 3),
        (["cancel", "fake", "99999999999"], 3),
        ([*IRIS, "--at", "1:add-workers=1000000000"], 2),
        ([*IRIS, "--at", f"{'9' * 5000}:add-workers=1"], 2),
        ([*IRIS, "--workers", "1000000000", "--splits", "1000000000"], 2),
        ([*IRIS, "--batch-size", "9" * 5000], 2),
    ],
)
def test_number_that_no_job_can_have_is_refused_before_anybody_is_asked(
    fake: FakeJob, capsys: pytest.CaptureFixture[str], words: list[str], code: int
) -> None:
    assert main(words) == code
    assert capsys.readouterr().err.startswith("eps: ") and not fake.master.asked


def test_change_without_waiting_prints_its_number(fake: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    fake.master.plans = [change_of(phase="queued")]
    assert main(["remove-workers", "fake", "worker-1,worker-2", "--no-wait", "--request-id", "r"]) == 0
    assert capsys.readouterr().out == "plan 1\n"
    ((method, request),) = fake.master.asked
    assert (method, list(request.names), request.request_id) == ("RemoveWorkers", ["worker-1", "worker-2"], "r")


WAITS = "waits for 1 container, asked for 65 s ago: server-3"


def test_change_of_a_job_that_starts_is_refused_at_once_with_what_that_waits_for(
    fake: FakeJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "NOTICED_S", 0.0)
    fake.master.status = status_of(state="starting", reason=WAITS)
    assert main(["add-workers", "fake", "1", "--no-wait"]) == 3
    assert capsys.readouterr().err == (
        f"eps: add-workers refused: job 'fake' does not train yet: it is starting: {WAITS}; without --no-wait the "
        "command waits until it does\n"
    )
    assert not fake.master.asked


def test_change_that_waits_for_the_start_of_its_job_says_so(fake: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    class Errors(io.StringIO):
        """A stream that lets the job train at the first message."""

        def write(self, text: str) -> int:
            fake.master.status = status_of()
            return super().write(text)

    monkeypatch.setattr(master_link, "NOTICED_S", 0.0)
    monkeypatch.setattr(sys, "stderr", told := Errors())
    fake.master.status = status_of(state="starting", reason=WAITS)
    fake.master.plans = [change_of()]
    assert main(["add-workers", "fake", "2"]) == 0
    assert told.getvalue() == f"waiting for job 'fake': it is starting: {WAITS}\n"


def test_dry_run_prints_the_moves(fake: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add-servers", "fake", "1", "--dry-run"]) == 0
    assert capsys.readouterr().out == "moves\n"


def test_refused_change_ends_with_3(fake: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    fake.master.refusal = PlanError("the job must keep at least one")
    assert main(["remove-servers", "fake", "1"]) == 3
    assert capsys.readouterr().err == "eps: the job must keep at least one\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["status", "nobody"], 4, "no job 'nobody'"),
        (["add-workers", "nobody", "1"], 4, "no job 'nobody'"),
        (["kill", "nobody"], 4, "no job 'nobody'"),
        (["logs", "nobody"], 4, "no job 'nobody'"),
        (["status", "../x"], 2, "job name"),
        (["run"], 2, "data is empty"),
        (["run", "nowhere.toml"], 2, "no such file"),
        (["run", "--data", "nowhere.svm"], 2, "no such file: data must be an existing file, hdfs://HOST:PORT/PATH or"),
        (["run", "--data", "sklearn:nothing", "--model", "softmax"], 2, "sklearn:nothing"),
        (["run", "--model", "logistc", "--data", "x"], 2, "or path.py:Class; did you mean logistic?"),
        (["run", "--optimizer", "adan"], 2, "--optimizer is 'adan', but must be one of sgd, momentum, adagrad, adam,"),
        (["run", "--memory-mb=abc"], 2, "--memory-mb is 'abc', but must have a number from 1 on"),
        (["run", "--member-timeout-s", "0"], 2, "--member-timeout-s is 0.0, but must be at least 1"),
        (["run", "--data", "sklearn:digts"], 2, "did you mean digits?"),
        (["run", "--data", "sklearn:iris", "--model", "softmax", "--test", "nowhere"], 2, "no such file: test must be"),
        (["run", "--model", "ridge", "--data", "x"], 2, "ridge needs l2"),
        (["run", "--folds", "3", "--data", "sklearn:iris", "--export", "m.npz"], 2, "gives 3 models"),
        (["run", "--folds", "3", "--data", "sklearn:iris", "--detach"], 2, "omit --detach"),
        (["run", "--report", "/nowhere/r.json"], 2, "its folder /nowhere must exist"),
        (["run", "--export", "/nowhere/m.npz"], 2, "its folder /nowhere must exist"),
        (["run", "--model", "dnn", "--hidden", "a,b", "--data", "x"], 2, "hidden is 'a,b', but must be whole numbers"),
        (["run", "--model", "dnn", "--hidden", "0", "--data", "x"], 2, "hidden is '0'"),
        (["run", "--model-options", "{x}", "--data", "x"], 2, "--model-options is '{x}', but must be a JSON object"),
        (["run", "--model-options", "3", "--data", "x"], 2, "--model-options is '3', but must be a JSON object"),
        (["run", "--model-options", '{"rank": 8}', "--data", "x"], 2, "Logistic has no option rank"),
        (["run", "--at", "1:add-workers=0", "--data", "x"], 2, "a change must concern at least 1 member"),
        (["run", "--momentum", "0.5", "--data", "x"], 2, "momentum is given, but optimizer is 'adam'"),
        (
            ["run", "--image", "mine", "--data", "x"],
            2,
            "image is 'mine', but only jobs on docker have an image: this one",
        ),
        (
            ["run", "--queue", "batch", "--lifetime", "60", "--data", "x"],
            2,
            "lifetime is 60.0, but the job is on local: this setting (and queue) is for jobs on YARN only; add --on",
        ),
        (["run", "--model", "/nowhere/my.py:Net", "--data", "x"], 2, "/nowhere/my.py does not exist"),
        (["run", "--data", "a\x1b[31m"], 2, "a\\x1b[31m: no such file"),
        (["predict", "--model", "nowhere.npz", "--data", "x"], 2, "no such file"),
    ],
)
def test_errors_end_with_the_code_of_their_kind(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    assert main(words) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["add-workers", "fake", "two"], ["remove-workers", "fake", "-1"], ["add-servers", "fake", "0"]]
)
def test_members_that_are_neither_number_nor_names_end_with_2(fake: FakeJob, words: list[str]) -> None:
    try:
        code: int | str | None = main(words)
    except SystemExit as end:
        code = end.code
    assert code == 2


def test_cancel_and_kill_say_what_they_did(fake: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cancel", "fake", "7"]) == 0
    assert main(["kill", "fake"]) == 0
    assert main(["kill", "fake"]) == 0
    assert main(["add-workers", "fake", "1"]) == 3
    assert capsys.readouterr().out.splitlines() == [
        "plan 7 aborted", "fake: killed", "fake: already ended (killed)",
    ]  # fmt: skip


def test_a_job_that_ends_before_it_is_killed_is_told_of_as_one_that_has_ended(
    fake: FakeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.master.on_kill = lambda: fake.end("finished", "")
    for _ in range(2):
        assert main(["kill", "fake"]) == 0
        assert capsys.readouterr().out == "fake: already ended (finished)\n"


def test_the_summary_is_there_where_results_cannot_be_delivered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(directory: JobDir, request: RunRequest, tell: object) -> None:
        raise StorageError("hdfs://lake/m.npz: cannot be written; what it was to hold is model.npz")

    report = {"name": "x", "state": "finished", "clock": 5, "metrics": {"train_loss": 0.25}}
    monkeypatch.setattr(run, "_started", lambda *_: SimpleNamespace(close=lambda: None, directory=JobDir(Path("x"))))
    monkeypatch.setattr(run, "_show", lambda *_: None)
    monkeypatch.setattr(run, "_ended", lambda _: report)
    monkeypatch.setattr(run, "deliver_results", refuse)
    assert main(["run", "--model", "logistic", "--data", "sklearn:iris"]) == 1
    told = capsys.readouterr()
    assert told.out == f"{summary_text(report)}\n" and "train loss" in told.out
    assert told.err == "eps: hdfs://lake/m.npz: cannot be written; what it was to hold is model.npz\n"


def test_a_submitted_job_brings_its_results_where_flags_and_its_file_say(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[RunRequest] = []

    def start(request: RunRequest, **_: Any) -> Job:
        found.append(request)
        directory, lock = create_job_dir("a9a")
        lock.close()
        return Job(directory)

    monkeypatch.setattr(Job, "start_request", start)
    (tmp_path / "a").mkdir()
    job_file = tmp_path / "a" / "job.toml"
    job_file.write_text('name = "a9a"\ndata = "sklearn:iris"\nmodel = "softmax"\nreport = "r.json"\n')
    assert main(["submit", "--export", str(tmp_path / "none" / "m.npz"), str(job_file)]) == 2
    assert f"export is {tmp_path}/none/m.npz, but its folder" in capsys.readouterr().err and not found
    assert main(["submit", "--export", str(tmp_path / "m.npz"), str(job_file)]) == 0
    (request,) = found
    assert (request.report, request.export) == (str(tmp_path / "a" / "r.json"), str(tmp_path / "m.npz"))
    assert request.detached and request.spec.on == "yarn"
    assert f"its report to {request.report} and its model to {request.export}" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["run", "--on", "yarn"], ["run", "--on", "yarn", "--detach"], ["submit"]])
@pytest.mark.parametrize(
    ("note", "told"),
    [("", "a9a: interrupted; nothing was submitted"), ("application_1_1 is ended", "application_1_1 is ended")],
)
def test_who_interrupts_a_submission_is_told_what_became_of_it(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, note: str, told: str,
    command: list[str],
) -> None:  # fmt: skip
    def start(request: RunRequest, **_: Any) -> None:
        interrupted = KeyboardInterrupt()
        if note:
            interrupted.add_note(note)
        raise interrupted

    monkeypatch.setattr(Job, "start_request", start)
    assert main([*command, "--name", "a9a", "--data", "sklearn:digits"]) == 130
    assert capsys.readouterr().err == f"eps: {told}\n"


@pytest.mark.parametrize(
    ("on", "flags", "told"),
    [
        ("yarn", [], "interrupted; nothing was submitted"),
        ("docker", [], "interrupted while it was started; it does not run"),
        ("local", ["--detach"], "interrupted while it was started; eps status a9a shows whether it runs"),
    ],
)
def test_who_interrupts_a_resumption_is_told_what_became_of_it(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, on: str, flags: list[str],
    told: str,
) -> None:  # fmt: skip
    directory, lock = create_job_dir("a9a")
    lock.close()
    note_settings(directory, on=on)

    def resume(name: str, **_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "resume", resume)
    assert main(["resume", "a9a", *flags]) == 130
    assert capsys.readouterr().err == f"eps: a9a: {told}\n"


def test_who_interrupts_a_job_that_yarn_does_not_end_is_told_who_goes_on(
    fake: FakeJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ResourceManager does not answer."""
    note_settings(fake.dir, on="yarn")

    def kill(job: Job, reason: str, **_: Any) -> None:
        raise PeerUnavailableError("job 'fake' has not ended: eps kill fake tries again")

    def watch(job: Job, **_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "kill", kill)
    monkeypatch.setattr(Job, "watch", watch)
    monkeypatch.setattr(Job, "kill_at_once", lambda job: False)
    monkeypatch.setattr(Job, "start_request", lambda request, **_: Job(fake.dir))
    assert main(["run", "--on", "yarn", "--name", "fake", "--data", "sklearn:digits"]) == 130
    assert capsys.readouterr().err == "eps: job 'fake' has not ended: eps kill fake tries again\n"


def test_the_page_of_an_interrupted_job_shows_its_end(fake: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def watch(job: Job, **_: Any) -> Any:
        raise KeyboardInterrupt

    shown: list[str] = []
    monkeypatch.setattr(Job, "watch", watch)
    monkeypatch.setattr(Job, "kill", lambda job, reason, **_: None)
    monkeypatch.setattr(Job, "wait", lambda job, *_: {"name": "fake", "state": "killed"})
    monkeypatch.setattr(Job, "start_request", lambda request, **_: Job(fake.dir))
    monkeypatch.setattr(JobPageServer, "end", lambda page, status: shown.append(status["state"]))
    fake.master.status = {**fake.master.status, "state": "killed"}
    assert main(["run", "--name", "fake", "--data", "sklearn:digits", "--web", "0"]) == 130
    assert shown == ["killed"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_job_on_yarn_as_an_interrupt_does(
    fake: FakeJob, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """YARN does not notice the exit of the client's process."""
    # Under nohup, SIGHUP is ignored as intended.
    former = signal.signal(number, signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(number, former))

    def watch(job: Job, **_: Any) -> Any:
        os.kill(os.getpid(), number)
        # Another thread may receive it; Python runs the handler here.
        threading.Event().wait(60.0)
        pytest.fail("it goes on")

    monkeypatch.setattr(Job, "watch", watch)
    monkeypatch.setattr(Job, "start_request", lambda request, **_: Job(fake.dir))
    assert main(["run", "--on", "yarn", "--name", "fake", "--data", "sklearn:digits"]) == 130
    assert [(method, request.reason) for method, request in fake.master.asked] == [("Kill", "interrupted")]


def test_who_removes_the_folder_of_a_running_job_is_told_that_and_not_to_resume_it(
    fake: FakeJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(job: Job, **_: Any) -> Iterator[Progress]:
        shutil.rmtree(fake.dir.path)
        yield Progress(status_of(clock=200))

    monkeypatch.setattr(Job, "watch", watch)
    monkeypatch.setattr(Job, "start_request", lambda request, **_: Job(fake.dir))
    assert main(["run", "--name", "fake", "--data", "sklearn:digits"]) == 1
    why = f"its folder {fake.dir.path} was removed while it ran: the job is lost and cannot be resumed"
    told = capsys.readouterr()
    assert told.out.endswith(f"fake: killed ({why})\n")
    assert told.err == f"eps: job 'fake' killed: {why}\n"


def test_logs_are_found_by_the_members_name(fake: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    fake.dir.log("master").write_text("12:00 M ready\n")
    fake.dir.log("container-0007").write_text("12:00 W[worker-2] M ready\nsecond\nhalf a li")
    assert main(["logs", "fake", "worker-2"]) == 0
    assert capsys.readouterr().out == "12:00 W[worker-2] M ready\nsecond\n"
    assert main(["logs", "fake"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "[worker-2] 12:00 W[worker-2] M ready", "[worker-2] second", "[master] 12:00 M ready",
    ]  # fmt: skip
    assert main(["logs", "fake", "worker-9"]) == 4
    assert "it has master, worker-2" in capsys.readouterr().err


def test_followed_logs_end_with_the_job(fake: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    fake.dir.log("master").write_text("one\n")
    fake.end()
    assert main(["logs", "fake", "master", "--follow"]) == 0
    assert capsys.readouterr().out == "one\n"


def test_each_command_has_help_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in _commands():
        with pytest.raises(SystemExit) as end:
            build_parser().parse_args([command, "--help"])
        assert end.value.code == 0
        assert f"eps {command}" in capsys.readouterr().out.partition("\nexample")[2], command


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom eps.cli.parser import build_parser\nbuild_parser().format_help()\n"
        "print([m for m in ('numpy', 'scipy', 'grpc', 'sklearn') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "[]"


def test_what_shows_a_job_knows_of_yarn_only_what_to_advise() -> None:
    """The import would slow every command, also without jobs on YARN."""
    code = "import sys, eps.job.display\nprint([m for m in sys.modules if m.startswith('eps.cluster.yarn.')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "['eps.cluster.yarn.advice']"


def test_the_commands_are_those_of_the_paper_and_of_a_jobs_life() -> None:
    assert _commands() == [
        "run", "submit", "status", "scale", "add-workers", "add-servers", "remove-workers", "remove-servers", "cancel",
        "logs", "kill", "resume", "fetch", "list", "prune", "predict", "devcluster",
    ]  # fmt: skip


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"eps {eps.__version__}\n")


def test_hscheduler_says_its_version_and_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        hscheduler.cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"hscheduler {eps.__version__}\n"
    with pytest.raises(SystemExit) as end:
        hscheduler.cli.main([])
    assert end.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["run", "--data", "sklearn:iris"], ["list"], ["status", "x"]])
def test_a_home_that_is_no_directory_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    home = tmp_path / "file"
    home.write_text("")
    monkeypatch.setenv("EPS_HOME", str(home))
    assert main(words) == 2
    assert f"EPS_HOME is {home}, which " in capsys.readouterr().err


def test_a_running_name_is_refused_before_the_data_is_looked_at(
    fake: FakeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--name", "fake", "--data", "nowhere.svm"]) == 2
    shown = capsys.readouterr()
    assert "job 'fake' is running" in shown.err and "preparing" not in shown.out


def test_interrupted_wait_for_a_change_says_that_the_plan_goes_on(
    fake: FakeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        if len(asked) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        asked.append(None)

    asked: list[None] = []
    fake.master.plans = [change_of(9, phase="queued")]
    fake.master.on_plan = interrupt
    # A shell ignores interrupts for background processes, such as these tests.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["add-servers", "fake", "1"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "\nplan 9 continues; `eps cancel fake 9` aborts it\n"


@pytest.mark.parametrize(("command", "told"), [("list", ""), ("run", "eps: interrupted: nothing was started\n")])
def test_interrupt_during_imports_ends_with_130_and_no_traceback(command: str, told: str) -> None:
    code = (
        "import sys\nfrom eps.cli import main\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'eps.spec.job_spec': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        f"sys.exit(main(['{command}']))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (found.returncode, found.stderr) == (130, told)


def test_what_a_terminal_would_obey_is_shown_escaped() -> None:
    assert printable("a\x1b[2J\udc80b\tc\u00e9\nd") == "a\\x1b[2J\\udc80b\\tc\u00e9\nd"


def test_help_explains_phases_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected in (
        (["add-workers"], "lists-updated (all members know their addresses)"),
        (["run"], "--data PATH"),
        (["run"], "--optimizer NAME"),
        (["run"], "--batch-size N|full"),
    ):
        with pytest.raises(SystemExit):
            build_parser().parse_args([*words, "--help"])
        assert expected in capsys.readouterr().out


def test_a_damaged_job_does_not_hide_the_others(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("whole", "torn"):
        directory, lock = create_job_dir(name)
        note_settings(directory)
        if name == "torn":
            directory.job_json.write_text("{")
        lock.close()
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert "whole" in shown and "unreadable" in shown and "is not JSON" in shown
    assert main(["list", "--json"]) == 0
    assert {entry["state"] for entry in json.loads(capsys.readouterr().out)} == {"killed", "unreadable"}


def test_a_folder_in_the_place_of_a_job_file_is_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def _commands() -> list[str]:
    """Return the name of every command."""
    (found,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return list(found.choices)


@pytest.mark.parametrize("command", _commands())
def test_an_unknown_option_is_told_with_its_commands_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    needed = {
        "predict": ["--model", "m", "--data", "d"],
        "list": [],
        "devcluster": ["status"],
        "run": ["job.toml"],
        "submit": ["job.toml"],
        "scale": ["a9a", "workers=+1"],
        "remove-workers": ["a9a", "1"],
        "remove-servers": ["a9a", "1"],
    }
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args([command, *needed.get(command, ["a9a"]), "--no-such-option", "x"])
    told = capsys.readouterr().err
    assert ended.value.code == 2
    command = "devcluster status" if command == "devcluster" else command
    assert told.startswith("eps: unknown flag --no-such-option")
    assert told.endswith(f" (see eps {command} --help)\n")


def test_an_option_that_resume_does_not_take_is_told_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["resume", "a9a", "--van", "shm"])
    told = capsys.readouterr().err
    assert told.startswith("eps: unknown flag --van: a resumed job keeps the settings")
    assert "--workers, --servers" in told and "--python" in told


def test_a_job_that_failed_over_its_interpreter_is_told_to_go_on_with_another(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, lock = create_job_dir("job")
    note_settings(directory)
    lock.close()
    for reason, advice in (("worker-1 died", ""), (f"exit code 127: no such file; {CHECK_PYTHON}", " --python PATH")):
        note_end(directory, "failed", reason)
        assert main(["status", "job"]) == 0
        assert f"eps resume job{advice}\n" in capsys.readouterr().out
    note_ended(directory, {"state": "failed", "reason": f"exited with code 127; {CHECK_IMAGE}"})
    assert main(["status", "job"]) == 0
    assert "  after fixing its image, to continue it " in capsys.readouterr().out

    def resume(name: str, **settings: Any) -> None:
        raise ConfigError(f"{name} with {settings['python']}")

    monkeypatch.setattr(Job, "resume", resume)
    assert main(["resume", "job", "--python", "/opt/python"]) == 2
    assert capsys.readouterr().err == "eps: job with /opt/python\n"


def test_one_argument_too_many_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["kill", "a9a", "b9b"])
    assert capsys.readouterr().err == "eps: kill takes no further argument: b9b (see eps kill --help)\n"


@pytest.mark.parametrize("state", ["finished", "killed", "failed"])
@pytest.mark.parametrize("has_settings", [True, False])
def test_a_job_is_said_to_go_on_where_it_can_and_is_not_overwritten_then(
    home: Path, tmp_path: Path, state: str, has_settings: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it has no checkpoint: it goes on from its seed.  What came here from a sweep has no settings."""
    directory, lock = create_job_dir("job")
    if has_settings:
        note_settings(directory)
    note_end(directory, state, "")
    lock.close()
    assert main(["status", "job"]) == 0
    resumable = has_settings and state != "finished"
    assert ("eps resume job" in capsys.readouterr().out) == resumable
    code = main(["run", "--name", "job", "--quiet", "--data", "sklearn:iris", "--iterations", "0"])
    assert code == 2 and directory.record().end is not None, "what cannot work is refused before"
    capsys.readouterr()
    if resumable:
        assert main(["run", "--name", "job", "--quiet", "--data", "sklearn:iris", "--model", "softmax"]) == 2
        told = capsys.readouterr().err
        assert told.startswith("eps: job 'job' stopped before its end: continue it (eps resume job), choose another")
        assert directory.record().end is not None and directory.record().spec == {}
