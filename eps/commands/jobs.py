"""Commands that concern many jobs: which there are, and which of those that ended are to be kept."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Collection, Sequence
from typing import Any

from eps.cli import EXIT_FAILED, EXIT_OK
from eps.client import Job
from eps.display import ago_text, bytes_text, list_text, table
from eps.ended import ended_status
from eps.errors import ConfigError, JobExistsError, RpcError, StorageError
from eps.home import check_home
from eps.storage.jobdir import JobDir, JobLock, can_be_resumed, list_jobs, remove_job

#: A job of a list that does not answer does not hold up the others.
LIST_PATIENCE_S = 2.0
#: What a list says of a job whose directory is damaged.
UNREADABLE: dict[str, Any] = {
    "state": "unreadable", "clock": 0, "iterations": 0, "loss": None, "metrics": {}, "workers": 0, "servers": 0,
}  # fmt: skip
#: What jobs may be chosen by; ``ended`` is each but the first.
STATES = ("running", "ended", "finished", "killed", "failed", "unreadable")
_RUNS = "running"
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def list_all(args: argparse.Namespace) -> int:
    """Show all jobs, or some, the newest first."""
    check_home(writable=False)
    chosen = _chosen(args.prefix, args.state)
    shown = chosen[: args.last or None]
    found = [_brief_status(job) for job in shown]
    print(json.dumps(found, indent=1) if args.json else list_text(found))
    if len(shown) < len(chosen) and not args.json:
        print(f"and {len(chosen) - len(shown)} older ones")
    return EXIT_OK


def prune(args: argparse.Namespace) -> int:
    """Remove the directories of jobs that have ended."""
    check_home(writable=not args.dry_run)
    if not args.prefix and not args.all:
        raise ConfigError("nothing says which jobs: give what their names begin with, or --all")
    before_s = time.time() - _seconds(args.older_than)
    rows = [["NAME", "STATE", "STARTED", "SIZE"]]
    kept: dict[str, list[str]] = {}
    total, failed = 0, False
    for job in _chosen(args.prefix, args.state or ["ended"]):
        why = _kept_for(job, before_s, args)
        row, size = [job.name, _state_of(job), ago_text(job.started_s())], job.size_bytes()
        try:
            if not why and not args.dry_run:
                _remove(job)
        except JobExistsError:
            why = _RUNS
        except (ConfigError, StorageError) as error:
            why, failed = str(error), True
        if why:
            kept.setdefault(why, []).append(job.name)
        else:
            rows.append([*row, bytes_text(size)])
            total += size
    for why, names in kept.items():
        told = f"{names[0]} is" if len(names) == 1 else f"{names[0]} and {len(names) - 1} others are"
        print(f"{told} kept: {why}", file=sys.stderr)
    if len(rows) > 1:
        print(table(rows, indent=""))
    done = "would be removed" if args.dry_run else "removed"
    jobs = "1 job" if len(rows) == 2 else f"{len(rows) - 1} jobs"
    print(f"{jobs} {done}, {bytes_text(total)}; {sum(map(len, kept.values()))} kept")
    return EXIT_FAILED if failed else EXIT_OK


def _chosen(prefix: str, states: Sequence[str]) -> list[JobDir]:
    """Return jobs by the beginning of their names and by how they are, the newest first.

    Raises
    ------
    ConfigError
        A state is none.
    """
    for state in states:
        if state not in STATES:
            raise ConfigError(f"state is {state!r}, but must be of {', '.join(STATES)}")
    named = [job for job in list_jobs() if job.name.startswith(prefix)]
    found = [job for job in named if not states or _is_one_of(job, states)]
    return sorted(found, key=lambda job: (-job.started_s(), job.name))


def _is_one_of(job: JobDir, states: Collection[str]) -> bool:
    state = _state_of(job)
    return state in states or (state != "running" and "ended" in states)


def _state_of(job: JobDir) -> str:
    """Return how a job is, without asking its processes: ``running``, or how it ended."""
    try:
        return "running" if job.is_running() else str(job.outcome().get("state", "killed"))
    except StorageError:
        return "unreadable"


def _remove(job: JobDir) -> None:
    """Remove a job's directory, after what it has on a cluster, of which nothing else knows.

    Raises as :func:`~eps.storage.jobdir.remove_job`, and ConfigError where nothing leads to the cluster any more.
    """
    if job.yarn_json.exists() and not job.path.is_symlink():
        from eps.yarn.application import remove_staged

        with JobLock(job.lock):
            remove_staged(job)
    remove_job(job)


def _kept_for(job: JobDir, before_s: float, args: argparse.Namespace) -> str:
    """Return why a job is not to be removed; empty where it is."""
    if _state_of(job) == "running":
        return _RUNS
    if job.changed_s() > before_s:
        return f"ended less than {args.older_than} ago (--older-than)"
    if job.yarn_json.exists() and job.ended() is None:
        return f"its application on YARN may run: `eps status {job.name}` finds that out"
    if not args.resumable and can_be_resumed(job):
        return "stopped before the end and can be resumed (--resumable removes such ones, too)"
    return ""


def _seconds(text: str) -> float:
    """Return a duration of the command line in seconds.

    Raises
    ------
    ConfigError
        It is none.
    """
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or unit not in _UNITS_S:
        raise ConfigError(f"older-than is {text!r}, but must be a whole number and s, m, h or d, as in 2d")
    return int(number) * _UNITS_S[unit]


def _brief_status(directory: JobDir) -> dict[str, Any]:
    try:
        found = _status_of(directory)
    except StorageError as error:
        # One damaged directory does not hide the other jobs.
        found = {**UNREADABLE, "name": directory.name, "reason": str(error)}
    return {**found, "started_s": round(directory.started_s(), 3)}


def _status_of(directory: JobDir) -> dict[str, Any]:
    if not directory.is_running():
        return ended_status(directory)
    job = Job(directory, patience_s=LIST_PATIENCE_S)
    try:
        return job.status(LIST_PATIENCE_S)
    except RpcError as error:
        return {**ended_status(directory), "state": "unreachable", "reason": str(error)}
    finally:
        job.close()
