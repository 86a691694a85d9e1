"""The job master until its first membership holds: what it waits for, and for how long.  L0, pure.

The fourth layer of :class:`eps.core.master_state.MasterState`.

Jobs that start at the same time on a full cluster could wait for each other for ever, each with nearly all that it
asked for.  So a job that has got a part of its workers and of its servers with which it may begin (``start_with``), and
nothing more for a while, takes the rest of its requests back and begins; one that has more of one role than that, and
less of the other, gives up one of these for one of the other, where that can be had in its room.  What it lacks it
asks for as one does whose room others were to get (:mod:`eps.core.master_evictions`).  One whose size somebody manages
has been granted what it asks for, and waits.

A job that cannot begin with what it holds, and has none to give for another, must not keep it for ever either: as many
such jobs as a cluster has containers would each hold one.  After a while it *rests*: it gives all back, asks for
nothing, and then for the least that it may begin with.  How long it holds and rests differs from job to job, or all
would give back and ask again together; and it rests longer than it holds, so that few of many compete (after the
randomized, growing delays of Metcalfe and Boggs, Ethernet, CACM 1976).  It holds longer each time, too, or one on a
busy cluster, where two containers seldom come free shortly after each other, would never begin.  Its rest is over when
there is room for it that nobody else wants.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from types import MappingProxyType
from zlib import crc32

from eps.core import events as e
from eps.core.events import JobState
from eps.core.master_evictions import EvictedJob
from eps.core.types import MemberId, MemberRecord, Role
from eps.core.waiting import containers_waited_for

#: A job has failed if one of its first members was started and has not registered after this long.
START_PATIENCE_S = 300.0
#: A job that can begin does so without what it has asked for when nothing was granted for so long: more than most
#: clusters take from one container to the next, and more than jobs that make room for it take to leave.
SMALLER_S = 20.0
#: A job that cannot begin holds what it has for so many times as long before it rests, drawn between these bounds,
HOLDS = (1.0, 2.0)
#: and rests for so many times as long; both doubled each time, but not for ever: room that came free meanwhile is idle.
RESTS = (0.5, 3.0)
MOST_DOUBLINGS = 3
#: One that rests asks again within so many times as long when there is room for it that nobody else wants.
WAKES = 0.5
#: A job that cannot begin has failed when the resource manager gave up one of its first members so often.
MOST_VAIN = 3


def least_of(wanted: int, start_with: float) -> int:
    """Return the number of a role with which a job may begin that wants so many and may start with that part."""
    # As it was written: 0.28 of 25 is 7, and as products of binary fractions a little more.
    return max(1, math.ceil(round(start_with * wanted, 9)))


class StartingJob(EvictedJob):
    """A job that waits for its first members, and may begin without some of them."""

    #: When one member gave its container for one of the other role.
    _swapped_s = 0.0
    #: When the resource manager was silent last.
    _unanswered_s = 0.0
    #: First member -> how often a container for it was given up.
    _vain: Mapping[MemberId, int] = MappingProxyType({})
    #: What differs from job to job.
    _seed = ""
    #: The part of its workers, and of its servers, with which the job may begin; never with none of a role.
    _start_with = 0.5
    #: How often the job gave back all that it had, and until when it asks for nothing.
    _num_rests = 0
    _rests_until_s: float | None = None

    @property
    def not_granted(self) -> tuple[MemberRecord, ...]:
        """The first members that have no container yet; none where the job does not start any more."""
        if self.state is not JobState.STARTING or self.membership is not None:
            return ()
        return tuple(r for n in self._initial if (r := self.members.get(n)) is not None and not r.granted)

    def start_waits_for(self, now_s: float) -> str:
        """Return what a job that starts waits for, and how long it has, as a sentence; empty where it does not long."""
        if self._rests_until_s is not None:
            return (
                "has given back the containers with which it could not begin, so that others can, "
                f"{self._num_rests} time{'s' if self._num_rests > 1 else ''} so far; asks again in "
                f"{max(0.0, self._rests_until_s - now_s):.0f} s"
            )
        return containers_waited_for(self.not_granted, now_s)

    def _look_at_start(self, silent_s: float) -> None:
        """Give up a job of which one that was started does not register; or begin without those that nobody grants."""
        if self.membership is not None:
            return
        if silent_s:
            # Who does not answer grants nothing, however much room there is.
            self._unanswered_s = self._now_s
        if self._rests_until_s is not None:
            if self._now_s >= self._rests_until_s:
                self._rests_until_s = None
                for name, role in self._initial.items():
                    self._request_container(name, role)
            return
        for name in self._initial:
            record = self.members.get(name)
            # From its own launch on: a container may have been granted late.
            if record is not None and record.silent and self._now_s - record.launched_s >= START_PATIENCE_S:
                self._end(JobState.FAILED, f"{name} did not register within {START_PATIENCE_S:g} s")
                return
        missing = self.not_granted
        # Whatever was asked for or granted since may bring more.
        last_s = max(max(self.members[name].asked_s, self.members[name].granted_s) for name in self._initial)
        waited_s = self._now_s - max(last_s, self._swapped_s, self._unanswered_s)
        if self._managed or not missing or waited_s < SMALLER_S:
            return
        if self._can_do_without(missing):
            self._do_without(missing)
            return
        giver = next((role for role in self._gives_room if self._num_granted(role) > self._least(role)), None)
        if giver is not None:
            # Its last one gives its room for one of the other role; and what is granted from now on is of that.
            records = [self.members[name] for name in self._initial_of(giver)]
            gives = [record for record in records if record.granted][-1:]
            self._swapped_s = self._now_s
            self._do_without([*gives, *(record for record in records if not record.granted)])
        elif waited_s >= self._drawn_s("holds", *HOLDS) and any(map(self._num_granted, Role)):
            self._rest()

    def _on_exited(self, event: e.ContainerExited | e.MemberLost) -> None:
        record = self._by_container.get(event.container_id)
        if record is None or record not in self.not_granted:
            super()._on_exited(event)
        elif self._can_do_without((record,)):
            # Its resource manager has given up; what it has granted is enough.
            self._do_without((record,))
        else:
            self._ask_again(record, event.reason)

    def _ask_again(self, record: MemberRecord, reason: str) -> None:
        """Ask once more for a container that was given up, unless that has been in vain too often."""
        del self.members[record.name], self._by_container[record.container_id]
        self._vain = {**self._vain, record.name: self._vain.get(record.name, 0) + 1}
        self._journal({"kind": "not-granted", "member": record.name, "reason": reason})
        if self._vain[record.name] < MOST_VAIN:
            self._request_container(record.name, record.role)
        else:
            # Nobody was lost: there never was anybody.
            self._end(JobState.FAILED, f"{record.name} was never granted a container: the last one asked for {reason}")

    def _num_granted(self, role: Role) -> int:
        return sum(self.members[name].granted for name in self._initial_of(role))

    def _least(self, role: Role) -> int:
        """Return the number of a role with which the job may begin."""
        return least_of(self.wanted[role], self._start_with)

    def _can_do_without(self, missing: Collection[MemberRecord]) -> bool:
        """Return whether the job may begin with those first members that were granted their containers."""
        enough = all(self._num_granted(role) >= self._least(role) for role in Role)
        return bool(missing) and not self._managed and enough

    def _drawn_s(self, what: str, least: float, most: float) -> float:
        return SMALLER_S * self._drawn(what, least, most) * 2.0 ** min(self._num_rests, MOST_DOUBLINGS)

    def _drawn(self, what: str, least: float, most: float) -> float:
        """Return a number between two bounds that differs from job to job, the same where a state is restored."""
        return least + crc32(f"{self._seed} {what} {self._num_rests}".encode()) / 2**32 * (most - least)

    @property
    def looks_for_room(self) -> bool:
        """True while room that nobody else wants would let the job grow back, or ask again for its first members."""
        return self._rests_until_s is not None or super().looks_for_room

    def _on_room(self, event: e.RoomSeen) -> None:
        super()._on_room(event)
        # Each role fits as often if no other were asked for.
        fits = min(event.fits.get(role, 0) for role in Role)
        if self._rests_until_s is not None and fits >= len(self._initial):
            # Others who rest see it, too.
            wakes_s = self._now_s + SMALLER_S * self._drawn("wakes", 0.0, WAKES)
            self._rests_until_s = min(self._rests_until_s, wakes_s)

    def _rest(self) -> None:
        """Give everything back and ask for nothing for a while, and then for the least that a job can begin with."""
        records = [self.members[name] for name in self._initial]
        self._initial = {name: role for role in Role for name in self._initial_of(role)[: self._least(role)]}
        for record in records:
            self._dismiss(record.name, "the job cannot begin with what it has, and leaves it to others")
            self.began_without[record.role] += record.name not in self._initial
        # Processes may have been told these names, and be lost, or be evicted, only now.
        used = {record.name for record in records if record.granted}
        self._initial = {self._new_name(role) if name in used else name: role for name, role in self._initial.items()}
        rest_s = self._drawn_s("rests", *RESTS)
        self._num_rests += 1
        self._rests_until_s = self._now_s + rest_s
        self._journal({"kind": "rests", "gives": [r.name for r in records if r.granted], "seconds": round(rest_s, 6)})

    def _do_without(self, missing: Collection[MemberRecord]) -> None:
        """Begin without some: what they have is given back, and they are asked for when nobody wants the room."""
        for record in missing:
            del self._initial[record.name]
            self._dismiss(record.name, "the job begins without it")
            self.began_without[record.role] += 1
        self._journal({"kind": "smaller", "without": [record.name for record in missing]})
        if self._is_complete():
            self._begin()
