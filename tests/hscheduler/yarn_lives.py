"""A small YARN whose jobs start, change their sizes and end, second by second, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eps.core.plans import REGAIN_PATIENCE_S
from eps.core.reconfig import Change, Operation, Phase, Plan, Purpose
from eps.core.types import Team
from eps.errors import PlanError, UnknownMemberError
from eps.master.records import change_entry
from hscheduler.core.resources import Role
from hscheduler.yarn.snapshot import Application
from tests.hscheduler.yarn_web import MEMORY_MB, App, FakeJob, FakeMasters, FakeWeb
from tests.hscheduler.yarn_world import container

ROLES = (Role.WORKER, Role.SERVER)
ITERATIONS_A_SECOND = 10


class LivingJob(FakeJob):
    """A job whose plans are those of a real job master, and take a second once they have their containers."""

    def __init__(self, number: int, workers: int, servers: int, ends_s: float = float("inf")) -> None:
        size = f"{MEMORY_MB}x1"
        tags = f"eps.workers={workers},eps.servers={servers},eps.worker={size},eps.server={size}"
        super().__init__(App(number, master="", asks=1, tags=tags), clock=0, state="starting")
        self.had = {Role.WORKER: workers, Role.SERVER: servers}
        self.ends_s = ends_s
        self.now_s = 0.0
        self.plans: list[Plan] = []
        #: Containers that it has let go of, and YARN has not heard of yet.
        self.gone: list[str] = []
        #: Those of the plan in flight: newcomer -> container, empty before it is granted.
        self.coming: dict[str, str] = {}
        #: When one of these was granted last.
        self._granted_s = 0.0
        self._requests: dict[str, Plan] = {}
        self._containers = 1
        self._members = dict.fromkeys(ROLES, 0)

    def count(self, role: Role) -> int:
        """Return how many members of a role there are."""
        return sum(name.startswith(role) for name in self.names.values())

    @property
    def lent(self) -> dict[Role, int]:
        """What it is still to have again."""
        found = dict.fromkeys(ROLES, 0)
        for plan in self.plans:
            role = Role(plan.change.operation.role)
            if plan.phase is Phase.RELEASED:
                went = len(plan.removed) if plan.purpose is Purpose.LEND else 0
                found[role] = max(0, found[role] + went - len(plan.added))
        return found

    def status(self) -> dict[str, Any]:
        """Return its status."""
        told = super().status()
        for member, name in self.coming.items():
            told["members"].append({"name": member, "role": member.partition("-")[0], "granted": name})
        plans = [(plan, change_entry(plan, [], self.now_s)) for plan in self.plans]
        told["plan"] = next((e for p, e in plans if not p.ended and p.phase is not Phase.QUEUED), None)
        told["queued"] = [entry for plan, entry in plans if plan.phase is Phase.QUEUED]
        told["changes"] = [entry for plan, entry in plans if plan.ended]
        told["lent"] = {str(role): number for role, number in self.lent.items()}
        return told

    # ---- what it is asked

    def change(
        self,
        operation: Operation,
        names: int | Sequence[str],
        *,
        wait: bool,
        request_id: str = "",
        for_queue: bool = False,
    ) -> dict[str, Any]:
        """See :class:`eps.job.client.Job`."""
        assert not wait
        if self.refusal is not None:
            raise self.refusal
        named = () if isinstance(names, int) else tuple(names)
        change = Change(operation, names if isinstance(names, int) else len(named), named)
        for name in named:
            if name not in self.names.values():
                raise UnknownMemberError(f"{name} is not a {operation.role} of the job")
        plan = self._requests.get(request_id)
        if plan is None:
            purpose = Purpose.LEND if for_queue else Purpose.ASKED
            plan = Plan(len(self.plans) + 1, request_id, change, purpose=purpose)
            plan.reached_s[Phase.QUEUED] = self.now_s
            self.plans.append(plan)
            if request_id:
                self._requests[request_id] = plan
        assert plan.change == change, f"{request_id} asked for {plan.change}, not for {change}"
        self.asked.append((str(operation), change.count))
        return change_entry(plan, [], self.now_s)

    def cancel(self, plan_id: int) -> int:
        """See :class:`eps.job.client.Job`."""
        plan = self.plans[plan_id - 1]
        if not plan.undecided:
            raise PlanError(f"plan {plan_id} is committed")
        self.asked.append(("cancel", plan_id))
        self._abort(plan, "cancelled")
        return plan_id

    # ---- what becomes of it

    def granted(self, node: str) -> None:
        """Have a container that it asks for."""
        self.app.asks -= 1
        self._containers += 1
        if not self.app.master:
            self.app.master = node
            return
        name = container(self.app.number, self._containers)
        self.app.members[name] = node
        if self.state == "starting":
            role = Role.SERVER if self.count(Role.SERVER) < self.had[Role.SERVER] else Role.WORKER
            self.names[name] = self._new(role)
        else:
            self.coming[next(member for member, granted in self.coming.items() if not granted)] = name
            self._granted_s = self.now_s

    def step(self, now_s: float) -> None:
        """Let a second pass."""
        self.now_s = now_s
        for name in self.gone:
            del self.app.members[name]
        self.gone = []
        if not self.app.master:
            return
        if self.state == "starting":
            if not self.app.members and not self.app.asks:
                self.app.asks = sum(self.had.values())
            elif not self.app.asks:
                self.state = "running"
            return
        self.clock += ITERATIONS_A_SECOND
        self.app.over = now_s >= self.ends_s
        plan = next((plan for plan in self.plans if not plan.ended), None)
        if plan is not None:
            self._drive(plan)

    def _drive(self, plan: Plan) -> None:
        role, adds = Role(plan.change.operation.role), plan.change.operation.adds
        if plan.phase is Phase.QUEUED:
            plan.enter(Phase.PROPOSED, self.now_s)
            if adds:
                plan.coming = Team.of(plan.change.operation.role, (self._new(role) for _ in range(plan.change.count)))
                self.coming = dict.fromkeys(plan.added, "")
                self.app.asks = len(plan.added)
            else:
                plan.going = Team.of(plan.change.operation.role, plan.change.names)
        elif adds and not all(self.coming.values()):
            if self.now_s - max(plan.reached_s[Phase.PROPOSED], self._granted_s) >= REGAIN_PATIENCE_S:
                self._take_back(plan)
        else:
            self._finish(plan)

    def _take_back(self, plan: Plan) -> None:
        """Go on with those that were granted; without any, not at all."""
        granted = {member: name for member, name in self.coming.items() if name}
        if not granted:
            self._abort(plan, "not granted in time")
            return
        self.app.asks, self.coming, plan.coming = 0, granted, Team.of(plan.change.operation.role, granted)

    def _finish(self, plan: Plan) -> None:
        following = (Phase.PREPARED, Phase.LISTS_UPDATED, Phase.COPIED, Phase.COMMITTED, Phase.SWITCHED, Phase.RELEASED)
        for phase in following:
            plan.enter(phase, self.now_s)
        self.names.update({name: member for member, name in self.coming.items()})
        self.coming = {}
        self.gone += [name for name, member in self.names.items() if member in plan.removed]
        for name in self.gone:
            del self.names[name]

    def _abort(self, plan: Plan, reason: str) -> None:
        if plan.phase is not Phase.QUEUED and plan.change.operation.adds:
            self.app.asks = 0
            self.gone += [name for name in self.coming.values() if name]
            self.coming = {}
        plan.reason = reason
        plan.enter(Phase.ABORTED, self.now_s)

    def _new(self, role: Role) -> str:
        self._members[role] += 1
        return f"{role}-{self._members[role]}"


class LivingYarn(FakeMasters):
    """Grants what is asked for as it becomes free, by priority, then by age; and the masters of its jobs."""

    def __init__(self, nodes: int = 2, cores: int = 4) -> None:
        super().__init__()
        self.web = FakeWeb(nodes=[f"n{number}:1" for number in range(1, nodes + 1)], cores=cores)
        self.now_s = 0.0
        #: Whether it grants anything just now.
        self.grants = True
        self.lives: list[LivingJob] = []

    def submit(self, workers: int, servers: int, ends_s: float = float("inf")) -> LivingJob:
        """Have one more job."""
        job = LivingJob(len(self.web.apps) + 1, workers, servers, ends_s)
        self.web.apps.append(job.app)
        self.lives.append(job)
        self.jobs[job.app.id] = job
        return job

    def occupy(self, cores: int) -> App | None:
        """Have an application of another type take what is free; None where that is too little."""
        free = [node for node in self.web.nodes for _ in range(self.web.free(node))]
        if len(free) < cores:
            return None
        number = len(self.web.apps) + 1
        app = App(number, kind="SPARK", master=free[0], tags="")
        app.members = {container(number, k + 2): node for k, node in enumerate(free[1:cores])}
        self.web.apps.append(app)
        return app

    @property
    def free(self) -> int:
        """Return the cores that are free."""
        return sum(self.web.free(node) for node in self.web.nodes)

    def there(self) -> list[LivingJob]:
        """Return the jobs that are not over."""
        return [job for job in self.lives if not job.app.over]

    def running(self) -> list[LivingJob]:
        """Return the jobs that have started and are not over."""
        return [job for job in self.there() if job.state == "running"]

    def step(self) -> None:
        """Let a second pass."""
        self.now_s += 1.0
        for job in self.there():
            job.step(self.now_s)
        for job in sorted(self.there(), key=lambda job: (-job.app.priority, job.app.number)):
            while self.grants and job.app.asks:
                node = next((node for node in self.web.nodes if self.web.free(node)), None)
                if node is None or (self.web.most is not None and self.web.used() >= self.web.most):
                    return
                job.granted(node)

    def job(self, application: Application) -> FakeJob:
        """Return a job that is there."""
        job = super().job(application)
        assert not job.app.over
        return job

    def check(self) -> None:
        """Assert that no job has, or asks for, more than it had, and is owed what it lacks."""
        for job in self.running():
            for role in ROLES:
                has, comes = job.count(role), sum(name.startswith(role) for name in job.coming)
                assert 1 <= has and has + comes <= job.had[role], job.app.id
                if all(plan.ended for plan in job.plans):
                    assert job.lent[role] == job.had[role] - has, job.app.id
