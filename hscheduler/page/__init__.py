"""The page of a sweep: one file without anything from elsewhere, from a report; and a server for one that runs.

Source: EPS §7 (Figs 14 to 19 are what it shows of one sweep).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from eps.errors import ResourceError

Reports = Mapping[str, Mapping[str, Any]]


def page(reports: Reports, *, live: bool = False) -> str:
    """Return the page of reports by policy; a live one asks its server for news every second."""
    template = files("hscheduler.page").joinpath("template.html").read_text(encoding="utf-8")
    # In a script element only this would be read as anything but text.
    data = json.dumps(reports, allow_nan=False, default=str).replace("</", "<\\/")
    return template.replace("@LIVE@", "true" if live else "false").replace("@DATA@", data)


class PageServer:
    """Serves the page of a sweep on this host's loopback interface.

    Parameters
    ----------
    port : int
        0 takes any that is free.

    Raises
    ------
    ResourceError
        The port is taken.
    """

    def __init__(self, port: int) -> None:
        self._lock = threading.Lock()
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
            kind, body = "application/json", json.dumps({"reports": reports, "live": live}).encode()
        else:
            request.send_error(404 if reports else 503, "nothing here" if reports else "the sweep has not begun")
            return
        request.send_response(200)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Content-Security-Policy", "default-src 'self' 'unsafe-inline'")
        request.end_headers()
        request.wfile.write(body)
