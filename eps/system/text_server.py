"""The HTTP server for all texts that EPS and H-scheduler show: metrics and pages.

Any client that reaches a port may hold its connections, so connections are bounded in number, time and size.  The
process keeps its descriptors and threads for its own work.

A page of another site cannot read these texts, even if its host name resolves to this host (DNS rebinding): the browser
sends that name as ``Host``, and the server refuses it.

Actions (POST) need the server's key in the header ``X-Key``.  A page of another site cannot send that header, and does
not know the key; nor do other users of this host, who may read the texts.
"""

from __future__ import annotations

import io
import logging
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from eps.errors import ConfigError, EpsError, ResourceError

logger = logging.getLogger(__name__)

#: Concurrent connections of one server; more are closed at once.
MOST_CONNECTIONS = 64
#: Limits for the head of a request; a body is never read.
HEAD_S, HEAD_BYTES = 10.0, 16 << 10
#: A client that does not accept its answer within this time is disconnected.
SEND_S = 30.0
#: Maximum duration of a connection.
CONNECTION_S = 60.0
#: Seconds after which a browser retries a text that failed.
RETRY_S = 2
#: Polling interval for the request to close.
CLOSE_S = 0.05

#: For texts that are no pages, too: a browser asks for nothing else, such as an icon.
_POLICY = "default-src 'self' 'unsafe-inline'; img-src data:"
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))


@dataclass(frozen=True)
class Text:
    """The answer to a request."""

    kind: str
    content: str
    #: Called after a GET was answered with this text.
    sent: Callable[[], None] | None = None


#: Path -> function that renders the text, called on the thread of each request.
Pages = Mapping[str, Callable[[], Text]]
#: Does what a request asks for, by the parameters of its query; returns what was done.
Action = Callable[[Mapping[str, str]], Text]


class BoundedServer(ThreadingMixIn, TCPServer):
    """A server with a thread for each connection, and at most :data:`MOST_CONNECTIONS` of them."""

    allow_reuse_address = True
    daemon_threads = True
    # Excess connections are closed at once instead of retrying their SYN.
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(*arguments, **more)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection on its own thread, or close it if there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            # No thread could be started.
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection; shut it down after :data:`CONNECTION_S`."""
        limit = threading.Timer(CONNECTION_S, _end, (request,))
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log unexpected errors; disconnects and timeouts of clients are not logged."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            logger.exception("a request of %s was not answered", client_address)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class TextServer:
    """Serve a few texts, each rendered anew for every request.

    Parameters
    ----------
    host : str
        Address to listen on; the ``Host`` of requests must name it, or the loopback interface.
    port : int
        0 takes any free port.
    pages : mapping
        If rendering raises EpsError, the answer is 503 with the reason, and the browser retries.
    actions : mapping, optional
        Path -> what a POST with the key does.  If it raises EpsError, the answer is 409 with the reason.

    Attributes
    ----------
    key : str
        Opens the actions; a secret.

    Raises
    ------
    OSError, OverflowError
        The address is invalid or in use.
    """

    #: Answer to a request for an unknown path.
    nothing_there = "nothing here"

    def __init__(self, host: str, port: int, pages: Pages, actions: Mapping[str, Action] | None = None) -> None:
        self.key = secrets.token_urlsafe(32)
        self._server = BoundedServer((host, port), _handler(self, pages, actions or {}))
        address, self.port = self._server.server_address[:2]
        self._names = _LOOPBACK | {host.lower(), str(address)}
        self._thread = threading.Thread(target=self._server.serve_forever, args=(CLOSE_S,), name="texts", daemon=True)
        self._thread.start()

    def refusal(self, headers: Message) -> str:
        """Return why a request with these headers is refused; empty if it is accepted."""
        # A client that sends no Host is not a browser.
        host = headers.get("Host", "localhost")
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            name = None
        return "" if name in self._names else f"this host is not {host!r}"

    def may_act(self, headers: Message) -> bool:
        """Return whether a request with these headers has the key, and is not of another site's page."""
        given = headers.get("X-Key", "").encode("utf-8", "replace")
        return headers.get("Sec-Fetch-Site", "same-origin") == "same-origin" and secrets.compare_digest(
            given, self.key.encode()
        )

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(server: TextServer, pages: Pages, actions: Mapping[str, Action]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def setup(self) -> None:
            super().setup()
            self.rfile.close()
            self.rfile = io.BytesIO(self._head())
            self.connection.settimeout(SEND_S)

        def _head(self) -> bytes:
            """Return the head of the request; empty if it is too large or too late."""
            head, until_s = b"", time.monotonic() + HEAD_S
            while b"\r\n\r\n" not in head:
                left_s = until_s - time.monotonic()
                if left_s <= 0.0 or len(head) > HEAD_BYTES:
                    return b""
                self.connection.settimeout(left_s)
                try:
                    part = self.connection.recv(HEAD_BYTES)
                except TimeoutError:
                    return b""
                if not part:
                    break
                head += part
            return head

        def do_GET(self) -> None:
            make = pages.get(self.path.partition("?")[0])
            if make is None:
                self._say(404, server.nothing_there)
            elif why := server.refusal(self.headers):
                self._say(403, why)
            else:
                try:
                    text = make()
                except EpsError as error:
                    self._say(503, str(error), Refresh=str(RETRY_S))
                    return
                self._send(200, text.kind, text.content)
                if self.command == "GET" and text.sent is not None:
                    text.sent()

        do_HEAD = do_GET

        def _act(self) -> None:
            path, _, query = self.path.partition("?")
            act = actions.get(path)
            if act is None:
                self._say(404, server.nothing_there)
            elif why := server.refusal(self.headers):
                self._say(403, why)
            elif not server.may_act(self.headers):
                self._say(403, "this needs the key of the address that was printed at the start")
            else:
                try:
                    text = act(dict(parse_qsl(query, keep_blank_values=True)))
                except EpsError as error:
                    self._say(409, str(error))
                    return
                self._send(200, text.kind, text.content)

        def _say(self, status: int, reason: str, **headers: str) -> None:
            self._send(status, "text/plain; charset=utf-8", f"{reason}\n", **headers)

        def _send(self, status: int, kind: str, content: str, **headers: str) -> None:
            body = content.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", _POLICY)
            self.send_header("X-Content-Type-Options", "nosniff")
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Log nothing: log and terminal belong to the job."""

    if actions:
        # Without any, the answer is 501, as to all other methods.
        Handler.do_POST = Handler._act  # type: ignore[attr-defined]
    return Handler


class LocalServer(TextServer):
    """Serve pages on this host's loopback interface.

    Parameters
    ----------
    port : int
        0 takes any free port.
    pages, actions : mapping
        As of :class:`TextServer`.
    setting : str
        The setting that has the port.

    Raises
    ------
    ConfigError
        The number is not a port.
    ResourceError
        The port is in use.
    """

    def __init__(
        self, port: int, pages: Pages, actions: Mapping[str, Action] | None = None, setting: str = "web"
    ) -> None:
        if not 0 <= port < 1 << 16:
            raise ConfigError(f"{setting} is {port}, but must be a port, or 0 for a free one")
        try:
            super().__init__("127.0.0.1", port, pages, actions)
        except OSError as error:
            told = f"{setting} is {port}, but that port cannot be used: {error.strerror}; try 0"
            raise ResourceError(told) from None

    @property
    def address(self) -> str:
        """URL of the page."""
        return f"http://127.0.0.1:{self.port}/"
