"""The same seed is the same schedule, and every schedule is one that can be played."""

from __future__ import annotations

from itertools import pairwise

import pytest

from eps.errors import ConfigError
from tests.tiers import rotating
from tools.chaos.schedule import NETWORK_KINDS, PLAIN_KINDS, Kind, draw, parse_kinds


def test_the_same_seed_is_the_same_schedule() -> None:
    assert draw(7, 20, 150) == draw(7, 20, 150)
    assert draw(7, 20, 150) != draw(8, 20, 150)


def test_events_come_in_order_and_leave_the_end_of_the_job_alone() -> None:
    for seed in rotating(50):
        events = draw(seed, 15, 150)
        assert len(events) == 15
        assert [event.clock for event in events] == sorted(event.clock for event in events)
        assert all(0 <= event.clock < 135 for event in events)


def test_every_kind_and_every_role_is_drawn_and_some_at_once() -> None:
    events = [event for seed in range(50) for event in draw(seed, 15, 150, tuple(Kind))]
    assert {event.kind for event in events} == set(Kind)
    assert {event.role for event in events} == {"worker", "server", "master", "supervisor"}
    assert any(a.clock == b.clock for a, b in pairwise(events))
    assert not [event for event in events if event.role == "master" and event.kind in (Kind.ADD, Kind.REMOVE)]
    assert all((event.kind is Kind.RESUME) == (event.role == "supervisor") for event in events)


def test_a_stop_is_a_breath_or_longer_than_the_deadline_or_for_good() -> None:
    stops = [event.lasts_s for seed in range(50) for event in draw(seed, 9, 90, (Kind.STOP,), member_timeout_s=2.0)]
    assert None in stops
    lasting = [lasts_s for lasts_s in stops if lasts_s is not None]
    assert min(lasting) < 1.0 and max(lasting) > 2.0
    outages = [event.lasts_s for event in draw(3, 9, 90, NETWORK_KINDS)]
    assert None not in outages


def test_an_eviction_is_of_a_worker_or_a_server_and_announced_some_time_before_or_none() -> None:
    evictions = [event for seed in range(20) for event in draw(seed, 9, 90, (Kind.EVICT,))]
    assert {event.role for event in evictions} == {"worker", "server"}
    notices_s = {event.lasts_s for event in evictions}
    assert None not in notices_s and 0.0 in notices_s and len(notices_s) > 2
    assert any(str(event).endswith(" in 10 s") for event in evictions)


def test_only_kinds_that_were_asked_for_are_drawn() -> None:
    assert {event.kind for event in draw(1, 50, 500, (Kind.KILL, Kind.ADD))} == {Kind.KILL, Kind.ADD}


@pytest.mark.parametrize(("events", "iterations", "kinds"), [(0, 100, PLAIN_KINDS), (1, 1, PLAIN_KINDS), (1, 100, ())])
def test_nothing_to_draw_is_refused(events: int, iterations: int, kinds: tuple[Kind, ...]) -> None:
    with pytest.raises(ConfigError):
        draw(1, events, iterations, kinds)


def test_kinds_are_parsed_and_unknown_ones_named() -> None:
    assert parse_kinds("kill, stop,kill") == (Kind.KILL, Kind.STOP)
    with pytest.raises(ConfigError, match="'explode'"):
        parse_kinds("kill,explode")
    with pytest.raises(ConfigError, match="at least one"):
        parse_kinds(" , ")


def test_an_event_reads_as_a_sentence() -> None:
    texts = [str(event) for event in draw(5, 30, 300)]
    assert any(text.endswith("for good") for text in texts) and any(" s" in text for text in texts)
