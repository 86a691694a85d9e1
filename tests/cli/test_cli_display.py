"""What people see: text from values."""

from __future__ import annotations

import io
import time

import pytest

from eps.core.evictions import TAKEN_AWAY
from eps.core.recovery import LossOutcome
from eps.job.display import (
    ChangeNews,
    PlainDisplay,
    TerminalDisplay,
    asked_text,
    bytes_text,
    changes_table,
    list_text,
    number_text,
    plain_line,
    progress_line,
    seconds_text,
    status_text,
    summary_text,
)
from eps.job.status import UNREACHABLE
from tests.cli.conftest import change_of, status_of


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2_920_000, "2.92 MB"), (4e12, "4 TB")]
)
def test_sizes_read_as_people_say_them(size: float, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0"), (0.00085, "850 us"), (0.0412, "41.2 ms"), (0.99951, "1.0 s"), (12.34, "12.3 s"),
        (59.96, "1 min 00 s"), (245, "4 min 05 s"), (3600, "1 h 00 min"),
    ],
)  # fmt: skip
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0.0000"), (0.32414, "0.3241"), (2.5e-6, "2.5e-06"), (1e20, "1e+20"), (float("nan"), "nan")],
)
def test_numbers_keep_the_digits_that_matter(value: float | None, text: str) -> None:
    assert number_text(value) == text


def test_progress_line_tells_clock_loss_metric_members_and_what_is_left() -> None:
    assert progress_line(status_of()) == (
        "[#####...............] 50/200  loss 0.2500  accuracy 0.8750  2w 1s v1  ETA 1.5 s"
    )


def test_progress_line_shows_the_change_on_its_way() -> None:
    line = progress_line(status_of(plan=change_of(phase="copied"), queued=[change_of(2, "queued")]))
    assert "add-workers=2 copied  1 queued" in line


def test_progress_line_is_cut_to_the_terminal() -> None:
    assert len(progress_line(status_of(), width=30)) == 30


def test_line_of_a_job_that_has_not_measured_yet_promises_nothing() -> None:
    line = plain_line(status_of(clock=0, loss=None, metrics={}, eta_s=0.0))
    assert line == "clock 0/200  loss -  workers 2  servers 1"


def test_each_phase_of_a_change_is_told_once() -> None:
    news = ChangeNews(with_phases=True)
    assert news.lines([change_of(phase="prepared")]) == [
        "plan 1 add-workers=2: queued, proposed +10 ms, prepared +10 ms"
    ]
    assert news.lines([change_of(phase="prepared")]) == []
    (line,) = news.lines([change_of(phase="released")])
    assert line.startswith("plan 1 add-workers=2: lists-updated +10 ms, copied +10 ms, committed +10 ms")
    assert line.endswith("| added worker-3, worker-4 from clock 61 in 70 ms; moved 2.92 MB, pause 1.2 ms, delay 0")
    unsettled = ChangeNews().lines([change_of(phase="released", settled=False)])
    assert unsettled[0].endswith("pause 1.2 ms, delay 0 so far"), "the next iteration is under way"


def test_without_phases_a_change_is_told_when_it_is_over() -> None:
    news = ChangeNews()
    assert news.lines([change_of(phase="prepared")]) == []
    outcome = "added worker-3, worker-4 from clock 61 in 70 ms; moved 2.92 MB, pause 1.2 ms, delay 0"
    assert news.lines([change_of(phase="released")]) == [f"plan 1 add-workers=2: {outcome}"]
    assert news.lines([change_of(phase="released")]) == []


def test_phases_of_one_instant_are_told_in_their_order() -> None:
    change = change_of(phase="proposed", seconds={"proposed": 0.0, "queued": 0.0})
    assert ChangeNews(with_phases=True).lines([change]) == ["plan 1 add-workers=2: queued, proposed +0"]


def test_aborted_change_tells_why() -> None:
    (line,) = ChangeNews().lines([change_of(phase="aborted", reason="cancelled")])
    assert line == "plan 1 add-workers=2: aborted: cancelled"


def test_pipe_gets_a_line_a_second_and_every_change_at_once() -> None:
    stream, now = io.StringIO(), iter([0.0, 0.2, 0.4, 1.3])
    display = PlainDisplay(stream, ChangeNews(with_phases=True), now_s=lambda: next(now))
    display.show(status_of(clock=1))
    display.show(status_of(clock=2))
    display.show(status_of(clock=3, plan=change_of(phase="proposed")))
    display.show(status_of(clock=4, state="finished", plan=None))
    lines = [line.split("  ")[0] for line in stream.getvalue().splitlines()]
    assert lines == ["clock 1/200", "plan 1 add-workers=2: queued, proposed +10 ms", "clock 4/200"]


def test_pipe_gets_words_only() -> None:
    stream = io.StringIO()
    PlainDisplay(stream).show(status_of())
    assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()


def test_terminal_draws_one_line_again_with_changes_above_it() -> None:
    stream = io.StringIO()
    display = TerminalDisplay(stream, columns=lambda: 200)
    display.show(status_of(clock=1))
    display.show(status_of(clock=2, changes=[change_of()]))
    display.close()
    first, second, *rest = stream.getvalue().split("\r\x1b[2K")[1:]
    assert not rest
    assert first.startswith("[....................] 1/200") and "\n" not in first
    above, line, end = second.split("\n")
    assert above.startswith("plan 1 add-workers=2: added worker-3") and line.startswith("[....................] 2/200")
    assert end == ""


def test_status_shows_who_holds_what_and_which_way_the_data_goes() -> None:
    members = [
        {"name": "server-1", "role": "server", "pid": 11, "host": "h", "port": 1, "holds": [0, 1], "ways": {}},
        {
            "name": "worker-1", "role": "worker", "pid": 12, "host": "h", "port": 2, "holds": [],
            "ways": {"server-1": "tcp", "server-2": "shm", "server-3": "shm"},
        },
    ]  # fmt: skip
    text = status_text(status_of(members=members, plan=change_of(phase="copied")))
    assert "server-1  11   h:1      -                   partitions 0, 1" in text
    assert "worker-1  12   h:2      2 by shm, 1 by tcp  nothing" in text
    assert "plan 1 add-workers=2: queued, proposed" in text


def test_status_of_a_job_that_starts_shows_nothing_that_is_not_known() -> None:
    member = {"name": "worker-1", "role": "worker", "host": "", "port": 0, "pid": 0, "holds": [], "ways": {}}
    starting = status_of(state="starting", members=[member], iteration_s=0.0, eta_s=0.0, elapsed_s=3.2, clock=0)
    text = status_text(starting)
    assert "  3.2 s so far\n" in text and "to go" not in text and "per iteration" not in text
    assert text.splitlines()[-1].split() == ["worker-1", "-", "-", "-", "nothing"]
    assert "so far" not in status_text({**starting, "elapsed_s": 0.0})
    assert "40 ms per iteration, 3.2 s so far, 2.0 s to go" in status_text(
        status_of(iteration_s=0.04, elapsed_s=3.2, eta_s=2.0)
    )


def test_what_a_change_waits_for_is_told_once_it_takes_long() -> None:
    news, plan = ChangeNews(with_phases=True), change_of(phase="proposed")
    assert len(news.lines([{**plan, "waits_for": "2 containers", "waited_s": 0.3}])) == 1
    assert news.lines([{**plan, "waits_for": "2 containers", "waited_s": 0.9}]) == []
    late = {**plan, "waits_for": "2 containers", "waited_s": 1.4}
    assert news.lines([late]) == ["plan 1 add-workers=2: waits for 2 containers"]
    assert news.lines([{**late, "waited_s": 9.0}]) == []
    assert "add-workers=2 waits for 2 containers" in progress_line(status_of(plan=late))
    assert "change add-workers=2 waits for 2 containers" in plain_line(status_of(plan=late))
    assert "plan 1 add-workers=2: queued, proposed" in status_text(status_of(plan=late))
    assert ", waits for 2 containers" in status_text(status_of(plan=late))
    # Each later phase names its change.
    copying = {**change_of(phase="lists-updated"), "waits_for": "split 1 to be copied to worker-3", "waited_s": 9.0}
    assert "waits" not in progress_line(status_of(plan=copying))


def test_a_cluster_that_is_away_is_told_of_once_and_again_when_it_is_back() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, interval_s=60.0)
    away = status_of(state=UNREACHABLE, reason="nobody answers", as_of_s=1_800_000_000.0)
    for status in (status_of(clock=40), away, away, status_of(clock=41)):
        display.show(status)
    lines = stream.getvalue().splitlines()
    assert lines[1:] == ["fake: unreachable: nobody answers", "fake: its cluster answers again"]
    assert progress_line(away) == lines[1]


def test_what_a_job_that_starts_waits_for_is_told_once_in_a_pipe_however_long_it_takes() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, interval_s=0.0)
    waits = "waits for 1 container, asked for {} s ago: server-3"
    for waited_s in (2, 3, 65):
        display.show(status_of(state="starting", reason=waits.format(waited_s)))
    assert stream.getvalue() == f"fake: starting: {waits.format(2)}\n"
    starting = status_of(state="starting", reason=waits.format(65))
    assert waits.format(65) in status_text(starting) and waits.format(65) in progress_line(starting)


def test_a_change_that_the_job_asks_for_itself_is_named_by_what_it_gives() -> None:
    change = change_of(operation="follow", asked=1)
    assert asked_text(change) == "followers" and "follow=1" not in changes_table([change])


def test_status_says_which_loss_is_which() -> None:
    assert "train loss 0.2500, test accuracy 0.8750, test f1 0.5000, test loss 0.3000" in status_text(status_of())


def test_list_is_a_table_of_jobs() -> None:
    heading, row = list_text([{**status_of(), "started_s": time.time() - 3 * 3600}]).splitlines()
    assert heading.split() == ["NAME", "STATE", "STARTED", "CLOCK", "LOSS", "METRIC", "WORKERS", "SERVERS"]
    assert row.split() == ["fake", "running", "3", "h", "ago", "50/200", "0.2500", "accuracy", "0.8750", "2", "1"]


def test_summary_tells_metrics_changes_ledger_and_model() -> None:
    text = summary_text(
        {
            "name": "a9a",
            "state": "finished",
            "reason": "",
            "clock": 200,
            "metrics": {"train_loss": 0.3231, "test": {"auc": 0.9014, "accuracy": 0.85}},
            "model_sha256": "ab12",
            "changes": [change_of(), change_of(2, "aborted", reason="cancelled", names=[])],
            "ledger": {"expected": 4, "applied": 4, "duplicates_refused": 1, "lost": 0, "applied_twice": 0},
            "iteration_seconds": {"p50": 0.01, "p99": 0.02, "total": 2.0},
        }
    )
    assert "a9a: finished at clock 200; 2.0 s of training" in text
    assert "accuracy 0.8500, auc 0.9014" in text
    assert "sha256 ab12" in text
    assert "4 of 4 applied, 0 lost, 0 applied twice, 1 duplicates refused" in text
    assert "proposed 10 prepared 20 lists-updated 30 copied 40 committed 50 switched 60 released 70" in text
    assert "aborted 10 (cancelled)" in text


def test_summary_says_which_changes_that_were_asked_for_beforehand_did_not_happen() -> None:
    reason = "still waiting for containers when remove-workers=1 was requested"
    at = {"text": "add-servers=1", "asked_at": 60, "phase": "aborted", "reason": reason}
    by_hand = {**at, "asked_at": None}
    changes = [change_of(asked_at=40), {**change_of(2, "aborted"), **at}, {**change_of(3, "aborted"), **by_hand}]
    report = {"name": "a9a", "state": "finished", "clock": 200, "changes": changes}
    told = [line for line in summary_text(report).splitlines() if "did not happen" in line]
    assert told == [f"  --at 60:add-servers=1 did not happen: {reason}"]


def test_summary_of_a_job_that_failed_early_has_only_the_reason() -> None:
    report = {"name": "x", "state": "failed", "reason": "worker-1 died", "clock": 0, "metrics": {"train_loss": None}}
    assert summary_text(report) == "x: failed (worker-1 died)"


CHECKPOINTS = {
    "complete": 3, "skipped": 1, "failed": 0, "latest_clock": 40, "pending_clock": None, "error": "",
    "size_bytes": 3_000_000, "seconds": 1.5, "epoch": 1,
}  # fmt: skip


def test_checkpoints_are_shown_where_there_are_any() -> None:
    assert "checkpoints" not in status_text(status_of())
    text = status_text(status_of(checkpoints=CHECKPOINTS))
    assert "  checkpoints: 3 complete, 1 skipped, 0 failed, latest of clock 40, 3 MB in 1.5 s\n" in f"{text}\n"


def test_a_checkpoint_that_failed_is_told_once_and_shown_until_one_succeeds() -> None:
    failed = {**CHECKPOINTS, "failed": 1, "error": "server-1, partition 2: No space left"}
    stream = io.StringIO()
    display = PlainDisplay(stream, now_s=lambda: 0.0)
    for checkpoints in (CHECKPOINTS, failed, failed, CHECKPOINTS, failed):
        display.show(status_of(checkpoints=checkpoints))
    assert stream.getvalue().count("checkpoint failed: server-1, partition 2: No space left\n") == 2
    assert progress_line(status_of(checkpoints=failed)).endswith("checkpoint failed")
    assert "the last failed: server-1, partition 2: No space left" in status_text(status_of(checkpoints=failed))


def test_what_a_checkpoint_waits_for_is_told_once_and_shown_while_it_lasts() -> None:
    why = "server-{}, partition {}: hdfs://lake/w/000{}.part: cannot be written for now: Failed to find datanode"
    stream = io.StringIO()
    display = PlainDisplay(stream, now_s=lambda: 0.0)
    display.show(status_of(checkpoints=CHECKPOINTS))
    for number in (1, 2, 3):
        waiting = {**CHECKPOINTS, "waits": why.format(number, number, number)}
        display.show(status_of(checkpoints=waiting))
    assert stream.getvalue().count(f"checkpoint waits: {why.format(1, 1, 1)}\n") == 1
    assert stream.getvalue().count("checkpoint waits") == 1
    assert progress_line(status_of(checkpoints=waiting)).endswith("checkpoint waits")
    assert f"  checkpoint waits: {why.format(3, 3, 3)}\n" in f"{status_text(status_of(checkpoints=waiting))}\n"
    assert "checkpoint waits" not in status_text(status_of(checkpoints=waiting, state="finished"))


def test_trouble_is_told_when_it_begins_and_shown_while_it_lasts() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, now_s=lambda: 0.0)
    full, hangs = "state/log-00000001: No space left", "silent for {} s"
    display.show(status_of(storage_error="", resources_error=""))
    display.show(status_of(storage_error=full, resources_error=""))
    for seconds in (3, 4, 12):
        display.show(status_of(storage_error=full, resources_error=hangs.format(seconds)))
    assert stream.getvalue().count("disk trouble: state/log-00000001: No space left\n") == 1
    assert stream.getvalue().count("no containers: silent for 3 s\n") == 1 and "12 s" not in stream.getvalue()
    troubled = status_of(storage_error="x", resources_error="y")
    assert progress_line(troubled).endswith("disk trouble  no containers")
    assert "  disk trouble: x\n  no containers: y\n" in f"{status_text(troubled)}\n"


def test_trouble_that_names_a_temporary_file_is_told_once_however_often_it_is_tried() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, now_s=lambda: 0.0)
    lasts = "hdfs://lake/state/.log-00000001.{}.tmp cannot be written: no DataNode takes data"
    for token in ("fce3bca6527b", "df7da68b4ff3", "0a1b2c3d4e5f"):
        display.show(status_of(storage_error=lasts.format(token)))
    display.show(status_of(storage_error="hdfs://lake/state/.other.df7da68b4ff3.tmp cannot be written: quota"))
    told = [line for line in stream.getvalue().splitlines() if line.startswith("disk trouble: ")]
    assert told == [
        f"disk trouble: {lasts.format('fce3bca6527b')}",
        "disk trouble: hdfs://lake/state/.other.df7da68b4ff3.tmp cannot be written: quota",
    ]


def test_lost_members_are_told_with_what_came_of_it() -> None:
    lost = {"name": "server-1", "reason": "was ended by SIGKILL", "clock": 255, "seconds": 3.0, "back_to_clock": None}
    lost["outcome"] = LossOutcome.TAKEN_OVER
    back = {**lost, "name": "server-2", "back_to_clock": 250, "outcome": LossOutcome.ROLLED_BACK}
    early = {**lost, "name": "worker-1", "clock": -1, "outcome": LossOutcome.REPLACED}
    status = {**status_of(), "losses": [lost, back, early], "generation": 2}

    text = status_text(status)

    assert "lost server-1 (was ended by SIGKILL) at clock 255; others took over" in text
    assert "lost server-2 (was ended by SIGKILL) at clock 255; rolled back to clock 250" in text
    assert "lost worker-1 (was ended by SIGKILL) before its first iteration; replacement requested" in text
    assert "the job master restarted once" in text


def test_a_job_that_goes_back_says_where_to_and_why_once() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, now_s=lambda: 0.0)
    away, alone = "ended while the job master was down", "exited with code 1: M ends: the job master is gone"
    torn = "server-4 cannot read checkpoint 0001-00000050: a byte is wrong"
    back = {"clock": 27, "to_clock": 0, "seconds": 3.0, "unreadable": ""}
    first = {
        **back,
        "lost": {"worker-3": away, "server-1": away, "server-2": alone},
        "servers": ["server-1", "server-2"],
    }
    later = {**back, "clock": 60, "to_clock": 50, "lost": {"server-3": "was ended by SIGKILL"}, "servers": ["server-3"]}
    further = {**later, "to_clock": 40, "unreadable": torn}
    for known in ([], [first], [first], [], [first, later], [first, further], [first, further]):
        display.show(status_of(went_back=known))
    assert [line for line in stream.getvalue().splitlines() if "rolled back" in line] == [
        "fake: rolled back from clock 27 to clock 0, its seed: its parameters were lost with "
        f"server-1 ({away}), server-2 ({alone})",
        "fake: rolled back from clock 60 to clock 50, a checkpoint: its parameters were lost with "
        "server-3 (was ended by SIGKILL)",
        "fake: rolled back from clock 60 to clock 40, a checkpoint: its parameters were lost with "
        f"server-3 (was ended by SIGKILL); {torn}",
    ]


def test_a_checkpoint_that_could_not_be_read_is_told_though_nobody_was_lost() -> None:
    torn = "server-1 cannot read checkpoint 0001-00000020: a byte is wrong"
    back = {"clock": 20, "to_clock": 10, "seconds": 3.0, "lost": {}, "unreadable": torn}
    stream, text = io.StringIO(), f"rolled back from clock 20 to clock 10, a checkpoint: {torn}"
    PlainDisplay(stream, now_s=lambda: 0.0).show(status_of(went_back=[back]))
    assert f"fake: {text}\n" in stream.getvalue()
    for status in (status_of(went_back=[back]), {**status_of(went_back=[back]), "state": "failed"}):
        assert f"\n  {text}" in status_text(status)
    # The line about the loss already reports the rollback.
    assert "rolled back" not in status_text(
        status_of(went_back=[{**back, "lost": {"server-1": "ended"}, "unreadable": ""}])
    )


def test_nobody_is_said_to_have_taken_over_before_somebody_has() -> None:
    lost = {"name": "server-1", "reason": "ended", "clock": 43, "back_to_clock": None, "outcome": LossOutcome.OPEN}
    coming = {**lost, "name": "server-2", "outcome": LossOutcome.REPLACED}
    status = status_of(losses=[lost, coming])
    assert "  lost server-1 (ended) at clock 43; not taken over yet\n" in status_text(status)
    assert "  lost server-2 (ended) at clock 43; replacement requested" in status_text(status)
    failed = {**status, "state": "failed"}
    for text in (status_text(failed), summary_text(failed)):
        assert "  lost server-1 (ended) at clock 43; not taken over\n" in text


def test_a_job_that_waits_for_who_takes_over_says_so() -> None:
    stream, why = io.StringIO(), "waits for 2 containers, asked for {} s ago: server-2, worker-3"
    display = PlainDisplay(stream, now_s=lambda: 0.0)
    for seconds in (1, 2, 3):
        status = status_of(recovery_waits_for=why.format(seconds))
        display.show(status)
    assert stream.getvalue().count(f"stands still: {why.format(1)}\n") == stream.getvalue().count("stands still") == 1
    assert progress_line(status).endswith("stands still")
    assert f"  stands still: {why.format(3)}" in status_text(status)


def test_status_shows_who_will_be_taken_away_and_what_became_of_those_who_were_to_be() -> None:
    member = {"role": "worker", "pid": 1, "host": "h", "port": 1, "holds": [], "ways": {}}
    members = [
        {**member, "name": "worker-1", "container": "container-0001", "evicted_in_s": 12.34},
        {**member, "name": "worker-2", "container": "container-0002", "evicted_in_s": -2.0},
        {**member, "name": "worker-3", "container": "container-0003", "evicted_in_s": None},
        {**member, "name": "worker-4", "container": "c-4", "evicted_in_s": 5, "evicted_because": "is preempted"},
        {**member, "name": "worker-5", "container": "c-5", "evicted_in_s": 5, "evicted_because": TAKEN_AWAY},
    ]
    counted = {"asked": 6, "warned": 2, "drained": 3, "late": 0, "lost": 1, "withdrawn": 0, "drain_s": {"4": 1.25}}
    drain = change_of(phase="copied", operation="drain", asked="worker-1,server-1", asked_by="job")

    text = status_text(status_of(members=members, plan=drain, evictions=counted))

    assert "  worker-1 (container-0001) will be evicted in 12.3 s\n" in text
    assert "  worker-2 (container-0002) was due for eviction 2.0 s ago\n" in text
    assert "container-0003" not in text
    assert "  worker-4 (c-4) will be evicted in 5.0 s: it is preempted\n" in text
    assert "  worker-5 (c-5) will be evicted in 5.0 s\n" in text
    assert "plan 1 drain worker-1,server-1 before eviction: queued, proposed" in text
    assert "6 announced: 3 drained in time, 1 lost, 2 still there; the longest drain took 1.2 s" in text
    assert "announced" not in status_text(status_of(evictions={**counted, "asked": 0}))
    reasons = [{"reason": reason} for reason in ("is preempted", "is on a node that leaves", TAKEN_AWAY)]
    told = status_text(status_of(evictions={**counted, "members": reasons}))
    assert "took 1.2 s; the latest is on a node that leaves" in told
    assert "not requested again" not in text
    given = {**counted, "given": {"worker": 2, "server": 1}}
    assert "; 3 not requested again yet: others need that capacity" in status_text(status_of(evictions=given))
    for state in ("exporting", "finished", "failed"):
        assert "not requested again" not in status_text(status_of(evictions=given, state=state))
    assert "not requested again" not in summary_text({"name": "a", "state": "finished", "clock": 9, "evictions": given})


def test_status_of_a_job_on_yarn_says_by_which_name_yarn_knows_it() -> None:
    told = status_text(status_of(application_id="application_1_0001"))
    assert "\n  on YARN: application_1_0001\n" in told and "YARN" not in status_text(status_of())


def test_job_that_began_with_less_than_it_asked_for_says_so_until_it_has_the_rest() -> None:
    began = status_of(began_without={"worker": 0, "server": 1})
    said = "smaller than asked for: 1 server not granted in time at the start"
    assert said in status_text(began) and "smaller than asked for" in progress_line(began)
    assert "smaller" not in status_text(status_of(began_without={"worker": 0, "server": 0}))
    assert "smaller" not in status_text(status_of(began_without={"worker": 0, "server": 1}, state="finished"))
    stream = io.StringIO()
    display = PlainDisplay(stream, interval_s=60.0)
    for status in (began, began):
        display.show(status)
    assert stream.getvalue().count("smaller than asked for") == 1


def test_what_the_job_asks_for_itself_says_what_for() -> None:
    text = status_text({**status_of(), "changes": [change_of(asked_by="job", purpose="size")]})

    assert "plan 1 add-workers=2 to reach the requested size: " in text


def tiers_of(*stages: int, **changes: object) -> dict[str, object]:
    """Return ``tiers`` of a job that was in these stages, one after the other."""
    entries = [{"clock": 10 * i, "stage": stage, "reliable": 2, "transient": 6} for i, stage in enumerate(stages)]
    return {
        "rule": "auto",
        "stage": stages[-1],
        "stages": entries,
        "consistent_clock": 46,
        "lag": 4,
        "lag_s": 1.2,
        "largest_lag": 7,
        "largest_lag_s": 2.14,
        "lag_missed": "",
        "rolled_back": 0,
        "reason": "2 reliable and 6 transient containers: beyond 1:1",
        **changes,
    }


def test_status_of_a_job_on_two_tiers_shows_stage_reason_lag_and_what_each_server_is() -> None:
    member = {"role": "server", "pid": 7, "host": "", "port": 0, "ways": {}, "holds": [0]}
    members = [
        {**member, "name": "server-1", "tier": "reliable", "server_tier": "BackupPS"},
        {**member, "name": "server-4", "tier": "transient", "server_tier": "ActivePS"},
        {**member, "name": "server-5", "tier": "transient", "server_tier": ""},
        {**member, "name": "worker-4", "tier": "transient", "role": "worker"},
    ]
    told = status_text(status_of(tiers=tiers_of(1, 2, rolled_back=1), members=members)).splitlines()
    assert [line.strip() for line in told[4:7]] == [
        "stage 2 (rule auto): 2 reliable and 6 transient containers: beyond 1:1",
        "consistent clock 46: 4 clocks (1.2 s) behind, at most 7 clocks (2.1 s) so far",
        "1 clock computed again",
    ]
    rows = [[line.split()[i] for i in (0, 2, 3)] for line in told[8:12]]
    assert rows[:2] == [["server-1", "reliable", "BackupPS"], ["server-4", "transient", "ActivePS"]]
    assert rows[2:] == [["server-5", "transient", "-"], ["worker-4", "transient", "-"]]


def test_status_of_a_job_in_stage_1_has_no_lag() -> None:
    told = status_text(status_of(tiers=tiers_of(1)))
    assert "stage 1 (rule auto)" in told and "consistent clock" not in told and "computed again" not in told


def test_status_tells_a_lag_beyond_its_bound() -> None:
    why = "max_lag_s is 1, but a cut takes 1.1 s"
    assert f"the lag exceeds its bound: {why}" in status_text(status_of(tiers=tiers_of(1, 2, lag_missed=why)))


def test_progress_line_has_the_stage_and_the_lag_of_backups() -> None:
    first, second = status_of(tiers=tiers_of(1, lag=0)), status_of(tiers=tiers_of(1, 2))
    assert "  2w 1s v1  stage 1  ETA" in progress_line(first)
    assert "  2w 1s v1  stage 2  lag 4  ETA" in progress_line(second)
    assert "  servers 1  stage 2  lag 4  eta" in plain_line(second)
    assert "stage" not in progress_line(status_of(tiers=tiers_of(1, stage=None, stages=[])))


def test_each_change_of_stage_is_told_once_with_its_reason() -> None:
    news = ChangeNews()
    assert news.all_of(status_of(tiers=tiers_of(1, stage=None, stages=[]))) == []
    assert news.all_of(status_of(tiers=tiers_of(1, reason="why"))) == ["fake: stage 1 from clock 0: why"]
    changed = status_of(tiers=tiers_of(1, 2))
    assert news.all_of(changed) == ["fake: stage 2 from clock 10: 2 reliable and 6 transient containers: beyond 1:1"]
    assert news.all_of(changed) == []


def test_summary_counts_changes_of_stage_and_clocks_computed_again() -> None:
    report = status_of(state="finished", tiers=tiers_of(1, 1, 2, 3, 2, rolled_back=12, largest_lag=0))
    told = "stage 2 at the end; 3 changes of stage; 12 clocks computed again"
    assert summary_text(report).splitlines()[1:] == [f"  tiers       {told}"]
    assert f"  tiers: {told}" in status_text(report)
    assert "tiers" not in summary_text(status_of(state="finished"))
