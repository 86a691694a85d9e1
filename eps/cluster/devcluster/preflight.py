"""What a cluster needs of this host, asked for before anything is started."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
from pathlib import Path

from eps.cluster.devcluster.jars import check_room
from eps.cluster.devcluster.java import Java, check_java, find_java
from eps.cluster.devcluster.ports import check_addresses
from eps.cluster.devcluster.settings import ClusterSettings
from eps.errors import ConfigError
from eps.system.home import make_private

#: HDFS and the NodeManagers write here.
_NEEDED_MB = 300
#: NodeManagers call themselves unhealthy where less than this is free.
_LEAST_FREE = 0.005
#: Hadoop joins paths with commas and colons, and makes URLs of them.
_PLAIN = re.compile(r"[A-Za-z0-9/._+@=~-]+", re.ASCII)
#: NodeManagers start containers with these: program -> package of Debian.
_PROGRAMS = {"bash": "bash", "setsid": "util-linux"}


def check_host(settings: ClusterSettings, home: Path) -> Java:
    """Refuse a host on which the cluster would not start, and return its Java.

    Raises
    ------
    ConfigError
        With what is missing, and how to get it.
    """
    if not Path("/proc/self/stat").exists():
        raise ConfigError("the cluster needs Linux: it finds its processes in /proc, and its nodes in 127.0.0.0/8")
    java = find_java()
    check_java(java, settings)
    for program, package in _PROGRAMS.items():
        if not shutil.which(program):
            raise ConfigError(f"there is no {program}, with which NodeManagers start containers: apt install {package}")
    for entry in settings.rm_class_path:
        if not os.path.exists(entry.removesuffix("/*")):
            raise ConfigError(f"class path of the ResourceManager: there is no {entry}")
    check_addresses(settings)
    check_name(socket.gethostname())
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise ConfigError(f"user {os.getuid()} has no name in /etc/passwd, and Hadoop needs one: useradd") from None
    # Last: it makes the directory.
    check_home(home)
    return java


def check_name(name: str) -> None:
    """Refuse a host whose own name leads nowhere.

    Raises
    ------
    ConfigError
        It does.
    """
    try:
        socket.gethostbyname(name)
    except OSError:
        raise ConfigError(
            f"this host calls itself {name}, which has no address, and Hadoop asks for it: add the line "
            f"'127.0.1.1 {name}' to /etc/hosts"
        ) from None


def check_home(home: Path) -> None:
    """Make the directory of a cluster, or refuse a place that Hadoop cannot have its files in.

    Raises
    ------
    ConfigError
        It is no directory, cannot be written, is full, or its name would be misread.
    """
    if not _PLAIN.fullmatch(str(home)):
        raise ConfigError(
            f"home is {str(home)!r}, but must be a path of letters, digits and /._+@=~- only, for Hadoop misreads "
            "others: choose another with --home"
        )
    check_room(home, _NEEDED_MB, "the cluster")
    usage = shutil.disk_usage(next(path for path in (home, *home.parents) if path.exists()))
    if usage.free < usage.total * _LEAST_FREE:
        raise ConfigError(
            f"the disk of {home} is {100 * (1 - usage.free / usage.total):.1f} % full: NodeManagers refuse that"
        )
    # Not before: of a cluster that is refused nothing is left.
    try:
        make_private(home)
    except OSError as error:
        raise ConfigError(
            f"home is {home}, which cannot be made ({error.strerror}): choose another with --home"
        ) from None
    if not os.access(home, os.W_OK | os.X_OK):
        raise ConfigError(f"home is {home}, which cannot be written: choose another with --home")
