"""Control-plane calls: the mapping between EPS's errors and gRPC status, and creation of channels and servers.

An error is sent as a gRPC status, for gRPC's own tools, and as two trailers that preserve its class: ``eps-error`` (its
name) and ``eps-error-bin`` (name, message and data attributes).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import grpc
import grpc._common

from eps import errors
from eps.core.types import MOST_MEMBERS, UNIX_SOCKET, Address
from eps.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineError,
    EpsError,
    PeerUnavailableError,
    ProtocolError,
    RpcError,
)
from eps.net.calls.error_codec import decode_error, encode_error, error_name, shortened
from eps.net.security.credentials import NO_SECURITY, TLS_NAME, Security
from eps.system.threads import ThreadPerCall

logger = logging.getLogger(__name__)

# gRPC wakes each waiting thread ten times a second to look for signals.  Python 3 interrupts such waits by itself.
grpc._common.MAXIMUM_WAIT_TIMEOUT = 10.0

#: Maximum number of concurrent calls and streams of a server, each on its own thread: a stream for every member of the
#: largest job, and calls of clients.
MOST_STREAMS = 2 * MOST_MEMBERS + 1024

_NAME_TRAILER = "eps-error"
_DETAIL_TRAILER = "eps-error-bin"

_STATUS: dict[type[EpsError], grpc.StatusCode] = {
    errors.EpsError: grpc.StatusCode.UNKNOWN,
    errors.ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.JobExistsError: grpc.StatusCode.ALREADY_EXISTS,
    errors.DataError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.PlanError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnknownMemberError: grpc.StatusCode.NOT_FOUND,
    errors.JobFinishedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ProtocolError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.IllegalTransitionError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.FrameError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.AuthenticationError: grpc.StatusCode.UNAUTHENTICATED,
    errors.TransferError: grpc.StatusCode.DATA_LOSS,
    errors.TakenOverError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StorageError: grpc.StatusCode.INTERNAL,
    errors.ResourceError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ResourceAwayError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TrainingError: grpc.StatusCode.INTERNAL,
    errors.RpcError: grpc.StatusCode.UNKNOWN,
    errors.PeerUnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.JobNotFoundError: grpc.StatusCode.NOT_FOUND,
}

# Statuses from gRPC itself or from a foreign peer; all others become RpcError.
_CLASS_OF_STATUS: dict[grpc.StatusCode, type[EpsError]] = {
    grpc.StatusCode.UNAVAILABLE: PeerUnavailableError,
    # This end was closed, or the peer's server stopped during the call.
    grpc.StatusCode.CANCELLED: PeerUnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.UNIMPLEMENTED: ProtocolError,
    grpc.StatusCode.UNAUTHENTICATED: AuthenticationError,
    grpc.StatusCode.PERMISSION_DENIED: ProtocolError,
    grpc.StatusCode.INVALID_ARGUMENT: ProtocolError,
}

#: Options of every channel and server, control and data plane alike.
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 64 * 1024),
    # A proxy from the environment would intercept connections between members.
    ("grpc.enable_http_proxy", 0),
    # Two listeners on one port must not share connections: the second one must fail.
    ("grpc.so_reuseport", 0),
    # Each channel has its own connection, so that closing it frees the descriptor.
    ("grpc.use_local_subchannel_pool", 1),
    # Detect a lost machine after half a minute.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    # A silent peer must not hold a descriptor for long.
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 60_000),
    # EPS's callers retry with a pause.  gRPC retries a refused call at once and without limit, and keeps the memory of
    # each attempt.  If the server announced its end before the channel expected that, grpcio 1.85.1 stays with the
    # connection: it uses a gigabyte within seconds, and the call never returns.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def status_of(error: EpsError) -> grpc.StatusCode:
    """Return the gRPC status for ``error``."""
    return next(_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS)


def abort_with(context: grpc.ServicerContext, error: EpsError) -> NoReturn:
    """End the call of ``context`` with ``error``; :func:`call` raises it in the caller."""
    context.set_trailing_metadata(((_NAME_TRAILER, error_name(error)), (_DETAIL_TRAILER, encode_error(error))))
    context.abort(status_of(error), shortened(str(error)) or error_name(error))
    raise AssertionError("abort returned")


def error_of(rpc_error: grpc.RpcError, what: str) -> EpsError:
    """Return EPS's error for a failed call; ``what`` names the call in the message."""
    # The error has a status, but the type grpc.RpcError does not declare it.
    failed: Any = rpc_error
    code = failed.code()
    for key, value in failed.trailing_metadata() or ():
        if key == _DETAIL_TRAILER:
            try:
                return decode_error(value)
            except ValueError:
                break
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(f"no answer in time to {what}")
    cls = _CLASS_OF_STATUS.get(code, RpcError)
    # Some of gRPC's texts end with garbage from its memory.
    details = (failed.details() or "no details").partition("\n")[0]
    return cls(f"{what}: {details} ({code.name if code else 'no status'})")


def call(method: Callable[..., Any], request: Any, timeout_s: float, what: str) -> Any:
    """Call a unary method of a stub and return its reply.

    Parameters
    ----------
    method : callable
        Method of a stub, such as ``stub.Register``.
    request : protobuf message
    timeout_s : float, seconds
    what : str
        Purpose of the call, for messages: ``"register worker-3 at the job master"``.

    Raises
    ------
    EpsError
        The servicer raised this exact class.
    DeadlineError
        No answer within ``timeout_s``.
    PeerUnavailableError
        The peer is unreachable.
    RpcError
        Any other failure of the call.
    """
    try:
        return method(request, timeout=timeout_s)
    except grpc.RpcError as rpc_error:
        raise error_of(rpc_error, f"{what} (deadline {timeout_s} s)") from rpc_error


def channel(address: Address | str, security: Security = NO_SECURITY) -> grpc.Channel:
    """Return a channel to ``address`` with EPS's options; it connects at first use, and the caller closes it.

    Parameters
    ----------
    address : Address or str
    security : Security
        With a Unix socket of the job's folder, or with mutual TLS, both ends are authenticated.

    Raises
    ------
    AuthenticationError
        The listener cannot prove that it belongs to the job.
    StorageError
        The TLS files cannot be read, or other users can enter the socket folder.
    """
    where = str(address)
    if where.startswith(UNIX_SOCKET):
        path = security.socket_path(Address(where, 0))
        opened = grpc.insecure_channel(f"{UNIX_SOCKET}{path.text}", options=CHANNEL_OPTIONS)
        path.close_with(opened)
        return opened
    credentials = security.channel_credentials()
    if credentials is None:
        if security.sockets is not None:
            raise AuthenticationError(f"{where} cannot prove that it belongs to the job: the job has no certificates")
        return grpc.insecure_channel(where, options=CHANNEL_OPTIONS)
    options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", TLS_NAME))
    return grpc.secure_channel(where, credentials, options=options)


class ServicerErrors(grpc.ServerInterceptor):  # type: ignore[misc,type-arg,unused-ignore]
    """Convert exceptions of servicers to statuses.

    An :class:`EpsError` reaches the caller with its class.  Any other exception is a bug: it is logged with its
    traceback and reaches the caller as RpcError.
    """

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Return the method's handler, wrapped in the error conversion."""
        handler = continuation(handler_call_details)
        return None if handler is None else servicer_errors(handler, handler_call_details.method)


def servicer_errors(handler: Any, what: str) -> Any:
    """Wrap a gRPC method handler in the error conversion; ``what`` names it in the log."""

    def refuse(context: Any, error: Exception) -> NoReturn:
        if isinstance(error, EpsError):
            abort_with(context, error)
        # context.abort raises a bare Exception after setting the status.
        if type(error) is Exception and context.code() is not None:
            raise error
        logger.error("%s failed", what, exc_info=error)
        abort_with(context, RpcError(f"{what} failed with {type(error).__name__}: {error}"))

    def unary(behaviour: Callable[..., Any]) -> Callable[..., Any]:
        def run(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                return behaviour(request, context)
            except Exception as error:
                refuse(context, error)

        return run

    def stream(behaviour: Callable[..., Any]) -> Callable[..., Any]:
        def run(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                yield from behaviour(request, context)
            except Exception as error:
                refuse(context, error)

        return run

    codecs = (handler.request_deserializer, handler.response_serializer)
    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(unary(handler.unary_unary), *codecs)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(stream(handler.unary_stream), *codecs)
    if handler.stream_unary:
        return grpc.stream_unary_rpc_method_handler(unary(handler.stream_unary), *codecs)
    return grpc.stream_stream_rpc_method_handler(stream(handler.stream_stream), *codecs)


class BoundServer:
    """A gRPC server that is bound to its port but answers only after :meth:`start`; earlier callers wait.

    Parameters
    ----------
    host : str
        Address to listen on; unused if ``security`` is for one host.
    port : int
        0 lets the system choose.
    max_workers : int
        Concurrent calls and streams, each on its own thread; more are refused.
    security : Security
        For one host: the server listens on a Unix socket.  Between hosts: callers must show a certificate.

    Raises
    ------
    ConfigError
        The address cannot be listened on.
    StorageError
        The TLS files cannot be read, or other users can enter the socket folder.
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, max_workers: int = MOST_STREAMS, security: Security = NO_SECURITY
    ) -> None:
        pool: Any = ThreadPerCall("eps-rpc")
        self._server = grpc.server(
            pool, interceptors=[ServicerErrors()], options=CHANNEL_OPTIONS, maximum_concurrent_rpcs=max_workers
        )
        self.address = _bind(self._server, host, port, security)

    def start(self, register: Callable[[grpc.Server], None]) -> grpc.Server:
        """Begin to answer; ``register`` adds the servicers.  The caller ends the server with :func:`stop`."""
        register(self._server)
        self._server.start()
        return self._server


def serve(
    register: Callable[[grpc.Server], None],
    host: str = "127.0.0.1",
    port: int = 0,
    max_workers: int = MOST_STREAMS,
    security: Security = NO_SECURITY,
) -> tuple[grpc.Server, Address]:
    """Start a server with EPS's options and error conversion.

    Parameters
    ----------
    register : callable
        Adds the servicers: ``lambda server: add_JobMasterServicer_to_server(servicer, server)``.
    host, port, max_workers, security
        See :class:`BoundServer`, which also documents the errors.

    Returns
    -------
    server : grpc.Server
        Running; the caller ends it with :func:`stop`.
    address : Address
        Its address.
    """
    bound = BoundServer(host, port, max_workers, security)
    return bound.start(register), bound.address


def _bind(server: grpc.Server, host: str, port: int, security: Security = NO_SECURITY) -> Address:
    """Bind ``server`` as ``security`` requires, and return its address; errors are those of :class:`BoundServer`."""
    credentials = security.server_credentials()
    address, advice = Address(host, port), ""
    place = str(address)
    if security.is_local:
        address, advice = security.new_socket(), ": choose an EPS_HOME that supports Unix sockets, or add --tls"
        path = security.socket_path(address)
        path.close_with(server)
        place = f"{UNIX_SOCKET}{path.text}"
    try:
        if credentials is None:
            bound = server.add_insecure_port(place)
        else:
            bound = server.add_secure_port(place, credentials)
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {place}: {error}{advice}") from error
    if bound == 0:
        raise ConfigError(f"cannot listen on {place}")
    return address if address.is_unix else Address(host, int(bound))


def stop(server: grpc.Server, grace_s: float = 0.5) -> None:
    """Stop ``server``: refuse new calls, give running ones ``grace_s`` seconds; return when it has stopped."""
    server.stop(grace_s).wait()
