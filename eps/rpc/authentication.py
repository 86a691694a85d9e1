"""Every gRPC call proves the job's token: interceptors that put the proof in, and that ask for it.  L2.

The proof travels in one metadata entry: when, a nonce, and an HMAC over both and the name of the method.  It is judged
before the method is looked up, so neither a handler nor a parser of messages ever sees a call that is refused.

Source: the check of authenticators in RFC 4120 (Kerberos), section 3.2.3: a window for clocks that differ, five minutes
as recommended there, and a memory of what was seen within it.  Deviation: that memory is bounded; where it is full,
the window narrows instead.
"""

from __future__ import annotations

import heapq
import logging
import re
import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import grpc

from eps.errors import AuthenticationError
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
_ENTRY = re.compile(r"([0-9]{1,15})\.([0-9a-f]{32})\.([0-9a-f]{64})", re.ASCII)

#: Key and value, as gRPC takes them.
Metadata = tuple[tuple[str, str | bytes], ...]


def call_metadata(security: Security, method: str, now_s: float | None = None) -> Metadata:
    """Return the metadata that proves the token for one call of ``method``; empty without a token.

    Parameters
    ----------
    security : Security
    method : str
        ``/package.Service/Method``.
    now_s : float, seconds since 1970, optional
        Default: the clock.
    """
    if security.token is None:
        return ()
    time_ms = int((time.time() if now_s is None else now_s) * 1000)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    proof = security.token.proof(_ROLE, struct.pack("<Q", time_ms), nonce, method.encode())
    return ((PROOF_KEY, f"{time_ms}.{nonce.hex()}.{proof.hex()}"),)


class CallMemory:
    """Which calls of the last minutes have been seen; thread-safe.

    Parameters
    ----------
    window_s : float, seconds
    capacity : int
        Calls remembered.
    """

    def __init__(self, window_s: float = CLOCK_WINDOW_S, capacity: int = MOST_CALLS_REMEMBERED) -> None:
        self._window_ms = int(window_s * 1000)
        self._capacity = capacity
        self._lock = threading.Lock()
        self._seen: set[bytes] = set()
        self._by_time: list[tuple[int, bytes]] = []
        # Of what was forgotten for lack of room: as old a call may have been seen before.
        self._forgotten_ms = -1

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

    Parameters
    ----------
    security : Security
        Without a token everything goes through.
    now_s : callable
        The clock, in seconds since 1970.
    memory : CallMemory, optional
    """

    def __init__(
        self, security: Security, now_s: Callable[[], float] = time.time, memory: CallMemory | None = None
    ) -> None:
        self._token = security.token
        self._now_s = now_s
        self._memory = memory or CallMemory()
        self._log = LimitedLog(logger)

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Return the method's handler, or one that refuses before anything of the request is read."""
        objection = self.objection(handler_call_details.method, handler_call_details.invocation_metadata)
        if not objection:
            return continuation(handler_call_details)

        def refuse(requests: Iterator[Any], context: Any) -> Iterator[Any]:
            self._log.warning("refused a call of %s: %s", context.peer(), objection)
            raise AuthenticationError(f"the call does not prove the job's token: {objection}")

        # A stream reads nothing until it is asked to; its caller sees the same status, whatever kind the method is.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def objection(self, method: str, metadata: Sequence[tuple[str, Any]]) -> str:
        """Return what speaks against a call; empty if it proves the token, once."""
        if self._token is None:
            return ""
        values = [value for key, value in metadata if key == PROOF_KEY]
        if not values:
            return f"it carries no {PROOF_KEY}"
        found = _ENTRY.fullmatch(values[0]) if len(values) == 1 and isinstance(values[0], str) else None
        if found is None:
            return f"its {PROOF_KEY} is malformed"
        time_ms, nonce, proof = int(found[1]), bytes.fromhex(found[2]), bytes.fromhex(found[3])
        # First the proof: a caller without the token must neither fill the memory nor learn about the clock.
        if not self._token.proves(proof, _ROLE, struct.pack("<Q", time_ms), nonce, method.encode()):
            return "the proof is wrong"
        return self._memory.objection(time_ms, nonce, int(self._now_s() * 1000))


class _CallDetails(NamedTuple):
    """What gRPC asks of ``grpc.ClientCallDetails``."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class ProofInterceptor(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc,type-arg,unused-ignore]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc,type-arg,unused-ignore]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc,type-arg,unused-ignore]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc,type-arg,unused-ignore]
):
    """Adds a fresh proof to every call of a channel."""

    def __init__(self, security: Security) -> None:
        self._security = security

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Call with a proof."""
        return continuation(self._proven(details), request)

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        """Call with a proof."""
        return continuation(self._proven(details), request)

    def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        """Call with a proof."""
        return continuation(self._proven(details), requests)

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        """Call with a proof."""
        return continuation(self._proven(details), requests)

    def _proven(self, details: Any) -> _CallDetails:
        method = details.method if isinstance(details.method, str) else details.method.decode()
        return _CallDetails(
            method,
            details.timeout,
            (*(details.metadata or ()), *call_metadata(self._security, method)),
            getattr(details, "credentials", None),
            getattr(details, "wait_for_ready", None),
            getattr(details, "compression", None),
        )
