"""A simulated worker: ``WorkerState`` as it is, with a compute loop over integers."""

from __future__ import annotations

from dataclasses import dataclass

from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.types import Role
from eps.core.worker_state import Work, WorkerState
from tests.sim.process import SimProcess
from tests.sim.wire import PRIME, Passed, Pull, Pulled, Push, Pushed, contribution, digest_of

#: A push or a pull, and the clock whose membership routes it.
Part = tuple[Push | Pull, int]


@dataclass
class Kept:
    """What was computed, until nobody can lose it any more."""

    work: Work
    digest: int
    pushed: bool = False

    @property
    def clock(self) -> int:
        return self.work.clock

    @property
    def splits(self) -> tuple[int, ...]:
        return self.work.splits

    def share(self, split: int, partition: int) -> int:
        return contribution(self.digest, self.clock, split, partition)


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
        #: Plan -> first clock under its membership.
        self._commits: dict[int, int] = {}
        #: Plans that are decided, as far as this worker has been told: nothing is sent for them any more.
        self._closed: set[int] = set()
        self._work: Work | None = None
        #: Clock -> partition -> parameters read for it.
        self._values: dict[int, dict[int, int]] = {}
        self._unanswered = 0
        self._kept: list[Kept] = []
        #: Members were lost, and it is not known yet who takes over.
        self._frozen = self._interrupted = self._confirming = self._following = self._pulling = False
        #: Counts the exchanges that were begun; answers to earlier ones do not count.
        self._attempt = 0

    # ---- orders

    def on_order(self, order: m.Order) -> None:
        match order:
            case m.UpdateLists(plan_id, _):
                self.report(m.ListsUpdated(self.name, plan_id))
            case m.UpdateMembership(plan_id, membership):
                self._closed.add(plan_id)
                if membership.version == 1:
                    self.disk.update(dict.fromkeys(membership.splits.active_on(self.name), 0))
                self.on_committed(plan_id)
                self.report(self.take_in(membership))
                if membership.version == self.state.memberships.version:
                    self._commits[plan_id] = membership.from_clock
            case m.TakeInventory(recovery):
                if recovery > self.state.memberships.recovery:
                    self._frozen = True
                    self._interrupt()
                self.report(m.Inventory(self.name, recovery, self.state.read_clock))
            case m.GrantHorizon(_, completed, _):
                self.state.on_grant(order)
                self.on_recorded(completed)
            case m.SendSplits(plan_id, transfers):
                for target in transfers if plan_id not in self._closed else ():
                    assert target.item in self.disk, f"{self.name} shall send split {target.item}, which it lacks"
                    self.send_split(plan_id, target)
            case m.LoadSplits(plan_id, splits):
                for split in splits:
                    assert split in self.disk, f"{self.name} shall load split {split}, which it lacks"
                    self.load_split(plan_id, split)
            case m.AbortPlan(plan_id):
                self._closed.add(plan_id)
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
                clock = self.state.clock
                commit = self._commits.get(plan_id, clock or 0)
                past = self.state.finished or (clock is not None and clock >= commit)
                busy = self._work is not None and (leaving or not self._is_beyond(commit))
                if not past or busy or self._must_confirm() or (leaving and self.owes()):
                    continue
            del self._releasing[plan_id]
            self._commits.pop(plan_id, None)
            self.report(m.PlanReleased(self.name, plan_id))

    def _is_beyond(self, commit: int) -> bool:
        """Return whether what is under way has nothing to do with the clocks before a commit any more."""
        stays = self.state.clock is not None and not self.state.left and not self._interrupted
        return stays and all(kept.pushed or kept.clock >= commit for kept in self._kept)

    def before_end(self, reason: str) -> None:
        if reason.startswith("removed"):
            assert self.state.left and self._work is None and not self.owes(), f"{self.name} ends too early"

    # ---- members are lost

    def take_in(self, membership: Membership) -> m.MembershipAcked:
        incarnation, version = self.state.memberships.incarnation, self.state.memberships.version
        acked = self.state.on_membership(membership)
        if membership.takes_over and self.state.memberships.version > version:
            # A lost worker's splits are loaded again where there is no copy; no plan that ends takes them away again.
            self.disk.update(dict.fromkeys(membership.splits.active_on(self.name), 0))
            self._frozen = False
            self._interrupt()
            for kept in self._kept:
                kept.pushed = False
        if self.state.memberships.incarnation > incarnation:
            self._kept, self._values = [], {}
        # Once: what is said again after the worker's release would keep it from leaving.
        for kept in self._kept if self.state.memberships.version > version and not self.job.live_workers else ():
            # It would have reported when all was pushed, and may have nothing left to push now.
            self.say(self._report(kept.work, 1.0))
        return acked

    def _interrupt(self) -> None:
        """Whatever is under way begins anew; what was computed is kept."""
        self._interrupted = True
        self._attempt += 1
        self._work = None
        self._unanswered = 0
        self._pulling = self._confirming = False

    # ---- the loop

    def _advance(self) -> None:
        if self._work is not None or self._frozen:
            return
        if self._must_confirm():
            self._confirm()
            return
        work = self.state.next_work()
        if work is None and self._kept and self._interrupted and not (self.state.left or self.state.finished):
            work = Work(self._kept[-1].clock, (), 0)
        if work is None:
            return
        self._interrupted = False
        self._work = work
        self.between_exchanges()
        if not work.splits:
            self._push()
            return
        settings = self.job.settings
        assert set(work.splits) <= set(self.disk), f"{self.name} lacks some of {work.splits}"
        assert work.clock <= self.state.horizon, "beyond what it was granted"
        if self.state.memberships.incarnation == self.job.incarnation:
            # Of an earlier one, a worker that leaves may not have heard that the job has gone back.
            assert work.clock <= self.job.horizon, "beyond the horizon"
        self.job.on_work(self.name, work, self.state.memberships.incarnation)
        if len(self._values.get(work.clock, ())) == settings.num_partitions:
            self._compute_later()
        else:
            self._pulling = True
            parts = self._unpushed(work.clock) + self._pulls(work.clock, work.min_clock)
            self._unanswered = len(parts)
            self.exchange(parts)

    def _compute_later(self) -> None:
        attempt = self._attempt
        self.net.after(self.job.compute_s(), lambda: self._computed() if attempt == self._attempt else None)

    def _must_confirm(self) -> bool:
        """A worker that leaves is needed until nobody can lose what it pushed."""
        leaves = self.state.clock is not None and self.state.left and not self.state.finished
        return leaves and bool(self._kept) and self.job.settings.followers > 0

    def _confirm(self) -> None:
        clock = self._kept[-1].clock + 1
        self._work = Work(clock, (), clock)
        self._interrupted = False
        parts = self._unpushed(clock)
        parts += self._pulls(clock, clock)
        self._unanswered = len(parts)
        self._confirming = True
        self.exchange(parts)

    def _settle(self, clock: int) -> None:
        self.state.read_clock = max(self.state.read_clock, clock)
        self._kept = [kept for kept in self._kept if kept.clock >= clock]

    def between_exchanges(self) -> None:
        """No message of this worker is under way."""

    def exchange(self, parts: list[Part]) -> None:
        """Send parts to their owners; :meth:`on_answer` is called once with the answer to each."""
        raise NotImplementedError

    def route(self, clock: int) -> Membership:
        return self.state.memberships.route(clock)

    def on_answer(self, body: Push | Pull, clock: int, reply: object, attempt: int) -> None:
        if attempt != self._attempt:
            return
        if isinstance(reply, Passed) and self._confirming:
            # An answer got lost, and the others went on without the one that leaves.
            self._interrupt()
            self._interrupted = False
            self._settle(clock)
            self._release()
        elif isinstance(reply, Passed):
            assert self.job.taken_over
            self._skip()
        elif isinstance(body, Pull):
            self._on_pulled(body, clock, reply)
        else:
            self._on_pushed(body, reply)

    def _pulls(self, clock: int, min_clock: int) -> list[Part]:
        self._values = {c: v for c, v in self._values.items() if self._work is not None and c == self._work.clock}
        self._values[clock] = {}
        return [
            (Pull(p, min_clock, self.state.memberships.incarnation), clock)
            for p in range(self.job.settings.num_partitions)
        ]

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
        self._answered()

    def _computed(self) -> None:
        work = self._work
        if not self.alive or work is None:
            return
        if work.clock >= self.job.settings.iterations:
            self.say(self._report(work, 0.5, (1.0,)))
            self._done(work)
            return
        self._kept.append(Kept(work, digest_of(self._values[work.clock])))
        self.state.computed(work.clock, work.splits)
        if self.job.live_workers:
            self.say(self._report(work, 1.0))
        if self.state.due_at(work.clock):
            self._work = None
            self._advance()
        else:
            self._push()

    def _unpushed(self, up_to: int) -> list[Part]:
        parts: list[Part] = []
        for kept in self._kept:
            if kept.pushed or kept.clock > up_to:
                continue
            for partition in range(self.job.settings.num_partitions):
                shares = {s: kept.share(s, partition) for s in kept.splits}
                if len(shares) > 1 and self.job.chance(0.03):
                    # As after a crash: a part of the sum may be there already when the whole arrives.
                    first = kept.splits[0]
                    parts.append(
                        (
                            Push(partition, kept.clock, (first,), shares[first], self.state.memberships.incarnation),
                            kept.clock,
                        )
                    )
                total = sum(shares.values()) % PRIME
                parts.append(
                    (Push(partition, kept.clock, kept.splits, total, self.state.memberships.incarnation), kept.clock)
                )
        return parts

    def _push(self) -> None:
        work, settings = self._work, self.job.settings
        assert work is not None
        parts = self._unpushed(work.clock)
        following = work.clock + 1
        self._following = False
        if self.job.live_workers and following <= self.state.horizon:
            if self.state.active_at(following) == self.state.active_at(work.clock):
                parts += self._pulls(following, settings.min_clock_to_read(following))
                self._following = True
        self._unanswered = len(parts)
        if parts:
            self.exchange(parts)
        else:
            self._unanswered = 1
            self._answered()

    def _skip(self) -> None:
        """A lost worker had contributed what was to be computed."""
        self.job.count("passed")
        work = self._work
        assert work is not None
        self._interrupt()
        self._interrupted = False
        self.state.computed(work.clock, work.splits)
        self._kept = [kept for kept in self._kept if kept.clock > work.clock]
        self._done(work)

    def _report(self, work: Work, loss: float, evaluation: tuple[float, ...] = ()) -> m.ClockReported:
        results = tuple(m.SplitResult(s, 1, loss, evaluation) for s in work.splits)
        return m.ClockReported(self.name, work.clock, results, self.state.memberships.incarnation)

    def _on_pushed(self, body: Push, reply: object) -> None:
        assert isinstance(reply, Pushed), f"{self.name}: {body} was answered {reply}"
        if not reply.accepted:
            self.job.count("partial")
            missing = sorted(set(body.splits) - set(reply.have))
            kept = next(k for k in self._kept if k.clock == body.clock and set(body.splits) <= set(k.splits))
            singles = [
                Push(body.partition, body.clock, (s,), kept.share(s, body.partition), body.incarnation) for s in missing
            ]
            self._unanswered += len(singles)
            self.exchange([(single, body.clock) for single in singles])
        self._answered()

    def _answered(self) -> None:
        self._unanswered -= 1
        if self._unanswered > 0:
            return
        work = self._work
        assert work is not None
        for kept in self._kept:
            kept.pushed |= kept.clock <= work.clock
        if not self.job.settings.bsp:
            self._kept = [kept for kept in self._kept if not kept.pushed]
        if self._pulling:
            self._pulling = False
            self._settle(work.clock)
            self._compute_later()
            return
        if self._confirming:
            self._confirming = False
            self._settle(work.clock)
            self._work = None
        else:
            if not self.job.live_workers and work.splits:
                self.say(self._report(work, 1.0))
            if self._following:
                self._settle(work.clock + 1)
            self._done(work)
            return
        self._release()
        self._advance()

    def say(self, report: m.ClockReported) -> None:
        self.report(report)

    def _done(self, work: Work) -> None:
        self._work = None
        if work.clock >= self.job.settings.iterations:
            self.state.computed(work.clock, work.splits)
        if self.state.clock == work.clock:
            self.state.done(work.clock)
        self._release()
        self._advance()
