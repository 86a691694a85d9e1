"""The supervisor's decisions."""

from __future__ import annotations

import random
import signal

import pytest

from eps.cluster.supervisor.process import END
from eps.cluster.supervisor.state import (
    FIRST_BEAT_S,
    LOOK_S,
    MAX_BYTES,
    MOST_RESTARTS,
    Action,
    Beat,
    ChildEnded,
    ClientGone,
    DeadlinePassed,
    Event,
    Finish,
    Fork,
    Forked,
    ForkFailed,
    JobDone,
    KillProcess,
    LaunchProcess,
    Message,
    ProcessExited,
    ProcessLaunched,
    RemoveScratch,
    Requested,
    RequestRefused,
    SendSignal,
    Started,
    StopSignalled,
    SupervisorState,
    Tell,
    decode,
    encode,
    exit_reason,
)
from eps.errors import ProtocolError
from tests.tiers import rotating

MASTER_PID = 100


def started(*container_ids: str, most_restarts: int = MOST_RESTARTS) -> SupervisorState:
    """A job with its master and these containers, with pids from 101 on."""
    state = SupervisorState(grace_s=3.0, member_timeout_s=3.0, most_restarts=most_restarts)
    assert state.step(Started(), 0.0) == [Fork("master", "master")]
    assert state.step(Forked("master", MASTER_PID), 0.0) == []
    for n, container_id in enumerate(container_ids):
        launch(state, container_id, MASTER_PID + 1 + n)
    return state


def launch(state: SupervisorState, container_id: str, pid: int) -> None:
    forks = state.step(Requested(LaunchProcess(container_id, "worker", {"A": "1"})), 0.0)
    assert forks == [Fork(container_id, "worker", {"A": "1"})]
    assert state.step(Forked(container_id, pid), 0.0) == [Tell(ProcessLaunched(container_id, pid))]


def refusals(actions: list[Action]) -> list[str]:
    return [a.notice.reason for a in actions if isinstance(a, Tell) and isinstance(a.notice, RequestRefused)]


def test_a_child_that_ends_is_reported_and_its_scratch_removed() -> None:
    state = started("c1")
    assert state.step(ChildEnded(101, 3, None), 1.0) == [RemoveScratch("c1"), Tell(ProcessExited("c1", 3, None))]
    assert set(state.children) == {"master"}


def test_a_child_of_nobody_is_ignored() -> None:
    assert started("c1").step(ChildEnded(999, 0, None), 1.0) == []


def test_an_end_is_followed_by_sigkill_at_the_deadline() -> None:
    state = started("c1")
    assert state.step(Requested(KillProcess("c1")), 10.0) == [SendSignal(101, END)]
    assert state.children["c1"].kill_at_s == 13.0
    assert state.next_deadline_s is not None and state.next_deadline_s <= 13.0
    assert state.step(DeadlinePassed(), 12.9) == []
    assert state.step(DeadlinePassed(), 13.0) == [SendSignal(101, signal.SIGKILL)]
    assert state.children["c1"].kill_at_s is None


def test_asking_again_does_not_put_the_deadline_off() -> None:
    state = started("c1")
    state.step(Requested(KillProcess("c1")), 10.0)
    state.step(Requested(KillProcess("c1")), 12.0)
    assert state.children["c1"].kill_at_s == 13.0


def test_other_signals_are_sent_and_nothing_else() -> None:
    state = started("c1")
    assert state.step(Requested(KillProcess("c1", signal.SIGSTOP)), 1.0) == [SendSignal(101, signal.SIGSTOP)]
    assert state.children["c1"].kill_at_s is None


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


def test_job_done_ends_the_containers_and_lets_the_master_end_by_itself() -> None:
    state = started("c1", "c2")
    actions = state.step(Requested(JobDone(0, "finished")), 5.0)
    assert actions == [SendSignal(101, END), SendSignal(102, END)]
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


def test_a_master_that_may_not_be_started_again_fails_the_job_and_ends_the_rest() -> None:
    state = started("c1", most_restarts=0)
    actions = state.step(ChildEnded(MASTER_PID, None, signal.SIGSEGV), 1.0)
    assert actions == [RemoveScratch("master"), SendSignal(101, END)]
    assert state.end is not None
    assert state.end.reason == "the job master was ended by SIGSEGV before the job had ended"


def replaced(state: SupervisorState, pid: int, now_s: float) -> list[Action]:
    """End the master and fork the next, if there is one."""
    actions = state.step(ChildEnded(state.children["master"].pid, None, 9), now_s)
    if any(isinstance(action, Fork) for action in actions):
        state.step(Forked("master", pid), now_s)
    return actions


def silence(state: SupervisorState, begin_s: float, end_s: float) -> list[Action]:
    """Let the loop look as often as without messages."""
    found: list[Action] = []
    now_s = begin_s
    while now_s < end_s:
        now_s = min(end_s, now_s + LOOK_S)
        found += state.step(DeadlinePassed(), now_s)
    return found


def test_a_master_that_ends_first_is_forked_again_and_told_what_runs() -> None:
    state = started("c1", "c2")
    state.step(ChildEnded(102, 0, None), 0.5)
    fork = Fork("master", "master", running={"c1": 101})
    assert state.step(ChildEnded(MASTER_PID, None, 9), 1.0) == [RemoveScratch("master"), fork]
    assert state.step(Forked("master", 200), 1.0) == []
    assert state.end is None and state.children["c1"].pid == 101
    assert state.step(ChildEnded(101, 0, None), 2.0)[-1] == Tell(ProcessExited("c1", 0, None))


def test_masters_that_bring_the_job_no_further_are_started_again_five_times() -> None:
    state = started("c1")
    state.step(Requested(Beat(7)), 0.0)
    for n in range(MOST_RESTARTS):
        assert isinstance(replaced(state, 200 + n, n + 0.1)[-1], Fork)
        state.step(Requested(Beat(-1)), n + 0.2)
        state.step(Requested(Beat(7)), n + 0.3)
    replaced(state, 300, 10.0)
    assert state.end is not None and state.end.state == "failed"
    assert state.end.reason == (
        "the job master was ended by SIGKILL before the job had ended; "
        "it was restarted 5 times without progress of the job"
    )


@pytest.mark.parametrize("patience_s", [0.0, 3600.0])
def test_masters_that_hang_one_after_the_other_end_the_job(patience_s: float) -> None:
    state, now_s = started("c1"), 0.0
    for n in range(MOST_RESTARTS + 1):
        assert state.end is None
        pid = state.children["master"].pid
        if patience_s:
            state.step(Requested(Beat(-1, patience_s)), now_s)
        began_s, now_s = now_s, now_s + max(FIRST_BEAT_S, patience_s)
        assert silence(state, began_s, now_s) == [SendSignal(pid, signal.SIGKILL)]
        replaced(state, 200 + n, now_s)
    assert state.end is not None and state.end.state == "failed"
    assert "was silent" in state.end.reason and f"{MOST_RESTARTS} times" in state.end.reason


def test_a_job_that_gets_further_may_lose_any_number_of_masters() -> None:
    state = started()
    for n in range(4 * MOST_RESTARTS):
        assert isinstance(replaced(state, 200 + n, n * 0.1)[-1], Fork)
        state.step(Requested(Beat(n)), n * 0.1)


def test_a_master_is_not_replaced_once_the_job_ends() -> None:
    for last in (Requested(JobDone(0, "finished")), ClientGone(), StopSignalled(signal.SIGTERM)):
        state = started()
        state.step(last, 1.0)
        actions = state.step(ChildEnded(MASTER_PID, None, 9), 1.1)
        assert isinstance(actions[-1], Finish) and not any(isinstance(a, Fork) for a in actions)


def test_a_silent_master_is_killed_after_the_deadline_and_replaced() -> None:
    state = started("c1")
    state.step(Requested(Beat(1)), 0.1)
    assert silence(state, 0.1, 3.0) == []
    assert state.step(DeadlinePassed(), 3.1) == [SendSignal(MASTER_PID, signal.SIGKILL)]
    assert silence(state, 3.1, 20.0) == [], "killed once"
    fork = Fork("master", "master", running={"c1": 101})
    assert state.step(ChildEnded(MASTER_PID, None, 9), 20.0) == [RemoveScratch("master"), fork]


def test_a_master_that_beats_or_asked_for_patience_is_left_alone() -> None:
    state = started()
    for n in range(20):
        state.step(Requested(Beat(1)), n * 2.0)
        assert silence(state, n * 2.0, n * 2.0 + 2.0) == []
    state.step(Requested(Beat(1, 60.0)), 40.0)
    assert silence(state, 40.0, 99.9) == []
    assert silence(state, 99.9, 100.5) == [SendSignal(MASTER_PID, signal.SIGKILL)]


def test_a_new_master_has_longer_for_its_first_beat() -> None:
    state = started()
    assert silence(state, 0.0, FIRST_BEAT_S - 0.1) == []
    assert silence(state, FIRST_BEAT_S - 0.1, FIRST_BEAT_S) == [SendSignal(MASTER_PID, signal.SIGKILL)]


def test_a_supervisor_that_was_stopped_takes_nobody_for_hung() -> None:
    state = started()
    state.step(Requested(Beat(1)), 0.5)
    silence(state, 0.5, 1.0)
    # Both were stopped for a minute: nothing was said, and nobody listened.
    assert state.step(DeadlinePassed(), 61.0) == []
    assert silence(state, 61.0, 63.9) == []
    assert silence(state, 63.9, 64.1) == [SendSignal(MASTER_PID, signal.SIGKILL)]


def test_a_supervisor_that_forked_for_long_takes_nobody_for_hung() -> None:
    """The beats of a master that asked for many containers lie behind its requests, unread."""
    state = started()
    state.step(Requested(Beat(1)), 0.5)
    silence(state, 0.5, 1.0)
    for n in range(48):
        name, now_s = f"c{n}", 1.0 + 0.1 * n
        assert state.step(Requested(LaunchProcess(name, "worker")), now_s) == [Fork(name, "worker")]
        state.step(Forked(name, MASTER_PID + 1 + n), now_s + 0.09)
    assert state.step(DeadlinePassed(), 6.0) == []
    assert silence(state, 6.0, 8.9) == []
    assert silence(state, 8.9, 9.1) == [SendSignal(MASTER_PID, signal.SIGKILL)]


def test_a_job_that_ends_does_not_listen_to_its_master() -> None:
    state = started()
    state.step(Requested(Beat(1)), 0.5)
    state.step(Requested(JobDone(0, "finished")), 1.0)
    assert state.next_deadline_s == 4.0
    state.step(Requested(Beat(2)), 1.1)
    assert state.next_deadline_s == 4.0


def test_every_history_ends_with_every_child_reaped_and_finishes_once() -> None:
    for seed in rotating(200):
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
                            Requested(KillProcess(name, rng.choice([END, signal.SIGKILL]))),
                            ChildEnded(rng.choice(sorted(alive)), 0, None),
                            DeadlinePassed(),
                            Requested(Beat(number)),
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


MESSAGES: tuple[Message, ...] = (
    LaunchProcess("container-0001", "worker", {"A": "ü\n", "B": ""}),
    LaunchProcess("c", "server"),
    KillProcess("c", 9),
    Beat(-1, 2.5),
    JobDone(255, "killed", "because"),
    ProcessLaunched("c", 12),
    ProcessExited("c", 3, None),
    ProcessExited("c", None, 9),
    RequestRefused("no\nsuch thing", "c"),
)


def test_a_message_survives_its_packet() -> None:
    for message in MESSAGES:
        assert decode(encode(message)) == message


def test_bytes_that_are_no_message_are_protocol_errors_and_nothing_else() -> None:
    for packet in (
        b"",
        b"\xff\xfe",
        b"[" * 900,
        b"null",
        b"[1]",
        b'["Dance", {}]',
        b'["Beat", {}]',
        b'["Beat", {"a": 1}]',
    ):
        with pytest.raises(ProtocolError, match="is not a message"):
            decode(packet)


def test_a_request_beyond_the_limit_is_refused_where_it_is_made() -> None:
    with pytest.raises(ProtocolError, match=str(MAX_BYTES)):
        encode(LaunchProcess("c", "worker", {"A": "x" * MAX_BYTES}))


def test_how_a_process_ended_is_said_in_words() -> None:
    assert exit_reason(3, None) == "exited with code 3"
    assert exit_reason(None, 9) == "was ended by SIGKILL"
    assert exit_reason(None, 40) == "was ended by signal 40"
