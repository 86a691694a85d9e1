"""The two datasets of a worker: active splits in memory, inactive ones only on its disk.

Source: EPS §3.1.4, Figs 8 and 11.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
from pathlib import Path

from eps.data.dataset import split_name
from eps.data.splitfile import SplitData, read_split
from eps.errors import DataError, TransferError
from eps.spec.runtime import Runtime
from eps.storage.atomic import atomic_writer, write_bytes_atomic
from eps.storage.locations import RemotePath

logger = logging.getLogger(__name__)

#: Read from HDFS at once.
_PIECE_BYTES = 1 << 20


class Datasets:
    """Splits of one worker.

    Parameters
    ----------
    runtime : Runtime
    directory : Path
        The worker's own disk; made when needed.
    """

    def __init__(self, runtime: Runtime, directory: Path) -> None:
        self._runtime = runtime
        self._directory = directory
        self._lock = threading.Lock()
        self._active: dict[int, SplitData] = {}
        #: Splits that a plan brought and nobody has committed yet.
        self._brought: dict[int, int] = {}
        #: Plans that ended; late bytes of theirs are not taken.
        self._closed_plans: set[int] = set()
        directory.mkdir(parents=True, exist_ok=True)

    def path(self, split: int) -> Path:
        """Return where a split lies on the worker's disk."""
        return self._directory / split_name(split)

    def holds(self, split: int) -> bool:
        """Return whether the worker has the split, active or inactive."""
        return self.path(split).exists()

    def load_initial(self, split: int) -> None:
        """Take a split from the prepared data set; no plan that ends takes it away again.

        Raises
        ------
        StorageError
            The data set is on HDFS, and the split cannot be read there, or not be written here.
        TransferError
            It was not the bytes that the job's data was cut into.
        """
        with self._lock:
            self._brought.pop(split, None)
        if not self.holds(split):
            source = self._runtime.dataset_dir / self.path(split).name
            if isinstance(source, RemotePath):
                self._fetch(split, source)
                return
            try:
                self.path(split).hardlink_to(source)
            except OSError:
                # Another file system: a copy of its own, as on a worker of another host.
                shutil.copyfile(source, self.path(split))

    def _fetch(self, split: int, source: RemotePath) -> None:
        """Copy a split from HDFS: its file and no other."""
        digest = hashlib.sha256()
        with source.open() as remote, atomic_writer(self.path(split), sync=False) as file:
            while piece := remote.read(_PIECE_BYTES):
                digest.update(piece)
                file.write(piece)
            found, expected = digest.hexdigest(), self._runtime.shape.split_checksums[split]
            if found != expected:
                raise TransferError(f"{source}: has checksum {found}; split {split} was cut with {expected}")

    def activate(self, split: int) -> SplitData:
        """Return a split's data, read into memory if it was inactive.

        Raises
        ------
        DataError
            The worker does not hold it.
        """
        with self._lock:
            if split not in self._active:
                if not self.holds(split):
                    raise DataError(f"split {split} is to be active here, but was never received")
                self._active[split] = read_split(self.path(split))
            return self._active[split]

    def keep_active(self, splits: tuple[int, ...]) -> None:
        """Make every other split inactive: free its memory, keep it on disk (EPS Fig. 8)."""
        with self._lock:
            for split in [s for s in self._active if s not in splits]:
                del self._active[split]

    def receive(self, plan_id: int, split: int, content: bytes | memoryview) -> tuple[int, str]:
        """Put a split that another worker sent into the inactive dataset; return (size_bytes, checksum).

        Raises
        ------
        TransferError
            The bytes are not those that the job's data was cut into.
        """
        if not 0 <= split < self._runtime.settings.num_splits:
            raise TransferError(f"split {split} was sent; the job has {self._runtime.settings.num_splits}")
        found = hashlib.sha256(content).hexdigest()
        expected = self._runtime.shape.split_checksums[split]
        if found != expected:
            raise TransferError(f"split {split} arrived with checksum {found}; it was cut with {expected}")
        with self._lock:
            if plan_id in self._closed_plans:
                raise TransferError(f"split {split} was sent for plan {plan_id}, which has ended")
            if not self.holds(split):
                write_bytes_atomic(self.path(split), bytes(content), sync=False)
                self._brought[split] = plan_id
        return len(content), found

    def checksum(self, split: int) -> str:
        """Return the checksum of a split's file, as the job's data was cut."""
        return self._runtime.shape.split_checksums[split]

    def content(self, split: int) -> bytes:
        """Return a split's file, to send it."""
        return self.path(split).read_bytes()

    def close_plan(self, plan_id: int, keep: bool) -> None:
        """End a plan: keep what it brought, or forget it without a trace; late bytes of it are refused from now on."""
        with self._lock:
            self._closed_plans.add(plan_id)
            for split in [s for s, p in self._brought.items() if p == plan_id]:
                del self._brought[split]
                if not keep:
                    self._active.pop(split, None)
                    self.path(split).unlink(missing_ok=True)

    def is_closed(self, plan_id: int) -> bool:
        """Return whether a plan has ended."""
        with self._lock:
            return plan_id in self._closed_plans

    def describe(self) -> str:
        """Return one line for the log."""
        on_disk = sorted(int(p.stem.removeprefix("split-")) for p in self._directory.glob("split-*.eps"))
        return f"active={sorted(self._active)} inactive={[s for s in on_disk if s not in self._active]}"
