"""The size of a job alone: wanted, held, lent, pending, and the start of a gang."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from eps.core import events as e
from eps.core.members import Member, MemberPhase, Members, seat_of
from eps.core.reconfig import Change, Operation, Plan, Purpose
from eps.core.size import (
    GANG_LONGEST_S,
    GANG_SPREAD,
    START_PATIENCE_S,
    START_TIMEOUT_S,
    Borrower,
    Size,
    StartStep,
    Startup,
)
from eps.core.types import Address, Role, Team, Tier
from tests.tiers import rotating

W, S = Role.WORKER, Role.SERVER
ADD = {W: Operation.ADD_WORKERS, S: Operation.ADD_SERVERS}
REMOVE = {W: Operation.REMOVE_WORKERS, S: Operation.REMOVE_SERVERS}


def names(role: Role, number: int) -> Team:
    return Team.of(role, [f"{role}-{i}" for i in range(number)])


def added(role: Role, number: int, purpose: Purpose = Purpose.ASKED) -> Plan:
    return Plan(1, "", Change(ADD[role], number), purpose=purpose, coming=names(role, number))


def removed(role: Role, number: int, purpose: Purpose = Purpose.ASKED) -> Plan:
    return Plan(1, "", Change(REMOVE[role], number), purpose=purpose, going=names(role, number))


def test_what_crashed_is_pending_and_what_others_are_to_get_is_lent() -> None:
    size = Size(3, 2)
    size.taken([W], {W: 2, S: 2}, for_others=True, lost=False)

    assert size.pending({W: 1, S: 2}) == {W: 1, S: 0} and size.lent[Borrower.OTHERS] == {W: 1, S: 0}
    assert size.lacks_room and size.to_regain({W: 9, S: 9}) == (W, 1)


def test_a_managed_job_wants_what_it_is_left_but_never_none() -> None:
    size = Size(2, 1, managed=True)
    size.taken([W], {W: 1, S: 1}, for_others=True, lost=True)
    size.taken([W], {W: 0, S: 1}, for_others=True, lost=True)
    drain = Plan(1, "", Change(Operation.DRAIN, 1), purpose=Purpose.DRAIN, going=names(S, 1), coming=names(S, 1))
    size.committed(drain, {W: 0, S: 1})

    assert size.wanted == {W: 1, S: 1} and not size.lacks_room and size.pending({W: 0, S: 1}) == {W: 1, S: 0}


def test_one_role_is_asked_for_at_a_time_as_far_as_it_fits() -> None:
    size = Size(4, 3)
    for role in (W, W, S):
        size.taken([role], {W: 2, S: 2}, for_others=True, lost=False)

    found = [size.to_regain(fits) for fits in ({W: 9, S: 9}, {W: 1, S: 9}, {W: 0, S: 9}, {S: 9}, {})]
    assert found == [(W, 2), (W, 1), (S, 1), (S, 1), None]


def test_the_size_to_resume_with_is_what_users_asked_for() -> None:
    size = Size(3, 2)
    size.committed(removed(W, 1), {W: 2, S: 2})
    size.taken([S], {W: 2, S: 1}, for_others=True, lost=False)
    waiting = [added(S, 2), removed(W, 1), added(W, 1, Purpose.REPLACE), Plan(2, "", Change(Operation.FOLLOW, 1))]

    assert size.asked([]) == {W: 2, S: 2} and size.asked(waiting) == {W: 1, S: 4}


class Walk:
    """A job to which members come and from which they go, at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.held = {W: 4, S: 3}
        self.size = Size(4, 3, managed=seed % 4 == 0)

    def change(self, role: Role, by: int, plan: Callable[..., Plan], purpose: Purpose) -> None:
        self.held[role] += by
        self.size.committed(plan(role, abs(by), purpose), self.held)

    def take(self, role: Role, *, lost: bool) -> None:
        self.size.taken([role], self.held, for_others=self.random.random() < 0.5, lost=lost)

    def go(self) -> None:
        role, number = self.random.choice(list(Role)), self.random.randint(1, 3)
        fewer = min(number, self.held[role] - 1)
        match self.random.choice(("ask", "remove", "replace", "regain", "crash", "evict", "drain")):
            case "ask":
                self.change(role, number, added, Purpose.ASKED)
            case "remove" if fewer:
                self.change(role, -fewer, removed, Purpose.ASKED)
            case "replace" if pending := self.size.pending(self.held)[role]:
                self.change(role, pending, added, Purpose.REPLACE)
            case "regain" if regain := self.size.to_regain({W: 9, S: 9}):
                self.change(regain[0], self.random.randint(1, regain[1]), added, Purpose.REGAIN)
            case "crash":
                self.held[role] -= fewer
            case "evict" if fewer:
                self.held[role] -= 1
                self.take(role, lost=True)
            case "drain" if fewer:
                self.change(role, -1, removed, Purpose.DRAIN)
                self.take(role, lost=False)


def test_wanted_is_held_and_lent_and_pending_whatever_happens() -> None:
    for seed in rotating(200):
        walk = Walk(seed)
        for _ in range(60):
            walk.go()
            walk.size.validate(walk.held)


# ---- the start


def members(granted: tuple[int, int], at_s: float = 0.0) -> list[Member]:
    """Return four workers and two servers that were asked for at a time, and as many granted as is said."""
    return [
        Member(
            f"{role}-{rank}",
            f"c-{role}-{rank}",
            frozenset({role}),
            rank,
            phase=MemberPhase.GRANTED if rank <= number else MemberPhase.REQUESTED,
            asked_s=at_s,
            granted_s=at_s if rank <= number else 0.0,
        )
        for role, wanted, number in ((W, 4, granted[0]), (S, 2, granted[1]))
        for rank in range(1, wanted + 1)
    ]


def startup(*, managed: bool = False, seed: str = "") -> Startup:
    return Startup({W: 4, S: 2}, managed=managed, seed=seed)


def look(start: Startup, granted: tuple[int, int], now_s: float, *, silent: bool = False) -> StartStep:
    """Ask what a job does that has requested, and been granted, all that it has at 0 s."""
    step, why = start.step(members(granted), silent, now_s)
    start.validate()
    assert bool(why) == (step is StartStep.FAIL)
    return step


@pytest.mark.parametrize(
    ("granted", "running", "step"),
    [
        (4, 4, StartStep.WAIT),
        (4, 2, StartStep.BEGIN),
        # The others are starting.
        (4, 1, StartStep.WAIT),
        (3, 1, StartStep.GIVE_BACK),
        (3, 0, StartStep.WAIT),
    ],
)
def test_a_host_counts_for_a_start_once_its_process_has_registered(granted: int, running: int, step: StartStep) -> None:
    """YARN grants opportunistic containers that wait on their nodes."""
    found, start = Members(), Startup({W: 4, S: 1})
    for _ in range(4):
        found.request_host(Tier.TRANSIENT, 0.0)
    for number, container_id in enumerate(found.hosts):
        if number < granted:
            found.launched(container_id, 100 + number, 0.0)
        for role in Role if number < running else ():
            seat = seat_of(container_id, role)
            found.registered(e.MemberRegistered(seat, Address(seat, 1), 100 + number), 1, 0.0)
    assert start.step(list(found.by_name.values()), False, START_TIMEOUT_S)[0] is step


@pytest.mark.parametrize(
    ("granted", "step"),
    [
        ((4, 2), StartStep.WAIT),
        ((2, 1), StartStep.BEGIN),
        ((3, 2), StartStep.BEGIN),
        ((1, 2), StartStep.GIVE_BACK),
        ((4, 0), StartStep.GIVE_BACK),
        ((0, 0), StartStep.WAIT),
    ],
)
def test_what_a_job_does_that_was_granted_so_much_and_nothing_more(granted: tuple[int, int], step: StartStep) -> None:
    assert look(startup(), granted, START_TIMEOUT_S - 0.1) is StartStep.WAIT
    assert look(startup(), granted, START_TIMEOUT_S) is step
    assert look(startup(managed=True), granted, 100 * START_TIMEOUT_S) is StartStep.WAIT


def test_a_member_that_was_started_and_does_not_register_fails_the_start() -> None:
    first = members((4, 2))
    first[1].phase = MemberPhase.LAUNCHED

    assert startup().step(first, False, START_PATIENCE_S - 0.1)[0] is not StartStep.FAIL
    assert startup().step(first, False, START_PATIENCE_S) == (
        StartStep.FAIL,
        f"worker-2 did not register within {START_PATIENCE_S:g} s",
    )


def test_a_resource_manager_that_does_not_answer_does_not_count_as_one_that_grants_nothing() -> None:
    start = startup()
    assert look(start, (2, 1), 10.0, silent=True) is StartStep.WAIT
    assert look(start, (2, 1), START_TIMEOUT_S + 9.0) is StartStep.WAIT
    assert look(start, (2, 1), START_TIMEOUT_S + 10.0) is StartStep.BEGIN


def test_a_gang_gives_back_waits_longer_each_time_and_asks_for_the_least() -> None:
    start, now_s, asked_s = startup(seed="a job"), 0.0, 0.0
    assert start.first() == {W: 4, S: 2}
    for number in range(1, 8):
        while start.step(members((1, 0), asked_s), False, now_s)[0] is StartStep.WAIT:
            now_s += 0.5
        gave_back_s = now_s
        again = f"{number} time{'s' * (number > 1)} so far"
        assert start.pause_left_s(now_s) is not None and again in start.waits_for([], now_s)
        while (step := start.step([], False, now_s)[0]) is StartStep.WAIT:
            now_s += 0.5
        assert step is StartStep.ASK and start.pause_left_s(now_s) is None and start.first() == {W: 2, S: 1}
        pause_s = min(START_TIMEOUT_S * 2 ** (number - 1), GANG_LONGEST_S)
        assert GANG_SPREAD[0] * pause_s - 1 <= now_s - gave_back_s <= GANG_SPREAD[1] * pause_s + 1
        asked_s = now_s


def test_gangs_wait_differently_long() -> None:
    waits = []
    for seed in rotating(20):
        start = startup(seed=f"job {seed}")
        assert look(start, (1, 0), START_TIMEOUT_S) is StartStep.GIVE_BACK
        waits.append(start.pause_left_s(START_TIMEOUT_S))

    assert len(set(waits)) == 20


def test_a_job_that_begins_short_has_lent_the_rest() -> None:
    size = Size(5, 2)
    size.begun({W: 2, S: 2})

    assert size.lent[Borrower.START] == {W: 3, S: 0} and size.pending({W: 2, S: 2}) == {W: 0, S: 0}
    size.settle({W: 4, S: 2})
    assert size.lent[Borrower.START][W] == 1


# ---- what cannot be


@pytest.mark.parametrize("break_it", ["none is wanted", "more are held than wanted", "less than none is lent"])
def test_validate_finds_a_size_that_cannot_be(break_it: str) -> None:
    size, held = Size(3, 2), {W: 3, S: 2}
    size.validate(held)
    match break_it:
        case "none is wanted":
            size.wanted[S], held[S] = 0, 0
        case "more are held than wanted":
            held[W] = 4
        case "less than none is lent":
            size.lent[Borrower.OTHERS][W] = -1
    with pytest.raises(AssertionError):
        size.validate(held)


def test_validate_finds_a_start_that_waits_and_gave_nothing_back() -> None:
    start = startup()
    start._asks_again_s = 1.0
    with pytest.raises(AssertionError):
        start.validate()
