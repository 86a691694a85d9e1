"""The measured speed of a job: curves through few and noisy points, and what is assumed of unknown sizes."""

from __future__ import annotations

from random import Random

import pytest

from hscheduler.core.jobs import Job
from hscheduler.core.speed import ASSUMED_CHANGE_S, KEPT_JOBS, KEPT_SWEEPS, PRIOR, Curve, Speeds, fit, with_prior
from tests.hscheduler.toy import request

TRUE = Curve(0.05, 0.9, 0.002)


def job(name: str, containers: int = 1, sweep: str = "sweep") -> Job:
    asked = request(name, containers, 1, sweep=sweep, most_workers=64)
    return Job(asked, int(name[1:]), workers=containers)


def resized(one: Job, containers: int) -> Job:
    one.workers = containers
    return one


def test_exact_points_give_the_exact_curve() -> None:
    found = fit([(size, TRUE.seconds(size), 1.0) for size in (1, 2, 5, 16)])
    for size in range(1, 33):
        assert found.seconds(size) == pytest.approx(TRUE.seconds(size))


def test_no_term_of_a_fit_is_negative() -> None:
    draw = Random(0)
    for _ in range(200):
        points = [(size, draw.uniform(0.1, 2.0), 1.0) for size in draw.sample(range(1, 17), draw.randint(1, 5))]
        found = fit(points)
        assert min(found.serial_s, found.work_s, found.member_s) >= 0
        assert all(found.seconds(size) > 0 for size in range(1, 33))


def test_one_measured_size_keeps_the_shape_of_the_prior() -> None:
    found = with_prior([(4, 3 * PRIOR.seconds(4), 1.0)], PRIOR, 0.02)
    for size in range(1, 17):
        assert found.seconds(size) == pytest.approx(3 * PRIOR.seconds(size))


def test_a_job_that_nothing_is_known_of_follows_the_prior() -> None:
    speeds = Speeds()
    assert speeds.curve(job("a1")) == PRIOR
    assert speeds.largest("sweep") == 0


def test_two_durations_say_nothing_yet() -> None:
    speeds, one = Speeds(), job("a1")
    speeds.note(one, [5.0, 5.0])
    assert speeds.curve(one) == PRIOR
    speeds.note(one, [5.0])
    assert speeds.curve(one).seconds(1) == pytest.approx(5.0)
    assert speeds.largest("sweep") == 1


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
def test_a_noisy_curve_is_found_from_the_sizes_that_a_job_had(noise: float) -> None:
    for seed in range(20):
        draw, speeds, one = Random(seed), Speeds(), job("a1")
        for size in (1, 2, 4, 8):
            resized(one, size)
            speeds.note(one, [TRUE.seconds(size) * draw.lognormvariate(0, noise) for _ in range(10)])
        for size in (1, 2, 4, 8, 16):
            error = speeds.curve(one).seconds(size) / TRUE.seconds(size) - 1
            # Size 16 was not measured.
            most = 0.15 + 2 * noise if size == 16 else 0.05 + noise
            assert abs(error) < most, (seed, size, error)


def test_one_slow_iteration_does_not_matter() -> None:
    speeds, one = Speeds(), job("a1")
    for size in (1, 2, 4):
        speeds.note(resized(one, size), [*[TRUE.seconds(size)] * 9, 100.0])
    assert speeds.curve(one).seconds(4) == pytest.approx(TRUE.seconds(4), rel=0.05)


def test_the_other_jobs_of_a_sweep_are_a_prior_at_its_own_level() -> None:
    speeds, known, other = Speeds(), job("a1"), job("a2")
    for size in (1, 2, 4, 8):
        speeds.note(resized(known, size), [TRUE.seconds(size)] * 10)
    assert speeds.curve(other).seconds(8) == pytest.approx(TRUE.seconds(8), rel=0.05), "as fast as the others"
    speeds.note(other, [3 * TRUE.seconds(1)] * 10)
    for size in (1, 2, 4, 8):
        assert speeds.curve(other).seconds(size) == pytest.approx(3 * TRUE.seconds(size), rel=0.05)
    stranger = job("a3", sweep="another")
    assert speeds.curve(stranger) == PRIOR


def test_what_a_job_measured_itself_outweighs_the_sweep() -> None:
    speeds, known, flat = Speeds(), job("a1"), job("a2")
    for size in (1, 2, 4, 8):
        speeds.note(resized(known, size), [1 / size] * 10)
        speeds.note(resized(flat, size), [1.0] * 10)
    assert speeds.curve(flat).seconds(8) > 0.6
    assert speeds.curve(known).seconds(8) < 0.25


def test_the_seconds_of_a_change_follow_from_the_iterations_meanwhile() -> None:
    speeds, one = Speeds(), job("a1")
    assert speeds.change_s() == ASSUMED_CHANGE_S
    speeds.note(one, [0.25] * 10)
    one.iteration = 10
    speeds.begin_change(one)
    one.iteration = 18
    speeds.end_change(one)
    assert speeds.change_s() == pytest.approx(2.0)


def test_the_jobs_of_a_long_sweep_do_not_pile_up() -> None:
    speeds = Speeds()
    for number in range(500):
        one = job(f"a{number}", sweep=f"sweep-{number // 250}")
        speeds.note(one, [1.0] * 10)
        speeds.end(one)
    assert [len(jobs) for jobs in speeds._durations.values()] == [KEPT_JOBS, KEPT_JOBS]
    for number in range(500, 700):
        one = job(f"a{number}", sweep=f"sweep-{number}")
        speeds.note(one, [1.0] * 10)
        speeds.end(one)
    assert len(speeds._durations) == len(speeds._running) == len(speeds._largest) == KEPT_SWEEPS


def test_a_job_that_runs_keeps_what_it_measured() -> None:
    speeds, first = Speeds(), job("a0")
    for size, seconds in [(1, 4.0), (2, 2.0), (4, 1.0)]:
        speeds.note(resized(first, size), [seconds] * 10)
    curve = speeds.curve(first)
    for number in range(1, 500):
        one = job(f"a{number}")
        speeds.note(one, [0.5] * 10)
        speeds.end(one)
    assert speeds.curve(first).seconds(4) == pytest.approx(curve.seconds(4), rel=0.1)
