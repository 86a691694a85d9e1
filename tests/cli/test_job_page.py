"""The page of one job: what it shows of a status, and that no text of it is read as markup."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from eps.cli import main
from eps.errors import ConfigError
from eps.job.page import MOST_POINTS, JobPageServer, content, page_of
from eps.system.web import drawn
from tests.cli.conftest import status_of
from tests.test_text_server import status_of as answer_of


def status(**more: Any) -> dict[str, Any]:
    return status_of(**{"workers": 3, "servers": 1, "state": "running", "reason": "", **more})


def data_of(text: str) -> Any:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_sizes_are_those_that_the_master_knows() -> None:
    known = [[0, 4, 1], [50, 3, 1]]
    assert content(status(sizes=known))["sizes"] == known
    assert content({name: value for name, value in status().items() if name != "sizes"})["sizes"] == []


def test_a_history_is_drawn_by_metric_and_thinned() -> None:
    history = [{"clock": k, "seconds": k / 10, "loss": 1 / (k + 1)} for k in range(5 * MOST_POINTS + 1)]
    history[-1]["accuracy"] = 0.75
    shown = content(status(iterations=10**6), history)
    assert list(shown["curves"]) == ["loss", "accuracy"]
    loss = shown["curves"]["loss"]
    assert len(loss) <= MOST_POINTS and loss[-1] == [MOST_POINTS / 2, 5 * MOST_POINTS + 1, 1 / (5 * MOST_POINTS + 1)]
    assert shown["curves"]["accuracy"] == [[MOST_POINTS / 2, 5 * MOST_POINTS + 1, 0.75]]
    assert content(status())["curves"] == {}


@pytest.mark.parametrize("iterations", [1_000, 10_000, 250_000])
def test_a_long_history_keeps_the_metrics_of_its_evaluations(iterations: int) -> None:
    every = iterations // 100
    history: list[dict[str, Any]] = [{"clock": k, "seconds": k / 10, "loss": 1.0} for k in range(iterations + 1)]
    evaluated = [0, *range(every - 1, iterations, every), iterations]
    for clock in evaluated:
        history[clock]["accuracy"] = 0.5
    shown = content(status(iterations=iterations), history)["curves"]
    assert [at - 1 for _, at, _ in shown["accuracy"]] == [*evaluated[:-1], iterations - 1]
    assert len(shown["loss"]) <= MOST_POINTS
    assert max(at for _, at, _ in shown["loss"]) == iterations, "the final parameters are no iteration"


def test_at_most_half_of_what_is_drawn_are_measured_entries() -> None:
    assert drawn(3, [1], 4) == [0, 1, 2]
    assert drawn(0, [0], 4) == []
    assert drawn(100, [50], 4) == [31, 50, 65, 99]
    assert drawn(100, range(100), 10) == [19, 39, 59, 79, 99]


@pytest.mark.parametrize("bad", ["</script><script>alert(1)</script>", "<!--", "<img src=x onerror=alert(1)>"])
def test_no_text_is_read_as_markup(bad: str) -> None:
    text = page_of(status(name=bad, reason=bad, state="failed"), links=[bad])
    assert text.count("</script>") == 2 and bad not in text.partition('<script id="data"')[0]
    shown = data_of(text)
    assert (shown["name"], shown["reason"], shown["links"]) == (bad, bad, [bad])


def test_only_the_page_of_a_running_job_asks_for_news() -> None:
    assert data_of(page_of(status()))["live"] and "connect-src 'self'" in page_of(status())
    ended = page_of(status(state="finished"))
    assert not data_of(ended)["live"] and "connect-src" not in ended


def test_it_is_served_from_the_first_status_on() -> None:
    server = JobPageServer(0)
    try:
        assert answer_of(server.port, "/") == 503, "the browser asks again"
        server.take(status(), [{"clock": 0, "seconds": 0.1, "loss": 1.0}])
        server.take(status(), [{"clock": 1, "seconds": 0.2, "loss": 0.5}])
        assert answer_of(server.port, "/") == answer_of(server.port, "/page.json") == 200
        assert len(json.loads(server._news().content)["curves"]["loss"]) == 2
        assert answer_of(server.port, "/stop") == 404
    finally:
        server.close()


@pytest.mark.parametrize("port", [-1, 1 << 16])
def test_an_invalid_port_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match=f"web is {port}, .*port"):
        JobPageServer(port)


@pytest.mark.parametrize("flags", [["--detach"], ["--folds", "2"]])
def test_a_page_needs_one_job_that_this_process_follows(
    home: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    words = ["run", "--model", "softmax", "--data", "sklearn:digits", "--web", "0", *flags]
    assert main(words) == 2
    assert f"web is 0, but a page is not possible with {flags[0] if flags[0] == '--detach' else 'folds'}" in (
        capsys.readouterr().err
    )
