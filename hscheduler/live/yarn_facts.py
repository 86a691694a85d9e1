"""What the job masters of applications say of their jobs, and how they are found."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eps.core.types import Address
from eps.errors import AuthenticationError, ConfigError, EpsError, StorageError
from eps.job.client import Job
from eps.job.yarn.elsewhere import StagedJobs
from hscheduler.core.resources import Role
from hscheduler.yarn.facts import Facts
from hscheduler.yarn.snapshot import Application

logger = logging.getLogger(__name__)

#: Somebody waits for the plan, and other masters are to be asked.
ASK_TIMEOUT_S = 1.0
#: Where the files of a job could not be read, it is tried again so often: its master may just have begun.
FIND_AGAIN_S = 5.0
#: Phases of a change in which what was asked for may not be there yet, and nobody has been told of it.
_WAITS = ("queued", "proposed")

#: Application -> the status of its job, as ``eps status --json`` prints it.
Ask = Callable[[Application], Mapping[str, Any]]


class Masters:
    """Job masters, by what YARN says of their applications; each has a connection of its own.

    Threads may use it at once, for different applications.

    Parameters
    ----------
    staged : StagedJobs
        Closed with this object.
    tell : callable
        Given once for each application why its master cannot be asked.
    told_at : int
        At which failure that is: the first may only be early, as a master registers before it says where it listens.
    """

    def __init__(self, staged: StagedJobs, tell: Callable[[str], None] = logger.warning, told_at: int = 2) -> None:
        self._staged = staged
        self._tell = tell
        self._told_at = told_at
        self._jobs: dict[str, tuple[Address, Job]] = {}
        #: Application -> when it was tried to find its master, why in vain, and how often that was so.
        self._failed: dict[str, tuple[float, EpsError, int]] = {}

    def job(self, application: Application) -> Job:
        """Return the job of an application whose master listens.

        Raises
        ------
        EpsError
            What a caller must know cannot be read.
        """
        name, place = application.application_id, Address(application.host, application.port)
        known = self._jobs.get(name)
        if known is not None and known[0] == place:
            return known[1]
        tried_s, error, times = self._failed.get(name, (0.0, None, 0))
        if error is not None and time.monotonic() - tried_s < FIND_AGAIN_S:
            raise error
        try:
            directory = self._staged.directory(name, application.name, application.user, place)
        except (ConfigError, StorageError) as found:
            self._failed[name] = time.monotonic(), found, times + 1
            if times + 1 == self._told_at:
                self._tell(f"{application} is left alone: {found}")
            raise
        self._failed.pop(name, None)
        if known is not None:
            known[1].close()
        self._jobs[name] = place, Job(directory, patience_s=ASK_TIMEOUT_S)
        return self._jobs[name][1]

    def status(self, application: Application) -> Mapping[str, Any]:
        """Return the status of an application's job; raises as :meth:`job`, or since its master does not answer."""
        try:
            return self.job(application).status(ASK_TIMEOUT_S)
        except AuthenticationError:
            # Another job of that name listened there once.
            self.forget(application.application_id)
            raise

    def forget(self, application_id: str) -> None:
        """Let go of an application; harmless where nothing is known of it."""
        known = self._jobs.pop(application_id, None)
        self._failed.pop(application_id, None)
        if known is not None:
            known[1].close()
        self._staged.forget(application_id)

    def keep(self, application_ids: frozenset[str]) -> None:
        """Let go of all other applications: they are over."""
        for name in {*self._jobs, *self._failed} - application_ids:
            self.forget(name)

    def close(self) -> None:
        """Let go of all; harmless when repeated."""
        self.keep(frozenset())
        self._staged.close()


@dataclass(frozen=True, slots=True)
class JobView:
    """How a job is, for who takes containers from it."""

    facts: Facts
    #: Container -> name of the worker or server in it.
    members: Mapping[str, str]
    #: Containers on their way out.
    leaving: frozenset[str] = frozenset()
    #: Changes that ask YARN for containers and have none yet; all that keeps the job from shrinking, if there are any.
    growth: tuple[int, ...] = ()
    #: Of these, the changes by which it is to have again what it gave, and has not been granted all.
    regains: tuple[int, ...] = ()
    #: Containers that come by these changes, and go when they are withdrawn.
    coming: frozenset[str] = frozenset()
    #: How often in a row it did not get that, and why the last time.
    in_vain: tuple[int, str] = (0, "")
    #: The latest change that was asked of it.
    latest_change: int = 0
    #: Who alone changes its size; empty: anybody may.
    manager: str = ""


def view_of(status: Mapping[str, Any], application: Application, feedback_iteration: int) -> JobView | None:
    """Return how the job of an application is, by its status; None where nothing is to be done with it.

    Containers are matched by YARN's own name.

    Raises
    ------
    KeyError, TypeError, ValueError
        It is no status of a job.
    """
    if status["state"] not in ("running", "starting"):
        return None
    members, roles, leaving = {}, {}, set()
    on_their_way_out = {name for change in _changes(status) for name in change["removed"]}
    by_name = _by_name(status)
    for held in application.containers:
        member = by_name.get(held.container_id)
        if member is None:
            # Nobody is in it any more: it has been given back, and YARN has not heard of that yet.
            if by_name and not held.is_master:
                leaving.add(held.container_id)
            continue
        members[held.container_id], roles[held.container_id] = str(member["name"]), Role(member["role"])
        if member["name"] in on_their_way_out or member.get("evicted_in_s") is not None:
            leaving.add(held.container_id)
    changes = _changes(status)
    starting = status["state"] == "starting"
    lent = {Role(role): int(number) for role, number in status.get("lent", {}).items() if number}
    labels = {Role(role): str(label) for role, label in status.get("labels", {}).items()}
    may_shrink = not changes and not starting
    facts = Facts(status["clock"] >= feedback_iteration, roles, may_shrink, starting, lent, labels)
    grows = all(c["operation"].startswith("add-") and c["phase"] in _WAITS and c["asked_by"] != "job" for c in changes)
    growth = tuple(int(change["plan_id"]) for change in changes) if grows else ()
    granted = {member["name"] for member in status["members"] if member.get("granted")}
    regains = tuple(
        int(change["plan_id"])
        for change in changes
        if grows and change["asked_by"] == "queue" and not (change["added"] and granted.issuperset(change["added"]))
    )
    newcomers = {name for change in changes if grows for name in change["added"]}
    coming = frozenset(container for container, name in members.items() if name in newcomers)
    ended = status.get("changes", ())
    latest = max((int(change["plan_id"]) for change in (*ended, *changes)), default=0)
    manager = str(status.get("manager", ""))
    return JobView(facts, members, frozenset(leaving), growth, regains, coming, _in_vain(ended), latest, manager)


def _changes(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the changes that have not ended: one at a time, what it gives may be on its way already."""
    return [change for change in (status["plan"], *status["queued"]) if change]


def _in_vain(changes: Sequence[Mapping[str, Any]]) -> tuple[int, str]:
    """Return how many of the latest changes by which a job was to have something again were aborted, and why."""
    number, reason = 0, ""
    for change in reversed(changes):
        if change["asked_by"] == "queue" and change["operation"].startswith("add-"):
            if change["phase"] != "aborted":
                break
            number, reason = number + 1, reason or str(change["reason"])
    return number, reason


def _by_name(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(member["granted"]): member for member in status["members"] if member.get("granted")}


class MasterFacts:
    """Facts of jobs, by their masters.

    Parameters
    ----------
    feedback_iteration : int
        A job that has come so far has given its early feedback.
    ask : callable
        Raises an EpsError where nobody can say.
    """

    def __init__(self, feedback_iteration: int, ask: Ask) -> None:
        self._feedback_iteration = feedback_iteration
        self._ask = ask

    def of(self, application: Application) -> Facts | None:
        """See :class:`hscheduler.yarn.facts.JobFacts`."""
        found = self.view(application)
        return None if found is None else found.facts

    def view(self, application: Application) -> JobView | None:
        """Return how the job of an application is; None where nobody knows."""
        if application.state != "RUNNING":
            return None
        try:
            return view_of(self._ask(application), application, self._feedback_iteration)
        except EpsError as error:
            logger.debug("%s: %s", application, error)
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("%s: its master tells no status of a job: %r", application, error)
        return None
