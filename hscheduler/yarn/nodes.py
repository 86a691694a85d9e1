"""Which machines of YARN a scheduler counts with, from one look at the ResourceManager to the next.  Pure.

The scheduler's nodes are places, all of one size, since YARN puts a container where it likes: each stands for a machine
that has as much, and there are as many as there are such machines.  A machine that YARN is taking out of service is
gone at once; one of which it has not heard for a while may come back, as all do after a ResourceManager starts again.

Source: EPS §5.1 (the scheduler reads what is free from the resource manager); Hadoop, ``NodeState``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hscheduler.core import events as e
from hscheduler.core.resources import Resources

#: Seconds for which a machine may be missing.
MISSING_S = 15.0
_RUNNING = "RUNNING"
#: States of machines that somebody takes out of service.
_LEAVING = {"DECOMMISSIONING": "is being decommissioned", "DECOMMISSIONED": "was decommissioned"}


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as the ResourceManager tells of it."""

    #: ``host:port`` of its NodeManager.
    name: str
    #: YARN's word.
    state: str
    size: Resources


class Nodes:
    """The machines that are counted with.

    Parameters
    ----------
    size : Resources
        Of a place: a smaller machine is none.
    places : iterable of str
        Those that the scheduler has; which machines they were is not known.
    """

    def __init__(self, size: Resources, places: Iterable[str]) -> None:
        self._size = size
        #: Place -> its machine; empty where that is not known.
        self._machines = dict.fromkeys(places, "")
        self._missing_since_s: dict[str, float] = {}
        self._used = set(self._machines)

    def look(self, machines: Sequence[Machine], now_s: float) -> list[e.NodeEvent]:
        """Return what has changed.

        Parameters
        ----------
        machines : sequence of Machine
            Of any state; those that the ResourceManager does not know are missing.
        now_s : float, seconds
        """
        states = {machine.name: machine.state for machine in machines}
        there = sorted(m.name for m in machines if m.state == _RUNNING and self._size.fits_into(m.size))
        come = [self._come(machine) for machine in there if machine not in self._machines.values()]
        left = [self._left(place, states, now_s) for place in list(self._machines)]
        return [event for event in (*come, *left) if event is not None]

    def _come(self, machine: str) -> e.NodeEvent | None:
        """Give a machine the place of one that is missing and may be the same, or a new one."""
        host = _host(machine)
        missing = (place for place, name in self._machines.items() if not name or self._is_missing(place, host))
        place = next(missing, None)
        if place is not None:
            self._machines[place] = machine
            return None
        number = len(self._used) + 1
        while f"node-{number}" in self._used:
            number += 1
        place = f"node-{number}"
        self._used.add(place)
        self._machines[place] = machine
        return e.NodeCame(place, self._size)

    def _is_missing(self, place: str, host: str) -> bool:
        return place in self._missing_since_s and _host(self._machines[place]) == host

    def _left(self, place: str, states: dict[str, str], now_s: float) -> e.NodeEvent | None:
        machine = self._machines[place]
        state = states.get(machine, "")
        if state == _RUNNING:
            self._missing_since_s.pop(place, None)
            return None
        since_s = self._missing_since_s.setdefault(place, now_s)
        if state not in _LEAVING and now_s - since_s < MISSING_S:
            return None
        del self._machines[place], self._missing_since_s[place]
        if not machine:
            return e.NodeLeft(place, "a node that was there before this service began is none of the cluster's")
        became = _LEAVING.get(state) or f"is {state.lower() or 'gone'}"
        return e.NodeLeft(place, f"node {_host(machine)} {became}")


def _host(machine: str) -> str:
    return machine.rpartition(":")[0]
