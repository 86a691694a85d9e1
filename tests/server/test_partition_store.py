"""The arrays of a partition against a small eager stand-in that steps every key at every clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eps.errors import ProtocolError, TransferError
from eps.ml import kernels
from eps.ml.grid import RawBlock, exponents_of, next_exponents
from eps.ml.sums import SplitSum
from eps.net.messages.exchange import PullPart, PushPart, keyset_digest
from eps.server.checks import check_pushes
from eps.server.partition_store import PartitionStore, UpdateData
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import DataShape, Runtime

SPLITS, FEATURES, PARTITIONS, SAMPLES = 6, 700, 3, 7
POISON = np.float32(np.nan)


@pytest.fixture(params=["numpy", "numba"], autouse=True)
def _either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numba":
        pytest.importorskip("numba")
    monkeypatch.setenv(kernels.VARIABLE, request.param)


def make_runtime(*, sparse: bool = True, **settings: object) -> Runtime:
    spec = JobSpec.from_dict(
        {"model": "logistic", "splits": SPLITS, "partitions": PARTITIONS, "iterations": 40, "learning_rate": 0.05}
        | settings
    )
    shape = DataShape(FEATURES, 2, (SAMPLES,) * SPLITS, sparse=sparse, test_rows=0, split_checksums=("",) * SPLITS)
    return Runtime("job", spec, shape, Path("unused"), Path("unused"))


class Eager:
    """One partition in flat arrays: sums in float64 in split order, and a step of every key at every clock."""

    def __init__(self, runtime: Runtime, partition: int, values: np.ndarray) -> None:
        self.runtime = runtime
        self.start, self.stop = runtime.ranges[partition]
        self.penalised = runtime.key_space.penalised_mask(self.start, self.stop)
        self.values = values.copy()
        self.slots = runtime.optimizer.initial_slots(self.values, self.penalised)
        self.exponents = runtime.grid.initial_exponents(len(values))

    def step(self, gradients: dict[int, np.ndarray], clock: int) -> None:
        size, grid = self.runtime.key_space.block_keys, self.runtime.grid
        exact = np.zeros(len(self.values))
        largest = np.zeros(len(self.exponents), np.float32)
        for gradient in gradients.values():
            for block in range(len(largest)):
                values = gradient[self.start : self.stop][block * size : (block + 1) * size]
                largest[block] = max(largest[block], np.abs(values).max())
                top = exponents_of(np.abs(values).max(keepdims=True))[0]
                if clock >= 0 and top <= self.exponents[block] + 2:
                    unit = int(grid.unit_exponents(self.exponents)[block])
                    whole = np.rint(values * np.ldexp(np.float32(1), -unit))
                    exact[block * size : (block + 1) * size] += whole.astype(np.float64) * 2.0**unit
        for _, gradient in sorted(gradients.items()):
            for block in range(len(largest)):
                part = slice(block * size, (block + 1) * size)
                values = gradient[self.start : self.stop][part]
                if exponents_of(np.abs(values).max(keepdims=True))[0] > self.exponents[block] + 2:
                    exact[part] += values
        if clock >= 0:
            mean = (exact / (SAMPLES * SPLITS)).astype(np.float32)
            self.runtime.optimizer.step(self.values, self.slots, mean, clock, self.penalised)
        self.exponents = next_exponents(self.exponents, largest, clock)


def _length(runtime: Runtime) -> int:
    start, stop = runtime.ranges[0]
    return stop - start


def overwrite(push: PushPart) -> None:
    push.total.fill(-1)
    push.maxima.fill(POISON)
    if push.keys is not None:
        push.keys.fill(-1)
    for _, _, values in push.raw:
        values.fill(POISON)


class Rig:
    """Random clocks: splits with keys of their own, on workers that change now and then."""

    def __init__(self, runtime: Runtime, seed: int, partition: int = 0) -> None:
        self.runtime, self.partition = runtime, partition
        self.rng = np.random.default_rng(seed)
        self.start, self.stop = runtime.ranges[partition]
        self.num_keys = runtime.key_space.num_keys
        values = self.rng.normal(size=self.stop - self.start).astype(np.float32)
        self.store = PartitionStore(runtime, partition, values)
        self.eager = Eager(runtime, partition, values)
        self.clock = runtime.settings.first_clock
        self.share = 0.03
        self.regroup()

    def regroup(self) -> None:
        """Give the splits other keys and other workers."""
        self.share = float(self.rng.choice([0.005, 0.03, 0.2]))
        self.touched = [
            np.flatnonzero((self.rng.random(self.num_keys) < self.share) | (np.arange(self.num_keys) == FEATURES))
            for _ in range(SPLITS)
        ]
        self.worker_of = self.rng.integers(0, 3, size=SPLITS)

    def gradients(self) -> dict[int, np.ndarray]:
        found = {}
        for split in range(SPLITS):
            gradient = np.zeros(self.num_keys, np.float32)
            gradient[self.touched[split]] = self.rng.normal(size=len(self.touched[split]))
            if self.rng.random() < 0.2:
                gradient[self.touched[split][:3]] *= 1e5
            found[split] = gradient
        return found

    def keys_of(self, splits: list[int]) -> np.ndarray:
        keys = np.unique(np.concatenate([self.touched[split] for split in splits]))
        return keys[(keys >= self.start) & (keys < self.stop)]

    def pushes(self, gradients: dict[int, np.ndarray]) -> Iterator[PushPart]:
        for worker in self.rng.permutation(3):
            splits = [split for split in range(SPLITS) if self.worker_of[split] == worker]
            if not splits:
                continue
            keys = self.keys_of(splits) if self.runtime.sparse else np.arange(self.start, self.stop)
            exponents = self.eager.exponents
            length = self.stop - self.start
            if self.clock < 0:
                exponents = np.full_like(exponents, 60)
            part = SplitSum(self.runtime.grid, exponents, self.start, length, keys)
            for split in splits:
                part.add(split, gradients[split][keys])
            total = part.sum[:0] if self.clock < 0 else part.sum
            raw = tuple(RawBlock(s, b, v) for s, b, v in part.raw)
            known = self.runtime.sparse
            digest = keyset_digest(keys) if known else b""
            samples = SAMPLES * len(splits)
            yield PushPart(
                self.partition,
                self.clock,
                tuple(splits),
                samples,
                total,
                part.maxima,
                digest,
                keys if known else None,
                raw,
            )

    def train(self, keep_gradient: bool = False) -> object:
        """Run one clock on both; what was pushed is overwritten at once, as memory that was lent is.

        The memory of the push marked as last may be needed until the step.
        """
        gradients = self.gradients()
        pushes = list(self.pushes(gradients))
        is_said = bool(self.rng.random() < 0.7)
        for i, push in enumerate(pushes):
            is_last = is_said and i == len(pushes) - 1
            self.store.accumulate(push, i == 0, is_last)
            if not is_last:
                overwrite(push)
        update = self.store.step(self.clock, keep_gradient)
        overwrite(pushes[-1])
        self.eager.step(gradients, self.clock)
        self.clock += 1
        return update

    def read(self, clock: int) -> tuple[np.ndarray, np.ndarray]:
        """Pull every key of the partition."""
        return self.store.pull(clock, PullPart(self.partition, clock))

    def check(self) -> None:
        """Read all keys, those of a worker, and some that no worker pushes."""
        expected = self.eager.values
        values, exponents = self.read(self.clock)
        assert values.tobytes() == expected.tobytes()
        assert exponents.tobytes() == self.eager.exponents.tobytes()
        some = np.flatnonzero(self.rng.random(self.num_keys) < 0.1)
        for keys in (self.keys_of([0, 3]), some[(some >= self.start) & (some < self.stop)]):
            part = PullPart(self.partition, self.clock, keyset_digest(keys), keys)
            assert self.store.pull(self.clock, part)[0].tobytes() == expected[keys - self.start].tobytes()


OPTIMIZERS = [
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "l1": 0.01, "l2": 0.02},
    {"optimizer": "momentum", "l2": 0.02},
    {"optimizer": "adagrad", "l1": 0.01},
    {"optimizer": "adam", "l1": 0.01, "l2": 0.02},
    {"optimizer": "adam"},
    {"optimizer": "ftrl", "l1": 0.01, "l2": 0.02},
]


@pytest.mark.parametrize("settings", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_bits_are_those_of_a_step_of_every_key_at_every_clock(settings: dict[str, object], sparse: bool) -> None:
    for seed in range(2):
        rig = Rig(make_runtime(sparse=sparse, **settings), seed, partition=seed)
        for _ in range(12):
            before = rig.eager.values.copy()
            rig.train()
            if rig.rng.random() < 0.6:
                rig.check()
            if rig.rng.random() < 0.4:
                assert rig.read(rig.clock - 1)[0].tobytes() == before.tobytes()
            if rig.rng.random() < 0.3:
                assert rig.store.export().tobytes() == rig.eager.values.tobytes()
            if rig.rng.random() < 0.35:
                rig.regroup()
        assert rig.store.export().tobytes() == rig.eager.values.tobytes(), f"seed {seed}"


@pytest.mark.parametrize("settings", [{"optimizer": "sgd"}, {"optimizer": "adagrad"}, *OPTIMIZERS[-1:]], ids=str)
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_clock_whose_gradients_are_zero_counts_and_changes_no_bit(settings: dict[str, object], sparse: bool) -> None:
    rig = Rig(make_runtime(sparse=sparse, **settings), 1)
    for _ in range(3):
        rig.train()
    before, applied = rig.store.export(), rig.store.ledger()[0]
    rig.regroup()
    gradients = {split: np.zeros(rig.num_keys, np.float32) for split in range(SPLITS)}
    for is_first, push in zip([True, *[False] * SPLITS], rig.pushes(gradients), strict=False):
        rig.store.accumulate(push, is_first)
    rig.store.step(rig.clock, keep_gradient=False)
    rig.eager.step(gradients, rig.clock)
    rig.clock += 1
    assert rig.store.ledger()[0] == applied + SPLITS
    rig.check()
    for clock in (rig.clock - 1, rig.clock):
        assert rig.read(clock)[0].tobytes() == before.tobytes()
    rig.train()
    rig.check()


@pytest.mark.parametrize("settings", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_follower_that_is_promoted_goes_on_with_the_same_bits(settings: dict[str, object], sparse: bool) -> None:
    for seed in range(2):
        rig = Rig(make_runtime(sparse=sparse, **settings), seed)
        for _ in range(2):
            rig.train()
        arrays, _ = rig.store.snapshot()
        as_sent = [array.tobytes() for array in arrays]
        follower = PartitionStore(rig.runtime, 0, np.zeros_like(rig.eager.values))
        follower.install([array.copy() for array in arrays])
        for _ in range(4):
            update = rig.train(keep_gradient=True)
            lent = [update.gradient.copy(), update.exponents.copy()]
            keys = None if update.keys is None else update.keys.copy()
            follower.apply_update(type(update)(lent[0], keys, lent[1], 1.0), rig.clock - 1, range(SPLITS))
            for array in lent if keys is None else (*lent, keys):
                array.fill(77)
            if rig.rng.random() < 0.3:
                rig.regroup()
        assert [array.tobytes() for array in arrays] == as_sent
        rig.store = follower
        rig.check()
        for _ in range(2):
            rig.train()
            rig.check()
        assert follower.ledger()[0] == rig.clock * SPLITS


@pytest.mark.parametrize("num_splits", [3, 16, 17, 40])
def test_follower_counts_any_number_of_splits_as_they_come_in_a_message(num_splits: int) -> None:
    shape = DataShape(FEATURES, 2, (SAMPLES,) * num_splits, False, 0, ("",) * num_splits)
    runtime = replace(make_runtime(sparse=False, splits=num_splits), shape=shape)
    owner, follower = (PartitionStore(runtime, 0, np.zeros(_length(runtime), np.float32)) for _ in range(2))
    follower.install([array.copy() for array in owner.snapshot()[0]])
    length = _length(runtime)
    update = UpdateData(np.ones(length, np.float32), None, runtime.grid.initial_exponents(length), 1.0)
    follower.apply_update(update, 0, tuple(range(num_splits)))
    assert follower.ledger()[0] == num_splits


def test_lent_parameters_never_change_and_come_from_the_memory_that_was_given() -> None:
    runtime = make_runtime(sparse=False)
    rig = Rig(runtime, 1)
    made: list[np.ndarray] = []

    def empty(length: int) -> np.ndarray:
        made.append(np.full(length, POISON, np.float32))
        return made[-1]

    rig.store = PartitionStore(runtime, 0, rig.eager.values, empty)
    lent = []
    for _ in range(4):
        rig.train()
        values, _ = rig.read(rig.clock)
        assert any(values is memory for memory in made)
        lent.append((values, values.copy()))
    assert all(values.tobytes() == copy.tobytes() for values, copy in lent)


def test_step_without_followers_keeps_no_gradient() -> None:
    rig = Rig(make_runtime(), 1)
    rig.train()
    assert rig.train(keep_gradient=False) is None
    assert rig.train(keep_gradient=True) is not None


def test_version_before_goes_when_the_next_clock_begins() -> None:
    for sparse in (True, False):
        rig = Rig(make_runtime(sparse=sparse), 1)
        rig.train()
        rig.train()
        gradients = rig.gradients()
        first = next(rig.pushes(gradients))
        rig.read(rig.clock - 1)
        rig.store.accumulate(first, True)
        with pytest.raises(ProtocolError, match="no longer keeps"):
            rig.read(rig.clock - 1)


def test_server_holds_little_more_than_it_must() -> None:
    rig = Rig(make_runtime(sparse=False, optimizer="adam"), 1)
    rig.train()
    rig.train()
    length = rig.stop - rig.start
    parts = rig.store, rig.store._parameters
    held = [a for part in parts for a in vars(part).values() if isinstance(a, np.ndarray)]
    held += [*rig.store._parameters.slots, rig.store._pushes._memory[1]]
    whole = [array for array in held if array.size == length]
    # Parameters, the version before, two slots and one sum.
    assert len({array.__array_interface__["data"][0] for array in whole}) == 5


def test_snapshot_of_another_partition_is_refused() -> None:
    rig = Rig(make_runtime(optimizer="adam"), 1)
    arrays = list(rig.store.snapshot()[0])
    with pytest.raises(TransferError, match="expected"):
        rig.store.install([*arrays[:4], arrays[4][:-1], *arrays[5:]])


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("settings", OPTIMIZERS, ids=str)
def test_sums_that_need_not_be_reproducible_are_close_to_exact_ones(settings: dict[str, object], sparse: bool) -> None:
    rig = Rig(make_runtime(sparse=sparse, reproducible=False, **settings), 5)
    eager = Rig(rig.runtime, 5).eager
    assert rig.clock == 0
    for _ in range(8):
        gradients = {split: np.clip(g, -5, 5) for split, g in rig.gradients().items()}
        for i, push in enumerate(rig.pushes(gradients)):
            keys = np.arange(rig.start, rig.stop) if push.keys is None else push.keys
            total = sum(gradients[split] for split in push.splits)[keys]
            plain = PushPart(0, rig.clock, push.splits, push.samples, total, push.maxima[:0], push.keyset, push.keys)
            rig.store.accumulate(plain, i == 0)
            total.fill(POISON)
        rig.store.step(rig.clock, False)
        mean = sum(gradients.values())[rig.start : rig.stop] / np.float32(SAMPLES * SPLITS)
        rig.runtime.optimizer.step(eager.values, eager.slots, mean.astype(np.float32), rig.clock, eager.penalised)
        rig.clock += 1
        assert np.allclose(rig.read(rig.clock)[0], eager.values, rtol=1e-4, atol=1e-4)
        if rig.rng.random() < 0.4:
            rig.regroup()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0, -1e-45])
def test_push_with_maxima_that_are_no_magnitudes_is_refused(bad: float) -> None:
    runtime = make_runtime()
    blocks = runtime.grid.num_blocks(runtime.ranges[0][1] - runtime.ranges[0][0])
    maxima = np.full(blocks, np.finfo(np.float32).max, np.float32)
    check_pushes(runtime, [PushPart(0, -1, (0,), SAMPLES, np.empty(0, runtime.grid.dtype), maxima)])
    maxima[-1] = bad
    with pytest.raises(ProtocolError, match="negative, infinite or NaN"):
        check_pushes(runtime, [PushPart(0, -1, (0,), SAMPLES, np.empty(0, runtime.grid.dtype), maxima)])
