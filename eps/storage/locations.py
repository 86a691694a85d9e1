"""Locations of files: a path on this machine or on HDFS.

``hdfs://NAMENODE:PORT/path``, ``hdfs://SERVICE/path`` and ``hdfs:///path`` find WebHDFS through the configuration in
``HADOOP_CONF_DIR``.  ``webhdfs://HOST:PORT/path`` and ``swebhdfs://...`` name its address directly.  ``hdfs:/path``
means ``hdfs:///path``, as for Hadoop's own commands.

Modules for HDFS are imported at the first use of such a location.
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
    """Return whether a text names a location on HDFS."""
    scheme, colon, _ = text.partition(":/")
    return bool(colon) and scheme in SCHEMES


def has_scheme(text: str) -> bool:
    """Return whether a text names a file system, known or not, instead of a path on this machine."""
    return bool(_SCHEME.match(text)) or is_remote(text)


@dataclass(frozen=True)
class RemotePath:
    """A location on HDFS, with the needed part of :class:`pathlib.Path`; HDFS paths contain no symbolic links.

    Failures are :class:`~eps.errors.StorageError` with the location and the reason.
    """

    scheme: str
    authority: str
    path: str

    @classmethod
    def parse(cls, text: str) -> RemotePath:
        """Return the location that a text names; without an authority it is on the configured file system.

        Raises
        ------
        ConfigError
            The text names no location on HDFS, or no file system is configured.
        """
        parts = urlsplit(text.replace("%", "%25").replace("?", "%3F").replace("#", "%23"))
        path = parts.path.replace("%23", "#").replace("%3F", "?").replace("%25", "%")
        if parts.scheme not in SCHEMES or not path.startswith("/"):
            raise ConfigError(f"{text!r} is not a location on HDFS: expected hdfs://NAMENODE:PORT/path or hdfs:///path")
        authority = parts.netloc
        if not authority and parts.scheme == "hdfs":
            from eps.hadoop.conf import default_authority, environment_configuration

            conf = environment_configuration()
            authority = default_authority(conf)
            if not authority:
                where = f"{conf.source} has no fs.defaultFS on HDFS" if conf.source else "HADOOP_CONF_DIR is not set"
                raise ConfigError(f"{text!r} names no NameNode, and {where}")
        if not authority:
            raise ConfigError(f"{text!r} names no host: expected {parts.scheme}://HOST:PORT/path")
        return cls(parts.scheme, authority, posixpath.normpath(path))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.scheme, self.authority, posixpath.join(self.path, name))

    @property
    def name(self) -> str:
        """The last component of the path."""
        return posixpath.basename(self.path)

    @property
    def parent(self) -> RemotePath:
        """The folder of this location."""
        return RemotePath(self.scheme, self.authority, posixpath.dirname(self.path))

    def with_name(self, name: str) -> RemotePath:
        """Return a sibling of this location."""
        return self.parent / name

    def storage(
        self, *, public: bool = False, patience_s: float | None = None, conf: HadoopConf | None = None
    ) -> HdfsStorage:
        """Return the store with this root; for ``public`` and ``patience_s`` see HdfsStorage and WebHdfs.

        The default configuration is that of ``HADOOP_CONF_DIR``.
        """
        from eps.hadoop.conf import environment_configuration
        from eps.storage.hdfs import open_hdfs

        conf = environment_configuration() if conf is None else conf
        return open_hdfs(self.scheme, self.authority, self.path, conf, public=public, patience_s=patience_s)

    def status(self) -> FileStatus | None:
        """Return the status of this location; None if it does not exist."""
        from eps.storage.webhdfs import MissingError

        try:
            return self._parent_storage().status(self.name)
        except MissingError:
            return None

    def is_file(self) -> bool:
        """Return whether this location is a file."""
        found = self.status()
        return found is not None and not found.is_folder

    def is_dir(self) -> bool:
        """Return whether this location is a folder."""
        found = self.status()
        return found is not None and found.is_folder

    def open(self) -> AbstractContextManager[BinaryIO]:
        """Open the file to read from its beginning."""
        return self._parent_storage().read(self.name)

    def read_bytes(self) -> bytes:
        """Return the content of the file."""
        with self.open() as file:
            return file.read()

    def sizes(self) -> dict[str, int]:
        """Return name -> size in bytes of the files in this folder; empty if it does not exist."""
        folder = _storage(self.scheme, self.authority, self.path, False, _environment())
        return {name: found.size_bytes for name, found in folder.statuses("").items() if not found.is_folder}

    def content_key(self) -> str:
        """Return a key that changes whenever the file's content does, without reading the content.

        It consists of HDFS's checksum, the length and the modification time, so rewriting the same content changes it
        too.
        """
        storage = self._parent_storage()
        found = storage.status(self.name)
        if found.is_folder:
            raise StorageError(f"{self}: is a folder")
        checksum = storage.checksum(self.name) if found.size_bytes else "empty"
        return f"hdfs:{checksum}:{found.size_bytes}:{found.modified_ms}"

    @contextmanager
    def open_to_write(self) -> Iterator[BinaryIO]:
        """Open a file that everyone may read; it replaces this one atomically when the block ends."""
        with _storage(self.scheme, self.authority, self.parent.path, True, _environment()).write(self.name) as file:
            yield file

    def _parent_storage(self) -> HdfsStorage:
        return _storage(self.scheme, self.authority, self.parent.path, False, _environment())


def _environment() -> tuple[int | str, ...]:
    """Return what connections depend on; it includes the pid, so that a forked process opens its own."""
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
    """Return the location that a text names: on HDFS, or on this machine.

    Raises
    ------
    ConfigError
        :meth:`RemotePath.parse` refuses the text, or it names an unknown file system.
    """
    if isinstance(text, str):
        if has_scheme(text) and not is_remote(text):
            known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            raise ConfigError(f"{text!r} is on no file system that EPS supports: expected a local path, or {known}")
        return RemotePath.parse(text) if is_remote(text) else Path(text)
    return text


def open_storage(
    where: str | Location, *, public: bool = False, patience_s: float | None = None, conf: HadoopConf | None = None
) -> Storage:
    """Return the store with a folder on this machine or on HDFS as root; nothing is created or contacted yet.

    Parameters
    ----------
    where : str, Path or RemotePath
    public : bool
        On HDFS: make written files readable by everyone; by default by their user only, as on this machine.
    patience_s : float, optional
        On HDFS: retry deadline of transient errors; default: :data:`eps.storage.webhdfs.PATIENCE_S`.
    conf : HadoopConf, optional
        On HDFS: the configuration; default: that of ``HADOOP_CONF_DIR``.

    Raises
    ------
    ConfigError
        The location is invalid, Hadoop's configuration cannot be read, or the package ``hdfs`` is missing.
    """
    found = location(where)
    if isinstance(found, RemotePath):
        return found.storage(public=public, patience_s=patience_s, conf=conf)
    return LocalStorage(found)


def write_public(where: Location, data: bytes) -> None:
    """Write a file that everyone may read, atomically.

    Raises
    ------
    StorageError
        The file cannot be written.
    """
    if isinstance(where, RemotePath):
        with where.open_to_write() as file:
            file.write(data)
    else:
        write_bytes_atomic(where, data, mode=PUBLIC_MODE, sync=False)


def read_file(where: Location) -> BinaryIO:
    """Open a file for reading and seeking; a file on HDFS is read at once.

    Raises
    ------
    OSError
        The file cannot be read; on HDFS, StorageError.
    """
    if isinstance(where, RemotePath):
        return io.BytesIO(where.read_bytes())
    return cast(BinaryIO, where.open("rb"))
