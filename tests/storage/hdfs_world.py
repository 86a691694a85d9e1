"""An HDFS that a test plays, and how a test writes and reads there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from eps.hadoop.conf import HadoopConf
from eps.storage.hdfs import HdfsStorage, open_hdfs
from tests.fakes.webhdfs import FakeHdfs

#: Longer than any fault that these tests order, on a machine that is busy.
PATIENCE_S = 30.0
CONTENT = bytes(range(256)) * 12_289


@pytest.fixture
def fake() -> Iterator[FakeHdfs]:
    with FakeHdfs() as found:
        yield found


@pytest.fixture
def storage(fake: FakeHdfs) -> HdfsStorage:
    return open_hdfs("webhdfs", fake.authority, "/user/eva", HadoopConf(), patience_s=PATIENCE_S, environ={})


def impatient(fake: FakeHdfs) -> HdfsStorage:
    return open_hdfs("webhdfs", fake.authority, "/user/eva", HadoopConf(), patience_s=0.3, environ={})


def only(fake: FakeHdfs, path: str) -> bool:
    """Return whether a file is the only one, and nothing temporary is beside it."""
    return [p for p, node in fake.nodes.items() if node.content is not None] == [path]
