"""YARN's own preemption and ours must not take from the same queue: one would undo what the other does.

What YARN says of a queue (``preemptionDisabled``) counts also what it inherits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eps.errors import ConfigError
from hscheduler.yarn.rest import queues_of


def check_preemption(queues: Sequence[str], scheduler: Mapping[str, Any]) -> None:
    """Refuse queues from which YARN itself preempts.

    Parameters
    ----------
    queues : sequence of str
        Names, or whole paths as ``root.research.eps``.
    scheduler : mapping
        What ``/ws/v1/cluster/scheduler`` answers.

    Raises
    ------
    ConfigError
        There is no such queue, or YARN preempts from it; the message says what to set.
    """
    known = queues_of(scheduler)
    for queue in queues:
        found = [path for path in known if queue in (path, path.rpartition(".")[2])]
        if not found:
            raise ConfigError(f"queue is {queue!r}, but YARN has {', '.join(sorted(known)) or 'none that it tells of'}")
        for path in found:
            if known[path].get("preemptionDisabled") is not True:
                raise ConfigError(
                    f"YARN's own preemption may take from queue {path}, and would fight with H-scheduler's: set "
                    f"yarn.scheduler.capacity.{path}.disable_preemption to true in capacity-scheduler.xml, and run "
                    "yarn rmadmin -refreshQueues"
                )
