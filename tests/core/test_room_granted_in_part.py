"""The job master when the room for who comes back is granted bit by bit, and perhaps not all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from eps.core import events as e
from eps.core.events import Command
from eps.core.plans import GROWTH_PATIENCE_S, REGAIN_PATIENCE_S
from eps.core.reconfig import Phase, Plan
from eps.core.size import Borrower
from eps.core.types import CoreSettings, Role
from eps.master.state_log import StateLog
from tests.core.scripted import REMOVE_SERVER, ScriptedMaster
from tests.core.test_evictions import carry_on, warn
from tests.core.test_restart import restart
from tests.core.test_room_for_others import returns, see

#: Capacity that has been free for this long has no other requests.
QUIET_S = 15.0
TICK_S = 0.25


class Pool:
    """Capacity of which each node grants one container a second, the oldest request first, as YARN does."""

    def __init__(self, master: ScriptedMaster, nodes: int, free: int, seen: int | None = None) -> None:
        self.master = master
        self.nodes = nodes
        self.free = free
        #: Containers that seem to fit; by default those that do.
        self.seen = free if seen is None else seen
        #: What the job waits for, and has been granted.
        self.waiting: list[str] = []
        self.held: list[str] = []
        self._read = len(master.all)
        self._granted_s = self._taken_back_s = master.now_s

    def second(self) -> None:
        """Let a second pass: grants come at its end."""
        for _ in range(round(1.0 / TICK_S)):
            self.master.tick(TICK_S)
            self.hear()
        for _ in range(self.nodes):
            if self.waiting and self.free:
                self.free -= 1
                self.held.append(self.waiting.pop(0))
                self.master.step(e.ContainerGranted(self.held[-1]))
        state = self.master.state
        driver = state.plans.flight.driver
        if driver is not None and driver.granted == set(driver.plan.added):
            carry_on(self.master)
        self.hear()
        if state.looks_for_room and self.master.now_s - self._taken_back_s >= QUIET_S:
            self.master.step(e.RoomSeen(dict.fromkeys(Role, self.seen)))

    def seconds(self, number: int) -> None:
        for _ in range(number):
            self.second()

    def hear(self) -> None:
        """Take in what the job has asked for and given back."""
        for command in self.master.all[self._read :]:
            self._obey(command)
        self._read = len(self.master.all)

    def _obey(self, command: Command) -> None:
        match command:
            case e.RequestContainer(container_id):
                self.waiting.append(container_id)
            case e.ReleaseContainer(container_id) if container_id in self.waiting:
                self.waiting.remove(container_id)
                self._taken_back_s = self.master.now_s
            case e.ReleaseContainer(container_id) if container_id in self.held:
                self.held.remove(container_id)
                self.free += 1


class LoggedMaster(ScriptedMaster):
    """One whose state another process may restore, once there is a log."""

    log: StateLog | None = None

    def step(self, event: e.Event, after_s: float = 0.001) -> list[Command]:
        if self.log is not None:
            self.log.record(event, self.now_s + after_s)
        return super().step(event, after_s)


def shrunken(workers: int, servers: int = 1) -> LoggedMaster:
    """Return a job that others have left one worker and one server of so many."""
    master = LoggedMaster(CoreSettings(32, 8, 10**6, reproducible=False), workers, servers)
    master.start()
    warn(master, *master.membership.workers[1:], *master.membership.servers[1:], for_others=True)
    carry_on(master)
    assert master.membership.members == ("worker-1", "server-1")
    return master


def asking(pool: Pool) -> Plan:
    """Return the plan by which members come back, as soon as it waits for containers."""
    for _ in range(30):
        if pool.master.state.plans.flight.driver is not None:
            break
        pool.second()
    pool.hear()
    assert len(pool.waiting) == len(pool.master.driver.plan.added)
    return pool.master.driver.plan


# ---- all of it is granted, in its time


@pytest.mark.parametrize(("nodes", "workers"), [(1, 5), (2, 5), (2, 10), (4, 20), (1, 20)])
def test_all_that_fits_comes_back_at_once_however_slowly_it_is_granted(nodes: int, workers: int) -> None:
    master = shrunken(workers)
    pool = Pool(master, nodes, free=workers - 1)
    pool.seconds(round(QUIET_S) + 2 + (workers - 1) // nodes + 1)

    (plan,) = returns(master)
    assert plan.phase is Phase.RELEASED and len(master.membership.workers) == workers
    assert len(pool.held) == workers - 1, "nothing was granted twice"
    assert not any(master.state.size.lent[Borrower.OTHERS].values())


def test_servers_come_back_as_slowly_and_workers_after_them() -> None:
    master = shrunken(6, 6)
    pool = Pool(master, 1, free=10)
    pool.seconds(60)

    assert [len(plan.added) for plan in returns(master)] == [5, 5]
    assert {role: len(master.membership.of_role(role)) for role in Role} == master.state.size.wanted


# ---- some of it never


def test_who_was_granted_a_container_comes_without_the_others() -> None:
    master = shrunken(10, 2)
    pool = Pool(master, 2, free=6, seen=9)
    plan = asking(pool)
    asked = plan.added
    pool.seconds(3 + round(REGAIN_PATIENCE_S))
    granted, waited = list(pool.held), list(pool.waiting)
    pool.seconds(1)

    assert len(asked) == 9 and len(granted) == 6 and not waited, "what is in vain is taken back, and no more"
    assert plan.phase is Phase.RELEASED and plan.added == asked[:6] and pool.held == granted
    assert master.membership.workers == ("worker-1", *asked[:6])
    assert plan.transfer is not None and {v.target for v in plan.transfer.split_moves} == set(asked[:6])
    assert not set(asked[6:]) & set(master.state.members.by_name)
    assert master.state.size.lent[Borrower.OTHERS] == {Role.WORKER: 3, Role.SERVER: 1}
    assert [(r["plan"], r["without"]) for r in master.journaled("smaller")] == [(plan.plan_id, list(asked[6:]))]


def test_servers_that_were_granted_a_container_take_partitions_without_the_others() -> None:
    master = shrunken(1, 5)
    pool = Pool(master, 1, free=2, seen=4)
    plan = asking(pool)
    pool.seconds(10)

    assert plan.phase is Phase.RELEASED and len(plan.added) == 2
    assert set(master.membership.partitions.owners) == {"server-1", *plan.added}
    assert master.state.size.lent[Borrower.OTHERS] == {Role.WORKER: 0, Role.SERVER: 2}


def test_those_that_are_up_already_have_passed_the_first_barrier() -> None:
    master = shrunken(4)
    see(master, {Role.WORKER: 3})
    plan = master.driver.plan
    for name in plan.added[:2]:
        master.register(name)
    early = "B1" in plan.barriers_s
    master.tick(REGAIN_PATIENCE_S)

    assert not early and "B1" in plan.barriers_s and plan.phase is Phase.PREPARED
    assert set(master.driver.newcomers) == set(plan.added) == master.driver.granted


def test_rest_is_asked_for_when_room_is_seen_again_and_comes_when_it_is_there() -> None:
    master = shrunken(10)
    pool = Pool(master, 2, free=6, seen=9)
    pool.seconds(300)
    vain = [p for p in returns(master) if p.phase is Phase.ABORTED]
    pool.free = 3
    pool.seconds(120)

    assert {p.change.count for p in vain} == {3}, "no more than is missing"
    stood_s = [p.reached_s[Phase.ABORTED] - p.reached_s[Phase.PROPOSED] for p in vain]
    assert max(stood_s) < REGAIN_PATIENCE_S + 2 * TICK_S
    assert len(master.membership.workers) == 10 and len(pool.held) == 9


def test_request_of_which_nothing_is_granted_is_taken_back_whole() -> None:
    master = shrunken(10)
    pool = Pool(master, 2, free=0, seen=9)
    plan = asking(pool)
    pool.seconds(round(REGAIN_PATIENCE_S) + 1)

    assert plan.phase is Phase.ABORTED and not pool.waiting
    assert plan.reason == "not granted within 3 s: no room is free, or no container fits on one node"
    assert master.membership.workers == ("worker-1",) and not master.journaled("smaller")


# ---- others


def test_what_others_free_once_they_have_the_rest_is_theirs() -> None:
    """A request that stands would take it: it has waited for longer."""
    master = shrunken(10)
    pool = Pool(master, 2, free=9)
    asking(pool)
    pool.seconds(2)
    others, pool.free = pool.free, 0
    pool.seconds(round(REGAIN_PATIENCE_S) + 1)
    pool.free = others
    pool.seconds(2)

    assert others == 5 and pool.free == others and not pool.waiting
    assert len(master.membership.workers) == 5


def test_removal_has_a_job_that_is_being_granted_room_give_all_of_it_back() -> None:
    master = shrunken(10, 2)
    see(master, {Role.SERVER: 1})
    carry_on(master)
    see(master, {Role.WORKER: 9})
    plan = master.driver.plan
    master.step(e.ContainerGranted(master.container_of(plan.added[0])), GROWTH_PATIENCE_S)
    master.ask(REMOVE_SERVER)
    master.tick(TICK_S)

    assert plan.phase is Phase.ABORTED and "still waiting for containers when remove-servers=1" in plan.reason
    assert {master.container_of(name) for name in plan.added} <= {
        c.container_id for c in master.commands(e.ReleaseContainer)
    }


def test_newcomer_that_is_preempted_while_others_are_granted_has_all_of_them_stay_away() -> None:
    master = shrunken(10)
    pool = Pool(master, 2, free=9)
    plan = asking(pool)
    pool.second()
    warn(master, plan.added[0], for_others=True)
    pool.seconds(5)

    assert plan.phase is Phase.ABORTED and not pool.waiting and not pool.held
    assert master.membership.workers == ("worker-1",) and master.state.size.lent[Borrower.OTHERS][Role.WORKER] == 9


# ---- another process goes on


def restored(master: LoggedMaster, path: Path) -> None:
    """Let another process restore the job from its log."""
    assert master.log is not None
    master.log.close()
    found = StateLog(path).restore()
    assert found is not None and found.state.validate() is None
    assert (found.now_s, found.state.size.lent[Borrower.OTHERS]) == (
        master.now_s,
        master.state.size.lent[Borrower.OTHERS],
    )
    assert (
        found.state.plans.flight.driver == master.state.plans.flight.driver
        and found.state.membership == master.membership
    )
    master.state, master.log = found.state, None


def test_next_master_goes_on_with_those_that_were_granted(tmp_path: Path) -> None:
    master = shrunken(10)
    pool = Pool(master, 2, free=6, seen=9)
    master.log = StateLog(tmp_path / "state")
    master.log.begin(master.state, master.now_s)
    plan = asking(pool)
    pool.seconds(3)
    master.register(plan.added[0])
    master.tick(REGAIN_PATIENCE_S)
    restored(master, tmp_path / "state")

    assert master.driver.plan.added == plan.added and len(plan.added) == 6
    carry_on(master)
    assert len(master.membership.workers) == 7 and master.state.size.lent[Borrower.OTHERS][Role.WORKER] == 3


def test_next_master_waits_anew_for_what_it_has_to_ask_for_again(tmp_path: Path) -> None:
    master = shrunken(5)
    master.log = StateLog(tmp_path / "state")
    master.log.begin(master.state, master.now_s)
    see(master, {Role.WORKER: 4})
    up, granted = master.driver.plan.added[:2]
    master.launch(up)
    master.step(e.ContainerGranted(master.container_of(granted)))
    restored(master, tmp_path / "state")
    master.now_s += 2 * REGAIN_PATIENCE_S
    restart(master)
    plan = master.driver.plan
    master.tick(REGAIN_PATIENCE_S - 0.5)
    waits = plan.phase, plan.added, master.driver.waits_for()
    master.tick(1.0)

    assert waits[0] is Phase.PROPOSED and len(waits[1]) == 4 and waits[2] == "3 containers"
    assert plan.phase is Phase.PROPOSED and plan.added == (up,)
    carry_on(master)
    assert master.membership.workers == ("worker-1", up)
