"""Hadoop's own client of the fake HDFS: files that are open, with their leases, and DataNodes that are lost."""

from __future__ import annotations

from typing import cast
from urllib.parse import urlsplit

from eps.cluster.yarn.hadoop.files import HadoopFiles, HadoopStream
from eps.errors import StorageError
from tests.fakes.webhdfs import FakeHdfs, Node, RemoteError


class _Stream:
    """Implements what is used of :class:`eps.cluster.yarn.hadoop.files.HadoopStream`."""

    def __init__(self, files: FakeHadoopFiles, url: str, node: Node) -> None:
        self.url = url
        self._files, self._node = files, node
        self._is_bad = False

    def write(self, data: bytes) -> None:
        self.sync()
        self._node.content = (self._node.content or b"") + data

    def sync(self) -> None:
        self._is_bad |= self._files.without_data_nodes
        if self._is_bad or self._files.leases.get(self._node.number) is not self:
            raise StorageError(f"{self.url} cannot be written: all DataNodes are bad, or it has no lease")

    def is_fenced(self) -> bool:
        return not self._files.has_open(urlsplit(self.url).path)

    def close(self) -> None:
        if self._is_bad:
            # Its lease stays: HDFS does not know how long it is.
            raise StorageError(f"{self.url} cannot be closed: all DataNodes are bad")
        self._files.leases.pop(self._node.number, None)


class FakeHadoopFiles:
    """Implements what is used of :class:`eps.cluster.yarn.hadoop.files.HadoopFiles`."""

    def __init__(self, hdfs: FakeHdfs) -> None:
        self._hdfs = hdfs
        #: By the number of a file.
        self.leases: dict[int, _Stream] = {}
        #: The NameNode is there, and nobody takes content; a stream that met that is bad for good.
        self.without_data_nodes = False

    @property
    def files(self) -> HadoopFiles:
        return cast(HadoopFiles, self)

    def open(self, url: str) -> HadoopStream:
        try:
            node = self._hdfs.create(urlsplit(url).path, {"permission": "600"})
        except RemoteError as error:
            raise StorageError(f"{url} cannot be written: {error}") from None
        stream = self.leases[node.number] = _Stream(self, url, node)
        return cast(HadoopStream, stream)

    def touch(self, url: str) -> None:
        with self._hdfs.lock:
            if urlsplit(url).path not in self._hdfs.nodes:
                self._hdfs.create(urlsplit(url).path, {})

    def take_over(self, url: str) -> None:
        if self.without_data_nodes:
            raise StorageError(f"{url}: HDFS has not released its writer's lease within 90 s")
        self.leases.pop(self._hdfs.find(urlsplit(url).path).number, None)

    def has_open(self, path: str) -> bool:
        """Return whether a file was never closed: nobody can read it before its lease is recovered."""
        return self._hdfs.find(path).number in self.leases
