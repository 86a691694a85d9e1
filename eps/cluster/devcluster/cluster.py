"""A cluster that was started: where it is, how it is, and waiting for it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eps.cluster.devcluster import probe
from eps.cluster.devcluster.maven import Say
from eps.cluster.devcluster.places import Places
from eps.cluster.devcluster.processes import Process
from eps.cluster.devcluster.record import Record, read_record
from eps.cluster.devcluster.secure import client_variables
from eps.cluster.devcluster.settings import (
    DATANODE,
    NAMENODE,
    RESOURCEMANAGER,
    ClusterSettings,
    address_of,
    daemons_of,
    listens_of,
    node_address,
    node_number,
)
from eps.errors import DeadlineError, JobNotFoundError, ResourceError
from eps.system.home import eps_home

#: How a daemon is.
RUNNING, SILENT, ENDED = "running", "not answering", "ended"
_POLL_S = 0.2
_COMMAND_TIMEOUT_S = 120.0
_LAST_LINES = 15
#: Said by a daemon whose port somebody took between our look and its bind.
_PORT_TAKEN = ("BindException", "Address already in use", "Port in use")


class DaemonEndedError(ResourceError):
    """A daemon ended by itself; the message has the last lines of its log.

    Attributes
    ----------
    port_taken : bool
        Somebody had taken its port.
    """

    def __init__(self, message: str, *, port_taken: bool) -> None:
        super().__init__(message)
        self.port_taken = port_taken


@dataclass(frozen=True)
class DaemonStatus:
    """How a daemon is (:data:`RUNNING`, :data:`SILENT` or :data:`ENDED`); its pid is 0 where it was not started."""

    name: str
    state: str
    pid: int
    address: str
    log: str


class Cluster:
    """A cluster that was started; it knows what was, and asks the processes and daemons what is.

    Several processes may have one each for the same home.

    Parameters
    ----------
    places : Places
    record : Record
    """

    def __init__(self, places: Places, record: Record) -> None:
        self.places = places
        self.record = record

    @classmethod
    def at(cls, home: Path) -> Cluster:
        """Return the cluster that was started at ``home``.

        Raises
        ------
        JobNotFoundError
            None was.
        StorageError
            Its record is damaged.
        """
        places = Places(home)
        record = read_record(places)
        if record is None:
            raise cls.absent(home)
        return cls(places, record)

    @staticmethod
    def absent(home: Path) -> JobNotFoundError:
        """Return the error that says that no cluster was started at ``home``."""
        return JobNotFoundError(f"there is no cluster at {home}: eps devcluster start makes one")

    @property
    def settings(self) -> ClusterSettings:
        """What was chosen."""
        return self.record.settings

    @property
    def conf_dir(self) -> Path:
        """What HADOOP_CONF_DIR must name."""
        return self.places.conf

    @property
    def daemons(self) -> tuple[str, ...]:
        """The names of all daemons."""
        return daemons_of(self.settings)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The host of each NodeManager."""
        return tuple(node_address(number) for number in range(1, self.settings.nodes + 1))

    @property
    def excluded(self) -> tuple[str, ...]:
        """The hosts of the nodes that were decommissioned, or are to be."""
        return tuple(_text(self.places.exclude).split())

    def is_excluded(self, daemon: str) -> bool:
        """Return whether a daemon is the NodeManager of one of these."""
        return address_of(daemon) in self.excluded

    @property
    def hdfs_url(self) -> str:
        """``hdfs://HOST:PORT``."""
        return f"hdfs://{self.address(NAMENODE)}"

    @property
    def webhdfs_url(self) -> str:
        """``http://HOST:PORT`` of WebHDFS."""
        return f"http://{self.address(NAMENODE, 'web')}"

    @property
    def rm_url(self) -> str:
        """``http://HOST:PORT`` of the ResourceManager."""
        return f"http://{self.address(RESOURCEMANAGER, 'web')}"

    def address(self, daemon: str, purpose: str = "") -> str:
        """Return ``host:port`` of a daemon: of the port that others call, or of the one for ``purpose``."""
        return f"{address_of(daemon)}:{self.record.ports[daemon][purpose or listens_of(daemon)[0]]}"

    def process(self, daemon: str) -> Process | None:
        """Return the process of a daemon, if it was started; it may have ended since."""
        return self.record.processes.get(daemon)

    def is_running(self, daemon: str) -> bool:
        """Return whether the process of a daemon runs."""
        process = self.process(daemon)
        return process is not None and process.is_alive()

    def environment(self) -> dict[str, str]:
        """Return the environment of a program that is to use the cluster."""
        return {**os.environ, **self.variables(), "JAVA_HOME": self.record.java.home}

    def variables(self) -> dict[str, str]:
        """Return the variables that lead a program to the cluster, and let it prove who its user is."""
        proofs = client_variables(self.places) if self.settings.kerberos else {}
        return {"HADOOP_CONF_DIR": str(self.conf_dir), **proofs}

    def status(self) -> list[DaemonStatus]:
        """Return how each daemon is."""
        found = []
        for daemon in self.daemons:
            process, state = self.process(daemon), ENDED
            if process is not None and process.is_alive():
                state = RUNNING if probe.answers(daemon, self.record.ports) else SILENT
            log = str(self.places.log(daemon))
            found.append(DaemonStatus(daemon, state, process.pid if process else 0, self.address(daemon), log))
        return found

    def command(
        self, program: str, *words: str, timeout_s: float = _COMMAND_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Hadoop's commands, as ``command("yarn", "rmadmin", "-refreshNodes")``.

        Raises
        ------
        DeadlineError
            It is not done after ``timeout_s``.
        """
        line = [str(self.places.bin / program), *words]
        try:
            return subprocess.run(line, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired as error:
            raise DeadlineError(f"{' '.join(line)} is not done after {timeout_s:g} s") from error

    def wait_ready(self, timeout_s: float, say: Say) -> None:
        """Wait until everything works.

        Raises
        ------
        DaemonEndedError
            A daemon has ended.
        DeadlineError
            It is not ready after ``timeout_s``; the message has the last lines of every log.
        """
        there = [daemon for daemon in self.daemons if not self.is_excluded(daemon)]
        nodes = sum(1 for daemon in there if node_number(daemon))
        self._wait(there, lambda: probe.what_is_missing(self.record.ports, nodes), timeout_s, say)

    def wait_back(self, daemon: str, since_ms: float, timeout_s: float, say: Say) -> None:
        """Wait until a daemon that was started at ``since_ms`` (Unix time) works with all others that run.

        A NodeManager that hangs is left out: it does not come back to its ResourceManager until it goes on.

        Raises
        ------
        DaemonEndedError
            It has ended.
        DeadlineError
            It does not after ``timeout_s``.
        """
        nodes = [name for name in self.daemons if node_number(name) and daemon == RESOURCEMANAGER]
        nodes = [name for name in nodes if not self.is_excluded(name)]
        nodes = [name for name in nodes if self.is_running(name) and probe.answers(name, self.record.ports)]

        def missing() -> str:
            if not probe.is_back(daemon, self.record.ports, since_ms):
                return f"{daemon} to register"
            if daemon == RESOURCEMANAGER:
                return probe.missing_of_yarn(self.record.ports, sum(map(self.is_running, nodes)))
            if daemon == NAMENODE:
                return probe.missing_of_hdfs(self.record.ports, int(self.is_running(DATANODE)))
            return ""

        self._wait((daemon,), missing, timeout_s, say)

    def _wait(self, daemons: Sequence[str], missing: Callable[[], str], timeout_s: float, say: Say) -> None:
        deadline, told = time.monotonic() + timeout_s, ""
        while waits_for := missing():
            if waits_for != told:
                say(f"waiting for {waits_for}", True)
                told = waits_for
            for daemon in daemons:
                if not self.is_running(daemon):
                    raise self.ended(daemon)
            if time.monotonic() > deadline:
                logs = "\n".join(f"{daemon}:\n{self._last_words(daemon, 3)}" for daemon in daemons)
                raise DeadlineError(f"the cluster is not ready after {timeout_s:g} s: it waits for {waits_for}\n{logs}")
            time.sleep(_POLL_S)

    def ended(self, name: str) -> DaemonEndedError:
        """Return the error that says that a daemon has ended, with its last words."""
        log, said = self.places.log(name), _text(self.places.log(name))
        return DaemonEndedError(
            f"{name} ended by itself; the last lines of {log}:\n{self._last_words(name, _LAST_LINES)}",
            port_taken=any(words in said for words in _PORT_TAKEN),
        )

    def _last_words(self, name: str, num_lines: int) -> str:
        lines = _text(self.places.log(name)).splitlines()[-num_lines:]
        return "\n".join(f"  {line.expandtabs(2)}" for line in lines) or "  (nothing)"


def default_home() -> Path:
    """Return where a cluster is unless it is told otherwise."""
    return eps_home() / "devcluster"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
