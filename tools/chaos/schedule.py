"""What happens to a job, and when: drawn from a seed.  Pure.

A schedule names clocks and places, never processes: who is hit is found when the clock comes, by the place in the list
of those that are alive then.  So the same seed is the same schedule on every machine, and as far as the job's own
course allows the same history.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from eps.errors import ConfigError


class Kind(StrEnum):
    """What can happen."""

    #: SIGKILL.
    KILL = "kill"
    #: SIGSTOP; SIGCONT follows, or never.
    STOP = "stop"
    #: The client adds members.
    ADD = "add"
    #: The client removes members.
    REMOVE = "remove"
    #: A container is taken away after a warning, as on a cluster that needs it for somebody else.
    EVICT = "evict"
    #: SIGKILL of the supervisor, with which all of the job ends; then it is resumed.
    RESUME = "resume"
    #: Packets are late for a while.
    DELAY = "delay"
    #: No packet from or to a process arrives for a while.
    PARTITION = "partition"


#: Kinds that need nothing but the right to signal one's own processes.
PLAIN_KINDS = (Kind.KILL, Kind.STOP, Kind.ADD, Kind.REMOVE, Kind.EVICT, Kind.RESUME)
NETWORK_KINDS = (Kind.DELAY, Kind.PARTITION)
#: How often a kind is drawn, before others.
_WEIGHTS = {
    Kind.KILL: 5, Kind.STOP: 2, Kind.ADD: 2, Kind.REMOVE: 2, Kind.EVICT: 2, Kind.RESUME: 1,
    Kind.DELAY: 2, Kind.PARTITION: 2,
}  # fmt: skip
#: Whom it hits: servers hold what cannot be computed again, so they are hit as often as workers.
_ROLES = ("worker", "worker", "server", "server", "master")
#: An event comes at the clock of the one before it with this probability: several are lost at once.
AT_ONCE = 0.15
#: Seconds that a process stands still: a breath, most of the deadline, more than it, for good.
_STOPS_S = (0.2, 0.9, 4.5, None)
#: Seconds from a warning to the end of a container: none, too few for most drains, enough.
_NOTICES_S = (0.0, 0.3, 3.0, 10.0)
#: Seconds that packets are late or lost for.
_OUTAGES_S = (0.3, 1.5, 4.0)


@dataclass(frozen=True, slots=True)
class ChaosEvent:
    """One thing that happens."""

    #: When this many clocks are complete.
    clock: int
    kind: Kind
    #: ``worker``, ``server``, ``master`` or ``supervisor``.
    role: str
    #: Counted around the members of the role that are alive then.
    place: int
    #: Seconds until it is over, or until what was announced is done; None for never.
    lasts_s: float | None = None

    def __str__(self) -> str:
        lasts = "" if self.kind not in (Kind.STOP, *NETWORK_KINDS) else " for good"
        if self.lasts_s is not None:
            lasts = f" {'in' if self.kind is Kind.EVICT else 'for'} {self.lasts_s:g} s"
        return f"{self.clock}: {self.kind} {self.role} {self.place}{lasts}"


def draw(
    seed: int, events: int, iterations: int, kinds: Sequence[Kind] = PLAIN_KINDS, member_timeout_s: float = 3.0
) -> tuple[ChaosEvent, ...]:
    """Return the events of one job, in the order in which they happen.

    Parameters
    ----------
    seed : int
    events : int
    iterations : int
        Of the job.  Its last tenth is left alone: a change that is asked there is refused.
    kinds : sequence of Kind
    member_timeout_s : float, seconds
        The job's deadline for silence; how long a process stands still is drawn in shares of it.

    Raises
    ------
    ConfigError
        There is nothing to draw from.
    """
    if not kinds:
        raise ConfigError("kinds is empty, but chaos needs at least one kind of event")
    if events < 1 or iterations < 2:
        raise ConfigError(f"{events} events in {iterations} iterations: need at least 1 event and 2 iterations")
    # A text is hashed by the generator itself: seeds that follow each other have nothing in common.
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
        One of them is not known.
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
