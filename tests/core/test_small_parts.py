"""The small parts of a job alone: masters, export, recovery's count of failures, commands."""

from __future__ import annotations

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.checkpoints import EXPORT_AGAIN_S, MOST_EXPORTS, Export, ExportPhase
from eps.core.events import CommandBuffer
from eps.core.job import Job
from eps.core.members import Masters
from eps.core.recovery import INCIDENT_S, MOST_INCIDENTS, MOST_INCIDENTS_AT_START, Recovery
from eps.core.retries import RESEND_S
from eps.core.types import CoreSettings

# ---- masters


def test_a_master_whose_log_is_shorter_than_what_a_member_heard_is_found_out() -> None:
    masters = Masters()
    masters.steps = 10
    assert not masters.miss(1, 1, 10) and masters.miss(1, 1, 11)
    masters.steps = 11
    masters.begin(2)
    assert not masters.miss(1, 1, 10) and masters.miss(1, 1, 11), "the event that began it is of the second"
    assert masters.miss(1, 2, 1), "it never registered with the second, as far as the log says"
    assert not masters.miss(0, 0, 0)


# ---- export


def test_only_the_export_that_the_job_waits_for_counts() -> None:
    export = Export()
    assert not export.counts(0) and export.start() == [e.StartExport(1)]
    export.close()
    assert not export.counts(1) and not export.done(e.ExportDone({"model": 1}, 1)) and export.restarted() == []
    assert export.start() == [e.StartExport(2)] == export.restarted()
    assert not export.done(e.ExportDone({"model": 1}, 1)) and export.done(e.ExportDone({"model": 2}, 2))
    assert export.found == {"model": 2}


def test_an_export_that_fails_is_repeated_a_few_times() -> None:
    export = Export()
    export.start()
    for number in range(1, MOST_EXPORTS):
        assert export.failed(e.ExportFailed("no disk", number), 0.0) == ""
        assert export.due(EXPORT_AGAIN_S - 0.1) == [] and export.due(EXPORT_AGAIN_S) == [e.StartExport(number + 1)]
    assert export.failed(e.ExportFailed("no disk", 1), 0.0) == ""
    assert export.failed(e.ExportFailed("no disk", MOST_EXPORTS), 0.0) == "no disk"


def test_validate_finds_an_export_that_runs_before_the_first_was_started() -> None:
    export = Export()
    export.validate()
    export._phase = ExportPhase.RUNNING
    with pytest.raises(AssertionError):
        export.validate()


def test_an_export_that_is_closed_is_not_repeated() -> None:
    export = Export()
    export.start()
    export.failed(e.ExportFailed("no disk", 1), 0.0)
    export.close()
    export.validate()

    assert export.due(EXPORT_AGAIN_S) == []


# ---- failures without a clock


@pytest.mark.parametrize(("starts", "most"), [(True, MOST_INCIDENTS_AT_START), (False, MOST_INCIDENTS)])
def test_a_job_ends_at_so_many_failures_without_a_complete_clock_between_them(starts: bool, most: int) -> None:
    recovery = Recovery(0)
    found = [recovery.count_failure(0, INCIDENT_S * number, starts=starts) for number in range(most)]

    assert found[:-1] == [""] * (most - 1)
    assert found[-1] == f"{most} failures without one complete clock between them"


def test_failures_that_follow_at_once_are_one() -> None:
    recovery = Recovery(0)
    assert not any(recovery.count_failure(0, 0.9 * INCIDENT_S * number / 100, starts=True) for number in range(100))
    # A member that ends again and again is not one failure for ever.
    found = [recovery.count_failure(0, 10 + 0.1 * number, starts=True) for number in range(200)]
    assert any(found)


def test_a_complete_clock_begins_the_count_again_also_after_a_rollback() -> None:
    recovery = Recovery(0)
    for number in range(5 * MOST_INCIDENTS):
        assert not recovery.count_failure(number // 5, INCIDENT_S * number, starts=False)


# ---- commands


def test_commands_leave_in_order_and_once_and_orders_are_sent_again_when_they_are_due() -> None:
    out, order = CommandBuffer(), m.AbortPlan(3)
    out.begin(0.0)
    out.note("first", x=1)
    out.send([("worker-1", order)])
    out.sync("last")
    said = out.take()
    assert said == [
        e.Journal({"kind": "first", "x": 1, "at_s": 0.0}),
        e.Send("worker-1", order),
        e.Journal({"kind": "last", "at_s": 0.0}, sync=True),
    ]
    for now_s, due in ((RESEND_S - 0.1, False), (RESEND_S, True), (RESEND_S + 0.1, False)):
        out.begin(now_s)
        out.send_due([("worker-1", order)])
        assert bool(out.take()) == due
    out.forget("worker-1")
    out.begin(RESEND_S + 0.2)
    out.send_due([("worker-1", order)])
    assert out.take()


# ---- how they hang together


def test_no_part_knows_another_or_the_job() -> None:
    job = Job(CoreSettings(4, 2, 10), 2, 1)
    parts = {
        name: part
        for name, part in vars(job).items()
        if hasattr(part, "__dict__") and name not in ("settings", "state")
    }
    assert {"members", "size", "plans", "progress", "recovery", "checkpoints", "evictions", "export"} <= parts.keys()
    for name, part in parts.items():
        for field, value in vars(part).items():
            assert value is not job and not any(value is other for other in parts.values()), f"{name}.{field}"
            assert not callable(value), f"{name}.{field} is called back"
