"""The EPS paper, figure by figure and sentence by sentence, against the pure core.

The paper counts from P1, D1, W1 and S1; partitions and splits here count from 0, members from 1.
"""

from __future__ import annotations

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core import server_events as s
from eps.core.job import Job
from eps.core.membership import Membership, PartitionTable, SplitTable, spread_evenly
from eps.core.partition_state import Holding
from eps.core.planner import (
    PARTITION_TAKE_RULE,
    SPLIT_TAKE_RULE,
    Move,
    TakeRule,
    plan_partitions,
    plan_splits,
    plan_transfer,
)
from eps.core.reconfig import Change, Operation, Phase, Plan
from eps.core.server_state import ServerState
from eps.core.types import Address, CoreSettings, Role, Team
from eps.core.worker_state import Duties
from tests.core.scripted import ScriptedMaster

W1, W2, W3, W4 = (f"worker-{i}" for i in range(1, 5))
S1, S2, S3, S4 = (f"server-{i}" for i in range(1, 5))


def at(name: str) -> Address:
    return Address(name, 1)


def p(*numbers: int) -> tuple[int, ...]:
    """Partitions or splits by the paper's numbers."""
    return tuple(n - 1 for n in numbers)


def job_of_figure_4(version: int = 1) -> Membership:
    """Three workers with three splits each, three servers with two partitions each."""
    members = (W1, W2, W3, S1, S2, S3)
    return Membership(
        version=version,
        from_clock=0,
        workers=(W1, W2, W3),
        servers=(S1, S2, S3),
        partitions=PartitionTable(spread_evenly(6, (S1, S2, S3))),
        splits=SplitTable.of(spread_evenly(9, (W1, W2, W3))),
        addresses={name: at(name) for name in members},
    )


def with_s4(before: Membership, from_clock: int = 5) -> Membership:
    _, partitions = plan_partitions(before.partitions, before.servers, (S4,), ())
    return Membership(
        before.version + 1,
        from_clock,
        before.workers,
        (*before.servers, S4),
        partitions,
        before.splits,
        {**before.addresses, S4: at(S4)},
    )


def with_w4(before: Membership, from_clock: int = 5) -> Membership:
    _, splits = plan_splits(before.splits, before.workers, (W4,), ())
    return Membership(
        before.version + 1,
        from_clock,
        (*before.workers, W4),
        before.servers,
        before.partitions,
        splits,
        {**before.addresses, W4: at(W4)},
    )


SETTINGS = CoreSettings(num_splits=9, num_partitions=6, iterations=100, reproducible=False)


def started_server(name: str, membership: Membership, settings: CoreSettings = SETTINGS) -> ServerState:
    server = ServerState(name, settings)
    server.step(s.MembershipArrived(0, membership))
    return server


# ---- §2.2 Fig. 1


def test_figure_1_worker_list_and_server_list_say_who_holds_what() -> None:
    """§2.2, Fig. 1: the data in splits over workers, the parameters in partitions over servers."""
    job = job_of_figure_4()

    servers, workers = job.holdings(Role.SERVER), job.holdings(Role.WORKER)

    assert servers == {S1: [*p(1, 2)], S2: [*p(3, 4)], S3: [*p(5, 6)]}
    assert workers == {W1: [*p(1, 2, 3)], W2: [*p(4, 5, 6)], W3: [*p(7, 8, 9)]}
    assert all(job.addresses[name] == at(name) for name in (*servers, *workers))


def test_figure_1b_worker_computes_its_splits_of_a_clock_when_the_servers_reached_it() -> None:
    """§2.2, Fig. 1(b) steps 3 to 6: the clock list holds a clock for each server and is judged before computing."""
    worker = Duties(W1, SETTINGS)
    worker.on_membership(job_of_figure_4())
    worker.on_grant(m.GrantHorizon(10, 0, 1))
    worker.computed(0, worker.due_at(0))
    worker.done(0)

    work = worker.next_work()

    assert work is not None
    assert (work.clock, work.splits, work.min_clock) == (1, p(1, 2, 3), 1)
    clocks = {0: 1, 1: 1, 2: 1, 3: 0, 4: 1, 5: 1}
    assert worker.memberships.clock_list(clocks) == {S1: 1, S2: 0, S3: 1}
    assert worker.memberships.route(1).partitions.owned_by(S2) == p(3, 4)


def test_figure_1c_server_steps_a_partition_once_every_worker_has_pushed() -> None:
    """§2.2, Fig. 1(c) steps 1 to 5: accumulate, update the clock list, step, and send to the workers."""
    server = started_server(S1, job_of_figure_4())
    waiting = server.step(s.PullArrived("pull", 0, 1))

    first = server.step(s.PushArrived("w1", 0, 0, p(1, 2, 3)))
    second = server.step(s.PushArrived("w2", 0, 0, p(4, 5, 6)))
    last = server.step(s.PushArrived("w3", 0, 0, p(7, 8, 9)))

    assert waiting == []
    assert first == [s.Accumulate("w1", 0, 0, p(1, 2, 3), True), s.AckPush("w1", 0, ())]
    assert second == [s.Accumulate("w2", 0, 0, p(4, 5, 6), False), s.AckPush("w2", 0, ())]
    assert last == [
        s.Accumulate("w3", 0, 0, p(7, 8, 9), False),
        s.AckPush("w3", 0, ()),
        s.StepPartition(0, 0),
        s.AnswerPull("pull", 0, 1),
    ]


def test_figure_1c_clock_list_of_a_server_counts_a_worker_when_all_its_partitions_have_its_updates() -> None:
    """§2.2, Fig. 1(c) step 3."""
    server = started_server(S1, job_of_figure_4())
    before = server.clock_list()

    for partition in p(1, 2):
        for number, splits in ((1, p(1, 2, 3)), (2, p(4, 5, 6)), (3, p(7, 8, 9))):
            server.step(s.PushArrived((partition, number), partition, 0, splits))

    assert before == {W1: 0, W2: 0, W3: 0}
    assert server.clock_list() == {W1: 1, W2: 1, W3: 1}


# ---- §3.1 Fig. 4


def test_figure_4_master_spreads_splits_and_partitions_in_order() -> None:
    """§3.1, Fig. 4 (contents inferred from Figs 6, 8 and 12)."""
    master = ScriptedMaster(SETTINGS, num_workers=3, num_servers=3)

    master.start()

    assert master.membership.partitions.owners == (S1, S1, S2, S2, S3, S3)
    assert master.membership.splits.active == (W1, W1, W1, W2, W2, W2, W3, W3, W3)
    assert master.membership.splits.inactive == ((),) * 9


# ---- §3.2 Figs 5 to 9


def test_figure_6_adding_s4_brings_it_p3_and_p5() -> None:
    """§3.2, Fig. 6: S1 gives nothing; P3 and P5 leave S2 and S3."""
    job = job_of_figure_4()

    moves, after = plan_partitions(job.partitions, job.servers, (S4,), ())

    assert moves == (Move(2, S2, S4), Move(4, S3, S4))
    assert [after.owned_by(server) for server in (S1, S2, S3, S4)] == [p(1, 2), p(4), p(6), p(3, 5)]


def test_figure_8_adding_w4_brings_it_d3_d6_and_d9_and_the_donors_keep_them_inactive() -> None:
    """§3.2, Fig. 8."""
    job = job_of_figure_4()

    moves, after = plan_splits(job.splits, job.workers, (W4,), ())

    assert moves == (Move(2, W1, W4), Move(5, W2, W4), Move(8, W3, W4))
    assert [after.active_on(w) for w in (W1, W2, W3, W4)] == [p(1, 2), p(4, 5), p(7, 8), p(3, 6, 9)]
    assert [after.inactive_on(w) for w in (W1, W2, W3, W4)] == [p(3), p(6), p(9), ()]


def test_figures_6_and_8_follow_from_one_rule_and_two_named_orders() -> None:
    """Style section 17: how many move is the same rule; which of a donor's items move differs."""
    assert (PARTITION_TAKE_RULE, SPLIT_TAKE_RULE) == (TakeRule.LOWEST_FIRST, TakeRule.HIGHEST_FIRST)


def test_figure_7_server_list_and_clock_list_of_w1_gain_s4() -> None:
    """§3.2, Fig. 7: from the commit clock on, updates of P3 and P5 go to S4."""
    worker = Duties(W1, SETTINGS)
    worker.on_membership(job_of_figure_4())
    worker.on_grant(m.GrantHorizon(20, 0, 1))

    worker.on_membership(with_s4(job_of_figure_4(), from_clock=5))

    assert worker.memberships.clock_list(dict.fromkeys(range(6), 4)) == {S1: 4, S2: 4, S3: 4, S4: 4}
    before, after = worker.memberships.route(4).partitions, worker.memberships.route(5).partitions
    assert (before.owners[2], before.owners[4]) == (S2, S3)
    assert (after.owners[2], after.owners[4]) == (S4, S4)
    assert after.owned_by(S4) == p(3, 5)


def test_figure_9_clock_list_of_s1_gains_w4_with_its_three_splits() -> None:
    """§3.2, Fig. 9: W4 pushes what D3, D6 and D9 give, and its clock follows."""
    server = started_server(S1, job_of_figure_4())
    for partition in p(1, 2):
        server.step(s.PushArrived((partition, 0), partition, 0, tuple(range(9))))

    server.step(s.MembershipArrived(1, with_w4(job_of_figure_4(), from_clock=1)))
    before = server.clock_list()
    for partition in p(1, 2):
        for worker, splits in (("w1", p(1, 2)), ("w2", p(4, 5)), ("w3", p(7, 8)), ("w4", p(3, 6, 9))):
            server.step(s.PushArrived((partition, worker), partition, 1, splits))

    assert before == {W1: 1, W2: 1, W3: 1, W4: 1}
    assert server.clock_list() == {W1: 2, W2: 2, W3: 2, W4: 2}


def test_figure_9_w4_computes_from_the_commit_clock_on_and_donors_until_then() -> None:
    """§3.2, Figs 8 and 9: one clock divides donor and receiver."""
    membership = with_w4(job_of_figure_4(), from_clock=5)
    donor, newcomer = Duties(W1, SETTINGS), Duties(W4, SETTINGS)
    donor.on_membership(job_of_figure_4())

    donor.on_membership(membership)
    newcomer.on_membership(membership)

    assert donor.active_at(4) == p(1, 2, 3)
    assert donor.active_at(5) == p(1, 2)
    assert newcomer.clock == 5
    assert newcomer.active_at(5) == p(3, 6, 9)


@pytest.mark.parametrize("role", list(Role))
def test_figure_5_barriers_of_an_addition_are_passed_in_order(role: Role) -> None:
    """§3.2, Fig. 5: B1 containers, B2 initialised, B3 lists, B4 transmitted and all lists updated."""
    master = ScriptedMaster(SETTINGS, num_workers=3, num_servers=3)
    master.start()
    added = W4 if role is Role.WORKER else S4

    plan = master.ask(Change(Operation(f"add-{role}s"), 1))
    reached = [(plan.phase, set(plan.barriers_s))]
    for act in (
        lambda: master.launch(added),
        lambda: master.register(added),
        master.acknowledge_lists,
        master.copy,
        master.acknowledge_membership,
        master.release,
    ):
        act()
        reached.append((plan.phase, set(plan.barriers_s)))

    assert reached == [
        (Phase.PROPOSED, set()),
        (Phase.PROPOSED, {"B1"}),
        (Phase.PREPARED, {"B1", "B2"}),
        (Phase.LISTS_UPDATED, {"B1", "B2", "B3"}),
        (Phase.COMMITTED, {"B1", "B2", "B3"}),
        (Phase.SWITCHED, {"B1", "B2", "B3", "B4"}),
        (Phase.RELEASED, {"B1", "B2", "B3", "B4"}),
    ]
    times = [plan.barriers_s[barrier] for barrier in ("B1", "B2", "B3", "B4")]
    assert times == sorted(times)


def test_barrier_3_lists_are_updated_before_any_byte_moves() -> None:
    """§3.2: the current members put the newcomer into their lists, then partitions are sent to it."""
    master = ScriptedMaster(SETTINGS, num_workers=3, num_servers=3)
    master.start()
    master.ask(Change(Operation.ADD_SERVERS, 1))

    master.launch(S4)
    master.register(S4)
    first = master.sent(m.UpdateLists | m.SendPartitions)
    master.acknowledge_lists()
    second = master.sent(m.UpdateLists | m.SendPartitions)

    assert {type(order) for _, order in first} == {m.UpdateLists}
    assert {to for to, _ in first} == {W1, W2, W3, S1, S2, S3, S4}
    assert {to: order.coming for to, order in first if order.coming} == {S4: (2, 4)}
    assert second == [
        (S2, m.SendPartitions(1, (m.Target(2, S4, master.address_of(S4)),))),
        (S3, m.SendPartitions(1, (m.Target(4, S4, master.address_of(S4)),))),
    ]


def test_figure_6_donors_drop_p3_and_p5_after_the_transmission() -> None:
    """§3.2: P3 is removed from S2 once it has moved; until then S2 answers for it."""
    job, later = job_of_figure_4(), with_s4(job_of_figure_4(), from_clock=1)
    donor = started_server(S2, job)
    donor.step(s.SendOrdered(1, 2, S4))
    donor.step(s.MembershipArrived(1, later))
    still = donor.owned()

    for partition in p(3, 4):
        donor.step(s.PushArrived(partition, partition, 0, tuple(range(9))))
    given = donor.partitions[2].holding
    released = donor.step(s.PlanReleaseOrdered(1))

    assert still == p(3, 4)
    assert given is Holding.FORMER
    assert donor.owned() == p(4)
    assert s.DropPartition(2) in released


# ---- §3.3 Figs 10 to 12


def test_figure_11_removing_w4_sends_nothing_and_wakes_the_inactive_copies() -> None:
    """§3.3, Fig. 11: D3, D6 and D9 become active again where they are on disk already."""
    job = with_w4(job_of_figure_4())

    moves, after = plan_splits(job.splits, job.workers, (), (W4,))

    assert moves == (Move(2, W4, W1, False), Move(5, W4, W2, False), Move(8, W4, W3, False))
    assert [after.active_on(w) for w in (W1, W2, W3)] == [p(1, 2, 3), p(4, 5, 6), p(7, 8, 9)]
    assert all(holders == () for holders in after.inactive)


def test_figure_11_nobody_is_ordered_to_send_a_split_when_w4_is_removed() -> None:
    """§3.3, Fig. 11, as the master says it."""
    master = ScriptedMaster(SETTINGS, num_workers=3, num_servers=3)
    master.start()
    master.carry_out(Change(Operation.ADD_WORKERS, 1))

    plan = master.carry_out(Change(Operation.REMOVE_WORKERS, 1, (W4,)))

    assert plan.phase is Phase.RELEASED
    assert plan.bytes_moved == 0
    orders = [order for _, order in master.sent(m.SendSplits)]
    assert [order.plan_id for order in orders] == [1, 1, 1]


def test_figure_12_removing_s3_gives_p5_to_s1_and_p6_to_s2() -> None:
    """§3.3, Fig. 12: round-robin over the servers that stay."""
    job = job_of_figure_4()

    moves, after = plan_partitions(job.partitions, job.servers, (), (S3,))

    assert moves == (Move(4, S3, S1), Move(5, S3, S2))
    assert [after.owned_by(server) for server in (S1, S2)] == [p(1, 2, 5), p(3, 4, 6)]


def test_sentence_removed_server_is_in_no_list_afterwards() -> None:
    """§3.3: S1 and S2 delete S3 from their lists, the workers from theirs."""
    master = ScriptedMaster(SETTINGS, num_workers=3, num_servers=3)
    master.start()

    master.carry_out(Change(Operation.REMOVE_SERVERS, 1, (S3,)))

    assert list(master.membership.holdings(Role.SERVER)) == [S1, S2]
    worker = Duties(W1, SETTINGS)
    worker.on_membership(master.membership)
    assert set(worker.memberships.clock_list({})) == {S1, S2}


@pytest.mark.parametrize("role", list(Role))
def test_figure_10_barriers_of_a_removal_and_b4_does_not_wait_for_b3(role: Role) -> None:
    """§3.3, Fig. 10: B1 ready, B2 received, B4 lists updated; B3, the containers' end, comes after it."""
    master = ScriptedMaster(SETTINGS, num_workers=3, num_servers=3)
    master.start()
    removed = W3 if role is Role.WORKER else S3

    plan = master.ask(Change(Operation(f"remove-{role}s"), 1, (removed,)))
    reached = [(plan.phase, set(plan.barriers_s))]
    for act in (
        master.acknowledge_lists,
        master.copy,
        master.acknowledge_membership,
        master.report_released,
        lambda: master.exit(removed),
    ):
        act()
        reached.append((plan.phase, set(plan.barriers_s)))

    assert reached == [
        (Phase.PREPARED, {"B1"}),
        (Phase.LISTS_UPDATED, {"B1"}),
        (Phase.COMMITTED, {"B1", "B2"}),
        (Phase.SWITCHED, {"B1", "B2", "B4"}),
        (Phase.SWITCHED, {"B1", "B2", "B4"}),
        (Phase.RELEASED, {"B1", "B2", "B3", "B4"}),
    ]


def test_figure_10_container_is_released_only_after_its_data_is_acknowledged_elsewhere() -> None:
    """§3.3, third step: terminate the removed worker and release its container."""
    master = ScriptedMaster(SETTINGS, num_workers=3, num_servers=3)
    master.start()

    master.ask(Change(Operation.REMOVE_WORKERS, 1, (W3,)))
    for act in (master.acknowledge_lists, master.copy, master.acknowledge_membership):
        act()
        assert not master.commands(e.ReleaseContainer) and not master.sent(m.Shutdown)
    master.report_released()
    told = master.sent(m.Shutdown)
    master.exit(W3)

    assert {to for to, _ in told} == {W3}
    assert [c.container_id for c in master.commands(e.ReleaseContainer)] == [master.container_of(W3)]


# ---- sentences


def test_sentence_several_members_come_or_go_in_one_call() -> None:
    """§5.2: the four calls take a number of members."""
    job = job_of_figure_4()

    grown = plan_transfer(job, Team(workers=(W4, "worker-5", "worker-6")), Team())
    shrunk = plan_transfer(job, Team(), Team(servers=(S2, S3)))

    assert sorted(grown.splits.counts(("worker-1", "worker-5", "worker-6", W2, W3, W4)).values()) == [1, 1, 1, 2, 2, 2]
    assert shrunk.partitions.owners == (S1,) * 6


def test_sentence_training_goes_on_with_the_same_splits_each_clock_after_a_change() -> None:
    """§3.2, §3.3: active splits are disjoint and cover the data, whoever comes or goes."""
    job = job_of_figure_4()

    grown = with_w4(job)
    _, shrunk = plan_splits(grown.splits, grown.workers, (), (W1,))

    for table, workers in ((grown.splits, grown.workers), (shrunk, (W2, W3, W4))):
        held = [split for worker in workers for split in table.active_on(worker)]
        assert sorted(held) == list(range(9))


def test_job_master_refuses_to_start_with_more_servers_than_partitions() -> None:
    """§2.2: every server of Fig. 1 holds at least one partition."""
    with pytest.raises(Exception, match=r"7 servers .* 6 "):
        Job(SETTINGS, 3, 7)


def test_plan_record_tells_when_each_barrier_was_passed() -> None:
    """Figs 5 and 10: a barrier is the end of a phase, with its time."""
    plan = Plan(1, "r", Change(Operation.ADD_WORKERS, 1))

    plan.enter(Phase.PROPOSED, 1.0)
    plan.enter(Phase.PREPARED, 2.5)

    assert plan.barriers_s == {"B2": 2.5}
