"""Track the machines of a YARN cluster from one poll of the ResourceManager to the next.  Pure.

YARN chooses the machine of each container.  So the scheduler's nodes are slots of one size: one for each machine that
is at least as large.  A machine that is being decommissioned is removed at once.  A machine that is missing may come
back within :data:`MISSING_S`, as all do after a restart of the ResourceManager.

Source: EPS §5.1 (the scheduler reads what is free from the resource manager); Hadoop, ``NodeState``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hscheduler.core import events as e
from hscheduler.core.resources import Resources

#: Seconds after which a missing machine is removed.
MISSING_S = 15.0
_RUNNING = "RUNNING"
#: States of machines that are taken out of service.
_LEAVING = {"DECOMMISSIONING": "is being decommissioned", "DECOMMISSIONED": "was decommissioned"}


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as the ResourceManager reports it."""

    #: ``host:port`` of its NodeManager.
    name: str
    #: YARN's NodeState.
    state: str
    size: Resources


class Nodes:
    """Maps the machines of the cluster to the scheduler's slots.

    Parameters
    ----------
    size : Resources
        Size of a slot; smaller machines are ignored.
    places : iterable of str
        Slots of a restored scheduler; their machines are not known.
    """

    def __init__(self, size: Resources, places: Iterable[str]) -> None:
        self._size = size
        #: Slot -> its machine; empty if unknown.
        self._machines = dict.fromkeys(places, "")
        self._missing_since_s: dict[str, float] = {}
        self._used = set(self._machines)

    def look(self, machines: Sequence[Machine], now_s: float) -> list[e.NodeEvent]:
        """Return the changes since the last call.

        Parameters
        ----------
        machines : sequence of Machine
            All that the ResourceManager reports, in any state; others count as missing.
        now_s : float, seconds
        """
        states = {machine.name: machine.state for machine in machines}
        there = sorted(m.name for m in machines if m.state == _RUNNING and self._size.fits_into(m.size))
        come = [self._come(machine) for machine in there if machine not in self._machines.values()]
        left = [self._left(place, states, now_s) for place in list(self._machines)]
        return [event for event in (*come, *left) if event is not None]

    def _come(self, machine: str) -> e.NodeEvent | None:
        """Assign a machine to the slot of a missing one that may be the same, or to a new slot."""
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
            return e.NodeLeft(place, "a node from before this service restarted is no longer in the cluster")
        became = _LEAVING.get(state) or f"is {state.lower() or 'gone'}"
        return e.NodeLeft(place, f"node {_host(machine)} {became}")


def _host(machine: str) -> str:
    return machine.rpartition(":")[0]
