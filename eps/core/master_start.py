"""The job master until its first membership holds: what it waits for, and for how long.  L0, pure.

The fourth layer of :class:`eps.core.master_state.MasterState`.

Jobs that start at the same time on a full cluster could wait for each other for ever, each with nearly all that it
asked for.  So a job that has got a worker and a server, and nothing more for a while, takes the rest of its requests
back and begins; one that has several of one role only gives up one of these for one of the other.  What it lacks it
asks for as one does whose room others were to get (:mod:`eps.core.master_evictions`).  One whose size somebody manages
has been granted what it asks for, and waits.
"""

from __future__ import annotations

from collections.abc import Collection

from eps.core import events as e
from eps.core import messages as m
from eps.core.events import JobState
from eps.core.master_evictions import EvictedJob
from eps.core.types import MemberRecord, Role

#: A job has failed if one of its first members was started and has not registered after this long.
START_PATIENCE_S = 300.0
#: A job that can begin does so without what it has asked for when nothing was granted for so long: more than most
#: clusters take from one container to the next, and more than jobs that make room for it take to leave.
SMALLER_S = 20.0
#: A job that cannot begin has failed when so many of its first requests were given up.
MOST_VAIN = 3
#: What is waited for longer than this is told.
TOLD_S = 1.0


class StartingJob(EvictedJob):
    """A job that waits for its first members, and may begin without some of them."""

    #: When one member gave its container for one of the other role.
    _swapped_s = 0.0
    #: First requests that the resource manager gave up.
    _num_vain = 0

    @property
    def not_granted(self) -> tuple[MemberRecord, ...]:
        """The first members that have no container yet; none where the job does not start any more."""
        if self.state is not JobState.STARTING or self.membership is not None:
            return ()
        return tuple(r for n in self._initial if (r := self.members.get(n)) is not None and not r.granted)

    def start_waits_for(self, now_s: float) -> str:
        """Return what a job that starts waits for, and how long it has, as a sentence; empty where it does not long."""
        missing = [record for record in self.not_granted if now_s - record.asked_s >= TOLD_S]
        if missing:
            count, waited_s = len(missing), now_s - min(record.asked_s for record in missing)
            names = ", ".join(record.name for record in missing)
            return f"waits for {count} container{'s' if count > 1 else ''}, asked for {waited_s:.0f} s ago: {names}"
        return ""

    def _look_at_start(self) -> None:
        """Give up a job of which one that was started does not register; or begin without those that nobody grants."""
        if self.membership is not None:
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
        if self._managed or not missing or self._now_s - max(last_s, self._swapped_s) < SMALLER_S:
            return
        if self._can_do_without(missing):
            self._do_without(missing)
            return
        granted = [record for record in map(self.members.__getitem__, self._initial) if record.granted]
        if len(granted) > 1 and self._gives_room:
            # All of one role: its last one gives its room for one of the other.
            self._swapped_s = self._now_s
            self._do_without(granted[-1:])

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
        self._num_vain += 1
        self._journal({"kind": "not-granted", "member": record.name, "reason": reason})
        if self._num_vain < MOST_VAIN:
            self._request_container(record.name)
        else:
            # Nobody was lost: there never was anybody.
            self._end(JobState.FAILED, f"{record.name} was never granted a container: the last one asked for {reason}")

    def _can_do_without(self, missing: Collection[MemberRecord]) -> bool:
        """Return whether the job could begin with those first members that were granted their containers."""
        roles = {record.role for record in map(self.members.__getitem__, self._initial) if record.granted}
        return bool(missing) and not self._managed and roles == set(Role)

    def _do_without(self, missing: Collection[MemberRecord]) -> None:
        """Begin without some: what they have is given back, and they are asked for when nobody wants the room."""
        for record in missing:
            self._initial.remove(record.name)
            del self.members[record.name], self._by_container[record.container_id]
            if record.address is not None:
                self._send(record.name, m.Shutdown("the job begins without it"))
            self._out.append(e.ReleaseContainer(record.container_id))
            self.given[record.role] += 1
        self._journal({"kind": "smaller", "without": [record.name for record in missing]})
        if self._is_complete():
            self._begin()
