"""Dataclass <-> protobuf, field by field, for the control messages.

``eps.core.messages`` and ``proto/eps/pb/control.proto`` have the same names and fields, so one reflective pair of
functions carries all of them; a message that only one side knows is an error at import.  L2.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Union, cast, get_args, get_origin

from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.tables import PartitionTable, SplitTable
from eps.core.types import Address
from eps.errors import ProtocolError
from eps.pb import control_pb2 as pb


def _snake(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


def _classes(union: Any) -> dict[str, type]:
    return {_snake(cls.__name__): cls for cls in get_args(union)}


_REPORTS = _classes(m.Report)
_ORDERS = _classes(m.Order)


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _fill(target: Any, value: Any) -> None:
    """Copy the fields of a dataclass into a protobuf message."""
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if isinstance(item, PartitionTable | SplitTable | Membership | Address):
            _fill(getattr(target, field.name), item)
            getattr(target, field.name).SetInParent()
        elif isinstance(item, Mapping):
            for key, entry in item.items():
                _fill(getattr(target, field.name)[key], entry)
        elif isinstance(item, tuple) and item and dataclasses.is_dataclass(item[0]):
            for entry in item:
                _fill(getattr(target, field.name).add(), entry)
        elif isinstance(item, tuple) and item and isinstance(item[0], tuple):
            for entry in item:
                getattr(target, field.name).add(names=entry)
        elif isinstance(item, tuple):
            getattr(target, field.name).extend(item)
        else:
            setattr(target, field.name, item)


def _read(cls: Any, source: Any) -> Any:
    """Return the dataclass ``cls`` with the fields of a protobuf message."""
    values = {name: _convert(hint, getattr(source, name)) for name, hint in _hints(cls).items()}
    return cls(**values)


def _convert(hint: Any, value: Any) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _read(hint, value)
    if origin is tuple:
        inner = args[0]
        if get_origin(inner) is tuple:
            return tuple(tuple(entry.names) for entry in value)
        return tuple(_convert(inner, entry) for entry in value)
    if origin is not None and issubclass(cast(type, origin), Mapping):
        return {key: _read(args[1], entry) for key, entry in value.items()}
    if origin in (Union, types.UnionType):
        raise TypeError(f"{hint}: unions are not carried")
    return value


def membership_to_pb(membership: Membership) -> pb.Membership:
    """Return the wire form of a membership."""
    message = pb.Membership()
    _fill(message, membership)
    return message


def membership_from_pb(message: pb.Membership) -> Membership:
    """Return the membership in ``message``."""
    return cast(Membership, _read(Membership, message))


def report_to_pb(report: m.Report) -> pb.Report:
    """Return the wire form of a report."""
    message = pb.Report()
    part = getattr(message, _snake(type(report).__name__))
    part.SetInParent()
    _fill(part, report)
    return message


def report_from_pb(message: pb.Report) -> m.Report:
    """Return the report that ``message`` carries.

    Raises
    ------
    ProtocolError
        It carries none, or one that this version does not know.
    """
    return cast(m.Report, _from_pb(message, _REPORTS))


def order_to_pb(order: m.Order, generation: int) -> pb.Order:
    """Return the wire form of an order of this generation of the master."""
    message = pb.Order(generation=generation)
    part = getattr(message, _snake(type(order).__name__))
    part.SetInParent()
    _fill(part, order)
    return message


def order_from_pb(message: pb.Order) -> m.Order:
    """Return the order that ``message`` carries.

    Raises
    ------
    ProtocolError
        It carries none, or one that this version does not know.
    """
    return cast(m.Order, _from_pb(message, _ORDERS))


def _from_pb(message: Any, classes: Mapping[str, type]) -> Any:
    kind = message.WhichOneof("kind")
    if kind is None or kind not in classes:
        raise ProtocolError(f"a control message of kind {kind!r}; known are {', '.join(sorted(classes))}")
    return _read(classes[kind], getattr(message, kind))


def _check_same_fields() -> None:
    for classes in (_REPORTS, _ORDERS):
        for cls in classes.values():
            wire = {field.name for field in pb.DESCRIPTOR.message_types_by_name[cls.__name__].fields}
            ours = {field.name for field in dataclasses.fields(cls)}
            assert wire == ours, f"{cls.__name__}: control.proto has {sorted(wire)}, the dataclass {sorted(ours)}"


_check_same_fields()
