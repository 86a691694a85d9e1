"""Decisions before Java starts; tests/yarn tests Java itself."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from eps.errors import ConfigError, ResourceError
from eps.hadoop import bridge
from eps.hadoop.bridge import class_path, java_errors, jvm_options, place_of, start_jvm
from eps.hadoop.conf import HadoopConf
from tests.conftest import require


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HadoopConf:
    """Return a configuration, in an environment that says nothing of Hadoop."""
    for name in ("EPS_HADOOP_CLASSPATH", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (tmp_path / "conf").mkdir()
    return HadoopConf({"fs.defaultFS": "hdfs://nn:1", "dfs.replication": "1"}, str(tmp_path / "conf"))


def command(folder: Path, script: str) -> None:
    folder.mkdir(parents=True)
    (folder / "hadoop").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "hadoop").chmod(stat.S_IRWXU)


def test_the_class_path_is_that_of_the_file_beside_the_configuration_first(
    conf: HadoopConf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(tmp_path / "home" / "bin", 'echo "$1 $2:/c.jar"')
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path / "home"))
    assert class_path(conf) == [conf.source, "classpath --glob", "/c.jar"]
    monkeypatch.setenv("EPS_HADOOP_CLASSPATH", "/b.jar:/b2.jar")
    assert class_path(conf) == [conf.source, "/b.jar", "/b2.jar"]
    (Path(conf.source) / "eps-classpath.txt").write_text("/a.jar:/a2.jar\n")
    assert class_path(conf) == [conf.source, "/a.jar", "/a2.jar"]


def test_without_jars_it_is_said_how_they_are_found(conf: HadoopConf) -> None:
    with pytest.raises(ConfigError, match=r"PATH.*HADOOP_HOME"):
        class_path(conf)


def test_a_hadoop_command_that_fails_says_so(conf: HadoopConf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(tmp_path / "home" / "bin", "echo no JAVA_HOME >&2; exit 3")
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path / "home"))
    with pytest.raises(ConfigError, match="code 3: no JAVA_HOME"):
        class_path(conf)


def test_without_a_configuration_the_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="HADOOP_CONF_DIR"):
        class_path(HadoopConf())


def test_without_the_package_the_extra_is_named(conf: HadoopConf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jpype", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[yarn\]'"):
        start_jvm(conf)


def test_java_leaves_signals_alone_and_is_small() -> None:
    options = jvm_options(100)
    assert "-Xrs" in options and "-Xmx100m" in options and "-XX:+UseSerialGC" in options
    (log,) = [option for option in options if option.startswith("-Dlog4j.configuration=file:")]
    assert Path(log.partition("file://")[2]).is_file()


def test_messages_know_the_addresses_of_a_configuration(conf: HadoopConf) -> None:
    assert place_of(conf).settings == {"fs.defaultFS": "hdfs://nn:1"}
    assert "fs.defaultFS" in place_of(conf).who_listens("nn", 1)


def test_in_a_forked_process_java_is_refused_before_any_lock_is_waited_for(
    conf: HadoopConf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever held it when the process was forked is not there to give it back: that would be waited for for ever."""
    pytest.importorskip("jpype")
    monkeypatch.setattr(bridge, "_started_by_pid", os.getppid())
    for name in ("_lock", "_inside"):
        monkeypatch.setattr(bridge, name, SimpleNamespace(entered=lambda: pytest.fail("it waits")))
    with pytest.raises(ResourceError, match="forked from one"), java_errors("so"):
        pytest.fail("it is let in")
    with pytest.raises(ResourceError, match="forked from one"):
        start_jvm(conf)


#: A program that ends while Java collects its garbage all the time, and a thread of Python goes in and out of Java:
#: it is there when that end begins, and comes out afterwards.
ENDS_IN_JAVA = """
import sys, threading
from pathlib import Path
from eps.errors import ConfigError
from eps.hadoop.conf import HadoopConf
from eps.hadoop import bridge
from eps.hadoop.bridge import java, java_errors, jlong, start_jvm
bridge._LEAVE_S = 120.0
try:
    start_jvm(HadoopConf({}, sys.argv[1]))
except ConfigError:
    # There is no Hadoop in it; but Java runs.
    pass
nothing = java("java.lang.invoke.MethodType").methodType(java("java.lang.Void").TYPE)
collect = java("java.lang.invoke.MethodHandles").publicLookup().findStatic(java("java.lang.System"), "gc", nothing)
again = java("java.lang.invoke.MethodHandleProxies").asInterfaceInstance(java("java.lang.Runnable").class_, collect)
pool, unit = java("java.util.concurrent.Executors").newScheduledThreadPool(1), java("java.util.concurrent.TimeUnit")
pool.scheduleWithFixedDelay(again, 0, 1, unit.MILLISECONDS)
turns = threading.Semaphore(0)
def work():
    while True:
        with java_errors("until the end begins"):
            turns.release()
            while not bridge._inside._closed_by:
                java("java.lang.Thread").sleep(jlong(1))
            with java_errors("who is in gets in again"):
                Path(sys.argv[2]).touch()
threading.Thread(target=work, daemon=True).start()
turns.acquire()
garbage = [[] for _ in range(300_000)]
sys.exit(7)
"""


def test_a_process_with_java_ends_with_its_own_code(conf: HadoopConf, tmp_path: Path) -> None:
    require("java")
    pytest.importorskip("jpype")
    env = {**os.environ, "EPS_HADOOP_CLASSPATH": str(tmp_path / "none.jar")}
    words = [sys.executable, "-c", ENDS_IN_JAVA, conf.source, str(tmp_path / "came out of Java")]
    ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=240.0)
    assert (ended.returncode, ended.stderr) == (7, "")
    assert (tmp_path / "came out of Java").exists()
