"""Maven: the one of this host, or one that is fetched, as the Maven wrapper does it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO
from xml.etree import ElementTree

from eps.errors import ResourceError

#: Says something to whoever waits; the second argument: only a step on the way, the next may take its place.
Say = Callable[[str, bool], None]

CENTRAL = "https://repo.maven.apache.org/maven2"
#: The variable that the Maven wrapper reads, too: a mirror of Maven Central.
REPOSITORY_VARIABLE = "MVNW_REPOURL"
VERSION = "3.9.9"
_SHA512 = (
    "a555254d6b53d267965a3404ecb14e53c3827c09c3b94b5678835887ab404556"
    "bfaf78dcfe03ba76fa2508649dca8531c74bca4d5846513522404d48e8c4ac8b"
)
_CHUNK = 1 << 18
_SOCKET_TIMEOUT_S = 60.0
#: Maven itself gives up a connection that is silent; this is for what it does not notice.
_RUN_TIMEOUT_S = 1800.0
_LAST_LINES = 12
_DOWNLOADED = re.compile(r"Downloaded from \S+ (\S+) \(([\d.]+) ([kMG]?B)\b")
_UNITS = {"B": 1, "kB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}
ELSEWHERE = (
    "where Maven Central cannot be reached, name a mirror of it in ~/.m2/settings.xml or in the variable "
    f"{REPOSITORY_VARIABLE}"
)


def find_maven(cache: Path, say: Say, environ: Mapping[str, str] = os.environ) -> str:
    """Return the command ``mvn``: that of PATH, or one that is kept in ``cache`` and fetched if need be.

    Raises
    ------
    ResourceError
        It is not there and cannot be had.
    """
    found = shutil.which("mvn", path=environ.get("PATH"))
    if found:
        return found
    kept = cache / f"apache-maven-{VERSION}" / "bin" / "mvn"
    if not kept.exists():
        _fetch(cache, f"{repository_url(environ)}/{_archive_path()}", say)
    return str(kept)


def repository_url(environ: Mapping[str, str] = os.environ) -> str:
    """Return where Maven Central is: the variable, a mirror of the user's settings, or the real one."""
    settings = Path(environ.get("HOME") or Path.home()) / ".m2" / "settings.xml"
    try:
        text = settings.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    return (environ.get(REPOSITORY_VARIABLE) or mirror_of_central(text) or CENTRAL).rstrip("/")


def mirror_of_central(settings_xml: str) -> str:
    """Return the URL of the mirror that settings of Maven name for Maven Central; empty where there is none."""
    try:
        root = ElementTree.fromstring(settings_xml)
    except ElementTree.ParseError:
        return ""
    for mirror in (element for element in root.iter() if _tag(element) == "mirror"):
        values = {_tag(child): (child.text or "").strip() for child in mirror}
        of = [word.strip() for word in values.get("mirrorOf", "").split(",")]
        if {"*", "external:*", "central"} & set(of) and "!central" not in of and values.get("blocked") != "true":
            return values.get("url", "")
    return ""


def run_maven(command: list[str], directory: Path, environ: Mapping[str, str], say: Say) -> None:
    """Run Maven in ``directory``, and say how many files have come.

    Raises
    ------
    ResourceError
        It failed; the message has its last lines.
    """
    try:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise ResourceError(f"{command[0]} cannot be started: {error.strerror or error}") from error
    with process:
        try:
            told = _follow(process, say)
            code = process.wait(_SOCKET_TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
    if code:
        raise ResourceError("Maven could not get Hadoop's jars:\n" + "\n".join(told) + f"\n{ELSEWHERE}")


def _follow(process: subprocess.Popen[str], say: Say) -> list[str]:
    """Read what Maven says to its end; return the last of its errors."""
    assert process.stdout is not None
    files, size_bytes = 0, 0.0
    errors: deque[str] = deque(maxlen=_LAST_LINES)
    deadline = time.monotonic() + _RUN_TIMEOUT_S
    for line in process.stdout:
        if line.startswith(("[ERROR]", "Error", "The JAVA_HOME")):
            errors.append(f"  {line.rstrip()}")
        if found := _DOWNLOADED.search(line):
            files, size_bytes = files + 1, size_bytes + float(found[2]) * _UNITS[found[3]]
            say(f"{files} files, {size_bytes / 1e6:.0f} MB: {found[1].rpartition('/')[2]}", True)
        if time.monotonic() > deadline:
            raise ResourceError(f"Maven is not done after {_RUN_TIMEOUT_S:g} s; {ELSEWHERE}")
    return list(errors)


def _archive_path() -> str:
    return f"org/apache/maven/apache-maven/{VERSION}/apache-maven-{VERSION}-bin.tar.gz"


def _fetch(cache: Path, url: str, say: Say) -> None:
    say(f"there is no mvn on PATH: fetching Maven {VERSION} (9 MB) from {url}", False)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".maven-", dir=cache) as folder:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                _download(url, file)
                with tarfile.open(fileobj=file, mode="r:gz") as archive:
                    # Its digest was compared; Python 3.11 knows filters only from 3.11.4 on.
                    if hasattr(tarfile, "data_filter"):
                        archive.extractall(folder, filter="data")
                    else:
                        archive.extractall(folder)
            os.replace(Path(folder) / f"apache-maven-{VERSION}", cache / f"apache-maven-{VERSION}")
        except (OSError, tarfile.TarError, urllib.error.URLError) as error:
            raise ResourceError(
                f"Maven cannot be fetched from {url} ({error}): install it (on Debian: apt install maven); {ELSEWHERE}"
            ) from error


def _download(url: str, file: BinaryIO) -> None:
    digest = hashlib.sha512()
    with urllib.request.urlopen(url, timeout=_SOCKET_TIMEOUT_S) as answer:
        while chunk := answer.read(_CHUNK):
            digest.update(chunk)
            file.write(chunk)
    if digest.hexdigest() != _SHA512:
        raise ResourceError(f"what came from {url} is not Maven {VERSION}: its SHA-512 is {digest.hexdigest()}")
    file.seek(0)


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]
