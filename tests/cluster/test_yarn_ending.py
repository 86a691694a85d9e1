"""That a job on YARN is to end is told to the application that it has by then, also while it is submitted."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from eps.cluster.yarn.application import Application
from eps.errors import DeadlineError
from eps.job import client as local
from eps.job.client import end_job
from eps.job.yarn import ending
from eps.job.yarn.ending import ENDED_S, end_application, wished
from eps.storage.jobdir import JobDir, JobLock, create_job_dir
from eps.storage.record import End, Phase
from eps.system import waits as waiting
from tests.fakes.records import note_ended, note_no_end, note_settings

FORMER, ID = "application_1_0001", "application_1_0002"


class Submission:
    """A process that submits a job, or attends to it: it has the job's lock."""

    def __init__(self, job: JobDir, lock: JobLock) -> None:
        self.job, self._lock = job, lock

    def note(self, application_id: str) -> None:
        # As of one that is resumed.
        self.job.note(phase=Phase.PREPARED, end=None)
        Application(application_id, "hdfs://nn/shared", "/etc/hadoop", "rest").write(self.job)

    def attend(self) -> None:
        self.job.note(pid=1)

    def end(self) -> None:
        note_ended(self.job, {"state": "killed", "exit_code": 1, "reason": "", "time_s": 1.0})
        self.leave()

    def leave(self) -> None:
        self._lock.close()


@pytest.fixture
def submission(tmp_path: Path) -> Iterator[Submission]:
    found = Submission(*create_job_dir("a9a", tmp_path))
    yield found
    found.leave()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look is half a second after the one before; nobody sleeps."""
    looks = itertools.count(0.0, 0.5)
    said = SimpleNamespace(monotonic=lambda: next(looks), sleep=lambda seconds: None, time=time.time)
    monkeypatch.setattr(ending, "time", said)


#: What a submission does whenever it is told something new by who waits for its end.
Step = Callable[[], None]


def telling(*steps: Step) -> tuple[list[str], Callable[[str], None]]:
    told: list[str] = []

    def tell(text: str) -> None:
        steps[len(told)]()
        told.append(text)

    return told, tell


def test_a_job_that_is_resumed_is_ended_by_the_application_that_it_gets(submission: Submission, clock: None) -> None:
    """Until the new one is noted, its directory knows the one before, which has ended long since."""
    job = submission.job
    submission.note(FORMER)

    def submit() -> None:
        submission.note(ID)

    def attend() -> None:
        assert wished(job, ID) == "enough", "whoever attends to the new one finds it"
        submission.end()

    told, tell = telling(submit, attend)
    end_application(job, "enough", 0.0, tell)
    assert told == [f"waits for the end of {FORMER}", f"waits for the end of {ID}"]


def test_one_that_is_submitted_meanwhile_is_ended_by_yarn_and_who_attends_to_it_is_left_alone(
    submission: Submission, clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, sent = submission.job, []

    def kill_supervisor(job: JobDir, number: int = signal.SIGTERM) -> bool:
        # There is none: the job's files are being brought, and now its application is noted.
        sent.append((number, job.is_on_yarn()))
        if len(sent) == 3:
            submission.note(ID)
            submission.attend()
        return False

    monkeypatch.setattr(local, "kill_supervisor", kill_supervisor)

    def attend() -> None:
        assert wished(job, ID) == "enough"
        submission.end()

    told, tell = telling(attend)
    end_job(job, "enough", 10.0, tell)
    assert told == [f"waits for the end of {ID}"]
    assert sent == [(signal.SIGTERM, False)] * 3


def test_one_that_has_no_application_yet_is_ended_by_who_brings_its_files(
    submission: Submission, clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submission.job
    seen: list[str] = []

    def kill_supervisor(job: JobDir, number: int = signal.SIGTERM) -> bool:
        # Its settings come after its directory.
        seen.append(wished(job))
        if len(seen) == 2:
            note_settings(job, on="yarn")
        if len(seen) == 4:
            submission.leave()
        return False

    monkeypatch.setattr(local, "kill_supervisor", kill_supervisor)
    end_job(job, "enough", 10.0, lambda text: pytest.fail(text))
    assert seen == ["", "", "enough", "enough"] and wished(job, ID) == "enough", "whichever it gets"


def test_one_that_is_resumed_is_ended_by_who_brings_its_files(submission: Submission, clock: None) -> None:
    """Until it gets another application its directory says how the one before ended."""
    job = submission.job
    submission.note(FORMER)
    ended = {"state": "failed", "exit_code": 1, "reason": "", "time_s": 1.0}
    note_ended(job, ended)

    def heed() -> None:
        assert wished(job) == "enough"
        job.ending_json.unlink()
        submission.leave()

    told, tell = telling(heed)
    end_job(job, "enough", 0.0, tell)
    assert told == ["waits for the end of a9a"] and job.ended() == End(**ended)


def test_of_one_that_is_resumed_and_gets_an_application_first_that_is_ended(
    submission: Submission, clock: None
) -> None:
    job = submission.job
    submission.note(FORMER)
    note_ended(job, {"state": "failed", "exit_code": 1, "reason": "", "time_s": 1.0})

    def submit() -> None:
        submission.note(ID)
        note_no_end(job)

    def attend() -> None:
        assert wished(job, ID) == "enough"
        submission.end()

    told, tell = telling(submit, attend)
    end_job(job, "enough", 0.0, tell)
    assert told == ["waits for the end of a9a", f"waits for the end of {ID}"]


def test_of_one_that_ends_just_now_no_wish_is_left(submission: Submission, clock: None) -> None:
    """Whoever attended to it has noted its end, and removes what is on the cluster."""
    submission.note(ID)
    submission.attend()
    note_ended(submission.job, {"state": "finished", "exit_code": 0, "reason": "", "time_s": 1.0})
    told, tell = telling(submission.leave)
    end_application(submission.job, "enough", 0.0, tell)
    assert told == ["waits for the end of a9a"] and not submission.job.ending_json.exists()


def test_one_that_gets_an_application_at_the_last_moment_is_not_ended_by_a_signal(
    submission: Submission, clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []

    def kill_supervisor(job: JobDir, number: int = signal.SIGTERM) -> bool:
        sent.append(number)
        return True

    def wait_for(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        if not condition():
            submission.note(ID)
            raise DeadlineError(f"{what}: not within {timeout_s:g} s")

    monkeypatch.setattr(local, "kill_supervisor", kill_supervisor)
    monkeypatch.setattr(local, "wait_for", wait_for)
    told, tell = telling(submission.end)
    end_job(submission.job, "enough", 10.0, tell)
    assert sent == [signal.SIGTERM] and told == [f"waits for the end of {ID}"]


def test_one_of_this_machine_whose_supervisor_hangs_is_ended_by_force(
    submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []

    def kill_supervisor(job: JobDir, number: int = signal.SIGTERM) -> bool:
        sent.append(number)
        if number == signal.SIGKILL:
            submission.leave()
        return True

    monkeypatch.setattr(local, "kill_supervisor", kill_supervisor)
    end_job(submission.job, "enough", 0.0, lambda text: pytest.fail(text))
    assert sent == [signal.SIGTERM, signal.SIGKILL] and not submission.job.ending_json.exists()


def test_a_submission_that_yarn_refuses_is_the_end(submission: Submission, clock: None) -> None:
    submission.note(ID)

    def refuse() -> None:
        submission.job.note(yarn={"application": None})
        submission.leave()

    told, tell = telling(refuse)
    end_application(submission.job, "enough", 0.0, tell)
    assert told == [f"waits for the end of {ID}"]


@pytest.mark.parametrize("attended", [True, False])
def test_only_of_one_that_somebody_attends_to_it_is_said_that_its_end_is_remembered(
    submission: Submission, clock: None, attended: bool
) -> None:
    submission.note(FORMER)
    if attended:
        submission.attend()
    with pytest.raises(DeadlineError) as raised:
        end_application(submission.job, "enough", 0.0, lambda text: None)
    promise = f"it is remembered that {FORMER} is to end, and YARN is told so when it answers"
    advice = "another process still starts it: end that one, or run eps kill a9a again later"
    assert str(raised.value) == f"job 'a9a' has not ended within {ENDED_S:g} s; {promise if attended else advice}"


def test_of_one_that_has_ended_it_is_not_said_that_somebody_starts_it(submission: Submission, clock: None) -> None:
    """Whoever attends to it has said its last word, and is about to leave."""
    submission.note(ID)

    def end(text: str) -> None:
        ended = {"state": "killed", "exit_code": 1, "reason": "enough", "time_s": 1.0}
        note_ended(submission.job, ended)

    with pytest.raises(DeadlineError) as raised:
        end_application(submission.job, "enough", 0.0, end)
    leaves = f"{ID} has, and whoever attends to it is about to"
    assert str(raised.value) == f"job 'a9a' has not ended within {ENDED_S:g} s; {leaves}"


def test_of_one_that_has_ended_it_is_said_what_is_still_fetched(submission: Submission, clock: None) -> None:
    submission.note(ID)
    submission.attend()
    fetched = f"application {ID} has ended; what it has left is fetched from hdfs://nn/shared/results"
    submission.job.note(yarn={"waiting": {"reason": fetched, "is_fetching": True}})
    told: list[str] = []
    with pytest.raises(DeadlineError) as raised:
        end_application(submission.job, "enough", 0.0, told.append)
    assert told == [fetched]
    assert str(raised.value) == f"{fetched}: not within {ENDED_S:g} s; eps status a9a shows whether it is here"


def test_one_that_nobody_could_be_told_of_in_time_says_so(
    submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []

    def wait_for(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        waits.append(what)
        waiting.wait_for(condition, timeout_s, what)

    monkeypatch.setattr(local, "wait_for", wait_for)
    with pytest.raises(DeadlineError, match="not within 0 s; another process still starts it: end that one, or run"):
        end_job(submission.job, "enough", 0.0, lambda text: None)
    assert not submission.job.ending_json.exists()
    assert waits == ["the end of job 'a9a'"], "no longer than it says"


def test_of_one_that_has_ended_by_then_no_wish_is_left(submission: Submission) -> None:
    submission.note(ID)
    submission.end()
    end_application(submission.job, "enough", 0.0, lambda text: pytest.fail(text))
    assert not submission.job.ending_json.exists()
