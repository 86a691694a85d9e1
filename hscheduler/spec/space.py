"""The search space of a sweep: settings with a distribution each, and branches, which choose among groups of settings.

::

    [space]
    l2 = { choice = [0, 1e-4] }

    [space.optimizer]
    choice = [
        { optimizer = "sgd", momentum = { uniform = [0, 1] } },
        { optimizer = "adam", learning_rate = { loguniform = [1e-4, 0.1] } },
    ]

A point has the settings of one option of each branch only.  Branches may be nested.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np

from eps.errors import ConfigError
from eps.spec.setting import plain
from eps.system.nearest import did_you_mean

_KINDS = {"uniform": 2, "loguniform": 2, "quniform": 3, "randint": 2, "choice": None}
#: Random points among the sampled ones.
_NUM_RANDOM = 10


@dataclass(frozen=True)
class Dimension:
    """One searched setting.

    ``kind`` is the name of Hyperopt's distribution.  Bounds are bounds of the values, also for ``loguniform``.
    """

    name: str
    kind: str
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, name: str, value: object) -> Dimension:
        """Return the dimension that a table such as ``{ uniform = [0, 1] }`` describes.

        Raises
        ------
        ConfigError
            The table is not a valid dimension.
        """
        rule = f"must be a table with one of {', '.join(_KINDS)}, as in {{ uniform = [0, 1] }}"
        if not isinstance(value, Mapping) or len(value) != 1:
            raise ConfigError(f"space.{name} is {value!r}, but {rule}")
        ((kind, arguments),) = value.items()
        if kind not in _KINDS or not isinstance(arguments, list):
            near = "" if kind in _KINDS else did_you_mean(str(kind), _KINDS)
            raise ConfigError(f"space.{name} is {dict(value)!r}, but {rule}{near}")
        number = _KINDS[kind]
        if number is None:
            if not arguments:
                raise ConfigError(f"space.{name}: {kind} is empty, but must have at least one value")
            if not is_finite(arguments):
                raise ConfigError(f"space.{name}: {kind} has {arguments!r}, but must have finite numbers")
        elif len(arguments) != number or not all(is_number(a) for a in arguments):
            raise ConfigError(f"space.{name}: {kind} takes {number} numbers, not {arguments!r}")
        elif not all(math.isfinite(a) for a in arguments):
            raise ConfigError(f"space.{name}: {kind} has {arguments!r}, but must have finite numbers")
        elif not arguments[0] < arguments[1]:
            raise ConfigError(f"space.{name}: {kind} is {arguments!r}, but the lower bound must come first")
        elif kind == "loguniform" and arguments[0] <= 0:
            raise ConfigError(f"space.{name}: loguniform starts at {arguments[0]}, but must start above 0")
        elif kind == "quniform" and arguments[2] <= 0:
            raise ConfigError(f"space.{name}: the step of quniform is {arguments[2]}, but must be above 0")
        elif kind == "quniform" and multiples(arguments)[0] > multiples(arguments)[1]:
            raise ConfigError(
                f"space.{name}: quniform is {arguments!r}, but no multiple of the step is between the bounds"
            )
        elif kind == "randint" and not all(float(a).is_integer() for a in arguments):
            raise ConfigError(f"space.{name}: randint has {arguments!r}, but must have whole numbers")
        return cls(name, kind, tuple(arguments))

    def nearest(self, value: Any) -> Any:
        """Return the nearest value of a ``quniform``, an ``int`` if its step is one; of other kinds the value."""
        if self.kind != "quniform":
            return value
        (least, most), step = multiples(self.arguments), self.arguments[2]
        number = min(most, max(least, round(value / step)))
        # 3 * 0.1 is a little above 0.3.
        return number * step if isinstance(step, int) else float(number * Decimal(str(step)))

    def corners(self) -> list[Any]:
        """Return all values of a ``choice``; else the lowest and the highest value."""
        a = self.arguments
        match self.kind:
            case "choice":
                return list(a)
            case "quniform":
                return [self.nearest(bound) for bound in a[:2]]
            case "randint":
                return [int(a[0]), int(a[1]) - 1]
            case _:
                return [float(bound) for bound in a]

    def leaves(self) -> Iterator[Dimension]:
        """Yield the searched settings: itself."""
        yield self

    def fixed(self) -> Iterator[str]:
        """Yield the settings that it sets without searching them: none."""
        return iter(())

    def corner_settings(self) -> list[dict[str, Any]]:
        """Return its corners, as settings."""
        return [{self.name: value} for value in self.corners()]

    def draw_settings(self, random: Random) -> dict[str, Any]:
        """Return a random value, as a setting."""
        return {self.name: self.draw(random)}

    def table(self) -> dict[str, Any]:
        """Return the table that :meth:`of` reads."""
        return {self.kind: list(self.arguments)}

    def size(self) -> float:
        """Return how many values it has; infinity for a continuous one."""
        a = self.arguments
        match self.kind:
            case "choice":
                return len({repr(each) for each in a})
            case "quniform":
                least, most = multiples(a)
                return most - least + 1
            case "randint":
                return int(a[1]) - int(a[0])
            case _:
                return math.inf

    def draw(self, random: Random) -> Any:
        """Return a random value."""
        a = self.arguments
        match self.kind:
            case "choice":
                return random.choice(a)
            case "uniform":
                return random.uniform(a[0], a[1])
            case "loguniform":
                return math.exp(random.uniform(math.log(a[0]), math.log(a[1])))
            case "quniform":
                return self.nearest(random.randint(*multiples(a)) * a[2])
            case _:
                return random.randrange(int(a[0]), int(a[1]))


@dataclass(frozen=True)
class Option:
    """One group of settings of a branch."""

    #: Settings that it sets, and those that are searched only with it.
    constants: tuple[tuple[str, Any], ...]
    space: Space

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Option:
        """Return the option that a table describes.  Raises as :meth:`Dimension.of`."""
        searched = {name: value for name, value in table.items() if isinstance(value, Mapping)}
        constants = tuple((name, value) for name, value in table.items() if name not in searched)
        return cls(constants, space_of(searched))

    def holds(self, point: Mapping[str, Any]) -> int:
        """Return how many settings of a point it explains; -1 if the point is of another option."""
        names = {leaf.name for each in self.space if isinstance(each, Dimension) for leaf in each.leaves()}
        if any(point.get(name, math.nan) != value for name, value in self.constants) or not names <= point.keys():
            return -1
        return len(self.constants) + len(names)

    def table(self) -> dict[str, Any]:
        """Return the table that :meth:`of` reads."""
        return {**dict(self.constants), **{each.name: each.table() for each in self.space}}


@dataclass(frozen=True)
class Branch:
    """A choice among groups of settings; its name is that of no setting."""

    name: str
    options: tuple[Option, ...]

    def leaves(self) -> Iterator[Dimension]:
        """Yield the searched settings of all options."""
        for option in self.options:
            for each in option.space:
                yield from each.leaves()

    def fixed(self) -> Iterator[str]:
        """Yield the settings that an option sets without searching them."""
        for option in self.options:
            yield from (name for name, _ in option.constants)
            for each in option.space:
                yield from each.fixed()

    def corner_settings(self) -> list[dict[str, Any]]:
        """Return the corners of each option."""
        return [{**dict(each.constants), **corner} for each in self.options for corner in corners(each.space)]

    def draw_settings(self, random: Random) -> dict[str, Any]:
        """Return the settings of a random option, with random values."""
        option = random.choice(self.options)
        return {**dict(option.constants), **draw_point(option.space, random)}

    def table(self) -> dict[str, Any]:
        """Return the table that :func:`space_of` reads."""
        return {"choice": [option.table() for option in self.options]}

    def size(self) -> float:
        """Return how many points its options have; infinity if one has a continuous setting."""
        return sum(num_points(option.space) for option in self.options)

    def option_of(self, point: Mapping[str, Any]) -> int:
        """Return the number of the option that a point has."""
        return max(range(len(self.options)), key=lambda number: self.options[number].holds(point))


Space = tuple[Dimension | Branch, ...]


def space_of(tables: Mapping[str, Any]) -> Space:
    """Return the space of the table ``[space]``.

    Raises
    ------
    ConfigError
        A table is invalid.
    """
    return tuple(_entry_of(name, _as_json(f"space.{name}", value)) for name, value in tables.items())


def _as_json(name: str, value: Any) -> Any:
    """Return a value as a file has it: with lists instead of tuples and arrays, and numbers instead of NumPy's.

    Raises
    ------
    ConfigError
        It has an object that is none of JSON, the format of records and reports.
    """
    value = plain(value)
    if isinstance(value, Mapping):
        return {key: _as_json(f"{name}.{key}", each) for key, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_as_json(name, each) for each in value]
    if value is not None and not isinstance(value, str | int | float):
        raise ConfigError(
            f"{name} has {value!r}, but must have numbers, texts, truth values or tables: give the name of a function "
            "or an object as text, and look it up in the callable"
        )
    return value


def _entry_of(name: str, value: Any) -> Dimension | Branch:
    options = value.get("choice") if isinstance(value, Mapping) and len(value) == 1 else None
    if not isinstance(options, list) or not any(isinstance(option, Mapping) for option in options):
        return Dimension.of(name, value)
    if not is_finite(options):
        raise ConfigError(f"space.{name}: choice has {options!r}, but must have finite numbers")
    return Branch(name, tuple(Option.of(each if isinstance(each, Mapping) else {name: each}) for each in options))


def num_points(space: Space) -> float:
    """Return how many points a space has; infinity if one of its settings is continuous."""
    return math.prod(each.size() for each in space)


def draw_point(space: Space, random: Random) -> dict[str, Any]:
    """Return a random point."""
    return {name: value for each in space for name, value in each.draw_settings(random).items()}


def corners(space: Space) -> Iterator[dict[str, Any]]:
    """Yield a corner of a space, and those that differ from it in one dimension or branch."""
    found = [each.corner_settings() for each in space]
    first = [settings[0] for settings in found]
    yield _joined(first)
    for number, settings in enumerate(found):
        for other in settings[1:]:
            yield _joined([*first[:number], other, *first[number + 1 :]])


def samples(space: Space, random: Random) -> Iterator[dict[str, Any]]:
    """Yield corners of a space, and some random points."""
    yield from corners(space)
    if space:
        yield from (draw_point(space, random) for _ in range(_NUM_RANDOM))


def _joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def duplicates(space: Space) -> list[str]:
    """Return the settings that two entries of a space, or of an option, set at once."""
    found: list[str] = []
    taken: set[str] = set()
    for each in space:
        names = {*(leaf.name for leaf in each.leaves()), *each.fixed()}
        found += sorted(names & taken)
        taken |= names
        if isinstance(each, Branch):
            for option in each.options:
                own = {name for name, _ in option.constants}
                inner = {leaf.name for one in option.space for leaf in one.leaves()}
                found += [*sorted(own & inner), *duplicates(option.space)]
    return found


def multiples(arguments: Sequence[Any]) -> tuple[int, int]:
    """Return the least and the most multiple of the step, as numbers of steps, between the bounds of a ``quniform``."""
    low, high, step = arguments
    # 0.3 / 0.1 is a little below 3.
    return math.ceil(round(low / step, 9)), math.floor(round(high / step, 9))


def is_number(value: object) -> bool:
    """Return whether a value is a number, and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: object) -> bool:
    """Return whether all numbers of a value are finite.  JSON, the format of reports, has no infinity or NaN."""
    if isinstance(value, list | Mapping):
        return all(is_finite(each) for each in (value.values() if isinstance(value, Mapping) else value))
    return not isinstance(value, float) or math.isfinite(value)
