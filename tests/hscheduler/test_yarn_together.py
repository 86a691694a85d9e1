"""Many masters are asked at once, and the slow ones do not make the plan late."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from hscheduler.yarn.endpoint import planner_with
from hscheduler.yarn.facts import Facts
from hscheduler.yarn.snapshot import Application
from hscheduler.yarn.together import AT_ONCE, AskedTogether
from tests.hscheduler.yarn_world import container, facts, running, snapshot, waiting

#: Longer than any test: who waits for it, waits in vain.
DEADLINE_S = 30.0


class Masters:
    """Job masters of which some hang until they are let go."""

    def __init__(self) -> None:
        self.hanging: set[str] = set()
        self.asked: list[str] = []
        self.go = threading.Event()

    def of(self, application: Application) -> Facts | None:
        """See :class:`hscheduler.yarn.facts.JobFacts`."""
        self.asked.append(application.application_id)
        if application.application_id in self.hanging:
            self.go.wait(DEADLINE_S)
        return facts(application)


@pytest.fixture
def masters() -> Iterator[Masters]:
    made = Masters()
    yield made
    made.go.set()


def test_a_plan_does_not_wait_for_masters_that_hang(masters: Masters) -> None:
    hang = [running(number, {}) for number in range(3, 8)]
    giver = running(1, {"n1:1": 4})
    masters.hanging = {job.application_id for job in hang}
    began_s = time.monotonic()
    plan = planner_with(masters)(snapshot(*hang, giver, waiting(2)))
    assert time.monotonic() - began_s < DEADLINE_S / 2
    assert plan.takes == (container(1, 5),)


def test_who_hangs_is_not_asked_again_before_it_has_answered(masters: Masters) -> None:
    slow, quick = running(1, {}), running(2, {})
    masters.hanging = {slow.application_id}
    ask = AskedTogether(masters.of, round_s=0.2)
    for _ in range(3):
        assert ask([slow, quick]).keys() == {quick.application_id}
    assert masters.asked.count(slow.application_id) == 1
    masters.go.set()
    deadline_s = time.monotonic() + DEADLINE_S
    while ask([slow, quick]).keys() != {slow.application_id, quick.application_id}:
        assert time.monotonic() < deadline_s
    ask.close()


def test_who_was_late_goes_last(masters: Masters) -> None:
    """As many as are asked at once hang: one that answers is not asked in that round, and in the next one first."""
    hang = [running(number, {}) for number in range(1, AT_ONCE + 1)]
    late, quick = running(AT_ONCE + 1, {}), running(AT_ONCE + 2, {})
    masters.hanging = {job.application_id for job in hang}
    ask = AskedTogether(masters.of, round_s=0.2)
    assert not ask([*hang, late])
    masters.go.set()
    deadline_s = time.monotonic() + DEADLINE_S
    while not (found := ask([late, quick])):
        assert time.monotonic() < deadline_s
    assert quick.application_id in found
    assert masters.asked.index(quick.application_id) < masters.asked.index(late.application_id)
    ask.close()
