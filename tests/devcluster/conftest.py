"""A host on which Java and Maven are scripts, so that clusters start at once."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eps.cluster.devcluster import lifecycle
from eps.cluster.devcluster.daemons import mark_of
from eps.cluster.devcluster.java import Java
from eps.cluster.devcluster.places import Places
from eps.cluster.devcluster.pom import NEEDED_CLASSES, SLF4J_BINDINGS
from eps.cluster.devcluster.processes import kill_all, marked
from tests.devcluster import fake_java

JARS = "/jars/a.jar:/jars/b.jar"


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """Let JAVA_HOME name a Java that plays the daemons."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    command = home / "bin" / "java"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -ISs {fake_java.__file__} "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.delenv("FAKE_JAVA", raising=False)
    return Java(str(command), str(home), 17)


@pytest.fixture
def home(tmp_path: Path, java: Java, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a home for a cluster whose jars are names; nothing of it may be left."""
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "eps"))
    monkeypatch.setattr(lifecycle, "class_path_of_jars", lambda *_, **__: JARS)
    found = tmp_path / "cluster"
    try:
        yield found
    finally:
        left = marked(mark_of(Places(found)))
        kill_all(left)
    assert not left


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give a function that puts a shell script in the place of Maven; it is alone on PATH, but for the system's."""
    folder = tmp_path / "maven"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def write(script: str) -> None:
        path = folder / "mvn"
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    return write


def write_jars(folder: Path, without: str = "") -> None:
    """Write a jar that has all that a cluster needs, but for ``without``."""
    folder.mkdir(parents=True)
    names = [f"{name.replace('.', '/')}.class" for name in NEEDED_CLASSES] + [SLF4J_BINDINGS[0]]
    with zipfile.ZipFile(folder / "all.jar", "w") as archive:
        for name in names:
            if not without or without not in name:
                archive.writestr(name, b"")
    with zipfile.ZipFile(folder / "other.jar", "w") as archive:
        archive.writestr("other.class", b"")
