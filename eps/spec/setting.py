"""One setting: its type, range and help text, each declared once, and the check of a value against them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import fields, force_setattr

from eps.errors import ConfigError
from eps.system.nearest import one_of

#: What msgspec says of a value: ``Expected `int` >= 1``.
_EXPECTED = re.compile(r"Expected `(\w+)`(?: (\S+) (\S+))?")
_KINDS = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list of texts"
}  # fmt: skip
_LIMITS = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}


@dataclass(frozen=True)
class Setting:
    """A setting of a job, as its field declares it: ``Annotated[int, Meta(ge=1), "help text", "METAVAR"] = 3``."""

    name: str
    #: The field of :class:`~eps.spec.job_spec.JobSpec` that has it; empty where it is one itself.
    table: str
    #: Heading of its flag, and table of a job file.
    group: str
    #: Type with its limits.
    declared: Any
    default: Any
    help: str
    metavar: str
    #: What a value must be, for messages; empty: what msgspec says.
    rule: str
    #: Its possible values; empty if there are many.
    choices: tuple[str, ...]

    def checked(self, value: Any) -> Any:
        """Return ``value`` in the type of the setting, if that loses nothing.

        Raises
        ------
        ConfigError
            It has another type, is out of range, or none of the choices.
        """
        try:
            found = convert(_simplified(value, type(self.default)), self.declared)
        except ValidationError as error:
            raise ConfigError(f"{self.name} is {value!r}, but must be {self._wanted(value, str(error))}") from None
        if isinstance(found, float) and not math.isfinite(found):
            raise ConfigError(f"{self.name} is {value}, but must be finite")
        return found

    def _wanted(self, value: Any, error: str) -> str:
        if self.choices:
            return one_of(str(value), self.choices)
        expected = _EXPECTED.search(error)
        if self.rule or expected is None:
            return self.rule or error
        kind, relation, limit = expected.groups()
        if relation:
            return f"{_LIMITS[relation]} {limit.removesuffix('.0')}"
        return _KINDS["array" if isinstance(self.default, tuple) else kind]


def _simplified(value: Any, kind: type) -> Any:
    """Return a value of Python or TOML in the type that a setting wants: 1024 as text, one text as a list."""
    value = plain(value)
    if kind is tuple and isinstance(value, str):
        return (value,)
    if kind is str:
        if isinstance(value, Path | int | float) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, list) and all(isinstance(plain(v), int | str) for v in value):
            return ",".join(str(v) for v in value)
    return value


def plain(value: Any) -> Any:
    """Return a scalar of NumPy as one of Python, and other values unchanged."""
    return value.item() if getattr(value, "shape", None) == () else value


class Table(Struct, frozen=True):
    """Settings that belong together, checked when the table is made."""

    #: First setting below a heading -> the heading, where that is not the name of the table.
    HEADINGS: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        for setting in settings_of(type(self)):
            force_setattr(self, setting.name, setting.checked(getattr(self, setting.name)))
        self.check()

    def check(self) -> None:
        """Check what a single type or range cannot say.

        Raises
        ------
        ConfigError
            Settings exclude each other, or a text is malformed.
        """


@cache
def settings_of(cls: type[Table], table: str = "") -> tuple[Setting, ...]:
    """Return the settings of a table, in their order, without those of the tables in it."""
    group, found = table, []
    for field in fields(cls):
        if get_origin(field.type) is not Annotated:
            continue
        group = cls.HEADINGS.get(field.name, group)
        kind, *about = get_args(field.type)
        help_text, metavar, *_ = *(each for each in about if isinstance(each, str)), ""
        rule = next((each.description for each in about if isinstance(each, Meta)), None)
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        found.append(
            Setting(field.name, table, group, field.type, field.default, help_text, metavar, rule or "", choices)
        )
    return tuple(found)


@contextmanager
def errors_of(source: str) -> Iterator[None]:
    """Begin the messages of errors with ``source``, the file or table with the settings, unless it is empty."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") if source else error from None
