"""A server of metrics on this host's loopback interface.  L2."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from eps.errors import ResourceError
from eps.metrics_text import CONTENT_TYPE


class MetricsServer:
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
        class Handler(BaseHTTPRequestHandler):
            # Whoever says nothing is not waited for.
            timeout = 30.0

            def do_GET(self) -> None:
                if self.path != "/metrics":
                    self.send_error(404)
                    return
                body = text().encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                """Say nothing: the log is of the job."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except (OSError, OverflowError) as error:
            raise ResourceError(f"metrics_port is {port}, but that port cannot be had: {error}") from None
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
