"""The table of a sweep in a terminal of any size, and how it is redrawn."""

from __future__ import annotations

import os
import pty
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from hscheduler.cli.terminal import Screen, lines_of
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, Phase
from hscheduler.policies.elastic import elastic
from hscheduler.reports.view import Look, Row, SweepView
from tests.hscheduler.toy import Toy, request
from tests.terminal import TIMEOUT_S, Terminal


def row(number: int, phase: Phase, **values: Any) -> Row:
    return Row(f"trial-{number}", 0.5 * number, phase, **values)


BEST = row(2, Phase.FINISHED, iteration=400, iterations=400, feedback=0.9, loss=0.2, result=0.25, ended_s=9.0)
LOOK = Look(
    12.3,
    "elastic",
    "loss",
    8,
    [
        row(1, Phase.KILLED, iteration=100, iterations=400, feedback=2.5, loss=2.25, why="the worst", ended_s=8.0),
        BEST,
        row(
            3,
            Phase.TRAINING,
            workers=3,
            servers=2,
            iteration=300,
            iterations=400,
            iteration_s=0.5,
            loss=0.5,
            feedback=0.75,
        ),
        row(4, Phase.EARLY_FEEDBACK, workers=2, servers=1, iteration=7, iterations=400),
        row(5, Phase.QUEUED),
        row(6, Phase.FAILED, why="worker-1: training diverged", ended_s=3.0),
    ],
    [("trial-5", "waits for a job to end: nobody can give a server")],
    1,
    [(1.0, "trial-1 starts"), (2.0, "trial-2 starts")],
    2,
    BEST,
    16,
    14,
)


def test_it_lists_every_trial_the_running_ones_first() -> None:
    assert lines_of(LOOK, 120, 40) == [
        "H-scheduler, elastic, 12.3 s: 1 queued, 1 early feedback, 1 training, 1 finished, 1 killed, 1 failed, "
        "2 to come",
        "14 of 16 vcores in use; best loss 0.2500 (trial-2)",
        "TRIAL     PHASE           WORKERS  SERVERS  ITERATION  FEEDBACK  LOSS    ETA",
        "trial-3   training        3        2        300/400    0.7500    0.5000  50.0 s",
        "trial-4   early feedback  2        1        7/400      -         -       -",
        "trial-2*  finished        -        -        400/400    0.9000    0.2500  -",
        "trial-6   failed          -        -        0          -         -       worker-1: training diverged",
        "trial-1   killed          -        -        100/400    2.5000    2.2500  the worst",
        "QUEUE (1)",
        "trial-5  waits for a job to end: nobody can give a server",
        "DECISIONS (2)",
        "     1.0 s  trial-1 starts",
        "     2.0 s  trial-2 starts",
    ]


def test_another_metric_has_a_column_of_its_own() -> None:
    by_accuracy = replace(LOOK, metric="accuracy")
    lines = lines_of(by_accuracy, 120, 40)
    assert "LOSS    ACCURACY  ETA" in lines[2]
    assert lines[5].split()[-3:] == ["0.2000", "0.2500", "-"]


@pytest.mark.parametrize(
    ("width", "head"),
    [
        (72, "TRIAL     PHASE           W  S  ITER     FEEDBACK  LOSS    ETA"),
        (59, "TRIAL     PHASE           W  S  ITER     LOSS    ETA"),
        (40, "TRIAL     PHASE           LOSS    ETA"),
        (25, "TRIAL     LOSS    ETA"),
    ],
)
def test_a_narrow_terminal_keeps_the_most_important_columns(width: int, head: str) -> None:
    lines = lines_of(LOOK, width, 40)
    assert lines[2] == head
    assert lines[3].endswith("0.5000  50.0 s"), "the loss and when it will have finished"


def test_a_long_reason_wraps_to_a_second_line() -> None:
    why = "waits for a job to end: there is no room for 3 workers and 1 server, and jobs with early feedback can spare"
    lines = lines_of(replace(LOOK, queue=[("trial-5", f"{why} too little"), ("trial-7", why)]), 107, 40)
    first = lines.index("QUEUE (1)") + 1
    assert lines[first : first + 2] == [f"trial-5  {why.removesuffix(' can spare')}", "    can spare too little"]
    assert lines[first + 2].startswith("trial-7")
    narrow = lines_of(replace(LOOK, queue=[("trial-5", f"{why} too little")]), 60, 40)
    assert narrow[narrow.index("QUEUE (1)") + 2].endswith(" ...")


def test_a_queued_job_first_shows_what_it_lacks() -> None:
    toy = Toy.of(1, elastic)
    toy.submit(request("a"), request("b"))
    told = "there is no room for 1 master, 2 workers and 1 server, and jobs with early feedback can spare too little"
    assert toy.job("b").why == f"waits for a job to end: {told}"


@pytest.mark.parametrize("width", [1, 20, 79, 200])
@pytest.mark.parametrize("height", [1, 2, 3, 5, 10, 13, 24, 60])
@pytest.mark.parametrize("trials", [0, 6, 1000])
def test_it_fits_any_terminal_with_any_number_of_trials(width: int, height: int, trials: int) -> None:
    phases = [phase for phase in Phase if phase is not Phase.QUEUED]
    rows = [row(k, phases[k % len(phases)], why="caf\u00e9\x1b[31m " * 30, ended_s=1.0) for k in range(trials)]
    rows += [row(k, Phase.QUEUED) for k in range(trials, 2 * trials)]
    queue = [(row.job_id, "why " * 50) for row in rows[trials:]][:50]
    lines = lines_of(replace(LOOK, rows=rows, queue=queue, num_queued=trials), width, height)
    assert 1 <= len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert all(" " <= c <= "~" for line in lines for c in line)
    if trials and height >= 5 and width >= 79:
        running = [line for line in lines if re.search(r" (training|early feedback|starting) ", line)]
        assert running, "running trials are shown first"
    if trials == 1000 and width >= 79 and height >= 5:
        assert any(re.fullmatch(r"\.\.\. and \d+ more", line) for line in lines)
    if trials == 1000 and width >= 79 and height >= 24:
        assert "QUEUE (1000)" in lines and any(line.startswith("DECISIONS") for line in lines)


def test_a_retried_trial_is_one_row() -> None:
    """As in a report: its latest job counts."""
    toy = Toy.of(4, elastic)
    trials = {"a-again-1": "a", "b-again-1": "b"}
    view = SweepView(
        "elastic",
        "loss",
        Direction.MINIMIZE,
        2,
        lambda job_id: 400,
        {"b-again-1": 0.5}.get,
        lambda job_id: trials.get(job_id, job_id),
    )

    def happen(now_s: float, event: e.Event) -> None:
        view.take(now_s, event, toy.scheduler.step(event), toy.scheduler)

    for name in ("a", "b"):
        happen(0.0, e.JobSubmitted(request(name)))
        happen(1.0, e.JobStarted(name))
        happen(2.0, e.JobEnded(name, Phase.FAILED, "a worker crashed"))
        happen(3.0, e.JobSubmitted(request(f"{name}-again-1")))
        happen(4.0, e.JobStarted(f"{name}-again-1"))
    happen(5.0, e.JobEnded("b-again-1", Phase.FINISHED))
    found = view.look()
    assert [(row.job_id, row.arrived_s, row.phase) for row in found.rows] == [
        ("a", 0.0, Phase.EARLY_FEEDBACK),
        ("b", 0.0, Phase.FINISHED),
    ]
    assert found.best is not None and found.best.job_id == "b"
    text = "\n".join(lines_of(found, 100, 20))
    assert "1 early feedback, 1 finished" in text and "failed" not in text


def test_a_view_follows_the_scheduler() -> None:
    toy = Toy.of(1, elastic)
    view = SweepView("elastic", "loss", Direction.MINIMIZE, 3, lambda job_id: 400, {"a": 0.5}.get)

    def happen(now_s: float, event: e.Event) -> None:
        view.take(now_s, event, toy.scheduler.step(event), toy.scheduler)

    happen(0.0, e.JobSubmitted(request("a")))
    happen(1.0, e.JobSubmitted(request("b")))
    happen(1.0, e.JobRefused("c", "sweep", "its settings cannot work"))
    happen(2.0, e.JobStarted("a"))
    happen(3.0, e.Iterated("a", 100, (0.1, 0.3, 0.2), ((0.0, 100, 0.75),)))
    found = view.look()
    a, b, c = found.rows
    assert (a.phase, a.workers, a.servers, a.iteration, a.iterations) == (Phase.EARLY_FEEDBACK, 2, 1, 100, 400)
    assert a.loss == 0.75 and a.eta_s == pytest.approx(300 * 0.2)
    assert b.phase is Phase.QUEUED and found.queue[0][0] == "b" and found.num_queued == 1
    assert found.queue[0][1].startswith("waits for a job to end"), found.queue
    assert c.phase is Phase.FAILED and c.why == "its settings cannot work"
    assert (found.now_s, found.used_vcores, found.vcores, found.nodes) == (3.0, 4, 4, [("node0", 4)])
    assert found.num_decisions == 1 and "a starts" in found.decisions[0][1]
    assert found.best is None
    happen(4.0, e.FeedbackGiven("a", 0.7))
    happen(4.5, e.Iterated("a", 401))
    assert view.look().rows[0].iteration == 400
    happen(5.0, e.JobEnded("a", Phase.FINISHED))
    found = view.look()
    assert found.best is not None and found.best.job_id == "a" and found.best.result == 0.5
    assert found.rows[0].feedback == 0.7 and found.rows[0].workers == 0
    # 4.0 s is above 2.0 s and at most 5.0 s.
    assert list(found.latencies[:5]) == [0, 0, 0, 1, 0] and found.latency_sum_s == 4.0


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    found = Terminal(40, 6)
    yield found
    found.close()


def test_it_is_redrawn_in_place_and_news_stay_above(terminal: Terminal) -> None:
    shown = ["one", "two two two", "three"]
    screen = Screen(terminal.stream, lambda width, height: [line[:width] for line in shown[:height]], 0.01)
    terminal.wait_for("three")
    shown[:] = ["uno", "due"]
    terminal.wait_for("due")
    screen.tell(["trial-3 failed: \x1b[31mred", "  its log"])
    shown[:] = ["last"]
    screen.close()
    screen.close()
    assert terminal.lines() == ["trial-3 failed: ?[31mred", "  its log", "last", ""]


def test_it_follows_the_size_of_the_window(terminal: Terminal) -> None:
    sizes: list[tuple[int, int]] = []

    def lines(width: int, height: int) -> list[str]:
        sizes.append((width, height))
        return [f"{width} x {height}", *("x" * width for _ in range(height - 1))]

    screen = Screen(terminal.stream, lines, 0.01)
    terminal.wait_for("39 x 5")
    terminal.resize(60, 9)
    terminal.wait_for("59 x 8")
    screen.close()
    assert terminal.lines() == ["59 x 8", *["x" * 59] * 7, ""], "the smaller one left nothing"
    assert set(sizes) == {(39, 5), (59, 8)}


def test_a_closed_terminal_ends_nothing() -> None:
    master, slave = pty.openpty()
    stream = os.fdopen(slave, "w", encoding="utf-8")
    screen = Screen(stream, lambda width, height: ["here"], 0.01)
    assert os.read(master, 100)
    os.close(master)
    screen._thread.join(TIMEOUT_S)
    assert not screen._thread.is_alive()
    screen.tell(["nobody reads this"])
    screen.close()
    with suppress(OSError):
        # It still holds what it could not write.
        stream.close()
