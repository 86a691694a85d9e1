"""The page of a sweep: self-contained, safe against names and reasons with markup, served during a sweep."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import urllib.error
import urllib.request

import pytest

from eps.errors import ConfigError, DeadlineError, ResourceError
from eps.system.web import as_json, asset
from hscheduler import cli
from hscheduler.page import STOPPED, PageServer, Stops, page
from hscheduler.page.content import content
from hscheduler.runners import Here
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec


@pytest.fixture(scope="module")
def report():
    return simulate(Spec.of({"sweep": {"trials": 5, "seed": 2}, "job": {"stretch_s": 0.01}}), "elastic")


def data_of(text: str) -> dict:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_it_holds_its_data_and_needs_nothing_else(report):
    text = page({"elastic": report})
    shown = data_of(text)
    assert shown == {
        "live": False,
        "reports": [json.loads(as_json(content(report)))],
        "stops": None,
    }
    # The page loads nothing: its only address is in the comment that names uPlot.
    assert set(re.findall(r"https?://[^\"' )]+", text)) == {"https://github.com/leeoniya/uPlot"}
    assert "default-src 'none'" in text and "connect-src" not in text


def test_markup_in_names_is_escaped(report):
    bad = "</script><script>alert(1)</script>"
    trials = [{**report["trials"][0], "why": bad, "job_id": bad, "name": bad, "point": {bad: bad}}]
    text = page({bad: {**report, "trials": trials, "policy": bad, "metric": bad, "name": bad}})
    assert text.count("</script>") == 2
    shown = data_of(text)["reports"][0]
    assert shown["trials"][0]["why"] == shown["name"] == bad


def test_the_charts_library_comes_with_its_licence():
    licence = asset("eps.system.web", "uplot.LICENSE")
    assert "MIT License" in licence and licence in page({}), "in every copy"


def test_a_sweep_that_has_not_started_cannot_be_stopped():
    here = Here(Spec.of({"sweep": {"trials": 1}, "job": {"data": "sklearn:digits", "model": "softmax"}}), "elastic")
    for stop in (lambda: here.stop_trial("trial-1", STOPPED), lambda: here.stop(STOPPED)):
        with pytest.raises(ConfigError, match="the sweep has not started"):
            stop()


def fetch(address: str | urllib.request.Request) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def test_it_is_served_while_a_sweep_runs(report):
    server = PageServer(0)
    try:
        status, text = fetch(server.address)
        assert status == 200 and data_of(text) == {"live": True, "reports": [], "stops": None}, "it polls for updates"
        assert "connect-src 'self'" in text
        assert json.loads(fetch(server.address + "page.json")[1]) == {"reports": [], "live": True, "stops": None}
        server.show(lambda: {"elastic": report})
        status, text = fetch(server.address)
        assert status == 200 and data_of(text)["live"]
        (shown,) = json.loads(fetch(server.address + "page.json")[1])["reports"]
        assert shown["state"] == "running" and len(shown["trials"]) == len(report["trials"])
        assert fetch(server.address + "../../etc/passwd")[0] == 404
        server.show(lambda: {"elastic": report}, live=False)
        assert json.loads(fetch(server.address + "page.json")[1])["live"] is False
    finally:
        server.close()


def test_reports_are_made_on_request_and_once_for_all_viewers(report, monkeypatch):
    made, both = [], threading.Barrier(3)

    def look():
        made.append(threading.current_thread())
        return {"elastic": report}

    server = PageServer(0, lambda: "metrics 1\n")
    try:
        server.show(look)
        assert fetch(server.address + "metrics")[0] == 200
        assert made == [], "no report was requested"

        def watch(where):
            both.wait(10)
            assert fetch(server.address + where)[0] == 200

        viewers = [threading.Thread(target=watch, args=(where,)) for where in ("", "page.json", "page.json")]
        monkeypatch.setattr("hscheduler.page.KEPT_S", 600.0)
        for viewer in viewers:
            viewer.start()
        for viewer in viewers:
            viewer.join(10)
        assert len(made) == 1 and made[0] is not threading.current_thread()
        monkeypatch.setattr("hscheduler.page.KEPT_S", 0.0)
        assert fetch(server.address + "page.json")[0] == 200
        assert len(made) == 2, "kept values are dropped soon"
    finally:
        server.close()


def test_a_failed_report_ends_nothing(report):
    answers = [DeadlineError("the scheduler is busy"), {}, {"elastic": report}]

    def look():
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    server = PageServer(0)
    try:
        for status in (503, 200, 200):
            server.show(lambda: look())
            assert fetch(server.address + "page.json")[0] == status
    finally:
        server.close()


def test_closing_a_page_while_it_loads_prints_nothing(report, capsys):
    # Connections left open by another test have threads of their own.
    of_others = set(threading.enumerate())
    server = PageServer(0)
    try:
        large = {**report, "trials": [{**report["trials"][0], "why": "y" * 30_000_000}]}
        server.show(lambda: {"elastic": large})
        with socket.create_connection(("127.0.0.1", int(server.address.rstrip("/").rpartition(":")[2]))) as browser:
            browser.sendall(b"GET /page.json HTTP/1.0\r\n\r\n")
            assert browser.recv(100)
            # The end is reported: no client reads on.
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for thread in set(threading.enumerate()) - of_others:
            if "process_request" in thread.name:
                thread.join(60)
                assert not thread.is_alive()
        assert capsys.readouterr().err == ""
    finally:
        server.close()


def test_a_port_in_use_is_reported():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=f"web is {port}, .*used"):
            PageServer(port)


@pytest.mark.parametrize("port", [-5, 65536, 99999999])
def test_an_invalid_port_is_refused(port):
    with pytest.raises(ConfigError, match=f"web is {port}, .*port"):
        PageServer(port)


def test_the_command_draws_the_page(tmp_path):
    spec, target = tmp_path / "sweep.toml", tmp_path / "page.html"
    spec.write_text("[sweep]\ntrials = 3\n[job]\nstretch_s = 0.01\n")
    assert cli.main(["simulate", str(spec), "--policy", "elastic,kill", "--page", str(target)]) == 0
    assert [each["policy"] for each in data_of(target.read_text())["reports"]] == ["elastic", "kill"]
    assert target.stat().st_mode & 0o777 == 0o644


def test_a_head_request_gets_no_body_and_does_not_count_as_a_view_of_the_end(report):
    server = PageServer(0, lambda: "metrics 1\n")
    try:
        server.show(lambda: {"elastic": report}, live=False)
        for where in ("", "page.json", "metrics"):
            with urllib.request.urlopen(
                urllib.request.Request(server.address + where, method="HEAD"), timeout=10
            ) as answer:
                assert answer.status == 200 and int(answer.headers["Content-Length"]) > 0 and answer.read() == b""
        assert fetch(urllib.request.Request(server.address + "nothing", method="HEAD"))[0] == 404
        assert not server._live._farewell._seen.is_set()
    finally:
        server.close()


def post(server: PageServer, query: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"{server.address}stop?{query}", method="POST", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_only_the_reader_with_the_key_stops_trials(report):
    stopped = []

    def stop(trial):
        if trial == "trial-9":
            raise ConfigError("trial is 'trial-9', but there is no such trial")
        stopped.append(trial)

    server = PageServer(0)
    try:
        key = {"X-Key": server.key}
        assert post(server, "trial=trial-1", **key)[0] == 409, "nothing is shown that could be stopped"
        server.show(lambda: {"elastic": report}, stops=Stops(stop, stopped.append, lambda: ["a b", "c"]))
        assert server.key not in fetch(server.address)[1], "other users of this host may read the page"
        refused = [
            {},
            {"X-Key": "wrong"},
            {"X-Key": "\u00e9".encode().decode("latin-1")},
            {**key, "Sec-Fetch-Site": "cross-site"},
            {**key, "Sec-Fetch-Site": "same-site"},
            {**key, "Host": "evil.example"},
        ]
        for headers in refused:
            assert post(server, "trial=trial-1", **headers)[0] == 403, headers
        assert stopped == []
        assert fetch(f"{server.address}stop?trial=trial-1")[0] == 404, "a link stops nothing"
        assert post(server, "trial=trial-1", **key) == (200, "trial-1 is stopping\n")
        assert post(server, "trial=trial-9", **key) == (409, "trial is 'trial-9', but there is no such trial\n")
        assert post(server, "sweep=d", **key) == (409, "sweep is 'd', but must be one that runs: a b, c\n")
        assert post(server, "", **key)[0] == 409
        assert stopped == ["trial-1"]
        assert post(server, "sweep=a+b", **key) == (200, "sweep a b is stopping\n")
        assert stopped == ["trial-1", "a b"]
        assert json.loads(fetch(server.address + "page.json")[1])["stops"] == {"sweeps": ["a b", "c"]}
        server.show(lambda: {"elastic": report}, live=False)
        assert post(server, "trial=trial-2", **key)[0] == 409, "it has ended"
    finally:
        server.close()
