"""Read queues from the answers of a ResourceManager's web interface.  Pure.

Source: Hadoop 3.5.0, "ResourceManager REST API's": Cluster Scheduler API (Capacity Scheduler); for
:func:`counts_cores`, ``DefaultResourceCalculator``, ``DominantResourceCalculator`` and ``AbstractLeafQueue``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eps.cluster.yarn.types import QueueReport, Resource

#: Rights that let a user submit to a queue and to those below it.
_RIGHTS = ("SUBMIT_APP", "ADMINISTER_QUEUE")
_ALL = "*"
#: Setting: the class by which the Capacity Scheduler accounts for resources.
CALCULATOR = "yarn.scheduler.capacity.resource-calculator"
#: Names of the resources that every cluster has.
_SIZES = ("memory-mb", "vcores")
#: Hadoop's only calculator that ignores cores.
_MEMORY_ONLY = "org.apache.hadoop.yarn.util.resource.DefaultResourceCalculator"


def queue_in(info: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    """Return the queue of a name or path, followed by its ancestors; empty if there is none.

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
    for child in _entries(queue, "queues", "queue"):
        yield from _ways(child, way)


def report_of_queue(way: Sequence[Mapping[str, Any]], *, may_submit: bool, counts_cores: bool) -> QueueReport:
    """Return YARN's report on a queue.

    Parameters
    ----------
    way : sequence of mapping
        The queue and its ancestors, from :func:`queue_in`.
    may_submit, counts_cores : bool
        See :class:`~eps.cluster.yarn.types.QueueReport`.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        The answer does not describe a queue.
    """
    queue = way[0]
    largest = queue.get("maximumAllocation")
    return QueueReport(
        name=str(queue["queueName"]),
        state=str(queue.get("state", "RUNNING")),
        labels=tuple(queue.get("nodeLabels") or ()),
        children=tuple(str(child["queueName"]) for child in _entries(queue, "queues", "queue")),
        largest=None if largest is None else _resource(largest),
        most={
            str(part.get("partitionName") or ""): _resource(part["effectiveMaxResource"])
            for part in _entries(queue, "capacities", "queueCapacitiesByPartition")
            if part.get("effectiveMaxResource")
        },
        counts_cores=counts_cores,
        may_submit=may_submit,
    )


def may_submit(way: Sequence[Mapping[str, Any]], user: str) -> bool:
    """Return whether YARN's access control lists let a user submit to a queue.

    True if they cannot tell, for example since they name groups.

    Parameters
    ----------
    way : sequence of mapping
        The queue and its ancestors, from :func:`queue_in`.
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


def counts_cores(info: Mapping[str, Any], configured: str) -> bool:
    """Return whether YARN accounts for cores; False if that is unknown, as is Hadoop's default.

    No answer of a ResourceManager names its calculator.  ``schedulingResourceType`` of ``scheduler-overview`` lists all
    kinds of resources, always with cores, and the page ``/conf`` lacks the scheduler's file.  But the default
    calculator sets the cores of every product to 1, so the queues' limits for job masters show it.

    Parameters
    ----------
    info : mapping
        ``schedulerInfo`` of the answer to ``scheduler``.
    configured : str
        :data:`CALCULATOR` in the client's own files; decides if no queue has enough cores to tell.
    """
    told = [each for way in _ways(info, ()) for each in _limits_tell(way[0])]
    return any(told) if told else configured not in ("", _MEMORY_ONLY)


def _limits_tell(queue: Mapping[str, Any]) -> Iterator[bool]:
    """Yield whether cores count, for each partition whose limit for job masters shows it."""
    parts = {str(p.get("partitionName") or ""): p for p in _entries(queue, "capacities", "queueCapacitiesByPartition")}
    for used in _entries(queue, "resources", "resourceUsagesByPartition"):
        limit, part = _resource(used.get("amLimit") or {}), parts.get(str(used.get("partitionName") or ""), {})
        # The limit is this share of at least the queue's minimum, rounded up.
        least = float(part.get("maxAMLimitPercentage") or 0.0) / 100.0
        least *= _resource(part.get("effectiveMinResource") or {}).vcores
        if limit.vcores > 1:
            yield True
        elif limit.memory_mb and least >= 2:
            yield False


def _entries(queue: Mapping[str, Any], outer: str, inner: str) -> Sequence[Mapping[str, Any]]:
    # Some releases write a list of one as the element itself.
    found = (queue.get(outer) or {}).get(inner) or ()
    return (found,) if isinstance(found, Mapping) else found


def _resource(found: Mapping[str, Any]) -> Resource:
    told = _entries(found, "resourceInformations", "resourceInformation")
    others = sorted((str(each["name"]), int(each["value"])) for each in told if each["name"] not in _SIZES)
    named = tuple((name, number) for name, number in others if number)
    return Resource(int(found.get("memory") or 0), int(found.get("vCores") or 0), named)
