"""Jars, Maven and Java: what is taken, what is fetched, and what is said where it cannot be."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from eps.cluster.devcluster import maven as maven_module
from eps.cluster.devcluster.jars import class_path_of_jars, missing_classes
from eps.cluster.devcluster.java import Java, check_java, find_java
from eps.cluster.devcluster.maven import VERSION, find_maven, mirror_of_central, repository_url
from eps.cluster.devcluster.pom import pom_digest, pom_text
from eps.cluster.devcluster.settings import ClusterSettings
from eps.errors import ConfigError, ResourceError
from tests.devcluster.conftest import write_jars

MIRRORS = """\
<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>
  <mirror><id>a</id><mirrorOf>external:http:*</mirrorOf><url>http://blocked</url><blocked>true</blocked></mirror>
  <mirror><id>b</id><mirrorOf>other</mirrorOf><url>http://other</url></mirror>
  <mirror><id>c</id><mirrorOf>{of}</mirrorOf><url>http://ours/maven/</url></mirror>
</mirrors></settings>
"""


@pytest.fixture
def said() -> list[str]:
    return []


def fetch(cache: Path, java: Java, said: list[str], version: str = "3.5.0") -> list[str]:
    return class_path_of_jars(version, cache, java, lambda text, step: said.append(text)).split(":")


def copies(tmp_path: Path, without: str = "") -> str:
    """Return what a script in the place of Maven does: it gives jars that are there already, and counts its calls."""
    write_jars(tmp_path / "there", without)
    return (
        f"echo x >> {tmp_path}/calls; mkdir -p target; cp -r {tmp_path}/there target/lib\n"
        'echo "[INFO] Downloaded from central: https://example.org/a/all.jar (1.5 MB at 12 kB/s)"\n'
        'echo "[INFO] Downloaded from central: https://example.org/a/other.jar (500 kB at 1.2 MB/s)"'
    )


def num_calls(tmp_path: Path) -> int:
    return len((tmp_path / "calls").read_text().splitlines())


def test_jars_are_fetched_once_and_their_coming_is_told(
    tmp_path: Path, java: Java, maven: Callable[[str], None], said: list[str]
) -> None:
    maven(copies(tmp_path))
    first = fetch(tmp_path / "cache", java, said)
    assert [Path(path).name for path in first] == ["all.jar", "other.jar"]
    assert "2 files, 2 MB: other.jar" in said
    assert fetch(tmp_path / "cache", java, said) == first
    assert num_calls(tmp_path) == 1
    assert fetch(tmp_path / "cache", java, said, "3.4.3") != first
    assert num_calls(tmp_path) == 2


def test_jars_that_were_damaged_since_are_fetched_again(
    tmp_path: Path, java: Java, maven: Callable[[str], None], said: list[str]
) -> None:
    maven(copies(tmp_path))
    for harm in (lambda path: path.write_bytes(b""), lambda path: path.unlink()):
        first = fetch(tmp_path / "cache", java, said)
        harm(Path(first[0]))
        assert fetch(tmp_path / "cache", java, said) == first
        assert Path(first[0]).stat().st_size > 0
    assert num_calls(tmp_path) == 3
    assert sorted(path.name for path in (tmp_path / "cache" / "hadoop").iterdir()) == [
        f"3.5.0-{pom_digest('3.5.0')}",
        "lock",
    ]


def test_two_starts_at_once_fetch_them_once(
    tmp_path: Path, java: Java, maven: Callable[[str], None], said: list[str]
) -> None:
    maven(copies(tmp_path))
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(tmp_path / "cache", java, said))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert len(found) == 2 and found[0] == found[1]
    assert num_calls(tmp_path) == 1


def test_jars_that_lack_a_class_are_refused_and_not_kept(
    tmp_path: Path, java: Java, maven: Callable[[str], None], said: list[str]
) -> None:
    maven(copies(tmp_path, without="BouncyCastle"))
    with pytest.raises(ResourceError, match=r"lack org\.bouncycastle\.jce\.provider\.BouncyCastleProvider"):
        fetch(tmp_path / "cache", java, said)
    assert [path.name for path in (tmp_path / "cache" / "hadoop").iterdir()] == ["lock"]


def test_missing_binding_of_slf4j_and_damaged_jar_are_found(tmp_path: Path) -> None:
    write_jars(tmp_path / "jars", without="slf4j")
    assert missing_classes((tmp_path / "jars").glob("*.jar")) == ["a binding of slf4j"]
    (tmp_path / "jars" / "bad.jar").write_bytes(b"no zip")
    with pytest.raises(ResourceError, match=r"bad\.jar is damaged"):
        missing_classes(sorted((tmp_path / "jars").glob("*.jar")))


def test_what_maven_says_of_its_failure_is_shown(
    tmp_path: Path, java: Java, maven: Callable[[str], None], said: list[str]
) -> None:
    maven('echo "[INFO] Scanning"; echo "[ERROR] Could not transfer artifact x: Unknown host"; exit 1')
    with pytest.raises(
        ResourceError, match=r"Unknown host(.|\n)*name a mirror of it in ~/\.m2/settings\.xml"
    ) as raised:
        fetch(tmp_path / "cache", java, said)
    assert "Scanning" not in str(raised.value)


@pytest.mark.parametrize("version", ["3.5.0", "3.9.9"])
def test_of_a_version_that_nobody_knows_it_is_said_which_were_tried(
    tmp_path: Path, java: Java, maven: Callable[[str], None], said: list[str], version: str
) -> None:
    maven(f'echo "[ERROR] Could not find artifact org.apache.hadoop:hadoop-common:jar:{version}"; exit 1')
    with pytest.raises(ResourceError, match="Could not find artifact") as raised:
        fetch(tmp_path / "cache", java, said, version)
    told = "Hadoop 3.9.9 may be no release; 3.3.6, 3.4.3, 3.5.0 were tried: Maven could not get Hadoop's jars:\n"
    assert str(raised.value).startswith(told) == (version == "3.9.9")


def test_maven_is_run_with_the_java_that_was_found(
    tmp_path: Path, java: Java, maven: Callable[[str], None], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/elsewhere")
    maven('echo "[ERROR] $JAVA_HOME"; exit 1')
    with pytest.raises(ResourceError, match=java.home):
        fetch(tmp_path / "cache", java, said)


# ---- where there is no Maven


def write_archive(repository: Path) -> str:
    """Write what stands for Maven's archive, and return its digest."""
    folder = repository / "org/apache/maven/apache-maven" / VERSION
    folder.mkdir(parents=True)
    path = folder / f"apache-maven-{VERSION}-bin.tar.gz"
    blob = b"#!/bin/sh\necho I am Maven\n"
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo(f"apache-maven-{VERSION}/bin/mvn")
        entry.size, entry.mode = len(blob), 0o755
        archive.addfile(entry, io.BytesIO(blob))
    return hashlib.sha512(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("filters", [True, False])
def test_maven_is_fetched_once_where_there_is_none(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, filters: bool
) -> None:
    if not filters and hasattr(tarfile, "data_filter"):
        # As in Python 3.11.2, which Debian 12 has; later ones warn of what then has to be done.
        monkeypatch.delattr(tarfile, "data_filter")
        extract = tarfile.TarFile.extractall
        monkeypatch.setattr(tarfile.TarFile, "extractall", lambda self, folder: extract(self, folder, filter="tar"))
    monkeypatch.setattr(maven_module, "_SHA512", write_archive(tmp_path / "repository"))
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path), "MVNW_REPOURL": f"file://{tmp_path}/repository/"}
    found = find_maven(tmp_path / "cache", lambda text, step: said.append(text), environ)
    assert Path(found).read_text().endswith("echo I am Maven\n")
    assert Path(found).stat().st_mode & 0o111
    assert said == [f"there is no mvn on PATH: fetching Maven {VERSION} (9 MB) from {said[0].rpartition(' ')[2]}"]
    assert find_maven(tmp_path / "cache", lambda text, step: said.append(text), environ) == found
    assert len(said) == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"apache-maven-{VERSION}"]


@pytest.mark.parametrize("there", [True, False])
def test_maven_that_is_another_or_cannot_be_had_is_refused(tmp_path: Path, said: list[str], there: bool) -> None:
    if there:
        write_archive(tmp_path / "repository")
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path), "MVNW_REPOURL": f"file://{tmp_path}/repository"}
    expected = "is not Maven" if there else r"cannot be fetched.*apt install maven"
    with pytest.raises(ResourceError, match=expected):
        find_maven(tmp_path / "cache", lambda text, step: said.append(text), environ)
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("of", "expected"),
    [("central", "http://ours/maven/"), ("*", "http://ours/maven/"), ("x,external:*", "http://ours/maven/"), ("x", "")],
)
def test_mirror_of_the_users_settings_is_found(of: str, expected: str) -> None:
    assert mirror_of_central(MIRRORS.format(of=of)) == expected


def test_mirror_comes_from_the_variable_then_the_settings_then_is_central(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    assert repository_url(environ) == "https://repo.maven.apache.org/maven2"
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text(MIRRORS.format(of="*,!central"))
    assert repository_url(environ) == "https://repo.maven.apache.org/maven2"
    (tmp_path / ".m2" / "settings.xml").write_text(MIRRORS.format(of="*"))
    assert repository_url(environ) == "http://ours/maven"
    assert repository_url({**environ, "MVNW_REPOURL": "http://given/"}) == "http://given"
    (tmp_path / ".m2" / "settings.xml").write_text("<settings")
    assert repository_url(environ) == "https://repo.maven.apache.org/maven2"


# ---- the pom, and Java


def test_pom_names_the_release_and_a_mirror_and_is_told_apart_by_its_release() -> None:
    space = "{http://maven.apache.org/POM/4.0.0}"
    root = ElementTree.fromstring(pom_text("3.4.3", "http://ours/?a&b"))
    assert root.findtext(f"{space}properties/{space}hadoop.version") == "3.4.3"
    assert [url.text for url in root.iter(f"{space}url")] == ["http://ours/?a&b"] * 2
    names = {name.text for name in root.iter(f"{space}artifactId")}
    assert {"hadoop-common", "hadoop-yarn-server-timelineservice", "javax.servlet-api"} <= names
    assert "repository" not in pom_text("3.4.3")
    assert pom_digest("3.4.3") != pom_digest("3.5.0") != pom_digest("3.5.0", kerberos=True)
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
        with pytest.raises(ConfigError, match=rf"is Java {found.version}, but Hadoop {hadoop}.*openjdk-17"):
            check_java(found, ClusterSettings(hadoop_version=hadoop))


def test_java_of_path_tells_its_home_and_none_is_said(tmp_path: Path, java: Java) -> None:
    (tmp_path / "java-link").symlink_to(java.command)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(tmp_path / "java-link")
    assert find_java({"PATH": f"{tmp_path}/bin"}).home == java.home
    with pytest.raises(ConfigError, match=r"no Java on this host: install a JDK 17"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"JAVA_HOME is /nowhere"):
        find_java({"JAVA_HOME": "/nowhere"})
    Path(java.command).write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(ConfigError, match="does not run"):
        find_java({"JAVA_HOME": java.home})
