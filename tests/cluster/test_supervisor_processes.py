"""The supervisor with real processes: what is left after every way to end, and what a container is given."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import eps
from eps.cluster.supervisor.__main__ import CANNOT_START
from eps.cluster.supervisor.process import PRELOAD, SUPERVISOR
from eps.cluster.supervisor.start import WarmSupervisor, kill_supervisor, supervisor_environment
from eps.cluster.supervisor.state import (
    MOST_RESTARTS,
    Beat,
    JobDone,
    KillProcess,
    LaunchProcess,
    ProcessExited,
    RequestRefused,
)
from eps.errors import DeadlineError
from eps.storage.jobdir import JobDir, JobLock, create_job_dir, jobs_dir
from tests.fakes.supervised import DEADLINE_S, ENTRIES, SupervisedJob, Watch, accept, listen

ROOT = Path(eps.__file__).parent.parent
NO_PRELOAD = ("--preload", "")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[SupervisedJob]:
    with SupervisedJob(tmp_path) as job:
        yield job
    assert not job.dir.is_running()


def wait_until_stopped(pid: int) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < end_s, f"{pid} has not stopped"


def pids_of(job: SupervisedJob, *others: int) -> Watch:
    assert job.master is not None
    return Watch(job.handle.pid, job.master.pid, *others)


def test_killing_the_supervisor_ends_every_process(job: SupervisedJob) -> None:
    members = [job.launch(f"container-{n}") for n in range(3)]
    watch = pids_of(job, *(m.pid for m in members))
    os.kill(job.handle.pid, signal.SIGKILL)
    watch.wait()
    assert job.handle.wait(DEADLINE_S) == -signal.SIGKILL
    assert not job.dir.is_running()
    assert job.dir.record().end is None and job.dir.ended().is_lost


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_ends_every_process_and_says_why(job: SupervisedJob, number: signal.Signals) -> None:
    watch = pids_of(job, job.launch("container-1").pid)
    os.kill(job.handle.pid, number)
    watch.wait()
    assert job.handle.wait(DEADLINE_S) == 128 + number
    ended = job.dir.ended()
    assert ended is not None
    assert (ended.state, ended.reason) == ("killed", f"the supervisor got {number.name}")


def test_a_process_that_does_not_end_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    with SupervisedJob(tmp_path, grace_s=0.1) as job:
        watch = pids_of(job, job.launch("container-1", "ignore-end").pid)
        os.kill(job.handle.pid, signal.SIGTERM)
        watch.wait()


def test_a_stopped_process_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    with SupervisedJob(tmp_path, grace_s=0.1) as job:
        member = job.launch("container-1")
        watch = Watch(member.pid)
        os.kill(member.pid, signal.SIGSTOP)
        wait_until_stopped(member.pid)
        job.say(KillProcess("container-1"))
        assert job.hear(ProcessExited).signal == signal.SIGKILL
        watch.wait()


def test_a_tied_job_ends_when_its_client_lets_go(job: SupervisedJob) -> None:
    watch = pids_of(job, job.launch("container-1").pid)
    job.handle.close()
    watch.wait()
    ended = job.dir.ended()
    assert ended is not None and ended.reason == "the client has gone"


def start_client(home: Path, tied: str) -> tuple[subprocess.Popen[str], int]:
    code = "import sys; from tests.fakes.supervised import client; client(*sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(home), tied], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        return process, int(process.stdout.readline())


def test_a_killed_client_leaves_nothing_of_a_tied_job(tmp_path: Path) -> None:
    directory = JobDir(jobs_dir(tmp_path) / "job")
    with listen(directory) as listener:
        process, supervisor_pid = start_client(tmp_path, "tied")
        master, fds = accept(listener, num_fds=1)
        os.close(fds[0])
        watch = Watch(supervisor_pid, master.pid)
        process.kill()
        process.wait(DEADLINE_S)
        watch.wait()
        master.connection.close()
    assert not directory.is_running()


def test_a_detached_job_outlives_its_client_and_ends_when_asked(tmp_path: Path) -> None:
    directory = JobDir(jobs_dir(tmp_path) / "job")
    with listen(directory) as listener:
        process, supervisor_pid = start_client(tmp_path, "detached")
        assert process.wait(DEADLINE_S) == 0
        master, fds = accept(listener, num_fds=1)
        os.close(fds[0])
        watch = Watch(supervisor_pid, master.pid)
        assert directory.is_running()
        kill_supervisor(directory)
        watch.wait()
        master.connection.close()


def test_what_a_container_process_is_given(job: SupervisedJob) -> None:
    facts = job.launch("container-1").facts
    assert facts["fds"] == [0, 1, 2]
    assert facts["stdin"] == ""
    assert facts["parent_pid"] == job.handle.pid
    assert facts["group"] == facts["pid"]
    assert facts["death_signal"] == signal.SIGKILL
    assert facts["handlers_are_default"] and facts["blocked_signals"] == []
    assert facts["environ"]["BEHAVIOUR"] == "sleep"
    assert facts["environ"]["OPENBLAS_NUM_THREADS"] == "1"
    assert facts["cwd"] == os.getcwd()
    assert facts["scratch_is_there"] and facts["supervisor_fd"] is None
    assert "the log gets stdout" in job.dir.log("container-1").read_text()


def test_only_the_master_has_the_channel(job: SupervisedJob) -> None:
    assert job.master is not None
    facts = job.master.facts
    assert facts["fds"] == [0, 1, 2, facts["supervisor_fd"]]


def test_containers_find_the_preloaded_modules_and_no_threads(tmp_path: Path) -> None:
    with SupervisedJob(tmp_path, preload=PRELOAD) as job:
        facts = job.launch("container-1").facts
        assert facts["modules"] == ["numpy", "scipy.sparse", "grpc"]
        assert facts["num_threads"] == 1
        log = job.dir.log("supervisor").read_text()
        assert "threads" not in log, log


def test_the_real_entry_points_leave_the_supervisor_single_threaded() -> None:
    code = (
        "import os; from eps.cluster.supervisor.process import *; from eps.job.entry_points import ENTRY_POINTS\n"
        "preload([*PRELOAD, *(e.partition(':')[0] for e in ENTRY_POINTS.values())]); print(num_threads())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=supervisor_environment(os.environ), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1", done.stderr


@pytest.mark.parametrize(
    ("behaviour", "code"), [("exit 0", 0), ("end", 0), ("exit 7", 7), ("raise", 1)], ids=["0", "none", "7", "raise"]
)
def test_the_end_of_a_process_is_reported_with_its_code(job: SupervisedJob, behaviour: str, code: int) -> None:
    job.launch("container-1", behaviour)
    assert job.hear(ProcessExited) == ProcessExited("container-1", code, None)
    text = job.dir.log("container-1").read_text()
    assert ("RuntimeError: the member was told to fail" in text) == (behaviour == "raise")
    assert not job.dir.scratch("container-1").exists()


def test_a_process_ended_by_a_signal_is_reported_with_it(job: SupervisedJob) -> None:
    os.kill(job.launch("container-1").pid, signal.SIGKILL)
    assert job.hear(ProcessExited) == ProcessExited("container-1", None, signal.SIGKILL)


def test_what_a_container_started_ends_with_it(job: SupervisedJob) -> None:
    member = job.launch("container-1", "start-another")
    watch = Watch(member.facts["started_pid"])
    os.kill(member.pid, signal.SIGKILL)
    job.hear(ProcessExited)
    watch.wait()


def test_a_role_without_an_entry_point_is_refused_and_the_job_goes_on(job: SupervisedJob) -> None:
    job.say(LaunchProcess("container-1", "cook"))
    notice = job.hear(RequestRefused)
    assert notice.container_id == "container-1" and "cook" in notice.reason
    job.launch("container-2")


def test_a_master_that_says_nonsense_fails_the_job(job: SupervisedJob) -> None:
    assert job.master is not None
    watch = pids_of(job, job.launch("container-1").pid)
    job.channel.send(b"{")
    assert job.handle.wait(DEADLINE_S) == 1
    watch.wait()
    ended = job.dir.ended()
    assert ended is not None and ended.state == "failed" and "is not a message of" in ended.reason


def test_containers_start_in_a_fraction_of_the_time_of_the_imports(tmp_path: Path) -> None:
    with SupervisedJob(tmp_path, preload=PRELOAD) as job:
        took_s = []
        for n in range(5):
            began_s = time.monotonic()
            job.launch(f"container-{n}")
            took_s.append(time.monotonic() - began_s)
        # Milliseconds on a machine that has nothing else to do; importing takes hundreds.
        assert min(took_s) < 0.15, took_s


def test_a_signal_that_comes_before_the_supervisor_is_ready_ends_the_job_in_order(tmp_path: Path) -> None:
    job, lock = create_job_dir("job", tmp_path)
    entries = {**ENTRIES, SUPERVISOR: "tests.fakes.supervised:stop_early"}
    with lock:
        handle = WarmSupervisor(entries, options=NO_PRELOAD).give(job.path, True, lock)
    with listen(job), handle:
        assert handle.wait(DEADLINE_S) == 128 + signal.SIGTERM
    ended = job.ended()
    assert ended is not None and ended.state == "killed"


def test_an_entry_point_that_is_missing_fails_the_job_with_its_traceback(tmp_path: Path) -> None:
    job, lock = create_job_dir("job", tmp_path)
    with lock:
        entries = {**ENTRIES, "master": "tests.no_such_module:run"}
        handle = WarmSupervisor(entries, options=NO_PRELOAD).give(job.path, True, lock)
    with handle:
        assert handle.wait(DEADLINE_S) == 1
    ended = job.ended()
    assert ended is not None and "exited with code 1" in ended.reason
    for log in ("master", "supervisor"):
        assert "No module named 'tests.no_such_module'" in job.log(log).read_text()


def test_a_container_id_is_launched_once(job: SupervisedJob) -> None:
    job.launch("container-1")
    job.say(LaunchProcess("container-1", "worker"))
    assert "launched once" in job.hear(RequestRefused).reason


def test_job_done_ends_the_rest_and_passes_the_exit_code_on(job: SupervisedJob) -> None:
    assert job.master is not None
    watch = pids_of(job, job.launch("container-1").pid)
    job.say(JobDone(4, "failed", "the loss is not finite"))
    job.hear(ProcessExited)
    job.master.order("exit 0")
    watch.wait()
    assert job.handle.wait(DEADLINE_S) == 4
    ended = job.dir.ended()
    assert ended is not None
    assert (ended.state, ended.exit_code, ended.reason) == ("failed", 4, "the loss is not finite")
    assert ended.time_s > 0
    assert not job.dir.containers.exists() and not job.dir.record().pid


@pytest.mark.parametrize(
    ("order", "reason"), [("exit 3", "exited with code 3"), ("raise", "exited with code 1"), ("", "SIGKILL")]
)
def test_masters_that_end_again_and_again_fail_the_job(job: SupervisedJob, order: str, reason: str) -> None:
    member = job.launch("container-1")
    for number in range(MOST_RESTARTS + 1):
        assert job.master is not None
        if number == MOST_RESTARTS:
            watch = pids_of(job, member.pid)
        if order:
            job.master.order(order)
        else:
            os.kill(job.master.pid, signal.SIGKILL)
        if number < MOST_RESTARTS:
            job.accept_master()
    watch.wait()
    assert job.handle.wait(DEADLINE_S) == 1
    ended = job.dir.ended()
    assert ended is not None and ended.state == "failed" and reason in ended.reason


def test_a_master_that_ends_is_replaced_and_the_next_is_told_what_runs(job: SupervisedJob) -> None:
    stays, ends = job.launch("container-1"), job.launch("container-2")
    second = job.replace_master()
    assert second.facts["running"] == {"container-1": stays.pid, "container-2": ends.pid}
    os.kill(ends.pid, signal.SIGKILL)
    assert job.hear(ProcessExited).container_id == "container-2"
    job.launch("container-3")
    assert set(job.replace_master().facts["running"]) == {"container-1", "container-3"}


def test_what_a_master_asked_before_it_was_killed_is_done(job: SupervisedJob) -> None:
    assert job.master is not None
    os.kill(job.handle.pid, signal.SIGSTOP)
    wait_until_stopped(job.handle.pid)
    job.say(LaunchProcess("container-1", "worker", {"BEHAVIOUR": "sleep"}))
    os.kill(job.master.pid, signal.SIGKILL)
    os.kill(job.handle.pid, signal.SIGCONT)
    assert list(job.accept_master().facts["running"]) == ["container-1"]


def test_a_master_that_stops_beating_is_killed_and_replaced(tmp_path: Path) -> None:
    with SupervisedJob(tmp_path, member_timeout_s=0.2) as job:
        assert job.master is not None
        first = Watch(job.master.pid)
        job.say(Beat(1))
        first.wait()
        assert job.accept_master().facts["running"] == {}


def test_what_the_master_said_before_it_ended_counts(job: SupervisedJob) -> None:
    assert job.master is not None
    # It leaves a notice unread, which the channel reports as an error when it is closed.
    os.kill(job.launch("container-1").pid, signal.SIGKILL)
    select.select([job.channel], [], [], DEADLINE_S)
    os.kill(job.handle.pid, signal.SIGSTOP)
    wait_until_stopped(job.handle.pid)
    watch = Watch(job.master.pid)
    job.say(JobDone(0, "finished"))
    job.master.order("exit 0")
    watch.wait()
    job.channel.close()
    os.kill(job.handle.pid, signal.SIGCONT)
    assert job.handle.wait(DEADLINE_S) == 0
    ended = job.dir.ended()
    assert ended is not None and ended.state == "finished"


def test_a_supervisor_without_the_lock_of_its_job_does_not_start(job: SupervisedJob, tmp_path: Path) -> None:
    with JobLock(tmp_path / "another") as lock:
        second = WarmSupervisor(ENTRIES, options=NO_PRELOAD).give(job.dir.path, False, lock)
    with second:
        assert second.wait(DEADLINE_S) == CANNOT_START
    assert f"is not {job.dir.lock}" in job.dir.log("supervisor").read_text()
    job.launch("container-1")


def test_waiting_for_a_job_ends_at_the_deadline(job: SupervisedJob) -> None:
    with pytest.raises(DeadlineError, match="has not ended within"):
        job.handle.wait(0.01)
