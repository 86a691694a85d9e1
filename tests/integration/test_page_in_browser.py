"""The page of a sweep in a real browser: what its script draws of an ended and of a running sweep, also on a phone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from eps.errors import DeadlineError
from hscheduler import cli
from hscheduler.live.points import GivenPoints
from hscheduler.page import PageServer, page
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec
from tests.browser import TIMEOUT_S, Browser, find_browser
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
    chromium.forget()
    assert errors == []


def report_of(trials: int) -> dict[str, Any]:
    report = simulate(Spec.of({**TABLES, "sweep": {**TABLES["sweep"], "trials": trials}}), "elastic")
    for trial in report["trials"]:
        # Simulated jobs have no losses before their end.
        end_s = trial["finished_s"] - trial["started_s"]
        trial["curve"] = [[trial["started_s"] + end_s * k / 199, 5 * k, 2.0 / (1 + k)] for k in range(200)]
    return report


def number_of(browser: Browser, selector: str) -> int:
    return browser.value(f"document.querySelectorAll({selector!r}).length")


def fits_its_window(browser: Browser) -> bool:
    return browser.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.parametrize("why", ["</script>", "a stray <!--<script> in a log line", "<!--", "\\u003c & \u2028"])
def test_no_text_breaks_the_page(browser: Browser, tmp_path: Path, why: str) -> None:
    report, path = report_of(3), tmp_path / "page.html"
    report["trials"][0]["why"] = why
    path.write_text(page({"elastic": report}))
    browser.open(path.as_uri())
    assert number_of(browser, "#trials tbody tr") == 3
    assert why in browser.value("document.querySelector('#trials').textContent")


def test_an_ended_sweep_is_drawn_completely(browser: Browser, tmp_path: Path) -> None:
    report, path = report_of(12), tmp_path / "page.html"
    path.write_text(page({"elastic": report, "static": report}))
    browser.open(path.as_uri())
    assert browser.value("document.title") == "H-scheduler: elastic"
    assert number_of(browser, "#trials tbody tr") == 12
    assert number_of(browser, "#decisions tr") == len(report["decisions"])
    assert number_of(browser, "#latency circle") == 12
    assert number_of(browser, "#space circle") == 2 * 12, "each trial under each hyperparameter"
    assert number_of(browser, "#curves polyline") == 12
    assert number_of(browser, "#nodes path") == 4, "an area for each node"
    assert number_of(browser, "#utilisation path") == 1
    assert f"({report['best']['job_id']})" in browser.value("document.querySelector('#figures').textContent")
    assert browser.requested == [path.as_uri()], "nothing is fetched"
    # A reader sorts, searches, and shows the curves by iteration.
    browser.value("document.querySelectorAll('#trials th')[7].click()")
    losses = [trial["loss"] for trial in report["trials"] if trial["loss"] is not None]
    shown = browser.value("[...document.querySelectorAll('#trials tbody tr')].map((row) => row.cells[7].textContent)")
    assert [float(text) for text in shown[: len(losses)]] == pytest.approx(sorted(losses), rel=1e-3)
    browser.value("{ const f = document.querySelector('#filter'); f.value = 'trial-3 starts'; f.oninput(); }")
    assert number_of(browser, "#decisions tr") == 1
    browser.value("{ const s = document.querySelector('#across'); s.value = '1'; s.onchange(); }")
    assert browser.value("[...document.querySelectorAll('#curves text')].map((t) => t.textContent)")[-1] == "800"


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
    ],
)
def test_axes_have_round_numbers(browser: Browser, tmp_path: Path, call: str, values: list[float]) -> None:
    path = tmp_path / "page.html"
    path.write_text(page({"elastic": report_of(3)}))
    browser.open(path.as_uri())
    assert browser.value(call) == values


def test_the_legend_explains_how_a_trial_is_drawn(browser: Browser, tmp_path: Path) -> None:
    report, path = report_of(12), tmp_path / "page.html"
    report["trials"][3] |= {"phase": "killed", "loss": None}
    path.write_text(page({"elastic": report}))
    browser.open(path.as_uri())
    starting = [trial for trial in report["trials"] if trial["first_iteration_s"] > trial["started_s"]]
    assert number_of(browser, '#timeline rect[fill="var(--starting)"]') == len(starting) == 12
    assert "starting" in browser.value("document.querySelector('#key').textContent")
    for key in ("#latency-key", "#space-key"):
        shown = browser.value(f"[...document.querySelectorAll('{key} span')].map((s) => s.textContent)")
        assert shown == ["finished", "killed"]


def test_trials_of_several_spaces_are_drawn_where_they_have_a_value(browser: Browser, tmp_path: Path) -> None:
    report, path = report_of(3), tmp_path / "page.html"
    points: list[dict[str, Any]] = [{"learning_rate": 0.1}, {"l2": 0.5}, {}]
    for trial, point in zip(report["trials"], points, strict=True):
        trial["point"] = point
    path.write_text(page({"elastic": report}))
    browser.open(path.as_uri())
    assert number_of(browser, "#space > div") == 2
    assert number_of(browser, "#space circle") == 2, "each one under its own setting"
    titles = browser.value("[...document.querySelectorAll('#space .note')].map((each) => each.textContent)")
    assert titles == ["learning_rate", "l2"], "numbers, not kinds"


@pytest.mark.parametrize("metric", ("accuracy", "loss"))
def test_the_metric_of_the_ranking_is_named(browser: Browser, tmp_path: Path, metric: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(page({"elastic": {**report_of(3), "metric": metric}}))
    browser.open(path.as_uri())
    figures = browser.value("[...document.querySelectorAll('#figures span')].map((s) => s.textContent)")
    assert figures[0] == f"best {metric}"
    assert browser.value("document.querySelectorAll('#trials th')[7].textContent") == metric
    head = browser.value("document.querySelector('#space-section h2').textContent")
    assert head == f"Hyperparameters against {metric}"
    titles = browser.value("[...document.querySelectorAll('#space title')].map((t) => t.textContent)")
    assert titles and all(f", {metric} " in title for title in titles)
    # Curves show the training loss, also if trials are ranked by another metric.
    assert browser.value("document.querySelector('#curves-note').textContent").startswith("training loss")


def test_a_served_page_is_redrawn(browser: Browser) -> None:
    server = PageServer(0)
    try:
        server.show(lambda: {"elastic": report_of(3)})
        browser.open(server.address)
        assert number_of(browser, "#trials tbody tr") == 3
        server.show(lambda: {"elastic": report_of(8)}, live=False)
        browser.wait_until("document.querySelectorAll('#trials tbody tr').length === 8")
        assert {address.removeprefix(server.address) for address in browser.requested} == {"", "report.json"}
    finally:
        server.close()


def test_a_page_opened_before_the_start_of_a_sweep_shows_the_start(browser: Browser) -> None:
    server = PageServer(0)
    try:
        browser.open(server.address)
        assert browser.value("getComputedStyle(document.querySelector('#waiting')).display") != "none"
        assert browser.value("document.querySelector('#timeline').offsetParent") is None, "no figure"
        server.show(lambda: {"elastic": report_of(3)})
        browser.wait_until("document.querySelectorAll('#trials tbody tr').length === 3")
        assert browser.value("getComputedStyle(document.querySelector('#waiting')).display") == "none"
        assert number_of(browser, "#curves polyline") == 3
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


@pytest.mark.parametrize("width", [360, 1200])
def test_a_thousand_trials_on_a_phone_and_on_a_screen(browser: Browser, tmp_path: Path, width: int) -> None:
    path = tmp_path / "page.html"
    path.write_text(page({"elastic": report_of(1000)}))
    browser.open(path.as_uri(), width, 760, phone=width < 500)
    assert number_of(browser, "#trials tbody tr") == 1000
    assert number_of(browser, "#timeline rect") >= 1000
    assert number_of(browser, "#curves polyline") == 1000
    assert fits_its_window(browser)


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
            if job_id == "trial-4":
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
        address = served.get(timeout=TIMEOUT_S).address
        browser.open(address)
        browser.wait_until("document.querySelectorAll('#curves polyline').length > 0")
        assert browser.value("live")
        assert number_of(browser, "#trials tbody tr") == 3
        looked.set()
        browser.wait_until("!live && reports.elastic.trials.every((t) => t.finished_s != null)")
        assert number_of(browser, "#trials tbody tr") == 4
        assert number_of(browser, "#curves polyline") == 4
        assert number_of(browser, "#latency circle") == 4
        assert "starts with" in browser.value("document.querySelector('#decisions').textContent")
        assert {name.removeprefix(address) for name in browser.requested} == {"", "report.json"}
    finally:
        looked.set()
        runs.join(TIMEOUT_S)
    assert ends == [0]
