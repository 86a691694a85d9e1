"""HDFS through WebHDFS: what happens when DataNodes and NameNodes fail, and what is written."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from pathlib import Path

import pytest

from eps.errors import StorageError, TrainingError
from eps.hadoop.conf import HadoopConf
from eps.storage.api import telling
from eps.storage.hdfs import HdfsStorage, open_hdfs
from eps.storage.locations import open_storage
from eps.system import interrupt
from eps.system.waits import wait_for
from tests.fakes.storage import get, put
from tests.fakes.webhdfs import FakeHdfs, refusing_connections
from tests.storage.hdfs_world import CONTENT, PATIENCE_S, impatient, only
from tests.storage.hdfs_world import fake as fake
from tests.storage.hdfs_world import storage as storage

# ---- DataNodes


@pytest.mark.parametrize("kind", ["cut", "dead", "error"])
def test_a_write_whose_datanode_is_lost_goes_to_another(fake: FakeHdfs, storage: HdfsStorage, kind: str) -> None:
    if kind == "dead":
        fake.fault("CREATE", "dead")
    elif kind == "cut":
        fake.fault("CREATE", "cut", at_data_node=True, bytes=1 << 20)
    else:
        text = "All datanodes [DatanodeInfoWithStorage[127.0.0.2:9866]] are bad. Aborting..."
        fake.fault("CREATE", "error", at_data_node=True, name="IOException", message=text)
    put(storage, "folder/file", CONTENT)
    assert fake.nodes["/user/eva/folder/file"].content == CONTENT and only(fake, "/user/eva/folder/file")
    asked = fake.asked("CREATE")
    assert [params.get("excludedatanodes") for params in asked] == [None, "127.0.0.2"]
    assert {params["createflag"] for params in asked} == {"CREATE,SYNC_BLOCK"}


@pytest.mark.parametrize("kind", ["cut", "dead"])
def test_a_read_that_breaks_goes_on_at_its_byte_on_another_datanode(
    fake: FakeHdfs, storage: HdfsStorage, kind: str
) -> None:
    fake.put("/user/eva/file", CONTENT)
    if kind == "dead":
        fake.fault("OPEN", "dead")
    else:
        fake.fault("OPEN", "cut", at_data_node=True, bytes=1_000_003)
    assert get(storage, "file") == CONTENT
    assert [params.get("excludedatanodes") for params in fake.asked("OPEN")] == [None, "127.0.0.2"]
    offsets = [int(params["offset"]) for params in fake.asked("OPEN", at_data_node=True)]
    assert offsets == ([0] if kind == "dead" else [0, 1_000_003])


def test_a_read_goes_on_as_often_as_it_breaks_while_it_advances(fake: FakeHdfs, storage: HdfsStorage) -> None:
    fake.put("/user/eva/file", CONTENT)
    for _ in range(7):
        fake.fault("OPEN", "cut", at_data_node=True, bytes=300_000)
    assert get(storage, "file") == CONTENT
    assert len(fake.asked("OPEN", at_data_node=True)) == 8


def test_where_every_datanode_failed_all_are_tried_again(fake: FakeHdfs, storage: HdfsStorage) -> None:
    fake.put("/user/eva/file", CONTENT)
    for _ in range(4):
        fake.fault("OPEN", "dead")
    assert get(storage, "file") == CONTENT
    excluded = [params.get("excludedatanodes") for params in fake.asked("OPEN")]
    assert excluded[:4] == [None, "127.0.0.2", "127.0.0.2,127.0.0.3", None]


@pytest.mark.parametrize(
    ("name", "message", "at_data_node"),
    [
        ("IOException", "No active and not excluded nodes contain this block", False),
        ("IOException", "Block could not be located. Path=/user/eva/file, offset=0", False),
        ("BlockMissingException", "Could not obtain block: BP-1:blk_1_1 file=/user/eva/file", True),
        ("IOException", "Could not obtain the last block locations.", True),
        ("CannotObtainBlockLengthException", "Cannot obtain block length for LocatedBlock{BP-1:blk_1_1}", True),
        ("PathIOException", "`/user/eva/file': Fail to get block MD5 for LocatedBlock{BP-1:blk_1_1}", True),
        ("", "", True),
    ],
)
@pytest.mark.parametrize("asked", ["bytes", "checksum"])
def test_a_block_of_which_every_datanode_is_lost_is_waited_for_and_said(
    fake: FakeHdfs,
    storage: HdfsStorage,
    caplog: pytest.LogCaptureFixture,
    asked: str,
    name: str,
    message: str,
    at_data_node: bool,
) -> None:
    fake.put("/user/eva/file", CONTENT)
    op = "GETFILECHECKSUM" if asked == "checksum" and at_data_node else "OPEN"
    # Without a name: another server has its port.
    fake.fault(op, "error" if name else "stranger", name=name, message=message, at_data_node=at_data_node)
    with caplog.at_level(logging.WARNING, "eps.storage.webhdfs"):
        if asked == "bytes":
            assert get(storage, "file") == CONTENT
        else:
            assert storage.checksum("file") == f"MD5-of-0MD5-of-512CRC32C:{hashlib.md5(CONTENT).hexdigest()}"
    (said,) = caplog.messages
    told = f"{name}: {message}" if name else "HTTP status 404 of 127.0.0.2"
    assert f" for now: {told}" in said and "; retrying for 30 s" in said
    assert ("see that its DataNodes are live" in said) == (name in ("IOException", "PathIOException"))


def test_a_checksum_is_asked_of_another_datanode_where_one_is_lost(fake: FakeHdfs, storage: HdfsStorage) -> None:
    fake.put("/user/eva/op=OPEN", CONTENT)
    fake.fault("OPEN", "dead")
    assert storage.checksum("op=OPEN").endswith(hashlib.md5(CONTENT).hexdigest())
    assert [params.get("excludedatanodes") for params in fake.asked("OPEN")] == [None, "127.0.0.2"]
    assert fake.asked("OPEN", at_data_node=True) == [] and len(fake.asked("GETFILECHECKSUM", at_data_node=True)) == 1


@pytest.mark.parametrize(
    ("name", "message", "expected"),
    [
        ("FileNotFoundException", "File does not exist: /user/eva/file", "no such file or folder"),
        ("AccessControlException", "Permission denied: user=eva, access=READ", "Permission denied"),
        ("InvalidToken", "token (owner=eva) is expired", "refuses the credentials"),
        ("IllegalArgumentException", "Invalid value for webhdfs parameter", "IllegalArgumentException: Invalid value"),
    ],
)
@pytest.mark.parametrize("at_data_node", [False, True])
def test_what_cannot_be_read_is_an_error_at_once(
    fake: FakeHdfs, storage: HdfsStorage, name: str, message: str, expected: str, at_data_node: bool
) -> None:
    fake.put("/user/eva/file", CONTENT)
    for op, read in (("OPEN", lambda: get(storage, "file")), ("GETFILECHECKSUM", lambda: storage.checksum("file"))):
        fake.fault(op if at_data_node else "OPEN", "error", name=name, message=message, at_data_node=at_data_node)
        before = len(fake.asked("OPEN"))
        with pytest.raises(StorageError, match=expected):
            read()
        assert len(fake.asked("OPEN")) == before + 1


def test_a_file_that_is_replaced_while_it_is_read_is_no_mixture(fake: FakeHdfs, storage: HdfsStorage) -> None:
    fake.put("/user/eva/file", CONTENT)
    fake.fault("OPEN", "cut", at_data_node=True, bytes=100)
    with storage.read("file") as file:
        assert file.read(100) == CONTENT[:100]
        fake.put("/user/eva/file", CONTENT[::-1])
        with pytest.raises(StorageError, match=r"eva/file: .*replaced"):
            file.read(100)


@pytest.mark.parametrize("content", [CONTENT + b"more", CONTENT[:7], CONTENT[::-1]])
def test_a_file_that_is_replaced_before_its_first_byte_is_read_is_the_new_one(
    fake: FakeHdfs, storage: HdfsStorage, content: bytes
) -> None:
    fake.put("/user/eva/file", CONTENT)
    with storage.read("file") as file:
        fake.put("/user/eva/file", content)
        assert file.read() == content


def test_a_write_that_never_arrives_is_an_error_with_the_reason_and_leaves_what_was_there(fake: FakeHdfs) -> None:
    storage = impatient(fake)
    put(storage, "file", b"before")
    fake.fault("CREATE", "cut", at_data_node=True, bytes=1000, left=1000)
    with pytest.raises(StorageError, match=r"eva/file: .*broke: .*0\.3"):
        put(storage, "file", CONTENT)
    assert fake.nodes["/user/eva/file"].content == b"before" and only(fake, "/user/eva/file")


# ---- NameNodes


def test_safe_mode_is_waited_for_and_said(
    fake: FakeHdfs, storage: HdfsStorage, caplog: pytest.LogCaptureFixture
) -> None:
    text = "Cannot create directory /user/eva. Name node is in safe mode.\n\tat org.apache.hadoop..."
    fake.fault("MKDIRS", "error", name="SafeModeException", message=text, left=3)
    told: list[str] = []
    with caplog.at_level(logging.WARNING, "eps.storage.webhdfs"), telling(told.append):
        put(storage, "file", CONTENT)
    assert fake.nodes["/user/eva/file"].content == CONTENT and len(fake.asked("MKDIRS")) == 4
    (said,) = caplog.messages
    assert "cannot be written for now: the NameNode is in safe mode" in said
    assert [f"{text}; retrying for 30 s" for text in told] == [said]


def test_safe_mode_that_does_not_end_is_an_error_that_says_what_to_do(fake: FakeHdfs) -> None:
    fake.fault("RENAME", "error", name="SafeModeException", message="Name node is in safe mode.", left=1000)
    with pytest.raises(StorageError, match=r"safemode .*PATIENCE_S"):
        put(impatient(fake), "file", CONTENT)
    assert not [p for p, node in fake.nodes.items() if node.content is not None]


def test_the_active_one_of_two_namenodes_is_found_and_found_again() -> None:
    with FakeHdfs(namenodes=2) as fake:
        hosts = [f"127.0.0.1:{port}" for port in fake.ports]
        conf = HadoopConf(
            {
                "dfs.nameservices": "lake",
                "dfs.ha.namenodes.lake": "a,b",
                "dfs.namenode.http-address.lake.a": hosts[0],
                "dfs.namenode.http-address.lake.b": hosts[1],
            }
        )
        storage = open_hdfs("hdfs", "lake", "/", conf, patience_s=PATIENCE_S, environ={})
        fake.active = 1
        put(storage, "file", b"one")
        fake.active = 0
        assert get(storage, "file") == b"one" and storage.names("") == ["file"]
        assert storage.describe("file") == "hdfs://lake/file"
        # Neither of them, for a while.
        fake.active = -1
        failover = threading.Timer(0.5, setattr, (fake, "active", 1))
        with refusing_connections(fake):
            failover.start()
            failover.join()
            short = open_hdfs("hdfs", "lake", "/", conf, patience_s=0.2, environ={})
            with pytest.raises(StorageError, match=r"lake/file: .*be reached"):
                short.status("file")
        assert get(storage, "file") == b"one"


def test_a_namenode_that_is_away_is_waited_for(fake: FakeHdfs, storage: HdfsStorage) -> None:
    fake.put("/user/eva/file", CONTENT)
    for op in ("GETFILESTATUS", "OPEN"):
        fake.fault(op, "cut", left=3)
    assert get(storage, "file") == CONTENT


def test_a_namenode_that_answers_with_a_server_error_is_asked_again(
    fake: FakeHdfs, storage: HdfsStorage, caplog: pytest.LogCaptureFixture
) -> None:
    fake.fault("MKDIRS", "error", name="NullPointerException", message="still starting", left=3)
    with caplog.at_level(logging.WARNING, "eps.storage.webhdfs"):
        put(storage, "file", CONTENT)
    assert f"cannot be written for now: {fake.authority} answers HTTP status 500; retrying" in caplog.messages[0]
    assert fake.nodes["/user/eva/file"].content == CONTENT and len(fake.asked("MKDIRS")) == 4


def test_an_error_of_another_name_is_final_but_one_of_datanodes(fake: FakeHdfs, storage: HdfsStorage) -> None:
    """A NameNode may say IOException of what it does itself, and of DataNodes that it cannot find."""
    fake.fault("MKDIRS", "error", name="IOException", message="something else")
    with pytest.raises(StorageError, match=r"IOException: .*else$"):
        put(storage, "file", CONTENT)
    text = "Failed to find datanode, suggest to check cluster health. excludeDatanodes=null"
    fake.fault("CREATE", "error", name="IOException", message=text, left=2)
    put(storage, "file", CONTENT)
    assert len(fake.asked("MKDIRS")) == 2 and len(fake.asked("CREATE")) == 3


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_rename_whose_answer_is_lost_is_done_once(fake: FakeHdfs, storage: HdfsStorage, what: str) -> None:
    put(storage, "one/file", b"before")
    fake.fault("RENAME", "unanswered")
    if what == "file":
        put(storage, "one/file", CONTENT)
        assert fake.nodes["/user/eva/one/file"].content == CONTENT and only(fake, "/user/eva/one/file")
    else:
        storage.rename("one", "two")
        assert only(fake, "/user/eva/two/file") and storage.names("") == ["two"]


def test_a_rename_that_another_was_before_is_refused(fake: FakeHdfs, storage: HdfsStorage) -> None:
    put(storage, "one/file", b"1")
    fake.put("/user/eva/two/file", b"2")
    fake.fault("RENAME", "cut")
    with pytest.raises(StorageError, match=r"eva/two: .*exists"):
        storage.rename("one", "two")
    assert get(storage, "one/file") == b"1"


# ---- somebody wants the end of it


def test_a_file_whose_sending_is_to_end_is_not_there(fake: FakeHdfs, storage: HdfsStorage) -> None:
    looks: list[None] = []

    def look() -> None:
        looks.append(None)
        if len(looks) == 2:
            # Its first piece has left.
            wait_for(lambda: any(path.endswith(".tmp") for path in list(fake.nodes)), PATIENCE_S, "the file")
            raise TrainingError("enough")

    with pytest.raises(TrainingError, match="enough"), interrupt.stopped_by(look):
        put(storage, "file", CONTENT)
    assert len(looks) == 2 and [p for p, node in fake.nodes.items() if node.content is not None] == []
    with interrupt.stopped_by(lambda: looks.append(None)):
        put(storage, "file", CONTENT)
        put(storage, "small", b"x")
    assert len(looks) == 2 + len(range(0, len(CONTENT), 1 << 20)) + 1


def test_who_waits_for_a_namenode_looks_whether_that_is_to_end(fake: FakeHdfs, storage: HdfsStorage) -> None:
    def look() -> None:
        raise TrainingError("enough")

    fake.fault("MKDIRS", "error", name="SafeModeException", message="Name node is in safe mode.", left=1000)
    with pytest.raises(TrainingError, match="enough"), interrupt.stopped_by(look):
        put(storage, "file", b"")
    assert len(fake.asked("MKDIRS")) == 1


# ---- what is written


def test_what_is_written_is_for_its_user_alone_unless_it_is_public(fake: FakeHdfs, storage: HdfsStorage) -> None:
    put(storage, "file", b"1")
    assert (fake.nodes["/user/eva"].mode, fake.nodes["/user/eva/file"].mode) == ("700", "600")
    public = open_storage(f"webhdfs://{fake.authority}/public", public=True)
    with public.write("file") as file:
        file.write(b"1")
    assert (fake.nodes["/public"].mode, fake.nodes["/public/file"].mode) == ("755", "644")


def test_a_full_device_where_it_is_collected_is_named(
    storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("eps.storage.hdfs._MOST_IN_MEMORY_BYTES", 10)
    monkeypatch.setattr("tempfile.tempdir", "/dev/full/none")
    with pytest.raises(StorageError, match=r"eva/file: .*be written"):
        put(storage, "file", CONTENT)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    put(storage, "file", CONTENT)
    assert get(storage, "file") == CONTENT and os.listdir(tmp_path) == []
