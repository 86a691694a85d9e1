"""The measurements of ``van.py``."""

from __future__ import annotations

import json
import math
import random
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks import van_raw as raw
from benchmarks.bench_common import Sampler, process_cpu_s, rounded, spread
from benchmarks.van_peer import (
    CALL_METHOD,
    PING,
    PULL,
    PULL_EMPTY,
    PUSH,
    PUSH_OUT,
    REQUEST,
    TRANSPORTS,
    securities,
    van_of,
)
from eps.core.types import Address
from eps.errors import DeadlineError
from eps.net.arrays.api import Connection, Message, Van
from eps.net.arrays.connection import Replies
from eps.net.calls import call as rpc
from eps.net.security.certificates import make_certificates

TIMEOUT_S = 120.0
SMALL_FLOATS = 100
#: Large transfers of one variant before the next follows.  Few, because two processes keep their cores, and with them
#: their speed, for a while.
BURST_BYTES = 160_000_000
#: Round trips of one variant before the next follows, and repetitions in a sample.
BURST, TURNS = 200, 3
WARM_UP = 10
CONNECTS, UNARY_CALLS, STEADY_PUSHES = 8, 60, 12
STEADY_BYTES = 40_000_000
AGAIN = "tcp again"
DIRECTIONS = ("push", "pull")

Operation = Callable[[], object]
NameT = TypeVar("NameT")


@dataclass
class Peer:
    """The listening process, and the credentials for connections to it."""

    process: subprocess.Popen[str]
    addresses: dict[str, Any]
    tls: Path
    token: str

    @classmethod
    def start(cls, scratch: Path) -> Peer:
        """Create certificates and a token, start the process, and wait until it listens."""
        make_certificates(scratch / "tls")
        token = secrets.token_hex(16)
        settings = json.dumps({"tls": str(scratch / "tls"), "token": token})
        command = [sys.executable, str(Path(__file__).with_name("van_peer.py")), settings]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return cls(process, json.loads(process.stdout.readline()), scratch / "tls", token)

    def connect(self, transport: str, security: str = "open") -> tuple[Van, Connection]:
        """Return a new van and a connection of it."""
        van = van_of(transport, securities(self.tls, self.token)[security])
        return van, van.connect(self.address(transport, security))

    def address(self, transport: str, security: str) -> Address:
        """Return where a transport listens."""
        host, port = self.addresses["van"][f"{transport} {security}"]
        return Address(host, port)

    def connect_raw(self, name: str) -> Any:
        """Return a bare socket."""
        address = self.addresses["raw"][name]
        return raw.connect(tuple(address) if name == "tcp" else address)

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def round_trip(replies: Replies[None], connection: Connection, message: Message) -> Message:
    """Send a request and return its reply, which this thread reads, as a worker's thread does."""
    replies.request(None, connection, message)
    answered = replies.next(TIMEOUT_S)
    if answered is None:
        raise DeadlineError(f"no reply within {TIMEOUT_S:g} s")
    return answered[1].result()


def large(peer: Peer, sampler: Sampler, size_bytes: int, rounds: int) -> dict[str, Any]:
    """Measure pushes and pulls of one array of ``size_bytes``, each as one message, back to back.

    Returns
    -------
    dict
        variant -> direction -> GB/s and CPU seconds per GB here and at the peer; ``memcpy`` has one direction.
    """
    with _Large(peer, size_bytes) as variants:
        burst = max(1, round(BURST_BYTES / size_bytes))
        found = _in_turn(sampler, variants.operations, rounds, burst, 1, warm_up=1)
    results: dict[str, Any] = {}
    for (variant, direction), samples in found.items():
        moved_gb = size_bytes * burst / 1e9
        results.setdefault(variant, {})[direction] = {
            "gb_per_s": spread([size_bytes / 1e9 / statistics.median(turns.times_s) for turns in samples]),
            "cpu_s_per_gb_requester": rounded(statistics.median(turns.cpu_s[0] / moved_gb for turns in samples)),
            "cpu_s_per_gb_listener": rounded(statistics.median(turns.cpu_s[1] / moved_gb for turns in samples)),
        }
    return results


class _Large:
    """(variant, direction) -> function that moves one array."""

    def __init__(self, peer: Peer, size_bytes: int) -> None:
        self.operations: dict[tuple[str, str], Operation] = {}
        self._closing: list[Any] = []
        own = np.ones(size_bytes // 4, np.float32)
        into = np.empty_like(own)
        into[:] = 0
        self._add("memcpy", lambda: np.copyto(into, own))
        for family in ("tcp", "unix"):
            sock = peer.connect_raw(family)
            self._closing.append(sock)
            for mode in raw.MODES:
                self._add(
                    f"raw {family}, {mode}",
                    lambda sock=sock, mode=mode: raw.push(sock, own, mode),
                    lambda sock=sock, mode=mode: raw.pull(sock, into, mode),
                )
        for transport in TRANSPORTS:
            self._add_van(transport, *self._connect(peer, transport), own, into)
        self._add_van("tcp, TLS", *self._connect(peer, "tcp", "tls"), own, into)

    def _connect(self, peer: Peer, transport: str, security: str = "open") -> tuple[Van, Connection]:
        van, connection = peer.connect(transport, security)
        self._closing.append(connection)
        return van, connection

    def _add(self, name: str, push: Operation, pull: Operation | None = None) -> None:
        self.operations[name, "push"] = push
        if pull is not None:
            self.operations[name, "pull"] = pull

    def _add_van(self, name: str, van: Van, connection: Connection, own: np.ndarray, into: np.ndarray) -> None:
        replies: Replies[None] = Replies()

        def request(what: int, array: np.ndarray | None = None) -> Message:
            arrays = () if array is None else (array,)
            return round_trip(replies, connection, Message(REQUEST.pack(what, own.nbytes), arrays))

        def pull_out(what: int) -> None:
            np.copyto(into, request(what).arrays[0])

        if name != "shm":
            self._add(name, lambda: request(PUSH, own), lambda: request(PULL))
            return
        shared = van.empty(own.shape, own.dtype)
        shared[:] = 1
        self._add("shm, ordinary array", lambda: request(PUSH, own), lambda: request(PULL))
        self._add("shm, array of van.empty", lambda: request(PUSH, shared), lambda: request(PULL_EMPTY))
        self._add("shm, van.empty, copied out", lambda: request(PUSH_OUT, shared), lambda: pull_out(PULL_EMPTY))
        self._add("shm, ordinary, copied out", lambda: request(PUSH_OUT, own), lambda: pull_out(PULL))

    def __enter__(self) -> _Large:
        return self

    def __exit__(self, *_: object) -> None:
        self.operations.clear()
        for end in self._closing:
            end.close()


def small(peer: Peer, sampler: Sampler, rounds: int) -> dict[str, Any]:
    """Measure the round trip of a small array; the variants alternate in bursts.

    Returns
    -------
    dict
        variant -> median and 99th percentile, and processor time here and at the peer, in microseconds; ``tcp again``
        is a second connection like ``tcp``.
    """
    array, replies = np.ones(SMALL_FLOATS, np.float32), Replies[None]()
    closing: list[Any] = []
    operations: dict[str, Operation] = {}
    for family in ("tcp", "unix"):
        sock = peer.connect_raw(family)
        closing.append(sock)
        operations[f"raw {family}"] = partial(raw.Echo(sock).round_trip, array)
    ends = [(transport, transport, "open") for transport in TRANSPORTS]
    ends += [(AGAIN, "tcp", "open"), ("tcp, token", "tcp", "token"), ("tcp, TLS", "tcp", "tls")]
    for name, transport, security in ends:
        _, connection = peer.connect(transport, security)
        closing.append(connection)
        operations[name] = lambda connection=connection: round_trip(
            replies, connection, Message(REQUEST.pack(PING, 0), (array,))
        )
    found = _in_turn(sampler, operations, rounds, BURST, TURNS, warm_up=WARM_UP)
    for end in closing:
        end.close()
    return {
        name: {
            "median_us": spread([1e6 * statistics.median(turns.times_s) for turns in samples]),
            "p99_us": spread([1e6 * sorted(t.times_s)[math.ceil(0.99 * len(t.times_s)) - 1] for t in samples]),
            "cpu_us_requester": spread([1e6 * turns.cpu_s[0] / len(turns.times_s) for turns in samples]),
            "cpu_us_listener": spread([1e6 * turns.cpu_s[1] / len(turns.times_s) for turns in samples]),
        }
        for name, samples in found.items()
    }


def authentication(peer: Peer, sampler: Sampler, rounds: int) -> dict[str, Any]:
    """Measure the cost of the token in connecting, in a call of the control plane, and in large pushes.

    Returns
    -------
    dict
        ``connect_ms``, ``unary_call_us``, ``push_ms``: each variant -> spread over the rounds of its medians.
    """
    levels = securities(peer.tls, peer.token)
    connects: dict[str, Operation] = {}
    opened: list[Connection] = []
    for name in peer.addresses["van"]:
        transport, security = name.split()
        van, address = van_of(transport, levels[security]), peer.address(transport, security)
        connects[name] = lambda van=van, address=address: opened.append(van.connect(address))

    def tidy() -> None:
        while opened:
            opened.pop().close()

    connected = _in_turn(sampler, connects, rounds, 1, CONNECTS, tidy)
    channels: list[Any] = []
    calls: dict[str, Operation] = {}
    for name, security in (("open", "open"), ("open again", "open"), ("token", "token"), ("tls", "tls")):
        channel: Any = rpc.channel(Address(*peer.addresses["call"][security]), levels[security])
        channels.append(channel)
        calls[name] = partial(channel.unary_unary(CALL_METHOD), b"", timeout=TIMEOUT_S)
    called = _in_turn(sampler, calls, rounds, 20, UNARY_CALLS // 20, warm_up=WARM_UP)
    for channel in channels:
        channel.close()
    array, replies = np.ones(STEADY_BYTES // 4, np.float32), Replies[None]()
    pushes: dict[str, Operation] = {}
    for name, security in (("open", "open"), ("open again", "open"), ("token", "token")):
        _, connection = peer.connect("tcp", security)
        opened.append(connection)
        pushes[name] = lambda connection=connection: round_trip(
            replies, connection, Message(REQUEST.pack(PUSH, array.nbytes), (array,))
        )
    pushed = _in_turn(sampler, pushes, rounds, 1, STEADY_PUSHES)
    tidy()
    return {
        "connect_ms": _medians(connected, 1e3),
        "unary_call_us": _medians(called, 1e6),
        "push_ms": _medians(pushed, 1e3),
    }


@dataclass
class _Turns:
    """The operations of one variant in one sample."""

    times_s: list[float]
    #: Processor time of this process and of the peer.
    cpu_s: tuple[float, float] = (0.0, 0.0)


def _medians(found: Mapping[str, Sequence[_Turns]], scale: float) -> dict[str, Any]:
    return {
        name: spread([scale * statistics.median(turns.times_s) for turns in samples]) for name, samples in found.items()
    }


def _in_turn(
    sampler: Sampler,
    operations: Mapping[NameT, Operation],
    rounds: int,
    burst: int,
    turns: int,
    after: Operation | None = None,
    warm_up: int = 0,
) -> dict[NameT, list[_Turns]]:
    """Time single operations; the variants alternate within each sample, so that all see the same machine.

    Returns
    -------
    dict
        variant -> for each round, the times of its operations.
    """

    def one_turn(operation: Operation, into: _Turns) -> None:
        for _ in range(warm_up):
            operation()
        here_s, there_s = time.process_time(), process_cpu_s(sampler.pids[0])
        for _ in range(burst):
            began_s = time.perf_counter()
            operation()
            into.times_s.append(time.perf_counter() - began_s)
        here_s, there_s = time.process_time() - here_s, process_cpu_s(sampler.pids[0]) - there_s
        into.cpu_s = into.cpu_s[0] + here_s, into.cpu_s[1] + there_s

    def sample() -> dict[NameT, _Turns]:
        found = {name: _Turns([]) for name in operations}
        for _ in range(turns):
            for name in rng.sample(list(operations), len(operations)):
                one_turn(operations[name], found[name])
            if after is not None:
                after()
        return found

    # Warm up: imports and connections at first use are not measured.
    for operation in operations.values():
        operation()
    if after is not None:
        after()
    rng = random.Random(0)
    found: dict[NameT, list[_Turns]] = {name: [] for name in operations}
    for _ in range(rounds):
        taken, _used = sampler.take(sample)
        for name, values in taken.items():
            found[name].append(values)
    return found
