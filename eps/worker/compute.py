"""Computation of a contribution from the model, the splits in memory and the batches.  It sends and awaits nothing.

Parts of pushes and answers to pulls are plain values here.  The grouping of splits does not affect the sums.

Source: EPS §2.2 step 4, §3.1.4 (active and inactive dataset); performance.md section 4 (keys are localised once per
split); reproducible.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from eps.core.messages import SplitResult
from eps.data.splitfile import SplitData
from eps.ml import kernels
from eps.ml.arrays import Purpose, distinct, random_stream
from eps.ml.batches import draw
from eps.ml.grid import Blocks, check_finite
from eps.ml.metrics import EvalSums
from eps.ml.sums import PlainSplitSum, SplitSum
from eps.net.messages.exchange import PullAnswer, PullPart, PushPart, keyset_digest
from eps.spec.runtime import Runtime
from eps.worker.datasets import Datasets

logger = logging.getLogger(__name__)

#: Most parameters that are used in lent memory, in bytes: the server cannot reuse that memory meanwhile.
MOST_LENT_BYTES = 16 << 20
#: Most gradients of clock -1 that are kept for clock 0, in bytes.
MOST_KEPT_BYTES = 64 << 20
#: A clock takes only the keys of its batch if those are surely below this share of the split's keys.  Their list is
#: sent at every clock, 8 bytes for each key, while that of a split is sent once.
SMALL_BATCH = 0.25
#: A split with fewer keys is sent as a whole: listing the keys of its batches would take longer.
MANY_KEYS = 1 << 15
#: With more frequent evaluations, which need all keys, servers would spend more time on the change between key sets.
SELDOM_CLOCKS = 8


class ActiveSet:
    """The keys of some splits, and the positions of each split's keys among them.

    Parameters
    ----------
    runtime : Runtime
    splits : mapping
        Split id -> its data, for all splits that the worker computes.
    samples : mapping, optional
        Split id -> [start, stop) of its samples among those of all splits, if the data is a part of the split.
    """

    def __init__(
        self, runtime: Runtime, splits: Mapping[int, SplitData], samples: Mapping[int, tuple[int, int]] | None = None
    ) -> None:
        self._runtime = runtime
        self.splits = dict(sorted(splits.items()))
        self.samples = {split: runtime.samples_of(split) for split in self.splits} if samples is None else samples
        #: Number of a part -> that part of each split.
        self._parts: dict[int, ActiveSet] = {}
        #: The latest clock with a batch of its own, and that batch.
        self._batch: tuple[int, ActiveSet] | None = None
        space = runtime.key_space
        #: Global keys, ascending, int64; None means every key of the model.
        self.keys: np.ndarray | None = None
        self._touched: dict[int, np.ndarray] = {}
        for split, data in self.splits.items():
            if data.features is not None and space.has_feature_rows:
                self._touched[split] = space.touched_keys(data.features, self.samples[split])
        if runtime.sparse:
            merged = [*self._touched.values()]
            self.keys = distinct(np.concatenate(merged)) if merged else np.empty(0, np.int64)
        self.size = space.num_keys if self.keys is None else len(self.keys)
        edges = np.array([start for start, _ in runtime.ranges] + [space.num_keys], np.int64)
        #: The keys of partition p are at [bounds[p], bounds[p + 1]).
        self.bounds = edges if self.keys is None else np.searchsorted(self.keys, edges)
        self.block_bounds = -(-edges // space.block_keys)
        starts, first_blocks = self.bounds.tolist(), self.block_bounds.tolist()
        #: For each partition its range of keys and its range of blocks.  Python ints, because they make faster slices.
        self.spans: tuple[tuple[int, int, int, int], ...] = tuple(
            zip(starts[:-1], starts[1:], first_blocks[:-1], first_blocks[1:], strict=True)
        )
        kernels.use_for(space.num_keys)

    def at(self, clock: int) -> ActiveSet:
        """Return the rows whose keys a clock needs: all of the splits, a part of each, or the batch."""
        runtime = self._runtime
        # The final parameters are measured over all rows.
        if clock >= runtime.settings.iterations:
            return self
        clock = max(0, clock)
        if runtime.model.parts > 1:
            part = clock % runtime.model.parts
            if part not in self._parts:
                self._parts[part] = self._part(part)
            return self._parts[part]
        if not self._small_batches or (runtime.shape.test_rows and runtime.spec.evaluate_at(clock)):
            return self
        if self._batch is None or self._batch[0] != clock:
            self._batch = clock, self._batch_of(clock)
        return self._batch[1]

    def _part(self, part: int) -> ActiveSet:
        model, splits, samples = self._runtime.model, {}, {}
        for split, data in self.splits.items():
            first = self.samples[split][0]
            start, stop = (number * data.num_rows // model.parts for number in (part, part + 1))
            splits[split] = data.rows(slice(start, stop))
            if model.task == "topics":
                # The samples of a document are its tokens.
                start, stop = (int(data.X[:rows].sum(dtype=np.float64)) for rows in (start, stop))
            samples[split] = first + start, first + stop
        return ActiveSet(self._runtime, splits, samples)

    @cached_property
    def _small_batches(self) -> tuple[int, ...]:
        """The splits whose batches need few of their keys; depends on each split alone."""
        runtime = self._runtime
        seldom = not runtime.shape.test_rows or runtime.spec.evaluation_clocks >= SELDOM_CLOCKS
        # With other rules servers would have to replay the steps of keys that were in no batch meanwhile.
        applies = seldom and runtime.sparse and runtime.optimizer.idle_step_changes_nothing()
        row_keys = sum(tensor.row_size for tensor in runtime.key_space.tensors if tensor.rows_are_features)
        found = []
        for split, touched in self._touched.items() if applies else ():
            if len(touched) < MANY_KEYS:
                continue
            X = self.splits[split].X
            # The values of as many rows as the batch has, if the rows are alike: about the most features it can have.
            drawn = runtime.share_of(split, 0) * X.nnz / max(1, X.shape[0])
            if len(touched) - row_keys * (X.shape[1] - drawn) < SMALL_BATCH * len(touched):
                found.append(split)
        return tuple(found)

    def _batch_of(self, clock: int) -> ActiveSet:
        splits = dict(self.splits)
        for split in self._small_batches:
            splits[split] = self.splits[split].rows(batch_rows(self._runtime, split, clock))
        return ActiveSet(self._runtime, splits, self.samples)

    @cached_property
    def blocks(self) -> Blocks:
        """The positions of the grid's blocks in :attr:`keys`."""
        space = self._runtime.key_space
        return Blocks(space.block_keys, 0, space.num_keys, self.keys)

    @cached_property
    def split_blocks(self) -> dict[int, Blocks]:
        """Split -> the positions of the grid's blocks in the split's keys."""
        return {
            split: self.blocks if where is None else self.blocks.at(where) for split, where in self.positions.items()
        }

    @cached_property
    def positions(self) -> dict[int, np.ndarray | None]:
        """Split -> positions of its keys in :attr:`keys`; None if it has all of them."""
        found: dict[int, np.ndarray | None] = {}
        for split in self.splits:
            touched = self._touched.get(split)
            if touched is None or len(touched) == self.size:
                found[split] = None
            else:
                found[split] = touched if self.keys is None else np.searchsorted(self.keys, touched)
        return found

    @cached_property
    def keysets(self) -> tuple[bytes, ...]:
        """The digest of the keys in each partition; empty for dense models."""
        if self.keys is None:
            return (b"",) * len(self._runtime.ranges)
        return tuple(keyset_digest(self.keys_of(p)) for p in range(len(self.bounds) - 1))

    def partitions_of(self, split: int) -> frozenset[int]:
        """Return the partitions that a split needs."""
        return self._partitions_of[split]

    @cached_property
    def _partitions_of(self) -> dict[int, frozenset[int]]:
        everything = frozenset(range(len(self.bounds) - 1))
        found = {}
        for split, where in self.positions.items():
            if where is None:
                found[split] = everything
            else:
                edges = np.searchsorted(where, self.bounds)
                found[split] = frozenset(np.flatnonzero(np.diff(edges)).tolist())
        return found

    def keys_of(self, partition: int) -> np.ndarray:
        """Return the global keys in a partition."""
        assert self.keys is not None
        return self.keys[self.bounds[partition] : self.bounds[partition + 1]]


@dataclass(eq=False)
class Parameters:
    """Parameters of one clock over the keys of an active set, filled in as partitions arrive."""

    values: np.ndarray
    #: The grid's exponents by block over the whole key space; empty if sums are not reproducible.
    exponents: np.ndarray
    #: Partitions that have arrived.
    arrived: set[int] = field(default_factory=set)


def contiguous_parameters(active: ActiveSet, answers: Sequence[PullAnswer]) -> np.ndarray | None:
    """Return all parameters of a clock as one array without a copy, or None if the answers are not contiguous.

    Also None unless every split gathers its own copy: the array may be another process's read-only memory, and a model
    may write to its parameters.

    Parameters
    ----------
    active : ActiveSet
    answers : sequence of PullAnswer
        From one message.

    Returns
    -------
    ndarray, shape (active.size,), float32, or None
    """
    if len(answers) != len(active.spans) or 4 * active.size > MOST_LENT_BYTES or not len(answers):
        return None
    if any(positions is None for positions in active.positions.values()):
        return None
    base = answers[0].values.base
    if not isinstance(base, np.ndarray) or base.dtype != np.float32 or base.ndim != 1 or len(base) < active.size:
        return None
    begin = answers[0].values.__array_interface__["data"][0]
    for answer in answers:
        a, b, _, _ = active.spans[answer.partition]
        values = answer.values
        if values.base is not base or len(values) != b - a or not values.flags.c_contiguous:
            return None
        if values.__array_interface__["data"][0] != begin + 4 * a:
            return None
    first = (begin - base.__array_interface__["data"][0]) // base.itemsize
    return base[first : first + active.size]


@dataclass(eq=False)
class Contribution:
    """The result of the splits of one clock: the sums to push and the results to report."""

    clock: int
    splits: tuple[int, ...]
    samples: int
    results: tuple[SplitResult, ...]
    #: The inputs of the computation, which is repeated if a sum has to be taken apart.
    active: ActiveSet
    parameters: Parameters
    _total: np.ndarray
    _maxima: np.ndarray
    _raw: tuple[tuple[int, int, np.ndarray], ...]
    _measures_only: bool
    #: Of how many splits the gradients were computed; the others were known.
    num_computed: int

    def push(self, partition: int) -> PushPart:
        """Return the push to one partition."""
        a, b, first, stop = self.active.spans[partition]
        total = self._total[:0] if self._measures_only else self._total[a:b]
        maxima = self._maxima[first:stop] if len(self._maxima) else self._maxima
        raw = self._raw and tuple((split, block - first, v) for split, block, v in self._raw if first <= block < stop)
        return PushPart(
            partition, self.clock, self.splits, self.samples, total, maxima, self.active.keysets[partition], None, raw
        )


class FirstGradients:
    """The gradients of clock -1, by split.

    Clock -1 measures maxima and changes no parameter (:mod:`eps.ml.grid`), so clock 0 has the same parameters, batches
    and gradients.  Those of large models are computed twice instead of kept.
    """

    def __init__(self) -> None:
        #: Split -> the sum of its losses, and its gradient.
        self._kept: dict[int, tuple[float, np.ndarray]] = {}
        self._bytes = 0

    def keep(self, split: int, loss_sum: float, gradient: np.ndarray) -> None:
        """Keep a gradient, if there is room."""
        if (before := self._kept.pop(split, None)) is not None:
            self._bytes -= before[1].nbytes
        if self._bytes + gradient.nbytes <= MOST_KEPT_BYTES:
            # Copied, because a model may reuse the memory of a one-tensor gradient for the next split.
            self._kept[split] = loss_sum, gradient.copy()
            self._bytes += gradient.nbytes

    def of(self, split: int) -> tuple[float, np.ndarray] | None:
        """Return the sum of losses and the gradient of a split; None if they have to be computed."""
        return self._kept.get(split)

    def clear(self) -> None:
        """Free the memory."""
        self._kept.clear()
        self._bytes = 0


class Computation:
    """Computes and sums the gradients of some splits at one clock; in any order, with the same bits.

    Its parameters arrive partition by partition (:meth:`pulls`, :meth:`take`).  A split can be added once its own
    partitions have arrived; :meth:`ready` returns those splits.

    Parameters
    ----------
    runtime : Runtime
    active : ActiveSet
    parameters : Parameters
        Of the clock.
    clock : int
    only : iterable of int
        Splits to compute; empty means all of the active set.
    empty : callable
        Returns memory for the sum to push, given the number of values and their type; its contents do not matter.
    first : FirstGradients, optional
        Filled at clock -1, used at clock 0.
    """

    def __init__(
        self,
        runtime: Runtime,
        active: ActiveSet,
        parameters: Parameters,
        clock: int,
        only: Iterable[int] = (),
        empty: Callable[[int, np.dtype], np.ndarray] = np.empty,
        first: FirstGradients | None = None,
    ) -> None:
        self.clock = clock
        self.active = active
        self.parameters = parameters
        self._runtime = runtime
        self._empty = empty
        wanted = set(only) or set(active.splits)
        self._left = [split for split in active.splits if split in wanted]
        self._results: dict[int, SplitResult] = {}
        self._maxima = np.zeros(runtime.key_space.num_blocks if runtime.settings.reproducible else 0, np.float32)
        self._sums: SplitSum | PlainSplitSum | None = None
        self._measures_only = runtime.settings.reproducible and clock < 0
        self._first = first
        self._num_computed = 0
        #: Gradients of a small model, to be added together.
        self._waiting: dict[int, np.ndarray] = {}

    def drop_splits(self) -> None:
        """Compute no gradients; only read the parameters."""
        self._left.clear()

    @property
    def complete(self) -> bool:
        """Return whether the parameters of every partition have arrived."""
        return len(self.parameters.arrived) == len(self.active.spans)

    def read_again(self, partitions: Set[int]) -> None:
        """Mark some partitions as missing, so that they are read again, with the same bits."""
        into = self.parameters
        into.arrived -= partitions
        if not into.values.flags.writeable:
            # The memory is lent by a server.
            into.values = into.values.copy()

    def pulls(self, min_clock: int) -> list[PullPart]:
        """Return the pulls of the partitions that have not arrived.

        Parameters
        ----------
        min_clock : int
            Clocks that a partition must have completed.
        """
        keysets, arrived = self.active.keysets, self.parameters.arrived
        return [
            PullPart(partition, min_clock, keysets[partition], None, b - a)
            for partition, (a, b, _, _) in enumerate(self.active.spans)
            if partition not in arrived
        ]

    def take(self, answers: Sequence[PullAnswer]) -> None:
        """Store parameters that arrived together, and compute the splits that waited for them."""
        into = self.parameters
        whole = contiguous_parameters(self.active, answers)
        if whole is not None:
            into.values = whole
        for answer in answers:
            partition = answer.partition
            a, b, first, stop = self.active.spans[partition]
            if whole is None:
                into.values[a:b] = answer.values
            if len(into.exponents):
                into.exponents[first:stop] = answer.exponents
            into.arrived.add(partition)
        # Once all have arrived, computing here would overlap with nothing.
        if self.clock < self._runtime.settings.iterations and not self.complete:
            for split in self.ready(into.arrived):
                self.add(split)

    def ready(self, arrived: Set[int]) -> list[int]:
        """Return the splits whose partitions are all in ``arrived``."""
        return [split for split in self._left if self.active.partitions_of(split) <= arrived]

    def add(self, split: int) -> None:
        """Compute a split.

        Raises
        ------
        TrainingError
            A gradient is not finite and the job stops on divergence (for small models :meth:`finish` raises it), or the
            model raised it.
        """
        known = self._first.of(split) if self._first is not None and self.clock == 0 else None
        result, gradient = _split_gradient(self._runtime, self.active, self.parameters, self.clock, split, known)
        self._num_computed += known is None
        if self._first is not None and self._measures_only:
            self._first.keep(split, result.loss_sum, gradient)
        where, blocks = self.active.positions[split], self.active.split_blocks[split]
        sums = self._sum()
        if isinstance(sums, SplitSum) and sums.takes_many():
            # Copied, because a model may reuse the memory of a one-tensor gradient for the next split.
            self._waiting[split] = gradient.copy()
        elif isinstance(sums, SplitSum):
            sums.add(split, gradient, where, blocks)
        elif sums is not None:
            sums.add(split, gradient, where)
        else:
            found = blocks.maxima(gradient)
            check_finite(found, 0, self._runtime.key_space.block_keys, split)
            np.maximum(self._maxima, found, out=self._maxima)
        self._left.remove(split)
        self._results[split] = result

    def _sum(self) -> SplitSum | PlainSplitSum | None:
        runtime, active, exponents = self._runtime, self.active, self.parameters.exponents
        if self._measures_only or self._sums is not None:
            return self._sums
        if runtime.settings.reproducible:
            out = self._empty(active.size, runtime.grid.dtype)
            num_keys = runtime.key_space.num_keys
            # Exponents of partitions that have not arrived are filled in before the first split that needs them.
            self._sums = SplitSum(runtime.grid, exponents, 0, num_keys, active.keys, out, active.blocks)
        else:
            self._sums = PlainSplitSum(self._empty(active.size, np.dtype(np.float32)))
        return self._sums

    def finish(self) -> Contribution:
        """Compute the remaining splits; return the whole contribution.  Raises like :meth:`add`."""
        for split in list(self._left):
            self.add(split)
        splits = tuple(sorted(self._results))
        results = tuple(self._results[split] for split in splits)
        sums = self._sum()
        if isinstance(sums, SplitSum) and self._waiting:
            where = [self.active.positions[split] for split in self._waiting]
            sums.add_all([*self._waiting], [*self._waiting.values()], where)
            self._waiting.clear()
        raw = tuple(sums.raw) if isinstance(sums, SplitSum) else ()
        maxima = sums.maxima if isinstance(sums, SplitSum) else self._maxima
        total = np.empty(0, self._runtime.grid.dtype) if sums is None else sums.sum
        samples = sum(result.samples for result in results)
        return Contribution(
            self.clock,
            splits,
            samples,
            results,
            self.active,
            self.parameters,
            total,
            maxima,
            raw,
            self._measures_only,
            self._num_computed,
        )


def _split_gradient(
    runtime: Runtime,
    active: ActiveSet,
    parameters: Parameters,
    clock: int,
    split: int,
    known: tuple[float, np.ndarray] | None,
) -> tuple[SplitResult, np.ndarray]:
    """Return a split's result and gradient; ``known`` has the sum of its losses and the gradient, if not None."""
    data, model, space = active.splits[split], runtime.model, runtime.key_space
    where = active.positions[split]
    flat = _at(parameters.values, where)
    local = data.X.shape[1]
    start, stop = active.samples[split]
    params = space.unpack_local(flat, local, stop - start)
    # A part of a split has fewer samples than the split.
    share, rows = min(runtime.share_of(split, max(0, clock)), stop - start), data.num_rows
    features, target = data.X, data.y
    if known is None and share < rows:
        chosen = batch_rows(runtime, split, max(0, clock))
        features, target = features[chosen], target[chosen]
    if known is not None:
        loss_sum, gradient = known
    elif share == 0:
        loss_sum, gradient = 0.0, np.zeros(len(flat), np.float32)
    else:
        # Overflow means divergence; it shows as a loss or gradient that is not finite, which is checked later.
        with np.errstate(over="ignore", invalid="ignore"):
            if model.adds:
                stream = random_stream(runtime.spec.seed, Purpose.SWEEPS, split, max(0, clock))
                loss_sum, gradients = model.sweep(params, features, stream)
            else:
                loss_sum, gradients = model.loss_and_gradient(params, features, target)
        gradient = space.pack_local(gradients, local, stop - start)
    if runtime.spec.training.on_divergence == "continue":
        gradient = np.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
    evaluation = evaluate(runtime, data, params) if runtime.spec.evaluate_at(clock) else ()
    return SplitResult(split, share, float(loss_sum), evaluation), gradient


def batch_rows(runtime: Runtime, split: int, clock: int) -> np.ndarray:
    """Return the rows of a split in the batch of a clock."""
    share = runtime.share_of(split, clock)
    return draw(runtime.spec.seed, split, clock, runtime.shape.split_rows[split], share)


def measure(runtime: Runtime, active: ActiveSet, parameters: Parameters) -> tuple[SplitResult, ...]:
    """Return the loss and the evaluation of the final parameters over all rows of the active splits."""
    results = []
    for split, data in active.splits.items():
        where = active.positions[split]
        flat = _at(parameters.values, where)
        start, stop = active.samples[split]
        samples = stop - start
        params = runtime.key_space.unpack_local(flat, data.X.shape[1], samples)
        with np.errstate(over="ignore", invalid="ignore"):
            loss_sum = runtime.model.loss(params, data.X, data.y) if data.num_rows else 0.0
        results.append(SplitResult(split, samples, float(loss_sum), evaluate(runtime, data, params)))
    return tuple(results)


def evaluate(runtime: Runtime, data: SplitData, params: dict[str, np.ndarray]) -> tuple[float, ...]:
    """Return the evaluation sums of a split's test rows; empty if the job has no test data."""
    if not runtime.shape.test_rows:
        return ()
    with np.errstate(over="ignore", invalid="ignore"):
        sums = EvalSums.of(runtime.model, params, data.test_X, data.test_y)
    return sums.to_vector()


def _at(values: np.ndarray, positions: np.ndarray | None) -> np.ndarray:
    if positions is None:
        return values
    found = np.empty(len(positions), np.float32)
    kernels.take(values, positions, 0, found)
    return found


#: Returns memory for a push, given the number of values and their type.
Empty = Callable[[int, np.dtype], np.ndarray]


class Program:
    """The computation of one worker: from parameters, splits and a clock to a contribution.

    Parameters
    ----------
    runtime : Runtime
    datasets : Datasets
    empty : callable
        Returns memory for the sums to push.
    """

    def __init__(self, runtime: Runtime, datasets: Datasets, empty: Empty) -> None:
        self._runtime = runtime
        self._datasets = datasets
        self._empty = empty
        self._active: ActiveSet | None = None
        #: The splits of a later membership, prepared on another thread.
        self._next: ActiveSet | None = None
        self._first = FirstGradients()
        #: Acquired by the first :meth:`warm_up`, and never released.
        self._cold = threading.Lock()

    @property
    def splits(self) -> tuple[int, ...]:
        """The loaded splits."""
        return () if self._active is None else tuple(self._active.splits)

    def load(self, splits: tuple[int, ...]) -> None:
        """Load the splits of a clock."""
        found, self._next = self._next, None
        self._active = found if found is not None and tuple(found.splits) == splits else self._set_of(splits)

    def prepare(self, splits: tuple[int, ...]) -> None:
        """Prepare splits that a later clock loads, while training goes on; called on another thread."""
        if splits and splits != self.splits:
            self._next = self._set_of(splits)

    def _set_of(self, splits: tuple[int, ...]) -> ActiveSet:
        return ActiveSet(self._runtime, {split: self._datasets.activate(split) for split in splits})

    def keep(self, splits: tuple[int, ...]) -> str:
        """Free the memory of all other splits; return a line for the log."""
        self._datasets.keep_active(splits)
        return self._datasets.describe()

    def begin(self, clock: int) -> Computation:
        """Return a computation of the loaded splits at a clock, whose parameters are still to arrive."""
        assert self._active is not None
        if clock > 0:
            self._first.clear()
        return self._computation(self._active.at(clock), clock, self._first)

    def _computation(self, active: ActiveSet, clock: int, first: FirstGradients | None = None) -> Computation:
        blocks = self._runtime.key_space.num_blocks if self._runtime.settings.reproducible else 0
        # Entries of blocks that have not arrived do not matter: nothing is added to these blocks.
        parameters = Parameters(np.empty(active.size, np.float32), np.zeros(blocks, np.int16))
        return Computation(self._runtime, active, parameters, clock, empty=self._empty, first=first)

    def is_for(self, computation: Computation, clock: int) -> bool:
        """Return whether a computation is for this clock and the currently loaded splits."""
        return computation.clock == clock and self._active is not None and computation.active is self._active.at(clock)

    def pause_s(self, contribution: Contribution) -> float:
        """Return by how many seconds a computation is artificially extended (``stretch_s``)."""
        return self._runtime.spec.stretch_s * contribution.num_computed

    def alone(self, contribution: Contribution, split: int) -> Contribution:
        """Return one split's part of a contribution, computed again because a sum cannot be taken apart."""
        active, parameters = contribution.active, contribution.parameters
        return Computation(
            self._runtime, active, parameters, contribution.clock, only=(split,), empty=self._empty
        ).finish()

    def measure(self, computation: Computation) -> tuple[SplitResult, ...]:
        """Return the loss and the evaluation of the final parameters over the loaded splits."""
        return measure(self._runtime, computation.active, computation.parameters)

    def warm_up(self, split: int) -> None:
        """Compute a split once with made-up parameters; no effect after the first call.

        So memory and code are warm before the first clock, for which all members would wait.  For a large model, the
        first touch of memory can take longer than an iteration.
        """
        if not self._cold.acquire(blocking=False):
            return
        active = ActiveSet(self._runtime, {split: self._datasets.activate(split)})
        # As much memory as an iteration uses: its parameters and those of the next clock.
        held = [self._computation(active, 0) for _ in range(2)]
        for computation in held:
            computation.parameters.values.fill(0.0)
            # Large enough to put everything on the grid, which is the usual case.
            computation.parameters.exponents.fill(60)
        try:
            held[0].finish()
        except Exception as error:
            # A user's model may fail on zero parameters; real errors show at the first clock.
            logger.info("the warm-up failed, which is harmless: %s", error)

    def forget(self) -> None:
        """Drop the loaded splits: nothing more is computed unless members are lost."""
        self._active = None
