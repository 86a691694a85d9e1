"""Messages of the simulated data plane, and the arithmetic that replaces arrays.

A partition's parameters are one integer modulo a prime.  A contribution depends on every parameter that the split read,
so that one lost, repeated or misplaced update changes every value after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from eps.core.membership import Membership
from eps.core.server_events import Counters
from eps.core.types import CoreSettings

PRIME = (1 << 61) - 1


def initial_value(partition: int) -> int:
    """Return the parameters that a job starts from."""
    return pow(partition + 3, 5, PRIME)


def digest_of(values: Mapping[int, int]) -> int:
    """Return one number for everything that a worker read."""
    digest = 7
    for partition in sorted(values):
        digest = (digest * 1_000_003 + values[partition]) % PRIME
    return digest


def contribution(digest: int, clock: int, split: int, partition: int) -> int:
    """Return what one split adds to one partition at one clock."""
    return pow(digest + 1_000_033 * clock + 10_007 * split + 101 * partition, 3, PRIME)


def stepped(value: int, total: int) -> int:
    """Return the parameters after one optimizer step; the order of steps matters."""
    return (value * 1_000_037 + total) % PRIME


def oracle(settings: CoreSettings) -> dict[int, int]:
    """Return the final parameters of a BSP job, computed in one loop without any distribution."""
    found = _oracles(replace(settings, iterations=1))
    for clock in range(settings.first_clock + len(found) - 1, settings.iterations):
        digest = digest_of(found[-1])
        found.append({
            p: stepped(v, sum(contribution(digest, clock, s, p) for s in range(settings.num_splits)) % PRIME)
            for p, v in found[-1].items()
        })  # fmt: skip
    return found[settings.iterations - settings.first_clock]


@lru_cache(maxsize=2)
def _oracles(settings: CoreSettings) -> list[dict[int, int]]:
    """Return the parameters after each clock, as far as they were computed."""
    return [{p: initial_value(p) for p in range(settings.num_partitions)}]


@dataclass(eq=False, slots=True)
class Arrival:
    """One delivery of a request; a duplicate is another arrival."""

    body: Any
    reply: Callable[[object], None]


# ---- bodies of requests


@dataclass(frozen=True, slots=True)
class Push:
    partition: int
    clock: int
    splits: tuple[int, ...]
    total: int
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Pull:
    partition: int
    min_clock: int
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    plan_id: int
    partition: int
    sequence: int
    counters: Counters
    value: int
    ledger: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    incarnation: int
    cut_id: int
    partition: int
    clock: int
    kept: int
    counters: Counters
    value: int


@dataclass(frozen=True, slots=True)
class Update:
    plan_id: int
    partition: int
    sequence: int
    clock: int
    splits: tuple[int, ...]
    total: int


@dataclass(frozen=True, slots=True)
class Promote:
    plan_id: int
    partition: int
    sequence: int
    value: int


@dataclass(frozen=True, slots=True)
class SplitCopy:
    plan_id: int
    split: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """One message of a worker to a server."""

    parts: tuple[Push | Pull, ...]


# ---- replies


@dataclass(frozen=True, slots=True)
class Pushed:
    have: tuple[int, ...]
    accepted: bool


@dataclass(frozen=True, slots=True)
class Pulled:
    clock: int
    value: int
    #: The smallest clock of any split that is really in the value.
    oldest: int


@dataclass(frozen=True, slots=True)
class Stale:
    membership: Membership | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    """The clock asked for is complete everywhere."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """The sender does not own the partition any more."""


@dataclass(frozen=True, slots=True)
class Failed:
    why: str


@dataclass(frozen=True, slots=True)
class Answers:
    """One reply for each part of an exchange, in order."""

    replies: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Again:
    """This part was not answered yet when another one made the reply leave."""


@dataclass(frozen=True, slots=True)
class Done:
    pass


@dataclass(frozen=True, slots=True)
class Vanished:
    """No process listens, or the connection broke; never sent as a message."""
