"""Which member of a job is in which of the containers that it was granted, and who of them the cluster has taken.

A job that loses a member without a warning puts another in its place by itself: the container stays its own.  Of those
that the cluster took away with one it replaces nobody but the last of a role: the others' containers are gone.

Source: :mod:`eps.core.evictions`; EPS §5.2 is silent about both.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hscheduler.core.resources import Role

#: Outcomes of an eviction whose member is gone: see :class:`eps.core.evictions.EvictionOutcome`.
_GONE = ("drained", "late", "lost")
#: Who asked for changes that bring members which have places of their own.
_USER = "user"


class Places:
    """Containers and the members in them.  For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Container id -> name of the member in it.
        self._members: dict[str, str] = {}

    def __contains__(self, place: str) -> bool:
        with self._lock:
            return place in self._members

    def items(self) -> tuple[tuple[str, str], ...]:
        """Return all containers and members."""
        with self._lock:
            return tuple(self._members.items())

    def set(self, members: Mapping[str, str]) -> None:
        """Say who is where, instead of what was known."""
        with self._lock:
            self._members = dict(members)

    def put(self, places: Iterable[str], names: Iterable[str]) -> None:
        """Note who is in these containers, as far as both go."""
        with self._lock:
            self._members.update(zip(places, names, strict=False))

    def drop(self, places: Iterable[str]) -> None:
        """Note that containers are gone; harmless for those that are not known."""
        with self._lock:
            for place in places:
                self._members.pop(place, None)

    def members(self, places: Sequence[str]) -> list[str]:
        """Return the members in these containers, but for those that are gone."""
        with self._lock:
            return [self._members[place] for place in places if place in self._members]

    def by_role(self, places: Sequence[str]) -> tuple[dict[Role, list[str]], list[str]]:
        """Return containers by what is in them, and those in which there is nobody."""
        found: dict[Role, list[str]] = {}
        empty = []
        with self._lock:
            for place in places:
                if place in self._members:
                    found.setdefault(role_of(self._members[place]), []).append(place)
                else:
                    empty.append(place)
        return found, empty

    def find_replacements(self, role: Role, names: Sequence[str]) -> None:
        """Put the members of a role that have no place into those of members that are no more."""
        with self._lock:
            free = [name for name in names if role_of(name) is role and name not in self._members.values()]
            for place, name in self._members.items():
                if role_of(name) is role and name not in names and free:
                    self._members[place] = free.pop(0)

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
        there = [str(member["name"]) for member in status["members"]]
        with self._lock:
            for place, name in list(self._members.items()):
                if name not in gone or name in there:
                    continue
                mine = [other for other in there if role_of(other) is role_of(name)]
                new = [other for other in mine if other not in self._members.values() and other not in _added(status)]
                if new:
                    # The job has put it there itself, as it had nobody else of that role.
                    self._members[place] = new[0]
                elif mine:
                    del self._members[place]
                    taken.setdefault(f"its container {gone[name]}", []).append(place)
        return taken


def _added(status: Mapping[str, Any]) -> set[str]:
    """Return the members that changes brought which somebody asked for, and not the job itself."""
    plans = [plan for plan in (status.get("plan"), *status.get("queued", ()), *status.get("changes", ())) if plan]
    return {str(name) for plan in plans if plan["asked_by"] == _USER for name in plan["added"]}


def role_of(member: str) -> Role:
    """Return what a member is, by its name."""
    return Role(member.rpartition("-")[0])
