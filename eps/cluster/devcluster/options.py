"""The parser of ``eps devcluster``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eps.cluster.devcluster.settings import HADOOP_VERSION, QUEUES, TRIED_VERSIONS, WITHIN_S, ClusterSettings

_DESCRIPTION = """\
A real Hadoop on this host: NameNode, DataNode, ResourceManager and NodeManagers, each
a process of its own.  Its jars come from Maven Central (once, about 100 MB); it needs
Linux and a JDK 17, and about 1.5 GB of memory.  It keeps what HDFS holds when it is
stopped and started again.
"""
_START = """\
Start it, and print the variable that leads to it.  What fails leaves nothing running that
did not run before.  Where it runs already it is left as it is, and jobs with it; what has
ended of it is started again with the same ports, data and options, which need not be given
again.  Options are as said below where it does not run.

Ports are free ones; NodeManagers are at 127.0.0.11 and up.  There are two queues, default
and batch, half of the cluster each, and each may have all of it while the other does not
ask; the last node has the label "transient".

With --kerberos it has a realm of its own, EPS.DEV, and two more variables are printed: the
settings of the realm, and the keytab by which programs log in as this host's user.  EPS does
so by itself; Hadoop's commands want a ticket: kinit -k -t $KRB5_CLIENT_KTNAME $USER.  Its
nodes have no label, and what containers wrote stays in the folders of the nodes.  Where its
realm has ended, everything is started anew: all keys end with it.
"""
_RESTART = """\
Start daemons of a cluster again, each ended first where it runs, with the same ports and
data; the others go on, and jobs with them as far as they outlive it.  The containers of a
NodeManager are lost with it.  eps devcluster status lists the daemons.
"""
_DECOMMISSION = """\
Let a node go, as an administrator does who needs the machine: YARN warns jobs of the
containers that they have there, EPS drains them, and what is left at the deadline is
killed.  No new ones begin there, and in the end YARN has the NodeManager end itself.
"""
_DEFAULTS = ClusterSettings()

#: Adds a command to a parser: parser, name, help, target, examples.
AddCommand = Callable[..., Any]


def add_devcluster(commands: Any, add: AddCommand) -> None:
    """Add ``eps devcluster`` with its commands."""
    parser = add(commands, "devcluster", "start and stop a real Hadoop on this host", "", text=_DESCRIPTION)
    parser.epilog = 'example:\n  eval "$(eps devcluster start)"'
    inner = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=type(parser))
    _add_start(inner, add)
    stop = add(inner, "stop", "stop it, and keep what HDFS holds", "devcluster:stop", "eps devcluster stop")
    status = add(
        inner,
        "status",
        "show its daemons",
        "devcluster:status",
        "eps devcluster status",
        "eps devcluster status --json",
    )
    status.add_argument("--json", action="store_true", help="print JSON")
    restart = add(
        inner,
        "restart",
        "start daemons of it again",
        "devcluster:restart",
        "eps devcluster restart nodemanager-2",
        "eps devcluster restart namenode datanode",
        text=_RESTART,
    )
    restart.add_argument(
        "daemon", nargs="+", metavar="DAEMON", help="namenode, datanode, resourcemanager, or nodemanager-1 and up"
    )
    let_go = add(
        inner,
        "decommission",
        "let a node go, with notice to what runs there",
        "devcluster:let_go",
        "eps devcluster decommission nodemanager-2 --within 60",
        text=_DECOMMISSION,
    )
    take_back = add(
        inner,
        "recommission",
        "take a node back that was let go",
        "devcluster:take_back",
        "eps devcluster recommission nodemanager-2",
    )
    for one in (let_go, take_back):
        one.add_argument("node", metavar="NODE", help="nodemanager-1 and up, or its host: 127.0.0.11 and up")
    let_go.add_argument(
        "--within",
        type=int,
        default=WITHIN_S,
        metavar="S",
        help=f"seconds that its containers have; with 0 they are not warned (default {WITHIN_S})",
    )
    for one in (stop, status, restart, let_go, take_back):
        _add_home(one)
    _add_timeout(restart, "to work again")
    _add_timeout(take_back, "to work again")


def _add_home(parser: Any) -> None:
    parser.add_argument("--home", default="", metavar="DIR", help="where it lives (default EPS_HOME/devcluster)")


def _add_start(commands: Any, add: AddCommand) -> None:
    start = add(
        commands,
        "start",
        "start it",
        "devcluster:start",
        'eval "$(eps devcluster start)"',
        "eps devcluster start --nodes 5 --memory 2048 --vcores 2 --home /tmp/hadoop",
        text=_START,
    )
    _add_home(start)
    numbers = (
        ("nodes", _DEFAULTS.nodes, "NodeManagers"),
        ("memory", _DEFAULTS.memory_mb, "memory that each offers, in MB; may be more than the host has"),
        ("vcores", _DEFAULTS.vcores, "virtual cores that each offers; may be more than the host has"),
    )
    for name, default, text in numbers:
        start.add_argument(f"--{name}", type=int, metavar="N", help=f"{text} (default {default})")
    start.add_argument(
        "--hadoop-version",
        metavar="X.Y.Z",
        help=f"of Hadoop 3, from 3.3.0 on; {', '.join(TRIED_VERSIONS)} were tried (default {HADOOP_VERSION})",
    )
    repeated = (
        ("disable-preemption", "QUEUE", f"Hadoop's own preemption takes nothing from this queue ({', '.join(QUEUES)})"),
        ("policy", "CLASS", "a scheduling monitor of the ResourceManager, asked before Hadoop's own preemption"),
        ("rm-classpath", "PATH", "a jar or directory that the ResourceManager's class path begins with"),
        ("property", "KEY=VALUE", "a setting of Hadoop"),
    )
    for name, metavar, text in repeated:
        start.add_argument(f"--{name}", action="append", metavar=metavar, help=f"{text}; may be repeated")
    start.add_argument(
        "--kerberos",
        action="store_true",
        default=None,
        help="everybody proves who they are, in a realm of its own (default: not)",
    )
    _add_timeout(start, "to be ready, once the jars are there")


def _add_timeout(parser: Any, what: str) -> None:
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help=f"{what} (default 120)")
