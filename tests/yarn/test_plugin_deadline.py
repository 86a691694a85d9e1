"""The plugin's thread comes back from an H-scheduler that does not: by itself, without a ResourceManager."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from eps.cluster.devcluster.jars import find_java
from tests.conftest import lacks
from tests.yarn.plugin import compiled, jars

#: More than the buffers between two processes hold: the rest waits for somebody who reads.
LARGE = 24 << 20
DEADLINE_MS = 1000
#: Java starts and proves what it sends within this as well, on a busy machine.
MOST_S = 90.0


def test_a_call_ends_at_its_deadline_where_nobody_reads_it(tmp_path: Path) -> None:
    plugin = compiled(tmp_path)
    if plugin is None:
        lacks("java", "there is no Java compiler")
    with plugin.socket as stopped:
        # Connections are made by the system, for a process that does nothing any more.
        stopped.listen()
        url = f"http://127.0.0.1:{stopped.getsockname()[1]}"
        words = [find_java().command, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        words += ["-cp", os.pathsep.join((str(plugin.classes), jars())), "AskOnce"]
        words += [url, str(plugin.secret_file), str(DEADLINE_MS), str(LARGE)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=MOST_S)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= DEADLINE_MS // 2, "nobody listened, and nothing was waited for"
