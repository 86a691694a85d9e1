"""A real Hadoop for the tests of this folder, started on first use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eps.cluster.devcluster.jars import REPOSITORY_VARIABLE
from eps.cluster.devcluster.lifecycle import processes
from tests.conftest import lacks, require
from tests.integration.conftest import home as home
from tests.processes import with_variable
from tests.yarn import unmanaged
from tests.yarn.hadoop import Hadoop
from tests.yarn.in_java import InJava
from tests.yarn.plugin import Plugin, compiled

#: The jars are cached, or Maven downloads them over a slow network.
START_TIMEOUT_S = 900.0
READY_TIMEOUT_S = 240
STOP_TIMEOUT_S = 120.0
#: YARN waits this long before it kills a container that it preempts; its default of 15 s is too short on a shared
#: machine.
GRACE = "yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill=60000"


def devcluster(command: str, home: Path, *words: str) -> list[str]:
    """Return the command line of ``eps devcluster``."""
    return [sys.executable, "-m", "eps", "devcluster", command, "--home", str(home), *words]


# The idle daemons take a tenth of a core, so they end before the tests of other folders run.
@pytest.fixture(scope="package")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    """Return the Hadoop that all tests share; skip without Java, or if Maven Central cannot be reached."""
    require("java")
    home = tmp_path_factory.mktemp("hadoop")
    plugin = compiled(tmp_path_factory.mktemp("plugin"))
    options = [f"--property={GRACE}", *(plugin.options if plugin is not None else [])]
    # The cluster stops when its standard input closes, which happens at any end of this process.
    guard = subprocess.Popen(
        ["/bin/sh", "-c", 'cat >/dev/null; exec "$@"', "sh", *devcluster("stop", home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        started = subprocess.run(
            devcluster("start", home, "--timeout", str(READY_TIMEOUT_S), *options),
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
        )
        if REPOSITORY_VARIABLE in started.stderr:
            lacks("java", f"Hadoop's jars cannot be had: {started.stderr.strip()}")
        assert started.returncode == 0, started.stderr
        assert started.stdout == f"export HADOOP_CONF_DIR={home}/conf\n"
        yield Hadoop(home, plugin)
    finally:
        if plugin is not None:
            plugin.socket.close()
        guard.communicate(timeout=STOP_TIMEOUT_S)
    assert guard.returncode == 0
    assert not processes(home)
    assert not with_variable("LOCAL_DIRS", f"{home}/")


@pytest.fixture(scope="package")
def java(hadoop: Hadoop) -> Iterator[InJava]:
    """Return the process with Java that all tests share; a test must not leave containers in its application."""
    found = InJava(hadoop.env)
    yield found
    found(unmanaged.end_application)
    found.close()


@pytest.fixture
def on_yarn(hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hadoop]:
    """Configure commands of this process for the cluster; at the end no application may run."""
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))
    yield hadoop
    apps = (hadoop.rest("/ws/v1/cluster/apps?states=SUBMITTED,ACCEPTED,RUNNING")["apps"] or {}).get("app", [])
    assert not apps, [app["id"] for app in apps]


@pytest.fixture
def plugin(hadoop: Hadoop) -> Plugin:
    """Return the loaded plugin."""
    if hadoop.plugin is None:
        lacks("java", "there is no Java compiler: install a JDK to test the plugin of a ResourceManager")
    return hadoop.plugin
