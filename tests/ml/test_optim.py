from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from eps.errors import ConfigError
from eps.ml.optim import OPTIMIZERS, OptimizerSettings, make_optimizer

NAMES = sorted(OPTIMIZERS)


def trained(
    settings: OptimizerSettings, grads: np.ndarray, w0: np.ndarray, mask: np.ndarray | None = None
) -> np.ndarray:
    optimizer = make_optimizer(settings)
    w = w0.astype(np.float32)
    slots = optimizer.initial_slots(w, mask)
    for clock, grad in enumerate(grads):
        optimizer.step(w, slots, grad, clock, mask)
    return w


def reference(settings: OptimizerSettings, grads: np.ndarray, w0: np.ndarray) -> np.ndarray:
    """One key at a time in Python floats, from the formulas of the papers."""
    result = []
    for key, start in enumerate(w0.tolist()):
        w, a, b = start, 0.0, 0.0
        rate, l1, l2 = settings.learning_rate, settings.l1, settings.l2
        if settings.name == "ftrl" and w != 0:
            a = -(w * (settings.ftrl_beta / rate + l2) + np.sign(w) * l1)
        for t, g in enumerate(grads[:, key].tolist(), start=1):
            step = rate
            if settings.name == "ftrl":
                sigma = (np.sqrt(b + g * g) - np.sqrt(b)) / rate
                a += g - sigma * w
                b += g * g
                w = 0.0
                if abs(a) > l1:
                    w = -(a - np.sign(a) * l1) / ((settings.ftrl_beta + np.sqrt(b)) / rate + l2)
                continue
            g += l2 * w
            if settings.name == "sgd":
                w -= step * g
            elif settings.name == "momentum":
                a = settings.momentum * a + g
                w -= step * a
                step /= 1 - settings.momentum
            elif settings.name == "adagrad":
                a += g * g
                step = rate / (np.sqrt(a) + settings.epsilon)
                w -= step * g
            elif settings.name == "adam":
                a = settings.beta1 * a + (1 - settings.beta1) * g
                b = settings.beta2 * b + (1 - settings.beta2) * g * g
                step = rate / (np.sqrt(b / (1 - settings.beta2**t)) + settings.epsilon)
                w -= step * a / (1 - settings.beta1**t)
            w = float(np.sign(w) * max(abs(w) - step * l1, 0.0))
        result.append(w)
    return np.array(result)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.0), (0.02, 0.0), (0.0, 0.1), (0.02, 0.1)])
def test_rules_agree_with_the_formulas_of_the_papers(name: str, l1: float, l2: float) -> None:
    rng = np.random.default_rng(7)
    settings = OptimizerSettings(name, learning_rate=0.05, l1=l1, l2=l2)
    grads = rng.normal(size=(30, 40)).astype(np.float32)
    w0 = rng.normal(size=40).astype(np.float32)
    assert np.allclose(trained(settings, grads, w0), reference(settings, grads, w0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_bits_do_not_depend_on_how_keys_are_grouped(name: str) -> None:
    rng = np.random.default_rng(2)
    size = 40000
    settings = OptimizerSettings(name, l1=0.01, l2=0.05, decay=0.0 if name == "ftrl" else 0.01)
    grads = rng.normal(size=(3, size)).astype(np.float32)
    w0 = rng.normal(size=size).astype(np.float32)
    mask = rng.random(size) < 0.9
    whole = trained(settings, grads, w0, mask)
    edges = [0, *sorted(rng.choice(size, 60, replace=False).tolist()), size]
    parts = [trained(settings, grads[:, a:b], w0[a:b], mask[a:b]) for a, b in pairwise(edges)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_keys_that_are_not_penalised_train_as_without_penalties(name: str) -> None:
    rng = np.random.default_rng(3)
    grads = rng.normal(size=(20, 10)).astype(np.float32)
    w0 = rng.normal(size=10).astype(np.float32)
    mask = np.arange(10) % 2 == 0
    mixed = trained(OptimizerSettings(name, l1=0.1, l2=0.2), grads, w0, mask)
    assert np.array_equal(mixed[mask], trained(OptimizerSettings(name, l1=0.1, l2=0.2), grads, w0)[mask])
    assert np.allclose(mixed[~mask], trained(OptimizerSettings(name), grads, w0)[~mask], rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ftrl"])
def test_l1_gives_exact_zeros_and_the_minimum_of_the_penalised_objective(name: str) -> None:
    target, curvature = np.array([2.0, 0.05, -1.0, 0.0]), np.array([1.0, 2.0, 4.0, 1.0])
    rate = 1.0 if name == "adagrad" else 0.02
    optimizer = make_optimizer(OptimizerSettings(name, learning_rate=rate, l1=0.2, l2=0.5))
    w = np.full(4, 0.3, dtype=np.float32)
    slots = optimizer.initial_slots(w)
    for clock in range(4000):
        optimizer.step(w, slots, (curvature * (w - target)).astype(np.float32), clock, None)
    best = np.sign(target) * np.maximum(curvature * np.abs(target) - 0.2, 0) / (curvature + 0.5)
    assert w[1] == 0.0 and w[3] == 0.0
    assert np.allclose(w, best, atol=2e-3)


def test_ftrl_keeps_weights_at_zero_while_the_sum_of_gradients_is_below_l1() -> None:
    optimizer = make_optimizer(OptimizerSettings("ftrl", learning_rate=1.0, l1=1.0))
    w = np.zeros(2, dtype=np.float32)
    slots = optimizer.initial_slots(w)
    for clock in range(9):
        optimizer.step(w, slots, np.array([0.1, -0.2], dtype=np.float32), clock, None)
    assert w[0] == 0 and w[1] > 0


def test_ftrl_starts_at_the_given_weights() -> None:
    w = np.array([0.0, 1.0, -0.5, 1e-3], dtype=np.float32)
    start = w.copy()
    optimizer = make_optimizer(OptimizerSettings("ftrl", l1=0.1, l2=0.1))
    slots = optimizer.initial_slots(w, np.array([True, True, False, True]))
    assert np.allclose(w, start, rtol=1e-4)
    before = [array.copy() for array in (w, *slots)]
    optimizer.step(w, slots, np.zeros(4, dtype=np.float32), 0, np.array([True, True, False, True]))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(before, (w, *slots), strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.0), (0.02, 0.0), (0.0, 0.1)])
def test_rules_that_say_so_do_nothing_without_a_gradient(name: str, l1: float, l2: float) -> None:
    rng = np.random.default_rng(5)
    optimizer = make_optimizer(OptimizerSettings(name, l1=l1, l2=l2))
    w = rng.normal(size=100).astype(np.float32)
    w[:20] = 0
    slots = optimizer.initial_slots(w)
    for clock in range(5):
        grad = rng.normal(size=100).astype(np.float32)
        grad[:30] = 0
        optimizer.step(w, slots, grad, clock, None)
    rest = optimizer.at_rest(w, slots, None)
    before = [array.copy() for array in (w, *slots)]
    for clock in range(5, 50):
        optimizer.step(w, slots, np.zeros(100, dtype=np.float32), clock, None)
    same = [a.view(np.uint32) == b.view(np.uint32) for a, b in zip(before, (w, *slots), strict=True)]
    assert rest[:20].all() and all(array[rest].all() for array in same)
    assert not optimizer.idle_step_changes_nothing() or all(array.all() for array in same)


def test_rate_scale_and_decay_multiply_the_rate() -> None:
    optimizer = make_optimizer(OptimizerSettings("sgd", learning_rate=0.5, decay=1.0))
    w = np.zeros(1, dtype=np.float32)
    optimizer.step(w, [], np.ones(1, dtype=np.float32), 3, None, rate_scale=0.25)
    assert w[0] == -0.5 / 4 * 0.25


@pytest.mark.parametrize("pushes", [4, 16])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("l1", [0.0, 0.01])
def test_the_pushes_of_a_clock_are_together_about_one_step(name: str, pushes: int, l1: float) -> None:
    optimizer = make_optimizer(OptimizerSettings(name, learning_rate=0.05, l1=l1))
    gradient, distances = np.array([1.0, -0.2], np.float32), []
    for parts in (1, pushes):
        w = np.zeros(2, np.float32)
        slots = optimizer.initial_slots(w)
        for clock in range(100):
            if clock == 20:
                # At first the means of fewer gradients differ more.
                start = w.copy()
            for _ in range(parts):
                optimizer.step(w, slots, gradient, clock, None, 1 / parts)
        distances.append(w - start)
    assert distances[1] == pytest.approx(distances[0], rel=0.03)


def test_a_diverging_model_overflows_without_a_warning() -> None:
    for name in NAMES:
        grads = np.full((3, 2), 3e38, dtype=np.float32)
        found = trained(OptimizerSettings(name, learning_rate=1e3, l1=1e-3, l2=1e3), grads, np.ones(2))
        # Where the gradient is divided by its own size, what overflows is infinite, and the parameters stand still.
        assert np.isfinite(found).all() if name in ("adagrad", "adam") else np.isnan(found).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "newton"}, "optimizer is 'newton', but must be one of adagrad, adam, ftrl, momentum, sgd"),
        ({"learning_rate": -0.1}, "learning_rate is -0.1"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"l1": -1.0}, "l1 is -1.0"),
        ({"l2": float("inf")}, "l2 is inf"),
        ({"momentum": 1.0}, r"momentum is 1.0, but must be in \[0, 1\)"),
        ({"beta2": -0.1}, "beta2 is -0.1"),
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"name": "ftrl", "decay": 0.1}, "decay is 0.1, but must be 0 with ftrl"),
    ],
)
def test_constants_outside_their_range_are_refused_with_value_and_rule(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptimizerSettings(**arguments)
