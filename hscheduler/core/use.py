"""What one job does with its containers: how long they compute, and how long changes of its size take.

A container of a job

- *computes* from the job's first complete iteration to its last one, while a member in it takes part;
- *waits* while the job holds it and it does not compute: processes start, a change pauses the job, a restart is under
  way, or the job was ordered to end.

A container that no job holds is *idle*.  All three are counted in core-seconds: seconds, times the container's cores.

Source: EPS §7.3 (utilisation), §7.4 (Table 2: time spent on removing and adding, over the runtime of all jobs).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hscheduler.core.resources import Container


@dataclass(slots=True)
class Use:
    """The containers of one job, as far as its events show them; times are those of the timeline."""

    #: Container -> its cores: containers with a member that takes part, and those that join or leave.
    there: dict[str, int] = field(default_factory=dict)
    joining: dict[str, int] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    #: Core-seconds that computed, without pauses.
    computed_s: float = 0.0
    #: Seconds in which the job computed, with pauses, and the time up to which they are counted; None: it does not.
    ran_s: float = 0.0
    since_s: float | None = None
    #: Seconds of pauses that its reports named.
    paused_s: float = 0.0
    #: Whether it was ordered to end: what it computes until then is of no use.
    is_stopped: bool = False
    #: Time of the order to stop, while the job restarts, and the seconds of all restarts so far.
    stopped_s: float | None = None
    stood_s: float = 0.0
    #: Seconds during which containers were added or removed, or the job restarted; and the begin of the current change.
    changed_s: float = 0.0
    changes_since_s: float | None = None
    #: (time, cores that compute from then on) whenever that changed; pauses of changes are not in it.
    steps: list[tuple[float, int]] = field(default_factory=list)

    def start(self, containers: Iterable[Container]) -> None:
        """Note the order to start the job in these containers; members take part with its first iteration."""
        self.there = {container.container_id: container.resources.vcores for container in containers}
        self.joining, self.leaving, self.is_stopped = {}, set(), False

    def grow(self, now_s: float, containers: Iterable[Container]) -> None:
        """Note the order to add members in these containers."""
        self.joining.update({container.container_id: container.resources.vcores for container in containers})
        self._look(now_s)

    def shrink(self, now_s: float, containers: Iterable[str]) -> None:
        """Note the order to remove the members in these containers; they take part until their containers are gone."""
        self.leaving.update(containers)
        self._look(now_s)

    def joined(self, now_s: float, failed: Iterable[str] = ()) -> None:
        """Note that the members that were to join take part, except those in the ``failed`` containers."""
        self._count(now_s)
        failures = set(failed)
        self.there.update({name: cores for name, cores in self.joining.items() if name not in failures})
        self.joining = {}
        self._note(now_s)
        self._look(now_s)

    def gone(self, now_s: float, containers: Iterable[str]) -> None:
        """Note that containers are gone."""
        self._count(now_s)
        for name in containers:
            self.there.pop(name, None)
            self.joining.pop(name, None)
            self.leaving.discard(name)
        self._note(now_s)
        self._look(now_s)

    def kept(self, now_s: float, containers: Iterable[str]) -> None:
        """Note that containers were not released after all."""
        self.leaving.difference_update(containers)
        self._look(now_s)

    def iterated(self, now_s: float, ago_s: float = 0.0) -> None:
        """Note complete iterations: the job computes.  The first of them ended ``ago_s`` before this report."""
        if self.is_stopped:
            return
        if self.since_s is None:
            self.since_s = now_s - ago_s if self.stopped_s is None else max(now_s - ago_s, self.stopped_s)
            self._note(self.since_s)
        if self.stopped_s is not None:
            self.stood_s += self.since_s - self.stopped_s
            self.stopped_s = None
            self._look(self.since_s)
        self._count(now_s)

    def skip(self, seconds: float) -> None:
        """Note that time passed of which nothing is known: no scheduler ran."""
        for name in ("since_s", "stopped_s", "changes_since_s"):
            if (at_s := getattr(self, name)) is not None:
                setattr(self, name, at_s + seconds)

    def paused(self, seconds: float) -> None:
        """Note that a change of size pauses the job that computes; a restart is no such pause."""
        if self.since_s is not None:
            self.computed_s -= seconds * sum(self.there.values())

    def stop(self, now_s: float, restarts: bool) -> None:
        """Note the order to end the job; it computes until then."""
        self._count(now_s)
        self.since_s, self.is_stopped = None, True
        self._note(now_s)
        if restarts and self.stopped_s is None:
            self.stopped_s = now_s
        elif not restarts and self.stopped_s is not None:
            self.stood_s += now_s - self.stopped_s
            self.stopped_s = None
        self.joining, self.leaving = {}, set()
        self._look(now_s)

    def end(self, now_s: float, pause_s: float | None) -> None:
        """Note that its processes have ended.  What came after its last iteration did not compute.

        Parameters
        ----------
        now_s : float
        pause_s : float, optional
            Seconds that changes of size paused it, by its own report; None: noted by :meth:`paused`.
        """
        last_s = now_s if self.since_s is None else self.since_s
        self.since_s, self.there, self.joining, self.leaving = None, {}, {}, set()
        self._note(last_s)
        # Reports of later attempts count the pauses of earlier ones again.
        new_s = (pause_s or 0.0) - self.paused_s
        if new_s > 0 and self.ran_s:
            # The report does not say at which sizes.
            self.computed_s -= self.computed_s * min(1.0, new_s / self.ran_s)
            self.paused_s += new_s
        self._look(now_s)

    def _count(self, now_s: float) -> None:
        if self.since_s is not None:
            self.computed_s += (now_s - self.since_s) * sum(self.there.values())
            self.ran_s += now_s - self.since_s
            self.since_s = now_s

    def _note(self, at_s: float) -> None:
        cores = 0 if self.since_s is None else sum(self.there.values())
        if cores != (self.steps[-1][1] if self.steps else 0):
            self.steps.append((at_s, cores))

    def _look(self, now_s: float) -> None:
        """Begin or end a change of the job's size."""
        changes = bool(self.joining or self.leaving) or self.stopped_s is not None
        if changes and self.changes_since_s is None:
            self.changes_since_s = now_s
        elif not changes and self.changes_since_s is not None:
            self.changed_s += now_s - self.changes_since_s
            self.changes_since_s = None
