"""Pushes and pulls as data-plane messages, which a worker and a server exchange at every clock.

The header is a ``DataHeader`` (``proto/eps/pb/data.proto``); the arrays follow in the order of its parts.  Parts are
stored in columns, and adjacent arrays are sent as one array.  Without both, a clock of 64 partitions of 1,000 keys
takes 2.3 times as long (shared memory; 1.3 times without either of the two).

The parsers check arrays against the header, so that the server's arithmetic never sees a bad shape.

Between hosts, :class:`Lean` sends less: only changed values, or values as float16.  Over 1 Gbit/s (a link shaped with
``tc``, 800,000 keys, 2 workers) a clock takes 0.66 of its time if 2% of a push are not zero, and 0.67 with float16.  On
loopback, sending only changed values takes 1.1 times as long, and float16 5 times.

Source: EPS §2.2 Fig. 1 (push updates, receive partitions); Li et al. 2014 (Parameter Server), sections 3.4 (key caching
and value compression) and 3.6 (filters).  Deviation: zeros are left out by position, not by a general compressor.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, pairwise
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from eps.errors import ProtocolError
from eps.net.arrays.api import Message
from eps.pb import control_pb2
from eps.pb import data_pb2 as pb

#: Upper bound of a partition's keys if no better one is known: positions are int32.
MOST_KEYS = 2**31 - 1
#: Above this share of non-zero values, positions cost more than they save.
MOST_CHANGED = 0.4

_NO_EXPONENTS = np.empty(0, np.int16)
_FLOAT32, _INT16 = np.dtype(np.float32), np.dtype(np.int16)

ValueT = TypeVar("ValueT")

#: A block whose values are not on the integer grid: (split, index of the block in the partition, values).
Raw = tuple[int, int, np.ndarray]


@dataclass(frozen=True, slots=True)
class Lean:
    """Which reductions of message size are on."""

    #: Pushes carry only non-zero values.
    changed_only: bool = False
    #: Send values as float16: half the bytes.  Values keep 11 bits down to 2**-14 of the largest magnitude of their
    #: array, fewer below, and become 0 below 2**-25 of it.
    float16: bool = False


PLAIN = Lean()


# Parts and answers are created for every partition at every clock.  They are not frozen, since that takes four times as
# long.  Only a server changes one: it fills in the keys of a known key set.


@dataclass(slots=True, eq=False)
class PushPart:
    """The contributions of some splits to one clock of one partition."""

    partition: int
    clock: int
    splits: tuple[int, ...]
    #: Samples of those splits at that clock.
    samples: int
    #: Grid integers (BSP) or float32 (SSP, ASP), shape (keys,); empty if only maxima are measured.
    total: np.ndarray
    #: Largest magnitude in each block over the push's splits, shape (blocks,), float32; empty under SSP and ASP.
    maxima: np.ndarray
    #: Digest of the keys of a sparse push; empty for a dense one.
    keyset: bytes = b""
    #: Global keys, ascending, int64.  None: every key of the partition, or keys that the digest identifies.
    keys: np.ndarray | None = None
    raw: tuple[Raw, ...] = ()

    def copied(self) -> PushPart:
        """Return the same push with copied arrays, which outlive its message."""
        raw = tuple((split, block, values.copy()) for split, block, values in self.raw)
        return replace(self, total=self.total.copy(), maxima=self.maxima.copy(), raw=raw)


@dataclass(slots=True, eq=False)
class PullPart:
    """A read of one partition."""

    partition: int
    min_clock: int
    keyset: bytes = b""
    #: As in :class:`PushPart`.
    keys: np.ndarray | None = None
    #: Expected number of values; not sent.
    size: int = 0


@dataclass(slots=True, eq=False)
class PushAnswer:
    """A server's answer to a push: accepted, already present in part, or refused."""

    partition: int
    have: tuple[int, ...] = ()
    accepted: bool = True
    refusal: pb.Refusal | None = None


@dataclass(slots=True, eq=False)
class PullAnswer:
    """The parameters of one partition."""

    partition: int
    clock: int = 0
    values: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    exponents: np.ndarray = field(default_factory=lambda: np.empty(0, np.int16))
    refusal: pb.Refusal | None = None


def keyset_digest(keys: np.ndarray) -> bytes:
    """Return a 16-byte digest of a set of keys."""
    return hashlib.blake2b(keys.tobytes(), digest_size=16).digest()


def parse_header(message: Message) -> pb.DataHeader:
    """Return the header of a data-plane message.

    Raises
    ------
    ProtocolError
        The header is malformed or empty.
    """
    header = pb.DataHeader()
    try:
        header.ParseFromString(message.header)
    except DecodeError as error:
        raise ProtocolError(f"a data-plane message has a malformed header: {error}") from None
    if header.WhichOneof("kind") is None:
        raise ProtocolError("a data-plane message has an empty header")
    return header


def build_exchange(
    pushes: Sequence[PushPart],
    pulls: Sequence[PullPart],
    lean: Lean = PLAIN,
    *,
    incarnation: int = 0,
    results: Sequence[control_pb2.ClockReported] = (),
) -> Message:
    """Return the message with ``pushes`` and ``pulls`` for one server, reduced as ``lean`` says.

    ``results`` are the measurements at the clocks of the pushes.
    """
    header = pb.DataHeader()
    exchange = header.exchange
    exchange.incarnation = incarnation
    exchange.SetInParent()
    exchange.results.extend(results)
    arrays: list[np.ndarray] = []
    for _, alike in groupby(pushes, _of_push):
        arrays += _add_pushes(exchange.pushes.add(), list(alike), lean)
    for _, asked in groupby(pulls, _of_pull):
        arrays += _add_pulls(exchange.pulls.add(), list(asked))
    return Message(header.SerializeToString(), tuple([np.ascontiguousarray(a) for a in arrays]))


def _of_push(push: PushPart) -> tuple[int, tuple[int, ...], int]:
    """Return the values by which pushes of one message are grouped."""
    return push.clock, push.splits, push.samples


def _of_pull(pull: PullPart) -> int:
    return pull.min_clock


def _add_pushes(columns: pb.Pushes, pushes: Sequence[PushPart], lean: Lean) -> list[np.ndarray]:
    """Describe pushes of equal splits and clock; return their arrays."""
    first = pushes[0]
    columns.clock, columns.samples = first.clock, first.samples
    columns.splits.extend(first.splits)
    columns.partitions.extend([push.partition for push in pushes])
    if any([push.keyset for push in pushes]):
        columns.keysets.extend([push.keyset for push in pushes])
    plain = not (lean.changed_only or lean.float16 or any([push.raw or push.keys is not None for push in pushes]))
    packed = _packed(pushes) if plain else None
    if packed is not None:
        columns.sums.extend([len(push.total) for push in pushes])
        columns.maxima.extend([len(push.maxima) for push in pushes])
        return packed
    arrays: list[np.ndarray] = []
    for index, push in enumerate(pushes):
        form, sums = (None, [push.total]) if plain else pack(push.total, lean)
        if form is None and push.keys is None and not push.raw:
            arrays += [*sums, push.maxima]
            continue
        extra = columns.extras.add(index=index, has_keys=push.keys is not None, form=form)
        arrays += [*sums, push.maxima] if push.keys is None else [push.keys, *sums, push.maxima]
        if push.raw:
            extra.raw_splits.extend(split for split, _, _ in push.raw)
            extra.raw_blocks.extend(block for _, block, _ in push.raw)
            extra.raw_lengths.extend(len(values) for _, _, values in push.raw)
            arrays.append(np.concatenate([values for _, _, values in push.raw]))
    return arrays


def _add_pulls(columns: pb.Pulls, pulls: Sequence[PullPart]) -> list[np.ndarray]:
    """Describe pulls of equal clock; return the attached keys."""
    columns.min_clock = pulls[0].min_clock
    columns.partitions.extend([pull.partition for pull in pulls])
    if any([pull.keyset for pull in pulls]):
        columns.keysets.extend([pull.keyset for pull in pulls])
    attached = [(index, pull.keys) for index, pull in enumerate(pulls) if pull.keys is not None]
    columns.with_keys.extend([index for index, _ in attached])
    return [keys for _, keys in attached]


def _packed(pushes: Sequence[PushPart]) -> list[np.ndarray] | None:
    """Return one array of all sums and one of all maxima; None if that needs a copy."""
    if len(pushes) < 2:
        return None
    sums = _side_by_side([push.total for push in pushes])
    if sums is None:
        return None
    maxima = _side_by_side([push.maxima for push in pushes])
    return None if maxima is None else [sums, maxima]


def _side_by_side(parts: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the array of which ``parts`` are consecutive pieces; None if they are not."""
    filled = [part for part in parts if len(part)]
    if not filled:
        return parts[0]
    base, dtype = filled[0].base, filled[0].dtype
    # In shared memory, the base is the bytes of the block.
    if not isinstance(base, np.ndarray) or base.ndim != 1:
        return None
    try:
        start = at = _address(filled[0])
        for part in filled:
            if part.base is not base or part.dtype != dtype or _address(part) != at:
                return None
            at += part.nbytes
        first = start - _address(base)
    except TypeError:
        # Read-only or not contiguous.
        return None
    return base.view(np.uint8)[first : first + at - start].view(dtype)


def _address(array: np.ndarray) -> int:
    """Return the address of a writable contiguous array; raise TypeError for others."""
    # Four times faster than what NumPy offers.
    return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]


def parse_exchange(
    exchange: pb.Exchange, arrays: Sequence[np.ndarray], longest: int
) -> tuple[list[PushPart], list[PullPart]]:
    """Return the parts of an exchange; no partition may have more than ``longest`` keys.

    Raises
    ------
    ProtocolError
        The arrays do not match the header.
    """
    rest = iter(arrays)
    pushes = [push for columns in exchange.pushes for push in _pushes(columns, rest, longest)]
    pulls = [pull for columns in exchange.pulls for pull in _pulls(columns, rest)]
    if next(rest, None) is not None:
        raise ProtocolError(f"an exchange came with {len(arrays)} arrays, more than its parts need")
    return pushes, pulls


def _pushes(columns: pb.Pushes, rest: Iterator[np.ndarray], longest: int) -> list[PushPart]:
    """Return pushes of equal splits and clock."""
    partitions, count = columns.partitions, len(columns.partitions)
    clock, splits, samples = columns.clock, tuple(columns.splits), columns.samples
    keysets = _column(columns.keysets, count, b"")
    if columns.sums:
        sums = _pieces(_next(rest, None), columns.sums)
        maxima = _pieces(_next(rest, _FLOAT32), columns.maxima)
        if columns.extras or not len(sums) == len(maxima) == count:
            raise ProtocolError(f"{count} pushes came with {len(sums)} sums and {len(maxima)} maxima")
        return [
            PushPart(partition, clock, splits, samples, total, found, keyset)
            for partition, keyset, total, found in zip(partitions, keysets, sums, maxima, strict=True)
        ]
    if not columns.extras:
        return [
            PushPart(partition, clock, splits, samples, _next(rest, None), _next(rest, _FLOAT32), keyset)
            for partition, keyset in zip(partitions, keysets, strict=True)
        ]
    extras = {extra.index: extra for extra in columns.extras}
    if len(extras) < len(columns.extras) or max(extras, default=-1) >= count:
        raise ProtocolError(f"{count} pushes have extras at indices {[extra.index for extra in columns.extras]}")
    found_parts = []
    for index, (partition, keyset) in enumerate(zip(partitions, keysets, strict=True)):
        extra = extras.get(index)
        keys = _keys(rest) if extra is not None and extra.has_keys else None
        total = unpack(extra.form, rest, longest) if extra is not None and extra.HasField("form") else _next(rest, None)
        found = _next(rest, _FLOAT32)
        raw = () if extra is None or not extra.raw_splits else _raw(extra, rest)
        found_parts.append(PushPart(partition, clock, splits, samples, total, found, keyset, keys, raw))
    return found_parts


def _raw(extra: pb.PushExtra, rest: Iterator[np.ndarray]) -> tuple[Raw, ...]:
    """Return the blocks of a push that are not on the grid."""
    if not len(extra.raw_splits) == len(extra.raw_blocks) == len(extra.raw_lengths):
        raise ProtocolError("the lists of a push's blocks off the grid differ in length")
    values = _pieces(_next(rest, _FLOAT32), extra.raw_lengths)
    return tuple(zip(extra.raw_splits, extra.raw_blocks, values, strict=True))


def _pulls(columns: pb.Pulls, rest: Iterator[np.ndarray]) -> list[PullPart]:
    """Return pulls of equal clock."""
    partitions, count = columns.partitions, len(columns.partitions)
    clock, keysets = columns.min_clock, _column(columns.keysets, count, b"")
    pulls = [PullPart(partition, clock, keyset) for partition, keyset in zip(partitions, keysets, strict=True)]
    if not columns.with_keys:
        return pulls
    if len(set(columns.with_keys)) < len(columns.with_keys) or max(columns.with_keys, default=-1) >= count:
        raise ProtocolError(f"{count} pulls have keys at indices {list(columns.with_keys)}")
    for index in columns.with_keys:
        pulls[index].keys = _keys(rest)
    return pulls


def _column(values: Sequence[ValueT], count: int, missing: ValueT) -> Sequence[ValueT]:
    """Return one value for each of ``count`` parts; ``missing`` for all if the column is empty."""
    if not values:
        return [missing] * count
    if len(values) != count:
        raise ProtocolError(f"{count} parts have a column of {len(values)} values: must be as many")
    return values


def _pieces(whole: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    """Cut ``whole`` into pieces of these lengths."""
    bounds = list(accumulate(lengths, initial=0))
    if bounds[-1] != len(whole):
        raise ProtocolError(f"an array has {len(whole)} values, but its header announces {bounds[-1]}")
    return [whole[start:stop] for start, stop in pairwise(bounds)]


def _keys(rest: Iterator[np.ndarray]) -> np.ndarray:
    keys = _next(rest, np.dtype(np.int64))
    if len(keys) > 1 and not bool(np.all(keys[1:] > keys[:-1])):
        raise ProtocolError("keys must be ascending and unique")
    return keys


def _next(rest: Iterator[np.ndarray], dtype: np.dtype | None) -> np.ndarray:
    array = next(rest, None)
    if array is None:
        raise ProtocolError("an exchange came with fewer arrays than its parts need")
    if array.ndim != 1 or (dtype is not None and array.dtype != dtype):
        raise ProtocolError(
            f"an exchange has an array {array.dtype}{array.shape}, but must have {dtype} in one dimension"
        )
    return array


def build_reply(pushes: Sequence[PushAnswer], pulls: Sequence[PullAnswer], lean: Lean = PLAIN) -> Message:
    """Return the reply to an exchange, with values reduced as ``lean`` says."""
    # Omitting zeros would not help: parameters are rarely zero.
    lean = Lean(float16=lean.float16)
    header = pb.DataHeader()
    reply = header.exchange_reply
    reply.SetInParent()
    accepted = [a.partition for a in pushes if a.accepted and not a.have and a.refusal is None]
    reply.accepted.extend(accepted)
    for answer in pushes if len(accepted) < len(pushes) else ():
        if answer.accepted and not answer.have and answer.refusal is None:
            continue
        result = reply.pushes.add(partition=answer.partition, have=answer.have, accepted=answer.accepted)
        if answer.refusal is not None:
            result.refusal.CopyFrom(answer.refusal)
    plain = [] if lean.float16 else [pull for pull in pulls if pull.refusal is None]
    others = pulls if not plain else [pull for pull in pulls if pull.refusal is not None]
    reply.served.extend([pull.partition for pull in plain])
    reply.served_clocks.extend([pull.clock for pull in plain])
    arrays = [pull.values for pull in plain]
    packed = _side_by_side(arrays) if len(plain) > 1 else None
    if packed is not None:
        reply.packed_values.extend([len(values) for values in arrays])
        arrays = [packed]
    for pull in others:
        arrays += _add_pull(reply, pull, lean)
    exponents = [pull.exponents for pull in (*plain, *others) if pull.refusal is None]
    if exponents:
        reply.packed_exponents.extend([len(e) for e in exponents])
        arrays.append(exponents[0] if len(exponents) == 1 else np.concatenate(exponents))
    return Message(header.SerializeToString(), tuple(arrays))


def _add_pull(reply: pb.ExchangeReply, pull: PullAnswer, lean: Lean) -> list[np.ndarray]:
    """Describe the answer to a pull; return its values in their wire form."""
    found = reply.pulls.add(partition=pull.partition, clock=pull.clock)
    if pull.refusal is not None:
        found.refusal.CopyFrom(pull.refusal)
        return []
    form, values = pack(pull.values, lean)
    if form is not None:
        found.form.CopyFrom(form)
    return values


def parse_reply(message: Message, longest: int = MOST_KEYS) -> tuple[list[PushAnswer], list[PullAnswer]]:
    """Return the answers in a reply; no partition may have more than ``longest`` keys.

    Raises
    ------
    ProtocolError
        The message is not a reply to an exchange, or its arrays do not match the header.
    """
    header = parse_header(message)
    if header.WhichOneof("kind") != "exchange_reply":
        raise ProtocolError(f"a reply of kind {header.WhichOneof('kind')} to an exchange")
    reply, rest = header.exchange_reply, iter(message.arrays)
    pushes = [PushAnswer(partition) for partition in reply.accepted]
    pushes += [
        PushAnswer(p.partition, tuple(p.have), p.accepted, p.refusal if p.HasField("refusal") else None)
        for p in reply.pushes
    ]
    pulls = _served(reply, rest) if reply.served else []
    pulls += [_pull_answer(part, rest, longest) for part in reply.pulls]
    served = [pull for pull in pulls if pull.refusal is None]
    lengths = reply.packed_exponents
    if len(lengths) != len(served):
        raise ProtocolError(f"a reply serves {len(served)} pulls and has exponents of {len(lengths)}")
    if served:
        for pull, exponents in zip(served, _pieces(_next(rest, _INT16), lengths), strict=True):
            pull.exponents = exponents
    return pushes, pulls


def _served(reply: pb.ExchangeReply, rest: Iterator[np.ndarray]) -> list[PullAnswer]:
    """Return the answers to pulls that are served with plain values; without their exponents."""
    count = len(reply.served)
    clocks = _column(reply.served_clocks, count, 0)
    if reply.packed_values:
        values = _pieces(_next(rest, _FLOAT32), reply.packed_values)
        if len(values) != count:
            raise ProtocolError(f"{count} pulls are served with the values of {len(values)}")
    else:
        values = [_next(rest, _FLOAT32) for _ in range(count)]
    return [
        PullAnswer(partition, clock, piece, _NO_EXPONENTS)
        for partition, clock, piece in zip(reply.served, clocks, values, strict=True)
    ]


def _pull_answer(part: pb.PullResult, rest: Iterator[np.ndarray], longest: int) -> PullAnswer:
    """Return the answer to one pull; without its exponents."""
    if part.HasField("refusal"):
        return PullAnswer(part.partition, refusal=part.refusal)
    if part.HasField("form"):
        values = unpack(part.form, rest, longest)
    else:
        values = _next(rest, _FLOAT32)
    return PullAnswer(part.partition, part.clock, values, _NO_EXPONENTS)


def simple(kind: str, **fields: object) -> bytes:
    """Return a header of one of the small kinds, for example ``simple("export_request", partition=3)``."""
    header = pb.DataHeader()
    part = getattr(header, kind)
    part.SetInParent()
    for name, value in fields.items():
        if isinstance(value, tuple | list):
            getattr(part, name).extend(value)
        else:
            setattr(part, name, value)
    return header.SerializeToString()


def pack(values: np.ndarray, lean: Lean) -> tuple[pb.Form | None, list[np.ndarray]]:
    """Return the form of ``values``, shape (n,), and the arrays to send; the form is None for plain values."""
    form = pb.Form(length=len(values))
    arrays: list[np.ndarray] = []
    if lean.changed_only:
        changed = np.flatnonzero(values)
        if len(changed) <= MOST_CHANGED * len(values):
            form.changed_only = True
            arrays.append(changed.astype(np.int32))
            values = values[changed]
    if lean.float16 and values.dtype == np.float32:
        form.float16 = True
        # The largest value becomes 1: gradients are small, and float16 has no numbers below 6e-8.
        form.scale = _largest(values) or 1.0
        values = (values / np.float32(form.scale)).astype(np.float16)
    if not (form.changed_only or form.float16):
        return None, [values]
    return form, [*arrays, values]


def _largest(values: np.ndarray) -> float:
    """Return the largest finite magnitude, so that one infinite value or NaN does not affect the others."""
    largest = float(np.abs(values).max(initial=0.0))
    if np.isfinite(largest):
        return largest
    return float(np.abs(values).max(initial=0.0, where=np.isfinite(values)))


def unpack(form: pb.Form, rest: Iterator[np.ndarray], longest: int) -> np.ndarray:
    """Return the values, shape (n,), that were given to :func:`pack`.

    Parameters
    ----------
    form : Form
    rest : iterator of ndarray
        Provides the arrays.
    longest : int
        Maximum number of values; checked before memory is allocated.

    Raises
    ------
    ProtocolError
        The arrays do not fit the form.
    """
    if form.length > longest:
        raise ProtocolError(f"an array of {form.length} values is announced, but the limit is {longest}")
    positions = _next(rest, None) if form.changed_only else None
    values = _next(rest, None)
    if form.float16:
        if values.dtype != np.float16:
            raise ProtocolError(f"values of type {values.dtype} are announced as float16")
        values = values.astype(np.float32) * np.float32(form.scale)
    if positions is None:
        if len(values) != form.length:
            raise ProtocolError(f"{len(values)} values came where {form.length} are announced")
        return values
    good = positions.dtype == np.int32 and len(positions) == len(values)
    if good and len(positions):
        ascending = bool(np.all(positions[1:] > positions[:-1]))
        good = ascending and positions[0] >= 0 and positions[-1] < form.length
    if not good:
        raise ProtocolError(f"the positions of {len(values)} changed values of {form.length} are invalid")
    found = np.zeros(form.length, values.dtype)
    found[positions] = values
    return found
