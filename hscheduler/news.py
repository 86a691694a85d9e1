"""What happens to H-scheduler, as sentences for whoever watches."""

from __future__ import annotations

from collections.abc import Sequence

from hscheduler.core import events as e
from hscheduler.core.jobs import Phase


def sentences(event: e.Event, commands: Sequence[e.Command]) -> list[str]:
    """Return what somebody may want to see of an event and of what it brought about; often nothing."""
    lines = []
    match event:
        case e.FeedbackGiven(job_id, value):
            lines.append(f"{job_id} gives early feedback: {value:.6g}")
        case e.JobEnded(job_id, Phase.FINISHED, _):
            lines.append(f"{job_id} finished")
        case e.JobEnded(job_id, Phase.FAILED, why):
            lines.append(f"{job_id} failed: {why}")
        case e.GrowthFailed(job_id, _, why) | e.ShrinkFailed(job_id, _, why):
            lines.append(f"{job_id} keeps its size: {why}")
        case e.JobRefused(job_id, _, why):
            lines.append(f"{job_id} is refused: {why}")
    return lines + [command.sentence for command in commands if isinstance(command, e.Explain)]


def jobs_of(event: e.Event, commands: Sequence[e.Command]) -> set[str]:
    """Return the jobs that an event and what it brought about are of."""
    found = {command.job_id for command in commands if not isinstance(command, e.Explain)}
    for command in commands:
        if isinstance(command, e.Explain):
            found.update(command.jobs)
    match event:
        case e.JobSubmitted(request):
            found.add(request.job_id)
        case e.SweepOpened() | e.SweepClosed() | e.NodeCame() | e.NodeLost():
            pass
        case _:
            found.add(event.job_id)
    return found
