"""The state with which the first master of a job begins: its settings, as the pure core takes them.  L3."""

from __future__ import annotations

import time

from eps.core.job import Job
from eps.master.checkpoints import driver_of
from eps.spec.runtime import Runtime


def first_state(runtime: Runtime, generation: int) -> Job:
    """Return the state of a job without logged state.

    Parameters
    ----------
    runtime : Runtime
    generation : int
        The one after that of the master that was announced last; 1 where none was.
    """
    spec, start = runtime.spec, runtime.start
    state = Job(
        runtime.settings,
        start.workers or spec.workers,
        start.servers or spec.servers,
        [trigger for trigger in spec.triggers() if trigger.clock > start.triggers_asked],
        stop_on_divergence=spec.on_divergence == "stop",
        checkpoints=driver_of(runtime),
        first_container=start.first_container,
        managed=bool(runtime.manager),
        start_with=spec.start_with,
        # Later masters have it from the log, with the rest of the state.
        seed=f"{runtime.name} {time.time_ns()}",
    )
    state.masters.generation = generation
    return state
