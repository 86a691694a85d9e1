"""The possible changes, and their syntax."""

from __future__ import annotations

import re
from typing import Any

import pytest

from eps.core import reconfig
from eps.core.reconfig import (
    OPERATIONS,
    Change,
    Operation,
    Roster,
    resolve,
)
from eps.core.types import MOST_MEMBERS, CoreSettings, Team
from eps.errors import ConfigError, PlanError, UnknownMemberError
from eps.spec.changes import MOST_ID, change_of, check_change, check_request_id, parse_change, scale_of

SETTINGS = CoreSettings(num_splits=6, num_partitions=4, iterations=10)
ROSTER = Roster(("worker-1", "worker-2", "worker-10"), ("server-1", "server-3"), next_worker=11, next_server=4)


def test_added_members_get_new_numbers() -> None:
    roster, added, removed = resolve(ROSTER, Change(Operation.ADD_WORKERS, 2), SETTINGS)

    assert (added, removed) == (Team(("worker-11", "worker-12")), Team())
    assert roster == Roster((*ROSTER.workers, "worker-11", "worker-12"), ROSTER.servers, 13, 4)


def test_removal_by_count_takes_those_that_joined_last() -> None:
    roster, added, removed = resolve(ROSTER, Change(Operation.REMOVE_WORKERS, 2), SETTINGS)

    assert (added, removed) == (Team(), Team(("worker-2", "worker-10")))
    assert roster == Roster(("worker-1",), ROSTER.servers, 11, 4)


def test_removal_by_name_takes_those_named() -> None:
    change = Change(Operation.REMOVE_WORKERS, 2, ("worker-10", "worker-1"))

    roster, _, removed = resolve(ROSTER, change, SETTINGS)

    assert removed == Team(("worker-1", "worker-10"))
    assert roster.workers == ("worker-2",)


def test_a_scale_adds_and_removes_in_one_plan() -> None:
    roster, added, removed = resolve(ROSTER, scale_of("workers=+2,servers=-1"), SETTINGS)

    assert (added, removed) == (Team(("worker-11", "worker-12")), Team((), ("server-3",)))
    assert roster == Roster((*ROSTER.workers, "worker-11", "worker-12"), ("server-1",), 13, 4)
    with pytest.raises(PlanError, match=r"remove-servers=2: .*one"):
        resolve(ROSTER, scale_of("workers=+2,servers=-2"), SETTINGS)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (Change(Operation.ADD_WORKERS, 0), PlanError, "asks for 0 members; a change concerns at least one"),
        (Change(Operation.REMOVE_SERVERS, -1), PlanError, "asks for -1 members"),
        (Change(Operation.ADD_WORKERS, 4), PlanError, r"3 \+ 4 workers would share 6 splits"),
        (Change(Operation.ADD_SERVERS, 3), PlanError, r"2 \+ 3 servers would share 4 partitions"),
        (Change(Operation.REMOVE_WORKERS, 3), PlanError, "the job has 3 workers and must keep at least one"),
        (Change(Operation.REMOVE_WORKERS, 9), PlanError, "the job has 3 workers and must keep at least one"),
        (
            Change(Operation.REMOVE_SERVERS, 2, ("server-1", "server-3")),
            PlanError,
            "the job has 2 servers and must keep at least one",
        ),
        (Change(Operation.REMOVE_WORKERS, 2, ("worker-1", "worker-1")), PlanError, "worker-1 is named twice"),
        (
            Change(Operation.REMOVE_WORKERS, 1, ("worker-7",)),
            UnknownMemberError,
            "worker-7 is not a worker of the job; it has worker-1, worker-2, worker-10",
        ),
        (Change(Operation.REMOVE_WORKERS, 1, ("server-1",)), UnknownMemberError, "server-1 is not a worker"),
    ],
)
def test_change_that_would_break_the_job_is_refused(change: Change, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve(ROSTER, change, SETTINGS)


def test_name_that_is_no_members_is_answered_with_ten_of_those_that_are_and_the_number_of_the_others() -> None:
    workers = tuple(f"worker-{number}" for number in range(1, 14))

    with pytest.raises(UnknownMemberError, match=r"worker-10 and 3 more$"):
        resolve(Roster(workers, ("server-1",), 14, 2), Change(Operation.REMOVE_WORKERS, 1, ("worker-14",)), SETTINGS)


def test_no_name_is_made_of_a_count_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(*of: object) -> str:
        raise AssertionError(f"{of} are named")

    monkeypatch.setattr(reconfig, "member_name", name)
    with pytest.raises(PlanError):
        resolve(ROSTER, Change(Operation.ADD_WORKERS, 10**9), SETTINGS)


@pytest.mark.parametrize("count", [0, -1, MOST_MEMBERS + 1, 10**9, 10**5000, -(10**5000)], ids=int.bit_length)
def test_count_that_no_job_can_have_is_refused_whatever_its_size(count: int) -> None:
    said = f"add-workers of {count}:" if abs(count) <= 10**9 else f"a number of {count.bit_length()} bits"
    for refuse in (check_change, lambda change: change_of(change.operation, change.count)):
        with pytest.raises(ConfigError, match=re.escape(said)):
            refuse(Change(Operation.ADD_WORKERS, count))
    check_change(Change(Operation.ADD_WORKERS, MOST_MEMBERS))


@pytest.mark.parametrize(
    "name", ["", "x", "worker-", "worker-0", "worker-01", "boss-1", "worker-1\n", "worker-" + "9" * 5000]
)
def test_name_that_no_member_can_have_is_refused(name: str) -> None:
    with pytest.raises(UnknownMemberError) as refused:
        check_change(Change(Operation.REMOVE_WORKERS, 1, (name,)))
    assert len(str(refused.value)) < 2 * MOST_ID
    check_change(Change(Operation.REMOVE_WORKERS, 2, ("server-1", "worker-999999999")))


@pytest.mark.parametrize("what", [True, 2.5, None, [], ["worker-1", 2], {"worker-1"}])
def test_what_is_neither_a_number_nor_names_is_no_change(what: Any) -> None:
    with pytest.raises(ConfigError):
        change_of("remove-workers", what)


@pytest.mark.parametrize("operation", ["follow", "drain", "grow"])
def test_only_the_four_operations_can_be_asked_for(operation: str) -> None:
    with pytest.raises(ConfigError):
        change_of(operation, 1)


def test_change_of_a_number_of_one_name_or_of_several() -> None:
    assert change_of("add-workers", 2) == Change(Operation.ADD_WORKERS, 2)
    assert change_of("remove-workers", "worker-2") == Change(Operation.REMOVE_WORKERS, 1, ("worker-2",))
    names = ["server-3", "server-1"]
    assert change_of("remove-servers", names) == Change(Operation.REMOVE_SERVERS, 2, ("server-3", "server-1"))


@pytest.mark.parametrize("text", ["x" * (MOST_ID + 1), "a\nb", "\x1b[31m"])
def test_request_id_that_is_long_or_cannot_be_printed_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        check_request_id(text)
    check_request_id("x" * MOST_ID)


def test_last_worker_and_last_server_are_never_removed() -> None:
    alone = Roster(("worker-1",), ("server-1",), 2, 2)
    for operation, name in ((Operation.REMOVE_WORKERS, "worker-1"), (Operation.REMOVE_SERVERS, "server-1")):
        for change in (Change(operation, 1), Change(operation, 1, (name,))):
            with pytest.raises(PlanError, match="must keep at least one"):
                resolve(alone, change, SETTINGS)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("add-workers=2", Change(Operation.ADD_WORKERS, 2)),
        (" remove-servers=1 ", Change(Operation.REMOVE_SERVERS, 1)),
        ("workers=+2", Change(Operation.ADD_WORKERS, 2)),
        ("servers=-1", Change(Operation.REMOVE_SERVERS, 1)),
        (
            " servers=-1, workers=+2 ",
            Change(Operation.SCALE, 3, parts=(Change(Operation.ADD_WORKERS, 2), Change(Operation.REMOVE_SERVERS, 1))),
        ),
        ("remove-workers=worker-3", Change(Operation.REMOVE_WORKERS, 1, ("worker-3",))),
        (
            "remove-servers=server-1, server-2",
            Change(Operation.REMOVE_SERVERS, 2, ("server-1", "server-2")),
        ),
        (
            "containers=-container-2, container-0013",
            Change(Operation.TIERS, 2, ("container-0002", "container-0013")),
        ),
    ],
)
def test_change_is_parsed(text: str, change: Change) -> None:
    assert parse_change(text) == change


@pytest.mark.parametrize("operation", OPERATIONS)
def test_change_is_written_as_it_is_parsed(operation: Operation) -> None:
    names = () if operation.adds else (f"{operation.role}-1", f"{operation.role}-12")
    others = scale_of("servers=-1,workers=+2"), scale_of("containers=-container-3,container-12345")
    for change in (Change(operation, 2, names), *others):
        assert parse_change(str(change)) == change


@pytest.mark.parametrize(("text", "same"), [("workers=+2", "add-workers=2"), ("servers=-1", "remove-servers=1")])
def test_a_scale_of_one_role_is_written_as_the_user_wrote_it(text: str, same: str) -> None:
    change = parse_change(f"scale={text}")
    assert str(change) == text and change == parse_change(same)
    assert (change.operation, change.asked) == (parse_change(same).operation, parse_change(same).asked)
    assert str(parse_change(same)) == same


@pytest.mark.parametrize(
    "text",
    [
        "",
        "workers",
        "workers=2",
        "workers=+x",
        "workers=+1,workers=+1",
        "masters=+1",
        "workers=+0",
        "workers=+1000000000",
        "containers=-container-2,container-0002",
        "transient=+1,containers=-container-2",
    ],
)
def test_text_that_is_no_scale_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        scale_of(text)


def test_a_scale_of_too_many_members_in_both_roles_says_that_they_are_counted_together() -> None:
    with pytest.raises(ConfigError, match=r"scale of 12000 workers and servers together: .* at most 10000"):
        scale_of("workers=+6000,servers=+6000")


def test_a_misspelt_role_of_a_scale_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'wokers=\+2' is no change of size: .*; did you mean workers\?"):
        scale_of("wokers=+2")


@pytest.mark.parametrize("count", ["0", "1000000000", "9" * 5000], ids=len)
def test_text_with_a_count_that_no_job_can_have_is_refused(count: str) -> None:
    with pytest.raises(ConfigError):
        parse_change(f"add-workers={count}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "operation is '', but must be one of add-servers, add-workers"),
        ("grow=2", "operation is 'grow', but must be one of"),
        ("add-workers", "expected add-workers=<count>"),
        ("add-workers=", "expected add-workers=<count>"),
        ("remove-workers=", "expected remove-workers=<count> or names"),
        ("add-workers=two", "'two' is not a count"),
        ("add-workers=²", "'²' is not a count"),
        ("add-workers=-1", "'-1' is not a count"),
        ("add-workers=worker-3", "new members are named by the job"),
        ("remove-workers=3rd", "'3rd' is not a member's name"),
        ("remove-workers=worker-1,", "'' is not a member's name"),
        ("containers=container-2", "expected containers=-NAME,NAME"),
        ("containers=+container-2", "expected containers=-NAME,NAME"),
        ("containers=-worker-2", "expected containers=-NAME,NAME"),
        ("containers=-", "expected containers=-NAME,NAME"),
        ("containers=-container-2,transient=+1", "expected containers=-NAME,NAME"),
    ],
)
def test_text_that_is_no_change_is_refused_with_the_rule(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        parse_change(text)


@pytest.mark.parametrize("operation", [Operation.ADD_WORKERS, Operation.ADD_SERVERS])
def test_job_never_has_more_members_than_may_be(operation: Operation) -> None:
    """Its master has streams for so many; several changes come to more than each of them."""
    settings = CoreSettings(num_splits=10**6, num_partitions=10**6, iterations=10)
    roster, _, _ = resolve(Roster(("worker-1",), ("server-1",), 2, 2), Change(operation, MOST_MEMBERS - 1), settings)
    with pytest.raises(PlanError, match=str(MOST_MEMBERS)):
        resolve(roster, Change(operation, 1), settings)
