"""Many jobs are ended at once, by few threads."""

from __future__ import annotations

import threading

import pytest

from eps.spec.job_spec import JobSpec
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.live.scheduler import MOST_ENDED_AT_ONCE, LiveScheduler, LiveSettings, end_all
from tests.hscheduler.toy import nodes, request
from tests.hscheduler.world import FakeLive, World

TIMEOUT_S = 20.0


def test_jobs_are_ended_by_few_threads_even_if_one_fails() -> None:
    together = threading.Barrier(MOST_ENDED_AT_ONCE)
    ended, threads = list[int](), set[threading.Thread]()

    def end(number: int) -> None:
        threads.add(threading.current_thread())
        # The number of jobs that end at the same time.
        together.wait(TIMEOUT_S)
        ended.append(number)
        if number == 3:
            raise ZeroDivisionError("of all things")

    count = 3 * MOST_ENDED_AT_ONCE
    end_all([lambda number=number: end(number) for number in range(count)])  # type: ignore[misc]
    assert sorted(ended) == list(range(count))
    assert len(threads) == MOST_ENDED_AT_ONCE and not any(thread.is_alive() for thread in threads)


def test_without_jobs_there_is_nothing_to_end() -> None:
    before = threading.active_count()
    end_all([])
    assert threading.active_count() == before


def test_a_sweep_that_is_ended_plans_nothing_more_while_its_jobs_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeLive, "close", lambda self: self._say(e.JobEnded(self._job_id, Phase.KILLED)))
    seen: list[e.Command] = []
    scheduler = LiveScheduler(nodes(1), LiveSettings("static"), lambda at_s, event, commands: seen.extend(commands))
    for name in ("t1", "t2", "t3"):
        scheduler.submit(e.JobSubmitted(request(name)), JobSpec())
    scheduler.settle(TIMEOUT_S)
    before = len(seen)
    scheduler.close()
    assert [type(command) for command in seen[before:]] == [e.JobOver], "no job is started in its place"
