"""The transfers of a plan in the job master: ordered, loaded from a copy, failed."""

from __future__ import annotations

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.events import JobState
from eps.core.reconfig import Change, Operation, Phase
from tests.core.scripted import ADD_SERVER, ADD_WORKER, REMOVE_SERVER, REMOVE_WORKER, ScriptedMaster, running

EVERY_CHANGE = (ADD_SERVER, ADD_WORKER, REMOVE_SERVER, REMOVE_WORKER)


def up_to(master: ScriptedMaster, change: Change, phase: Phase) -> None:
    """Ask for a change and take it to a phase."""
    plan = master.ask(change)
    for name in plan.added:
        master.register(name)
    for act in (master.acknowledge_lists, master.copy, master.acknowledge_membership):
        if plan.phase is not phase:
            act()
    assert plan.phase is phase


# ---- before anything is sent


@pytest.mark.parametrize("change", [ADD_SERVER, ADD_WORKER], ids=str)
def test_all_hear_who_comes_and_an_added_server_which_partitions_it_will_be_sent(change: Change) -> None:
    master = running()
    plan = master.ask(change)
    (name,) = plan.added
    master.register(name)
    told = dict(master.sent(m.UpdateLists))

    assert set(told) == {*master.membership.members, name}
    assert {order.added for order in told.values()} == {
        (m.Newcomer(name, master.address_of(name), frozenset({change.operation.role})),)
    }
    assert {to: order.coming for to, order in told.items() if order.coming} == (
        {name: (0, 2)} if change is ADD_SERVER else {}
    )


# ---- transfers that fail


@pytest.mark.parametrize("change", EVERY_CHANGE, ids=str)
def test_transfer_that_fails_aborts_the_plan_and_training_goes_on(change: Change) -> None:
    master = running()
    up_to(master, change, Phase.LISTS_UPDATED)
    before, plan = master.membership, master.state.plans.all[1]

    master.report(m.TransferFailed("server-1", 1, "the connection broke"))

    assert (plan.phase, plan.reason) == (Phase.ABORTED, "server-1: the connection broke")
    assert {to for to, _ in master.sent(m.AbortPlan)} == set(before.members)
    assert master.state.state is JobState.RUNNING
    assert master.membership is before and set(master.state.members.by_name) == set(before.members)


def test_change_that_failed_in_transfer_may_be_asked_again() -> None:
    master = running()
    up_to(master, REMOVE_SERVER, Phase.LISTS_UPDATED)
    master.report(m.TransferFailed("server-2", 1, "the connection broke"))

    again = master.carry_out(REMOVE_SERVER)

    assert again.phase is Phase.RELEASED
    assert master.membership.servers == ("server-1",)


@pytest.mark.parametrize("change", [ADD_SERVER, REMOVE_SERVER], ids=str)
def test_server_that_cannot_be_sent_a_partition_after_the_commit_is_given_up(change: Change) -> None:
    """The new owner lacks updates that no process can send any more."""
    master = running()
    up_to(master, change, Phase.COMMITTED)
    move = master.driver.transfer.partition_moves[0]
    container = master.container_of(move.target)

    master.report(m.TransferFailed(move.source, 1, "the connection broke", move.target))

    assert e.KillContainer(container) in master.last and not master.commands(e.ReleaseContainer)
    assert master.state.recovery.inquiry is not None
    assert master.state.recovery.inquiry.lost == {
        move.target: f"cannot be reached: {move.source}: the connection broke"
    }
    assert master.state.state is JobState.RUNNING


def test_standing_follower_that_cannot_be_reached_is_given_up() -> None:
    """Its owner serves nothing that it lacks."""
    master = running(followers=1)

    master.report(m.TransferFailed("server-1", 0, "the connection broke", "server-2"))

    assert e.KillContainer(master.container_of("server-2")) in master.last
    assert master.state.recovery.inquiry is not None and set(master.state.recovery.inquiry.lost) == {"server-2"}


@pytest.mark.parametrize("target", ["", "worker-1", "server-9"])
def test_transfer_that_fails_without_a_server_that_is_here_changes_nothing_after_the_commit(target: str) -> None:
    master = running()
    up_to(master, ADD_SERVER, Phase.COMMITTED)

    master.report(m.TransferFailed("server-1", 1, "the connection broke", target))

    assert (master.state.state, master.state.recovery.inquiry) == (JobState.RUNNING, None)


@pytest.mark.parametrize("change", [ADD_WORKER, REMOVE_WORKER], ids=str)
def test_split_that_fails_after_the_commit_changes_nothing(change: Change) -> None:
    """Every split had arrived before the commit: only an acknowledgement was lost."""
    master = running()
    up_to(master, change, Phase.COMMITTED)

    master.report(m.TransferFailed("worker-1", 1, "the connection broke"))
    master.acknowledge_membership()
    master.release()

    assert (master.state.state, master.state.plans.all[1].phase) == (JobState.RUNNING, Phase.RELEASED)


@pytest.mark.parametrize("change", EVERY_CHANGE, ids=str)
def test_transfer_that_fails_once_everybody_has_switched_changes_nothing(change: Change) -> None:
    """All transfers of the plan are complete; possibly only the last acknowledgement was lost."""
    master = running()
    up_to(master, change, Phase.SWITCHED)

    master.report(m.TransferFailed("server-1", 1, "the connection broke"))
    master.release()

    assert master.state.state is JobState.RUNNING
    assert master.state.plans.all[1].phase is Phase.RELEASED


def test_transfer_that_fails_for_another_plan_changes_nothing() -> None:
    master = running()
    master.carry_out(ADD_WORKER)
    master.report(m.TransferFailed("worker-1", 1, "late"))
    up_to(master, REMOVE_SERVER, Phase.COMMITTED)

    master.report(m.TransferFailed("worker-1", 1, "late"))
    master.report(m.TransferFailed("worker-1", 3, "nobody asked"))

    assert (master.state.state, master.state.plans.all[2].phase) == (JobState.RUNNING, Phase.COMMITTED)


# ---- members that fail without being members


def test_failure_of_somebody_who_is_no_member_any_more_changes_nothing() -> None:
    master = running()
    master.carry_out(Change(Operation.REMOVE_WORKERS, 1, ("worker-3",)))
    grown = master.ask(ADD_WORKER)
    master.register("worker-4")
    master.step(e.CancelRequested("cancel", grown.plan_id))
    shrunk = master.ask(REMOVE_SERVER)

    for name in ("worker-3", "worker-4", "worker-99", ""):
        master.report(m.MemberFailed(name, "DataError", "late"))

    assert (master.state.state, shrunk.phase) == (JobState.RUNNING, Phase.PREPARED)


# ---- copies that are there


def test_inactive_copy_is_loaded_before_the_commit_and_nothing_is_sent() -> None:
    """EPS Fig. 11: worker-4 leaves; worker-1 and worker-2 have the splits that they gave it."""
    master = running()
    grown = master.carry_out(ADD_WORKER)
    plan = master.ask(Change(Operation.REMOVE_WORKERS, 1, ("worker-4",)))
    returned = {move.item: move.target for move in master.driver.transfer.split_moves}
    master.sent(object)
    master.acknowledge_lists()
    loads = master.sent(m.SendSplits | m.LoadSplits)

    assert loads == [(w, m.LoadSplits(plan.plan_id, (s,))) for s, w in sorted(returned.items(), key=lambda i: i[1])]
    assert plan.phase is Phase.LISTS_UPDATED, "not before they are in memory"
    for split, worker in returned.items():
        master.report(m.SplitReceived(worker, plan.plan_id, split, 0))
    assert plan.phase is Phase.COMMITTED
    assert (grown.bytes_moved > 0, plan.bytes_moved) == (True, 0)


def test_load_is_ordered_again_only_for_the_splits_that_are_missing() -> None:
    master = running()
    master.carry_out(ADD_WORKER)
    plan = master.ask(Change(Operation.REMOVE_WORKERS, 1, ("worker-4",)))
    first, second = (move for move in master.driver.transfer.split_moves)
    master.acknowledge_lists()
    master.report(m.SplitReceived(first.target, plan.plan_id, first.item, 0))
    master.sent(object)

    master.tick()

    assert master.sent(m.LoadSplits) == [(second.target, m.LoadSplits(plan.plan_id, (second.item,)))]


def test_plan_may_load_some_splits_and_send_others() -> None:
    master = running()
    master.carry_out(ADD_WORKER)
    plan = master.ask(Change(Operation.REMOVE_WORKERS, 2, ("worker-1", "worker-4")))
    master.sent(object)
    master.acknowledge_lists()

    ordered = master.sent(m.SendSplits | m.LoadSplits)

    sent = {t.item for _, order in ordered if isinstance(order, m.SendSplits) for t in order.transfers}
    loaded = {s for _, order in ordered if isinstance(order, m.LoadSplits) for s in order.splits}
    assert sent == {v.item for v in master.driver.transfer.split_moves if v.sends_bytes} != set()
    assert loaded == {v.item for v in master.driver.transfer.split_moves if not v.sends_bytes} != set()
    master.copy()
    assert plan.bytes_moved == 100 * len(sent)


def test_copy_that_cannot_be_read_aborts_the_plan() -> None:
    master = running()
    master.carry_out(ADD_WORKER)
    plan = master.ask(Change(Operation.REMOVE_WORKERS, 1, ("worker-4",)))
    master.acknowledge_lists()

    master.report(m.TransferFailed("worker-1", plan.plan_id, "split 1 cannot be read: damaged"))

    assert (plan.phase, plan.reason) == (Phase.ABORTED, "worker-1: split 1 cannot be read: damaged")
