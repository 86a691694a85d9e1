"""What restarts cost a job: every second in which it stands still is counted once."""

from __future__ import annotations

import pytest

from hscheduler.live.standstill import Standstill


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_it_lasts_from_the_order_to_the_next_iteration(clock: Clock) -> None:
    standstill = Standstill(clock)
    standstill.iterated(standstill.begun())
    clock.now_s = 10.0
    standstill.told(restarts=True)
    clock.now_s = 12.0
    assert standstill.told_before_s() == 2.0
    part = standstill.begun()
    clock.now_s = 13.0
    standstill.iterated(part)
    clock.now_s = 20.0
    standstill.over()
    assert standstill.total_s == 3.0 and standstill.told_before_s() is None


def test_who_is_told_again_before_it_has_iterated_has_stood_still_since_the_first_order(clock: Clock) -> None:
    standstill = Standstill(clock)
    standstill.told(restarts=True)
    for now_s in (14.0, 28.0):
        clock.now_s = now_s
        standstill.begun()
        standstill.told(restarts=True)
        assert standstill.told_before_s() == 0.0, "the delay of each restart is its own"
    clock.now_s = 42.0
    standstill.iterated(standstill.begun())
    assert standstill.total_s == 42.0


def test_an_iteration_that_crosses_with_the_order_ends_what_was_before_it(clock: Clock) -> None:
    standstill = Standstill(clock)
    standstill.told(restarts=True)
    clock.now_s = 5.0
    part = standstill.begun()
    clock.now_s = 6.0
    standstill.told(restarts=True)
    clock.now_s = 7.0
    standstill.iterated(part)
    assert standstill.total_s == 7.0
    clock.now_s = 10.0
    standstill.iterated(standstill.begun())
    assert standstill.total_s == 10.0


def test_late_news_of_what_is_to_end_end_nothing(clock: Clock) -> None:
    standstill = Standstill(clock)
    part = standstill.begun()
    standstill.told(restarts=True)
    clock.now_s = 1.0
    standstill.iterated(part)
    clock.now_s = 4.0
    standstill.iterated(standstill.begun())
    assert standstill.total_s == 4.0


def test_who_ends_before_it_has_iterated_again_stood_still_until_then(clock: Clock) -> None:
    standstill = Standstill(clock)
    standstill.told(restarts=True)
    clock.now_s = 6.0
    standstill.told(restarts=False)
    assert standstill.told_before_s() is None
    clock.now_s = 8.0
    standstill.over()
    standstill.over()
    assert standstill.total_s == 8.0
