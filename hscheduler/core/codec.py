"""Events as JSON and back, for the journal.

A dataclass is an object of its fields, a tuple a list; an event has its class's name under ``"event"``.  Numbers that
JSON has no word for are spelt (``"nan"``, ``"inf"``, ``"-inf"``).
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from hscheduler.core import events as e

EVENTS: dict[str, type] = {cls.__name__: cls for cls in typing.get_args(e.Event)}
_T = TypeVar("_T")


def encode_event(event: e.Event) -> dict[str, Any]:
    """Return an event as JSON says it."""
    return {"event": type(event).__name__, **encode(event)}


def decode_event(values: Mapping[str, Any]) -> e.Event:
    """Return the event that :func:`encode_event` wrote.

    Raises
    ------
    ValueError
        It is none, or one of another version.
    """
    cls = EVENTS.get(str(values.get("event")))
    if cls is None:
        raise ValueError(f"{values.get('event')!r} is no event")
    event: e.Event = decode(cls, {name: value for name, value in values.items() if name != "event"})
    return event


def encode(value: Any, *, with_defaults: bool = True) -> dict[str, Any]:
    """Return a dataclass as JSON says it; without what it, and those in it, have by default, where asked for."""
    fields = [f for f in dataclasses.fields(value) if with_defaults or f.default != getattr(value, f.name)]
    return {f.name: _encoded(getattr(value, f.name), with_defaults) for f in fields}


def decode(cls: type[_T], values: Mapping[str, Any]) -> _T:
    """Return the dataclass that :func:`encode` wrote.

    Raises
    ------
    ValueError
        A field is unknown, missing or of another kind.
    """
    hints = _hints(typing.cast(typing.Hashable, cls))
    unknown = [name for name in values if name not in hints]
    if unknown:
        raise ValueError(f"{cls.__name__} has no {', '.join(unknown)}")
    try:
        return cls(**{name: _decoded(hints[name], value) for name, value in values.items()})
    except TypeError as error:
        raise ValueError(f"{cls.__name__}: {error}") from error


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def spelt(value: float) -> float | str:
    """Return a number as JSON has it: text where it has no word for it, which ``float`` reads."""
    return value if math.isfinite(value) else str(value)


def _encoded(value: Any, with_defaults: bool) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return spelt(value)
    if isinstance(value, tuple):
        return [_encoded(each, with_defaults) for each in value]
    return encode(value, with_defaults=with_defaults) if dataclasses.is_dataclass(value) else value


def _decoded(hint: Any, value: Any) -> Any:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if value is None and types.NoneType in arguments:
            return None
        (hint,) = (each for each in arguments if each is not types.NoneType)
        arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{value!r} is no list")
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        if len(kinds) != len(value):
            raise ValueError(f"{value!r} has not {len(kinds)} parts")
        return tuple(_decoded(kind, each) for kind, each in zip(kinds, value, strict=True))
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ValueError(f"{value!r} is no object")
        return decode(typing.cast(type, hint), value)
    if hint is float and (isinstance(value, int) or value in ("nan", "inf", "-inf")):
        return float(value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if not isinstance(value, hint):
        raise ValueError(f"{value!r} is no {hint.__name__}")
    return value
