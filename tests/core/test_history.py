"""Measurements are kept in columns, and read back unchanged."""

from __future__ import annotations

import math
import sys

import pytest

from eps.core.progress import ClockHistory, ClockRecord
from eps.errors import StorageError

RECORDS = [
    ClockRecord(0, 7, 0.1 + 0.2, (1.5, -0.0), 0.25),
    ClockRecord(1, 7, math.inf, (), 0.5),
    ClockRecord(2, 0, 1e-300, (2.5, math.inf), 0.5),
    ClockRecord(3, 7, -1.0, (), 0.75),
]


def test_records_come_out_as_they_went_in() -> None:
    history = ClockHistory(RECORDS)
    assert list(history) == RECORDS == history[:] and len(history) == 4
    assert (history[0], history[-1], history[1:3]) == (RECORDS[0], RECORDS[3], RECORDS[1:3])
    assert list(history.completed_s) == [0.25, 0.5, 0.5, 0.75]
    assert not ClockHistory() and ClockHistory([]) == ClockHistory()


@pytest.mark.parametrize("clock", [4, -5])
def test_clock_that_is_not_there_is_an_error(clock: int) -> None:
    with pytest.raises(IndexError, match=f"clock {clock} of 4"):
        ClockHistory(RECORDS)[clock]


def test_only_the_next_clock_can_follow() -> None:
    with pytest.raises(ValueError, match=r"clock 2, .* clock 1"):
        ClockHistory([RECORDS[0], RECORDS[2]])


@pytest.mark.parametrize("clock", range(6))
def test_before_and_truncate_keep_the_clocks_before_one(clock: int) -> None:
    history = ClockHistory(RECORDS)
    before = history.before(clock)
    assert list(before) == RECORDS[:clock] and list(history) == RECORDS
    history.truncate(clock)
    assert history == before
    history.append(ClockRecord(len(history), 1, 2.0, (3.0,), 4.0))
    assert list(before) == RECORDS[:clock] and history[-1].evaluation == (3.0,)


def test_negative_clock_is_before_all() -> None:
    history = ClockHistory(RECORDS)
    assert not history.before(-1)
    history.truncate(-1)
    assert not history


@pytest.mark.parametrize(("clocks", "last"), [(4, 2), (3, 2), (2, 0), (1, 0), (0, None)])
def test_last_evaluated(clocks: int, last: int | None) -> None:
    assert ClockHistory(RECORDS[:clocks]).last_evaluated() == (None if last is None else RECORDS[last])


def test_columns_come_back_also_with_nan() -> None:
    history = ClockHistory([*RECORDS, ClockRecord(4, 1, math.nan, (math.nan,), 1.0)])
    again = ClockHistory.from_columns(history.columns())
    assert again == history and math.isnan(again[4].loss)


@pytest.mark.parametrize("longer", [False, True])
@pytest.mark.parametrize("changed", range(5))
def test_columns_of_different_lengths_are_an_error(changed: int, longer: bool) -> None:
    columns = ClockHistory(RECORDS).columns()
    columns[changed] = columns[changed] + bytes(8) if longer else columns[changed][8:]
    with pytest.raises(StorageError, match="a history cannot be read"):
        ClockHistory.from_columns(columns)


def test_clock_takes_some_dozens_of_bytes() -> None:
    history = ClockHistory(ClockRecord(clock, 1, 1.0, (), 1.0) for clock in range(10_000))
    assert sum(sys.getsizeof(column) for column in history._columns()) < 40 * len(history)
