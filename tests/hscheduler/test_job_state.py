"""The state of one live job alone: with random events, each order is answered once."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from eps.core.reconfig import Operation
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.outstanding import Outstanding
from hscheduler.live.job_state import Answer, Attach, Cancel, HistoryReader, JobState, Kill, Poll, Request, Stage, Start
from tests.hscheduler.live_job_world import containers

START = e.StartJob("a", containers(("c1", "w"), ("c2", "w"), ("c3", "s")), False)
AGAIN = e.StartJob("a", containers(("c8", "w"), ("c9", "s")), True)
GROW = e.GrowJob("a", containers(("c4", "w"), ("c5", "s")))


class Shell:
    """Carries out a state's actions on a random job."""

    def __init__(self, lot: Random) -> None:
        self.state = JobState("a", "name", HistoryReader("a", "loss", 10))
        self.lot = lot
        self.now_s = 0.0
        self.said: list[e.Event] = []
        self.members = ["worker-1", "worker-2", "server-1"]
        self.asked: dict[str, int] = {}
        self.plans: dict[int, Request] = {}
        self.cancelled: set[int] = set()
        self.clock = -1
        self.is_killed = False

    def obey(self, number: int, order: e.Order) -> None:
        self.state.obey(number, order, self.now_s)

    def act(self) -> Any:
        """Carry out the next action, if any; return it."""
        action, state = self.state.next_action(), self.state
        match action:
            case Start() | Attach():
                self.is_killed = False
                if isinstance(action, Start) and self.lot.random() < 0.1:
                    self.say(state.start_failed("no room"))
                else:
                    resumes = isinstance(action, Start) and action.resumes
                    self.members = [
                        f"{role}-{k + 1}" for role, there in action.places.items() for k in range(len(there))
                    ]
                    self.say(state.started(action, is_resumed=resumes))
            case Request(operation):
                if self.lot.random() < 0.2:
                    self.say(state.resize.refused("no"))
                else:
                    number = self.asked.setdefault(action.request_id, len(self.asked) + 1)
                    self.plans[number] = action
                    self.say(state.resize.changed({"plan_id": number, "phase": "queued"}))
                assert operation in Operation
            case Poll(plan_id):
                self.look(plan_id)
            case Cancel(plan_id):
                self.cancelled.add(plan_id)
            case Kill():
                self.is_killed = True
            case Answer():
                self.say(state.resize.answered())
        return action

    def look(self, plan_id: int) -> None:
        ask = self.plans[plan_id]
        record = {"plan_id": plan_id, "operation": str(ask.operation), "reason": "", "committed_clock": self.clock}
        added = [f"new-{plan_id}-{k}" for k in range(ask.what)] if isinstance(ask.what, int) else []
        how = "aborted" if plan_id in self.cancelled else self.lot.choice(["copied", "released", "aborted"])
        if how == "released":
            gone = set(ask.what) if isinstance(ask.what, list) else set()
            self.members = [name for name in (*self.members, *added) if name not in gone]
        self.say(self.state.resize.changed({**record, "phase": how, "added": added}))

    def iterate(self) -> None:
        self.clock += 1
        history = [{"clock": self.clock, "loss": 1.0, "seconds": self.now_s}]
        members = [{"name": name, "role": name.split("-")[0]} for name in self.members]
        self.say(self.state.progressed({"state": "running", "members": members}, history))

    def end(self) -> None:
        state = "killed" if self.is_killed else self.lot.choice(["finished", "failed"])
        self.say(self.state.ended({"state": state, "reason": "", "history": [], "changes": []}))

    def say(self, events: list[e.Event]) -> None:
        self.said += events


def settled(shell: Shell) -> None:
    """Carry out all actions; end the job if it was ordered to end."""
    for _ in range(500):
        if shell.state.stage is Stage.WAITS and not shell.is_killed:
            shell.iterate()
        if shell.act() is None:
            if not shell.is_killed or shell.state.stage is Stage.IDLE:
                return
            shell.end()
    raise AssertionError("it does not come to rest")


@pytest.mark.parametrize("seed", range(60))
def test_each_order_is_answered_once_under_random_events(seed: int) -> None:
    lot = Random(seed)
    shell, outstanding, number, heard, answered = Shell(lot), Outstanding(), 0, 0, 0
    held = {"c1", "c2", "c3"}
    for step in range(120):
        shell.now_s = float(step)
        order: e.Order | None = None
        is_there = shell.state.stage is not Stage.IDLE
        if not outstanding.there():
            order = AGAIN if number else START
            held = {c.container_id for c in order.containers}
        elif is_there and lot.random() < 0.1:
            order = e.EndJob("a", lot.random() < 0.7, "why")
        elif is_there and lot.random() < 0.3:
            order = GROW if not held & {"c4", "c5"} else e.ShrinkJob("a", (lot.choice(sorted(held)),))
            # A container is not released twice at a time.
            held = held | {"c4", "c5"} if isinstance(order, e.GrowJob) else held - set(order.containers)
        if order is not None:
            ((number, order),) = outstanding.take(e.CancelAsked("b", ""), [order])
            shell.obey(number, order)
        for _ in range(lot.randrange(4)):
            shell.act()
        if shell.state.stage in (Stage.WAITS, Stage.TRAINS):
            shell.iterate() if lot.random() < 0.8 else shell.end()
        rests = lot.random() < 0.2
        if rests:
            settled(shell)
        for event in shell.said[heard:]:
            outstanding.take(event, [])
            if isinstance(event, e.GrowthFailed):
                held -= set(event.containers)
            elif isinstance(event, e.ShrinkFailed):
                held |= set(event.containers)
        heard = len(shell.said)
        if rests:
            # No order is open.
            assert outstanding.of("a") == [], step
            answered += 1
    shell.obey(number + 1, e.EndJob("a", False, "enough"))
    settled(shell)
    for event in shell.said[heard:]:
        outstanding.take(event, [])
    assert outstanding.there() == [] and outstanding.of("a") == [] and answered > 5
    assert shell.state.is_done and shell.state.next_action() is None
    # Each attempt ends once.
    parts = [type(event) for event in shell.said if isinstance(event, e.JobStarted | e.JobEnded)]
    assert all(now is e.JobEnded for before, now in pairwise(parts) if before is e.JobStarted)


def test_a_job_cancelled_during_its_start_is_ended_after_it() -> None:
    shell = Shell(Random(3))
    shell.obey(1, START)
    shell.obey(2, e.EndJob("a", False, "the worst"))
    assert isinstance(shell.act(), Start) and isinstance(shell.act(), Kill)
    shell.end()
    (ended,) = (event for event in shell.said if isinstance(event, e.JobEnded))
    assert (ended.phase, ended.why) == (Phase.KILLED, "the worst")
    # A job that does not run has nothing to end.
    shell.obey(3, e.EndJob("a", False, "too late"))
    shell.obey(4, AGAIN)
    assert isinstance(shell.act(), Start) and shell.act() is None


def test_a_declared_restart_lasts_from_the_order_to_the_next_iteration() -> None:
    shell, killed = Shell(Random(1)), {"state": "killed"}
    shell.obey(1, START)
    shell.act()
    shell.iterate()
    assert shell.state.waits_s(killed, 5.0, 8.0) == 0.0
    shell.now_s = 10.0
    shell.obey(2, e.EndJob("a", True, "it restarts"))
    # A report that was on its way.
    shell.iterate()
    assert shell.state.waits_s(killed, 5.0, 12.0) == 3.0 and shell.state.waits_s({"state": "failed"}, 5.0, 12.0) == 0.0
    assert isinstance(shell.act(), Kill)
    shell.end()
    shell.obey(3, AGAIN)
    assert isinstance(shell.act(), Start)
    assert shell.state.waits_s(killed, 5.0, 13.0) == 2.0, "the next attempt has not iterated"
    shell.iterate()
    assert shell.state.waits_s(killed, 5.0, 13.0) == 0.0
    shell.obey(4, e.EndJob("a", True, "it pauses", 7))
    assert shell.state.waits_s(killed, 5.0, 13.0) == 0.0, "others use its containers"
