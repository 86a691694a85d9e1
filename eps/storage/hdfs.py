"""A store of files on HDFS, through WebHDFS.

What is written is collected in memory, or past some size in a temporary file without a name, and sent when it is
complete: a DataNode that is lost on the way costs another try, not the file.  It is sent under a temporary name and
takes its place by a rename, which the NameNode does at once and writes into its log before it answers.

How durable that is: every block is synced to the disk of each DataNode that holds it before the last byte is
acknowledged (``SYNC_BLOCK``), the name is in the NameNode's log.  Nothing survives all of its copies.

HDFS knows each file by a number that a rename does not change.  By it one finds out what became of a rename whose
answer was lost.
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
from eps.storage.webhdfs import MissingError, Passing, WebHdfs, connect, trouble_of
from eps.system import interrupt

#: What is written is kept in memory up to this size.
_MOST_IN_MEMORY_BYTES = 64 << 20
#: Sent and read in pieces of this size.
_PIECE_BYTES = 1 << 20
#: As of a job's directory: only its user reads what it holds.
PRIVATE_FILE, PRIVATE_FOLDER = "600", "700"
PUBLIC_FILE, PUBLIC_FOLDER = "644", "755"


@dataclass(frozen=True)
class FileStatus:
    """A file or a folder."""

    is_folder: bool
    size_bytes: int
    #: Milliseconds since 1970.
    modified_ms: int
    #: Stays the same when it is renamed.
    file_id: int


class _Body:
    """What is sent: its length goes before it, so that HTTP needs no pieces of its own."""

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
                interrupt.heed()


class HdfsStorage:
    """Implements :class:`eps.storage.api.Storage`.

    Parameters
    ----------
    web : WebHdfs
    root : str
        Absolute path of the folder in the file system; made when the first file is written.
    public : bool
        Everybody may read what is written; by default its user alone.
    """

    def __init__(self, web: WebHdfs, root: str, *, public: bool = False) -> None:
        self._web = web
        self._root = posixpath.normpath(root)
        self._file_mode = PUBLIC_FILE if public else PRIVATE_FILE
        self._folder_mode = PUBLIC_FOLDER if public else PRIVATE_FOLDER
        self._made = False

    def describe(self, path: str) -> str:
        """Return the path with the file system that it is on."""
        return f"{self._web.name}{self._path(path)}"

    def _path(self, path: str) -> str:
        return posixpath.join(self._root, path) if path else self._root

    # ---- writing

    @contextmanager
    def write(self, path: str) -> Iterator[BinaryIO]:
        """Give a file to write, which is sent and becomes ``path`` when the block ends.

        Raises
        ------
        StorageError
            ``path`` is the old file or the new one, whole.
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
                # Of the last one only the master's name is known, and whoever is asked may be what is lost.
                with suppress(Exception):
                    self._web.client.delete(temporary)

    def _send(self, path: str, file: BinaryIO, size_bytes: int, lost: list[str]) -> int:
        """Write a new file and return its number; the DataNodes that are ``lost`` are left out, where others are."""
        # Before it is there, and then between its pieces: where a DataNode makes it a moment later, nobody removes it.
        interrupt.heed()
        mode = {"permission": self._file_mode, "overwrite": "false", "createflag": "CREATE,SYNC_BLOCK"}
        url = self._web.data_node(self._web.client._create, path, lost, **mode)
        with _leaving_out(url, lost):
            self._web.send("PUT", url, data=_Body(file, size_bytes) if size_bytes else b"").close()
        found = _status(self._web.client.status(path))
        if found.size_bytes != size_bytes:
            raise Passing(f"{found.size_bytes} of {size_bytes} bytes arrived")
        return found.file_id

    def _place(self, what: str, source: str, target: str, number: int, *, overwrite: bool = True) -> None:
        """Give a file or folder its name; one that has got it by a try whose answer was lost has it."""
        tries = 0

        def place() -> None:
            nonlocal tries
            tries += 1
            try:
                options = "OVERWRITE" if overwrite else "NONE"
                self._web.rename(source, target, options)
            except Exception:
                if tries == 1 or not self._is(target, number):
                    raise

        self._web.ask(what, place)

    def _is(self, path: str, number: int) -> bool:
        try:
            return bool(self._web.client.status(path)["fileId"] == number)
        except Exception as error:
            trouble = trouble_of(error)
            if trouble is None or trouble.kind is not MissingError:
                raise
            return False

    def rename(self, folder: str, target: str) -> None:
        """Move a folder or a file to a name that is free.

        Raises
        ------
        StorageError
            It is whole, under one of the two names.
        """
        what = f"{self.describe(folder)}: cannot become {self.describe(target)}"
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
        """Give a file to read from its beginning; where its DataNode is lost, another goes on where that ended."""
        status = self.status(path)
        if status.is_folder:
            raise StorageError(f"{self.describe(path)}: cannot be read: is a folder")
        reader = _Reader(self._web, self._path(path), self.describe(path), status)
        try:
            yield cast(BinaryIO, reader)
        finally:
            reader.close()

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none of one that does not exist."""
        return sorted(self.statuses(folder))

    def statuses(self, folder: str) -> dict[str, FileStatus]:
        """Return what is in a folder, by name; nothing of one that does not exist."""
        what = f"{self.describe(folder)}: cannot be listed"
        try:
            answer = self._web.ask(what, lambda: self._web.client.list(self._path(folder), status=True))
        except MissingError:
            return {}
        return {name: _status(entry) for name, entry in answer}

    def status(self, path: str) -> FileStatus:
        """Return what a file or folder is.

        Raises
        ------
        MissingError
            There is none.
        StorageError
            It cannot be asked for.
        """
        what = f"{self.describe(path)}: cannot be read"
        return _status(self._web.ask(what, lambda: self._web.client.status(self._path(path))))

    def checksum(self, path: str) -> str:
        """Return HDFS's own checksum of a file, with what it is: as ``MD5-of-0MD5-of-512CRC32C:00...``.

        It is made of the checksums that the DataNodes keep, so it is known without reading the file.  Equal files that
        were written with other sizes of blocks have other ones.
        """
        lost: list[str] = []

        def ask() -> str:
            # Any DataNode can make it, but who asks the NameNode for a checksum cannot leave out those that are lost.
            url = self._web.data_node(self._web.client._open, self._path(path), lost)
            parts = urlsplit(url)
            query = parts.query.replace("op=OPEN", "op=GETFILECHECKSUM", 1)
            with _leaving_out(url, lost):
                answer = self._web.send("GET", parts._replace(query=query).geturl())
            found = answer.json()["FileChecksum"]
            return f"{found['algorithm']}:{found['bytes']}"

        return self._web.ask(f"{self.describe(path)}: its checksum cannot be had", ask)


class _Reader(io.RawIOBase):
    """A file from its beginning to its end, by as many connections as it takes."""

    def __init__(self, web: WebHdfs, path: str, where: str, status: FileStatus) -> None:
        self._web, self._path, self._where, self._status = web, path, where, status
        self._at = 0
        self._answer: Any = None
        self._lost: list[str] = []
        self._url = ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: self._status.size_bytes - self._at]
        patience = self._web.patience(f"{self._where}: cannot be read at byte {self._at}")
        while len(view):
            try:
                if self._answer is None:
                    self._open()
                with _leaving_out(self._url, self._lost):
                    count = int(self._answer.raw.readinto(view))
                    if not count:
                        raise Passing(
                            f"{urlsplit(self._url).netloc} ended it before its {self._status.size_bytes} bytes"
                        )
                self._at += count
                return count
            except Exception as error:
                self._drop()
                patience.wait(error)
        return 0

    def readall(self) -> bytes:
        content = bytearray(self._status.size_bytes - self._at)
        view = memoryview(content)
        while len(view):
            view = view[self.readinto(view[:_PIECE_BYTES]) :]
        return bytes(content)

    def _open(self) -> None:
        """Connect to a DataNode for what is left; other content than it was would be a mixture."""
        if self._at:
            found = _status(self._web.client.status(self._path))
            if found != self._status:
                raise StorageError(f"{self._where}: cannot be read: it was replaced while it was read")
        self._url = self._web.data_node(self._web.client._open, self._path, self._lost, offset=self._at)
        with _leaving_out(self._url, self._lost):
            self._answer = self._web.send("GET", self._url, stream=True)

    def _drop(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()

    def close(self) -> None:
        self._drop()
        super().close()


@contextmanager
def _leaving_out(url: str, lost: list[str]) -> Iterator[None]:
    """Note the DataNode of ``url`` as lost where the block raises."""
    try:
        yield
    except Exception:
        host = urlsplit(url).hostname or ""
        with suppress(OSError):
            # The NameNode knows them by address.
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
