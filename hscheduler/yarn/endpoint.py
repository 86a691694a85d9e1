"""The HTTP endpoint for the plugin in a ResourceManager, on the loopback interface.

A request gets the latest plan at once, with the time of its snapshot.  Only the first request waits briefly for its
own plan.  Another thread queries job masters and plans; it always uses the newest snapshot.

Messages are not encrypted, so both sides must run on one host.  The endpoint reads a body only after its sender has
proved that it knows the secret.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from eps.errors import ConfigError, StorageError
from eps.system.text_server import CLOSE_S, BoundedServer
from hscheduler.yarn.wire import (
    DIGEST,
    MOST_BYTES,
    PROOF,
    Plan,
    Snapshot,
    WireError,
    digest_of,
    parse_snapshot,
    plan_text,
    proof_of_answer,
    proof_of_request,
)

logger = logging.getLogger(__name__)

#: How long the first request waits for its plan, in seconds; a later plan goes to the next request.
WAIT_S = 0.08
#: A connection that is silent for longer is closed.
_CALL_TIMEOUT_S = 2.0
_QUIET_S = 60.0
_JOIN_S = 20.0

#: Snapshot -> plan; may be slow.
Planner = Callable[[Snapshot], Plan]


class Plans:
    """Makes plans for the newest snapshot, on its own thread.

    Parameters
    ----------
    planner : callable
    tell : callable
        Called with each new sentence of a plan.
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
        """Request a plan for a snapshot; return the latest plan, None if there is none for this ResourceManager."""

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
                # Without a plan nothing is preempted; the next snapshot gets another attempt.
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
        """Stop the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_JOIN_S)


class PluginServer:
    """Answers the plugin's requests until it is closed; a context manager.

    Parameters
    ----------
    planner : callable
    secret : bytes
        Shared with the plugin.
    host, port
        Address on the loopback interface; port 0 picks a free one.
    listening : socket, optional
        A bound socket; host and port are ignored then.
    tell : callable
        Called with each new sentence of a plan.

    Raises
    ------
    ConfigError
        The address cannot be bound, or is not on the loopback interface.
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
            if listening is None and not ipaddress.ip_address(socket.gethostbyname(host)).is_loopback:
                raise ConfigError(
                    f"listen is {host}:{port}, but must be on the loopback interface (127.0.0.1): H-scheduler and the "
                    "plugin do not encrypt their messages; run this command on the ResourceManager's host"
                )
            self._server = _server(host, port, listening, self)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}") from None
        self.port = int(self._server.server_address[1])
        self._plans = Plans(planner, tell)
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(CLOSE_S,), name="calls of YARN", daemon=True)
        self._thread.start()

    def knows_secret(self, proof: str, digest: str) -> bool:
        """Return whether the proof for this digest was made with the secret."""
        return hmac.compare_digest(proof_of_request(self._secret, digest).encode(), proof.encode())

    def answer(self, proof: str, digest: str, body: bytes) -> tuple[int, str, bytes]:
        """Return (HTTP status, proof, body) for a posted snapshot whose proof was checked."""
        try:
            if digest_of(body) != digest:
                raise WireError("its digest is that of another text")
            snapshot = parse_snapshot(body)
        except WireError as error:
            return 400, "", f"{error}\n".encode()
        plan = self._plans.plan_for(snapshot)
        if plan is None:
            return 503, "", b"there is no plan yet\n"
        text = plan_text(plan)
        return 200, proof_of_answer(self._secret, proof, text), text

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
        # The body follows its headers without waiting for an acknowledgement.
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            length, proof, digest = (self.headers.get(name, "") for name in ("Content-Length", PROOF, DIGEST))
            if self.path != "/plan":
                self._say(404, "", b"")
            elif not answers.knows_secret(proof, digest):
                self._say(403, "", b"the secret is another one\n")
            elif not (length.isascii() and length.isdigit()) or int(length) > MOST_BYTES:
                self._say(400, "", f"it must have 0 to {MOST_BYTES} bytes\n".encode())
            else:
                self._say(*answers.answer(proof, digest, self.rfile.read(int(length))))

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


# ---- the shared secret

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_SECRET_BYTES = 16


def secret_of(path: Path) -> bytes:
    """Return the secret in a file; create the file if it does not exist.

    Raises
    ------
    StorageError
        The file cannot be read or written, is empty, is a folder, or is readable for other users.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise StorageError(f"{path}: the secret cannot be created: {error.strerror or error}") from error
    else:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{secrets.token_hex(_SECRET_BYTES)}\n")
    if path.is_dir():
        raise StorageError(f"{path}: is a folder, but must be a file with the secret, or none yet")
    try:
        if path.stat().st_mode & _OTHERS:
            raise StorageError(f"{path}: other users may read the secret: run chmod 600 {path}")
        found = path.read_bytes().strip()
    except OSError as error:
        raise StorageError(f"{path}: the secret cannot be read: {error.strerror or error}") from error
    if not found:
        raise StorageError(f"{path}: is empty, but must hold a secret: remove the file, and a new secret is created")
    return found
