"""Maven builds the plugin against each supported line of Hadoop; it passes its own tests, and is small."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from eps.cluster.devcluster.jars import REPOSITORY_VARIABLE, find_maven
from eps.cluster.devcluster.settings import HADOOP_VERSION
from eps.errors import ResourceError
from eps.storage.jobdir import cache_dir
from tests.conftest import lacks

PLUGIN = Path(__file__).resolve().parents[2] / "hscheduler" / "yarn-plugin"
SOURCES = sorted((PLUGIN / "src/main/java/hscheduler/yarn").iterdir())
#: The test cluster's ResourceManager, a 3.5.0, loads the plugin, too: tests/yarn/test_plugin.py.
LINES = ("3.3.6", "3.4.1", "3.5.0")
ALWAYS = "3.3.6"
MOST_LINES = 300
TIMEOUT_S = 300.0


def maven(folder: Path, version: str, *words: str) -> None:
    """Run Maven on the plugin, with its target in a folder."""
    if shutil.which("javac", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}") is None:
        lacks("java", "there is no Java compiler: install a JDK to build the plugin of a ResourceManager")
    try:
        command = find_maven(cache_dir() / "maven", lambda text, step: None)
    except ResourceError as error:
        lacks("java", f"there is no Maven, and it cannot be fetched: {error}")
    words = ("-q", "-B", "-f", str(PLUGIN / "pom.xml"), f"-Dhadoop.version={version}", f"-Dtarget={folder}", *words)
    mirror = os.environ.get(REPOSITORY_VARIABLE)
    if mirror:
        settings = folder / "settings.xml"
        one = f"<mirror><id>mirror</id><mirrorOf>central</mirrorOf><url>{mirror}</url></mirror>"
        settings.write_text(f"<settings><mirrors>{one}</mirrors></settings>")
        words = (f"--settings={settings}", *words)
    done = subprocess.run([command, *words], capture_output=True, text=True, timeout=TIMEOUT_S)
    if "Could not transfer artifact" in done.stdout + done.stderr:
        lacks("java", f"Hadoop's jars cannot be had: {done.stdout.strip()[:500]}")
    assert done.returncode == 0, done.stdout + done.stderr


def lines(always: str) -> list[Any]:
    """Return the lines of Hadoop; all but one run only in the tier ``all``."""
    return [line if line == always else pytest.param(line, marks=pytest.mark.tier("all")) for line in LINES]


@pytest.mark.parametrize("version", lines(ALWAYS))
def test_plugin_is_built_against_a_line_of_hadoop(version: str, tmp_path: Path) -> None:
    maven(tmp_path, version, "package")
    with zipfile.ZipFile(tmp_path / "hscheduler-yarn-plugin.jar") as jar:
        classes = [name for name in jar.namelist() if name.endswith(".class")]
        # Version 52 of class files: Java 8.
        versions = {jar.read(name)[7] for name in classes}
    ours = tuple(f"hscheduler/yarn/{source.stem}" for source in SOURCES)
    assert "hscheduler/yarn/HSchedulerPolicy.class" in classes
    assert all(name.startswith(ours) for name in classes)
    assert versions == {52}


@pytest.mark.parametrize("version", lines(HADOOP_VERSION))
def test_plugin_passes_its_own_tests(version: str, tmp_path: Path) -> None:
    maven(tmp_path, version, "test", "-Ptests")


def test_plugin_is_small() -> None:
    assert len(SOURCES) == 2
    assert all(source.read_text().count("\n") < MOST_LINES for source in SOURCES)
