"""The planner against plain restatements of its rules, on random tables."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from eps.core.membership import PartitionTable, SplitTable, spread_evenly
from eps.core.planner import plan_partitions, plan_splits, target_counts
from eps.core.types import MemberId, Role, member_name
from eps.errors import PlanError
from tests.tiers import rotating


def names(role: Role, numbers: range) -> list[MemberId]:
    return [member_name(role, n) for n in numbers]


def most_copies_used(table: SplitTable, leaving: list[int], room: dict[MemberId, int]) -> int:
    """Try every assignment: how many of the leaving splits can go where a copy is, within the room."""
    best = 0
    choices = [[None, *(w for w in table.inactive[s] if room.get(w, 0) > 0)] for s in leaving]
    for chosen in product(*choices):
        if all(chosen.count(worker) <= free for worker, free in room.items()):
            best = max(best, sum(worker is not None for worker in chosen))
    return best


def random_change(
    random: Random, role: Role, members: list[MemberId], following: int, items: int
) -> tuple[list[MemberId], list[MemberId]]:
    """Return (added, removed): an addition, a removal of some, at times of those with the lowest numbers."""
    if random.random() < 0.5 and len(members) < items:
        return names(role, range(following, following + random.randint(1, items - len(members)))), []
    if len(members) > 1:
        return [], random.sample(members, random.randint(1, len(members) - 1))
    return [], []


def test_partitions_stay_balanced_and_no_more_move_than_must() -> None:
    for seed in rotating(200):
        random = Random(seed)
        items = random.randint(1, 24)
        servers = names(Role.SERVER, range(1, random.randint(1, items) + 1))
        table, following = PartitionTable(spread_evenly(items, servers)), len(servers) + 1
        for _ in range(8):
            added, removed = random_change(random, Role.SERVER, servers, following, items)
            held = table.counts(servers)
            moves, after = plan_partitions(table, servers, added, removed)
            staying = [s for s in servers if s not in removed] + added
            counts = after.counts(staying)

            assert max(counts.values()) - min(counts.values()) <= 1, (seed, counts)
            assert sum(counts.values()) == items and set(after.owners) <= set(staying), seed
            surplus = sum(max(0, held[s] - counts.get(s, 0)) for s in servers)
            assert len(moves) == surplus, (seed, moves)
            if removed and not added:
                assert len(moves) == sum(held[s] for s in removed), (seed, "only the leaving give")
            assert [v.item for v in moves] == sorted({v.item for v in moves}), seed
            for move in moves:
                assert (table.owners[move.item], after.owners[move.item]) == (move.source, move.target), seed
            table, servers, following = after, staying, following + len(added)


def test_splits_stay_balanced_and_copies_are_used_as_often_as_possible() -> None:
    for seed in rotating(200):
        random = Random(seed)
        items = random.randint(1, 9)
        workers = names(Role.WORKER, range(1, random.randint(1, items) + 1))
        table, following = SplitTable.of(spread_evenly(items, workers)), len(workers) + 1
        for _ in range(8):
            added, removed = random_change(random, Role.WORKER, workers, following, items)
            held = table.counts(workers)
            moves, after = plan_splits(table, workers, added, removed)
            staying = [w for w in workers if w not in removed] + added
            counts = after.counts(staying)

            assert max(counts.values()) - min(counts.values()) <= 1, (seed, counts)
            assert len(moves) == sum(max(0, held[w] - counts.get(w, 0)) for w in workers), seed
            room = {w: max(0, counts[w] - held.get(w, 0)) for w in staying}
            used = sum(not v.sends_bytes for v in moves)
            assert used == most_copies_used(table, [v.item for v in moves], room), (seed, moves)
            for move in moves:
                assert (table.active[move.item], after.active[move.item]) == (move.source, move.target), seed
                assert move.sends_bytes == (move.target not in table.inactive[move.item]), seed
                assert move.source in after.inactive[move.item] or move.source in removed, seed
            for split in range(items):
                assert after.active[split] not in after.inactive[split], seed
                assert set(after.inactive[split]) <= set(staying), seed
                kept = set(table.inactive[split]) - set(removed) - {after.active[split]}
                assert kept <= set(after.inactive[split]), (seed, "a copy is forgotten")
            table, workers, following = after, staying, following + len(added)


def test_random_copies_are_used_as_often_as_possible() -> None:
    """Tables that no sequence of changes gives: many copies, competing for little room."""
    for seed in rotating(200):
        random = Random(seed)
        workers = names(Role.WORKER, range(1, random.randint(2, 5) + 1))
        items = random.randint(len(workers), 7)
        active = spread_evenly(items, workers)
        inactive = tuple(
            tuple(w for w in workers if w != active[split] and random.random() < 0.4) for split in range(items)
        )
        table = SplitTable(active, inactive)
        removed = random.sample(workers, random.randint(1, len(workers) - 1))

        moves, after = plan_splits(table, workers, (), removed)

        staying = [w for w in workers if w not in removed]
        held, counts = table.counts(workers), after.counts(staying)
        room = {w: counts[w] - held[w] for w in staying}
        used = sum(not v.sends_bytes for v in moves)
        assert used == most_copies_used(table, [v.item for v in moves], room), (seed, table, removed)


def test_target_counts_give_the_rest_to_newcomers_then_to_those_with_most_then_to_the_lowest() -> None:
    held = {"worker-1": 2, "worker-2": 3, "worker-3": 2}

    grown = target_counts(held, ["worker-1", "worker-2", "worker-3", "worker-4"], ["worker-4"])
    shrunk = target_counts({**held, "worker-4": 4}, ["worker-1", "worker-2", "worker-3"], [])

    assert grown == {"worker-1": 2, "worker-2": 2, "worker-3": 1, "worker-4": 2}
    assert shrunk == {"worker-1": 4, "worker-2": 4, "worker-3": 3}


def test_several_added_at_once_keep_the_balance_where_the_literal_rule_breaks_it() -> None:
    """Style section 17: seven partitions, three servers and three more; ceil(7/6) each would leave the old with one."""
    servers = names(Role.SERVER, range(1, 4))
    table = PartitionTable(spread_evenly(7, servers))

    _, after = plan_partitions(table, servers, names(Role.SERVER, range(4, 7)), [])

    assert sorted(after.counts(names(Role.SERVER, range(1, 7))).values()) == [1, 1, 1, 1, 1, 2]


def test_same_input_gives_the_same_plan() -> None:
    workers = names(Role.WORKER, range(1, 5))
    table = SplitTable.of(spread_evenly(10, workers))

    plans = {plan_splits(table, workers, (), ["worker-2", "worker-4"]) for _ in range(5)}

    assert len(plans) == 1


def test_names_of_two_digits_are_ordered_by_number() -> None:
    servers = names(Role.SERVER, range(9, 12))
    table = PartitionTable(spread_evenly(6, servers))

    moves, _ = plan_partitions(table, servers, (), ["server-11"])

    assert [(v.item, v.target) for v in moves] == [(4, "server-9"), (5, "server-10")]


def test_a_partition_moves_to_the_server_that_has_a_copy_if_balance_allows() -> None:
    active, (backup, other) = names(Role.SERVER, range(3, 5)), names(Role.SERVER, range(1, 3))
    table = PartitionTable(spread_evenly(6, active))
    copies = (backup, other, other, backup, other, backup)

    moves, after = plan_partitions(table, active, [backup, other], active, copies)
    uneven, _ = plan_partitions(table, active, [backup, other], active, (backup,) * 6)
    gone, _ = plan_partitions(table, active, [other], active, copies)

    assert after.owners == copies and all(v.target == copies[v.item] for v in moves)
    assert [v.target for v in uneven].count(backup) == 3 and {v.target for v in gone} == {other}


def test_nobody_left_is_refused() -> None:
    workers = names(Role.WORKER, range(1, 3))

    with pytest.raises(PlanError, match="2 of 2 workers"):
        plan_splits(SplitTable.of(spread_evenly(4, workers)), workers, (), workers)


def test_more_members_than_items_is_refused() -> None:
    with pytest.raises(PlanError, match=r"3 servers .* 2 "):
        plan_partitions(
            PartitionTable(("server-1", "server-2")), ["server-1", "server-2"], names(Role.SERVER, range(3, 4)), ()
        )
