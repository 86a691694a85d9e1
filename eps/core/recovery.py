"""What a job does about lost members: asks the rest, counts losses, and ends a job that loses members in vain.

Which member takes over what follows from the answers: :mod:`eps.core.take_over`.  Pure.  L0.

Source: design sections 4 and 5; Proteus §3.3; Spotnik §4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from eps.core import events as e
from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.take_over import Inquiry
from eps.core.types import Address, MemberId, Role

#: A job ends at so many incidents without a complete clock between them: its members die of what it does.
MOST_INCIDENTS = 12
#: While a job starts nothing is lost by ending it: so much sooner.
MOST_INCIDENTS_AT_START = 3
#: Losses within so many seconds of the first are one incident: a machine takes all its members along.
INCIDENT_S = 2.0


class LossOutcome(StrEnum):
    """What came of the loss of a member."""

    #: It is not decided, or the job ended before it was.
    OPEN = "open"
    TAKEN_OVER = "taken-over"
    ROLLED_BACK = "rolled-back"
    #: It held nothing yet: another was requested.
    REPLACED = "replaced"


@dataclass
class Loss:
    """A member that was lost, for people."""

    name: MemberId
    reason: str
    #: Clocks that were complete.
    clock: int
    at_s: float
    #: The clock that the job went back to; None where it did not.
    back_to: int | None = None
    outcome: LossOutcome = LossOutcome.OPEN


@dataclass(frozen=True, slots=True)
class GoingBack:
    """The job went back to a checkpoint or to its seed, for people."""

    #: Clocks that were complete before, and where it began again.
    clock: int
    to: int
    at_s: float
    #: Members that were lost -> how they ended.
    lost: Mapping[MemberId, str]
    #: Which member could not read which checkpoint, and why; empty where that was not the cause.
    unreadable: str = ""
    #: The servers among those that were lost: parameters are lost with them.
    servers: tuple[MemberId, ...] = ()


class Recovery:
    """The recoveries of a job, and its losses."""

    def __init__(self, first_clock: int) -> None:
        #: The one in flight.
        self.inquiry: Inquiry | None = None
        #: Every member that was lost, oldest first.
        self.losses: list[Loss] = []
        #: Each time that the job went back, oldest first.
        self.goings_back: list[GoingBack] = []
        self._number = 0
        #: Container of a member that fell silent -> its name, and what was found.
        self._silent: dict[str, tuple[MemberId, str]] = {}
        #: Incidents since the last complete clock, and when the last of them began.
        self._incidents = 0
        self._incident_s = -math.inf
        #: The first incomplete clock at the last incident, or where the job has gone back to since.
        self._counted_at = first_clock

    # ---- losses

    def lost(self, name: MemberId, reason: str, completed: int, now_s: float) -> list[e.Command]:
        """Write a loss down."""
        self.losses.append(Loss(name, reason, completed, now_s))
        return [e.noted("lost", now_s, member=name, reason=reason)]

    def fell_silent(self, container_id: str, name: MemberId, reason: str) -> None:
        """Remember a member that fell silent: it hangs, or its machine is lost; the end of its container tells."""
        self._silent[container_id] = name, reason

    def was_silent(self, container_id: str) -> tuple[MemberId, str] | None:
        """Return the member that had fallen silent in a container that has ended, and the reason; None for none."""
        return self._silent.pop(container_id, None)

    def replaced(self) -> None:
        """The member that was lost last held nothing."""
        self.losses[-1].outcome = LossOutcome.REPLACED

    def in_vain(self, completed: int, now_s: float, *, starts: bool) -> str:
        """Count a failure that is the job's own; return why the job ends if it is one too many.

        What the cluster takes away is not counted: that says nothing about the job.
        """
        if completed > self._counted_at:
            # A clock that is completed again after a rollback counts, too: the job makes progress.
            self._incidents, self._counted_at = 0, completed
        if now_s - self._incident_s < INCIDENT_S:
            return ""
        self._incident_s = now_s
        self._incidents += 1
        if self._incidents < (MOST_INCIDENTS_AT_START if starts else MOST_INCIDENTS):
            return ""
        return f"{self._incidents} failures without one complete clock between them"

    # ---- the inquiry

    def begin(self, before: Membership, unacked: bool, lost: Mapping[MemberId, str], unreadable: str = "") -> None:
        """Ask the members that are left, after one more was lost or could not read a checkpoint.

        Parameters
        ----------
        before : Membership
            The newest one.
        unacked : bool
            Some member may not have it yet.
        lost : mapping
            Member -> how it ended.
        unreadable : str
            Which member could not read the checkpoint that ``before`` goes back to.
        """
        last = self.inquiry or Inquiry(0)
        # Some may not have gone back yet: then what members hold is of two incarnations.
        half_back = self.inquiry is None and before.goes_back and unacked
        self._number += 1
        self.inquiry = Inquiry(
            self._number,
            {**last.lost, **lost},
            newcomers=last.newcomers,
            roles=last.roles,
            must_go_back=last.must_go_back or half_back or bool(unreadable),
            unreadable=unreadable or last.unreadable,
        )

    def orders(self, before: Membership) -> list[tuple[MemberId, m.Order]]:
        """Return the questions that are not answered."""
        return self.inquiry.orders(before) if self.inquiry is not None else []

    def hear(self, inventory: m.Inventory) -> None:
        """Take an answer in."""
        if self.inquiry is not None:
            self.inquiry.hear(inventory)

    def is_newcomer(self, name: MemberId) -> bool:
        """Return whether the recovery waits for a member that was requested for it."""
        return self.inquiry is not None and name in self.inquiry.newcomers

    def add(self, name: MemberId, role: Role) -> None:
        """Wait for a newcomer."""
        assert self.inquiry is not None
        self.inquiry.newcomers[name], self.inquiry.roles[name] = None, role

    def registered(self, name: MemberId, address: Address) -> bool:
        """Take in that a newcomer registered; return False where it is none."""
        if self.inquiry is None or name not in self.inquiry.newcomers:
            return False
        self.inquiry.newcomers[name] = address
        return True

    def drop(self, name: MemberId) -> None:
        """A newcomer ended."""
        assert self.inquiry is not None
        del self.inquiry.newcomers[name], self.inquiry.roles[name]

    def end(self, before: Membership, after: Membership, completed: int, now_s: float) -> list[e.Command]:
        """Note which membership came of it."""
        inquiry, self.inquiry = self.inquiry, None
        assert inquiry is not None
        if after.goes_back:
            self._note_going_back(inquiry, before, max(0, after.from_clock), max(0, completed), now_s)
            self._counted_at = after.from_clock
        for loss in self.losses:
            if loss.name in inquiry.lost and loss.outcome is LossOutcome.OPEN:
                loss.outcome = LossOutcome.TAKEN_OVER
        record = {
            "lost": sorted(inquiry.lost),
            "version": after.version,
            "clock": after.from_clock,
            "incarnation": after.incarnation,
            "workers": list(after.workers),
            "servers": list(after.servers),
            "owners": list(after.partitions.owners),
            "active": list(after.splits.active),
        }
        return [e.synced("rolled-back" if after.goes_back else "taken-over", now_s, **record)]

    def _note_going_back(self, inquiry: Inquiry, before: Membership, to: int, clock: int, now_s: float) -> None:
        """Write down that the job goes back; where it had not begun again since the last time, both are one."""
        lost, unreadable = dict(inquiry.lost), inquiry.unreadable
        servers = tuple(name for name in lost if name in before.servers)
        if before.goes_back and inquiry.must_go_back:
            last = self.goings_back.pop()
            clock, lost, servers = last.clock, {**last.lost, **lost}, last.servers + servers
            unreadable = "; ".join(filter(None, (last.unreadable, unreadable)))
        self.goings_back.append(GoingBack(clock, to, now_s, lost, unreadable, servers))
        for loss in self.losses:
            if loss.name in lost and loss.outcome in (LossOutcome.OPEN, LossOutcome.ROLLED_BACK):
                loss.outcome, loss.back_to = LossOutcome.ROLLED_BACK, to

    def validate(self) -> None:
        """Assert what is always true of recoveries."""
        inquiry = self.inquiry
        if inquiry is None:
            return
        assert inquiry.number == self._number and set(inquiry.newcomers) == set(inquiry.roles)
        assert not set(inquiry.lost) & (set(inquiry.inventories) | set(inquiry.newcomers))
