"""What a ResourceManager does not know of a job, by its job master: how the masters are found and asked."""

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

#: The plugin waits for the plan, and other masters are to be asked.
ASK_TIMEOUT_S = 1.0
#: Where the files of a job could not be read, it is tried again so often: its master may just have begun.
FIND_AGAIN_S = 5.0
#: Masters that are asked at once.
AT_ONCE = 8
#: A round of questions takes no longer: the plugin takes no plan that is about a moment five seconds ago.
ROUND_S = 2.5

#: Application -> the status of its job, as ``eps status --json`` prints it; raises an EpsError where it is not known.
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
    """

    def __init__(self, staged: StagedJobs, tell: Callable[[str], None] = logger.warning) -> None:
        self._staged = staged
        self._tell = tell
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
            # The first failure may only be early: a master registers before it says where it listens.
            if times == 1:
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
            self._forget(application.application_id)
            raise

    def keep(self, applications: Iterable[Application]) -> None:
        """Forget all other applications: they have ended."""
        kept = {application.application_id for application in applications}
        for name in {*self._jobs, *self._failed} - kept:
            self._forget(name)

    def close(self) -> None:
        """Forget all applications; harmless when repeated."""
        self.keep(())
        self._staged.close()

    def _forget(self, application_id: str) -> None:
        known = self._jobs.pop(application_id, None)
        self._failed.pop(application_id, None)
        if known is not None:
            known[1].close()
        self._staged.forget(application_id)


class AskedMasters:
    """Asks the masters of many jobs at once, with one deadline for all of them.  For one caller at a time.

    A plan is about one moment: a master that answers late, or hangs, must not make it older for the others.

    Parameters
    ----------
    feedback_iteration : int
        A job that has come so far has given its early feedback.
    ask : callable
        May take its time, but must end; it is never called twice at once for one application.
    round_s : float, seconds
        An application whose master has not answered by then is left out of the round.
    """

    def __init__(self, feedback_iteration: int, ask: Ask, round_s: float = ROUND_S) -> None:
        self._feedback_iteration = feedback_iteration
        self._ask = ask
        self._round_s = round_s
        self._pool = ThreadPoolExecutor(AT_ONCE, "ask masters")
        #: Application -> the question that was not answered in time, and still is not.
        self._hanging: dict[str, Future[Facts | None]] = {}
        #: Those of the last round that were late: they go last, so that they keep nobody from being asked.
        self._late: frozenset[str] = frozenset()

    def facts(self, applications: Iterable[Application]) -> dict[str, Facts]:
        """Return application -> how its job is, without those whose masters have not answered in time."""
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
            logger.warning("%s: its master tells no status of a job: %r", application, error)
        return None

    def close(self) -> None:
        """Ask no more masters; calls under way end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def facts_of(status: Mapping[str, Any], application: Application, feedback_iteration: int) -> Facts | None:
    """Return how the job of an application is, by its status; None where the job has ended.

    Containers are matched by YARN's own name.

    Raises
    ------
    KeyError, TypeError, ValueError
        It is no status of a job.
    """
    if status["state"] not in ("running", "starting"):
        return None
    by_name = {str(member["granted"]): member for member in status["members"] if member.get("granted")}
    roles = {}
    for held in application.containers:
        member = by_name.get(held.container_id)
        # A container without a member was given back, and YARN has not heard of that yet.
        if member is not None:
            roles[held.container_id] = Role(member["role"])
    starting = status["state"] == "starting"
    changes = status["plan"] or status["queued"]
    return Facts(status["clock"] >= feedback_iteration, roles, not changes and not starting, starting)
