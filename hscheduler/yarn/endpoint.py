"""What the plugin in a ResourceManager asks: HTTP, on a port of its own.

A call is answered at once with the latest plan, which says of when it is; only the first waits a moment for its own.
Planning, and asking job masters for it, is the work of another thread, which always takes the newest snapshot.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from eps.errors import ConfigError
from eps.system.text_server import CLOSE_S, BoundedServer
from hscheduler.yarn.facts import JobFacts
from hscheduler.yarn.plan import make_plan
from hscheduler.yarn.snapshot import Plan, Snapshot
from hscheduler.yarn.together import AskedTogether
from hscheduler.yarn.wire import (
    MOST_BYTES,
    PROOF,
    WireError,
    parse_snapshot,
    plan_text,
    proof_of_answer,
    proof_of_request,
)

logger = logging.getLogger(__name__)

#: The first plan: one that takes longer is for the next call.
WAIT_S = 0.08
#: A call that is silent for longer is ended.
_CALL_TIMEOUT_S = 2.0
_QUIET_S = 60.0
_JOIN_S = 20.0

#: Snapshot -> plan; may take its time.
Planner = Callable[[Snapshot], Plan]


def planner_with(facts: JobFacts) -> Planner:
    """Return what asks for the facts of the jobs of a snapshot, all at once, and plans."""
    ask = AskedTogether(facts.of)
    return lambda snapshot: make_plan(snapshot, ask(snapshot.applications))


class Plans:
    """Makes plans on a thread of its own, for the newest snapshot.

    Parameters
    ----------
    planner : callable
    tell : callable
        Given every new sentence of a plan.
    """

    def __init__(self, planner: Planner, tell: Callable[[str], None] = logger.info) -> None:
        self._planner = planner
        self._tell = tell
        self._told: frozenset[str] = frozenset()
        self._changed = threading.Condition()
        self._newest: Snapshot | None = None
        self._plan: Plan | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="plans for YARN", daemon=True)
        self._thread.start()

    def plan_for(self, snapshot: Snapshot, wait_s: float = WAIT_S) -> Plan | None:
        """Have a plan made for a snapshot; return the latest there is, None if none is for this ResourceManager."""

        def latest() -> Plan | None:
            made = self._plan
            return made if made is not None and made.instance == snapshot.instance else None

        with self._changed:
            self._newest = snapshot
            self._changed.notify_all()
            self._changed.wait_for(lambda: latest() is not None or self._closed, wait_s)
            return latest()

    def _work(self) -> None:
        failed_s = -_QUIET_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._closed)
                if self._closed or self._newest is None:
                    return
                snapshot, self._newest = self._newest, None
            try:
                plan = self._planner(snapshot)
            except Exception:
                # Without a plan nothing is done; the next snapshot is tried.
                if time.monotonic() - failed_s >= _QUIET_S:
                    failed_s = time.monotonic()
                    logger.exception("no plan for YARN")
                continue
            for sentence in plan.sentences:
                if sentence not in self._told:
                    self._tell(sentence)
            self._told = frozenset(plan.sentences)
            with self._changed:
                self._plan = plan
                self._changed.notify_all()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_JOIN_S)


class PluginServer:
    """Answers the plugin; as a context manager it listens until the end.

    Parameters
    ----------
    planner : callable
    secret : bytes
        What the plugin must prove to know.
    host, port
        Where to listen; port 0 is a free one.
    listening : socket, optional
        Bound already; host and port count nothing then.
    tell : callable
        Given every new sentence of a plan.

    Raises
    ------
    ConfigError
        Nobody can listen there.
    """

    def __init__(
        self,
        planner: Planner,
        secret: bytes,
        host: str = "127.0.0.1",
        port: int = 0,
        listening: socket.socket | None = None,
        tell: Callable[[str], None] = logger.info,
    ) -> None:
        self._secret = secret
        try:
            self._server = _server(host, port, listening, self)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}") from None
        self.port = int(self._server.server_address[1])
        self._plans = Plans(planner, tell)
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(CLOSE_S,), name="calls of YARN", daemon=True)
        self._thread.start()

    def answer(self, given: str, body: bytes) -> tuple[int, str, bytes]:
        """Return (status, proof, text) for what was posted with a proof."""
        if not hmac.compare_digest(proof_of_request(self._secret, body).encode(), given.encode()):
            return 403, "", b"the secret is another one\n"
        try:
            snapshot = parse_snapshot(body)
        except WireError as error:
            return 400, "", f"{error}\n".encode()
        plan = self._plans.plan_for(snapshot)
        if plan is None:
            return 503, "", b"there is no plan yet\n"
        text = plan_text(plan)
        return 200, proof_of_answer(self._secret, given, text), text

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_JOIN_S)
        self._plans.close()

    def __enter__(self) -> PluginServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _server(host: str, port: int, listening: socket.socket | None, answers: PluginServer) -> BoundedServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = _CALL_TIMEOUT_S
        # The text follows its head without waiting for the other side.
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if self.path != "/plan" or not (length.isascii() and length.isdigit()) or int(length) > MOST_BYTES:
                self._say(404 if self.path != "/plan" else 400, "", b"")
                return
            body = self.rfile.read(int(length))
            self._say(*answers.answer(self.headers.get(PROOF, ""), body))

        def _say(self, status: int, proof: str, text: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            if proof:
                self.send_header(PROOF, proof)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            logger.debug(format, *args)

    if listening is None:
        return BoundedServer((host, port), Handler)
    made = BoundedServer(listening.getsockname()[:2], Handler, bind_and_activate=False)
    made.socket.close()
    made.socket = listening
    made.server_address = listening.getsockname()[:2]
    made.server_activate()
    return made
