"""A member's session over the death of its master: both ends are real, over a real gRPC server on another port each."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.types import Address
from eps.errors import EpsError, PeerUnavailableError
from eps.master.sessions import Sessions
from eps.net.calls.call import serve, stop
from eps.net.control.finder import MasterPlace
from eps.net.control.session import MemberSession, Patience
from eps.net.messages.codec import order_to_pb
from eps.pb import control_pb2 as pb
from eps.pb.control_pb2_grpc import MemberSessionServicer, add_MemberSessionServicer_to_server
from eps.system.waits import wait_for

DEADLINE_S = 30.0
#: Frequent heartbeats and long timeouts, for tests of other subjects.
CALM = Patience(silence_s=60.0, master_s=60.0, beat_s=0.02)


def clock_report(clock: int) -> m.ClockReported:
    return m.ClockReported("worker-1", clock, (m.SplitResult(0, 10, 1.0, ()),))


class Gathered:
    """A list of events, in order; threads wait for entries."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._changed = threading.Condition()

    def add(self, *items: Any) -> None:
        with self._changed:
            self.items.extend(items)
            self._changed.notify_all()

    def wait(self, condition: Callable[[list[Any]], bool]) -> list[Any]:
        """Wait until ``condition`` holds for everything so far."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.items), DEADLINE_S), self.items
            return list(self.items)


class StandIn:
    """A job master that only names the members that it knows, and remembers what it hears.

    With ``judges=False`` it leaves that to the test, as a master does whose thread is busy.
    """

    def __init__(
        self, generation: int, known: Sequence[str] = ("container-1",), judges: bool = True, **options: Any
    ) -> None:
        self.generation, self._known, self._judges = generation, known, judges
        #: Events that it has taken in, as orders say it.
        self.steps = 0
        self.heard = Gathered()
        self.sessions = Sessions(self._put, "{}", self, **{"beat_s": 0.02, **options})
        self.server, address = serve(self.sessions.register)
        self.place = MasterPlace(str(address), generation)

    def _put(self, *events: e.Event) -> None:
        for event in events:
            if isinstance(event, e.MemberRegistered) and self._judges:
                if event.seat in self._known:
                    self.sessions.name(event.seat, "worker-1")
                else:
                    self.sessions.dismiss(event.seat, "the job does not know this process")
            self.heard.add(event)

    def reports(self, number: int) -> list[m.Report]:
        """Wait for that many reports; return all."""
        events = self.heard.wait(lambda items: sum(isinstance(i, e.ReportReceived) for i in items) >= number)
        return [event.report for event in events if isinstance(event, e.ReportReceived)]

    def registered(self, number: int = 1) -> None:
        self.heard.wait(lambda items: sum(isinstance(i, e.MemberRegistered) for i in items) >= number)

    def die(self) -> None:
        stop(self.server, 0)


class Hanging(MemberSessionServicer):
    """A job master that says what the test gives it, and nothing by itself."""

    def __init__(self) -> None:
        self.orders: queue.SimpleQueue[pb.Order | None] = queue.SimpleQueue()
        self.server, address = serve(lambda server: add_MemberSessionServicer_to_server(self, server))
        self.place = MasterPlace(str(address), 1)
        self.attached = Gathered()

    def Attach(self, reports: Iterator[pb.Reports], context: Any) -> Iterator[pb.Order]:
        context.add_callback(lambda: self.orders.put(None))
        self.attached.add(next(reports))
        yield pb.Order(welcome=pb.Welcome(name="worker-1", job_json="{}"), generation=1)
        while (order := self.orders.get()) is not None:
            yield order

    def die(self) -> None:
        self.orders.put(None)
        stop(self.server, 0)


class Member:
    """A session, what it was ordered and how it ended; ``place`` is where it finds the latest master."""

    def __init__(self, place: MasterPlace, patience: Patience = CALM) -> None:
        self.place: MasterPlace | None = place
        self.looked = Gathered()
        self.ordered = Gathered()
        self.ended = Gathered()
        self.on_order: Callable[[m.Order], None] = self.ordered.add
        address = Address("127.0.0.1", 1)
        self.session = MemberSession(place.address, "container-1", address, 7, find=self._find, patience=patience)
        self.welcome = self.session.open(lambda order: self.on_order(order), self.ended.add)

    def _find(self) -> MasterPlace | None:
        self.looked.add(None)
        return self.place

    def end(self) -> EpsError | None:
        """Wait for the session's end; return its error."""
        (error,) = self.ended.wait(bool)
        return error


@pytest.fixture
def cast() -> Iterator[Callable[[Any], Any]]:
    """Ends every master and member that a test hands over."""
    players: list[Any] = []

    def add(player: Any) -> Any:
        players.append(player)
        return player

    yield add
    for player in players:
        if isinstance(player, Member):
            player.session.close()
    for player in players:
        if not isinstance(player, Member):
            player.die()


Cast = Callable[[Any], Any]


def outlived(cast: Cast) -> Member:
    """Return a member whose first master has heard its first report and died."""
    first = cast(StandIn(1))
    member = cast(Member(first.place))
    member.welcome()
    member.session.report(clock_report(0))
    first.reports(1)
    first.die()
    return member


def test_reports_that_may_be_lost_are_said_again_to_the_next_master_in_order(cast: Cast) -> None:
    first = cast(StandIn(1))
    member = cast(Member(first.place))
    assert member.welcome().name == "worker-1"
    said = [clock_report(0), m.ListsUpdated("worker-1", 1), clock_report(1), m.SplitReceived("worker-1", 1, 3, 9)]
    for report in said:
        member.session.report(report)
    assert first.reports(4) == said
    first.die()
    member.session.report(clock_report(2))
    second = cast(StandIn(2))
    member.place = second.place
    # What answers an order is said again when the order is; the others at once.
    assert second.reports(4) == [said[0], said[2], said[3], clock_report(2)]
    assert member.session.generation == 2 and member.ended.items == []


def test_what_the_master_has_recorded_is_not_said_again(cast: Cast) -> None:
    first = cast(StandIn(1))
    member = cast(Member(first.place))
    for clock in range(4):
        member.session.report(clock_report(clock))
    member.session.report(m.SplitReceived("worker-1", 5, 3, 9))
    first.reports(5)
    first.sessions.send("worker-1", m.GrantHorizon(9, 3, 1))
    first.sessions.send("worker-1", m.ReleasePlan(5))
    member.ordered.wait(lambda orders: len(orders) == 2)
    first.die()
    second = cast(StandIn(2))
    member.place = second.place
    second.registered()
    member.session.report(clock_report(4))
    assert second.reports(2) == [clock_report(3), clock_report(4)]


def test_member_that_started_without_a_master_is_named_by_the_next_one(cast: Cast) -> None:
    dead = cast(StandIn(1))
    dead.die()
    member = cast(Member(dead.place))
    member.session.report(clock_report(0))
    member.looked.wait(lambda looks: len(looks) >= 3)
    master = cast(StandIn(2))
    member.place = master.place
    assert member.welcome().name == "worker-1"
    assert master.reports(1) == [clock_report(0)]


def test_a_member_says_which_order_it_has_heard_last_to_the_next_master(cast: Cast) -> None:
    first = cast(StandIn(1))
    first.steps = 5
    member = cast(Member(first.place))
    member.welcome()
    first.steps = 8
    first.sessions.send("worker-1", m.AbortPlan(1))
    member.ordered.wait(bool)
    # Of what it was not told it knows nothing.
    first.steps = 11
    beats = member.session._inbox.heard_s
    wait_for(lambda: member.session._inbox.heard_s > beats, DEADLINE_S, "a sign of life")
    first.die()
    second = cast(StandIn(2))
    member.place = second.place
    (again,) = (i for i in second.heard.wait(bool) if isinstance(i, e.MemberRegistered))
    assert (again.heard_generation, again.heard_step) == (1, 8)
    (registered,) = (i for i in first.heard.items if isinstance(i, e.MemberRegistered))
    assert (registered.heard_generation, registered.heard_step) == (0, 0)


def test_stream_that_broke_is_opened_again_at_the_same_master(cast: Cast) -> None:
    master = cast(StandIn(1))
    member = cast(Member(master.place))
    member.welcome()
    master.sessions.close()
    master.registered(2)
    master.sessions.send("worker-1", m.AbortPlan(1))
    assert member.ordered.wait(bool) == [m.AbortPlan(1)]


def test_orders_of_an_older_generation_are_ignored(cast: Cast) -> None:
    master = cast(Hanging())
    member = cast(Member(master.place))
    member.welcome()
    for generation, plan_id in ((1, 1), (3, 2), (2, 3), (3, 4)):
        master.orders.put(order_to_pb(m.AbortPlan(plan_id), generation, 1))
    orders = member.ordered.wait(lambda found: m.AbortPlan(4) in found)
    assert orders[-2:] == [m.AbortPlan(2), m.AbortPlan(4)] and m.AbortPlan(3) not in orders


def test_order_that_waited_while_a_newer_master_came_is_not_obeyed(cast: Cast) -> None:
    first, second = cast(StandIn(1)), cast(StandIn(2))
    member = cast(Member(first.place))
    begun, go_on = threading.Event(), threading.Event()

    def obey(order: m.Order) -> None:
        begun.set()
        go_on.wait(DEADLINE_S)
        member.ordered.add(order)

    member.on_order = obey
    member.welcome()
    first.sessions.send("worker-1", m.AbortPlan(1))
    first.sessions.send("worker-1", m.AbortPlan(2))
    assert begun.wait(DEADLINE_S)
    member.place = second.place
    first.die()
    second.registered()
    second.sessions.send("worker-1", m.AbortPlan(3))
    member.session.report(m.PlanReleased("worker-1", 1))
    second.reports(1)
    go_on.set()
    orders = member.ordered.wait(lambda found: m.AbortPlan(3) in found)
    assert orders[0] == m.AbortPlan(1) and orders[-1] == m.AbortPlan(3)


def test_master_that_was_replaced_refuses_who_knows_it(cast: Cast) -> None:
    old, new = cast(StandIn(1)), cast(StandIn(2))
    member = cast(Member(new.place))
    member.welcome()
    # Its file says something wrong: the old master itself must know better.
    member.place = MasterPlace(old.place.address, 2)
    new.die()
    newest = cast(StandIn(3))
    member.looked.wait(lambda looks: len(looks) >= 10)
    assert old.heard.items == [] and member.ended.items == []
    member.place = newest.place
    newest.registered()


def test_all_that_a_master_says_is_of_the_generation_that_its_state_has(cast: Cast) -> None:
    master = cast(StandIn(1))
    master.generation = 3
    member = cast(Member(MasterPlace(master.place.address, 3)))
    assert member.welcome().generation == 3
    master.sessions.send("worker-1", m.AbortPlan(1))
    assert member.ordered.wait(bool) == [m.AbortPlan(1)]
    beats = member.session._inbox.heard_s
    wait_for(lambda: member.session._inbox.heard_s > beats, DEADLINE_S, "a sign of life")
    assert member.session.generation == 3


def test_patience_ends(cast: Cast) -> None:
    master = cast(StandIn(1))
    member = cast(Member(master.place, Patience(silence_s=60.0, master_s=0.3, beat_s=0.02)))
    member.welcome()
    member.place = None
    master.die()
    error = member.end()
    assert isinstance(error, PeerUnavailableError) and "no job master for 0.3 s" in str(error)


def test_master_that_hangs_is_left_for_a_newer_one_only(cast: Cast) -> None:
    hanging = cast(Hanging())
    member = cast(Member(hanging.place, Patience(silence_s=0.2, master_s=60.0, beat_s=0.02)))
    member.welcome()
    member.looked.wait(lambda looks: len(looks) >= 3)
    assert len(hanging.attached.items) == 1 and member.ended.items == []
    newer = cast(StandIn(2))
    member.place = newer.place
    newer.registered()
    assert len(hanging.attached.items) == 1


def test_member_that_hears_nothing_at_all_ends_with_its_patience(cast: Cast) -> None:
    hanging = cast(Hanging())
    member = cast(Member(hanging.place, Patience(silence_s=0.1, master_s=0.3, beat_s=0.02)))
    assert isinstance(member.end(), PeerUnavailableError)


def test_quiet_master_and_quiet_member_still_hear_of_each_other(cast: Cast) -> None:
    time_s, asked = [0.0], Gathered()

    def now() -> float:
        asked.add(time_s[0])
        return time_s[0]

    master = cast(StandIn(1, now=now))
    member = cast(Member(master.place, Patience(silence_s=0.3, master_s=60.0, beat_s=0.02)))
    member.welcome()
    for quarter in range(12):
        time_s[0] = quarter / 4
        assert master.sessions.silent(3.0) == []
    time_s[0] = 3.5
    # Each beat of the member is noted with the time; nothing but beats is said.
    asked.wait(lambda times: times.count(3.5) >= 20)
    assert master.sessions.silent(3.0) == []
    assert [type(event) for event in master.heard.items] == [e.MemberRegistered]
    assert member.looked.items == []


def test_member_that_its_master_has_not_named_yet_is_heard_and_loses_no_report(cast: Cast) -> None:
    time_s, asked = [0.0], Gathered()

    def now() -> float:
        asked.add(time_s[0])
        return time_s[0]

    member = outlived(cast)
    second = cast(StandIn(2, judges=False, now=now))
    second.sessions.expect(["container-1"])
    member.place = second.place
    second.registered()
    member.session.report(clock_report(1))
    for quarter in range(40):
        time_s[0] = quarter / 4
        # Beats of the member; the question comes after them.
        asked.wait(lambda times, at=time_s[0]: times.count(at) >= 3)
        assert second.sessions.silent(3.0) == []
    second.sessions.name("container-1", "worker-1")
    member.session.report(clock_report(2))
    assert second.reports(3) == [clock_report(0), clock_report(1), clock_report(2)]


def test_member_that_the_job_does_not_know_is_told_to_end_and_does(cast: Cast) -> None:
    member = outlived(cast)
    second = cast(StandIn(2, known=()))
    member.place = second.place
    assert member.end() is None
    assert member.ordered.items == [m.Shutdown("the job does not know this process")]
    # Nothing that it said again counts.
    assert [type(event) for event in second.heard.items] == [e.MemberRegistered]


def test_nothing_counts_that_was_said_before_a_member_was_sent_away(cast: Cast) -> None:
    master = cast(StandIn(1, judges=False))
    member = cast(Member(master.place))
    member.session.report(clock_report(0))
    master.registered()
    master.sessions.dismiss("container-1", "the job does not know this process")
    assert member.end() is None
    master.sessions.name("container-1", "worker-1")
    assert [type(event) for event in master.heard.items] == [e.MemberRegistered]


def test_lost_members_words_do_not_count_any_more(cast: Cast) -> None:
    master = cast(StandIn(1))
    member = cast(Member(master.place))
    member.welcome()
    member.session.report(clock_report(0))
    master.reports(1)
    master.sessions.dismiss("container-1", "declared lost")
    member.session.report(clock_report(1))
    assert member.end() is None
    assert member.ordered.items == [m.Shutdown("declared lost")]
    assert master.reports(1) == [clock_report(0)]


def test_a_process_that_is_there_although_its_container_has_ended_is_told_to_end(cast: Cast) -> None:
    """The process that started it was lost, and no other one ends it."""
    master = cast(StandIn(1))
    member = cast(Member(master.place))
    member.welcome()
    member.session.report(clock_report(0))
    master.reports(1)
    master.sessions.forget("container-1")
    assert member.end() is None
    assert member.ordered.items == [m.Shutdown("its container has ended")]


#: A process with a session that lives until it is told to end.
_PROCESS = """
import sys, threading
from eps.core.types import Address
from eps.net.control.finder import MasterPlace
from eps.net.control.session import MemberSession

address, over = sys.argv[1], threading.Event()
session = MemberSession(address, "container-1", Address("127.0.0.1", 1), 7, find=lambda: MasterPlace(address, 1))
session.open(lambda order: over.set(), lambda error: over.set())()
over.wait()
"""


@pytest.mark.parametrize("stream_breaks", [False, True])
def test_process_that_hung_and_was_given_up_ends_itself_when_it_wakes(cast: Cast, stream_breaks: bool) -> None:
    time_s = [0.0]
    known = ["container-1"]
    master = cast(StandIn(1, known, now=lambda: time_s[0]))
    process = subprocess.Popen([sys.executable, "-c", _PROCESS, master.place.address])
    try:
        master.registered()
        os.kill(process.pid, signal.SIGSTOP)
        # Beats that were on their way have come when the kernel says that it has stopped.
        os.waitpid(process.pid, os.WUNTRACED)
        assert master.sessions.silent(3.0) == []
        for quarter in range(4, 80):
            time_s[0] = quarter / 4
            lost = master.sessions.silent(3.0)
            if lost:
                break
        assert lost == [("container-1", "said nothing for 3 s")]
        known.clear()
        if stream_breaks:
            master.sessions.close()
        else:
            master.sessions.dismiss("container-1", "declared lost")
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


def test_shutdown_does_not_wait_for_an_order_that_hangs(cast: Cast) -> None:
    master = cast(StandIn(1))
    member = cast(Member(master.place))
    begun, go_on = threading.Event(), threading.Event()

    def obey(order: m.Order) -> None:
        if isinstance(order, m.AbortPlan):
            begun.set()
            go_on.wait(DEADLINE_S)
        member.ordered.add(order)

    member.on_order = obey
    member.welcome()
    master.sessions.send("worker-1", m.AbortPlan(1))
    assert begun.wait(DEADLINE_S)
    master.sessions.send("worker-1", m.Shutdown("enough"))
    assert member.ordered.wait(bool) == [m.Shutdown("enough")]
    go_on.set()


def test_session_without_a_way_to_find_the_next_master_ends_with_its_stream(cast: Cast) -> None:
    master = cast(StandIn(1))
    ended = Gathered()
    session = MemberSession(master.place.address, "container-1", Address("127.0.0.1", 1), 7)
    session.open(lambda order: None, ended.add)()
    master.die()
    (error,) = ended.wait(bool)
    assert isinstance(error, PeerUnavailableError)
    session.close()
