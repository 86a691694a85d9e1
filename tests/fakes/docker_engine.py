"""A Docker engine without containers: the part of its HTTP interface that EPS uses, on a Unix socket.

What the Docker SDK sends and reads is real; a container is a record with a pid that nobody has.
"""

from __future__ import annotations

import json
import re
import socket
import socketserver
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from eps.cluster.supervisor.process import END

IMAGE = "eps"
NUM_CPUS = 64
_SIGKILL = 9


@dataclass
class FakeContainer:
    name: str
    config: dict[str, Any]
    pid: int = 0
    exit_code: int = 0
    out_of_memory: bool = False
    state: str = "created"
    ignores_end: bool = False

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.config["Labels"])

    @property
    def environment(self) -> dict[str, str]:
        return dict(text.split("=", 1) for text in self.config["Env"])


class Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class FakeDockerEngine:
    """The engine and its script.

    Attributes
    ----------
    url : str
        For ``DOCKER_HOST``.
    containers : dict
        Name -> container, as long as the engine knows it.
    asked : list of str
        Method and path of each call.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "docker.sock"
        self.url = f"unix://{self.path}"
        self.containers: dict[str, FakeContainer] = {}
        self.asked: list[str] = []
        #: End of the path of a call that is carried out and not answered, once; empty: each is answered.
        self.loses = ""
        #: End of the path of calls that are neither carried out nor answered; empty: each is.
        self.ignores = ""
        #: End of the path of calls that stay open until the engine goes away, or lets them go; empty: none.
        self.hangs = ""
        self.num_hanging = 0
        #: End of the path of a call at which the engine goes away, and is not there any more; empty: it stays.
        self.breaks_at = ""
        self.changed = threading.Condition()
        #: A call that hangs ends where this is no longer the number that it began with.
        self.generation = 0
        self.num_started = 0
        self._server: _Server | None = None
        self.come_back()

    # ---- the script

    def of(self, container_id: str) -> FakeContainer:
        """Return the container that a job knows by this."""
        return next(c for c in self.containers.values() if c.labels.get("eps.container") == container_id)

    def exits(self, container_id: str, code: int) -> None:
        """End a container's process."""
        with self.changed:
            self.end(self.of(container_id), code)

    def forgets(self, container_id: str) -> None:
        """Remove a container, as ``docker rm --force`` does."""
        with self.changed:
            del self.containers[self.of(container_id).name]

    def runs_out_of_memory(self, container_id: str) -> None:
        with self.changed:
            self.of(container_id).out_of_memory = True
            self.end(self.of(container_id), 128 + _SIGKILL)

    def go_away(self, *, with_containers: bool = True) -> None:
        """Stop answering, as an engine that is started again; its containers end with it."""
        assert self._server is not None
        with self.changed:
            self.generation += 1
            if with_containers:
                self.containers.clear()
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_up()
        self.path.unlink()
        self._server = None

    def let_go(self) -> None:
        """Carry out the calls that hang."""
        with self.changed:
            self.hangs = ""
            self.changed.notify_all()

    def come_back(self) -> None:
        self._server = _Server(str(self.path), self)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self.go_away()

    # ---- with the condition's lock held

    def end(self, container: FakeContainer, code: int) -> None:
        if container.is_running:
            container.state, container.exit_code, container.pid = "exited", code, 0

    def start(self, container: FakeContainer) -> None:
        self.num_started += 1
        container.state, container.pid = "running", 4_000_000_000 + self.num_started


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, engine: FakeDockerEngine) -> None:
        self.engine = engine
        self.connections: set[socket.socket] = set()
        super().__init__(path, _Calls)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """End the connections, as the end of a process does; those that are kept for the next call, too."""
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Calls(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *details: object) -> None:
        """Write nothing: the test reads what was asked."""

    def address_string(self) -> str:
        return "unix"

    def _serve(self) -> None:
        engine, url = self.server.engine, urlsplit(self.path)
        path = unquote(re.sub(r"^/v[\d.]+", "", url.path))
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
        with engine.changed:
            # Whoever reads what was asked, and lets the engine go away, ends this call too.
            engine.asked.append(f"{self.command} {path}")
            generation = engine.generation
        if engine.breaks_at and path.endswith(engine.breaks_at):
            engine.breaks_at, self.close_connection = "", True
            engine.go_away()
            return
        if engine.ignores and path.endswith(engine.ignores):
            self.close_connection = True
            return
        if engine.hangs and path.endswith(engine.hangs):
            with engine.changed:
                engine.num_hanging += 1
                engine.changed.wait_for(lambda: engine.generation != generation or not engine.hangs)
                engine.num_hanging -= 1
            if engine.generation != generation:
                self.close_connection = True
                return
        try:
            with engine.changed:
                status, answer = self._answer(engine, path, query, body)
        except Refusal as refusal:
            status, answer = refusal.status, {"message": str(refusal)}
        if engine.loses and path.endswith(engine.loses):
            engine.loses, self.close_connection = "", True
            return
        content = b"" if answer is None else json.dumps(answer).encode()
        # The engine may have gone away meanwhile.
        with suppress(BrokenPipeError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _serve

    def _answer(
        self, engine: FakeDockerEngine, path: str, query: Mapping[str, str], body: dict[str, Any]
    ) -> tuple[int, Any]:
        match [self.command, *path.strip("/").split("/")]:
            case ["GET", "version"]:
                return 200, {"ApiVersion": "1.41"}
            case ["GET", "images", name, "json"]:
                if name != IMAGE:
                    raise Refusal(404, f"No such image: {name}:latest")
                return 200, {"Id": name}
            case ["POST", "containers", "create"]:
                return 201, {"Id": _create(engine, query["name"], body), "Warnings": []}
            case ["GET", "containers", "json"]:
                found = [c for c in engine.containers.values() if _has(c.labels, json.loads(query["filters"]))]
                return 200, [{"Names": [f"/{c.name}"], "Labels": c.labels, "State": c.state} for c in found]
        _, name, *verb = path.strip("/").split("/")
        container = engine.containers.get(name)
        if container is None:
            raise Refusal(404, f"No such container: {name}")
        match [self.command, *verb]:
            case ["GET", "json"]:
                state = {"Running": container.is_running, "Pid": container.pid, "ExitCode": container.exit_code}
                state["OOMKilled"] = container.out_of_memory
                return 200, {"State": state}
            case ["POST", "start"] if container.is_running:
                return 304, None
            case ["POST", "start"]:
                engine.start(container)
            case ["POST", "kill"]:
                if not container.is_running:
                    raise Refusal(409, f"Container {name} is not running")
                if container.ignores_end and query.get("signal") == str(int(END)):
                    return 204, None
                engine.end(container, 128 + int(query.get("signal", _SIGKILL)))
            case ["DELETE"]:
                engine.end(container, 128 + _SIGKILL)
                engine.containers.pop(name, None)
        return 204, None


def _create(engine: FakeDockerEngine, name: str, config: dict[str, Any]) -> str:
    if config["Image"] != IMAGE:
        raise Refusal(404, f"No such image: {config['Image']}:latest")
    if config["HostConfig"]["NanoCpus"] > NUM_CPUS * 1_000_000_000:
        raise Refusal(400, f"Range of CPUs is from 0.01 to {NUM_CPUS}.00, as there are only {NUM_CPUS} CPUs available")
    if name in engine.containers:
        raise Refusal(409, f"Conflict. The container name {name!r} is already in use")
    engine.containers[name] = FakeContainer(name, config)
    return name


def _has(labels: Mapping[str, str], filters: Mapping[str, Any]) -> bool:
    for text in filters.get("label", []):
        key, equals, value = text.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    return True
