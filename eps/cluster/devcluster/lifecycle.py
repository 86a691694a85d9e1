"""Start and stop a cluster, and show its state.

A file lock admits one command at a time to a home.  The record lists no processes: the command line of each names its
cluster and its daemon.
"""

from __future__ import annotations

import dataclasses
import fcntl
import getpass
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eps.cluster.devcluster.jars import Say, check_java, class_path_of_jars, find_java
from eps.cluster.devcluster.settings import (
    DATANODE,
    KDC,
    NAMENODE,
    RESOURCEMANAGER,
    TRANSIENT_LABEL,
    Cluster,
    ClusterSettings,
    Ports,
    address_of,
    listens_of,
    node_number,
)
from eps.cluster.devcluster.sites import (
    CLASS_PATH_FILE,
    COMMANDS,
    FORMAT,
    KDC_READY,
    REALM,
    WEB_ROOTS,
    daemon_command,
    daemon_environment,
    mark_of,
    realm_files,
    script,
    site_files,
)
from eps.errors import ConfigError, DeadlineError, JobNotFoundError, PeerUnavailableError, ResourceError, StorageError
from eps.hadoop.kerberos import keytab_for
from eps.storage.atomic import read_json, write_json_atomic
from eps.storage.jobdir import cache_dir
from eps.system.home import make_private
from eps.system.waits import wait_for

#: States of a daemon.
RUNNING, SILENT, ENDED = "running", "not answering", "ended"
READY_TIMEOUT_S = 120.0
#: Time from SIGTERM to SIGKILL, and the longest wait after SIGKILL.
GRACE_S = 15.0
_ASK_TIMEOUT_S = 5.0
_POLL_S = 0.2
_EXEC_LOOKS, _EXEC_LOOK_S = 100, 0.005
_FORMAT_OF_RECORD = 2
_LAST_LINES = 15
#: Free space that HDFS needs, and the share of the disk below which NodeManagers become unhealthy.
_NEEDED_MB, _LEAST_FREE = 300, 0.005
#: Hadoop joins paths with commas and colons, and turns them into URLs.
_PLAIN = re.compile(r"[A-Za-z0-9/._+@=~-]+", re.ASCII)
#: Ports are below the kernel's range for connections, so that a restarted daemon finds its port free.
_LOWEST_PORT, _LEAST_PORTS, _ATTEMPTS = 10_000, 10_000, 50
#: The shell starts the daemon in the background and exits: the daemon has no terminal and outlives this process.
_DETACH = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null &'


@dataclass(frozen=True)
class DaemonStatus:
    """A daemon's state: :data:`RUNNING`, :data:`SILENT` or :data:`ENDED`; ``pid`` is 0 if it does not run."""

    name: str
    state: str
    pid: int
    address: str
    log: str


def start_cluster(home: Path, settings: ClusterSettings, say: Say, timeout_s: float = READY_TIMEOUT_S) -> Cluster:
    """Start a cluster, or the daemons that have exited of a running one.  HDFS keeps its files.

    If the start fails, it stops the daemons that it started.

    Parameters
    ----------
    home : Path
        Absolute.
    settings : ClusterSettings
    say : callable
        Prints a line of progress.
    timeout_s : float
        Time until the cluster is ready, after the jars are there.

    Raises
    ------
    ConfigError
        This host lacks something, or ``home`` has a cluster with other settings.
    ResourceError
        The jars cannot be downloaded, or a daemon exited.
    DeadlineError
        The cluster was not ready in time.
    """
    java = find_java()
    check_java(java, settings)
    for entry in settings.rm_class_path:
        if not os.path.exists(entry.removesuffix("/*")):
            raise ConfigError(f"class path of the ResourceManager: there is no {entry}")
    _make_home(home)
    with _locked(home, say):
        before, running = read_cluster(home), set(processes(home).values())
        if running:
            cluster = _check_running(before, running, settings)
        else:
            _check_data(before, settings)
            jars = class_path_of_jars(settings.hadoop_version, cache_dir(), java, say, kerberos=settings.kerberos)
            ports = before.ports if before is not None and set(before.ports) == set(settings.daemons) else {}
            cluster = Cluster(home, settings, _free_ports(settings, ports), java.home, jars)
            # All nodes take part in a new start.
            cluster.exclude.write_text("")
        missing = [daemon for daemon in settings.daemons if daemon not in running]
        if not missing:
            say("the cluster is running already")
            return cluster
        try:
            _launch(cluster, missing, time.monotonic() + timeout_s, say)
        except BaseException:
            _end(home, {*missing, FORMAT}, say)
            raise
        return cluster


def stop_cluster(home: Path, say: Say) -> bool:
    """Stop the cluster at ``home``; return False if nothing was running.

    Raises
    ------
    ResourceError
        A process survives SIGKILL.
    """
    if not home.is_dir():
        return False
    with _locked(home, say):
        if number := _applications(home):
            say(f"this ends {number} running YARN application{'s' if number > 1 else ''}")
        found = _end(home, None, say)
        # A killed NodeManager leaves its containers running.
        mark = f"LOCAL_DIRS={home}/data/"
        containers = processes_with("environ", mark)
        _signal(containers, signal.SIGKILL)
        _wait_until(lambda: not processes_with("environ", mark))
        return found or bool(containers)


def status_of(cluster: Cluster) -> list[DaemonStatus]:
    """Return the state of each daemon."""
    pids = {name: pid for pid, name in processes(cluster.home).items()}
    found = []
    for daemon in cluster.settings.daemons:
        state = ENDED if daemon not in pids else RUNNING if _answers(cluster, daemon) else SILENT
        log = str(cluster.log(daemon))
        found.append(DaemonStatus(daemon, state, pids.get(daemon, 0), cluster.address(daemon), log))
    return found


def find_cluster(home: Path) -> Cluster:
    """Return the cluster that was started at ``home``.

    Raises
    ------
    JobNotFoundError
        No cluster was started there.
    StorageError
        Its record is damaged.
    """
    found = read_cluster(home)
    if found is None:
        raise JobNotFoundError(f"there is no cluster at {home}: eps devcluster start starts one")
    return found


def read_cluster(home: Path) -> Cluster | None:
    """Return the cluster that was started at ``home``, or None.  Raises StorageError if its record is damaged."""
    path = home / "cluster.json"
    values = read_json(path)
    if values is None:
        return None
    try:
        if values["format"] != _FORMAT_OF_RECORD:
            raise ValueError("another version of EPS wrote it")
        chosen: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values["settings"].items()}
        chosen["properties"] = tuple((key, value) for key, value in chosen["properties"])
        return Cluster(home, ClusterSettings(**chosen), values["ports"], values["java_home"], values["jars"])
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path} is not a valid record of a cluster ({error}): remove the file") from error


def write_cluster(cluster: Cluster) -> None:
    """Write the record of a cluster, its site files, its class path and Hadoop's commands."""
    values = {name: value for name, value in dataclasses.asdict(cluster).items() if name != "home"}
    write_json_atomic(cluster.home / "cluster.json", {"format": _FORMAT_OF_RECORD, **values}, sync=False)
    texts = {cluster.conf_dir / CLASS_PATH_FILE: cluster.jars + "\n"}
    for number in range(cluster.settings.nodes + 1):
        for name, text in site_files(cluster, number).items():
            texts[cluster.node_conf(number) / name] = text
    if cluster.settings.kerberos:
        texts |= {cluster.home / name: text for name, text in realm_files(cluster).items()}
    texts |= {cluster.bin / program: script(cluster, program) for program in COMMANDS}
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for program in COMMANDS:
        (cluster.bin / program).chmod(0o755)
    for name in ("logs", "data/tmp", *(f"web/webapps/{root}" for root in WEB_ROOTS)):
        (cluster.home / name).mkdir(parents=True, exist_ok=True)


# ---- before the start


def _make_home(home: Path) -> None:
    """Make the folder of a cluster; refuse a path or a disk that Hadoop cannot use."""
    if not _PLAIN.fullmatch(str(home)):
        raise ConfigError(
            f"home is {str(home)!r}, but Hadoop can use only letters, digits and /._+@=~- in it: choose another with "
            "--home"
        )
    usage = shutil.disk_usage(next(path for path in (home, *home.parents) if path.exists()))
    if usage.free < max(_NEEDED_MB * 1_000_000, usage.total * _LEAST_FREE):
        raise ConfigError(
            f"the disk of {home} has {usage.free // 1_000_000} MB free, too little for HDFS: free some space"
        )
    try:
        make_private(home)
    except OSError as error:
        raise ConfigError(
            f"home is {home}, which cannot be created ({error.strerror}): choose another with --home"
        ) from None


def _check_running(before: Cluster | None, running: Collection[str], settings: ClusterSettings) -> Cluster:
    if before is None or before.settings != settings:
        raise ConfigError(
            "a cluster with other settings is running: stop it (eps devcluster stop), or start another with --home; "
            "eps devcluster start without options restarts its daemons that have exited"
        )
    if settings.kerberos and KDC not in running:
        raise ConfigError(
            "the Kerberos realm has exited, and its keys are lost: eps devcluster stop, then eps devcluster start"
        )
    return before


def _check_data(before: Cluster | None, settings: ClusterSettings) -> None:
    if before is not None and _formatted(before).exists() and before.settings.release != settings.release:
        raise ConfigError(
            f"{before.data} was written by Hadoop {before.settings.hadoop_version}, not {settings.hadoop_version}: "
            "remove that folder, or choose another place with --home"
        )


def _free_ports(settings: ClusterSettings, ports: Ports) -> Ports:
    """Return ``ports`` if all are free, else others; no two daemons share one, so that a log line names one daemon."""
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    numbers = range(_LOWEST_PORT, max(ephemeral, _LOWEST_PORT + _LEAST_PORTS))
    for _ in range(_ATTEMPTS):
        if ports and _are_free(ports):
            return ports
        draw = iter(random.SystemRandom().sample(numbers, sum(len(listens_of(name)) for name in settings.daemons)))
        ports = {name: {purpose: next(draw) for purpose in listens_of(name)} for name in settings.daemons}
    raise ConfigError(
        f"no ports are free at {address_of(NAMENODE)} and at the nodes' addresses from 127.0.0.11 on: the cluster "
        "needs Linux, with its loopback interface up (ip link set lo up)"
    )


def _are_free(ports: Ports) -> bool:
    with ExitStack() as stack:
        try:
            for daemon, by_purpose in ports.items():
                for port in by_purpose.values():
                    # With SO_REUSEADDR, as Java: connections in TIME_WAIT do not matter.
                    stack.enter_context(socket.create_server((address_of(daemon), port)))
        except OSError:
            return False
    return True


@contextmanager
def _locked(home: Path, say: Say) -> Iterator[None]:
    try:
        file = (home / "lock").open("a")
    except OSError as error:
        raise StorageError(f"{home / 'lock'}: cannot be opened: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another eps devcluster command at {home}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ---- processes


def processes(home: Path) -> dict[int, str]:
    """Return the processes of the cluster at ``home``: pid -> daemon."""
    return processes_with("cmdline", mark_of(home, ""))


def processes_with(file: str, beginning: str) -> dict[int, str]:
    """Return this user's processes whose ``/proc/PID/FILE`` has a word with this beginning: pid -> rest of the word.

    Zombies are left out: their files are empty.
    """
    found = {}
    for entry in os.scandir("/proc"):
        with suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid() and entry.stat().st_uid == os.getuid():
                words = _words(entry.path, file)
                rest = next((word.removeprefix(beginning) for word in words if word.startswith(beginning)), None)
                if rest is not None:
                    found[int(entry.name)] = rest
    return found


def _words(process: str, file: str) -> list[str]:
    path = Path(process, file)
    blob = path.read_bytes()
    for _ in range(_EXEC_LOOKS):
        # The command line is empty for a moment during exec; a zombie has no executable.
        if blob or file != "cmdline" or not os.readlink(f"{process}/exe"):
            break
        time.sleep(_EXEC_LOOK_S)
        blob = path.read_bytes()
    return blob.decode(errors="replace").split("\0")


def _spawn(cluster: Cluster, daemon: str) -> None:
    """Start a daemon that outlives this process; rename the log of its previous start."""
    log = cluster.log(daemon)
    with suppress(FileNotFoundError):
        os.replace(log, log.with_name(f"{log.name}.1"))
    subprocess.run(
        ["/bin/sh", "-c", _DETACH, "sh", str(log), *daemon_command(cluster, daemon)],
        env=daemon_environment(cluster, daemon, os.environ),
        cwd=cluster.data,
        start_new_session=True,
        check=True,
    )


def _end(home: Path, names: Collection[str] | None, say: Say) -> bool:
    """Stop the daemons of these names, or all; return whether any was running.

    NodeManagers stop first, because they unregister at the ResourceManager.
    """

    def left(nodes_only: bool) -> dict[int, str]:
        there = {pid: name for pid, name in processes(home).items() if names is None or name in names}
        return {pid: name for pid, name in there.items() if node_number(name)} if nodes_only else there

    def gone(nodes_only: bool) -> bool:
        return not left(nodes_only)

    found = left(False)
    if found:
        say(f"stopping {len(found)} processes")
    for nodes_only in (True, False):
        _signal(left(nodes_only), signal.SIGTERM)
        _wait_until(partial(gone, nodes_only))
        deaf = left(nodes_only)
        for pid, name in deaf.items():
            say(f"killing {name} (pid {pid}): it is still running {GRACE_S:g} s after SIGTERM")
        _signal(deaf, signal.SIGKILL)
        _wait_until(partial(gone, nodes_only))
    if still := left(False):
        raise ResourceError(f"processes {', '.join(map(str, still))} are still running {GRACE_S:g} s after SIGKILL")
    return bool(found)


def _wait_until(condition: Callable[[], bool]) -> None:
    with suppress(DeadlineError):
        wait_for(condition, GRACE_S, "an end", _POLL_S / 2)


def _signal(pids: Collection[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


# ---- starting


def _launch(cluster: Cluster, missing: Sequence[str], deadline_s: float, say: Say) -> None:
    """Start daemons and wait until the cluster is ready; format HDFS if it is new."""
    write_cluster(cluster)
    say(f"starting {', '.join(missing)} of Hadoop {cluster.settings.hadoop_version}")
    is_new = not _formatted(cluster).exists()
    now = [daemon for daemon in missing if not (is_new and daemon in (NAMENODE, DATANODE))]
    if KDC in missing:
        _start_realm(cluster, deadline_s)
        now.remove(KDC)
    if is_new:
        # Hadoop refuses a half-formatted folder, and blocks of an earlier HDFS.
        for name in ("namenode", "datanode"):
            shutil.rmtree(cluster.data / name, ignore_errors=True)
        _spawn(cluster, FORMAT)
    for daemon in now:
        _spawn(cluster, daemon)
    if is_new:
        while FORMAT in processes(cluster.home).values():
            if time.monotonic() > deadline_s:
                raise DeadlineError("the cluster is not ready in time: HDFS is still being formatted")
            time.sleep(_POLL_S / 2)
        if not list(cluster.data.glob("namenode/current/fsimage_*.md5")):
            raise _ended(cluster, FORMAT)
        _formatted(cluster).touch()
        for daemon in (NAMENODE, DATANODE):
            _spawn(cluster, daemon)
    told = ""
    while waits_for := missing_of(cluster):
        if waits_for != told:
            say(f"waiting for {waits_for}")
            told = waits_for
        there = set(processes(cluster.home).values())
        for daemon in missing:
            if daemon not in there:
                raise _ended(cluster, daemon)
        if time.monotonic() > deadline_s:
            logs = "\n".join(f"{daemon}:\n{_last_lines(cluster, daemon, 3)}" for daemon in missing)
            raise DeadlineError(f"the cluster is not ready in time: it is waiting for {waits_for}\n{logs}")
        time.sleep(_POLL_S)
    if cluster.settings.nodes > 1 and not cluster.settings.kerberos:
        _label_last_node(cluster)


def _start_realm(cluster: Cluster, deadline_s: float) -> None:
    """Start the Kerberos realm; return when its keytab is complete."""
    folder, log = cluster.keytab.parent, cluster.log(KDC)
    folder.chmod(0o700)
    cluster.keytab.unlink(missing_ok=True)
    _spawn(cluster, KDC)
    while not (log.exists() and KDC_READY in log.read_text(encoding="utf-8", errors="replace")):
        if KDC not in processes(cluster.home).values():
            raise _ended(cluster, KDC)
        if time.monotonic() > deadline_s:
            raise DeadlineError(f"the cluster is not ready in time: its Kerberos realm does not start; see {log}")
        time.sleep(_POLL_S / 2)
    # Programs log in as the first principal of a keytab.
    cluster.user_keytab.write_bytes(keytab_for(cluster.keytab.read_bytes(), f"{getpass.getuser()}@{REALM}"))
    for keytab in (cluster.keytab, cluster.user_keytab):
        keytab.chmod(0o600)


def _formatted(cluster: Cluster) -> Path:
    """Return the path of the marker that HDFS was formatted completely."""
    return cluster.data / "formatted"


def _ended(cluster: Cluster, daemon: str) -> ResourceError:
    said = _last_lines(cluster, daemon, _LAST_LINES)
    return ResourceError(f"{daemon} exited; the last lines of {cluster.log(daemon)}:\n{said}")


def _last_lines(cluster: Cluster, daemon: str, number: int) -> str:
    try:
        lines = cluster.log(daemon).read_text(encoding="utf-8", errors="replace").splitlines()[-number:]
    except OSError:
        lines = []
    return "\n".join(f"  {line.expandtabs(2)}" for line in lines) or "  (nothing)"


def _label_last_node(cluster: Cluster) -> None:
    user = f"user.name={getpass.getuser()}"
    label = {"nodeLabelInfo": [{"name": TRANSIENT_LABEL, "exclusivity": "false"}]}
    ask(cluster, RESOURCEMANAGER, f"/ws/v1/cluster/add-node-labels?{user}", label)
    path = f"/ws/v1/cluster/nodes/{cluster.nodes[-1]}:0/replace-labels?labels={TRANSIENT_LABEL}&{user}"
    ask(cluster, RESOURCEMANAGER, path, {})


# ---- state of the daemons


def missing_of(cluster: Cluster) -> str:
    """Return what the start of a cluster is still waiting for; empty if the cluster is ready."""
    try:
        # This page needs no login, unlike the ResourceManager's others.
        nodes = _bean(cluster, RESOURCEMANAGER, "ResourceManager,name=RMNMInfo")["LiveNodeManagers"]
        active, wanted = sum(node["State"] == "RUNNING" for node in json.loads(nodes)), cluster.settings.nodes
    except (PeerUnavailableError, LookupError, TypeError, ValueError):
        return "the ResourceManager"
    if active < wanted:
        return f"NodeManagers ({active} of {wanted} are running)"
    try:
        names = _bean(cluster, NAMENODE, "NameNode,name=FSNamesystemState")
        alive, is_operational = names["NumLiveDataNodes"], names["FSState"] == "Operational"
    except (PeerUnavailableError, LookupError, TypeError):
        return "the NameNode"
    if not alive:
        return "the DataNode"
    return "" if is_operational else "HDFS to leave safe mode (if you set it: hdfs dfsadmin -safemode leave)"


def _applications(home: Path) -> int:
    """Return the number of running and pending applications; 0 if it is unknown."""
    with suppress(StorageError, PeerUnavailableError, LookupError, TypeError):
        if (cluster := read_cluster(home)) is not None:
            queues = _bean(cluster, RESOURCEMANAGER, "ResourceManager,name=QueueMetrics,q0=root")
            return int(queues["AppsRunning"]) + int(queues["AppsPending"])
    return 0


def _bean(cluster: Cluster, daemon: str, name: str) -> dict[str, Any]:
    return dict(ask(cluster, daemon, f"/jmx?qry=Hadoop:service={name}")["beans"][0])


def _answers(cluster: Cluster, daemon: str) -> bool:
    try:
        if daemon == KDC:
            socket.create_connection((address_of(KDC), cluster.ports[KDC]["kdc"]), _ASK_TIMEOUT_S).close()
        else:
            ask(cluster, daemon, "/jmx?qry=java.lang:type=ClassLoading")
    except (OSError, PeerUnavailableError):
        return False
    return True


def ask(cluster: Cluster, daemon: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """Return a daemon's answer over HTTP, decoded from JSON; None for an empty answer.

    Parameters
    ----------
    cluster : Cluster
    daemon : str
    path : str
        Path and query.
    body : mapping, optional
        Posted as JSON; None: GET.

    Raises
    ------
    PeerUnavailableError
        The daemon cannot be reached, does not answer, or answers with an error.
    """
    address = cluster.address(daemon, "web")
    # Not urllib.request, which would use a proxy.
    connection = http.client.HTTPConnection(address, timeout=_ASK_TIMEOUT_S)
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    try:
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status < 400:
            return json.loads(said) if said.strip() else None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise PeerUnavailableError(f"http://{address}{path} does not answer: {error}") from error
    finally:
        connection.close()
    raise PeerUnavailableError(f"http://{address}{path} answers {answer.status}: {said[:500]!r}")
