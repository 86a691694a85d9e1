"""Read Hadoop's delegation tokens from a container's token file, and write them for WebHDFS.

``HADOOP_TOKEN_FILE_LOCATION`` names a file with ``HDTS``, a version and the tokens.  Version 0 has Hadoop's writables,
version 1 one protobuf message after its length.

Source: ``Credentials``, ``Token`` and ``WritableUtils`` of Hadoop's ``org.apache.hadoop.security`` and ``.io``; the
messages of ``Security.proto``.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from eps.errors import StorageError

#: Environment variable with a container's token file, set by its NodeManager.
TOKEN_FILE_VARIABLE = "HADOOP_TOKEN_FILE_LOCATION"
#: Kinds of tokens: with the first, a process talks to the ResourceManager as the application master; with the second,
#: it submits and kills applications as its user.
AM_TOKEN, CLIENT_TOKEN = "YARN_AM_RM_TOKEN", "RM_DELEGATION_TOKEN"
#: Kind of NameNodes' tokens, and the prefix of the service of a token for a name service.
HDFS_KIND, HA_SERVICE = "HDFS_DELEGATION_TOKEN", "ha-hdfs:"
_MAGIC = b"HDTS"
_WRITABLE, _PROTOBUF = 0, 1
_LENGTH_DELIMITED = 2


@dataclass(frozen=True)
class HadoopToken:
    """A delegation token."""

    identifier: bytes
    #: The secret; ``repr`` leaves it out.
    password: bytes
    kind: str
    #: Service that accepts it: ``10.0.0.7:8020`` or ``ha-hdfs:lake``.
    service: str

    def __repr__(self) -> str:
        return f"HadoopToken({self.kind} for {self.service})"

    def to_url_text(self) -> str:
        """Return the token as text for WebHDFS's parameter ``delegation``."""
        fields = (self.identifier, self.password, self.kind.encode(), self.service.encode())
        data = b"".join(_vint(len(value)) + value for value in fields)
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")

    @classmethod
    def from_url_text(cls, text: str, where: str) -> HadoopToken:
        """Return the token in a text from Hadoop's web interfaces.

        Parameters
        ----------
        text : str
        where : str
            Its origin, for messages.

        Raises
        ------
        StorageError
            The text is no token.
        """
        try:
            reader = _Reader(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
            identifier, password, kind, service = (reader.counted() for _ in range(4))
            return cls(identifier, password, kind.decode(), service.decode())
        except (ValueError, IndexError) as error:
            raise StorageError(f"{where}: expected a Hadoop delegation token: {error}") from None


def parse_tokens(data: bytes, where: str) -> tuple[HadoopToken, ...]:
    """Return the tokens of a file, in its order.

    Raises
    ------
    StorageError
        The file is no token file, or is damaged.
    """
    try:
        if data[:4] != _MAGIC:
            raise ValueError("it does not begin with HDTS")
        reader = _Reader(data, 5)
        if data[4] == _WRITABLE:
            return tuple(_writable_tokens(reader))
        if data[4] == _PROTOBUF:
            return tuple(_protobuf_tokens(reader.take(reader.varint())))
        raise ValueError(f"it is of version {data[4]}")
    except (ValueError, IndexError) as error:
        raise StorageError(f"{where}: expected a Hadoop token file: {error}") from None


def hdfs_token(tokens: Collection[HadoopToken], authority: str, addresses: Collection[str] = ()) -> HadoopToken | None:
    """Return the token for a file system.

    Parameters
    ----------
    tokens : collection of HadoopToken
    authority : str
        Of ``hdfs://AUTHORITY/``.
    addresses : collection of str
        Addresses of that host: a token names an address unless it is for a name service.

    Returns
    -------
    HadoopToken or None
        The token for that service; else the only HDFS token; None if there are none or several.
    """
    ours = [token for token in tokens if token.kind == HDFS_KIND]
    services = {authority, f"{HA_SERVICE}{authority}", *addresses}
    for token in ours:
        if token.service in services:
            return token
    return ours[0] if len(ours) == 1 else None


class _Reader:
    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data, self._at = data, at

    @property
    def ended(self) -> bool:
        return self._at >= len(self._data)

    def take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if count < 0 or len(found) < count:
            raise ValueError("it ends too early")
        self._at += count
        return found

    def vint(self) -> int:
        """Read a number in the format of ``WritableUtils``: one byte, or one with the number of following bytes."""
        first = int.from_bytes(self.take(1), "big", signed=True)
        if first >= -112:
            return first
        negative = first < -120
        value = int.from_bytes(self.take(-120 - first if negative else -112 - first), "big")
        return ~value if negative else value

    def varint(self) -> int:
        """Read a number in protobuf's format: seven bits a byte, the lowest first."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def counted(self) -> bytes:
        return self.take(self.vint())


def _writable_tokens(reader: _Reader) -> Iterator[HadoopToken]:
    for _ in range(reader.vint()):
        reader.counted()
        identifier, password, kind, service = (reader.counted() for _ in range(4))
        yield HadoopToken(identifier, password, kind.decode(), service.decode())


def _protobuf_tokens(message: bytes) -> Iterator[HadoopToken]:
    for number, entry in _fields(message):
        # 1: tokens, each with an alias (1) and the token (2); other fields are users' secrets.
        token = dict(_fields(entry)).get(2) if number == 1 else None
        if token is not None:
            fields = dict(_fields(token))
            kind, service = fields.get(3, b"").decode(), fields.get(4, b"").decode()
            yield HadoopToken(fields.get(1, b""), fields.get(2, b""), kind, service)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    reader = _Reader(message)
    while not reader.ended:
        tag = reader.varint()
        if tag & 7 != _LENGTH_DELIMITED:
            raise ValueError(f"a field has wire type {tag & 7}")
        yield tag >> 3, reader.take(reader.varint())


def _vint(value: int) -> bytes:
    """Return a length in the format of ``WritableUtils``."""
    if value <= 127:
        return bytes([value])
    data = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([(-112 - len(data)) & 0xFF]) + data
