"""Containers that are promised to a job and not in use yet."""

from __future__ import annotations

from dataclasses import dataclass

from hscheduler.core.resources import Container


@dataclass(slots=True)
class Pending:
    """Containers of one start or growth: they are handed to the job together."""

    containers: list[Container]
    #: Ids of those that are not granted yet.
    missing: set[str]
    starts: bool
    #: Number of the last container; orders complete sets.
    number: int
