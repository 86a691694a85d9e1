"""Is ``EPS_HOME`` a place where jobs can live?  L3."""

from __future__ import annotations

import os

from eps.errors import ConfigError
from eps.storage.jobdir import DIRECTORY_MODE, eps_home


def check_home(*, writable: bool) -> None:
    """Refuse a home that cannot serve; one that is not there yet is fine, and is made where it is to be written.

    Raises
    ------
    ConfigError
        It is not a directory, or cannot be made or written though it must be.
    """
    home = eps_home()
    rule = "must be a directory that can be written (the environment variable EPS_HOME chooses another)"
    try:
        if writable:
            home.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"EPS_HOME is {home}, which cannot be made ({error.strerror}): {rule}") from None
    if home.exists() and not home.is_dir():
        raise ConfigError(f"EPS_HOME is {home}, which is not a directory: {rule}")
    if writable and not os.access(home, os.W_OK | os.X_OK):
        raise ConfigError(f"EPS_HOME is {home}, which cannot be written: {rule}")
