"""Normalising: statistics of training rows, the same for dense and sparse data, stored and restored."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from eps.data.normalize import Normalizer, fit_normalizer
from eps.data.settings import NORMALIZATIONS
from eps.errors import ConfigError, DataError


def rows(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    dense = rng.normal(3, 2, size=(40, 6)) * (rng.random((40, 6)) < 0.6)
    dense[:, 5] = 0.1
    dense[7] = 0
    return dense.astype(np.float32)


def test_standard_centres_and_scales_and_leaves_constant_columns_at_zero() -> None:
    X = rows()
    X[7, 5] = X[0, 5]

    result = fit_normalizer("standard", X).apply(X)

    np.testing.assert_allclose(result.mean(axis=0, dtype=np.float64), 0, atol=1e-6)
    np.testing.assert_allclose(result[:, :5].std(axis=0, dtype=np.float64), 1, rtol=1e-6)
    np.testing.assert_allclose(result[:, 5], 0, atol=1e-6)


def test_statistics_are_of_the_rows_given_only() -> None:
    X = rows()

    result = fit_normalizer("standard", X[:20]).apply(X)

    expected = (X.astype(np.float64) - X[:20].mean(0, dtype=np.float64)) / X[:20].std(0, dtype=np.float64)
    np.testing.assert_allclose(result[:, :5], expected[:, :5], rtol=1e-5, atol=1e-6)


def test_l2_makes_rows_of_length_one_and_leaves_rows_of_zeros() -> None:
    result = fit_normalizer("l2", rows()).apply(rows())

    lengths = np.linalg.norm(result, axis=1)
    assert lengths[7] == 0
    np.testing.assert_allclose(np.delete(lengths, 7), 1, rtol=1e-6)


def test_tfidf_weighs_rare_columns_more() -> None:
    X = np.array([[1, 1], [1, 0], [1, 0]], dtype=np.float32)

    normalizer = fit_normalizer("tfidf", sparse.csr_matrix(X))

    assert normalizer.scale is not None
    np.testing.assert_allclose(normalizer.scale, [1, np.log(4 / 2) + 1])


@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_dense_and_sparse_data_give_the_same_and_stay_as_they_are(kind: str) -> None:
    dense = rows()
    matrix = sparse.csr_matrix(dense)

    from_dense = fit_normalizer(kind, dense).apply(dense)
    from_sparse = fit_normalizer(kind, matrix).apply(matrix)

    from_sparse = from_sparse.toarray() if sparse.issparse(from_sparse) else from_sparse
    assert from_dense.dtype == from_sparse.dtype == np.float32
    np.testing.assert_allclose(from_dense, from_sparse, rtol=1e-6, atol=1e-7)
    assert np.array_equal(dense, rows()) and np.array_equal(matrix.toarray(), rows())


@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_a_stored_normaliser_gives_the_same_bits(kind: str) -> None:
    normalizer = fit_normalizer(kind, rows())

    restored = Normalizer.from_arrays(normalizer.to_arrays())

    assert restored.apply(rows(1)).tobytes() == normalizer.apply(rows(1)).tobytes()


def test_standard_of_wide_sparse_data_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"2000 .* 1024; use l2"):
        fit_normalizer("standard", sparse.csr_matrix((3, 2000), dtype=np.float32))


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(DataError, match=r"4 .*: must be 6"):
        fit_normalizer("standard", rows()).apply(rows()[:, :4])


def test_a_damaged_normaliser_is_refused() -> None:
    with pytest.raises(DataError, match="lacks its mean"):
        Normalizer.from_arrays({"kind": np.array("standard"), "scale": np.ones(2)})
    with pytest.raises(DataError, match="'missing'"):
        Normalizer.from_arrays({})


def test_weights_of_too_many_columns_are_refused() -> None:
    X = sparse.csr_matrix((2, 2**33), dtype=np.float32)
    with pytest.raises(ConfigError, match=r"8589934592 .* at most"):
        fit_normalizer("tfidf", X)
