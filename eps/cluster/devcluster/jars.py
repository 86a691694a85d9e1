"""Java, Maven and Hadoop's jars: found on this host, or downloaded once into EPS's cache.

::

    cache/hadoop/VERSION-DIGEST/lib/*.jar    DIGEST is that of the pom
    cache/maven/                             Maven, if PATH has none
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

#: Prints a line of progress.
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
USE_MIRROR = (
    "if this host cannot reach Maven Central, name a mirror of it in ~/.m2/settings.xml or in the variable "
    f"{REPOSITORY_VARIABLE}"
)
_JAVA_TIMEOUT_S = 60.0
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
#: Hadoop 3.5 needs Java 17.  Earlier releases run on Java 17 with ``--add-opens``.
_LEAST_3_5, _LEAST = 17, 11
#: Java 24 removed the API by which Hadoop knows its user.
_MOST = 23
_INSTALL = "install a JDK 17 (on Debian: apt install openjdk-17-jdk-headless), or set JAVA_HOME to one"
#: Maven resets a terminal's colors at its end, also without ``style.color``.
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*m")

#: Modules of Hadoop.  The poms of the servers declare ``hadoop-common`` as provided.  The ResourceManager's also does
#: so with the timeline service, without which it does not start.  So both are listed here.
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
#: Modules for a cluster with Kerberos.
_REALM_MODULES = ("hadoop-minikdc",)
_PLUGIN_VERSION = "3.8.1"


@dataclass(frozen=True)
class Java:
    """A Java runtime: command, home directory and major version (17)."""

    command: str
    home: str
    version: int


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the Java of JAVA_HOME, else of PATH.

    Raises
    ------
    ConfigError
        No Java was found, or it does not run.
    """
    home = environ.get("JAVA_HOME", "")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environ.get("PATH")) or ""
    if not command:
        raise ConfigError(f"there is no Java on this host: {_INSTALL}")
    if not os.access(command, os.X_OK):
        raise ConfigError(f"JAVA_HOME is {home}, which has no executable bin/java: {_INSTALL}")
    try:
        said = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=True, env=environ
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{command} does not run ({error}): {_INSTALL}") from error
    found = _JAVA_VERSION.search(said.stderr + said.stdout)
    if not found:
        raise ConfigError(f"{command} -version printed no version but {said.stderr.strip()!r}: {_INSTALL}")
    return Java(command, home or str(Path(command).resolve().parents[1]), int(found[1]))


def check_java(java: Java, settings: ClusterSettings) -> None:
    """Check that this release of Hadoop runs on a Java.

    Raises
    ------
    ConfigError
        The Java is too old or too new.
    """
    least = _LEAST_3_5 if settings.release >= (3, 5) else _LEAST
    if not least <= java.version <= _MOST:
        raise ConfigError(
            f"{java.command} is Java {java.version}, but Hadoop {settings.hadoop_version} needs {least} to {_MOST}: "
            f"{_INSTALL}"
        )


def find_maven(cache: Path, say: Say, environ: Mapping[str, str] = os.environ) -> str:
    """Return the command ``mvn`` of PATH, else of ``cache``; download Maven if neither has it.

    Raises
    ------
    ResourceError
        Maven cannot be downloaded.
    """
    found = shutil.which("mvn", path=environ.get("PATH"))
    kept = cache / f"apache-maven-{MAVEN_VERSION}" / "bin" / "mvn"
    if not found and not kept.exists():
        repository = (environ.get(REPOSITORY_VARIABLE) or _CENTRAL).rstrip("/")
        url = f"{repository}/org/apache/maven/apache-maven/{MAVEN_VERSION}/apache-maven-{MAVEN_VERSION}-bin.tar.gz"
        say(f"there is no mvn on PATH: downloading Maven {MAVEN_VERSION} (9 MB) from {url}")
        _fetch_maven(url, cache)
    return found or str(kept)


def _fetch_maven(url: str, cache: Path) -> None:
    try:
        with urllib.request.urlopen(url, timeout=_FETCH_TIMEOUT_S) as answer:
            blob = answer.read()
        digest = hashlib.sha512(blob).hexdigest()
        if digest != _MAVEN_SHA512:
            raise ResourceError(f"the download from {url} is not Maven {MAVEN_VERSION}: its SHA-512 is {digest}")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder, tarfile.open(fileobj=io.BytesIO(blob)) as archive:
            # Without a filter the digest suffices; Python 3.11 has filters only from 3.11.4 on.
            if hasattr(tarfile, "data_filter"):
                archive.extractall(folder, filter="data")
            else:
                archive.extractall(folder)
            os.replace(Path(folder) / f"apache-maven-{MAVEN_VERSION}", cache / f"apache-maven-{MAVEN_VERSION}")
    except (OSError, tarfile.TarError) as error:
        raise ResourceError(
            f"Maven cannot be downloaded from {url} ({error}): install it (on Debian: apt install maven), or name a "
            f"mirror of Maven Central in the variable {REPOSITORY_VARIABLE}"
        ) from error


def class_path_of_jars(hadoop_version: str, cache: Path, java: Java, say: Say, *, kerberos: bool = False) -> str:
    """Return the class path of a release's jars; Maven downloads jars that the cache lacks.

    Parameters
    ----------
    hadoop_version : str
    cache : Path
        Keeps the jars, and Maven.
    java : Java
        Runs Maven.
    say : callable
    kerberos : bool
        Include the jars of a Kerberos realm.

    Raises
    ------
    ResourceError
        The jars cannot be downloaded.
    """
    digest = hashlib.sha256(pom_text(hadoop_version, kerberos=kerberos).encode()).hexdigest()[:12]
    place = cache / "hadoop" / f"{hadoop_version}-{digest}"
    if not place.exists():
        maven = find_maven(cache / "maven", say)
        say(f"getting the jars of Hadoop {hadoop_version} with Maven (up to 100 MB, less what ~/.m2 has already)")
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=place.parent) as folder:
            pom = pom_text(hadoop_version, os.environ.get(REPOSITORY_VARIABLE, ""), kerberos=kerberos)
            (Path(folder) / "pom.xml").write_text(pom, encoding="utf-8")
            _run_maven(maven, folder, java, hadoop_version, say)
            # A concurrent start has put the same jars there.
            with suppress(OSError):
                os.replace(Path(folder) / "target", place)
    # Sorted, since some classes are in several jars: the first on the class path counts.
    return ":".join(sorted(str(path) for path in (place / "lib").absolute().glob("*.jar")))


def _run_maven(maven: str, folder: str, java: Java, hadoop_version: str, say: Say) -> None:
    # On a terminal Maven shows its progress; elsewhere it prints its errors only.
    shown = os.isatty(2)
    try:
        done = subprocess.run(
            [maven, *(() if shown else ("--batch-mode", "--quiet")), "-Dstyle.color=never", "package"],
            cwd=folder,
            env={**os.environ, "JAVA_HOME": java.home},
            stdin=subprocess.DEVNULL,
            stdout=2 if shown else subprocess.PIPE,
            stderr=None if shown else subprocess.STDOUT,
            text=True,
            timeout=_RUN_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ResourceError(f"Maven could not get Hadoop's jars ({error}); {USE_MIRROR}") from error
    if errors := _TERMINAL_CODE.sub("", done.stdout or "").strip():
        say(errors)
    if done.returncode:
        tried = f"Hadoop {hadoop_version} may not exist; tried releases are {', '.join(TRIED_VERSIONS)}. "
        unknown = "" if hadoop_version in TRIED_VERSIONS else tried
        raise ResourceError(f"{unknown}Maven could not get Hadoop's jars: see its output above; {USE_MIRROR}")


def pom_text(hadoop_version: str, repository: str = "", *, kerberos: bool = False) -> str:
    """Return the pom whose goal ``package`` copies the jars to ``target/lib`` beside it.

    Parameters
    ----------
    hadoop_version : str
    repository : str
        URL of a mirror of Maven Central; empty: Maven's own settings.
    kerberos : bool
        Include the jars of a Kerberos realm.
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
    <!-- Hadoop 3.5 moved to jakarta, but some of its classes still need this. -->
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
