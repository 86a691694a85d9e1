"""``eps devcluster``: a real Hadoop on this host."""

from __future__ import annotations

import argparse
import getpass
import json
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from eps.cli.exits import EXIT_FAILED, EXIT_OK
from eps.cluster.devcluster.lifecycle import (
    ENDED,
    RUNNING,
    find_cluster,
    processes,
    read_cluster,
    start_cluster,
    status_of,
    stop_cluster,
)
from eps.cluster.devcluster.settings import ClusterSettings
from eps.errors import ConfigError
from eps.system.home import eps_home


def start(args: argparse.Namespace) -> int:
    """Start a cluster; print the shell commands that set its variables."""
    home = _home(args)
    settings = _settings(args, home)
    if not args.timeout > 0:
        raise ConfigError(f"timeout is {args.timeout:g}, but must be more than 0 seconds")
    with _terminated_is_interrupted():
        cluster = start_cluster(home, settings, _say, args.timeout)
    for name, value in cluster.variables().items():
        print(f"export {name}={shlex.quote(value)}")
    kinit = f"kinit -k -t $KRB5_CLIENT_KTNAME {getpass.getuser()}"
    ticket = f"; they need a ticket: {kinit} (Debian: krb5-user)" if settings.kerberos else ""
    _say(f"HDFS {cluster.hdfs_url}, WebHDFS {cluster.webhdfs_url}, ResourceManager {cluster.rm_url}")
    _say(f"Hadoop's commands: {cluster.bin}{ticket}")
    return EXIT_OK


def _settings(args: argparse.Namespace, home: Path) -> ClusterSettings:
    """Return the settings; a missing flag keeps that of the cluster that runs at ``home``, or is the default."""
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
    before = read_cluster(home) if processes(home) else None
    given = {name: value for name, value in asked.items() if value is not None}
    return replace(before.settings if before is not None else ClusterSettings(), **given)


def stop(args: argparse.Namespace) -> int:
    """Stop a cluster."""
    print("stopped" if stop_cluster(_home(args), _say) else f"nothing runs at {_home(args)}")
    return EXIT_OK


def status(args: argparse.Namespace) -> int:
    """Show the daemons of a cluster and how to restart them; fail unless all of them work."""
    cluster = find_cluster(_home(args))
    found = status_of(cluster)
    works = all(one.state == RUNNING for one in found)
    if args.json:
        print(json.dumps({"conf_dir": str(cluster.conf_dir), "daemons": [asdict(one) for one in found]}, indent=1))
    else:
        print(f"{'daemon':<16} {'state':<14} {'pid':>7}  {'address':<21} log")
        for one in found:
            print(f"{one.name:<16} {one.state:<14} {one.pid or '-':>7}  {one.address:<21} {one.log}")
        home = f" --home {shlex.quote(args.home)}" if args.home else ""
        if all(one.state == ENDED for one in found):
            print(f"\nnothing runs; start it with: eps devcluster start{home}")
        elif not works:
            print(
                f"\neps devcluster start{home} restarts daemons that have exited; if one still does not answer: "
                f"eps devcluster stop{home}, then start"
            )
    return EXIT_OK if works else EXIT_FAILED


@contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _home(args: argparse.Namespace) -> Path:
    return Path(args.home).expanduser().absolute() if args.home else eps_home() / "devcluster"


def _property(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"property is {text!r}, but must be KEY=VALUE")
    return key, value


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
