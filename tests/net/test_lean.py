"""Arrays that travel as float16."""

from __future__ import annotations

import numpy as np

from eps.net.messages.lean import Lean, pack, unpack

HALF = Lean(float16=True)


def there_and_back(values: np.ndarray) -> np.ndarray:
    form, arrays = pack(values, HALF)
    assert form is not None
    return unpack(form, iter(arrays), len(values))


def test_values_that_are_not_finite_leave_the_others_alone() -> None:
    values = np.array([1.0, -np.inf, 3e-3, np.nan, -2e30, np.inf, 1e30], np.float32)
    found = there_and_back(values)
    assert found[1] == -np.inf and found[5] == np.inf and np.isnan(found[3])
    assert np.allclose(found[[4, 6]], values[[4, 6]], rtol=2**-11)
    assert np.isfinite(found[[0, 2]]).all()


def test_arrays_without_a_finite_value_travel_as_they_are() -> None:
    assert there_and_back(np.array([np.inf, -np.inf], np.float32)).tolist() == [np.inf, -np.inf]
    assert np.isnan(there_and_back(np.full(2, np.nan, np.float32))).all()
    assert there_and_back(np.zeros(0, np.float32)).shape == (0,)


def test_eleven_bits_are_kept_down_to_a_share_of_the_largest_value() -> None:
    values = (2.0 ** -np.arange(0, 30, 0.37)).astype(np.float32) * np.float32(1.2e-7)
    errors = np.abs(there_and_back(values) - values)
    largest = values[0]
    kept = values >= largest * 2.0**-14
    assert (errors[kept] <= values[kept] * 2.0**-11 * 1.001).all()
    assert (errors[~kept] <= largest * 2.0**-25 * 1.001).all()
