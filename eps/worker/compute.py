"""How a worker computes a contribution: the model, the splits in memory, the batches.  It sends and awaits nothing.

It knows the parts of a push and the answers to a pull as values.  Grouping leaves no trace in the sums.

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
from eps.errors import ProtocolError
from eps.ml import kernels
from eps.ml.arrays import distinct
from eps.ml.batches import draw
from eps.ml.grid import Blocks, check_finite
from eps.ml.metrics import EvalSums
from eps.ml.sums import PlainSplitSum, SplitSum
from eps.net.messages.exchange import PullAnswer, PullPart, PushPart, keyset_digest
from eps.spec.runtime import Runtime
from eps.worker.datasets import Datasets

logger = logging.getLogger(__name__)

#: Most parameters that are taken so, in bytes: while they are in use the server cannot use their memory again.
MOST_LENT_BYTES = 16 << 20


class ActiveSet:
    """The keys of some splits, and where each split's keys lie among them.

    Parameters
    ----------
    runtime : Runtime
    splits : mapping
        Split id -> its data, of all splits that the worker computes.
    """

    def __init__(self, runtime: Runtime, splits: Mapping[int, SplitData]) -> None:
        self._runtime = runtime
        self.splits = dict(sorted(splits.items()))
        space = runtime.key_space
        #: Global keys, ascending, int64; None: every key of the model.
        self.keys: np.ndarray | None = None
        self._touched: dict[int, np.ndarray] = {}
        for split, data in self.splits.items():
            if data.features is not None and space.has_feature_rows:
                self._touched[split] = space.touched_keys(data.features)
        if runtime.sparse:
            merged = [*self._touched.values()]
            self.keys = distinct(np.concatenate(merged)) if merged else np.empty(0, np.int64)
        self.size = space.num_keys if self.keys is None else len(self.keys)
        edges = np.array([start for start, _ in runtime.ranges] + [space.num_keys], np.int64)
        #: Partition p's keys are at [bounds[p], bounds[p + 1]).
        self.bounds = edges if self.keys is None else np.searchsorted(self.keys, edges)
        self.block_bounds = -(-edges // space.block_keys)
        starts, first_blocks = self.bounds.tolist(), self.block_bounds.tolist()
        #: Of each partition, where its keys start and end, and its blocks.  Slices are faster with Python's own ints.
        self.spans: tuple[tuple[int, int, int, int], ...] = tuple(
            zip(starts[:-1], starts[1:], first_blocks[:-1], first_blocks[1:], strict=True)
        )
        kernels.use_for(space.num_keys)

    @cached_property
    def blocks(self) -> Blocks:
        """Where the grid's blocks lie in :attr:`keys`."""
        space = self._runtime.key_space
        return Blocks(space.block_keys, 0, space.num_keys, self.keys)

    @cached_property
    def split_blocks(self) -> dict[int, Blocks]:
        """Split -> where the grid's blocks lie in the split's keys."""
        return {
            split: self.blocks if where is None else self.blocks.at(where) for split, where in self.positions.items()
        }

    @cached_property
    def positions(self) -> dict[int, np.ndarray | None]:
        """Split -> where its keys lie in :attr:`keys`; None where it touches all of them."""
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
        """Digest of the keys in each partition; empty for dense models."""
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
    """Parameters of one clock over the keys of an active set, as they are received."""

    values: np.ndarray
    #: The grid's exponents by block over the whole key space; empty where sums are not reproducible.
    exponents: np.ndarray
    #: Partition -> version of its values, where the server counts them.
    versions: dict[int, int] = field(default_factory=dict)
    #: Partitions that have come.
    arrived: set[int] = field(default_factory=set)
    #: In which they began to come: after a loss of members another server may count versions differently.
    epoch: int = 0

    def known_versions(self, epoch: int) -> Mapping[int, int]:
        """Return the versions that say something to the servers of an epoch."""
        return self.versions if epoch == self.epoch else {}


def lent_whole(active: ActiveSet, answers: Sequence[PullAnswer]) -> np.ndarray | None:
    """Return all parameters of a clock as one array, where the answers hold them side by side; None elsewhere.

    Only where every split gathers what it needs of them: the array may be another process's, for reading only, and a
    model may write to the parameters that it is given.

    Parameters
    ----------
    active : ActiveSet
    answers : sequence of PullAnswer
        That came together.

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
        if answer.unchanged or values.base is not base or len(values) != b - a or not values.flags.c_contiguous:
            return None
        if values.__array_interface__["data"][0] != begin + 4 * a:
            return None
    first = (begin - base.__array_interface__["data"][0]) // base.itemsize
    return base[first : first + active.size]


@dataclass(eq=False)
class Contribution:
    """What the splits of one clock give: the sums to push and the results to report."""

    clock: int
    splits: tuple[int, ...]
    samples: int
    results: tuple[SplitResult, ...]
    #: What it was computed with, and is computed with again where a sum has to be taken apart.
    active: ActiveSet
    parameters: Parameters
    _total: np.ndarray
    _maxima: np.ndarray
    _raw: tuple[tuple[int, int, np.ndarray], ...]
    _measures_only: bool

    def push(self, partition: int) -> PushPart:
        """Return the push to one partition."""
        a, b, first, stop = self.active.spans[partition]
        total = self._total[:0] if self._measures_only else self._total[a:b]
        maxima = self._maxima[first:stop] if len(self._maxima) else self._maxima
        raw = self._raw and tuple((split, block - first, v) for split, block, v in self._raw if first <= block < stop)
        return PushPart(
            partition, self.clock, self.splits, self.samples, total, maxima, self.active.keysets[partition], None, raw
        )


class Computation:
    """The gradients of some splits at one clock, summed as they are computed; in any order, with the same bits.

    Its parameters come partition by partition (:meth:`pulls`, :meth:`take`).  A split can be added as soon as those of
    its own partitions are there: :meth:`ready` says which.

    Parameters
    ----------
    runtime : Runtime
    active : ActiveSet
    parameters : Parameters
        Of the clock.
    clock : int
    only : iterable of int
        Splits; empty is all of the active set.
    empty : callable
        Returns memory for the sum that will be pushed, given the number of values and their type; what it holds
        does not matter.
    """

    def __init__(
        self,
        runtime: Runtime,
        active: ActiveSet,
        parameters: Parameters,
        clock: int,
        only: Iterable[int] = (),
        empty: Callable[[int, np.dtype], np.ndarray] = np.empty,
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
        #: Gradients of a small model, which are added together.
        self._waiting: dict[int, np.ndarray] = {}

    def drop_splits(self) -> None:
        """Compute nothing: the parameters alone are wanted."""
        self._left.clear()

    @property
    def complete(self) -> bool:
        """True once the parameters of every partition have come."""
        return len(self.parameters.arrived) == len(self.active.spans)

    def read_again(self, partitions: Set[int]) -> None:
        """Have the parameters of some partitions come again, with the same bits."""
        into = self.parameters
        into.arrived -= partitions
        if not into.values.flags.writeable:
            # A server lends them.
            into.values = into.values.copy()

    def pulls(self, min_clock: int, have: Mapping[int, int]) -> list[PullPart]:
        """Return the pulls of the partitions that have not come.

        Parameters
        ----------
        min_clock : int
            Clocks that a partition must have completed.
        have : mapping
            Partition -> version of the parameters that are here from the clock before.
        """
        keysets, arrived = self.active.keysets, self.parameters.arrived
        return [
            PullPart(partition, min_clock, keysets[partition], None, have.get(partition, 0), b - a)
            for partition, (a, b, _, _) in enumerate(self.active.spans)
            if partition not in arrived
        ]

    def take(self, answers: Sequence[PullAnswer], have: Parameters | None) -> None:
        """Take the parameters of some partitions, which came together; compute the splits that were waiting for them.

        What a server says is unchanged is taken from ``have``, the parameters of the clock before.  Those are never
        overwritten: they may be needed to compute some of that clock again.
        """
        into = self.parameters
        whole = lent_whole(self.active, answers)
        if whole is not None:
            into.values = whole
        for answer in answers:
            partition = answer.partition
            a, b, first, stop = self.active.spans[partition]
            if answer.unchanged:
                if have is None or have.versions.get(partition) != answer.version:
                    raise ProtocolError(f"partition {partition} is said to be unchanged since it was never here")
                into.values[a:b] = have.values[a:b]
            elif whole is None:
                into.values[a:b] = answer.values
            if len(into.exponents):
                into.exponents[first:stop] = answer.exponents
            into.versions[partition] = answer.version
            into.arrived.add(partition)
        # Once all have come, computing here overlaps with nothing.
        if self.clock < self._runtime.settings.iterations and not self.complete:
            for split in self.ready(into.arrived):
                self.add(split)

    def ready(self, arrived: Set[int]) -> list[int]:
        """Return the splits that can be computed with the parameters of these partitions."""
        return [split for split in self._left if self.active.partitions_of(split) <= arrived]

    def add(self, split: int) -> None:
        """Compute a split.

        Raises
        ------
        TrainingError
            A gradient is not finite and the job stops on divergence (of small models :meth:`finish` says so); the model
            raised.
        """
        result, gradient = _split_gradient(self._runtime, self.active, self.parameters, self.clock, split)
        where, blocks = self.active.positions[split], self.active.split_blocks[split]
        sums = self._sum()
        if isinstance(sums, SplitSum) and sums.takes_many():
            # A gradient of one tensor is the model's memory, which it may use for the next split.
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
            # The exponents of partitions that are on their way are filled in before their first split.
            self._sums = SplitSum(runtime.grid, exponents, 0, num_keys, active.keys, out, active.blocks)
        else:
            self._sums = PlainSplitSum(self._empty(active.size, np.dtype(np.float32)))
        return self._sums

    def finish(self) -> Contribution:
        """Compute what is left; return all of it.  Raises as :meth:`add`."""
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
        )


def compute(
    runtime: Runtime,
    active: ActiveSet,
    parameters: Parameters,
    clock: int,
    only: Iterable[int] = (),
    empty: Callable[[int, np.dtype], np.ndarray] = np.empty,
) -> Contribution:
    """Compute the gradients of the active splits (or of ``only`` some) at one clock, and sum them.

    Parameters and errors are those of :class:`Computation`.
    """
    return Computation(runtime, active, parameters, clock, only, empty).finish()


def _split_gradient(
    runtime: Runtime, active: ActiveSet, parameters: Parameters, clock: int, split: int
) -> tuple[SplitResult, np.ndarray]:
    data, model, space = active.splits[split], runtime.model, runtime.key_space
    where = active.positions[split]
    flat = _at(parameters.values, where)
    local = data.X.shape[1]
    params = space.unpack_local(flat, local)
    share, rows = runtime.shares[split], data.num_rows
    features, target = data.X, data.y
    if share < rows:
        chosen = draw(runtime.spec.seed, split, max(0, clock), rows, share)
        features, target = features[chosen], target[chosen]
    if share == 0:
        loss_sum, gradient = 0.0, np.zeros(len(flat), np.float32)
    else:
        # Overflow is divergence: it shows as a loss or gradient that is not finite, which is looked for below.
        with np.errstate(over="ignore", invalid="ignore"):
            loss_sum, gradients = model.loss_and_gradient(params, features, target)
        gradient = space.pack_local(gradients, local)
    if runtime.spec.on_divergence == "continue":
        gradient = np.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
    evaluation = evaluate(runtime, data, params) if runtime.spec.evaluate_at(clock) else ()
    return SplitResult(split, share, float(loss_sum), evaluation), gradient


def measure(runtime: Runtime, active: ActiveSet, parameters: Parameters) -> tuple[SplitResult, ...]:
    """Return the loss of the final parameters over all rows of the active splits, and their evaluation."""
    results = []
    for split, data in active.splits.items():
        where = active.positions[split]
        flat = _at(parameters.values, where)
        params = runtime.key_space.unpack_local(flat, data.X.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            loss_sum = runtime.model.loss(params, data.X, data.y) if data.num_rows else 0.0
        results.append(SplitResult(split, data.num_rows, float(loss_sum), evaluate(runtime, data, params)))
    return tuple(results)


def evaluate(runtime: Runtime, data: SplitData, params: dict[str, np.ndarray]) -> tuple[float, ...]:
    """Return the evaluation sums of a split's test piece; empty where the job has no test data."""
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


#: Returns memory for what is pushed, given the number of values and their type.
Empty = Callable[[int, np.dtype], np.ndarray]


class Program:
    """The computation of one worker: from parameters, splits and a clock to a contribution.

    Parameters
    ----------
    runtime : Runtime
    datasets : Datasets
    empty : callable
        Where the sums lie that are pushed.
    """

    def __init__(self, runtime: Runtime, datasets: Datasets, empty: Empty) -> None:
        self._runtime = runtime
        self._datasets = datasets
        self._empty = empty
        self._active: ActiveSet | None = None
        #: The first call of :meth:`warm_up` takes it, and never releases it.
        self._cold = threading.Lock()

    @property
    def splits(self) -> tuple[int, ...]:
        """The splits that are ready to be computed with."""
        return () if self._active is None else tuple(self._active.splits)

    def load(self, splits: tuple[int, ...]) -> None:
        """Make the splits of a clock ready."""
        self._active = ActiveSet(self._runtime, {split: self._datasets.activate(split) for split in splits})

    def keep(self, splits: tuple[int, ...]) -> str:
        """Free the memory of all other splits; return one line for the log."""
        self._datasets.keep_active(splits)
        return self._datasets.describe()

    def begin(self, clock: int, epoch: int) -> Computation:
        """Return the computation of the loaded splits at a clock, whose parameters are still to come."""
        assert self._active is not None
        return self._computation(self._active, clock, epoch)

    def _computation(self, active: ActiveSet, clock: int, epoch: int) -> Computation:
        blocks = self._runtime.key_space.num_blocks if self._runtime.settings.reproducible else 0
        # Exponents that have not come yet are those of blocks that nothing was added to.
        parameters = Parameters(np.empty(active.size, np.float32), np.zeros(blocks, np.int16), epoch=epoch)
        return Computation(self._runtime, active, parameters, clock, empty=self._empty)

    def is_for(self, computation: Computation, clock: int) -> bool:
        """Return whether a computation is of a clock, with the splits that are loaded now."""
        return computation.clock == clock and computation.active is self._active

    def pause_s(self, splits: tuple[int, ...]) -> float:
        """Return how much longer than it takes the computation of a clock is to last, in seconds."""
        return self._runtime.spec.stretch_s * len(splits)

    def alone(self, contribution: Contribution, split: int) -> Contribution:
        """Return what one split gave to a contribution, computed again: a sum cannot be taken apart."""
        active, parameters = contribution.active, contribution.parameters
        return compute(self._runtime, active, parameters, contribution.clock, only=(split,), empty=self._empty)

    def measure(self, computation: Computation) -> tuple[SplitResult, ...]:
        """Return the loss of the final parameters over the loaded splits, and their evaluation."""
        return measure(self._runtime, computation.active, computation.parameters)

    def warm_up(self, split: int) -> None:
        """Compute a split once with made-up parameters, the first time that this is called.

        Memory and code are warm then at the first clock, where all members would wait: memory that the system must find
        first can take longer than an iteration of a large model.
        """
        if not self._cold.acquire(blocking=False):
            return
        active = ActiveSet(self._runtime, {split: self._datasets.activate(split)})
        # With what computing takes, as much as an iteration has: parameters, and those of the next clock.
        held = [self._computation(active, 0, 0) for _ in range(2)]
        for computation in held:
            computation.parameters.values.fill(0.0)
            # So large that everything is on the grid, as it usually is.
            computation.parameters.exponents.fill(60)
        try:
            held[0].finish()
        except Exception as error:
            # A user's model may not like parameters that are all zero; what matters shows at the first clock.
            logger.info("while warming up: %s", error)

    def forget(self) -> None:
        """Drop the splits that are loaded: nothing is computed, unless more members are lost."""
        self._active = None
