from __future__ import annotations

import numpy as np
import pytest

from eps.ml.optim import OPTIMIZERS, OptimizerSettings, make_optimizer
from eps.ml.steps import catch_up, peek
from tests.fakes.lazy_step import step_lazily

SIZE = 60


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize(
    ("l1", "l2", "decay"), [(0, 0, 0), (0.003, 0, 0), (0, 0.05, 0), (0.003, 0.05, 0), (0.01, 0.1, 0.1)]
)
def test_lazy_updates_have_the_bits_of_eager_ones(name: str, l1: float, l2: float, decay: float) -> None:
    if name == "ftrl":
        decay = 0.0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        optimizer = make_optimizer(OptimizerSettings(name, learning_rate=0.1, l1=l1, l2=l2, decay=decay))
        mask = rng.random(SIZE) < 0.8 if seed else None
        eager = (rng.normal(size=SIZE) * (rng.random(SIZE) < 0.5)).astype(np.float32)
        eager_slots = optimizer.initial_slots(eager, mask)
        lazy, lazy_slots = eager.copy(), [slot.copy() for slot in eager_slots]
        last = np.zeros(SIZE, dtype=np.int32)
        likely = np.repeat([0.9, 0.1, 0.01, 0.0], SIZE // 4)
        for clock in range(120):
            keys = np.flatnonzero(rng.random(SIZE) < likely)
            pulled = np.flatnonzero(rng.random(SIZE) < 0.05)
            seen = peek(optimizer, lazy, lazy_slots, last, pulled, clock, mask)
            assert seen.tobytes() == eager[pulled].tobytes(), f"seed {seed} clock {clock}"
            if rng.random() < 0.3:
                catch_up(optimizer, lazy, lazy_slots, last, pulled, clock, mask)
            scale = float(rng.choice([1.0, 0.5]))
            grad = np.zeros(SIZE, dtype=np.float32)
            grad[keys] = rng.normal(size=keys.size)
            # Idle keys are replayed at the full rate, so a share is stepped only where all keys take part.
            if scale != 1.0:
                keys = np.arange(SIZE)
            optimizer.step(eager, eager_slots, grad, clock, mask, scale)
            step_lazily(optimizer, lazy, lazy_slots, last, keys, grad[keys], clock, mask, scale)
        assert peek(optimizer, lazy, lazy_slots, last, None, 120, mask).tobytes() == eager.tobytes()
        catch_up(optimizer, lazy, lazy_slots, last, None, 120, mask)
        assert last.tolist() == [120] * SIZE
        for a, b in zip((lazy, *lazy_slots), (eager, *eager_slots), strict=True):
            assert a.tobytes() == b.tobytes(), f"seed {seed}"


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_long_waits_have_the_bits_of_eager_updates(name: str) -> None:
    rng = np.random.default_rng(11)
    optimizer = make_optimizer(OptimizerSettings(name, learning_rate=0.01, l1=0.01, l2=0.01, momentum=0.5))
    eager = rng.normal(size=20).astype(np.float32)
    slots = optimizer.initial_slots(eager)
    lazy, lazy_slots = eager.copy(), [slot.copy() for slot in slots]
    last = np.zeros(20, dtype=np.int64)
    grads = np.zeros((1500, 20), dtype=np.float32)
    grads[0] = rng.normal(size=20)
    grads[700, 3] = 1.0
    for clock, grad in enumerate(grads):
        optimizer.step(eager, slots, grad, clock, None)
    step_lazily(optimizer, lazy, lazy_slots, last, np.arange(20), grads[0], 0)
    step_lazily(optimizer, lazy, lazy_slots, last, np.array([3]), grads[700, 3:4], 700)
    catch_up(optimizer, lazy, lazy_slots, last, None, 1500)
    assert all(a.tobytes() == b.tobytes() for a, b in zip((lazy, *lazy_slots), (eager, *slots), strict=True))


def test_peek_changes_nothing() -> None:
    optimizer = make_optimizer(OptimizerSettings("adam", l2=0.1))
    w = np.ones(5, dtype=np.float32)
    slots = optimizer.initial_slots(w)
    last = np.zeros(5, dtype=np.int32)
    assert peek(optimizer, w, slots, last, np.array([1, 4]), 10).max() < 1
    assert np.all(w == 1) and not last.any() and not any(slot.any() for slot in slots)


def test_keys_that_are_ahead_stay_as_they_are() -> None:
    optimizer = make_optimizer(OptimizerSettings("sgd", l2=0.5))
    w, last = np.ones(2, dtype=np.float32), np.array([9, 0], dtype=np.int32)
    catch_up(optimizer, w, [], last, None, 3)
    assert w[0] == 1 and w[1] < 1 and last.tolist() == [9, 3]
