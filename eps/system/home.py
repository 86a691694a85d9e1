"""``EPS_HOME``: the directory of all jobs, and the checks of its owner and permissions."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from eps.errors import ConfigError

DIRECTORY_MODE = 0o700
#: User id whose symbolic links are accepted besides the user's own.
_ROOT = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: Folders of EPS_HOME: jobs, prepared data, H-scheduler's service, sweeps.
_WITHIN = ("jobs", "cache", "hscheduler", "sweeps")


def eps_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of all EPS files: ``EPS_HOME``, or ``~/.eps``; absolute.

    Every path of a job begins with it, so every command refuses a home that other users can change.

    Raises
    ------
    ConfigError
        :func:`check_own` refuses the home or a folder in it.
    """
    home = Path(environ.get("EPS_HOME") or Path.home() / ".eps").expanduser().absolute()
    another = "set the environment variable EPS_HOME to another"
    check_own(home, "EPS_HOME", another)
    for name in _WITHIN:
        # The code that needs a folder reports that something else is in its place.
        if (home / name).is_dir():
            check_own(home / name, f"{name} in EPS_HOME", another)
    return home


def check_own(path: Path, name: str, another: str) -> None:
    """Refuse a directory that other users can change; accept one that does not exist yet.

    Parameters
    ----------
    path : Path
    name : str
        The directory as messages name it.
    another : str
        How the user chooses another directory; ends the message.

    Raises
    ------
    ConfigError
        The path is not a directory, belongs to another user, or is writable by others.  Such a writer could change what
        is trained, or replace a job or a service.
    """
    rule = "must be a directory of your own that only you can write"
    user = os.geteuid()
    try:
        link, found = path.lstat(), path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{name} is {path}, which cannot be read ({error.strerror}): {another}") from None
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (user, _ROOT):
        raise ConfigError(f"{name} is {path}, a symbolic link of user {link.st_uid}, but {rule}: {another}")
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{name} is {path}, which is not a directory, but {rule}: {another}")
    if found.st_uid != user:
        raise ConfigError(f"{name} is {path}, which belongs to user {found.st_uid}, but {rule}: {another}")
    if found.st_mode & _OTHERS_WRITE:
        mode, mend = f"{stat.S_IMODE(found.st_mode):o}", f"chmod go-w {path}"
        raise ConfigError(f"{name} is {path}, which others can write (mode {mode}), but {rule}: {mend}, or {another}")


def make_home() -> None:
    """Create the home if it is missing, accessible to its user only.

    Raises
    ------
    ConfigError
        The home cannot be created or written, or :func:`eps_home` refuses it.
    """
    home = eps_home()
    rule = "must be a directory that can be written (the environment variable EPS_HOME chooses another)"
    try:
        make_private(home)
    except OSError as error:
        raise ConfigError(f"EPS_HOME is {home}, which cannot be created ({error.strerror}): {rule}") from None
    # Another user may have created it in between.
    eps_home()
    if not os.access(home, os.W_OK | os.X_OK):
        raise ConfigError(f"EPS_HOME is {home}, which cannot be written: {rule}")


def make_private(path: Path) -> None:
    """Create a directory and its missing parents for this user only, whatever the umask.

    Raises
    ------
    OSError
        A directory cannot be created.
    """
    # Path.mkdir gives parents the permissions of the umask.
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    for folder in reversed(missing):
        folder.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
