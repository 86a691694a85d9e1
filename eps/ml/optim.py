"""Server-side update rules.

A rule works on float32 arrays in place and is stateless: weights and slots belong to the partition.  Rules use only
``+ - * /``, ``sqrt``, ``clip`` and comparisons on arrays.  IEEE 754 defines each of their results, so the bits do not
depend on how keys are grouped into arrays.  (``exp`` and ``pow`` give other bits in the remainder of a SIMD loop.)

The objective is ``mean loss + l1 * |w|_1 + l2 / 2 * |w|^2`` over the penalised keys.  L2 is a term ``l2 * w`` of the
gradient; L1 is a proximal step (soft threshold) after the update, with the step size of each coordinate.  FTRL differs
(see :class:`Ftrl`).

Source: EPS §2.2 (servers apply the updates).  Each rule names its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from eps.errors import ConfigError
from eps.ml import kernels_step
from eps.ml.arrays import BoolArray, Float32Array

#: Keys that are updated at a time, so that temporaries fit into the cache.
CHUNK_KEYS = 32768


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """The update rule and its constants.

    Raises
    ------
    ConfigError
        An unknown rule, or a constant outside its range.
    """

    name: str = "sgd"
    #: Called alpha in FTRL.
    learning_rate: float = 0.1
    l1: float = 0.0
    l2: float = 0.0
    #: The rate at 0-based clock t is ``learning_rate / (1 + decay * t)``.
    decay: float = 0.0
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    #: Added to the square root in Adagrad and Adam.
    epsilon: float = 1e-8
    #: Called beta in FTRL.
    ftrl_beta: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise ConfigError(f"optimizer is {self.name!r}, but must be one of {', '.join(sorted(OPTIMIZERS))}")
        for field in ("learning_rate", "epsilon", "ftrl_beta"):
            value = getattr(self, field)
            if not (math.isfinite(value) and np.float32(value) > 0):
                raise ConfigError(f"{field} is {value}, but must be finite and > 0 (as float32)")
        for field in ("l1", "l2", "decay"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{field} is {value}, but must be finite and >= 0")
        for field in ("momentum", "beta1", "beta2"):
            value = getattr(self, field)
            if not (value >= 0 and np.float32(value) < 1):
                raise ConfigError(f"{field} is {value}, but must be in [0, 1) (as float32)")
        if self.name == "ftrl" and self.decay != 0:
            raise ConfigError(f"decay is {self.decay}, but must be 0 with ftrl, which lowers its rates itself")

    @property
    def has_penalty(self) -> bool:
        """Return whether L1 or L2 is on."""
        return self.l1 != 0 or self.l2 != 0


@dataclass(frozen=True, slots=True)
class _Constants:
    """Constants of a chunk of keys in one step; penalties are arrays by key if some keys take none."""

    clock: int
    rate: float
    rate_scale: float
    l1: Float32Array | float
    l2: Float32Array | float


class Optimizer:
    """One update rule.  Results are equal to the bit, however keys are grouped into calls."""

    #: Names of the float32 arrays beside the weights.
    slots: ClassVar[tuple[str, ...]] = ()
    #: Whether steps with the same inputs are equal at every clock, if the rate does not decay.
    time_invariant: ClassVar[bool] = True
    #: Whether a step takes the sum of a clock's contributions instead of their mean.
    takes_sum: ClassVar[bool] = False
    #: Number of its compiled step.
    rule: ClassVar[int]

    def __init__(self, settings: OptimizerSettings) -> None:
        self.settings = settings
        #: Which penalties are on, for the compiled step.
        self.penalties = (settings.l1 != 0) * kernels_step.L1 + (settings.l2 != 0) * kernels_step.L2
        self._latest: tuple[int, bool, Float32Array] | None = None

    def initial_slots(self, w0: Float32Array, penalised: BoolArray | None = None) -> list[Float32Array]:
        """Return the initial slots; FTRL may change the last bits of ``w0`` to agree with them."""
        return [np.zeros_like(w0) for _ in self.slots]

    def step(
        self,
        w: Float32Array,
        slots: Sequence[Float32Array],
        grad: Float32Array,
        clock: int,
        penalised: BoolArray | None,
        rate_scale: float = 1.0,
    ) -> None:
        """Apply one update in place.

        Parameters
        ----------
        w : ndarray, shape (p,), float32
        slots : sequence of ndarray, shape (p,), float32
            In the order of :attr:`slots`.
        grad : ndarray, shape (p,), float32
            Mean gradient of the loss, without penalties.
        clock : int
            0-based number of updates before this one.
        penalised : ndarray of bool, shape (p,), or None
            Keys that take L1 and L2; None means all.
        rate_scale : float
            Share of a clock's samples in ``grad``, which is a push under SSP and ASP.  The step is this part of a
            whole one, in weights and slots, so that the steps of a clock's pushes are together about one.
        """
        # A diverging model overflows here first; workers detect and report it in the next loss.
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, w.size, CHUNK_KEYS):
                part = slice(start, start + CHUNK_KEYS)
                at = _Constants(
                    clock=clock,
                    rate=self.rate(clock, rate_scale),
                    rate_scale=rate_scale,
                    l1=_strength(self.settings.l1, penalised, part),
                    l2=_strength(self.settings.l2, penalised, part),
                )
                self._update(w[part], [slot[part] for slot in slots], grad[part], at)

    def idle_step_changes_nothing(self) -> bool:
        """Return whether a step with a zero gradient is the identity in every state that training can reach."""
        return not self.settings.has_penalty

    def at_rest(self, w: Float32Array, slots: Sequence[Float32Array], penalised: BoolArray | None) -> BoolArray:
        """Return for which keys a step with a zero gradient is certainly the identity, at every clock.

        Compares bits, not values: -0.0 is not at rest.
        """
        rest: BoolArray = w.view(np.uint32) == 0
        if not self.settings.has_penalty:
            rest[:] = True
        elif penalised is not None:
            rest |= ~penalised
        for slot in slots:
            rest &= slot.view(np.uint32) == 0
        return rest

    def rate(self, clock: int, rate_scale: float) -> float:
        """Return the learning rate at a 0-based clock."""
        return self.settings.learning_rate * rate_scale / (1.0 + self.settings.decay * clock)

    def constants(self, clock: int, has_mask: bool) -> Float32Array:
        """Return the constants of the compiled step, rounded where :meth:`step` rounds them."""
        # Cached, because the partitions of a server need the same ones one after the other.
        known = self._latest
        if known is not None and known[0] == clock and known[1] == has_mask:
            return known[2]
        rate, l1 = self.rate(clock, 1.0), self.settings.l1
        with np.errstate(over="ignore"):
            threshold = self._threshold(rate, np.float32(l1) if has_mask and l1 != 0 else l1)
            found = np.zeros(kernels_step.NUM_CONSTANTS, dtype=np.float32)
            own = self._own_constants(clock)
            found[: 3 + len(own)] = (rate, threshold, self.settings.l2, *own)
        self._latest = clock, has_mask, found
        return found

    def _threshold(self, rate: float, l1: Any) -> Any:
        """Return the L1 constant of the compiled step."""
        return l1

    def _own_constants(self, clock: int) -> tuple[float, ...]:
        """Return the constants that only this rule has."""
        return ()

    def _update(self, w: Float32Array, slots: list[Float32Array], grad: Float32Array, at: _Constants) -> None:
        raise NotImplementedError


def _strength(value: float, penalised: BoolArray | None, part: slice) -> Float32Array | float:
    """Return the strength of a penalty as one number, or by key if some keys take none."""
    if value == 0 or penalised is None:
        return value
    return penalised[part] * np.float32(value)


def _with_l2(w: Float32Array, grad: Float32Array, l2: Float32Array | float) -> Float32Array:
    """Return the gradient with the L2 term, if any; the result is read-only for the caller."""
    return grad if isinstance(l2, float | int) and l2 == 0 else grad + l2 * w


def _share(at: _Constants, values: Float32Array) -> Float32Array:
    """Return the part of the values that belongs to the share of the step."""
    return values if at.rate_scale == 1.0 else at.rate_scale * values


def _shrink(w: Float32Array, threshold: Float32Array | float) -> None:
    """Apply a soft threshold in place: exactly 0 where |w| <= threshold."""
    w -= _clipped(w, threshold)


def _clipped(values: Float32Array, bound: Float32Array | float) -> Float32Array:
    # 0 - bound rather than -bound: whether 0.0 or -0.0 counts as larger depends on the SIMD loop.
    clipped: Float32Array = np.clip(values, 0.0 - bound, bound)
    return clipped


def _is_off(l1: Float32Array | float) -> bool:
    return isinstance(l1, float | int) and l1 == 0


class Sgd(Optimizer):
    """Gradient descent, ``w -= at.rate * g``.

    Source
    ------
    The proximal step: Duchi and Singer 2009 (FOBOS).  Deviation: none.
    """

    rule = kernels_step.SGD

    def _threshold(self, rate: float, l1: Any) -> Any:
        return rate * l1

    def _update(self, w: Float32Array, slots: list[Float32Array], grad: Float32Array, at: _Constants) -> None:
        w -= at.rate * _with_l2(w, grad, at.l2)
        if not _is_off(at.l1):
            _shrink(w, at.rate * at.l1)


class Add(Sgd):
    """Adds the sum of a clock's contributions, ``w += g``; the rule of models with ``Model.adds``.

    Exact for whole numbers that float32 and the grid can hold.
    """

    takes_sum = True

    def rate(self, clock: int, rate_scale: float) -> float:
        return -1.0


class Momentum(Optimizer):
    """Heavy ball, ``v = momentum * v + g``, ``w -= at.rate * v``.

    Source
    ------
    Polyak 1964.  Deviation: the rate multiplies the velocity, not the gradient, as in most libraries.
    """

    slots = ("velocity",)
    rule = kernels_step.MOMENTUM

    def _threshold(self, rate: float, l1: Any) -> Any:
        return rate / (1.0 - self.settings.momentum) * l1

    def _own_constants(self, clock: int) -> tuple[float, ...]:
        return (self.settings.momentum,)

    def idle_step_changes_nothing(self) -> bool:
        return False

    def _update(self, w: Float32Array, slots: list[Float32Array], grad: Float32Array, at: _Constants) -> None:
        (velocity,) = slots
        gradient = _with_l2(w, grad, at.l2)
        kept = self.settings.momentum**at.rate_scale
        if at.rate_scale != 1.0:
            gradient = (1.0 - kept) / (1.0 - self.settings.momentum) * gradient
        velocity *= kept
        velocity += gradient
        w -= at.rate * velocity
        if not _is_off(at.l1):
            # A steady gradient g moves w by rate * g / (1 - momentum); L1 must be as strong to balance it.
            _shrink(w, at.rate / (1.0 - self.settings.momentum) * at.l1)


class Adagrad(Optimizer):
    """A rate for each coordinate, ``h += g^2``, ``w -= at.rate * g / (sqrt(h) + epsilon)``.

    Source
    ------
    Duchi, Hazan and Singer 2011, with the composite (proximal) step of the same paper.  Deviation: none.
    """

    slots = ("square_sum",)
    rule = kernels_step.ADAGRAD

    def _own_constants(self, clock: int) -> tuple[float, ...]:
        return (self.settings.epsilon,)

    def at_rest(self, w: Float32Array, slots: Sequence[Float32Array], penalised: BoolArray | None) -> BoolArray:
        return super().at_rest(w, (), penalised)

    def _update(self, w: Float32Array, slots: list[Float32Array], grad: Float32Array, at: _Constants) -> None:
        (square_sum,) = slots
        gradient = _with_l2(w, grad, at.l2)
        square_sum += _share(at, gradient * gradient)
        rates: Float32Array = np.sqrt(square_sum)
        rates += self.settings.epsilon
        np.divide(at.rate, rates, out=rates)
        w -= rates * gradient
        if not _is_off(at.l1):
            _shrink(w, rates * at.l1)


class Adam(Optimizer):
    """Running means of the gradient and of its square, with bias correction.

    Source
    ------
    Kingma and Ba 2015, algorithm 1.  Deviation: L1 by a proximal step with the coordinate's step size.
    """

    slots = ("mean", "square_mean")
    time_invariant = False
    rule = kernels_step.ADAM

    def _own_constants(self, clock: int) -> tuple[float, ...]:
        beta1, beta2 = self.settings.beta1, self.settings.beta2
        corrections = (1.0 - beta2 ** (clock + 1), 1.0 - beta1 ** (clock + 1))
        return (beta1, 1.0 - beta1, beta2, 1.0 - beta2, *corrections, self.settings.epsilon)

    def idle_step_changes_nothing(self) -> bool:
        return False

    def _update(self, w: Float32Array, slots: list[Float32Array], grad: Float32Array, at: _Constants) -> None:
        mean, square_mean = slots
        beta1, beta2 = self.settings.beta1, self.settings.beta2
        kept1, kept2 = beta1**at.rate_scale, beta2**at.rate_scale
        gradient = _with_l2(w, grad, at.l2)
        mean *= kept1
        mean += (1.0 - kept1) * gradient
        square_mean *= kept2
        square_mean += (1.0 - kept2) * (gradient * gradient)
        rates = square_mean / (1.0 - beta2 ** (at.clock + 1))
        np.sqrt(rates, out=rates)
        rates += self.settings.epsilon
        np.divide(at.rate, rates, out=rates)
        w -= rates * (mean / (1.0 - beta1 ** (at.clock + 1)))
        if not _is_off(at.l1):
            _shrink(w, rates * at.l1)


class Ftrl(Optimizer):
    """FTRL-proximal with its own L1 and L2: exact zeros, and no work for keys without a gradient.

    Its penalties are weighed against the *sum* of all gradients so far, not the mean of a clock.  So the same ``l1``
    weighs less the longer training runs, while the other rules tend to the minimum of the objective above.

    Source
    ------
    McMahan et al. 2013, algorithm 1.  Deviation: ``rate_scale`` multiplies the gradient and its square, because alpha
    is part of the closed form of the weights and cannot change from step to step.
    """

    slots = ("z", "n")
    rule = kernels_step.FTRL

    def _own_constants(self, clock: int) -> tuple[float, ...]:
        return self.settings.ftrl_beta, self.settings.learning_rate

    def initial_slots(self, w0: Float32Array, penalised: BoolArray | None = None) -> list[Float32Array]:
        everything = slice(0, w0.size)
        l1 = _strength(self.settings.l1, penalised, everything)
        l2 = _strength(self.settings.l2, penalised, everything)
        n = np.zeros_like(w0)
        # 0 - x rather than -x: z must not be -0.0, which a step with a zero gradient would turn into 0.0.
        # The type stubs of NumPy say that sign() times a Python number is float64; at run time it stays float32.
        z = np.asarray(np.float32(0.0) - (w0 * self._curvature(n, l2) + np.sign(w0) * l1), dtype=np.float32)
        w0[...] = self._weights(z, n, l1, l2)
        return [z, n]

    def idle_step_changes_nothing(self) -> bool:
        return True

    def _curvature(self, n: Float32Array, l2: Float32Array | float) -> Float32Array:
        curvature = np.sqrt(n)
        curvature += self.settings.ftrl_beta
        curvature /= self.settings.learning_rate
        curvature += l2
        return curvature

    def _weights(
        self, z: Float32Array, n: Float32Array, l1: Float32Array | float, l2: Float32Array | float
    ) -> Float32Array:
        weights = _clipped(z, l1)
        weights -= z
        weights /= self._curvature(n, l2)
        return weights

    def _update(self, w: Float32Array, slots: list[Float32Array], grad: Float32Array, at: _Constants) -> None:
        z, n = slots
        root = np.sqrt(n)
        n += _share(at, grad * grad)
        sigma = np.sqrt(n)
        sigma -= root
        sigma /= self.settings.learning_rate
        sigma *= w
        z += _share(at, grad) - sigma
        w[...] = self._weights(z, n, at.l1, at.l2)


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adagrad": Adagrad,
    "adam": Adam,
    "ftrl": Ftrl,
    "momentum": Momentum,
    "sgd": Sgd,
}


def make_optimizer(settings: OptimizerSettings) -> Optimizer:
    """Return the update rule of the settings."""
    return OPTIMIZERS[settings.name](settings)
