"""Containers that the cluster will take away, and the outcome for their members.  Pure.

A plan drains members on announced containers; other uncommitted plans are aborted for it.
A member that is still there at the deadline is lost like any other, and the job recovers.

Source: Proteus §3.3 (an *eviction* is announced, a *failure* is not, and an *effective failure* is announced too late).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from eps.core import events as e
from eps.core.membership import Membership
from eps.core.reconfig import Operation, Plan
from eps.core.types import MemberId, Role

#: Notice of an eviction by a trigger or a signal, in seconds: as on EC2 (Proteus §3.3).
NOTICE_S = 120.0
#: Phrase after a container's name if the resource manager gives no reason.
TAKEN_AWAY = "will be taken away"


class EvictionOutcome(StrEnum):
    """The outcome of an announced eviction."""

    #: Its member is still there.
    WARNED = "warned"
    #: Its member was drained before the deadline.
    DRAINED = "drained"
    #: Its member was drained after the deadline, because the cluster took the container later than announced.
    LATE = "late"
    #: Its member ended before it was drained, and others took over (an effective failure).
    LOST = "lost"
    #: The container was released before its member took part.
    WITHDRAWN = "withdrawn"


@dataclass
class Eviction:
    """The announced eviction of a container."""

    #: The members in it.
    names: tuple[MemberId, ...]
    roles: frozenset[Role]
    container_id: str
    #: Phrase after the container's name.
    reason: str
    warned_s: float
    #: When the container will be taken away, on the master's clock.
    deadline_s: float
    #: The plan that drains it; 0 before there is one.
    plan_id: int = 0
    outcome: EvictionOutcome = EvictionOutcome.WARNED
    #: When the container was released or lost.
    ended_s: float | None = None
    #: Whether its resources go to other applications.
    for_others: bool = False
    #: Whether its member was part of the membership when it ended.
    took_part: bool = False

    @property
    def name(self) -> str:
        """The members in it, as text."""
        return ", ".join(self.names)

    @property
    def lost(self) -> bool:
        """Return whether a member that took part ended before it was drained."""
        return self.took_part and self.outcome is EvictionOutcome.LOST

    def warn_again(self, deadline_s: float, now_s: float, reason: str = "", for_others: bool = False) -> None:
        """Record a further warning, if its deadline is earlier or the old deadline has passed."""
        self.for_others = self.for_others or for_others
        if deadline_s < self.deadline_s or self.deadline_s < now_s:
            self.deadline_s, self.reason = deadline_s, reason or self.reason

    def end(self, outcome: EvictionOutcome, now_s: float) -> None:
        """Record the outcome; a drain after the deadline counts as late."""
        late = outcome is EvictionOutcome.DRAINED and now_s > self.deadline_s
        self.outcome, self.ended_s = EvictionOutcome.LATE if late else outcome, now_s


class Evictions:
    """The evictions of a job."""

    def __init__(self) -> None:
        #: All announced evictions, oldest first.
        self.all: list[Eviction] = []
        #: Container -> its open eviction.
        self._open: dict[str, Eviction] = {}
        #: Member -> its open eviction.
        self._of: dict[MemberId, Eviction] = {}
        #: The latest answer of :meth:`next_to_drain`, while it holds.
        #: With it, the longest step of an eviction of 512 containers at once takes 21 ms of CPU time.
        self._next: tuple[Membership, tuple[MemberId, ...]] | None = None
        #: Evictions that ended since the last call of :meth:`settle`.
        self._over: list[Eviction] = []

    def warn(
        self, names: tuple[MemberId, ...], roles: frozenset[Role], warning: e.ContainerWarning, now_s: float
    ) -> list[e.Command]:
        """Record that the container of some members will be taken away."""
        deadline_s, known = now_s + warning.deadline_s, self._open.get(warning.container_id)
        if known is not None:
            known.warn_again(deadline_s, now_s, warning.reason, warning.for_others)
            return []
        reason = warning.reason or TAKEN_AWAY
        eviction = Eviction(names, roles, warning.container_id, reason, now_s, deadline_s)
        eviction.for_others = warning.for_others
        self.all.append(eviction)
        self._open[warning.container_id] = eviction
        self._of.update(dict.fromkeys(names, eviction))
        self._next = None
        details = {"container": warning.container_id, "in_s": round(warning.deadline_s, 6), "reason": reason}
        return [e.noted("warned", now_s, member=eviction.name, **details)]

    def end(self, container_id: str, outcome: EvictionOutcome, now_s: float, *, took_part: bool) -> list[e.Command]:
        """Record how a container ended; no effect if its eviction was not announced."""
        eviction = self._open.pop(container_id, None)
        if eviction is None:
            return []
        for name in eviction.names:
            del self._of[name]
        self._next = None
        eviction.end(outcome, now_s)
        eviction.took_part = took_part
        self._over.append(eviction)
        details = {"container": container_id, "outcome": str(eviction.outcome), "plan": eviction.plan_id}
        seconds = round(now_s - eviction.warned_s, 6)
        return [e.noted("evicted", now_s, member=eviction.name, **details, seconds=seconds)]

    def settle(self, containers: Collection[str], now_s: float) -> tuple[list[Eviction], list[e.Command]]:
        """Withdraw the evictions of containers that were released before the job used them.

        Parameters
        ----------
        containers : collection
            The containers that the job uses.

        Returns
        -------
        over : list of Eviction
            Evictions that ended since the last call.
        commands : list of Command
        """
        withdrawn = [container_id for container_id in self._open if container_id not in containers]
        commands = [
            command
            for container_id in withdrawn
            for command in self.end(container_id, EvictionOutcome.WITHDRAWN, now_s, took_part=False)
        ]
        over, self._over = self._over, []
        return over, commands

    @property
    def are_open(self) -> bool:
        """Return whether the cluster will take away a container that the job uses."""
        return bool(self._open)

    def of(self, name: MemberId) -> Eviction | None:
        """Return the open eviction of a member, or None."""
        return self._of.get(name)

    def next_to_drain(self, membership: Membership) -> tuple[MemberId, ...]:
        """Return the members to drain next; see :func:`next_to_drain`."""
        if not self._open:
            return ()
        if self._next is None or self._next[0] is not membership:
            self._next = membership, next_to_drain(membership, self._of)
        return self._next[1]

    @property
    def containers(self) -> list[str]:
        """The containers that will be taken away."""
        return list(self._open)

    def drained_by(self, plan: Plan) -> None:
        """Record the plan that drains announced members."""
        for name in plan.removed:
            if (eviction := self._of.get(name)) is not None:
                eviction.plan_id = plan.plan_id

    def servers_warned_s(self, membership: Membership) -> float | None:
        """Return the time of the latest warning if all servers are announced to go, else None."""
        if not all(name in self._of for name in membership.servers):
            return None
        return max(self._of[name].warned_s for name in membership.servers)

    def validate(self) -> None:
        """Assert that exactly the evictions without an outcome are open."""
        waiting = [eviction for eviction in self.all if eviction.outcome is EvictionOutcome.WARNED]
        assert waiting == list(self._open.values())
        assert all(eviction.container_id == container_id for container_id, eviction in self._open.items())
        assert self._of == {name: eviction for eviction in waiting for name in eviction.names}


def counts(evictions: Iterable[Eviction]) -> dict[str, int]:
    """Return how many evictions were announced (``asked``), and how many had each outcome."""
    found = Counter(str(eviction.outcome) for eviction in evictions)
    return {"asked": found.total(), **{str(outcome): found[str(outcome)] for outcome in EvictionOutcome}}


def next_to_drain(membership: Membership, warned: Collection[MemberId]) -> tuple[MemberId, ...]:
    """Return which of the warned members to drain next.

    One plan drains all at once, workers and servers, because each plan waits for a commit clock.  If all members of a
    role are warned, they need a successor that may take long: they are drained after those that need none.
    """
    going = {role: tuple(name for name in membership.of_role(role) if name in warned) for role in Role}
    at_once = [name for role, names in going.items() if names != membership.of_role(role) for name in names]
    return tuple(at_once) or going[Role.WORKER] + going[Role.SERVER]


def is_all_of_a_role(membership: Membership, names: Collection[MemberId]) -> bool:
    """Return whether some role would have no member left without ``names``."""
    return any(set(membership.of_role(role)) <= set(names) for role in Role)


def may_continue(plan: Plan, membership: Membership, names: Collection[MemberId]) -> bool:
    """Return whether an uncommitted plan may continue beside the drain of ``names``.

    It may if it removes them itself and waits for no new member.  If the drain needs a successor, it also may if it
    brings one, or if it adds no member and so ends soon.
    """
    if set(names) <= set(plan.removed) and (not plan.added or plan.change.operation is Operation.DRAIN):
        return True
    if not is_all_of_a_role(membership, names) or plan.change.operation is Operation.DRAIN:
        return False
    lacking = [role for role in Role if set(membership.of_role(role)) <= set(names)]
    return not plan.added or any(plan.coming.of_role(role) for role in lacking)
