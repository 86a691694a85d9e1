"""H-scheduler beside a ResourceManager: room in a queue of YARN for applications that wait, made by other jobs.

Every round looks at the queue, asks the job masters, plans (:mod:`hscheduler.yarn.plan`) and has jobs remove the
workers and servers that the plan takes.  Nothing is remembered of a plan: what is on its way out is what the masters
say, what is free is what YARN says; so what somebody else got is planned again, and what was aborted, too.

Who gives first withdraws what it asks for itself, and who receives gets a higher priority.  When nobody waits any more
jobs have back what they gave (:mod:`hscheduler.live.yarn_returns`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from eps.core.reconfig import Operation
from eps.errors import EpsError, PlanError, RpcError
from hscheduler.core.resources import Role
from hscheduler.live.yarn_facts import JobView, MasterFacts, Masters
from hscheduler.live.yarn_priorities import Priorities, unsettled
from hscheduler.live.yarn_reader import QueueReader, Web
from hscheduler.live.yarn_returns import Returns
from hscheduler.yarn.facts import Facts
from hscheduler.yarn.giving_back import starts
from hscheduler.yarn.plan import make_plan
from hscheduler.yarn.rest import with_marks
from hscheduler.yarn.snapshot import Application, Plan, Snapshot
from hscheduler.yarn.together import AskedTogether

logger = logging.getLogger(__name__)

#: A job that would not give is not asked again for this long.
REST_S = 30.0
#: A container in which nobody is counts as on its way out for this long; then something else is wrong with it.
LEAVES_WITHIN_S = 60.0
_REMOVE = {Role.WORKER: Operation.REMOVE_WORKERS, Role.SERVER: Operation.REMOVE_SERVERS}

#: Given a sentence, and the application that it is about where there is one.
Tell = Callable[[str, str], None]


class QueueScheduler:
    """Makes room in queues of YARN, round by round, on the caller's thread.

    Parameters
    ----------
    web : Web
        The ResourceManager.
    queues : sequence of str
    masters : Masters
    feedback_iteration : int
        A job that has come so far has given its early feedback.
    tell : callable
        Given every new sentence.
    settle_s : float or None, seconds
        Jobs get what they gave back when nobody has waited and there has been room for so long; None: never.
    every_s : float, seconds
        How often the caller goes round.
    acts : bool
        Whether jobs are shrunk and grown; else it is only said what would be done.
    now_s : callable
        A clock that never goes back.

    Raises
    ------
    ConfigError
        There is no such queue.
    RpcError
        The ResourceManager does not answer.
    """

    def __init__(
        self,
        web: Web,
        queues: Sequence[str],
        masters: Masters,
        feedback_iteration: int,
        tell: Tell,
        *,
        settle_s: float | None = None,
        every_s: float = 1.0,
        acts: bool = True,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = QueueReader(web, queues)
        self._reader.check()
        self._masters = masters
        self._ask = AskedTogether(MasterFacts(feedback_iteration, masters.status).view)
        self._tell = tell
        self._acts = acts
        self._now_s = now_s
        self._priorities = Priorities(web, self._reader, tell)
        self._told: frozenset[str] = frozenset()
        #: Jobs that would not give -> until when they are left alone.
        self._resting: dict[str, float] = {}
        #: Containers in which nobody is -> since when.
        self._leaving: dict[str, float] = {}
        self._managed: set[str] = set()
        self._gives_back = settle_s is not None
        self._returns = Returns(masters, settle_s or 0.0, every_s, tell, acts=acts)

    def round(self) -> Plan | None:
        """Look, plan and act once; return the plan, None where nobody asks for anything or it cannot be seen clearly.

        Raises
        ------
        AuthenticationError, ProtocolError
            The ResourceManager does not answer us, or nothing that can be understood.
        RpcError
            It does not answer.
        """
        plan = None
        try:
            plan = self._look_and_act()
        finally:
            if plan is None:
                self._returns.look_away()
        return plan

    def _look_and_act(self) -> Plan | None:
        apps = self._reader.applications()
        there = frozenset(str(app["id"]) for app in apps)
        self._masters.keep(there)
        self._managed &= there
        self._resting = {name: until_s for name, until_s in self._resting.items() if name in there}
        if self._acts:
            self._priorities.settle(there, unsettled(apps))
        self._returns.keep(there)
        somebody_asks = any(app.get("resourceRequests") for app in apps)
        if not somebody_asks and not self._may_owe(apps):
            self._say(())
            return None
        snapshot = self._reader.snapshot(apps)
        if snapshot is None:
            return None
        views = self._views(snapshot)
        snapshot = with_marks(snapshot, self._marks(views))
        plan = make_plan(snapshot, {name: self._allowed(name, view) for name, view in views.items()})
        self._say(plan.sentences)
        if plan.takes and self._acts:
            self._carry_out(plan, snapshot, views)
        if self._gives_back and self._starts(snapshot, views, plan):
            self._returns.wait(snapshot, views)
        elif self._gives_back:
            self._returns.look(snapshot, views, self._now_s())
        return plan

    def close(self) -> None:
        """Leave the queue as it is, with the priorities that it had."""
        self._ask.close()
        self._priorities.close()

    # ---- giving back

    def _may_owe(self, apps: Sequence[Mapping[str, Any]]) -> bool:
        running = [str(app["id"]) for app in apps if app["state"] == "RUNNING"]
        return self._gives_back and self._returns.may_owe(running, self._now_s())

    def _starts(self, snapshot: Snapshot, views: Mapping[str, JobView], plan: Plan) -> bool:
        """Return whether room is to be left to one of the applications."""
        known = {name: view.facts for name, view in views.items()}
        return any(starts(a, known.get(a.application_id), plan) for a in snapshot.applications)

    # ---- looking

    def _views(self, snapshot: Snapshot) -> dict[str, JobView]:
        """Ask all masters; who does not answer in time is not among them."""
        return self._ask(a for a in snapshot.applications if a.state == "RUNNING" and a.port > 0)

    def _marks(self, views: Mapping[str, JobView]) -> frozenset[str]:
        """Return what is on its way out; one that has been so for too long is not believed any more."""
        now_s = self._now_s()
        leaving = {name for view in views.values() for name in view.leaving}
        self._leaving = {name: self._leaving.get(name, now_s) for name in leaving}
        emptied = {name for view in views.values() for name in view.leaving if name not in view.members}
        return frozenset(
            name for name in leaving if name not in emptied or now_s - self._leaving[name] < LEAVES_WITHIN_S
        )

    def _allowed(self, name: str, view: JobView) -> Facts:
        """Return how a job is, with whether it is to be asked for anything."""
        if view.manager and name not in self._managed:
            self._managed.add(name)
            self._tell(f"{name} is left alone: only {view.manager} changes its size", name)
        rests = self._now_s() < self._resting.get(name, float("-inf"))
        may = (view.facts.may_shrink or bool(view.growth)) and not view.manager and not rests
        return replace(view.facts, may_shrink=may)

    def _say(self, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            if sentence not in self._told:
                self._tell(sentence, sentence.partition(" ")[0])
        self._told = frozenset(sentences)

    # ---- acting

    def _carry_out(self, plan: Plan, snapshot: Snapshot, views: Mapping[str, JobView]) -> None:
        """Put the one that waits before others, then have jobs give."""
        taker = next(a for a in snapshot.applications if a.application_id == plan.taker)
        self._priorities.raise_for(taker)
        takes = set(plan.takes)
        for application in snapshot.applications:
            taken = [held.container_id for held in application.containers if held.container_id in takes]
            if not taken:
                continue
            try:
                self._take(application, taken, views[application.application_id])
            except EpsError as error:
                self._resting[application.application_id] = self._now_s() + REST_S
                self._tell(f"{application} gives nothing for now: {error}", application.application_id)

    def _take(self, application: Application, containers: Sequence[str], view: JobView) -> None:
        job = self._masters.job(application)
        for plan_id in reversed(view.growth):
            try:
                job.cancel(plan_id)
            except (PlanError, RpcError) as error:
                # It has got its containers meanwhile: the next look shows what it is then.
                logger.info("%s: change %d goes on: %s", application, plan_id, error)
                return
        self._returns.taken_from(application.application_id)
        by_role: dict[Role, list[str]] = {}
        for container in containers:
            if container in view.coming:
                # Given back with the change that it came by.
                continue
            by_role.setdefault(view.facts.roles[container], []).append(view.members[container])
        for role, members in by_role.items():
            request_id = f"lend-{role}-{view.latest_change + 1}"
            job.change(_REMOVE[role], members, wait=False, request_id=request_id, for_queue=True)
