"""HDFS through WebHDFS: what happens when DataNodes and NameNodes fail, and who one is to them."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from traceback import format_exception
from typing import Any

import hdfs
import pytest
import requests

from eps import interrupt
from eps.errors import ConfigError, StorageError, TrainingError
from eps.hadoop_conf import HadoopConf
from eps.master_link import wait_for
from eps.storage import waits
from eps.storage.hadoop_tokens import HDFS_KIND, HadoopToken
from eps.storage.hdfs import HdfsStorage, open_hdfs
from eps.storage.locations import RemotePath, is_remote, location, open_storage, read_file
from eps.storage.webhdfs import (
    PATIENCE_VARIABLE,
    TOKEN_VARIABLE,
    Login,
    MissingError,
    choose_login,
    connect,
    remote_trouble,
    trouble_of,
)
from tests.fakes.webhdfs import FakeHdfs, refusing_connections

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


def put(storage: HdfsStorage, path: str, content: bytes) -> None:
    with storage.write(path) as file:
        file.write(content)


def get(storage: HdfsStorage, path: str) -> bytes:
    with storage.read(path) as file:
        return file.read()


def only(fake: FakeHdfs, path: str) -> bool:
    """Return whether a file is the only one, and nothing temporary is beside it."""
    return [p for p, node in fake.nodes.items() if node.content is not None] == [path]


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


NO_REPLICA = "No active and not excluded nodes contain this block"


@pytest.mark.parametrize(
    ("name", "message", "at_data_node"),
    [
        ("IOException", NO_REPLICA, False),
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
    told = (
        f"{name}: {message}" if message != NO_REPLICA else "no live DataNode of HDFS has this block: see which are lost"
    )
    assert f" for now: {told}" in said and "; tries again for 30 s" in said if name else "HTTP status 404 of" in said


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
        ("IOException", "Offset=9 out of the range [0, 3); OPEN, path=/user/eva/file", "out of the range"),
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
        with pytest.raises(StorageError, match=r"/user/eva/file: cannot be read: it was replaced"):
            file.read(100)


def test_a_write_that_never_arrives_is_an_error_with_the_reason_and_leaves_what_was_there(fake: FakeHdfs) -> None:
    storage = impatient(fake)
    put(storage, "file", b"before")
    fake.fault("CREATE", "cut", at_data_node=True, bytes=1000, left=1000)
    with pytest.raises(StorageError, match=r"/user/eva/file: cannot be written: .*broke: .*; it was waited for 0\.3 s"):
        put(storage, "file", CONTENT)
    assert fake.nodes["/user/eva/file"].content == b"before" and only(fake, "/user/eva/file")


# ---- NameNodes


def test_safe_mode_is_waited_for_and_said(
    fake: FakeHdfs, storage: HdfsStorage, caplog: pytest.LogCaptureFixture
) -> None:
    text = "Cannot create directory /user/eva. Name node is in safe mode.\n\tat org.apache.hadoop..."
    fake.fault("MKDIRS", "error", name="SafeModeException", message=text, left=3)
    told: list[str] = []
    with caplog.at_level(logging.WARNING, "eps.storage.webhdfs"), waits.telling(told.append):
        put(storage, "file", CONTENT)
    assert fake.nodes["/user/eva/file"].content == CONTENT and len(fake.asked("MKDIRS")) == 4
    (said,) = caplog.messages
    assert "cannot be written for now: the NameNode is in safe mode" in said
    assert [f"{text}; tries again for 30 s" for text in told] == [said]


def test_safe_mode_that_does_not_end_is_an_error_that_says_what_to_do(fake: FakeHdfs) -> None:
    fake.fault("RENAME", "error", name="SafeModeException", message="Name node is in safe mode.", left=1000)
    with pytest.raises(StorageError, match=r"safe mode .*dfsadmin -safemode leave; .*EPS_HDFS_PATIENCE_S"):
        put(impatient(fake), "file", CONTENT)
    assert not [p for p, node in fake.nodes.items() if node.content is not None]


# ---- somebody wants the end of it


def test_a_file_whose_sending_is_to_end_is_not_there(fake: FakeHdfs, storage: HdfsStorage) -> None:
    looks: list[None] = []

    def look() -> None:
        looks.append(None)
        if len(looks) == 2:
            # Its first piece has left.
            wait_for(lambda: any(path.endswith(".tmp") for path in list(fake.nodes)), PATIENCE_S, "the file")
            raise TrainingError("enough")

    with pytest.raises(TrainingError, match="enough"), interrupt.heeding(look):
        put(storage, "file", CONTENT)
    assert len(looks) == 2 and [p for p, node in fake.nodes.items() if node.content is not None] == []
    with interrupt.heeding(lambda: looks.append(None)):
        put(storage, "file", CONTENT)
        put(storage, "small", b"x")
    assert len(looks) == 2 + len(range(0, len(CONTENT), 1 << 20)) + 1


def test_who_waits_for_a_namenode_looks_whether_that_is_to_end(fake: FakeHdfs, storage: HdfsStorage) -> None:
    def look() -> None:
        raise TrainingError("enough")

    fake.fault("MKDIRS", "error", name="SafeModeException", message="Name node is in safe mode.", left=1000)
    with pytest.raises(TrainingError, match="enough"), interrupt.heeding(look):
        put(storage, "file", b"")
    assert len(fake.asked("MKDIRS")) == 1


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
            with pytest.raises(StorageError, match=r"hdfs://lake/file: cannot be read: .* cannot be reached"):
                short.status("file")
        assert get(storage, "file") == b"one"


def test_a_namenode_that_is_away_is_waited_for(fake: FakeHdfs, storage: HdfsStorage) -> None:
    fake.put("/user/eva/file", CONTENT)
    for op in ("GETFILESTATUS", "OPEN"):
        fake.fault(op, "cut", left=3)
    assert get(storage, "file") == CONTENT


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
    with pytest.raises(StorageError, match=r"cannot become webhdfs://.*/user/eva/two: .*already exists"):
        storage.rename("one", "two")
    assert get(storage, "one/file") == b"1"


# ---- what does not pass


def test_one_that_does_not_know_how_to_replace_a_file_is_told(fake: FakeHdfs, storage: HdfsStorage) -> None:
    put(storage, "file", b"before")
    fake.fault("RENAME", "no")
    with pytest.raises(StorageError, match=r"/user/eva/file: cannot be written: .*not that of HttpFS"):
        put(storage, "file", b"after")
    assert fake.nodes["/user/eva/file"].content == b"before" and only(fake, "/user/eva/file")


@pytest.mark.parametrize(
    ("name", "message", "expected"),
    [
        (
            "AccessControlException",
            "Permission denied: user=eva, access=WRITE\n\tat java...",
            "Permission denied: user",
        ),
        ("DSQuotaExceededException", "The DiskSpace quota of /user is exceeded", "quota of /user is exceeded$"),
        ("InvalidToken", "token (owner=eva) is expired", "refuses the credentials .*renew the ticket"),
        (
            "SecurityException",
            "Failed to obtain user group information: org.apache.hadoop.security.token.SecretManager$InvalidToken: "
            "Token for real user: , can't be found in cache",
            "refuses the credentials .*can't be found in cache.*or the token",
        ),
    ],
)
def test_what_waiting_does_not_change_is_an_error_at_once(
    fake: FakeHdfs, storage: HdfsStorage, name: str, message: str, expected: str
) -> None:
    fake.fault("MKDIRS", "error", name=name, message=message)
    with pytest.raises(StorageError, match=rf"/user/eva/file: cannot be written: .*{expected}") as caught:
        put(storage, "file", b"")
    assert "\n" not in str(caught.value) and len(fake.asked("MKDIRS")) == 1


def test_what_is_missing_is_told_apart(fake: FakeHdfs, storage: HdfsStorage) -> None:
    with pytest.raises(MissingError, match="/user/eva/none: cannot be read: no such file"):
        storage.status("none")
    fake.put("/user/eva/file", b"")
    with pytest.raises(StorageError, match="is a file"):
        storage.names("file")
    with pytest.raises(StorageError, match="is a folder"), storage.read(""):
        pass


@pytest.mark.parametrize(
    ("number", "waited"), [(socket.EAI_NONAME, False), (socket.EAI_AGAIN, True)], ids=["unknown", "unknown for now"]
)
def test_where_nobody_knows_a_namenode_it_is_said_what_was_guessed(
    monkeypatch: pytest.MonkeyPatch, number: int, waited: bool
) -> None:
    def getaddrinfo(host: str, *rest: object, **more: object) -> None:
        raise socket.gaierror(number, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    found = open_hdfs("hdfs", "nohost:1234", "/", HadoopConf(), patience_s=0.2, environ={})
    with pytest.raises(StorageError) as raised:
        found.status("x")
    guess = "that port is a guess, for HADOOP_CONF_DIR is not set, which tells of nohost:1234: see that this is where"
    told = str(raised.value)
    assert f"the host of nohost:9870 is not known (Name or service not known); {guess}" in told
    assert told.endswith("it was waited for 0.2 s (EPS_HDFS_PATIENCE_S sets that)") == waited
    assert "webhdfs://nohost:9870" in told


def test_of_a_namenode_that_the_configuration_knows_nothing_is_guessed(fake: FakeHdfs) -> None:
    port = fake.ports[0]
    values = {"fs.defaultFS": "hdfs://127.0.0.1:8020", "dfs.namenode.http-address": f"127.0.0.1:{port}"}
    with refusing_connections(fake):
        for authority, guess in (
            ("127.0.0.1:8020", ""),
            (f"localhost:{port}", "that port is a guess, for /conf is"),
        ):
            found = open_hdfs("hdfs", authority, "/", HadoopConf(values, "/conf"), patience_s=0.0, environ={})
            with pytest.raises(StorageError, match="cannot be reached") as raised:
                found.status("x")
            assert (guess or "see that HDFS runs, and that HADOOP_CONF_DIR leads to it") in str(raised.value)
            assert ("guess" in str(raised.value)) == bool(guess)


def test_of_a_lost_datanode_nothing_is_guessed_and_its_name_may_come_back(
    fake: FakeHdfs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = socket.getaddrinfo

    def getaddrinfo(host: str, *rest: Any, **more: Any) -> Any:
        if host == "datanode":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr("eps.hadoop_conf.NAMENODE_HTTP_PORT", fake.ports[0])
    found = open_hdfs("hdfs", "127.0.0.1:8020", "/", HadoopConf(), patience_s=PATIENCE_S, environ={})
    fake.put("/file", CONTENT)
    # As of a container that has ended: its name is gone with it.
    fake.fault("OPEN", "dead", name="datanode:9864")
    with caplog.at_level(logging.WARNING, "eps.storage.webhdfs"):
        assert get(found, "file") == CONTENT
    (said,) = caplog.messages
    assert "the host of datanode:9864 is not known" in said and "guess" not in said


def test_a_port_for_hadoops_own_clients_is_told() -> None:
    said = b"It looks like you are making an HTTP request to a Hadoop IPC port. This is not the correct port\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-type: text/plain\r\n\r\n" + said)

        thread = threading.Thread(target=answer)
        thread.start()
        authority = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(StorageError) as raised:
            open_hdfs("webhdfs", authority, "/", HadoopConf(), patience_s=PATIENCE_S, environ={}).status("x")
        thread.join()
    assert str(raised.value).startswith(
        f"webhdfs://{authority}/x: cannot be read: that port is one for Hadoop's own cl"
    )
    assert "b'" not in str(raised.value) and "dfs.namenode.http-address" in str(raised.value)


def test_what_answers_and_is_no_webhdfs_is_told() -> None:
    found = remote_trouble(404, "", "<html>")
    assert not found.passes and remote_trouble(503, "", "busy").passes
    assert not remote_trouble(403, "IOException", "something else").passes
    page = trouble_of(hdfs.HdfsError(b"<html>\n<head>Not Found"))
    assert page is not None and not page.passes and "is no WebHDFS" in page.text and "html" not in page.text


def test_of_a_file_that_is_taken_for_a_folder_nobody_is_asked_for_a_right() -> None:
    found = remote_trouble(403, "AccessControlException", "/user/eva/file (is not a directory)")
    assert not found.passes and "owner" not in found.text and "/user/eva/file (is not a directory)" in found.text


@pytest.mark.parametrize(
    "message",
    [
        "3 missing blocks, the stripe is: AlignedStripe(Offset=0, length=9); locatedBlocks is: LocatedBlocks{}",
        'Could not get block locations. Source file "/user/eva/file" - Aborting...block==null',
        "Error recovering pipeline for writing BP-1:blk_1_1. Already retried 5 times for the same packet.",
        "Failing write. Tried pipeline recovery 5 times without success.",
    ],
)
def test_what_hadoop_says_of_lost_datanodes_is_waited_for(message: str) -> None:
    assert remote_trouble(403, "IOException", message).passes


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("No active nodes contain this block", "no live DataNode of HDFS has this block: "),
        (
            "Failed to find datanode, suggest to check cluster health. excludeDatanodes=null",
            "no DataNode of HDFS takes data: see that one is live and has room",
        ),
        (
            "File /user/eva/file could only be written to 0 of the 1 minReplication nodes. There are 0 datanode(s)",
            "no DataNode of HDFS takes data: see that one is live and has room",
        ),
    ],
)
def test_that_no_datanode_is_there_is_told_in_words_that_say_what_to_do(message: str, told: str) -> None:
    found = remote_trouble(403, "IOException", message)
    assert found.passes and found.text.startswith(told) and found.text.endswith("(hdfs dfsadmin -report)")


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
    with pytest.raises(StorageError, match="/user/eva/file: cannot be written"):
        put(storage, "file", CONTENT)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    put(storage, "file", CONTENT)
    assert get(storage, "file") == CONTENT and os.listdir(tmp_path) == []


# ---- who one is


TOKEN = HadoopToken(b"i", b"p", HDFS_KIND, "ha-hdfs:lake")
SECRET = HadoopToken(b"whose", b"secret", HDFS_KIND, "127.0.0.1:8020").to_url_text()
KERBEROS = HadoopConf({"hadoop.security.authentication": "kerberos"})


@pytest.mark.parametrize(
    ("conf", "environ", "tokens", "expected"),
    [
        (HadoopConf(), {}, (), Login("insecure")),
        (HadoopConf(), {"HADOOP_USER_NAME": "eva"}, (), Login("insecure", user="eva")),
        (KERBEROS, {"HADOOP_USER_NAME": "eva"}, (), Login("kerberos")),
        (KERBEROS, {}, (TOKEN,), Login("token", token=TOKEN.to_url_text())),
        (KERBEROS, {"EPS_HDFS_TOKEN": SECRET}, (TOKEN,), Login("token", token=SECRET)),
        (KERBEROS, {}, (HadoopToken(b"", b"", "YARN_AM_RM_TOKEN", ""),), Login("kerberos")),
    ],
)
def test_the_login_is_chosen(
    conf: HadoopConf, environ: dict[str, str], tokens: tuple[HadoopToken, ...], expected: Login
) -> None:
    found = choose_login(conf, environ, tokens, "lake")
    assert found == expected and (not expected.token or expected.token not in repr(found))


@pytest.mark.parametrize("text", ["abcdef", "no base64!", SECRET[:-8]])
def test_what_is_no_token_is_refused_at_once_and_not_told(fake: FakeHdfs, text: str) -> None:
    with pytest.raises(ConfigError, match="EPS_HDFS_TOKEN: gives no token of Hadoop's") as caught:
        open_hdfs("webhdfs", fake.authority, "/", HadoopConf(), environ={TOKEN_VARIABLE: text})
    assert text not in str(caught.value) and not fake.asked("GETFILESTATUS")


def test_name_and_token_reach_hdfs(fake: FakeHdfs, tmp_path: Path) -> None:
    fake.put("/file", b"1")
    for environ in ({"HADOOP_USER_NAME": "eva"}, {"EPS_HDFS_TOKEN": SECRET}):
        assert get(open_hdfs("webhdfs", fake.authority, "/", HadoopConf(), environ=environ), "file") == b"1"
    first, second = fake.asked("GETFILESTATUS")
    assert first["user.name"] == "eva" and "delegation" not in first
    assert second["delegation"] == SECRET and "user.name" not in second
    with pytest.raises(StorageError, match=r"HADOOP_TOKEN_FILE_LOCATION is .*none: cannot be read"):
        connect("hdfs", "lake", HadoopConf(), {"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "none")})


def test_no_message_has_a_token(fake: FakeHdfs) -> None:
    # What answers speaks no TLS; the error of requests has the whole address.
    storage = open_hdfs("swebhdfs", fake.authority, "/", HadoopConf(), patience_s=0.0, environ={TOKEN_VARIABLE: SECRET})
    with pytest.raises(StorageError, match=rf"TLS with {fake.authority} fails: .*SSL") as caught:
        storage.status("file")
    assert SECRET not in "".join(format_exception(caught.value)), "nor has what led to it"


@pytest.mark.parametrize(
    "error",
    [
        requests.exceptions.InvalidURL(f"'/webhdfs/v1/file?op=OPEN&delegation={SECRET}' is none"),
        hdfs.HdfsError(
            f"cannot redirect to http://node:1/file?op=OPEN&delegation={SECRET}&offset=1", exception="IOException"
        ),
        hdfs.HdfsError(f"(delegation={SECRET}) is expired", exception="InvalidToken"),
        ValueError(f"no JSON: http://node:1/file?delegation={SECRET}"),
    ],
)
def test_a_query_is_left_out_of_what_is_told(error: Exception) -> None:
    found = trouble_of(error)
    assert found is not None and found.text and SECRET not in found.text
    told = trouble_of(hdfs.HdfsError("is x = 1 (why?) at /a/b", exception="IOException"))
    assert told is not None and told.text == "IOException: is x = 1 (why?) at /a/b"


def test_kerberos_without_its_package_says_which_extra() -> None:
    with pytest.raises(ConfigError, match=r"requests-kerberos .*\.\[kerberos\]"):
        connect("hdfs", "lake:8020", KERBEROS, {})


def test_a_keytab_that_is_not_there_is_told_before_a_package_that_would_not_mend_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "requests_kerberos", None)
    with pytest.raises(ConfigError) as raised:
        connect("hdfs", "lake:8020", KERBEROS, {"KRB5_CLIENT_KTNAME": "/nothere"})
    assert str(raised.value) == (
        "KRB5_CLIENT_KTNAME is /nothere: cannot be read: No such file or directory: "
        "let it name a keytab that you can read, or unset it and run kinit"
    )


def test_a_patience_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="EPS_HDFS_PATIENCE_S is 'long'"):
        connect("hdfs", "lake:8020", HadoopConf(), {PATIENCE_VARIABLE: "long"})


# ---- locations


def test_locations_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_remote("hdfs://a/b") and is_remote("swebhdfs://a:1/b")
    assert (
        not is_remote("/a/b") and not is_remote("a:b") and not is_remote("sklearn:iris") and not is_remote("s3://a/b")
    )
    found = location("hdfs://lake/data/a b#c?d%41.csv")
    assert isinstance(found, RemotePath) and found.path == "/data/a b#c?d%41.csv" and found.name == "a b#c?d%41.csv"
    assert str(found) == "hdfs://lake/data/a b#c?d%41.csv" and str(found.parent / "e") == "hdfs://lake/data/e"
    assert location("hdfs://lake/data/../x/") == RemotePath("hdfs", "lake", "/x") and location("a") == Path("a")
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with pytest.raises(ConfigError, match="names no NameNode, and HADOOP_CONF_DIR is not set"):
        location("hdfs:///data")
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://lake</value></property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert str(location("hdfs:///data")) == "hdfs://lake/data"
    for text in ("hdfs://lake", "webhdfs:///data"):
        with pytest.raises(ConfigError, match=r"names no host|is no location"):
            location(text)


def test_a_location_is_looked_at_and_read(fake: FakeHdfs) -> None:
    folder = location(f"webhdfs://{fake.authority}/data")
    assert isinstance(folder, RemotePath)
    file = folder / "file"
    assert not folder.is_dir() and not file.is_file() and file.status() is None
    with file.open_to_write() as stream:
        stream.write(CONTENT)
    assert folder.is_dir() and file.is_file() and not folder.is_file() and file.read_bytes() == CONTENT
    with read_file(file) as opened:
        opened.seek(-3, os.SEEK_END)
        assert opened.read() == CONTENT[-3:]
    key = file.content_key()
    opens = len(fake.asked("OPEN", at_data_node=True))
    assert file.content_key() == key and len(fake.asked("OPEN", at_data_node=True)) == opens
    fake.put("/data/file", CONTENT[:-1] + b"x")
    assert file.content_key() != key
    fake.put("/data/empty", b"")
    assert (folder / "empty").content_key().startswith("hdfs:empty:0:")
    with pytest.raises(StorageError, match="/data: is a folder"):
        folder.content_key()
