"""A host on which Java and Maven are scripts, so that clusters start at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eps.cluster.devcluster import lifecycle
from eps.cluster.devcluster.jars import Java
from eps.cluster.devcluster.lifecycle import processes
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
        left = processes(found)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
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
