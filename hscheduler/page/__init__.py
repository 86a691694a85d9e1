"""The page of a sweep: one file without anything from elsewhere, from a report; and a server for one that runs.

Source: EPS §7 (Figs 14 to 19 are what it shows of one sweep).
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

from eps.errors import ConfigError, EpsError, ResourceError
from eps.metrics_server import CLOSE_S
from eps.metrics_text import CONTENT_TYPE
from eps.storage.atomic import PUBLIC_MODE, write_bytes_atomic

Reports = Mapping[str, Mapping[str, Any]]

#: An open page asks for news every second: this long it may take to see the end.
FAREWELL_S = 3.0
#: A report is served again for so long before another one is made.
KEPT_S = 1.0
#: Points of all loss curves together that a page draws, and the fewest of each.
_CURVE_POINTS, _FEWEST = 40_000, 10


def page(reports: Reports, *, live: bool = False) -> str:
    """Return the page of reports by policy; a live one asks its server for news every second."""
    return _page(_data(reports), live)


def news(reports: Reports, *, live: bool) -> str:
    """Return what a live page asks for, as JSON: the reports, and whether there will be others."""
    return _news(_data(reports), live)


def _news(data: str, live: bool) -> str:
    return f'{{"reports": {data}, "live": {json.dumps(live)}}}'


def write_page(path: Path, reports: Reports) -> None:
    """Write the page of reports by policy, for everybody to read.

    Raises
    ------
    StorageError
        The file cannot be written.
    """
    write_bytes_atomic(path, page(reports).encode(), mode=PUBLIC_MODE)


def _page(data: str, live: bool) -> str:
    template = files("hscheduler.page").joinpath("template.html").read_text(encoding="utf-8")
    # In a script element only what follows this sign is read as anything but text: an end, a comment, another script.
    return template.replace("@LIVE@", json.dumps(live)).replace("@DATA@", data.replace("<", "\\u003c"))


def _data(reports: Reports) -> str:
    drawn = {policy: _drawn(report) for policy, report in reports.items()}
    return json.dumps(drawn, allow_nan=False, default=str)


def _drawn(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a report with no more of its curves than a browser draws at once."""
    most = max(_FEWEST, _CURVE_POINTS // max(1, len(report["trials"])))
    if all(len(trial["curve"]) <= most for trial in report["trials"]):
        return report
    return {**report, "trials": [{**trial, "curve": _thinned(trial["curve"], most)} for trial in report["trials"]]}


def _thinned(curve: Sequence[Any], most: int) -> Sequence[Any]:
    if len(curve) <= most:
        return curve
    return [curve[k * (len(curve) - 1) // (most - 1)] for k in range(most)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave alone what is drawn in the terminal where a page was closed while it loaded."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class PageServer:
    """Serves the page of a sweep on this host's loopback interface.

    Reports are made where somebody looks, on the thread of the request, and at most one each second.

    Parameters
    ----------
    port : int
        0 takes any that is free.
    metrics : callable, optional
        Returns what ``/metrics`` says, in the format of Prometheus; called for every request, on a thread of its own.

    Raises
    ------
    ConfigError
        It is no port.
    ResourceError
        The port is taken.
    """

    def __init__(self, port: int, metrics: Callable[[], str] | None = None) -> None:
        if not 0 <= port < 1 << 16:
            raise ConfigError(f"web is {port}, but must be a port, or 0, which takes one that is free")
        #: Held while a report is made: whoever else wants one meanwhile is served the same.
        self._making = threading.Lock()
        self._metrics = metrics
        #: When news were asked for last, on the monotonic clock.
        self._watched_s = -math.inf
        self._end_seen = threading.Event()
        #: What makes reports, and whether there will be others.
        self._shown: tuple[Callable[[], Reports], bool] = dict, True
        #: What made the latest ones, when that was, on the monotonic clock, and those as JSON; empty if there are none.
        self._made: tuple[Callable[[], Reports], float, str] = dict, -math.inf, ""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                # A page of elsewhere, whose name was made to lead here, must not read what this serves.
                if self.headers.get("Host", "localhost").split(":")[0] in ("127.0.0.1", "localhost"):
                    server._answer(self)
                else:
                    self.send_error(403, "this host is 127.0.0.1 or localhost")

            do_HEAD = do_GET

            def log_message(self, *arguments: object) -> None:
                """Say nothing: the terminal shows the sweep."""

        try:
            self._server = _Server(("127.0.0.1", port), Handler)
        except OSError as error:
            raise ResourceError(f"web is {port}, but that port cannot be had: {error.strerror}") from None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(CLOSE_S,), name="page", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def show(self, look: Callable[[], Reports], *, live: bool = True) -> None:
        """Serve from now on what this returns, nothing where it has not begun; it may raise EpsError."""
        self._shown = look, live

    def end(self, reports: Reports) -> None:
        """Serve how it ended; return when a page that is open somewhere has seen it, or soon."""
        self.show(lambda: reports, live=False)
        if time.monotonic() - self._watched_s < FAREWELL_S:
            self._end_seen.wait(FAREWELL_S)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _latest(self) -> tuple[str, bool]:
        """Return the reports as JSON, empty where there are none yet, and whether there will be others."""
        with self._making:
            look, live = self._shown
            made_by, made_s, data = self._made
            if made_by is not look or time.monotonic() >= made_s + KEPT_S:
                reports = look()
                data = _data(reports) if reports else ""
                self._made = look, time.monotonic(), data
            return data, live

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        # Who reads metrics has not seen how a sweep ended.
        live = True
        if request.path == "/metrics" and self._metrics is not None:
            kind, body = CONTENT_TYPE, self._metrics().encode()
        elif request.path in ("/", "/report.json"):
            try:
                data, live = self._latest()
            except EpsError as error:
                request.send_error(503, "there is no report", str(error))
                return
            if not data:
                request.send_error(503, "the sweep has not begun")
                return
            if request.path == "/":
                kind, body = "text/html; charset=utf-8", _page(data, live).encode()
            else:
                if request.command != "HEAD":
                    self._watched_s = time.monotonic()
                kind, body = "application/json", _news(data, live).encode()
        else:
            request.send_error(404, "nothing here")
            return
        request.send_response(200)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Content-Security-Policy", "default-src 'self' 'unsafe-inline'; img-src data:")
        request.end_headers()
        if request.command == "HEAD":
            return
        request.wfile.write(body)
        if not live:
            self._end_seen.set()
