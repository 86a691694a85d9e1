"""The plugin of the tests' ResourceManager: always loaded, and idle until H-scheduler answers."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from eps.cluster.devcluster.jars import class_path_of_jars, find_java
from eps.cluster.devcluster.settings import HADOOP_VERSION
from eps.storage.jobdir import cache_dir
from hscheduler.yarn.endpoint import secret_of
from hscheduler.yarn.wire import Snapshot

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    *sorted((ROOT / "hscheduler/yarn-plugin/src/main/java/hscheduler/yarn").iterdir()),
    ROOT / "tests/yarn/java/TinyMaster.java",
)
POLICY = "hscheduler.yarn.HSchedulerPolicy"
COMPILE_TIMEOUT_S = 240.0
GRACE_MS = 2000


def unfought(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot that says that YARN preempts from no queue; in this cluster it does, for other tests."""
    queues = tuple(dataclasses.replace(queue, preemption_disabled=True) for queue in snapshot.queues)
    return dataclasses.replace(snapshot, queues=queues)


@dataclass(frozen=True)
class Plugin:
    """The compiled plugin, and the address at which it expects H-scheduler."""

    classes: Path
    secret_file: Path
    #: Bound, but it refuses connections until a test listens on it.
    socket: socket.socket

    @property
    def options(self) -> list[str]:
        """Options of ``eps devcluster start``."""
        values = {
            "url": f"http://127.0.0.1:{self.socket.getsockname()[1]}",
            "secret-file": self.secret_file,
            "interval-ms": 500,
            "grace-ms": GRACE_MS,
            # The machine is shared.
            "deadline-ms": 5000,
            "max-age-ms": 20_000,
        }
        settings = [f"--property=eps.hscheduler.{key}={value}" for key, value in values.items()]
        return [f"--policy={POLICY}", f"--rm-classpath={self.classes}", *settings]


def jars() -> str:
    """Return the class path of the tests' Hadoop."""
    return class_path_of_jars(HADOOP_VERSION, cache_dir(), find_java(), lambda text: None)


def compiled(folder: Path) -> Plugin | None:
    """Compile the plugin, and the Java classes of tests; None without a compiler."""
    compiler = shutil.which("javac", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
    if compiler is None:
        return None
    command = [compiler, "-proc:none", "-nowarn", "-cp", jars(), "-d", str(folder), *map(str, SOURCES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    secret_file = folder / "secret"
    secret_of(secret_file)
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return Plugin(folder, secret_file, bound)
