"""When a worker uses received parameters in place, and when it must copy them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from eps.net.messages.exchange import PullAnswer
from eps.worker.compute import MOST_LENT_BYTES, ActiveSet, contiguous_parameters

SIZE, PARTITIONS = 12, 3
NO_EXPONENTS = np.empty(0, np.int16)


@dataclass
class Active:
    """The attributes of an active set that the test needs."""

    size: int = SIZE
    positions: dict[int, Any] = field(default_factory=lambda: {0: np.arange(4), 1: np.arange(5)})

    @property
    def spans(self) -> tuple[tuple[int, int, int, int], ...]:
        length = self.size // PARTITIONS
        return tuple((length * p, length * (p + 1), 0, 0) for p in range(PARTITIONS))


def taken(answers: list[PullAnswer], active: Active | None = None) -> np.ndarray | None:
    return contiguous_parameters(cast(ActiveSet, active or Active()), answers)


def answers_of(pieces: list[np.ndarray]) -> list[PullAnswer]:
    return [PullAnswer(p, 0, piece, NO_EXPONENTS) for p, piece in enumerate(pieces)]


def pieces_of(whole: np.ndarray) -> list[np.ndarray]:
    return [whole[4 * p : 4 * p + 4] for p in range(PARTITIONS)]


def test_parameters_side_by_side_are_taken_where_they_lie() -> None:
    whole = np.arange(SIZE, dtype=np.float32)
    whole.flags.writeable = False
    for received in (whole, whole[:]):
        found = taken(answers_of(pieces_of(received)))
        assert found is not None and np.shares_memory(found, whole) and found.tolist() == whole.tolist()


def test_order_of_the_answers_does_not_matter_but_their_place_does() -> None:
    whole = np.arange(SIZE, dtype=np.float32)
    pieces = pieces_of(whole)
    assert taken(answers_of([pieces[1], pieces[0], pieces[2]])) is None
    assert taken(answers_of(pieces)[::-1]) is None


@pytest.mark.parametrize(
    "pieces",
    [
        [np.zeros(4, np.float32) for _ in range(PARTITIONS)],
        pieces_of(np.zeros(SIZE, np.float64)),
        pieces_of(np.zeros(SIZE, np.float32))[:2],
        [np.zeros(24, np.float32)[8 * p : 8 * p + 8 : 2] for p in range(PARTITIONS)],
        [np.zeros(SIZE, np.float32)[4 * p : 4 * p + 3] for p in range(PARTITIONS)],
        [],
    ],
)
def test_what_does_not_lie_side_by_side_is_copied(pieces: list[np.ndarray]) -> None:
    assert taken(answers_of(pieces)) is None


def test_split_that_would_see_the_array_itself_has_a_copy() -> None:
    answers = answers_of(pieces_of(np.zeros(SIZE, np.float32)))
    assert taken(answers, Active(positions={0: np.arange(4), 1: None})) is None


def test_large_parameters_are_copied_so_that_the_server_has_its_memory_back() -> None:
    size = PARTITIONS * (MOST_LENT_BYTES // 8)
    whole = np.zeros(size, np.float32)
    length = size // PARTITIONS
    answers = answers_of([whole[length * p : length * (p + 1)] for p in range(PARTITIONS)])
    assert taken(answers, Active(size=size)) is None
