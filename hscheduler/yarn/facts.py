"""What a ResourceManager does not know of a job, and whoever decides about it must.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hscheduler.core.resources import Role
from hscheduler.yarn.snapshot import Application


@dataclass(frozen=True, slots=True)
class Facts:
    """How a job is."""

    #: It has given its early feedback: others may get what it has.
    early_feedback: bool
    #: Container -> worker or server; what is not in it is neither counted nor taken.
    roles: Mapping[str, Role] = field(default_factory=dict)
    #: Its size is not changing just now.
    may_shrink: bool = True
    #: It waits for its first workers and servers, of which it may have some.
    starting: bool = False
    #: Members of each role that it gave so that others had their room, and has not had again.
    lent: Mapping[Role, int] = field(default_factory=dict)
    #: Label of the nodes that its members of each role ask for, where it has told; empty: of nodes without one.
    labels: Mapping[Role, str] = field(default_factory=dict)


class JobFacts(Protocol):
    """Where facts come from."""

    def of(self, application: Application) -> Facts | None:
        """Return how the job of an application is; None where nobody knows: then nothing is taken from it."""
