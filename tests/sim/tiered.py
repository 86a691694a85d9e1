"""Jobs on two tiers long enough for cuts, whose transient containers fail: one, some or all at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import patch

from eps.core import events as e
from eps.core.cuts import Committed
from eps.core.events import JobState
from eps.core.membership import Membership
from eps.core.reconfig import Change, Operation
from eps.core.tiers import Stage
from eps.core.types import Tier
from tests.sim.checkpointed import CheckpointedJob
from tests.sim.evicting import EvictingJob
from tests.sim.mortal import MortalJob
from tests.sim.server import SimServer

#: A failure happens within this time after the step for which it was drawn.
FAIL_WITHIN_S = 0.1


class TieredJob(EvictingJob):
    """A job some of whose containers fail without a warning, mostly transient ones; its cuts are checked.

    Parameters
    ----------
    fails : float
        Probability of a failure after a step of a plan, a cut, and a rollback.
    fails_after_cut : float
        Probability of another failure in the second after a cut.
    most_fails : int
        Limit of failures.
    reliable : float
        Share of failures that also take a reliable container.
    """

    def __init__(
        self,
        *details: Any,
        fails: float = 0.0,
        fails_after_cut: float = 0.0,
        most_fails: int = 4,
        reliable: float = 0.0,
        **more: Any,
    ) -> None:
        super().__init__(*details, **more)
        self._fails_after_cut = fails_after_cut
        self._fails = fails
        self._most_fails = most_fails
        self._reliable = reliable
        self._failed_at: object = None
        self._seen: Committed | None = None

    def on_event(self, event: e.Event) -> None:
        before, at_rest = self.master.membership, self._is_safe_and_idle()
        super().on_event(event)
        after, cuts = self.master.membership, self.master.cuts
        if at_rest and self._is_safe_and_idle():
            assert cuts.committed is None and cuts.staging is None, "cuts are dropped once nothing is exposed"
        if after is not None and before is not None and not after.takes_over and after.version != before.version:
            self._check_exposed(before, after)
        if after is not None and before is not None and after.version != before.version and after.goes_back:
            self._check_rollback(after)
        if cuts.committed is not None and cuts.committed != self._seen:
            self.count("cut")
            self._check_cut(cuts.committed)
            if self.chance(self._fails_after_cut):
                self.at(self.share(), self.fail)
        self._seen = cuts.committed
        driver = self.master.plans.flight.driver
        if driver is not None:
            step = f"{driver.plan.plan_id} {driver.plan.phase}"
        else:
            step = f"{cuts.count} {self.incarnation} {self.master.recovery.inquiry is not None}"
        if step != self._failed_at and after is not None:
            self._failed_at = step
            if self.chance(self._fails):
                self.at(self.share() * self._random.choice((0.0, FAIL_WITHIN_S, 1.0)), self.fail)

    def fail(self) -> None:
        """End containers at once: one, some or all transient ones, and sometimes a reliable one."""
        if not self._most_fails or self.master.membership is None:
            return
        self._most_fails -= 1
        found = self.containers(Tier.TRANSIENT)
        count = self._random.choice((1, 1, max(1, len(found) // 2), len(found), len(found)))
        chosen = self._random.sample(found, min(count, len(found)))
        safe = self.containers(Tier.RELIABLE)
        if safe and self.chance(self._reliable):
            chosen.append(self._random.choice(safe))
        for container_id in chosen:
            self.fail_container(container_id)

    def fail_container(self, container_id: str) -> None:
        """End a container with all processes in it, without a warning."""
        for process in self.inside(container_id):
            self.count("failed")
            self.lost.append(process.name)
            process.end("killed")

    def containers(self, tier: Tier) -> list[str]:
        """Return the containers of a tier in which a process runs."""
        hosts = self.master.members.hosts.values()
        return [host.container for host in hosts if host.tier is tier and self.inside(host.container)]

    # ---- checks

    def _check_cut(self, committed: Committed) -> None:
        """The BackupPS of each partition has what the oracle has at that clock; the results before are known."""
        assert self.master.progress.completed >= committed.point.clock >= committed.clock
        assert self.master.membership is not None
        assert set(committed.holders) <= set(self.master.membership.servers), "no holder was lost meanwhile"
        for partition, name in enumerate(committed.holders):
            server = self.process_of(name)
            if server.alive:
                assert isinstance(server, SimServer)
                assert (partition, committed.clock) in server.kept, f"{name} lacks partition {partition}"
                server.check_copy(partition, committed.clock)

    def _is_exposed(self, membership: Membership | None) -> bool:
        assert self.master.hosting is not None
        return membership is not None and self.master.hosting.is_exposed(
            membership.partitions.owners, self.master.members
        )

    def _is_safe_and_idle(self) -> bool:
        master = self.master
        runs = master.state is JobState.RUNNING and master.recovery.inquiry is None and not master.members.unacked
        return runs and master.plans.flight.plan is None and not self._is_exposed(master.membership)

    def _check_exposed(self, before: Membership, after: Membership) -> None:
        """A plan gives partitions to transient containers only if there is a cut on servers that stay.

        Unless none stays, or the job ends soon.
        """
        if self._is_exposed(after) and not self._is_exposed(before):
            master, committed = self.master, self.master.cuts.committed
            late = master.progress.horizon + master.progress.lookahead >= self.settings.iterations
            stays = any(
                master.members.hosts[member.container].tier is Tier.RELIABLE
                and member.container not in master.evictions.containers
                for member in master.members.by_name.values()
                if member.name in before.servers and member.name in after.servers
            )
            assert late or not stays or (committed is not None and set(committed.holders) <= set(after.servers))

    def _check_rollback(self, after: Membership) -> None:
        back, cuts = self.master.recovery.goings_back[-1], self.master.cuts
        self.count("to a cut" if after.cut is not None else "to a checkpoint" if after.checkpoint else "to the seed")
        if after.cut is None:
            return
        assert self._seen is not None and after.checkpoint == self._seen.point.checkpoint
        assert cuts.committed == self._seen, "the cut stays"
        assert back.clock - back.to <= cuts.lag.largest, "the job rolls back by the lag at most"

    @property
    def transitions(self) -> set[tuple[Stage, Stage]]:
        """The changes of the stage that happened."""
        assert self.master.hosting is not None
        stages = [entry.stage for entry in self.master.hosting.stages]
        return {(one, other) for one, other in pairwise(stages) if one is not other}


class CheckpointedTieredJob(TieredJob, CheckpointedJob):
    """The same, with checkpoints."""


class MortalTieredJob(TieredJob, MortalJob):
    """The same, with masters that die."""


def schedule_failures(random: Random, job: TieredJob) -> None:
    """Let containers fail at random times, when there are cuts."""
    for _ in range(random.choice((0, 0, 1, 2))):
        job.at(random.uniform(2.5, 3.0 + job.settings.iterations * 0.15), job.fail)


def schedule_sizes(random: Random, job: TieredJob) -> None:
    """Ask for other numbers of transient, and sometimes of reliable containers at random times."""
    for number in range(random.choice((0, 1, 2, 3, 4))):
        deltas = [(Tier.TRANSIENT, random.choice((-3, -1, 1, 2, 3, 4)))]
        if random.random() < 0.2:
            deltas.append((Tier.RELIABLE, random.choice((-1, 1))))
        change = Change(Operation.TIERS, sum(abs(n) for _, n in deltas), containers=tuple(deltas))
        at_s = random.uniform(0.7, 1.0 + job.settings.iterations * 0.15)
        job.at(at_s, lambda c=change, n=number: job.ask(f"size-{n}", c))  # type: ignore[misc]


@contextmanager
def eager_controller() -> Iterator[None]:
    """Let few containers and few clocks suffice for stage 3, and for the comparison of two stages."""
    with (
        patch("eps.core.tiers.STAGE_2_RATIO", 2),
        patch("eps.core.tiers.WORTH_S", 0.5),
        patch("eps.core.tiers.WORTH_CLOCKS", 2),
        patch("eps.core.hosting.MEASURED_CLOCKS", 4),
        patch("eps.core.hosting.SETTLING_CLOCKS", 1),
        patch("eps.core.hosting.MEASURED_S", 0.1),
    ):
        yield
