"""The listening process of ``van.py``, for every transport and its raw counterpart.

It prints its addresses as JSON on standard output, and exits when its standard input is closed.
"""

from __future__ import annotations

import json
import secrets
import socket
import struct
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import grpc  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks import van_raw as raw  # noqa: E402
from eps.net.arrays.api import Handler, Message, ReplyTo, Van  # noqa: E402
from eps.net.arrays.memory import tune_malloc  # noqa: E402
from eps.net.arrays.sockets import SocketVan  # noqa: E402
from eps.net.calls import call as rpc  # noqa: E402
from eps.net.security.credentials import NO_SECURITY, JobToken, Security, TlsFiles  # noqa: E402

TRANSPORTS = ("tcp", "unix", "shm")
#: A unary call like those of the control plane, bytes in and bytes out.
CALL_METHOD = "/eps.benchmark/Call"
#: Header of a request: operation, and bytes of the array in the answer.
REQUEST = struct.Struct("<BQ")
#: PUSH: acknowledge.  PUSH_OUT: copy into an own array first.  PULL: answer with an ordinary array.  PULL_EMPTY: answer
#: with one of ``van.empty``.  PING: echo.
PUSH, PUSH_OUT, PULL, PULL_EMPTY, PING = range(5)


def securities(directory: Path, token: str) -> dict[str, Security]:
    """Return the kinds of authentication: none, as on one host (token and folder), as between hosts."""
    job_token = JobToken.from_hex(token)
    return {
        "open": NO_SECURITY,
        "token": Security(job_token, sockets=directory / "sockets"),
        "tls": Security(job_token, TlsFiles.within(directory)),
    }


def van_of(transport: str, security: Security) -> SocketVan:
    """Return the van of a transport."""
    return SocketVan(transport, security)


def register(server: grpc.Server) -> None:
    """Add :data:`CALL_METHOD` to a server."""
    call = grpc.unary_unary_rpc_method_handler(lambda request, context: b"called")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("eps.benchmark", {"Call": call}),))


class Memory:
    """Arrays by size and kind, reused so that their pages are warm."""

    def __init__(self) -> None:
        self._ordinary: dict[int, np.ndarray] = {}
        self._of_van: dict[tuple[int, int], np.ndarray] = {}

    def ordinary(self, size_bytes: int) -> np.ndarray:
        """Return float32 of an array that NumPy made."""
        if size_bytes not in self._ordinary:
            self._ordinary[size_bytes] = np.ones(size_bytes // 4, np.float32)
        return self._ordinary[size_bytes]

    def of_van(self, van: Van, size_bytes: int) -> np.ndarray:
        """Return float32 of :meth:`eps.net.arrays.api.Van.empty`."""
        name = id(van), size_bytes
        if name not in self._of_van:
            self._of_van[name] = van.empty(size_bytes // 4, np.float32)
            self._of_van[name][:] = 1
        return self._of_van[name]


def handler_of(van: Van, memory: Memory) -> Handler:
    """Return the handler of the requests of :mod:`benchmarks.van`."""

    def handle(message: Message, reply: ReplyTo) -> None:
        what, size_bytes = REQUEST.unpack(message.header)
        if what == PING:
            reply.send(message)
        elif what == PULL:
            reply.send(Message(b"", (memory.ordinary(size_bytes),)))
        elif what == PULL_EMPTY:
            reply.send(Message(b"", (memory.of_van(van, size_bytes),)))
        else:
            if what == PUSH_OUT:
                np.copyto(memory.ordinary(message.arrays[0].nbytes), message.arrays[0])
            reply.send(Message(b"done"))

    return handle


def main() -> int:
    """Listen on all transports until standard input is closed."""
    tune_malloc()
    settings: dict[str, Any] = json.loads(sys.argv[1])
    memory = Memory()
    addresses: dict[str, Any] = {"van": {}, "call": {}, "raw": {}}
    # A gRPC server ends with its last reference.
    listeners: list[Any] = []
    for name, security in securities(Path(settings["tls"]), settings["token"]).items():
        for transport in TRANSPORTS:
            if transport == "shm" and name == "tls":
                continue
            van = van_of(transport, security)
            listener = van.listen(handler_of(van, memory))
            listeners.append(listener)
            addresses["van"][f"{transport} {name}"] = [listener.address.host, listener.address.port]
        server, address = rpc.serve(register, security=security)
        listeners.append(server)
        addresses["call"][name] = [address.host, address.port]
    for name in ("tcp", "unix"):
        family = socket.AF_INET if name == "tcp" else socket.AF_UNIX
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.bind(("127.0.0.1", 0) if name == "tcp" else f"\0eps-raw-{secrets.token_hex(8)}")
        listening.listen()
        raw.serve(listening, memory.ordinary)
        bound = listening.getsockname()
        addresses["raw"][name] = [*bound] if name == "tcp" else bound.decode()
    print(json.dumps(addresses), flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
