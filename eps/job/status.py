"""What is known of a job whose master cannot be asked, as one that has ended: from the files that are there.

Its record and its report say how it is; the logs of its processes say why it failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from eps.cluster.supervisor.process import MASTER
from eps.errors import JobExistsError, JobFinishedError, StorageError
from eps.storage.atomic import read_json
from eps.storage.jobdir import JobDir, readable, with_figures
from eps.storage.record import End, Record

#: A job whose master cannot be asked, nor the cluster that knows where it is.
UNREACHABLE = "unreachable"
#: States of a job that nobody knows to train.
WAITING_STATES = ("starting", UNREACHABLE)
#: Why nothing is known of a job that was there, nor can it be resumed.
REMOVED = "its folder {path} was removed while it ran: nothing of it is left to go on with"
#: Of a job on YARN, where only what is on this machine is looked at.
ELSEWHERE = "its application may run: eps status {name} asks its cluster"
#: Why a job cannot be resumed.
RUNS = "job {name!r} is running: only a job that has stopped can be resumed"
#: Shows what the containers of an application that has ended wrote, where its cluster keeps that.
LOGS_COMMAND = "yarn logs -applicationId {}"
#: Why nobody could be told that a job is to end, and what to do.
BEING_STARTED = "another process still starts it: end that one, or run eps kill {name} again later"
#: Changes of earlier runs that are kept, the latest, and what of checkpoints is added up over runs.
MOST_EARLIER, _SUMS = 20, ("complete", "skipped", "failed", "size_bytes", "seconds")
#: How long something lasts, and a temporary file, which has another name with every try.
_FIGURES = re.compile(r"\.\w+\.tmp\b|\d+", re.ASCII)
#: Lines that are shown, and their longest.
MOST_LINES, MOST_COLUMNS = 12, 300
#: A member's name, in the lines that its process writes, and in the reason of an end.
_SPEAKER = re.compile(rb"\b[WS]\[((?:worker|server)-\d+)\]")
_MEMBER = re.compile(r"\b(?:worker|server)-\d+\b", re.ASCII)
#: A later job master of a job on YARN: the next attempt of the application, with a log of its own.
_LATER_MASTER = re.compile(rf"{MASTER}-(\d+)", re.ASCII)
_HEAD_BYTES = _TAIL_BYTES = 64 * 1024


def ended_status(directory: JobDir) -> dict[str, Any]:
    """Return the status of a job that has ended, in the form of a running one's.

    Raises
    ------
    StorageError
        Its record cannot be read.
    """
    return status_of(directory, directory.seen(directory.record()))


def status_of(directory: JobDir, record: Record) -> dict[str, Any]:
    """Return as :func:`ended_status` what a record says, where it is read already."""
    end = record.end
    if end is None:
        end = End(UNREACHABLE, ELSEWHERE.format(name=directory.name))
        report = readable(directory.report)
        if "state" in report:
            end = End(str(report["state"]), str(report.get("reason", "")))
    elif end.is_lost and not directory.path.is_dir():
        end = replace(end, reason=REMOVED.format(path=directory.path))
    if not end.report and not end.last:
        end = with_figures(directory, end)
    return _at_end(directory.name, record.spec, end)


def _at_end(name: str, settings: Mapping[str, Any], end: End) -> dict[str, Any]:
    """Return the status of a job that does not run, in the form of a running one's.

    Where its figures are older than its end, ``as_of_s`` says when they were taken, in seconds of Unix time (0 where
    that is not known); else it is None.
    """
    report, last = end.report, end.last
    settings = settings or report.get("settings", {})
    state, reason = end.state, end.reason
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
    iterations = int(settings.get("iterations", 0))
    return {
        "name": name,
        "state": state,
        "reason": reason,
        "as_of_s": None,
        "clock": report.get("clock", 0),
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
    # A damaged record is told of when its settings are looked for.
    with suppress(StorageError):
        check_unfinished(directory.name, directory.ended())


def check_unfinished(name: str, end: End | None) -> None:
    """Refuse to resume a job that has finished; raises as :func:`check_stopped`."""
    if end is not None and end.state == "finished":
        raise JobFinishedError(f"job {name!r} has finished: there is nothing to resume")


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
    status = ended_status(directory)
    if status["state"] == "finished":
        raise StorageError(f"job {directory.name!r} has finished, but has no report: {directory.report} is missing")
    return {
        "name": directory.name,
        "state": status["state"],
        "reason": status["reason"],
        "clock": status["clock"],
        "metrics": {"train_loss": None},
        # On YARN its master leaves some with its status.
        "history": status.get("history", []),
        "model_sha256": "",
        "changes": status["changes"],
    }


def waiting_status(directory: JobDir, state: str, reason: str, clock: int, as_of_s: float | None) -> dict[str, Any]:
    """Return the status of a job whose master does not listen, in the form of a running one's.

    Parameters
    ----------
    directory : JobDir
    state : str
        One of :data:`WAITING_STATES`.
    reason : str
        What it waits for: a queue, a node.
    clock : int
        How far it was when that was known last.
    as_of_s : float, seconds of Unix time
        When that was; None where it is so now.
    """
    settings = _readable(directory).spec
    return {
        **_at_end(directory.name, settings, End(state, reason)),
        "clock": clock,
        "workers": settings.get("workers", 0),
        "servers": settings.get("servers", 0),
        "as_of_s": as_of_s,
    }


def application_id_of(directory: JobDir) -> str:
    """Return by which name YARN knows a job; empty where it does not run on YARN, or that cannot be read."""
    return str((_readable(directory).yarn.application or {}).get("application_id", ""))


def is_on_yarn(directory: JobDir) -> bool:
    """Return whether a job's settings have it run on YARN; False where they cannot be read."""
    return _readable(directory).runs_on == "yarn"


def with_record(directory: JobDir, status: dict[str, Any]) -> dict[str, Any]:
    """Return a status with what only the job's record has: its application on YARN, and what earlier runs have done."""
    record = _readable(directory)
    if application_id := (record.yarn.application or {}).get("application_id"):
        status = {**status, "application_id": str(application_id)}
    return _with_earlier(status, record.earlier)


def earlier_of(directory: JobDir, former: Record) -> dict[str, Any]:
    """Return what the record of a resumed job keeps of its earlier runs: the latest changes, sums of checkpoints."""
    found = _with_earlier(status_of(directory, former), former.earlier)
    changes = [*found.get("earlier_changes", ()), *found["changes"]][-MOST_EARLIER:]
    kept = (*_SUMS, "latest_clock")
    checkpoints = {name: value for name, value in found.get("checkpoints", {}).items() if name in kept}
    return {"changes": changes, "checkpoints": checkpoints} if changes or any(checkpoints.values()) else {}


def _with_earlier(status: dict[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    if not earlier:
        return status
    before, now = earlier["checkpoints"], status.get("checkpoints", {})
    checkpoints = {"error": "", **before, **now, **{name: before.get(name, 0) + now.get(name, 0) for name in _SUMS}}
    if checkpoints.get("latest_clock") is None:
        checkpoints["latest_clock"] = before.get("latest_clock")
    return {**status, "checkpoints": checkpoints, "earlier_changes": earlier["changes"]}


def without_figures(text: str) -> str:
    """Return what is told without what changes with every look at what lasts: its figures, names of temporary files."""
    return _FIGURES.sub("", text)


def _readable(directory: JobDir) -> Record:
    """Return the record of a job that runs; of one that is damaged nothing is known."""
    try:
        return directory.record()
    except StorageError:
        return Record()


def member_of(path: Path) -> str | None:
    """Return the member that wrote a container's log; None where it is not known, or where it is no container's."""
    if not path.stem.startswith("container-"):
        return None
    with path.open("rb") as file:
        match = _SPEAKER.search(file.read(_HEAD_BYTES))
    return None if match is None else match.group(1).decode("ascii")


def attempt_of(path: Path) -> int:
    """Return which of a job's masters wrote a log, from 1; 0 where none did."""
    if path.stem == MASTER:
        return 1
    match = _LATER_MASTER.fullmatch(path.stem)
    return 0 if match is None else int(match[1])


def _masters(directory: JobDir) -> list[Path]:
    return [path for path in directory.logs.glob(f"{MASTER}*.log") if attempt_of(path)]


def last_words(directory: JobDir, reason: str) -> list[str]:
    """Return the last lines of the log of whoever is at fault, with a line above them that says whose they are.

    That is the member that the reason of the job's end names first, else the job master, the last of them.  At most
    :data:`MOST_LINES` lines; none where there is no such log.
    """
    named = _MEMBER.search(reason)
    path, who = max(_masters(directory), key=attempt_of, default=directory.log(MASTER)), "the job master"
    if named is not None:
        for found in sorted(directory.logs.glob("container-*.log")):
            if member_of(found) == named.group():
                path, who = found, named.group()
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line[:MOST_COLUMNS] for line in text.splitlines()[-MOST_LINES:] if line.strip()]
    return [f"the last lines of the log of {who} ({path}):", *(f"  {line}" for line in lines)] if lines else []
