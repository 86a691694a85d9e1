"""Write and read the core's values as JSON: events, and the whole state of a scheduler.

Fields and containers keep their order, since order may break ties.  An object that is referenced from several places
is written once and restored as one object.  JSON has no NaN or infinities: they are written as ``"nan"``, ``"inf"``
and ``"-inf"``.

Reading needs the same classes with the same fields as writing: :data:`FORMAT` identifies them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
import zlib
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from hscheduler.core import events as e
from hscheduler.core.cohort import Cohort
from hscheduler.core.counts import Counts
from hscheduler.core.decisions import Decision, Grow, Kill, Pause, Place, Promote, Restart, Shrink, Start
from hscheduler.core.jobs import Direction, Job, JobRequest, Phase
from hscheduler.core.ledger import Hold, Ledger
from hscheduler.core.outstanding import Outstanding
from hscheduler.core.placement import FreeIndex
from hscheduler.core.resources import Container, Resources, Role
from hscheduler.core.rungs import Rungs, Stopping
from hscheduler.core.scheduler_view import Pending
from hscheduler.core.speed import Curve, Speeds
from hscheduler.core.state import Scheduler
from hscheduler.core.thinned import Thinned
from hscheduler.core.timeline import DecisionRecord, Timeline, TrialRecord
from hscheduler.core.training import Training
from hscheduler.core.use import Use

#: Increase it when the meaning of a field changes and its name does not.
_MEANING = 4

_DATACLASSES: tuple[type, ...] = (
    *typing.get_args(e.Event), *typing.get_args(e.Order),
    Container, Curve, DecisionRecord, Grow, Job, JobRequest, Kill, Pause, Pending, Place, Promote, Resources, Restart,
    Rungs, Shrink, Start, Stopping, TrialRecord, Use,
)  # fmt: skip
#: Classes whose fields only an instance shows.
_EXAMPLES: dict[type[Any], Callable[[], object]] = {
    Cohort: lambda: Cohort("", Training()),
    Counts: Counts,
    FreeIndex: lambda: FreeIndex({}),
    Ledger: lambda: Ledger({}),
    Outstanding: Outstanding,
    Timeline: Timeline,
    Scheduler: lambda: Scheduler({}, lambda view: Decision(), {}),
    Speeds: Speeds,
    Thinned: lambda: Thinned(2),
    Training: Training,
}
_KINDS: dict[str, type[Any]] = {cls.__name__: cls for cls in (*_DATACLASSES, *_EXAMPLES)}
_ENUMS: dict[str, type[Enum]] = {cls.__name__: cls for cls in (Direction, Hold, Phase, Role)}
#: Fields that are not written: policy and rules, the commands of one step, and what is recomputed on demand.
_GIVEN: dict[type[Any], tuple[str, ...]] = {
    Scheduler: ("_policy", "_rules", "_commands", "_short"),
    Speeds: ("_curves",),
}


def _names_of(cls: Any) -> tuple[str, ...]:
    """Return the fields of a class that are written."""
    if cls in _EXAMPLES:
        example = _EXAMPLES[cls]()
        names = list(vars(example) if hasattr(example, "__dict__") else cls.__slots__)
    else:
        names = [field.name for field in dataclasses.fields(cls)]
    return tuple(name for name in names if name not in _GIVEN.get(cls, ()))


_NAMES = {name: _names_of(cls) for name, cls in _KINDS.items()}


def _format_of(names: Mapping[str, tuple[str, ...]]) -> str:
    enums = {name: [member.value for member in cls] for name, cls in _ENUMS.items()}
    told = json.dumps([_MEANING, sorted(names.items()), sorted(enums.items())])
    return f"{_MEANING}-{zlib.crc32(told.encode()):08x}"


#: Identifies the written classes and their fields; it changes when they do.
FORMAT = _format_of(_NAMES)


def spelt(value: float) -> float | str:
    """Return a number for JSON: NaN and infinities as text that ``float`` reads."""
    return value if math.isfinite(value) else str(value)


def encoded(value: Any) -> Any:
    """Return a value of the core as JSON.

    Raises
    ------
    ValueError
        It contains an object of a class that is not the core's.
    """
    return _Writer().encoded(value)


def decoded(value: Any, policy: Any = None, rules: Any = None) -> Any:
    """Return the value that :func:`encoded` wrote.

    Parameters
    ----------
    value
        As JSON.
    policy : Policy, optional
        The policy of a decoded scheduler; it is not part of the written state.
    rules : mapping, optional
        Its stopping rules, likewise.

    Raises
    ------
    KeyError, TypeError, ValueError
        :func:`encoded` did not write the value.
    """
    return _Reader({"_commands": [], "_short": None, "_policy": policy, "_rules": rules, "_curves": {}}).decoded(value)


class _Writer:
    def __init__(self) -> None:
        #: ``id`` of an object -> its number, in the order of the first reference.
        self._numbers: dict[int, int] = {}

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
            raise ValueError(f"a {kind} is none of the core's values")
        self._numbers[id(value)] = len(self._numbers)
        return {"object": [kind, *(self.encoded(getattr(value, name)) for name in _NAMES[kind])]}


class _Reader:
    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
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
        raise ValueError(f"there is no {kind!r} among the core's values")

    def _object(self, kind: str, values: list[Any]) -> Any:
        cls = _KINDS[kind]
        made = object.__new__(cls)
        self._objects.append(made)
        # Bypasses the ``__setattr__`` of frozen classes.
        for name, value in zip(_NAMES[kind], values, strict=True):
            object.__setattr__(made, name, self.decoded(value))
        for name in _GIVEN.get(cls, ()):
            object.__setattr__(made, name, self._given[name])
        return made
