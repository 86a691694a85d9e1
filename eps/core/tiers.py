"""The elasticity controller of a job on reliable and transient containers: who works, and who serves.  Pure.

Every container is a :class:`~eps.core.members.Host`: its process has a worker and a server.  The controller decides
which of them take part; the others are spare.  Its decisions become ordinary plans.

Source: Proteus §3.2 (the stages, Fig. 4), §3.3 (elasticity controller).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from functools import cached_property

from eps.core.types import MemberId, Role, Tier, member_name
from eps.errors import PlanError, UnknownMemberError


class Stage(IntEnum):
    """How a job uses its containers (Proteus §3.2)."""

    #: Servers on reliable containers only, workers on all.
    PARAM_SERVS = 1
    #: ActivePSs on half of the transient containers, BackupPSs on the reliable ones, workers on all.
    ACTIVE_PSS = 2
    #: As stage 2, without workers on the reliable containers.
    NO_RELIABLE_WORKERS = 3


class StageRule(StrEnum):
    """How the controller chooses the stage; a number fixes it."""

    #: By the ratio, and by the measured load of the reliable containers.
    AUTO = "auto"
    #: By the ratio of transient to reliable containers alone.
    RATIO = "ratio"
    STAGE_1 = "1"
    STAGE_2 = "2"
    STAGE_3 = "3"


class ServerTier(StrEnum):
    """The function of a server (Proteus Table 1)."""

    PARAM_SERV = "ParamServ"
    ACTIVE_PS = "ActivePS"
    BACKUP_PS = "BackupPS"


#: Transient containers for each reliable one up to which stage 1, and up to which stage 2 is best (Proteus §6.4).
STAGE_1_RATIO, STAGE_2_RATIO = 1, 15


#: By this factor around those ratios the controller compares the stages on both sides, by measurements.
DOUBT = 3
#: An iteration time is the median over this many clocks, at least this long, after this many others in the stage.
MEASURED_CLOCKS, MEASURED_S, SETTLING_CLOCKS = 6, 1.0, 2
#: Another stage is tried only if at least this long, and this many clocks, are left to train.
WORTH_S, WORTH_CLOCKS = 20.0, 40
#: It is kept only if it is faster by this share.
MARGIN = 0.03


@dataclass(frozen=True, slots=True)
class HostView:
    """A container that the job may use, as the controller sees it."""

    #: Empty for one that is still to be requested.
    container: str
    tier: Tier
    #: Its number in the order of requests.
    rank: int
    #: Its members; None where one has left and its successor has not registered.
    worker: MemberId | None
    server: MemberId | None
    #: Whether it will be taken away, but its server still keeps the only copies as of the consistent clock.
    leaving: bool = False


@dataclass(frozen=True)
class TiersView:
    """The facts on which the controller decides."""

    #: Without containers that will be taken away, unless they keep copies.
    hosts: tuple[HostView, ...]
    rule: StageRule
    #: The most servers that can own partitions, and the most workers that can have splits.
    num_partitions: int
    num_splits: int
    #: Stage -> measured iteration time in seconds, with these numbers of containers.
    measured: Mapping[Stage, float] = field(default_factory=dict)
    #: About how long the job still trains.
    left_s: float = 0.0
    #: The current stage.
    stage: Stage = Stage.PARAM_SERVS
    #: Whether that was chosen by measurements, perhaps with other numbers of containers.
    has_compared: bool = False

    def count(self, tier: Tier) -> int:
        """Return the number of containers of a tier that stay."""
        return self._numbers[tier]

    @cached_property
    def _numbers(self) -> Counter[Tier]:
        return Counter(host.tier for host in self.hosts if not host.leaving)


@dataclass(frozen=True, slots=True)
class Decision:
    """Who takes part from now on, and why."""

    stage: Stage
    workers: tuple[MemberId, ...]
    #: The servers that own partitions.
    owners: tuple[MemberId, ...]
    #: Why, as a sentence.
    reason: str
    #: The servers that keep copies only.
    backups: tuple[MemberId, ...] = ()

    @property
    def servers(self) -> tuple[MemberId, ...]:
        """All servers that take part."""
        return self.owners + self.backups


def _choose(view: TiersView) -> tuple[Stage, str]:
    """Return the stage for these numbers of containers, and why."""
    reliable, transient = view.count(Tier.RELIABLE), view.count(Tier.TRANSIENT)
    there = f"{reliable} reliable and {transient} transient containers"
    if not transient:
        return Stage.PARAM_SERVS, f"{there}: nothing can be taken away"
    if view.rule not in (StageRule.AUTO, StageRule.RATIO):
        return Stage(int(view.rule)), f"{there}: stage {view.rule} is fixed"
    ratio = transient / max(1, reliable)
    if view.rule is StageRule.AUTO and view.measured:
        stage, why = _compare(view, ratio)
        return stage, f"{there}: {why}"
    if ratio <= STAGE_1_RATIO:
        stage, why = Stage.PARAM_SERVS, f"up to {STAGE_1_RATIO}:1 the reliable ones serve all workers"
    elif ratio <= STAGE_2_RATIO:
        stage, why = Stage.ACTIVE_PSS, f"beyond {STAGE_1_RATIO}:1 the reliable ones cannot serve all workers"
    else:
        stage = Stage.NO_RELIABLE_WORKERS
        why = f"beyond {STAGE_2_RATIO}:1 workers on the reliable ones would be stragglers"
    if view.rule is StageRule.AUTO and view.has_compared and (view.stage, stage) in _doubtful(ratio):
        return view.stage, f"{there}: stage {int(view.stage)} was faster with other numbers"
    return stage, f"{there}: {why}"


def _doubtful(ratio: float) -> set[tuple[Stage, Stage]]:
    """Return the pairs of neighbouring stages between which a ratio does not decide, in both orders."""
    bounds = ((Stage.PARAM_SERVS, STAGE_1_RATIO), (Stage.ACTIVE_PSS, STAGE_2_RATIO))
    lower = [stage for stage, at in bounds if at / DOUBT <= ratio <= at * DOUBT]
    return {pair for stage in lower for pair in ((stage, Stage(stage + 1)), (Stage(stage + 1), stage))}


def _compare(view: TiersView, ratio: float) -> tuple[Stage, str]:
    """Return the stage to use after measurements: the fastest, or one to try that may be faster.

    Deviation: the paper decides by the ratio and the bandwidth of the network, which a job does not know.  Here a stage
    is tried for some iterations: so what the load of the reliable containers costs is measured.
    """
    best = min(view.measured, key=lambda stage: view.measured[stage])
    if view.stage in view.measured and view.measured[view.stage] <= (1 + MARGIN) * view.measured[best]:
        best = view.stage
    worth = view.left_s >= max(WORTH_S, WORTH_CLOCKS * view.measured[best])
    for stage, other in sorted(_doubtful(ratio)):
        if best is stage and other not in view.measured and worth:
            return other, f"stage {int(other)} is tried, to compare it with stage {int(stage)}"
    times = ", ".join(f"{_ms(view.measured[stage])} in stage {int(stage)}" for stage in sorted(view.measured))
    return best, f"an iteration takes {times}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1000 * seconds:.3g} ms"


def decide(view: TiersView) -> Decision | None:
    """Return who takes part; None if the containers have no worker, or no server, that could.

    ActivePSs run on half of the transient containers, those that have run longest (Proteus §3.3).
    """
    ordered = sorted((host for host in view.hosts if not host.leaving), key=lambda host: host.rank)
    reliable = [host for host in ordered if host.tier is Tier.RELIABLE]
    transient = [host for host in ordered if host.tier is Tier.TRANSIENT]
    safe = tuple(host.server for host in reliable if host.server is not None)
    half = min(-(-len(transient) // 2), view.num_partitions)
    active = tuple(host.server for host in transient if host.server is not None)[:half]
    stage, reason = _choose(view)
    if stage is not Stage.PARAM_SERVS and not active:
        stage, reason = Stage.PARAM_SERVS, "no server on a transient container is ready"
    working = transient if stage is Stage.NO_RELIABLE_WORKERS else ordered
    workers = tuple(host.worker for host in working if host.worker is not None)[: view.num_splits]
    if not workers or not safe:
        return None
    if stage is Stage.PARAM_SERVS:
        return Decision(stage, workers, safe[: view.num_partitions], reason)
    keeps = tuple(host.server for host in view.hosts if host.leaving and host.server is not None)
    return Decision(stage, workers, active, reason, safe + keeps)


#: Changes of the number of containers: by tier, positive or negative.
Deltas = tuple[tuple[Tier, int], ...]


def deltas_text(deltas: Deltas) -> str:
    """Return ``reliable=+1,transient=-3``."""
    return ",".join(f"{tier}={number:+d}" for tier, number in deltas)


def without_text(names: Collection[str]) -> str:
    """Return ``containers=-container-0002,container-0003``."""
    return f"containers=-{','.join(names)}"


def resized(
    view: TiersView, deltas: Deltas, next_worker: int, next_server: int, without: Collection[str] = ()
) -> TiersView:
    """Return the containers after a change of their number; of those of a tier, the youngest leave first.

    Parameters
    ----------
    next_worker, next_server : int
        Numbers of the next members: each new container has one of each role.
    without : collection of str
        Containers that leave.

    Raises
    ------
    UnknownMemberError
        The job has no container of such a name.
    PlanError
        A tier has fewer containers than are to be removed, or no reliable one would be left.
    """
    found = list(view.hosts)
    rank = max((host.rank for host in found), default=0)
    text = without_text(without) if without else deltas_text(deltas)
    unknown = sorted(set(without).difference(host.container for host in found))
    if unknown:
        raise UnknownMemberError(f"{', '.join(unknown)}: not a container of the job")
    found = [host for host in found if host.container not in without]
    for tier, number in deltas:
        present = sorted((host for host in found if host.tier is tier and not host.leaving), key=lambda host: host.rank)
        if number < 0:
            if -number > len(present):
                raise PlanError(f"{deltas_text(deltas)}: the job has {len(present)} {tier} containers")
            leaving = frozenset(present[number:])
            found = [host for host in found if host not in leaving]
        for i in range(max(0, number)):
            rank += 1
            worker, server = member_name(Role.WORKER, next_worker + i), member_name(Role.SERVER, next_server + i)
            found.append(HostView("", tier, rank, worker, server))
        next_worker, next_server = next_worker + max(0, number), next_server + max(0, number)
    changes = bool(deltas or without)
    if changes and not any(host.tier is Tier.RELIABLE and not host.leaving for host in found):
        raise PlanError(f"{text}: a job must keep at least one reliable container, which keeps its state")
    # What was measured holds for the number of containers of then.
    return replace(view, hosts=tuple(found), measured={} if changes else view.measured)
