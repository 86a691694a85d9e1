"""``EPS_HOME``: where jobs live, and why a folder cannot be that."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from eps.errors import ConfigError

DIRECTORY_MODE = 0o700
#: Who may make a link that leads to a user's home, beside that user.
_ROOT = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: Folders of a home: jobs, prepared data, H-scheduler's service, sweeps that are applications.
_WITHIN = ("jobs", "cache", "hscheduler", "sweeps")


def eps_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of everything that EPS keeps: ``EPS_HOME``, or ``~/.eps``; absolute.

    Every path of a job begins with it, so every command of both programs refuses a home that others can change.

    Raises
    ------
    ConfigError
        As of :func:`check_own`, of the home or of a folder in it.
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
    """Refuse a directory that others can change; harmless where there is none yet.

    Parameters
    ----------
    path : Path
    name : str
        What it is to its user.
    another : str
        How another one is chosen.

    Raises
    ------
    ConfigError
        It is no directory, belongs to another user, or can be written by others: whoever can write there can choose
        what is trained, or take the place of a job or a service.
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
    """Make the home where there is none, for its user alone.

    Raises
    ------
    ConfigError
        It cannot be made or written; or as of :func:`eps_home`.
    """
    home = eps_home()
    rule = "must be a directory that can be written (the environment variable EPS_HOME chooses another)"
    try:
        make_private(home)
    except OSError as error:
        raise ConfigError(f"EPS_HOME is {home}, which cannot be made ({error.strerror}): {rule}") from None
    # Another user may have been faster.
    eps_home()
    if not os.access(home, os.W_OK | os.X_OK):
        raise ConfigError(f"EPS_HOME is {home}, which cannot be written: {rule}")


def make_private(path: Path) -> None:
    """Make a directory, and those of its parents that are missing, for this user alone, with any umask.

    Raises
    ------
    OSError
        One of them cannot be made.
    """
    # Path.mkdir gives parents the permissions of the umask.
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    for folder in reversed(missing):
        folder.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
