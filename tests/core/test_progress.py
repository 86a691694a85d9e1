"""Clocks that complete, horizons that are granted, and what a plan cost."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from eps.core.messages import SplitResult
from eps.core.progress import MIN_LOOKAHEAD_CLOCKS, ClockRecord, Progress, pause_and_slowdown
from eps.core.types import UNBOUNDED, CoreSettings
from tests.tiers import rotating


def settings(splits: int = 3, iterations: int = 10, staleness: int = 0, *, reproducible: bool = False) -> CoreSettings:
    return CoreSettings(splits, 2, iterations, staleness=staleness, reproducible=reproducible)


def results(*splits: int, loss: float = 1.0, evaluation: tuple[float, ...] = ()) -> tuple[SplitResult, ...]:
    return tuple(SplitResult(s, 2, loss + s, evaluation) for s in splits)


def test_clock_is_complete_when_every_split_is_reported() -> None:
    progress = Progress(settings())

    assert progress.add(0, results(2, 0), 1.0) == []
    (record,) = progress.add(0, results(1), 2.0)

    assert (record.clock, record.samples, record.loss_sum, record.completed_s) == (0, 6, 6.0, 2.0)
    assert record.loss == 1.0
    assert (progress.completed, progress.fastest) == (1, 0)


def test_result_that_is_known_or_late_changes_nothing() -> None:
    progress = Progress(settings())
    progress.add(0, results(0), 1.0)
    progress.add(0, results(0, loss=100.0), 1.0)
    (record,) = progress.add(0, results(1, 2), 1.0)

    assert record.loss_sum == 6.0
    assert progress.add(0, results(0, 1, 2), 2.0) == []
    assert progress.add(99, results(0, 1, 2), 2.0) == []
    assert (progress.completed, len(progress.history)) == (1, 1)


def test_clocks_complete_in_order_even_if_the_later_is_reported_first() -> None:
    progress = Progress(settings(staleness=UNBOUNDED))
    progress.add(1, results(0, 1, 2), 1.0)
    assert progress.completed == 0

    records = progress.add(0, results(0, 1, 2), 2.0)

    assert [r.clock for r in records] == [0, 1]


def test_next_clock_of_each_split_is_the_first_without_a_result() -> None:
    progress = Progress(settings(staleness=UNBOUNDED))
    progress.add(0, results(0, 1, 2), 1.0)
    for clock, splits in ((1, (0, 1)), (2, (0,)), (3, (1, 2))):
        progress.add(clock, results(*splits), 2.0)

    assert progress.next_clocks() == (3, 2, 1)


def test_sums_do_not_depend_on_who_reports_what_and_when() -> None:
    values = [SplitResult(s, 1, 0.1 * (s + 1) ** 3, (0.3 * s, 1.0 / (s + 3))) for s in range(7)]
    expected = None
    for seed in rotating(200):
        random, progress = Random(seed), Progress(settings(splits=7))
        shuffled = random.sample(values, 7)
        cut = random.randrange(8)
        records = progress.add(0, tuple(shuffled[:cut]), 1.0) + progress.add(0, tuple(shuffled[cut:]), 1.0)
        got = (records[0].loss_sum, records[0].evaluation)
        expected = expected or got
        assert got == expected, seed


def test_evaluation_is_summed_over_the_splits_that_have_one() -> None:
    progress = Progress(settings(splits=2))

    (record,) = progress.add(0, results(0, evaluation=(1.0, 2.0)) + results(1), 1.0)

    assert record.evaluation == (1.0, 2.0)


def test_measuring_clock_is_not_part_of_the_history() -> None:
    progress = Progress(settings(reproducible=True))

    (record,) = progress.add(-1, results(0, 1, 2), 1.0)

    assert record.clock == -1 and not progress.history and progress.completed == 0


def test_job_is_finished_when_the_final_parameters_are_measured() -> None:
    progress = Progress(settings(iterations=2))
    for clock in range(3):
        assert not progress.finished
        progress.add(clock, results(0, 1, 2), float(clock))
    assert progress.finished


def test_horizon_stays_ahead_of_the_fastest_and_ends_with_the_job() -> None:
    progress = Progress(settings(iterations=6))

    horizons = [progress.wanted_horizon(undecided=False)]
    for clock in range(6):
        progress.add(clock, results(0, 1, 2), 0.1 * clock)
        horizons.append(progress.wanted_horizon(undecided=False))

    assert horizons == [2, 3, 4, 5, 6, 6, 6]


def test_fast_iterations_are_granted_further_ahead() -> None:
    progress = Progress(settings(iterations=10_000))
    for clock in range(50):
        progress.add(clock, results(0, 1, 2), 0.001 * clock)

    assert progress.lookahead == 80
    assert Progress(settings()).lookahead == MIN_LOOKAHEAD_CLOCKS


def test_a_first_clock_that_computes_nothing_says_nothing_about_iterations() -> None:
    progress = Progress(settings(iterations=1000, reproducible=True))
    for clock, at_s in ((-1, 5.0), (0, 5.001)):
        progress.add(clock, results(0, 1, 2), at_s)
    assert progress.iteration_s == 0.0 and progress.lookahead == MIN_LOOKAHEAD_CLOCKS
    progress.add(1, results(0, 1, 2), 6.001)
    assert progress.iteration_s == pytest.approx(1.0) and progress.lookahead == 1


@pytest.mark.parametrize(
    ("iteration_s", "staleness", "usual", "hurried"),
    [(0.01, 0, 8, 8), (0.1, 0, 2, 1), (1.0, 0, 1, 1), (1.0, 3, 2, 2)],
)
def test_a_plan_commits_as_soon_as_long_iterations_let_it(
    iteration_s: float, staleness: int, usual: int, hurried: int
) -> None:
    """Under BSP the next clock is granted when this one begins; under SSP the fastest must not wait for it."""
    progress = Progress(settings(iterations=1000, staleness=staleness))
    for clock in range(50):
        progress.add(clock, results(0, 1, 2), iteration_s * clock)

    assert progress.wanted_horizon(undecided=False) - progress.completed == usual
    assert progress.wanted_horizon(undecided=False, hurried=True) - progress.completed == hurried


def test_last_iteration_is_held_back_while_a_change_is_undecided() -> None:
    progress = Progress(settings(iterations=6))
    for clock in range(5):
        progress.add(clock, results(0, 1, 2), 10.0 * clock)

    assert progress.wanted_horizon(undecided=True) == 4
    assert progress.wanted_horizon(undecided=False) == 6


def test_horizon_never_falls_before_the_first_clock() -> None:
    assert Progress(settings(iterations=1)).wanted_horizon(undecided=True) == 0
    assert Progress(settings(iterations=1, reproducible=True)).wanted_horizon(undecided=True) == -1


# ---- what a plan cost


def plain_cost(completed_s: list[float], begin_s: float, end_s: float, commit_clock: int | None) -> tuple[float, float]:
    """The definition, word by word."""
    intervals = list(pairwise(completed_s))
    during = [i for i, (start, stop) in enumerate(intervals) if stop > begin_s and start < end_s]
    if not during:
        return 0.0, 0.0
    before = sorted(stop - start for start, stop in intervals[max(0, during[0] - 20) : during[0]])
    after = sorted(stop - start for start, stop in intervals[during[-1] + 1 : during[-1] + 21])
    is_new = {i: commit_clock is not None and i + 1 >= commit_clock for i in during}
    own = sorted(intervals[i][1] - intervals[i][0] for i in during if not is_new[i])
    usual = [after or before or own if is_new[i] else before or own for i in during]
    excess = [
        intervals[i][1] - intervals[i][0] - (values[len(values) // 2] if values else 0.0)
        for i, values in zip(during, usual, strict=True)
    ]
    if intervals[during[0]][0] < begin_s:
        excess[0] = min(excess[0], intervals[during[0]][1] - begin_s)
    return max(0.0, max(excess)), max(0.0, sum(excess))


def test_pause_and_slowdown_are_what_their_definition_says() -> None:
    for seed in rotating(200):
        random, now_s, completed_s = Random(seed), 0.0, []
        for _ in range(random.randrange(60)):
            now_s += random.choice((0.1, 0.2, 0.5, 2.0))
            completed_s.append(now_s)
        begin_s = random.uniform(-1.0, now_s + 1.0)
        end_s = begin_s + random.uniform(0.01, 5.0)
        commit_clock = random.choice((None, random.randrange(60)))

        assert pause_and_slowdown(completed_s, begin_s, end_s, (), commit_clock) == pytest.approx(
            plain_cost(completed_s, begin_s, end_s, commit_clock)
        ), seed


def test_iterations_of_a_smaller_size_take_longer_which_is_no_pause() -> None:
    """Half of the workers leave from clock 4 on; the plan lives until clock 5."""
    completed_s = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0]

    assert pause_and_slowdown(completed_s, 3.5, 7.5, (), commit_clock=4) == (0.0, 0.0)
    stalled_s = [*completed_s[:5], *(at_s + 0.5 for at_s in completed_s[5:])]
    assert pause_and_slowdown(stalled_s, 3.5, 7.5, (), commit_clock=4) == (0.5, 0.5)


def test_a_growth_in_the_first_iterations_is_no_pause() -> None:
    completed_s = [1.0, 2.0, 2.5, 3.0, 3.5]

    assert pause_and_slowdown(completed_s, 0.2, 2.7, (), commit_clock=2) == (0.0, 0.0)
    assert pause_and_slowdown(completed_s[:3], 0.2, 2.7, (), commit_clock=2) == (0.0, 0.0)


def test_one_long_interval_is_the_pause() -> None:
    completed_s = [1.0, 2.0, 3.0, 4.0, 7.0, 8.0, 9.0]

    pause_s, slowdown_s = pause_and_slowdown(completed_s, begin_s=4.5, end_s=7.5)

    assert (pause_s, slowdown_s) == (2.0, 2.0)


def test_an_outage_before_a_plan_is_no_pause_of_it() -> None:
    """A change requested while the cluster is unreachable is processed when it answers again."""
    completed_s = [1.0, 2.0, 3.0, 4.0, 104.2, 105.2, 106.3]

    pause_s, slowdown_s = pause_and_slowdown(completed_s, begin_s=104.0, end_s=106.0)

    assert pause_s == pytest.approx(0.2) and slowdown_s == pytest.approx(0.3)


def test_faster_iterations_afterwards_make_up_for_slow_ones_and_never_count_below_zero() -> None:
    completed_s = [0.0, 1.0, 2.0, 3.0, 3.5, 4.0, 5.2]

    pause_s, slowdown_s = pause_and_slowdown(completed_s, begin_s=3.1, end_s=5.0)

    assert pause_s == pytest.approx(0.2)
    assert slowdown_s == 0.0


def test_going_back_after_a_change_costs_the_change_nothing() -> None:
    """The iterations during the change are gone; they were done again later."""
    completed_s = [1.0, 2.0, 3.0, 4.0, 30.0, 31.0]
    assert pause_and_slowdown(completed_s, 4.2, 5.0) == pytest.approx((25.0, 25.0))
    assert pause_and_slowdown(completed_s, 4.2, 5.0, [20.0]) == (0.0, 0.0)
    assert pause_and_slowdown(completed_s, 29.0, 30.5, [20.0]) == pytest.approx((1.0, 1.0)), "it began later"


def test_plan_before_the_first_iteration_cost_nothing() -> None:
    assert pause_and_slowdown([], 0.0, 1.0) == (0.0, 0.0)
    assert pause_and_slowdown([5.0], 0.0, 1.0) == (0.0, 0.0)


def test_a_clock_is_complete_when_its_last_result_was_computed_not_when_the_report_arrived() -> None:
    progress = Progress(settings())
    progress.add(0, results(0, 1), 5.0)
    (first,) = progress.add(0, results(2), 4.0)
    progress.add(1, results(0, 1), 4.5)
    (second,) = progress.add(1, results(2), 4.7)
    assert (first.completed_s, second.completed_s) == (5.0, 5.0)


@pytest.mark.parametrize("break_it", ["history", "old result", "horizon", "fastest"])
def test_validate_finds_clocks_that_cannot_be(break_it: str) -> None:
    progress = Progress(settings())
    progress.add(0, results(0, 1, 2), 1.0)
    progress.add(1, results(0), 2.0)
    progress.validate()
    match break_it:
        case "history":
            progress.history.truncate(0)
        case "old result":
            progress.completed = 2
            progress.history.append(ClockRecord(1, 1, 1.0, (), 2.0))
        case "horizon":
            progress.horizon = 11
        case "fastest":
            progress.fastest = -1
    with pytest.raises(AssertionError):
        progress.validate()
