"""A job's copies, sizes and progress after several losses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core import server_events as s
from eps.core.checkpoints import Schedule
from eps.core.events import JobState
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.progress import ClockHistory, ClockRecord
from eps.core.recovery import INCIDENT_S, MOST_INCIDENTS, LossOutcome, RestorePoint
from eps.core.server_state import ServerState
from eps.core.types import UNBOUNDED, Address, CoreSettings, Role
from tests.core.scripted import ScriptedMaster, running

S1, S2, W1, W2 = "server-1", "server-2", "worker-1", "worker-2"
#: The report about the snapshot of plan 1.
SENT = m.PartitionSent(S1, 1, 0, 8, "sum")


def test_a_copy_counts_when_it_has_all_that_workers_were_told_is_applied() -> None:
    """SSP: a push that is acknowledged while the snapshot travels is in an update that comes after it."""
    settings = CoreSettings(2, 1, 50, staleness=3, reproducible=False, followers=1)
    addresses = {name: Address(name, 1) for name in (S1, S2, W1, W2)}
    first = Membership(1, 0, (W1, W2), (S1, S2), PartitionTable((S1,), ((),)), SplitTable.of((W1, W2)), addresses)
    owner, follower = ServerState(S1, settings), ServerState(S2, settings)
    for server in (owner, follower):
        server.step(s.MembershipArrived(0, first))
    commands = owner.step(s.SendOrdered(1, 0, S2))
    snapshot = next(c for c in commands if isinstance(c, s.SendSnapshot))
    commands = owner.step(s.PushArrived("push", 0, 0, (0,)))
    update = next(c for c in commands if isinstance(c, s.SendUpdate))
    assert any(isinstance(c, s.AckPush) for c in commands), "nothing is lost with a follower that has nothing yet"

    commands = owner.step(s.UpdateAcked(1, 0, S2, snapshot.sequence, SENT))
    assert s.ReportToMaster(SENT) not in commands, "it lacks what worker-1 was told is applied"
    commands = owner.step(s.PushArrived("later", 0, 1, (0,)))
    assert not any(isinstance(c, s.AckPush) for c in commands), "from now on nothing is acknowledged that it lacks"
    commands = owner.step(s.UpdateAcked(1, 0, S2, update.sequence + 1))
    assert s.ReportToMaster(SENT) in commands


def test_a_copy_counts_when_it_has_all_that_workers_have_read() -> None:
    """Found by simulation: one that had left was beyond the clock from which others took over when the owner was lost.

    BSP: pushes during the transfer of the snapshot are in served parameters, and no worker keeps them any more.
    """
    settings = CoreSettings(2, 1, 50, followers=1)
    addresses = {name: Address(name, 1) for name in (S1, S2, W1)}
    first = Membership(1, -1, (W1,), (S1, S2), PartitionTable((S1,), ((),)), SplitTable.of((W1, W1)), addresses)
    owner = ServerState(S1, settings)
    owner.step(s.MembershipArrived(0, first))
    commands = owner.step(s.SendOrdered(1, 0, S2))
    snapshot = next(c for c in commands if isinstance(c, s.SendSnapshot))
    commands = owner.step(s.PushArrived("push", 0, -1, (0, 1)))
    update = next(c for c in commands if isinstance(c, s.SendUpdate))
    assert owner.step(s.PullArrived("pull", 0, 0)) == [s.AnswerPull("pull", 0, 0)], "it does not wait for the snapshot"

    assert owner.step(s.UpdateAcked(1, 0, S2, snapshot.sequence, SENT)) == [], "it lacks what worker-1 has read"
    commands = owner.step(s.UpdateAcked(1, 0, S2, update.sequence + 1))
    assert s.ReportToMaster(SENT) in commands


def committed(settings: CoreSettings) -> tuple[Membership, Membership]:
    addresses = {name: Address(name, 1) for name in (S1, S2, W1)}
    table = PartitionTable((S1, S1), ((), ()))
    splits = SplitTable.of((W1,) * settings.num_splits)
    first = Membership(1, -1, (W1,), (S1, S2), table, splits, addresses)
    return first, replace(first, version=2, from_clock=4, partitions=PartitionTable((S2, S1), ((), ())))


def test_what_a_server_forgot_when_it_gave_a_partition_up_it_does_not_claim_to_have() -> None:
    """The version before went with the first push of the clock, whose sum is void."""
    settings = CoreSettings(2, 2, 50)
    first, second = committed(settings)
    server = ServerState(S1, settings)
    server.step(s.MembershipArrived(0, first))
    for clock in (-1, 0):
        server.step(s.PushArrived("all", 0, clock, (0, 1)))
    server.step(s.SendOrdered(1, 0, S2))
    server.step(s.MembershipArrived(1, second))
    server.step(s.PushArrived("half", 0, 1, (0,)))
    taken = replace(second, version=3, from_clock=1, split_clocks=(1, 1), recovery=1)
    server.step(s.MembershipArrived(1, taken))
    held = next(p for p in server.inventory(2, 0).partitions if p.partition == 0)
    assert (held.next_clock, held.oldest_clock) == ((1, 1), 1)


def going_back() -> ScriptedMaster:
    """Return a job without followers that has a checkpoint of clock 40 and was at clock 50."""
    master = ScriptedMaster(CoreSettings(2, 2, 100), 1, 1)
    master.state.checkpoints.complete = [RestorePoint("0001-00000040", 40)]
    master.start()
    for clock in range(-1, 50):
        master.clock(clock)
    return master


def lose_and_go_back(master: ScriptedMaster) -> None:
    """End the only server, and let the job begin again at its checkpoint, where that does not end it."""
    master.now_s += INCIDENT_S
    master.lose(master.membership.servers[0])
    if master.state.recovery.inquiry is None:
        return
    (newcomer,) = master.state.recovery.inquiry.newcomers
    master.register(newcomer)
    master.report(master.inventory(W1, 50))
    for name in master.membership.members:
        master.report(m.MembershipAcked(name, master.membership.version))


def complete(master: ScriptedMaster, clock: int) -> None:
    results = tuple(m.SplitResult(split, 1, 1.0) for split in range(2))
    master.report(m.ClockReported(W1, clock, results, master.membership.incarnation))


def test_a_job_that_goes_back_and_completes_clocks_is_never_ended_for_its_losses() -> None:
    master = going_back()
    for number in range(2 * MOST_INCIDENTS):
        lose_and_go_back(master)
        assert (master.state.state, master.state.progress.completed) == (JobState.RUNNING, 40)
        # It never gets to where it was at the first loss, and to one clock only in between.
        for clock in range(40, 41 + number % 9):
            complete(master, clock)
    assert len(master.state.recovery.losses) == 2 * MOST_INCIDENTS


def test_a_job_that_goes_back_and_completes_no_clock_is_ended() -> None:
    master = going_back()
    for _ in range(MOST_INCIDENTS - 1):
        lose_and_go_back(master)
    assert master.state.state is JobState.RUNNING
    complete(master, 40)
    for _ in range(MOST_INCIDENTS - 1):
        lose_and_go_back(master)
    assert master.state.state is JobState.RUNNING, "one clock was completed between them"
    lose_and_go_back(master)
    assert master.state.state is JobState.FAILED and len(master.state.recovery.losses) == 2 * MOST_INCIDENTS - 1


def test_a_checkpoint_knows_the_size_that_was_asked_for_while_a_lost_member_is_not_replaced() -> None:
    master = ScriptedMaster(CoreSettings(4, 2, 400), 4, 1)
    master.state.checkpoints.timetable.schedule = Schedule(clocks=20)
    master.start()
    for clock in range(-1, 5):
        master.clock(clock)
    master.lose("worker-4")
    for name in ("worker-1", "worker-2", "worker-3", S1):
        master.report(master.inventory(name, 5))
    for name in master.membership.members:
        master.report(m.MembershipAcked(name, master.membership.version))
    master.tick(1.1)
    for _ in range(4):
        while master.state.plans.flight.driver is None:
            master.tick(1.0)
        for name in [name for name in master.state.members.by_name if name not in master.membership.members]:
            master.launch(name)
            master.exit(name, "no memory")
    assert len(master.membership.workers) == 3 and master.state.plans.flight.driver is None

    clock = 5
    while not master.sent(m.TakeCheckpoint):
        master.clock(clock)
        clock += 1
    pending = master.state.checkpoints.pending
    assert pending is not None
    while master.state.progress.completed < pending.clock:
        master.clock(clock)
        clock += 1
    for partition in (0, 1):
        clocks = (pending.clock,) * 4
        master.report(m.CheckpointPartWritten(S1, pending.number, partition, "f", 1, "c", clocks, 4 * pending.clock, 0))
    finish = master.commands(e.FinishCheckpoint)[-1]
    assert (finish.workers, finish.servers) == (4, 1)
    assert master.state.size.asked(master.state.plans.open) == {Role.WORKER: 4, Role.SERVER: 1}


def test_a_resumed_job_goes_back_only_where_the_checkpoint_that_cannot_be_read_is_one_it_counts_on() -> None:
    master = ScriptedMaster(CoreSettings(2, 2, 30, resumed_clock=5), 1, 1)
    master.state.checkpoints.complete = [RestorePoint("0002-00000020", 20)]
    master.state.progress.restore(ClockHistory(ClockRecord(clock, 2, 1.0, (), 0.0) for clock in range(5)))
    master.start()
    for clock in range(5, 25):
        master.clock(clock)
    master.report(m.CheckpointUnusable(S1, "0001-00000005", "it was removed"))
    assert master.state.recovery.inquiry is None
    master.report(m.CheckpointUnusable(S1, "0002-00000020", "it is damaged"))
    assert master.state.recovery.inquiry is not None and master.state.checkpoints.complete == []


def test_a_job_that_goes_back_because_a_checkpoint_cannot_be_read_says_so_though_nobody_was_lost() -> None:
    master = ScriptedMaster(CoreSettings(2, 2, 30, resumed_clock=20), 1, 1)
    master.state.checkpoints.complete = [RestorePoint("0001-00000010", 10), RestorePoint("0001-00000020", 20)]
    master.state.progress.restore(ClockHistory(ClockRecord(clock, 2, 1.0, (), 0.0) for clock in range(20)))
    master.start()
    master.report(m.CheckpointUnusable(S1, "0001-00000020", "it is damaged"))
    master.recover()
    (back,) = master.state.recovery.goings_back
    assert (back.clock, back.to, back.lost, master.state.recovery.losses) == (20, 10, {}, [])
    assert back.unreadable == "server-1 cannot read checkpoint 0001-00000020: it is damaged"


def test_where_a_job_goes_back_further_is_what_came_of_the_loss() -> None:
    master = running()
    master.state.checkpoints.complete = [RestorePoint("0001-00000010", 10), RestorePoint("0001-00000020", 20)]
    for clock in range(25):
        master.clock(clock)
    master.lose("worker-1", S2)
    master.answer_inventories()
    (first,) = master.state.recovery.goings_back
    assert (first.clock, first.to, first.unreadable) == (25, 20, "")
    assert first.lost == {"worker-1": "signal 9", S2: "signal 9"}
    # A member exits before all have rolled back, and the others cannot.
    master.lose("worker-2")
    master.answer_inventories()
    master.report(m.CheckpointUnusable(S1, "0001-00000020", "it is damaged"))
    asked = master.state.recovery.inquiry
    master.report(m.CheckpointUnusable(S1, "0001-00000020", "it is damaged"))
    assert asked is not None and master.state.recovery.inquiry is asked, "it is known already"
    master.recover()

    (back,) = master.state.recovery.goings_back
    assert (back.clock, back.to) == (25, 10) and list(back.lost) == ["worker-1", S2, "worker-2"]
    assert back.unreadable == "server-1 cannot read checkpoint 0001-00000020: it is damaged"
    assert {(loss.back_to, loss.outcome) for loss in master.state.recovery.losses} == {(10, LossOutcome.ROLLED_BACK)}
    # The restored job rolls back once more.
    incarnation = master.membership.incarnation
    results = tuple(m.SplitResult(split, 1, 1.0) for split in range(6))
    for clock in range(10, 13):
        master.report(m.ClockReported("worker-3", clock, results, incarnation))
    master.lose(S1)
    assert master.state.recovery.inquiry is not None
    for name in master.state.recovery.inquiry.newcomers:
        master.register(name)
    master.recover()
    assert [(found.clock, found.to) for found in master.state.recovery.goings_back] == [(25, 10), (13, 10)]
    assert [loss.back_to for loss in master.state.recovery.losses] == [10] * 4


def begun_at_a_checkpoint(*, resumed: bool) -> ScriptedMaster:
    """Return a job under ASP that begins again at clock 40; its checkpoint has split 0 two clocks further."""
    settings = CoreSettings(2, 2, 100, staleness=UNBOUNDED, reproducible=False, resumed_clock=40 if resumed else None)
    master = ScriptedMaster(settings, 2, 2)
    master.state.checkpoints.complete = [RestorePoint("0001-00000040", 40)]
    if resumed:
        master.state.progress.restore(ClockHistory(ClockRecord(clock, 2, 1.0, (), 0.0) for clock in range(40)))
    master.start()
    if not resumed:
        for clock in range(45):
            master.clock(clock)
        master.lose(S2)
        master.recover()
        assert master.membership.goes_back and master.membership.split_clocks == (40, 40)
    return master


def inventory(master: ScriptedMaster, name: str, next_clock: tuple[int, ...], *results: m.ClockReported) -> m.Inventory:
    said = master.inventory(name)
    held = tuple(replace(partition, next_clock=next_clock) for partition in said.partitions)
    return replace(said, partitions=held, results=results)


@pytest.mark.parametrize("resumed", [True, False])
def test_what_a_checkpoint_has_further_is_measured_again_although_somebody_is_lost_before(resumed: bool) -> None:
    """Servers have split 0 at clock 42, but no member has the results of clocks 40 and 41."""
    master = begun_at_a_checkpoint(resumed=resumed)
    incarnation = master.membership.incarnation
    master.report(m.ClockReported(W2, 40, (m.SplitResult(1, 1, 1.0),), incarnation))
    master.lose(W2)
    for name in master.membership.members:
        if name != W2:
            master.report(inventory(master, name, (42, 41)))

    after = master.membership
    assert (after.goes_back, after.from_clock, after.split_clocks) == (False, 40, (40, 41))
    assert after.splits.active == (W1, W1)
    master.acknowledge()
    # All that the worker computes by that membership completes every clock.
    for split, first in enumerate(after.split_clocks):
        for clock in range(first, 44):
            master.report(m.ClockReported(W1, clock, (m.SplitResult(split, 1, 1.0),), incarnation))
    assert master.state.progress.completed == 44


def test_what_only_servers_know_the_results_of_is_not_measured_again() -> None:
    master = begun_at_a_checkpoint(resumed=False)
    incarnation = master.membership.incarnation
    known = [m.ClockReported(S1, clock, (m.SplitResult(0, 1, 1.0),), incarnation) for clock in (40, 41)]
    master.lose(W2)
    master.report(inventory(master, S1, (43, 40), *known))
    master.report(inventory(master, W1, ()))

    assert master.membership.split_clocks == (42, 40)


def test_who_is_lost_before_the_job_begins_is_replaced_and_nobody_takes_over() -> None:
    master = ScriptedMaster(running().state.settings, 2, 1)
    master.request_containers()
    master.register("worker-1")
    master.lose("worker-1")

    assert [loss.outcome for loss in master.state.recovery.losses] == [LossOutcome.REPLACED]
