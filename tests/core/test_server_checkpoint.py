"""At which moment a server keeps a partition for a checkpoint."""

from __future__ import annotations

from eps.core import server_events as s
from eps.core.server_state import ServerState
from tests.core.test_server_state import ALL, ASP, BEFORE, BSP, Server, membership


def snapshots(commands: list[s.ServerCommand]) -> list[s.TakeSnapshot]:
    return [c for c in commands if isinstance(c, s.TakeSnapshot)]


def order(server: Server, clock: int, checkpoint_id: int = 1) -> list[s.ServerCommand]:
    return server.step(s.CheckpointOrdered(checkpoint_id, clock))


def test_a_partition_is_kept_when_it_has_completed_the_clocks_before() -> None:
    server = Server(BSP)
    assert order(server, 2) == []
    assert snapshots(server.push(0, *ALL)) == []
    assert snapshots(server.push(1, 0, 1)) == []
    commands = server.push(1, 2)
    assert snapshots(commands) == [s.TakeSnapshot(1, 0, s.Counters((2, 2, 2), 6, 0))]
    kinds = [type(c) for c in commands]
    assert kinds.index(s.StepPartition) < kinds.index(s.TakeSnapshot)
    assert snapshots(server.push(2, *ALL)) == []
    server.push(0, *ALL, partition=1)
    assert snapshots(server.push(1, *ALL, partition=1)) == [s.TakeSnapshot(1, 1, s.Counters((2, 2, 2), 6, 0))]


def test_an_order_for_the_clock_that_a_partition_has_is_in_time_also_where_pushes_have_come() -> None:
    server = Server(BSP)
    server.push(0, *ALL)
    server.push(1, 0)
    assert snapshots(order(server, 1)) == [s.TakeSnapshot(1, 0, s.Counters((1, 1, 1), 3, 0))]


def test_an_order_for_a_clock_that_is_past_is_skipped() -> None:
    server = Server(BSP)
    server.push(0, *ALL)
    server.push(1, *ALL)
    (skipped,) = order(server, 1)
    assert isinstance(skipped, s.SkipSnapshot) and (skipped.checkpoint_id, skipped.partition) == (1, 0)
    assert "clock 2" in skipped.why and "clock 1" in skipped.why


def test_an_order_that_comes_again_or_late_changes_nothing() -> None:
    server = Server(BSP)
    order(server, 1, checkpoint_id=2)
    assert len(snapshots(server.push(0, *ALL))) == 1
    assert order(server, 1, checkpoint_id=2) == [] and order(server, 1, checkpoint_id=1) == []
    assert len(snapshots(order(server, 1, checkpoint_id=3))) == 1


def test_under_asp_a_partition_is_kept_as_soon_as_every_split_has_contributed_the_clocks_before() -> None:
    server = Server(ASP)
    order(server, 1)
    for clock in range(3):
        server.push(clock, 0, 1)
    commands = server.push(0, 2)
    assert snapshots(commands) == [s.TakeSnapshot(1, 0, s.Counters((3, 3, 1), 7, 0))]
    assert snapshots(server.push(1, 2)) == []
    for clock in range(3):
        server.push(clock, *ALL, partition=1)
    assert snapshots(order(server, 1, checkpoint_id=2))[1].counters.next_clock == (3, 3, 3)


def test_a_partition_that_changes_hands_at_the_clock_is_kept_by_its_next_owner_alone() -> None:
    giver, taker = Server(BSP), Server(BSP, "server-2", start=None)
    giver.follow()
    moved = membership(2, ("server-2", "server-1"), from_clock=1)
    taker.step(s.MembershipArrived(0, BEFORE))
    for server in (giver, taker):
        order(server, 1)
    taker.step(s.SnapshotArrived("snapshot", 1, 0, 0, s.Counters((0, 0, 0)), "sum"))
    for server in (giver, taker):
        server.step(s.MembershipArrived(1, moved))
    assert snapshots(giver.push(0, *ALL)) == []
    assert snapshots(taker.step(s.UpdateArrived("update", 1, 0, 0, 0, ALL))) == [
        s.TakeSnapshot(1, 0, s.Counters((1, 1, 1), 3, 0))
    ]


def test_partitions_begin_with_what_a_checkpoint_says() -> None:
    state = ServerState("server-1", ASP)
    counters = {0: s.Counters((4, 5, 6), 15, 2), 1: s.Counters((5, 5, 5), 15, 0)}
    state.step(s.MembershipArrived(0, BEFORE, counters))
    state.validate()
    assert [state.partitions[p].clocks.completed for p in (0, 1)] == [4, 5]
    refused = state.step(s.PushArrived("again", 0, 4, (1,)))
    assert refused == [s.AckPush("again", 0, (1,))] and state.partitions[0].clocks.duplicates_refused == 3
    assert isinstance(state.step(s.PushArrived("push", 0, 4, (0,)))[0], s.ApplyPush)
