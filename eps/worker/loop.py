"""The training loop of a worker: wait for the horizon, pull, compute, push, report.

The loop's thread owns the arrays; the session's thread only changes the pure state, under one condition.

Source: EPS §2.2 Fig. 1b (six steps), §3.1.4 (active and inactive dataset), Figs 7, 8 and 11.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import numpy as np

from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.types import Address, MemberId, Role
from eps.core.worker_state import Work, WorkerState
from eps.errors import DeadlineError, ProtocolError
from eps.net.arrays.api import Van
from eps.net.arrays.memory import give_back
from eps.net.messages.exchange import PullAnswer, PullPart, PushAnswer, PushPart
from eps.spec.runtime import Runtime
from eps.worker.compute import ActiveSet, ClockWork, Computation, Parameters, compute, measure, pull_part
from eps.worker.datasets import Datasets
from eps.worker.exchanges import Exchanges, Passed, TakenOver
from eps.worker.kept import Kept
from eps.worker.lent import lent_whole

logger = logging.getLogger(__name__)

#: How long a worker waits for its master to grant the next clock.
HORIZON_DEADLINE_S = 3600.0

#: Closer to its horizon than this, a worker's reports do not linger.
NEAR_HORIZON_CLOCKS = 3


class Reporter(Protocol):
    """Says something to the job master; what can wait may be sent together with what follows."""

    def __call__(self, report: m.Report, *, can_wait: bool = False) -> None:
        """Queue ``report``; return at once."""


class TrainingLoop:
    """Computes the clocks that a worker owes."""

    def __init__(
        self,
        runtime: Runtime,
        name: MemberId,
        van: Van,
        datasets: Datasets,
        report: Reporter,
    ) -> None:
        self._runtime = runtime
        self.state = WorkerState(name, runtime.settings)
        self._datasets = datasets
        self._report = report
        self._changed = threading.Condition()
        self._stopped = False
        self._active: ActiveSet | None = None
        self._warm = False
        self._van = van
        self._exchanges = Exchanges(
            van,
            self._keys_of,
            self._on_refused,
            runtime.spec.exchange_timeout_s,
            runtime.lean,
            runtime.longest_partition,
            runtime.spec.master_timeout_s,
        )
        self._connected_version = 0
        #: Partition -> its clock as last received (EPS Fig. 1b step 3).
        self._partition_clocks: dict[int, int] = {}
        self._releases: list[int] = []
        #: No exchange is under way.
        self._idle = True
        #: Oldest first; all of one clock under BSP.
        self._kept: list[Kept] = []
        #: Members were lost, and it is not known yet who takes over: nothing is sent, and nothing that comes counts.
        self._frozen = False
        #: What is under way was routed by memberships that do not hold any more.
        self._interrupted = False
        #: Parameters of the next clock, where the last exchange brought them, and what was computed with the first.
        self._ahead: tuple[Parameters, Computation] | None = None
        #: The same while the exchange that brings them is under way, or was interrupted.
        self._coming: tuple[Parameters, Computation] | None = None

    # ---- the session's thread

    def on_membership(self, plan_id: int, membership: Membership) -> m.MembershipAcked:
        """Take a membership in."""
        with self._changed:
            acked = self._take_in(membership)
            self.state.note_commit(plan_id, membership)
            self._changed.notify_all()
        return acked

    def _take_in(self, membership: Membership) -> m.MembershipAcked:
        """Take a membership in; called with the condition held."""
        incarnation, version = self.state.incarnation, self.state.version
        routes = {kept.done.clock: self.state.route(kept.done.clock).partitions.owners for kept in self._kept}
        acked = self.state.on_membership(membership)
        if membership.takes_over and self.state.version > version:
            self._frozen, self._interrupted = False, True
            owners = membership.partitions.owners
            for kept in self._kept:
                kept.pushed = False
                # Whoever owns a partition still has what was pushed to it.
                before = routes[kept.done.clock]
                kept.acked = {p for p in kept.acked if before[p] == owners[p]}
                # Another server may count the changes of a partition differently.
                kept.parameters.versions.clear()
            if self._coming is not None:
                self._coming[0].versions.clear()
        if self.state.incarnation > incarnation:
            self._kept.clear()
            self._ahead = self._coming = None
        return acked

    def inventory(self, recovery: int) -> m.Inventory:
        """Stop what is under way, because members were lost, and say how far this worker is."""
        with self._changed:
            if recovery > self.state.recovery:
                self._frozen = self._interrupted = True
            return m.Inventory(self.state.name, recovery, self.state.read_clock)

    def prepare(self, servers: Sequence[Address]) -> None:
        """Connect to the servers that there are, for a worker that joins a job that trains."""
        self._exchanges.prepare(servers)

    def on_lists(self, added: Sequence[m.Newcomer]) -> None:
        """Connect to the servers that a plan is about to add, so that no iteration waits for it."""
        self._exchanges.prepare(entry.address for entry in added if entry.name.startswith(Role.SERVER.value))

    def _on_refused(self, membership: Membership) -> None:
        """A server refused a part with the membership that it holds.

        One that takes over from lost members comes with the master's order, which sees to the data that it needs.
        """
        with self._changed:
            if not membership.takes_over:
                self._take_in(membership)

    def on_grant(self, grant: m.GrantHorizon) -> None:
        """Take a horizon in."""
        with self._changed:
            self.state.on_grant(grant)
            self._changed.notify_all()

    def on_release(self, plan_id: int) -> None:
        """Acknowledge a plan's release once no exchange of a clock before its commit is under way any more."""
        with self._changed:
            self._releases.append(plan_id)
            self._release()

    def _release(self) -> None:
        """Report the releases that have become true; called with the condition held."""
        clock = self.state.clock
        for plan_id in list(self._releases):
            commit = self.state.commit_clock(plan_id)
            past = clock is None or self.state.finished or clock >= commit
            if past and (self._idle or self._is_beyond(commit)):
                self._releases.remove(plan_id)
                self.state.note_released(plan_id)
                self._report(m.PlanReleased(self.state.name, plan_id))

    def _is_beyond(self, commit: int) -> bool:
        """Return whether what is under way has nothing to do with the clocks before a commit any more.

        Who leaves owes something until he rests; a server that leaves waits for the others, for a whole iteration if
        they said so only between two.
        """
        stays = self.state.clock is not None and not self.state.left and not self._interrupted
        return stays and all(kept.pushed or kept.done.clock >= commit for kept in self._kept)

    def needed(self) -> tuple[int, ...]:
        """Return the splits that must be in memory."""
        with self._changed:
            return self.state.needed()

    def stop(self) -> None:
        """Make the loop end soon."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._exchanges.stop()

    # ---- a thread of the data plane

    def warm_up(self, split: int) -> None:
        """Compute something for nothing, once, in a worker that is being added.

        The commit waits for it, training does not.  Memory and code are warm then at the first clock, where everybody
        would wait: memory that the system must find first can take longer than an iteration of a large model.
        """
        with self._changed:
            if self._warm or self.state.memberships:
                return
            self._warm = True
        active = ActiveSet(self._runtime, {split: self._datasets.activate(split)})
        # With what computing takes, as much as an iteration has: parameters, and those of the next clock.
        held = [self._empty_parameters(active) for _ in range(2)]
        for parameters in held:
            parameters.values.fill(0.0)
            # So large that everything is on the grid, as it usually is.
            parameters.exponents.fill(60)
        try:
            compute(self._runtime, active, held[0], 0, empty=self._van.empty)
        except Exception as error:
            # A user's model may not like parameters that are all zero; what matters shows at the first clock.
            logger.info("while warming up: %s", error)

    # ---- the loop's thread

    def run(self) -> None:
        """Compute what is owed until the worker is told to stop."""
        self._connect()
        while True:
            work = self._next_work()
            if work is None:
                break
            try:
                self._do(work)
            except TakenOver:
                logger.info("W[%s] clock %d: begins anew, members were lost", self.state.name, work.clock)
            except Passed:
                logger.info("W[%s] clock %d: is complete everywhere", self.state.name, work.clock)
                self._skip(work)

    def _do(self, work: Work) -> None:
        """Compute what is due at a clock, and push all of it."""
        if work.splits:
            active = self._activate(work)
            parameters, begun = self._parameters(work, active)
            if work.clock >= self._runtime.settings.iterations:
                self._finish(work, measure(self._runtime, active, parameters))
                return
            self._compute(work, active, parameters, begun)
        with self._changed:
            if self.state.due_at(work.clock):
                # Lost members left something of this clock to this worker meanwhile.
                return
            if self._active is None:
                # The first splits of a newcomer begin later: a lost worker had pushed this clock's.
                self.state.done(work.clock)
                return
        self._push(work.clock)

    def _skip(self, work: Work) -> None:
        """Go on after a clock to which everything had been contributed already."""
        with self._changed:
            if self.state.incarnation != self._exchanges.incarnation:
                return
            self.state.computed(work.clock, work.splits)
            self._kept = [kept for kept in self._kept if kept.done.clock > work.clock]
            if self.state.clock == work.clock:
                self.state.done(work.clock)

    def _connect(self) -> None:
        """Connect to the servers as soon as they are known; the clocks before the first one may still run."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or bool(self.state.memberships), HORIZON_DEADLINE_S)
            membership = self.state.newest if self.state.memberships else None
        if membership is not None:
            self._exchanges.connect(membership)

    def _next_work(self) -> Work | None:
        """Wait until there is something to compute or to push; None when the worker is to stop."""
        while True:
            with self._changed:
                resting = self._resting()
                unconfirmed = resting and self._must_confirm()
                self._idle = not unconfirmed
                if self._idle:
                    self._release()
            if unconfirmed and self._confirm():
                continue
            if resting and not unconfirmed:
                # The model is written now, by others: what this process held for computing is theirs.  What servers
                # lent, and what they have mapped, goes with the connections; those are made anew if need be.
                self.forget()
                self._exchanges.keep(())
                give_back()
            with self._changed:
                if not self._changed.wait_for(lambda r=resting: self._has_work(r), HORIZON_DEADLINE_S):  # type: ignore[misc]
                    if resting:
                        continue
                    raise DeadlineError(f"waited {HORIZON_DEADLINE_S:g} s for {self.state.waits_for()}")
                if self._stopped:
                    return None
                work = self.state.next_work()
                if work is None and self._kept and self._interrupted:
                    assert self.state.clock is not None
                    work = Work(self._kept[-1].done.clock, (), 0)
                self._interrupted = False
                self._exchanges.incarnation = self.state.incarnation
                if work is not None:
                    self._idle = False
                    return work

    def _has_work(self, resting: bool) -> bool:
        """Return whether the loop has something to do; called with the condition held."""
        if self._stopped:
            return True
        if self._frozen or self.state.clock is None:
            return False
        if self._resting():
            return not resting or self._must_confirm()
        return self.state.next_work() is not None or (self._interrupted and bool(self._kept))

    def _resting(self) -> bool:
        """Return whether nothing is owed, unless members are lost; called with the condition held."""
        return self.state.clock is not None and (self.state.finished or self.state.left)

    def _must_confirm(self) -> bool:
        """Return whether a server that is lost could still need something of this worker, which leaves."""
        return bool(self._kept) and self._runtime.settings.followers > 0 and not self.state.finished

    def _confirm(self) -> bool:
        """Wait, before leaving, until what was pushed is in the parameters of the next clock everywhere.

        Returns
        -------
        bool
            False where members were lost and it is not known yet who takes over.
        """
        with self._changed:
            if self._frozen:
                return False
            self._interrupted = False
        kept = self._kept[-1]
        into = self._empty_parameters(kept.active)
        clock = kept.done.clock + 1
        with suppress(TakenOver):
            with suppress(Passed):
                self._exchange(self._pulls(kept.active, clock), kept.active, into, clock, clock)
            self._settle(clock)
        return True

    def _activate(self, work: Work) -> ActiveSet:
        with self._changed:
            newest = self.state.newest
        if newest.version != self._connected_version and newest.from_clock <= work.clock:
            # Nobody will ask the members that left for anything any more.
            self._connected_version = newest.version
            self._exchanges.keep(newest.addresses.values())
            logger.info(
                "W[%s] v=%d from clock %d: server list %s, worker list %s, clock list %s",
                self.state.name,
                newest.version,
                newest.from_clock,
                {entry.name: entry.holds for entry in newest.server_list()},
                {entry.name: entry.holds for entry in newest.worker_list()},
                self.state.clock_list(self._partition_clocks),
            )
        if self._active is None or tuple(self._active.splits) != work.splits:
            self._active = ActiveSet(self._runtime, {s: self._datasets.activate(s) for s in work.splits})
            self._datasets.keep_active(self.needed())
            logger.info("W[%s] clock %d: %s", self.state.name, work.clock, self._datasets.describe())
        return self._active

    def _parameters(self, work: Work, active: ActiveSet) -> tuple[Parameters, Computation]:
        """Return the parameters of the clock, and what was begun with those that came with the last exchange."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[1].clock == work.clock and ahead[1].active is active:
            return ahead
        parameters = self._empty_parameters(active)
        begun = self._begin(active, parameters, work.clock)
        self._exchange(self._pulls(active, work.min_clock), active, parameters, work.clock, work.clock, begun)
        self._settle(work.clock)
        return parameters, begun

    def _begin(self, active: ActiveSet, parameters: Parameters, clock: int) -> Computation:
        return Computation(self._runtime, active, parameters, clock, empty=self._van.empty)

    def _empty_parameters(self, active: ActiveSet) -> Parameters:
        blocks = self._runtime.key_space.num_blocks if self._runtime.settings.reproducible else 0
        # Exponents that have not come yet are those of blocks that nothing was added to.
        return Parameters(np.empty(active.size, np.float32), np.zeros(blocks, np.int16))

    def _pulls(self, active: ActiveSet, min_clock: int, have: Parameters | None = None) -> list[PullPart]:
        versions = have.versions if have is not None and self._runtime.lean.skip_unchanged else {}
        partitions = range(self._runtime.settings.num_partitions)
        return [pull_part(active, p, min_clock, versions.get(p, 0)) for p in partitions]

    def _compute(self, work: Work, active: ActiveSet, parameters: Parameters, begun: Computation) -> None:
        done = begun.finish()
        with self._changed:
            self._changed.wait_for(lambda: self._stopped, self._runtime.spec.stretch_s * len(work.splits))
            self._check_incarnation()
            report = m.ClockReported(self.state.name, work.clock, done.results, self.state.incarnation)
            self._kept.append(Kept(done, active, parameters, report))
            self.state.computed(work.clock, work.splits)

    def _check_incarnation(self) -> None:
        """Raise TakenOver where the job went back while something was computed; called with the condition held.

        A take-over in the same incarnation changes nothing about what was computed.
        """
        if self.state.incarnation != self._exchanges.incarnation:
            raise TakenOver("the job went back to a checkpoint")

    def _push(self, clock: int) -> None:
        """Push what was computed, and ask for the parameters of the next clock together with it where that can be."""
        active = self._active
        assert active is not None
        following = self._following(clock, active)
        pulls, ahead, begun = [], None, None
        if following is not None:
            have = self._kept[-1].parameters if self._kept else None
            ahead, begun = self._coming_for(following, active)
            pulls = self._pulls(active, self._runtime.settings.min_clock_to_read(following), have)
            pulls = [pull for pull in pulls if pull.partition not in ahead.arrived]
        self._exchange(pulls, active, ahead, clock + 1, clock, begun)
        if following is not None and ahead is not None and begun is not None:
            self._settle(following)
            self._ahead, self._coming = (ahead, begun), None
        with self._changed:
            if self.state.clock == clock:
                self.state.done(clock)

    def _coming_for(self, clock: int, active: ActiveSet) -> tuple[Parameters, Computation]:
        """Return where the parameters of a clock go: with what has come of them already, where that began before.

        Under BSP a version has the same bits on every server, so members that are lost meanwhile change nothing of it.
        """
        if self._coming is not None and self._runtime.settings.bsp:
            begun = self._coming[1]
            if begun.clock == clock and begun.active is active:
                return self._coming
        ahead = self._empty_parameters(active)
        self._coming = ahead, self._begin(active, ahead, clock)
        return self._coming

    def _settle(self, clock: int) -> None:
        """The parameters of ``clock`` have come; what was pushed before is in them, and cannot be lost any more.

        Raises
        ------
        TakenOver
            Members were lost meanwhile.
        """
        with self._changed:
            self._check_interrupted()
            self.state.read_clock = max(self.state.read_clock, clock)
            self._kept = [kept for kept in self._kept if kept.done.clock >= clock]

    def _check_interrupted(self) -> None:
        if self._interrupted:
            raise TakenOver("members were lost during an exchange")

    def _tell(self) -> None:
        """Report what is pushed now."""
        for kept in self._kept:
            if not kept.told:
                kept.told = True
                # The next grant follows from this report: the fewer clocks are granted, the sooner it is wanted.
                can_wait = self.state.horizon - kept.done.clock > NEAR_HORIZON_CLOCKS
                self._report(kept.report, can_wait=can_wait)

    def _on_acked(self, push: PushPart) -> None:
        for kept in self._kept:
            # Single splits, which a partition lacked, are not the whole.
            if kept.done.splits is push.splits and kept.done.clock == push.clock:
                kept.acked.add(push.partition)

    def _rest(self, alone: dict[tuple[int, int], ClockWork], push: PushPart, answer: PushAnswer) -> list[PushPart]:
        """Return what to push where a partition had some of a push's splits already.

        ``alone`` keeps what (clock, split) gave by itself, for the other partitions that lack it: while one exchange
        lasts, for each sum is as long as all that the worker pushes.
        """
        kept = next(k for k in self._kept if k.done.clock == push.clock and k.done.splits == push.splits)
        parts = []
        # A sum cannot be taken apart: the splits that a server misses are pushed one by one (reproducible.md).
        for split in (split for split in push.splits if split not in answer.have):
            done = alone.get((push.clock, split))
            if done is None:
                active, parameters = kept.active, kept.parameters
                done = compute(self._runtime, active, parameters, push.clock, only=(split,), empty=self._van.empty)
                alone[push.clock, split] = done
            parts.append(done.push(push.partition))
        return parts

    def _following(self, clock: int, active: ActiveSet) -> int | None:
        """Return the next clock if its parameters can be asked for together with this one's push."""
        with self._changed:
            later = clock + 1
            if later > self.state.horizon or self.state.active_at(later) != tuple(active.splits):
                return None
            return later

    def _exchange(
        self,
        pulls: list[PullPart],
        active: ActiveSet,
        into: Parameters | None,
        pull_clock: int,
        up_to: int,
        begun: Computation | None = None,
    ) -> None:
        """Push what is not pushed yet of the clocks up to ``up_to``, and pull into ``into``.

        What a server says is unchanged is taken from the parameters that were computed with last.  The parameters of a
        clock are never overwritten by the next ones: until the exchange is complete they may be needed to compute some
        of it again.  Splits whose parameters have come are computed (``begun``) while those of other partitions are on
        their way.

        Raises
        ------
        TakenOver
            Members were lost meanwhile.
        """
        settings = self._runtime.settings
        # Of what was computed already for a later clock than a lost worker left to this one, nothing can be taken yet.
        waiting = [kept for kept in self._kept if not kept.pushed and kept.done.clock <= up_to]
        arrived: set[int] = set() if into is None else into.arrived
        pushes = [kept.done.push(p) for kept in waiting for p in range(settings.num_partitions) if p not in kept.acked]
        # Under BSP the owner of a partition that comes is at the clock after these: it has what is pushed.
        before = [kept for kept in waiting if settings.bsp and kept.done.clock < pull_clock]
        push_clock = waiting[-1].done.clock if waiting else pull_clock
        have = self._kept[-1].parameters if self._kept else None

        def route() -> tuple[Membership, Membership]:
            with self._changed:
                return self.state.route(push_clock), self.state.route(pull_clock)

        def pulled(answers: Sequence[PullAnswer]) -> None:
            assert into is not None
            whole = lent_whole(active, answers)
            if whole is not None:
                into.values = whole
            for answer in answers:
                partition = answer.partition
                a, b, first, stop = active.spans[partition]
                if answer.unchanged:
                    if have is None or have.versions.get(partition) != answer.version:
                        raise ProtocolError(f"partition {partition} is said to be unchanged since it was never here")
                    into.values[a:b] = have.values[a:b]
                elif whole is None:
                    into.values[a:b] = answer.values
                if len(into.exponents):
                    into.exponents[first:stop] = answer.exponents
                into.versions[partition] = answer.version
                self._partition_clocks[partition] = answer.clock
                arrived.add(partition)
                for kept in before:
                    kept.acked.add(partition)
            # Once all have come nothing is gained any more.
            if begun is not None and begun.clock < settings.iterations and len(arrived) < settings.num_partitions:
                for split in begun.ready(arrived):
                    begun.add(split)

        results = [kept.report for kept in waiting]
        self._exchanges.run(
            pushes,
            pulls,
            route,
            partial(self._rest, {}),
            pulled,
            self._tell,
            lambda: self._interrupted,
            results,
            self._on_acked,
        )
        with self._changed:
            self._check_interrupted()
            for kept in waiting:
                kept.pushed = True
            if not settings.bsp:
                # An acknowledged push is in every copy that could take over.
                self._kept = [kept for kept in self._kept if not kept.pushed]

    def _keys_of(self, partition: int, keyset: bytes) -> np.ndarray:
        sets = [self._active, *(kept.active for kept in self._kept)]
        return next(found for found in sets if found and found.keysets[partition] == keyset).keys_of(partition)

    def _finish(self, work: Work, results: tuple[m.SplitResult, ...]) -> None:
        with self._changed:
            self._check_incarnation()
            self._report(m.ClockReported(self.state.name, work.clock, results, self.state.incarnation))
            self.state.computed(work.clock, work.splits)
            self.state.done(work.clock)

    def forget(self) -> None:
        """Drop the arrays: nothing is computed any more, unless more members are lost."""
        self._ahead = self._coming = self._active = None
        self._kept.clear()

    def close(self) -> None:
        """Close the connections."""
        self._exchanges.close()
