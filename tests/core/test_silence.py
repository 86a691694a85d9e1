"""Lost members: silence, broken streams, and a watcher that was itself suspended."""

from __future__ import annotations

import pytest

from eps.core.members import REATTACH_S, SilenceWatch

TIMEOUT_S = 3.0


def asked_often(watch: SilenceWatch, begin_s: float, end_s: float) -> list[tuple[str, str]]:
    """Ask four times a second, as the master does."""
    found: list[tuple[str, str]] = []
    for quarter in range(int(begin_s * 4), int(end_s * 4) + 1):
        found += watch.silent(quarter / 4, TIMEOUT_S)
    return found


def test_who_says_something_now_and_then_is_never_lost() -> None:
    watch = SilenceWatch()
    watch.attached("a", 0.0)
    found = []
    for second in range(0, 60, 2):
        watch.heard("a", float(second))
        found += asked_often(watch, second, second + 1.75)
    assert found == []


def test_silence_until_the_deadline_is_a_loss_that_is_told_once() -> None:
    watch = SilenceWatch()
    watch.attached("a", 0.0)
    watch.attached("b", 0.0)
    watch.heard("b", 2.0)
    assert asked_often(watch, 0.0, 2.75) == []
    assert asked_often(watch, 3.0, 4.75) == [("a", "said nothing for 3 s")]


def test_stream_that_broke_is_waited_for_a_second() -> None:
    watch = SilenceWatch()
    watch.attached("a", 0.0)
    watch.attached("b", 0.0)
    watch.broke("a", 0.5)
    watch.broke("b", 0.5)
    watch.attached("b", 1.0)
    assert asked_often(watch, 0.0, 1.25) == []
    assert asked_often(watch, 1.5, 2.0) == [("a", f"lost its connection and did not reconnect within {REATTACH_S:g} s")]


@pytest.mark.parametrize("broken", [False, True])
def test_what_the_watcher_slept_through_is_held_against_nobody(broken: bool) -> None:
    watch = SilenceWatch()
    watch.attached("a", 0.0)
    assert asked_often(watch, 0.0, 0.5) == []
    if broken:
        watch.broke("a", 0.5)
    assert watch.silent(100.0, TIMEOUT_S) == []
    assert watch.silent(100.25, TIMEOUT_S) == []
    # The deadline starts anew; then it holds.
    assert [container for container, _ in asked_often(watch, 100.5, 104.0)] == ["a"]


@pytest.mark.parametrize("comes_back", [False, True])
def test_what_the_watcher_slept_through_before_it_first_asked_is_held_against_nobody(comes_back: bool) -> None:
    watch = SilenceWatch()
    watch.expect("a", 0.0)
    if comes_back:
        watch.attached("a", 0.25)
    assert watch.silent(TIMEOUT_S + 0.5, TIMEOUT_S) == []
    # The deadline starts anew; then it holds.
    assert asked_often(watch, TIMEOUT_S + 0.75, 2 * TIMEOUT_S) == []
    assert [container for container, _ in asked_often(watch, 2 * TIMEOUT_S + 0.5, 2 * TIMEOUT_S + 1.0)] == ["a"]


def test_pause_before_the_first_question_counts_from_the_first_container_and_not_from_a_later_one() -> None:
    watch = SilenceWatch()
    watch.attached("a", 0.0)
    watch.attached("b", TIMEOUT_S)
    assert watch.silent(TIMEOUT_S + 0.25, TIMEOUT_S) == []


def test_ended_container_is_not_missed() -> None:
    watch = SilenceWatch()
    watch.attached("a", 0.0)
    watch.forget("a")
    watch.heard("a", 0.5)
    watch.broke("a", 0.5)
    assert asked_often(watch, 0.0, 10.0) == []


def test_member_that_an_earlier_master_knew_has_the_deadline_to_come_back() -> None:
    watch = SilenceWatch()
    watch.expect("a", 0.0)
    watch.expect("b", 0.0)
    watch.attached("b", 0.25)
    watch.expect("b", 0.5)
    for quarter in range(1, 12):
        watch.heard("b", quarter / 4)
        assert watch.silent(quarter / 4, TIMEOUT_S) == []
    assert watch.silent(3.0, TIMEOUT_S) == [("a", "said nothing for 3 s")]
