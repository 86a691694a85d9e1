"""Texts that a job serves by HTTP to whoever looks on: its metrics, its page.  L2."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from eps.errors import EpsError, ResourceError
from eps.metrics_text import CONTENT_TYPE

#: Path -> (content type, what makes the text).
Pages = Mapping[str, tuple[str, Callable[[], str]]]

#: A server of HTTP looks so often whether it is to close, and keeps whoever closes it waiting no longer.
CLOSE_S = 0.05


class TextServer:
    """Serves a few texts, each made anew for every request, on a thread of its own.

    Parameters
    ----------
    host : str
    port : int
        0 takes any that is free.
    pages : mapping
        Where a text cannot be made (EpsError), the answer is 503 with the reason.

    Raises
    ------
    OSError, OverflowError
        The address cannot be had.
    """

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        class Handler(BaseHTTPRequestHandler):
            # Whoever says nothing is not waited for.
            timeout = 30.0

            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                if page is None:
                    self.send_error(404)
                    return
                kind, text = page
                try:
                    body = text().encode()
                except EpsError as error:
                    self.send_error(503, str(error)[:200])
                    return
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                """Say nothing: the log is of the job."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(CLOSE_S,), name="texts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class MetricsServer(TextServer):
    """Serves ``/metrics`` on the loopback interface.

    Parameters
    ----------
    port : int
        0 takes any that is free.
    text : callable
        Called for every request, on a thread of its own.

    Raises
    ------
    ResourceError
        The port cannot be had.
    """

    def __init__(self, port: int, text: Callable[[], str]) -> None:
        try:
            super().__init__("127.0.0.1", port, {"/metrics": (CONTENT_TYPE, text)})
        except (OSError, OverflowError) as error:
            raise ResourceError(f"metrics_port is {port}, but that port cannot be had: {error}") from None
