"""The division of containers: as good as trying every division, and fast."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from random import Random

import pytest

from hscheduler.core.division import Need, divide
from hscheduler.core.speed import Curve


def all_divisions(needs: list[Need], containers: int) -> list[tuple[int, ...]]:
    ranges = [range(need.least, min(need.most, containers) + 1) for need in needs]
    return [sizes for sizes in product(*ranges) if sum(sizes) <= containers]


def random_needs(draw: Random, number: int) -> list[Need]:
    return [
        Need(
            draw.uniform(1, 500),
            Curve(draw.uniform(0, 0.2), draw.uniform(0.1, 2.0)).seconds,
            least := draw.choice([1, 1, 1, 2]),
            least + draw.choice([0, 3, 50]),
        )
        for _ in range(number)
    ]


def last_s(needs: Sequence[Need], sizes: Sequence[int]) -> float:
    return max(need.ends_s(size) for need, size in zip(needs, sizes, strict=True))


def test_no_division_ends_sooner() -> None:
    for seed in range(150):
        draw = Random(seed)
        needs = random_needs(draw, draw.randint(1, 4))
        containers = sum(need.least for need in needs) + draw.randint(0, 6)
        found = divide(needs, containers)
        best = min(last_s(needs, sizes) for sizes in all_divisions(needs, containers))
        # The last job may forgo a container that is worth less than noise.
        assert last_s(needs, found) <= best * 1.01, (seed, found)
        assert sum(found) <= containers
        assert all(need.least <= size <= need.most for need, size in zip(needs, found, strict=True))


def test_equal_jobs_get_equal_shares() -> None:
    need = Need(100, Curve(0.03, 0.97).seconds)
    assert sorted(divide([need] * 3, 16)) == [5, 5, 6]
    assert divide([need], 16) == [16]
    assert divide([need] * 16, 16) == [1] * 16


def test_more_iterations_get_more_containers() -> None:
    curve = Curve(0.01, 0.99).seconds
    assert divide([Need(300, curve), Need(100, curve)], 16) == [12, 4]


def test_what_helps_nobody_stays_free() -> None:
    assert divide([Need(100, Curve(0.2, 0.8, 0.05).seconds)], 16) == [4]
    assert divide([Need(100, Curve(1.0, 0.0).seconds), Need(100, Curve(0.0, 1.0).seconds)], 9) == [1, 8]


def test_a_plateau_is_crossed() -> None:
    """With eight splits, five to seven workers are as slow as four."""
    need = Need(100, lambda size: float(-(-8 // size)))
    assert divide([need], 8) == [8]
    assert divide([need], 7) == [4]


@pytest.mark.parametrize(("jobs", "containers"), [(1000, 1024), (100, 1024), (1000, 4096)])
def test_a_large_cluster_is_divided_in_milliseconds(jobs: int, containers: int) -> None:
    draw = Random(1)
    needs = [Need(draw.uniform(1, 900), Curve(0.03, 0.97).seconds) for _ in range(jobs)]
    took_s = []
    for _ in range(5):
        # Processor time: other processes on this machine do not count.
        began_s = time.process_time()
        divide(needs, containers)
        took_s.append(time.process_time() - began_s)
    assert min(took_s) < 0.1
    print(jobs, containers, min(took_s))
