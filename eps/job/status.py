"""Tell a job's status without its master, from its files.

Record and report give the state, the logs of its processes the cause of a failure.
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

#: State of a job if neither its master nor its cluster answers.
UNREACHABLE = "unreachable"
#: States of a job that is not known to train.
WAITING_STATES = ("starting", UNREACHABLE)
#: Reason for the end of a job whose folder was removed.
REMOVED = "its folder {path} was removed while it ran: the job is lost and cannot be resumed"
#: Reason for the state of a job on YARN whose cluster was not asked.
ELSEWHERE = "its application may run: eps status {name} asks its cluster"
#: Why a running job cannot be resumed.
RUNS = "job {name!r} is running: only a job that has stopped can be resumed"
#: Command that shows the containers' logs of an ended application, if its cluster collects logs.
LOGS_COMMAND = "yarn logs -applicationId {}"
#: Why a kill had no effect, and what to do.
BEING_STARTED = "another process is still starting it: end that process, or run eps kill {name} again later"
#: Most changes of earlier runs to keep, and figures of checkpoints that are summed over runs.
MOST_EARLIER, _SUMS = 20, ("complete", "skipped", "failed", "size_bytes", "seconds")
#: Durations, and temporary files, which have a new name at each retry.
_FIGURES = re.compile(r"\.\w+\.tmp\b|\d+", re.ASCII)
#: Limits on the shown log lines: their number, and characters in each.
MOST_LINES, MOST_COLUMNS = 12, 300
#: A member's name in its process's log; the names of a member and of a container in the reason of an end.
_LOGGING_MEMBER = re.compile(rb"\b[WS]\[((?:worker|server)-\d+)\]")
_MEMBER = re.compile(r"\b(?:worker|server)-\d+\b", re.ASCII)
_CONTAINER = re.compile(r"\bcontainer-\d+\b", re.ASCII)
#: Log of a later job master on YARN, which is the next attempt of the application.
_LATER_MASTER = re.compile(rf"{MASTER}-(\d+)", re.ASCII)
_TAIL_BYTES = 64 * 1024


def ended_status(directory: JobDir) -> dict[str, Any]:
    """Return the status of a job that has ended, with the keys of a running job's status.

    Raises
    ------
    StorageError
        The job's record cannot be read.
    """
    return status_of(directory, directory.seen(directory.record()))


def status_of(directory: JobDir, record: Record) -> dict[str, Any]:
    """Return the result of :func:`ended_status` for a record that was read already."""
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
    """Return the status of a job that is not running, with the keys of a running job's status.

    If the figures are older than the end, ``as_of_s`` is their time in seconds of Unix time (0: unknown); else None.
    """
    report, last = end.report, end.last
    settings = settings or report.get("settings", {})
    state, reason = end.state, end.reason
    if not report and last:
        # The master wrote no report: use the last status that it left on disk.
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
        "sizes": report.get("sizes", []),
        **({"tiers": report["tiers"]} if "tiers" in report else {}),
        "members": [],
        "plan": None,
        "queued": [],
        "changes": report.get("changes", []),
        "checkpoints": report.get("checkpoints", {}),
        # A killed job has no loss of its final parameters.
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
    """Check that a job can be resumed, as far as this machine knows.

    Raises
    ------
    JobExistsError
        The job is running.
    JobFinishedError
        The job has finished.
    StorageError
        The job's state cannot be read.
    """
    if directory.is_running():
        raise JobExistsError(RUNS.format(name=directory.name))
    # A damaged record is reported when the settings are read.
    with suppress(StorageError):
        check_unfinished(directory.name, directory.ended())


def check_unfinished(name: str, end: End | None) -> None:
    """Raise JobFinishedError if a job has finished."""
    if end is not None and end.state == "finished":
        raise JobFinishedError(f"job {name!r} has finished: there is nothing to resume")


def ended_report(directory: JobDir) -> dict[str, Any]:
    """Return the report of a job that has ended; if its master wrote none, one made from the status.

    Raises
    ------
    StorageError
        The job has finished, but its report is missing.
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
        # On YARN the master's last status has a history.
        "history": status.get("history", []),
        "model_sha256": "",
        "changes": status["changes"],
    }


def waiting_status(directory: JobDir, state: str, reason: str, clock: int, as_of_s: float | None) -> dict[str, Any]:
    """Return the status of a job whose master does not listen, with the keys of a running job's status.

    Parameters
    ----------
    directory : JobDir
    state : str
        One of :data:`WAITING_STATES`.
    reason : str
        What the job is waiting for.
    clock : int
        Last known number of complete clocks.
    as_of_s : float, seconds of Unix time
        Time of ``clock``; None: now.
    """
    settings = _readable(directory).spec
    # A job on two tiers decides later how many of its containers work and serve.
    size = {} if settings.get("reliable") else settings
    return {
        **_at_end(directory.name, settings, End(state, reason)),
        "clock": clock,
        "workers": size.get("workers", 0),
        "servers": size.get("servers", 0),
        "as_of_s": as_of_s,
    }


def application_id_of(directory: JobDir) -> str:
    """Return the id of a job's application; empty for a job elsewhere, or if its record cannot be read."""
    return str((_readable(directory).yarn.application or {}).get("application_id", ""))


def is_on_yarn(directory: JobDir) -> bool:
    """Return whether a job's settings say that it runs on YARN; False if they cannot be read."""
    return _readable(directory).runs_on == "yarn"


def with_record(directory: JobDir, status: dict[str, Any]) -> dict[str, Any]:
    """Return a status with facts of the job's record: its application on YARN, and results of earlier runs."""
    record = _readable(directory)
    if application_id := (record.yarn.application or {}).get("application_id"):
        status = {**status, "application_id": str(application_id)}
    return {**status, "earlier": dict(record.earlier)} if record.earlier else status


def earlier_of(directory: JobDir, former: Record) -> dict[str, Any]:
    """Return what a resumed job's record keeps of its earlier runs: the latest changes, sums of checkpoints."""
    found = {**status_of(directory, former), "earlier": former.earlier}
    changes = [*former.earlier.get("changes", ()), *found["changes"]][-MOST_EARLIER:]
    checkpoints = {name: value for name, value in checkpoints_of(found).items() if name in (*_SUMS, "latest_clock")}
    return {"changes": changes, "checkpoints": checkpoints} if changes or any(checkpoints.values()) else {}


def checkpoints_of(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the checkpoints of a job went, those of its earlier runs included; empty where none is known."""
    now, before = status.get("checkpoints", {}), status.get("earlier", {}).get("checkpoints", {})
    if not before:
        return dict(now)
    found = {"error": "", **now, **{name: now.get(name, 0) + before.get(name, 0) for name in _SUMS}}
    latest = now.get("latest_clock")
    return {**found, "latest_clock": before.get("latest_clock") if latest is None else latest}


def without_figures(text: str) -> str:
    """Return a text without numbers and names of temporary files, for comparisons with later texts."""
    return _FIGURES.sub("", text)


def _readable(directory: JobDir) -> Record:
    """Return a job's record; an empty one if it is damaged."""
    try:
        return directory.record()
    except StorageError:
        return Record()


def members_of(path: Path) -> tuple[str, ...]:
    """Return the members that wrote a container's log; none if unknown, or if the file is no container's log."""
    if not path.stem.startswith("container-"):
        return ()
    return tuple(dict.fromkeys(name.decode("ascii") for name in _LOGGING_MEMBER.findall(path.read_bytes())))


def attempt_of(path: Path) -> int:
    """Return the number of the job master that wrote a log, from 1; 0 if none did."""
    if path.stem == MASTER:
        return 1
    match = _LATER_MASTER.fullmatch(path.stem)
    return 0 if match is None else int(match[1])


def _masters(directory: JobDir) -> list[Path]:
    return [path for path in directory.logs.glob(f"{MASTER}*.log") if attempt_of(path)]


def last_log_lines(directory: JobDir, reason: str) -> list[str]:
    """Return the last lines of the log of the process that caused a job's end, below a heading.

    It is the container or the first member that the reason names, else the last job master.  At most
    :data:`MOST_LINES` lines; empty if there is no such log.
    """
    named, container = _MEMBER.search(reason), _CONTAINER.search(reason)
    path, who = max(_masters(directory), key=attempt_of, default=directory.log(MASTER)), "the job master"
    if container is not None and directory.log(container.group()).is_file():
        # A process that ended early has not written its member's name.
        path, who = directory.log(container.group()), container.group()
    elif named is not None:
        for found in sorted(directory.logs.glob("container-*.log")):
            if named.group() in members_of(found):
                path, who = found, named.group()
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line[:MOST_COLUMNS] for line in text.splitlines()[-MOST_LINES:] if line.strip()]
    return [f"the last lines of the log of {who} ({path}):", *(f"  {line}" for line in lines)] if lines else []
