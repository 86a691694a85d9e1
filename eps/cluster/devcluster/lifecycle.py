"""Starting and stopping a cluster, and looking at it.

One command at a time is at work at a home (a file lock).  The record does not list processes: each one names
its cluster and its daemon on its command line, and is found by that.
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

#: How a daemon is.
RUNNING, SILENT, ENDED = "running", "not answering", "ended"
READY_TIMEOUT_S = 120.0
#: A daemon that SIGTERM has not ended after this long is killed; what was killed is gone after as long again.
GRACE_S = 15.0
_ASK_TIMEOUT_S = 5.0
_POLL_S = 0.2
_EXEC_LOOKS, _EXEC_LOOK_S = 100, 0.005
_FORMAT_OF_RECORD = 2
_LAST_LINES = 15
#: HDFS and the NodeManagers write here, and call themselves unhealthy where a disk has less than a part of it free.
_NEEDED_MB, _LEAST_FREE = 300, 0.005
#: Hadoop joins paths with commas and colons, and makes URLs of them.
_PLAIN = re.compile(r"[A-Za-z0-9/._+@=~-]+", re.ASCII)
#: Ports below those that the kernel gives to connections, so that a daemon that is started again finds its own.
_LOWEST_PORT, _LEAST_PORTS, _ATTEMPTS = 10_000, 10_000, 50
#: The shell starts the daemon in the background and exits: the daemon has no terminal, and outlives this process.
_DETACH = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null &'


@dataclass(frozen=True)
class DaemonStatus:
    """How a daemon is (:data:`RUNNING`, :data:`SILENT` or :data:`ENDED`); its pid is 0 where it does not run."""

    name: str
    state: str
    pid: int
    address: str
    log: str


def start_cluster(home: Path, settings: ClusterSettings, say: Say, timeout_s: float = READY_TIMEOUT_S) -> Cluster:
    """Start a cluster, or what has ended of one that runs; what HDFS holds from before is there again.

    If it fails, it stops what it started.

    Parameters
    ----------
    home : Path
        Absolute.
    settings : ClusterSettings
    say : callable
        Told how it goes.
    timeout_s : float
        For everything to be ready, from when the jars are there.

    Raises
    ------
    ConfigError
        Something is missing on this host, or a cluster with other settings is, or was, there.
    ResourceError
        The jars cannot be had, or a daemon ended.
    DeadlineError
        It was not ready in time.
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
            # A new start begins with all nodes.
            cluster.exclude.write_text("")
        missing = [daemon for daemon in settings.daemons if daemon not in running]
        if not missing:
            say("it runs already")
            return cluster
        try:
            _launch(cluster, missing, time.monotonic() + timeout_s, say)
        except BaseException:
            _end(home, {*missing, FORMAT}, say)
            raise
        return cluster


def stop_cluster(home: Path, say: Say) -> bool:
    """Stop what runs at ``home``; return False where nothing did.

    Raises
    ------
    ResourceError
        A process is still there after SIGKILL.
    """
    if not home.is_dir():
        return False
    with _locked(home, say):
        if number := _applications(home):
            say(f"the cluster runs {number} application{'s' if number > 1 else ''} of YARN, which this ends")
        found = _end(home, None, say)
        # A NodeManager that was killed has left its containers.
        mark = f"LOCAL_DIRS={home}/data/"
        containers = processes_with("environ", mark)
        _signal(containers, signal.SIGKILL)
        _wait_until(lambda: not processes_with("environ", mark))
        return found or bool(containers)


def status_of(cluster: Cluster) -> list[DaemonStatus]:
    """Return how each daemon is."""
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
        None was.
    StorageError
        Its record is damaged.
    """
    found = read_cluster(home)
    if found is None:
        raise JobNotFoundError(f"there is no cluster at {home}: eps devcluster start makes one")
    return found


def read_cluster(home: Path) -> Cluster | None:
    """Return the cluster that was started at ``home``; None where none was; raises as :func:`find_cluster`."""
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
        raise StorageError(f"{path}: is not the record of a cluster ({error}): remove it") from error


def write_cluster(cluster: Cluster) -> None:
    """Write the record of a cluster, and its site files, class path and Hadoop's commands."""
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


# ---- before it starts


def _make_home(home: Path) -> None:
    """Make the folder of a cluster, or refuse a place that Hadoop cannot have its files in."""
    if not _PLAIN.fullmatch(str(home)):
        raise ConfigError(
            f"home is {str(home)!r}, but must be a path of letters, digits and /._+@=~- only, for Hadoop misreads "
            "others: choose another with --home"
        )
    usage = shutil.disk_usage(next(path for path in (home, *home.parents) if path.exists()))
    if usage.free < max(_NEEDED_MB * 1_000_000, usage.total * _LEAST_FREE):
        raise ConfigError(f"the disk of {home} has {usage.free // 1_000_000} MB free, too little for HDFS: make room")
    try:
        make_private(home)
    except OSError as error:
        raise ConfigError(
            f"home is {home}, which cannot be made ({error.strerror}): choose another with --home"
        ) from None


def _check_running(before: Cluster | None, running: Collection[str], settings: ClusterSettings) -> Cluster:
    if before is None or before.settings != settings:
        raise ConfigError(
            "a cluster with other settings runs there: eps devcluster stop ends it, and --home chooses another place; "
            "without options, start starts again what has ended of it"
        )
    if settings.kerberos and KDC not in running:
        raise ConfigError(
            "the realm has ended, and all keys with it: eps devcluster stop ends the rest, then start again"
        )
    return before


def _check_data(before: Cluster | None, settings: ClusterSettings) -> None:
    if before is not None and _formatted(before).exists() and before.settings.release != settings.release:
        raise ConfigError(
            f"{before.data} was written by Hadoop {before.settings.hadoop_version}, not {settings.hadoop_version}: "
            "remove it, or choose another place with --home"
        )


def _free_ports(settings: ClusterSettings, ports: Ports) -> Ports:
    """Return ``ports`` where all are free, else others; no two daemons get the same, so that a log line names one."""
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    numbers = range(_LOWEST_PORT, max(ephemeral, _LOWEST_PORT + _LEAST_PORTS))
    for _ in range(_ATTEMPTS):
        if ports and _are_free(ports):
            return ports
        draw = iter(random.SystemRandom().sample(numbers, sum(len(listens_of(name)) for name in settings.daemons)))
        ports = {name: {purpose: next(draw) for purpose in listens_of(name)} for name in settings.daemons}
    raise ConfigError(
        f"no ports are free at {address_of(NAMENODE)}, and from 127.0.0.11 on for each node: the cluster needs Linux, "
        "with its loopback interface up (ip link set lo up)"
    )


def _are_free(ports: Ports) -> bool:
    with ExitStack() as stack:
        try:
            for daemon, by_purpose in ports.items():
                for port in by_purpose.values():
                    # As Java binds: closed connections that linger do not matter.
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
            say(f"another command is at work at {home}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ---- processes


def processes(home: Path) -> dict[int, str]:
    """Return the processes of the cluster at ``home``: pid -> daemon."""
    return processes_with("cmdline", mark_of(home, ""))


def processes_with(file: str, beginning: str) -> dict[int, str]:
    """Return our user's processes in whose ``/proc/PID/FILE`` a word begins so: pid -> how that word goes on.

    A zombie has no words.
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
        # It has no command line for the moment in which it becomes another program; a zombie has no program.
        if blob or file != "cmdline" or not os.readlink(f"{process}/exe"):
            break
        time.sleep(_EXEC_LOOK_S)
        blob = path.read_bytes()
    return blob.decode(errors="replace").split("\0")


def _spawn(cluster: Cluster, daemon: str) -> None:
    """Start a daemon that no end of ours ends; the log of its start before is put aside."""
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
    """End the daemons of these names, or all; return whether there were any.

    NodeManagers are first: they sign off at the ResourceManager.
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
            say(f"{name} ({pid}) did not end by itself, and was killed")
        _signal(deaf, signal.SIGKILL)
        _wait_until(partial(gone, nodes_only))
    if still := left(False):
        raise ResourceError(f"processes {', '.join(map(str, still))} were killed, and are still there")
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
    """Start daemons, and wait until everything works; an HDFS that is new is formatted meanwhile."""
    write_cluster(cluster)
    say(f"starting {', '.join(missing)} of Hadoop {cluster.settings.hadoop_version}")
    is_new = not _formatted(cluster).exists()
    now = [daemon for daemon in missing if not (is_new and daemon in (NAMENODE, DATANODE))]
    if KDC in missing:
        _start_realm(cluster, deadline_s)
        now.remove(KDC)
    if is_new:
        # What was half formatted, and blocks of what was there before, are refused by Hadoop.
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
            raise DeadlineError(f"the cluster is not ready in time: it waits for {waits_for}\n{logs}")
        time.sleep(_POLL_S)
    if cluster.settings.nodes > 1 and not cluster.settings.kerberos:
        _label_last_node(cluster)


def _start_realm(cluster: Cluster, deadline_s: float) -> None:
    """Start the realm; return when every daemon can find its key."""
    folder, log = cluster.keytab.parent, cluster.log(KDC)
    folder.chmod(0o700)
    cluster.keytab.unlink(missing_ok=True)
    _spawn(cluster, KDC)
    while not (log.exists() and KDC_READY in log.read_text(encoding="utf-8", errors="replace")):
        if KDC not in processes(cluster.home).values():
            raise _ended(cluster, KDC)
        if time.monotonic() > deadline_s:
            raise DeadlineError(f"the cluster is not ready in time: its realm does not begin; see {log}")
        time.sleep(_POLL_S / 2)
    # A program that logs in with a keytab takes its first principal.
    cluster.user_keytab.write_bytes(keytab_for(cluster.keytab.read_bytes(), f"{getpass.getuser()}@{REALM}"))
    for keytab in (cluster.keytab, cluster.user_keytab):
        keytab.chmod(0o600)


def _formatted(cluster: Cluster) -> Path:
    """Return what is there as soon as HDFS was formatted, to the end."""
    return cluster.data / "formatted"


def _ended(cluster: Cluster, daemon: str) -> ResourceError:
    said = _last_lines(cluster, daemon, _LAST_LINES)
    return ResourceError(f"{daemon} ended by itself; the last lines of {cluster.log(daemon)}:\n{said}")


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


# ---- what daemons say of themselves


def missing_of(cluster: Cluster) -> str:
    """Return what a cluster still waits for; empty: it is ready."""
    try:
        # Seen by anybody, also where the rest of a ResourceManager's pages is not.
        nodes = _bean(cluster, RESOURCEMANAGER, "ResourceManager,name=RMNMInfo")["LiveNodeManagers"]
        active, wanted = sum(node["State"] == "RUNNING" for node in json.loads(nodes)), cluster.settings.nodes
    except (PeerUnavailableError, LookupError, TypeError, ValueError):
        return "the ResourceManager"
    if active < wanted:
        return f"NodeManagers ({active} of {wanted} are there)"
    try:
        names = _bean(cluster, NAMENODE, "NameNode,name=FSNamesystemState")
        alive, is_operational = names["NumLiveDataNodes"], names["FSState"] == "Operational"
    except (PeerUnavailableError, LookupError, TypeError):
        return "the NameNode"
    if not alive:
        return "the DataNode"
    return (
        "" if is_operational else "HDFS to leave safe mode (if it was entered by hand: hdfs dfsadmin -safemode leave)"
    )


def _applications(home: Path) -> int:
    """Return how many applications run or wait; 0 where that is not known."""
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
    """Return what a daemon answers over HTTP, as JSON knows it; None where it answers nothing.

    Parameters
    ----------
    cluster : Cluster
    daemon : str
    path : str
        With the query.
    body : mapping, optional
        What is posted.

    Raises
    ------
    PeerUnavailableError
        It cannot be reached, is silent, or refuses.
    """
    address = cluster.address(daemon, "web")
    # No proxy is asked.
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
