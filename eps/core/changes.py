"""Is a change possible, and which members does it concern?  Pure questions about counts and names.  L0.

Source: EPS §3.2, §3.3; design section 4 ("refuses what would break a job").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eps.core.reconfig import OPERATIONS, Change, Operation, Phase, Plan
from eps.core.settings import CoreSettings
from eps.core.types import MOST_MEMBERS, MemberId, Role, Team, member_name
from eps.errors import ConfigError, PlanError, UnknownMemberError

#: Longest request id, in characters.
MOST_ID = 200
#: Longest number that is read from text; every int64 has fewer than 20 digits.
MOST_DIGITS = 18
#: Members that a message names before it only counts them.
_MOST_NAMED = 10
_NAME = re.compile(r"(worker|server)-[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Roster:
    """Who will be there once the plans that are on their way have happened, in the order in which they joined."""

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


def whole_number(text: str) -> int | None:
    """Return the number that ``text`` writes in decimal digits; None where it writes none, or one of too many digits.

    Python itself refuses thousands of digits with a ``ValueError``.
    """
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else None


def check_change(change: Change) -> None:
    """Check count and names of a change from outside, before it is logged, sent, or names are made of it.

    Raises
    ------
    ConfigError
        No job could be changed by so many members.
    UnknownMemberError
        A name could not be a member's.
    """
    count = change.count
    if not 1 <= count <= MOST_MEMBERS:
        said = str(count) if abs(count) < 10**MOST_DIGITS else f"a number of {count.bit_length()} bits"
        raise ConfigError(
            f"{change.operation} of {said}: a change must concern at least 1 member, and at most {MOST_MEMBERS}"
        )
    for name in change.names:
        if not _NAME.fullmatch(name):
            shown = repr(name) if len(name) <= MOST_ID else f"a text of {len(name)} characters"
            raise UnknownMemberError(f"{shown} is not a member's name: expected worker-<n> or server-<n>")


def change_of(operation: str, what: int | Sequence[str]) -> Change:
    """Return the change by a number, or by one name or several.  Raises as :func:`check_change`."""
    if operation not in OPERATIONS:
        raise ConfigError(f"operation is {operation!r}, but must be one of {', '.join(OPERATIONS)}")
    operation = Operation(operation)
    if isinstance(what, int) and not isinstance(what, bool):
        change = Change(operation, what)
    else:
        names = (what,) if isinstance(what, str) else tuple(what) if isinstance(what, Sequence) else ()
        if operation.adds and names:
            raise ConfigError(f"{operation} takes a number; new members are named by the job")
        if not names or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"{operation} takes a number from 1 on, or names of members, not {repr(what)[:MOST_ID]}")
        change = Change(operation, len(names), names)
    check_change(change)
    return change


def check_request_id(text: str) -> None:
    """Check the name that a client gives its request, before it is logged.

    Raises
    ------
    ConfigError
        It is no text, too long, or has characters that cannot be printed.
    """
    if not isinstance(text, str):
        raise ConfigError(f"request_id is {text!r}, but must be a text")
    if len(text) > MOST_ID or not text.isprintable():
        raise ConfigError(
            f"request_id has {len(text)} characters, but must have at most {MOST_ID}, all of them printable"
        )


def resolve(roster: Roster, change: Change, settings: CoreSettings) -> tuple[Roster, Team, Team]:
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
        return roster, Team(), Team()
    if change.count < 1:
        raise PlanError(f"{change.operation} asks for {change.count} members; a change concerns at least one")
    if change.operation.adds:
        limit = settings.num_splits if role is Role.WORKER else settings.num_partitions
        items = "splits" if role is Role.WORKER else "partitions"
        if len(present) + change.count > MOST_MEMBERS:
            raise PlanError(f"{change}: a job has at most {MOST_MEMBERS} {role}s, and this one has {len(present)}")
        if len(present) + change.count > limit:
            raise PlanError(
                f"{change}: {len(present)} + {change.count} {role}s would share {limit} {items}; "
                f"a job has at most one {role} for each of its {items}"
            )
        # Not before: a count from outside may be any number.
        first = roster.next_number(role)
        added = tuple(member_name(role, first + i) for i in range(change.count))
        return _with(roster, role, present + added, first + change.count), Team.of(role, added), Team()
    if change.names:
        _check_names(change.names, present, role)
        removed = tuple(name for name in present if name in change.names)
    else:
        if change.count >= len(present):
            raise PlanError(
                f"{change}: the job has {len(present)} {role}{'s' * (len(present) != 1)} and must keep at least one"
            )
        removed = present[-change.count :]
    if len(removed) >= len(present):
        raise PlanError(f"{change}: the job has {len(present)} {role}s and must keep at least one")
    going = frozenset(removed)
    staying = tuple(m for m in present if m not in going)
    return _with(roster, role, staying, roster.next_number(role)), Team(), Team.of(role, removed)


def _resolve_drain(roster: Roster, names: Sequence[MemberId]) -> tuple[Roster, Team, Team]:
    """Return what :func:`resolve` does for members that must leave; the last of a role get a successor."""
    coming: dict[Role, tuple[MemberId, ...]] = {}
    going: dict[Role, tuple[MemberId, ...]] = {}
    for role in Role:
        present, number = roster.of_role(role), roster.next_number(role)
        going[role] = tuple(name for name in names if name in present)
        staying = tuple(name for name in present if name not in going[role])
        coming[role] = () if staying else (member_name(role, number),)
        roster = _with(roster, role, staying + coming[role], number + len(coming[role]))
    unknown = sorted(set(names).difference(*going.values()))
    if unknown:
        raise UnknownMemberError(f"{', '.join(unknown)}: no members of the job")
    added, removed = (Team(found[Role.WORKER], found[Role.SERVER]) for found in (coming, going))
    return roster, added, removed


def after_plans(roster: Roster, plans: Iterable[Plan], settings: CoreSettings) -> Roster:
    """Return who will be there once ``plans`` have happened, in order; one that cannot happen changes nothing."""
    for plan in plans:
        if plan.phase is not Phase.QUEUED:
            # Its newcomers are named already; their numbers are used.
            for role in Role:
                staying = tuple(name for name in roster.of_role(role) if name not in plan.removed)
                roster = _with(roster, role, staying + plan.coming.of_role(role), roster.next_number(role))
            continue
        try:
            roster = resolve(roster, plan.change, settings)[0]
        except PlanError:
            continue
    return roster


def _check_names(names: Iterable[MemberId], present: Sequence[MemberId], role: Role) -> None:
    seen: set[MemberId] = set()
    there = frozenset(present)
    for name in names:
        if name in seen:
            raise PlanError(f"{name} is named twice")
        seen.add(name)
        if name not in there:
            more = f" and {len(present) - _MOST_NAMED} more" * (len(present) > _MOST_NAMED)
            raise UnknownMemberError(
                f"{name} is not a {role} of the job; it has {', '.join(present[:_MOST_NAMED])}{more}"
            )


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
    ConfigError
        As of :func:`check_change`.
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
        count = whole_number(value)
        if count is None:
            raise ConfigError(
                f"{operation}: a number of {len(value)} digits, but a job has at most {MOST_MEMBERS} of a role"
            )
        change = Change(operation, count)
    elif operation.adds:
        raise PlanError(f"{text!r}: {value!r} is not a count; new members are named by the job")
    else:
        names = tuple(part.strip() for part in value.split(","))
        change = Change(operation, len(names), names)
    check_change(change)
    return change
