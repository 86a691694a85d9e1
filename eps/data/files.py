"""Reading input files as bytes, whatever they are compressed with, from this machine or from HDFS."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import tarfile
import zlib
from pathlib import Path

from eps.errors import DataError, StorageAwayError, StorageError
from eps.storage.locations import Location, RemotePath, has_scheme, location

_HASH_CHUNK_BYTES = 1 << 20


def input_paths(text: str) -> tuple[Location, ...]:
    """Return the files that ``text`` names: one path or location on HDFS, or several divided by commas.

    Raises
    ------
    DataError
        A file does not exist or is not a regular file.
    StorageError
        HDFS cannot be asked.
    ConfigError
        HDFS cannot be found, or it is on another file system.
    """
    whole = _located(text)
    # A name may have a comma in it; without one there is nothing to ask twice.
    alone = "," not in text or (whole.is_file() if isinstance(whole, RemotePath) else whole.exists())
    paths = (whole,) if alone and text.strip() else tuple(_located(part) for part in text.split(",") if part.strip())
    if not paths:
        raise DataError(f"{text!r} names no file: give a path, or paths divided by commas")
    for path in paths:
        # What is on HDFS is asked for once where it is there.
        if path.is_file():
            continue
        if path.is_dir():
            raise DataError(f"{path}: is a folder, but data must be files: name those in it, divided by commas")
        raise DataError(f"{path}: no such file: data must be an existing file, hdfs://HOST:PORT/PATH or sklearn:NAME")
    return paths


def _located(text: str) -> Location:
    stripped = text.strip()
    return location(stripped) if has_scheme(stripped) else Path(os.path.expanduser(stripped))


def read_input(path: Location) -> bytes:
    """Return the content of a file, unpacked from gzip, bzip2, xz and from a tar archive of one file.

    What is packed is told by its first bytes, not by its name.

    Raises
    ------
    DataError
        The file cannot be read, is empty, is damaged, or is an archive of more or fewer files than one.
    StorageAwayError
        It is on HDFS, which cannot be reached.
    """
    try:
        content = path.read_bytes()
    except StorageAwayError:
        raise
    except StorageError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        elif content.startswith(b"BZh"):
            content = bz2.decompress(content)
        elif content.startswith(b"\xfd7zXZ\x00"):
            content = lzma.decompress(content)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: damaged compressed file: {error}") from error
    if content[257:262] == b"ustar":
        content = _only_member(content, path)
    if not content.strip(b" \t\r\n"):
        raise DataError(f"{path}: empty file: data needs at least one row")
    return content


def _only_member(archive: bytes, path: Location) -> bytes:
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            # Archives made on macOS carry "._name" beside every file.
            members = [m for m in tar.getmembers() if m.isfile() and not os.path.basename(m.name).startswith(".")]
            if len(members) != 1:
                names = ", ".join(sorted(m.name for m in members)) or "none"
                raise DataError(f"{path}: archive of {len(members)} files ({names}): must hold exactly one")
            stream = tar.extractfile(members[0])
            return stream.read() if stream is not None else b""
    except tarfile.TarError as error:
        raise DataError(f"{path}: damaged archive: {error}") from error


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as stored, in hex."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_HASH_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def content_key(path: Location) -> str:
    """Return a text that differs where the content of a file does: of one on HDFS without reading it.

    Raises
    ------
    DataError
        It cannot be had.
    StorageAwayError
        HDFS cannot be reached.
    """
    if not isinstance(path, RemotePath):
        return file_sha256(path)
    try:
        return path.content_key()
    except StorageAwayError:
        raise
    except StorageError as error:
        raise DataError(str(error)) from error


def bare_name(path: Location) -> str:
    """Return the name in lower case without the endings of compression and archives."""
    name = path.name.lower()
    for ending in (".gz", ".bz2", ".xz", ".tgz", ".tar"):
        name = name.removesuffix(ending)
    return name
