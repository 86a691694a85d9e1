"""The page of a sweep: one file without anything from elsewhere, from a report; and a server for one that runs.

Source: EPS §7 (Figs 14 to 19 are what it shows of one sweep).
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from eps.errors import ResourceError
from eps.metrics_text import CONTENT_TYPE

Reports = Mapping[str, Mapping[str, Any]]

#: An open page asks for news every second: this long it may take to see the end.
FAREWELL_S = 3.0
#: Points of all loss curves together that a page draws, and the fewest of each.
_CURVE_POINTS, _FEWEST = 40_000, 10


def page(reports: Reports, *, live: bool = False) -> str:
    """Return the page of reports by policy; a live one asks its server for news every second."""
    template = files("hscheduler.page").joinpath("template.html").read_text(encoding="utf-8")
    # In a script element only this would be read as anything but text.
    data = _data(reports).replace("</", "<\\/")
    return template.replace("@LIVE@", "true" if live else "false").replace("@DATA@", data)


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


class PageServer:
    """Serves the page of a sweep on this host's loopback interface.

    Parameters
    ----------
    port : int
        0 takes any that is free.
    metrics : callable, optional
        Returns what ``/metrics`` says, in the format of Prometheus; called for every request, on a thread of its own.

    Raises
    ------
    ResourceError
        The port is taken.
    """

    def __init__(self, port: int, metrics: Callable[[], str] | None = None) -> None:
        self._lock = threading.Lock()
        self._metrics = metrics
        #: When news were asked for last, on the monotonic clock.
        self._watched_s = -math.inf
        self._end_seen = threading.Event()
        self._reports: Reports = {}
        self._live = True
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server._answer(self)

            def log_message(self, *arguments: object) -> None:
                """Say nothing: the terminal shows the sweep."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise ResourceError(f"web is {port}, but that port cannot be had: {error.strerror}") from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="page", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def show(self, reports: Reports, *, live: bool = True) -> None:
        """Serve these reports from now on; they are not changed any more."""
        with self._lock:
            self._reports, self._live = reports, live

    def end(self, reports: Reports) -> None:
        """Serve how it ended; return when a page that is open somewhere has seen it, or soon."""
        self.show(reports, live=False)
        if time.monotonic() - self._watched_s < FAREWELL_S:
            self._end_seen.wait(FAREWELL_S)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        with self._lock:
            reports, live = self._reports, self._live
        if request.path == "/" and reports:
            kind, body = "text/html; charset=utf-8", page(reports, live=live).encode()
        elif request.path == "/report.json":
            self._watched_s = time.monotonic()
            kind, body = "application/json", f'{{"reports": {_data(reports)}, "live": {json.dumps(live)}}}'.encode()
        elif request.path == "/metrics" and self._metrics is not None:
            kind, body = CONTENT_TYPE, self._metrics().encode()
        else:
            request.send_error(404 if reports else 503, "nothing here" if reports else "the sweep has not begun")
            return
        request.send_response(200)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Content-Security-Policy", "default-src 'self' 'unsafe-inline'; img-src data:")
        request.end_headers()
        request.wfile.write(body)
        if not live:
            self._end_seen.set()
