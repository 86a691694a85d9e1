"""Has jobs ask YARN again for what they gave, when nobody has waited for a while and there is room.

What is owed to whom is the job masters' word (:mod:`eps.core.size`), which outlives whoever took it; so nothing is kept
here that matters, and nothing is given twice: a job is asked for one change at a time, and a request that is made
twice, or by two at once, is the same (:mod:`eps.core.plans`).  A job master withdraws by itself what it is not
granted soon.  What YARN preempted a job takes back by itself (:mod:`eps.core.size`); that is not lent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from eps.core.reconfig import Operation
from eps.errors import EpsError
from hscheduler.core.resources import Role
from hscheduler.core.words import words_of
from hscheduler.live.yarn_facts import JobView, Masters
from hscheduler.yarn.giving_back import Return, Settled, give_back
from hscheduler.yarn.snapshot import Application, Snapshot

#: A job that would not grow, or of which nothing could be learned, is not asked again for this long.
REST_S = 30.0
#: What was asked for in vain is asked for again after the time to settle, doubled each time, so often at most.
MOST_DOUBLINGS = 5
_ADD = {Role.WORKER: Operation.ADD_WORKERS, Role.SERVER: Operation.ADD_SERVERS}


class Returns:
    """Gives back, look by look, on the caller's thread.

    Parameters
    ----------
    masters : Masters
    settle_s : float, seconds
        For how long nobody must have waited, and room must have been free.
    every_s : float, seconds
        How often it is looked.
    tell : callable
        Given a sentence, and the application that it is about.
    acts : bool
        Whether jobs are asked; else it is only said what would be done.
    """

    def __init__(
        self, masters: Masters, settle_s: float, every_s: float, tell: Callable[[str, str], None], *, acts: bool
    ) -> None:
        self._masters = masters
        self._settle_s = settle_s
        self._tell = tell
        self._acts = acts
        self._settled = Settled(settle_s, every_s)
        #: Application -> until when nothing is owed to it, as far as is known.
        self._square: dict[str, float] = {}
        #: Application -> until when it is left alone.
        self._resting: dict[str, float] = {}
        #: Application -> how often in a row it was seen to ask in vain.
        self._in_vain: dict[str, int] = {}

    def keep(self, applications: frozenset[str]) -> None:
        """Forget all other applications: they are over."""
        for name in self._in_vain.keys() - applications:
            del self._in_vain[name]
        for known in (self._square, self._resting):
            for name in known.keys() - applications:
                del known[name]

    def may_owe(self, running: Iterable[str], now_s: float) -> bool:
        """Return whether something may be owed to one of these applications: then it is worth to look."""
        return any(now_s >= self._square.get(name, 0.0) for name in running)

    def taken_from(self, application_id: str) -> None:
        """Note that an application gives."""
        self._square.pop(application_id, None)

    def look_away(self) -> None:
        """Note that nothing could be seen this time: what was free before may have been somebody's since."""
        self._settled.begin_again()

    def wait(self, snapshot: Snapshot, views: Mapping[str, JobView]) -> None:
        """Give nothing for now, since somebody is to start; what is asked for and not granted is withdrawn."""
        self._settled.begin_again()
        for application in snapshot.applications:
            view = views.get(application.application_id)
            for plan_id in view.regains if view is not None and self._acts else ():
                try:
                    self._masters.job(application).cancel(plan_id)
                except EpsError:
                    # It was withdrawn as the job was to give more, or has got its containers; one that does not answer
                    # withdraws it by itself.
                    continue
                self._tell(f"{application} lets go of what it asks for: somebody waits", application.application_id)

    def look(self, snapshot: Snapshot, views: Mapping[str, JobView], now_s: float) -> None:
        """Have jobs ask for what has been free for long enough; nobody waits."""
        self._note_owed(snapshot, views, now_s)
        self._settled.note(snapshot, now_s)
        least = self._settled.least(now_s)
        # What is asked for already takes some of the room, and nobody sees where.
        if least is None or any(view.regains for view in views.values()):
            return
        facts = {
            name: view.facts
            for name, view in views.items()
            # Who is being given a change, or has members on their way out, comes later.
            if view.facts.may_shrink and not view.leaving and now_s >= self._resting.get(name, 0.0)
        }
        carefully = {name for name, number in self._in_vain.items() if number}
        applications = {a.application_id: a for a in snapshot.applications}
        for each in give_back(least, facts, carefully):
            self._ask(applications[each.application_id], each, views[each.application_id], now_s)

    def _note_owed(self, snapshot: Snapshot, views: Mapping[str, JobView], now_s: float) -> None:
        for application in snapshot.applications:
            name = application.application_id
            view = views.get(name)
            if view is None:
                if name not in self._in_vain and now_s >= self._square.get(name, 0.0):
                    self._square[name] = now_s + REST_S
                continue
            if not view.facts.lent and view.facts.may_shrink:
                self._square[name] = float("inf")
            elif view.facts.lent:
                self._square.pop(name, None)
            number, reason = view.in_vain
            # Of what was asked before this began nobody knows here when that was.
            if number > self._in_vain.get(name, number):
                wait_s = self._settle_s * 2 ** min(number, MOST_DOUBLINGS)
                self._resting[name] = now_s + wait_s
                self._tell(f"{application} asks again in {wait_s:g} s: what it asked for was {reason}", name)
            self._in_vain[name] = number

    def _ask(self, application: Application, each: Return, view: JobView, now_s: float) -> None:
        name = application.application_id
        words = words_of([each.role] * each.number)
        try:
            if self._acts:
                # Of the same state of the job it is the same request, whoever makes it and however often.
                self._masters.job(application).change(
                    _ADD[each.role],
                    each.number,
                    wait=False,
                    request_id=f"regain-{view.latest_change + 1}",
                    for_queue=True,
                )
        except EpsError as error:
            self._resting[name] = now_s + REST_S
            self._tell(f"{application} gets nothing back for now: {error}", name)
            return
        self._tell(f"{application} gets {words} back: nobody waits, and there is room", name)
