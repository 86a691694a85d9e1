"""Starting and stopping a cluster, and its daemons one by one.

One command at a time is at work at a home (a file lock).  Every process is written down as soon as it was started; one
whose starter was killed in between is found by the mark on its command line.
"""

from __future__ import annotations

import difflib
import getpass
import os
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from eps.cluster.devcluster import probe
from eps.cluster.devcluster.cluster import Cluster, DaemonEndedError
from eps.cluster.devcluster.daemons import (
    COMMANDS,
    daemon_class_path,
    daemon_command,
    daemon_environment,
    format_command,
    kdc_command,
    mark_of,
    script,
)
from eps.cluster.devcluster.jars import class_path_of_jars
from eps.cluster.devcluster.locks import locked
from eps.cluster.devcluster.maven import Say
from eps.cluster.devcluster.places import WEB_ROOTS, Places
from eps.cluster.devcluster.ports import are_free, choose_ports
from eps.cluster.devcluster.preflight import check_host
from eps.cluster.devcluster.processes import GRACE_S, Process, end_all, kill_all, marked, spawn, with_variable
from eps.cluster.devcluster.record import Record, read_record, write_record
from eps.cluster.devcluster.secure import KDC_READY, kdc_properties, krb5_conf, principal_of
from eps.cluster.devcluster.settings import (
    DATANODE,
    KDC,
    NAMENODE,
    RESOURCEMANAGER,
    TRANSIENT_LABEL,
    ClusterSettings,
    address_of,
    daemons_of,
    node_number,
)
from eps.cluster.devcluster.sites import Blueprint, site_files
from eps.errors import ConfigError, DeadlineError, ResourceError
from eps.hadoop.kerberos import keytab_for
from eps.storage.jobdir import cache_dir

READY_TIMEOUT_S = 120.0
_FORMAT = "format"
_LOCK_TIMEOUT_S = 300.0
_ATTEMPTS = 3
_POLL_S = 0.1
#: For a NodeManager to end its containers, where there is no ResourceManager to sign off at.
_ALONE_GRACE_S = 5.0
#: What was killed a moment ago may have its sockets for as long.
_PORTS_S = 5.0
_KILLED = "did not end by itself, and was killed"


def start_cluster(home: Path, settings: ClusterSettings, say: Say, timeout_s: float = READY_TIMEOUT_S) -> Cluster:
    """Start a cluster, or find the one that runs; what HDFS holds from before is there again.

    Of one that runs, what has ended is started again where it was, and the rest is left as it is.

    Parameters
    ----------
    home : Path
        Absolute.
    settings : ClusterSettings
    say : callable
        Told how it goes.
    timeout_s : float
        For everything to be ready, from when the jars are there.

    Returns
    -------
    Cluster
        It is ready.

    Raises
    ------
    ConfigError
        Something is missing on this host, or a cluster with other settings is, or was, there.
    ResourceError
        The jars cannot be had, a daemon ended, or the port of one that had ended is taken.
    DeadlineError
        It was not ready in time.

    After an error nothing is left running, but what ran before.
    """
    java = check_host(settings, home)
    places = Places(home)
    with held(places, say):
        record = read_record(places)
        if record is not None and (running := _running(places, record, settings)):
            _complete(running, say, timeout_s)
            return running
        _check_data(places, record, settings)
        _clean(places, record, say)
        jars = class_path_of_jars(settings.hadoop_version, cache_dir(), java, say, kerberos=settings.kerberos)
        ports = record.ports if record is not None and set(record.ports) == set(daemons_of(settings)) else {}
        attempt = 1
        while True:
            if not ports or not are_free(ports):
                ports = choose_ports(settings)
            cluster = Cluster(places, Record(settings, java, jars, ports))
            try:
                _start(cluster, say, timeout_s)
                return cluster
            except DaemonEndedError as error:
                if not error.port_taken or attempt == _ATTEMPTS:
                    raise
            say("somebody took a port meanwhile: trying others", False)
            ports, attempt = {}, attempt + 1


def running_settings(home: Path) -> ClusterSettings | None:
    """Return what was chosen for the cluster of which daemons run at ``home``; None where nothing does.

    Raises
    ------
    StorageError
        Its record is damaged.
    """
    places = Places(home)
    record = read_record(places)
    if record is None:
        return None
    cluster = Cluster(places, record)
    return cluster.settings if any(map(cluster.is_running, cluster.daemons)) else None


def stop_cluster(home: Path, say: Say) -> bool:
    """Stop what runs at ``home``; return False where nothing did.

    Raises
    ------
    ResourceError
        A process is still there after SIGKILL.
    """
    places = Places(home)
    if not home.exists():
        return False
    with held(places, say):
        return _clean(places, read_record(places), say)


def restart_daemons(home: Path, names: Collection[str], say: Say, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Start daemons of the cluster at ``home`` again; the others, and what HDFS holds, are left as they are.

    Raises
    ------
    ConfigError
        The cluster has no such daemon, none of its daemons runs, or one to be started would find its master gone.
    JobNotFoundError
        No cluster was started there.
    DaemonEndedError, DeadlineError, ResourceError
        As :func:`restart_daemon`.
    """
    places = Places(home)
    if not home.exists():
        raise Cluster.absent(home)
    with held(places, say):
        cluster = Cluster.at(home)
        for name in names:
            _check_daemon(cluster, name)
        if not any(map(cluster.is_running, cluster.daemons)):
            raise ConfigError(f"nothing runs at {home}: eps devcluster start starts all of it")
        for name in names:
            _check_master(cluster, name, names)
        _restart(cluster, names, say, timeout_s)


def restart_daemon(cluster: Cluster, daemon: str, say: Say, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Start a daemon of a cluster again, ending it first where it runs, and wait until it works.

    Its site files are those of the cluster's settings, which may have changed.

    Raises
    ------
    DaemonEndedError, DeadlineError, ResourceError
        As :func:`start_cluster`; the other daemons are left as they are.
    """
    with held(cluster.places, say):
        _restart(cluster, [daemon], say, timeout_s)


def write_files(cluster: Cluster) -> None:
    """Write the site files, the class path and Hadoop's commands."""
    places, settings = cluster.places, cluster.settings
    blueprint = Blueprint(settings, places, cluster.record.ports, getpass.getuser())
    for number in range(settings.nodes + 1):
        folder = places.node_conf(number) if number else places.conf
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in site_files(blueprint, number).items():
            (folder / name).write_text(text, encoding="utf-8")
    places.class_path.write_text(cluster.record.jars + "\n", encoding="utf-8")
    places.exclude.touch()
    for folder in (places.logs, places.bin, places.data / "tmp", *(places.web / "webapps" / n for n in WEB_ROOTS)):
        folder.mkdir(parents=True, exist_ok=True)
    if settings.kerberos:
        places.krb5_conf.write_text(krb5_conf(cluster.record.ports[KDC]["kdc"]), encoding="ascii")
    for program in COMMANDS:
        path = places.bin / program
        path.write_text(script(program, cluster.record.java.command, places, settings), encoding="utf-8")
        path.chmod(0o755)


def _start(cluster: Cluster, say: Say, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    write_record(cluster.places, cluster.record)
    # All nodes are there again.
    cluster.places.exclude.unlink(missing_ok=True)
    write_files(cluster)
    say(f"starting {len(cluster.daemons)} daemons of Hadoop {cluster.settings.hadoop_version}", False)
    try:
        _launch_all(cluster, deadline, say)
        cluster.wait_ready(deadline - time.monotonic(), say)
        _label_node(cluster)
    except BaseException:
        _clean(cluster.places, cluster.record, say)
        raise


def _complete(cluster: Cluster, say: Say, timeout_s: float) -> None:
    """Start what has ended of a cluster that runs."""
    deadline = time.monotonic() + timeout_s
    # Of a starter that was killed before it could write them down: they have the ports of those that are missing.
    _end_strays(cluster.places, cluster.record)
    missing = [daemon for daemon in cluster.daemons if not (cluster.is_running(daemon) or cluster.is_excluded(daemon))]
    try:
        if missing:
            _restart(cluster, missing, say, timeout_s)
        else:
            say("it runs already", False)
        cluster.wait_ready(deadline - time.monotonic(), say)
        # Its starter may have been killed before it came to that.
        _label_node(cluster)
    except BaseException:
        launched = {cluster.record.processes[name]: name for name in missing if cluster.is_running(name)}
        _end_daemons(launched, signs_off=cluster.is_running(RESOURCEMANAGER), say=say)
        raise


def _restart(cluster: Cluster, names: Collection[str], say: Say, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    daemons = [daemon for daemon in cluster.daemons if daemon in names]
    say(f"starting {', '.join(daemons)} again", False)
    processes = [cluster.process(daemon) for daemon in daemons]
    end_all([process for process in processes if process is not None], GRACE_S)
    ports_by_s = time.monotonic() + _PORTS_S
    for daemon in daemons:
        while not are_free({daemon: cluster.record.ports[daemon]}):
            if time.monotonic() > ports_by_s:
                raise ResourceError(
                    f"{daemon} cannot be started: another program has taken one of its ports "
                    f"({', '.join(map(str, cluster.record.ports[daemon].values()))} of {address_of(daemon)}); end "
                    "that, or let eps devcluster stop and start choose others"
                )
            time.sleep(_POLL_S)
    write_files(cluster)
    started_ms = time.time() * 1000
    for daemon in daemons:
        _launch(cluster, daemon)
    for daemon in daemons:
        cluster.wait_back(daemon, started_ms, deadline - time.monotonic(), say)
    if RESOURCEMANAGER in daemons:
        _label_node(cluster)


def _check_daemon(cluster: Cluster, name: str) -> None:
    if name not in cluster.daemons:
        near = difflib.get_close_matches(name, cluster.daemons, n=1)
        raise ConfigError(
            f"daemon is {name!r}, but the cluster at {cluster.places.home} has {', '.join(cluster.daemons)}"
            + (f"; did you mean {near[0]}?" if near else "")
        )
    if name == KDC:
        raise ConfigError(
            f"daemon is {name!r}, but its keys end with it, and all others need them: eps devcluster stop and start "
            "start everything with new ones"
        )


def _check_master(cluster: Cluster, name: str, names: Collection[str]) -> None:
    """Refuse to start a daemon that would wait in vain for the one at which it registers, or be turned away there."""
    if cluster.is_excluded(name):
        raise ConfigError(
            f"daemon is {name!r}, but its node was decommissioned: "
            f"eps devcluster recommission --home {cluster.places.home} {name} takes it back"
        )
    master = NAMENODE if name == DATANODE else RESOURCEMANAGER if node_number(name) else name
    if master not in names and not cluster.is_running(master):
        raise ConfigError(
            f"daemon is {name!r}, but it registers at the {master}, which has ended: "
            f"eps devcluster restart --home {cluster.places.home} {master} {name} starts both"
        )


def _launch_all(cluster: Cluster, deadline: float, say: Say) -> None:
    """Start everything; an HDFS that is new is formatted meanwhile."""
    formatted = cluster.places.formatted.exists()
    for daemon in cluster.daemons:
        _begin_log(cluster.places.log(daemon))
    if cluster.settings.kerberos:
        _launch_kdc(cluster, deadline, say)
    if not formatted:
        _begin_format(cluster)
    for daemon in cluster.daemons:
        if cluster.process(daemon) is None and (formatted or daemon == RESOURCEMANAGER or node_number(daemon)):
            _launch(cluster, daemon)
    if not formatted:
        say("waiting for HDFS to be formatted", True)
        _end_format(cluster, deadline)
        for daemon in cluster.daemons:
            if cluster.process(daemon) is None:
                _launch(cluster, daemon)


def _launch_kdc(cluster: Cluster, deadline: float, say: Say) -> None:
    """Start the realm; return when every daemon can find its key."""
    places, port = cluster.places, cluster.record.ports[KDC]["kdc"]
    shutil.rmtree(places.kdc, ignore_errors=True)
    places.kdc.mkdir(mode=0o700)
    places.kdc_properties.write_text(kdc_properties(port), encoding="ascii")
    user = getpass.getuser()
    _spawn(cluster, KDC, KDC, kdc_command(cluster.record.java.command, places, cluster.settings, user))
    say("waiting for the realm", True)
    while KDC_READY not in places.log(KDC).read_text(encoding="utf-8", errors="replace"):
        if not cluster.is_running(KDC):
            raise cluster.ended(KDC)
        if time.monotonic() > deadline:
            raise DeadlineError(f"the cluster is not ready in time: its realm does not begin; see {places.log(KDC)}")
        time.sleep(_POLL_S)
    # Whoever logs in with a keytab takes the first principal in it.
    places.user_keytab.write_bytes(keytab_for(places.keytab.read_bytes(), principal_of(user)))
    for keytab in (places.keytab, places.user_keytab):
        keytab.chmod(0o600)


def _launch(cluster: Cluster, daemon: str) -> None:
    command = daemon_command(cluster.record.java.command, daemon, cluster.places, cluster.settings)
    _spawn(cluster, daemon, daemon, command)


def _begin_format(cluster: Cluster) -> None:
    # What was half formatted, and blocks of what was there before, are refused by Hadoop.
    for folder in (cluster.places.names, cluster.places.data / "datanode"):
        shutil.rmtree(folder, ignore_errors=True)
    _begin_log(cluster.places.log(_FORMAT))
    command = format_command(cluster.record.java.command, cluster.places, cluster.settings)
    _spawn(cluster, _FORMAT, NAMENODE, command)


def _end_format(cluster: Cluster, deadline: float) -> None:
    if not cluster.record.processes[_FORMAT].wait(deadline - time.monotonic()):
        raise DeadlineError("the cluster is not ready in time: HDFS is still being formatted")
    if not list(cluster.places.names.glob("current/fsimage_*.md5")):
        raise cluster.ended(_FORMAT)
    cluster.places.formatted.touch()


def _spawn(cluster: Cluster, name: str, loads_as: str, command: Sequence[str]) -> None:
    record, places = cluster.record, cluster.places
    class_path = daemon_class_path(loads_as, places, record.settings, record.jars)
    environment = daemon_environment(os.environ, places, record.settings, record.java.home, class_path)
    process = spawn(command, environment, places.log(name), places.data)
    cluster.record = record.with_process(name, process)
    write_record(places, cluster.record)


def _label_node(cluster: Cluster) -> None:
    """Give the last node its label, where there is another one, and nobody asks who does it."""
    if cluster.settings.nodes < 2 or cluster.settings.kerberos:
        return
    ports, user = cluster.record.ports, f"user.name={getpass.getuser()}"
    label = {"nodeLabelInfo": [{"name": TRANSIENT_LABEL, "exclusivity": "false"}]}
    probe.ask(RESOURCEMANAGER, ports, f"/ws/v1/cluster/add-node-labels?{user}", label)
    path = f"/ws/v1/cluster/nodes/{cluster.nodes[-1]}:0/replace-labels?labels={TRANSIENT_LABEL}&{user}"
    probe.ask(RESOURCEMANAGER, ports, path, {})


def _running(places: Places, record: Record, settings: ClusterSettings) -> Cluster | None:
    """Return the cluster that runs, if any daemon of it does, and the rest can be added to it."""
    cluster = Cluster(places, record)
    if not any(map(cluster.is_running, cluster.daemons)):
        return None
    if record.settings != settings:
        raise ConfigError(
            f"a cluster with other settings runs at {places.home}: eps devcluster stop ends it, and --home chooses "
            "another place; without options, start starts again what has ended of it"
        )
    # Without an HDFS nothing is kept; the keys of a realm end with it.
    lasts = places.formatted.exists() and (not settings.kerberos or cluster.is_running(KDC))
    return cluster if lasts else None


def _check_data(places: Places, record: Record | None, settings: ClusterSettings) -> None:
    if record and places.formatted.exists() and record.settings.hadoop_version != settings.hadoop_version:
        raise ConfigError(
            f"{places.data} was written by Hadoop {record.settings.hadoop_version}, not {settings.hadoop_version}: "
            "remove it, or choose another place with --home"
        )


def _clean(places: Places, record: Record | None, say: Say) -> bool:
    """End what is left at a home, also of a start that was killed; return whether there was anything."""
    recorded = {process: name for name, process in record.processes.items() if process.is_alive()} if record else {}
    strays = _strays(places, record)
    if recorded or strays:
        say(f"stopping {len(recorded) + len(strays)} processes", False)
    _end_daemons(recorded, signs_off=RESOURCEMANAGER in recorded.values(), say=say)
    found = bool(recorded or strays)
    for process in _end_strays(places, record):
        say(f"a process ({process.pid}) {_KILLED}", False)
    # Of NodeManagers that could not tidy up themselves.
    containers = with_variable("LOCAL_DIRS", f"{places.data}/")
    kill_all(containers)
    if record is not None:
        write_record(places, replace(record, processes={}))
    return found or bool(containers)


def _end_daemons(daemons: Mapping[Process, str], *, signs_off: bool, say: Say) -> None:
    """End daemons, given with their names, NodeManagers first.

    These sign off at the ResourceManager, and wait for it for a quarter of an hour where it does not run.
    """
    nodes = [process for process, name in daemons.items() if node_number(name)]
    killed = end_all(nodes, GRACE_S if signs_off else _ALONE_GRACE_S)
    killed += end_all([process for process in daemons if process not in nodes], GRACE_S)
    for process in killed:
        say(f"{daemons[process]} ({process.pid}) {_KILLED}", False)


def _strays(places: Places, record: Record | None) -> list[Process]:
    """Return the processes of a home that nobody wrote down."""
    recorded = set(record.processes.values()) if record is not None else set()
    return [process for process in marked(mark_of(places)) if process not in recorded]


def _end_strays(places: Places, record: Record | None) -> list[Process]:
    """End the processes of a home that nobody wrote down; return those that had to be killed."""
    killed: list[Process] = []
    # Again until nothing is found: a starter that was killed may have left a shell that starts one more.
    while strays := _strays(places, record):
        killed += end_all(strays, GRACE_S)
    return killed


def held(places: Places, say: Say) -> AbstractContextManager[None]:
    """Give the lock of a home, which one command has at a time; raises as :func:`~.locks.locked`."""

    def waits() -> None:
        say(f"another command is at work at {places.home}: waiting for it", False)

    return locked(places.lock, _LOCK_TIMEOUT_S, waits, "another command of eps devcluster")


def _begin_log(path: Path) -> None:
    """Put the log of the start before aside."""
    if path.exists():
        os.replace(path, path.with_name(f"{path.name}.1"))
