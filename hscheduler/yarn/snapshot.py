"""What the plugin in a ResourceManager tells in one round, and what it is answered.  Pure.

Names are YARN's own: ``application_1700000000000_0001``, ``container_1700000000000_0001_01_000002``, ``host:port``.
"""

from __future__ import annotations

from dataclasses import dataclass

from hscheduler.core.resources import Resources


@dataclass(frozen=True, slots=True)
class Node:
    """A node that runs."""

    node: str
    #: Its label; empty: the default partition.
    partition: str
    free: Resources


@dataclass(frozen=True, slots=True)
class Ask:
    """Containers that an application asked for and has not got."""

    #: One for its job master; else for its members.
    for_master: bool
    number: int
    size: Resources
    #: Empty: the default partition.
    label: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """A container that an application has."""

    container_id: str
    node: str
    size: Resources
    #: The job master's: never given back.
    is_master: bool
    age_ms: int
    #: The allocationRequestId that it was asked for with.
    number: int
    #: The plugin has marked it for preemption, and it is still there.
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Application:
    """An application that is not over."""

    application_id: str
    name: str
    #: YARN's word: SUBMITTED, ACCEPTED, RUNNING and so on.
    state: str
    queue: str
    user: str
    #: Higher goes first.
    priority: int
    submitted_ms: int
    tags: tuple[str, ...] = ()
    #: Where its job master listens; empty and -1 before it has registered.
    host: str = ""
    port: int = -1
    #: What YARN says of it, as why its job master is not started.
    diagnostics: str = ""
    asks: tuple[Ask, ...] = ()
    containers: tuple[Held, ...] = ()

    def __str__(self) -> str:
        return f"{self.application_id} ({self.name})"


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue that applications are in, in one partition."""

    queue: str
    partition: str
    used: Resources
    #: All that it may have there.
    most: Resources
    preemption_disabled: bool


@dataclass(frozen=True, slots=True)
class User:
    """What a user has in a queue, in one partition."""

    queue: str
    user: str
    partition: str
    used: Resources
    #: All that a user may have by the queue's user-limit-factor, if nobody else asked.
    limit: Resources


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there is at a moment."""

    #: Names the ResourceManager's life.
    instance: str
    #: On a clock of that life.
    taken_ms: int
    #: YARN counts cores, too; else only memory decides where a container fits.
    counts_cores: bool
    nodes: tuple[Node, ...] = ()
    applications: tuple[Application, ...] = ()
    queues: tuple[Queue, ...] = ()
    users: tuple[User, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be given back."""

    #: Those of the snapshot that it was made for.
    instance: str
    taken_ms: int
    #: Containers to mark for preemption, and to kill where they are not given back in time.
    takes: tuple[str, ...] = ()
    #: Containers that were marked and need not be killed.
    spares: tuple[str, ...] = ()
    #: Why, for whoever asks.
    sentences: tuple[str, ...] = ()
    #: The application that ``takes`` are for.
    taker: str = ""
    #: Applications that wait for what none of the others could give now: a limit, or the end of one of them.
    held: frozenset[str] = frozenset()
