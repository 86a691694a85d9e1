"""Which member of a job is in which of the containers that it was granted, and who of them the cluster has taken.

A job that loses a member without a warning puts another in its place by itself: the container stays its own.  Of those
that the cluster took away with one it replaces nobody but the last of a role: the others' containers are gone.

Source: :mod:`eps.core.evictions`; EPS §5.2 is silent about both.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hscheduler.core.resources import Role

#: Outcomes of an eviction whose member is gone: see :class:`eps.core.evictions.EvictionOutcome`.
_GONE = ("drained", "late", "lost")
#: Who asked for changes that bring members which have places of their own.
_USER = "user"


@dataclass(frozen=True, slots=True)
class Seat:
    """Who is in a container."""

    name: str
    role: Role


class Places:
    """Containers and the members in them.  For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By container id.
        self._seats: dict[str, Seat] = {}

    def __contains__(self, place: str) -> bool:
        with self._lock:
            return place in self._seats

    def items(self) -> tuple[tuple[str, str], ...]:
        """Return all containers and members."""
        with self._lock:
            return tuple((place, seat.name) for place, seat in self._seats.items())

    def set(self, seats: Mapping[str, Seat]) -> None:
        """Say who is where, instead of what was known."""
        with self._lock:
            self._seats = dict(seats)

    def put(self, places: Iterable[str], names: Iterable[str], role: Role) -> None:
        """Note which members of a role are in these containers, as far as both go."""
        with self._lock:
            self._seats.update((place, Seat(name, role)) for place, name in zip(places, names, strict=False))

    def drop(self, places: Iterable[str]) -> None:
        """Note that containers are gone; harmless for those that are not known."""
        with self._lock:
            for place in places:
                self._seats.pop(place, None)

    def members(self, places: Sequence[str]) -> list[str]:
        """Return the members in these containers, but for those that are gone."""
        with self._lock:
            return [self._seats[place].name for place in places if place in self._seats]

    def by_role(self, places: Sequence[str]) -> tuple[dict[Role, list[str]], list[str]]:
        """Return containers by what is in them, and those in which there is nobody."""
        found: dict[Role, list[str]] = {}
        empty = []
        with self._lock:
            for place in places:
                if place in self._seats:
                    found.setdefault(self._seats[place].role, []).append(place)
                else:
                    empty.append(place)
        return found, empty

    def find_replacements(self, role: Role, status: Mapping[str, Any]) -> None:
        """Put the members of a role that have no place into those of members that the status does not have."""
        there = names_of(role, status)
        with self._lock:
            seated = self._names()
            free = [name for name in there if name not in seated]
            for place, seat in self._seats.items():
                if seat.role is role and seat.name not in there and free:
                    self._seats[place] = Seat(free.pop(0), role)

    def take_away(self, status: Mapping[str, Any]) -> dict[str, list[str]]:
        """Find out which containers the cluster has taken, and forget them; put whom the job replaced into theirs.

        Parameters
        ----------
        status : mapping
            Of the job, as ``eps status --json`` prints it.

        Returns
        -------
        dict
            Why, as a sentence, -> the containers.
        """
        evictions = (status.get("evictions") or {}).get("members", ())
        gone = {each["name"]: str(each["reason"]) for each in evictions if each["outcome"] in _GONE}
        taken: dict[str, list[str]] = {}
        if not gone:
            return taken
        with self._lock:
            for place, seat in list(self._seats.items()):
                mine = names_of(seat.role, status)
                if seat.name not in gone or seat.name in mine:
                    continue
                new = [other for other in mine if other not in self._names() and other not in _added(status)]
                if new:
                    # The job has put it there itself, as it had nobody else of that role.
                    self._seats[place] = replace(seat, name=new[0])
                elif mine:
                    del self._seats[place]
                    taken.setdefault(f"its container {gone[seat.name]}", []).append(place)
        return taken

    def _names(self) -> list[str]:
        return [seat.name for seat in self._seats.values()]


def names_of(role: Role, status: Mapping[str, Any]) -> list[str]:
    """Return the members of a role that a job's status has."""
    return [str(member["name"]) for member in status["members"] if member["role"] == role]


def _added(status: Mapping[str, Any]) -> set[str]:
    """Return the members that changes brought which somebody asked for, and not the job itself."""
    plans = [plan for plan in (status.get("plan"), *status.get("queued", ()), *status.get("changes", ())) if plan]
    return {str(name) for plan in plans if plan["asked_by"] == _USER for name in plan["added"]}
