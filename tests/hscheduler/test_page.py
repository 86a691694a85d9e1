"""The page of a sweep: whole in itself, safe against what names and reasons hold, served while a sweep runs."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request

import pytest

from eps.errors import ResourceError
from hscheduler import cli
from hscheduler.page import PageServer, page
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec


@pytest.fixture(scope="module")
def report():
    return simulate(Spec.of({"sweep": {"trials": 5, "seed": 2}, "job": {"stretch_s": 0.01}}), "elastic")


def data_of(text: str) -> dict:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_it_holds_the_reports_and_needs_nothing_else(report):
    text = page({"elastic": report})
    assert data_of(text)["elastic"] == json.loads(json.dumps(report))
    # Nothing is fetched from anywhere: but for the namespace of SVG no address is in it.
    assert set(re.findall(r"https?://[^\"' )]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "live = false" in text
    assert "@DATA@" not in text and "@LIVE@" not in text


def test_what_names_hold_is_no_markup(report):
    trials = [{**report["trials"][0], "why": "</script><script>alert(1)</script>"}]
    text = page({"elastic": {**report, "trials": trials}})
    assert text.count("</script>") == 2
    assert data_of(text)["elastic"]["trials"][0]["why"] == "</script><script>alert(1)</script>"


def fetch(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def test_it_is_served_while_a_sweep_runs(report):
    server = PageServer(0)
    try:
        assert fetch(server.address)[0] == 503, "nothing to show yet"
        server.show({"elastic": report})
        status, text = fetch(server.address)
        assert status == 200 and "live = true" in text
        assert json.loads(fetch(server.address + "report.json")[1]) == {
            "reports": {"elastic": json.loads(json.dumps(report))},
            "live": True,
        }
        assert fetch(server.address + "../../etc/passwd")[0] == 404
        server.show({"elastic": report}, live=False)
        assert json.loads(fetch(server.address + "report.json")[1])["live"] is False
    finally:
        server.close()


def test_a_port_that_is_taken_is_told():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=f"web is {port}, but that port cannot be had"):
            PageServer(port)


def test_the_command_draws_the_page(tmp_path):
    spec, target = tmp_path / "sweep.toml", tmp_path / "page.html"
    spec.write_text("[sweep]\ntrials = 3\n[job]\nstretch_s = 0.01\n")
    assert cli.main(["simulate", str(spec), "--policy", "elastic,kill", "--page", str(target)]) == 0
    assert set(data_of(target.read_text())) == {"elastic", "kill"}
    assert target.stat().st_mode & 0o777 == 0o644
