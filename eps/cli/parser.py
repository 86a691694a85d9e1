"""The parser of the command line: which commands and flags there are, with their help.

Flags of ``eps run`` are the settings of :data:`~eps.spec.job_spec.SETTINGS`, with their help texts.
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

Under BSP the trained model is the same to the last bit, whatever joins or leaves.
Jobs are found by name under EPS_HOME (default ~/.eps).
"""

_RUN_DESCRIPTION = """\
Train a model and show progress.  The job ends with this command (Ctrl-C), unless --detach.
Flags override JOB.toml, which overrides the defaults.
"""

_RUN_EXAMPLES = """\
examples:
  eps run --data sklearn:digits --model softmax --test 0.2
  eps run --name a9a --data a9a.gz --test a9a.t.gz --at 40:workers=+2,servers=-1 --report a9a.json
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
Start a job again that was killed, failed, or was on a machine that went down.

It goes on from its latest checkpoint that is whole (see --checkpoint-every of eps run);
a damaged one is named and the one before it is taken.  Without any it starts from its
seed.  Under BSP the model is the one of a job that never stopped, to the last bit, with
whatever number of workers and servers it goes on.  Logs and journal are kept.
Report and model go where the job was asked to bring them (--report, --export of eps run),
and are in its folder, EPS_HOME/jobs/NAME.
"""

_PRUNE_DESCRIPTION = """\
Remove the directories of jobs that have ended: report, model, checkpoints and logs.

Those that could be resumed are kept, which are all that stopped before their end,
those on YARN whose results were not fetched (eps fetch NAME does), those
with damaged files (--state unreadable or --resumable removes them), and those that
ended within a minute, whose report somebody may be about to read.  A model that
hscheduler results is to export has to be exported before.  With a job on YARN goes what
it has in the cluster's file system, but not a --checkpoint-dir that was named, nor what
its files do not lead to any more because they are damaged: a warning names those.

Sweeps that were submitted to YARN (hscheduler sweep --on yarn) are called
sweeps/..., and are meant by --all, and by a PREFIX only if that begins with sweeps/.
They are removed when they have ended and what they left was fetched, or they left
nothing; with --resumable also where it was not fetched.
"""

_DEVCLUSTER_DESCRIPTION = """\
A real Hadoop on this host: NameNode, DataNode, ResourceManager and NodeManagers, each
a process of its own.  Its jars come from Maven Central (once, about 100 MB); it needs
Linux and a JDK 17, and about 1.5 GB of memory.  It keeps what HDFS holds when it is
stopped and started again.
"""

_DEVCLUSTER_START_DESCRIPTION = """\
Start it, and print the variable that leads to it.  A start that fails stops what it
started.  If the cluster runs, daemons that have ended are started again with the same
ports, data and options, which need not be given again; jobs go on.

Ports are free ones; NodeManagers are at 127.0.0.11 and up.  There are two queues, default
and batch, half of the cluster each, and each may use all of it while the other is idle.
The last node has the label "transient".

With --kerberos it has a realm of its own, EPS.DEV, and two more variables are printed: the
settings of the realm, and the keytab by which programs log in as this host's user.  EPS does
so by itself; Hadoop's commands want a ticket: kinit -k -t $KRB5_CLIENT_KTNAME $USER.  Its
nodes have no label, and what containers wrote stays in the folders of the nodes.
"""

#: Said of an option that ``eps resume`` does not take.
_RESUME_KEEPS = """\
a job that goes on keeps the settings that it was started with, or its model would be another;
what can be given anew is its size (--workers, --servers), its interpreter on YARN (--python) and where its results
go"""

#: What the phases of a change mean, by whether it adds members.
_PHASES = {
    True: """

The command prints each phase: queued (waits for the changes before it), proposed (new processes start),
prepared (they are there), lists-updated (everyone knows their addresses), copied (they have the data they will hold),
committed (from here it happens and cannot be aborted), switched (everyone works with them) and released (whoever gave
data away has dropped it).""",
    False: """

The command prints each phase: queued (waits for the changes before it), proposed (planned), prepared and
lists-updated (nothing to wait for), copied (those that stay have the data they will hold), committed (from here it
happens and cannot be aborted), switched (everyone works without them) and released (their processes have ended).""",
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of ``eps``; a parsed command has ``command``, ``module:function``."""
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
    kill = _command(commands, "kill", "end a job", "change:kill", "eps kill a9a")
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
    parser.add_argument("--detach", action="store_true", help="return when the job trains; it goes on by itself")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    parser.show_only(_COMMON_OF_RUN)
    parser = _training_command(commands, "submit", "submit a job to YARN", _SUBMIT_DESCRIPTION, _SUBMIT_EXAMPLES)
    parser.set_defaults(command="run:submit")
    parser.show_only(_COMMON_OF_SUBMIT)


def _training_command(commands: Any, name: str, help_text: str, text: str, examples: str) -> CommandParser:
    """Return a command that takes all settings of a job."""
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
        help="replace a job of that name that stopped before its end, and remove its checkpoints",
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
        "start a stopped job again",
        "run:resume",
        "eps resume a9a",
        "eps resume a9a --workers 5 --servers 1 --detach",
        text=_RESUME_DESCRIPTION,
    )
    parser.why_unknown = _RESUME_KEEPS
    parser.add_argument("name", metavar="NAME", help="the job that stopped")
    parser.add_argument("--workers", type=int, metavar="N", help="workers to begin with (default: as it was)")
    parser.add_argument("--servers", type=int, metavar="N", help="servers to begin with (default: as it was)")
    parser.add_argument(
        "--python", default="", metavar="PATH", help="yarn: interpreter or archive, as of eps run (default: as it was)"
    )
    where = "(default: where the job was asked to)"
    parser.add_argument("--report", default="", metavar="PATH", help=f"write the report here, as JSON {where}")
    parser.add_argument("--export", default="", metavar="PATH", help=f"write the trained model here, as .npz {where}")
    parser.add_argument("--detach", action="store_true", help="return when the job trains; it goes on by itself")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")


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
        "bring what an ended job on YARN has left to this machine",
        "inspect:fetch",
        "eps fetch a9a",
        text="Bring report and model of a job on YARN that has ended into its folder, EPS_HOME/jobs/NAME, and to where "
        "eps submit was told to bring them.",
    )
    fetch.add_argument("name", metavar="NAME")


def _add_logs(commands: Any) -> None:
    logs = _command(
        commands,
        "logs",
        "show what the processes of a job wrote",
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
        help="worker-N, server-N, master (on YARN, all attempts of it; master-N is a later one alone) or supervisor",
    )
    logs.add_argument("--follow", action="store_true", help="go on until the job has ended")


def _add_jobs(commands: Any) -> None:
    """Add the commands that concern many jobs."""
    listing = _command(
        commands,
        "list",
        "show all jobs, or some, the newest first",
        "jobs:list_all",
        "eps list",
        "eps list sweep- --state failed,killed",
        "eps list --last 20",
    )
    listing.add_argument("--last", type=count, default=0, metavar="N", help="only the N newest")
    listing.add_argument("--json", action="store_true", help="print JSON")
    prune = _command(
        commands,
        "prune",
        "remove jobs that have ended, with all that is kept of them",
        "prune:prune",
        "eps prune sweep- --dry-run",
        "eps prune sweep-ab12cd- --state failed,killed --resumable",
        "eps prune --all --older-than 7d",
        "eps prune sweeps/ --dry-run",
        text=_PRUNE_DESCRIPTION,
    )
    prune.add_argument("--all", action="store_true", help="whatever their names are; not with a PREFIX")
    prune.add_argument("--dry-run", action="store_true", help="only say which ones it would be")
    prune.add_argument(
        "--older-than", default="1m", metavar="AGE", help="whose directory nothing has come to for so long; default: 1m"
    )
    prune.add_argument(
        "--resumable",
        action="store_true",
        help="also jobs that eps resume could go on with, and jobs and sweeps whose results are on the cluster only",
    )
    for each in (listing, prune):
        each.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="what their names begin with")
        each.add_argument(
            "--state",
            type=lambda text: text.split(","),
            default=[],
            metavar="STATE,...",
            help="running, ended, finished, killed, failed or unreadable",
        )


def _add_changes(commands: Any) -> None:
    scale = _command(
        commands,
        "scale",
        "add and remove workers and servers in one change",
        "change:change",
        "eps scale a9a workers=+2 servers=-1",
        "eps scale a9a workers=-3 --dry-run",
        text="Change the number of workers and servers of a running job by one plan, while it trains.\n"
        f"Members with the highest numbers are removed first.{_PHASES[True]}",
    )
    scale.set_defaults(operation="scale")
    scale.add_argument("name", metavar="NAME")
    scale.add_argument("members", metavar="ROLE=+N|-N", nargs="+", help="workers=+2, servers=-1, or both")
    _add_change_flags(scale)
    for adds in (True, False):
        for role in ("workers", "servers"):
            _add_change(commands, role, adds)
    cancel = _command(
        commands,
        "cancel",
        "abort a change that is not committed",
        "change:cancel",
        "eps cancel a9a",
        "eps cancel a9a 3",
    )
    cancel.add_argument("name", metavar="NAME")
    cancel.add_argument("plan", metavar="PLAN", nargs="?", type=int, help="its number; default: the next to happen")


def _add_change(commands: Any, role: str, adds: bool) -> None:
    operation = f"{'add' if adds else 'remove'}-{role}"
    limit = "splits" if role == "workers" else "partitions"
    text = (
        f"Add {role} to a running job while it trains.  A job has at most as many {role} as {limit}."
        if adds
        else f"Remove {role} from a running job while it trains.  By number, those with the highest numbers "
        f"go;\nby name, those named.  At least one has to stay."
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
        help="print the plan's number and return at once; refused while the job starts",
    )
    parser.add_argument(
        "--request-id", default="", metavar="ID", help="the same id again is the same change (default: a new one)"
    )


def _add_predict(commands: Any) -> None:
    predict = _command(
        commands,
        "predict",
        "apply a trained model to new rows",
        "predict:predict",
        "eps predict --model a9a.npz --data a9a.t.gz --out classes.txt",
        "eps predict --model digits.npz --data new.csv",
        text="Apply a trained model to new rows: one prediction a line, and how good they are where labels are known.",
    )
    predict.add_argument("--model", required=True, metavar="FILE", help="as written by eps run --export")
    predict.add_argument("--data", required=True, metavar="FILE", help="rows, in the form of the training data")
    predict.add_argument("--labels", default="", metavar="FILE", help="labels, where they are not in the data")
    predict.add_argument(
        "--format", default="", metavar="NAME", help="format of the data, if not that of the training data"
    )
    predict.add_argument("--out", default="", metavar="FILE", help="write predictions here, and metrics as output")
    predict.add_argument("--json", action="store_true", help="print the metrics as JSON")
    predict.add_argument(
        "--code", default="", metavar="path.py:Class", help="a user's own model, if its file has moved since"
    )


def _add_devcluster(commands: Any) -> None:
    text = "start and stop a real Hadoop on this host"
    parser = _command(commands, "devcluster", text, "", text=_DEVCLUSTER_DESCRIPTION)
    parser.epilog = 'example:\n  eval "$(eps devcluster start)"'
    inner = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=type(parser))
    start = _command(
        inner,
        "start",
        "start it",
        "devcluster:start",
        'eval "$(eps devcluster start)"',
        "eps devcluster start --nodes 5 --memory 2048 --vcores 2 --home /tmp/hadoop",
        text=_DEVCLUSTER_START_DESCRIPTION,
    )
    stop = _command(inner, "stop", "stop it, and keep what HDFS holds", "devcluster:stop", "eps devcluster stop")
    words = ("eps devcluster status", "eps devcluster status --json")
    status = _command(inner, "status", "show its daemons", "devcluster:status", *words)
    status.add_argument("--json", action="store_true", help="print JSON")
    for one in (start, stop, status):
        one.add_argument("--home", default="", metavar="DIR", help="where it lives (default EPS_HOME/devcluster)")
    defaults = ClusterSettings()
    for name, default, text in (
        ("nodes", defaults.nodes, "NodeManagers"),
        ("memory", defaults.memory_mb, "memory that each offers, in MB; may be more than the host has"),
        ("vcores", defaults.vcores, "virtual cores that each offers; may be more than the host has"),
    ):
        start.add_argument(f"--{name}", type=int, metavar="N", help=f"{text} (default {default})")
    start.add_argument(
        "--hadoop-version",
        metavar="X.Y.Z",
        help=f"of Hadoop 3, from 3.3.0 on; {', '.join(TRIED_VERSIONS)} were tried (default {HADOOP_VERSION})",
    )
    for name, metavar, text in (
        ("disable-preemption", "QUEUE", f"Hadoop's own preemption takes nothing from this queue ({', '.join(QUEUES)})"),
        ("policy", "CLASS", "a scheduling monitor of the ResourceManager, asked before Hadoop's own preemption"),
        ("rm-classpath", "PATH", "a jar or directory that the ResourceManager's class path begins with"),
        ("property", "KEY=VALUE", "a setting of Hadoop"),
    ):
        start.add_argument(f"--{name}", action="append", metavar=metavar, help=f"{text}; may be repeated")
    start.add_argument(
        "--kerberos",
        action="store_true",
        default=None,
        help="clients and daemons authenticate, in a realm of its own (default: no)",
    )
    start.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="to be ready, once the jars are there (default 120)",
    )
