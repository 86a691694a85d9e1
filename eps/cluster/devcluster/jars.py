"""Java, Maven and Hadoop's jars: found on this host, or fetched once and kept in the cache.

::

    cache/hadoop/VERSION-DIGEST/lib/*.jar    the digest is that of the pom
    cache/maven/                             Maven, where PATH has none
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from eps.cluster.devcluster.settings import TRIED_VERSIONS, ClusterSettings
from eps.errors import ConfigError, ResourceError

#: Shows a line of progress.
Say = Callable[[str], None]

#: A mirror of Maven Central; the Maven wrapper reads this variable, too.
REPOSITORY_VARIABLE = "MVNW_REPOURL"
_CENTRAL = "https://repo.maven.apache.org/maven2"
MAVEN_VERSION = "3.9.9"
_MAVEN_SHA512 = (
    "a555254d6b53d267965a3404ecb14e53c3827c09c3b94b5678835887ab404556"
    "bfaf78dcfe03ba76fa2508649dca8531c74bca4d5846513522404d48e8c4ac8b"
)
_FETCH_TIMEOUT_S, _RUN_TIMEOUT_S = 60.0, 1800.0
ELSEWHERE = (
    "where Maven Central cannot be reached, name a mirror of it in ~/.m2/settings.xml or in the variable "
    f"{REPOSITORY_VARIABLE}"
)
_JAVA_TIMEOUT_S = 60.0
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
#: Servers of Hadoop 3.5 need Java 17; those before run on it with packages opened.
_LEAST_3_5, _LEAST = 17, 11
#: Java 24 took away what Hadoop uses to know its user.
_MOST = 23
_INSTALL = "install a JDK 17 (on Debian: apt install openjdk-17-jdk-headless), or let JAVA_HOME name one"

#: Modules of Hadoop.  The poms of servers declare ``hadoop-common`` as provided, and that of the ResourceManager the
#: timeline service, without which it does not start: so both are named.
_MODULES = (
    "hadoop-common",
    "hadoop-hdfs",
    "hadoop-hdfs-client",
    "hadoop-yarn-api",
    "hadoop-yarn-common",
    "hadoop-yarn-client",
    "hadoop-yarn-server-common",
    "hadoop-yarn-server-resourcemanager",
    "hadoop-yarn-server-nodemanager",
    "hadoop-yarn-server-web-proxy",
    "hadoop-yarn-server-applicationhistoryservice",
    "hadoop-yarn-server-timelineservice",
)
#: Of a cluster with Kerberos.
_REALM_MODULES = ("hadoop-minikdc",)
_PLUGIN_VERSION = "3.8.1"


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
            [command, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=True, env=environ
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{command} does not run ({error}): {_INSTALL}") from error
    found = _JAVA_VERSION.search(said.stderr + said.stdout)
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


def find_maven(cache: Path, say: Say, environ: Mapping[str, str] = os.environ) -> str:
    """Return the command ``mvn``: that of PATH, or one that is kept in ``cache`` and fetched if need be.

    Raises
    ------
    ResourceError
        It is not there and cannot be had.
    """
    found = shutil.which("mvn", path=environ.get("PATH"))
    kept = cache / f"apache-maven-{MAVEN_VERSION}" / "bin" / "mvn"
    if not found and not kept.exists():
        repository = (environ.get(REPOSITORY_VARIABLE) or _CENTRAL).rstrip("/")
        url = f"{repository}/org/apache/maven/apache-maven/{MAVEN_VERSION}/apache-maven-{MAVEN_VERSION}-bin.tar.gz"
        say(f"there is no mvn on PATH: fetching Maven {MAVEN_VERSION} (9 MB) from {url}")
        _fetch_maven(url, cache)
    return found or str(kept)


def _fetch_maven(url: str, cache: Path) -> None:
    try:
        with urllib.request.urlopen(url, timeout=_FETCH_TIMEOUT_S) as answer:
            blob = answer.read()
        digest = hashlib.sha512(blob).hexdigest()
        if digest != _MAVEN_SHA512:
            raise ResourceError(f"what came from {url} is not Maven {MAVEN_VERSION}: its SHA-512 is {digest}")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder, tarfile.open(fileobj=io.BytesIO(blob)) as archive:
            # Its digest was compared; Python 3.11 knows filters only from 3.11.4 on.
            if hasattr(tarfile, "data_filter"):
                archive.extractall(folder, filter="data")
            else:
                archive.extractall(folder)
            os.replace(Path(folder) / f"apache-maven-{MAVEN_VERSION}", cache / f"apache-maven-{MAVEN_VERSION}")
    except (OSError, tarfile.TarError) as error:
        raise ResourceError(
            f"Maven cannot be fetched from {url} ({error}): install it (on Debian: apt install maven), or name a "
            f"mirror of Maven Central in the variable {REPOSITORY_VARIABLE}"
        ) from error


def class_path_of_jars(hadoop_version: str, cache: Path, java: Java, say: Say, *, kerberos: bool = False) -> str:
    """Return the class path of a Hadoop's jars, fetched by Maven where the cache has not got them.

    Parameters
    ----------
    hadoop_version : str
    cache : Path
        Where jars, and Maven itself, are kept for the next time.
    java : Java
        Runs Maven.
    say : callable
    kerberos : bool
        With those of a realm.

    Raises
    ------
    ResourceError
        They cannot be had.
    """
    digest = hashlib.sha256(pom_text(hadoop_version, kerberos=kerberos).encode()).hexdigest()[:12]
    place = cache / "hadoop" / f"{hadoop_version}-{digest}"
    if not place.exists():
        maven = find_maven(cache / "maven", say)
        say(f"fetching the jars of Hadoop {hadoop_version} with Maven: about 100 MB, once")
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=place.parent) as folder:
            pom = pom_text(hadoop_version, os.environ.get(REPOSITORY_VARIABLE, ""), kerberos=kerberos)
            (Path(folder) / "pom.xml").write_text(pom, encoding="utf-8")
            _run_maven(maven, folder, java, hadoop_version)
            # A start at the same time has fetched the same.
            with suppress(OSError):
                os.replace(Path(folder) / "target", place)
    # In an order that is always the same: jars share some classes.
    return ":".join(sorted(str(path) for path in (place / "lib").absolute().glob("*.jar")))


def _run_maven(maven: str, folder: str, java: Java, hadoop_version: str) -> None:
    # On a terminal Maven shows how far it is; elsewhere its errors are enough.
    quiet = () if os.isatty(2) else ("--batch-mode", "--quiet")
    try:
        done = subprocess.run(
            # Colors would stay in what a program or a file reads.
            [maven, *quiet, "-Dstyle.color=never", "--file", "pom.xml", "package"],
            cwd=folder,
            env={**os.environ, "JAVA_HOME": java.home},
            stdin=subprocess.DEVNULL,
            stdout=2,
            timeout=_RUN_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ResourceError(f"Maven could not get Hadoop's jars ({error}); {ELSEWHERE}") from error
    if done.returncode:
        tried = f"Hadoop {hadoop_version} may be no release; {', '.join(TRIED_VERSIONS)} were tried: "
        unknown = "" if hadoop_version in TRIED_VERSIONS else tried
        raise ResourceError(f"{unknown}Maven could not get Hadoop's jars, as it says above; {ELSEWHERE}")


def pom_text(hadoop_version: str, repository: str = "", *, kerberos: bool = False) -> str:
    """Return the pom; ``package`` copies the jars to ``target/lib`` beside it.

    Parameters
    ----------
    hadoop_version : str
    repository : str
        URL of what takes the place of Maven Central; empty: what Maven itself is set to.
    kerberos : bool
        With those of a realm.
    """
    modules = "\n".join(
        f"    <dependency><groupId>org.apache.hadoop</groupId><artifactId>{name}</artifactId>"
        "<version>${hadoop.version}</version></dependency>"
        for name in (*_MODULES, *(_REALM_MODULES if kerberos else ()))
    )
    return f"""\
<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0"
         xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
         xsi:schemaLocation="http://maven.apache.org/POM/4.0.0 https://maven.apache.org/xsd/maven-4.0.0.xsd">
  <modelVersion>4.0.0</modelVersion>
  <groupId>eps</groupId>
  <artifactId>devcluster</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <properties><hadoop.version>{escape(hadoop_version)}</hadoop.version></properties>
{_repositories(repository)}\
  <dependencies>
{modules}
    <!-- Hadoop 3.5 moved to jakarta, but some of its classes still name this. -->
    <dependency><groupId>javax.servlet</groupId><artifactId>javax.servlet-api</artifactId><version>4.0.1</version></dependency>
  </dependencies>
  <build>
    <plugins>
      <plugin>
        <groupId>org.apache.maven.plugins</groupId>
        <artifactId>maven-dependency-plugin</artifactId>
        <version>{_PLUGIN_VERSION}</version>
        <executions>
          <execution>
            <id>libs</id>
            <phase>package</phase>
            <goals><goal>copy-dependencies</goal></goals>
            <configuration>
              <outputDirectory>${{project.build.directory}}/lib</outputDirectory>
              <includeScope>runtime</includeScope>
            </configuration>
          </execution>
        </executions>
      </plugin>
    </plugins>
  </build>
</project>
"""


def _repositories(url: str) -> str:
    if not url:
        return ""
    place = f"<id>central</id><url>{escape(url)}</url>"
    return f"""\
  <repositories><repository>{place}</repository></repositories>
  <pluginRepositories><pluginRepository>{place}</pluginRepository></pluginRepositories>
"""
