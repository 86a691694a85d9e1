"""Effects that Java in a Python process must not have."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from tests.yarn.in_java import DEADLINE_S
from tests.yarn.java_script import TERMINATED

if TYPE_CHECKING:
    from tests.yarn.hadoop import Hadoop


def test_signals_forks_and_threads_work_as_without_java(hadoop: Hadoop) -> None:
    words = [sys.executable, "-m", "tests.yarn.java_script"]
    with subprocess.Popen(words, env=hadoop.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = []
        deadline = threading.Timer(DEADLINE_S, process.kill)
        deadline.start()
        for line in process.stdout:
            if line == "ready\n":
                process.send_signal(signal.SIGTERM)
            said.append(line.strip())
        _, errors = process.communicate(timeout=DEADLINE_S)
        deadline.cancel()
    seen = dict(line.split(": ") for line in said if ": " in line)
    assert process.returncode == TERMINATED, f"{said}\n{errors}"
    memory_mb = int(seen.pop("memory in MB"))
    assert memory_mb < 150, "Java alone"
    assert seen == dict.fromkeys(
        (
            "started twice, one machine",
            "a forked child is refused",
            "a spawned child is not hindered",
            "an interrupt is Python's",
            "a call leaves other threads alone",
            "finally ran",
        ),
        "True",
    )
