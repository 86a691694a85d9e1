"""Is a change possible, and which members does it concern?  Pure questions about counts and names.  L0.

Source: EPS §3.2, §3.3; design section 4 ("refuses what would break a job").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eps.core.reconfig import OPERATIONS, Change, Operation, Phase, Plan
from eps.core.settings import CoreSettings
from eps.core.types import MemberId, Role, member_name, member_number, members_of
from eps.errors import PlanError, UnknownMemberError


@dataclass(frozen=True, slots=True)
class Roster:
    """Who will be there once the plans that are on their way have happened."""

    workers: tuple[MemberId, ...]
    servers: tuple[MemberId, ...]
    #: Number of the next worker and the next server; numbers are never used again.
    next_worker: int
    next_server: int

    def of_role(self, role: Role) -> tuple[MemberId, ...]:
        """Return the members of one role."""
        return self.workers if role is Role.WORKER else self.servers

    def next_number(self, role: Role) -> int:
        """Return the number of the next member of a role."""
        return self.next_worker if role is Role.WORKER else self.next_server


def highest(members: Sequence[MemberId], count: int) -> tuple[MemberId, ...]:
    """Return the ``count`` members with the highest numbers, ascending."""
    return tuple(sorted(members, key=member_number)[len(members) - count :]) if count else ()


def resolve(
    roster: Roster, change: Change, settings: CoreSettings
) -> tuple[Roster, tuple[MemberId, ...], tuple[MemberId, ...]]:
    """Return the roster after ``change``, the members it adds and the members it removes.

    Raises
    ------
    PlanError
        The change would leave no worker or no server, more workers than splits, more servers than partitions, or
        asks for nothing.
    UnknownMemberError
        A name is not a member, or not of the operation's role.
    """
    if change.operation is Operation.DRAIN:
        return _resolve_drain(roster, change.names)
    role = change.operation.role
    present = roster.of_role(role)
    if change.operation is Operation.FOLLOW:
        return roster, (), ()
    if change.count < 1:
        raise PlanError(f"{change.operation} asks for {change.count} members; a change concerns at least one")
    if change.operation.adds:
        first = roster.next_number(role)
        added = tuple(member_name(role, first + i) for i in range(change.count))
        limit = settings.num_splits if role is Role.WORKER else settings.num_partitions
        items = "splits" if role is Role.WORKER else "partitions"
        if len(present) + change.count > limit:
            raise PlanError(
                f"{change}: {len(present)} + {change.count} {role}s would share {limit} {items}; "
                f"a job has at most one {role} for each of its {items}"
            )
        return _with(roster, role, present + added, first + change.count), added, ()
    if change.names:
        _check_names(change.names, present, role)
        removed = tuple(sorted(change.names, key=member_number))
    else:
        if change.count >= len(present):
            raise PlanError(
                f"{change}: the job has {len(present)} {role}{'s' * (len(present) != 1)} and must keep at least one"
            )
        removed = highest(present, change.count)
    if len(removed) >= len(present):
        raise PlanError(f"{change}: the job has {len(present)} {role}s and must keep at least one")
    staying = tuple(m for m in present if m not in removed)
    return _with(roster, role, staying, roster.next_number(role)), (), removed


def _resolve_drain(
    roster: Roster, names: Sequence[MemberId]
) -> tuple[Roster, tuple[MemberId, ...], tuple[MemberId, ...]]:
    """Return what :func:`resolve` does for members that must leave, whoever else there is."""
    added: tuple[MemberId, ...] = ()
    for role in Role:
        present, number = roster.of_role(role), roster.next_number(role)
        going = members_of(role, names)
        _check_names(going, present, role)
        staying = tuple(name for name in present if name not in going)
        if not staying:
            staying, number = (member_name(role, number),), number + 1
            added += staying
        roster = _with(roster, role, staying, number)
    return roster, added, tuple(names)


def after_plans(roster: Roster, plans: Iterable[Plan], settings: CoreSettings) -> Roster:
    """Return who will be there once ``plans`` have happened, in order; one that cannot happen changes nothing."""
    for plan in plans:
        if plan.phase is not Phase.QUEUED:
            # Its newcomers are named already; their numbers are used.
            for role in Role:
                staying = tuple(name for name in roster.of_role(role) if name not in plan.removed)
                roster = _with(roster, role, staying + members_of(role, plan.added), roster.next_number(role))
            continue
        try:
            roster = resolve(roster, plan.change, settings)[0]
        except PlanError:
            continue
    return roster


def _check_names(names: Iterable[MemberId], present: Sequence[MemberId], role: Role) -> None:
    seen: set[MemberId] = set()
    for name in names:
        if name in seen:
            raise PlanError(f"{name} is named twice")
        seen.add(name)
        if name not in present:
            raise UnknownMemberError(f"{name} is not a {role} of the job; it has {', '.join(present)}")


def _with(roster: Roster, role: Role, members: tuple[MemberId, ...], following: int) -> Roster:
    if role is Role.WORKER:
        return Roster(members, roster.servers, following, roster.next_server)
    return Roster(roster.workers, members, roster.next_worker, following)


def parse_change(text: str) -> Change:
    """Return the change that ``text`` asks for: ``add-workers=2`` or ``remove-servers=server-1,server-2``.

    Raises
    ------
    PlanError
        The text is not of that form.
    """
    name, equals, value = text.strip().partition("=")
    try:
        operation = Operation(name)
        if operation not in OPERATIONS:
            raise ValueError
    except ValueError:
        known = ", ".join(OPERATIONS)
        raise PlanError(f"{text!r}: {name!r} is not an operation; known are {known}") from None
    if not equals or not value:
        raise PlanError(f"{text!r}: expected {operation}=<count>" + ("" if operation.adds else " or names"))
    if value.isdecimal():
        return Change(operation, int(value))
    if operation.adds:
        raise PlanError(f"{text!r}: {value!r} is not a count; new members are named by the job")
    names = tuple(part.strip() for part in value.split(","))
    for member in names:
        try:
            member_number(member)
        except ValueError as error:
            raise PlanError(f"{text!r}: {error}") from None
    return Change(operation, len(names), names)
