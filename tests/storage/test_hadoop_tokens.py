"""Files of Hadoop's tokens, in both of its formats."""

from __future__ import annotations

import base64

import pytest

from eps.errors import StorageError
from eps.hadoop.token_file import HDFS_KIND, HadoopToken, hdfs_token, parse_tokens
from tests.fakes.hadoop_tokens import counted, writable_file

LONG = bytes(range(256)) * 2
TOKENS = (
    HadoopToken(b"who", b"secret", "YARN_AM_RM_TOKEN", ""),
    HadoopToken(LONG, b"p" * 200, HDFS_KIND, "ha-hdfs:lake"),
    HadoopToken(b"other", b"s", HDFS_KIND, "10.0.0.7:8020"),
)


def field(number: int, value: bytes) -> bytes:
    length = len(value)
    size = bytes([length]) if length < 128 else bytes([length & 0x7F | 0x80, length >> 7])
    return bytes([number << 3 | 2]) + size + value


def protobuf_file() -> bytes:
    entries = b"".join(
        field(
            1,
            field(1, b"alias")
            + field(
                2,
                field(1, t.identifier)
                + field(2, t.password)
                + field(3, t.kind.encode())
                + field(4, t.service.encode()),
            ),
        )
        for t in TOKENS
    )
    message = entries + field(2, field(1, b"a key of the user's") + field(3, b"its secret"))
    length = len(message)
    return b"HDTS\1" + bytes([length & 0x7F | 0x80, length >> 7]) + message


@pytest.mark.parametrize("data", [writable_file(TOKENS), protobuf_file()], ids=["writable", "protobuf"])
def test_both_formats_are_read_and_what_is_cut_off_is_told(data: bytes) -> None:
    assert parse_tokens(data, "file") == TOKENS
    for length in (0, 4, 5, 40, len(data) // 2):
        with pytest.raises(StorageError, match="file: expected a Hadoop token file"):
            parse_tokens(data[:length], "file")


def test_another_version_is_refused() -> None:
    with pytest.raises(StorageError, match="version 2"):
        parse_tokens(b"HDTS\2", "file")


def test_the_text_for_urls_is_the_token_as_hadoop_writes_it() -> None:
    text = TOKENS[1].to_url_text()
    assert "=" not in text and "+" not in text and "/" not in text
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    assert data == counted(LONG) + counted(b"p" * 200) + counted(HDFS_KIND.encode()) + counted(b"ha-hdfs:lake")


def test_the_secret_is_in_no_text() -> None:
    assert "secret" not in repr(TOKENS[0]) and "YARN_AM_RM_TOKEN" in repr(TOKENS[0])


def test_the_token_of_a_file_system_is_found() -> None:
    assert hdfs_token(TOKENS, "lake") is TOKENS[1]
    assert hdfs_token(TOKENS, "nn:8020", ["10.0.0.7:8020"]) is TOKENS[2]
    assert hdfs_token(TOKENS, "nn:8020") is None
    assert hdfs_token(TOKENS[:2], "nn:8020") is TOKENS[1]
    assert hdfs_token(TOKENS[:1], "lake") is None


#: What Hadoop 3.5.0 writes of two tokens and a secret: ``Token.encodeToUrlString`` and ``Credentials``.
HADOOPS_URL_TEXT = (
    "j8gABw4VHCMqMTg_Rk1UW2JpcHd-hYyTmqGor7a9xMvS2eDn7vX8AwoRGB8mLTQ7QklQV15lbHN6gYiPlp2kq7K5wMfO1dzj6vH4_wYNFBsiKT"
    "A3PkVMU1phaG92fYSLkpmgp661vMPK0djf5u30-"
    "wIJEBceJSwzOkFIT1ZdZGtyeYCHjpWco6qxuL_GzdTb4unw9_4FDBMaISgvNj1ES1JZYGdudXyDipGYn6attLvCydDX3uXs8_oBCA8WHSQrMjl"
    "AR05VXGNqcRRwYXNzd29yZC1vZi0yMC1ieXRlcxVIREZTX0RFTEVHQVRJT05fVE9LRU4MaGEtaGRmczpsYWtl"
)
HADOOPS_FILES = {
    "writable": (
        "SERUUwACAAJybQJwdxBZQVJOX0FNX1JNX1RPS0VODTEwLjAuMC43OjgwMzAEaGRmc4/IAAcOFRwjKjE4P0ZNVFtiaXB3foWMk5qhqK+2vcTL0t"
        "ng5+71/AMKERgfJi00O0JJUFdeZWxzeoGIj5adpKuyucDHztXc4+rx+P8GDRQbIikwNz5FTFNaYWhvdn2Ei5KZoKeutbzDytHY3+bt9PsCCRAX"
        "HiUsMzpBSE9WXWRrcnmAh46VnKOqsbi/xs3U2+Lp8Pf+BQwTGiEoLzY9REtSWWBnbnV8g4qRmJ+mrbS7wsnQ197l7PP6AQgPFh0kKzI5QEdOVV"
        "xjanEUcGFzc3dvcmQtb2YtMjAtYnl0ZXMVSERGU19ERUxFR0FUSU9OX1RPS0VODGhhLWhkZnM6bGFrZQEDa2V5BnNlY3JldA=="
    ),
    "protobuf": (
        "SERUUwHQAgotCgASKQoCcm0SAnB3GhBZQVJOX0FNX1JNX1RPS0VOIg0xMC4wLjAuNzo4MDMwCo8CCgRoZGZzEoYCCsgBAAcOFRwjKjE4P0ZNVF"
        "tiaXB3foWMk5qhqK+2vcTL0tng5+71/AMKERgfJi00O0JJUFdeZWxzeoGIj5adpKuyucDHztXc4+rx+P8GDRQbIikwNz5FTFNaYWhvdn2Ei5KZ"
        "oKeutbzDytHY3+bt9PsCCRAXHiUsMzpBSE9WXWRrcnmAh46VnKOqsbi/xs3U2+Lp8Pf+BQwTGiEoLzY9REtSWWBnbnV8g4qRmJ+mrbS7wsnQ19"
        "7l7PP6AQgPFh0kKzI5QEdOVVxjanESFHBhc3N3b3JkLW9mLTIwLWJ5dGVzGhVIREZTX0RFTEVHQVRJT05fVE9LRU4iDGhhLWhkZnM6bGFrZRIN"
        "CgNrZXkaBnNlY3JldA=="
    ),
}


@pytest.mark.parametrize("format", HADOOPS_FILES)
def test_what_hadoop_writes_is_read_and_given_to_webhdfs_as_hadoop_gives_it(format: str) -> None:
    other, token = parse_tokens(base64.b64decode(HADOOPS_FILES[format]), "file")
    assert other == HadoopToken(b"rm", b"pw", "YARN_AM_RM_TOKEN", "10.0.0.7:8030")
    identifier = bytes(i * 7 % 256 for i in range(200))
    assert token == HadoopToken(identifier, b"password-of-20-bytes", HDFS_KIND, "ha-hdfs:lake")
    assert token.to_url_text() == HADOOPS_URL_TEXT
    assert HadoopToken.from_url_text(HADOOPS_URL_TEXT, "it") == token


@pytest.mark.parametrize("text", ["", "x", "not base64!", "AAA", HADOOPS_URL_TEXT[:40]])
def test_a_text_that_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(StorageError, match="the NameNode: expected a Hadoop delegation token"):
        HadoopToken.from_url_text(text, "the NameNode")
