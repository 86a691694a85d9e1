"""Files of Hadoop's tokens, as Hadoop writes them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from eps.hadoop.token_file import HadoopToken


def vint(value: int) -> bytes:
    """As Hadoop's WritableUtils: up to 127 in a byte, else -113 for one byte that follows and -114 for two."""
    if value < 128:
        return struct.pack("b", value)
    return struct.pack(">bB", -113, value) if value < 256 else struct.pack(">bH", -114, value)


def counted(value: bytes) -> bytes:
    return vint(len(value)) + value


def writable_file(tokens: Sequence[HadoopToken]) -> bytes:
    """Return a file of tokens in Hadoop's own writables."""
    entries = b"".join(
        counted(b"alias") + b"".join(map(counted, (t.identifier, t.password, t.kind.encode(), t.service.encode())))
        for t in tokens
    )
    return b"HDTS\0" + vint(len(tokens)) + entries + vint(0)
