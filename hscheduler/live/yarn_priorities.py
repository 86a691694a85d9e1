"""Whoever room is made for goes first: YARN gives what others let go of to the application of the highest priority.

Within a queue, that is; which queue is next YARN decides by their shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eps.errors import AuthenticationError, JobNotFoundError, ResourceError, RpcError
from hscheduler.live.yarn_reader import QueueReader, Web
from hscheduler.yarn.snapshot import Application

NO_PRIORITIES = (
    "YARN's applications have no priorities here (yarn.cluster.max-application-priority is 0): an older one of the "
    "queue that asks as well may get what is freed, and then it is planned again"
)


class Priorities:
    """Raises the priority of applications that room is made for, until they have got what they asked for.

    Parameters
    ----------
    web : Web
    reader : QueueReader
    tell : callable
        Given a sentence about what is done, and the application.
    """

    def __init__(self, web: Web, reader: QueueReader, tell: Callable[[str, str], None]) -> None:
        self._web = web
        self._reader = reader
        self._tell = tell
        #: Application -> the priority that it had, and the one that it was given.
        self._raised: dict[str, tuple[int, int]] = {}
        #: Applications that cannot be raised, and the empty id once it was said that none can.
        self._refused: set[str] = set()

    def raise_for(self, application: Application) -> None:
        """Put an application before all others of its queue, as far as YARN lets it.

        Raises
        ------
        RpcError
            The ResourceManager does not answer.
        """
        name = application.application_id
        if self._reader.most_priority == 0:
            if "" not in self._refused:
                self._refused.add("")
                self._tell(NO_PRIORITIES, "")
            return
        if name in self._raised or name in self._refused:
            return
        wanted = self._reader.highest_priority_beside(application) + 1
        if application.priority >= wanted:
            return
        try:
            given = self._web.set_priority(name, wanted)
        except (AuthenticationError, JobNotFoundError, ResourceError) as error:
            self._refused.add(name)
            self._tell(f"{application} keeps its priority: {error}", name)
            return
        self._raised[name] = application.priority, given
        self._tell(f"{application} has priority {given} until it has what it asks for", name)

    def settle(self, applications: frozenset[str], asking: frozenset[str]) -> None:
        """Give those their own priority back that ask for nothing any more; forget those that are over.

        Parameters
        ----------
        applications : frozenset of str
            All that are not over.
        asking : frozenset of str

        Raises as :meth:`raise_for`.
        """
        self._refused &= applications | {""}
        for name in [name for name in self._raised if name not in asking]:
            before, _ = self._raised[name]
            if name in applications:
                try:
                    self._web.set_priority(name, before)
                except (AuthenticationError, JobNotFoundError, ResourceError) as error:
                    self._tell(f"{name} keeps its priority: {error}", name)
            del self._raised[name]

    def close(self) -> None:
        """Give all their own priority back, as far as the ResourceManager answers."""
        try:
            self.settle(frozenset(self._raised), frozenset())
        except RpcError as error:
            self._tell(f"{', '.join(sorted(self._raised))}: the raised priority stays: {error}", "")


def unsettled(apps: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the applications that ask for containers, or soon will: their job master has not got any yet."""
    return frozenset(
        str(app["id"])
        for app in apps
        if app.get("resourceRequests") or app.get("state") != "RUNNING" or int(app.get("runningContainers") or 0) < 2
    )
