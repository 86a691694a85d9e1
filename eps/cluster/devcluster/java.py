"""Which Java there is, and whether it will do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eps.cluster.devcluster.settings import ClusterSettings
from eps.errors import ConfigError

_TIMEOUT_S = 60.0
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
#: Servers of Hadoop 3.5 need Java 17; those before run on it with packages opened.
_LEAST_3_5, _LEAST = 17, 11
#: Java 24 took away what Hadoop uses to know its user.
_MOST = 23
_INSTALL = "install a JDK 17 (on Debian: apt install openjdk-17-jdk-headless), or let JAVA_HOME name one"


@dataclass(frozen=True)
class Java:
    """A Java: its command, its home, and its version, as 17."""

    command: str
    home: str
    version: int


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the Java of JAVA_HOME, or of PATH.

    Raises
    ------
    ConfigError
        There is none, or it does not run.
    """
    home = environ.get("JAVA_HOME", "")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environ.get("PATH")) or ""
    if not command:
        raise ConfigError(f"there is no Java on this host: {_INSTALL}")
    if not os.access(command, os.X_OK):
        raise ConfigError(f"JAVA_HOME is {home}, but there is no bin/java in it: {_INSTALL}")
    try:
        said = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, env=dict(environ)
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{command} does not run ({error}): {_INSTALL}") from error
    found = _VERSION.search(said.stderr + said.stdout)
    if not found:
        raise ConfigError(f"{command} does not say its version, but {said.stderr.strip()!r}: {_INSTALL}")
    return Java(command, home or str(Path(command).resolve().parents[1]), int(found[1]))


def check_java(java: Java, settings: ClusterSettings) -> None:
    """Refuse a Java that this Hadoop does not run on.

    Raises
    ------
    ConfigError
        It is too old or too new.
    """
    least = _LEAST_3_5 if settings.release >= (3, 5) else _LEAST
    if not least <= java.version <= _MOST:
        raise ConfigError(
            f"{java.command} is Java {java.version}, but Hadoop {settings.hadoop_version} needs {least} to {_MOST}: "
            f"{_INSTALL}"
        )
