"""Compiled passes over arrays, for models so large that memory bandwidth is the limit; NumPy does the rest.

Every kernel gives the bits of the NumPy code beside its call: one IEEE operation for each of NumPy's, in its order, no
``fastmath``.  Only the bits of a NaN may differ; exports replace every NaN by one pattern.  A kernel exists only where
NumPy is more than 20 % slower.  Dense sums of servers use NumPy; steps of optimizers are in
:mod:`eps.ml.kernels_step`.  Milliseconds per million values, one core, blocks of 4,096 keys, NumPy 2.4, Numba 0.68:

===============================================  =====  =====
what                                             NumPy  Numba
===============================================  =====  =====
first split's gradient stored (``round_dense``)  0.61   0.10
later split's gradient added (``round_dense``)   0.72   0.11
the same at half of the keys (``round_at``)      2.38   0.76
magnitude of each block (``largest``)            0.20   0.05
sum at positions (``add_at``)                    1.65   0.31
read at positions (``take``)                     0.57   0.27
dense ``+=``, for comparison                     0.10
===============================================  =====  =====

Numba takes half a second to import, so a process imports it only when :func:`use_for` is called for a large model.
``EPS_KERNELS`` overrides this: ``numpy`` never, ``numba`` always, ``auto`` (the default) by size.

Source: performance.md section 3, reproducible.md ("Cost").  Deviation: none.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec, source_hash
from pathlib import Path
from typing import Any
from zipimport import zipimporter

import numpy as np
from numpy.typing import NDArray

from eps.errors import ConfigError
from eps.ml.arrays import Float32Array

#: Environment variable that selects NumPy or compiled kernels.
VARIABLE = "EPS_KERNELS"
#: Smaller models need less than a millisecond for a clock in NumPy, so the import of Numba never pays off.
MANY_KEYS = 1 << 17

#: Positions in an array: int64, or uint32, which is cheaper to read if positions are kept.
Positions = NDArray[Any]

#: What a pass does with its rounded values.
STORE, ADD, SUBTRACT = 0, 1, -1

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_MANTISSA_BITS = np.uint32(23)
#: The exponent field of 2^-1, whose frexp exponent is 0.
_HALF = 126
#: ``eps.ml.grid.EXPONENT_FLOOR``.
_FLOOR = -88


@dataclass(frozen=True, slots=True)
class Kernels:
    """The compiled passes.  They do not check positions."""

    #: (bits, grad, bounds, exponents, shift, sum, mode, found, off) -> block that is not finite, or -1.
    round_dense: Callable[..., int]
    #: (bits, grad, positions, bounds, exponents, shift, sum, mode, found, off) -> the same.
    round_at: Callable[..., int]
    #: (bits, bounds, found): magnitude of each block.
    largest: Callable[..., None]
    #: (sum, positions, offset, part): ``sum[positions - offset] += part``.
    add_at: Callable[..., None]
    #: (values, positions, offset, out): ``out[:] = values[positions - offset]``.
    take: Callable[..., None]
    #: (bits of maxima, exponents, decay, following): exponents of the next clock.
    following: Callable[..., None]


_loaded: Kernels | None = None
_active: Kernels | None = None


def use_for(num_keys: int) -> Kernels | None:
    """Return the compiled kernels if a model of ``num_keys`` is large enough and Numba is installed, else None.

    From then on :func:`active` returns the same in this process.

    Raises
    ------
    ConfigError
        ``EPS_KERNELS`` has an invalid value, or requires Numba, which is not installed.
    """
    choice = _choice()
    if choice == "auto" and num_keys > MANY_KEYS:
        _load(required=False)
    found = compiled()
    return None if choice == "auto" and num_keys <= MANY_KEYS else found


def compiled() -> Kernels | None:
    """Return the kernels if this process has loaded them (or ``EPS_KERNELS`` is ``numba``), else None.

    From then on :func:`active` returns the same in this process.
    """
    global _active
    choice = _choice()
    _active = None if choice == "numpy" else _load(required=True) if choice == "numba" else _loaded
    return _active


def active() -> Kernels | None:
    """Return the latest result of :func:`compiled`; cached, because reading the environment costs a small kernel."""
    return _active


def are_possible() -> bool:
    """Return whether Numba is installed and ``EPS_KERNELS`` permits it, whatever the size of the model."""
    return _choice() != "numpy" and find_spec("numba") is not None


def are_missing() -> bool:
    """Return whether Numba is not installed although ``EPS_KERNELS`` permits it."""
    return _choice() != "numpy" and find_spec("numba") is None


def unsigned(positions: Positions) -> NDArray[Any]:
    """Return positions for compiled code: signed ones could count from the end, and that check costs a third more."""
    return positions.view(np.uint64) if positions.dtype == np.int64 else positions


def add_at(total: NDArray[Any], positions: Positions, offset: int, part: NDArray[Any]) -> None:
    """Add ``part`` to ``total`` at ``positions - offset``, which must be unique and inside ``total``."""
    found = _active
    if found is not None:
        found.add_at(total, unsigned(positions), offset, part)
    else:
        total[positions - offset if offset else positions] += part


def take(values: Float32Array, positions: Positions, offset: int, out: Float32Array) -> None:
    """Set ``out`` to ``values[positions - offset]``, which must be inside ``values``."""
    found = _active
    if found is not None:
        found.take(values, unsigned(positions), offset, out)
    else:
        # With mode="raise" NumPy would use a buffer.
        np.take(values, positions - offset if offset else positions, out=out, mode="clip")


def _choice() -> str:
    choice = os.environ.get(VARIABLE) or "auto"
    if choice not in ("auto", "numpy", "numba"):
        raise ConfigError(f"{VARIABLE} is {choice!r}, but must be auto, numpy or numba")
    return choice


def numba() -> Any:
    """Return the Numba module; imports it on first use."""
    return importlib.import_module("numba")


def _load(required: bool) -> Kernels | None:
    global _loaded
    if _loaded is None:
        try:
            numba()
        except ImportError as error:
            if required:
                raise ConfigError(f"{VARIABLE} is numba, which cannot be imported: {error}") from None
            return None
        _loaded = _compile()
    return _loaded


def given(dtype: Any) -> Any:
    """Return the type of an input array: received arrays are read-only and may be unaligned."""
    return numba().types.Array(dtype, 1, "C", readonly=True, aligned=False)


def taken(dtype: Any) -> Any:
    """Return the type of an array that is written."""
    return numba().types.Array(dtype, 1, "C")


def build(function: Callable[..., Any], accepted: list[Any], **options: Any) -> Any:
    """Return a function compiled for some signatures, cached on disk if possible."""
    try:
        _give_file(function)
        return numba().njit(accepted, nogil=True, cache=True, **options)(function)
    except (RuntimeError, OSError):
        # The cache directory is not writable or the disk is full: every process compiles again.
        return numba().njit(accepted, nogil=True, **options)(function)


def _give_file(function: Callable[..., Any]) -> None:
    """Write the module of a function that was imported from an archive beside the archive, so that Numba can cache.

    Numba caches beside the source file.  So all processes that share the archive share the cache: on a YARN node, the
    containers of all of a user's jobs.
    """
    loader = sys.modules[function.__module__].__loader__
    if not isinstance(loader, zipimporter):
        return
    archive = Path(loader.archive).resolve()
    name = f"{function.__module__.replace('.', '/')}.py"
    source = loader.get_data(name)
    path = archive.with_name(f"{archive.name}-{source_hash(source).hex()}") / name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written atomically, and always cleaned up: otherwise every process would leave a file on a full disk.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder) / path.name
            written.write_bytes(source)
            os.replace(written, path)
    function.__code__ = function.__code__.replace(co_filename=str(path))


def _compile() -> Kernels:
    types = numba().types
    bits, floats, indices = given(types.uint32), given(types.float32), given(types.int64)
    exponents, flags, found = given(types.int16), taken(types.boolean), taken(types.uint32)

    def signatures(before: list[Any], after: list[Any], returned: Any, number_types: tuple[Any, ...]) -> list[Any]:
        return [returned(*before, taken(number), *after) for number in number_types]

    whole = (types.int32, types.int64)
    rest = [types.int64, found, flags]
    dense = [bits, floats, indices, exponents, types.int64]
    sparse = [bits, floats, given(types.uint64), indices, exponents, types.int64]

    by_type: dict[str, dict[Any, Any]] = {"dense": {}, "sparse": {}}
    for number, cast in ((types.int32, np.int32), (types.int64, np.int64)):
        by_type["dense"][np.dtype(cast)] = build(_round_dense(cast), signatures(dense, rest, types.int64, (number,)))
        by_type["sparse"][np.dtype(cast)] = build(_round_at(cast), signatures(sparse, rest, types.int64, (number,)))

    def round_dense(*args: Any) -> int:
        return int(by_type["dense"][args[5].dtype](*args))

    def round_at(*args: Any) -> int:
        return int(by_type["sparse"][args[6].dtype](*args))

    places = [[given(number), types.uint64] for number in (types.uint32, types.uint64)]
    adds = [types.void(taken(number), *where, given(number)) for number in (*whole, types.float32) for where in places]
    return Kernels(
        round_dense=round_dense,
        round_at=round_at,
        largest=build(_largest, [types.void(bits, indices, found)]),
        add_at=build(_add_at, adds),
        take=build(_take, [types.void(floats, *where, taken(types.float32)) for where in places]),
        following=build(_following, [types.void(bits, exponents, types.int64, taken(types.int16))]),
    )


# The functions below are compiled.  Blocks are sliced first: LLVM vectorises loops only over non-negative indices.
# Magnitudes are compared as integers, which order like the numbers, with infinity above all and NaN above infinity.


def _round_dense(cast: Any) -> Callable[..., int]:
    """Return the pass that adds a split's gradient to a sum, with integers of type ``cast``."""

    def round_dense(
        bits: Any, grad: Any, bounds: Any, exponents: Any, shift: int, total: Any, mode: int, found: Any, off: Any
    ) -> int:
        for block in range(exponents.size):
            part = grad[bounds[block] : bounds[block + 1]]
            if part.size == 0:
                continue
            magnitudes = bits[bounds[block] : bounds[block + 1]]
            top = np.uint32(0)
            for i in range(part.size):
                top = max(top, np.uint32(magnitudes[i] & _MAGNITUDE))
            if top >= _INFINITY:
                return block
            found[block] = top
            target = total[bounds[block] : bounds[block + 1]]
            if max(np.int32(top >> _MANTISSA_BITS) - _HALF, _FLOOR) > exponents[block] + 2:
                off[block] = True
                if mode == 0:
                    for i in range(part.size):
                        target[i] = 0
                continue
            factor = np.float32(math.ldexp(1.0, -(exponents[block] + shift)))
            if mode == 0:
                for i in range(part.size):
                    target[i] = cast(np.rint(part[i] * factor))
            else:
                for i in range(part.size):
                    target[i] += cast(mode) * cast(np.rint(part[i] * factor))
        return -1

    return round_dense


def _round_at(cast: Any) -> Callable[..., int]:
    """Return the pass that adds a split's gradient at some positions of a sum."""

    def round_at(
        bits: Any,
        grad: Any,
        positions: Any,
        bounds: Any,
        exponents: Any,
        shift: int,
        total: Any,
        mode: int,
        found: Any,
        off: Any,
    ) -> int:
        for block in range(exponents.size):
            part = grad[bounds[block] : bounds[block + 1]]
            if part.size == 0:
                continue
            magnitudes = bits[bounds[block] : bounds[block + 1]]
            top = np.uint32(0)
            for i in range(part.size):
                top = max(top, np.uint32(magnitudes[i] & _MAGNITUDE))
            if top >= _INFINITY:
                return block
            found[block] = top
            if max(np.int32(top >> _MANTISSA_BITS) - _HALF, _FLOOR) > exponents[block] + 2:
                off[block] = True
                continue
            where = positions[bounds[block] : bounds[block + 1]]
            factor = np.float32(math.ldexp(1.0, -(exponents[block] + shift)))
            for i in range(part.size):
                total[where[i]] += cast(mode) * cast(np.rint(part[i] * factor))
        return -1

    return round_at


def _largest(bits: Any, bounds: Any, found: Any) -> None:
    for block in range(found.size):
        magnitudes = bits[bounds[block] : bounds[block + 1]]
        top = np.uint32(0)
        for i in range(magnitudes.size):
            top = max(top, np.uint32(magnitudes[i] & _MAGNITUDE))
        found[block] = top


def _add_at(total: Any, positions: Any, offset: int, part: Any) -> None:
    for i in range(positions.size):
        total[positions[i] - offset] += part[i]


def _take(values: Any, positions: Any, offset: int, out: Any) -> None:
    for i in range(positions.size):
        out[i] = values[positions[i] - offset]


def _following(bits: Any, exponents: Any, decay: int, following: Any) -> None:
    for block in range(exponents.size):
        found = np.int64(bits[block] >> _MANTISSA_BITS) - _HALF
        following[block] = max(found, exponents[block] - decay, _FLOOR)
