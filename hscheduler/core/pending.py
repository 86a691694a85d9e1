"""Containers that a job was promised and does not use yet."""

from __future__ import annotations

from dataclasses import dataclass

from hscheduler.core.resources import Container


@dataclass(slots=True)
class Pending:
    """Containers that were promised together and are used together."""

    containers: list[Container]
    #: Of those, promised still.
    missing: set[str]
    starts: bool
    #: That of the last container.
    number: int
