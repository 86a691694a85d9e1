"""Changes of size as users write them: read from text, and checked before they are sent or logged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from eps.core.reconfig import OPERATIONS, TAKINGS, Change, Operation
from eps.core.types import MOST_MEMBERS, Role, Tier
from eps.errors import ConfigError, PlanError, UnknownMemberError
from eps.system.nearest import did_you_mean, one_of

#: Longest request id, in characters.
MOST_ID = 200
#: Longest number that is read from text; every int64 has fewer than 20 digits.
MOST_DIGITS = 18
#: What a scale changes, and of a job on reliable and transient containers what it removes by name.
ROLES, CONTAINERS = ("workers", "servers"), "containers"
#: What a scale of a job on reliable and transient containers changes.
TIERS = tuple(Tier)
_SIZE = re.compile(rf"(workers|servers|reliable|transient)=?([+-])([0-9]{{1,{MOST_DIGITS}}})")
_NAME = re.compile(r"(worker|server)-[1-9][0-9]{0,8}")
_CONTAINER = re.compile(r"container-([0-9]{1,9})")


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
        if change.operation is Operation.SCALE:
            said += " workers and servers together"
        raise ConfigError(
            f"{change.operation} of {said}: a change must concern at least 1 member, and at most {MOST_MEMBERS}"
        )
    for name in change.names if change.operation is not Operation.TIERS else ():
        if not _NAME.fullmatch(name):
            shown = repr(name) if len(name) <= MOST_ID else f"a text of {len(name)} characters"
            raise UnknownMemberError(f"{shown} is not a member's name: expected worker-<n> or server-<n>")


def change_of(operation: str, what: int | Sequence[str]) -> Change:
    """Return the change by a number, or by one name or several; of a scale by its text.

    Raises as :func:`check_change` and :func:`scale_of`.
    """
    if operation == Operation.SCALE:
        return scale_of(what if isinstance(what, str) else repr(what))
    if operation not in OPERATIONS:
        known = one_of(operation, (*OPERATIONS, Operation.SCALE))
        raise ConfigError(f"operation is {operation!r}, but must be {known}")
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


def scale_of(text: str) -> Change:
    """Return the change that ``workers=+2,servers=-1`` asks for; by one role alone it is an addition or a removal.

    ``containers=-container-2,container-3`` removes containers by name.

    Raises
    ------
    ConfigError
        The text is not of that form, names a role twice, or no job could be changed by so many members.
    """
    if text.startswith(f"{CONTAINERS}="):
        return _without(text)
    parts: dict[str, Change] = {}
    tiers: dict[Tier, int] = {}
    for part in text.split(","):
        found = _SIZE.fullmatch(part.strip())
        if found is None or found[1] in (*parts, *tiers) or (tiers and parts):
            role = part.partition("=")[0].strip()
            known = (*ROLES, *TIERS, CONTAINERS)
            near = "" if role in known else did_you_mean(role[:MOST_ID], known)
            raise ConfigError(
                f"{text[:MOST_ID]!r} is no change of size: expected workers=+N or workers=-N, servers=+N or "
                "servers=-N, or one of each, as in workers=+2,servers=-1; of a job on reliable and transient "
                f"containers transient=+N, reliable=+N, or {CONTAINERS}=-NAME{near}"
            )
        if found[1] in TIERS:
            number = int(found[3])
            tiers[Tier(found[1])] = number if found[2] == "+" else -number
            continue
        operation = Operation(f"{'add' if found[2] == '+' else 'remove'}-{found[1]}")
        parts[found[1]] = Change(operation, int(found[3]))
        check_change(parts[found[1]])
    if tiers:
        deltas = tuple((tier, tiers[tier]) for tier in TIERS if tiers.get(tier))
        change = Change(Operation.TIERS, sum(abs(number) for _, number in deltas), containers=deltas)
        check_change(change)
        return change
    if len(parts) == 1:
        return replace(next(iter(parts.values())), by_scale=True)
    # In one order, so that a repeated request is the same change.
    ordered = tuple(parts[f"{role}s"] for role in (Role.WORKER, Role.SERVER))
    change = Change(Operation.SCALE, sum(part.count for part in ordered), parts=ordered)
    check_change(change)
    return change


def _without(text: str) -> Change:
    """Return the change that removes containers by name."""
    sign, *rest = text.removeprefix(f"{CONTAINERS}=").partition("-")
    found = [_CONTAINER.fullmatch(part.strip()) for part in rest[1].split(",")]
    if sign or not rest[0] or not all(found):
        raise UnknownMemberError(
            f"{text[:MOST_ID]!r} is no change of size: expected {CONTAINERS}=-NAME,NAME, as in "
            f"{CONTAINERS}=-container-2,container-3; eps status shows the containers' numbers"
        )
    names = tuple(f"container-{int(name[1]):04d}" for name in found if name is not None)
    if len(set(names)) < len(names):
        raise ConfigError(f"{text[:MOST_ID]!r}: a container is named twice")
    change = Change(Operation.TIERS, len(names), names)
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


def parse_change(text: str) -> Change:
    """Return the change that ``text`` asks for: ``add-workers=2``, ``remove-servers=server-1,server-2``, or a scale.

    Raises
    ------
    PlanError
        The text is not of that form.
    ConfigError
        As of :func:`check_change`.
    """
    name, equals, value = text.strip().partition("=")
    if name in (*ROLES, *TIERS, CONTAINERS):
        return scale_of(text.strip())
    if name == Operation.SCALE and equals:
        return scale_of(value)
    if name in TAKINGS:
        number = 0 if value == "all" else whole_number(value) or None
        if number is None:
            raise PlanError(f"{text!r}: expected {name}=N or {name}=all")
        return Change(Operation(name), number)
    try:
        operation = Operation(name)
        if operation not in OPERATIONS:
            raise ValueError
    except ValueError:
        known = one_of(name, (*OPERATIONS, *ROLES, *TIERS, *TAKINGS))
        raise PlanError(f"{text!r}: operation is {name!r}, but must be {known}") from None
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
