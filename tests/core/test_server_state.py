"""A server's commands for each request, event by event."""

from __future__ import annotations

from random import Random

import pytest

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.partition_state import Follower, Holding
from eps.core.server_state import ServerState
from eps.core.types import UNBOUNDED, Address, CoreSettings
from tests.tiers import rotating

BSP = CoreSettings(num_splits=3, num_partitions=2, iterations=10, reproducible=False)
SSP = CoreSettings(num_splits=3, num_partitions=2, iterations=10, staleness=2, reproducible=False)
ASP = CoreSettings(num_splits=3, num_partitions=2, iterations=10, staleness=UNBOUNDED, reproducible=False)
ALL = (0, 1, 2)


def membership(version: int, owners: tuple[str, ...], from_clock: int = 0) -> Membership:
    servers = ("server-1", "server-2")
    return Membership(
        version,
        from_clock,
        ("worker-1", "worker-2"),
        servers,
        PartitionTable(owners),
        SplitTable.of(("worker-1", "worker-1", "worker-2")),
        {name: Address(name, 1) for name in ("worker-1", "worker-2", *servers)},
    )


BEFORE = membership(1, ("server-1", "server-1"))


class Server:
    """A server state whose every step is validated."""

    def __init__(self, settings: CoreSettings, name: str = "server-1", start: Membership | None = BEFORE) -> None:
        self.state = ServerState(name, settings)
        if start is not None:
            self.step(s.MembershipArrived(0, start))

    def step(self, event: s.ServerEvent) -> list[s.ServerCommand]:
        commands = self.state.step(event)
        self.state.validate()
        return commands

    def push(self, clock: int, *splits: int, partition: int = 0, request: object = "push") -> list[s.ServerCommand]:
        return self.step(s.PushArrived(request, partition, clock, splits))

    def pull(self, min_clock: int, partition: int = 0, request: object = "pull") -> list[s.ServerCommand]:
        return self.step(s.PullArrived(request, partition, min_clock))

    def follow(self, partition: int = 0, plan_id: int = 1) -> list[s.ServerCommand]:
        return self.step(s.SendOrdered(plan_id, partition, "server-2"))

    def snapshot(self, clock: int = 2, sequence: int = 5, plan_id: int = 1) -> list[s.ServerCommand]:
        counters = s.Counters((clock,) * 3, 3 * clock, 0)
        return self.step(s.SnapshotArrived("snapshot", plan_id, 0, sequence, counters, "sum"))

    def update(self, clock: int, sequence: int, *splits: int, plan_id: int = 1) -> list[s.ServerCommand]:
        return self.step(s.UpdateArrived(("update", sequence), plan_id, 0, sequence, clock, splits or ALL))


#: What server-2 tells the job master of the snapshot of plan 1.
CAUGHT_UP = s.ReportToMaster(m.PartitionCaughtUp("server-2", 1, 0, "sum"))


def sent(plan_id: int) -> m.PartitionSent:
    return m.PartitionSent("server-1", plan_id, 0, 8, "sum")


def kinds(commands: list[s.ServerCommand]) -> list[str]:
    return [type(c).__name__ for c in commands]


# ---- start


def test_first_membership_creates_what_it_gives_the_server() -> None:
    state = ServerState("server-2", BSP)

    commands = state.step(s.MembershipArrived(0, membership(1, ("server-1", "server-2"))))

    assert commands == [s.CreatePartition(1), s.ReportToMaster(m.MembershipAcked("server-2", 1))]
    assert state.owned() == (1,)


def test_same_membership_again_creates_nothing_and_is_acknowledged() -> None:
    server = Server(BSP)

    assert kinds(server.step(s.MembershipArrived(0, BEFORE))) == ["ReportToMaster"]


def test_later_first_membership_creates_nothing() -> None:
    """A server that is added learns its first membership at version 2; its partitions come from donors."""
    server = Server(BSP, "server-2", start=None)

    assert kinds(server.step(s.MembershipArrived(1, membership(2, ("server-1", "server-1"))))) == ["ReportToMaster"]


# ---- pushes


@pytest.mark.parametrize("settings", [BSP, SSP, ASP])
def test_any_grouping_and_order_of_pushes_adds_each_contribution_once(settings: CoreSettings) -> None:
    for seed in rotating(200):
        random, server, added = Random(seed), Server(settings), []
        waiting = [(clock, split) for clock in range(4) for split in ALL]
        while waiting:
            clock = min(c for c, _ in waiting)
            if not settings.bsp:
                clock = min(3, clock + random.choice((0, 0, 1)))
            # Some were pushed before, alone or with others: they are acknowledged, or refused as a mixture.
            splits = tuple(random.sample(ALL, random.randint(1, 3)))
            for command in server.push(clock, *splits):
                if isinstance(command, s.Accumulate | s.ApplyPush):
                    added += [(command.clock, split) for split in command.splits]
                elif isinstance(command, s.StepPartition):
                    assert sorted(x for x in added if x[0] == command.clock) == [(command.clock, i) for i in ALL]
            waiting = [w for w in waiting if w not in added]
            assert len(added) == len(set(added)), seed
        assert server.state.partitions[0].clocks.completed == 4
        assert server.state.partitions[0].clocks.applied == 12


@pytest.mark.parametrize("settings", [BSP, SSP])
def test_repeated_push_is_acknowledged_and_not_added(settings: CoreSettings) -> None:
    server = Server(settings)
    server.push(0, 0, 1)

    again = server.push(0, 0, 1, request="again")

    assert again == [s.AckPush("again", 0, (0, 1))]
    assert server.state.partitions[0].clocks.duplicates_refused == 2


@pytest.mark.parametrize("settings", [BSP, SSP])
def test_push_that_mixes_old_and_new_is_not_accepted_and_says_what_is_there(settings: CoreSettings) -> None:
    server = Server(settings)
    server.push(0, 1)

    mixed = server.push(0, 0, 1, request="mixed")
    alone = server.push(0, 0, request="alone")

    assert mixed == [s.AckPush("mixed", 0, (1,), accepted=False)]
    assert s.AckPush("alone", 0, ()) in alone


@pytest.mark.parametrize("splits", [(), (3,), (-1,), (0, 5), (1, 1)])
def test_push_of_splits_that_cannot_be_is_refused(splits: tuple[int, ...]) -> None:
    (command,) = Server(BSP).push(0, *splits)

    assert isinstance(command, s.Fail) and "the job has splits 0 to 2, each named once" in command.why


def test_push_after_the_last_iteration_is_refused() -> None:
    (command,) = Server(BSP).push(10, 0)

    assert command == s.Fail("push", "a push for clock 10; the last is 9")


def test_request_for_a_partition_that_is_elsewhere_says_so_with_the_version() -> None:
    server = Server(BSP, "server-2")

    assert server.push(0, 0) == [s.RefuseStale("push")]
    assert kinds(server.pull(0)) == ["RefuseStale"]


def test_ssp_push_that_is_ahead_of_its_split_waits() -> None:
    """After a change the receiver's first clock may overtake the donor's last."""
    server = Server(SSP)
    server.push(0, 0, 1)

    ahead = server.push(1, 2, request="ahead")
    then = server.push(0, 2, request="due")

    assert ahead == []
    assert [c.request for c in then if isinstance(c, s.ApplyPush)] == ["due", "ahead"]


@pytest.mark.parametrize("settings", [BSP, SSP, ASP])
def test_parts_of_one_message_are_taken_in_as_if_each_came_alone(settings: CoreSettings) -> None:
    together, alone = Server(settings), Server(settings)
    for clock in (0, 0, 1):
        for splits in ((0, 1), (2,), (2, 0)):
            pushes = tuple(s.PushArrived(("push", p, clock, splits), p, clock, splits) for p in (0, 1, 7))
            pulls = tuple(s.PullArrived(("pull", p, clock, splits), p, clock + 1) for p in (1, 0, 7))
            one_by_one = [command for part in (*pushes, *pulls) for command in alone.step(part)]
            # Sums and steps come first, so that they can be computed together; all else keeps its order.
            sums = [command for command in one_by_one if isinstance(command, s.Accumulate | s.StepPartition)]
            rest = [command for command in one_by_one if not isinstance(command, s.Accumulate | s.StepPartition)]
            assert together.step(s.ExchangeArrived(pushes, pulls)) == [*sums, *rest]
    assert together.state.partitions == alone.state.partitions


# ---- pulls


def test_bsp_pull_gets_exactly_the_version_that_it_asked_for() -> None:
    server = Server(BSP)

    early = server.pull(1)
    now = server.pull(0, request="now")
    server.push(0, 0)
    during = server.pull(0, request="during")
    done = server.push(0, 1, 2)

    assert early == []
    assert now == [s.AnswerPull("now", 0, 0)]
    assert during == [s.AnswerPull("during", 0, 0)]
    assert s.AnswerPull("pull", 0, 1) in done


def test_bsp_pull_of_the_version_before_is_answered_until_the_next_clock_begins() -> None:
    """A worker that pushes to a clock has read every partition at it: no worker needs the version before."""
    server = Server(BSP)
    server.push(0, *ALL)

    before = server.pull(0)
    server.push(1, 0)
    gone = server.pull(0)

    assert before == [s.AnswerPull("pull", 0, 0)]
    assert gone == [s.RefusePassed("pull")]


@pytest.mark.parametrize(("settings", "answered"), [(SSP, [0, 0, 0, 1, 2]), (ASP, [0, 0, 0, 0, 0])])
def test_pull_waits_for_the_bound_and_for_nothing_else(settings: CoreSettings, answered: list[int]) -> None:
    """One split is behind: its clock bounds what others may read."""
    waits = []
    for clock in range(5):
        server = Server(settings)
        for due in range(clock):
            server.push(due, 0, 1)
        needed, step = settings.min_clock_to_read(clock), 0
        reply = server.pull(needed)
        while not reply:
            reply = [c for c in server.push(step, 2) if isinstance(c, s.AnswerPull)]
            step += 1
        waits.append(step)
        assert reply[0].clock >= needed

    assert waits == answered


# ---- follow


def test_donor_sends_a_snapshot_then_every_update() -> None:
    server = Server(BSP)
    server.push(0, *ALL)
    server.push(1, 0)

    snapshot = server.follow()
    update = [c for c in server.push(1, 1, 2) if isinstance(c, s.SendUpdate)]

    assert snapshot == [s.SendSnapshot(1, 0, "server-2", 1, s.Counters((1, 1, 1), 3, 0))]
    assert update == [s.SendUpdate(1, 0, "server-2", 1, 1, ALL)]


def test_order_that_comes_again_repeats_the_report_only() -> None:
    server = Server(BSP)
    server.follow()
    assert server.follow() == [], "nothing was reported yet"
    report = s.ReportToMaster(sent(1))

    assert server.step(s.UpdateAcked(1, 0, "server-2", 0, sent(1))) == [report]
    assert server.follow() == [report]


def test_a_server_says_to_whom_and_for_which_plan_it_still_sends() -> None:
    """The sender of the arrays stops when there is nothing more to send."""
    server = Server(BSP)
    server.follow(plan_id=2)
    asked = [(2, "server-2"), (1, "server-2"), (3, "server-2"), (2, "server-1")]
    while_it_sends = [server.state.sends(*what) for what in asked]
    server.step(s.PlanAborted(2))

    assert while_it_sends == [True, False, False, False] and not server.state.sends(2, "server-2")


def test_order_of_a_closed_plan_does_nothing() -> None:
    server = Server(BSP)
    server.step(s.PlanAborted(1))

    assert server.follow() == []


def test_order_to_send_what_is_not_owned_does_nothing() -> None:
    assert Server(BSP, "server-2").follow() == []


def test_follower_applies_updates_in_order_and_holds_requests() -> None:
    server = Server(BSP, "server-2")

    installed = server.snapshot(clock=2, sequence=5)
    early = server.update(3, 6)
    due = server.update(2, 5)
    again = server.update(2, 5)
    held = server.pull(4) + server.push(4, 0)

    assert installed == [s.InstallSnapshot("snapshot", 0), CAUGHT_UP]
    assert early == []
    assert [c.clock for c in due if isinstance(c, s.ApplyUpdate)] == [2, 3]
    assert again == [s.DropUpdate(("update", 5))]
    assert held == []
    assert server.state.partitions[0].clocks.completed == 4


def test_snapshot_that_comes_again_is_reported_again_and_installed_once() -> None:
    server = Server(BSP, "server-2")
    server.snapshot()
    server.update(2, 5)

    assert server.snapshot() == [s.DropUpdate("snapshot"), CAUGHT_UP]
    assert server.state.partitions[0].clocks.completed == 3


def test_snapshot_that_comes_again_after_the_release_of_its_plan_is_acknowledged_and_not_reported() -> None:
    """A connection that breaks lets its sender send a snapshot again that was acknowledged."""
    server = Server(BSP, "server-2")
    server.snapshot(clock=3)
    server.step(s.MembershipArrived(1, membership(2, ("server-2", "server-1"), from_clock=3)))
    server.step(s.PlanReleaseOrdered(1))

    assert server.snapshot(clock=3) == [s.DropUpdate("snapshot")]


def test_update_of_nothing_is_dropped() -> None:
    assert Server(BSP, "server-2").update(2, 5) == [s.DropUpdate(("update", 5))]


def test_update_counts_by_its_number_whichever_plan_it_was_sent_for() -> None:
    """A follower outlives the plan that brought it."""
    server = Server(BSP, "server-2")
    server.snapshot()

    assert [c.clock for c in server.update(2, 5, plan_id=7) if isinstance(c, s.ApplyUpdate)] == [2]


def test_follower_acknowledges_at_once_what_it_knows_to_be_applied() -> None:
    """Found by simulation: held until the promotion, the answer would never come."""
    server = Server(BSP, "server-2")
    server.snapshot(clock=2)

    assert server.push(1, 0, 1) == [s.AckPush("push", 0, (0, 1))]
    assert server.push(2, 0, 1) == []


# ---- promote under BSP


def test_bsp_partition_changes_hands_at_the_commit_clock_on_both_sides() -> None:
    donor, follower = Server(BSP), Server(BSP, "server-2")
    donor.follow()
    follower.snapshot(clock=0, sequence=0)
    later = membership(2, ("server-2", "server-1"), from_clock=2)

    donor.step(s.MembershipArrived(1, later))
    early = follower.step(s.MembershipArrived(1, later))
    waiting = follower.pull(2, request="waiting")
    holdings = []
    for clock in range(2):
        donor.push(clock, *ALL)
        promoted = follower.update(clock, clock)
        holdings.append((donor.state.partitions[0].holding, follower.state.partitions[0].holding))

    assert early == [s.ReportToMaster(m.MembershipAcked("server-2", 2))], "nothing is promoted yet"
    assert waiting == []
    assert holdings == [(Holding.OWNER, Holding.FOLLOWER), (Holding.FORMER, Holding.OWNER)]
    assert promoted[-2:] == [
        s.ReportToMaster(m.PartitionPromoted("server-2", 1, 0)),
        s.AnswerPull("waiting", 0, 2),
    ]


def test_bsp_donor_answers_for_the_clocks_before_and_refuses_the_rest() -> None:
    donor = Server(BSP)
    donor.follow()
    donor.step(s.MembershipArrived(1, membership(2, ("server-2", "server-1"), from_clock=1)))
    donor.push(0, *ALL)

    repeated = donor.push(0, 0, 1)
    late = donor.pull(1)
    ahead = donor.pull(2, request="ahead")
    pushed = donor.push(1, 0, request="pushed")

    assert repeated == [s.AckPush("push", 0, (0, 1))]
    assert late == [s.AnswerPull("pull", 0, 1)]
    assert ahead == [s.RefuseStale("ahead")]
    assert pushed == [s.RefuseStale("pushed")]


def test_promotion_is_reported_again_when_the_membership_comes_again() -> None:
    follower = Server(BSP, "server-2")
    follower.snapshot(clock=2)
    later = membership(2, ("server-2", "server-1"), from_clock=2)
    follower.step(s.MembershipArrived(1, later))

    again = follower.step(s.MembershipArrived(1, later))

    assert s.ReportToMaster(m.PartitionPromoted("server-2", 1, 0)) in again


# ---- promote under SSP and ASP


@pytest.mark.parametrize("settings", [SSP, ASP])
def test_stale_partition_changes_hands_at_the_owner(settings: CoreSettings) -> None:
    donor = Server(settings)
    donor.follow()
    donor.push(0, 0)
    held = donor.push(1, 1, request="held")

    commands = donor.step(s.MembershipArrived(1, membership(2, ("server-2", "server-1"), from_clock=5)))

    assert held == []
    assert commands[:2] == [s.SendPromote(1, 0, "server-2", 1), s.RefuseStale("held")]
    assert donor.pull(0) == [s.RefuseStale("pull")]
    assert donor.push(0, 0, request="again") == [s.AckPush("again", 0, (0,))]


def test_follower_owns_when_the_promotion_arrives_after_every_update() -> None:
    follower = Server(SSP, "server-2")
    follower.snapshot(clock=0, sequence=0)
    waiting = follower.pull(0)

    early = follower.step(s.PromoteArrived("promote", 1, 0, 1))
    due = follower.update(0, 0, 1)

    assert waiting == [] and early == []
    assert kinds(due) == ["ApplyUpdate", "DropUpdate", "ReportToMaster", "AnswerPull"]
    assert follower.state.owned() == (0,)
    assert follower.step(s.PromoteArrived("promote", 1, 0, 1)) == [s.DropUpdate("promote")]


# ---- abort and release


def test_abort_leaves_no_trace_at_donor_and_follower() -> None:
    donor, follower = Server(BSP), Server(BSP, "server-2")
    donor.follow()
    follower.snapshot()
    follower.pull(4, request="held")
    follower.update(4, 7)

    at_donor = donor.step(s.PlanAborted(1))
    at_follower = follower.step(s.PlanAborted(1))

    assert at_donor == [s.StopSending(1, 0, "server-2")]
    assert kinds(at_follower) == ["RefuseStale", "DropUpdate", "DropPartition"]
    assert not follower.state.partitions and not donor.state.partitions[0].followers
    assert donor.step(s.PlanAborted(1)) == [] == follower.step(s.PlanAborted(1))
    assert follower.snapshot() == [s.DropUpdate("snapshot")]


def test_later_plan_ends_what_an_unheard_abort_left_at_the_donor() -> None:
    """Found by simulation: the abort of plan 1 was lost, and plan 2 sends the same partition to the same server."""
    donor = Server(BSP)
    donor.follow(plan_id=1)

    commands = donor.follow(plan_id=2)

    assert kinds(commands) == ["StopSending", "SendSnapshot"]
    assert donor.state.partitions[0].followers == {"server-2": Follower(2)}
    assert donor.follow(plan_id=1) == [], "an order of plan 1 that comes late"


@pytest.mark.parametrize("settings", [BSP, SSP])
def test_what_was_sent_for_an_aborted_plan_and_is_acknowledged_late_says_nothing_of_the_next(
    settings: CoreSettings,
) -> None:
    """Found by simulation: plan 2's own acknowledgements then seemed to lack one before them, for ever."""
    donor = Server(settings)
    donor.follow(plan_id=1)
    donor.push(-1, *ALL)
    donor.follow(plan_id=2)
    donor.push(0, *ALL)

    assert donor.step(s.UpdateAcked(1, 0, "server-2", 0, sent(1))) == [], "the first snapshot"
    assert donor.step(s.UpdateAcked(1, 0, "server-2", 1)) == [], "the update that followed it"
    assert donor.state.partitions[0].followers["server-2"].acked is None

    donor.step(s.UpdateAcked(2, 0, "server-2", 1, sent(2)))
    donor.step(s.UpdateAcked(2, 0, "server-2", 2))
    assert donor.state.partitions[0].followers == {"server-2": Follower(2, acked=2, sent=sent(2))}, "reported as sent"


def test_later_plan_ends_what_an_unheard_abort_left_at_the_follower() -> None:
    follower = Server(BSP, "server-2")
    follower.snapshot(clock=1, plan_id=1)

    commands = follower.snapshot(clock=3, plan_id=2)

    assert kinds(commands) == ["DropPartition", "InstallSnapshot", "ReportToMaster"]
    assert follower.state.partitions[0].plan_id == 2
    assert follower.snapshot(clock=1, plan_id=1) == [s.DropUpdate("snapshot")], "a snapshot of plan 1 that comes late"


def test_membership_of_a_later_plan_ends_what_an_unheard_abort_left() -> None:
    donor = Server(BSP)
    donor.follow(plan_id=1)

    commands = donor.step(s.MembershipArrived(2, membership(2, ("server-1", "server-1"), from_clock=3)))

    assert commands[0] == s.StopSending(1, 0, "server-2")


def test_release_drops_what_was_given_and_is_reported_each_time() -> None:
    donor = Server(BSP)
    donor.follow()
    donor.step(s.MembershipArrived(1, membership(2, ("server-2", "server-1"), from_clock=0)))

    first = donor.step(s.PlanReleaseOrdered(1))
    again = donor.step(s.PlanReleaseOrdered(1))

    report = s.ReportToMaster(m.PlanReleased("server-1", 1))
    assert first == [s.StopSending(1, 0, "server-2"), s.DropPartition(0), report]
    assert again == [report]
    assert donor.push(0, 0) == [s.RefuseStale("push")]


def test_partition_that_was_given_away_comes_back() -> None:
    server = Server(BSP)
    server.follow(plan_id=1)
    server.step(s.MembershipArrived(1, membership(2, ("server-2", "server-1"), from_clock=0)))
    server.step(s.PlanReleaseOrdered(1))

    installed = server.snapshot(clock=3, plan_id=2)
    server.step(s.MembershipArrived(2, membership(3, ("server-1", "server-1"), from_clock=3)))

    assert kinds(installed) == ["InstallSnapshot", "ReportToMaster"]
    assert server.state.owned() == (0, 1)


def test_clock_list_of_a_server_without_membership_is_empty() -> None:
    assert ServerState("server-9", BSP).clock_list() == {}


BREAKS = (
    "completed",
    "arrived",
    "clocks",
    "applied",
    "followed",
    "early",
    "overdue",
    "joined",
    "cuts",
    "plan",
)


@pytest.mark.parametrize("break_it", BREAKS)
def test_validate_finds_what_cannot_be(break_it: str) -> None:
    server, follower = Server(BSP), Server(BSP, "server-2")
    server.follow()
    follower.snapshot()
    state, following = server.state.partitions[0], follower.state.partitions[0]
    match break_it:
        case "completed":
            state.clocks.completed = 1
        case "arrived":
            state.clocks.arrived.update(ALL)
        case "clocks":
            state.clocks.next_clock[0], state.clocks.applied = 1, 1
        case "applied":
            state.clocks.applied = 1
        case "followed":
            following.followers = state.followers
        case "early":
            following.early[following.sequence] = s.PromoteArrived("promote", 1, 0, following.sequence)
        case "overdue":
            state.promote_at = 0
        case "joined":
            state.followers["server-2"].joined_at = 0
        case "cuts":
            server.state._served.cuts[0] = dict.fromkeys(range(3), s.Counters((0, 0, 0)))
        case "plan":
            state.plan_id = 7
    with pytest.raises(AssertionError):
        server.state.validate()
        follower.state.validate()
