"""Compiled steps of the optimizers: from the sum of a clock to the parameters after it, in one pass over memory.

One call does what :meth:`eps.ml.sums.ClockSum.means` and :meth:`eps.ml.optim.Optimizer.step` do chunk by chunk.  It
reads the sum and its last term, computes the mean gradient, updates the slots in place and writes the parameters out of
place.  The bits are those of the NumPy code: one float32 operation for each of NumPy's, in its order, no ``fastmath``,
constants rounded to float32 where NumPy rounds them.  A tile of keys goes through several short loops.  So temporaries
stay in the first-level cache, and LLVM, which vectorises loops only over a few possibly aliased arrays, vectorises all.

A mean is a division, which would take longer than the rest of a plain step.  For int32 sums it is a product with
``unit / samples`` instead, rounded to 50 bits before it is rounded to float32.  The bits are those of the division:

* The relative error of the product is below ``2^-51``, and below ``2^-49`` once it is rounded to 50 bits.
* A midpoint between two float32 is ``M 2^e`` with ``M < 2^25``.  Let ``t 2^k / s`` be a quotient of an integer ``t`` of
  31 bits by ``s < 2^24`` samples.  Unless it is a midpoint, it differs from every midpoint by at least one part in
  ``s M`` or in ``t``: more than ``2^-49``.  So the rounded product is on the same side.
* A quotient that is a midpoint has 25 bits.  It is the 50-bit number nearest to the product, so rounding restores it.

Milliseconds per million values, for 12 partitions of 83,333 keys one after the other, int32 sums, one core; the last
column with a division for each mean:

=========  =====  =====  ========
rule       NumPy  Numba  dividing
=========  =====  =====  ========
sgd        3.6    0.63   0.99
momentum   4.1    0.90   1.2
adagrad    5.0    1.1    1.4
adam       6.7    1.5    1.8
ftrl       7.7    2.1    2.5
=========  =====  =====  ========

Source: performance.md section 3.  Each rule names its own in :mod:`eps.ml.optim`.  Deviation: none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from eps.ml import kernels

#: Numbers of the rules, for ``Optimizer.rule``.
SGD, MOMENTUM, ADAGRAD, ADAM, FTRL = range(5)
#: Flags of the penalties that are on.
L1, L2 = 1, 2
#: Constants of a step, float32: rate, threshold or strength of L1, strength of L2, then the rule's own.
NUM_CONSTANTS = 10

#: Keys that go through all loops of a rule before the next tile.
TILE_KEYS = 2048

#: (total, added, bounds, exponents, shift, samples, gradient, before, after, first, second, mask, penalties,
#: constants).
Step = Callable[..., None]

#: Means over fewer samples are products; see above.
_SAMPLES_LIMIT = 2.0**24

_built: dict[tuple[int, np.dtype[Any]], Step] = {}


def step_of(rule: int, dtype: np.dtype[Any]) -> Step:
    """Return the compiled step of a rule for sums of a type; requires active kernels.

    The sum is ``total + added``, or ``total`` if ``added`` is empty.  Its block b occupies [bounds[b], bounds[b + 1]),
    with the mean gradient ``sum * 2^(exponents[b] + shift) / samples``, which is stored in ``gradient`` unless that is
    empty.  ``first`` and ``second`` are the slots, ``mask`` the keys that take penalties; each is empty if not used.
    """
    found = _built.get((rule, dtype))
    if found is None:
        found = _built[rule, dtype] = _compile(rule, dtype)
    return found


def _compile(rule: int, dtype: np.dtype[Any]) -> Step:
    types = kernels.numba().types
    given, taken = kernels.given, kernels.taken
    arrays = [taken(types.float32), given(types.float32), *[taken(types.float32)] * 3, given(types.boolean)]
    number = given(getattr(types, dtype.name))
    summed = [number, number, given(types.int64), given(types.int16), types.int64, types.float64]
    accepted = types.void(*summed, *arrays, types.int64, given(types.float32))
    # With Python's error model every division would need a check for zero, which prevents vectorisation.
    step: Step = kernels.build(_step(rule, dtype.type), [accepted], error_model="numpy")
    return step


def _step(rule: int, number: Any) -> Callable[..., None]:
    """Return the function to compile; ``rule`` is a constant for the compiler, which drops the other rules."""
    is_int32 = number is np.int32

    def step(
        total: Any,
        added: Any,
        bounds: Any,
        exponents: Any,
        shift: int,
        samples: float,
        gradient: Any,
        before: Any,
        after: Any,
        first: Any,
        second: Any,
        mask: Any,
        penalties: int,
        constants: Any,
    ) -> None:
        memory, summed = np.empty((4, TILE_KEYS), np.float32), np.empty(TILE_KEYS, number)
        rate, l1, l2, a, b, c, d, e, f, g = (
            constants[0],
            constants[1],
            constants[2],
            constants[3],
            constants[4],
            constants[5],
            constants[6],
            constants[7],
            constants[8],
            constants[9],
        )
        by_product = is_int32 and samples < _SAMPLES_LIMIT
        block = 0
        for start in range(0, before.size, TILE_KEYS):
            stop = min(start + TILE_KEYS, before.size)
            size = stop - start
            at = start
            grad = gradient[start:stop] if gradient.size else memory[0, :size]
            while at < stop:
                while bounds[block + 1] <= at:
                    block += 1
                end = min(bounds[block + 1], stop)
                unit = math.ldexp(1.0, exponents[block] + shift)
                first_terms, part, target = total[at:end], summed[: end - at], grad[at - start : end - start]
                if added.size:
                    last_terms = added[at:end]
                    for i in range(part.size):
                        part[i] = first_terms[i] + last_terms[i]
                else:
                    for i in range(part.size):
                        part[i] = first_terms[i]
                ratio = unit / samples
                if samples == 1.0:
                    for i in range(part.size):
                        target[i] = np.float32(np.float64(part[i]) * unit)
                elif by_product:
                    for i in range(part.size):
                        near = np.float64(part[i]) * ratio
                        # Rounded to 50 bits by Dekker's splitting.
                        nine = 9.0 * near
                        target[i] = np.float32(nine - (nine - near))
                else:
                    for i in range(part.size):
                        target[i] = np.float32(np.float64(part[i]) * unit / samples)
                at = end
            old, new = before[start:stop], after[start:stop]

            if penalties & L2 and rule != FTRL:
                plain, grad = grad, memory[1, :size]
                if mask.size:
                    takes = mask[start:stop]
                    for i in range(size):
                        grad[i] = plain[i] + (l2 if takes[i] else np.float32(0.0)) * old[i]
                else:
                    for i in range(size):
                        grad[i] = plain[i] + l2 * old[i]

            rates = memory[2, :size]
            if rule == SGD:
                for i in range(size):
                    new[i] = old[i] - rate * grad[i]
            elif rule == MOMENTUM:
                velocity = first[start:stop]
                for i in range(size):
                    velocity[i] = velocity[i] * a + grad[i]
                    new[i] = old[i] - rate * velocity[i]
            elif rule == ADAGRAD:
                square_sum = first[start:stop]
                for i in range(size):
                    square_sum[i] += grad[i] * grad[i]
                    rates[i] = rate / (np.sqrt(square_sum[i]) + a)
                for i in range(size):
                    new[i] = old[i] - rates[i] * grad[i]
            elif rule == ADAM:
                mean, square_mean = first[start:stop], second[start:stop]
                for i in range(size):
                    mean[i] = mean[i] * a + b * grad[i]
                for i in range(size):
                    square_mean[i] = square_mean[i] * c + d * (grad[i] * grad[i])
                    rates[i] = rate / (np.sqrt(square_mean[i] / e) + g)
                for i in range(size):
                    new[i] = old[i] - rates[i] * (mean[i] / f)
            else:
                z, n = first[start:stop], second[start:stop]
                sigma = memory[3, :size]
                for i in range(size):
                    root = np.sqrt(n[i])
                    n[i] += grad[i] * grad[i]
                    sigma[i] = (np.sqrt(n[i]) - root) / b
                for i in range(size):
                    z[i] += grad[i] - sigma[i] * old[i]
                for i in range(size):
                    rates[i] = (np.sqrt(n[i]) + a) / b
                if mask.size and penalties & L2:
                    takes = mask[start:stop]
                    for i in range(size):
                        rates[i] += l2 if takes[i] else np.float32(0.0)
                else:
                    for i in range(size):
                        rates[i] += l2

            if rule == FTRL or penalties & L1:
                values, limits = first[start:stop] if rule == FTRL else new, memory[1, :size]
                by_key = mask.size > 0 and penalties & L1 > 0
                if by_key:
                    takes = mask[start:stop]
                    for i in range(size):
                        limits[i] = l1 if takes[i] else np.float32(0.0)
                else:
                    for i in range(size):
                        limits[i] = l1
                if rule == ADAGRAD or rule == ADAM:
                    by_key = True
                    for i in range(size):
                        limits[i] = rates[i] * limits[i]
                # As NumPy clips: with array bounds, a zero between zero bounds takes their sign, otherwise its own.
                if by_key:
                    for i in range(size):
                        low = np.float32(0.0) - limits[i]
                        x = values[i]
                        x = x if x != x or x > low else low
                        limits[i] = x if x != x or x < limits[i] else limits[i]
                else:
                    for i in range(size):
                        low = np.float32(0.0) - limits[i]
                        x = values[i]
                        x = low if x < low else x
                        limits[i] = limits[i] if x > limits[i] else x
                if rule == FTRL:
                    for i in range(size):
                        new[i] = (limits[i] - values[i]) / rates[i]
                else:
                    for i in range(size):
                        new[i] -= limits[i]

    return step
