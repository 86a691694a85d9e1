"""The global key space of a model's parameters: tensors, blocks and partitions.

Tensors are flattened row-major and concatenated in the model's order.  Blocks are fixed multiples of the global key, a
function of the number of keys alone.  So the grid of ``eps.ml.grid`` and the initial values do not depend on
partitions or servers.

Source: EPS §2.2 (parameters are cut into partitions); AgileML §3.3 (a fixed number of partitions whose owners change).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from eps.errors import ConfigError, TrainingError
from eps.ml.arrays import BoolArray, Float32Array, Int64Array, Purpose, random_stream

#: Largest number of keys in a block.
MAX_BLOCK_KEYS = 4096
#: Smallest number of blocks if the model has that many keys, so that small models can have partitions, too.
MIN_BLOCKS = 256


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named parameter array of a model.

    Raises
    ------
    ConfigError
        The name is empty, the shape has an axis below 1, or the scale is negative or not finite.
    """

    name: str
    shape: tuple[int, ...]
    #: False for intercepts and biases, which take no L1 or L2 penalty.
    penalised: bool = True
    #: Standard deviation of the normal initial values; 0 starts at zero.
    init_scale: float = 0.0
    #: Row j (first axis) belongs to input feature j, so sparse data needs only the rows of its features.
    rows_are_features: bool = False
    #: Row j belongs to sample j of the training data, in the order of the splits: only the split of the sample uses it.
    rows_are_samples: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a tensor needs a name that is not empty")
        if any(axis < 1 for axis in self.shape):
            raise ConfigError(f"tensor {self.name!r} has shape {self.shape}, but every axis must be at least 1")
        if not (math.isfinite(self.init_scale) and self.init_scale >= 0):
            raise ConfigError(f"tensor {self.name!r} has init_scale {self.init_scale}, but must be finite and >= 0")
        if (self.rows_are_features or self.rows_are_samples) and not self.shape:
            raise ConfigError(f"tensor {self.name!r} is a single number and has no rows for features or samples")

    @property
    def size(self) -> int:
        """The number of keys."""
        return math.prod(self.shape)

    @property
    def row_size(self) -> int:
        """The number of keys in one row (one step along the first axis)."""
        return math.prod(self.shape[1:])


@dataclass(frozen=True)
class KeySpace:
    """The keys [0, P) of a model's tensors, in their order.

    Raises
    ------
    ConfigError
        No tensors, two tensors with the same name, or feature tensors with different numbers of rows.
    """

    tensors: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        if not self.tensors:
            raise ConfigError("a model needs at least one tensor")
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) != len(names):
            raise ConfigError(f"tensor names must be different, but are {', '.join(names)}")
        rows = {tensor.shape[0] for tensor in self.tensors if tensor.rows_are_features}
        if len(rows) > 1:
            raise ConfigError(f"tensors with a row per feature must have equally many rows, but have {sorted(rows)}")

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The first key of each tensor, and the number of keys at the end."""
        ends = [0]
        for tensor in self.tensors:
            ends.append(ends[-1] + tensor.size)
        return tuple(ends)

    @property
    def num_keys(self) -> int:
        """P, the number of keys."""
        return self.offsets[-1]

    @property
    def block_keys(self) -> int:
        """Keys in a block (the last one may be shorter); a function of P alone."""
        return min(MAX_BLOCK_KEYS, max(1, -(-self.num_keys // MIN_BLOCKS)))

    @property
    def num_blocks(self) -> int:
        """The number of blocks that cover [0, P)."""
        return -(-self.num_keys // self.block_keys)

    @property
    def has_feature_rows(self) -> bool:
        """Return whether some tensor is pulled by the features that a split contains."""
        return any(tensor.rows_are_features for tensor in self.tensors)

    def partition_ranges(self, num_partitions: int) -> tuple[tuple[int, int], ...]:
        """Return [start, stop) of each partition: whole blocks, as even as possible.

        Raises
        ------
        ConfigError
            Fewer than one partition, or more partitions than blocks.
        """
        if not 1 <= num_partitions <= self.num_blocks:
            raise ConfigError(
                f"partitions is {num_partitions}, but must be in 1 .. {self.num_blocks}: "
                f"the model has {self.num_keys} parameters in {self.num_blocks} blocks of {self.block_keys}"
            )
        edges = [i * self.num_blocks // num_partitions * self.block_keys for i in range(num_partitions)]
        return tuple(zip(edges, [*edges[1:], self.num_keys], strict=True))

    def touched_keys(self, features: Int64Array, samples: tuple[int, int] = (0, 0)) -> Int64Array:
        """Return the keys needed by data with these features and samples, in increasing order.

        Parameters
        ----------
        features : ndarray, shape (d_local,), int64
            Increasing, without repeats.
        samples : (int, int)
            Samples [start, stop).

        Returns
        -------
        ndarray of int64
            The rows of those features in every tensor with ``rows_are_features``, those of the samples in every tensor
            with ``rows_are_samples``, and all keys of the others.
        """
        parts: list[Int64Array] = []
        for tensor, start in zip(self.tensors, self.offsets, strict=False):
            if tensor.rows_are_features:
                first = start + np.asarray(features, dtype=np.int64) * tensor.row_size
                parts.append((first[:, np.newaxis] + np.arange(tensor.row_size, dtype=np.int64)).reshape(-1))
            elif tensor.rows_are_samples:
                low, high = (start + sample * tensor.row_size for sample in samples)
                parts.append(np.arange(low, high, dtype=np.int64))
            else:
                parts.append(np.arange(start, start + tensor.size, dtype=np.int64))
        return np.concatenate(parts)

    def initial_values(self, start: int, stop: int, seed: int) -> Float32Array:
        """Return the initial parameters of keys [start, stop).

        Drawn by block from a stream keyed by (seed, block), so they do not depend on the partitions.

        Returns
        -------
        ndarray, shape (stop - start,), float32
        """
        values = np.zeros(stop - start, dtype=np.float32)
        drawn_block, drawn = -1, values[:0]
        for tensor, offset in zip(self.tensors, self.offsets, strict=False):
            low, high = max(start, offset), min(stop, offset + tensor.size)
            if tensor.init_scale == 0.0 or low >= high:
                continue
            for block in range(low // self.block_keys, (high - 1) // self.block_keys + 1):
                first = block * self.block_keys
                if block != drawn_block:
                    stream = random_stream(seed, Purpose.INITIAL_VALUES, block)
                    drawn_block, drawn = block, stream.standard_normal(self.block_keys, dtype=np.float32)
                a, b = max(low, first), min(high, first + self.block_keys)
                # + 0 turns a drawn -0.0 into 0.0: lazy updates recognise keys at rest by the bits of 0.0.
                values[a - start : b - start] = drawn[a - first : b - first] * np.float32(tensor.init_scale) + 0.0
        return values

    def penalised_mask(self, start: int, stop: int) -> BoolArray | None:
        """Return which keys of [start, stop) take penalties, or None if all do."""
        mask: BoolArray | None = None
        for tensor, offset in zip(self.tensors, self.offsets, strict=False):
            low, high = max(start, offset), min(stop, offset + tensor.size)
            if not tensor.penalised and low < high:
                if mask is None:
                    mask = np.ones(stop - start, dtype=np.bool_)
                mask[low - start : high - start] = False
        return mask

    def unpack(self, flat: Float32Array) -> dict[str, Float32Array]:
        """Return the tensors as views into ``flat``, shape (P,)."""
        return self._unpack(flat, None, 0)

    def pack(self, params: Mapping[str, Float32Array]) -> Float32Array:
        """Return the tensors concatenated, shape (P,), float32; a single tensor is not copied.

        Raises
        ------
        TrainingError
            A tensor is missing, unknown, or has another shape than the model declares.
        """
        return self._pack(params, None, 0)

    def unpack_local(self, flat: Float32Array, num_features: int, num_samples: int = 0) -> dict[str, Float32Array]:
        """Return views into values in the order of :meth:`touched_keys` of so many features and samples."""
        return self._unpack(flat, num_features, num_samples)

    def pack_local(self, params: Mapping[str, Float32Array], num_features: int, num_samples: int = 0) -> Float32Array:
        """Return one array in the order of :meth:`touched_keys`; raises like :meth:`pack`."""
        return self._pack(params, num_features, num_samples)

    def _shape(self, tensor: TensorSpec, num_features: int | None, num_samples: int) -> tuple[int, ...]:
        if num_features is None or not (tensor.rows_are_features or tensor.rows_are_samples):
            return tensor.shape
        return (num_features if tensor.rows_are_features else num_samples, *tensor.shape[1:])

    def _unpack(self, flat: Float32Array, num_features: int | None, num_samples: int) -> dict[str, Float32Array]:
        params: dict[str, Float32Array] = {}
        position = 0
        for tensor in self.tensors:
            shape = self._shape(tensor, num_features, num_samples)
            stop = position + math.prod(shape)
            params[tensor.name] = flat[position:stop].reshape(shape)
            position = stop
        if position != flat.size:
            raise ValueError(f"{flat.size} values given, but the tensors have {position} keys")
        return params

    def _pack(self, params: Mapping[str, Float32Array], num_features: int | None, num_samples: int) -> Float32Array:
        unknown = sorted(set(params) - {tensor.name for tensor in self.tensors})
        if unknown:
            raise TrainingError(f"the model returned {', '.join(unknown)}, which tensors() does not declare")
        parts: list[Float32Array] = []
        for tensor in self.tensors:
            shape = self._shape(tensor, num_features, num_samples)
            if tensor.name not in params:
                raise TrainingError(f"the model returned no array for tensor {tensor.name!r}")
            array = np.asarray(params[tensor.name], dtype=np.float32)
            if array.shape != shape:
                raise TrainingError(f"tensor {tensor.name!r} has shape {array.shape}, but {shape} was declared")
            parts.append(array.reshape(-1))
        # A single tensor is one array already.
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
