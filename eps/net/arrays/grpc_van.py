"""The data plane over gRPC: one bidirectional stream of raw frames per connection.  L2.

Frames cross as the bytes they are (no protobuf, no serialisers).  Each connection has a TCP connection of its own, and
at either end one thread that reads and one that writes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import grpc
import numpy as np

from eps.core.types import Address
from eps.errors import DeadlineError, EpsError, FrameError, PeerUnavailableError
from eps.net.arrays.api import MAX_FRAME_BYTES, Handler, Limits, Message
from eps.net.arrays.frames import Decoder, Kind, Received, check_message
from eps.net.arrays.outbox import Outbox
from eps.net.arrays.pending import PendingRequests, Reply, handle, wait_for
from eps.net.arrays.seals import sealed
from eps.net.arrays.traffic import TRAFFIC
from eps.net.calls import call as rpc
from eps.net.calls.error_codec import decode_error, encode_error
from eps.net.security.credentials import NO_SECURITY, Security
from eps.system.threads import ThreadPerCall

logger = logging.getLogger(__name__)

#: The method whose messages are frames.
METHOD = "/eps.van/Stream"
#: The method that says how else this listener can be reached (``eps/net/arrays/negotiated.py``).
MEET_METHOD = "/eps.van/Meet"
GRPC = "grpc"
#: gRPC itself ends a stream that brings more, before it reserves memory for it; the frames' own limit is below.
_MOST_MESSAGE_BYTES = 2 * MAX_FRAME_BYTES
_JOIN_S = 5.0


class GrpcVan:
    """A van over gRPC.

    Parameters
    ----------
    security : Security
        gRPC knows its peers by it: on one host by the folder of the socket, between hosts by certificates.
    limits : Limits, optional
    max_connections : int
        To one listener; a further one is refused.
    """

    transport = GRPC

    def __init__(
        self, security: Security = NO_SECURITY, limits: Limits | None = None, max_connections: int = 1024
    ) -> None:
        self._security = security
        self._limits = limits or Limits()
        self._max_connections = max_connections

    lends = False

    def empty(self, shape: int | tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """Return an uninitialised array; frames are copies whatever memory it has."""
        return np.empty(shape, dtype)

    def listen(
        self,
        handler: Handler,
        host: str = "127.0.0.1",
        port: int = 0,
        meet: Callable[[bytes], bytes] | None = None,
    ) -> GrpcListener:
        """Take connections; ``meet`` answers :data:`MEET_METHOD`, where it is given."""
        return GrpcListener(handler, host, port, self._security, self._limits, self._max_connections, meet)

    def connect(self, address: Address, timeout_s: float = 10.0) -> GrpcConnection:
        """Connect to a listener; a refused connection fails at once, whatever ``timeout_s`` is."""
        return GrpcConnection(address, self._security, self._limits, timeout_s)


class GrpcConnection:
    """The requesting end of a stream."""

    transport = GRPC

    def __init__(self, address: Address, security: Security, limits: Limits, timeout_s: float) -> None:
        self._address = address
        self._limits = limits
        self._pending = PendingRequests()
        self._outbox = Outbox(limits)
        self._greeted = threading.Event()
        self._refusal: EpsError | None = None
        self._channel = rpc.channel(address, security)
        channel: Any = self._channel
        self._call = channel.stream_stream(METHOD)(iter(self._outbox))
        self._reader = threading.Thread(target=self._read, name=f"eps-van-read-{address}", daemon=True)
        self._reader.start()
        if not self._greeted.wait(timeout_s):
            self.close()
            raise PeerUnavailableError(f"{address} did not answer within {timeout_s} s")
        if self._refusal is not None:
            self.close()
            raise self._refusal

    @property
    def closed(self) -> bool:
        """True once the connection is closed or known to be broken."""
        return self._pending.closed

    def request(self, message: Message) -> Future[Message]:
        """Send a request."""
        full = sealed(message)
        size_bytes = check_message(full, self._limits)
        request_id, future = self._pending.add()
        TRAFFIC.sent(message)
        try:
            # Where it is closed in the meantime, the future fails with the other outstanding ones.
            self._outbox.put(full, size_bytes, request_id, Kind.REQUEST)
        except DeadlineError:
            self._pending.withdraw(request_id)
            raise
        return future

    def close(self) -> None:
        """Fail what is outstanding and give everything back."""
        self._pending.fail_all(f"the connection to {self._address} was closed")
        self._outbox.close()
        self._call.cancel()
        if self._reader is not threading.current_thread():
            self._reader.join(_JOIN_S)
        self._channel.close()

    def call(self, message: Message, timeout_s: float) -> Message:
        """Send a request and wait for its reply."""
        return wait_for(self.request(message), str(self._address), timeout_s)

    def _read(self) -> None:
        decoder = Decoder(self._limits, (Kind.HELLO, Kind.REPLY, Kind.ERROR))
        error: EpsError = PeerUnavailableError(f"{self._address} ended the connection")
        try:
            for frame in self._call:
                received = decoder.feed(frame)
                if received is not None:
                    self._take(received)
        except grpc.RpcError as rpc_error:
            error = rpc.error_of(rpc_error, f"connection to {self._address}")
        except FrameError as frame_error:
            logger.warning("%s sent what is not a frame: %s", self._address, frame_error)
            error = frame_error
            self._call.cancel()
        finally:
            # Also where memory ran out: whoever waits for a reply must not wait for a thread that is gone.
            self._pending.fail_all(str(error))
            self._outbox.close()
            if not self._greeted.is_set():
                self._refusal = error
                self._greeted.set()

    def _take(self, received: Received) -> None:
        kind, request_id, message = received
        if kind is Kind.HELLO:
            if self._greeted.is_set():
                raise FrameError("a second hello")
            self._greeted.set()
            return
        outcome: Message | EpsError = message
        if kind is Kind.ERROR:
            try:
                outcome = decode_error(message.header)
            except ValueError as error:
                raise FrameError(str(error)) from error
        if not self._pending.resolve(request_id, outcome):
            raise FrameError(f"a reply to request {request_id}, which does not wait for one")


class GrpcListener:
    """A gRPC server that knows the van's methods."""

    def __init__(
        self,
        handler: Handler,
        host: str,
        port: int,
        security: Security,
        limits: Limits,
        max_connections: int,
        meet: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._threads = ThreadPerCall("eps-van-write")
        pool: Any = self._threads
        self._server = grpc.server(
            pool,
            interceptors=[rpc.ServicerErrors()],
            # Of an option that is given twice, gRPC takes the first.
            options=(("grpc.max_receive_message_length", _MOST_MESSAGE_BYTES), *rpc.CHANNEL_OPTIONS),
            maximum_concurrent_rpcs=max_connections,
        )
        self._server.add_generic_rpc_handlers((_Methods(handler, limits, meet),))
        self._address = rpc.bind(self._server, host, port, security)
        self._server.start()

    @property
    def address(self) -> Address:
        """Where to connect."""
        return self._address

    def close(self) -> None:
        """End all connections and give everything back."""
        self._server.stop(None).wait()
        self._threads.join(_JOIN_S)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc,type-arg,unused-ignore]
    """Answers :data:`METHOD` and, where it is wanted, :data:`MEET_METHOD`; bytes in, bytes out."""

    def __init__(self, handler: Handler, limits: Limits, meet: Callable[[bytes], bytes] | None) -> None:
        self._handler = handler
        self._limits = limits
        self._meet = meet

    def service(self, handler_call_details: Any) -> Any:
        """Return what runs the call; None for another method."""
        if handler_call_details.method == METHOD:
            return grpc.stream_stream_rpc_method_handler(self._connection)
        meet = self._meet
        if handler_call_details.method == MEET_METHOD and meet is not None:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: meet(request))
        return None

    def _connection(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        return _ServedStream(self._handler, self._limits, frames, context).run()


class _ServedStream:
    """The answering end of a stream: the thread that gRPC calls us on writes, one of ours reads and calls the handler.

    All replies go through the outbox, so that nobody but this connection ever waits for its peer: while more
    than ``max_outgoing_bytes`` wait for it to take them, none of its further requests are read.
    """

    def __init__(self, handler: Handler, limits: Limits, frames: Iterator[bytes], context: Any) -> None:
        self._handler = handler
        self._limits = limits
        self._frames = frames
        self._context = context
        self._outbox = Outbox(limits, senders_wait=False)
        self._written = threading.Event()
        self._error: FrameError | None = None

    def run(self) -> Iterator[bytes]:
        """Yield the frames to send, until either end has had enough."""
        reader = threading.Thread(target=self._read, name="eps-van-serve", daemon=True)
        if not self._context.add_callback(self._outbox.close):
            return
        self._outbox.put(Message(), 0, 0, Kind.HELLO)
        reader.start()
        try:
            yield from self._outbox
        finally:
            self._outbox.close()
            self._written.set()
            reader.join()
        if self._error is not None:
            raise self._error

    def _read(self) -> None:
        decoder = Decoder(self._limits, (Kind.REQUEST,))
        try:
            for frame in self._frames:
                received = decoder.feed(frame)
                if received is not None:
                    reply = Reply(self._answer, received.request_id)
                    handle(self._handler, received.message, reply)
                if self._outbox.waiting_bytes > self._limits.max_outgoing_bytes:
                    self._outbox.await_taken()
        except FrameError as error:
            logger.warning("a connection is ended, its peer sent what is not a frame: %s", error)
            self._error = error
        except DeadlineError as error:
            logger.warning("a connection is ended, its peer does not take what it asked for: %s", error)
        except grpc.RpcError as error:
            logger.debug("the peer of a connection has gone: %s", error)
        finally:
            self._outbox.close()
        if not self._written.wait(_JOIN_S):
            # The peer takes nothing, so that no status would reach it either.
            self._context.cancel()

    def _answer(self, request_id: int, outcome: Message | EpsError) -> None:
        kind = Kind.REPLY
        if not isinstance(outcome, Message):
            outcome, kind = Message(encode_error(outcome)), Kind.ERROR
        outcome = sealed(outcome)
        self._outbox.put(outcome, check_message(outcome, self._limits), request_id, kind)
