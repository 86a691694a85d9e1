"""Reading input files as bytes, with any compression, from this machine or from HDFS."""

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

#: What a setting of the data may be.
_FORMS = {
    "data": "an existing file, hdfs://HOST:PORT/PATH or sklearn:NAME",
    "test": "an existing file, hdfs://HOST:PORT/PATH, a part to hold out (0.2) or last rows (last:5000)",
}


def input_paths(text: str, name: str = "data") -> tuple[Location, ...]:
    """Return the files that ``text`` names: one path or HDFS location, or several separated by commas.

    Messages have ``name``, that of the setting.

    Raises
    ------
    DataError
        A file does not exist or is not a regular file.
    StorageError
        HDFS cannot be reached.
    ConfigError
        HDFS is not configured, or a location is on another file system.
    """
    whole = _located(text)
    # A name may contain a comma; without one, no check is needed here.
    alone = "," not in text or (whole.is_file() if isinstance(whole, RemotePath) else whole.exists())
    paths = (whole,) if alone and text.strip() else tuple(_located(part) for part in text.split(",") if part.strip())
    if not paths:
        raise DataError(f"{text!r} names no file: give a path, or paths separated by commas")
    for path in paths:
        # For an existing file on HDFS this is the only request.
        if path.is_file():
            continue
        if path.is_dir():
            raise DataError(f"{path}: is a folder, but {name} must be files: name its files, separated by commas")
        forms = _FORMS.get(name, "an existing file or hdfs://HOST:PORT/PATH")
        raise DataError(f"{path}: no such file: {name} must be {forms}")
    return paths


def _located(text: str) -> Location:
    stripped = text.strip()
    return location(stripped) if has_scheme(stripped) else Path(os.path.expanduser(stripped))


def read_input(path: Location) -> bytes:
    """Return the content of a file, unpacked from gzip, bzip2, xz and a tar archive of one file.

    Compression is detected by the first bytes, not by the name.

    Raises
    ------
    DataError
        The file cannot be read, is empty or damaged, or is an archive that does not hold exactly one file.
    StorageAwayError
        The file is on HDFS, which is unreachable.
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
            # Archives from macOS contain "._name" beside every file.
            members = [m for m in tar.getmembers() if m.isfile() and not os.path.basename(m.name).startswith(".")]
            if len(members) != 1:
                names = ", ".join(sorted(m.name for m in members)) or "none"
                raise DataError(f"{path}: archive of {len(members)} files ({names}): must hold exactly one")
            stream = tar.extractfile(members[0])
            return stream.read() if stream is not None else b""
    except tarfile.TarError as error:
        raise DataError(f"{path}: damaged archive: {error}") from error


def content_key(path: Location) -> str:
    """Return a key that differs if the content of a file does; a file on HDFS is not read.

    Raises
    ------
    DataError
        The file cannot be read.
    StorageAwayError
        HDFS is unreachable.
    """
    try:
        if isinstance(path, RemotePath):
            return path.content_key()
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except StorageAwayError:
        raise
    except StorageError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def bare_name(path: Location) -> str:
    """Return the file name in lower case, without extensions of compression and archives."""
    name = path.name.lower()
    for ending in (".gz", ".bz2", ".xz", ".tgz", ".tar"):
        name = name.removesuffix(ending)
    return name
