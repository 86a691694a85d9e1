"""Reports of a member: what can wait travels together, in order, and says how old it is."""

from __future__ import annotations

from eps.core import messages as m
from eps.core.types import Address
from eps.net.control.report_queue import MOST_KEPT, ReportQueue
from eps.net.messages.codec import report_from_pb


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def clock_report(clock: int) -> m.ClockReported:
    return m.ClockReported("worker-1", clock, (m.SplitResult(0, 10, 1.0, ()),))


def test_what_can_wait_leaves_with_the_first_report_that_cannot_and_keeps_its_age() -> None:
    clock = Clock()
    queue = ReportQueue(clock)
    queue.put(clock_report(1), can_wait=True)
    clock.now_s += 0.25
    queue.put(clock_report(2), can_wait=True)
    clock.now_s += 0.5
    queue.put(m.ListsUpdated("worker-1", 7))
    batch = next(queue.batches())
    assert [report_from_pb(report) for report in batch.reports] == [
        clock_report(1),
        clock_report(2),
        m.ListsUpdated("worker-1", 7),
    ]
    assert [report.age_s for report in batch.reports] == [0.75, 0.5, 0.0]


def test_a_report_that_can_wait_leaves_by_itself_in_the_end() -> None:
    queue = ReportQueue()
    queue.put(clock_report(1), can_wait=True)
    assert len(next(queue.batches()).reports) == 1


def test_what_is_queued_is_still_said_after_the_queue_is_closed() -> None:
    queue = ReportQueue()
    queue.put(clock_report(1), can_wait=True)
    queue.put(clock_report(2), can_wait=True)
    queue.close()
    assert [len(batch.reports) for batch in queue.batches()] == [2]


def test_who_has_nothing_to_say_says_that() -> None:
    queue = ReportQueue(beat_s=0.001)
    batches = queue.batches()
    assert [len(next(batches).reports) for _ in range(3)] == [0, 0, 0]
    queue.put(clock_report(1))
    assert len(next(batches).reports) == 1


def test_next_line_says_again_what_is_kept_and_the_one_before_ends() -> None:
    queue = ReportQueue()
    before = queue.batches()
    lists_updated = m.ListsUpdated("worker-1", 7)
    for report in (clock_report(1), lists_updated, clock_report(2)):
        queue.put(report)
    assert len(next(before).reports) == 3
    queue.put(clock_report(3))
    after = queue.batches()
    assert list(before) == []
    assert [report_from_pb(report) for report in next(after).reports] == [clock_report(n) for n in (1, 2, 3)]


def test_report_that_was_repeated_is_kept_once() -> None:
    queue = ReportQueue()
    sent = m.PartitionSent("server-1", 3, 0, 10, "x")
    batches = queue.batches()
    for _ in range(5):
        queue.put(sent)
    next(batches)
    assert len(next(queue.batches()).reports) == 1


def test_next_master_hears_which_way_each_peer_was_reached_last() -> None:
    queue = ReportQueue()
    batches = queue.batches()
    ways = [m.PeerReached("worker-1", Address("host", port), way) for port, way in ((1, "shm"), (2, "tcp"), (2, "shm"))]
    for report in ways:
        queue.put(report)
    next(batches)
    assert [report_from_pb(report) for report in next(queue.batches()).reports] == [ways[0], ways[2]]


def test_next_master_hears_that_the_container_will_be_taken_away() -> None:
    queue = ReportQueue()
    batches = queue.batches()
    warned = m.EvictionWarned("worker-1", 120.0, "got SIGTERM")
    queue.put(warned)
    next(batches)
    assert [report_from_pb(report) for report in next(queue.batches()).reports] == [warned]


def test_kept_reports_are_bounded() -> None:
    queue = ReportQueue()
    for clock in range(MOST_KEPT + 10):
        queue.put(clock_report(clock))
    next(queue.batches())
    again = [report_from_pb(report) for report in next(queue.batches()).reports]
    assert again == [clock_report(clock) for clock in range(10, MOST_KEPT + 10)]
