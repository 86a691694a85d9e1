"""What happens to H-scheduler, as sentences for whoever watches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from eps.errors import ConfigError, JobNotFoundError
from eps.job.status import last_words
from eps.storage.jobdir import find_job
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase, end_text
from hscheduler.reports.history import NO_SUCH_METRIC


def sentences(event: e.Event, commands: Sequence[e.Command]) -> list[str]:
    """Return what somebody may want to see of an event and of what it brought about, but for failures."""
    lines = []
    match event:
        case e.FeedbackGiven(job_id, value):
            lines.append(f"{job_id} gives early feedback: {value:.6g}")
        case e.GrowthFailed(job_id, _, why) | e.ShrinkFailed(job_id, _, why):
            lines.append(f"{job_id} keeps its size: {why}")
    lines += ends(commands)
    return _whole([*lines, *(command.sentence for command in commands if isinstance(command, e.Explain))])


def ends(commands: Sequence[e.Command]) -> list[str]:
    """Return which jobs are over, and why, but for failures."""
    over = [command for command in commands if isinstance(command, e.JobOver) and command.phase is not Phase.FAILED]
    return _whole([end_text(each.job_id, each.phase, each.why) for each in over])


def failures(commands: Sequence[e.Command], name_of: Callable[[str], str]) -> list[str]:
    """Return why trials have failed, each with the last lines of the log of whoever is at fault."""
    lines = []
    for command in commands:
        if isinstance(command, e.JobOver) and command.phase is Phase.FAILED:
            lines.append(end_text(command.job_id, command.phase, command.why))
            if NO_SUCH_METRIC in command.why:
                # No process of the job is at fault.
                continue
            with suppress(JobNotFoundError, ConfigError):
                lines += last_words(find_job(name_of(command.job_id)), command.why)
    return _whole(lines)


def _whole(lines: Sequence[str]) -> list[str]:
    """Return lines that can be written and sent: halves of characters, as a file's name may have, are replaced."""
    return [line.encode("utf-8", "replace").decode("utf-8") for line in lines]


def jobs_of(event: e.Event, commands: Sequence[e.Command]) -> set[str]:
    """Return the jobs that an event and what it brought about are of."""
    found = {command.job_id for command in commands if not isinstance(command, e.Explain)}
    for command in commands:
        if isinstance(command, e.Explain):
            found.update(command.jobs)
    if not isinstance(event, e.SweepOpened | e.SweepClosed | e.NodeEvent):
        found.add(event.job_id)
    return found
