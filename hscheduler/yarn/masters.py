"""Find the job masters of YARN applications, and query them for what the ResourceManager does not know."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from eps.core.types import Address
from eps.errors import AuthenticationError, ConfigError, EpsError, StorageError
from eps.job.client import Job
from eps.job.yarn.staged_jobs import StagedJobs
from hscheduler.core.resources import Role
from hscheduler.yarn.plan import Facts
from hscheduler.yarn.wire import Application

logger = logging.getLogger(__name__)

#: Short, because a slow master delays the plan.
ASK_TIMEOUT_S = 1.0
#: Seconds before a job whose files could not be read is tried again: its master may still be starting.
FIND_AGAIN_S = 5.0
#: Masters queried concurrently.
AT_ONCE = 8
#: Deadline of a round of queries, in seconds: the plugin rejects plans for a snapshot older than five seconds.
ROUND_S = 2.5

#: Application -> the status of its job, as ``eps status --json`` prints it; raises an EpsError if it is unavailable.
Ask = Callable[[Application], Mapping[str, Any]]


class Masters:
    """Connections to the job masters of applications.

    Several threads may use it concurrently, for different applications.

    Parameters
    ----------
    staged : StagedJobs
        Closed with this object.
    tell : callable
        Called once for each application whose master cannot be queried, with the reason.
    """

    def __init__(self, staged: StagedJobs, tell: Callable[[str], None] = logger.warning) -> None:
        self._staged = staged
        self._tell = tell
        self._jobs: dict[str, tuple[Address, Job]] = {}
        #: Application -> (time of the last attempt to find its master, error, number of failures).
        self._failed: dict[str, tuple[float, EpsError, int]] = {}

    def job(self, application: Application) -> Job:
        """Return the job of an application whose master listens.

        Raises
        ------
        EpsError
            The job's files, which hold its secret, cannot be read.
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
            # The first attempt may come too early: a master registers before it publishes its address.
            if times == 1:
                self._tell(f"{application} cannot be shrunk: its job master cannot be queried: {found}")
            raise
        self._failed.pop(name, None)
        if known is not None:
            known[1].close()
        self._jobs[name] = place, Job(directory, patience_s=ASK_TIMEOUT_S)
        return self._jobs[name][1]

    def status(self, application: Application) -> Mapping[str, Any]:
        """Return the status of an application's job.  Raises as :meth:`job`, or if the master does not answer."""
        try:
            return self.job(application).status(ASK_TIMEOUT_S)
        except AuthenticationError:
            # The cached secret belongs to an earlier job at that address.
            self._forget(application.application_id)
            raise

    def keep(self, applications: Iterable[Application]) -> None:
        """Close the connections to all other applications: they have ended."""
        kept = {application.application_id for application in applications}
        for name in {*self._jobs, *self._failed} - kept:
            self._forget(name)

    def close(self) -> None:
        """Close all connections.  Idempotent."""
        self.keep(())
        self._staged.close()

    def _forget(self, application_id: str) -> None:
        known = self._jobs.pop(application_id, None)
        self._failed.pop(application_id, None)
        if known is not None:
            known[1].close()
        self._staged.forget(application_id)


class AskedMasters:
    """Queries the masters of many jobs concurrently, with one deadline.  Not thread-safe.

    A plan is for one snapshot: a master that is slow or hangs must not delay it.

    Parameters
    ----------
    feedback_iteration : int
        A job that has reached this iteration has early feedback.
    ask : callable
        May be slow, but must return; never called concurrently for one application.
    round_s : float, seconds
        Applications whose masters have not answered by then are left out of the round.
    """

    def __init__(self, feedback_iteration: int, ask: Ask, round_s: float = ROUND_S) -> None:
        self._feedback_iteration = feedback_iteration
        self._ask = ask
        self._round_s = round_s
        self._pool = ThreadPoolExecutor(AT_ONCE, "ask masters")
        #: Application -> its query from an earlier round that is still unanswered.
        self._hanging: dict[str, Future[Facts | None]] = {}
        #: Applications that were late in the last round: queried last, so that they do not block others.
        self._late: frozenset[str] = frozenset()

    def facts(self, applications: Iterable[Application]) -> dict[str, Facts]:
        """Return application -> facts of its job, for the masters that answered in time."""
        self._hanging = {name: question for name, question in self._hanging.items() if not question.done()}
        asked = [a for a in applications if a.state == "RUNNING" and a.application_id not in self._hanging]
        asked.sort(key=lambda a: a.application_id in self._late)
        questions = {a.application_id: self._pool.submit(self._of, a) for a in asked}
        answered, unanswered = wait(questions.values(), self._round_s)
        late = {name for name, question in questions.items() if question in unanswered}
        for name in late:
            logger.debug("%s has not answered within %g s", name, self._round_s)
            if not questions[name].cancel():
                self._hanging[name] = questions[name]
        self._late = frozenset({*late, *self._hanging})
        told = {name: question.result() for name, question in questions.items() if question in answered}
        return {name: found for name, found in told.items() if found is not None}

    def _of(self, application: Application) -> Facts | None:
        try:
            return facts_of(self._ask(application), application, self._feedback_iteration)
        except EpsError as error:
            logger.debug("%s: %s", application, error)
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("%s: its job master returned an invalid status: %r", application, error)
        return None

    def close(self) -> None:
        """Stop querying; calls in progress end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def facts_of(status: Mapping[str, Any], application: Application, feedback_iteration: int) -> Facts | None:
    """Return the facts of an application's job from its status; None if the job has ended.

    Containers are matched by their YARN ids.

    Raises
    ------
    KeyError, TypeError, ValueError
        ``status`` is not the status of a job.
    """
    if status["state"] not in ("running", "starting"):
        return None
    by_name = {str(member["granted"]): member for member in status["members"] if member.get("granted")}
    roles = {}
    for held in application.containers:
        member = by_name.get(held.container_id)
        # A container without a member was released, and YARN does not know yet.  A job on reliable and transient
        # containers decides itself which of them work and serve.
        if member is not None and "tiers" not in status:
            roles[held.container_id] = Role(member["role"])
    starting = status["state"] == "starting"
    changes = status["plan"] or status["queued"]
    return Facts(status["clock"] >= feedback_iteration, roles, not changes and not starting, starting)
