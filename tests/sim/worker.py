"""A simulated worker: ``WorkerState`` as it is, with a compute loop over integers."""

from __future__ import annotations

from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.types import Role
from eps.core.worker_state import Work, WorkerState
from tests.sim.process import SimProcess
from tests.sim.wire import PRIME, Pull, Pulled, Push, Pushed, contribution, digest_of

#: A push or a pull, and the clock whose membership routes it.
Part = tuple[Push | Pull, int]


class SimWorker(SimProcess):
    """Pulls every partition, computes its active splits, pushes each partition, reports, goes on."""

    role = Role.WORKER
    state: WorkerState

    def on_named(self) -> None:
        self.state = WorkerState(self.name, self.job.settings)
        #: Split -> the plan that brought it; 0 where the job began with it.
        self.disk: dict[int, int] = {}
        #: Plan -> whether this worker leaves with it.
        self._releasing: dict[int, bool] = {}
        self._commits: dict[int, int] = {}
        self._work: Work | None = None
        #: Clock -> partition -> parameters read for it.
        self._values: dict[int, dict[int, int]] = {}
        self._digest = 0
        self._unanswered = 0

    # ---- orders

    def on_order(self, order: m.Order) -> None:
        match order:
            case m.UpdateLists(plan_id, _):
                self.report(m.ListsUpdated(self.name, plan_id))
            case m.UpdateMembership(plan_id, membership):
                self._commits[plan_id] = membership.from_clock
                if membership.version == 1:
                    self.disk.update(dict.fromkeys(membership.splits.active_on(self.name), 0))
                self.on_committed(plan_id)
                self.report(self.state.on_membership(membership))
            case m.GrantHorizon(_, completed, _):
                self.state.on_grant(order)
                self.on_recorded(completed)
            case m.SendSplits(plan_id, transfers):
                for target in transfers:
                    assert target.item in self.disk, f"{self.name} shall send split {target.item}, which it lacks"
                    self.send_split(plan_id, target)
            case m.LoadSplits(plan_id, splits):
                for split in splits:
                    assert split in self.disk, f"{self.name} shall load split {split}, which it lacks"
                    self.load_split(plan_id, split)
            case m.AbortPlan(plan_id):
                self.on_aborted(plan_id)
            case m.ReleasePlan(plan_id, removed):
                self._releasing[plan_id] = self.name in removed
        self._release()
        self._advance()

    def on_committed(self, plan_id: int) -> None:
        """Keep what a plan brought."""

    def on_aborted(self, plan_id: int) -> None:
        """Forget what a plan brought."""
        raise NotImplementedError

    def on_recorded(self, completed: int) -> None:
        """The master has recorded every clock before ``completed``."""

    def send_split(self, plan_id: int, target: m.Target) -> None:
        raise NotImplementedError

    def load_split(self, plan_id: int, split: int) -> None:
        raise NotImplementedError

    def owes(self) -> bool:
        """Return whether the master must still hear something before this worker may leave."""
        return False

    def _release(self) -> None:
        """Report the releases that have become true; a worker that leaves first finishes what it owes."""
        for plan_id, leaving in sorted(self._releasing.items()):
            if leaving or self.job.live_workers:
                clock, commit = self.state.clock, self._commits.get(plan_id, 0)
                past = self.state.finished or (clock is not None and clock >= commit)
                if not past or self._work is not None or (leaving and self.owes()):
                    continue
            del self._releasing[plan_id]
            self.report(m.PlanReleased(self.name, plan_id))

    def before_end(self, reason: str) -> None:
        if reason.startswith("removed"):
            assert self.state.left and self._work is None and not self.owes(), f"{self.name} ends too early"

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
        self.between_exchanges()
        if len(self._values.get(work.clock, ())) == settings.num_partitions:
            self.net.after(self.job.compute_s(), self._computed)
        else:
            self.exchange(self._pulls(work.clock, work.min_clock))

    def between_exchanges(self) -> None:
        """No message of this worker is under way."""

    def exchange(self, parts: list[Part]) -> None:
        """Send parts to their owners; :meth:`on_answer` is called once with the answer to each."""
        raise NotImplementedError

    def route(self, clock: int) -> Membership:
        return self.state.route(clock)

    def on_answer(self, body: Push | Pull, clock: int, reply: object) -> None:
        if isinstance(body, Pull):
            self._on_pulled(body, clock, reply)
        else:
            self._on_pushed(body, reply)

    def _pulls(self, clock: int, min_clock: int) -> list[Part]:
        self._values = {c: v for c, v in self._values.items() if self._work is not None and c == self._work.clock}
        self._values[clock] = {}
        return [(Pull(p, min_clock), clock) for p in range(self.job.settings.num_partitions)]

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
            self.say(m.ClockReported(self.name, work.clock, self._results(0.5, (1.0,))))
            self._done()
            return
        self._digest = digest_of(self._values[work.clock])
        if self.job.live_workers:
            self.say(m.ClockReported(self.name, work.clock, self._results(1.0)))
        parts: list[Part] = []
        for partition in range(settings.num_partitions):
            shares = {s: self._share(s, partition) for s in work.splits}
            if len(shares) > 1 and self.job.chance(0.03):
                # As after a crash: a part of the sum may be there already when the whole arrives.
                first = work.splits[0]
                self._unanswered += 1
                self.exchange([(Push(partition, work.clock, (first,), shares[first]), work.clock)])
            parts.append((Push(partition, work.clock, work.splits, sum(shares.values()) % PRIME), work.clock))
        following = work.clock + 1
        if self.job.live_workers and following <= self.state.horizon:
            if self.state.active_at(following) == work.splits:
                parts += self._pulls(following, settings.min_clock_to_read(following))
        self._unanswered += len(parts)
        self.exchange(parts)

    def _results(self, loss: float, evaluation: tuple[float, ...] = ()) -> tuple[m.SplitResult, ...]:
        assert self._work is not None
        return tuple(m.SplitResult(s, 1, loss, evaluation) for s in self._work.splits)

    def _share(self, split: int, partition: int) -> int:
        assert self._work is not None
        return contribution(self._digest, self._work.clock, split, partition)

    def _on_pushed(self, body: Push, reply: object) -> None:
        assert isinstance(reply, Pushed), f"{self.name}: {body} was answered {reply}"
        assert self._work is not None and body.clock == self._work.clock
        if not reply.accepted:
            self.job.count("partial")
            missing = sorted(set(body.splits) - set(reply.have))
            singles = [Push(body.partition, body.clock, (s,), self._share(s, body.partition)) for s in missing]
            self._unanswered += len(singles)
            self.exchange([(single, body.clock) for single in singles])
        self._answered()

    def _answered(self) -> None:
        self._unanswered -= 1
        if self._unanswered == 0:
            work = self._work
            assert work is not None
            if not self.job.live_workers:
                self.say(m.ClockReported(self.name, work.clock, self._results(1.0)))
            self._done()

    def say(self, report: m.ClockReported) -> None:
        self.report(report)

    def _done(self) -> None:
        assert self._work is not None
        work, self._work = self._work, None
        self.state.computed(work.clock, work.splits)
        self.state.done(work.clock)
        self._release()
        self._advance()
