"""The jars of a Hadoop, got once and kept in the cache by version and pom.

::

    cache/hadoop/VERSION-DIGEST/lib/*.jar
    cache/hadoop/VERSION-DIGEST/jars.json     {name: bytes}, written when all of it was there and looked at
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from eps.cluster.devcluster.java import Java
from eps.cluster.devcluster.locks import locked
from eps.cluster.devcluster.maven import REPOSITORY_VARIABLE, Say, find_maven, run_maven
from eps.cluster.devcluster.pom import NEEDED_CLASSES, SLF4J_BINDINGS, pom_digest, pom_text
from eps.cluster.devcluster.settings import TRIED_VERSIONS
from eps.errors import ConfigError, ResourceError
from eps.storage.atomic import read_json, write_json_atomic

#: What Maven keeps of the jars, and our copy of them.
_NEEDED_MB = 400
#: Somebody else fetches them meanwhile, over a slow network.
_OTHERS_TIMEOUT_S = 1800.0
_LIST = "jars.json"


def class_path_of_jars(
    hadoop_version: str,
    cache: Path,
    java: Java,
    say: Say,
    environ: Mapping[str, str] = os.environ,
    *,
    kerberos: bool = False,
) -> str:
    """Return the class path of a Hadoop's jars, fetched by Maven where the cache has not got them.

    Parameters
    ----------
    hadoop_version : str
    cache : Path
        Where jars, and Maven itself, are kept for the next time.
    java : Java
        Runs Maven.
    say : callable
        Told how it goes.
    environ : mapping
    kerberos : bool
        With those of a realm.

    Raises
    ------
    ConfigError
        There is no room for them.
    ResourceError
        They cannot be had, or are not all that is needed.
    """
    place = cache / "hadoop" / f"{hadoop_version}-{pom_digest(hadoop_version, kerberos=kerberos)}"
    if not is_whole(place):
        others = lambda: say("somebody else is fetching Hadoop's jars: waiting for that", False)  # noqa: E731
        with locked(cache / "hadoop" / "lock", _OTHERS_TIMEOUT_S, others, "another eps devcluster start"):
            if not is_whole(place):
                pom = pom_text(hadoop_version, environ.get(REPOSITORY_VARIABLE, ""), kerberos=kerberos)
                _get(place, hadoop_version, pom, cache, java, say, environ)
    # In an order that is always the same: jars share some classes.
    return ":".join(sorted(str(path) for path in (place / "lib").absolute().glob("*.jar")))


def is_whole(place: Path) -> bool:
    """Return whether every jar is there that was there in the beginning, with its length."""
    sizes = read_json(place / _LIST)
    return bool(sizes) and _sizes(place / "lib") == dict(sizes or {})


def missing_classes(jars: Iterable[Path]) -> list[str]:
    """Return the classes that a cluster needs and that are in none of ``jars``.

    Raises
    ------
    ResourceError
        One of them is no jar.
    """
    wanted = {f"{name.replace('.', '/')}.class": name for name in NEEDED_CLASSES}
    binds = False
    for jar in jars:
        try:
            with zipfile.ZipFile(jar) as archive:
                names = set(archive.namelist())
        except (OSError, zipfile.BadZipFile) as error:
            raise ResourceError(
                f"{jar} is damaged ({error}): remove it from ~/.m2/repository, and start again"
            ) from error
        binds = binds or not names.isdisjoint(SLF4J_BINDINGS)
        for entry in names & wanted.keys():
            del wanted[entry]
    return [*wanted.values(), *(() if binds else ("a binding of slf4j",))]


def check_room(path: Path, needed_mb: int, what: str) -> None:
    """Refuse a disk that has no room.

    Raises
    ------
    ConfigError
        It has less than ``needed_mb``.
    """
    while not path.exists():
        path = path.parent
    free_mb = shutil.disk_usage(path).free // 1_000_000
    if free_mb < needed_mb:
        raise ConfigError(
            f"{what} needs {needed_mb} MB, but {path} has {free_mb} MB free: make room, or choose another place"
        )


def _get(place: Path, version: str, pom: str, cache: Path, java: Java, say: Say, environ: Mapping[str, str]) -> None:
    check_room(place, _NEEDED_MB, f"Hadoop {version}")
    maven = find_maven(cache / "maven", say, environ)
    say(f"fetching the jars of Hadoop {version} with Maven: about 100 MB, once", False)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=place.parent) as folder:
        built = Path(folder)
        (built / "pom.xml").write_text(pom, encoding="utf-8")
        command = [maven, "--batch-mode", "--file", "pom.xml", "package"]
        try:
            run_maven(command, built, {**environ, "JAVA_HOME": java.home}, say)
        except ResourceError as error:
            if version in TRIED_VERSIONS:
                raise
            tried = ", ".join(TRIED_VERSIONS)
            raise ResourceError(f"Hadoop {version} may be no release; {tried} were tried: {error}") from None
        lib = built / "target" / "lib"
        missing = missing_classes(lib.glob("*.jar"))
        if missing:
            raise ResourceError(f"the jars of Hadoop {version} lack {', '.join(missing)}")
        write_json_atomic(built / "target" / _LIST, _sizes(lib))
        if place.exists():
            # Damaged since.
            os.replace(place, built / "damaged")
        os.replace(built / "target", place)


def _sizes(lib: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(lib.glob("*.jar"))}
