"""The process of a host: a worker and a server in one container, which hand each other arrays.

A member that is shut down is followed by the next one, which registers and is spare until a plan needs it.

SIGTERM is a warning: the job master drains the container and then releases it, which ends the process.

Source: Proteus §3.1 (one process on each machine), §3.3 (warnings).
"""

from __future__ import annotations

import logging
import os
import signal as signals
import threading
import traceback
from typing import TYPE_CHECKING

from eps.core.evictions import NOTICE_S
from eps.core.members import seat_of
from eps.core.types import Role
from eps.net.arrays.in_process import InProcessVan
from eps.net.arrays.memory import raise_descriptor_limit, tune_malloc
from eps.server.main import Server
from eps.system.logs import set_up_logging
from eps.worker.main import Worker

if TYPE_CHECKING:
    from eps.cluster.supervisor.process import ContainerContext

logger = logging.getLogger(__name__)

_KINDS: dict[Role, type[Worker] | type[Server]] = {Role.WORKER: Worker, Role.SERVER: Server}


class Host:
    """A worker and a server, each on a thread."""

    def __init__(self, context: ContainerContext) -> None:
        self._context = context
        self._within = InProcessVan()
        self._members: dict[Role, Worker | Server] = {}
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
                self._members[role] = member = _KINDS[role](self._context, seat, self._within)
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
    """Entry point of a host's container."""
    set_up_logging()
    tune_malloc()
    raise_descriptor_limit()
    return Host(context).run()
