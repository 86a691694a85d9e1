"""Sentences that tell a user what happens in H-scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from eps.errors import ConfigError, JobNotFoundError
from eps.job.status import last_log_lines
from eps.storage.jobdir import find_job
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase, end_text, reason_of
from hscheduler.reports.history import NO_SUCH_METRIC


def sentences(
    event: e.Event, commands: Sequence[e.Command], result_of: Callable[[str], float | None] = lambda job_id: None
) -> list[str]:
    """Return sentences about an event and its commands, without failures.

    Parameters
    ----------
    event : Event
    commands : sequence of Command
    result_of : callable
        Job -> its final value of the sweep's metric.
    """
    lines = []
    match event:
        case e.FeedbackGiven(job_id, value):
            lines.append(f"{job_id} gives early feedback: {value:.6g}")
        case e.GrowthFailed(job_id, _, why) | e.ShrinkFailed(job_id, _, why):
            lines.append(f"{job_id} keeps its size: {why}")
    # The decision that ended a job was told before.
    lines += ends([each for each in commands if not _was_decided(each)], result_of)
    return _whole([*lines, *(command.sentence for command in commands if isinstance(command, e.Explain))])


def ends(commands: Sequence[e.Command], result_of: Callable[[str], float | None] = lambda job_id: None) -> list[str]:
    """Return which jobs ended and why, without failures; parameters as of :func:`sentences`."""
    lines = []
    for each in commands:
        if isinstance(each, e.JobOver) and each.phase is not Phase.FAILED:
            value = result_of(each.job_id) if each.phase is Phase.FINISHED else None
            lines.append(end_text(each.job_id, each.phase, each.why) + ("" if value is None else f": {value:.6g}"))
    return _whole(lines)


def _was_decided(command: e.Command) -> bool:
    return isinstance(command, e.JobOver) and reason_of(command.job_id, command.why) != command.why


def failures(commands: Sequence[e.Command], name_of: Callable[[str], str]) -> list[str]:
    """Return why trials failed, each with the last log lines of the process that caused it."""
    lines = []
    for command in commands:
        if isinstance(command, e.JobOver) and command.phase is Phase.FAILED:
            lines.append(end_text(command.job_id, command.phase, command.why))
            if NO_SUCH_METRIC in command.why:
                # No process of the job is at fault.
                continue
            with suppress(JobNotFoundError, ConfigError):
                lines += last_log_lines(find_job(name_of(command.job_id)), command.why)
    return _whole(lines)


def _whole(lines: Sequence[str]) -> list[str]:
    """Return the lines as valid UTF-8: lone surrogates, which file names may contain, are replaced."""
    return [line.encode("utf-8", "replace").decode("utf-8") for line in lines]


def jobs_of(event: e.Event, commands: Sequence[e.Command]) -> set[str]:
    """Return the jobs that an event and its commands concern."""
    found = {command.job_id for command in commands if not isinstance(command, e.Explain | e.TrialWanted)}
    for command in commands:
        if isinstance(command, e.Explain):
            found.update(command.jobs)
    if not isinstance(event, e.SweepOpened | e.SweepClosed | e.NodeEvent):
        found.add(event.job_id)
    return found
