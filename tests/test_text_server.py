"""The server of metrics and pages: who holds its connections holds nothing else, and only its own names are served."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from eps.cluster.yarn.proxied import HTTPS_POLICY, ProxiedServer, viewer_of
from eps.errors import DeadlineError
from eps.hadoop.conf import HadoopConf
from eps.job.yarn.am import JobPage
from eps.system import text_server
from eps.system.text_server import MOST_CONNECTIONS, LocalServer, Text, TextServer
from eps.system.waits import wait_for
from hscheduler.page import PageServer

TIMEOUT_S = 30.0
REQUEST = b"GET / HTTP/1.0\r\n\r\n"


def busy() -> Text:
    raise DeadlineError("the scheduler is busy: ü")


@pytest.fixture
def server() -> Iterator[TextServer]:
    found = TextServer("127.0.0.1", 0, {"/": lambda: Text("text/plain", "well"), "/busy": busy})
    yield found
    found.close()


def ask(port: int, path: str = "/", method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    return connection.getresponse()


def status_of(port: int, path: str = "/", **headers: str) -> int:
    with ask(port, path, **headers) as answer:
        return answer.status


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), TIMEOUT_S)


def ended(connection: socket.socket) -> bool:
    """Wait until the other side closes; return whether nothing came before."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


METRICS = {"/metrics": lambda: Text("text/plain", "metric 1\n")}
SERVERS: dict[str, Callable[[], Any]] = {
    "metrics": lambda: LocalServer(0, METRICS),
    "page": lambda: PageServer(0, lambda: "metric 1\n"),
}


@pytest.mark.parametrize("kind", SERVERS)
def test_connections_beyond_the_limit_are_closed_at_once_and_those_before_are_answered(kind: str) -> None:
    server = SERVERS[kind]()
    try:
        with ExitStack() as stack:
            idle = [stack.enter_context(connect(server.port)) for _ in range(MOST_CONNECTIONS)]
            # Accepted in this order.
            for _ in range(3 * MOST_CONNECTIONS):
                with connect(server.port) as refused:
                    assert ended(refused)
            idle[0].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert idle[0].recv(15) == b"HTTP/1.0 200 OK"
        # They have let go.
        wait_for(lambda: can_ask(server.port), TIMEOUT_S, "room")
    finally:
        server.close()


def can_ask(port: int) -> bool:
    try:
        return status_of(port, "/metrics") == 200
    except (ConnectionError, http.client.HTTPException):
        return False


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.0\r\nA: "])
def test_who_does_not_say_what_it_wants_is_disconnected(
    server: TextServer, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(text_server, "HEAD_S", 0.2)
    with connect(server.port) as silent:
        silent.sendall(sent)
        assert ended(silent)


def test_a_request_that_comes_byte_by_byte_has_no_more_time_than_another(
    server: TextServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_server, "HEAD_S", 0.5)
    with connect(server.port) as slow:
        slow.settimeout(0.05)
        for _ in range(1000):
            try:
                slow.sendall(b"x")
                assert slow.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                pass
            break
        else:
            pytest.fail("it is read for 50 s")


def test_a_head_without_end_is_not_kept(server: TextServer) -> None:
    with connect(server.port) as large:
        with pytest.raises(ConnectionError):
            # More than what the system holds on both sides.
            for _ in range(1 << 12):
                large.sendall(b"a: " + b"x" * (1 << 14) + b"\r\n")


def test_who_does_not_take_its_answer_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_server, "SEND_S", 0.2)
    # More than what the system holds on both sides.
    server = TextServer("127.0.0.1", 0, {"/": lambda: Text("text/plain", "y" * (64 << 20))})
    try:
        with connect(server.port) as deaf:
            deaf.sendall(REQUEST)
            wait_for(lambda: server._server._free._value == MOST_CONNECTIONS, TIMEOUT_S, "its thread to end")
    finally:
        server.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("evil.example:80", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1", 403),
        ("", 403),
        ("LOCALHOST:9100", 200),
        ("[::1]:9100", 200),
    ],
)
def test_metrics_are_for_those_who_mean_this_host(host: str, status: int) -> None:
    metrics = LocalServer(0, METRICS)
    try:
        assert status_of(metrics.port, "/metrics", Host=host) == status
        # Prometheus and others that name no host by HTTP/1.0 are no browsers.
        with connect(metrics.port) as old:
            old.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert old.recv(15) == b"HTTP/1.0 200 OK"
    finally:
        metrics.close()


def test_it_is_served_under_the_address_that_it_listens_at() -> None:
    server = TextServer("127.0.0.2", 0, {"/": lambda: Text("text/plain", "well")})
    try:
        for host, status in (("127.0.0.2:1", 200), ("127.0.0.3:1", 403), ("elsewhere", 403)):
            with socket.create_connection(("127.0.0.2", server.port), TIMEOUT_S) as connection:
                connection.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                assert int(connection.recv(12).split()[1]) == status, host
    finally:
        server.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_it_is_only_read(server: TextServer, method: str) -> None:
    with ask(server.port, method=method) as answer:
        assert answer.status == 501


def test_a_text_that_cannot_be_made_is_asked_for_again(server: TextServer) -> None:
    with ask(server.port, "/busy") as answer:
        assert answer.status == 503 and int(answer.headers["Refresh"]) > 0
        assert answer.read().decode() == "the scheduler is busy: ü\n"


STATUS: dict[str, Any] = {"name": "mine"}


def proxied(viewer: str | None) -> ProxiedServer:
    pages = {"/status.json": lambda: Text("application/json", json.dumps(STATUS))}
    return ProxiedServer("127.0.0.1", pages, viewer, lambda user: user == "bob")


def path_of(server: ProxiedServer) -> str:
    return "/" + server.url.split("/", 3)[3]


def test_only_who_has_the_tracking_url_reaches_a_page_on_yarn() -> None:
    server, other = proxied(None), proxied(None)
    try:
        for path in ("/", "/status.json", "//status.json", path_of(other) + "status.json", path_of(server)[:-2]):
            assert status_of(server.port, path) == 404
        # As the proxy asks: the tracking URL, and behind it what its own was asked for.
        with ask(server.port, path_of(server) + "status.json", Host=f"127.0.0.1:{server.port}") as answer:
            assert (answer.status, json.loads(answer.read())) == (200, STATUS)
    finally:
        server.close()
        other.close()


def test_a_jobs_page_is_behind_the_secret_with_all_that_belongs_to_it() -> None:
    page = JobPage("127.0.0.1", lambda: pytest.fail("it was asked for"))
    try:
        assert {status_of(page.port, path) for path in ("/", "/status.json", "/metrics")} == {404}
    finally:
        page.close()


@pytest.mark.parametrize(
    ("viewer", "cookie", "status"),
    [
        ("ada", "proxy-user=ada", 200),
        ("ada", "a=b; proxy-user=ada", 200),
        ("ada@B C", "proxy-user=ada%40B+C", 200),
        ("ada", "proxy-user=bob", 200),
        ("ada", "proxy-user=eve", 403),
        ("ada", "proxy-user=", 403),
        ("ada", "proxy-user", 403),
        ("ada", "user=ada", 403),
        ("ada", "", 403),
        ("", "proxy-user=", 403),
        ("", "proxy-user=ada", 403),
        ("", "proxy-user=bob", 403),
        (None, "proxy-user=dr.who", 200),
        (None, "", 200),
    ],
)
def test_where_yarn_knows_who_asks_a_page_is_for_owner_and_viewers(
    viewer: str | None, cookie: str, status: int
) -> None:
    server = proxied(viewer)
    try:
        assert status_of(server.port, path_of(server) + "status.json", Cookie=cookie) == status
    finally:
        server.close()


@pytest.mark.parametrize(
    ("values", "viewer"),
    [
        ({}, None),
        ({"hadoop.security.authentication": "simple"}, None),
        ({"hadoop.security.authentication": "kerberos"}, "ada"),
        ({"yarn.acl.enable": "true"}, "ada"),
        ({HTTPS_POLICY: "LENIENT"}, None),
        # There the proxy tells whoever asks where the page is, and shows it to nobody.
        ({HTTPS_POLICY: "STRICT", "hadoop.security.authentication": "kerberos"}, ""),
    ],
)
def test_who_is_shown_a_page_is_the_clusters_to_say(values: dict[str, str], viewer: str | None) -> None:
    assert viewer_of(HadoopConf(values), {"USER": "ada"}) == viewer
    if viewer == "ada":
        assert viewer_of(HadoopConf(values), {}) == "", "who owns it is not known"
