"""Files that jobs on YARN share are uploaded once, even by concurrent jobs."""

from __future__ import annotations

import io
from typing import BinaryIO

import pytest

from eps.cluster.yarn.shipping import Packed
from eps.cluster.yarn.types import LocalFile
from eps.job.yarn import submit
from eps.job.yarn.submit import put_once
from eps.storage.locations import RemotePath
from tests.fakes.patient_hdfs import hdfs as hdfs
from tests.fakes.webhdfs import FakeHdfs

CODE = Packed(b"what jobs share", "digest")
PATH = "/home/cache/digest/code.zip"


@pytest.fixture
def home(hdfs: FakeHdfs) -> RemotePath:
    return RemotePath("webhdfs", hdfs.authority, "/home")


def files(hdfs: FakeHdfs) -> list[str]:
    return sorted(path for path, node in hdfs.nodes.items() if node.content is not None)


def test_the_same_is_brought_once(hdfs: FakeHdfs, home: RemotePath) -> None:
    first = put_once(home, CODE, "code.zip")
    written = hdfs.nodes[PATH]
    assert put_once(home, CODE, "code.zip") == first
    assert hdfs.nodes[PATH] is written and written.content == CODE.content
    assert files(hdfs) == [PATH]


def test_of_two_that_bring_it_at_once_both_have_the_file_that_is_there(hdfs: FakeHdfs, home: RemotePath) -> None:
    others: list[LocalFile] = []

    def source() -> BinaryIO:
        # While this one sends it, another one has brought it, some time ago.
        others.append(put_once(home, CODE, "code.zip"))
        hdfs.nodes[PATH].modified_ms -= 1000
        return io.BytesIO(CODE.content)

    mine = submit._cached(home, CODE.digest, "code.zip", len(CODE.content), source)
    assert mine.timestamp_ms == others[0].timestamp_ms - 1000 == hdfs.nodes[PATH].modified_ms
    assert files(hdfs) == [PATH], "nothing else is left"


def test_what_was_cut_short_is_brought_again(hdfs: FakeHdfs, home: RemotePath) -> None:
    hdfs.put(PATH, b"what")
    assert put_once(home, CODE, "code.zip").size_bytes == len(CODE.content)
    assert hdfs.nodes[PATH].content == CODE.content and files(hdfs) == [PATH]
