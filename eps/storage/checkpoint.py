"""Checkpoints in a store: format, atomic writing, and verification.

::

    checkpoints/
    ├── 0001-00000040/                 epoch and clock; appears atomically
    │   ├── 000.server-1.part          one partition: header, arrays, checksum
    │   ├── ...
    │   ├── history.jsonl              measurements of the earlier clocks
    │   └── manifest.json              list of the files, with its own checksum
    └── 0001-00000050.partial/         one that is being written

A part consists of ``EPSPART2``, the length of the header (8 bytes, little-endian), the header (JSON: data types and
shapes), the arrays, and the XXH3 (64 bits) of all of that.  Arrays are written from and read into their final memory,
without a copy.

Epoch 1 is a job's first run.  A run that starts from a checkpoint, or rolls back to one, begins the next epoch, so two
checkpoints of the same clock never share a name.  Epochs are for checkpoints only.  Messages between members carry the
incarnation of their membership instead, which begins at 0 in every run.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import xxhash

from eps.core.checkpoints import checkpoint_name
from eps.core.messages import CheckpointPartWritten
from eps.core.progress import ClockHistory, ClockRecord
from eps.errors import ConfigError, StorageError
from eps.storage.api import Storage
from eps.storage.atomic import CHECKSUM, checksum, json_bytes
from eps.storage.locations import Location, location, open_storage

logger = logging.getLogger(__name__)

PARTIAL = ".partial"
MANIFEST = "manifest.json"
HISTORY = "history.jsonl"
_NAME = re.compile(r"(\d{4,})-(\d{8,})", re.ASCII)
#: The last byte is the version of the arrays (:meth:`eps.server.partition_store.PartitionStore.snapshot`).
_MAGIC = b"EPSPART2"
_LENGTH_BYTES = 8
_DIGEST_BYTES = 8
#: A header describes about a dozen arrays.
_MOST_HEADER_BYTES = 1 << 20
#: Size of pieces, small enough that the checksum finds them in the cache.
_PIECE_BYTES = 1 << 20
#: Lines of the history that are formatted at once.
_HISTORY_LINES = 256
#: Data types that a part may hold.
_DTYPES = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a checkpoint."""

    epoch: int
    #: Clock for which the checkpoint was requested.
    clock: int
    #: Settings that must be equal in a job that starts from this checkpoint; see :func:`check_same_job`.
    job: Mapping[str, Any]
    #: One per partition, in order.
    parts: tuple[CheckpointPartWritten, ...]
    #: The job's requested size.
    workers: int
    servers: int
    #: Number of scheduled changes (``--at``) up to this clock that were requested.
    triggers_asked: int
    #: Checksum of the history file.
    history: str

    @property
    def name(self) -> str:
        """The folder's name."""
        return checkpoint_name(self.epoch, self.clock)

    @property
    def first_clock(self) -> int:
        """The clock to continue with: all splits have contributed the earlier clocks to every partition."""
        return min(part.clock for part in self.parts)


def part_name(partition: int, writer: str) -> str:
    """Return the name of a part.  It contains the writer, since two owners may write a partition that is moving."""
    return f"{partition:03d}.{writer}.part"


def check_same_job(checkpoint: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another job.

    Raises
    ------
    ConfigError
        A setting that affects the trained model differs; the message names it.
    """
    for key in sorted({*theirs, *ours}):
        if theirs.get(key) != ours.get(key):
            raise ConfigError(
                f"checkpoint {checkpoint} belongs to another job: its {key} is {theirs.get(key)!r}, this job's is "
                f"{ours.get(key)!r}"
            )


# ---- one partition


def write_part(storage: Storage, path: str, arrays: Sequence[np.ndarray]) -> tuple[int, str]:
    """Write the arrays of a partition; return (size_bytes, checksum) of the file.

    Raises
    ------
    StorageError
        The arrays cannot be written or made durable.  No file exists, or a complete one that no manifest lists.
    """
    header = json.dumps({"arrays": [[a.dtype.name, list(a.shape)] for a in arrays]}).encode("ascii")
    digest, size_bytes = xxhash.xxh3_64(), 0
    with storage.write(path) as file:
        for piece in _pieces([_MAGIC, len(header).to_bytes(_LENGTH_BYTES, "little"), header], arrays):
            digest.update(piece)
            _write_all(file, piece)
            size_bytes += len(piece)
        _write_all(file, digest.digest())
    return size_bytes + _DIGEST_BYTES, digest.hexdigest()


def _pieces(heads: Iterable[bytes], arrays: Iterable[np.ndarray]) -> Iterator[bytes | memoryview]:
    yield from heads
    for array in arrays:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.nbytes else b""
        for start in range(0, len(data), _PIECE_BYTES):
            yield data[start : start + _PIECE_BYTES]


def _write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write everything; one call of a raw file may write less."""
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) or 0 :]


def read_part(storage: Storage, path: str, size_bytes: int, expected: str) -> list[np.ndarray]:
    """Return the arrays of a part, verified against its manifest.

    Raises
    ------
    StorageError
        The file is missing or damaged; the message says how.
    """
    where = storage.describe(path)
    with storage.read(path) as file:
        digest = xxhash.xxh3_64()
        arrays = [np.empty(shape, dtype) for dtype, shape in _read_header(file, digest, where, size_bytes)]
        for array in arrays:
            view = array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")
            for start in range(0, len(view), _PIECE_BYTES):
                piece = view[start : start + _PIECE_BYTES]
                _read_into(file, piece, where)
                digest.update(piece)
        found, more = _read_exactly(file, _DIGEST_BYTES, where), file.read(1)
    if more or digest.digest() != found:
        raise StorageError(f"{where}: is damaged: its bytes do not match the checksum at its end")
    if digest.hexdigest() != expected:
        raise StorageError(f"{where}: has checksum {digest.hexdigest()}, the manifest says {expected}")
    return arrays


def _read_header(
    file: BinaryIO, digest: xxhash.xxh3_64, where: str, size_bytes: int
) -> list[tuple[str, tuple[int, ...]]]:
    head = _read_exactly(file, len(_MAGIC) + _LENGTH_BYTES, where)
    length = int.from_bytes(head[len(_MAGIC) :], "little")
    if head.startswith(_MAGIC[:-1]) and not head.startswith(_MAGIC):
        raise StorageError(f"{where}: was written by another version of EPS and cannot be read")
    if not head.startswith(_MAGIC) or length > _MOST_HEADER_BYTES:
        raise StorageError(f"{where}: is damaged: it does not begin like a part")
    text = _read_exactly(file, length, where)
    digest.update(head)
    digest.update(text)
    try:
        arrays = [(str(dtype), tuple(int(n) for n in shape)) for dtype, shape in json.loads(text)["arrays"]]
        claimed = sum(np.dtype(dtype).itemsize * int(np.prod(shape, dtype=object)) for dtype, shape in arrays)
        valid = all(dtype in _DTYPES and min((*shape, 0)) >= 0 for dtype, shape in arrays)
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{where}: is damaged: its header is invalid: {error}") from error
    # Checked before allocation: a flipped bit must not request huge arrays.
    if not valid or claimed + len(head) + length + _DIGEST_BYTES != size_bytes:
        raise StorageError(f"{where}: is damaged: its header does not fit its {size_bytes} bytes")
    return arrays


def _read_exactly(file: BinaryIO, size_bytes: int, where: str) -> bytes:
    data = bytearray(size_bytes)
    _read_into(file, memoryview(data), where)
    return bytes(data)


def _read_into(file: BinaryIO, view: memoryview, where: str) -> None:
    while len(view):
        count = cast(Any, file).readinto(view)
        if not count:
            raise StorageError(f"{where}: is truncated: at least {len(view)} bytes are missing")
        view = view[count:]


# ---- the history


def history_lines(history: ClockHistory) -> Iterator[bytes]:
    """Yield the history as JSON lines, in batches, so that other threads run in between."""
    for start in range(0, len(history), _HISTORY_LINES):
        some = history[start : start + _HISTORY_LINES]
        rows = ([r.clock, r.samples, r.loss_sum, list(r.evaluation), r.completed_s] for r in some)
        yield "".join(f"{json.dumps(row)}\n" for row in rows).encode("ascii")


def parse_history(data: bytes, where: str) -> ClockHistory:
    """Return the history that :func:`history_lines` wrote.

    Raises
    ------
    StorageError
        The data is not such a history.
    """
    try:
        rows = [json.loads(line) for line in data.splitlines()]
        return ClockHistory(ClockRecord(int(c), int(n), float(s), tuple(e), float(at_s)) for c, n, s, e, at_s in rows)
    except (ValueError, TypeError, OverflowError) as error:
        raise StorageError(f"{where}: is not a history: {error}") from error


# ---- whole checkpoints


class CheckpointStore:
    """The checkpoints of one job.

    Parameters
    ----------
    storage : Storage
        Its root is the job's checkpoint folder.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        #: Latest checkpoint that this object renamed into place durably.
        self._durable = ""

    def names(self) -> list[str]:
        """Return the complete checkpoints, latest first: by epoch, then by clock."""
        found = [name for name in self.storage.names("") if _NAME.fullmatch(name)]
        return sorted(found, key=_order, reverse=True)

    def remove_leftovers(self, before: str = "") -> None:
        """Remove unfinished checkpoints; with ``before``, only those older than it."""
        for name in self.storage.names(""):
            begun = name.removesuffix(PARTIAL)
            old = not before or (_NAME.fullmatch(begun) is not None and _order(begun) < _order(before))
            if name.endswith(PARTIAL) and old:
                self.storage.remove(name)

    def write_part(self, checkpoint: str, file: str, arrays: Sequence[np.ndarray]) -> tuple[int, str]:
        """Write one partition of an unfinished checkpoint; return (size_bytes, checksum)."""
        return write_part(self.storage, f"{checkpoint}{PARTIAL}/{file}", arrays)

    def finish(self, manifest: Manifest, history: ClockHistory) -> Manifest:
        """Complete a checkpoint whose parts are written; return its manifest.

        Idempotent: a job master that crashed in between repeats the call.

        Parameters
        ----------
        manifest : Manifest
            ``history`` is filled in here.
        history : ClockHistory
            All clocks before the checkpoint's first.

        Raises
        ------
        StorageError
            The checkpoint is not in place.  Once it is, it counts as complete, and later errors are only logged.
        """
        name, partial = manifest.name, manifest.name + PARTIAL
        if name in self.storage.names(""):
            manifest = self.manifest(name)
        else:
            there = set(self.storage.names(partial))
            gone = [part.file for part in manifest.parts if part.file not in there]
            if gone:
                raise StorageError(
                    f"{self.storage.describe(partial)}: {', '.join(gone)} disappeared before it was complete"
                )
            digest = xxhash.xxh3_64()
            with self.storage.write(f"{partial}/{HISTORY}") as file:
                for lines in history_lines(history):
                    digest.update(lines)
                    file.write(lines)
            for stray in there - {part.file for part in manifest.parts}:
                self.storage.remove(f"{partial}/{stray}")
            manifest = replace(manifest, history=digest.hexdigest())
            with self.storage.write(f"{partial}/{MANIFEST}") as file:
                file.write(_manifest_text(manifest))
            try:
                self.storage.rename(partial, name)
            except StorageError as error:
                if name not in self.storage.names(""):
                    raise
                # It is in place, so it is complete.
                logger.warning("checkpoint %s is complete, but may not survive a power loss: %s", name, error)
                return self.manifest(name)
            self._durable = name
        return manifest

    def remove_earlier(self, name: str, kept: Collection[str]) -> None:
        """Remove checkpoints older than a complete one, except those ``kept``; errors are only logged.

        The job will not roll back to older ones, and a damaged one must not replace a good one.  Later ones stay: they
        were written after this decision.

        Nothing is removed unless this object made ``name`` durable: a power loss might undo the rename.  The next call
        removes what remains.

        Parameters
        ----------
        name : str
        kept : collection of str
            Checkpoints to keep besides ``name``.
        """
        if name != self._durable:
            logger.info("checkpoints before %s are kept until the next one", name)
            return
        try:
            others = [other for other in self.names() if _order(other) < _order(name) and other not in kept]
        except StorageError as error:
            logger.warning("checkpoints before %s could not be removed: %s", name, error)
            return
        for other in others:
            try:
                self.storage.remove(other)
            except StorageError as error:
                logger.warning("checkpoint %s could not be removed: %s", other, error)
        with suppress(StorageError):
            self.remove_leftovers(name)

    def discard(self, name: str) -> None:
        """Remove the files of an unfinished checkpoint."""
        self.storage.remove(name + PARTIAL)

    # ---- reading

    def manifest(self, name: str) -> Manifest:
        """Return the manifest of a checkpoint.

        Raises
        ------
        StorageError
            The manifest is missing or damaged.
        """
        path = f"{name}/{MANIFEST}"
        where = self.storage.describe(path)
        with self.storage.read(path) as file:
            text = file.read()
        try:
            values = json.loads(text)
            body = values["manifest"]
            if values[CHECKSUM] != checksum(body):
                raise ValueError("it does not match its checksum")
            records = tuple(
                CheckpointPartWritten(**{**part, "next_clock": tuple(part["next_clock"])}) for part in body["parts"]
            )
            found = Manifest(**{**{f.name: body[f.name] for f in fields(Manifest)}, "parts": records})
            if [part.partition for part in records] != list(range(len(records))) or not records:
                raise ValueError("it does not name each partition once")
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{where}: is damaged: {error}") from error
        if found.name != name:
            raise StorageError(f"{where}: is the manifest of {found.name}")
        return found

    def history(self, manifest: Manifest) -> ClockHistory:
        """Return the measurements of the clocks before a checkpoint.

        Raises
        ------
        StorageError
            The history is missing or damaged.
        """
        path = f"{manifest.name}/{HISTORY}"
        with self.storage.read(path) as file:
            data = file.read()
        where = self.storage.describe(path)
        if xxhash.xxh3_64(data).hexdigest() != manifest.history:
            raise StorageError(f"{where}: is damaged: it does not match the manifest's checksum")
        return parse_history(data, where)

    def read_part(self, manifest: Manifest, partition: int) -> list[np.ndarray]:
        """Return the arrays of a partition.

        Raises
        ------
        StorageError
            The part is missing or damaged.
        """
        part = manifest.parts[partition]
        return read_part(self.storage, f"{manifest.name}/{part.file}", part.size_bytes, part.checksum)

    def verify(self, name: str) -> Manifest:
        """Read and verify all files of a checkpoint; return its manifest.

        Raises
        ------
        StorageError
            A file is missing or damaged.
        """
        manifest = self.manifest(name)
        self.history(manifest)
        for part in manifest.parts:
            self.read_part(manifest, part.partition)
        return manifest

    def latest_valid(self, job: Mapping[str, Any]) -> tuple[Manifest | None, tuple[str, ...]]:
        """Return the latest undamaged checkpoint, and an error for each later one, which is damaged.

        Parameters
        ----------
        job : mapping
            Settings that must be equal; see :func:`check_same_job`.

        Raises
        ------
        ConfigError
            The checkpoint belongs to another job.
        StorageError
            The folder cannot be read.
        """
        damaged: list[str] = []
        for name in self.names():
            try:
                manifest = self.verify(name)
            except StorageError as error:
                damaged.append(str(error))
                logger.warning("checkpoint %s is not used: %s", name, error)
                continue
            check_same_job(name, manifest.job, job)
            return manifest, tuple(damaged)
        return None, tuple(damaged)

    def last_epoch(self) -> int:
        """Return the highest epoch of any checkpoint, including damaged ones; 0 if there is none."""
        return max((_order(name)[0] for name in self.names()), default=0)


def open_checkpoints(folder: Location, patience_s: float | None = None) -> CheckpointStore:
    """Return the checkpoints in a folder; for ``patience_s`` see :func:`~eps.storage.locations.open_storage`."""
    return CheckpointStore(open_storage(folder, patience_s=patience_s))


def place_of(checkpoint_dir: str, name: str, default: Path) -> Location:
    """Return the folder of a job's checkpoints.

    Parameters
    ----------
    checkpoint_dir : str
        The setting; empty selects ``default``.
    name : str
        The job's name.
    default : Path
    """
    return location(checkpoint_dir) / name if checkpoint_dir else default


def _order(name: str) -> tuple[int, int]:
    epoch, _, clock = name.partition("-")
    return int(epoch), int(clock)


def _manifest_text(manifest: Manifest) -> bytes:
    body = json.loads(json.dumps(asdict(manifest)))
    return json_bytes({"manifest": body, CHECKSUM: checksum(body)})
