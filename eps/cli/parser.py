"""The parser of ``eps``: commands, flags and help texts.

The flags of ``eps run`` are the settings in :data:`~eps.spec.job_spec.SETTINGS`, with their help texts.
"""

from __future__ import annotations

import argparse
from typing import Any

from eps._version import __version__
from eps.cli.arguments import CommandParser, count, given_name, help_format
from eps.cli.exits import EXIT_CODES
from eps.cluster.devcluster.settings import HADOOP_VERSION, QUEUES, TRIED_VERSIONS, ClusterSettings
from eps.spec.job_spec import SETTINGS
from eps.spec.setting import Setting

_DESCRIPTION = """\
Train models on workers and servers whose number changes while training runs.

Under BSP the trained model is bit-identical, whichever workers and servers join or leave.
Jobs are kept by name under EPS_HOME (default ~/.eps).
"""

_RUN_DESCRIPTION = """\
Train a model and show progress.  Ctrl-C ends the job; with --detach it runs in the background.
Flags override JOB.toml, which overrides the defaults.
"""

_RUN_EXAMPLES = """\
examples:
  eps run --data sklearn:digits --model softmax --test 0.2
  eps run --name a9a --data a9a.gz --test a9a.t.gz --at 40:workers=+2,servers=-1 --report a9a.json
  eps run --name a9a --data a9a.gz --reliable 2 --transient 6   # on containers that can be taken away
"""

_SUBMIT_DESCRIPTION = """\
Submit a job to YARN (the cluster of HADOOP_CONF_DIR) and return once its application is accepted.
"""

_SUBMIT_EXAMPLES = """\
examples:
  eps submit job.toml --memory-mb 2048,server=4096 --python env.tar.gz
"""

#: Arguments that ``eps run --help`` and ``eps submit --help`` show.
_COMMON = (
    "model", "data", "labels", "test", "normalize", "splits", "iterations", "batch_size", "optimizer",
    "learning_rate", "l1", "l2", "seed", "workers", "servers", "at", "checkpoint_every", "name", "report", "export",
)  # fmt: skip
_COMMON_OF_RUN = (*_COMMON, "on", "detach")
_COMMON_OF_SUBMIT = (*_COMMON, "queue", "python", "memory_mb")

_RESUME_DESCRIPTION = """\
Resume a job that was killed, failed, or ran on a machine that crashed.

Training continues from the latest checkpoint (see --checkpoint-every of eps run).
If that is damaged, eps warns and takes the one before.  Without a checkpoint the job
restarts from its seed.  Under BSP the model is bit-identical to that of a job that
never stopped, with any number of workers and servers.  Logs are kept.
Report and model go to --report and --export of eps run, and to EPS_HOME/jobs/NAME.
"""

_PRUNE_DESCRIPTION = """\
Remove the directories of jobs that have ended: report, model, checkpoints and logs.
Prepared data in EPS_HOME/cache that no other job uses is removed, too, an hour after
its last use.

It keeps
  - jobs that stopped early, since eps resume can continue them (remove: --resumable)
  - jobs and sweeps on YARN whose results were not fetched (eps fetch downloads those of
    a job; remove: --resumable)
  - jobs with damaged files (remove: --state unreadable or --resumable)
  - jobs that ended less than a minute ago (--older-than)

If a job ran on YARN, its files on the cluster are removed, too, except a folder named
by --checkpoint-dir.  If the job's record is damaged, EPS cannot find these files; a
warning says so.  Export the models of a sweep (hscheduler results) before you prune.

Sweeps on YARN (hscheduler sweep --on yarn) have names that begin with sweeps/.  They
are included with --all, or with a PREFIX that begins with sweeps/.
"""

_DEVCLUSTER_DESCRIPTION = """\
Run a real Hadoop on this host: NameNode, DataNode, ResourceManager and NodeManagers,
each in its own process.  It needs Linux, a JDK 17 and about 1.5 GB of memory.  Its jars
are downloaded once from Maven Central (about 100 MB).  Files in HDFS survive a restart.
"""

_DEVCLUSTER_START_DESCRIPTION = """\
Start the cluster and print the shell command that sets HADOOP_CONF_DIR.  If the start
fails, the daemons that it started are stopped.  If the cluster already runs, daemons that
have exited are restarted with the same ports, data and options; jobs continue.

Daemons listen on free ports, NodeManagers on 127.0.0.11 and up.  The queues default and
batch have half of the cluster each; each may use all of it while the other is idle.
The last node has the label "transient".

With --kerberos the cluster has its own realm, EPS.DEV, and two more variables are printed:
the realm's configuration and the keytab of this host's user.  EPS logs in by itself.
Hadoop's commands need a ticket: kinit -k -t $KRB5_CLIENT_KTNAME $USER.  The nodes have no
label, and logs of containers stay in the folders of the nodes.
"""

#: Why ``eps resume`` refuses a flag that it does not have.
_RESUME_KEEPS = """\
a resumed job keeps the settings that it was started with, or its model would be another; eps resume can change
its size (--workers, --servers), its interpreter on YARN (--python) and where its results go (--report, --export)"""

#: Explanation of the phases of a change; the key says whether the change adds members.
_PHASES = {
    True: """

The command prints each phase: queued (waits for earlier changes), proposed (new processes start), prepared (they have
registered), lists-updated (all members know their addresses), copied (they have the data they will hold),
committed (can no longer be aborted), switched (all members use them) and released (the former owners have dropped
the data).""",
    False: """

The command prints each phase: queued (waits for earlier changes), proposed (planned), prepared and lists-updated
(nothing to wait for), copied (the remaining members have the data they will hold), committed (can no longer be
aborted), switched (all members work without the removed ones) and released (their processes have exited).""",
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of ``eps``; its result has ``command``, which is ``module:function``."""
    parser = CommandParser(
        "eps",
        description=_DESCRIPTION,
        epilog=EXIT_CODES,
        formatter_class=help_format,
    )
    parser.add_argument("--version", action="version", version=f"eps {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    # In the order of the help: start, look, resize, end, resume, results, tidy up.
    _add_run(commands)
    status = _command(commands, "status", "show a job", "inspect:status", "eps status a9a", "eps status a9a --json")
    status.add_argument("name", metavar="NAME")
    status.add_argument("--json", action="store_true", help="print JSON")
    _add_changes(commands)
    _add_logs(commands)
    kill = _command(commands, "kill", "stop a job; eps resume can continue it", "change:kill", "eps kill a9a")
    kill.add_argument("name", metavar="NAME")
    _add_resume(commands)
    _add_fetch(commands)
    _add_jobs(commands)
    _add_predict(commands)
    _add_devcluster(commands)
    return parser


def _command(commands: Any, name: str, help_text: str, target: str, *examples: str, text: str = "") -> Any:
    shown = "\n".join(["examples:", *(f"  {line}" for line in examples)])
    parser = commands.add_parser(
        name,
        help=help_text,
        description=text or help_text[:1].upper() + help_text[1:] + ".",
        epilog=shown,
        formatter_class=help_format,
    )
    parser.set_defaults(command=target)
    return parser


def _add_run(commands: Any) -> None:
    parser = _training_command(commands, "run", "train a model", _RUN_DESCRIPTION, _RUN_EXAMPLES)
    parser.set_defaults(command="run:run")
    parser.add_argument("--detach", action="store_true", help="return when the job trains; it runs in the background")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    parser.add_argument("--verbose", action="store_true", help="also print the phases of changes of size")
    parser.add_argument("--web", type=int, metavar="PORT", help="serve the job's page; 0 picks a free port")
    parser.show_only(_COMMON_OF_RUN)
    parser = _training_command(commands, "submit", "submit a job to YARN", _SUBMIT_DESCRIPTION, _SUBMIT_EXAMPLES)
    parser.set_defaults(command="run:submit")
    parser.show_only(_COMMON_OF_SUBMIT)


def _training_command(commands: Any, name: str, help_text: str, text: str, examples: str) -> CommandParser:
    """Return a command with a flag for each setting of a job."""
    parser: CommandParser = commands.add_parser(
        name,
        help=help_text,
        usage=f"eps {name} [JOB.toml] [--FLAG VALUE ...]",
        description=text,
        epilog=examples,
        formatter_class=help_format,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("job_file", nargs="?", metavar="JOB.toml", help="file with settings; flags override them")
    parser.add_argument("--name", type=given_name, metavar="NAME", help="name of the job (default: MODEL-N)")
    parser.add_argument(
        "--anew",
        action="store_true",
        help="replace a stopped job of the same name, and remove its checkpoints",
    )
    parser.add_argument("--report", metavar="PATH", help="write the report here when the job ends, as JSON")
    parser.add_argument("--export", metavar="PATH", help="write the trained model here, as .npz")
    groups: dict[str, Any] = {}
    for setting in SETTINGS.values():
        if setting.group not in groups:
            groups[setting.group] = parser.add_argument_group(setting.group)
        _add_flag(groups[setting.group], setting)
    return parser


def _add_resume(commands: Any) -> None:
    parser = _command(
        commands,
        "resume",
        "continue a stopped job from its latest checkpoint",
        "run:resume",
        "eps resume a9a",
        "eps resume a9a --workers 5 --servers 1 --detach",
        text=_RESUME_DESCRIPTION,
    )
    parser.why_unknown = _RESUME_KEEPS
    parser.add_argument("name", metavar="NAME", help="the stopped job")
    parser.add_argument("--workers", type=int, metavar="N", help="workers at the start (default: as before)")
    parser.add_argument("--servers", type=int, metavar="N", help="servers at the start (default: as before)")
    parser.add_argument(
        "--python", default="", metavar="PATH", help="yarn: interpreter or archive, as in eps run (default: as before)"
    )
    where = "(default: as before)"
    parser.add_argument("--report", default="", metavar="PATH", help=f"write the report here, as JSON {where}")
    parser.add_argument("--export", default="", metavar="PATH", help=f"write the trained model here, as .npz {where}")
    parser.add_argument("--detach", action="store_true", help="return when the job trains; it runs in the background")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    parser.add_argument("--verbose", action="store_true", help="also print the phases of changes of size")


def _add_flag(group: Any, setting: Setting) -> None:
    flag, default = f"--{setting.name.replace('_', '-')}", setting.default
    seconds = setting.name.endswith("_s")
    help_text = setting.help.replace("%", "%%")
    if isinstance(default, bool):
        shown = f"{help_text} (default {'yes' if default else 'no'})"
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=shown)
    elif isinstance(default, tuple):
        group.add_argument(flag, action="append", metavar=setting.metavar, help=f"{help_text}; may be repeated")
    else:
        kind = {int: ("N", int), float: ("X", float)}.get(type(default), (setting.metavar, str))
        shown = f"{help_text} (default {default})" if default not in ("", 0, -1) else help_text
        flags = (flag.removesuffix("-s"), flag) if seconds else (flag,)
        group.add_argument(
            *flags, dest=setting.name, metavar="SECONDS" if seconds else kind[0], type=kind[1], help=shown
        )


def _add_fetch(commands: Any) -> None:
    fetch = _command(
        commands,
        "fetch",
        "download the results of a job on YARN that has ended",
        "inspect:fetch",
        "eps fetch a9a",
        text="Download report and model of a job on YARN that has ended to EPS_HOME/jobs/NAME, and to --report and "
        "--export of eps submit.",
    )
    fetch.add_argument("name", metavar="NAME")


def _add_logs(commands: Any) -> None:
    logs = _command(
        commands,
        "logs",
        "show the logs of a job",
        "inspect:logs",
        "eps logs a9a",
        "eps logs a9a worker-2 --follow",
    )
    logs.add_argument("name", metavar="NAME")
    logs.add_argument(
        "member",
        metavar="MEMBER",
        nargs="?",
        default="",
        help="worker-N, server-N, supervisor or master (on YARN all its attempts; master-N is attempt N alone)",
    )
    logs.add_argument("--follow", action="store_true", help="print new lines until the job has ended")


def _add_jobs(commands: Any) -> None:
    listing = _command(
        commands,
        "list",
        "show jobs, newest first",
        "jobs:list_all",
        "eps list",
        "eps list digits- --state failed,killed",
        "eps list --last 20",
    )
    listing.add_argument("--last", type=count, default=0, metavar="N", help="only the N newest")
    listing.add_argument("--json", action="store_true", help="print JSON")
    prune = _command(
        commands,
        "prune",
        "remove the files of jobs that have ended",
        "prune:prune",
        "eps prune digits- --dry-run",
        "eps prune digits-trial- --state failed,killed --resumable",
        "eps prune --all --older-than 7d",
        "eps prune sweeps/ --dry-run",
        text=_PRUNE_DESCRIPTION,
    )
    prune.add_argument("--all", action="store_true", help="all jobs and sweeps, instead of PREFIX")
    prune.add_argument("--dry-run", action="store_true", help="print what would be removed; nothing happens")
    prune.add_argument(
        "--older-than", default="1m", metavar="AGE", help="only if unchanged for so long: 90s, 2h, 7d; default: 1m"
    )
    prune.add_argument(
        "--resumable",
        action="store_true",
        help="also jobs that eps resume could continue, and jobs and sweeps whose results were not fetched",
    )
    for each in (listing, prune):
        each.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="only names that begin with PREFIX")
        each.add_argument(
            "--state",
            type=lambda text: text.split(","),
            default=[],
            metavar="STATE,...",
            help="only jobs in these states: running, ended, finished, killed, failed, unreadable",
        )


def _add_changes(commands: Any) -> None:
    scale = _command(
        commands,
        "scale",
        "add and remove workers and servers, or containers, in one change",
        "change:change",
        "eps scale a9a workers=+2 servers=-1",
        "eps scale a9a workers=-3 --dry-run",
        "eps scale a9a transient=+8",
        "eps scale a9a containers=-container-3",
        text="Change the number of workers and servers of a running job by one plan, while it trains; of a job with\n"
        "--reliable and --transient, the number of its containers, or remove those with these names.\n"
        f"Members with the highest numbers are removed first.{_PHASES[True]}",
    )
    scale.set_defaults(operation="scale")
    scale.add_argument("name", metavar="NAME")
    scale.add_argument(
        "members",
        metavar="ROLE=+N|-N",
        nargs="+",
        help="workers=+2, servers=-1, or both; of a job with --reliable: transient=+2, reliable=-1, or both; or "
        "containers=-container-2,container-3",
    )
    _add_change_flags(scale)
    for adds in (True, False):
        for role in ("workers", "servers"):
            _add_change(commands, role, adds)
    cancel = _command(
        commands,
        "cancel",
        "abort a change that is not committed yet",
        "change:cancel",
        "eps cancel a9a",
        "eps cancel a9a 3",
    )
    cancel.add_argument("name", metavar="NAME")
    cancel.add_argument("plan", metavar="PLAN", nargs="?", type=int, help="number of the plan; default: the next one")


def _add_change(commands: Any, role: str, adds: bool) -> None:
    operation = f"{'add' if adds else 'remove'}-{role}"
    limit = "splits" if role == "workers" else "partitions"
    text = (
        f"Add {role} to a running job while it trains.  A job has at most as many {role} as {limit}."
        if adds
        else f"Remove {role} from a running job while it trains.  Give how many (those with the highest numbers go)\n"
        f"or their names.  At least one must remain."
    )
    text += _PHASES[adds]
    examples = [f"eps {operation} a9a 2", f"eps {operation} a9a 1 --dry-run"]
    if not adds:
        examples.append(f"eps {operation} a9a {role[:-1]}-1,{role[:-1]}-2")
    help_text = f"{'add' if adds else 'remove'} {role} {'to' if adds else 'from'} a running job"
    parser = _command(commands, operation, help_text, "change:change", *examples, text=text)
    parser.set_defaults(operation=operation)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("members", metavar="N" if adds else "N|NAMES", nargs="?" if adds else None, default="1")
    _add_change_flags(parser)


def _add_change_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print what would move; nothing happens")
    parser.add_argument(
        "--no-wait",
        action="store_true",
        help="print the number of the plan and return at once; refused while the job starts",
    )
    parser.add_argument(
        "--request-id", default="", metavar="ID", help="a repeated call with this ID has no effect (default: new ID)"
    )


def _add_predict(commands: Any) -> None:
    predict = _command(
        commands,
        "predict",
        "apply a trained model to new rows",
        "predict:predict",
        "eps predict --model a9a.npz --data a9a.t.gz --out classes.txt",
        "eps predict --model digits.npz --data new.csv",
        text="Apply a trained model to new rows.  Prints one prediction a line, and metrics if the labels are known.",
    )
    predict.add_argument("--model", required=True, metavar="FILE", help="trained model, from eps run --export")
    predict.add_argument("--data", required=True, metavar="FILE", help="rows, in the format of the training data")
    predict.add_argument("--labels", default="", metavar="FILE", help="labels, if they are not in the data")
    predict.add_argument(
        "--format", default="", metavar="NAME", help="format of the data, if not that of the training data"
    )
    predict.add_argument("--out", default="", metavar="FILE", help="write the predictions to this file")
    predict.add_argument("--json", action="store_true", help="print the metrics as JSON")
    predict.add_argument(
        "--code", default="", metavar="path.py:Class", help="your own model class, if its file has moved since training"
    )


def _add_devcluster(commands: Any) -> None:
    text = "start and stop a real Hadoop on this host"
    parser = _command(commands, "devcluster", text, "", text=_DEVCLUSTER_DESCRIPTION)
    parser.epilog = 'example:\n  eval "$(eps devcluster start)"'
    inner = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=type(parser))
    start = _command(
        inner,
        "start",
        "start the cluster",
        "devcluster:start",
        'eval "$(eps devcluster start)"',
        "eps devcluster start --nodes 5 --memory 2048 --vcores 2 --home /tmp/hadoop",
        text=_DEVCLUSTER_START_DESCRIPTION,
    )
    stop = _command(inner, "stop", "stop the cluster; HDFS keeps its files", "devcluster:stop", "eps devcluster stop")
    words = ("eps devcluster status", "eps devcluster status --json")
    status = _command(inner, "status", "show the daemons", "devcluster:status", *words)
    status.add_argument("--json", action="store_true", help="print JSON")
    for one in (start, stop, status):
        one.add_argument(
            "--home", default="", metavar="DIR", help="the cluster's directory (default EPS_HOME/devcluster)"
        )
    defaults = ClusterSettings()
    for name, default, text in (
        ("nodes", defaults.nodes, "NodeManagers"),
        ("memory", defaults.memory_mb, "memory that each NodeManager offers, in MB; may be more than the host has"),
        ("vcores", defaults.vcores, "virtual cores that each NodeManager offers; may be more than the host has"),
    ):
        start.add_argument(f"--{name}", type=int, metavar="N", help=f"{text} (default {default})")
    start.add_argument(
        "--hadoop-version",
        metavar="X.Y.Z",
        help=f"version of Hadoop, 3.3.0 or later; tested: {', '.join(TRIED_VERSIONS)} (default {HADOOP_VERSION})",
    )
    for name, metavar, text in (
        ("disable-preemption", "QUEUE", f"queue that Hadoop does not preempt ({', '.join(QUEUES)})"),
        ("policy", "CLASS", "scheduling monitor of the ResourceManager that runs before Hadoop's own preemption"),
        ("rm-classpath", "PATH", "jar or directory put first on the ResourceManager's class path"),
        ("property", "KEY=VALUE", "setting of Hadoop"),
    ):
        start.add_argument(f"--{name}", action="append", metavar=metavar, help=f"{text}; may be repeated")
    start.add_argument(
        "--kerberos",
        action="store_true",
        default=None,
        help="clients and daemons authenticate with Kerberos, in the cluster's own realm (default: no)",
    )
    start.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="time in which the cluster must be ready, after the download of the jars (default 120)",
    )
