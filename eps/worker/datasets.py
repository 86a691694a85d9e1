"""The two datasets of a worker: active splits in memory, inactive splits on its disk only.

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

#: Bytes read from HDFS at a time.
_PIECE_BYTES = 1 << 20


class Datasets:
    """The splits of one worker.

    Parameters
    ----------
    runtime : Runtime
    directory : Path
        Folder on the worker's own disk; created if missing.
    """

    def __init__(self, runtime: Runtime, directory: Path) -> None:
        self._runtime = runtime
        self._directory = directory
        self._lock = threading.Lock()
        self._active: dict[int, SplitData] = {}
        #: Split -> the uncommitted plan that brought it.
        self._brought: dict[int, int] = {}
        #: Ended plans, whose late messages are refused.
        self._closed_plans: set[int] = set()
        directory.mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def path(self, split: int) -> Path:
        """Return the path of a split on the worker's disk."""
        return self._directory / split_name(split)

    def holds(self, split: int) -> bool:
        """Return whether the worker has the split, active or inactive."""
        return self.path(split).exists()

    def load_initial(self, split: int) -> None:
        """Copy a split from the prepared data set; the end of a plan does not remove it.

        Raises
        ------
        StorageError
            The data set is on HDFS, and the split cannot be read there or written here.
        TransferError
            Its checksum differs from the one that was recorded when the data was split.
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
                # On another file system: copied, like on a worker of another host.
                shutil.copyfile(source, self.path(split))

    def _fetch(self, split: int, source: RemotePath) -> None:
        """Copy one split from HDFS."""
        digest = hashlib.sha256()
        with source.open() as remote, atomic_writer(self.path(split), sync=False) as file:
            while piece := remote.read(_PIECE_BYTES):
                digest.update(piece)
                file.write(piece)
            found, expected = digest.hexdigest(), self._runtime.shape.split_checksums[split]
            if found != expected:
                raise TransferError(f"{source}: checksum is {found}, but split {split} was written with {expected}")

    def activate(self, split: int) -> SplitData:
        """Return a split's data; read it into memory if it was inactive.

        Raises
        ------
        DataError
            The worker does not have it.
        """
        with self._lock:
            if split not in self._active:
                if not self.holds(split):
                    raise DataError(f"split {split} becomes active on this worker, but was never received")
                self._active[split] = read_split(self.path(split))
            return self._active[split]

    def keep_active(self, splits: tuple[int, ...]) -> None:
        """Make all other splits inactive: free their memory, keep them on disk (EPS Fig. 8)."""
        with self._lock:
            for split in [s for s in self._active if s not in splits]:
                del self._active[split]

    def receive(self, plan_id: int, split: int, content: bytes | memoryview) -> int:
        """Store a split from another worker in the inactive dataset; return its size in bytes.

        Raises
        ------
        TransferError
            The job or the plan has no such split, or its checksum differs from the recorded one.
        """
        if not 0 <= split < self._runtime.settings.num_splits:
            raise TransferError(f"split {split} was sent, but the job has {self._runtime.settings.num_splits} splits")
        found = hashlib.sha256(content).hexdigest()
        expected = self._runtime.shape.split_checksums[split]
        if found != expected:
            raise TransferError(f"split {split} arrived with checksum {found}, but was written with {expected}")
        with self._lock:
            if plan_id in self._closed_plans:
                raise TransferError(f"split {split} was sent for plan {plan_id}, which has ended")
            if not self.holds(split):
                write_bytes_atomic(self.path(split), bytes(content), sync=False)
                self._brought[split] = plan_id
        return len(content)

    def content(self, split: int) -> bytes:
        """Return the bytes of a split's file."""
        return self.path(split).read_bytes()

    def close_plan(self, plan_id: int, keep: bool) -> None:
        """End a plan: keep or delete the splits that it brought; refuse its late messages from now on."""
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
        """Return a line for the log."""
        on_disk = sorted(int(p.stem.removeprefix("split-")) for p in self._directory.glob("split-*.eps"))
        return f"active={sorted(self._active)} inactive={[s for s in on_disk if s not in self._active]}"
