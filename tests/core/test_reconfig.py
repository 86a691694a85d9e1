"""The life of a plan: the table is the truth."""

from __future__ import annotations

from random import Random

import pytest

from eps.core.reconfig import BARRIERS, ENDED, TRANSITIONS, UNCOMMITTED, Change, Operation, Phase, Plan, diagram
from eps.errors import IllegalTransitionError
from tests.tiers import rotating


def plan_in(phase: Phase) -> Plan:
    return Plan(1, "request", Change(Operation.ADD_WORKERS, 1), phase=phase)


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("following", list(Phase))
def test_plan_takes_exactly_the_steps_of_the_table(phase: Phase, following: Phase) -> None:
    plan = plan_in(phase)
    if following in TRANSITIONS[phase]:
        plan.enter(following, 1.5)
        assert (plan.phase, plan.reached_s[following]) == (following, 1.5)
    else:
        with pytest.raises(IllegalTransitionError, match=f"cannot go from {phase} to {following}"):
            plan.enter(following, 1.5)
        assert plan.phase is phase


def test_every_walk_through_the_table_ends_and_no_committed_plan_is_aborted() -> None:
    for seed in rotating(200):
        random, plan = Random(seed), plan_in(Phase.QUEUED)
        for step in range(20):
            if plan.ended:
                break
            plan.enter(random.choice(TRANSITIONS[plan.phase]), float(step))
        assert plan.phase in ENDED
        assert (Phase.COMMITTED in plan.reached_s) == (plan.phase is Phase.RELEASED)


def test_plan_may_be_aborted_until_it_is_committed_and_never_after() -> None:
    assert {p for p in Phase if Phase.ABORTED in TRANSITIONS[p]} == set(UNCOMMITTED)
    assert {p for p in Phase if not TRANSITIONS[p]} == set(ENDED)
    assert [plan_in(p).undecided for p in (Phase.COPIED, Phase.COMMITTED)] == [True, False]


def test_illegal_transition_tells_the_story() -> None:
    plan = plan_in(Phase.QUEUED)
    plan.enter(Phase.PROPOSED, 1.0)
    plan.enter(Phase.ABORTED, 2.0)

    with pytest.raises(IllegalTransitionError) as caught:
        plan.enter(Phase.PREPARED, 3.0)

    assert caught.value.story == ("proposed at 1.000 s", "aborted at 2.000 s")


@pytest.mark.parametrize("adds", [True, False])
def test_every_plan_passes_each_later_barrier_of_the_paper_once(adds: bool) -> None:
    """B1 of an addition is passed inside a phase, when the containers are up."""
    passed = sorted(BARRIERS[adds].values())
    assert passed == (["B2", "B3", "B4"] if adds else ["B1", "B2", "B3", "B4"])


def test_diagram_has_a_line_for_each_phase() -> None:
    lines = diagram().splitlines()

    assert [line.split()[0] for line in lines] == [str(p) for p in TRANSITIONS]
    assert lines[-3].split()[:3] == ["switched", "->", "released"]
    assert "B4 (adding, Fig. 5), B4 (removing, Fig. 10)" in lines[-3]
