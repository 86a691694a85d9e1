"""The cost of restarts: every second of standstill is counted once."""

from __future__ import annotations

from hscheduler.live.job_state import Standstill


def test_it_lasts_from_the_order_to_the_next_iteration() -> None:
    standstill = Standstill()
    standstill.attempt_started()
    standstill.iterated(0.0)
    standstill.stop_ordered(True, 10.0)
    assert standstill.since_stop_s(12.0) == 2.0
    standstill.attempt_started()
    standstill.iterated(13.0)
    standstill.over(20.0)
    assert standstill.total_s == 3.0 and standstill.since_stop_s(20.0) is None


def test_two_orders_before_an_iteration_count_from_the_first() -> None:
    standstill = Standstill()
    standstill.stop_ordered(True, 0.0)
    for now_s in (14.0, 28.0):
        standstill.attempt_started()
        standstill.stop_ordered(True, now_s)
        assert standstill.since_stop_s(now_s) == 0.0, "each restart has its own delay"
    standstill.attempt_started()
    standstill.iterated(42.0)
    assert standstill.total_s == 42.0


def test_an_iteration_that_crosses_with_the_order_ends_the_earlier_standstill() -> None:
    standstill = Standstill()
    standstill.stop_ordered(True, 0.0)
    standstill.attempt_started()
    standstill.stop_ordered(True, 6.0)
    standstill.iterated(7.0)
    assert standstill.total_s == 7.0
    standstill.attempt_started()
    standstill.iterated(10.0)
    assert standstill.total_s == 10.0


def test_late_progress_of_an_ending_attempt_ends_no_standstill() -> None:
    standstill = Standstill()
    standstill.attempt_started()
    standstill.stop_ordered(True, 0.0)
    standstill.iterated(1.0)
    standstill.attempt_started()
    standstill.iterated(4.0)
    assert standstill.total_s == 4.0


def test_a_job_that_ends_before_it_iterates_stood_still_until_its_end() -> None:
    standstill = Standstill()
    standstill.stop_ordered(True, 0.0)
    standstill.stop_ordered(False, 6.0)
    assert standstill.since_stop_s(6.0) is None
    standstill.over(8.0)
    standstill.over(9.0)
    assert standstill.total_s == 8.0
