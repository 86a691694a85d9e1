"""Conversion of control messages between dataclasses and protobuf, field by field.

``eps.core.messages`` and ``proto/eps/pb/control.proto`` have the same names and fields, so one reflective pair of
functions converts all of them.  A message that only one side has is an error at import.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Union, cast, get_args, get_origin

from eps.core import messages as m
from eps.core.membership import Membership
from eps.errors import ProtocolError
from eps.pb import control_pb2 as pb


def _snake(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


def _classes(union: Any) -> dict[str, type]:
    return {_snake(cls.__name__): cls for cls in get_args(union)}


_REPORTS = _classes(m.Report)
_ORDERS = _classes(m.Order)
_FIELDS = {cls: name for classes in (_REPORTS, _ORDERS) for name, cls in classes.items()}


#: Writes a value into a field of a protobuf message, and reads one from it.
_Writer = Callable[[Any, Any], None]
_Reader = Callable[[Any], Any]


@cache
def _filler(cls: Any) -> _Writer:
    """Return a function that copies the fields of a dataclass into a protobuf message; cached per class."""
    writers = [(name, _writer(name, hint)) for name, hint in typing.get_type_hints(cls).items()]

    def fill(target: Any, value: Any) -> None:
        for name, write in writers:
            write(target, getattr(value, name))

    return fill


def _writer(name: str, hint: Any) -> _Writer:
    origin, args = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        fill = _filler(cast(Any, hint))

        def write_one(target: Any, item: Any) -> None:
            part = getattr(target, name)
            part.SetInParent()
            fill(part, item)

        return write_one
    if origin is not None and origin is not tuple and issubclass(cast(type, origin), Mapping):
        fill_entry = _filler(args[1])

        def write_map(target: Any, item: Any) -> None:
            entries = getattr(target, name)
            for key, entry in item.items():
                fill_entry(entries[key], entry)

        return write_map
    if origin is tuple and dataclasses.is_dataclass(args[0]):
        fill_each = _filler(cast(Any, args[0]))

        def write_rows(target: Any, item: Any) -> None:
            rows = getattr(target, name)
            for entry in item:
                fill_each(rows.add(), entry)

        return write_rows
    if origin is tuple and get_origin(args[0]) is tuple:

        def write_names(target: Any, item: Any) -> None:
            rows = getattr(target, name)
            for entry in item:
                rows.add(names=entry)

        return write_names
    if origin is frozenset:
        return lambda target, item: getattr(target, name).extend(sorted(item))
    if origin is tuple:
        return lambda target, item: getattr(target, name).extend(item)
    return lambda target, item: setattr(target, name, item)


@cache
def _reader(cls: Any) -> _Reader:
    """Return a function that makes a dataclass from a protobuf message; cached per class."""
    readers = [(name, _converter(hint)) for name, hint in typing.get_type_hints(cls).items()]
    return lambda source: cls(**{name: convert(getattr(source, name)) for name, convert in readers})


def _converter(hint: Any) -> _Reader:
    origin, args = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _reader(cast(Any, hint))
    if origin is tuple:
        inner = args[0]
        if get_origin(inner) is tuple:
            return lambda value: tuple([tuple(entry.names) for entry in value])
        if not dataclasses.is_dataclass(inner):
            return tuple
        read_each = _reader(cast(Any, inner))
        return lambda value: tuple([read_each(entry) for entry in value])
    if origin is frozenset:
        return lambda value: frozenset(map(args[0], value))
    if origin is not None and issubclass(cast(type, origin), Mapping):
        read_entry = _reader(args[1])
        return lambda value: {key: read_entry(entry) for key, entry in value.items()}
    if origin in (Union, types.UnionType):
        raise TypeError(f"{hint}: unions are not supported")
    return lambda value: value


def membership_to_pb(membership: Membership) -> pb.Membership:
    """Return the wire form of a membership."""
    message = pb.Membership()
    _filler(Membership)(message, membership)
    return message


def membership_from_pb(message: pb.Membership) -> Membership:
    """Return the membership in ``message``."""
    return cast(Membership, _reader(Membership)(message))


def results_to_pb(report: m.ClockReported) -> pb.ClockReported:
    """Return the wire form of the report of one clock."""
    message = pb.ClockReported()
    _filler(m.ClockReported)(message, report)
    return message


def results_from_pb(message: pb.ClockReported) -> m.ClockReported:
    """Return the report of one clock in ``message``."""
    return cast(m.ClockReported, _reader(m.ClockReported)(message))


def report_to_pb(report: m.Report) -> pb.Report:
    """Return the wire form of a report."""
    message = pb.Report()
    part = getattr(message, _FIELDS[type(report)])
    part.SetInParent()
    _filler(cast(Any, type(report)))(part, report)
    return message


def report_from_pb(message: pb.Report) -> m.Report:
    """Return the report in ``message``.

    Raises
    ------
    ProtocolError
        The message has no report, or one of an unknown kind.
    """
    return cast(m.Report, _from_pb(message, _REPORTS))


def order_to_pb(order: m.Order, generation: int, step: int) -> pb.Order:
    """Return the wire form of an order, with the master's generation and its number of processed events."""
    message = pb.Order(generation=generation, step=step)
    part = getattr(message, _FIELDS[type(order)])
    part.SetInParent()
    _filler(cast(Any, type(order)))(part, order)
    return message


def order_from_pb(message: pb.Order) -> m.Order:
    """Return the order in ``message``.

    Raises
    ------
    ProtocolError
        The message has no order, or one of an unknown kind.
    """
    return cast(m.Order, _from_pb(message, _ORDERS))


def _from_pb(message: Any, classes: Mapping[str, type]) -> Any:
    kind = message.WhichOneof("kind")
    if kind is None or kind not in classes:
        raise ProtocolError(f"control message of kind {kind!r}, must be one of {', '.join(sorted(classes))}")
    return _reader(classes[kind])(getattr(message, kind))


def _check_same_fields() -> None:
    for classes in (_REPORTS, _ORDERS):
        for cls in classes.values():
            wire = {field.name for field in pb.DESCRIPTOR.message_types_by_name[cls.__name__].fields}
            ours = {field.name for field in dataclasses.fields(cls)}
            assert wire == ours, f"{cls.__name__}: control.proto has {sorted(wire)}, the dataclass {sorted(ours)}"


_check_same_fields()
