"""A store of files on HDFS, through WebHDFS.

Writes are atomic.  Data is collected in memory, or in an unnamed temporary file if it is large.  It is uploaded when
complete, so losing a DataNode costs a retry, not the file.  The upload goes to a temporary name; a rename, which the
NameNode logs before it answers, puts it in place.

Durability: each DataNode syncs every block to disk before the last byte is acknowledged (``SYNC_BLOCK``).  The name is
in the NameNode's log.  A file is lost only with all of its replicas.

HDFS knows each file by an id that a rename does not change.  If the answer to a rename is lost, the id shows whether it
happened.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import secrets
import socket
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from eps.errors import StorageError
from eps.hadoop.conf import HadoopConf
from eps.storage.webhdfs import MissingError, Passing, Patience, WebHdfs, connect, trouble_of
from eps.system import interrupt

#: Writes are collected in memory up to this size.
_MOST_IN_MEMORY_BYTES = 64 << 20
#: Size of the pieces that are sent and read.
_PIECE_BYTES = 1 << 20
#: Modes for private data, as in a job's directory: accessible to its user only.
PRIVATE_FILE, PRIVATE_FOLDER = "600", "700"
PUBLIC_FILE, PUBLIC_FOLDER = "644", "755"


@dataclass(frozen=True)
class FileStatus:
    """A file or a folder."""

    is_folder: bool
    size_bytes: int
    #: Unix time in milliseconds.
    modified_ms: int
    #: HDFS's id of the file; a rename does not change it.
    file_id: int


class _Body:
    """The body of an upload, with a known length, so that HTTP needs no chunks."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file, self._size_bytes = file, size_bytes

    def __len__(self) -> int:
        return self._size_bytes

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        piece = self._file.read(_PIECE_BYTES)
        while piece:
            yield piece
            piece = self._file.read(_PIECE_BYTES)
            if piece:
                interrupt.raise_if_stopped()


class HdfsStorage:
    """Implements :class:`eps.storage.api.Storage`.

    Parameters
    ----------
    web : WebHdfs
    root : str
        Absolute path of the folder in the file system; created by the first write.
    public : bool
        Make written files readable by everyone; by default by their user only.
    """

    def __init__(self, web: WebHdfs, root: str, *, public: bool = False) -> None:
        self._web = web
        self._root = posixpath.normpath(root)
        self._file_mode = PUBLIC_FILE if public else PRIVATE_FILE
        self._folder_mode = PUBLIC_FOLDER if public else PRIVATE_FOLDER
        self._made = False

    def describe(self, path: str) -> str:
        """Return the path with its file system."""
        return f"{self._web.name}{self._path(path)}"

    def _path(self, path: str) -> str:
        return posixpath.join(self._root, path) if path else self._root

    # ---- writing

    @contextmanager
    def write(self, path: str) -> Iterator[BinaryIO]:
        """Open a file to write; it is uploaded and becomes ``path`` when the block ends.

        Raises
        ------
        StorageError
            The write failed; ``path`` is the old file or the new one, complete.
        """
        try:
            with tempfile.SpooledTemporaryFile(_MOST_IN_MEMORY_BYTES) as collected:
                yield cast(BinaryIO, collected)
                self._upload(path, cast(BinaryIO, collected), collected.seek(0, os.SEEK_END))
        except StorageError:
            raise
        except OSError as error:
            where = f" in {tempfile.gettempdir()}, where it is collected" if error.errno == errno.ENOSPC else ""
            raise StorageError(f"{self.describe(path)}: cannot be written: {error.strerror or error}{where}") from error

    def _upload(self, path: str, file: BinaryIO, size_bytes: int) -> None:
        what = f"{self.describe(path)}: cannot be written"
        if not self._made:
            self._web.ask(what, lambda: self._web.client.makedirs(self._root, permission=self._folder_mode))
            self._made = True
        target = self._path(path)
        folder, name = posixpath.split(target)
        temporaries: list[str] = []
        lost: list[str] = []

        def send() -> int:
            temporaries.append(posixpath.join(folder, f".{name}.{secrets.token_hex(6)}.tmp"))
            return self._send(temporaries[-1], file, size_bytes, lost)

        placed = False
        try:
            number = self._web.ask(what, send)
            self._place(what, temporaries[-1], target, number)
            placed = True
        finally:
            for temporary in temporaries[: len(temporaries) - placed]:
                # Best effort: the NameNode may be unreachable.
                with suppress(Exception):
                    self._web.client.delete(temporary)

    def _send(self, path: str, file: BinaryIO, size_bytes: int, lost: list[str]) -> int:
        """Write a new file and return its id; avoid ``lost`` DataNodes if there are others."""
        # Only before the file exists and between its pieces: a file that a DataNode creates later would not be removed.
        interrupt.raise_if_stopped()
        mode = {"permission": self._file_mode, "overwrite": "false", "createflag": "CREATE,SYNC_BLOCK"}
        url = self._web.data_node(self._web.client._create, path, lost, **mode)
        with _leaving_out(url, lost):
            self._web.send("PUT", url, data=_Body(file, size_bytes) if size_bytes else b"").close()
        found = _status(self._web.client.status(path))
        if found.size_bytes != size_bytes:
            raise Passing(f"{found.size_bytes} of {size_bytes} bytes arrived")
        return found.file_id

    def _place(self, what: str, source: str, target: str, number: int, *, overwrite: bool = True) -> None:
        """Rename a file or folder; succeed also if an earlier try, whose answer was lost, has renamed it."""
        tries = 0

        def place() -> None:
            nonlocal tries
            tries += 1
            try:
                options = "OVERWRITE" if overwrite else "NONE"
                self._web.rename(source, target, options)
            except Exception:
                if tries == 1 or not self._has_id(target, number):
                    raise

        self._web.ask(what, place)

    def _has_id(self, path: str, number: int) -> bool:
        try:
            return bool(self._web.client.status(path)["fileId"] == number)
        except Exception as error:
            trouble = trouble_of(error)
            if trouble is None or trouble.kind is not MissingError:
                raise
            return False

    def rename(self, folder: str, target: str) -> None:
        """Move a folder or file to an unused name.

        Raises
        ------
        StorageError
            The rename failed; the source is complete under one of the two names.
        """
        what = f"{self.describe(folder)}: cannot be renamed to {self.describe(target)}"
        source = self._path(folder)
        number = _status(self._web.ask(what, lambda: self._web.client.status(source))).file_id
        self._place(what, source, self._path(target), number, overwrite=False)

    def remove(self, path: str) -> None:
        """Remove a file or a folder."""
        what = f"{self.describe(path)}: cannot be removed"
        if not path:
            self._made = False
        with suppress(MissingError):
            self._web.ask(what, lambda: self._web.client.delete(self._path(path), recursive=True))

    def admit(self, path: str, who: Collection[str], rights: str) -> None:
        """Give others rights at a file or folder, as ``--x``, by the NameNode's access control lists.

        Parameters
        ----------
        path : str
        who : collection of str
            As ``user:ann``, ``group:research``, or ``other:``.
        rights : str

        Raises
        ------
        StorageError
            There is none, or its NameNode keeps no such lists.
        """
        what, entries = f"{self.describe(path)}: others get no rights", ",".join(f"{each}:{rights}" for each in who)
        self._web.ask(what, lambda: self._web.client.set_acl(self._path(path), entries, clear=False))

    # ---- reading

    @contextmanager
    def read(self, path: str) -> Iterator[BinaryIO]:
        """Open a file to read from its beginning; if its DataNode is lost, another one continues at that byte."""
        status = self.status(path)
        if status.is_folder:
            raise StorageError(f"{self.describe(path)}: cannot be read: is a folder")
        reader = _Reader(self._web, self._path(path), self.describe(path), status)
        try:
            yield cast(BinaryIO, reader)
        finally:
            reader.close()

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; an empty list if it does not exist."""
        return sorted(self.statuses(folder))

    def statuses(self, folder: str) -> dict[str, FileStatus]:
        """Return name -> status of a folder's entries; empty if it does not exist."""
        what = f"{self.describe(folder)}: cannot be listed"
        try:
            answer = self._web.ask(what, lambda: self._web.client.list(self._path(folder), status=True))
        except MissingError:
            return {}
        return {name: _status(entry) for name, entry in answer}

    def status(self, path: str) -> FileStatus:
        """Return the status of a file or folder.

        Raises
        ------
        MissingError
            The path does not exist.
        StorageError
            The status cannot be read.
        """
        what = f"{self.describe(path)}: cannot be read"
        return _status(self._web.ask(what, lambda: self._web.client.status(self._path(path))))

    def checksum(self, path: str) -> str:
        """Return HDFS's own checksum of a file with its algorithm, such as ``MD5-of-0MD5-of-512CRC32C:00...``.

        It is computed from the checksums that DataNodes keep, without reading the file.  Equal files written with
        different block sizes have different checksums.
        """
        lost: list[str] = []

        def ask() -> str:
            # Asks a DataNode directly: the NameNode's own operation cannot leave out lost DataNodes.
            url = self._web.data_node(self._web.client._open, self._path(path), lost)
            parts = urlsplit(url)
            query = parts.query.replace("op=OPEN", "op=GETFILECHECKSUM", 1)
            with _leaving_out(url, lost):
                answer = self._web.send("GET", parts._replace(query=query).geturl())
            found = answer.json()["FileChecksum"]
            return f"{found['algorithm']}:{found['bytes']}"

        return self._web.ask(f"{self.describe(path)}: its checksum cannot be read", ask)


class _Reader(io.RawIOBase):
    """A file read from beginning to end, over as many connections as needed."""

    def __init__(self, web: WebHdfs, path: str, where: str, status: FileStatus) -> None:
        self._web, self._path, self._where, self._status = web, path, where, status
        self._at = 0
        self._answer: Any = None
        self._lost: list[str] = []
        self._url = ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._begin()
        view = memoryview(buffer).cast("B")[: self._status.size_bytes - self._at]
        patience = self._patience()
        while len(view):
            try:
                if self._answer is None:
                    self._open()
                with _leaving_out(self._url, self._lost):
                    count = int(self._answer.raw.readinto(view))
                    if not count:
                        raise Passing(
                            f"{urlsplit(self._url).netloc} closed it before its {self._status.size_bytes} bytes"
                        )
                self._at += count
                return count
            except Exception as error:
                self._drop()
                patience.wait(error)
        return 0

    def readall(self) -> bytes:
        self._begin()
        content = bytearray(self._status.size_bytes - self._at)
        view = memoryview(content)
        while len(view):
            view = view[self.readinto(view[:_PIECE_BYTES]) :]
        return bytes(content)

    def _begin(self) -> None:
        """Connect for the first byte: only then the size is final."""
        patience = self._patience()
        while not self._at and self._answer is None and self._status.size_bytes:
            try:
                self._open()
            except Exception as error:
                self._drop()
                patience.wait(error)

    def _patience(self) -> Patience:
        return self._web.patience(f"{self._where}: cannot be read at byte {self._at}")

    def _open(self) -> None:
        """Connect to a DataNode for the remaining bytes; raise StorageError if the file was replaced meanwhile."""
        if self._at:
            found = _status(self._web.client.status(self._path))
            if found != self._status:
                raise StorageError(f"{self._where}: cannot be read: it was replaced meanwhile")
        self._url = self._web.data_node(self._web.client._open, self._path, self._lost, offset=self._at)
        with _leaving_out(self._url, self._lost):
            self._answer = self._web.send("GET", self._url, stream=True)
        length = self._answer.headers.get("Content-Length")
        if not self._at and length is not None and int(length) != self._status.size_bytes:
            self._status = _status(self._web.client.status(self._path))
            raise Passing("it was replaced meanwhile")

    def _drop(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()

    def close(self) -> None:
        self._drop()
        super().close()


@contextmanager
def _leaving_out(url: str, lost: list[str]) -> Iterator[None]:
    """Add the DataNode of ``url`` to ``lost`` if the block raises."""
    try:
        yield
    except Exception:
        host = urlsplit(url).hostname or ""
        with suppress(OSError):
            # The NameNode knows DataNodes by address.
            host = socket.gethostbyname(host)
        if host not in lost:
            lost.append(host)
        raise


def _status(values: Mapping[str, Any]) -> FileStatus:
    return FileStatus(
        values["type"] == "DIRECTORY", int(values["length"]), int(values["modificationTime"]), int(values["fileId"])
    )


def open_hdfs(
    scheme: str,
    authority: str,
    root: str,
    conf: HadoopConf,
    *,
    public: bool = False,
    patience_s: float | None = None,
    environ: Mapping[str, str] | None = None,
) -> HdfsStorage:
    """Return the store under a folder of a file system; see :func:`eps.storage.webhdfs.connect`."""
    web = connect(scheme, authority, conf, os.environ if environ is None else environ, patience_s)
    return HdfsStorage(web, root, public=public)
