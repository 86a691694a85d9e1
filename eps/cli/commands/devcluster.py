"""``eps devcluster``: a real Hadoop on this host."""

from __future__ import annotations

import argparse
import getpass
import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from eps.cli.exits import EXIT_FAILED, EXIT_OK
from eps.cluster.devcluster.cluster import ENDED, RUNNING, SILENT, Cluster, DaemonStatus, default_home
from eps.cluster.devcluster.decommission import decommission, recommission
from eps.cluster.devcluster.lifecycle import restart_daemons, running_settings, start_cluster, stop_cluster
from eps.cluster.devcluster.settings import KDC, ClusterSettings
from eps.errors import ConfigError

#: Where steps cannot be taken back, one of them is shown this often.
STEP_EVERY_S = 10.0
_ERASE = "\r\x1b[K"


def start(args: argparse.Namespace) -> int:
    """Start a cluster, and print the variables that lead to it."""
    home = _home(args)
    settings = _settings(args, home)
    timeout_s = _timeout_s(args)
    with _Progress() as say, _terminated_is_interrupted():
        cluster = start_cluster(home, settings, say, timeout_s)
    for name, value in cluster.variables().items():
        print(f"export {name}={shlex.quote(value)}")
    kinit = f"kinit -k -t $KRB5_CLIENT_KTNAME {getpass.getuser()}"
    ticket = f"; they want a ticket: {kinit} (Debian: krb5-user)" if settings.kerberos else ""
    print(
        f"HDFS {cluster.hdfs_url}, WebHDFS {cluster.webhdfs_url}, ResourceManager {cluster.rm_url}\n"
        f"Hadoop's commands: {cluster.places.bin}{ticket}",
        file=sys.stderr,
    )
    return EXIT_OK


def _settings(args: argparse.Namespace, home: Path) -> ClusterSettings:
    """Return what is asked for; what is not given is as of the cluster that runs at ``home``, else the default."""
    asked = {
        "nodes": args.nodes,
        "memory_mb": args.memory,
        "vcores": args.vcores,
        "hadoop_version": args.hadoop_version,
        "no_preemption": args.disable_preemption and tuple(args.disable_preemption),
        "policies": args.policy and tuple(args.policy),
        "rm_class_path": args.rm_classpath and tuple(str(Path(entry).absolute()) for entry in args.rm_classpath),
        "kerberos": args.kerberos,
        "properties": args.property and tuple(_property(text) for text in args.property),
    }
    given = {name: value for name, value in asked.items() if value is not None}
    return replace(running_settings(home) or ClusterSettings(), **given)


def stop(args: argparse.Namespace) -> int:
    """Stop a cluster."""
    with _Progress() as say:
        stopped = stop_cluster(_home(args), say)
    print("stopped" if stopped else f"nothing runs at {_home(args)}")
    return EXIT_OK


def restart(args: argparse.Namespace) -> int:
    """Start daemons of a cluster again."""
    timeout_s = _timeout_s(args)
    with _Progress() as say, _terminated_is_interrupted():
        restart_daemons(_home(args), args.daemon, say, timeout_s)
    return EXIT_OK


def let_go(args: argparse.Namespace) -> int:
    """Let a node of a cluster go with notice."""
    with _Progress() as say, _terminated_is_interrupted():
        host = decommission(_home(args), args.node, args.within, say)
    when = f"within {args.within} s" if args.within else "at once"
    print(f"node {host} is decommissioned {when}: eps devcluster recommission{_home_words(args)} {host} takes it back")
    return EXIT_OK


def take_back(args: argparse.Namespace) -> int:
    """Take a node of a cluster back."""
    timeout_s = _timeout_s(args)
    with _Progress() as say, _terminated_is_interrupted():
        host = recommission(_home(args), args.node, say, timeout_s)
    print(f"node {host} is there")
    return EXIT_OK


def status(args: argparse.Namespace) -> int:
    """Show a cluster's daemons, and how to mend it; succeeds where all of them work."""
    cluster = Cluster.at(_home(args))
    found = cluster.status()
    if args.json:
        print(json.dumps({"conf_dir": str(cluster.conf_dir), "daemons": [asdict(one) for one in found]}, indent=1))
    else:
        print(f"{'daemon':<16} {'state':<14} {'pid':>7}  {'address':<21} log")
        for one in found:
            print(f"{one.name:<16} {one.state:<14} {one.pid or '-':>7}  {one.address:<21} {one.log}")
        if advice := _advice(found, cluster, _home_words(args)):
            print(f"\n{advice}")
    works = all(one.state == RUNNING or cluster.is_excluded(one.name) for one in found)
    return EXIT_OK if works else EXIT_FAILED


def _advice(found: Sequence[DaemonStatus], cluster: Cluster, home: str) -> str:
    """Return what to run where daemons do not work, or were let go; empty where all work.

    Parameters
    ----------
    found : sequence of DaemonStatus
    cluster : Cluster
    home : str
        The words that say where it is, a blank before each.
    """
    excluded = [one.name for one in found if cluster.is_excluded(one.name)]
    ended = [one.name for one in found if one.state == ENDED and one.name not in excluded]
    silent = [one.name for one in found if one.state == SILENT and one.name not in excluded]
    if all(one.state == ENDED for one in found):
        options = "" if cluster.settings == ClusterSettings() else ", with the options that it was started with"
        return f"nothing runs: eps devcluster start{home}{options}"
    if KDC in ended + silent:
        return f"{KDC} does not work, and nothing does without its keys: eps devcluster stop{home}, and start it again"
    lines = [
        f"{', '.join(names)} {one if len(names) == 1 else several}: eps devcluster restart{home} {' '.join(names)}"
        for names, one, several in (
            (ended, "has ended", "have ended"),
            (silent, "hangs, or has just been started", "hang, or have just been started"),
        )
        if names
    ]
    lines += [f"{name} is decommissioned: eps devcluster recommission{home} {name}" for name in excluded]
    return "\n".join(lines)


def _home_words(args: argparse.Namespace) -> str:
    """Return the words that say where a cluster is, a blank before each."""
    return f" --home {shlex.quote(args.home)}" if args.home else ""


def _timeout_s(args: argparse.Namespace) -> float:
    timeout_s = float(args.timeout)
    if not timeout_s > 0:
        raise ConfigError(f"timeout is {timeout_s:g}, but must be more than 0 seconds")
    return timeout_s


@contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """Let SIGTERM tidy up as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _home(args: argparse.Namespace) -> Path:
    return Path(args.home).expanduser().absolute() if args.home else default_home()


def _property(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"property is {text!r}, but must be KEY=VALUE")
    return key, value


class _Progress:
    """Says on standard error how it goes.

    On a terminal the steps on the way take one line; elsewhere there is one now and then.
    """

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._open = False
        self._said_s = time.monotonic()

    def __call__(self, text: str, step: bool) -> None:
        """Say ``text``; a step may be left out."""
        now_s = time.monotonic()
        if step and not self._terminal:
            if now_s - self._said_s < STEP_EVERY_S:
                return
            step = False
        self._said_s = now_s
        print(f"{_ERASE if self._open else ''}{text}", end="" if step else "\n", file=sys.stderr, flush=True)
        self._open = step

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            print(_ERASE, end="", file=sys.stderr, flush=True)
