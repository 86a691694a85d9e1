"""The server process: wires session, data plane and shell together.

Source: EPS §2.2, §5.2.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from eps.core import messages as m
from eps.errors import EpsError, ProtocolError
from eps.net.arrays.api import TRAFFIC, Message, ReplyTo
from eps.net.arrays.in_process import InProcessVan
from eps.net.arrays.memory import raise_descriptor_limit, tune_malloc
from eps.net.arrays.negotiated import NegotiatedVan
from eps.net.control.finder import master_finder
from eps.net.control.session import MemberSession, Patience
from eps.net.security.credentials import Security
from eps.server.shell import ServerShell
from eps.spec.runtime import Runtime
from eps.system.logs import set_up_logging

if TYPE_CHECKING:
    from eps.cluster.supervisor.process import ContainerContext

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 60.0


class Server:
    """One server, in a process of its own or in that of a host.

    Parameters
    ----------
    context : ContainerContext
    seat : str, optional
        The name under which it registers; by default that of its container.
    within : InProcessVan, optional
        Shared with the other member of the process.
    """

    def __init__(self, context: ContainerContext, seat: str = "", within: InProcessVan | None = None) -> None:
        self._context = context
        self._seat = seat or context.container_id
        self._security = Security.of_job(context.job_dir)
        self._van = NegotiatedVan(self._security, within=within)
        self._closers: list[Callable[[], None]] = []
        self.session: MemberSession | None = None
        self._shell: ServerShell | None = None
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._exit_code, self._reason = 0, ""
        self.name = context.container_id

    def run(self) -> int:
        """Register, serve until shut down, and return the exit code."""
        listener = self._van.listen(self._handle, self._context.host)
        assert self._context.master_address is not None
        self.session = session = MemberSession(
            self._context.master_address,
            self._seat,
            listener.address,
            os.getpid(),
            self._security,
            find=master_finder(self._context.job_dir),
        )
        self._closers += [listener.close, session.close]
        welcome = session.open(self._on_order, self._on_session_end)()
        self.name = welcome.name
        runtime = Runtime.from_json(welcome.job_json).within(self._context.job_dir)
        recovery = runtime.spec.recovery
        session.be_patient(Patience.of_job(recovery.member_timeout_s, recovery.master_timeout_s))
        self._van.restrict_to(runtime.spec.network.van)
        self._van.on_reached = lambda peer, way: session.report(m.PeerReached(self.name, peer, way), can_wait=True)
        self._shell = ServerShell(runtime, self.name, self._van, session.report)
        self._closers.append(self._shell.close)
        self._ready.set()
        logger.info("S[%s] M ready at %s", self.name, listener.address)
        # No member needs this server any more, so most resources are left to the exit of the process, if that follows.
        self._ended.wait()
        self._shell.end_writing()
        self._say_end()
        return self._exit_code

    def close(self) -> None:
        """Release all resources, in a process that goes on."""
        for close in reversed(self._closers):
            close()

    def _handle(self, message: Message, reply: ReplyTo) -> None:
        if not self._ready.wait(READY_TIMEOUT_S) or self._shell is None:
            raise ProtocolError("this server is not ready")
        self._shell.handle(message, reply)

    def _on_order(self, order: m.Order) -> None:
        if isinstance(order, m.Shutdown):
            self._end(0, order.reason)
            return
        self._ready.wait()
        assert self._shell is not None
        self._shell.on_order(order)

    def _on_session_end(self, error: EpsError | None) -> None:
        if error is not None and not self._ended.is_set():
            self._end(1, f"the job master is unreachable: {error}")

    def _end(self, exit_code: int, reason: str) -> None:
        logger.info("S[%s] %s", self.name, TRAFFIC)
        self._exit_code, self._reason = exit_code, reason
        self._ended.set()
        if not self._ready.is_set():
            # Shut down before the welcome: nothing has started that needs an orderly end.
            self._say_end()
            os._exit(exit_code)

    def _say_end(self) -> None:
        # Must be the last line: YARN reports the end of a failed container's log.
        logger.info("S[%s] M ends: %s", self.name, self._reason)


def run(context: ContainerContext) -> int:
    """Entry point of a server's container."""
    set_up_logging()
    tune_malloc()
    raise_descriptor_limit()
    return Server(context).run()
