"""The containers of a job on reliable and transient ones: which there are, which may be used, what is spare.  Pure.

:mod:`eps.core.tiers` decides who takes part; the plans of the job carry it out.  The job restores the number of its
reliable containers.  It does not restore transient ones: a user or a scheduler requests more when there are any.

Source: Proteus §3.3 (elasticity controller).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from eps.core import events as e
from eps.core import messages as m
from eps.core.members import Member, Members
from eps.core.membership import Membership
from eps.core.reconfig import Change, Operation, Plan, Purpose
from eps.core.tiers import (
    MEASURED_CLOCKS,
    MEASURED_S,
    SETTLING_CLOCKS,
    Decision,
    HostView,
    ServerTier,
    Stage,
    StageRule,
    TiersView,
    decide,
)
from eps.core.types import CoreSettings, MemberId, Role, Tier


@dataclass(frozen=True, slots=True)
class StageEntry:
    """Stage and number of containers from a clock on."""

    clock: int
    stage: Stage
    reliable: int
    transient: int


class Hosting:
    """The hosts of a job.

    Parameters
    ----------
    first : mapping
        Number of containers of each tier with which the job starts.
    rule : StageRule
    num_partitions, num_splits : int
    managed : bool
        Whether a scheduler decides the job's size: then the job restores a container that crashes, and not one that the
        cluster takes, unless it is the last one.  Such a job has reliable containers only.
    """

    def __init__(
        self,
        first: Mapping[Tier, int],
        rule: StageRule,
        num_partitions: int,
        num_splits: int,
        *,
        managed: bool = False,
    ) -> None:
        self._first, self._managed = dict(first), managed
        self.rule = rule
        self._num_partitions, self._num_splits = num_partitions, num_splits
        #: Number of reliable containers that the job restores.
        self.reliable = first[Tier.RELIABLE]
        #: An entry whenever the stage or the number of containers changes.
        self.stages: list[StageEntry] = []
        #: The stage of the latest decision, and its reason.
        self.decided, self.reason = Stage.PARAM_SERVS, ""
        #: Stage -> its iteration time, with the current numbers of containers.
        self._measured: dict[Stage, float] = {}
        self._left_s, self._has_compared = 0.0, False
        #: Index of the entry of :attr:`stages` that was measured last.
        self._measured_entry = -1
        #: The latest answers of :meth:`view` and of :meth:`decision` with what they depend on, while they hold.
        #: With them, the longest step of an eviction of 512 out of 1,024 transient containers takes 21 ms of CPU time.
        self._viewed: tuple[tuple[object, ...], TiersView] | None = None
        self._decided: tuple[Membership, TiersView, Decision | None] | None = None
        self._backups: tuple[tuple[object, ...], tuple[m.Target, ...]] | None = None
        self._news: tuple[int, ...] = ()

    def request_first(self, members: Members, now_s: float) -> list[e.Command]:
        """Request the containers with which the job starts."""
        numbers = self._first.items()
        return [
            command for tier, number in numbers for _ in range(number) for command in members.request_host(tier, now_s)
        ]

    def view(
        self, members: Members, warned: Collection[str], plan: Plan | None, holders: Collection[MemberId] = ()
    ) -> TiersView:
        """Return the containers that the job may use, and what else the controller decides on.

        Parameters
        ----------
        members : Members
        warned : collection of str
            Containers that will be taken away.
        plan : Plan or None
            The one in flight: the containers that it releases are left out, and its newcomers count.
        holders : collection of str
            The servers that keep the committed cut, if one is needed: they leave only when others keep a later one.
        """
        facts = members.changes, warned, plan.turn if plan is not None else 0, holders if warned else ()
        if self._viewed is None or self._viewed[0] != facts:
            self._viewed = facts, self._view(members, warned, plan, holders)
        return self._viewed[1]

    def _view(
        self, members: Members, warned: Collection[str], plan: Plan | None, holders: Collection[MemberId]
    ) -> TiersView:
        without = set(plan.releases if plan is not None else ())
        coming = frozenset(plan.added if plan is not None else ())
        found = []
        for host in members.hosts.values():
            if host.container in without:
                continue
            here: dict[Role, MemberId] = {}
            for member in members.in_container(host.container):
                if member.address is not None or member.name in coming:
                    here.update(dict.fromkeys(member.roles, member.name))
            worker, server, leaving = here.get(Role.WORKER), here.get(Role.SERVER), host.container in warned
            if not leaving or server in holders:
                found.append(HostView(host.container, host.tier, host.rank, worker, server, leaving))
        stage = self.stages[-1].stage if self.stages else Stage.PARAM_SERVS
        limits = self._num_partitions, self._num_splits
        measured = dict(self._measured), self._left_s
        return TiersView(tuple(found), self.rule, *limits, *measured, stage, self._has_compared)

    def measure(self, completed_s: Sequence[float], iterations: int) -> None:
        """Measure the iteration time of the current stage, once enough clocks are complete in it.

        Parameters
        ----------
        completed_s : sequence of float
            When each clock was complete.
        iterations : int
            Clocks that the job trains.
        """
        number = len(self.stages) - 1
        if self.rule is not StageRule.AUTO or number == self._measured_entry:
            return
        entry, end = self.stages[number], len(completed_s)
        first = max(0, entry.clock) + SETTLING_CLOCKS
        if end - first < MEASURED_CLOCKS or completed_s[end - 1] - completed_s[first] < MEASURED_S:
            return
        self._measured_entry, self._viewed = number, None
        found = median(later - earlier for earlier, later in pairwise(completed_s[first:end]))
        previous = self._measured.get(entry.stage, found)
        # Times of one stage change with the load of the machines: the earlier measurement counts, too.
        self._measured[entry.stage] = (found + previous) / 2
        self._has_compared = self._has_compared or len(self._measured) > 1
        self._left_s = (iterations - end) * found

    def first_membership(self, members: Members, settings: CoreSettings) -> Membership | None:
        """Return the first membership, or None while a member has not registered."""
        if any(member.address is None for member in members.by_name.values()):
            return None
        # Partitions begin on reliable containers: the first cut protects them before they move on.
        decision = decide(replace(self.view(members, (), None), rule=StageRule.STAGE_1))
        if decision is None:
            return None
        self.reason = "a job starts in stage 1"
        # So a split that is lost with a transient container has an earlier owner (Proteus §3.3).
        keepers = self.safe(decision.workers, members)
        return members.first_membership(settings, {*decision.workers, *decision.servers}, keepers)

    def spare(self, members: Members, view: TiersView, role: Role, leaving: Collection[MemberId]) -> Member | None:
        """Return a registered member of a role for a recovery that has none left; at worst one that leaves."""
        found = []
        for host in view.hosts:
            name = host.worker if role is Role.WORKER else host.server
            member = members.by_name.get(name or "")
            fits = role is Role.WORKER or host.tier is Tier.RELIABLE
            if fits and member is not None and member.address is not None:
                found.append((member.name in leaving, host.tier is not Tier.RELIABLE, host.rank, member))
        return min(found, key=lambda entry: entry[:3])[3] if found else None

    def size(self, members: Members) -> dict[Role, int]:
        """Return the size with which the job resumes: all containers, and the reliable ones that it restores."""
        transient = sum(host.tier is Tier.TRANSIENT for host in members.hosts.values())
        return {Role.WORKER: self.reliable + transient, Role.SERVER: self.reliable}

    def lacking(self, view: TiersView) -> int:
        """Return how many reliable containers are missing."""
        return max(0, self.reliable - view.count(Tier.RELIABLE))

    def request_lacking(self, members: Members, view: TiersView, now_s: float) -> list[e.Command]:
        """Request the missing reliable containers for a recovery."""
        number = self.lacking(view)
        return [command for _ in range(number) for command in members.request_host(Tier.RELIABLE, now_s)]

    def taken(self) -> None:
        """Record that the cluster took a container after a warning."""
        if self._managed:
            self.reliable = max(1, self.reliable - 1)

    def replacement(self, view: TiersView, warned: int) -> Change | None:
        """Return the change that restores the reliable containers; None if there are enough.

        Parameters
        ----------
        view : TiersView
        warned : int
            How many containers the cluster will take.
        """
        number = self.lacking(view)
        if self._managed:
            number = max(number - warned, 0 if view.count(Tier.RELIABLE) else 1)
        return Change(Operation.TIERS, number, containers=((Tier.RELIABLE, number),)) if number else None

    def decision(self, membership: Membership, view: TiersView) -> Decision | None:
        """Return who should take part; None if that is as it is, or cannot be."""
        if self._decided is None or self._decided[0] is not membership or self._decided[1] is not view:
            self._decided = membership, view, self._decide(membership, view)
        return self._decided[2]

    def _decide(self, membership: Membership, view: TiersView) -> Decision | None:
        found = decide(view)
        if found is None:
            return None
        same = set(found.workers) == set(membership.workers) and set(found.servers) == set(membership.servers)
        same = same and set(found.owners) == set(membership.partitions.owners)
        self.decided, self.reason = found.stage, found.reason
        return None if same else found

    # ---- ActivePSs and BackupPSs

    def safe(self, names: Iterable[MemberId], members: Members) -> tuple[MemberId, ...]:
        """Return those of these members that are on reliable containers."""
        return tuple(name for name in names if _tier(members, name) is Tier.RELIABLE)

    def is_exposed(self, owners: Collection[MemberId], members: Members) -> bool:
        """Return whether a server on a transient container owns a partition."""
        return any(_tier(members, name) is Tier.TRANSIENT for name in set(owners))

    def backups(
        self, membership: Membership, members: Members, warned: Collection[str], plan: Plan | None
    ) -> tuple[m.Target, ...]:
        """Return the servers on reliable containers that stay, which keep the copies of a cut."""
        facts = membership.version, members.changes, warned, plan.going.servers if plan is not None else ()
        if self._backups is None or self._backups[0] != facts:
            names = [name for name in self.safe(membership.servers, members) if name not in facts[-1]]
            stays = [name for name in names if members.by_name[name].container not in warned]
            found = (m.Target(place, name, membership.addresses[name]) for place, name in enumerate(stays))
            self._backups = facts, tuple(found)
        return self._backups[1]

    def server_tier(self, name: MemberId, membership: Membership, members: Members) -> ServerTier | None:
        """Return the tier of a server; None if it is spare."""
        if name not in membership.servers:
            return None
        if name in membership.partitions.owners:
            return ServerTier.PARAM_SERV if _tier(members, name) is Tier.RELIABLE else ServerTier.ACTIVE_PS
        return ServerTier.BACKUP_PS

    def request(self, members: Members, plan: Plan, now_s: float) -> list[e.Command]:
        """Request the containers that a plan adds."""
        before, commands = set(members.hosts), []
        for tier, number in plan.change.containers:
            for _ in range(max(0, number)):
                commands += members.request_host(tier, now_s)
        plan.requested = tuple(name for name in members.hosts if name not in before)
        return commands

    def released(self, members: Members, plan: Plan) -> list[e.Command]:
        """Release the containers that a plan has removed."""
        if plan.purpose is Purpose.ASKED:
            self.reliable = max(1, self.reliable + plan.more_reliable)
        gone = [name for name in plan.releases if name in members.hosts]
        return [command for name in gone for command in members.release_host(name, "removed from the job")]

    def drained(self, members: Members, warned: Collection[str], needed: Collection[MemberId]) -> list[str]:
        """Return the containers that will be taken away and that nothing needs any more."""
        used = {member.container for name in needed if (member := members.by_name.get(name)) is not None}
        return [name for name in warned if name in members.hosts and name not in used]

    def has_news(self, facts: tuple[int, ...]) -> bool:
        """Return whether what containers are needed for may have changed since the last call."""
        before, self._news = self._news, facts
        return facts != before

    def note(self, membership: Membership, members: Members) -> None:
        """Record stage and number of containers, if they have changed."""
        used = {host.container: host.tier for host in members.hosts.values()}
        taking_part = {members.by_name[name].container for name in membership.members if name in members.by_name}
        numbers = {tier: sum(used.get(name) is tier for name in taking_part) for tier in Tier}
        now = self._stage(membership, members), numbers[Tier.RELIABLE], numbers[Tier.TRANSIENT]
        last = self.stages[-1] if self.stages else None
        if last is None or (last.stage, last.reliable, last.transient) != now:
            if last is None or (last.reliable, last.transient) != now[1:]:
                self._measured.clear()
            self.stages.append(StageEntry(max(0, membership.from_clock), *now))
            self._viewed = None

    def _stage(self, membership: Membership, members: Members) -> Stage:
        if not self.is_exposed(membership.partitions.owners, members):
            return Stage.PARAM_SERVS
        works = any(_tier(members, name) is Tier.RELIABLE for name in membership.workers)
        return Stage.ACTIVE_PSS if works else Stage.NO_RELIABLE_WORKERS


def _tier(members: Members, name: MemberId) -> Tier | None:
    """Return the tier of a member's container; None if it has ended."""
    member = members.by_name.get(name)
    return None if member is None else member.tier
