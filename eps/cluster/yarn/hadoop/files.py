"""Write durable logs to a file system of the cluster, with Hadoop's own client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eps.errors import AuthenticationError, EpsError, StorageDeniedError, StorageError
from eps.hadoop.bridge import java, jbool, jbytes, jshort
from eps.hadoop.session import HadoopSession

#: Permissions of all new folders and files: for their user only.
DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
#: Timeout for HDFS to close a file that its writer left open.
TAKE_OVER_S = 90.0
#: Longest delay between a DataNode's refusal of the old writer and the closing of the file.
TAKING_OVER_S = 1.0
_LOOK_S = 0.2


@contextmanager
def _errors(session: HadoopSession, doing: str) -> Iterator[None]:
    """Raise every error inside the block as a StorageError."""
    try:
        with session.errors(doing, StorageError):
            yield
    except StorageError:
        raise
    except AuthenticationError as error:
        raise StorageDeniedError(str(error)) from error
    except EpsError as error:
        raise StorageError(str(error)) from error


class HadoopFiles:
    """Files of the cluster, by URL or by path in its default file system.  Thread-safe.

    Parameters
    ----------
    session : HadoopSession
    """

    def __init__(self, session: HadoopSession) -> None:
        self._session = session

    def open(self, url: str) -> HadoopStream:
        """Create a file and its missing parent folders.

        Raises
        ------
        StorageError
            The file exists, or the cluster refuses it.
        """
        with _errors(self._session, f"{url} cannot be written"):
            files, path = _at(self._session, url)
            self._make_folder(files, path.getParent())
            stream = files.create(path, jbool(False))
            try:
                files.setPermission(path, _mode(FILE_MODE))
            except BaseException:
                # The caller is told that it failed, so leave no file that it could take for another's.
                stream.close()
                files.delete(path, jbool(False))
                raise
        return HadoopStream(self._session, url, stream)

    def touch(self, url: str) -> None:
        """Create an empty file unless the file exists.

        Raises
        ------
        StorageError
            The cluster refuses it.
        """
        with _errors(self._session, f"{url} cannot be created"):
            files, path = _at(self._session, url)
            self._make_folder(files, path.getParent())
            files.createNewFile(path)

    def take_over(self, url: str) -> None:
        """Close a file in place of its writer, which can write no more; data that it has flushed is kept.

        Raises
        ------
        StorageError
            HDFS has not closed the file in time.
        """
        end_s = time.monotonic() + TAKE_OVER_S
        with _errors(self._session, f"{url} cannot be taken over"):
            files, path = _at(self._session, url)
            if not hasattr(files, "recoverLease"):
                # Only HDFS has leases on open files.
                return
            while not files.recoverLease(path) and not files.isFileClosed(path):
                if time.monotonic() >= end_s:
                    raise StorageError(f"{url}: HDFS has not released its writer's lease within {TAKE_OVER_S:g} s")
                time.sleep(_LOOK_S)

    def _make_folder(self, files: Any, path: Any) -> None:
        if not files.exists(path) and not files.mkdirs(path, _mode(DIRECTORY_MODE)):
            raise StorageError(f"{path}: the folder cannot be created")


def _at(session: HadoopSession, url: str) -> tuple[Any, Any]:
    """Return the file system of a URL, and its path there."""
    path = java("org.apache.hadoop.fs.Path")(url)
    return path.getFileSystem(session.java_conf), path


def _mode(mode: int) -> Any:
    return java("org.apache.hadoop.fs.permission.FsPermission")(jshort(mode))


class HadoopStream:
    """Implements :class:`eps.storage.shared_log.AppendFile`.  For one thread at a time."""

    def __init__(self, session: HadoopSession, url: str, stream: Any) -> None:
        self._session = session
        #: Its location, also for messages; update it after a rename.
        self.url = url
        self._stream = stream

    def write(self, data: bytes) -> None:
        """Send data to all DataNodes of the file: it survives this process, and readers see it."""
        with _errors(self._session, f"{self.url} cannot be written"):
            self._stream.write(jbytes(data))
            self._stream.hflush()

    def sync(self) -> None:
        """Flush to the DataNodes' disks: the data survives a power loss."""
        with _errors(self._session, f"{self.url} cannot be written"):
            self._stream.hsync()

    def is_fenced(self) -> bool:
        """Return whether another process has taken over the file; see :meth:`HadoopFiles.take_over`.

        Wait up to :data:`TAKING_OVER_S`, because a DataNode refuses the writer a moment before the NameNode closes the
        file.

        Raises
        ------
        StorageError
            The cluster does not answer.
        """
        end_s = time.monotonic() + TAKING_OVER_S
        with _errors(self._session, f"the state of {self.url} cannot be read"):
            files, path = _at(self._session, self.url)
            if not hasattr(files, "isFileClosed"):
                return False
            while not files.isFileClosed(path):
                if time.monotonic() >= end_s:
                    return False
                time.sleep(_LOOK_S)
        return True

    def close(self) -> None:
        """Close the file.  Idempotent."""
        with _errors(self._session, f"{self.url} cannot be closed"):
            self._stream.close()
