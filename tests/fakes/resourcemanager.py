"""The web interface of a ResourceManager that does what a test says: real HTTP on the loopback interface."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from eps.hadoop.conf import HadoopConf


class FakeResourceManager:
    """Answers, and what it was asked."""

    def __init__(self) -> None:
        #: ``GET apps`` -> (status, body).
        self.answers: dict[str, tuple[int, Any]] = {}
        #: ``PUT apps/ID/state`` -> called before the answer, with what it does to the cluster.
        self.told: dict[str, Callable[[], object]] = {}
        #: (method, path, query, body).
        self.asked: list[tuple[str, str, str, Any]] = []
        #: Tokens that it was to cancel.
        self.cancelled: list[str] = []
        self.standby = False
        self.url = ""

    def answer(self, method: str, path: str, query: str, body: Any) -> tuple[int, Any]:
        self.asked.append((method, path, query, body))
        if f"{method} {path}" in self.told:
            self.told[f"{method} {path}"]()
        return self.answers.get(f"{method} {path}", (404, {"RemoteException": {"message": f"no {path}"}}))

    @property
    def conf(self) -> HadoopConf:
        """The configuration of the cluster that it is of."""
        address = self.url.removeprefix("http://")
        return HadoopConf({"yarn.resourcemanager.webapp.address": address}, "/etc/hadoop", {"HADOOP_USER_NAME": "ada"})


@contextmanager
def resourcemanager() -> Iterator[FakeResourceManager]:
    """Serve one."""
    fake = FakeResourceManager()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            path, _, query = self.path.partition("?")
            if fake.standby:
                self.send_response(307)
                self.send_header("Location", "http://localhost:1/")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if self.command == "DELETE":
                fake.cancelled.append(self.headers["Hadoop-YARN-RM-Delegation-Token"])
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            status, found = fake.answer(self.command, path.removeprefix("/ws/v1/cluster/"), query, body)
            content = found.encode() if isinstance(found, str) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _serve

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
