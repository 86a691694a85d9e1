"""Which copies a server keeps for cuts, of its own partitions and as BackupPS."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.cuts import cut_name
from eps.core.membership import Membership
from eps.core.types import CoreSettings
from tests.core.test_server_state import ALL, ASP, BEFORE, BSP, SSP, Server, kinds, membership
from tests.tiers import rotating

#: server-1 owns partition 0 and is the BackupPS of partition 1, or the other way round.
APART = membership(1, ("server-1", "server-2"))


def order(server: Server, cut_id: int, clock: int, kept: int = -1) -> list[s.ServerCommand]:
    return server.step(s.CutOrdered(cut_id, clock, kept))


def part(cut_id: int, clock: int, kept: int = -1, partition: int = 1, incarnation: int = 0) -> s.CutArrived:
    counters = s.Counters((clock,) * 3, 3 * clock)
    return s.CutArrived(("part", cut_id), incarnation, cut_id, partition, clock, kept, counters)


def back_to(known: Membership, clock: int | None, owners: tuple[str, ...]) -> Membership:
    """Return the membership of a rollback to a cut, or to the seed."""
    return replace(
        membership(known.version + 1, owners),
        incarnation=known.incarnation + 1,
        goes_back=True,
        checkpoint="" if clock is None else cut_name(clock),
    )


def clocks(server: Server, partition: int) -> list[int]:
    return sorted(server.state._served.cuts.get(partition, {}))


def test_partition_is_copied_for_a_cut_when_it_has_completed_the_clocks_before() -> None:
    server = Server(BSP)
    assert order(server, 1, 2) == []
    server.push(0, *ALL)
    commands = server.push(1, *ALL)
    taken = s.CopyForCut(1, 0, 2, s.Counters((2, 2, 2), 6, 0))
    assert commands.index(taken) > kinds(commands).index("StepPartition")
    # A repeated order changes nothing, nor does an earlier one.
    assert order(server, 1, 2) == [] and clocks(server, 0) == [2]


def test_order_for_a_clock_that_is_past_is_skipped_under_bsp() -> None:
    server = Server(BSP)
    for clock in range(3):
        server.push(clock, *ALL)
    (skipped,) = order(server, 1, 2)
    assert isinstance(skipped, s.SkipCut) and "clock 3" in skipped.why and clocks(server, 0) == []
    assert kinds(order(server, 2, 3)) == ["CopyForCut"]


def test_checkpoint_and_cut_of_one_clock_are_both_taken() -> None:
    server = Server(BSP)
    server.step(s.CheckpointOrdered(1, 1))
    order(server, 1, 1)
    assert {"TakeSnapshot", "CopyForCut"} <= set(kinds(server.push(0, *ALL)))


def test_next_order_commits_the_cut_and_drops_the_one_before() -> None:
    server = Server(BSP, start=APART)
    order(server, 1, 0)
    server.step(part(1, 0))
    assert (clocks(server, 0), clocks(server, 1)) == ([0], [0])
    assert order(server, 2, 1, kept=0) == []
    server.push(0, *ALL)
    server.step(part(2, 1, kept=0))
    assert (clocks(server, 0), clocks(server, 1)) == ([0, 1], [0, 1])
    assert order(server, 3, 2, kept=1) == [s.DropCut(0, 0), s.DropCut(1, 0)]
    # A cut that fails is dropped, the committed one stays.
    server.push(1, *ALL)
    assert order(server, 4, 3, kept=1) == [s.DropCut(0, 2)]
    assert server.step(s.CutsDropped(4)) == [s.DropCut(0, 1), s.DropCut(1, 1)]


def test_when_no_cut_is_needed_any_more_what_is_late_leaves_no_copy() -> None:
    server = Server(BSP, start=APART)
    order(server, 1, 2)
    server.step(part(1, 2))
    assert server.step(s.CutsDropped(1)) == [s.DropCut(1, 2)]
    server.push(0, *ALL)
    assert "CopyForCut" not in kinds(server.push(1, *ALL)), "it had ordered a copy for that clock"
    assert kinds(server.step(part(1, 2))) == ["RefuseUpdate"]
    assert order(server, 1, 2) == [] and (clocks(server, 0), clocks(server, 1)) == ([], [])
    # A cut that is ordered later is kept; an order to drop the one before says nothing about it.
    assert kinds(server.step(part(2, 3))) == ["StoreCut"]
    assert order(server, 2, 3) == []
    assert server.step(s.CutsDropped(1)) == [] and clocks(server, 1) == [3]
    assert "CopyForCut" in kinds(server.push(2, *ALL))
    assert server.step(s.CutsDropped(2)) == [s.DropCut(0, 3), s.DropCut(1, 3)]


def test_server_that_did_not_hear_of_a_cut_refuses_it_once_none_is_needed() -> None:
    server = Server(BSP, start=APART)
    assert server.step(s.CutsDropped(3)) == []
    assert kinds(server.step(part(3, 1))) == ["RefuseUpdate"] and order(server, 3, 0) == []
    assert kinds(order(server, 4, 0)) == ["CopyForCut"]


def test_late_part_of_an_earlier_cut_or_incarnation_is_refused() -> None:
    server = Server(BSP, start=APART)
    order(server, 2, 1)
    assert kinds(server.step(part(1, 0))) == ["RefuseUpdate"]
    assert kinds(server.step(part(2, 1, incarnation=1))) == ["RefuseUpdate"]
    assert kinds(server.step(part(2, 1))) == ["StoreCut"]
    # A part may arrive before the order of its cut.
    assert kinds(server.step(part(3, 2, kept=1))) == ["StoreCut"]
    assert kinds(server.step(part(2, 1))) == ["RefuseUpdate"]
    assert order(server, 3, 2, kept=1) == [] and clocks(server, 1) == [1, 2]


def test_rollback_restores_the_cut_and_drops_later_ones() -> None:
    server = Server(BSP, start=APART)
    order(server, 1, 0)
    server.step(part(1, 0))
    order(server, 2, 1, kept=0)
    server.push(0, *ALL)
    server.step(part(2, 1, kept=0))
    commands = server.step(s.MembershipArrived(0, back_to(APART, 0, ("server-1", "server-1"))))
    assert [c for c in commands if not isinstance(c, s.ReportToMaster)] == [
        s.DropPartition(0),
        s.DropCut(0, 1),
        s.DropCut(1, 1),
        s.CreatePartition(0, 0),
        s.CreatePartition(1, 0),
    ]
    assert server.state.inventory(1, 0).cuts == (m.KeptCut(0, 0), m.KeptCut(1, 0))
    assert server.state.partitions[1].clocks.next_clock == [0, 0, 0]
    # The cut that was ordered before the rollback is void.
    assert "CopyForCut" not in kinds(server.push(0, *ALL))
    assert kinds(server.step(part(3, 1, kept=0, incarnation=1))) == ["StoreCut"]


def test_rollback_to_the_seed_drops_all_copies() -> None:
    server = Server(BSP)
    order(server, 1, 0)
    commands = server.step(s.MembershipArrived(0, back_to(BEFORE, None, ("server-1", "server-1"))))
    assert s.DropCut(0, 0) in commands and s.CreatePartition(0) in commands and clocks(server, 0) == []


def test_owner_of_a_later_cuts_partition_takes_no_copy_for_an_earlier_one() -> None:
    """Under ASP a partition that moves is past the clock of the earlier cut, which counts as reached."""
    server = Server(ASP, start=APART)
    order(server, 1, 2)
    server.step(part(1, 2))
    server.step(s.SnapshotArrived("snapshot", 1, 1, 0, s.Counters((3, 3, 3), 9), "sum"))
    server.step(part(2, 3, kept=0))
    server.step(s.MembershipArrived(1, membership(2, ("server-1", "server-1"))))
    server.step(s.PromoteArrived("promote", 1, 1, 0))
    assert server.state.owned() == (0, 1) and clocks(server, 1) == [3]
    assert "CopyForCut" in kinds(order(server, 2, 3, kept=0))


@pytest.mark.parametrize("settings", [BSP, SSP, ASP])
def test_any_order_of_cuts_parts_and_rollbacks_keeps_at_most_two_copies(settings: CoreSettings) -> None:
    for seed in rotating(150):
        random, server, known = Random(seed), Server(settings, start=APART), APART
        copies: set[tuple[int, int]] = set()
        # Cut -> (clock, clock of the committed cut); the last may be unknown to the server.
        cuts, committed = {0: (-1, -1)}, -1
        dropped = -1

        def follow(commands: list[s.ServerCommand], seed: int, copies: set[tuple[int, int]]) -> None:
            for command in commands:
                if isinstance(command, s.CopyForCut | s.StoreCut):
                    copies.add((command.partition, command.clock))
                elif isinstance(command, s.DropCut):
                    assert (command.partition, command.clock) in copies, seed
                    copies.remove((command.partition, command.clock))
                elif isinstance(command, s.CreatePartition) and command.cut is not None:
                    assert (command.partition, command.cut) in copies, seed

        for _ in range(60):
            last = max(cuts)
            match random.choice(
                ("push", "push", "push", "new", "order", "part", "late", "commit", "roll back", "drop")
            ):
                case "push":
                    for partition in server.state.owned():
                        clock = server.state.partitions[partition].clocks.completed
                        if clock < settings.iterations:
                            splits = tuple(random.sample(ALL, random.randint(1, 3)))
                            follow(server.push(clock, *splits, partition=partition), seed, copies)
                case "new":
                    cuts[last + 1] = (cuts[last][0] + random.randint(1, 2), committed)
                case "order":
                    clock, kept = cuts[last]
                    follow(order(server, last, clock, kept), seed, copies)
                case "part" | "late" as which:
                    cut_id = last if which == "part" else random.choice(list(cuts))
                    clock, kept = cuts[cut_id]
                    late = random.random() < 0.2
                    event = part(cut_id, clock, kept, random.randint(0, 1), known.incarnation - late)
                    commands = server.step(event)
                    assert not (late or cut_id <= dropped) or kinds(commands) == ["RefuseUpdate"], seed
                    follow(commands, seed, copies)
                case "commit":
                    committed = cuts[last][0]
                case "roll back":
                    owners = tuple(random.choice(("server-1", "server-2")) for _ in range(2))
                    needed = {(p, committed) for p, owner in enumerate(owners) if owner == "server-1"}
                    target = committed if committed >= 0 and needed <= copies else None
                    known = back_to(known, target, owners)
                    follow(server.step(s.MembershipArrived(0, known)), seed, copies)
                    assert {clock for _, clock in copies} <= {target}, seed
                    committed = -1 if target is None else target
                    cuts = {last + 1: (max(committed, 0) + 1, committed)}
                case "drop":
                    follow(server.step(s.CutsDropped(last)), seed, copies)
                    assert not copies, seed
                    dropped, committed = last, -1
                    cuts[last + 1] = (cuts[last][0] + 1, committed)
            held = [(p, clock) for p in (0, 1) for clock in clocks(server, p)]
            assert set(held) == copies and all(len(clocks(server, p)) <= 2 for p in (0, 1)), seed
