"""Store the master's log in the job's shared folder: WebHDFS for whole files, Hadoop's client to append.

A record must be on the DataNodes before the master acts on it.  Hadoop's client needs a millisecond or two for each
(``hflush``); WebHDFS would need several connections.
"""

from __future__ import annotations

import posixpath
import secrets
from contextlib import AbstractContextManager, suppress
from typing import BinaryIO

from eps.cluster.yarn.hadoop.files import HadoopFiles, HadoopStream
from eps.errors import EpsError
from eps.storage.api import Storage


class HadoopLogStorage:
    """Implements :class:`eps.storage.shared_log.LogStorage`.

    Parameters
    ----------
    files : HadoopFiles
    shared : Storage
        The same folder, over WebHDFS.
    """

    def __init__(self, files: HadoopFiles, shared: Storage) -> None:
        self._files = files
        self._shared = shared

    def append(self, path: str, head: bytes) -> HadoopStream:
        """Create a file to append to.  It gets its name once its head is on the DataNodes.

        HDFS creates a file before a DataNode accepts its content.  If none does, an empty file would stay under that
        name and block the next attempt.  HDFS can rename an open file, which it knows by a number.
        """
        folder, name = posixpath.split(path)
        temporary = posixpath.join(folder, f".{name}.{secrets.token_hex(6)}.tmp")
        stream = self._files.open(self.describe(temporary))
        try:
            stream.write(head)
            self._shared.rename(temporary, path)
        except BaseException:
            # Remove it before closing: closing waits for content that no DataNode has.
            with suppress(EpsError):
                self._shared.remove(temporary)
            with suppress(EpsError):
                stream.close()
            raise
        stream.url = self.describe(path)
        return stream

    def mark(self, path: str) -> None:
        """Create an empty file; that needs the NameNode only, no DataNode."""
        self._files.touch(self.describe(path))

    def fence(self, path: str) -> None:
        """Have HDFS close a file in place of its writer (lease recovery)."""
        self._files.take_over(self.describe(path))

    def write(self, path: str) -> AbstractContextManager[BinaryIO]:
        """See :class:`~eps.storage.api.Storage`."""
        return self._shared.write(path)

    def read(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a file for reading."""
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
        """Return the URL of a path."""
        return self._shared.describe(path)
