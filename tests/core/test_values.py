"""Names, tables, memberships, settings: the small values that everything is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eps.core.membership import Membership, PartitionTable, SplitTable, spread_evenly
from eps.core.types import UNBOUNDED, Address, CoreSettings
from eps.errors import ConfigError


def membership(**changes: object) -> Membership:
    members = ("worker-1", "worker-2", "server-1")
    value = Membership(
        1,
        0,
        members[:2],
        members[2:],
        PartitionTable(("server-1",) * 3),
        SplitTable.of(("worker-1", "worker-2")),
        {name: Address(name, 1) for name in members},
    )
    return replace(value, **changes)


def test_spread_evenly_gives_consecutive_ids_and_the_first_get_more() -> None:
    for items in range(1, 30):
        for count in range(1, items + 1):
            members = [f"worker-{i}" for i in range(1, count + 1)]
            holders = spread_evenly(items, members)
            sizes = [holders.count(m) for m in members]
            assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1
            assert list(holders) == sorted(holders, key=members.index)


def test_split_table_keeps_donors_that_stay_and_forgets_those_that_leave() -> None:
    table = SplitTable(("worker-1", "worker-2", "worker-3"), ((), ("worker-3",), ("worker-1",)))

    after = table.with_active({0: "worker-4", 2: "worker-1"}, leaving=["worker-3"])

    assert after.active == ("worker-4", "worker-2", "worker-1")
    assert after.inactive == (("worker-1",), (), ())
    assert table.active == ("worker-1", "worker-2", "worker-3"), "a table is a value"


def test_partition_that_changes_its_owner_has_no_follower_and_the_others_keep_those_that_stay() -> None:
    table = PartitionTable(("server-1", "server-2", "server-1"), (("server-2",), ("server-1", "server-3"), ()))

    after = table.with_owners({0: "server-3"}, leaving=["server-1"])

    assert after == PartitionTable(("server-3", "server-2", "server-1"), ((), ("server-3",), ()))


def test_partition_table_counts_members_that_own_nothing() -> None:
    assert PartitionTable(("server-1",)).counts(["server-1", "server-2"]) == {"server-1": 1, "server-2": 0}


def test_valid_membership_is_accepted() -> None:
    membership().validate()
    assert membership().balance() == (0, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": ("worker-1", "worker-1", "worker-2")},
        {"servers": ()},
        {"addresses": {}},
        {"partitions": PartitionTable(("server-2",))},
        {"splits": SplitTable.of(("worker-1", "worker-3"))},
        {"splits": SplitTable(("worker-1", "worker-2"), (("worker-3",), ()))},
        {"splits": SplitTable(("worker-1", "worker-2"), (("worker-1",), ()))},
    ],
)
def test_broken_membership_is_found(changes: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        membership(**changes).validate()


def test_addresses_of_a_membership_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        membership().addresses["worker-9"] = Address("x", 1)  # type: ignore[index]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"num_splits": 0}, "must be at least 1"),
        ({"num_partitions": 0}, "must be at least 1"),
        ({"iterations": 0}, "must be at least 1"),
        ({"staleness": -2}, "staleness is -2"),
        ({"staleness": 1}, "reproducible sums need BSP"),
        ({"staleness": UNBOUNDED}, "reproducible sums need BSP"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, int], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        CoreSettings(**{"num_splits": 2, "num_partitions": 2, "iterations": 2, **changes})


@pytest.mark.parametrize(
    ("staleness", "clock", "expected"),
    [
        (0, 0, 0),
        (0, 7, 7),
        (0, 10, 10),
        (3, 1, 0),
        (3, 3, 0),
        (3, 7, 4),
        (3, 10, 10),
        (UNBOUNDED, 9, 0),
        (UNBOUNDED, 10, 10),
    ],
)
def test_reads_are_bounded_by_staleness_and_final_parameters_are_complete(
    staleness: int, clock: int, expected: int
) -> None:
    settings = CoreSettings(2, 2, 10, staleness=staleness, reproducible=False)
    assert settings.min_clock_to_read(clock) == expected


def test_reproducible_jobs_begin_with_a_clock_that_only_measures() -> None:
    settings = CoreSettings(2, 2, 10)
    assert settings.first_clock == -1
    assert settings.min_clock_to_read(-1) == -1
