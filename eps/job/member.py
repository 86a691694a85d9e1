"""The processes of a job's members: a worker or a server, or a host, which has one of each in one container.

A member wires session, data plane and shell together.  A host's members hand each other arrays.  A member of a host
that is shut down is followed by the next one, which registers and is spare until a plan needs it.  SIGTERM is a warning
to a host: the job master drains the container and then releases it, which ends the process.

Source: EPS §2.2, §5.2; Proteus §3.1 (one process on each machine), §3.3 (warnings).
"""

from __future__ import annotations

import logging
import os
import signal as signals
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from eps.core import messages as m
from eps.core.evictions import NOTICE_S
from eps.core.members import seat_of
from eps.core.types import Address, Role
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
from eps.worker.datasets import Datasets
from eps.worker.shell import WorkerShell, make_shell

if TYPE_CHECKING:
    from eps.cluster.supervisor.process import ContainerContext

logger = logging.getLogger(__name__)

#: A message waits this long for a member that starts.
READY_TIMEOUT_S = 120.0


class Member:
    """A worker or a server, in a process of its own or in that of a host.

    Parameters
    ----------
    context : ContainerContext
    role : Role
    seat : str, optional
        The name under which it registers; by default that of its container.
    within : InProcessVan, optional
        Shared with the other member of the process.
    """

    def __init__(
        self, context: ContainerContext, role: Role, seat: str = "", within: InProcessVan | None = None
    ) -> None:
        self._context = context
        self._role = role
        self._seat = seat or context.container_id
        self._security = Security.of_job(context.job_dir)
        self._van = NegotiatedVan(self._security, within=within)
        self._closers: list[Callable[[], None]] = []
        self.session: MemberSession | None = None
        self._shell: WorkerShell | ServerShell | None = None
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._exit_code, self._reason = 0, ""
        self.name = context.container_id

    def run(self) -> int:
        """Register, train or serve until shut down, and return the exit code."""
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
        shell: WorkerShell | ServerShell
        if self._role is Role.WORKER:
            # A host's next worker does not have the copies of the one before, also for the job master.
            folder = "splits" if self._seat == self._context.container_id else f"splits-{self.name}"
            datasets = Datasets(runtime, runtime.job_dir / "containers" / self._context.container_id / folder)
            self._shell = shell = make_shell(runtime, self.name, self._van, datasets, session.report)
            self._closers += [shell.close, datasets.remove]
            shell.prepare([Address(server.host, server.port) for server in welcome.servers])
        else:
            self._shell = shell = ServerShell(runtime, self.name, self._van, session.report)
            self._closers.append(shell.close)
        self._ready.set()
        logger.info("%s M ready at %s", self._tag, listener.address)
        if isinstance(shell, WorkerShell):
            self._train(shell, session)
        # No member needs this one any more, so most resources are left to the exit of the process, if that follows.
        self._ended.wait()
        if isinstance(shell, ServerShell):
            shell.end_writing()
        self._say_end()
        return self._exit_code

    def close(self) -> None:
        """Release all resources, in a process that goes on."""
        for close in reversed(self._closers):
            close()

    @property
    def _tag(self) -> str:
        return f"{self._role[0].upper()}[{self.name}]"

    def _train(self, shell: WorkerShell, session: MemberSession) -> None:
        try:
            shell.loop.run()
        except Exception as error:
            # A user's model may raise anything; the master must know why this worker stops.
            if not self._ended.is_set():
                logger.exception("%s cannot continue", self._tag)
                session.report(m.MemberFailed(self.name, type(error).__name__, _describe(error)))

    def _handle(self, message: Message, reply: ReplyTo) -> None:
        if not self._ready.wait(READY_TIMEOUT_S) or self._shell is None:
            raise ProtocolError(f"this {self._role} is not ready")
        self._shell.handle(message, reply)

    # ---- the session's threads

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
        logger.info("%s %s", self._tag, TRAFFIC)
        self._exit_code, self._reason = exit_code, reason
        self._ended.set()
        if isinstance(self._shell, WorkerShell):
            self._shell.stop()
        if not self._ready.is_set():
            # Shut down before the welcome: nothing has started that needs an orderly end.
            self._say_end()
            os._exit(exit_code)

    def _say_end(self) -> None:
        # Must be the last line: YARN reports the end of a failed container's log.
        logger.info("%s M ends: %s", self._tag, self._reason)


def _describe(error: Exception) -> str:
    """Return an error as text; errors of other libraries with their type and the line that raised them."""
    if isinstance(error, EpsError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


class Host:
    """A worker and a server, each on a thread."""

    def __init__(self, context: ContainerContext) -> None:
        self._context = context
        self._within = InProcessVan()
        self._members: dict[Role, Member] = {}
        self._ended = threading.Event()
        self._exit_code = 0

    def run(self) -> int:
        """Run members until one cannot go on, or until the container is released, which ends the process."""
        signals.signal(signals.SIGTERM, self._on_sigterm)
        for role in Role:
            threading.Thread(target=self._run, args=(role,), name=str(role), daemon=True).start()
        self._ended.wait()
        return self._exit_code

    def _on_sigterm(self, number: int, frame: object) -> None:
        """Ask the job master to drain this container.

        End when the notice has passed, at the next SIGTERM, or at once if no master has a member of this process.
        """
        signals.signal(number, signals.SIG_DFL)
        sessions = [member.session for member in self._members.values() if member.session is not None]
        if not any([session.warn(NOTICE_S, f"got {signals.Signals(number).name}") for session in sessions]):
            os.kill(os.getpid(), number)
        end = threading.Timer(NOTICE_S, os.kill, (os.getpid(), number))
        end.daemon = True
        end.start()

    def _run(self, role: Role) -> None:
        seat = seat_of(self._context.container_id, role)
        try:
            while True:
                self._members[role] = member = Member(self._context, role, seat, self._within)
                code = member.run()
                if code:
                    self._exit_code = code
                    break
                member.close()
        except Exception:
            # As at the end of a process: the last lines of its log say why.
            traceback.print_exc()
            self._exit_code = 1
        self._ended.set()


def run(context: ContainerContext) -> int:
    """Entry point of a container of workers, servers or both."""
    set_up_logging()
    tune_malloc()
    raise_descriptor_limit()
    if context.role in tuple(Role):
        return Member(context, Role(context.role)).run()
    return Host(context).run()
