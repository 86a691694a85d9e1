"""Which jobs there are: ``eps list``, and the choice of some by name and state."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from eps.cli.exits import EXIT_OK
from eps.errors import ConfigError, RpcError, StorageError
from eps.job.client import Job
from eps.job.display import list_text
from eps.job.ended import UNREACHABLE, ended_status
from eps.storage.before import settle_unbegun
from eps.storage.jobdir import JobDir, list_jobs

#: A job of a list that does not answer does not hold up the others.
LIST_PATIENCE_S = 2.0
#: What a list says of a job whose directory is damaged.
UNREADABLE: dict[str, Any] = {
    "state": "unreadable", "clock": 0, "iterations": 0, "loss": None, "metrics": {}, "workers": 0, "servers": 0,
}  # fmt: skip
#: What jobs may be chosen by; ``ended`` is each but the first.
STATES = ("running", "ended", "finished", "killed", "failed", "unreadable")
RUNS = "running"


def list_all(args: argparse.Namespace) -> int:
    """Show all jobs, or some, the newest first."""
    chosen = chosen_jobs(args.prefix, args.state)
    shown = chosen[: args.last or None]
    found = [_brief_status(look) for look in shown]
    print(json.dumps(found, indent=1) if args.json else list_text(found))
    if len(shown) < len(chosen) and not args.json:
        print(f"and {len(chosen) - len(shown)} older ones")
    return EXIT_OK


@dataclass(frozen=True)
class Note:
    """A file of a job that leads to what it has on a cluster."""

    path: Path
    #: Raises StorageError where the file is damaged.
    read: Callable[[JobDir], object]
    #: Removes what it leads to.
    remove: Callable[[JobDir], None]


def notes_of(job: JobDir) -> Iterator[Note]:
    """Yield what of a job leads to its cluster."""
    # Who prunes jobs of one machine needs nothing of YARN's.
    if job.yarn_json.exists():
        from eps.cluster.yarn.application import Application, remove_staged

        yield Note(job.yarn_json, Application.read, remove_staged)
    if job.claim_json.exists():
        from eps.storage.claims import Claim, remove_claimed

        yield Note(job.claim_json, Claim.read, remove_claimed)


def damage_of(job: JobDir) -> dict[Path, str]:
    """Return which of its notes are damaged, and how."""
    found = {}
    for note in notes_of(job):
        try:
            note.read(job)
        except StorageError as error:
            found[note.path] = str(error)
    return found


class Look:
    """What is seen of a job without asking its processes; each file is read once, and only when that is asked for.

    A run of it that never began on this machine is not seen: it is as it was before.
    """

    def __init__(self, job: JobDir) -> None:
        self.job = job
        settle_unbegun(job)

    @cached_property
    def damage(self) -> Mapping[Path, str]:
        """As of :func:`damage_of`."""
        return damage_of(self.job)

    @cached_property
    def state(self) -> str:
        """``running``, or how it ended; ``unreadable``, too, where nobody can tell what it has on its cluster."""
        try:
            if self.job.is_running():
                return RUNS
            return "unreadable" if self.damage else str(self.job.outcome().get("state", "killed"))
        except StorageError:
            return "unreadable"


def chosen_jobs(prefix: str, states: Sequence[str]) -> list[Look]:
    """Return jobs by the beginning of their names and by how they are, the newest first.

    Parameters
    ----------
    prefix : str
    states : sequence of str
        Of :data:`STATES`; empty for all.

    Raises
    ------
    ConfigError
        A state is none.
    """
    for state in states:
        if state not in STATES:
            raise ConfigError(f"state is {state!r}, but must be of {', '.join(STATES)}")
    named = [Look(job) for job in list_jobs() if job.name.startswith(prefix)]
    found = [look for look in named if not states or is_one_of(look.state, states)]
    return sorted(found, key=lambda look: (-look.job.started_s(), look.job.name))


def is_one_of(state: str, states: Collection[str]) -> bool:
    """Return whether something that is so is meant by any of ``states``."""
    return state in states or (state != RUNS and "ended" in states)


def _brief_status(look: Look) -> dict[str, Any]:
    directory = look.job
    try:
        found = _status_of(look)
    except StorageError as error:
        # One damaged directory does not hide the other jobs.
        found = {**UNREADABLE, "name": directory.name, "reason": str(error)}
    return {**found, "started_s": round(directory.started_s(), 3)}


def _status_of(look: Look) -> dict[str, Any]:
    directory = look.job
    if not directory.is_running():
        found = ended_status(directory)
        damage = "; ".join(look.damage.values())
        return {**found, "state": "unreadable", "reason": damage} if damage else found
    job = Job(directory, patience_s=LIST_PATIENCE_S)
    try:
        return job.status(LIST_PATIENCE_S)
    except RpcError as error:
        return {**ended_status(directory), "state": UNREACHABLE, "reason": str(error)}
    finally:
        job.close()
