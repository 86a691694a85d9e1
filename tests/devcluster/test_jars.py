"""Jars, Maven and Java: what is taken, what is fetched, and what is said where it cannot be."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from eps.cluster.devcluster import jars
from eps.cluster.devcluster.jars import (
    MAVEN_VERSION,
    Java,
    Say,
    check_java,
    class_path_of_jars,
    find_java,
    find_maven,
    pom_text,
)
from eps.cluster.devcluster.settings import ClusterSettings
from eps.errors import ConfigError, ResourceError


def fetch(cache: Path, java: Java, version: str = "3.5.0", say: Say = lambda text: None) -> list[str]:
    return class_path_of_jars(version, cache, java, say).split(":")


def test_jars_are_fetched_once_for_each_release(tmp_path: Path, java: Java, maven: Callable[[str], None]) -> None:
    maven(f"echo $JAVA_HOME >> {tmp_path}/calls; mkdir -p target/lib; touch target/lib/b.jar target/lib/a.jar")
    first = fetch(tmp_path / "cache", java)
    assert [Path(path).name for path in first] == ["a.jar", "b.jar"]
    assert fetch(tmp_path / "cache", java) == first
    assert fetch(tmp_path / "cache", java, "3.4.3") != first
    # With the Java that was found.
    assert (tmp_path / "calls").read_text().splitlines() == [java.home] * 2
    assert len(list((tmp_path / "cache" / "hadoop").iterdir())) == 2


@pytest.mark.parametrize("version", ["3.5.0", "3.9.9"])
def test_what_maven_cannot_get_is_not_kept(
    tmp_path: Path, java: Java, maven: Callable[[str], None], version: str
) -> None:
    maven(r'mkdir -p target/lib; printf "\033[0m[ERROR] Could not transfer artifact x: Unknown host\033[0m\n"; exit 1')
    said: list[str] = []
    with pytest.raises(ResourceError, match=r"mirror .*settings\.xml") as raised:
        fetch(tmp_path / "cache", java, version, said.append)
    told = "Hadoop 3.9.9 may not exist; tried releases are 3.3.6, 3.4.3, 3.5.0. Maven could not get Hadoop's jars"
    assert str(raised.value).startswith(told) == (version == "3.9.9")
    # Without the codes by which Maven resets a terminal's colors.
    assert said[1:] == ["[ERROR] Could not transfer artifact x: Unknown host"]
    assert not list((tmp_path / "cache" / "hadoop").iterdir())


# ---- where there is no Maven


def write_archive(repository: Path) -> str:
    """Write what stands for Maven's archive, and return its digest."""
    folder = repository / "org/apache/maven/apache-maven" / MAVEN_VERSION
    folder.mkdir(parents=True)
    path = folder / f"apache-maven-{MAVEN_VERSION}-bin.tar.gz"
    blob = b"#!/bin/sh\necho I am Maven\n"
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo(f"apache-maven-{MAVEN_VERSION}/bin/mvn")
        entry.size, entry.mode = len(blob), 0o755
        archive.addfile(entry, io.BytesIO(blob))
    return hashlib.sha512(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("filters", [True, False])
def test_maven_is_fetched_once_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filters: bool
) -> None:
    if not filters and hasattr(tarfile, "data_filter"):
        # As in Python 3.11.2, which Debian 12 has; later ones warn of what then has to be done.
        monkeypatch.delattr(tarfile, "data_filter")
        extract = tarfile.TarFile.extractall
        monkeypatch.setattr(tarfile.TarFile, "extractall", lambda self, folder: extract(self, folder, filter="tar"))
    monkeypatch.setattr(jars, "_MAVEN_SHA512", write_archive(tmp_path / "repository"))
    environ = {"PATH": str(tmp_path), "MVNW_REPOURL": f"file://{tmp_path}/repository/"}
    said: list[str] = []
    found = find_maven(tmp_path / "cache", said.append, environ)
    assert Path(found).read_text().endswith("echo I am Maven\n")
    assert Path(found).stat().st_mode & 0o111
    assert find_maven(tmp_path / "cache", said.append, environ) == found
    assert len(said) == 1 and said[0].startswith("there is no mvn on PATH")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"apache-maven-{MAVEN_VERSION}"]


@pytest.mark.parametrize("there", [True, False])
def test_maven_that_is_another_or_cannot_be_had_is_refused(tmp_path: Path, there: bool) -> None:
    if there:
        write_archive(tmp_path / "repository")
    environ = {"PATH": str(tmp_path), "MVNW_REPOURL": f"file://{tmp_path}/repository"}
    expected = "is not Maven" if there else r"cannot be downloaded.*apt install maven.*MVNW_REPOURL"
    with pytest.raises(ResourceError, match=expected):
        find_maven(tmp_path / "cache", lambda text: None, environ)
    assert not (tmp_path / "cache").exists()


# ---- the pom, and Java


def test_pom_names_the_release_a_mirror_and_a_realm() -> None:
    space = "{http://maven.apache.org/POM/4.0.0}"
    root = ElementTree.fromstring(pom_text("3.4.3", "http://ours/?a&b"))
    assert root.findtext(f"{space}properties/{space}hadoop.version") == "3.4.3"
    assert [url.text for url in root.iter(f"{space}url")] == ["http://ours/?a&b"] * 2
    assert "repository" not in pom_text("3.4.3")
    assert "minikdc" in pom_text("3.5.0", kerberos=True) and "minikdc" not in pom_text("3.5.0")


@pytest.mark.parametrize(
    ("said_version", "hadoop", "good"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "3.5.0", True),
        ('java version "21" 2023-09-19 LTS', "3.5.0", True),
        ('openjdk version "11.0.2" 2019-01-15', "3.5.0", False),
        ('openjdk version "11.0.2" 2019-01-15', "3.4.3", True),
        ('java version "1.8.0_392"', "3.3.6", False),
        ('openjdk version "25" 2025-09-16', "3.5.0", False),
    ],
)
def test_java_is_judged_by_what_hadoop_needs(java: Java, said_version: str, hadoop: str, good: bool) -> None:
    Path(java.command).write_text(f"#!/bin/sh\necho '{said_version}' >&2\n")
    found = find_java({"JAVA_HOME": java.home})
    assert found.home == java.home
    if good:
        check_java(found, ClusterSettings(hadoop_version=hadoop))
    else:
        with pytest.raises(ConfigError, match=rf"{found.version}, .* {hadoop}.*openjdk"):
            check_java(found, ClusterSettings(hadoop_version=hadoop))


def test_java_of_path_tells_its_home_and_none_is_said(tmp_path: Path, java: Java) -> None:
    (tmp_path / "java-link").symlink_to(java.command)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(tmp_path / "java-link")
    assert find_java({"PATH": f"{tmp_path}/bin"}).home == java.home
    with pytest.raises(ConfigError, match=r"no Java .*: install"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"JAVA_HOME is /nowhere"):
        find_java({"JAVA_HOME": "/nowhere"})
    Path(java.command).write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(ConfigError, match="does not run"):
        find_java({"JAVA_HOME": java.home})
