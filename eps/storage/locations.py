"""Where files are: a path on this machine, or a location on HDFS.

``hdfs://NAMENODE:PORT/path``, ``hdfs://SERVICE/path`` and ``hdfs:///path`` find WebHDFS by the configuration in
``HADOOP_CONF_DIR``; ``webhdfs://HOST:PORT/path`` and ``swebhdfs://...`` name it themselves.  ``hdfs:/path`` is
``hdfs:///path``, as for Hadoop's own commands.

Nothing of HDFS is imported before a location on it is used.
"""

from __future__ import annotations

import io
import os
import posixpath
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast
from urllib.parse import urlsplit

from eps.errors import ConfigError, StorageError
from eps.storage.api import Storage
from eps.storage.atomic import PUBLIC_MODE, write_bytes_atomic
from eps.storage.local import LocalStorage

if TYPE_CHECKING:
    from eps.hadoop.conf import HadoopConf
    from eps.storage.hdfs import FileStatus, HdfsStorage

SCHEMES = ("hdfs", "webhdfs", "swebhdfs")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_remote(text: str) -> bool:
    """Tell whether a text names a location on HDFS."""
    scheme, colon, _ = text.partition(":/")
    return bool(colon) and scheme in SCHEMES


def has_scheme(text: str) -> bool:
    """Tell whether a text names a file system, whichever it is, and so is no path of this machine."""
    return bool(_SCHEME.match(text)) or is_remote(text)


@dataclass(frozen=True)
class RemotePath:
    """A location on HDFS, with as much of :class:`pathlib.Path` as is needed of one; no part of it can be a link.

    What fails is a :class:`~eps.errors.StorageError` with the location and the reason.

    Raises
    ------
    ConfigError
        It is no such location.
    """

    scheme: str
    authority: str
    path: str

    @classmethod
    def parse(cls, text: str) -> RemotePath:
        """Return the location that a text names; without an authority it is on the configuration's file system.

        Raises
        ------
        ConfigError
            It names none, or the configuration has no file system.
        """
        parts = urlsplit(text.replace("%", "%25").replace("?", "%3F").replace("#", "%23"))
        path = parts.path.replace("%23", "#").replace("%3F", "?").replace("%25", "%")
        if parts.scheme not in SCHEMES or not path.startswith("/"):
            raise ConfigError(f"{text!r} is no location on HDFS: expected hdfs://NAMENODE:PORT/path or hdfs:///path")
        authority = parts.netloc
        if not authority and parts.scheme == "hdfs":
            from eps.hadoop.conf import default_authority, environment_configuration

            conf = environment_configuration()
            authority = default_authority(conf)
            if not authority:
                where = f"{conf.source} has no fs.defaultFS of HDFS" if conf.source else "HADOOP_CONF_DIR is not set"
                raise ConfigError(f"{text!r} names no NameNode, and {where}")
        if not authority:
            raise ConfigError(f"{text!r} names no host")
        return cls(parts.scheme, authority, posixpath.normpath(path))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.scheme, self.authority, posixpath.join(self.path, name))

    @property
    def name(self) -> str:
        """The last part."""
        return posixpath.basename(self.path)

    @property
    def parent(self) -> RemotePath:
        """The folder that it is in."""
        return RemotePath(self.scheme, self.authority, posixpath.dirname(self.path))

    def with_name(self, name: str) -> RemotePath:
        """Return another location in its folder."""
        return self.parent / name

    def storage(
        self, *, public: bool = False, patience_s: float | None = None, conf: HadoopConf | None = None
    ) -> HdfsStorage:
        """Return the store whose root is here; ``public`` and ``patience_s`` as of HdfsStorage and WebHdfs.

        The configuration is that of ``HADOOP_CONF_DIR`` where none is given.
        """
        from eps.hadoop.conf import environment_configuration
        from eps.storage.hdfs import open_hdfs

        conf = environment_configuration() if conf is None else conf
        return open_hdfs(self.scheme, self.authority, self.path, conf, public=public, patience_s=patience_s)

    def status(self) -> FileStatus | None:
        """Return what is here; None where nothing is."""
        from eps.storage.webhdfs import MissingError

        try:
            return self._parent_storage().status(self.name)
        except MissingError:
            return None

    def is_file(self) -> bool:
        """Tell whether a file is here."""
        found = self.status()
        return found is not None and not found.is_folder

    def is_dir(self) -> bool:
        """Tell whether a folder is here."""
        found = self.status()
        return found is not None and found.is_folder

    def open(self) -> AbstractContextManager[BinaryIO]:
        """Give a file to read from its beginning."""
        return self._parent_storage().read(self.name)

    def read_bytes(self) -> bytes:
        """Return what a file holds."""
        with self.open() as file:
            return file.read()

    def sizes(self) -> dict[str, int]:
        """Return the files in this folder with their sizes in bytes; none of one that does not exist."""
        folder = _storage(self.scheme, self.authority, self.path, False, _environment())
        return {name: found.size_bytes for name, found in folder.statuses("").items() if not found.is_folder}

    def content_key(self) -> str:
        """Return a text that changes whenever the content of the file does, without reading it.

        It is HDFS's checksum with length and time of the last change: a file that was written again has another one,
        though it may hold the same.
        """
        storage = self._parent_storage()
        found = storage.status(self.name)
        if found.is_folder:
            raise StorageError(f"{self}: is a folder")
        checksum = storage.checksum(self.name) if found.size_bytes else "empty"
        return f"hdfs:{checksum}:{found.size_bytes}:{found.modified_ms}"

    @contextmanager
    def open_to_write(self) -> Iterator[BinaryIO]:
        """Give a file that everybody may read and that becomes this one, whole, when the block ends."""
        with _storage(self.scheme, self.authority, self.parent.path, True, _environment()).write(self.name) as file:
            yield file

    def _parent_storage(self) -> HdfsStorage:
        return _storage(self.scheme, self.authority, self.parent.path, False, _environment())


def _environment() -> tuple[int | str, ...]:
    """Return what a connection depends on: a process that is forked makes its own."""
    names = (
        "HADOOP_CONF_DIR",
        "HADOOP_TOKEN_FILE_LOCATION",
        "HADOOP_USER_NAME",
        "EPS_HDFS_TOKEN",
        "EPS_HDFS_PATIENCE_S",
    )
    return os.getpid(), *(os.environ.get(name, "") for name in names)


@lru_cache(maxsize=32)
def _storage(scheme: str, authority: str, folder: str, public: bool, _: tuple[int | str, ...]) -> HdfsStorage:
    return RemotePath(scheme, authority, folder).storage(public=public)


#: A path on this machine or on HDFS.
Location = Path | RemotePath


def location(text: str | Location) -> Location:
    """Return where a text points: to HDFS, or to this machine.

    Raises
    ------
    ConfigError
        As of :meth:`RemotePath.parse`; or it is on a file system that is neither.
    """
    if isinstance(text, str):
        if has_scheme(text) and not is_remote(text):
            known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            raise ConfigError(f"{text!r} is on no file system that EPS knows: expected a path here, or {known}")
        return RemotePath.parse(text) if is_remote(text) else Path(text)
    return text


def open_storage(
    where: str | Location, *, public: bool = False, patience_s: float | None = None, conf: HadoopConf | None = None
) -> Storage:
    """Return the store whose root is a folder on this machine or on HDFS; nothing is made or asked yet.

    Parameters
    ----------
    where : str, Path or RemotePath
    public : bool
        On HDFS: everybody may read what is written; by default its user alone, as on this machine.
    patience_s : float, optional
        On HDFS: how long to wait for what may pass; default: :data:`eps.storage.webhdfs.PATIENCE_S`.
    conf : HadoopConf, optional
        On HDFS: the configuration; default: that of ``HADOOP_CONF_DIR``.

    Raises
    ------
    ConfigError
        It is no location, Hadoop's configuration cannot be read, or the package ``hdfs`` is missing.
    """
    found = location(where)
    if isinstance(found, RemotePath):
        return found.storage(public=public, patience_s=patience_s, conf=conf)
    return LocalStorage(found)


def write_public(where: Location, data: bytes) -> None:
    """Write a file that everybody may read, whole or not at all.

    Raises
    ------
    StorageError
        It cannot be written.
    """
    if isinstance(where, RemotePath):
        with where.open_to_write() as file:
            file.write(data)
    else:
        write_bytes_atomic(where, data, mode=PUBLIC_MODE, sync=False)


def read_file(where: Location) -> BinaryIO:
    """Return a file, open to read and to move in: on HDFS it is read at once.

    Raises
    ------
    OSError
        It cannot be; of HDFS, StorageError.
    """
    if isinstance(where, RemotePath):
        return io.BytesIO(where.read_bytes())
    return cast(BinaryIO, where.open("rb"))
