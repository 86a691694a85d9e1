"""The log of a job master on an HDFS in trouble, with WebHDFS over real HTTP; ``tests/yarn`` has it on a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from eps.cluster.yarn.hadoop.files import HadoopStream
from eps.cluster.yarn.log_storage import HadoopLogStorage
from eps.errors import (
    AuthenticationError,
    EpsError,
    PeerUnavailableError,
    ResourceError,
    StorageAwayError,
    StorageDeniedError,
    StorageError,
)
from eps.hadoop.conf import HadoopConf
from eps.storage.hdfs import HdfsStorage, open_hdfs
from eps.storage.shared_log import SharedLog
from tests.fakes.hadoop_files import FakeHadoopFiles
from tests.fakes.webhdfs import FakeHdfs

FOLDER = "/user/eva/job/state"
LOG = f"{FOLDER}/log-00000000"


@pytest.fixture
def hdfs() -> Iterator[FakeHdfs]:
    with FakeHdfs() as fake:
        yield fake


@pytest.fixture
def files(hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch) -> FakeHadoopFiles:
    found = FakeHadoopFiles(hdfs)
    address = hdfs.data_address

    def data_address(op: str, excluded: str) -> str:
        # As a NameNode that knows of the loss: it redirects no client to a DataNode.
        return address(op, ",".join(hdfs.data_nodes) if found.without_data_nodes else excluded)

    monkeypatch.setattr(hdfs, "data_address", data_address)
    return found


@pytest.fixture
def store(hdfs: FakeHdfs, files: FakeHadoopFiles) -> HadoopLogStorage:
    root = "/user/eva/job"
    web: HdfsStorage = open_hdfs("webhdfs", hdfs.authority, root, HadoopConf({}, ""), patience_s=0.0, environ={})
    return HadoopLogStorage(files.files, web)


def must_not_be() -> None:
    raise AssertionError("this master was taken for one that another has taken over from")


def begun(store: HadoopLogStorage, on_superseded: Callable[[], None] = must_not_be) -> SharedLog:
    log = SharedLog.open(store, "state", on_superseded)
    log.snapshot(b"state")
    log.append(b"one")
    return log


def names(hdfs: FakeHdfs) -> list[str]:
    return sorted(path.rpartition("/")[2] for path in hdfs.nodes if path.startswith(f"{FOLDER}/"))


def test_a_log_outlives_the_only_data_node_and_the_next_master_has_all_of_it(
    hdfs: FakeHdfs, files: FakeHadoopFiles, store: HadoopLogStorage
) -> None:
    log = begun(store)
    files.without_data_nodes = True
    with pytest.raises(StorageError, match=r"log-00000000 .*DataNodes"):
        log.append(b"two")
    for _ in range(3):
        with pytest.raises(StorageError, match="cannot be written"):
            log.snapshot(b"meanwhile")
    assert names(hdfs) == ["gap-00000000", "log-00000000", "snapshot-00000000"], "nothing is left of what was tried"
    files.without_data_nodes = False
    log.snapshot(b"whole")
    log.append(b"three")
    # It is killed, so no file is closed.
    assert files.has_open(LOG)
    found = SharedLog.open(store, "state", must_not_be).recovered
    assert (found.snapshot, found.records, found.dropped) == ((b"whole",), (b"three",), ())


def test_a_log_whose_name_was_given_without_an_answer_is_not_anothers(
    hdfs: FakeHdfs, files: FakeHadoopFiles, store: HadoopLogStorage
) -> None:
    log = begun(store)
    # And the outcome stays unknown.
    hdfs.fault("RENAME", "unanswered")
    hdfs.fault("DELETE", "cut")
    with pytest.raises(StorageError, match="cannot be renamed to"):
        log.begin()
    assert "log-00000001" in names(hdfs)
    log.append(b"two")
    log.snapshot(b"later")
    log.append(b"three")
    assert names(hdfs)[-2:] == ["snapshot-00000000", "snapshot-00000002"]
    found = SharedLog.open(store, "state", must_not_be).recovered
    assert (found.snapshot, found.records) == ((b"later",), (b"three",))


def test_one_killed_after_it_began_a_log_in_vain_is_fenced_from_both(
    hdfs: FakeHdfs, files: FakeHadoopFiles, store: HadoopLogStorage
) -> None:
    told: list[bool] = []
    log = begun(store, lambda: told.append(True))
    hdfs.fault("RENAME", "unanswered")
    with pytest.raises(StorageError, match="cannot be renamed to"):
        log.begin()
    log.append(b"two")
    assert files.has_open(LOG)
    second = SharedLog.open(store, "state", must_not_be)
    assert second.recovered.records == (b"one", b"two") and not files.has_open(LOG)
    with pytest.raises(StorageError, match="another job master"):
        log.append(b"late")
    assert told == [True]


def test_nobody_takes_over_while_hdfs_cannot_say_what_was_written(
    files: FakeHadoopFiles, store: HadoopLogStorage
) -> None:
    begun(store)
    files.without_data_nodes = True
    with pytest.raises(StorageError, match="lease"):
        SharedLog.open(store, "state", must_not_be)
    files.without_data_nodes = False
    assert SharedLog.open(store, "state", must_not_be).recovered.records == (b"one",)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (AuthenticationError, StorageDeniedError),
        (PeerUnavailableError, StorageError),
        (ResourceError, StorageError),
        (StorageAwayError, StorageAwayError),
    ],
)
def test_every_error_of_hadoops_client_is_one_of_a_storage(found: type[EpsError], expected: type[EpsError]) -> None:
    @contextmanager
    def errors(doing: str, otherwise: object) -> Iterator[None]:
        yield
        raise found(f"{doing}: why")

    session: Any = SimpleNamespace(errors=errors)
    stream = HadoopStream(session, "hdfs://lake/log", SimpleNamespace(hsync=lambda: None))
    with pytest.raises(StorageError, match=r"^hdfs://lake/log cannot be written: why$") as raised:
        stream.sync()
    assert type(raised.value) is expected
