"""The changes of a job: asked, queued, one in flight, and those that have ended.  Pure.  L0.

Source: EPS §3.2, §3.3, §5.2 (the four calls); design section 4 (changes queue, one commits at a time).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from eps.core import events as e
from eps.core.backoff import Backoff
from eps.core.changes import after_plans, resolve
from eps.core.events import noted, synced
from eps.core.flight import Flight, Standing, Stepped, roster
from eps.core.plan_driver import PlanDriver, plan_transfer
from eps.core.reconfig import ENDED, Change, Operation, Phase, Plan, Purpose
from eps.core.settings import CoreSettings, Trigger
from eps.core.types import MemberId, Role, Team
from eps.errors import EpsError, JobFinishedError, PlanError

#: Why a plan was aborted that its user gave up.
CANCELLED = "cancelled"
#: The operation that adds members of a role.
ADDITION = {Role.WORKER: Operation.ADD_WORKERS, Role.SERVER: Operation.ADD_SERVERS}
#: Purpose of the job's own plans -> the pause after one was aborted, and the longest pause, in seconds.
RETRIES = {
    Purpose.REPLACE: (1.0, 64.0),
    Purpose.FOLLOW: (1.0, 64.0),
    Purpose.DRAIN: (0.25, 8.0),
    Purpose.REGAIN: (1.0, 64.0),
}


class Plans:
    """The plans of a job.

    Parameters
    ----------
    settings : CoreSettings
    triggers : iterable of Trigger
        Changes that are asked at a clock.
    """

    def __init__(self, settings: CoreSettings, triggers: Iterable[Trigger] = ()) -> None:
        self._settings = settings
        #: Every plan ever accepted, by number.
        self.all: dict[int, Plan] = {}
        self.queue: list[Plan] = []
        #: The plan that is changing the job now.
        self.flight = Flight()
        self.triggers = sorted(triggers, key=lambda trigger: trigger.clock)
        self._answers: dict[str, e.Answer] = {}
        #: When the job may ask for a change of its own, by purpose.
        self._retries = {purpose: Backoff(*pauses) for purpose, pauses in RETRIES.items()}

    @property
    def driver(self) -> PlanDriver | None:
        """The driver of the plan in flight."""
        return self.flight.driver

    @property
    def undecided(self) -> bool:
        """True while a change waits, is on its way, or is still to be asked: the last clock is held back."""
        return bool(self.open) or bool(self.triggers)

    @property
    def open(self) -> list[Plan]:
        """The plans that may still be aborted."""
        uncommitted = self.flight.uncommitted
        return ([uncommitted] if uncommitted is not None else []) + self.queue

    @property
    def is_idle(self) -> bool:
        """True while no change waits, and none is on its way."""
        return self.flight.plan is None and not self.queue

    # ---- requests

    def request(self, event: e.ChangeRequested, job: Standing) -> list[e.Command]:
        """Answer a request for a change; the same id again gets the same answer."""
        known = self._answers.get(event.request_id)
        if known is not None:
            asked = self.all[known.plan_id]
            if (asked.change, asked.purpose) == (event.change, event.purpose):
                return [known]
            other = f"for {event.change}" if asked.change != event.change else "for that purpose"
            error = PlanError(f"request id {event.request_id!r} asked for {asked.change}, not {other}")
            return [e.Answer(event.request_id, error=error)]
        try:
            if event.dry_run:
                return [e.Answer(event.request_id, text=self._dry_run(event.change, job))]
            plan, commands = self.ask(event.change, event.purpose, job, event.request_id)
        except EpsError as refusal:
            return [e.Answer(event.request_id, error=refusal)]
        answer = self._answers[event.request_id] = e.Answer(event.request_id, plan.plan_id)
        return [*commands, answer]

    def ask(
        self, change: Change, purpose: Purpose, job: Standing, request_id: str = ""
    ) -> tuple[Plan, list[e.Command]]:
        """Queue a change.

        Raises
        ------
        EpsError
            It is refused.
        """
        self._check(change, job)
        plan, commands = self._new(change, purpose, request_id, job.now_s)
        self.queue.append(plan)
        return plan, commands

    def ask_own(self, change: Change, purpose: Purpose, job: Standing) -> list[e.Command]:
        """Queue a change that the job itself wants, unless it must wait after a failure."""
        if not self.is_due(purpose, job.now_s):
            return []
        self._retries[purpose] = self._retries[purpose].tried(job.now_s)
        try:
            return self.ask(change, purpose, job)[1]
        except EpsError as error:
            role = str(change.operation.role)
            return [noted("not-replaced", job.now_s, role=role, count=change.count, reason=str(error))]

    def ask_missing(self, pending: Mapping[Role, int], job: Standing) -> list[e.Command]:
        """Queue what brings the job back to its size, and gives each partition its follower.

        Parameters
        ----------
        pending : mapping
            Members of each role to ask for.
        """
        assert job.membership is not None
        commands: list[e.Command] = []
        if job.horizon >= self._settings.iterations - 2:
            return commands
        for role, number in pending.items():
            if number:
                commands += self.ask_own(Change(ADDITION[role], number), Purpose.REPLACE, job)
        partitions, follows = job.membership.partitions, self._settings.followers and len(job.membership.servers) > 1
        if follows and not all(map(partitions.followers_of, range(len(partitions)))):
            commands += self.ask_own(Change(Operation.FOLLOW, 1), Purpose.FOLLOW, job)
        return commands

    def is_due(self, purpose: Purpose, now_s: float) -> bool:
        """Return whether the job may ask for a change of its own."""
        return self._retries[purpose].is_due(now_s)

    def _new(self, change: Change, purpose: Purpose, request_id: str, now_s: float) -> tuple[Plan, list[e.Command]]:
        plan = Plan(len(self.all) + 1, request_id, change, purpose=purpose)
        plan.reached_s[Phase.QUEUED] = now_s
        self.all[plan.plan_id] = plan
        asked = {"purpose": str(purpose), "request": request_id, "change": str(change)}
        return plan, [noted("asked", now_s, plan=plan.plan_id, **asked)]

    def _check(self, change: Change, job: Standing) -> tuple[Team, Team]:
        """Return the members that a change would add and remove; raise where it is refused."""
        iterations = self._settings.iterations
        if job.exports or job.completed >= iterations:
            raise JobFinishedError(f"{change} refused: the job has finished its {iterations} iterations")
        if job.membership is None:
            raise PlanError(f"{change} refused: the job is still starting")
        if job.horizon >= iterations - 1:
            raise JobFinishedError(f"{change} refused: the last iteration ({iterations - 1}) has been granted already")
        return resolve(after_plans(roster(job), self.open, self._settings), change, self._settings)[1:]

    def _dry_run(self, change: Change, job: Standing) -> str:
        coming, going = self._check(change, job)
        assert job.membership is not None
        added, removed = (", ".join(team.members) or "nobody" for team in (coming, going))
        who = f"{change}: adds {added}, removes {removed}"
        ahead = len(self.queue) + (self.driver is not None)
        if ahead:
            return f"{who}; {ahead} changes come first, so the moves are not known"
        return "\n".join([who, *plan_transfer(job.membership, coming, going).lines()])

    def cancel(self, plan_id: int) -> Plan | EpsError | None:
        """Return the plan that is to be aborted, or why it cannot be; None where it was cancelled before."""
        plan = self.all.get(plan_id)
        if plan is None:
            return PlanError(f"there is no plan {plan_id}; the job has plans 1 to {len(self.all)}")
        if plan.phase is Phase.ABORTED and plan.reason == CANCELLED:
            # The request is repeated where its answer was lost.
            return None
        if plan.phase in ENDED:
            return PlanError(f"plan {plan.plan_id} has ended already: {plan.phase}")
        if not plan.undecided:
            return PlanError(f"plan {plan.plan_id} is committed at clock {plan.commit_clock} and rolls forward")
        return plan

    def fire(self, job: Standing) -> list[e.Command]:
        """Ask for the changes whose clock has come."""
        commands: list[e.Command] = []
        while self.triggers and job.completed >= self.triggers[0].clock:
            trigger = self.triggers.pop(0)
            try:
                plan, asked = self.ask(trigger.change, Purpose.ASKED, job)
                commands += asked
            except EpsError as error:
                plan = Plan(len(self.all) + 1, "", trigger.change, reason=str(error))
                plan.reached_s[Phase.QUEUED] = job.now_s
                plan.enter(Phase.ABORTED, job.now_s)
                self.all[plan.plan_id] = plan
                commands.append(noted("aborted", job.now_s, plan=plan.plan_id, reason=str(error)))
            plan.asked_at = trigger.clock
        return commands

    # ---- the plan in flight

    def may_drain(self, now_s: float) -> bool:
        """Return whether a drain may begin now, be it in the place of the plan in flight."""
        return self.flight.committed is None and self.is_due(Purpose.DRAIN, now_s)

    def drain(self, names: Collection[MemberId], now_s: float) -> list[e.Command]:
        """Queue a plan that takes members away before all others."""
        plan, commands = self._new(Change(Operation.DRAIN, len(names), tuple(names)), Purpose.DRAIN, "", now_s)
        self.queue.insert(0, plan)
        return commands

    def propose(self, plan: Plan, job: Standing) -> list[e.Command]:
        """Begin with a plan; none is in flight.

        Raises
        ------
        PlanError
            It cannot happen any more.
        """
        commands = self.flight.propose(plan, job, self._settings)
        if plan in self.queue:
            self.queue.remove(plan)
        return commands

    def late(self, job: Standing) -> tuple[str, tuple[MemberId, ...]]:
        """Return why the plan in flight must be aborted for waiting, and the newcomers that it goes on without."""
        shrink = next((str(plan.change) for plan in self.queue if not plan.change.operation.adds), "")
        return self.flight.late(job, shrink, self._settings.iterations)

    def step(self, horizon: int, now_s: float) -> Stepped | None:
        """Move the plan in flight one phase on; None where something is missing, or there is none."""
        stepped = self.flight.step(horizon, now_s)
        if stepped is not None and stepped.released is not None and stepped.released.purpose in self._retries:
            self._retries[stepped.released.purpose] = self._retries[stepped.released.purpose].succeeded()
        return stepped

    def abort(self, plan: Plan, reason: str, now_s: float, *, failed: bool = True) -> list[e.Command]:
        """Abort a plan that is not committed; ``failed``: one of the job's own is tried again only after a pause."""
        plan.reason = reason
        if plan in self.queue:
            self.queue.remove(plan)
        plan.enter(Phase.ABORTED, now_s)
        retry = self._retries.get(plan.purpose)
        if retry is not None:
            self._retries[plan.purpose] = retry.failed(now_s) if failed else replace(retry, due_s=now_s)
        record = synced("aborted", now_s, plan=plan.plan_id, reason=reason)
        return [record, *self.flight.aborted(plan)]

    def validate(self) -> None:
        """Assert that one plan at a time changes the job, and that each is where its phase says."""
        live = [plan for plan in self.all.values() if plan.phase not in (*ENDED, Phase.QUEUED)]
        assert live == ([self.driver.plan] if self.driver is not None else []), "one plan changes the job at a time"
        assert self.queue == [plan for plan in self.all.values() if plan.phase is Phase.QUEUED]
        self.flight.validate()
