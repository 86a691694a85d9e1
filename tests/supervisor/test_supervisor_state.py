"""What the supervisor decides, on values."""

from __future__ import annotations

import random
import signal

from eps.supervisor.protocol import (
    JobDone,
    KillProcess,
    LaunchProcess,
    ProcessExited,
    ProcessLaunched,
    RequestRefused,
)
from eps.supervisor.state import (
    Action,
    ChildEnded,
    ClientGone,
    DeadlinePassed,
    Event,
    Finish,
    Fork,
    Forked,
    ForkFailed,
    Malformed,
    RemoveScratch,
    Requested,
    SendSignal,
    Started,
    StopSignalled,
    SupervisorState,
    Tell,
    on_master_exit,
)

MASTER_PID = 100


def started(*container_ids: str) -> SupervisorState:
    """A job with its master and these containers, with pids from 101 on."""
    state = SupervisorState(grace_s=3.0)
    assert state.step(Started(), 0.0) == [Fork("master", "master")]
    assert state.step(Forked("master", MASTER_PID), 0.0) == []
    for n, container_id in enumerate(container_ids):
        launch(state, container_id, MASTER_PID + 1 + n)
    return state


def launch(state: SupervisorState, container_id: str, pid: int) -> None:
    forks = state.step(Requested(LaunchProcess(container_id, "worker", {"A": "1"}, "x.log")), 0.0)
    assert forks == [Fork(container_id, "worker", {"A": "1"}, "x.log")]
    assert state.step(Forked(container_id, pid), 0.0) == [Tell(ProcessLaunched(container_id, pid))]


def refusals(actions: list[Action]) -> list[str]:
    return [a.notice.reason for a in actions if isinstance(a, Tell) and isinstance(a.notice, RequestRefused)]


def test_a_child_that_ends_is_reported_and_its_scratch_removed() -> None:
    state = started("c1")
    assert state.step(ChildEnded(101, 3, None), 1.0) == [RemoveScratch("c1"), Tell(ProcessExited("c1", 3, None))]
    assert set(state.children) == {"master"}


def test_a_child_of_nobody_is_ignored() -> None:
    assert started("c1").step(ChildEnded(999, 0, None), 1.0) == []


def test_a_kill_with_sigterm_is_followed_by_sigkill_at_the_deadline() -> None:
    state = started("c1")
    assert state.step(Requested(KillProcess("c1")), 10.0) == [SendSignal(101, signal.SIGTERM)]
    assert state.next_deadline_s == 13.0
    assert state.step(DeadlinePassed(), 12.9) == []
    assert state.step(DeadlinePassed(), 13.0) == [SendSignal(101, signal.SIGKILL)]
    assert state.next_deadline_s is None


def test_asking_again_does_not_put_the_deadline_off() -> None:
    state = started("c1")
    state.step(Requested(KillProcess("c1")), 10.0)
    state.step(Requested(KillProcess("c1")), 12.0)
    assert state.next_deadline_s == 13.0


def test_other_signals_are_sent_and_nothing_else() -> None:
    state = started("c1")
    assert state.step(Requested(KillProcess("c1", signal.SIGSTOP)), 1.0) == [SendSignal(101, signal.SIGSTOP)]
    assert state.next_deadline_s is None


def test_the_master_cannot_be_killed_by_its_own_request_nor_launched() -> None:
    state = started()
    assert refusals(state.step(Requested(KillProcess("master")), 1.0)) == ["no container master is running"]
    assert "launched once" in refusals(state.step(Requested(LaunchProcess("master", "worker")), 1.0))[0]


def test_a_container_of_a_running_id_is_refused_with_its_id() -> None:
    actions = started("c1").step(Requested(LaunchProcess("c1", "worker")), 1.0)
    assert actions == [Tell(RequestRefused("c1 is running: a container is launched once", "c1"))]


def test_a_failed_fork_is_a_refusal_of_that_container() -> None:
    state = started()
    state.step(Requested(LaunchProcess("c1", "worker")), 1.0)
    actions = state.step(ForkFailed("c1", "fork failed: out of memory"), 1.0)
    assert actions == [Tell(RequestRefused("c1 could not be launched: fork failed: out of memory", "c1"))]
    launch(state, "c1", 105)


def test_a_master_that_cannot_be_forked_fails_the_job() -> None:
    state = SupervisorState()
    state.step(Started(), 0.0)
    (finish,) = state.step(ForkFailed("master", "fork failed: out of memory"), 0.0)
    assert isinstance(finish, Finish) and finish.end.state == "failed" and "out of memory" in finish.end.reason


def test_a_malformed_line_is_refused() -> None:
    assert started().step(Malformed("no", "c1"), 1.0) == [Tell(RequestRefused("no", "c1"))]


def test_job_done_ends_the_containers_and_lets_the_master_end_by_itself() -> None:
    state = started("c1", "c2")
    actions = state.step(Requested(JobDone(0, "finished")), 5.0)
    assert actions == [SendSignal(101, signal.SIGTERM), SendSignal(102, signal.SIGTERM)]
    assert state.step(ChildEnded(101, None, 15), 5.1) == [RemoveScratch("c1"), Tell(ProcessExited("c1", None, 15))]
    assert state.step(ChildEnded(102, None, 15), 5.1)[-1] == Tell(ProcessExited("c2", None, 15))
    *_, finish = state.step(ChildEnded(MASTER_PID, 0, None), 5.2)
    assert isinstance(finish, Finish)
    assert (finish.end.state, finish.end.exit_code, finish.end.reason) == ("finished", 0, "")


def test_a_master_that_stays_after_job_done_is_killed_at_the_deadline() -> None:
    state = started()
    assert state.step(Requested(JobDone(0, "finished")), 5.0) == []
    assert state.step(DeadlinePassed(), 8.0) == [SendSignal(MASTER_PID, signal.SIGKILL)]
    *_, finish = state.step(ChildEnded(MASTER_PID, None, 9), 8.1)
    assert isinstance(finish, Finish) and finish.end.exit_code == 0


def test_the_first_reason_to_end_stays_the_reason() -> None:
    state = started("c1")
    state.step(ClientGone(), 1.0)
    assert state.step(StopSignalled(signal.SIGTERM), 2.0) == []
    assert state.step(Requested(JobDone(0, "finished")), 2.0) == []
    assert state.end is not None and state.end.reason == "the client has gone"
    assert state.next_deadline_s == 4.0


def test_nothing_is_launched_while_the_job_ends() -> None:
    state = started("c1")
    state.step(ClientGone(), 1.0)
    actions = state.step(Requested(LaunchProcess("c2", "worker")), 1.1)
    assert refusals(actions) == ["c2 cannot be launched: the job is ending"]


def test_a_master_that_ends_first_fails_the_job_and_ends_the_rest() -> None:
    state = started("c1")
    actions = state.step(ChildEnded(MASTER_PID, None, signal.SIGSEGV), 1.0)
    assert actions == [RemoveScratch("master"), SendSignal(101, signal.SIGTERM)]
    assert state.end == on_master_exit(state, None, signal.SIGSEGV)
    assert state.end.reason == "the job master was ended by SIGSEGV before the job had ended"


def test_every_history_ends_with_every_child_reaped_and_finishes_once() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        state, now_s, pids, finished = SupervisorState(), 0.0, 1000, 0
        alive: set[int] = set()
        queue: list[Event] = [Started()]
        number = 0
        while finished == 0:
            now_s += rng.random()
            if not queue:
                number += 1
                name = f"c{rng.randrange(8)}"
                queue.append(
                    rng.choice(
                        [
                            Requested(LaunchProcess(name, "worker")),
                            Requested(LaunchProcess(name, "server")),
                            Requested(KillProcess(name, rng.choice([signal.SIGTERM, signal.SIGKILL]))),
                            ChildEnded(rng.choice(sorted(alive)), 0, None),
                            DeadlinePassed(),
                            Malformed("x"),
                            *([ClientGone(), StopSignalled(signal.SIGINT)] if number > 30 else []),
                            *([Requested(JobDone(0, "finished"))] if number > 30 else []),
                        ]
                    )
                )
            event = queue.pop(0)
            if isinstance(event, ChildEnded):
                alive.discard(event.pid)
            for action in state.step(event, now_s):
                match action:
                    case Fork(container_id):
                        if container_id != "master" and rng.random() < 0.2:
                            queue.append(ForkFailed(container_id, "x"))
                        else:
                            pids += 1
                            alive.add(pids)
                            queue.append(Forked(container_id, pids))
                    case SendSignal(pid, sent):
                        assert pid in alive, seed
                        if sent == signal.SIGKILL and ChildEnded(pid, None, 9) not in queue:
                            queue.append(ChildEnded(pid, None, 9))
                    case Finish():
                        finished += 1
            assert number < 5000, seed
        assert alive == set() and state.children == {}, seed
