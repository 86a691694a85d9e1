"""A job master that another process takes over, and one whose job has ended: what is said then.  L0, pure.

The fifth layer of :class:`eps.core.master_state.MasterState`.

A state is a function of the events that it has seen, so the next process has it whole.  What it does not have is what
its commands have done: what was on its way when the process before ended.  Every one of them may be given again, so
what is outstanding is simply said once more.

A process that could log no event, nor note that one is missing, has gone on all the same, and what it told its members
since is unknown to the next.  So every order carries the number of the last event that led to it, and members say which
they have heard when they register.  Nothing good can come of a state that is older than that, or that does not know
that they had registered with the master that said it: the job ends.

Source: design section 4 (every message is idempotent; a process killed at any step leads to a correct end).  Whoever
has less of the log than a voter leads nobody: Raft (Ongaro and Ousterhout 2014, section 5.4.1).
"""

from __future__ import annotations

from abc import abstractmethod

from eps.core import events as e
from eps.core.events import ENDED_STATES, JobState
from eps.core.master_start import StartingJob
from eps.core.types import MemberRecord
from eps.errors import JobFinishedError

#: Why a container is taken to have ended whose process did not outlive the master's.
ENDED_AWAY = "ended while the job master was away"
#: Why a job ends whose log misses records that nobody could note as missing.
MISSING = (
    "the job master cannot go on: records are missing from its log, for {who} has heard of more than they say; nothing "
    "can be restored: eps resume goes on from the latest checkpoint, or the seed"
)


class RestartedJob(StartingJob):
    """A job whose master may be another process than before."""

    @abstractmethod
    def _give_again(self) -> None:
        """Give the commands again that the process before may not have carried out."""

    def _on_restarted(self, event: e.MasterRestarted) -> None:
        """Take over a job that goes on.

        Orders to members follow when they register again, for until then there is nobody to send them to.
        """
        self._begin_generation(event)
        for container_id, record in list(self._by_container.items()):
            if self.state in ENDED_STATES:
                return
            if container_id not in self._by_container:
                # A plan was aborted because of one before it.
                continue
            pid = event.running.get(container_id)
            if pid is not None:
                self._on_launched(e.ContainerLaunched(container_id, pid))
            elif record.launched:
                # Most often its node is lost, too.  Masters that bring the job no further are counted elsewhere.
                self._on_exited(e.ContainerExited(container_id, ENDED_AWAY, taken=True))
            else:
                record.asked_s, record.granted = self._now_s, False
                if self.driver is not None:
                    self.driver.granted.discard(record.name)
                self._out.append(e.RequestContainer(container_id, record.role))
        self._give_again()

    def _on_registered(self, event: e.MemberRegistered) -> None:
        record = self._by_container.get(event.container_id)
        if record is not None and self._misses(record, event):
            self._end(JobState.FAILED, MISSING.format(who=record.name))
            return
        super()._on_registered(event)

    def _misses(self, record: MemberRecord, event: e.MemberRegistered) -> bool:
        """Return whether a member has heard of what this state does not know."""
        if event.heard_generation > record.generation:
            # Nobody hears of a master before it has registered there, which this state would know: another process was
            # a master of that generation.
            return True
        return event.heard_step > self._logged.get(event.heard_generation, self.steps)

    def _after_the_end(self, event: e.Event) -> None:
        """Answer what comes after a job has ended."""
        if isinstance(event, e.ChangeRequested | e.CancelRequested):
            error = JobFinishedError(f"the job has {self.state}: it cannot be changed any more")
            self._out.append(e.Answer(event.request_id, error=error))
        elif isinstance(event, e.MemberRegistered):
            self._out.append(e.ReleaseContainer(event.container_id))
        elif isinstance(event, e.MasterRestarted):
            self._begin_generation(event)
            self._out.append(e.EndJob(self.state, self.reason))

    def _begin_generation(self, event: e.MasterRestarted) -> None:
        self._logged[self.generation] = self.steps - 1
        self.generation = event.generation
        record = {"kind": "restarted", "generation": event.generation, "running": len(event.running)}
        self._journal(record, sync=True)
        ended = self.state in ENDED_STATES
        for container_id in event.running:
            # Its release was decided, and perhaps not done.
            if ended or container_id not in self._by_container:
                self._out.append(e.ReleaseContainer(container_id))
