"""Queues, from what a ResourceManager's web interface says of them.  L2, pure.

Source: Hadoop 3.5.0, "ResourceManager REST API's": Cluster Scheduler API (Capacity Scheduler).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eps.yarn.types import QueueReport, Resource

#: What lets a user submit to a queue, and to those below it.
_RIGHTS = ("SUBMIT_APP", "ADMINISTER_QUEUE")
_ALL = "*"


def queue_in(info: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    """Return the queue of a name, or of a path, and those above it, the nearest first; nothing where there is none.

    Parameters
    ----------
    info : mapping
        ``schedulerInfo`` of the answer to ``scheduler``.
    name : str
    """
    found = (way for way in _ways(info, ()) if name in (way[0].get("queueName"), way[0].get("queuePath")))
    return next(found, ())


def _ways(queue: Mapping[str, Any], above: tuple[Mapping[str, Any], ...]) -> Iterator[tuple[Mapping[str, Any], ...]]:
    way = queue, *above
    yield way
    for child in (queue.get("queues") or {}).get("queue") or ():
        yield from _ways(child, way)


def report_of_queue(way: Sequence[Mapping[str, Any]], *, may_submit: bool, counts_cores: bool) -> QueueReport:
    """Return what YARN says of a queue.

    Parameters
    ----------
    way : sequence of mapping
        As of :func:`queue_in`.
    may_submit, counts_cores : bool
        As of :class:`~eps.yarn.types.QueueReport`.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        It is no queue.
    """
    queue = way[0]
    largest = queue.get("maximumAllocation")
    return QueueReport(
        name=str(queue["queueName"]),
        state=str(queue.get("state", "RUNNING")),
        capacity=_share(queue, "absoluteCapacity"),
        maximum_capacity=_share(queue, "absoluteMaxCapacity"),
        used_capacity=_share(queue, "absoluteUsedCapacity"),
        labels=tuple(queue.get("nodeLabels") or ()),
        children=tuple(str(child["queueName"]) for child in (queue.get("queues") or {}).get("queue") or ()),
        largest=None if largest is None else _resource(largest),
        most={
            str(part.get("partitionName") or ""): _resource(part["effectiveMaxResource"])
            for part in (queue.get("capacities") or {}).get("queueCapacitiesByPartition") or ()
            if part.get("effectiveMaxResource")
        },
        counts_cores=counts_cores,
        may_submit=may_submit,
    )


def may_submit(way: Sequence[Mapping[str, Any]], user: str) -> bool:
    """Return whether YARN's lists of who may submit let a user; True where they do not tell, as by a group's name.

    Parameters
    ----------
    way : sequence of mapping
        As of :func:`queue_in`.
    user : str
    """
    for queue in way:
        rights = (queue.get("queueAcls") or {}).get("queueAcl")
        if rights is None:
            return True
        for right in rights:
            users, _, groups = str(right.get("accessControlList", _ALL)).partition(" ")
            if right.get("accessType") in _RIGHTS and (groups.strip() or {_ALL, user} & set(users.split(","))):
                return True
    return False


def counts_cores(overview: Mapping[str, Any]) -> bool:
    """Return whether cores count; a release that does not tell counts memory only, as its calculator does.

    Parameters
    ----------
    overview : mapping
        The answer to ``scheduler-overview``; empty where there is none.
    """
    kinds = str((overview.get("scheduler") or overview).get("schedulingResourceType", "")).lower()
    return "vcores" in kinds or "cpu" in kinds


def _resource(found: Mapping[str, Any]) -> Resource:
    return Resource(int(found.get("memory") or 0), int(found.get("vCores") or 0))


def _share(queue: Mapping[str, Any], name: str) -> float:
    # The root queue has its shares without the word.
    value = queue.get(name, queue.get(name.removeprefix("absolute")[:1].lower() + name.removeprefix("absolute")[1:], 0))
    return float(value) / 100.0
