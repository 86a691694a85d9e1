"""Distinct keys, in the words of NumPy's slower function."""

from __future__ import annotations

import numpy as np
import pytest

from eps.ml.arrays import distinct


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("length", [0, 1, 2, 1000])
def test_distinct_keys_are_those_of_unique(length: int, dtype: type) -> None:
    keys = np.random.default_rng(length).integers(-5, 300, length).astype(dtype)
    before = keys.copy()
    found = distinct(keys)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.unique(keys))
    np.testing.assert_array_equal(keys, before)
