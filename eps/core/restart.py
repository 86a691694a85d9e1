"""A job master that another process takes over, and one whose job has ended: what is said then.  L0, pure.

A state is a function of the events that it has seen, so the next process has it whole.  What it does not have is what
its commands have done: what was on its way when the process before ended.  Every one of them may be given again, so
what is outstanding is simply said once more.

Source: design section 4 (every message is idempotent; a process killed at any step leads to a correct end).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eps.core import events as e
from eps.core.events import ENDED_STATES, JobState
from eps.errors import JobFinishedError

if TYPE_CHECKING:
    from eps.core.master_state import MasterState

#: Why a container is taken to have ended whose process did not outlive the master's.
ENDED_AWAY = "ended while the job master was away"


def restarted(state: MasterState, event: e.MasterRestarted) -> None:
    """Take over a job that goes on.

    Orders to members follow when they register again, for until then there is nobody to send them to.
    """
    _begin(state, event)
    for container_id, record in list(state._by_container.items()):
        if state.state in ENDED_STATES:
            return
        if container_id not in state._by_container:
            # A plan was aborted because of one before it.
            continue
        pid = event.running.get(container_id)
        if pid is not None:
            state._on_launched(e.ContainerLaunched(container_id, pid))
        elif record.launched:
            state._on_exited(e.ContainerExited(container_id, ENDED_AWAY))
        else:
            state._out.append(e.RequestContainer(container_id, record.role))
    state._resend_at_s = state._now_s
    state.checkpoints.taken_over()
    if state.state is JobState.EXPORTING:
        state._out.append(e.StartExport(state._export))


def after_the_end(state: MasterState, event: e.Event) -> None:
    """Answer what comes after a job has ended."""
    if isinstance(event, e.ChangeRequested | e.CancelRequested):
        error = JobFinishedError(f"the job has {state.state}: it cannot be changed any more")
        state._out.append(e.Answer(event.request_id, error=error))
    elif isinstance(event, e.MemberRegistered):
        state._out.append(e.ReleaseContainer(event.container_id))
    elif isinstance(event, e.MasterRestarted):
        _begin(state, event)
        state._out.append(e.EndJob(state.state, state.reason))


def _begin(state: MasterState, event: e.MasterRestarted) -> None:
    state.generation = event.generation
    state._journal({"kind": "restarted", "generation": event.generation, "running": len(event.running)}, sync=True)
    ended = state.state in ENDED_STATES
    for container_id in event.running:
        # Its release was decided, and perhaps not done.
        if ended or container_id not in state._by_container:
            state._out.append(e.ReleaseContainer(container_id))
