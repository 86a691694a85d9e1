"""The messages between the plugin in a ResourceManager and H-scheduler: snapshots, plans, and their text.  Pure.

Names are YARN's own: ``application_1700000000000_0001``, ``container_1700000000000_0001_01_000002``, ``host:port``.

The plugin posts a snapshot to ``/plan`` and gets a plan.  Both are UTF-8, one record a line, fields separated by tabs
and encoded as in an HTML form (``a b`` is ``a+b``).  Numbers are integers, memory is in MB, booleans are ``true`` and
``false``.  The last line is ``end``; a message without it is truncated and rejected.  ::

    hscheduler-yarn  3  instance  taken_ms  counts_cores
    node       node  partition  free_mb  free_vcores
    app        id  name  state  queue  user  priority  submitted_ms  tags,joined  host  port  diagnostics
    ask        app  master|member  number  mb  vcores  label
    container  app  id  node  mb  vcores  is_master  age_ms  marked
    queue      queue  partition  used_mb  used_vcores  most_mb  most_vcores  preemption_disabled
    user       queue  user  partition  used_mb  used_vcores  limit_mb  limit_vcores
    end

    hscheduler-plan  3
    at         instance
    at         taken_ms
    take       container
    spare      container
    say        sentence
    end

``ask`` and ``container`` lines follow the ``app`` line that they belong to.

Both sides prove in the header ``X-EPS-Proof`` that they know the secret, which is never sent.  The plugin sends the
SHA-256 of the body in ``X-EPS-Digest``.  Its proof is the HMAC-SHA256 of ``plan for``, a space and that digest, so
H-scheduler can check it before it reads the body.  H-scheduler's proof is the HMAC-SHA256 of ``plan of``, a space, the
plugin's proof, a newline and the body.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import quote_plus, unquote_plus

from hscheduler.core.resources import Resources

PROOF = "X-EPS-Proof"
DIGEST = "X-EPS-Digest"
#: Limit of a snapshot, which the plugin respects; enough for twenty thousand containers.
MOST_BYTES = 4 << 20
_BEGIN, _PLAN, _VERSION, _END = "hscheduler-yarn", "hscheduler-plan", "3", "end"
_TRUTHS = {"true": True, "false": False}


# ---- snapshots and plans


@dataclass(frozen=True, slots=True)
class Node:
    """A running node."""

    node: str
    #: Its label; empty: the default partition.
    partition: str
    free: Resources


@dataclass(frozen=True, slots=True)
class Ask:
    """A pending container request of an application."""

    #: For the job master; otherwise for members.
    for_master: bool
    number: int
    size: Resources
    #: Empty: the default partition.
    label: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """A container of an application."""

    container_id: str
    node: str
    size: Resources
    #: The job master's container, which is never taken.
    is_master: bool
    age_ms: int
    #: The plugin has marked it for preemption.
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Application:
    """An application that has not ended."""

    application_id: str
    name: str
    #: YARN's application state: SUBMITTED, ACCEPTED, RUNNING and so on.
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
    #: YARN's diagnostics, such as why the job master has not started.
    diagnostics: str = ""
    asks: tuple[Ask, ...] = ()
    containers: tuple[Held, ...] = ()

    def __str__(self) -> str:
        return f"{self.application_id} ({self.name})"


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue with applications, in one partition."""

    queue: str
    partition: str
    used: Resources
    #: Its maximum there.
    most: Resources
    preemption_disabled: bool


@dataclass(frozen=True, slots=True)
class User:
    """The usage and limit of a user in a queue, in one partition."""

    queue: str
    user: str
    partition: str
    used: Resources
    #: Limit by the queue's user-limit-factor, without demand from other users.
    limit: Resources


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a cluster at one time."""

    #: Id of the ResourceManager's process.
    instance: str
    #: On a clock of that process.
    taken_ms: int
    #: YARN counts cores; otherwise only memory decides where a container fits.
    counts_cores: bool
    nodes: tuple[Node, ...] = ()
    applications: tuple[Application, ...] = ()
    queues: tuple[Queue, ...] = ()
    users: tuple[User, ...] = ()

    def counted(self, size: Resources) -> Resources:
        """Return a size as YARN counts it: without cores if YARN counts memory only."""
        return size if self.counts_cores else replace(size, vcores=0)


@dataclass(frozen=True, slots=True)
class Plan:
    """The containers to preempt."""

    #: ``instance`` and ``taken_ms`` are those of the snapshot.
    instance: str
    taken_ms: int
    #: Containers to mark for preemption, and to kill if they are not released in time.
    takes: tuple[str, ...] = ()
    #: Marked containers that need not be killed any more.
    spares: tuple[str, ...] = ()
    #: The reasons, for users.
    sentences: tuple[str, ...] = ()


# ---- encoding

_Kind = TypeVar("_Kind", Ask, Held)


class WireError(ValueError):
    """A malformed or truncated message."""


def digest_of(body: bytes) -> str:
    """Return the digest of an encoded snapshot."""
    return hashlib.sha256(body).hexdigest()


def proof_of_request(secret: bytes, digest: str) -> str:
    """Return the plugin's proof for an encoded snapshot with this digest."""
    return hmac.new(secret, f"plan for {digest}".encode(), hashlib.sha256).hexdigest()


def proof_of_answer(secret: bytes, request_proof: str, body: bytes) -> str:
    """Return H-scheduler's proof for an encoded plan, the answer to a request with ``request_proof``."""
    return hmac.new(secret, f"plan of {request_proof}\n".encode() + body, hashlib.sha256).hexdigest()


def parse_snapshot(body: bytes) -> Snapshot:
    """Decode a snapshot.

    Raises
    ------
    WireError
        The message is malformed or truncated.
    """
    lines = _lines(body)
    try:
        word, version, instance, taken_ms, counts_cores = lines[0]
        if (word, version) != (_BEGIN, _VERSION):
            raise WireError(f"it begins with {word!r} of version {version!r}, but must with {_BEGIN!r} of {_VERSION!r}")
        reader = _Reader()
        for line in lines[1:]:
            reader.take(line[0], line[1:])
        return Snapshot(
            instance,
            int(taken_ms),
            _TRUTHS[counts_cores],
            tuple(reader.nodes),
            reader.applications(),
            tuple(reader.queues),
            tuple(reader.users),
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise error if isinstance(error, WireError) else WireError(f"it is no snapshot: {error}") from error


def plan_text(plan: Plan) -> bytes:
    """Encode a plan."""
    fields = [("at", plan.instance), ("at", str(plan.taken_ms))]
    for word, values in (("take", plan.takes), ("spare", plan.spares), ("say", plan.sentences)):
        fields += [(word, value) for value in values]
    lines = "".join(f"{word}\t{quote_plus(value)}\n" for word, value in fields)
    return f"{_PLAN}\t{_VERSION}\n{lines}{_END}\n".encode()


class _Reader:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._applications: dict[str, Application] = {}
        self._asks: dict[str, list[Ask]] = {}
        self._held: dict[str, list[Held]] = {}
        self.queues: list[Queue] = []
        self.users: list[User] = []

    def take(self, word: str, values: list[str]) -> None:
        """Take one line."""
        kinds: dict[str, Callable[..., None]] = {
            "node": self._node,
            "app": self._application,
            "ask": self._ask,
            "container": self._container,
            "queue": self._queue,
            "user": self._user,
        }
        if word not in kinds:
            raise WireError(f"it has a line {word!r}")
        kinds[word](*values)

    def _node(self, node: str, partition: str, mb: str, vcores: str) -> None:
        self.nodes.append(Node(node, partition, _resources(mb, vcores)))

    def _application(
        self,
        application_id: str,
        name: str,
        state: str,
        queue: str,
        user: str,
        priority: str,
        submitted_ms: str,
        tags: str,
        host: str,
        port: str,
        diagnostics: str,
    ) -> None:
        known = tuple(tag for tag in tags.split(",") if tag)
        numbers = int(priority), int(submitted_ms)
        if application_id in self._applications:
            raise WireError(f"it has {application_id!r} twice")
        self._applications[application_id] = Application(
            application_id, name, state, queue, user, *numbers, known, host, int(port), diagnostics
        )
        self._asks[application_id], self._held[application_id] = [], []

    def applications(self) -> tuple[Application, ...]:
        """Return the applications with their requests and containers."""
        return tuple(
            replace(a, asks=tuple(self._asks[name]), containers=tuple(self._held[name]))
            for name, a in self._applications.items()
        )

    def _ask(self, application_id: str, role: str, number: str, mb: str, vcores: str, label: str) -> None:
        for_master = {"master": True, "member": False}[role]
        _of(self._asks, application_id).append(Ask(for_master, int(number), _resources(mb, vcores), label))

    def _container(
        self,
        application_id: str,
        container_id: str,
        node: str,
        mb: str,
        vcores: str,
        is_master: str,
        age_ms: str,
        marked: str,
    ) -> None:
        size, master = _resources(mb, vcores), _TRUTHS[is_master]
        held = Held(container_id, node, size, master, int(age_ms), _TRUTHS[marked])
        _of(self._held, application_id).append(held)

    def _queue(self, queue: str, partition: str, mb: str, vcores: str, most: str, most_vcores: str, off: str) -> None:
        used, limit = _resources(mb, vcores), _resources(most, most_vcores)
        self.queues.append(Queue(queue, partition, used, limit, _TRUTHS[off]))

    def _user(self, queue: str, user: str, partition: str, mb: str, vcores: str, most: str, most_vcores: str) -> None:
        self.users.append(User(queue, user, partition, _resources(mb, vcores), _resources(most, most_vcores)))


def _of(kept: dict[str, list[_Kind]], application_id: str) -> list[_Kind]:
    if application_id not in kept:
        raise WireError(f"what belongs to {application_id!r} comes before it")
    return kept[application_id]


def _resources(mb: str, vcores: str) -> Resources:
    return Resources(int(vcores), int(mb))


def _lines(body: bytes) -> list[list[str]]:
    """Return the fields of each line; the last line must be ``end`` and is left out."""
    try:
        lines = body.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise WireError(f"it is not UTF-8: {error}") from None
    if lines[-2:] != [_END, ""]:
        raise WireError("it has no end")
    try:
        return [[unquote_plus(field, errors="strict") for field in line.split("\t")] for line in lines[:-2]]
    except UnicodeDecodeError as error:
        raise WireError(f"it is not UTF-8: {error}") from None
