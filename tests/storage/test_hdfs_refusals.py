"""HDFS through WebHDFS: what is an error at once and how it is told, who one is to it, and locations there."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from pathlib import Path
from traceback import format_exception
from typing import Any

import hdfs
import pytest
import requests

from eps.errors import ConfigError, StorageAwayError, StorageError
from eps.hadoop.conf import HadoopConf
from eps.hadoop.token_file import HDFS_KIND, TOKEN_FILE_VARIABLE, HadoopToken
from eps.storage.hdfs import HdfsStorage, open_hdfs
from eps.storage.locations import RemotePath, has_scheme, is_remote, location, read_file
from eps.storage.webhdfs import (
    PATIENCE_VARIABLE,
    TOKEN_VARIABLE,
    MissingError,
    connect,
    trouble_of,
)
from tests.fakes.hadoop_tokens import writable_file
from tests.fakes.storage import get, put
from tests.fakes.webhdfs import FakeHdfs, refusing_connections
from tests.storage.hdfs_world import CONTENT, PATIENCE_S, only
from tests.storage.hdfs_world import fake as fake
from tests.storage.hdfs_world import storage as storage

# ---- what does not pass


def test_one_that_does_not_know_how_to_replace_a_file_is_told(fake: FakeHdfs, storage: HdfsStorage) -> None:
    put(storage, "file", b"before")
    fake.fault("RENAME", "no")
    with pytest.raises(StorageError, match=r"eva/file: .*not of HttpFS"):
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
    with pytest.raises(StorageError, match=rf"eva/file: .*{expected}") as caught:
        put(storage, "file", b"")
    assert "\n" not in str(caught.value) and len(fake.asked("MKDIRS")) == 1


def test_what_is_missing_is_told_apart(fake: FakeHdfs, storage: HdfsStorage) -> None:
    with pytest.raises(MissingError, match=r"eva/none: .*no such file"):
        storage.status("none")
    fake.put("/user/eva/file", b"")
    with pytest.raises(StorageError, match="not a directory"):
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
    guess = "that port is a guess, for HADOOP_CONF_DIR is not set, so nothing describes the NameNode nohost:1234: check"
    told = str(raised.value)
    assert f"the host of nohost:9870 is unknown (Name or service not known); {guess}" in told
    assert told.endswith("retried for 0.2 s (EPS_HDFS_PATIENCE_S sets that)") == waited
    assert "webhdfs://nohost:9870" in told


def test_of_a_namenode_that_the_configuration_knows_nothing_is_guessed(fake: FakeHdfs) -> None:
    port = fake.ports[0]
    values = {"fs.defaultFS": "hdfs://127.0.0.1:8020", "dfs.namenode.http-address": f"127.0.0.1:{port}"}
    with refusing_connections(fake):
        for authority, guess in (
            ("127.0.0.1:8020", ""),
            (f"localhost:{port}", "that port is a guess, for /conf does not"),
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
    monkeypatch.setattr("eps.hadoop.conf.NAMENODE_HTTP_PORT", fake.ports[0])
    found = open_hdfs("hdfs", "127.0.0.1:8020", "/", HadoopConf(), patience_s=PATIENCE_S, environ={})
    fake.put("/file", CONTENT)
    # As of a container that has ended: its name is gone with it.
    fake.fault("OPEN", "dead", name="datanode:9864")
    with caplog.at_level(logging.WARNING, "eps.storage.webhdfs"):
        assert get(found, "file") == CONTENT
    (said,) = caplog.messages
    assert "the host of datanode:9864 is unknown" in said and "guess" not in said


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
        f"webhdfs://{authority}/x: cannot be read: that is the RPC port of Hadoop's own cl"
    )
    assert "b'" not in str(raised.value) and "dfs.namenode.http-address" in str(raised.value)


def test_what_answers_and_is_no_webhdfs_is_told() -> None:
    page = trouble_of(hdfs.HdfsError(b"<html>\n<head>Not Found"))
    assert page is not None and page.kind is StorageAwayError
    assert "is not WebHDFS's" in page.text and "html" not in page.text


# ---- who one is


SECRET = HadoopToken(b"whose", b"secret", HDFS_KIND, "127.0.0.1:8020").to_url_text()
KERBEROS = HadoopConf({"hadoop.security.authentication": "kerberos"})


@pytest.mark.parametrize("text", ["abcdef", "no base64!", SECRET[:-8]])
def test_what_is_no_token_is_refused_at_once_and_not_told(fake: FakeHdfs, text: str) -> None:
    with pytest.raises(ConfigError, match="EPS_HDFS_TOKEN: ") as caught:
        open_hdfs("webhdfs", fake.authority, "/", HadoopConf(), environ={TOKEN_VARIABLE: text})
    assert text not in str(caught.value) and not fake.asked("GETFILESTATUS")


def test_name_and_token_reach_hdfs_and_a_token_goes_before_kerberos(fake: FakeHdfs, tmp_path: Path) -> None:
    fake.put("/file", b"1")
    tokens = tmp_path / "tokens"
    ours = HadoopToken(b"i", b"p", HDFS_KIND, fake.authority)
    tokens.write_bytes(writable_file([HadoopToken(b"", b"", "YARN_AM_RM_TOKEN", ""), ours]))
    of_file = {TOKEN_FILE_VARIABLE: str(tokens)}
    for conf, environ, expected in (
        (HadoopConf(), {"HADOOP_USER_NAME": "eva"}, {"user.name": "eva"}),
        (HadoopConf(), {TOKEN_VARIABLE: SECRET}, {"delegation": SECRET}),
        (KERBEROS, of_file, {"delegation": ours.to_url_text()}),
        (KERBEROS, {**of_file, TOKEN_VARIABLE: SECRET}, {"delegation": SECRET}),
    ):
        assert get(open_hdfs("webhdfs", fake.authority, "/", conf, environ=environ), "file") == b"1"
        asked = fake.asked("GETFILESTATUS")[-1]
        assert {key: asked[key] for key in ("user.name", "delegation") if key in asked} == expected
    with pytest.raises(StorageError, match=r"LOCATION is .*none: "):
        connect("hdfs", "lake", HadoopConf(), {TOKEN_FILE_VARIABLE: str(tmp_path / "none")})


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
    with pytest.raises(ConfigError, match=r"requests-kerberos"):
        connect("hdfs", "lake:8020", KERBEROS, {})


def test_a_keytab_that_is_not_there_is_told_before_a_package_that_would_not_mend_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "requests_kerberos", None)
    with pytest.raises(ConfigError) as raised:
        connect("hdfs", "lake:8020", KERBEROS, {"KRB5_CLIENT_KTNAME": "/nothere"})
    assert str(raised.value) == (
        "KRB5_CLIENT_KTNAME is /nothere, which cannot be read (No such file or directory): "
        "set it to a keytab that you can read, or unset it and run kinit"
    )


def test_a_patience_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="PATIENCE_S is 'long'"):
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
    with pytest.raises(ConfigError, match=r"NameNode, .*HADOOP_CONF_DIR"):
        location("hdfs:///data")
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://lake</value></property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert str(location("hdfs:///data")) == str(location("hdfs:/data")) == "hdfs://lake/data"
    assert is_remote("hdfs:/data") and has_scheme("hdfs:/data") and not has_scheme("hdfs:data")
    for text in ("hdfs://lake", "webhdfs:///data", "webhdfs:/data"):
        with pytest.raises(ConfigError, match=r"no host|no.* location"):
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
