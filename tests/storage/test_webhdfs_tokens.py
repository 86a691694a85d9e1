"""Delegation tokens that another obtains for WebHDFS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from eps.errors import AuthenticationError, StorageError
from eps.hadoop import delegation
from eps.hadoop.conf import HadoopConf
from eps.hadoop.delegation import DelegationAuth
from eps.storage import webhdfs
from eps.storage.hdfs import HdfsStorage
from eps.storage.webhdfs import WebHdfs
from tests.fakes.webhdfs import FakeHdfs

requests = pytest.importorskip("requests")
hdfs = pytest.importorskip("hdfs")


@pytest.fixture
def fake() -> Iterator[FakeHdfs]:
    with FakeHdfs() as found:
        yield found


def delegated(fake: FakeHdfs, obtain: Any) -> HdfsStorage:
    session = requests.Session()
    session.auth = DelegationAuth(obtain)
    client = hdfs.client.Client(f"http://{fake.authority}", session=session)
    return HdfsStorage(WebHdfs("hdfs://lake", client, 5.0), "/user/ada")


def test_a_token_is_in_every_request_and_obtained_once(fake: FakeHdfs) -> None:
    obtained: list[str] = []
    storage = delegated(fake, lambda: obtained.append("x") or f"token-{len(obtained)}")
    with storage.write("a") as file:
        file.write(b"1")
    with storage.read("a") as file:
        assert file.read() == b"1"
    seen = {(op, params.get("delegation")) for op, _, params, _ in fake.requests}
    assert {token for _, token in seen} == {"token-1"} and {op for op, _ in seen} >= {"CREATE", "OPEN", "MKDIRS"}
    assert obtained == ["x"]


def test_a_token_that_was_there_is_left_and_an_old_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = iter(("first", "second"))
    auth = DelegationAuth(lambda: next(texts))

    def asked(url: str) -> str:
        return str(auth(requests.Request("GET", url).prepare()).url)

    assert asked("http://dn:9864/x?op=OPEN&delegation=theirs") == "http://dn:9864/x?op=OPEN&delegation=theirs"
    assert asked("http://nn:9870/x?op=OPEN") == asked("http://nn:9870/x?op=OPEN")
    assert asked("http://nn:9870/x?op=OPEN").endswith("op=OPEN&delegation=first")
    monkeypatch.setattr(delegation, "REFRESH_S", -1.0)
    assert asked("http://nn:9870/x?op=OPEN").endswith("delegation=second")


def test_one_that_cannot_be_obtained_is_an_error_of_the_store(fake: FakeHdfs) -> None:
    def obtain() -> str:
        raise StorageError("a token for hdfs://lake cannot be obtained: run kinit")

    with pytest.raises(StorageError, match="run kinit"):
        delegated(fake, obtain).status("a")


def test_who_has_nothing_to_show_is_told_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise AuthenticationError("run kinit")

    monkeypatch.setitem(__import__("sys").modules, "requests_kerberos", None)
    monkeypatch.setattr(delegation, "delegated_client", refuse)
    conf = HadoopConf({"hadoop.security.authentication": "kerberos"})
    with pytest.raises(AuthenticationError, match="run kinit"):
        webhdfs.connect("hdfs", "lake:8020", conf, {})
