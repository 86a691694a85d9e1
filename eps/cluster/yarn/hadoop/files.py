"""A file system of the cluster, with Hadoop's own client: logs that last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from eps.errors import ResourceError, RpcError, StorageError
from eps.hadoop.bridge import java, jbool, jbytes, jshort
from eps.hadoop.session import HadoopSession

#: Of everything that is made: for its user alone.
DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
#: A file that its writer left open is closed within this.
TAKE_OVER_S = 90.0
#: Between the refusal of its writer and that.
TAKING_OVER_S = 1.0
_LOOK_S = 0.2


@contextmanager
def _errors(session: HadoopSession, doing: str) -> Iterator[None]:
    """Whatever goes wrong with a file is an error of storage, as with every store."""
    try:
        with session.errors(doing, StorageError):
            yield
    except (RpcError, ResourceError) as error:
        raise StorageError(str(error)) from None


class HadoopFiles:
    """Files of the cluster, by URL or by a path of its default file system.  Thread-safe.

    Parameters
    ----------
    session : HadoopSession

    Raises
    ------
    EpsError
        As of Hadoop's client.
    """

    def __init__(self, session: HadoopSession) -> None:
        self._session = session
        self._conf = session.java_conf

    def open(self, url: str) -> HadoopStream:
        """Begin a file, and the folders that it needs.

        Raises
        ------
        StorageError
            There is one, or the cluster does not take it.
        """
        with _errors(self._session, f"{url} cannot be written"):
            files, path = self._at(url)
            self._make_folder(files, path.getParent())
            stream = files.create(path, jbool(False))
            try:
                files.setPermission(path, _mode(FILE_MODE))
            except BaseException:
                # Who is told that it failed must not find a file, which could be another's.
                stream.close()
                files.delete(path, jbool(False))
                raise
        return HadoopStream(self._session, url, stream)

    def touch(self, url: str) -> None:
        """Make an empty file, where there is none.

        Raises
        ------
        StorageError
            The cluster does not take it.
        """
        with _errors(self._session, f"{url} cannot be made"):
            files, path = self._at(url)
            self._make_folder(files, path.getParent())
            files.createNewFile(path)

    def was_taken_over(self, url: str, timeout_s: float = TAKING_OVER_S) -> bool:
        """Return whether a file that this process writes was closed for another one; see :meth:`take_over`.

        A DataNode refuses its writer a moment before the NameNode closes it, so that is waited for.

        Raises
        ------
        StorageError
            The cluster does not say.
        """
        end_s = time.monotonic() + timeout_s
        with _errors(self._session, f"{url} cannot be looked at"):
            files, path = self._at(url)
            if not hasattr(files, "isFileClosed"):
                return False
            while not files.isFileClosed(path):
                if time.monotonic() >= end_s:
                    return False
                time.sleep(_LOOK_S)
        return True

    def take_over(self, url: str, timeout_s: float = TAKE_OVER_S) -> None:
        """Close a file in the place of a writer that is gone: it writes no more, and what it flushed counts.

        Raises
        ------
        StorageError
            HDFS has not closed it in time.
        """
        end_s = time.monotonic() + timeout_s
        with _errors(self._session, f"{url} cannot be taken over"):
            files, path = self._at(url)
            if not hasattr(files, "recoverLease"):
                # Only HDFS has files that are open; elsewhere there is nothing to take.
                return
            while not files.recoverLease(path) and not files.isFileClosed(path):
                if time.monotonic() >= end_s:
                    raise StorageError(f"{url}: HDFS has not closed it within {timeout_s:g} s for its writer")
                time.sleep(_LOOK_S)

    def _at(self, url: str) -> tuple[Any, Any]:
        path = java("org.apache.hadoop.fs.Path")(url)
        return path.getFileSystem(self._conf), path

    def _make_folder(self, files: Any, path: Any) -> None:
        if not files.exists(path) and not files.mkdirs(path, _mode(DIRECTORY_MODE)):
            raise StorageError(f"{path}: the folder cannot be made")


def _mode(mode: int) -> Any:
    return java("org.apache.hadoop.fs.permission.FsPermission")(jshort(mode))


class HadoopStream:
    """A file that is being written.  For one thread at a time."""

    def __init__(self, session: HadoopSession, url: str, stream: Any) -> None:
        self._session = session
        #: Where it is, in errors too; whoever renames it changes that.
        self.url = url
        self._stream = stream

    def write(self, data: bytes) -> None:
        """Write, as far as this process: nobody else sees it before :meth:`flush`."""
        with _errors(self._session, f"{self.url} cannot be written"):
            self._stream.write(jbytes(data))

    def flush(self) -> None:
        """Hand what was written to every DataNode that keeps it: it outlives this process, and readers see it."""
        with _errors(self._session, f"{self.url} cannot be written"):
            self._stream.hflush()

    def sync(self) -> None:
        """Have it on the DataNodes' disks: it outlives a loss of power."""
        with _errors(self._session, f"{self.url} cannot be written"):
            self._stream.hsync()

    def close(self) -> None:
        """End the file; harmless when repeated."""
        with _errors(self._session, f"{self.url} cannot be closed"):
            self._stream.close()

    def __enter__(self) -> HadoopStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
