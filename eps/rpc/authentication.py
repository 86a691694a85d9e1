"""Every gRPC call proves the job's token: a channel that puts the proof in, and an interceptor that asks for it.  L2.

The proof travels in one metadata entry: when, a nonce, a digest of the request where there is a single one, and an HMAC
over these, the name of the method and the port that is called.  It is judged before the method is looked up, and the
digest before the request is parsed, so neither a handler nor a parser of messages ever sees a call that is refused.

Source: the check of authenticators in RFC 4120 (Kerberos), section 3.2.3: a window for clocks that differ, five minutes
as recommended there, a memory of what was seen within it, and no proof from before that memory began.

Deviations:

1.  That memory is bounded; where it is full, the window narrows instead.
2.  RFC 4120 refuses everything for one window after a start.  Here a proof is refused whose time is before the start:
    on one host, where a job runs, that is the same, but for the millisecond in which times are counted.  Between hosts
    whose clocks differ by d, a caller that is behind is refused in the first d of a server's life, and what a caller
    that is ahead said in the last d before a start counts at the next process on that port.  A clock that is set back
    to before the start of a server keeps its callers out until it is past it again.
3.  The callee is its port, the one part of an address that both ends are sure to spell alike: a proof counts at another
    host that listens on the same port.
4.  Of a stream of requests only the beginning is proven.  Without TLS, whoever can change what is on its way can go on
    with somebody else's stream.
"""

from __future__ import annotations

import hashlib
import heapq
import logging
import re
import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from eps.errors import AuthenticationError, ProtocolError
from eps.logs import LimitedLog
from eps.rpc.security import Security

logger = logging.getLogger(__name__)

#: Key of the metadata entry.
PROOF_KEY = "eps-proof"
#: The clocks of two machines may differ by this much.
CLOCK_WINDOW_S = 300.0
#: Calls remembered, about 20 MiB; more than this within the window makes the window narrower.
MOST_CALLS_REMEMBERED = 100_000

_ROLE = b"grpc-call"
_NONCE_BYTES = 16
_ENTRY = re.compile(r"([0-9]{1,15})\.([0-9a-f]{32})\.([0-9a-f]{64}|)\.([0-9a-f]{64})", re.ASCII)

#: Key and value, as gRPC takes them.
Metadata = tuple[tuple[str, str | bytes], ...]


def call_metadata(
    security: Security, method: str, port: int | str, request: bytes | None, now_s: float | None = None
) -> Metadata:
    """Return the metadata that proves the token for one call of ``method``; empty without a token.

    Parameters
    ----------
    security : Security
    method : str
        ``/package.Service/Method``.
    port : int or str
        Of the server that is called.
    request : bytes
        What is sent, if it is one message; None for a stream of them.
    now_s : float, seconds since 1970, optional
        Default: the clock.
    """
    if security.token is None:
        return ()
    time_ms = int((time.time() if now_s is None else now_s) * 1000)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    digest = b"" if request is None else _digest(request)
    proof = security.token.proof(_ROLE, *_proven(time_ms, nonce, digest, method, port))
    return ((PROOF_KEY, f"{time_ms}.{nonce.hex()}.{digest.hex()}.{proof.hex()}"),)


def _proven(time_ms: int, nonce: bytes, digest: bytes, method: str, port: int | str) -> tuple[bytes, ...]:
    return struct.pack("<Q", time_ms), nonce, digest, method.encode(), str(port).encode()


def _digest(request: bytes) -> bytes:
    return hashlib.sha256(request).digest()


class CallMemory:
    """Which calls of the last minutes have been seen; thread-safe.

    Parameters
    ----------
    window_s : float, seconds
    capacity : int
        Calls remembered.
    since_s : float, seconds since 1970
        When it began: what was seen before is not known.
    """

    def __init__(
        self, window_s: float = CLOCK_WINDOW_S, capacity: int = MOST_CALLS_REMEMBERED, since_s: float = 0.0
    ) -> None:
        self._window_ms = int(window_s * 1000)
        self._capacity = capacity
        self._lock = threading.Lock()
        self._seen: set[bytes] = set()
        self._by_time: list[tuple[int, bytes]] = []
        # Of what was never known, or forgotten for lack of room: as old a call may have been seen before.
        self._forgotten_ms = int(since_s * 1000) - 1

    def __len__(self) -> int:
        return len(self._seen)

    def objection(self, time_ms: int, nonce: bytes, now_ms: int) -> str:
        """Return what speaks against a call, empty if nothing does; then it is remembered."""
        off_ms = time_ms - now_ms
        if abs(off_ms) > self._window_ms:
            return (
                f"the proof was made {abs(off_ms) / 1000:.0f} s {'ahead of' if off_ms > 0 else 'before'} this "
                f"machine's clock: must be within {self._window_ms / 1000:g} s"
            )
        with self._lock:
            while self._by_time and self._by_time[0][0] < now_ms - self._window_ms:
                self._seen.discard(heapq.heappop(self._by_time)[1])
            if nonce in self._seen:
                return "the proof was used before"
            if time_ms <= self._forgotten_ms:
                return "the proof is older than what this process can remember"
            if len(self._by_time) >= self._capacity:
                self._forgotten_ms, forgotten = heapq.heappop(self._by_time)
                self._seen.discard(forgotten)
                if time_ms <= self._forgotten_ms:
                    return "the proof is older than what this process can remember"
            self._seen.add(nonce)
            heapq.heappush(self._by_time, (time_ms, nonce))
        return ""


class TokenInterceptor(grpc.ServerInterceptor):  # type: ignore[misc,type-arg,unused-ignore]
    """Lets through only calls that prove the token; goes after :class:`eps.rpc.call.ServicerErrors`.

    It is made before its server listens, so that nobody reaches the server with a proof from before that memory begins.

    Parameters
    ----------
    security : Security
        Without a token everything goes through.
    now_s : callable
        The clock, in seconds since 1970.
    memory : CallMemory, optional
        Default: one that begins now.
    """

    def __init__(
        self, security: Security, now_s: Callable[[], float] = time.time, memory: CallMemory | None = None
    ) -> None:
        #: That the server listens on; nothing is proven before it is known.
        self.port = 0
        self._token = security.token
        self._now_s = now_s
        self._memory = CallMemory(since_s=now_s()) if memory is None else memory
        self._log = LimitedLog(logger)

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Return the method's handler, or one that refuses before anything of the request is read."""
        if self._token is None:
            return continuation(handler_call_details)
        method = handler_call_details.method
        objection, digest = self.judge(method, handler_call_details.invocation_metadata)
        if not objection:
            handler = continuation(handler_call_details)
            single = handler is not None and not handler.request_streaming
            return self._of_request(handler, digest, method) if single else handler

        def refuse(requests: Iterator[Any], context: Any) -> Iterator[Any]:
            raise self._refusal(context, objection)

        # A stream reads nothing until it is asked to; its caller sees the same status, whatever kind the method is.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def judge(self, method: str, metadata: Sequence[tuple[str, Any]]) -> tuple[str, bytes]:
        """Return what speaks against a call, and the digest that its request must have.

        Returns
        -------
        objection : str
            Empty if it proves the token, once.
        digest : bytes
            Empty for a stream of requests.
        """
        if self._token is None:
            return "", b""
        values = [value for key, value in metadata if key == PROOF_KEY]
        if not values:
            return f"it carries no {PROOF_KEY}", b""
        found = _ENTRY.fullmatch(values[0]) if len(values) == 1 and isinstance(values[0], str) else None
        if found is None:
            return f"its {PROOF_KEY} is malformed", b""
        time_ms, (nonce, digest, proof) = int(found[1]), map(bytes.fromhex, found.groups()[1:])
        # First the proof: a caller without the token must neither fill the memory nor learn about the clock.
        if not self._token.proves(proof, _ROLE, *_proven(time_ms, nonce, digest, method, self.port)):
            return "the proof is wrong", b""
        return self._memory.objection(time_ms, nonce, int(self._now_s() * 1000)), digest

    def _of_request(self, handler: Any, digest: bytes, method: str) -> Any:
        """Return the handler of a method with a single request, which lets through only the one that was proven."""
        behaviour = handler.unary_stream if handler.response_streaming else handler.unary_unary
        parse = handler.request_deserializer

        def run(request: bytes, context: Any) -> Any:
            if _digest(request) != digest:
                raise self._refusal(context, "the proof is that of another request")
            try:
                parsed = request if parse is None else parse(request)
            except Exception as error:
                raise ProtocolError(f"{method}: the request is no message of this method: {error}") from error
            return behaviour(parsed, context)

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(run, None, handler.response_serializer)
        return grpc.unary_unary_rpc_method_handler(run, None, handler.response_serializer)

    def _refusal(self, context: Any, objection: str) -> AuthenticationError:
        self._log.warning("refused a call of %s: %s", context.peer(), objection)
        return AuthenticationError(f"the call does not prove the job's token: {objection}")


def _one_request(kind: str) -> Callable[..., Any]:
    """Return the function of a channel that makes methods of a kind whose calls send one request."""

    def make(self: ProvenChannel, method: str, request_serializer: Any = None, *more: Any, **options: Any) -> Any:
        made = getattr(self._plain, kind)(method, None, *more, **options)
        return _ProvenMethod(made, self._security, method, self._port, request_serializer)

    make.__doc__ = f"Return a {kind} method that proves each call and its request."
    return make


def _stream_of_requests(kind: str) -> Callable[..., Any]:
    """Return the function of a channel that makes methods of a kind whose calls send many requests."""

    def make(self: ProvenChannel, method: str, *more: Any, **options: Any) -> Any:
        made = getattr(self._plain, kind)(method, *more, **options)
        return _ProvenMethod(made, self._security, method, self._port, streams=True)

    make.__doc__ = f"Return a {kind} method that proves each call."
    return make


class ProvenChannel(grpc.Channel):  # type: ignore[misc,unused-ignore]
    """A channel whose every call has a fresh proof.

    No interceptor could do it: it sees requests before they are serialised, and the digest is that of what is sent.

    Parameters
    ----------
    plain : grpc.Channel
        Closed with this one.
    security : Security
        With a token.
    port : str
        That ``plain`` leads to.
    """

    def __init__(self, plain: grpc.Channel, security: Security, port: str) -> None:
        self._plain: Any = plain
        self._security = security
        self._port = port

    unary_unary = _one_request("unary_unary")
    unary_stream = _one_request("unary_stream")
    stream_unary = _stream_of_requests("stream_unary")
    stream_stream = _stream_of_requests("stream_stream")

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False) -> None:
        """Have changes of the connection told."""
        self._plain.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """End :meth:`subscribe`."""
        self._plain.unsubscribe(callback)

    def close(self) -> None:
        """Close the channel below."""
        self._plain.close()

    def __enter__(self) -> ProvenChannel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _ProvenMethod:
    """A method of any kind, called as gRPC's own are; what comes after the metadata by keyword."""

    def __init__(
        self, plain: Any, security: Security, method: str, port: str, serialize: Any = None, streams: bool = False
    ) -> None:
        self._plain = plain
        self._security = security
        self._method = method
        self._port = port
        self._serialize = serialize
        self._streams = streams

    def __call__(self, request: Any, timeout: float | None = None, metadata: Any = None, **options: Any) -> Any:
        return self._plain(*self._proven(request, timeout, metadata), **options)

    def with_call(self, request: Any, timeout: float | None = None, metadata: Any = None, **options: Any) -> Any:
        """Return (reply, call); for methods with a single reply."""
        return self._plain.with_call(*self._proven(request, timeout, metadata), **options)

    def future(self, request: Any, timeout: float | None = None, metadata: Any = None, **options: Any) -> Any:
        """Return the call at once; for methods with a single reply."""
        return self._plain.future(*self._proven(request, timeout, metadata), **options)

    def _proven(self, request: Any, timeout: float | None, metadata: Any) -> tuple[Any, float | None, Metadata]:
        data = request if self._streams or self._serialize is None else self._serialize(request)
        proof = call_metadata(self._security, self._method, self._port, None if self._streams else data)
        return data, timeout, (*metadata, *proof) if metadata else proof
