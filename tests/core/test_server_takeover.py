"""A server with standing followers, after losses of others, and when the job rolls back."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.membership import Membership, PartitionTable
from eps.core.partition_state import INCARNATION_BITS, Holding
from eps.core.server_state import ServerState
from eps.core.types import CoreSettings
from tests.core.test_server_state import ALL, ASP, BSP, SSP, Server, kinds, membership
from tests.tiers import rotating

Owners = tuple[str, str]
Followers = tuple[tuple[str, ...], tuple[str, ...]]
S1, S2, S3 = "server-1", "server-2", "server-3"
FOLLOWED: Followers = ((S2,), (S2,))
NOBODY: Followers = ((), ())


def followed(version: int, owners: Owners, followers: Followers = NOBODY, from_clock: int = 0) -> Membership:
    return replace(membership(version, owners, from_clock), partitions=PartitionTable(owners, followers))


def takeover(version: int, owners: Owners, followers: Followers = NOBODY, clock: int = 0) -> Membership:
    """Return what holds after a loss."""
    return replace(followed(version, owners, followers, clock), split_clocks=(clock,) * 3, recovery=version)


def back(version: int, owners: Owners, followers: Followers = NOBODY, clock: int = 0) -> Membership:
    """Return what begins an incarnation."""
    return replace(takeover(version, owners, followers, clock), goes_back=True, incarnation=1, checkpoint="c")


def owner(settings: CoreSettings = BSP) -> Server:
    """Server-1 owns both partitions, server-2 follows them."""
    return Server(settings, S1, followed(1, (S1, S1), FOLLOWED))


def follower(settings: CoreSettings = BSP) -> Server:
    return Server(settings, S2, followed(1, (S1, S1), FOLLOWED))


def acked(server: Server, sequence: int, partition: int = 0, name: str = S2, plan_id: int = 0) -> list[s.ServerCommand]:
    """Let a follower acknowledge every update before ``sequence``."""
    return server.step(s.UpdateAcked(plan_id, partition, name, sequence))


def requests(commands: list[s.ServerCommand], kind: type) -> list[object]:
    return [c.request for c in commands if isinstance(c, kind)]  # type: ignore[attr-defined]


# ---- standing followers


def test_first_membership_creates_what_a_server_owns_and_what_it_follows() -> None:
    commands = ServerState(S2, BSP).step(s.MembershipArrived(0, followed(1, (S2, S1), ((S1,), (S2,)))))

    assert kinds(commands) == ["CreatePartition", "CreatePartition", "ReportToMaster"]


def test_nothing_of_the_next_clock_is_served_before_every_follower_in_sync_has_it() -> None:
    server = Server(BSP, S1, followed(1, (S1, S1), ((S2, S3), (S2, S3))))
    sent = [c for c in server.push(0, *ALL) if isinstance(c, s.SendUpdate)]

    waiting = server.pull(1)
    one = acked(server, 1)
    both = acked(server, 1, name=S3)

    assert [(c.to, c.sequence) for c in sent] == [(S2, 0), (S3, 0)]
    assert (waiting, one) == ([], [])
    assert both == [s.AnswerPull("pull", 0, 1)]


def test_version_before_is_served_while_a_follower_lacks_the_newest() -> None:
    server = owner()
    server.push(0, *ALL)

    assert server.pull(0) == [s.AnswerPull("pull", 0, 0)]


def test_bsp_push_is_acknowledged_at_once_and_kept_by_who_pushed() -> None:
    assert s.AckPush("push", 0, ()) in owner().push(0, 0)


@pytest.mark.parametrize("settings", [SSP, ASP])
def test_stale_push_is_acknowledged_when_every_follower_in_sync_has_it(settings: CoreSettings) -> None:
    """No process keeps acknowledged updates."""
    server = owner(settings)

    first, second = server.push(0, 0, request="first"), server.push(0, 1, request="second")
    again = server.push(0, 0, request="again")

    assert not requests(first + second + again, s.AckPush)
    assert requests(acked(server, 1), s.AckPush) == ["first"]
    assert requests(acked(server, 2), s.AckPush) == ["second", "again"]


@pytest.mark.parametrize("settings", [SSP, ASP])
def test_server_that_gave_a_partition_away_acknowledges_again_what_its_next_owner_has(settings: CoreSettings) -> None:
    """Found by simulation: the promotion has a number, and no follower acknowledges it."""
    server = owner(settings)
    server.push(0, 0)
    server.step(s.MembershipArrived(1, followed(2, (S2, S1), ((), (S2,)))))

    early = server.push(0, 0, request="early")
    settled = acked(server, 1)
    late = server.push(0, 0, request="late")

    assert early == []
    assert requests(settled, s.AckPush) == ["push", "early"]
    assert late == [s.AckPush("late", 0, (0,))]


def test_acknowledgements_of_a_follower_may_come_twice_and_late() -> None:
    server = owner()
    server.push(0, *ALL)
    server.pull(1)

    assert acked(server, 0) == []
    assert kinds(acked(server, 1)) == ["AnswerPull"]
    assert acked(server, 1) == [] == acked(server, 0)
    assert acked(server, 1, name=S3) == [] == acked(server, 9, partition=7)


def test_follower_that_is_being_brought_up_holds_nobody_up_until_it_has_caught_up() -> None:
    server = Server(BSP)
    server.follow()

    server.push(0, *ALL)
    before = server.pull(1)
    server.push(1, *ALL)
    server.step(s.UpdateAcked(1, 0, S2, 1, m.PartitionSent(S1, 1, 0, 8, "sum")))
    caught_up = server.pull(2, request="held")

    assert before == [s.AnswerPull("pull", 0, 1)]
    assert caught_up == []
    assert requests(acked(server, 2, plan_id=1), s.AnswerPull) == ["held"]


def test_plan_promotes_a_standing_follower_and_nothing_is_sent() -> None:
    donor, taker = owner(), follower()
    later = followed(2, (S2, S1), ((), (S2,)), from_clock=1)
    for server in (donor, taker):
        server.step(s.MembershipArrived(1, later))

    donor.push(0, *ALL)
    promoted = taker.update(0, 0, plan_id=0)

    assert donor.state.partitions[0].holding is Holding.FORMER
    assert taker.state.partitions[0].holding is Holding.OWNER
    assert s.ReportToMaster(m.PartitionPromoted(S2, 1, 0)) in promoted
    released = donor.step(s.PlanReleaseOrdered(1))
    assert released[:2] == [s.StopSending(0, 0, S2), s.DropPartition(0)]
    assert not donor.state.partitions[0].followers and set(donor.state.partitions[1].followers) == {S2}


def test_follower_that_a_plan_brought_stands_after_its_release_and_one_that_moved_on_does_not() -> None:
    donor, taker = Server(BSP), Server(BSP, S2)
    donor.follow()
    taker.snapshot(clock=0, sequence=0)
    for server in (donor, taker):
        server.step(s.MembershipArrived(1, followed(2, (S1, S1), ((S2,), ()))))
        server.step(s.PlanReleaseOrdered(1))
    standing = set(donor.state.partitions[0].followers), set(taker.state.partitions)

    gone = followed(3, (S1, S1), ((S3,), ()))
    at_donor, at_taker = (server.step(s.MembershipArrived(2, gone)) for server in (donor, taker))

    assert standing == ({S2}, {0})
    assert kinds(at_donor)[0] == "StopSending" and kinds(at_taker)[0] == "DropPartition"
    assert not donor.state.partitions[0].followers and not taker.state.partitions


def test_abort_of_a_plan_leaves_standing_followers_alone() -> None:
    donor, taker = owner(), follower()
    for server in (donor, taker):
        assert server.step(s.PlanAborted(1)) == []

    assert set(donor.state.partitions[0].followers) == {S2} and set(taker.state.partitions) == {0, 1}


# ---- take over


def test_follower_owns_at_once_what_its_owner_was_lost_with() -> None:
    server = follower()
    server.update(0, 0, plan_id=0)
    held = server.pull(1)

    commands = server.step(s.MembershipArrived(0, takeover(2, (S2, S2), clock=1)))

    assert held == []
    assert s.AnswerPull("pull", 0, 1) in commands
    assert server.state.owned() == (0, 1)
    assert {c.report for c in commands if isinstance(c, s.ReportToMaster)} == {
        m.PartitionPromoted(S2, 0, 0),
        m.PartitionPromoted(S2, 0, 1),
        m.MembershipAcked(S2, 2),
    }


def test_updates_that_overtook_a_lost_one_are_refused() -> None:
    """The worker that computed them keeps them, and pushes them to the new owner."""
    server = follower()
    server.update(1, 1, plan_id=0)

    commands = server.step(s.MembershipArrived(0, takeover(2, (S2, S2))))

    assert s.RefuseUpdate(("update", 1)) in commands
    assert server.state.partitions[0].clocks.completed == 0
    assert kinds(server.push(0, *ALL))[0] == "Accumulate"


def test_owner_stays_and_what_waited_for_the_lost_follower_is_served() -> None:
    server = owner()
    server.push(0, *ALL)
    server.pull(1)

    commands = server.step(s.MembershipArrived(0, takeover(2, (S1, S1), clock=0)))

    assert commands[0] == s.StopSending(0, 0, S2)
    assert requests(commands, s.AnswerPull) == ["pull"]


def test_stale_acknowledgements_that_waited_for_the_lost_follower_are_sent() -> None:
    server = owner(SSP)
    server.push(0, 0)

    commands = server.step(s.MembershipArrived(0, takeover(2, (S1, S1))))

    assert requests(commands, s.AckPush) == ["push"]


def test_owner_that_was_taken_over_from_forgets_what_is_not_complete_and_refuses() -> None:
    server = owner()
    server.push(0, 0)

    server.step(s.MembershipArrived(0, takeover(2, (S2, S1))))

    assert not server.state.partitions[0].clocks.arrived
    assert server.push(0, 0) == [s.RefuseStale("push")]


@pytest.mark.parametrize("has", [False, True])
def test_owner_that_was_taken_over_from_serves_the_newest_clock_only_where_its_follower_had_it(has: bool) -> None:
    """Otherwise a worker would read a clock that its heir has yet to reach, perhaps after another loss."""
    server = owner()
    server.push(0, *ALL)
    if has:
        acked(server, 1)

    server.step(s.MembershipArrived(0, takeover(2, (S2, S1), ((), (S2,)))))

    newest = s.AnswerPull("pull", 0, 1) if has else s.RefuseStale("pull")
    assert server.pull(0) == [s.AnswerPull("pull", 0, 0)]
    assert server.pull(1) == [newest]


def test_owner_that_gets_a_withheld_partition_back_serves_its_newest_clock() -> None:
    server = owner()
    server.push(0, *ALL)
    server.step(s.MembershipArrived(0, takeover(2, (S2, S1), ((), (S2,)))))

    server.step(s.MembershipArrived(0, takeover(3, (S1, S1), NOBODY)))

    assert server.pull(1) == [s.AnswerPull("pull", 0, 1)]


def test_server_owns_again_what_the_new_owner_was_lost_with() -> None:
    server = Server(BSP)
    server.follow()
    server.step(s.MembershipArrived(1, membership(2, (S2, S1), from_clock=1)))
    server.push(0, *ALL)
    refused = server.pull(2)

    commands = server.step(s.MembershipArrived(0, takeover(3, (S1, S1), clock=1)))

    assert refused == [s.RefuseStale("pull")]
    assert server.state.owned() == (0, 1) and commands[0] == s.StopSending(1, 0, S2)
    assert kinds(server.push(1, *ALL))[0] == "Accumulate"


def test_partition_that_was_to_change_hands_later_stays_where_a_takeover_leaves_it() -> None:
    server = Server(BSP)
    server.follow()
    server.step(s.MembershipArrived(1, membership(2, (S2, S1), from_clock=3)))

    server.step(s.MembershipArrived(0, takeover(3, (S1, S1), clock=1)))
    for clock in range(4):
        server.push(clock, *ALL)

    assert server.state.partitions[0].holding is Holding.OWNER


def test_follower_that_stays_one_waits_for_the_same_updates() -> None:
    server = follower()
    server.update(0, 0, plan_id=0)

    server.step(s.MembershipArrived(0, takeover(2, (S1, S1), FOLLOWED, clock=1)))

    assert kinds(server.update(1, 1, plan_id=0)) == ["ApplyUpdate"]


def test_follower_that_is_not_counted_on_any_more_drops_what_it_has() -> None:
    server = follower()
    server.pull(1)
    server.update(1, 1, plan_id=0)

    commands = server.step(s.MembershipArrived(0, takeover(2, (S1, S1), ((S2,), ()))))

    assert kinds(commands) == ["DropPartition", "ReportToMaster"]
    assert set(server.state.partitions) == {0}


def test_owner_that_does_not_know_yet_that_it_was_taken_over_from_is_refused_what_it_sends() -> None:
    """It would believe that its follower has it, and serve it."""
    server = follower()
    server.update(0, 0, plan_id=0)
    server.step(s.MembershipArrived(0, takeover(2, (S2, S2), clock=1)))

    assert server.update(0, 0, plan_id=0) == [s.DropUpdate(("update", 0))], "what was before is here"
    assert server.update(1, 1, plan_id=0) == [s.RefuseUpdate(("update", 1))]


@pytest.mark.parametrize("told", [True, False], ids=["in order", "its own membership was lost"])
def test_follower_that_a_plan_promoted_says_so_also_where_a_loss_comes_before_the_plans_membership(told: bool) -> None:
    """Found by simulation: the owner's word of the commit may come before the master's, which is then void."""
    server = follower(SSP)
    server.step(s.PromoteArrived("promote", 3, 0, 0))
    if told:
        server.step(s.MembershipArrived(3, followed(2, (S2, S1))))

    commands = server.step(s.MembershipArrived(3, takeover(3, (S2, S1))))

    assert s.ReportToMaster(m.PartitionPromoted(S2, 3, 0)) in commands


def test_server_that_leaves_tells_what_workers_measured_where_one_of_them_was_lost() -> None:
    """Found by simulation: the worker was lost before its report left, and who leaves is not asked."""
    server, measured = owner(), m.ClockReported("", 0, (m.SplitResult(0, 1, 1.0),))
    server.step(s.ResultsArrived(measured))
    server.step(s.MembershipArrived(3, followed(2, (S2, S2))))
    leaves = replace(takeover(3, (S2, S2), clock=1), servers=(S2,))

    told = server.step(s.MembershipArrived(3, leaves))
    again = server.step(s.MembershipArrived(3, leaves))

    assert s.ReportToMaster(replace(measured, name=S1)) in told
    assert kinds(again) == ["ReportToMaster"], "it acknowledges only"


# ---- the owner is killed between applying and forwarding


def test_owner_that_is_killed_between_applying_and_forwarding_takes_nothing_with_it_that_was_served() -> None:
    """No worker has read the lost clock, and all that contributed to it push again."""
    lost, heir = owner(), follower()
    lost.push(0, *ALL)
    heir.update(0, 0, plan_id=0)
    acked(lost, 1)
    served = lost.pull(1)
    lost.push(1, *ALL)
    unserved = lost.pull(2)

    heir.step(s.MembershipArrived(0, takeover(2, (S2, S2), clock=1)))

    assert served == [s.AnswerPull("pull", 0, 1)] and unserved == []
    assert heir.pull(1) == [s.AnswerPull("pull", 0, 1)]
    assert [c.clock for c in heir.push(1, *ALL) if isinstance(c, s.StepPartition)] == [1]
    assert heir.state.partitions[0].clocks.applied == lost.state.partitions[0].clocks.applied == 6


@pytest.mark.parametrize("settings", [SSP, ASP])
def test_stale_owner_that_is_killed_before_it_forwards_has_acknowledged_nothing_of_it(settings: CoreSettings) -> None:
    lost, heir = owner(settings), follower(settings)
    lost.push(0, 0)
    heir.update(0, 0, 0, plan_id=0)
    kept = requests(acked(lost, 1), s.AckPush)
    unacked = lost.push(0, 1, request="lost")

    heir.step(s.MembershipArrived(0, takeover(2, (S2, S2))))

    assert kept == ["push"] and not requests(unacked, s.AckPush)
    assert heir.push(0, 0) == [s.AckPush("push", 0, (0,))]
    assert kinds(heir.push(0, 1))[0] == "ApplyPush"


def test_whatever_moment_the_owner_is_lost_at_nothing_is_lost_that_was_read_or_acknowledged() -> None:
    """Random search over pushes, pulls, updates under way and the moment of the loss."""
    for seed in rotating(600):
        random = Random(seed)
        settings = random.choice((BSP, SSP, ASP))
        lost, heir = owner(settings), follower(settings)
        under_way: list[s.SendUpdate] = []
        read, acknowledged, pushed = 0, set[tuple[int, int]](), dict[object, tuple[int, tuple[int, ...]]]()
        for number in range(random.randint(1, 30)):
            act = random.choice(("push", "push", "pull", "update"))
            state = lost.state.partitions[0]
            commands: list[s.ServerCommand] = []
            if act == "push":
                split = random.choice(ALL)
                clock = state.clocks.completed if settings.bsp else state.clocks.next_clock[split]
                # Who contributes to a clock has read it.
                if clock >= settings.iterations or (settings.bsp and clock > read):
                    continue
                pushed[number] = clock, (split,)
                commands = lost.push(clock, split, request=number)
            elif act == "pull":
                commands = lost.pull(min(settings.iterations, state.clocks.completed + random.choice((0, 0, 1))))
            elif under_way:
                update = under_way.pop(0)
                heir.update(update.clock, update.sequence, *update.splits, plan_id=0)
                commands = acked(lost, update.sequence + 1)
            for command in commands:
                if isinstance(command, s.SendUpdate) and command.partition == 0:
                    under_way.append(command)
                elif isinstance(command, s.AnswerPull):
                    read = max(read, command.clock)
                elif isinstance(command, s.AckPush) and not settings.bsp and command.request in pushed:
                    clock, splits = pushed[command.request]
                    acknowledged |= {(clock, split) for split in splits}
        heir.step(s.MembershipArrived(0, takeover(2, (S2, S2), clock=heir.state.partitions[0].clocks.completed)))

        has = heir.state.partitions[0].clocks.next_clock
        if settings.bsp:
            assert min(has) >= read, f"seed {seed}: clock {read} was read"
        assert all(has[split] > clock for clock, split in acknowledged), f"seed {seed}: {acknowledged}, {has}"


# ---- what lost workers left


def test_pull_of_a_clock_that_is_complete_everywhere_is_answered_so() -> None:
    """An heir asks for what a lost worker had contributed after all."""
    server = owner()
    for clock in range(2):
        server.push(clock, *ALL)

    assert server.pull(0) == [s.RefusePassed("pull")]


def test_results_that_come_along_with_a_push_are_told_to_the_master_after_a_takeover() -> None:
    """A worker may have been lost after the others were asked what they know."""
    server = owner()
    result = (m.SplitResult(2, 1, 0.5),)
    report = m.ClockReported("worker-2", 1, result)
    before = server.step(s.ResultsArrived(report))

    server.step(s.MembershipArrived(0, takeover(2, (S1, S1), clock=1)))

    assert before == []
    assert server.step(s.ResultsArrived(report)) == [s.ReportToMaster(m.ClockReported(S1, 1, result))]
    assert server.step(s.ResultsArrived(m.ClockReported("worker-1", 2, result))) == []
    assert server.step(s.ResultsArrived(m.ClockReported("worker-1", 1, result, incarnation=3))) == []


def test_inventory_says_what_is_here_and_what_was_measured() -> None:
    server = owner()
    server.push(0, *ALL)
    result = (m.SplitResult(2, 1, 0.5),)
    server.step(s.ResultsArrived(m.ClockReported("worker-2", 0, result)))

    found = server.state.inventory(4, 0)

    assert (found.name, found.recovery) == (S1, 4)
    assert [(h.partition, h.holding, h.next_clock, h.oldest_clock) for h in found.partitions] == [
        (0, Holding.OWNER, (1, 1, 1), 0),
        (1, Holding.OWNER, (0, 0, 0), 0),
    ]
    assert found.results == (m.ClockReported(S1, 0, result),)


def test_inventory_leaves_out_results_that_the_master_has() -> None:
    server = owner()
    for clock in range(3):
        server.step(s.ResultsArrived(m.ClockReported("worker-2", clock, (m.SplitResult(2, 1, 0.5),))))

    assert [report.clock for report in server.state.inventory(1, 1).results] == [1, 2]


def test_what_a_lost_worker_pushed_after_the_inventory_is_told_when_others_take_over() -> None:
    """Its heir learns that the clock is complete, and measures nothing: the master would wait for the result."""
    server = owner()
    server.push(0, 0, 1)
    server.state.inventory(1, 0)
    result = (m.SplitResult(2, 1, 0.5),)
    assert server.step(s.ResultsArrived(m.ClockReported("worker-3", 0, result))) == []
    server.push(0, 2)

    found = server.step(s.MembershipArrived(0, takeover(2, (S1, S1), clock=0)))

    assert s.ReportToMaster(m.ClockReported(S1, 0, result)) in found


def test_inventory_does_not_name_what_was_dropped_nor_a_version_that_did_not_come() -> None:
    donor, taker = Server(BSP), Server(BSP, S2)
    donor.follow()
    taker.snapshot(clock=0, sequence=0)
    for server in (donor, taker):
        server.step(s.MembershipArrived(1, membership(2, (S2, S1))))
    donor.step(s.PlanReleaseOrdered(1))

    assert [h.partition for h in donor.state.inventory(1, 0).partitions] == [1]
    assert [(h.partition, h.oldest_clock) for h in taker.state.inventory(1, 0).partitions] == [(0, 0)]
    taker.push(0, *ALL)
    assert [h.oldest_clock for h in taker.state.inventory(1, 0).partitions] == [0]
    taker.push(1, *ALL)
    assert [h.oldest_clock for h in taker.state.inventory(1, 0).partitions] == [1]


def test_nothing_is_given_up_between_an_inventory_and_the_membership_that_follows_from_it() -> None:
    """Found by simulation: the new owner was lost while the order to drop the old copy was on its way."""
    donor, taker = Server(BSP), Server(BSP, S2)
    donor.follow()
    taker.snapshot(clock=0, sequence=0)
    donor.step(s.MembershipArrived(1, membership(2, (S2, S1))))
    for server in (donor, taker):
        server.state.inventory(3, 0)

    ignored = donor.step(s.PlanReleaseOrdered(1)), taker.step(s.PlanAborted(1))
    donor.step(s.MembershipArrived(0, takeover(3, (S1, S1))))

    assert ignored == ([], []) and set(taker.state.partitions) == {0}
    assert donor.state.owned() == (0, 1)
    assert kinds(donor.step(s.PlanReleaseOrdered(1))) == ["ReportToMaster"]


# ---- incarnations


@pytest.mark.parametrize("holds", ["owner", "follower"])
def test_incarnation_begins_with_the_checkpoint_and_forgets_what_was_before(holds: str) -> None:
    server = owner() if holds == "owner" else follower()
    if holds == "owner":
        server.push(0, *ALL)
        server.push(1, 0)
    server.pull(5, request="held")
    server.step(s.ResultsArrived(m.ClockReported("worker-2", 0, (m.SplitResult(2, 1, 0.5),))))

    counters = {p: s.Counters((3, 3, 3), 9, 1) for p in (0, 1)}
    commands = server.step(s.MembershipArrived(0, back(2, (S1, S2), ((S2,), (S1,)), clock=3), counters))

    state = server.state
    assert requests(commands, s.RefuseStale) == ["held"]
    assert [c.partition for c in commands if isinstance(c, s.DropPartition)] == [0, 1]
    sent_to_nobody = [(c.partition, c.to) for c in commands if isinstance(c, s.StopSending)]
    assert sent_to_nobody == ([(0, S2), (1, S2)] if holds == "owner" else [])
    assert [c.partition for c in commands if isinstance(c, s.CreatePartition)] == [0, 1]
    assert [(v.clocks.completed, v.clocks.applied, v.clocks.duplicates_refused) for v in state.partitions.values()] == [
        (3, 9, 1)
    ] * 2
    assert state.incarnation == 1 and not state.inventory(3, 0).results
    assert all(v.sequence == 1 << INCARNATION_BITS for v in state.partitions.values())


def test_leaving_server_that_hears_of_a_rollback_only_by_a_later_takeover_forgets_what_was_before() -> None:
    server = owner()
    server.push(0, *ALL)

    server.step(s.MembershipArrived(0, replace(takeover(4, (S2, S2)), incarnation=1)))

    assert not server.state.partitions and server.pull(1) == [s.RefuseStale("pull")]


def test_updates_and_acknowledgements_of_an_earlier_incarnation_do_nothing() -> None:
    lost, heir = owner(), follower()
    lost.push(0, *ALL)
    for server in (lost, heir):
        server.step(s.MembershipArrived(0, back(2, (S1, S1), FOLLOWED)))

    late = heir.update(0, 0, plan_id=0)
    acked(lost, 1)
    lost.push(0, *ALL)

    assert late == [s.DropUpdate(("update", 0))]
    assert heir.state.partitions[0].clocks.completed == 0
    assert lost.pull(1) == []
    assert kinds(acked(lost, (1 << INCARNATION_BITS) + 1)) == ["AnswerPull"]


def test_server_that_joins_when_the_job_goes_back_begins_with_it() -> None:
    server = Server(BSP, S2, start=None)

    commands = server.step(s.MembershipArrived(0, back(5, (S2, S2))))

    assert kinds(commands) == ["CreatePartition", "CreatePartition", "ReportToMaster"]
    assert kinds(server.push(0, *ALL))[0] == "Accumulate"
