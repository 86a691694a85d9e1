"""Delay and drop packets between the processes of a job, in this process's own network namespace.  Needs root.

All processes of a job use the loopback device, so a process is identified by its ports.  To cut a process off, routing
rules make its ports unreachable in both directions.  Open connections stay open and carry nothing, as with a pulled
cable.  This needs no kernel module.  A delay affects all processes.  It uses ``sch_netem``, which delays each packet by
a varying time, or, if the kernel lacks that, ``sch_tbf``, a slow line on which packets queue.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from eps.errors import ConfigError, ResourceError
from tools.chaos.schedule import Kind

_CLONE_NEWNET = 0x40000000
#: Priorities of routing rules: the kernel's rule for local addresses, its new priority, and ours before it.
_LOCAL_RULE, _LOCAL_RULE_MOVED, _OUR_RULE = 0, 1000, 10
#: netem delays each packet.  With tbf a full packet takes 20 ms, later ones queue, and those that wait 400 ms are lost.
_DELAYS = (
    ("netem", "delay", "20ms", "10ms"),
    ("tbf", "rate", "25mbit", "burst", "128kb", "latency", "400ms"),
)
_QDISC_ADD = ("tc", "qdisc", "add", "dev", "lo", "root")
_QDISC_DEL = ("tc", "qdisc", "del", "dev", "lo", "root")
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class NamespaceNetwork:
    """The network namespace of jobs started afterwards; this process enters it and stays.

    Parameters
    ----------
    kinds : tuple of Kind
        Kinds of events that it must support.

    Raises
    ------
    ConfigError
        The kernel, the tools or the user's rights do not allow it.
    """

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        for tool in ("ip", "tc") if Kind.DELAY in kinds else ("ip",):
            if shutil.which(tool) is None:
                raise ConfigError(f"delay and partition need root and network namespaces: there is no command {tool!r}")
        libc = ctypes.CDLL(None, use_errno=True)
        # For this thread and all threads and processes that it starts from now on.
        if libc.unshare(_CLONE_NEWNET) != 0:
            why = os.strerror(ctypes.get_errno())
            raise ConfigError(f"delay and partition need root and network namespaces: {why}")
        self._run("ip", "link", "set", "lo", "up")
        self._run("ip", "rule", "add", "pref", str(_LOCAL_RULE_MOVED), "lookup", "local")
        self._run("ip", "rule", "del", "pref", str(_LOCAL_RULE))
        self._delay = self._find_delay() if Kind.DELAY in kinds else ()
        #: Pid of a process that is cut off -> its ports that have a rule.
        self._cut: dict[int, set[int]] = {}
        self._delayed: set[int] = set()

    def disturb(self, kind: Kind, pid: int) -> None:
        """Begin to delay packets or to cut a process off; idempotent."""
        if kind is Kind.DELAY:
            if not self._delayed:
                self._run(*_QDISC_ADD, *self._delay)
            self._delayed.add(pid)
        else:
            self._cut.setdefault(pid, set())
            self.refresh()

    def refresh(self) -> None:
        """Cut new connections of cut-off processes, too."""
        for pid, known in self._cut.items():
            for port in ports_of(pid) - known:
                known.add(port)
                self._rules("add", port)

    def calm(self, pid: int) -> None:
        """End the delay or the cut of a process."""
        for port in self._cut.pop(pid, set()):
            self._rules("del", port)
        if pid in self._delayed:
            self._delayed.remove(pid)
            if not self._delayed:
                self._run(*_QDISC_DEL)

    def _rules(self, what: str, port: int) -> None:
        for side in ("sport", "dport"):
            with suppress(ResourceError):
                self._run("ip", "rule", what, "pref", str(_OUR_RULE), "ipproto", "tcp", side, str(port), "unreachable")

    def _find_delay(self) -> tuple[str, ...]:
        """Return the first queueing discipline that the kernel supports."""
        for delay in _DELAYS:
            try:
                self._run(*_QDISC_ADD, *delay)
                self._run(*_QDISC_DEL)
                return delay
            except ResourceError as error:
                why = error
        raise ConfigError(f"delay needs root and a kernel with sch_netem or sch_tbf: {why}")

    def _run(self, *words: str) -> None:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ResourceError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


def ports_of(pid: int) -> set[int]:
    """Return the TCP ports of a process, including those on which it listens."""
    inodes: set[str] = set()
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                match = _SOCKET.fullmatch(os.readlink(entry))
                if match is not None:
                    inodes.add(match.group(1))
    found: set[int] = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[9] in inodes:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return found
