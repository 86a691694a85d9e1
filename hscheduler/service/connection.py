"""A client's connection to a service.  It reconnects when the service restarts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from eps.core.types import Address
from eps.errors import EpsError, PeerUnavailableError
from eps.net.calls.call import call, channel
from eps.net.security.credentials import Security
from hscheduler.pb.scheduler_pb2_grpc import HSchedulerStub
from hscheduler.service.directory import ServiceDir, parse_address

#: Seconds without an answer after which a call fails; a restart of the service takes less.
GIVE_UP_S = 30.0
CALL_TIMEOUT_S = 60.0
RETRY_S = 0.1

_make_stub: Callable[[grpc.Channel], HSchedulerStub] = HSchedulerStub


class Connection:
    """The connection of one client; thread-safe.  Parameters and errors as of :class:`SchedulerClient`."""

    def __init__(self, directory: ServiceDir, address: str, give_up_s: float) -> None:
        self._directory = directory
        self._given = parse_address(address) if address else None
        self._give_up_s = give_up_s
        # Raise now if the certificates are missing.
        self._security()
        #: Until the first answer, calls to a directory without a service fail at once.
        self._has_answered = False
        self._address: Address | None = None
        self._channel: grpc.Channel | None = None
        #: Guards the two above.
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        self._forget(self._channel)

    def call(self, method: str, request: Any, what: str, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Return the reply to a call; raises as :meth:`repeated`."""
        return self.repeated(lambda stub: call(getattr(stub, method), request, timeout_s, what), what)

    def repeated(self, attempt: Callable[[HSchedulerStub], Any], what: str) -> Any:
        """Return the result of ``attempt``; retry it while the service is unreachable.

        Raises
        ------
        PeerUnavailableError
            The service does not answer in time, or does not run.
        EpsError
            As ``attempt``.
        """
        since_s: float | None = None
        while True:
            try:
                found = self._attempted(attempt)
                self._has_answered = True
                return found
            except PeerUnavailableError as error:
                if not (self._has_answered or self._given or self._directory.is_running()):
                    raise PeerUnavailableError(f"{what}: {self._directory.not_running()}") from error
                now_s = time.monotonic()
                since_s = now_s if since_s is None else since_s
                if now_s - since_s > self._give_up_s:
                    raise PeerUnavailableError(
                        f"{what}: H-scheduler has not answered for {self._give_up_s:g} s ({error})"
                    ) from error
            time.sleep(RETRY_S)

    def _attempted(self, attempt: Callable[[HSchedulerStub], Any]) -> Any:
        line = self._open()
        try:
            return attempt(_make_stub(line))
        except PeerUnavailableError:
            self._forget(line)
            raise
        except ValueError as error:
            # gRPC raises ValueError if another thread closes the channel concurrently.
            if isinstance(error, EpsError) or line is self._channel:
                raise
            raise PeerUnavailableError(f"the connection was closed: {error}") from error

    def _security(self) -> Security:
        """Return the certificates or sockets.  A restarted service may use the other kind."""
        return self._directory.known_security(between_hosts=self._given is not None)

    def _open(self) -> grpc.Channel:
        address = self._given or self._directory.address()
        with self._lock:
            if self._channel is not None and address == self._address:
                return self._channel
            before = self._channel
            self._address, self._channel = address, channel(address, self._security())
            found = self._channel
        if before is not None:
            before.close()
        return found

    def _forget(self, line: grpc.Channel | None) -> None:
        """Close a channel, unless another thread has already replaced it."""
        # A call of another thread over it fails as unavailable, and is retried.
        with self._lock:
            is_ours = line is self._channel
            if is_ours:
                self._channel = self._address = None
        if is_ours and line is not None:
            line.close()
