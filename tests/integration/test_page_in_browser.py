"""The page of a sweep in a real browser: what its script draws of an ended and of a running sweep, also on a phone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from eps.cli import main as eps_main
from eps.errors import ConfigError, DeadlineError
from eps.job.page import JobPageServer
from hscheduler import cli
from hscheduler.live.points import GivenPoints
from hscheduler.page import PageServer, Stops, page
from hscheduler.simulator.run import simulate
from hscheduler.simulator.static_sizes import with_static
from hscheduler.spec import Spec
from tests.browser import TIMEOUT_S, Browser, find_browser
from tests.cli.conftest import status_of
from tests.conftest import require

TABLES: dict[str, dict[str, Any]] = {
    "sweep": {"threshold": 2, "arrival": "poisson:1s", "seed": 4},
    "space": {"learning_rate": {"loguniform": [1e-3, 1]}, "optimizer": {"choice": ["sgd", "adam"]}},
    "job": {"stretch_s": 0.002, "workers": 2, "servers": 1},
}
LIVE = """
[cluster]
nodes = 2
[sweep]
trials = 4
threshold = 1
feedback_iteration = 10
algorithm = "random"
[space]
learning_rate = { loguniform = [1e-3, 1] }
[job]
data = "sklearn:digits"
model = "softmax"
workers = 2
servers = 1
iterations = 150
stretch_s = 0.002
"""
STATE = "document.querySelector('#state').textContent"
READY = "isDrawn || !document.querySelector('#trial').hidden"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    require("chromium")
    program = find_browser()
    assert program is not None
    found = Browser(program, tmp_path_factory.mktemp("browser") / "profile")
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """Return a browser without recorded requests; at the end it shows an empty page."""
    yield chromium
    errors = list(chromium.errors)
    chromium.prefer("light")
    chromium.forget()
    assert errors == []


def report_of(trials: int) -> dict[str, Any]:
    report = simulate(Spec.of({**TABLES, "sweep": {**TABLES["sweep"], "trials": trials}}), "elastic")
    for trial in report["trials"]:
        # Simulated jobs have no losses before their end.
        end_s = trial["finished_s"] - trial["started_s"]
        trial["curve"] = [[trial["started_s"] + end_s * k / 199, 5 * k, 2.0 / (1 + k)] for k in range(200)]
    return report


def shown(browser: Browser, path: Path, *reports: dict[str, Any], width: int = 1200, trial: str = "") -> None:
    """Show the page of reports, of one trial if it is named."""
    path.write_text(page({f"{each['policy']}-{k}" if k else each["policy"]: each for k, each in enumerate(reports)}))
    browser.open(path.as_uri() + (f"#trial/elastic/{trial}" if trial else ""), width, 800, phone=width < 500)
    browser.wait_until(READY)


def number_of(browser: Browser, selector: str) -> int:
    return browser.value(f"document.querySelectorAll({selector!r}).length")


def texts(browser: Browser, selector: str) -> list[str]:
    return browser.value(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")


def text_of(browser: Browser, selector: str) -> str:
    return browser.value(f"document.querySelector({json.dumps(selector)}).textContent")


def is_shown(browser: Browser, selector: str) -> bool:
    return browser.value(f"document.querySelector({json.dumps(selector)}).getClientRects().length > 0")


def fits_its_window(browser: Browser) -> bool:
    return browser.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def drawn(browser: Browser, plot: str, layer: str) -> int:
    """Return how many pixels of a layer of a chart are not transparent: ``plot`` (marks and axes) or ``over``."""
    which = "canvas.over" if layer == "over" else "canvas:not(.over)"
    return browser.value(
        f"(() => {{ const c = document.querySelector('{plot} {which}');"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "let n = 0; for (let k = 3; k < d.length; k += 4) if (d[k]) n++; return n; })()"
    )


WHYS = [
    "</script>",
    "a stray <!--<script> in a log line",
    "<!--",
    "\\u003c & \u2028",
    "<img src=x onerror=window.hit=1>",
]


@pytest.mark.parametrize("why", WHYS)
def test_no_text_is_read_as_markup(browser: Browser, tmp_path: Path, why: str) -> None:
    report = report_of(3)
    first = report["trials"][0]
    first |= {"why": why, "job_id": why, "name": why, "attempts": [{**first["attempts"][0], "why": why}] * 2}
    for trial in report["trials"]:
        trial["point"] = {why: why + trial["job_id"], "b": why}
    report["best"] |= {"job_id": "trial-2", "point": {why: why}}
    report["decisions"].append({"at_s": 9e9, "sentence": f"{why} starts", "jobs": [why], "plan": []})
    report |= {"name": why, "metric": why, "policy": why, "static": {"sizes": [], "why": why}}
    shown(browser, tmp_path / "page.html", report)
    assert number_of(browser, "#trials tbody tr") == 3
    for place in ("#name", "#best", "#static", "#trials", "#decisions", "#space", "#about"):
        assert why in text_of(browser, place), place
    browser.value("choose(0)")
    browser.move_to("#bands .u-over", 0.09, 0.97)
    browser.value("document.querySelector('#trials tbody th a').click()")
    browser.wait_until("!document.querySelector('#trial').hidden")
    browser.value("location.hash = linkTo(sweep.trials[0])")
    browser.wait_until(f"document.querySelector('#trial h1').textContent === {json.dumps(why)}")
    for place in ("#settings", "#attempts", "#trial-decisions"):
        assert why in text_of(browser, place), place
    assert browser.value("window.hit") is None
    assert number_of(browser, "img") == 0


def test_an_ended_sweep_is_drawn_completely(browser: Browser, tmp_path: Path) -> None:
    report = report_of(12)
    shown(browser, tmp_path / "page.html", {**report, "name": "digits"}, {**report, "policy": "static"})
    assert browser.value("document.title") == "digits · H-scheduler"
    assert text_of(browser, "#state") == "ended"
    assert texts(browser, "#policy option") == ["elastic", "static"]
    assert report["best"]["job_id"] in text_of(browser, "#best")
    assert "optimizer" in text_of(browser, "#best .chips")
    assert number_of(browser, "#trials tbody tr") == 12
    assert number_of(browser, "#decisions li") == len(report["decisions"])
    assert number_of(browser, "#space .plot") == 2, "a chart for each hyperparameter"
    for plot in ("#bands", "#anytime", "#curves", "#space .plot"):
        assert drawn(browser, plot, "plot") > 1000, plot
    assert browser.requested == [(tmp_path / "page.html").as_uri()], "nothing is fetched"


def test_the_bands_are_as_wide_as_the_containers(browser: Browser, tmp_path: Path) -> None:
    report = report_of(12)
    shown(browser, tmp_path / "page.html", report)
    laid = browser.value("(({ bands, times, most }) => ({ bands, times, most }))(stacked(sweep.trials))")
    for k, trial in enumerate(report["trials"]):
        mine = [band for band in laid["bands"] if band["trial"] == k]
        assert len(mine) == 1, "it held containers once"
        (band,) = mine
        changes = [(at_s, workers + servers) for at_s, workers, servers in trial["containers"]]
        for at_s, size in changes:
            before = [n for n, at in enumerate(band["at"]) if laid["times"][at] <= at_s]
            if size:
                assert band["high"][before[-1]] - band["low"][before[-1]] == size
            else:
                assert laid["times"][band["end"]] == at_s
    # No two trials hold the same container at the same time.
    for now in range(len(laid["times"])):
        held = []
        for band in laid["bands"]:
            steps = [n for n, at in enumerate(band["at"]) if at <= now]
            if steps and (band["end"] is None or band["end"] > now):
                held.append((band["low"][steps[-1]], band["high"][steps[-1]]))
        held.sort()
        assert all(high <= low for (_, high), (low, _) in pairwise(held))


def test_the_time_is_compared_with_static_sizes(browser: Browser, tmp_path: Path) -> None:
    report = with_static(report_of(12))
    shown(browser, tmp_path / "page.html", report)
    assert len(report["static"]["sizes"]) > 1
    assert "simulated" in text_of(browser, "#static")
    assert number_of(browser, "#static-bars .bar") == 2
    assert number_of(browser, "#static details .bar") == len(report["static"]["sizes"]) - 1
    shown(browser, tmp_path / "page.html", {**report, "static": {"sizes": [], "why": "the sweep has not ended"}})
    assert "no comparison with static sizes: the sweep has not ended" in text_of(browser, "#static")


def test_paused_trials_do_not_run(browser: Browser, tmp_path: Path) -> None:
    report = report_of(12)
    first, second = report["trials"][:2]
    first |= {"phase": "paused", "finished_s": None, "rested_s": report["end_s"] - first["started_s"] - 2.0}
    second |= {"phase": "training", "finished_s": None}
    shown(browser, tmp_path / "page.html", report, trial=first["job_id"])
    assert "ran for2 s" in texts(browser, "#trial .figures div")
    browser.click("#back")
    browser.wait_until("document.querySelector('#trial').hidden && isDrawn")
    assert {"paused1", "interrupted1"} <= set(texts(browser, "#figures div"))


def test_an_interrupted_sweep_shows_when_and_how_long(browser: Browser, tmp_path: Path) -> None:
    # On YARN the page does not know how many containers there are.
    report = {**report_of(12), "spec": None, "down": [[1.0, 1201.0]]}
    shown(browser, tmp_path / "page.html", report)
    assert "without 20 min 0 s interrupted" in text_of(browser, "#static")
    key = texts(browser, "#bands-key")[0]
    assert "dotted: interrupted and resumed" in key and "dashed" not in key and "null" not in key


def test_a_page_keeps_only_the_charts_that_it_shows(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path / "page.html", report_of(12))
    number = browser.value("made.length")
    assert number == number_of(browser, ".plot .uplot") > 3
    browser.value("for (let k = 0; k < 5; k++) redrawAll()")
    assert browser.value("made.length") == number


def test_the_focus_stays_where_it_is_when_news_come(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path / "page.html", report_of(60))
    row = browser.value("document.querySelectorAll('#trials tbody a')[2].id")
    for place in (row, "by-started", "next-page", "against-learning_rate"):
        browser.value(f"{{ document.getElementById({place!r}).focus(); draw(); }}")
        assert browser.value("document.activeElement.id") == place


def test_a_link_to_a_trial_names_its_policy(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path / "page.html", report_of(4), {**report_of(4), "policy": "gain"})
    browser.value("{ $('policy').value = 'gain'; $('policy').onchange(); $('row-trial-2').click(); }")
    browser.wait_until("!document.querySelector('#trial').hidden")
    address = browser.value("location.href")
    assert address.endswith("#trial/gain/trial-2")
    browser.open("about:blank")
    browser.open(address)
    browser.wait_until(READY)
    assert browser.value("sweep.policy") == "gain" and "policy gain" in text_of(browser, "#trial .head")
    browser.value("location.hash = '#trial/elastic/trial-1'")
    browser.wait_until("sweep.policy === 'elastic'")


def test_a_comparison_with_an_unknown_column_is_told(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path / "page.html", report_of(4))
    browser.value("{ $('find').value = 'learning-rate<1 feedback>0'; $('find').oninput(); }")
    assert text_of(browser, "#find-note") == "0 of 4 trials; no column is named learning-rate"


def test_the_mouse_shows_and_selects_a_trial_everywhere(browser: Browser, tmp_path: Path) -> None:
    report = report_of(12)
    shown(browser, tmp_path / "page.html", report)
    assert drawn(browser, "#bands", "over") == 0
    browser.move_to("#bands .u-over", 0.09, 0.97)
    browser.wait_until("!document.querySelector('#tip').hidden")
    assert text_of(browser, "#tip b") == "trial-1"
    assert "learning_rate" in text_of(browser, "#tip") and "2 workers, 1 server" in text_of(browser, "#tip")
    assert drawn(browser, "#bands", "over") > 0 and drawn(browser, "#curves", "over") > 0
    browser.click("#bands .u-over", 0.09, 0.97)
    browser.wait_until("chosen === 0")
    assert texts(browser, "#trials tr.chosen th") == ["trial-1"]
    assert drawn(browser, "#space .plot", "over") > 0
    about = [each for each in report["decisions"] if "trial-1" in each["jobs"]]
    assert number_of(browser, "#decisions .about") == len(about)
    browser.press("Escape")
    assert browser.value("chosen") == -1
    assert number_of(browser, "#trials tr.chosen") == 0
    # A curve and a point of a hyperparameter select as well; so does a row.
    for plot in ("#curves", "#space .plot"):
        spot = browser.value(
            f"(() => {{ const p = plots.find((each) => each.box === document.querySelector({plot!r}));"
            "const r = p.plot.over.getBoundingClientRect(), t = sweep.trials[4]; const at = p.box.id === 'curves' ?"
            "[p.plot.valToPos(t.curve[150][1], 'x'), p.plot.valToPos(t.curve[150][2], 'y')] :"
            "[p.plot.valToPos(t.point.learning_rate, 'x'), p.plot.valToPos(valueOf(t), 'y')];"
            "return [at[0] / r.width, at[1] / r.height]; })()"
        )
        browser.click(f"{plot} .u-over", *spot)
        browser.wait_until("chosen >= 0")
        browser.press("Escape")
    browser.click("#trials tbody tr:nth-child(2) td:nth-child(3)")
    assert browser.value("chosen") >= 0


def test_the_keyboard_reaches_everything(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path / "page.html", report_of(12))
    browser.value("document.querySelector('#bands').focus()")
    browser.press("ArrowRight")
    assert browser.value("sweep.trials[chosen].id") == "trial-1"
    assert "trial-1" in text_of(browser, "#spoken")
    browser.press("ArrowRight")
    assert browser.value("sweep.trials[chosen].id") == "trial-2"
    browser.press("ArrowLeft")
    browser.press("Enter")
    browser.wait_until("!document.querySelector('#trial').hidden")
    assert text_of(browser, "#trial h1") == "trial-1"
    assert browser.value("document.activeElement.tagName") == "H1"
    browser.press("Escape")
    browser.wait_until("document.querySelector('#trial').hidden && isDrawn")
    # Rows are links; the arrows go from one to the next.
    browser.value("document.querySelector('#trials tbody a').focus()")
    browser.press("ArrowDown")
    second = texts(browser, "#trials tbody th")[1]
    assert browser.value("document.activeElement.textContent") == second
    browser.press("Enter")
    browser.wait_until("!document.querySelector('#trial').hidden")
    assert text_of(browser, "#trial h1") == second
    browser.value("location.hash = ''")
    browser.wait_until("document.querySelector('#trial').hidden && isDrawn")
    # Tab goes through links, fields, charts and buttons, and comes back.
    browser.value("document.activeElement.blur()")
    reached = set()
    for _ in range(60):
        browser.press("Tab")
        reached.add(browser.value("document.activeElement.id || document.activeElement.tagName"))
    assert {"bands", "anytime", "curves", "colour", "find", "find-decision", "A", "by-started", "SUMMARY"} <= reached


def test_the_table_sorts_filters_and_has_pages(browser: Browser, tmp_path: Path) -> None:
    report = report_of(60)
    report["trials"][3] |= {"phase": "killed", "loss": None, "why": "worst of 3"}
    shown(browser, tmp_path / "page.html", report)
    losses = sorted(trial["loss"] for trial in report["trials"] if trial["loss"] is not None)
    column = "#trials tbody td:nth-child(3)"
    assert [float(text) for text in texts(browser, column)] == pytest.approx(losses[:25], rel=1e-3), "the best first"
    assert "1–25 of 60" in text_of(browser, "#pages")
    browser.click("#pages button:last-child")
    assert [float(text) for text in texts(browser, column)] == pytest.approx(losses[25:50], rel=1e-3)
    browser.click("#trials th[aria-sort] button")
    assert browser.value("document.querySelector('#trials th[aria-sort]').ariaSort") == "descending"
    assert [float(text) for text in texts(browser, column)] == pytest.approx(losses[::-1][:25], rel=1e-3)
    browser.click("#trials th:first-child button")
    assert texts(browser, "#trials tbody th")[:11] == [f"trial-{k}" for k in range(1, 12)], "by number"
    browser.write("#find", "killed")
    assert texts(browser, "#trials tbody th") == ["trial-4"]
    assert "worst of 3" in text_of(browser, "#trials tbody")
    assert text_of(browser, "#find-note") == "1 of 60 trials"
    wanted = [t for t in report["trials"] if t["point"]["optimizer"] == "sgd" and t["point"]["learning_rate"] < 0.01]
    browser.write("#find", "optimizer=sgd learning_rate<0.01")
    assert len(wanted) > 1 and number_of(browser, "#trials tbody tr") == min(25, len(wanted))
    assert text_of(browser, "#find-note") == f"{len(wanted)} of 60 trials"


def test_decisions_are_searched_and_link_to_their_trials(browser: Browser, tmp_path: Path) -> None:
    report = report_of(90)
    shown(browser, tmp_path / "page.html", report)
    assert number_of(browser, "#decisions li") == 60
    browser.click("#more-decisions")
    assert number_of(browser, "#decisions li") == len(report["decisions"])
    browser.write("#find-decision", "trial-3 starts")
    assert number_of(browser, "#decisions li") == 1
    browser.click("#decisions a")
    browser.wait_until("!document.querySelector('#trial').hidden")
    assert text_of(browser, "#trial h1") == "trial-3"


def test_a_trial_has_a_page_of_its_own(browser: Browser, tmp_path: Path) -> None:
    report = report_of(12)
    trial = report["trials"][4]
    trial |= {"job_id": "a/5 ü", "phase": "failed", "why": "worker-1 ended", "name": "sweep-1-5"}
    trial["attempts"] = [
        {"job_id": "a/5 ü", "phase": "failed", "why": "a crash", "started_s": 1.0, "finished_s": 2.0},
        {"job_id": "a/5 ü-2", "phase": "failed", "why": "worker-1 ended", "started_s": 3.0, "finished_s": 4.0},
    ]
    report["decisions"][0]["jobs"].append("a/5 ü-2")
    shown(browser, tmp_path / "page.html", report, trial="a%2F5%20%C3%BC")
    assert text_of(browser, "#trial h1") == "a/5 ü"
    assert "failed" in text_of(browser, "#trial .badge")
    assert str(trial["point"]["learning_rate"]) in text_of(browser, "#settings")
    assert texts(browser, "#attempts th") == ["a/5 ü", "a/5 ü-2"]
    assert number_of(browser, "#trial-decisions li") == 1, "also of a later attempt"
    assert drawn(browser, "#trial-curve", "plot") > 500 and drawn(browser, "#trial-sizes", "plot") > 500
    assert not is_shown(browser, "#stop-trial")
    browser.click("#trial nav a:nth-of-type(3)")
    browser.wait_until("document.querySelector('#trial h1').textContent === 'trial-6'")
    browser.click("#back")
    browser.wait_until("document.querySelector('#trial').hidden && isDrawn")
    assert number_of(browser, "#trials tbody tr") == 12
    browser.open((tmp_path / "page.html").as_uri() + "#trial/nothing")
    browser.wait_until("isDrawn")
    assert is_shown(browser, "#sweep"), "an unknown trial"


@pytest.mark.parametrize(
    ("call", "values"),
    [
        ("ticks([0.00182, 26.8], true)", [0.01, 0.1, 1, 10]),
        ("ticks([0.02, 1.5], true)", [0.02, 0.05, 0.1, 0.2, 0.5, 1]),
        ("ticks([1e-9, 1e3], true)", [1e-8, 1e-6, 1e-4, 1e-2, 1, 100]),
        ("ticks([0, 92.5])", [0, 20, 40, 60, 80]),
        ("ticks([0, 4])", [0, 1, 2, 3, 4]),
        ("ticks([-0.3, 0.3])", [-0.2, 0, 0.2]),
        ("ticks([7, 7])", [7]),
        ("[ticks([0, 1], true), ticks([0, Infinity], true), ticks([NaN, 1]), ticks([0, Infinity])]", [[], [], [], []]),
        ("timeAxis([0, 1200]).ticks(5)", [0, 300, 600, 900, 1200]),
        ("timeAxis([0, 1200]).ticks(5).map(timeAxis([0, 1200]).format).slice(1, 3)", ["5 min", "10 min"]),
        ("usual([1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2, 1e24])[1] < 40", True),
        ("[seconds(0.25), seconds(61.04), seconds(150), seconds(7260), seconds(null)]",
         ["0.25 s", "61 s", "2 min 30 s", "2 h 1 min", "–"]),
    ],
)  # fmt: skip
def test_axes_and_times_are_round(browser: Browser, tmp_path: Path, call: str, values: Any) -> None:
    shown(browser, tmp_path / "page.html", report_of(3))
    assert browser.value(call) == values


def test_trials_of_several_spaces_are_drawn_where_they_have_a_value(browser: Browser, tmp_path: Path) -> None:
    report = report_of(3)
    points: list[dict[str, Any]] = [{"learning_rate": 0.1}, {"l2": 0.5}, {}]
    for trial, point in zip(report["trials"], points, strict=True):
        trial["point"] = point
    shown(browser, tmp_path / "page.html", report)
    assert texts(browser, "#space h3") == ["learning_rate logarithmic", "l2"]
    assert number_of(browser, "#trials tbody tr") == 3


def test_a_setting_without_any_value_yet_has_an_empty_chart(browser: Browser, tmp_path: Path) -> None:
    report = report_of(3)
    points: list[dict[str, Any]] = [{"l2": 0.5}, {"learning_rate": 0.001}, {"learning_rate": 0.1}]
    for trial, point in zip(report["trials"], points, strict=True):
        trial["point"] = point
    for trial in report["trials"][1:]:
        trial |= {"phase": "training", "finished_s": None, "value": None, "latest": None}
    shown(browser, tmp_path / "page.html", report)
    assert texts(browser, "#space h3") == ["l2", "learning_rate logarithmic"]
    assert number_of(browser, "#trials tbody tr") == 3


def test_curves_of_callables_that_report_no_loss_are_drawn(browser: Browser, tmp_path: Path) -> None:
    report = report_of(3)
    for trial in report["trials"]:
        trial["values"], trial["curve"] = trial["curve"], []
    shown(browser, tmp_path / "page.html", {**report, "metric": "accuracy"})
    assert is_shown(browser, "#curves-section") and drawn(browser, "#curves", "plot") > 500
    browser.value("{ const s = document.querySelector('#against'); s.value = '1'; s.onchange(); }")
    assert drawn(browser, "#curves", "plot") > 500
    assert texts(browser, "#of option") == ["accuracy"] and text_of(browser, "#h-curves") == "accuracy"


@pytest.mark.parametrize("metric", ("accuracy", "loss"))
def test_the_metric_of_the_ranking_is_named(browser: Browser, tmp_path: Path, metric: str) -> None:
    report = report_of(3)
    for trial in report["trials"]:
        trial["values"] = trial["curve"] if metric == "accuracy" else []
    shown(browser, tmp_path / "page.html", {**report, "metric": metric})
    assert f"best {metric}" in text_of(browser, "#best")
    assert text_of(browser, "#trials th:nth-child(3)").startswith(metric)
    assert text_of(browser, "#h-space") == f"Hyperparameters against {metric}"
    assert texts(browser, "#of option") == ["training loss", *(["accuracy"] if metric == "accuracy" else [])]
    if metric == "accuracy":
        assert browser.value("document.querySelector('#of').value") == "values"
        browser.value("{ const s = document.querySelector('#of'); s.value = 'curve'; s.onchange(); }")
        assert drawn(browser, "#curves", "plot") > 500


def test_a_served_page_is_redrawn(browser: Browser) -> None:
    server = PageServer(0)
    try:
        server.show(lambda: {"elastic": report_of(3)})
        browser.open(server.link)
        browser.wait_until(READY)
        assert text_of(browser, "#state") == "running"
        assert not is_shown(browser, "#stop-sweep"), "nothing here can be stopped"
        assert number_of(browser, "#trials tbody tr") == 3
        browser.value("choose(1)")
        server.show(lambda: {"elastic": report_of(8)}, live=False)
        browser.wait_until("document.querySelectorAll('#trials tbody tr').length === 8")
        assert browser.value("sweep.trials[chosen].id") == "trial-2", "the selection stays"
        assert {address.partition("#")[0].removeprefix(server.address) for address in browser.requested} == {
            "",
            "page.json",
        }
    finally:
        server.close()


def test_trials_and_the_sweep_are_stopped_with_buttons(browser: Browser) -> None:
    stopped: list[str] = []
    report = report_of(3)
    report["trials"][1] |= {"phase": "training", "finished_s": None}

    def stop(trial: str) -> None:
        if trial != "trial-2":
            raise ConfigError(f"{trial} has ended")
        stopped.append(trial)

    server = PageServer(0)
    try:
        server.show(lambda: {"elastic": report}, stops=Stops(stop, stopped.append, lambda: ["first", "second"]))
        # Without the key of the printed address there is nothing to press.
        browser.open(server.address)
        browser.wait_until(READY)
        assert not is_shown(browser, "#stop-sweep")
        browser.open(server.link)
        browser.wait_until("canStop() && isDrawn")
        assert server.key not in browser.value("location.href"), "it is not left where a screenshot shows it"
        browser.value("location.hash = linkTo(sweep.trials[1])")
        browser.wait_until("!document.querySelector('#trial').hidden")
        browser.click("#stop-trial")
        browser.press("Escape")
        browser.wait_until("!document.querySelector('#sure').open")
        assert stopped == [] and is_shown(browser, "#trial"), "a question that is left changes nothing"
        browser.click("#stop-trial")
        browser.click("#sure-yes")
        browser.wait_until("document.querySelector('#spoken').textContent.includes('trial-2 is stopping')")
        assert stopped == ["trial-2"]
        browser.value("location.hash = linkTo(sweep.trials[0])")
        browser.wait_until("document.querySelector('#trial h1').textContent === 'trial-1'")
        assert not is_shown(browser, "#stop-trial"), "it has ended"
        browser.value("location.hash = ''")
        browser.wait_until("document.querySelector('#trial').hidden && isDrawn")
        assert texts(browser, "#which-sweep option") == ["first", "second"]
        browser.value("document.querySelector('#which-sweep').value = 'second'")
        browser.click("#stop-sweep")
        browser.click("#sure-yes")
        browser.wait_until("document.querySelector('#spoken').textContent.includes('sweep second is stopping')")
        assert stopped == ["trial-2", "second"]
    finally:
        server.close()


def test_the_view_of_a_trial_stays_where_its_reader_is(browser: Browser) -> None:
    report = report_of(60)
    running, ended = report["trials"][0], report["trials"][1]
    running |= {"phase": "training", "finished_s": None}
    report["decisions"] += [{"at_s": 9e3, "sentence": "trial-1 waits", "jobs": ["trial-1"], "plan": []}] * 60
    top = "document.querySelector('#trial-decisions').scrollTop"
    first, second = ("document.querySelector('#trial h1').isFirst", "document.querySelector('#trial h1').isSecond")
    server = PageServer(0)

    def pass_time() -> None:
        report["end_s"] += 1.0
        end_s = report["end_s"]
        browser.wait_until(f"sweep.end_s === {end_s}")

    try:
        server.show(lambda: {"elastic": report})
        browser.open(server.address + "#trial/elastic/trial-2", 1200, 500)
        browser.wait_until(READY)
        browser.value(f"{first} = true")
        pass_time()
        assert browser.value(first), "nothing of it has changed"
        ended["why"] = "it is drawn again"
        browser.wait_until("document.querySelector('#trial').textContent.includes('it is drawn again')")
        browser.value("location.hash = linkTo(sweep.trials[0])")
        browser.wait_until("document.querySelector('#trial h1').textContent === 'trial-1'")
        browser.value(f"{second} = true; {top} = 70; document.querySelector('#next-trial').focus(); scrollTo(0, 240)")
        pass_time()
        assert not browser.value(second)
        assert browser.value(f"[{top}, scrollY, document.activeElement.id]") == [70, 240, "next-trial"]
        browser.prefer("dark")
        browser.wait_until("matchMedia('(prefers-color-scheme: dark)').matches")
        assert browser.value(f"[{top}, scrollY]") == [70, 240]
    finally:
        server.close()


def test_a_page_says_that_its_server_does_not_answer(browser: Browser) -> None:
    report = report_of(3)
    report["trials"][0] |= {"phase": "training", "finished_s": None}
    stops = Stops(lambda trial: None, lambda name: None, lambda: ["mine"])
    server = PageServer(0)
    try:
        server.show(lambda: {"elastic": report}, stops=stops)
        browser.open(server.link)
        browser.wait_until("canStop() && isDrawn")
        assert is_shown(browser, "#stop-sweep")
        server.close()
        browser.wait_until(f"{STATE}.startsWith('no answer, as of ')")
        assert not is_shown(browser, "#stop-sweep")
        browser.value("location.hash = linkTo(sweep.trials[0])")
        browser.wait_until("!document.querySelector('#trial').hidden")
        assert "no answer, as of " in text_of(browser, "#trial .head") and not is_shown(browser, "#stop-trial")
        server = PageServer(server.port)
        server.show(lambda: {"elastic": report}, stops=stops)
        browser.wait_until(f"{STATE} === 'running'")
        assert is_shown(browser, "#stop-trial"), "also of data that has not changed"
        assert "no answer" not in text_of(browser, "#trial .head") + browser.value("document.title")
    finally:
        server.close()
    assert all("ERR_CONNECTION" in error for error in browser.errors), browser.errors
    browser.errors.clear()


def test_the_page_of_a_job_says_that_its_server_does_not_answer(browser: Browser) -> None:
    status = {**status_of(), "loss": 0.5}
    server = JobPageServer(0)
    try:
        server.take(status, [{"clock": k, "seconds": 0.1 * k, "loss": 1 / (1 + k)} for k in range(50)])
        browser.open(server.address)
        assert text_of(browser, "#state") == "running"
        server.close()
        browser.wait_until(f"{STATE}.startsWith('no answer, as of ')")
        server = JobPageServer(server.port)
        server.take(status)
        browser.wait_until(f"{STATE} === 'running'")
    finally:
        server.close()
    assert all("ERR_CONNECTION" in error for error in browser.errors), browser.errors
    browser.errors.clear()


def test_a_page_opened_before_the_start_of_a_sweep_shows_the_start(browser: Browser) -> None:
    server = PageServer(0)
    try:
        browser.open(server.address)
        assert is_shown(browser, "#waiting")
        assert not is_shown(browser, "#bands"), "no figure"
        server.show(lambda: {"elastic": report_of(3)})
        browser.wait_until("document.querySelectorAll('#trials tbody tr').length === 3 && isDrawn")
        assert not is_shown(browser, "#waiting")
        assert drawn(browser, "#bands", "plot") > 1000
    finally:
        server.close()


def test_a_page_without_a_report_reloads_itself(browser: Browser) -> None:
    answers = [DeadlineError("the scheduler is busy"), {"elastic": report_of(3)}]

    def look() -> dict[str, Any]:
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, Exception):
            raise found
        return found

    server = PageServer(0)
    try:
        server.show(look)
        browser.open(server.address)
        browser.wait_until("document.querySelectorAll('#trials tbody tr').length === 3")
    finally:
        server.close()
    # The browser's message on the first answer.
    assert all("503" in error for error in browser.errors)
    browser.errors.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
def test_text_can_be_read_in_both_schemes_and_fits(browser: Browser, tmp_path: Path, scheme: str, width: int) -> None:
    browser.prefer(scheme)
    report = with_static(report_of(12))
    for trial in ("", "trial-2"):
        shown(browser, tmp_path / "page.html", report, width=width, trial=trial)
        assert fits_its_window(browser)
        least = browser.value(CONTRAST)
        # WCAG 2.2, 1.4.3: 4.5 to 1.
        assert least[0] >= 4.5, least


#: The least contrast of a visible text with the background behind it, and that text.
CONTRAST = """(() => {
  const rgb = (color) => {
    const c = document.createElement("canvas").getContext("2d");
    c.fillStyle = color; c.fillRect(0, 0, 1, 1);
    return [...c.getImageData(0, 0, 1, 1).data];
  };
  const linear = (v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r / 255) + .7152 * linear(g / 255) + .0722 * linear(b / 255);
  let least = [99, ""];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode, e = text.parentElement;
    const isHidden = !e.getClientRects().length || e.closest(".u-axis, script, :disabled, .aside");
    if (!text.textContent.trim() || isHidden) continue;
    let at = e, back = [0, 0, 0, 0];
    while (at && back[3] < 255) { back = rgb(getComputedStyle(at).backgroundColor); at = at.parentElement; }
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(back)].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < least[0]) least = [(a + .05) / (b + .05), text.textContent];
  }
  return least;
})()"""


@pytest.mark.parametrize("width", [400, 1200])
def test_a_thousand_trials_are_painted_and_answer_at_once(browser: Browser, tmp_path: Path, width: int) -> None:
    path = tmp_path / "page.html"
    report = report_of(1000)
    shown(browser, path, report, width=width)
    assert path.stat().st_size <= 2_000_000
    assert number_of(browser, "#trials tbody tr") == 25
    assert fits_its_window(browser)

    painted_then = "requestAnimationFrame(() => setTimeout(() => { window.took = performance.now() - t; }))"

    def once_s(what: str, then: str = painted_then) -> float:
        """Return the seconds until the browser has painted what a script did."""
        browser.value(f"window.took = null; {{ const t = performance.now(); {what}; {then}; }}")
        browser.wait_until("window.took != null")
        return float(browser.value("window.took")) / 1000

    def took_s(what: str) -> float:
        return min(once_s(what) for _ in range(5))

    def goes_s(address: str) -> float:
        # After the page's own listener.
        then = f"addEventListener('hashchange', () => {painted_then}, {{ once: true }})"
        return once_s(f"location.hash = {address}", then)

    painted = []
    for _ in range(3):
        browser.open(path.as_uri(), width, 800, phone=width < 500)
        browser.wait_until("isDrawn && performance.getEntriesByName('first-contentful-paint').length > 0")
        painted.append(browser.value("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000)
    assert min(painted) <= 1.0
    find = "document.querySelector('#find')"
    times: dict[str, float] = {
        "hover": took_s("hover((hovered + 7) % 1000)"),
        "select": took_s("choose((chosen + 7) % 1000)"),
        "filter": took_s(f"{find}.value = 'optimizer=sgd learning_rate<0.' + (1 + chosen % 8); {find}.oninput()"),
        "sort": took_s("document.querySelector('#trials th:nth-child(4) button').click()"),
        "search": took_s("{ const f = document.querySelector('#find-decision'); f.value = 'trial-9'; f.oninput(); }"),
    }
    goes = [(goes_s(f"linkTo(sweep.trials[{k}])"), goes_s("'#'")) for k in (7, 300, 42, 999, 123)]
    times |= {"open": min(each[0] for each in goes), "back": min(each[1] for each in goes)}
    assert max(times.values()) <= 0.1, times


@pytest.mark.usefixtures("home", "no_leftovers")
def test_a_sweep_of_real_jobs_is_drawn_while_it_runs(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: SimpleQueue[PageServer] = SimpleQueue()
    looked = threading.Event()

    class Server(PageServer):
        def __init__(self, port: int, *more: Any) -> None:
            super().__init__(port, *more)
            served.put(self)

    class Points(GivenPoints):
        # The last trial starts once the browser has drawn the others, so the sweep cannot be over before.
        def ask(self, job_id: str) -> dict[str, Any]:
            if job_id.endswith("trial-4"):
                assert looked.wait(TIMEOUT_S)
            return super().ask(job_id)

    monkeypatch.setattr("hscheduler.cli.commands.sweep.PageServer", Server)
    monkeypatch.setattr("hscheduler.live.sweep.points_of", lambda spec: Points(spec.points()))
    spec, ends = tmp_path / "sweep.toml", list[int | BaseException]()
    spec.write_text(LIVE)

    def run() -> None:
        try:
            ends.append(cli.main(["sweep", str(spec), "--web", "0", "--quiet"]))
        except BaseException as error:
            # Raised in this test: otherwise pytest would blame a later one.
            ends.append(error)

    runs = threading.Thread(target=run)
    runs.start()
    try:
        server = served.get(timeout=TIMEOUT_S)
        browser.open(server.link)
        browser.wait_until("sweep?.trials.length === 3 && sweep.trials.some((t) => t.curve.length) && isDrawn")
        assert browser.value("isLive")
        assert number_of(browser, "#trials tbody tr") == 3
        assert is_shown(browser, "#stop-sweep")
        looked.set()
        browser.wait_until("!isLive && sweep.trials.every((t) => ENDED.has(t.state))")
        assert number_of(browser, "#trials tbody tr") == 4
        assert browser.value("sweep.trials.every((t) => t.curve.length > 0)")
        assert "starts with" in text_of(browser, "#decisions")
        assert "simulated" in text_of(browser, "#static")
        assert not is_shown(browser, "#stop-sweep")
        browser.value("location.hash = linkTo(sweep.trials[0])")
        browser.wait_until("!document.querySelector('#trial').hidden")
        assert "ended state=finished" in text_of(browser, "#log")
        assert {each.partition("#")[0].removeprefix(server.address) for each in browser.requested} == {"", "page.json"}
    finally:
        looked.set()
        runs.join(TIMEOUT_S)
    assert ends == [0]


@pytest.mark.usefixtures("home", "no_leftovers")
def test_buttons_end_real_trials(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: SimpleQueue[PageServer] = SimpleQueue()

    class Server(PageServer):
        def __init__(self, port: int, *more: Any) -> None:
            super().__init__(port, *more)
            served.put(self)

    monkeypatch.setattr("hscheduler.cli.commands.sweep.PageServer", Server)
    spec, report, codes = tmp_path / "endless.toml", tmp_path / "report.json", list[int]()
    spec.write_text(LIVE.replace("iterations = 150", "iterations = 1_000_000").replace("trials = 4", "trials = 2"))
    words = ["sweep", str(spec), "--web", "0", "--quiet", "--policy", "static", "--report", str(report)]
    runs = threading.Thread(target=lambda: codes.append(cli.main(words)))
    runs.start()
    try:
        browser.open(served.get(timeout=TIMEOUT_S).link)
        browser.wait_until("sweep && sweep.trials.length === 2 && sweep.trials.every((t) => t.curve.length) && isDrawn")
        assert text_of(browser, "#name") == "endless"
        browser.value("location.hash = linkTo(sweep.trials[0])")
        browser.wait_until("!document.querySelector('#trial').hidden")
        browser.click("#stop-trial")
        browser.click("#sure-yes")
        browser.wait_until("sweep.trials[0].state === 'killed'")
        assert "stopped on the page" in text_of(browser, "#trial")
        assert browser.value("sweep.trials[1].state") != "killed"
        browser.click("#back")
        browser.wait_until("document.querySelector('#trial').hidden && isDrawn")
        browser.click("#stop-sweep")
        browser.click("#sure-yes")
        browser.wait_until("!isLive && sweep.trials[1].state === 'killed'")
    finally:
        runs.join(TIMEOUT_S)
    assert codes == [1], "no trial finished"
    assert [each["why"] for each in json.loads(report.read_text())["trials"]] == ["stopped on the page"] * 2


@pytest.mark.usefixtures("home", "no_leftovers")
def test_one_job_has_a_page_in_the_same_design(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: SimpleQueue[JobPageServer] = SimpleQueue()
    looked = threading.Event()

    class Server(JobPageServer):
        # The browser comes when there is a status, and sees the job run, however fast that is over.
        def take(self, status: Any, history: Any = ()) -> None:
            super().take(status, history)
            served.put(self)
            assert not history or looked.wait(TIMEOUT_S)

    monkeypatch.setattr("eps.cli.commands.run.JobPageServer", Server)
    words = "run --model softmax --data sklearn:digits --test 0.2 --workers 1 --servers 1 --iterations 200"
    codes: list[int] = []
    runs = threading.Thread(
        target=lambda: codes.append(eps_main([*words.split(), "--at", "50:add-workers=1", "--quiet", "--web", "0"]))
    )
    runs.start()
    try:
        server = served.get(timeout=TIMEOUT_S)
        browser.open(server.address)
        browser.wait_until("typeof DATA !== 'undefined' && DATA.live && DATA.curves.loss?.length > 0")
        looked.set()
        browser.wait_until("!DATA.live")
        assert text_of(browser, "#state") == "finished"
        assert "200 of 200" in text_of(browser, "#figures") and "test accuracy" in text_of(browser, "#figures")
        assert browser.value("DATA.sizes.map(([, w, s]) => [w, s])") == [[1, 1], [2, 1]]
        assert drawn(browser, "#curve", "plot") > 500 and drawn(browser, "#sizes", "plot") > 500
        browser.value("{ const s = document.querySelector('#of'); s.value = 'accuracy'; s.onchange(); }")
        assert "add-workers=1" in text_of(browser, "#changes")
        assert fits_its_window(browser) and browser.value(CONTRAST)[0] >= 4.5
        here = {address.removeprefix(server.address) for address in browser.requested}
        assert here == {"", "page.json"}
    finally:
        looked.set()
        runs.join(TIMEOUT_S)
    assert codes == [0]
    browser.errors.clear()
