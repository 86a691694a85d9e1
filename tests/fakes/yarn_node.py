"""A NodeManager without Hadoop: ``python -m tests.fakes.yarn_node`` forks a process for each container.

One that is killed leaves its containers behind, as a real one does.  It reads lines of JSON from standard input
(``start`` or ``stop``, a container's name) and answers with ``began`` and ``ended``; where the input ends it kills what
it has, and ends.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
from pathlib import Path
from typing import Any

from eps.cluster.supervisor.process import PRELOAD, buffer_lines, exit_with, load_entry, preload, prepare_environment

#: So that a container starts as quickly as a process of a supervisor does.
MODULES = (
    *PRELOAD,
    "eps.cluster.container",
    "eps.job.member",
    "tests.fakes.yarn_am",
)


class Node:
    """The containers of one node: name -> process."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._waits = selectors.DefaultSelector()
        self._waits.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
        self._rest = b""

    def run(self) -> None:
        """Serve until the input ends."""
        say("ready")
        while True:
            for key, _ in self._waits.select():
                if key.data is not None:
                    self._reap(key)
                elif not self._read():
                    for name in list(self._pids):
                        self._stop(name)
                    return

    def _read(self) -> bool:
        data = os.read(sys.stdin.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if "start" in order:
                self._start(order)
            else:
                self._stop(order["stop"])
        return bool(data)

    def _start(self, order: dict[str, Any]) -> None:
        name = order["start"]
        pid = os.fork()
        if pid == 0:
            exit_with(lambda: become(order))
        self._pids[name] = pid
        self._waits.register(os.pidfd_open(pid), selectors.EVENT_READ, name)
        say("began", container=name, pid=pid)

    def _stop(self, name: str) -> None:
        pid = self._pids.get(name)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    def _reap(self, key: selectors.SelectorKey) -> None:
        self._waits.unregister(key.fd)
        os.close(key.fd)
        _, status = os.waitpid(self._pids.pop(key.data), 0)
        code = os.waitstatus_to_exitcode(status)
        say("ended", container=key.data, status=code if code >= 0 else 128 - code)


def say(what: str, **details: Any) -> None:
    print(json.dumps({"what": what, **details}), flush=True)


def become(order: dict[str, Any]) -> int:
    """Be the process of a container."""
    folder = Path(order["folder"])
    os.chdir(folder)
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    os.closerange(3, 1024)
    buffer_lines()
    os.environ.update(order["env"])
    sys.argv[1:] = order["words"]
    result = load_entry(order["entry"])()  # type: ignore[call-arg]
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    prepare_environment(os.environ)
    failures = preload(MODULES)
    assert not failures, failures
    Node().run()
