"""Retries: unacknowledged orders back off; failed changes follow one policy."""

from __future__ import annotations

from collections import Counter
from math import inf

from eps.core import events as e
from eps.core import messages as m
from eps.core.checkpoints import Schedule
from eps.core.retries import LONGEST_RESEND_S, RESEND_S, Backoff, Repeats
from tests.core.scripted import ADD_WORKER, ScriptedMaster, running, starting

TICK_S = 0.25


def said_within(master: ScriptedMaster, seconds: float) -> Counter[tuple[str, str]]:
    """Let time pass; return how often each member was told what."""
    found: Counter[tuple[str, str]] = Counter()
    for _ in range(round(seconds / TICK_S)):
        master.tick(TICK_S)
        found.update((to, type(order).__name__) for to, order in master.sent(object))
    return found


def test_member_that_acknowledges_nothing_is_told_again_after_twice_as_long_each_time() -> None:
    master = starting()
    master.request_containers()
    for name in sorted(master.state.members.by_name):
        master.register(name)
    for name in master.membership.members[1:]:
        master.report(m.MembershipAcked(name, 1))
    master.sent(object)
    began_s = master.now_s
    at_s: list[float] = []
    while master.now_s - began_s < 64.0:
        master.tick(TICK_S)
        told = master.sent(object)
        assert {(to, type(order)) for to, order in told} <= {("worker-1", m.UpdateMembership)}
        at_s += [master.now_s - began_s] * len(told)

    pauses = [round(b - a) for a, b in zip([0.0, *at_s], at_s, strict=False)]
    assert pauses == [1, 2, 4, 8, 16, 16, 16]
    assert LONGEST_RESEND_S == 16.0


def test_order_that_is_acknowledged_within_a_second_is_said_once() -> None:
    master = running()
    plan = master.ask(ADD_WORKER)
    master.register("worker-4")
    master.acknowledge_lists()
    master.sent(object)
    master.copy()
    # As many as take part, and not one more.
    assert sorted(to for to, _ in master.sent(m.UpdateMembership)) == sorted(master.driver.concerned)
    for name in master.driver.concerned:
        master.tick(TICK_S / 10)
        master.report(m.MembershipAcked(name, master.membership.version))
    assert master.sent(m.UpdateMembership) == []
    master.release()
    assert plan.ended


def test_job_in_which_nothing_happens_says_little() -> None:
    """A grant has no answer, so it is repeated for ever."""
    master = running()
    master.sent(object)
    said_within(master, 60.0)
    assert set(said_within(master, 4 * LONGEST_RESEND_S).values()) == {4}


def test_grant_that_says_more_than_the_last_one_is_said_again_soon() -> None:
    repeats, first, second = Repeats(), m.GrantHorizon(3, 1, 1), m.GrantHorizon(4, 2, 1)
    for at_s in (0.0, 1.0, 3.0):
        repeats.note("worker-1", first, at_s)
    assert not repeats.due([("worker-1", first)], 6.9)
    assert repeats.due([("worker-1", first)], 7.0)
    repeats.note("worker-1", second, 7.0)
    assert not repeats.due([("worker-1", second)], 7.9)
    assert repeats.due([("worker-1", second)], 7.0 + RESEND_S)


def test_what_another_master_said_is_due_at_once() -> None:
    repeats, order = Repeats(), m.TakeInventory(1, 0)
    repeats.note("worker-1", order, 0.0)
    repeats.reset()
    assert repeats.due([("worker-1", order)], 0.0)


def test_member_that_connects_again_and_again_is_told_as_soon_as_any_other() -> None:
    repeats, order = Repeats(), m.TakeInventory(1, 0)
    for at_s in (0.0, 0.4, 0.8, 1.2):
        repeats.reset("worker-1")
        repeats.note("worker-1", order, at_s)
        for other in ("worker-2", "server-1"):
            repeats.note(other, order, at_s)
    missing = [(name, order) for name in ("worker-1", "worker-2", "server-1")]
    assert repeats.due(missing, 1.2 + RESEND_S) == [("worker-1", order)]


# ---- back-off


def test_a_pause_doubles_with_each_failure_up_to_the_longest_and_begins_again_after_a_success() -> None:
    retry, pauses = Backoff(1.0, 10.0), []
    for _ in range(6):
        assert (retry.is_due(retry.due_s) and not retry.is_due(retry.due_s - 0.1)) or retry.due_s == 0.0
        before_s = retry.due_s
        retry = retry.failed(retry.due_s)
        pauses.append(retry.due_s - before_s)

    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert retry.succeeded().pause_s == 1.0 and Backoff(1.0, 10.0, failures=10**6).pause_s == 10.0


def test_a_try_does_not_make_the_next_pause_longer_and_never_an_earlier_one_shorter() -> None:
    retry = Backoff(1.0, 8.0).failed(0.0).failed(1.0)
    assert retry.due_s == 3.0 and retry.tried(0.0).due_s == 4.0 and retry.tried(0.0).tried(-3.0).due_s == 4.0


# ---- when a tick is due


def test_tick_of_a_job_that_only_trains_is_due_when_its_horizon_is_to_be_said_again() -> None:
    master = running()
    master.tick(LONGEST_RESEND_S)
    due_s = master.state.tick_due_s
    assert master.now_s + RESEND_S <= due_s <= master.now_s + LONGEST_RESEND_S
    assert master.step(e.Tick(), due_s - master.now_s - 0.001) == []
    told = master.step(e.Tick(), 0.002)
    assert told and {type(command.order) for command in told if isinstance(command, e.Send)} == {m.GrantHorizon}


def test_ticks_are_due_while_a_job_waits_for_a_container_a_member_or_a_checkpoint() -> None:
    assert starting().state.tick_due_s == -inf, "it has not begun"
    master = running()
    assert master.state.tick_due_s > -inf
    master.ask(ADD_WORKER)
    assert master.state.tick_due_s == -inf, "a plan is on its way"
    master = running()
    master.lose("worker-1")
    assert master.state.tick_due_s == -inf, "others take over"
    master = running()
    master.state.checkpoints.timetable.schedule = Schedule(seconds=5.0)
    master.clock(0)
    assert master.now_s < master.state.tick_due_s <= master.now_s + 5.0
    master.step(e.KillRequested("enough"))
    assert master.state.tick_due_s == inf
