from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pytest

from eps.errors import ConfigError
from eps.ml.batches import batch_share, check_batch_size, draw


def shares_at(batch: int, sizes: Sequence[int], clock: int) -> list[int]:
    bounds = list(accumulate(sizes, initial=0))
    return [batch_share(batch, bounds, split, clock) for split in range(len(sizes))]


def test_shares_add_up_to_the_batch_and_are_within_one_row_of_the_quota() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        sizes = [int(size) for size in rng.integers(0, 50, size=int(rng.integers(1, 20)))]
        total = sum(sizes)
        if total == 0:
            continue
        batch = int(rng.integers(1, total + 1))
        shares = shares_at(batch, sizes, int(rng.integers(0, 1000)))
        assert sum(shares) == batch
        for share, size in zip(shares, sizes, strict=True):
            assert 0 <= share <= size and abs(share - batch * size / total) < 1


@pytest.mark.parametrize(("batch", "sizes"), [(8, [100] * 12), (32, [100] * 12), (5, [1, 9, 10]), (1, [3, 4])])
def test_each_split_is_drawn_in_proportion_to_its_rows(batch: int, sizes: list[int]) -> None:
    drawn = np.sum([shares_at(batch, sizes, clock) for clock in range(1000)], axis=0)
    assert drawn == pytest.approx(1000 * batch * np.array(sizes) / sum(sizes), rel=0.01)


def test_a_full_batch_is_all_rows() -> None:
    for clock in range(10):
        assert shares_at(8, (3, 0, 5), clock) == [3, 0, 5]


@pytest.mark.parametrize("batch", [0, -1, 31])
def test_batches_below_one_or_above_the_rows_are_refused(batch: int) -> None:
    with pytest.raises(ConfigError, match=rf"{batch}, .*'full' .* 1 \.\. 30"):
        check_batch_size(batch, 30)


def test_rows_are_sorted_unique_and_a_function_of_seed_split_and_clock() -> None:
    seen = set()
    for seed, split, clock in [(1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0)]:
        rows = draw(seed, split, clock, 1000, 50)
        assert rows.dtype == np.int64 and len(rows) == 50
        assert np.all(np.diff(rows) > 0) and 0 <= rows[0] and rows[-1] < 1000
        assert np.array_equal(rows, draw(seed, split, clock, 1000, 50))
        seen.add(rows.tobytes())
    assert len(seen) == 4


def test_every_row_is_drawn_about_equally_often() -> None:
    counts = np.bincount(np.concatenate([draw(0, 3, clock, 40, 10) for clock in range(2000)]), minlength=40)
    assert counts.min() > 400 and counts.max() < 600


def test_a_whole_split_is_drawn_in_order_and_nothing_from_an_empty_share() -> None:
    assert draw(0, 0, 0, 5, 5).tolist() == [0, 1, 2, 3, 4]
    assert draw(0, 0, 0, 5, 0).size == 0
    with pytest.raises(ConfigError, match="6 rows, but has 5"):
        draw(0, 0, 0, 5, 6)
