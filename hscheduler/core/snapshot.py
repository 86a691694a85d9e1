"""What a scheduler is at a moment, as JSON and back: everything that follows later follows from it too.

Objects are written as they are, in the order in which things came to be: an order may decide between two that are
alike.  An object that is found in several places is one again.

A snapshot has a version, and what each kind of object has is written as well.  Code that was changed since reads it
where the version is the same and dataclasses have only gained fields with defaults: so many had what these say, as
nobody had anything else.  Whoever changes more than that, or what something means, raises :data:`VERSION`.  What an
object of another class has follows from the rest, and is not as it is in a new one: where such a class has gained
something, a snapshot of before cannot be read.

Numbers that JSON has no word for are spelt, as in :mod:`hscheduler.core.codec`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from copy import copy
from enum import Enum
from functools import partial
from typing import Any

from hscheduler.core import events as e
from hscheduler.core.codec import spelt
from hscheduler.core.counts import Counts
from hscheduler.core.decisions import Decision, Grow, Kill, Place, Restart, Shrink, Start
from hscheduler.core.jobs import Direction, Job, JobRequest, Phase
from hscheduler.core.ledger import Hold, Ledger
from hscheduler.core.outstanding import Outstanding
from hscheduler.core.pending import Pending
from hscheduler.core.record import DecisionRecord, Record, TrialRecord
from hscheduler.core.resources import Container, Resources, Role
from hscheduler.core.room import FreeIndex
from hscheduler.core.state import Scheduler
from hscheduler.core.thinned import Thinned
from hscheduler.core.training import Training

#: Of what a snapshot is, as this code writes it, and reads it.
VERSION = 1

_DATACLASSES: tuple[type, ...] = (
    Container, DecisionRecord, Grow, Job, JobRequest, Kill, Pending, Place, Resources, Restart, Shrink, Start,
    TrialRecord, e.EndJob, e.GrowJob, e.ShrinkJob, e.StartJob, e.SweepOpened,
)  # fmt: skip
#: Classes of which only an object says what one has.
_EXAMPLES: dict[type[Any], Callable[[], object]] = {
    Counts: Counts,
    FreeIndex: lambda: FreeIndex({}),
    Ledger: lambda: Ledger({}),
    Outstanding: Outstanding,
    Record: Record,
    Scheduler: lambda: Scheduler({}, lambda view: Decision()),
    Thinned: lambda: Thinned(2),
    Training: Training,
}
_KINDS: dict[str, type[Any]] = {cls.__name__: cls for cls in (*_DATACLASSES, *_EXAMPLES)}
_ENUMS: dict[str, type[Enum]] = {cls.__name__: cls for cls in (Direction, Hold, Phase, Role)}
#: What is given to an object that is read: code, what is of one step only, and what is found again where it is needed.
_GIVEN: dict[type[Any], tuple[str, ...]] = {Scheduler: ("_policy", "_commands", "_short")}


def _names_of(cls: Any) -> tuple[str, ...]:
    """Return what objects of a class have, but for what they are given."""
    if cls in _EXAMPLES:
        example = _EXAMPLES[cls]()
        names = list(vars(example) if hasattr(example, "__dict__") else cls.__slots__)
    else:
        names = [field.name for field in dataclasses.fields(cls)]
    return tuple(name for name in names if name not in _GIVEN.get(cls, ()))


def _defaults_of(cls: Any) -> dict[str, Callable[[], Any]]:
    """Return what makes the value of each field of a dataclass that need not be given."""
    found: dict[str, Callable[[], Any]] = {}
    for field in dataclasses.fields(cls) if cls in _DATACLASSES else ():
        if field.default is not dataclasses.MISSING:
            found[field.name] = partial(copy, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory
    return found


_NAMES = {name: _names_of(cls) for name, cls in _KINDS.items()}


class OtherVersionError(ValueError):
    """A snapshot that other code took, and this cannot read; the message says what differs."""


def take(value: Any) -> dict[str, Any]:
    """Return a snapshot of a value, as JSON says it.

    Raises
    ------
    ValueError
        There is something in it of which no snapshot can be taken.
    """
    writer = _Writer()
    found = writer.encoded(value)
    return {"version": VERSION, "kinds": {kind: list(_NAMES[kind]) for kind in writer.kinds}, "value": found}


def restore(snapshot: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> Any:
    """Return the value that a snapshot was taken of.

    Parameters
    ----------
    snapshot : mapping
        Of :func:`take`.
    given : mapping, optional
        What a scheduler's state does not bring: its ``_policy``.

    Raises
    ------
    OtherVersionError
        Other code took it, of which it cannot be read.
    ValueError
        It is none.
    """
    # The first ones had no number.
    version = snapshot.get("version", 1)
    if version != VERSION:
        raise OtherVersionError(f"it is a snapshot of version {version}, but must be of {VERSION}")
    kinds: Mapping[str, list[str]] = snapshot["kinds"]
    gained = {name: _gained(name, names) for name, names in kinds.items()}
    return _Reader(kinds, gained, {"_commands": [], "_short": None, **(given or {})}).decoded(snapshot["value"])


def _gained(kind: str, names: list[str]) -> dict[str, Callable[[], Any]]:
    """Return what makes the values that objects of a kind have by now, and had not in a snapshot with those names."""
    if kind not in _KINDS:
        raise OtherVersionError(f"it is a snapshot of version {VERSION} with a {kind}, which this code does not know")
    unknown = [name for name in names if name not in _NAMES[kind]]
    defaults = _defaults_of(_KINDS[kind])
    new = [name for name in _NAMES[kind] if name not in names]
    missing = [name for name in new if name not in defaults]
    if unknown or missing:
        told = f"with {', '.join(unknown)}" if unknown else f"without {', '.join(missing)}"
        raise OtherVersionError(
            f"it is a snapshot of version {VERSION}, as this code takes them, but of a {kind} {told}"
        )
    return {name: defaults[name] for name in new}


class _Writer:
    def __init__(self) -> None:
        #: Object -> its number, in the order in which they are met.
        self._numbers: dict[int, int] = {}
        self.kinds: dict[str, None] = {}

    def encoded(self, value: Any) -> Any:
        match value:
            case Enum():
                return {"enum": [type(value).__name__, value.value]}
            case None | bool() | int() | str():
                return value
            case float():
                number = spelt(value)
                return number if isinstance(number, float) else {"float": number}
            case list():
                return [self.encoded(each) for each in value]
            case tuple():
                return {"tuple": [self.encoded(each) for each in value]}
            case dict():
                return {"dict": [[self.encoded(key), self.encoded(each)] for key, each in value.items()]}
            case set():
                return {"set": sorted(value)}
        return self._object(value)

    def _object(self, value: Any) -> Any:
        if id(value) in self._numbers:
            return {"same": self._numbers[id(value)]}
        kind = type(value).__name__
        if _KINDS.get(kind) is not type(value):
            raise ValueError(f"no snapshot can be taken of a {kind}")
        self._numbers[id(value)] = len(self._numbers)
        self.kinds[kind] = None
        return {"object": [kind, *(self.encoded(getattr(value, name)) for name in _NAMES[kind])]}


class _Reader:
    def __init__(
        self,
        kinds: Mapping[str, list[str]],
        gained: Mapping[str, Mapping[str, Callable[[], Any]]],
        given: Mapping[str, Any],
    ) -> None:
        self._kinds, self._gained, self._given = kinds, gained, given
        self._objects: list[Any] = []

    def decoded(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decoded(each) for each in value]
        if not isinstance(value, dict):
            return value
        ((kind, inner),) = value.items()
        match kind:
            case "enum":
                return _ENUMS[inner[0]](inner[1])
            case "float":
                return float(inner)
            case "tuple":
                return tuple(self.decoded(each) for each in inner)
            case "dict":
                return {self.decoded(key): self.decoded(each) for key, each in inner}
            case "set":
                return set(inner)
            case "same":
                return self._objects[inner]
            case "object":
                return self._object(inner[0], inner[1:])
        raise ValueError(f"a snapshot has no {kind!r}")

    def _object(self, kind: str, values: list[Any]) -> Any:
        cls = _KINDS[kind]
        made = object.__new__(cls)
        self._objects.append(made)
        # Also of those that are frozen.
        for name, value in zip(self._kinds[kind], values, strict=True):
            object.__setattr__(made, name, self.decoded(value))
        for name, default in self._gained[kind].items():
            object.__setattr__(made, name, default())
        for name in _GIVEN.get(cls, ()):
            object.__setattr__(made, name, self._given[name])
        return made
