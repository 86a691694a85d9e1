"""A job master's log: it is the state, it stays short, and a disk that is full does not end a job."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.events import JobState
from eps.core.job import Job
from eps.core.members import MISSING
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.reconfig import Change, Operation, Phase
from eps.core.types import Address, CoreSettings
from eps.errors import StorageError
from eps.master.state_log import HEAL_S, StateLog, _parts, dumps, loads
from eps.storage.wal import EventLog
from tests.core.scripted import ScriptedMaster, running
from tests.fakes.full_disk import no_file_beyond
from tests.fakes.power import Disk
from tests.sim.mortal import assert_same, keep_short

MANY_CLOCKS = 1500
SETTINGS = CoreSettings(num_splits=1, num_partitions=1, iterations=10 * MANY_CLOCKS, reproducible=False)


def trained(clocks: int) -> ScriptedMaster:
    """Return a job of one worker and one server after so many clocks."""
    master = ScriptedMaster(SETTINGS, 1, 1)
    master.start()
    for clock in range(clocks):
        master.clock(clock)
    return master


def restored(path: Path) -> Job:
    found = StateLog(path).restore()
    assert found is not None
    return found.state


@pytest.mark.parametrize(
    "value",
    [
        e.Tick(),
        e.ContainerExited("container-0001", "was ended by SIGKILL"),
        e.ReportReceived(m.ClockReported("worker-1", 3, (m.SplitResult(0, 7, 0.1, (1.0, 2.0)),)), 0.25),
        e.ChangeRequested("r", Change(Operation.REMOVE_SERVERS, 1, ("server-1",)), dry_run=True),
        e.MasterRestarted(2, {"container-0001": 17}),
        e.ExportDone({"ledger": {"applied": 3}, "test_metrics": {"auc": None}}),
        Phase.COMMITTED,
        Membership(1, 0, ("worker-1",), ("server-1",), PartitionTable(("server-1",)), SplitTable.of(("worker-1",)), {
            "worker-1": Address("a", 1), "server-1": Address("b", 2),
        }),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_events_and_what_they_hold_come_back_equal(value: object) -> None:
    assert loads(dumps((1.5, value))) == (1.5, value)


@pytest.mark.parametrize("named", [io.StringIO, subprocess.Popen, eval, len, Path, EventLog])
def test_no_class_is_looked_up_that_has_no_place_in_a_state(named: object) -> None:
    with pytest.raises(StorageError, match=r"not part of .* state"):
        loads(pickle.dumps(named))


@pytest.mark.parametrize("name", ["eps.core.progress\nceil", "eps.core.events\nMapping.register", "builtins\ngetattr"])
def test_no_function_is_looked_up_either(name: str) -> None:
    with pytest.raises(StorageError):
        loads(b"c" + name.encode() + b"\n.")


def test_bytes_that_say_nothing_are_an_error() -> None:
    with pytest.raises(StorageError, match="4 bytes cannot be read"):
        loads(b"junk")


def test_a_job_that_was_not_logged_cannot_be_restored(tmp_path: Path) -> None:
    assert StateLog(tmp_path / "state").restore() is None


def test_event_that_cannot_be_taken_in_again_ends_the_job_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = trained(3)
    log = StateLog(tmp_path / "state")
    log.begin(master.state, master.now_s)
    for event in (e.Tick(), e.ChangeRequested("r", Change(Operation.ADD_WORKERS, 1))):
        log.record(event, master.now_s)
    log.close()
    step = Job.step

    def dies(self: Job, event: e.Event, now_s: float) -> list[e.Command]:
        if isinstance(event, e.ChangeRequested):
            raise ZeroDivisionError("here")
        return step(self, event, now_s)

    monkeypatch.setattr(Job, "step", dies)
    with pytest.raises(StorageError) as ended:
        restored(log.path)
    assert "ChangeRequested (add-workers=1) has crashed" in str(ended.value)
    assert "ZeroDivisionError: here" in str(ended.value)


def test_a_long_history_comes_back(tmp_path: Path) -> None:
    master = trained(MANY_CLOCKS)
    log = StateLog(tmp_path / "state", snapshot_events=1)
    log.begin(master.state, master.now_s)
    assert_same(restored(log.path), master.state)
    for clock in range(MANY_CLOCKS, 2 * MANY_CLOCKS):
        event = e.ReportReceived(m.ClockReported("worker-1", clock, (m.SplitResult(0, 1, 1.0),)))
        log.record(event, master.now_s + 0.001)
        master.step(event)
    keep_short(log, master.state, master.now_s)
    log.close()
    assert_same(restored(log.path), master.state)
    assert len(restored(log.path).progress.history) == 2 * MANY_CLOCKS


def test_snapshot_holds_a_clock_in_a_few_bytes(tmp_path: Path) -> None:
    def size_bytes(clocks: int) -> int:
        master = trained(clocks)
        log = StateLog(tmp_path / str(clocks))
        log.begin(master.state, master.now_s)
        log.close()
        return sum(path.stat().st_size for path in log.path.iterdir())

    assert size_bytes(2 * MANY_CLOCKS) - size_bytes(MANY_CLOCKS) < 40 * MANY_CLOCKS


@pytest.mark.parametrize("damage", [lambda parts: parts[:-1], lambda parts: [*parts[:-1], parts[-1][8:]]])
def test_history_with_other_columns_is_an_error(tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]]) -> None:
    master = trained(3)
    parts = _parts(master.state, master.now_s)
    log = EventLog.open(tmp_path / "state")
    log.snapshot(*damage(parts))
    log.close()
    with pytest.raises(StorageError, match="a history cannot be read"):
        restored(log.path)


def test_what_the_export_found_that_counted_comes_back_and_no_other(tmp_path: Path) -> None:
    settings = replace(SETTINGS, iterations=3)
    master = ScriptedMaster(settings, 1, 1)
    master.start()
    for clock in range(4):
        master.clock(clock)
    log = StateLog(tmp_path / "state")
    log.begin(master.state, master.now_s)

    def logged(event: e.Event) -> None:
        log.record(event, master.now_s + 0.001)
        master.step(event)

    logged(e.ExportDone({"model_sha256": "of another export"}, number=7))
    assert master.state.state is JobState.EXPORTING and restored(log.path).export.found == {}
    logged(e.ExportDone({"model_sha256": "the one"}, number=1))
    logged(e.ExportDone({"model_sha256": "of another export"}, number=7))
    log.close()
    assert_same(restored(log.path), master.state)
    assert restored(log.path).export.found == {"model_sha256": "the one"}


def test_a_full_disk_is_shown_and_healed_and_the_job_goes_on(tmp_path: Path) -> None:
    master = trained(0)
    log = StateLog(tmp_path / "state")
    log.begin(master.state, 0.0)
    clock = 0
    with no_file_beyond(10_000):
        while not log.error:
            event = e.ReportReceived(m.ClockReported("worker-1", clock, (m.SplitResult(0, 1, 1.0),)))
            log.record(event, master.now_s + 0.001)
            master.step(event)
            clock += 1
        assert "File too large" in log.error
        with pytest.raises(StorageError, match="records are missing"):
            StateLog(log.path)
        log.record(e.Tick(), master.now_s + 0.001)
        master.step(e.Tick())
    keep_short(log, master.state, master.now_s)
    assert log.error, "not before it is time"
    keep_short(log, master.state, master.now_s + HEAL_S)
    assert log.error == ""
    assert_same(restored(log.path), master.state)
    log.close()


def test_a_directory_that_cannot_be_made_is_shown_until_it_can(tmp_path: Path) -> None:
    master = trained(3)
    in_the_way = tmp_path / "file"
    in_the_way.write_bytes(b"")
    log = StateLog(in_the_way / "state")
    log.begin(master.state, 0.0)
    assert "cannot be opened" in log.error
    log.record(e.Tick(), 0.1)
    log.sync(0.1)
    in_the_way.unlink()
    in_the_way.mkdir()
    keep_short(log, master.state, 0.2 + HEAL_S)
    assert log.error == ""
    assert_same(restored(log.path), master.state)
    log.close()


def test_a_state_is_the_same_in_a_process_that_hashes_otherwise(tmp_path: Path) -> None:
    """Nothing that a state does may depend on the order of a set."""
    program = (
        "import sys, pathlib\n"
        "from eps.master.state_log import StateLog\n"
        "found = StateLog(pathlib.Path(sys.argv[1])).restore()\n"
        "s = found.state\n"
        "driver = s.plans.flight.driver\n"
        "print(s.state, s.progress, s.membership, s.plans.all, s.members.by_name, driver and driver.orders())\n"
    )
    master = ScriptedMaster(CoreSettings(num_splits=6, num_partitions=4, iterations=100, reproducible=False), 3, 2)
    log = StateLog(tmp_path / "state")
    step = master.step

    def logged(event: e.Event, after_s: float = 0.001) -> list[e.Command]:
        log.record(event, master.now_s + after_s)
        return step(event, after_s)

    commands = master.state.start(0.0)
    log.begin(master.state, 0.0)
    master._take(commands)
    master.step = logged  # type: ignore[method-assign]
    for name in ("worker-1", "worker-2", "worker-3", "server-1", "server-2"):
        master.launch(name)
        master.register(name)
    for name in master.membership.members:
        master.report(m.MembershipAcked(name, 1))
    assert master.state.state is JobState.RUNNING
    master.carry_out(Change(Operation.ADD_SERVERS, 2))
    master.carry_out(Change(Operation.REMOVE_WORKERS, 1))
    master.ask(Change(Operation.ADD_WORKERS, 2))
    log.close()
    said = {
        subprocess.run(
            [sys.executable, "-c", program, str(log.path)],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1 and "worker-5" in said.pop()


@pytest.mark.parametrize("seed", range(5))
def test_a_master_whose_power_failed_has_what_was_committed_and_goes_on_with_no_member_that_knows_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    path = tmp_path / "state"
    path.mkdir()
    disk = Disk(path, monkeypatch)
    master = running()
    log = StateLog(path)
    log.begin(master.state, master.now_s)
    step = master.step

    def logged(event: e.Event, after_s: float = 0.001) -> list[e.Command]:
        """Log as the master does: before the event is processed, and on disk before commands that need it."""
        log.record(event, master.now_s + after_s)
        commands = step(event, after_s)
        if any(isinstance(command, e.Journal) and command.sync for command in commands):
            log.sync(master.now_s)
            synced.append(master.state.masters.steps)
        return commands

    synced: list[int] = []
    monkeypatch.setattr(master, "step", logged)
    plan = master.carry_out(Change(Operation.ADD_SERVERS, 1))
    assert plan.phase is Phase.RELEASED
    for _ in range(20):
        master.tick()
    heard = master.state.masters.steps - 1
    assert synced
    log.close()
    disk.lose_power(Random(seed))
    disk.close()

    state = restored(path)
    assert synced[-1] <= state.masters.steps <= heard, "some of it was not synced"
    assert state.plans.all[plan.plan_id].phase in (Phase.COMMITTED, Phase.SWITCHED, Phase.RELEASED)
    assert state.membership is not None and state.membership.version == master.membership.version
    state.step(e.MasterRestarted(2, {r.container: r.pid for r in state.members.by_name.values()}), master.now_s)
    worker = state.members.by_name["worker-1"]
    state.step(e.MemberRegistered(worker.container, master.address_of("worker-1"), 1, 1, heard), master.now_s)
    assert (state.state, state.reason) == (JobState.FAILED, MISSING.format(who="worker-1"))
