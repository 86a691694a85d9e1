"""The secret that H-scheduler and the plugin in a ResourceManager share: a file that its owner alone can read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from eps.errors import StorageError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_SECRET_BYTES = 16


def secret_of(path: Path) -> bytes:
    """Return the secret in a file; one is made where there is no file.

    Raises
    ------
    StorageError
        It cannot be read or written, is empty or a folder, or others may read it.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise StorageError(f"{path}: the secret cannot be made: {error.strerror or error}") from error
    else:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{secrets.token_hex(_SECRET_BYTES)}\n")
    if path.is_dir():
        raise StorageError(f"{path}: is a folder, but must be a file with the secret, or none yet")
    try:
        if path.stat().st_mode & _OTHERS:
            raise StorageError(f"{path}: others may read the secret: chmod 600 {path}")
        found = path.read_bytes().strip()
    except OSError as error:
        raise StorageError(f"{path}: the secret cannot be read: {error.strerror or error}") from error
    if not found:
        raise StorageError(f"{path}: is empty, but must hold a secret: remove it, and one is made")
    return found
