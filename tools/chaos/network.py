"""Late and lost packets between the processes of a job, in a network namespace of this process's own.  Needs root.

The processes of a job listen on the loopback device, so a process is told from another by the ports that it holds: a
rule of the namespace's routing makes each of them unreachable, in both directions, whoever asks.  Connections that
are open stay open and carry nothing, as when a cable is pulled.  No module of the kernel is needed for that.  Delays
concern all processes at once.  They are those of ``sch_netem``, every packet late by a time that varies; where a kernel
lacks it, those of ``sch_tbf``: a slow line, on which packets are late by what waits before them.
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
#: Places of routing rules: that which makes local addresses local, where it has to move, and ours before it.
_LOCAL_RULE, _LOCAL_RULE_MOVED, _OUR_RULE = 0, 1000, 10
#: Every packet is late; or a full one takes 20 ms, those behind it wait, and what waits longer than 400 ms is lost.
_DELAYS = (
    ("netem", "delay", "20ms", "10ms"),
    ("tbf", "rate", "25mbit", "burst", "128kb", "latency", "400ms"),
)
_QDISC_ADD = ("tc", "qdisc", "add", "dev", "lo", "root")
_QDISC_DEL = ("tc", "qdisc", "del", "dev", "lo", "root")
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class NamespaceNetwork:
    """The network of a job that is started after this was made; this process is in it, and stays.

    Parameters
    ----------
    kinds : tuple of Kind
        What it must be able to do.

    Raises
    ------
    ConfigError
        This machine, or this user, cannot.
    """

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        for tool in ("ip", "tc") if Kind.DELAY in kinds else ("ip",):
            if shutil.which(tool) is None:
                raise ConfigError(f"delay and partition need root and network namespaces: there is no command {tool!r}")
        libc = ctypes.CDLL(None, use_errno=True)
        # Of this thread, and of all threads and processes that it starts from now on.
        if libc.unshare(_CLONE_NEWNET) != 0:
            why = os.strerror(ctypes.get_errno())
            raise ConfigError(f"delay and partition need root and network namespaces: {why}")
        self._run("ip", "link", "set", "lo", "up")
        self._run("ip", "rule", "add", "pref", str(_LOCAL_RULE_MOVED), "lookup", "local")
        self._run("ip", "rule", "del", "pref", str(_LOCAL_RULE))
        self._delay = self._find_delay() if Kind.DELAY in kinds else ()
        #: Process that nobody reaches -> its ports that have a rule.
        self._cut: dict[int, set[int]] = {}
        self._delayed: set[int] = set()

    def disturb(self, kind: Kind, pid: int) -> None:
        """Begin; harmless when repeated."""
        if kind is Kind.DELAY:
            if not self._delayed:
                self._run(*_QDISC_ADD, *self._delay)
            self._delayed.add(pid)
        else:
            self._cut.setdefault(pid, set())
            self.refresh()

    def refresh(self) -> None:
        """Cut the connections off that cut-off processes have made since."""
        for pid, known in self._cut.items():
            for port in ports_of(pid) - known:
                known.add(port)
                self._rules("add", port)

    def calm(self, pid: int) -> None:
        """End what disturbs a process."""
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
        """Return the first discipline that the kernel knows."""
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
    """Return the TCP ports that a process holds, those on which it listens among them."""
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
