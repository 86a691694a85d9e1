"""The training loop of a worker: wait for the horizon, pull, compute, push, report.

The loop's thread owns the arrays; the session's thread only changes the pure state, under one condition.

Source: EPS §2.2 Fig. 1b (six steps), §3.1.4 (active and inactive dataset), Figs 7, 8 and 11.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.types import Address, MemberId, Role
from eps.core.worker_state import Work, WorkerState
from eps.errors import DeadlineError, ProtocolError
from eps.rpc.exchange import PullAnswer, PullPart, PushAnswer, PushPart
from eps.runtime import Runtime
from eps.van.api import Van
from eps.worker.compute import ActiveSet, Computation, Parameters, compute, measure, pull_part
from eps.worker.datasets import Datasets
from eps.worker.exchanges import Exchanges

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
        )
        self._connected_version = 0
        #: Partition -> its clock as last received (EPS Fig. 1b step 3).
        self._partition_clocks: dict[int, int] = {}
        #: Plan -> first clock under its membership.
        self._commit_clocks: dict[int, int] = {}
        self._releases: list[int] = []
        #: No exchange is under way.
        self._idle = True
        #: Parameters of the next clock, where the last exchange brought them, and what was computed with the first.
        self._ahead: tuple[Parameters, Computation] | None = None

    # ---- the session's thread

    def on_membership(self, plan_id: int, membership: Membership) -> m.MembershipAcked:
        """Take a membership in."""
        with self._changed:
            acked = self.state.on_membership(membership)
            self._commit_clocks[plan_id] = membership.from_clock
            self._changed.notify_all()
        return acked

    def prepare(self, servers: Sequence[Address]) -> None:
        """Connect to the servers that there are, for a worker that joins a job that trains."""
        self._exchanges.prepare(servers)

    def on_lists(self, added: Sequence[m.Newcomer]) -> None:
        """Connect to the servers that a plan is about to add, so that no iteration waits for it."""
        self._exchanges.prepare(entry.address for entry in added if entry.name.startswith(Role.SERVER.value))

    def _on_refused(self, membership: Membership) -> None:
        """A server refused a part with the membership that it holds."""
        with self._changed:
            self.state.on_membership(membership)

    def on_grant(self, grant: m.GrantHorizon) -> None:
        """Take a horizon in."""
        with self._changed:
            self.state.on_grant(grant)
            self._changed.notify_all()

    def on_release(self, plan_id: int) -> None:
        """Acknowledge a plan's release once no exchange of a clock before its commit is under way any more."""
        with self._changed:
            self._releases.append(plan_id)
            if self._idle:
                self._release()

    def _release(self) -> None:
        """Report the releases that have become true; called with the condition held, between exchanges."""
        clock = self.state.clock
        for plan_id in list(self._releases):
            if clock is None or self.state.finished or clock >= self._commit_clocks.get(plan_id, clock):
                self._releases.remove(plan_id)
                self._report(m.PlanReleased(self.state.name, plan_id))

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
        """Compute until nothing is owed or the worker is told to stop."""
        self._connect()
        while True:
            work = self._next_work()
            if work is None:
                break
            active = self._activate(work)
            parameters, begun = self._parameters(work, active)
            if work.clock >= self._runtime.settings.iterations:
                self._finish(work, measure(self._runtime, active, parameters))
            else:
                self._train(work, active, parameters, begun)

    def _connect(self) -> None:
        """Connect to the servers as soon as they are known; the clocks before the first one may still run."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or bool(self.state.memberships), HORIZON_DEADLINE_S)
            membership = self.state.newest if self.state.memberships else None
        if membership is not None:
            self._exchanges.connect(membership)

    def _next_work(self) -> Work | None:
        """Wait until a clock may be computed; None when nothing is owed any more."""
        with self._changed:
            self._idle = True
            self._release()
            ready = self._changed.wait_for(
                lambda: self._stopped or self.state.left or self.state.finished or self.state.next_work() is not None,
                timeout=HORIZON_DEADLINE_S,
            )
            if not ready:
                raise DeadlineError(f"waited {HORIZON_DEADLINE_S:g} s for {self.state.waits_for()}")
            work = None if self._stopped else self.state.next_work()
            self._idle = work is None
            return work

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
        self._exchange([], self._pulls(active, work.min_clock), active, parameters, work.clock, work.clock, begun=begun)
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

    def _train(self, work: Work, active: ActiveSet, parameters: Parameters, begun: Computation) -> None:
        done = begun.finish()
        pushes = [done.push(p) for p in range(self._runtime.settings.num_partitions)]
        pulls: list[PullPart] = []
        following = self._following(work.clock, active)
        ahead = self._empty_parameters(active)
        if following is not None:
            pulls = self._pulls(active, self._runtime.settings.min_clock_to_read(following), parameters)

        def tell() -> None:
            report = m.ClockReported(self.state.name, work.clock, done.results)
            # The next grant follows from this report: the fewer clocks are granted, the sooner it is wanted.
            self._report(report, can_wait=self.state.horizon - work.clock > NEAR_HORIZON_CLOCKS)

        def rest(partition: int, have: tuple[int, ...]) -> list[PushPart]:
            # A sum cannot be taken apart: the splits that a server misses are pushed one by one (reproducible.md).
            single = (
                compute(self._runtime, active, parameters, done.clock, only=(s,), empty=self._van.empty)
                for s in done.splits
            )
            return [work.push(partition) for work in single if work.splits[0] not in have]

        following_begun = None if following is None else self._begin(active, ahead, following)
        self._exchange(
            pushes, pulls, active, ahead, work.clock, work.clock + 1, rest, parameters, following_begun, tell
        )
        if following_begun is not None:
            self._ahead = ahead, following_begun
        with self._changed:
            self.state.computed(work.clock, work.splits)
            self.state.done(work.clock)

    def _following(self, clock: int, active: ActiveSet) -> int | None:
        """Return the next clock if its parameters can be asked for together with this one's push."""
        with self._changed:
            later = clock + 1
            if later > self.state.horizon or self.state.active_at(later) != tuple(active.splits):
                return None
            return later

    def _exchange(
        self,
        pushes: list[PushPart],
        pulls: list[PullPart],
        active: ActiveSet,
        into: Parameters,
        push_clock: int,
        pull_clock: int,
        rest: Callable[[int, tuple[int, ...]], list[PushPart]] = lambda partition, have: [],
        have: Parameters | None = None,
        begun: Computation | None = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        """Run an exchange; ``rest`` returns what to push where a partition had some of a push's splits already.

        What a server says is unchanged is taken from ``have``.  The parameters of a clock are never overwritten by the
        next ones: until the exchange is complete they may be needed to compute some of it again.

        Splits whose parameters have come are computed (``begun``) while those of other partitions are on their way.
        """
        arrived: set[int] = set()
        settings, num_exponents = self._runtime.settings, len(into.exponents)

        def route() -> tuple[Membership, Membership]:
            with self._changed:
                return self.state.route(push_clock), self.state.route(pull_clock)

        def not_used(answer: PushAnswer) -> list[PushPart]:
            return rest(answer.partition, answer.have)

        def pulled(answers: Sequence[PullAnswer]) -> None:
            for answer in answers:
                partition = answer.partition
                a, b, first, stop = active.spans[partition]
                if answer.unchanged:
                    if have is None or have.versions.get(partition) != answer.version:
                        raise ProtocolError(f"partition {partition} is said to be unchanged since it was never here")
                    into.values[a:b] = have.values[a:b]
                else:
                    into.values[a:b] = answer.values
                if num_exponents:
                    into.exponents[first:stop] = answer.exponents
                into.versions[partition] = answer.version
                self._partition_clocks[partition] = answer.clock
                arrived.add(partition)
            # Once all have come nothing is gained any more.
            if begun is not None and begun.clock < settings.iterations and len(arrived) < settings.num_partitions:
                for split in begun.ready(arrived):
                    begun.add(split)

        self._exchanges.run(pushes, pulls, route, not_used, pulled, on_sent)

    def _keys_of(self, partition: int, keyset: bytes) -> np.ndarray:
        assert self._active is not None and self._active.keysets[partition] == keyset
        return self._active.keys_of(partition)

    def _finish(self, work: Work, results: tuple[m.SplitResult, ...]) -> None:
        self._report(m.ClockReported(self.state.name, work.clock, results))
        with self._changed:
            self.state.computed(work.clock, work.splits)
            self.state.done(work.clock)

    def forget(self) -> None:
        """Drop the arrays: nothing is computed any more."""
        self._ahead = self._active = None

    def close(self) -> None:
        """Close the connections."""
        self._exchanges.close()
