"""The table of a sweep in a terminal of any size, and how it is redrawn."""

from __future__ import annotations

import os
import pty
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from eps.spec.job_spec import JobSpec
from hscheduler.cli.sweep_table import SweepTable, clock_text, sparkline
from hscheduler.cli.terminal import Screen, is_live
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, Phase
from hscheduler.live.reporting import look_of
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.policies.elastic import elastic
from hscheduler.reports.view import Look, Row
from hscheduler.runners import Here
from hscheduler.spec import Spec
from tests.hscheduler.toy import Toy, nodes, request
from tests.hscheduler.world import World
from tests.terminal import TIMEOUT_S, Terminal


def row(number: int, phase: Phase, **values: Any) -> Row:
    return Row(f"trial-{number}", 0.5 * number, phase, **values)


BEST = row(
    2,
    Phase.FINISHED,
    iteration=400,
    iterations=400,
    value=0.25,
    curve=[0.9, 0.7, 0.6, 0.4, 0.25],
    point={"learning_rate": 0.123456, "l2": 0},
)
LOOK = Look(
    12.3,
    "elastic",
    "loss",
    Direction.MINIMIZE,
    "digits",
    "threshold",
    8,
    [
        row(
            1,
            Phase.KILLED,
            iteration=100,
            iterations=400,
            value=2.25,
            why="the worst",
            curve=[2.0, 2.25],
            point={"learning_rate": 10.0, "l2": 0},
        ),
        BEST,
        row(
            3,
            Phase.TRAINING,
            workers=3,
            servers=2,
            iteration=300,
            iterations=400,
            iteration_s=0.5,
            value=0.5,
            curve=[0.9, 0.6, 0.4, 0.5],
            point={"learning_rate": 0.25, "l2": 0},
        ),
        row(
            4,
            Phase.EARLY_FEEDBACK,
            workers=2,
            servers=1,
            iteration=7,
            iterations=400,
            point={"learning_rate": 0.5, "l2": 1e-3},
        ),
        row(
            5,
            Phase.QUEUED,
            why="waits for a job to end: there is no room for 3 workers",
            point={"learning_rate": 0.1, "l2": 1e-3},
        ),
        row(6, Phase.FAILED, why="worker-1: training diverged", point={"learning_rate": 3.0, "l2": 0}),
    ],
    1,
    [(1.0, "trial-1 starts"), (62.0, "trial-2 starts")],
    2,
    16,
    14,
)


def text_of(look: Look, width: int, height: int = 40, encoding: str = "utf-8") -> list[str]:
    """Return what a console of that size shows of a sweep, without colours."""
    file = TextIOWrapper(BytesIO(), encoding)
    console = Console(file=file, width=width, height=height, record=True)
    console.print(SweepTable(look))
    return console.export_text().splitlines()


def test_it_shows_what_tells_trials_apart_and_how_they_do() -> None:
    assert text_of(LOOK, 108) == [
        "digits  elastic, threshold  3 of 8 done, 2 running, 1 queued  best loss 0.2500  0:12",
        "trial      learning_rate     l2    loss         containers  iterations  phase",
        "trial-2 ★         0.1235      0  0.2500  ▇▇▆▃▁                 400/400  finished",
        "trial-3             0.25      0  0.5000  ▇▇▁▄   ■■■□□ 3+2      300/400  training, 0:50 left",
        "trial-4              0.5  0.001       -         ■■□ 2+1          7/400  early feedback",
        "trial-1               10      0  2.2500  ▁▇                    100/400  killed: the worst",
        "trial-6                3      0       -                                 failed: worker-1: training diverged",
        "trial-5              0.1  0.001       -                                 queued: waits for a job to end: …",
        "",
        "   0:01  trial-1 starts",
        "   1:02  trial-2 starts",
    ]


def test_80_columns_show_the_same_shorter() -> None:
    assert text_of(LOOK, 80, 24)[:5] == [
        "digits  3 of 8 done, 2 running, 1 queued  best loss 0.2500  0:12",
        "trial      learning_rate     l2    loss         size          done  phase",
        "trial-2 ★         0.1235      0  0.2500  ▇▇▆▃▁             400/400  finished",
        "trial-3             0.25      0  0.5000  ▇▇▁▄   ■■■□□ 3+2  300/400  training",
        "trial-4              0.5  0.001       -         ■■□ 2+1      7/400  early",
    ]


@pytest.mark.parametrize(
    ("width", "head"),
    [
        (100, "trial learning_rate l2 loss containers iterations phase"),
        (80, "trial learning_rate l2 loss size done phase"),
        (62, "trial learning_rate l2 loss size phase"),
        (52, "trial learning_… loss size phase"),
        (36, "trial loss size phase"),
        (30, "trial loss phase"),
    ],
)
def test_a_narrow_terminal_keeps_the_most_important_columns(width: int, head: str) -> None:
    lines = text_of(LOOK, width)
    assert lines[1].split() == head.split()
    assert re.search(r"0\.5000.* training", lines[3]), "the metric and the phase are always there"


def test_the_latest_metric_of_a_running_trial_is_shown() -> None:
    by_accuracy = replace(LOOK, metric="accuracy", direction=Direction.MAXIMIZE)
    lines = text_of(by_accuracy, 100)
    assert "accuracy" in lines[1] and "loss" not in lines[1]
    assert "0.5000" in lines[3], "of trial-3, which runs"


def test_before_a_trial_has_finished_the_best_that_runs_is_on_top() -> None:
    later = replace(LOOK.rows[3], job_id="trial-7", value=0.25, curve=[0.75, 0.25], phase=Phase.TRAINING)
    lines = text_of(replace(LOOK, rows=[row for row in [*LOOK.rows, later] if row is not BEST]), 100)
    assert "best loss so far 0.2500" in lines[0]
    assert lines[2].startswith("trial-7 ★") and lines[3].startswith("trial-3  ")
    nothing = text_of(replace(LOOK, rows=LOOK.rows[-1:]), 100)
    assert "best" not in nothing[0] and "★" not in "".join(nothing)


def test_hyperparameters_that_do_not_vary_are_left_out() -> None:
    same = [replace(row, point={**row.point, "l2": 0.0}) for row in LOOK.rows]
    assert "l2" not in text_of(replace(LOOK, rows=same), 140)[1]
    assert "l2" in text_of(replace(LOOK, rows=same[:1]), 140)[1], "a single trial shows its point"


def test_a_terminal_without_unicode_gets_ascii() -> None:
    lines = text_of(LOOK, 140, encoding="ascii")
    assert all(line.isascii() for line in lines)
    assert any("trial-2 *" in line and "##*-_" in line for line in lines), lines
    assert any("###oo 3+2" in line for line in lines)


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_reason_is_cut_between_words(width: int) -> None:
    why = "waits for a job to end: there is no room for 3 workers and 1 server, and jobs with early feedback can spare"
    look = replace(LOOK, decisions=[(1.0, f"trial-5 {why} too little {why} {why} {why}")], num_decisions=1)
    shown = " ".join(line.strip() for line in text_of(look, width)).split("0:01  ")[1]
    assert shown.endswith(" …")
    assert f"trial-5 {why} too little {why} {why}".startswith(shown.removesuffix(" …"))
    assert set(shown.split()) <= {"trial-5", "too", "little", "…", *why.split()}, "whole words"


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ((), ""),
        ((1.0,), ""),
        ((1.0, 1.0), "▁▁"),
        ((0.0, 1.0, float("nan"), float("inf"), 2.0), "▁▄▇"),
        (tuple(range(100)), "▁▁▁▂▃▅▆▇"),
        ((90.0, 90.0, 1.0, 2.0, 3.0, 2.0, 1.0, 1.0), "▇▇▁▄▇▄▁▁"),
    ],
)
def test_a_sparkline_goes_from_the_least_to_the_largest_value(values: Sequence[float], line: str) -> None:
    assert sparkline(values, 8) == line


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (754, "12:34"), (3723, "1:02:03")])
def test_times_are_clocks(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


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
    rows = [
        row(
            k,
            phases[k % len(phases)],
            why="caf\u00e9\x1b[31m " * 30,
            point={"a": k, "b\x1b[31m": "c\x1b[31m"},
            curve=[1.0, k],
        )
        for k in range(trials)
    ]
    rows += [row(k, Phase.QUEUED) for k in range(trials, 2 * trials)]
    lines = text_of(replace(LOOK, rows=rows, num_queued=trials, name="x\x1b[31m"), width, height)
    assert 1 <= len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)
    assert all(c.isprintable() for line in lines for c in line)
    if trials and height >= 5 and width >= 79:
        assert any(re.search(r" (training|early|starting)", line) for line in lines), "running trials come first"
    if trials == 1000 and width >= 79 and height >= 5:
        assert any(re.fullmatch(r"\d+ more(: .*1000 queued)?", line) for line in lines)
    if width >= 79 and height >= 24:
        assert lines[-1].endswith("trial-2 starts"), "the latest decision is the last line"


@pytest.fixture
def scheduler(world: World) -> Iterator[LiveScheduler]:
    with LiveScheduler(nodes(2), LiveSettings()) as found:
        yield found


def settle(scheduler: LiveScheduler) -> None:
    # Jobs answer the orders of the first events.
    for _ in range(2):
        scheduler.settle(TIMEOUT_S)


def happen(scheduler: LiveScheduler, event: e.Event) -> None:
    scheduler._events.put(event)
    settle(scheduler)


def submit(scheduler: LiveScheduler, name: str, **point: float) -> None:
    scheduler.submit(e.JobSubmitted(request(name)), JobSpec(iterations=400), point)
    settle(scheduler)


def test_a_retried_trial_is_one_row(scheduler: LiveScheduler) -> None:
    """As in a report: its latest job counts."""
    for name in ("a", "b"):
        submit(scheduler, name)
        happen(scheduler, e.JobEnded(name, Phase.FAILED, "a worker crashed"))
        submit(scheduler, f"{name}-again-1")
    happen(scheduler, e.JobEnded("b-again-1", Phase.FINISHED, loss=0.5))
    ended: dict[str, Row] = {}
    found = look_of(scheduler, Look(metric="loss", trials=2), "sweep", ended)
    arrived_s = {name: trial.arrived_s for name, trial in scheduler.registry.timeline.trials.items()}
    assert [(row.job_id, row.arrived_s, row.phase) for row in found.rows] == [
        ("a", arrived_s["a"], Phase.EARLY_FEEDBACK),
        ("b", arrived_s["b"], Phase.FINISHED),
    ]
    assert found.best is not None and found.best.job_id == "b" and found.jobs[Phase.FAILED] == 2
    text = "\n".join(text_of(found, 100, 20))
    assert "1 of 2 done, 1 running" in text and "failed" not in text.split("\n\n")[0]
    assert set(ended) == {"a", "b", "b-again-1"} and look_of(scheduler, Look(), "sweep", ended).rows == found.rows


def test_a_look_shows_the_scheduler_as_it_is(scheduler: LiveScheduler) -> None:
    shown = Look(policy="elastic", name="digits", stop="sha", trials=3)
    submit(scheduler, "a", l2=0.5)
    for name in ("b", "c"):
        submit(scheduler, name)
    scheduler.refuse("d", "sweep", JobSpec(), "its settings cannot work")
    settle(scheduler)
    happen(scheduler, e.Iterated("a", 100, (0.1, 0.3, 0.2), ((0.0, 100, 0.75),)))
    found = look_of(scheduler, shown, "sweep", {})
    a, b, c, d = found.rows
    assert (a.phase, a.workers, a.servers, a.iteration, a.iterations) == (Phase.EARLY_FEEDBACK, 2, 1, 100, 400)
    assert a.value == 0.75 and list(a.curve) == [0.75] and a.point == {"l2": 0.5}
    assert (found.name, found.stop, found.direction) == ("digits", "sha", Direction.MINIMIZE)
    assert a.eta_s == pytest.approx(300 * 0.2)
    assert b.phase is Phase.EARLY_FEEDBACK and c.phase is Phase.QUEUED and found.num_queued == 1
    assert c.why.startswith("waits for a job to end")
    assert d.phase is Phase.FAILED and d.why == "its settings cannot work"
    assert (found.used_vcores, found.vcores, found.nodes) == (8, 8, [("node0", 4), ("node1", 4)])
    assert found.num_decisions == 2 and "a starts" in found.decisions[0][1]
    assert found.best is None
    happen(scheduler, e.FeedbackGiven("a", 0.7))
    happen(scheduler, e.JobEnded("a", Phase.FINISHED, loss=0.5))
    found = look_of(scheduler, shown, "sweep", {})
    assert found.best is not None and found.best.job_id == "a" and found.best.value == 0.5
    assert found.rows[0].workers == 0 and sum(found.latencies) == 1 and found.latency_sum_s > 0.0
    assert look_of(scheduler, shown, "another").rows == []


@pytest.mark.parametrize(("job", "told"), [({}, "250"), ({"iterations": 400}, "250/400")])
def test_a_callable_has_as_many_iterations_as_its_sweep_says(
    scheduler: LiveScheduler, job: dict[str, int], told: str
) -> None:
    spec = Spec.of({"sweep": {"trials": 1, "algorithm": "random"}, "job": job}, is_callable=True)
    scheduler.submit(e.JobSubmitted(request("a")), spec.job_spec())
    settle(scheduler)
    happen(scheduler, e.Iterated("a", 250, (0.5,) * 10))
    lines = text_of(look_of(scheduler, Here(spec, "static", has_space=False).look(), "sweep", {}), 100)
    assert told in lines[2].split() and (" left" in lines[2]) == bool(job)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    found = Terminal(40, 6)
    yield found
    found.close()


def test_it_is_redrawn_in_place_and_news_stay_above(terminal: Terminal) -> None:
    shown = ["one", "two two two", "three"]
    screen = Screen(terminal.stream, lambda: Text("\n".join(shown), no_wrap=True, overflow="crop"), 0.01)
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

    class Filled:
        """As many lines as fit."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            sizes.append((options.max_width, console.height))
            yield Text(f"{options.max_width} x {console.height}", no_wrap=True)
            for _ in range(console.height - 1):
                yield Text("x" * options.max_width, no_wrap=True)

    screen = Screen(terminal.stream, Filled, 0.01)
    terminal.wait_for("39 x 5")
    terminal.resize(60, 9)
    terminal.wait_for("59 x 8")
    screen.close()
    assert terminal.lines() == ["59 x 8", *["x" * 59] * 7, ""], "the smaller one left nothing"
    assert set(sizes) == {(39, 5), (59, 8)}


@pytest.mark.parametrize(("settings", "colours"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_are_for_terminals_that_want_them(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, str], colours: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm-256color", **settings}.items():
        monkeypatch.setenv(name, value)
    assert is_live(terminal.stream) is (settings.get("TERM") != "dumb")
    Screen(terminal.stream, lambda: Text("here", Style(color="green")), 0.01).close()
    assert terminal.lines() == ["here", ""]
    assert ("m" in terminal.sequences) is colours


def test_a_pipe_is_no_live_terminal() -> None:
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "w") as stream:
        assert not is_live(stream)


def test_a_closed_terminal_ends_nothing() -> None:
    master, slave = pty.openpty()
    stream = os.fdopen(slave, "w", encoding="utf-8")
    screen = Screen(stream, lambda: Text("here"), 0.01)
    assert os.read(master, 100)
    os.close(master)
    screen._thread.join(TIMEOUT_S)
    assert not screen._thread.is_alive()
    screen.tell(["nobody reads this"])
    screen.close()
    with suppress(OSError):
        # It still holds what it could not write.
        stream.close()
