"""A simulated worker: ``WorkerState`` as it is, with a compute loop over integers."""

from __future__ import annotations

from eps.core import messages as m
from eps.core.reconfig import Phase
from eps.core.types import Role
from eps.core.worker_state import Work, WorkerState
from tests.sim.process import Outgoing, SimProcess
from tests.sim.wire import (
    PRIME,
    Pull,
    Pulled,
    Push,
    Pushed,
    Request,
    SplitCopy,
    Stale,
    Vanished,
    contribution,
    digest_of,
)


class SimWorker(SimProcess):
    """Pulls every partition, computes its active splits, pushes each partition, reports, goes on."""

    role = Role.WORKER
    state: WorkerState

    def on_named(self) -> None:
        self.state = WorkerState(self.name, self.job.settings)
        #: Split -> the plan that brought it; 0 where the job began with it.
        self.disk: dict[int, int] = {}
        self._closed: set[int] = set()
        #: Plan -> whether this worker leaves with it.
        self._releasing: dict[int, bool] = {}
        self._commits: dict[int, int] = {}
        self._work: Work | None = None
        #: Clock -> partition -> parameters read for it.
        self._values: dict[int, dict[int, int]] = {}
        self._digest = 0
        self._unanswered = 0
        self._unacked: dict[int, m.ClockReported] = {}

    # ---- orders

    def on_order(self, order: m.Order) -> None:
        match order:
            case m.UpdateLists(plan_id, _):
                self.report(m.ListsUpdated(self.name, plan_id))
            case m.UpdateMembership(plan_id, membership):
                self._commits[plan_id] = membership.from_clock
                if membership.version == 1:
                    self.disk.update(dict.fromkeys(membership.splits.active_on(self.name), 0))
                self.report(self.state.on_membership(membership))
            case m.GrantHorizon(_, completed, _):
                self.state.on_grant(order)
                for clock in [c for c in self._unacked if c < completed]:
                    del self._unacked[clock]
            case m.SendSplits(plan_id, transfers):
                for target in transfers:
                    assert target.item in self.disk, f"{self.name} shall send split {target.item}, which it lacks"
                    self.tell(target.address, SplitCopy(plan_id, target.item))
            case m.AbortPlan(plan_id):
                self._closed.add(plan_id)
                self.disk = {s: brought for s, brought in self.disk.items() if brought != plan_id}
            case m.ReleasePlan(plan_id, removed):
                self._releasing[plan_id] = self.name in removed
        self._release()
        self._advance()

    def _release(self) -> None:
        """Report the releases that have become true; a worker that leaves first finishes what it owes."""
        for plan_id, leaving in sorted(self._releasing.items()):
            if leaving or self.job.live_workers:
                clock, commit = self.state.clock, self._commits.get(plan_id, 0)
                past = self.state.finished or (clock is not None and clock >= commit)
                if not past or self._work is not None or (leaving and self._unacked):
                    continue
            del self._releasing[plan_id]
            self.report(m.PlanReleased(self.name, plan_id))

    def before_end(self, reason: str) -> None:
        if reason.startswith("removed"):
            assert self.state.left and not self._unacked and not self.outgoing, f"{self.name} ends too early"

    def on_tick(self) -> None:
        for report in self._unacked.values():
            self.report(report)

    def on_request(self, request: Request) -> None:
        body = request.body
        if not self.name or not isinstance(body, SplitCopy):
            return
        if body.plan_id not in self._closed:
            held = self.disk.get(body.split, body.plan_id)
            if held != body.plan_id:
                stale = held and self.job.master.plans[held].phase is Phase.ABORTED
                late = self.job.master.plans[body.plan_id].ended
                assert stale or late, f"{self.name} is sent split {body.split}, which it has from plan {held}"
            self.disk[body.split] = max(held, body.plan_id)
            self.report(m.SplitReceived(self.name, body.plan_id, body.split, 8, str(body.split)))

    # ---- the loop

    def _advance(self) -> None:
        if self._work is not None:
            return
        work = self.state.next_work()
        if work is None:
            return
        settings = self.job.settings
        assert work.splits and set(work.splits) <= set(self.disk), f"{self.name} lacks some of {work.splits}"
        assert work.clock <= self.job.master.horizon, "beyond the horizon"
        self.job.on_work(self.name, work)
        self._work = work
        if len(self._values.get(work.clock, ())) == settings.num_partitions:
            self.net.after(self.job.compute_s(), self._computed)
        else:
            self._pull(work.clock, work.min_clock)

    def _pull(self, clock: int, min_clock: int) -> None:
        self._values = {c: v for c, v in self._values.items() if self._work is not None and c == self._work.clock}
        self._values[clock] = {}
        for partition in range(self.job.settings.num_partitions):
            self._ask_owner(Pull(partition, min_clock), clock)

    def _ask_owner(self, body: Push | Pull, clock: int) -> None:
        route = self.state.route(clock)
        owner = route.partitions.owners[body.partition]

        def answered(reply: object) -> None:
            if isinstance(body, Pull):
                self._on_pulled(body, clock, reply)
            else:
                self._on_pushed(body, reply)

        self.ask(route.addresses[owner], body, answered)

    def rerouted(self, waiting: Outgoing, reply: object) -> bool:
        if not isinstance(reply, Stale | Vanished):
            return False
        self.job.count("rerouted")
        newest = self.state.newest
        waiting.address = newest.addresses[newest.partitions.owners[waiting.request.body.partition]]
        waiting.sent_s = self.net.now_s
        return True

    def _on_pulled(self, body: Pull, clock: int, reply: object) -> None:
        assert isinstance(reply, Pulled), f"{self.name}: {body} was answered {reply}"
        settings, work = self.job.settings, self._work
        assert work is not None
        if clock >= settings.iterations:
            bound = settings.iterations
        elif settings.staleness < 0:
            bound = 0
        else:
            bound = clock - settings.staleness
        assert reply.oldest >= bound, f"{self.name} reads clock {reply.oldest} at clock {clock}"
        self._values[clock][body.partition] = reply.value
        if clock > work.clock:
            self._answered()
        elif len(self._values[clock]) == settings.num_partitions:
            self.net.after(self.job.compute_s(), self._computed)

    def _computed(self) -> None:
        work = self._work
        if not self.alive or work is None:
            return
        settings = self.job.settings
        if work.clock >= settings.iterations:
            self._say(work, tuple(m.SplitResult(s, 1, 0.5, (1.0,)) for s in work.splits))
            self._done()
            return
        self._unanswered = settings.num_partitions
        self._digest = digest_of(self._values[work.clock])
        if self.job.live_workers:
            self._say(work, tuple(m.SplitResult(s, 1, 1.0) for s in work.splits))
        for partition in range(settings.num_partitions):
            shares = {s: self._share(s, partition) for s in work.splits}
            if len(shares) > 1 and self.job.chance(0.03):
                # As after a crash: a part of the sum may be there already when the whole arrives.
                first = work.splits[0]
                self._unanswered += 1
                self._push(Push(partition, work.clock, (first,), shares[first]))
            self._push(Push(partition, work.clock, work.splits, sum(shares.values()) % PRIME))
        following = work.clock + 1
        if self.job.live_workers and following <= self.state.horizon:
            if self.state.active_at(following) == work.splits:
                self._unanswered += settings.num_partitions
                self._pull(following, settings.min_clock_to_read(following))

    def _share(self, split: int, partition: int) -> int:
        assert self._work is not None
        return contribution(self._digest, self._work.clock, split, partition)

    def _push(self, body: Push) -> None:
        self._ask_owner(body, body.clock)

    def _on_pushed(self, body: Push, reply: object) -> None:
        assert isinstance(reply, Pushed), f"{self.name}: {body} was answered {reply}"
        assert self._work is not None and body.clock == self._work.clock
        if not reply.accepted:
            self.job.count("partial")
            for split in sorted(set(body.splits) - set(reply.have)):
                self._unanswered += 1
                self._push(Push(body.partition, body.clock, (split,), self._share(split, body.partition)))
        self._answered()

    def _answered(self) -> None:
        self._unanswered -= 1
        if self._unanswered == 0:
            work = self._work
            assert work is not None
            if not self.job.live_workers:
                self._say(work, tuple(m.SplitResult(s, 1, 1.0) for s in work.splits))
            self._done()

    def _say(self, work: Work, results: tuple[m.SplitResult, ...]) -> None:
        report = m.ClockReported(self.name, work.clock, results)
        self._unacked[work.clock] = report
        self.report(report)

    def _done(self) -> None:
        assert self._work is not None
        clock, self._work = self._work.clock, None
        self.state.done(clock)
        self._release()
        self._advance()
