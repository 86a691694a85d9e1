"""The shared folder of a job as the store of its master's log: WebHDFS for whole files, Hadoop's client to append.

A record must be on the DataNodes before the master acts upon it, a millisecond or two each (``hflush``); WebHDFS would
take several connections for that.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import BinaryIO

from eps.cluster.yarn.hadoop.files import HadoopFiles, HadoopStream
from eps.errors import AuthenticationError, EpsError, StorageDeniedError, StorageError
from eps.storage.api import Storage


@contextmanager
def _as_storage_errors() -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except AuthenticationError as error:
        raise StorageDeniedError(str(error)) from error
    except EpsError as error:
        raise StorageError(str(error)) from error


class _Appended:
    """Implements :class:`eps.storage.shared_log.AppendFile`."""

    def __init__(self, files: HadoopFiles, stream: HadoopStream) -> None:
        self._files = files
        self._stream = stream

    def write(self, data: bytes) -> None:
        with _as_storage_errors():
            self._stream.write(data)
            self._stream.flush()

    def sync(self) -> None:
        with _as_storage_errors():
            self._stream.sync()

    def is_fenced(self) -> bool:
        """Return whether HDFS has closed the file for somebody else."""
        with _as_storage_errors():
            return self._files.was_taken_over(self._stream.url)

    def close(self) -> None:
        with _as_storage_errors():
            self._stream.close()


class HadoopLogStorage:
    """Implements :class:`eps.storage.shared_log.LogStorage`.

    Parameters
    ----------
    files : HadoopFiles
    shared : Storage
        The same folder, by WebHDFS.
    """

    def __init__(self, files: HadoopFiles, shared: Storage) -> None:
        self._files = files
        self._shared = shared

    def append(self, path: str, head: bytes) -> _Appended:
        """Make a file to append to; it gets its name when its head is on the DataNodes.

        HDFS makes a file before any DataNode takes its content: one that none takes would stay, and stand in the way.
        A file that is open can be renamed, for it is known by a number.
        """
        folder, name = posixpath.split(path)
        temporary = posixpath.join(folder, f".{name}.{secrets.token_hex(6)}.tmp")
        with _as_storage_errors():
            stream = self._files.open(self.describe(temporary))
            try:
                stream.write(head)
                stream.flush()
                self._shared.rename(temporary, path)
            except BaseException:
                # Removed first: closing waits for content of which no DataNode knows.
                with suppress(EpsError):
                    self._shared.remove(temporary)
                with suppress(EpsError):
                    stream.close()
                raise
            stream.url = self.describe(path)
            return _Appended(self._files, stream)

    def mark(self, path: str) -> None:
        """Make an empty file: the NameNode alone does that, no DataNode."""
        with _as_storage_errors():
            self._files.touch(self.describe(path))

    def fence(self, path: str) -> None:
        """Have HDFS close a file for whoever wrote it (lease recovery)."""
        with _as_storage_errors():
            self._files.take_over(self.describe(path))

    def write(self, path: str) -> AbstractContextManager[BinaryIO]:
        """See :class:`~eps.storage.api.Storage`, as of all that follow."""
        return self._shared.write(path)

    def read(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Give a file to read from its beginning."""
        return self._shared.read(path)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        return self._shared.names(folder)

    def rename(self, folder: str, target: str) -> None:
        """Move a folder or a file."""
        self._shared.rename(folder, target)

    def remove(self, path: str) -> None:
        """Remove a file or a folder."""
        self._shared.remove(path)

    def describe(self, path: str) -> str:
        """Return its URL."""
        return self._shared.describe(path)
