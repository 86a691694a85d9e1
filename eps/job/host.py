"""The process of a host: a worker and a server in one container, which hand each other arrays.

A member that is shut down is followed by the next one, which registers and is spare until a plan needs it.

Source: Proteus §3.1 (one process on each machine).
"""

from __future__ import annotations

import logging
import threading
import traceback
from typing import TYPE_CHECKING

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
        self._ended = threading.Event()
        self._exit_code = 0

    def run(self) -> int:
        """Run members until one cannot go on, or until the container is released, which ends the process."""
        for role in Role:
            threading.Thread(target=self._run, args=(role,), name=str(role), daemon=True).start()
        self._ended.wait()
        return self._exit_code

    def _run(self, role: Role) -> None:
        seat = seat_of(self._context.container_id, role)
        try:
            while True:
                member = _KINDS[role](self._context, seat, self._within)
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
