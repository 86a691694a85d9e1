"""The containers of a job on reliable and transient ones: which there are, which may be used, what is spare.  Pure.

:mod:`eps.core.tiers` decides who takes part; the plans of the job carry it out.  The job restores the number of its
reliable containers.  It does not restore transient ones: a user or a scheduler requests more when there are any.

Source: Proteus §3.3 (elasticity controller).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from eps.core import events as e
from eps.core.members import Member, Members
from eps.core.membership import Membership
from eps.core.reconfig import Change, Operation, Plan, Purpose
from eps.core.tiers import Decision, HostView, Stage, decide
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
    """

    def __init__(self, first: Mapping[Tier, int]) -> None:
        self._first = dict(first)
        #: Number of reliable containers that the job restores.
        self.reliable = first[Tier.RELIABLE]
        #: An entry whenever the stage or the number of containers changes.
        self.stages: list[StageEntry] = []

    def request_first(self, members: Members, now_s: float) -> list[e.Command]:
        """Request the containers with which the job starts."""
        numbers = self._first.items()
        return [
            command for tier, number in numbers for _ in range(number) for command in members.request_host(tier, now_s)
        ]

    def views(self, members: Members, warned: Collection[str], plan: Plan | None) -> tuple[HostView, ...]:
        """Return the containers that the job may use.

        Parameters
        ----------
        members : Members
        warned : collection of str
            Containers that will be taken away.
        plan : Plan or None
            The one in flight: the containers that it releases are left out, and its newcomers count.
        """
        without = {*warned, *(plan.releases if plan is not None else ())}
        coming = plan.added if plan is not None else ()
        found = []
        for host in members.hosts.values():
            if host.container in without:
                continue
            here: dict[Role, MemberId] = {}
            for member in members.in_container(host.container):
                if member.address is not None or member.name in coming:
                    here.update(dict.fromkeys(member.roles, member.name))
            found.append(HostView(host.container, host.tier, host.rank, here.get(Role.WORKER), here.get(Role.SERVER)))
        return tuple(found)

    def first_membership(self, members: Members, settings: CoreSettings) -> Membership | None:
        """Return the first membership, or None while a member has not registered."""
        decision = decide(self.views(members, (), None))
        if decision is None or any(member.address is None for member in members.by_name.values()):
            return None
        return members.first_membership(settings, {*decision.workers, *decision.servers})

    def spare(self, members: Members, views: Collection[HostView], role: Role) -> Member | None:
        """Return a registered member of a role for a recovery that has none left."""
        for host in sorted(views, key=lambda host: (host.tier is not Tier.RELIABLE, host.rank)):
            name = host.worker if role is Role.WORKER else host.server
            member = members.by_name.get(name or "")
            fits = role is Role.WORKER or host.tier is Tier.RELIABLE
            if fits and member is not None and member.address is not None:
                return member
        return None

    def lacking(self, views: Collection[HostView]) -> int:
        """Return how many reliable containers are missing."""
        return max(0, self.reliable - sum(host.tier is Tier.RELIABLE for host in views))

    def replacement(self, views: Collection[HostView]) -> Change | None:
        """Return the change that restores the reliable containers; None if there are enough."""
        number = self.lacking(views)
        return Change(Operation.TIERS, number, containers=((Tier.RELIABLE, number),)) if number else None

    def decision(self, membership: Membership, views: Collection[HostView]) -> Decision | None:
        """Return who should take part; None if that is as it is, or cannot be."""
        found = decide(views)
        if found is None:
            return None
        same = set(found.workers) == set(membership.workers) and set(found.servers) == set(membership.servers)
        return None if same else found

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
            self.reliable += sum(number for tier, number in plan.change.containers if tier is Tier.RELIABLE)
        gone = [name for name in plan.releases if name in members.hosts]
        return [command for name in gone for command in members.release_host(name, "removed from the job")]

    def drained(self, members: Members, warned: Collection[str], needed: Collection[MemberId]) -> list[str]:
        """Return the containers that will be taken away and that nothing needs any more."""
        here = [name for name in warned if name in members.hosts]
        return [name for name in here if not any(each.name in needed for each in members.in_container(name))]

    def note(self, membership: Membership, members: Members) -> None:
        """Record stage and number of containers, if they have changed."""
        used = {host.container: host.tier for host in members.hosts.values()}
        taking_part = {members.by_name[name].container for name in membership.members if name in members.by_name}
        numbers = {tier: sum(used.get(name) is tier for name in taking_part) for tier in Tier}
        now = Stage.PARAM_SERVS, numbers[Tier.RELIABLE], numbers[Tier.TRANSIENT]
        last = self.stages[-1] if self.stages else None
        if last is None or (last.stage, last.reliable, last.transient) != now:
            self.stages.append(StageEntry(membership.from_clock, *now))
