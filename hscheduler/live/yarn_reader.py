"""A queue of YARN as its ResourceManager's REST interface tells it, and where its applications stand in it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from eps.errors import ConfigError, JobNotFoundError, ProtocolError, ResourceError
from hscheduler.yarn.rest import (
    STATES,
    Answers,
    attempt_of,
    most_priority_in,
    names_of,
    of_queues,
    priority_of,
    queues_of,
    same_moment,
    snapshot_of,
)
from hscheduler.yarn.snapshot import Application, Snapshot

#: A picture is put together from several answers; one between which something happened is taken again so often.
MOST_LOOKS = 3
_TYPE = "EPS"


class Web(Protocol):
    """What of :class:`eps.cluster.yarn.rest.RestClient` is needed."""

    def look(self, path: str, what: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return an answer."""

    def counts_cores(self, info: Mapping[str, Any]) -> bool:
        """Return whether YARN counts cores, too, by ``schedulerInfo`` of its answer to ``scheduler``."""

    def set_priority(self, application_id: str, priority: int) -> int:
        """Change a priority; return what it became."""


class QueueReader:
    """Reads some queues.

    Parameters
    ----------
    web : Web
    queues : sequence of str
        Names, or whole paths as ``root.research.eps``.
    """

    def __init__(self, web: Web, queues: Sequence[str]) -> None:
        self._web = web
        self._asked = tuple(queues)
        self._names: frozenset[str] = frozenset()
        #: The highest priority that YARN lets an application have; None where it does not tell.
        self.most_priority: int | None = None

    def check(self) -> None:
        """Look whether the queues are there.

        Raises
        ------
        ConfigError
            One of them is not.
        RpcError
            The ResourceManager does not answer.
        """
        queues = queues_of(self._web.look("scheduler", "look at the queues"))
        self._names, unknown = names_of(queues, self._asked)
        if unknown:
            told = ", ".join(sorted(queues)) or "none that it tells of: H-scheduler reads the Capacity Scheduler's"
            raise ConfigError(f"queue is {unknown[0]!r}, but YARN has {told}")
        try:
            overview = self._web.look("scheduler-overview", "look at how high priorities go")
        except (JobNotFoundError, ResourceError):
            overview = {}
        self.most_priority = most_priority_in(overview)

    def applications(self) -> list[Mapping[str, Any]]:
        """Return the applications of EPS in the queues that are not over, as YARN tells of them."""
        query = {"applicationTypes": _TYPE, "states": ",".join(STATES)}
        return list(of_queues(self._web.look("apps", "list the applications", query), self._names))

    def snapshot(self, apps: Sequence[Mapping[str, Any]]) -> Snapshot | None:
        """Return what there is; None where nothing stayed as it was while it was looked at.

        Parameters
        ----------
        apps : sequence of mapping
            What :meth:`applications` has just returned.

        Raises
        ------
        ProtocolError
            It is nothing that a ResourceManager answers.
        RpcError
            It does not answer.
        """
        try:
            for _ in range(MOST_LOOKS):
                found = self._answers(apps)
                after = self.applications()
                if same_moment(apps, after):
                    return snapshot_of(found, self._names)
                apps = after
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"the ResourceManager's answer is not understood: {error!r}") from error
        return None

    def _answers(self, apps: Sequence[Mapping[str, Any]]) -> Answers:
        containers = {}
        for app in apps:
            attempt = attempt_of(app)
            if attempt and app["state"] == "RUNNING":
                name = str(app["id"])
                try:
                    containers[name] = self._web.look(
                        f"apps/{name}/appattempts/{attempt}/containers", f"list the containers of {name}"
                    )
                except JobNotFoundError:
                    # It has ended meanwhile: then the picture is taken again.
                    containers[name] = {}
        nodes = self._web.look("nodes", "list the nodes", {"states": "RUNNING"})
        scheduler = self._web.look("scheduler", "look at the queues")
        cores = self._web.counts_cores((scheduler.get("scheduler") or {}).get("schedulerInfo") or {})
        now_ms = int(time.time() * 1000)
        return Answers({"apps": {"app": list(apps)}}, nodes, scheduler, containers, cores, now_ms)

    def highest_priority_beside(self, application: Application) -> int:
        """Return the highest priority of the other applications in a queue, of whatever type; -1 without any.

        Raises as :meth:`applications`.
        """
        found = self._web.look("apps", "list the applications", {"states": "ACCEPTED,RUNNING"})
        others = of_queues(found, frozenset({application.queue}))
        return max((priority_of(a) for a in others if a["id"] != application.application_id), default=-1)
