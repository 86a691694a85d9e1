"""The job master's part of a checkpoint: when it is ordered, and how it ends."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.checkpoints import HURRY_AGAIN_S, PATIENCE_S, Checkpoints, Pending, Schedule, Timetable, checkpoint_name
from eps.core.reconfig import Change, Operation
from eps.core.recovery import RestorePoint
from eps.core.types import CoreSettings, MemberId
from eps.errors import ConfigError
from eps.master.records import checkpoints_entry
from eps.spec.job_spec import JobSpec
from tests.core.scripted import ADD_SERVER, ADD_WORKER, REMOVE_SERVER, ScriptedMaster, running


def schedule_of(text: str) -> Schedule:
    return JobSpec(model="logistic", checkpoint_every=text).checkpoint_schedule()


def with_checkpoints(every: str, iterations: int = 100, followers: int = 0) -> ScriptedMaster:
    """Three workers, two servers, six splits, four partitions, running."""
    master = running(iterations, followers=followers)
    settings = master.state.settings
    master.state.checkpoints = Checkpoints(Timetable(schedule_of(every), iterations), settings.num_partitions)
    return master


def train(master: ScriptedMaster, clock: int) -> None:
    """Report a clock of a job whose iterations last so long that two of them are granted ahead."""
    master.now_s += 0.2
    master.clock(clock)


def driver_of(master: ScriptedMaster) -> Checkpoints:
    return master.state.checkpoints


def order_of(master: ScriptedMaster) -> m.TakeCheckpoint:
    orders = {order for _, order in master.sent(m.TakeCheckpoint)}
    assert len(orders) == 1, orders
    return orders.pop()


def train_until_ordered(master: ScriptedMaster, first: int = 0) -> tuple[m.TakeCheckpoint, int]:
    """Return the next order and the clock that comes next."""
    for clock in range(first, 100):
        train(master, clock)
        if driver_of(master).pending is not None:
            return order_of(master), clock + 1
    raise AssertionError("no checkpoint was ordered")


def written(order: m.TakeCheckpoint, partition: int, clock: int | None = None) -> m.CheckpointPartWritten:
    at = order.clock if clock is None else clock
    return m.CheckpointPartWritten(
        "server-1", order.checkpoint_id, partition, f"{partition}.part", 10, "sum", (at,) * 6, 6 * at, 0
    )


def complete(master: ScriptedMaster, order: m.TakeCheckpoint, clock: int) -> int:
    """Let a checkpoint come to its end; return the clock that comes next."""
    for partition in range(4):
        master.report(written(order, partition))
    while not (found := [c for c in master.last if isinstance(c, e.FinishCheckpoint)]):
        train(master, clock)
        clock += 1
    assert found[0].checkpoint_id == order.checkpoint_id
    master.step(e.CheckpointDone(order.checkpoint_id))
    return clock


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("", Schedule()),
        ("1", Schedule(1)),
        ("10", Schedule(10)),
        ("1s", Schedule(seconds=1.0)),
        ("30s", Schedule(seconds=30.0)),
        ("36,12,108,36", Schedule(at=(12, 36, 108))),
        ("12,36,30s", Schedule(seconds=30.0, at=(12, 36))),
        ("12,30s", Schedule(seconds=30.0, at=(12,))),
    ],
)
def test_schedule_is_read(text: str, schedule: Schedule) -> None:
    assert schedule_of(text) == schedule and bool(schedule) == bool(text)


@pytest.mark.parametrize("text", ["0", "0s", "-1", "ten", "1.5s", "s", "10m", "0,5", "5,", "5s,9"])
def test_schedule_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="checkpoint_every"):
        schedule_of(text)


def test_no_checkpoint_is_ordered_unless_asked() -> None:
    master = running(20)
    for clock in range(15):
        train(master, clock)
    assert master.commands(e.FinishCheckpoint) == [] and master.sent(m.TakeCheckpoint) == []


def test_checkpoint_is_ordered_of_all_servers_for_a_multiple_beyond_the_horizon() -> None:
    master = with_checkpoints("10")
    asked: list[tuple[str, m.TakeCheckpoint]] = []
    clock = 0
    while not asked:
        train(master, clock)
        clock += 1
        orders = [c for c in master.last if isinstance(c, e.Send)]
        asked = [(c.to, c.order) for c in orders if isinstance(c.order, m.TakeCheckpoint)]
    assert [to for to, _ in asked] == ["server-1", "server-2"]
    kinds = [type(c.order) for c in orders]
    assert kinds.index(m.TakeCheckpoint) < kinds.index(m.GrantHorizon), "the order leaves before the clock is granted"
    (order,) = {order for _, order in asked}
    assert order.clock % 10 == 0 and order.epoch == 1


def test_every_multiple_is_taken_where_each_is_complete_in_time() -> None:
    master = with_checkpoints("7")
    clock, clocks = 0, []
    for _ in range(5):
        order, clock = train_until_ordered(master, clock)
        clocks.append(order.clock)
        clock = complete(master, order, clock)
    assert clocks == [clocks[0] + 7 * i for i in range(5)]
    assert driver_of(master).counts == {"complete": 5, "skipped": 0, "failed": 0}
    assert driver_of(master).latest_clock == clocks[-1] and driver_of(master).size_bytes == 5 * 40
    journaled = [c.record["state"] for c in master.commands(e.Journal) if c.record["kind"] == "checkpoint"]
    assert journaled == ["complete"] * 5


def test_checkpoints_are_taken_at_certain_clocks_and_a_missed_one_is_made_up_for() -> None:
    master = with_checkpoints("1,30,60")
    clock, clocks = 0, []
    for _ in range(3):
        order, clock = train_until_ordered(master, clock)
        clocks.append(order.clock)
        clock = complete(master, order, clock)
    assert 1 < clocks[0] < 10 and clocks[1:] == [30, 60]
    for later in range(clock, 100):
        train(master, later)
        assert driver_of(master).pending is None


def test_checkpoint_is_finished_when_the_clocks_before_it_were_measured() -> None:
    master = with_checkpoints("10")
    order, clock = train_until_ordered(master)
    for partition in range(4):
        master.report(written(order, partition))
    assert master.commands(e.FinishCheckpoint) == []
    while clock < order.clock:
        train(master, clock)
        clock += 1
    (finish,) = master.commands(e.FinishCheckpoint)
    assert (finish.clock, finish.first_clock, finish.workers, finish.servers) == (order.clock, order.clock, 3, 2)
    assert [part.partition for part in finish.parts] == [0, 1, 2, 3]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_latest_that_the_job_can_go_back_to_are_kept_beside_the_new_one(keep: int) -> None:
    master = with_checkpoints("7")
    driver = driver_of(master)
    driver.keep = keep
    clock, names = 0, list[str]()
    for _ in range(4):
        order, clock = train_until_ordered(master, clock)
        clock = complete(master, order, clock)
        *_, finish = master.commands(e.FinishCheckpoint)
        assert finish.kept == tuple(names[max(0, len(names) - keep + 1) :])
        names.append(checkpoint_name(1, order.clock))
        assert [start.checkpoint for start in driver.complete] == names[-keep:]


def test_earlier_ones_are_removed_only_when_the_job_knows_that_the_new_one_is_complete() -> None:
    master = with_checkpoints("7")
    driver = driver_of(master)
    driver.keep = 1
    first, clock = train_until_ordered(master)
    clock = complete(master, first, clock)
    assert master.commands(e.RemoveEarlier) == [e.RemoveEarlier(first.checkpoint_id)]
    second, clock = train_until_ordered(master, clock)
    for partition in range(4):
        master.report(written(second, partition))
    while not master.commands(e.FinishCheckpoint)[1:]:
        train(master, clock)
        clock += 1
    # It is complete on disk, but the job rolls back to the first one before it hears of that.
    commands = driver.roll_back(2, first.clock, master.now_s)
    assert e.DiscardCheckpoint(1, second.clock) in commands
    master.step(e.CheckpointDone(second.checkpoint_id))
    assert master.commands(e.RemoveEarlier) == [e.RemoveEarlier(first.checkpoint_id)]
    assert [start.clock for start in driver.complete] == [first.clock]


def test_a_checkpoint_that_cannot_be_read_is_not_kept() -> None:
    master = with_checkpoints("7")
    driver = driver_of(master)
    driver.complete = [RestorePoint("0001-00000040", 40), RestorePoint("0001-00000050", 50)]
    driver.epoch = 2
    driver.unusable("0001-00000050", "it is torn", master.now_s)
    order, clock = train_until_ordered(master)
    complete(master, order, clock)
    assert [finish.kept for finish in master.commands(e.FinishCheckpoint)] == [("0001-00000040",)]


def test_checkpoint_says_the_size_that_was_asked_for() -> None:
    master = with_checkpoints("10")
    order, clock = train_until_ordered(master)
    master.ask(Change(Operation.ADD_WORKERS, 2))
    complete(master, order, clock)
    assert [(c.workers, c.servers) for c in master.commands(e.FinishCheckpoint)] == [(5, 2)]


def test_one_that_is_due_while_another_is_written_is_skipped_not_queued() -> None:
    master = with_checkpoints("5")
    order, clock = train_until_ordered(master)
    while clock < order.clock + 12:
        train(master, clock)
        clock += 1
    driver = driver_of(master)
    assert driver.pending is not None and driver.pending.number == order.checkpoint_id
    assert driver.counts["skipped"] >= 2
    assert all(o.reason == f"the checkpoint of clock {order.clock} is running" for o in driver.outcomes)


def test_server_that_is_past_the_clock_skips_the_checkpoint() -> None:
    master = with_checkpoints("10")
    order, clock = train_until_ordered(master)
    master.report(m.CheckpointPartFailed("server-2", order.checkpoint_id, 1, "it was at clock 99", late=True))
    assert [c for c in master.last if isinstance(c, e.DiscardCheckpoint)] == [e.DiscardCheckpoint(1, order.clock)]
    driver = driver_of(master)
    assert driver.pending is None and driver.counts["skipped"] == 1 and driver.error == ""
    # Later reports of the other servers about it are void.
    master.report(written(order, 0))
    following, _ = train_until_ordered(master, clock)
    assert following.checkpoint_id > order.checkpoint_id and driver.pending is not None and not driver.pending.parts


def test_what_a_checkpoint_waits_for_is_told_until_something_is_written() -> None:
    master = with_checkpoints("10")
    order, clock = train_until_ordered(master)
    pending = driver_of(master).pending
    assert pending is not None and checkpoints_entry(master.state)["waits"] == ""
    away = m.CheckpointPartWaits("server-2", order.checkpoint_id, 1, "hdfs://lake/w: cannot be written for now: why")
    master.report(written(order, 0))
    # About another checkpoint, or a written part, it is void.
    master.report(replace(away, checkpoint_id=order.checkpoint_id + 1))
    master.report(replace(away, partition=0))
    assert checkpoints_entry(master.state)["waits"] == ""
    master.report(away)
    told = "server-2, partition 1: hdfs://lake/w: cannot be written for now: why"
    assert checkpoints_entry(master.state)["waits"] == told and driver_of(master).counts["failed"] == 0
    # What was written before, and is said again, says nothing new.
    master.report(written(order, 0))
    assert checkpoints_entry(master.state)["waits"] == told
    master.report(written(order, 1))
    assert checkpoints_entry(master.state)["waits"] == ""
    for partition in (2, 3):
        master.report(written(order, partition))
    while clock < order.clock:
        train(master, clock)
        clock += 1
    master.step(e.CheckpointWaits(order.checkpoint_id, "the manifest cannot be written for now"))
    assert checkpoints_entry(master.state)["waits"] == "the manifest cannot be written for now"
    master.step(e.CheckpointDone(order.checkpoint_id))
    assert checkpoints_entry(master.state)["waits"] == "" and driver_of(master).counts["complete"] == 1


def test_failure_is_told_until_a_checkpoint_is_complete_and_training_goes_on() -> None:
    master = with_checkpoints("10")
    order, clock = train_until_ordered(master)
    master.report(m.CheckpointPartFailed("server-2", order.checkpoint_id, 1, "No space left", late=False))
    assert driver_of(master).error == "server-2, partition 1: No space left"
    order, clock = train_until_ordered(master, clock)
    clock = complete(master, order, clock)
    assert driver_of(master).error == "" and driver_of(master).counts == {"complete": 1, "skipped": 0, "failed": 1}
    order, clock = train_until_ordered(master, clock)
    for partition in range(4):
        master.report(written(order, partition))
    while clock < order.clock:
        train(master, clock)
        clock += 1
    master.step(e.CheckpointFailed(order.checkpoint_id, "the manifest cannot be written"))
    assert driver_of(master).error == "the manifest cannot be written"
    while clock <= 100:
        train(master, clock)
        clock += 1
    assert len(master.commands(e.StartExport)) == 1


def test_order_is_repeated_to_the_owners_of_what_is_missing() -> None:
    master = with_checkpoints("10")
    order, _ = train_until_ordered(master)
    owners = master.membership.partitions.owners
    for partition in range(4):
        if owners[partition] == "server-1":
            master.report(written(order, partition))
    master.sent(m.TakeCheckpoint)
    master.tick()
    master.tick()
    assert [to for to, _ in master.sent(m.TakeCheckpoint)] == ["server-2"] * 2
    master.report(written(order, 0))
    master.report(written(order, 0))
    assert driver_of(master).pending is not None


def test_servers_of_a_later_membership_hear_of_the_checkpoint_too() -> None:
    master = with_checkpoints("40")
    plan = master.ask(ADD_SERVER)
    order, clock = None, 0
    for name in plan.added:
        master.register(name)
    while order is None and clock < 100:
        train(master, clock)
        clock += 1
        order = next((o for _, o in master.sent(m.TakeCheckpoint)), None)
    master.acknowledge_lists()
    master.copy()
    assert "server-3" in {to for to, _ in master.sent(m.TakeCheckpoint)}


def test_checkpoint_that_never_comes_has_failed_after_a_while() -> None:
    master = with_checkpoints("10")
    order, clock = train_until_ordered(master)
    while clock <= order.clock:
        train(master, clock)
        clock += 1
    master.tick(PATIENCE_S - 1.0)
    assert driver_of(master).counts["failed"] == 0
    master.tick(1.0)
    assert driver_of(master).counts["failed"] == 1 and "partitions [0, 1, 2, 3]" in driver_of(master).error


def test_finish_is_commanded_again_where_its_answer_does_not_come() -> None:
    master = with_checkpoints("10")
    order, clock = train_until_ordered(master)
    for partition in range(4):
        master.report(written(order, partition))
    while clock < order.clock:
        train(master, clock)
        clock += 1
    master.tick(5.0)
    assert len(master.commands(e.FinishCheckpoint)) == 1
    master.tick(30.0)
    assert len(master.commands(e.FinishCheckpoint)) == 2
    for _ in range(2):
        master.step(e.CheckpointDone(order.checkpoint_id))
    assert driver_of(master).counts["complete"] == 1


def test_by_the_second_one_is_ordered_when_they_have_passed() -> None:
    master = with_checkpoints("30s")
    for clock in range(5):
        train(master, clock)
    assert driver_of(master).pending is None
    master.tick(31.0)
    order = order_of(master)
    assert order.clock > master.state.progress.horizon
    complete(master, order, 5)
    master.tick(25.0)
    assert driver_of(master).pending is None
    master.tick(5.1)
    assert driver_of(master).pending is not None


# ---- when every server goes


def warn(master: ScriptedMaster, *names: MemberId) -> None:
    """Announce that the containers of members will be taken away, all at once."""
    master.step(
        e.ContainersWarned(tuple(e.ContainerWarning(master.container_of(name), 15.0, "goes") for name in names))
    )


def test_one_is_taken_at_once_when_every_server_is_to_be_taken_away_and_the_job_goes_back_to_it() -> None:
    master = with_checkpoints("1000s")
    for clock in range(3):
        train(master, clock)
    warn(master, "server-1", "server-2")
    sent = master.sent(m.TakeCheckpoint)
    assert [name for name, _ in sent] == ["server-1", "server-2"] and sent[0][1] == sent[1][1]
    order = sent[0][1]
    assert isinstance(order, m.TakeCheckpoint)
    assert (
        master.state.progress.horizon < order.clock <= master.state.progress.horizon + master.state.progress.lookahead
    )

    complete(master, order, 3)
    master.lose("server-1", "server-2")
    assert master.state.recovery.inquiry is not None
    for name in master.state.recovery.inquiry.newcomers:
        master.register(name)
    master.recover(clock=order.clock + 1)
    found = master.membership
    assert found.goes_back and (found.checkpoint, found.from_clock) == (checkpoint_name(1, order.clock), order.clock)
    assert driver_of(master).epoch == 2, "the next one: what was written after that clock is of the one before"


def test_none_is_taken_besides_the_schedule_while_a_server_stays_nor_twice_for_one_warning() -> None:
    master = with_checkpoints("1000s")
    train(master, 0)
    warn(master, "server-1", "worker-1")
    assert driver_of(master).pending is None
    warn(master, "server-2")
    order = order_of(master)
    complete(master, order, 1)
    warn(master, "server-1", "server-2")
    assert driver_of(master).pending is None and driver_of(master).counts["complete"] == 1


def test_the_one_for_servers_that_go_comes_after_the_one_on_its_way() -> None:
    master = with_checkpoints("10")
    before, clock = train_until_ordered(master)
    warn(master, "server-1", "server-2")
    assert driver_of(master).pending is not None and not master.sent(m.TakeCheckpoint)
    complete(master, before, clock)
    after = order_of(master)
    assert after.clock > before.clock and after.clock % 10


def test_warnings_of_workers_take_no_further_one() -> None:
    master = with_checkpoints("1000s")
    train(master, 0)
    warn(master, "server-1", "server-2")
    clock = complete(master, order_of(master), 1)
    for worker in ("worker-1", "worker-2"):
        warn(master, worker)
        train(master, clock)
        clock += 1
        assert driver_of(master).pending is None and not master.sent(m.TakeCheckpoint)
    assert driver_of(master).counts["complete"] == 1


def test_new_servers_take_none_because_those_before_them_went() -> None:
    master = with_checkpoints("10")
    train_until_ordered(master)
    warn(master, "server-1", "server-2")
    assert driver_of(master).pending is not None
    master.lose("server-1", "server-2")
    assert master.state.recovery.inquiry is not None
    for name in master.state.recovery.inquiry.newcomers:
        master.register(name)
    master.recover()
    assert master.membership.goes_back and master.state.state is e.JobState.RUNNING
    master.tick(HURRY_AGAIN_S)
    assert driver_of(master).pending is None and not master.sent(m.TakeCheckpoint)


def test_one_that_is_given_up_is_taken_again_while_all_servers_are_to_go() -> None:
    master = with_checkpoints("1000s", followers=1)
    train(master, 0)
    warn(master, "server-1", "server-2")
    before = order_of(master)
    master.tick(HURRY_AGAIN_S)
    master.lose("server-1")
    master.recover(clock=1)
    assert not master.membership.goes_back and driver_of(master).counts["failed"] == 1
    ((to, after),) = [found for found in master.sent(m.TakeCheckpoint) if found[1] != before]
    assert to == "server-2" and after.checkpoint_id > before.checkpoint_id and after.clock > before.clock


def test_one_is_taken_when_those_servers_are_lost_that_would_have_stayed() -> None:
    master = with_checkpoints("1000s", followers=1)
    train(master, 0)
    warn(master, "server-1")
    assert driver_of(master).pending is None
    master.lose("server-2")
    master.recover(clock=1)
    assert master.membership.servers == ("server-1",) and not master.membership.goes_back
    assert [to for to, _ in master.sent(m.TakeCheckpoint)] == ["server-1"]


def test_one_is_taken_when_those_servers_are_removed_that_would_have_stayed() -> None:
    master = with_checkpoints("1000s")
    train(master, 0)
    master.ask(ADD_WORKER)
    master.ask(REMOVE_SERVER)
    warn(master, "server-1")
    # The drain waits to be tried again, and the removal that had waited goes on meanwhile.
    master.report(m.TransferFailed("server-1", master.driver.plan.turn, "no route"))
    assert master.driver.plan.removed == ("server-2",)
    master.acknowledge_lists()
    assert driver_of(master).pending is None
    master.copy()
    assert master.membership.servers == ("server-1",)
    assert [to for to, _ in master.sent(m.TakeCheckpoint)] == ["server-1"]


def test_one_that_fails_while_all_servers_are_to_go_is_tried_again_after_a_moment() -> None:
    master = with_checkpoints("1000s")
    train(master, 0)
    warn(master, "server-1", "server-2")
    order = order_of(master)
    master.report(m.CheckpointPartFailed("server-2", order.checkpoint_id, 1, "the disk is full", late=False))
    master.tick(HURRY_AGAIN_S / 2)
    assert driver_of(master).pending is None and driver_of(master).error and not master.sent(m.TakeCheckpoint)
    master.tick(HURRY_AGAIN_S / 2)
    again = order_of(master)
    assert again.checkpoint_id > order.checkpoint_id


def test_one_that_was_ordered_and_failed_just_before_all_servers_are_to_go_delays_none() -> None:
    master = with_checkpoints("10")
    before, _ = train_until_ordered(master)
    master.report(m.CheckpointPartFailed("server-2", before.checkpoint_id, 1, "the disk is full", late=False))
    assert driver_of(master).pending is None
    warn(master, "server-1", "server-2")
    assert order_of(master).checkpoint_id > before.checkpoint_id


def test_one_that_cannot_be_read_counts_for_nothing_where_all_servers_are_to_go() -> None:
    master = with_checkpoints("1000s")
    train(master, 0)
    warn(master, "server-1", "server-2")
    complete(master, order_of(master), 1)
    master.lose("server-1")
    master.recover()
    assert master.membership.goes_back and driver_of(master).pending is None
    master.tick(HURRY_AGAIN_S)
    assert driver_of(master).pending is None
    master.report(m.CheckpointUnusable("server-2", master.membership.checkpoint, "a byte is wrong"))
    master.recover()
    assert master.membership.goes_back and not master.membership.checkpoint
    assert [to for to, _ in master.sent(m.TakeCheckpoint)] == ["server-2"]


def test_job_that_takes_no_checkpoints_takes_none_when_its_servers_go() -> None:
    master = running()
    warn(master, "server-1", "server-2")
    assert driver_of(master).pending is None and not master.sent(m.TakeCheckpoint)


@pytest.mark.parametrize(("iterations", "taken"), [(14, [7]), (15, [7, 14])])
def test_none_is_taken_of_the_last_clock(iterations: int, taken: list[int]) -> None:
    """It only measures the model, which the job exports then."""
    master = with_checkpoints("7", iterations)
    clock, clocks = 0, list[int]()
    while clock <= iterations:
        if driver_of(master).pending is None:
            train(master, clock)
            clock += 1
        else:
            order = order_of(master)
            clocks.append(order.clock)
            clock = complete(master, order, clock)
    assert clocks == taken


def test_going_back_abandons_the_one_on_its_way_and_begins_an_epoch() -> None:
    master = with_checkpoints("10")
    order, _ = train_until_ordered(master)
    commands = driver_of(master).roll_back(2, 0, master.now_s)
    assert e.DiscardCheckpoint(1, order.clock) in commands
    assert (driver_of(master).epoch, driver_of(master).pending) == (2, None)
    assert driver_of(master).roll_back(3, 0, master.now_s) == []


def test_driver_is_a_plain_value() -> None:
    master = with_checkpoints("10")
    order, _ = train_until_ordered(master)
    master.report(written(order, 2))
    assert pickle.loads(pickle.dumps(driver_of(master))) == driver_of(master)


def test_resumed_job_begins_at_its_clock_with_the_history_before() -> None:
    before = running(20)
    for clock in range(8):
        before.clock(clock, loss_sum=float(clock))
    settings = CoreSettings(num_splits=6, num_partitions=4, iterations=20, resumed_clock=6)
    master = ScriptedMaster(settings, 2, 1)
    master.state.progress.restore(before.state.progress.history)
    master.start()
    assert [record.clock for record in master.state.progress.history] == [0, 1, 2, 3, 4, 5]
    assert master.membership.from_clock == 6 and master.state.progress.horizon >= 6
    for clock in range(6, 21):
        train(master, clock)
    assert [record.clock for record in master.state.progress.history] == list(range(21))
    assert master.state.progress.finished


def test_a_server_that_connects_again_is_told_of_the_checkpoint_on_its_way() -> None:
    """What its next job master has not heard of it, it says again; nobody waits for the order to be repeated."""
    driver = Checkpoints(Timetable(Schedule(clocks=10), 100), 2)
    assert driver.resend_order("server-1", (0, 1)) == []
    driver.pending = Pending(7, 10)
    order = e.Send("server-1", m.TakeCheckpoint(7, 10, 1))
    assert driver.resend_order("server-1", (0, 1)) == [order]
    driver.pending.parts[0] = m.CheckpointPartWritten("server-1", 7, 0, "f", 1, "c", (10,), 10, 0)
    assert driver.resend_order("server-1", (0, 1)) == [order]
    assert driver.resend_order("server-1", (0,)) == [] and driver.resend_order("worker-1", ()) == []
    driver.taken_over()
    assert driver.resend_order("server-1", (1,)) == [order]


def test_a_job_tells_a_server_that_registers_again_of_the_checkpoint_on_its_way() -> None:
    master = with_checkpoints("10")
    order, _ = train_until_ordered(master)
    for name in ("server-1", "worker-1"):
        master.register(name)

    assert [to for to, told in master.sent(m.TakeCheckpoint) if told == order] == ["server-1"]


@pytest.mark.parametrize("break_it", ["too many are kept", "number", "clock", "it ends without its parts"])
def test_validate_finds_checkpoints_that_cannot_be(break_it: str) -> None:
    master = with_checkpoints("10")
    train_until_ordered(master)
    driver = driver_of(master)
    assert driver.pending is not None
    driver.validate()
    match break_it:
        case "too many are kept":
            driver.complete = [RestorePoint(str(number), number) for number in range(driver.keep + 1)]
        case "number":
            driver.pending.number = 99
        case "clock":
            driver.pending.clock = driver.timetable.iterations
        case "it ends without its parts":
            driver.pending.finishing_s = 1.0
    with pytest.raises(AssertionError):
        driver.validate()
