"""The events of a chaos test, drawn from a seed.  Pure.

An event names a clock and a number, not a process.  At that clock, the number selects one of the processes that are
alive.  So a seed gives the same schedule on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from eps.errors import ConfigError


class Kind(StrEnum):
    """Kinds of events."""

    #: SIGKILL.
    KILL = "kill"
    #: SIGSTOP, with or without a later SIGCONT.
    STOP = "stop"
    #: The client adds members.
    ADD = "add"
    #: The client removes members.
    REMOVE = "remove"
    #: A container is killed after a warning, as by a cluster that preempts.
    EVICT = "evict"
    #: SIGKILL of the supervisor, which ends the job; then the job is resumed.
    RESUME = "resume"
    #: Packets are delayed for a while.
    DELAY = "delay"
    #: Packets from and to a process are dropped for a while.
    PARTITION = "partition"


#: Kinds that need no rights of root.
PLAIN_KINDS = (Kind.KILL, Kind.STOP, Kind.ADD, Kind.REMOVE, Kind.EVICT, Kind.RESUME)
NETWORK_KINDS = (Kind.DELAY, Kind.PARTITION)
#: Weights of the kinds in the draw.
_WEIGHTS = {
    Kind.KILL: 5, Kind.STOP: 2, Kind.ADD: 2, Kind.REMOVE: 2, Kind.EVICT: 2, Kind.RESUME: 1,
    Kind.DELAY: 2, Kind.PARTITION: 2,
}  # fmt: skip
#: Roles in the draw: servers as often as workers, because a lost parameter cannot be recomputed.
_ROLES = ("worker", "worker", "server", "server", "master")
#: Probability that an event has the clock of the one before, so that several members are lost at once.
AT_ONCE = 0.15
#: Seconds for which a process is stopped: short, just below and above the timeout for silence (3 s), for ever.
_STOPS_S = (0.2, 0.9, 4.5, None)
#: Seconds from a warning to the kill: none, too few for most drains, enough.
_NOTICES_S = (0.0, 0.3, 3.0, 10.0)
#: Seconds for which packets are delayed or dropped.
_OUTAGES_S = (0.3, 1.5, 4.0)


@dataclass(frozen=True, slots=True)
class ChaosEvent:
    """One event."""

    #: It happens when this many clocks are complete.
    clock: int
    kind: Kind
    #: ``worker``, ``server``, ``master`` or ``supervisor``.
    role: str
    #: Selects a member of the role that is alive, modulo their number.
    place: int
    #: Duration, or for an eviction the notice, in seconds; None for ever.
    lasts_s: float | None = None

    def __str__(self) -> str:
        lasts = "" if self.kind not in (Kind.STOP, *NETWORK_KINDS) else " for good"
        if self.lasts_s is not None:
            lasts = f" {'in' if self.kind is Kind.EVICT else 'for'} {self.lasts_s:g} s"
        return f"{self.clock}: {self.kind} {self.role} {self.place}{lasts}"


def draw(
    seed: int, events: int, iterations: int, kinds: Sequence[Kind] = PLAIN_KINDS, member_timeout_s: float = 3.0
) -> tuple[ChaosEvent, ...]:
    """Return the events of one job, sorted by clock.

    Parameters
    ----------
    seed : int
    events : int
    iterations : int
        Iterations of the job.  The last tenth has no events, because the job refuses changes at its end.
    kinds : sequence of Kind
    member_timeout_s : float, seconds
        The job's timeout for silent members; durations of stops and outages are scaled by it.

    Raises
    ------
    ConfigError
        There are no kinds, no events or too few iterations.
    """
    if not kinds:
        raise ConfigError("kinds is empty, but chaos needs at least one kind of event")
    if events < 1 or iterations < 2:
        raise ConfigError(f"{events} events in {iterations} iterations: need at least 1 event and 2 iterations")
    # The generator hashes a text, so consecutive seeds give unrelated schedules.
    chance = random.Random(f"eps chaos {seed}")
    weights = [_WEIGHTS[kind] for kind in kinds]
    last = max(1, iterations - max(1, iterations // 10))
    clocks = sorted(chance.randrange(last) for _ in range(events))
    found: list[ChaosEvent] = []
    for clock in clocks:
        at = found[-1].clock if found and chance.random() < AT_ONCE else clock
        kind = chance.choices(kinds, weights)[0]
        role = chance.choice(_ROLES)
        if kind in (Kind.ADD, Kind.REMOVE, Kind.EVICT) and role == "master":
            role = "server"
        elif kind is Kind.RESUME:
            role = "supervisor"
        lasts_s: float | None = None
        if kind is Kind.STOP:
            share = chance.choice(_STOPS_S)
            lasts_s = None if share is None else round(share * member_timeout_s / 3.0, 3)
        elif kind is Kind.EVICT:
            lasts_s = chance.choice(_NOTICES_S)
        elif kind in NETWORK_KINDS:
            lasts_s = round(chance.choice(_OUTAGES_S) * member_timeout_s / 3.0, 3)
        found.append(ChaosEvent(at, kind, role, chance.randrange(1000), lasts_s))
    return tuple(sorted(found, key=lambda event: event.clock))


def parse_kinds(text: str) -> tuple[Kind, ...]:
    """Return the kinds in a list joined by commas.

    Raises
    ------
    ConfigError
        A kind is unknown, or there is none.
    """
    found: list[Kind] = []
    for word in (part.strip() for part in text.split(",")):
        if not word:
            continue
        try:
            kind = Kind(word)
        except ValueError:
            raise ConfigError(f"kind is {word!r}, but must be one of {', '.join(Kind)}") from None
        if kind not in found:
            found.append(kind)
    if not found:
        raise ConfigError(f"kinds is {text!r}, but must name at least one of {', '.join(Kind)}")
    return tuple(found)
