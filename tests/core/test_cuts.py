"""Coordinated cuts: when one is ordered and committed, and to what a job rolls back (Proteus §3.2, §3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.checkpoints import RESEND_S, CheckpointContext
from eps.core.cuts import MOST_FAILURES, PATIENCE_S, PAUSE_S, PAUSE_SHARE, Cuts
from eps.core.members import Member
from eps.core.membership import Membership, PartitionTable, SplitTable, cut_name
from eps.core.recovery import Inquiry, Loss, Recovery, RestorePoint, cut_owners, roll_back
from eps.core.types import UNBOUNDED, Address, CoreSettings, MemberId, Role

PARTITIONS, SPLITS, ITERATIONS, LOOKAHEAD = 4, 6, 100, 2
WORKERS = ("worker-1", "worker-2", "worker-3")
#: The first is the BackupPS of a reliable container, the others are ActivePSs.
SERVERS = ("server-1", "server-2", "server-3")
OWNERS = ("server-2", "server-3", "server-2", "server-3")
BSP = CoreSettings(SPLITS, PARTITIONS, ITERATIONS, reproducible=False)


def membership(version: int = 5, owners: Sequence[MemberId] = OWNERS) -> Membership:
    addresses = {name: Address(name, 1) for name in (*WORKERS, *SERVERS)}
    active = SplitTable.of(tuple(WORKERS[split % 3] for split in range(SPLITS)))
    return Membership(version, 8, WORKERS, SERVERS, PartitionTable(tuple(owners)), active, addresses)


def backups(*names: MemberId) -> tuple[m.Target, ...]:
    return tuple(m.Target(place, name, Address(name, 1)) for place, name in enumerate(names or ("server-1",)))


class Driver:
    """Cuts of a job whose clock moves as a test says."""

    def __init__(self) -> None:
        self.cuts = Cuts(PARTITIONS, ITERATIONS)
        self.membership = membership()
        self.completed = 10
        self.horizon = 12
        self.now_s = 100.0

    @property
    def context(self) -> CheckpointContext:
        return CheckpointContext(self.membership, self.horizon, LOOKAHEAD, self.completed, None, {})

    def advance(self, after_s: float = 0.0, targets: tuple[m.Target, ...] | None = None) -> list[e.Send]:
        self.now_s += after_s
        found = self.cuts.advance(self.context, backups() if targets is None else targets, self.now_s)
        self.cuts.validate()
        assert all(isinstance(command, e.Send) for command in found)
        return [command for command in found if isinstance(command, e.Send)]

    def stage(self, *partitions: int, clock: int | None = None, cut_id: int | None = None) -> None:
        staging = self.cuts.staging
        assert staging is not None
        at = staging.clock if clock is None else clock
        for partition in partitions:
            owner = self.membership.partitions.owners[partition]
            number = staging.number if cut_id is None else cut_id
            holder = m.backup_of(partition, owner, staging.backups).target
            self.cuts.hear(m.CutStaged(owner, number, partition, holder, 8, at), self.now_s)

    def fail(self, cut_id: int | None = None) -> None:
        staging = self.cuts.staging
        number = cut_id if cut_id is not None else staging.number if staging is not None else 0
        self.cuts.hear(m.CutFailed("server-2", number, 0, "the disk is full"), self.now_s)

    def commit(self) -> int:
        """Take one cut from its order to its commit; return its clock."""
        self.advance(PAUSE_S)
        assert self.cuts.staging is not None
        clock = self.cuts.staging.clock
        self.stage(*range(PARTITIONS))
        self.completed, self.horizon = clock, clock + LOOKAHEAD
        self.advance()
        assert self.cuts.committed is not None and self.cuts.committed.clock == clock
        return clock


@pytest.fixture
def driver() -> Driver:
    return Driver()


# ---- ordered, staged, committed


def test_a_cut_is_ordered_for_a_clock_that_no_worker_has_started(driver: Driver) -> None:
    sent = driver.advance()
    order = m.TakeCut(1, 14, -1, backups())
    assert sent == [e.Send(name, order) for name in SERVERS]
    assert driver.cuts.staging is not None and driver.cuts.staging.clock == driver.horizon + LOOKAHEAD
    assert driver.advance() == []


def test_the_first_cut_of_a_job_that_begins_is_beyond_the_seed(driver: Driver) -> None:
    driver.completed, driver.horizon = -1, -1
    driver.advance()
    assert driver.cuts.staging is not None and driver.cuts.staging.clock == LOOKAHEAD


def test_a_cut_is_committed_once_all_partitions_are_staged_and_the_results_before_are_known(driver: Driver) -> None:
    driver.advance()
    driver.stage(0, 1, 2)
    driver.completed = 20
    driver.advance()
    assert driver.cuts.committed is None
    driver.completed = 13
    driver.stage(3)
    driver.advance()
    assert driver.cuts.committed is None, "the results of clock 13 are missing"
    driver.completed = 14
    driver.advance()
    committed = driver.cuts.committed
    assert committed is not None and driver.cuts.staging is None
    assert (committed.clock, committed.point) == (14, RestorePoint(cut_name(14), 14))
    assert committed.holders == ("server-1",) * PARTITIONS
    assert (driver.cuts.count, driver.cuts.size_bytes) == (1, 8 * PARTITIONS)


def test_under_ssp_the_job_restarts_from_the_clock_that_all_partitions_have(driver: Driver) -> None:
    driver.advance()
    driver.stage(0, 1)
    driver.stage(2, clock=17)
    driver.stage(3, clock=16)
    driver.completed = 14
    driver.advance()
    assert driver.cuts.committed is not None
    assert driver.cuts.committed.clock == 14 and driver.cuts.committed.point == RestorePoint(cut_name(14), 14)


def test_a_cut_that_is_late_everywhere_has_the_clock_of_its_copies(driver: Driver) -> None:
    driver.advance()
    driver.stage(0, 1, 2, clock=16)
    driver.stage(3, clock=17)
    driver.completed = 15
    driver.advance()
    assert driver.cuts.committed is None
    driver.completed = 16
    driver.advance()
    assert driver.cuts.committed is not None
    # Servers know it by the clock for which it was ordered.
    assert driver.cuts.committed.clock == 14 and driver.cuts.committed.point == RestorePoint(cut_name(14), 16)


def test_the_next_order_says_which_copies_to_keep(driver: Driver) -> None:
    first = driver.commit()
    sent = driver.advance(PAUSE_S)
    assert sent and all(isinstance(command.order, m.TakeCut) for command in sent)
    order = sent[0].order
    assert isinstance(order, m.TakeCut) and order.kept == first and order.cut_id == 2 and order.clock > first


def test_the_pause_grows_with_the_time_that_a_cut_takes(driver: Driver) -> None:
    driver.advance()
    assert driver.cuts.staging is not None
    driver.completed = driver.cuts.staging.clock + 1
    driver.advance()
    driver.now_s += (took_s := 3.0)
    driver.stage(*range(PARTITIONS))
    driver.advance()
    assert driver.cuts.committed is not None
    assert not driver.advance(PAUSE_SHARE * took_s - 0.1) and driver.cuts.staging is None
    assert driver.advance(0.2) and driver.cuts.staging is not None


def test_a_fast_cut_is_followed_by_the_shortest_pause(driver: Driver) -> None:
    driver.commit()
    assert not driver.advance(PAUSE_S - 0.01)
    assert driver.advance(0.02)


def test_an_order_without_an_effect_is_sent_again_to_the_owners_of_what_is_missing(driver: Driver) -> None:
    (_, _, third) = driver.advance()
    driver.stage(0, 2)
    assert not driver.advance(RESEND_S / 2)
    assert driver.advance(RESEND_S / 2) == [third]


def test_a_new_membership_has_the_order_sent_to_all(driver: Driver) -> None:
    driver.advance()
    driver.membership = membership(6, ("server-1", "server-3", "server-1", "server-3"))
    sent = driver.advance()
    assert [command.to for command in sent] == list(SERVERS)


def test_a_partition_is_kept_at_its_owner_if_that_is_a_backup_else_at_one_of_them_in_turns() -> None:
    both = backups("server-1", "server-2")
    found = [m.backup_of(p, owner, both).target for p, owner in enumerate(OWNERS)]
    assert found == ["server-2", "server-2", "server-2", "server-2"]
    found = [m.backup_of(p, "server-3", both).target for p in range(PARTITIONS)]
    assert found == ["server-1", "server-2", "server-1", "server-2"]


@pytest.mark.parametrize("left", [backups("server-1"), backups("server-3", "server-1"), ()])
def test_a_cut_restarts_without_a_backup_that_leaves(driver: Driver, left: tuple[m.Target, ...]) -> None:
    """Also if every partition is staged already: some are on a server that leaves."""
    driver.advance(targets=backups("server-1", "server-3"))
    first = driver.cuts.staging
    driver.stage(*range(PARTITIONS))
    driver.completed = driver.horizon + LOOKAHEAD
    sent = driver.advance(targets=left)
    assert driver.cuts.committed is None and driver.cuts.count == 0 and first is not None
    again = driver.cuts.staging
    if not left:
        assert again is None and sent == []
        return
    assert again is not None and not again.parts
    assert again.number > first.number and again.clock > first.clock
    assert sent == [e.Send(name, m.TakeCut(again.number, again.clock, -1, left)) for name in SERVERS]
    # What arrives of the first one is of no use.
    driver.stage(*range(PARTITIONS), cut_id=first.number, clock=first.clock)
    assert not again.parts
    for _ in range(2 * MOST_FAILURES):
        driver.advance(targets=backups("server-1", "server-3"))
        driver.advance(targets=left)
    assert not driver.cuts.failure, "a restart is no failure"


def test_no_cut_is_ordered_beyond_the_end_of_the_job_nor_without_a_backup(driver: Driver) -> None:
    assert driver.advance(targets=()) == [] and driver.cuts.staging is None
    driver.horizon = ITERATIONS - LOOKAHEAD
    assert driver.advance() == [] and driver.cuts.staging is None


# ---- cuts that fail


def test_stale_and_repeated_reports_change_nothing(driver: Driver) -> None:
    driver.fail(7)
    driver.commit()
    driver.advance(PAUSE_S)
    staging = driver.cuts.staging
    driver.stage(0, cut_id=1)
    driver.fail(1)
    assert driver.cuts.staging is staging and staging is not None and not staging.parts
    driver.stage(0)
    driver.stage(0, clock=99)
    assert staging.parts[0].clock == staging.clock


def test_a_cut_that_fails_is_abandoned_and_the_next_one_has_another_clock(driver: Driver) -> None:
    first = driver.commit()
    driver.advance(PAUSE_S)
    failed = driver.cuts.staging
    driver.fail()
    assert driver.cuts.staging is None and failed is not None
    assert driver.cuts.committed is not None and driver.cuts.committed.clock == first, "the last one stays"
    assert not driver.advance(PAUSE_S / 2)
    driver.advance(PAUSE_S / 2)
    again = driver.cuts.staging
    assert again is not None and again.clock > failed.clock and again.number > failed.number


def test_a_cut_is_abandoned_if_no_partition_is_staged_for_long_after_its_clock(driver: Driver) -> None:
    driver.advance()
    driver.stage(0, 1, 2)
    driver.advance(2 * PATIENCE_S)
    assert driver.cuts.staging is not None, "its clock has not come"
    driver.completed = driver.cuts.staging.clock + 1
    driver.advance()
    driver.advance(PATIENCE_S - 1)
    assert driver.cuts.staging is not None
    driver.advance(2.0)
    assert driver.cuts.staging is None and driver.cuts.committed is None


def test_a_slow_cut_succeeds_while_partitions_arrive(driver: Driver) -> None:
    driver.advance()
    staging = driver.cuts.staging
    assert staging is not None
    driver.completed = staging.clock + 1
    driver.advance()
    for partition in range(PARTITIONS):
        driver.advance(PATIENCE_S - 1)
        assert driver.cuts.staging is staging
        driver.stage(partition)
    driver.advance()
    assert driver.cuts.committed is not None and driver.cuts.count == 1


# ---- the first plan that exposes partitions waits


def test_a_cut_is_held_once_it_is_committed(driver: Driver) -> None:
    assert not driver.cuts.is_held_by(SERVERS)
    driver.advance()
    driver.stage(*range(PARTITIONS))
    assert not driver.cuts.is_held_by(SERVERS), "the results before are missing"
    driver.completed = driver.horizon + LOOKAHEAD
    driver.advance()
    assert driver.cuts.is_held_by(("server-1",)) and driver.cuts.is_held_by(SERVERS)


def test_a_cut_one_of_whose_holders_leaves_is_not_enough(driver: Driver) -> None:
    both = backups("server-1", "server-3")
    driver.advance(targets=both)
    driver.stage(*range(PARTITIONS))
    driver.completed = driver.horizon + LOOKAHEAD
    driver.advance(targets=both)
    assert driver.cuts.committed is not None
    assert set(driver.cuts.committed.holders) == {"server-1", "server-3"}
    assert driver.cuts.is_held_by(("server-3", "server-1"))
    assert not driver.cuts.is_held_by(("server-1",)) and not driver.cuts.is_held_by(SERVERS[1:])
    assert not driver.cuts.is_held_by(())


def test_cuts_that_fail_in_a_row_say_why(driver: Driver) -> None:
    for _ in range(MOST_FAILURES):
        assert not driver.cuts.failure
        driver.advance(2 * PAUSE_S)
        driver.fail()
    assert driver.cuts.failure == "server-2, partition 0: the disk is full"
    driver.commit()
    assert not driver.cuts.failure, "a cut resets the count of failures"
    for why in ("lost with server-1", "lost with server-3", "lost with server-2"):
        driver.advance(2 * PAUSE_S)
        driver.cuts.abandon(why, driver.now_s)
    assert driver.cuts.failure == "lost with server-2"
    driver.cuts.forget(SERVERS)
    assert not driver.cuts.failure


def test_a_cut_that_is_slow_too_often_names_its_partitions(driver: Driver) -> None:
    for _ in range(MOST_FAILURES):
        driver.advance(2 * PAUSE_S)
        assert driver.cuts.staging is not None
        driver.stage(0, 2)
        driver.completed = driver.cuts.staging.clock + 1
        driver.horizon = driver.completed + LOOKAHEAD
        driver.advance()
        driver.advance(PATIENCE_S + 1)
    assert driver.cuts.failure == f"partitions [1, 3] were not copied in {PATIENCE_S:g} s"


def test_it_is_too_late_for_another_cut_shortly_before_the_end(driver: Driver) -> None:
    assert not driver.cuts.is_too_late(driver.context)
    driver.advance()
    driver.horizon = ITERATIONS - LOOKAHEAD
    assert not driver.cuts.is_too_late(driver.context), "the one that is staged may succeed"
    driver.fail()
    assert driver.cuts.is_too_late(driver.context)


def dropping(cut_id: int) -> list[e.Command]:
    return [e.Send(name, m.DropCuts(cut_id)) for name in SERVERS]


def test_cuts_are_forgotten_once_no_partition_is_exposed(driver: Driver) -> None:
    assert driver.cuts.forget(SERVERS) == [] == driver.cuts.dropped("server-1"), "no server has a copy"
    driver.commit()
    driver.advance(PAUSE_S)
    assert driver.cuts.dropped("server-1") == [], "they are needed"
    assert driver.cuts.forget(SERVERS) == dropping(2)
    assert driver.cuts.committed is None and driver.cuts.staging is None
    assert driver.cuts.forget(SERVERS) == []
    # A server that did not hear of it is told when it registers again.
    assert driver.cuts.dropped("server-1") == [e.Send("server-1", m.DropCuts(2))]
    driver.advance(PAUSE_S)
    assert driver.cuts.dropped("server-1") == [] and driver.cuts.staging is not None


def test_copies_of_a_first_cut_that_failed_are_dropped(driver: Driver) -> None:
    driver.advance()
    driver.stage(1)
    driver.fail()
    assert driver.cuts.committed is None and driver.cuts.staging is None
    assert driver.cuts.forget(SERVERS) == dropping(1)


# ---- lag and rollback


def test_the_lag_is_what_a_rollback_would_lose(driver: Driver) -> None:
    cuts = driver.cuts
    cuts.note_lag(7, driver.now_s)
    assert cuts.lag.largest == 7, "without a cut the job restarts from its seed"
    clock = driver.commit()
    for ahead in (0, 8, -1):
        cuts.note_lag(clock + ahead, driver.now_s + ahead)
    assert (cuts.lag.largest, cuts.lag.largest_s) == (8, 8.0)
    assert cuts.lag.seconds(driver.now_s + 3.0) == 3.0


def test_the_lag_counts_from_the_completion_of_the_clock_although_its_copies_take_longer(driver: Driver) -> None:
    driver.advance()
    assert driver.cuts.staging is not None
    driver.completed, driver.horizon = driver.cuts.staging.clock, driver.cuts.staging.clock + LOOKAHEAD
    driver.advance()
    driver.now_s += 5.0
    driver.stage(*range(PARTITIONS))
    driver.advance()
    assert driver.cuts.committed is not None and driver.cuts.lag.seconds(driver.now_s) == 5.0
    driver.cuts.roll_back(driver.cuts.committed.point.checkpoint, driver.completed, driver.now_s)
    assert driver.cuts.lag.seconds(driver.now_s) == 0.0 and driver.cuts.lag.largest_s == 5.0
    driver.cuts.forget(SERVERS)
    assert driver.cuts.lag.seconds(driver.now_s + 1.0) == 0.0, "nothing can be lost"


def bounded(max_lag_s: float, took_s: float) -> Driver:
    """Return cuts with a bound after a first one, which took this long from its order, and twelve clocks."""
    driver = Driver()
    driver.cuts = Cuts(PARTITIONS, ITERATIONS, max_lag_s)
    driver.advance()
    assert driver.cuts.staging is not None
    driver.completed, driver.horizon = driver.cuts.staging.clock + 1, driver.cuts.staging.clock + LOOKAHEAD
    driver.advance()
    driver.completed, driver.horizon = 22, 24
    driver.now_s += took_s
    driver.stage(*range(PARTITIONS))
    driver.advance()
    assert driver.cuts.committed is not None and driver.cuts.staging is None
    return driver


def test_a_cut_is_ordered_before_the_end_of_the_pause_if_the_lag_would_exceed_its_bound() -> None:
    driver = bounded(40.0, took_s=10.0)
    # The copies took 10 s, so the lag is 10 s; the pause would be 40 s.
    assert not driver.advance(9.9) and driver.cuts.staging is None
    assert driver.advance(0.2) and driver.cuts.staging is not None, "the next cut may take twice 10 s"


def test_cuts_that_take_longer_than_the_bound_follow_each_other_without_a_pause_and_the_miss_is_told() -> None:
    driver = bounded(9.0, took_s=10.0)
    assert driver.cuts.staging is None and driver.advance() and driver.cuts.staging is not None
    lag, now_s = driver.cuts.lag, driver.now_s
    assert lag.missed(now_s) == "max_lag_s is 9, but a cut takes 10 s"
    assert lag.missed(now_s - 1.0) == ""
    driver.fail()
    assert not driver.advance() and driver.cuts.staging is None, "one that fails is not repeated at once"
    assert driver.advance(PAUSE_S)
    assert bounded(0.0, took_s=10.0).cuts.lag.missed(now_s + 99.0) == ""


def test_a_rollback_to_the_cut_keeps_it_and_the_next_one_is_beyond_it(driver: Driver) -> None:
    clock = driver.commit()
    driver.advance(PAUSE_S)
    assert driver.cuts.staging is not None
    driver.cuts.roll_back(cut_name(clock), clock + 9, driver.now_s)
    assert driver.cuts.committed is not None and driver.cuts.staging is None
    assert driver.cuts.lag.largest == 9, "results may have come in since the last step"
    driver.completed, driver.horizon = clock, clock - LOOKAHEAD
    driver.advance()
    assert driver.cuts.staging is not None and driver.cuts.staging.clock > clock


@pytest.mark.parametrize("checkpoint", ["", "0001-00000010"])
def test_a_rollback_to_a_checkpoint_voids_cuts(driver: Driver, checkpoint: str) -> None:
    driver.commit()
    driver.cuts.roll_back(checkpoint, 30, driver.now_s)
    assert driver.cuts.committed is None and driver.cuts.lag.largest == 0
    driver.completed, driver.horizon = 0, 1
    driver.advance()
    assert driver.cuts.staging is not None and driver.cuts.staging.clock == 1 + LOOKAHEAD


# ---- who owns the partitions after a rollback

POINT = RestorePoint(cut_name(8), 8)
#: Server -> clocks of the cuts that it keeps, of each partition.
ALL_COPIES = {
    "server-1": {0: (8,), 1: (8,), 2: (8,), 3: (8,)},
    "server-2": {0: (8,), 2: (8,)},
    "server-3": {1: (8,), 3: (8,)},
}


def inquiry(copies: dict[str, dict[int, tuple[int, ...]]], lost: Sequence[MemberId]) -> Inquiry:
    """Return a recovery to which all who are left have answered."""
    found = Inquiry(3, dict.fromkeys(lost, "signal 9"))
    for name in found.survivors(membership()):
        kept = tuple(m.KeptCut(p, clock) for p, clocks in copies.get(name, {}).items() for clock in clocks)
        found.hear(m.Inventory(name, 3, 8, cuts=kept))
    return found


@pytest.mark.parametrize(
    ("lost", "copies", "owners"),
    [
        # An owner that is left restores its own copy; the BackupPS owns what is lost.
        (("server-2", "worker-2"), ALL_COPIES, ("server-1", "server-3", "server-1", "server-3")),
        (("server-2", "server-3", "worker-2", "worker-3"), ALL_COPIES, ("server-1",) * 4),
        # All owners are left, but a plan has just moved partitions that nobody can read.
        (("worker-2",), ALL_COPIES, OWNERS),
        # A reliable container is lost: the ActivePSs have their copies.
        (("server-1", "worker-1"), ALL_COPIES, OWNERS),
        # An owner that has not been told of the cut has none.
        (("worker-2",), {**ALL_COPIES, "server-2": {}}, ("server-1", "server-3", "server-1", "server-3")),
        # Copies of another cut are of no use.
        (
            ("server-2",), {**ALL_COPIES, "server-3": {1: (5, 8), 3: (12,)}},
            ("server-1", "server-3", "server-1", "server-1"),
        ),
        # Neither its owner nor its BackupPS is left.
        (("server-1", "server-2"), ALL_COPIES, None),
        (("server-2",), {**ALL_COPIES, "server-1": {0: (8,), 1: (8,), 3: (8,)}}, None),
    ],
)  # fmt: skip
def test_owners_after_a_rollback_to_a_cut(
    lost: Sequence[MemberId], copies: dict[str, dict[int, tuple[int, ...]]], owners: tuple[MemberId, ...] | None
) -> None:
    assert cut_owners(membership(), inquiry(copies, lost), POINT) == owners


def test_lost_partitions_are_spread_over_several_backups() -> None:
    both = {0: (8,), 1: (8,), 2: (8,), 3: (8,)}
    found = cut_owners(membership(), inquiry({"server-1": both, "server-3": both}, ["server-2"]), POINT)
    assert found == ("server-1", "server-3", "server-1", "server-3")


def recovered(
    copies: dict[str, dict[int, tuple[int, ...]]],
    lost: Sequence[MemberId],
    point: RestorePoint,
    settings: CoreSettings = BSP,
    cut: RestorePoint | None = POINT,
) -> Membership:
    recovery, before = Recovery(0), membership()
    recovery.inquiry = inquiry(copies, lost)
    safe = ("server-1",)
    return recovery.membership(before, settings, point, (9,) * SPLITS, cut, safe)


@pytest.mark.parametrize("settings", [BSP, replace(BSP, staleness=UNBOUNDED)], ids=["bsp", "asp"])
def test_a_job_without_a_copy_of_a_partition_rolls_back_to_its_cut(settings: CoreSettings) -> None:
    after = recovered(ALL_COPIES, ["server-2"], RestorePoint("", 0), settings)
    assert after.goes_back and after.checkpoint == POINT.checkpoint and after.cut == 8 and after.from_clock == 8
    assert after.split_clocks == (8,) * SPLITS and after.incarnation == 1
    assert after.partitions.owners == ("server-1", "server-3", "server-1", "server-3")
    assert "server-2" not in after.members


def test_a_later_checkpoint_is_better_than_the_cut() -> None:
    later = RestorePoint("0000-00000009", 9)
    after = recovered(ALL_COPIES, ["server-2"], later)
    assert after.goes_back and after.checkpoint == later.checkpoint and after.cut is None and after.from_clock == 9
    # Partitions begin on reliable containers again.
    assert set(after.partitions.owners) == {"server-1"}
    same = recovered(ALL_COPIES, ["server-2"], RestorePoint("0000-00000008", 8))
    assert same.cut == 8, "at the same clock the cut is nearer"


@pytest.mark.parametrize("cut", [POINT, None])
def test_without_the_copies_of_a_cut_the_job_rolls_back_to_its_checkpoint(cut: RestorePoint | None) -> None:
    checkpoint = RestorePoint("0000-00000004", 4)
    copies = {**ALL_COPIES, "server-1": {}} if cut is not None else ALL_COPIES
    after = recovered(copies, ["server-2"], checkpoint, cut=cut)
    assert after.goes_back and (after.checkpoint, after.from_clock) == (checkpoint.checkpoint, 4)
    assert set(after.partitions.owners) == {"server-1"}
    # All reliable containers are lost, too: what is left holds everything.
    nothing_safe = roll_back(membership(), inquiry(copies, ["server-1", "server-2"]), checkpoint, safe=("server-1",))
    assert set(nothing_safe.partitions.owners) == {"server-3"}


def test_a_spare_member_of_a_recovery_that_is_lost_itself_is_lost_for_a_plan_by_which_it_leaves() -> None:
    """The plan would wait for it for ever."""
    recovery, before = Recovery(0), membership()
    recovery.inquiry = inquiry(ALL_COPIES, WORKERS)
    recovery.add("worker-9", Role.WORKER)
    assert recovery.registered("worker-9", Address("worker-9", 1))
    assert recovery.inquiry.empty_roles(before) == ()
    member = Member("worker-9", "container-9", frozenset({Role.WORKER}), 9)
    recovery.lost(member, Loss("worker-9", "killed", 8, 1.0), own=True, silent=False, starts=False)
    assert "worker-9" in recovery.inquiry.lost and recovery.inquiry.empty_roles(before) == (Role.WORKER,)
