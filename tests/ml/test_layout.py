from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from eps.errors import ConfigError, TrainingError
from eps.ml.layout import KeySpace, TensorSpec


def network() -> KeySpace:
    return KeySpace(
        (
            TensorSpec("weights_1", (7, 3), init_scale=0.5, rows_are_features=True),
            TensorSpec("bias_1", (3,), penalised=False),
            TensorSpec("weights_2", (3, 2), init_scale=2.0),
        )
    )


@pytest.mark.parametrize(
    ("num_keys", "block_keys", "num_blocks"),
    [(1, 1, 1), (256, 1, 256), (257, 2, 129), (4096 * 256, 4096, 256), (4096 * 256 + 1, 4096, 257)],
)
def test_blocks_are_a_function_of_the_number_of_keys(num_keys: int, block_keys: int, num_blocks: int) -> None:
    space = KeySpace((TensorSpec("w", (num_keys,)),))
    assert (space.block_keys, space.num_blocks) == (block_keys, num_blocks)


def test_partitions_cover_the_keys_in_whole_blocks_and_differ_by_at_most_one_block() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        space = KeySpace((TensorSpec("w", (int(rng.integers(1, 5000)),)),))
        count = int(rng.integers(1, space.num_blocks + 1))
        ranges = space.partition_ranges(count)
        assert ranges[0][0] == 0 and ranges[-1][1] == space.num_keys
        assert all(a[1] == b[0] for a, b in pairwise(ranges))
        assert all(start % space.block_keys == 0 for start, _ in ranges)
        sizes = [-(-(stop - start) // space.block_keys) for start, stop in ranges]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("count", [0, 37])
def test_more_partitions_than_blocks_are_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"{count}, .* 1 \.\. 30"):
        network().partition_ranges(count)


def test_initial_values_do_not_depend_on_the_ranges_in_which_they_are_drawn() -> None:
    space = KeySpace(
        (TensorSpec("a", (1000, 3), init_scale=1.0), TensorSpec("b", (5,)), TensorSpec("c", (77,), True, 3.0))
    )
    whole = space.initial_values(0, space.num_keys, seed=5)
    for count in (1, 3, 7, 100):
        parts = [space.initial_values(start, stop, seed=5) for start, stop in space.partition_ranges(count)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()
    assert space.initial_values(10, 500, seed=5).tobytes() == whole[10:500].tobytes()
    assert not np.array_equal(space.initial_values(0, 100, seed=6), whole[:100])


def test_initial_values_have_the_scale_of_their_tensor() -> None:
    space = KeySpace(
        (TensorSpec("a", (20000,), init_scale=0.5), TensorSpec("b", (10,)), TensorSpec("c", (20000,), True, 3.0))
    )
    tensors = space.unpack(space.initial_values(0, space.num_keys, seed=1))
    assert abs(tensors["a"].std() - 0.5) < 0.02 and abs(tensors["c"].std() - 3.0) < 0.1
    assert not tensors["b"].any()


def test_touched_keys_are_the_rows_of_the_features_and_all_of_the_other_tensors() -> None:
    keys = network().touched_keys(np.array([1, 6]))
    assert keys.tolist() == [3, 4, 5, 18, 19, 20, *range(21, 30)]
    assert network().touched_keys(np.arange(7)).tolist() == list(range(30))


def test_unpack_gives_views_and_pack_is_its_inverse() -> None:
    space = network()
    flat = np.arange(30, dtype=np.float32)
    tensors = space.unpack(flat)
    assert tensors["weights_2"].tolist() == [[24, 25], [26, 27], [28, 29]]
    assert all(np.shares_memory(tensor, flat) for tensor in tensors.values())
    assert np.array_equal(space.pack(tensors), flat)


def test_unpack_local_agrees_with_the_rows_of_the_whole() -> None:
    space = network()
    flat = np.arange(30, dtype=np.float32)
    features = np.array([0, 2, 5])
    local = space.unpack_local(flat[space.touched_keys(features)], 3)
    whole = space.unpack(flat)
    assert np.array_equal(local["weights_1"], whole["weights_1"][features])
    assert np.array_equal(local["bias_1"], whole["bias_1"])
    assert np.array_equal(space.pack_local(local, 3), flat[space.touched_keys(features)])


def test_penalised_mask_leaves_out_biases_and_is_none_without_any() -> None:
    mask = network().penalised_mask(20, 26)
    assert mask is not None and mask.tolist() == [True, False, False, False, True, True]
    assert network().penalised_mask(0, 21) is None


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        ({"weights_1": np.zeros((7, 3))}, "no array for tensor 'bias_1'"),
        ({"weights_1": np.zeros((3, 7)), "bias_1": np.zeros(3)}, r"has shape \(3, 7\), but \(7, 3\) was declared"),
        ({"extra": np.zeros(1)}, "returned extra"),
    ],
)
def test_pack_refuses_arrays_that_are_not_the_declared_ones(gradient: dict, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        network().pack(gradient)


@pytest.mark.parametrize(
    "tensors",
    [
        (),
        (TensorSpec("w", (2,)), TensorSpec("w", (3,))),
        (TensorSpec("a", (2,), rows_are_features=True), TensorSpec("b", (3,), rows_are_features=True)),
    ],
)
def test_senseless_key_spaces_are_refused(tensors: tuple[TensorSpec, ...]) -> None:
    with pytest.raises(ConfigError):
        KeySpace(tensors)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_outside_the_range_are_refused(seed: int) -> None:
    with pytest.raises(ConfigError, match="seed"):
        network().initial_values(0, 30, seed)
