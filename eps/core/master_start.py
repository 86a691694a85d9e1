"""The job master until its first membership holds: what it waits for, and for how long.  L0, pure.

The fourth layer of :class:`eps.core.master_state.MasterState`.

Source: EPS §5.2 (the ApplicationMaster asks for containers; processes register with it).
"""

from __future__ import annotations

from eps.core.events import JobState
from eps.core.master_evictions import EvictedJob
from eps.core.types import MemberRecord

#: A job has failed if one of its first members was started and has not registered after this long.
START_PATIENCE_S = 300.0
#: What is waited for longer than this is told.
TOLD_S = 1.0


class StartingJob(EvictedJob):
    """A job that waits for its first members."""

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
        """Give up a job of which one that was started does not register."""
        if self.membership is not None:
            return
        for name in self._initial:
            record = self.members.get(name)
            # From its own launch on: a container may have been granted late.
            if record is not None and record.silent and self._now_s - record.launched_s >= START_PATIENCE_S:
                self._end(JobState.FAILED, f"{name} did not register within {START_PATIENCE_S:g} s")
                return
