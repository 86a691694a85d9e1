"""What is known of a job whose master cannot be asked, as one that has ended: from the files that are there.  L3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eps.errors import JobExistsError, JobFinishedError, StorageError
from eps.storage.atomic import read_json
from eps.storage.jobdir import JobDir

#: A job whose master cannot be asked, nor the cluster that knows where it is.
UNREACHABLE = "unreachable"
#: A job that has ended on its cluster, while what it has left there is brought here.
FETCHING = "fetching"
#: States of a job that nobody knows to train.
WAITING_STATES = ("starting", UNREACHABLE, FETCHING)
#: Why a job ended that nobody saw end: its supervisor was killed, and could not say anything.
NO_WORD = "its supervisor ended without a word"
#: Why nothing is known of a job that was there, nor can it be resumed.
REMOVED = "its folder {path} was removed while it ran: nothing of it is left to go on with"
#: As NO_WORD, of a job on YARN, which needs nobody here to go on.
UNATTENDED = "who attended to it here was ended, and its application may run: eps status {name} finds that out"
#: Why a job cannot be resumed.
RUNS = "job {name!r} is running: only a job that has stopped can be resumed"
#: Why nobody could be told that a job is to end, and what to do.
BEING_STARTED = "another process still starts it: end that one, or run eps kill {name} again later"
#: How long something lasts, and a temporary file, which has another name with every try.
_FIGURES = re.compile(r"\.\w+\.tmp\b|\d+", re.ASCII)


def ended_status(directory: JobDir) -> dict[str, Any]:
    """Return the status of a job that has ended, in the form of a running one's.

    Where its figures are older than its end, ``as_of_s`` says when they were taken, in seconds of Unix time (0 where
    that is not known); else it is None.
    """
    report = read_json(directory.report) or {}
    # What was fetched of a job that ran within a sweep's application has no settings but the report's.
    settings = (read_json(directory.job_json) or {}).get("spec") or report.get("settings", {})
    # No word of its end: the supervisor itself was killed, or the machine went down.
    state, reason = "killed", NO_WORD if directory.path.is_dir() else REMOVED.format(path=directory.path)
    if directory.yarn_json.exists():
        state, reason = UNREACHABLE, UNATTENDED.format(name=directory.name)
    outcome = directory.ended() or report
    if outcome:
        # The job master's own word, where the supervisor was ended before it had its say.
        state, reason = str(outcome["state"]), str(outcome.get("reason", ""))
    last = _readable(directory.status_json)
    # A power loss may have left it empty: it is written without a sync.
    if not report and last:
        # Its master could not report: what it left on disk before is the best there is, and its figures are old.
        under_way = [last["plan"]] if last["plan"] else []
        return {
            **last,
            "state": state,
            "reason": reason,
            "as_of_s": last.get("as_of_s", 0.0),
            "members": [],
            "plan": None,
            "queued": [],
            "changes": [*last["changes"], *under_way, *last["queued"]],
            "eta_s": 0.0,
        }
    metrics, history = report.get("metrics", {}), report.get("history", [])
    loss = metrics.get("train_loss")
    membership = report.get("membership") or [{}]
    iterations, progress = int(settings.get("iterations", 0)), float(outcome.get("progress", 0.0))
    return {
        "name": directory.name,
        "state": state,
        "reason": reason,
        "as_of_s": float(outcome.get("seen_s", 0.0)) if progress else None,
        "clock": report.get("clock", round(progress * iterations)),
        "iterations": iterations,
        "membership_version": membership[-1].get("version", 0),
        "workers": len(membership[-1].get("workers", ())),
        "servers": len(membership[-1].get("servers", ())),
        "members": [],
        "plan": None,
        "queued": [],
        "changes": report.get("changes", []),
        "checkpoints": report.get("checkpoints", {}),
        # One that was ended has not measured its final parameters.
        "loss": history[-1]["loss"] if loss is None and history else loss,
        "losses": report.get("losses", []),
        "went_back": report.get("went_back", []),
        "evictions": report.get("evictions", {}),
        "generation": report.get("generation", 1),
        "storage_error": "",
        "resources_error": "",
        "metrics": metrics.get("test", {}),
        "iteration_s": report.get("iteration_seconds", {}).get("p50", 0.0),
        "eta_s": 0.0,
        "elapsed_s": report.get("elapsed_s", 0.0),
    }


def check_stopped(directory: JobDir) -> None:
    """Refuse to resume a job that runs, or has finished, as far as that is known on this machine.

    Raises
    ------
    JobExistsError
        It runs.
    JobFinishedError
        It has finished.
    StorageError
        How it ended cannot be read.
    """
    if directory.is_running():
        raise JobExistsError(RUNS.format(name=directory.name))
    check_unfinished(directory)


def check_unfinished(directory: JobDir) -> None:
    """Refuse to resume a job that does not run and has finished; raises as :func:`check_stopped`.

    What one on YARN has left may still be fetched, before anybody knows what it is.
    """
    if directory.unfetched() is None and directory.outcome().get("state") == "finished":
        raise JobFinishedError(f"job {directory.name!r} has finished: there is nothing to resume")


def ended_report(directory: JobDir) -> dict[str, Any]:
    """Return the report of a job that has ended; of one whose master could not write any, what is known, in its form.

    Raises
    ------
    StorageError
        It has finished, and its report is not here: nobody knows how well.
    """
    report = read_json(directory.report)
    if report is not None:
        return dict(report)
    directory.check_fetched()
    status = ended_status(directory)
    if status["state"] == "finished":
        raise StorageError(f"job {directory.name!r} has finished, but has no report: {directory.report} is missing")
    return {
        "name": directory.name,
        "state": status["state"],
        "reason": status["reason"],
        "clock": status["clock"],
        "metrics": {"train_loss": None},
        "history": [],
        "model_sha256": "",
        "changes": [],
    }


def waiting_status(directory: JobDir) -> dict[str, Any] | None:
    """Return the status of a job whose master does not listen, and may not for long; None where nothing is awaited.

    ``reason`` says what for: a queue, a node.  Where its cluster does not answer, its state is :data:`UNREACHABLE`, and
    ``as_of_s`` says when it was known last how far it is.  One that has ended is :data:`FETCHING`.
    """
    waiting = _readable(directory.waiting_json)
    if waiting is None:
        return None
    settings = (read_json(directory.job_json) or {}).get("spec", {})
    is_silent, is_fetching = bool(waiting.get("is_silent")), bool(waiting.get("is_fetching"))
    clock = round(float(waiting.get("progress", 0.0)) * int(settings.get("iterations", 0)))
    known = ended_status(directory)
    # Of one that has ended the report may be here already.
    is_old = is_silent or (is_fetching and not directory.report.exists())
    clock, reason = max(known["clock"], clock), str(waiting.get("reason", ""))
    if clock > 0 and not is_silent and not is_fetching:
        # Its members wait for the next master, and train no further than they were allowed to.
        reason = f"it was at clock {clock}, and its job master is started again" + (f": {reason}" if reason else "")
    return {
        **known,
        "state": UNREACHABLE if is_silent else FETCHING if is_fetching else "starting",
        "reason": reason,
        "clock": clock,
        "workers": settings.get("workers", 0),
        "servers": settings.get("servers", 0),
        "as_of_s": float(waiting.get("seen_s", 0.0)) if is_old else None,
    }


def application_id_of(directory: JobDir) -> str:
    """Return by which name YARN knows a job; empty where it does not run on YARN, or that cannot be read."""
    return str((_readable(directory.yarn_json) or {}).get("application_id", ""))


def with_application(directory: JobDir, status: dict[str, Any]) -> dict[str, Any]:
    """Return a status that also says by which name YARN knows the job, where it is one on YARN."""
    application_id = application_id_of(directory)
    return {**status, "application_id": application_id} if application_id else status


def silence_of(directory: JobDir) -> str:
    """Return since when the cluster of a job that runs has not answered, in words; empty where none is known not to."""
    return _reason_where(directory, "is_silent")


def fetched_of(directory: JobDir) -> str:
    """Return what is fetched of a job that has ended on its cluster, as a sentence; empty where nothing is."""
    return _reason_where(directory, "is_fetching")


def without_figures(text: str) -> str:
    """Return what is told without what changes with every look at what lasts: its figures, names of temporary files."""
    return _FIGURES.sub("", text)


def _reason_where(directory: JobDir, kind: str) -> str:
    waiting = _readable(directory.waiting_json)
    return str(waiting.get("reason", "")) if waiting is not None and waiting.get(kind) else ""


def _readable(path: Path) -> Mapping[str, Any] | None:
    """Return what stands in a file that tells no more than others do; None where it is damaged."""
    try:
        return read_json(path)
    except StorageError:
        return None
