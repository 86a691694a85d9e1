"""The worker process: wires session, data plane, datasets and training loop together.

Source: EPS §2.2.
"""

from __future__ import annotations

import logging
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from eps.core import messages as m
from eps.core.types import Address
from eps.errors import EpsError, ProtocolError
from eps.net.arrays.api import TRAFFIC, Message, ReplyTo
from eps.net.arrays.in_process import InProcessVan
from eps.net.arrays.memory import raise_descriptor_limit, tune_malloc
from eps.net.arrays.negotiated import NegotiatedVan
from eps.net.control.finder import master_finder
from eps.net.control.session import MemberSession, Patience
from eps.net.messages.exchange import simple
from eps.net.security.credentials import Security
from eps.spec.runtime import Runtime
from eps.system.logs import set_up_logging
from eps.worker.datasets import Datasets
from eps.worker.shell import TRANSFER_TIMEOUT_S, WorkerShell, make_shell

if TYPE_CHECKING:
    from eps.cluster.supervisor.process import ContainerContext

logger = logging.getLogger(__name__)


class Worker:
    """One worker, in a process of its own or in that of a host.

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
        self._shell: WorkerShell | None = None
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._exit_code = 0
        self.name = context.container_id

    def run(self) -> int:
        """Register, train, and return the exit code."""
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
        # A host's next worker does not have the copies of the one before, also for the job master.
        folder = "splits" if self._seat == self._context.container_id else f"splits-{self.name}"
        datasets = Datasets(runtime, runtime.job_dir / "containers" / self._context.container_id / folder)
        self._shell = shell = make_shell(runtime, self.name, self._van, datasets, session.report)
        self._closers += [shell.close, datasets.remove]
        shell.prepare([Address(server.host, server.port) for server in welcome.servers])
        self._ready.set()
        logger.info("W[%s] M ready at %s", self.name, listener.address)
        try:
            shell.loop.run()
        except Exception as error:
            # A user's model may raise anything; the master must know why this worker stops.
            if not self._ended.is_set():
                logger.exception("W[%s] cannot continue", self.name)
                session.report(m.MemberFailed(self.name, type(error).__name__, describe(error)))
        # No member needs this worker any more, so resources are left to the exit of the process, if that follows.
        self._ended.wait()
        return self._exit_code

    def close(self) -> None:
        """Release all resources, in a process that goes on."""
        for close in reversed(self._closers):
            close()

    # ---- the session's thread

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
        logger.info("W[%s] %s", self.name, TRAFFIC)
        # Must be the last line: YARN reports the end of a failed container's log.
        logger.info("W[%s] M ends: %s", self.name, reason)
        self._exit_code = exit_code
        self._ended.set()
        if self._shell is not None:
            self._shell.stop()
        if not self._ready.is_set():
            # Shut down before the welcome: nothing has started that needs an orderly end.
            os._exit(exit_code)

    # ---- a thread of the data plane

    def _handle(self, message: Message, reply: ReplyTo) -> None:
        if not self._ready.wait(TRANSFER_TIMEOUT_S):
            raise ProtocolError("this worker is not ready to receive splits")
        assert self._shell is not None
        self._shell.receive(message)
        reply.send(Message(simple("done")))


def describe(error: Exception) -> str:
    """Return an error as text; errors of other libraries with their type and the line that raised them."""
    if isinstance(error, EpsError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def run(context: ContainerContext) -> int:
    """Entry point of a worker's container."""
    set_up_logging()
    tune_malloc()
    raise_descriptor_limit()
    return Worker(context).run()
