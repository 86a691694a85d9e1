"""A trial on YARN whose report does not come: it is looked for again, and never taken for one without a loss.

The attendants are real processes, which ask no cluster: its file system is a folder.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from eps.cluster.supervisor.start import WarmSupervisor
from eps.cluster.yarn.application import Application
from eps.errors import DeadlineError, StorageError
from eps.job.client import Job
from eps.job.master_link import Progress
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.storage.atomic import write_json_atomic
from eps.storage.jobdir import JobDir, create_job_dir
from eps.system.waits import wait_for
from hscheduler import cli
from hscheduler.cli.commands import sweep as sweep_command
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.live import last_report
from hscheduler.live.job import LiveJob
from hscheduler.live.last_report import LastReport
from hscheduler.live.results import own_report
from hscheduler.live.submission import Submission
from tests.cluster.attendant_world import ID
from tests.fakes.records import end_of, note_ended, note_settings
from tests.hscheduler.live_job_world import SEATS, TIMEOUT_S

WHY = "what it has left cannot be fetched"
REPORT: dict[str, Any] = {
    "name": "sweep-a",
    "state": "finished",
    "reason": "",
    "clock": 3,
    "metrics": {"train_loss": 0.25},
    "history": [{"clock": k, "loss": 1.0 / (k + 1), "seconds": float(k + 1)} for k in range(4)],
    "changes": [],
}


@dataclass
class Trial:
    """A trial that has ended by YARN's word, and what it has left on the cluster."""

    job: JobDir
    results: Path
    said: SimpleQueue[e.Event] = field(default_factory=SimpleQueue)

    def live(self) -> LiveJob:
        """Return what watches it from now on."""
        spec = JobSpec(workers=2, servers=1, on="yarn")
        found = LiveJob("a", "sweep-a", spec, "loss", 10, self.said.put)
        found.go_on(0, SEATS, has_feedback=False, has_started=True)
        return found

    def ended(self) -> e.JobEnded:
        """Return its end, when it is said."""
        while not isinstance(event := self.said.get(timeout=TIMEOUT_S), e.JobEnded):
            pass
        return event

    def come_back(self) -> None:
        """Let the file system be read."""
        (self.results / "report.json").rmdir()
        (self.results / "report.json").write_text(json.dumps(REPORT))


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trial]:
    """One that has finished, and whose report cannot be read."""
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(last_report, "PAUSE_S", 0.1)
    job, lock = create_job_dir("sweep-a")
    lock.close()
    note_settings(job, workers=2, servers=1, iterations=4, on="yarn")
    results = tmp_path / "shared" / "results"
    (results / "report.json").mkdir(parents=True)
    (results / "model.npz").write_bytes(b"npz")
    (results / "ended.json").write_text('{"state": "finished", "exit_code": 0, "reason": ""}')
    (tmp_path / "yarn-site.xml").write_text(
        "<configuration><property><name>yarn.resourcemanager.webapp.address</name>"
        "<value>127.0.0.1:9</value></property></configuration>"
    )
    Application(ID, str(tmp_path / "shared"), str(tmp_path), "rest").write(job)
    reason = f"finished; {WHY}: the NameNode is away; eps status sweep-a tries again"
    ended = {"state": "finished", "exit_code": 0, "reason": reason, "time_s": 1.0, "unfetched": ""}
    note_ended(job, ended)
    yield Trial(job, results)
    wait_for(lambda: not job.is_running(), TIMEOUT_S, "the end of who attends to it")


def test_a_trial_whose_report_comes_later_has_finished_with_its_loss(
    trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    live = trial.live()
    told = "job 'sweep-a' has ended, and its report is not here: it is looked for again for 300 s"
    wait_for(lambda: told in caplog.messages, TIMEOUT_S, "what is said of it")
    assert trial.said.qsize() <= 1, "who its members are, and nothing of its end"
    trial.come_back()
    ended = trial.ended()
    assert (ended.phase, ended.loss, ended.feedback) == (Phase.FINISHED, 0.25, 0.25)
    assert caplog.messages.count(told) == 1
    live.close()
    assert not live.is_alive


def test_a_trial_whose_report_does_not_come_has_failed_and_says_why(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is none that finished without a loss: another point would be the best."""
    monkeypatch.setattr(last_report, "COMES_WITHIN_S", 0.2)
    live = trial.live()
    ended = trial.ended()
    assert (ended.phase, ended.loss) == (Phase.FAILED, None)
    assert ended.why.startswith("job 'sweep-a': ") and WHY in ended.why and "eps status sweep-a" in ended.why
    live.close()


def test_who_ends_a_sweep_does_not_wait_for_a_report(trial: Trial, caplog: pytest.LogCaptureFixture) -> None:
    live = trial.live()
    wait_for(lambda: "looked for again" in caplog.text, TIMEOUT_S, "what is said of it")
    live.close()
    assert trial.ended().phase is Phase.FAILED and not live.is_alive


def test_a_trial_that_was_ended_for_good_was_killed_and_is_not_tried_again(
    trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    live = trial.live()
    wait_for(lambda: "looked for again" in caplog.text, TIMEOUT_S, "what is said of it")
    # It had finished when this was decided: who was to end has not failed.
    live.obey(1, e.EndJob("a", False, "the worst"))
    ended = trial.ended()
    assert (ended.phase, ended.why) == (Phase.KILLED, "the worst")
    live.close()


def test_what_a_trial_brought_is_asked_for_and_not_made_up(trial: Trial) -> None:
    with pytest.raises(StorageError, match=f"job 'sweep-a': finished; {WHY}"):
        Job(trial.job).report()
    submission = Submission("a", "", "sweep-a", JobSpec(), phase=Phase.FINISHED, has_started=True)
    assert own_report(submission) is None
    trial.come_back()
    found = own_report(submission)
    assert found is not None and found["metrics"]["train_loss"] == 0.25
    trial.job.report.unlink()
    with pytest.raises(StorageError, match=r"has finished, but has no report: .*report.json is missing"):
        Job(trial.job).wait(TIMEOUT_S)


class Ended:
    """A job on YARN at its end, as a script has it; how it ended is None where nobody has said."""

    def __init__(self, ended: dict[str, Any] | None, *, has_report: bool = False, waits: int = 0) -> None:
        self._left, self._ended, self.timeouts_s = waits, ended, list[float]()
        self.directory = SimpleNamespace(
            is_on_yarn=lambda: True,
            report=Path(__file__) if has_report else Path("/nonexistent/report.json"),
            ended=lambda: None if ended is None else end_of(ended),
            is_settled=lambda: ended is not None and "unfetched" not in ended,
        )

    def wait(self, timeout_s: float) -> dict[str, Any]:
        self.timeouts_s.append(timeout_s)
        if len(self.timeouts_s) <= self._left:
            raise DeadlineError("the end of job 'a': not within 60 s")
        return self.report()

    def report(self) -> dict[str, Any]:
        return {"of": self._ended}


UNFETCHED = {"unfetched": ""}


@pytest.mark.parametrize(
    ("ended", "has_report", "is_wanted", "is_taken"),
    [
        ({"state": "finished", **UNFETCHED}, False, True, False),
        ({"state": "finished", **UNFETCHED}, False, False, True),
        # Its model is what does not come: the loss is here.
        ({"state": "finished", **UNFETCHED}, True, True, True),
        # By its master's word, which is there, too, it may have finished.
        ({"state": "failed", **UNFETCHED}, False, True, False),
        ({"state": "killed", **UNFETCHED}, False, True, True),
        # Its master could not begin.
        ({"state": "failed"}, False, True, True),
        # Who attended to it was ended, and it may run.
        (None, False, True, False),
    ],
)
def test_only_what_may_still_come_is_looked_for(
    ended: dict[str, Any] | None, has_report: bool, is_wanted: bool, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_report, "PAUSE_S", 0.0)
    last = LastReport("a", 60.0, threading.Event())
    job: Any = Ended(ended, has_report=has_report)
    assert last.of(job, 3, is_wanted=is_wanted) == ({"of": ended} if is_taken else None)


def test_an_end_that_takes_long_is_told_of_and_waited_for_and_for_longer_where_there_was_news(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    job: Any = Ended({"state": "finished"}, waits=1)
    last = LastReport("a", 60.0, threading.Event())
    assert last.of(job, 3, is_wanted=True) == {"of": {"state": "finished"}}
    assert job.timeouts_s[0] == 60.0 and 60.0 < job.timeouts_s[1] <= last_report.COMES_WITHIN_S
    assert caplog.messages == ["the end of job 'a': not within 60 s; it is waited for 300 s more"]
    # Neither its report nor another iteration.
    monkeypatch.setattr(last_report, "PAUSE_S", 0.0)
    monkeypatch.setattr(last_report, "time", SimpleNamespace(monotonic=lambda: now_s))
    away: Any = Ended({"state": "finished", **UNFETCHED})
    now_s = 1e9
    assert last.of(away, 4, is_wanted=True) is None
    now_s += last_report.COMES_WITHIN_S
    assert last.of(away, 5, is_wanted=True) is None
    now_s += last_report.COMES_WITHIN_S
    assert last.of(away, 5, is_wanted=True) == {"of": {"state": "finished", **UNFETCHED}}


class OfSweep(Job):
    """A trial's job that has finished; without a loss, what it has left is on its cluster."""

    def __init__(self, name: str, loss: float | None) -> None:
        directory, lock = create_job_dir(name)
        lock.close()
        ended = {"state": "finished", "exit_code": 0, "reason": f"finished; {WHY}", "time_s": 1.0}
        if loss is None:
            Application(ID, "", "", "rest").write(directory)
            ended["unfetched"] = ""
        else:
            history = [{"clock": 0, "loss": loss, "seconds": 1.0}]
            write_json_atomic(directory.report, {**REPORT, "history": history})
        note_ended(directory, ended)
        super().__init__(directory)

    def watch(self, after_clock: int = -1) -> Iterator[Progress]:
        yield Progress({"state": "running"})


@pytest.mark.parametrize("retries", [0, 1])
def test_the_best_point_is_never_one_that_another_was_not_compared_with_in_silence(
    retries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second point would be the best, and what it has left does not come when it is tried first."""
    monkeypatch.setattr(last_report, "COMES_WITHIN_S", 0.0)
    monkeypatch.setattr(sweep_command, "check_sweep", lambda spec: None)
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    jobs: dict[str, OfSweep] = {}

    def start(request: RunRequest, *, detach: bool, warm: WarmSupervisor) -> OfSweep:
        warm.cancel()
        loss = 0.5 if request.name.endswith("trial-1") else None if request.name.endswith("trial-2") else 0.25
        return jobs.setdefault(request.name, OfSweep(request.name, loss))

    monkeypatch.setattr("hscheduler.live.job.Job", SimpleNamespace(start_request=start, find=jobs.__getitem__))
    spec, target = tmp_path / "sweep.toml", tmp_path / "report.json"
    spec.write_text(f"[sweep]\ntrials = 2\nretries = {retries}\nalgorithm = 'random'\n")
    assert cli.main(["compare", str(spec), "--policies", "static,elastic", "--quiet", "--report", str(target)]) == 0
    for found in json.loads(target.read_text())["policies"].values():
        _, second = found["trials"]
        assert second["attempts"][0]["phase"] == "failed" and WHY in second["attempts"][0]["why"]
        assert (found["best"]["job_id"], found["best"]["loss"]) == (("trial-1", 0.5), ("trial-2", 0.25))[retries]
        assert (found["completed"], found["phases"]["failed"]) == (1 + retries, 1 - retries)
