"""``eps list``, and the selection of jobs by name and state for ``eps prune``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any

from eps.cli.exits import EXIT_OK
from eps.errors import ConfigError, EpsError, RpcError, StorageError
from eps.job.client import Job
from eps.job.display import list_text
from eps.job.status import UNREACHABLE, ended_status
from eps.storage.jobdir import JobDir, list_jobs
from eps.storage.record import Record
from eps.system.nearest import did_you_mean

if TYPE_CHECKING:
    from eps.job.yarn.remote import Clusters, YarnJob

#: For each job of a list: one that does not answer must not delay the others for long.
LIST_PATIENCE_S = 2.0
#: The status of a job whose directory is damaged.
UNREADABLE: dict[str, Any] = {
    "state": "unreadable", "clock": 0, "iterations": 0, "loss": None, "metrics": {}, "workers": 0, "servers": 0,
}  # fmt: skip
#: Values of ``--state``; ``ended`` matches all of them but ``running``.
STATES = ("running", "ended", "finished", "killed", "failed", "unreadable")
RUNS = "running"


def list_all(args: argparse.Namespace) -> int:
    """Show jobs, the newest first."""
    chosen = chosen_jobs(args.prefix, args.state)
    shown = chosen[: args.last or None]
    found = [_brief_status(look) for look in shown]
    if not found and not args.json:
        print(none_text(args.prefix, args.state))
        return EXIT_OK
    print(json.dumps(found, indent=1) if args.json else list_text(found))
    if len(shown) < len(chosen) and not args.json:
        print(f"and {len(chosen) - len(shown)} older ones")
    return EXIT_OK


def none_text(prefix: str, states: Sequence[str]) -> str:
    """Return what a command prints if it finds no job."""
    names = [job.name for job in list_jobs()]
    if prefix and not any(name.startswith(prefix) for name in names):
        return f"no job's name begins with {prefix!r}{did_you_mean(prefix, names)}"
    return f"no jobs that are {' or '.join(states)}" if states and names else "no jobs"


class Look:
    """The state of a job according to its files, without a call to its processes.

    YARN says whether a job on YARN has ended.  A resume that a client prepared but did not start does not count.

    Parameters
    ----------
    job : JobDir
    clusters : callable
        Returns the connections to the clusters of all jobs; called only if this job may run on YARN.
    """

    def __init__(self, job: JobDir, clusters: Callable[[], Clusters]) -> None:
        self.job = job
        #: Its client on YARN, if it may run there.
        self.there: YarnJob | None = None
        self.is_running, self.damage = False, ""
        #: Why YARN cannot say whether the job has ended; empty if it can.
        self.trouble = ""
        self.record = Record()
        try:
            self.is_running, self.record = job.is_running(), job.settle()
        except StorageError as error:
            self.damage = str(error)
        if self.record.is_elsewhere:
            try:
                self.there = clusters().job(job)
                self.is_running, self.record = self.there.is_running(), job.record()
            except EpsError as error:
                self.is_running, self.trouble = True, str(error)

    @property
    def state(self) -> str:
        """``running``, ``unreadable`` if the record is damaged, otherwise how the job ended."""
        if self.is_running:
            return RUNS
        end = self.record.end
        return "unreadable" if self.damage else "killed" if end is None else end.state

    @property
    def started_s(self) -> float:
        """Unix time of its start or latest resume, in seconds."""
        return self.record.started_s or self.job.changed_s()


def chosen_jobs(prefix: str, states: Sequence[str]) -> list[Look]:
    """Return the jobs whose names begin with ``prefix`` and whose state is one of ``states``, the newest first.

    Parameters
    ----------
    prefix : str
    states : sequence of str
        Of :data:`STATES`; empty for all.

    Raises
    ------
    ConfigError
        A state is not one of :data:`STATES`.
    """
    for state in states:
        if state not in STATES:
            known = f"{', '.join(STATES)}{did_you_mean(state, STATES)}"
            raise ConfigError(f"state is {state!r}, but must be one of {known}")
    with ExitStack() as stack:

        @cache
        def clusters() -> Clusters:
            from eps.job.yarn.remote import Clusters

            return stack.enter_context(Clusters(LIST_PATIENCE_S))

        named = [Look(job, clusters) for job in list_jobs() if job.name.startswith(prefix)]
    found = [look for look in named if not states or is_one_of(look.state, states)]
    return sorted(found, key=lambda look: (-look.started_s, look.job.name))


def is_one_of(state: str, states: Collection[str]) -> bool:
    """Return whether ``state`` is one of ``states``, or matches ``ended`` in them."""
    return state in states or (state != RUNS and "ended" in states)


def _brief_status(look: Look) -> dict[str, Any]:
    directory = look.job
    try:
        found = _status_of(look)
    except StorageError as error:
        # One damaged directory does not hide the other jobs.
        found = {**UNREADABLE, "name": directory.name, "reason": str(error)}
    return {**found, "started_s": round(look.started_s, 3)}


def _status_of(look: Look) -> dict[str, Any]:
    directory = look.job
    if look.trouble:
        return {**ended_status(directory), "state": UNREACHABLE, "reason": look.trouble}
    if not look.is_running:
        return {**UNREADABLE, "name": directory.name, "reason": look.damage} if look.damage else ended_status(directory)
    job = Job(directory, patience_s=LIST_PATIENCE_S, yarn=look.there)
    try:
        return job.status(LIST_PATIENCE_S)
    except RpcError as error:
        return {**ended_status(directory), "state": UNREACHABLE, "reason": str(error)}
    finally:
        job.close()
