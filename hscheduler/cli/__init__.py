"""The command line of H-scheduler, with the exit codes of ``eps``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from eps.cli.arguments import CommandParser, count, given_name
from eps.cli.exits import EXIT_CODES, run_program

_ON = "where jobs run: local, docker (containers on this host), or yarn (one application on HADOOP_CONF_DIR's cluster)"

_TEXT = """\
H-scheduler moves workers and servers between running jobs, so that new jobs start
at once and no capacity is idle (EPS sections 4 and 6).

A sweep searches a space of settings and trains each point in a job of its own. Jobs are
real processes. By default they run on this host, and the nodes of the cluster are simulated.
"""

_SWEEP = """Run a sweep. The policy decides when trials start, grow, shrink and end. A terminal shows a
live table of the trials. Without a terminal, or with --plain, every decision is printed with its
reason. If a trial fails, its last log lines are printed.

The sweep is recorded in EPS_HOME/sweeps/NAME from its start. Ctrl-C ends all trials. After that, a
crash or a power failure, --resume NAME continues it with every result: trials that ran resume from
their checkpoints (default: one every 30 s; see checkpoint_every), trials that ended are not trained
again. --report is written every few seconds. If this command is killed with SIGKILL, jobs that run
continue, and --resume takes control of them.

With --on yarn the sweep is one YARN application. The scheduler is its application master, and all
trials run in its containers. The page is the application's tracking URL. If the master fails, YARN
restarts it, and unfinished trials resume from their checkpoints. Ctrl-C and yarn application -kill
end the application; --resume continues the sweep in another one. If this command is killed with
SIGKILL, the sweep continues: --resume follows it again, or fetches its results.

SPEC.toml has four sections. Relative paths start at its folder.
  [cluster] has nodes, vcores and memory (on YARN the nodes are YARN's), and the size of a
  container: container_vcores = 1 and container_memory = "4GiB"; master_container = true counts
  one for each job's master. Default: nodes = 0, which is 4, or more if this host has more than
  16 cores.
  [sweep] has trials, threshold, feedback_iteration, metric, direction (required if the metric is
  not one of EPS), seed, ... Defaults: arrival = "" (a trial arrives, and its point is drawn, when
  it can start; for experiments: burst or poisson:4s), threshold = 0 (jobs in training: as many as
  fit the cluster), parallelism = 0 (no limit to the trials at once), trial_timeout_s = 0 (no
  limit), kill_restart_s = -1 (no minimum length of a restart under the policy kill).
  [space] has the settings to search, as in learning_rate = { loguniform = [1e-4, 1] }; a choice of
  tables chooses among groups of settings.
  [job] has the settings of `eps run` shared by all trials; with reliable = N, each of their
  containers has a worker and a server.  Default of splits: three for each container of the
  cluster, at least 12, at most 192.
"""

_SWEEPS = """List the sweeps that ran on this host or were submitted to YARN from here, the last changed first:
state, trials done of all, the best one, and their folder. `hscheduler sweep --resume SWEEP`
continues one that was interrupted, or writes its report. `hscheduler results SWEEP` and `hscheduler
page SWEEP` show one. --remove deletes the record of a sweep on this host.
"""

_COMPARE = """Run a sweep under several policies, one after the other; with the same arrival times
if [sweep] sets arrival. Prints a row for each policy, and its makespan relative to that of the
first. With algorithm = "random" all policies try the same points. tpe (the default) and optuna
learn from finished trials, so each policy tries different points. Report and page are written
after each policy. The exit code is 1 if under some policy no trial finished.
"""

_SIMULATE = """\
Run a sweep in virtual time. The scheduler and its policies are the real ones; jobs are
models of their speed. Prints a table with a row for each policy.

By default an iteration takes 5 ms plus stretch_s for each split of the busiest worker. Early
feedback and losses are random, but correlated. Costs of resizes and restarts are constants
(hscheduler/simulator/models.py; kill_restart_s in [sweep] replaces that of a restart).

--model uses speeds and costs that `hscheduler fit` measured in real runs. --like replays the
points, arrivals, early feedback and losses of a real run, and compares the predicted makespan
with the real one. --paper simulates the eight sweeps of the paper. --trace simulates the jobs
of a real cluster; hscheduler/simulator/traces.py (Philly) and pollux.py describe how they
become jobs of a sweep.
"""

_FIT = """\
Fit models of the speed of jobs and of the cost of resizes to reports of sweep and compare,
for `hscheduler simulate --model`. hscheduler/simulator/fit.py describes the method.
"""

_PAGE = "Write the page of a sweep from its report: one self-contained HTML file."

_RESULTS = """Print the trials of a sweep, the best first. --export-best copies the best trial's model
from the directory of its job under EPS_HOME.
"""

_SERVE = """\
Run a scheduler as a service that owns a cluster and runs the jobs and sweeps submitted to
it. The service logs every event to its record. After SIGTERM or a crash its jobs continue,
and the same command takes control of them again. Ctrl-C ends the service and its jobs; the
exit code is 0.

Clients on this host find the service by its directory (--state). For clients on other hosts,
start it with --listen HOST:PORT; they need --scheduler HOST:PORT and a copy of the folder tls
of that directory. A restarted service keeps its policy and cluster. While the disk is full,
jobs continue, but submissions are rejected.

If this version cannot read the record, the command fails and lists the running jobs.

With --on yarn the service is a YARN application. The scheduler is its application master, and
all jobs run in its containers. This command submits and follows it. Ctrl-C ends it and fetches
the results: the report and best model of each sweep, and the results of single jobs. If this
command is killed, or with --detach, the application continues; the same command with the same
--state follows it again. If the master fails, YARN restarts it, and unfinished jobs resume from
their checkpoints.
"""

_YARN_PLUGIN = """\
Answer the plugin in a ResourceManager (hscheduler/yarn-plugin): choose containers of EPS jobs
to preempt so that a waiting application can start. Run it on the ResourceManager's host. Every
decision is printed.

Only jobs after their early feedback lose containers, but never their job master, last worker or
last server. If an application waits for another reason than missing capacity, the reason is
printed and nothing is preempted. yarn-site.xml selects queues and users
(eps.hscheduler.queues, eps.hscheduler.users). Queues with YARN's own preemption are skipped.
"""

_SUBMIT = """\
Submit one job to a service, which starts it when capacity is free. Returns as soon as the
service has accepted the job; --wait waits for its end, and then writes the report and export
of the file. A job that can never fit the cluster fails at once (see `hscheduler why`).
"""
_JOBS = "List unfinished jobs of a service: phase, containers, iteration, metric, and why they are queued."
_WHY = "Show the state of a job, or how it ended, and every decision about it."
_KILL = """\
End a job of a service, or a sweep with all of its jobs. Their reports are kept. A job on this
host also keeps its checkpoints: eps resume continues it without the service.
"""

_EXAMPLES = """\
examples:
  hscheduler sweep sweep.toml --report report.json
  hscheduler compare sweep.toml --policies elastic,static --trials 12
  hscheduler results report.json --export-best model.npz
  hscheduler page report.json --out page.html
  hscheduler simulate sweep.toml --policy elastic,static,kill --report report.json
  hscheduler simulate sweep.toml --trials 75 --seed 3 --verbose
  hscheduler fit report.json --model model.json
  hscheduler simulate --like report.json --model model.json
  hscheduler simulate --paper --report paper.json
  hscheduler simulate cluster.toml --trace philly.csv.gz --trials 5000 --policy elastic,static
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    from eps import __version__
    from hscheduler.policies import POLICIES
    from hscheduler.stopping import RULES

    raw, epilog = argparse.RawDescriptionHelpFormatter, f"{_EXAMPLES}\n{EXIT_CODES}"
    parser = CommandParser("hscheduler", description=_TEXT, epilog=epilog, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"hscheduler {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    names, rules = ", ".join(POLICIES), ", ".join(RULES)
    sweep = commands.add_parser("sweep", help="run a sweep", description=_SWEEP, formatter_class=raw)
    sweep.add_argument("--policy", metavar="NAME", help=f"one of {names}; default: elastic")
    sweep.set_defaults(command="sweep:sweep")
    compare = commands.add_parser(
        "compare", help="run a sweep under several policies", description=_COMPARE, formatter_class=raw
    )
    compare.add_argument(
        "--policies", default=",".join(POLICIES), metavar="NAME,...", help=f"any of {names}; default: all"
    )
    compare.set_defaults(command="sweep:compare")
    simulate = commands.add_parser(
        "simulate", help="run a sweep in virtual time", description=_SIMULATE, formatter_class=raw
    )
    simulate.add_argument(
        "--policy", metavar="NAME,...", help=f"any of {names}; default: elastic, with --like that of the report"
    )
    simulate.add_argument("spec", metavar="SPEC.toml", nargs="?", help="the sweep's file; with --trace, its cluster")
    simulate.add_argument("--trace", metavar="FILE.csv", help="jobs of a real cluster: Philly trace or Pollux workload")
    simulate.add_argument(
        "--model", metavar="MODEL.json", help="speeds and costs from `hscheduler fit`; with --paper only the costs"
    )
    simulate.add_argument(
        "--like", metavar="REPORT.json", help="trials of a real run; SPEC.toml, if given, replaces its sweep"
    )
    simulate.add_argument("--paper", action="store_true", help="the eight sweeps of 75 jobs of the paper")
    sweep.add_argument("spec", metavar="SPEC.toml", nargs="?", help="the sweep's file")
    compare.add_argument("spec", metavar="SPEC.toml", help="the sweep's file")
    for each in (sweep, compare):
        each.add_argument("--on", metavar="NAME", help=_ON)
    sweep.add_argument(
        "--resume",
        metavar="SWEEP",
        help="instead of SPEC.toml: continue a sweep, or write its report; its name (hscheduler sweeps) or, on YARN, "
        "that of its application",
    )
    for each in (sweep, compare, simulate):
        each.add_argument("--stop", metavar="RULE", help=f"stopping rule, replaces the file's; one of {rules}")
        each.add_argument("--trials", type=int, metavar="N", help="points to try; replaces the file's value")
        each.add_argument("--seed", type=int, metavar="N", help="random seed; replaces the file's value")
        each.add_argument("--report", metavar="PATH", help="write the report as JSON")
        each.add_argument("--page", metavar="PATH.html", help="write the page: one self-contained HTML file")
        each.add_argument(
            "--target",
            metavar="METRIC=VALUE",
            help="report when the sweep first found such a value of its metric, as in accuracy=0.97",
        )
    for each in (compare, simulate):
        each.add_argument(
            "--size",
            metavar="best",
            help="best: static tries the size of the file and, for each number of trials at once, the largest one that "
            "fits (of 16 containers 1, 2, 3, 4, 5, 8 and 16; at most 16 sizes), and the best one is reported",
        )
    sweep.add_argument(
        "--web", type=int, metavar="PORT", help="serve the page while the sweep runs; 0 picks a free port"
    )
    sweep.add_argument("--plain", action="store_true", help="print lines instead of a table, also on a terminal")
    _add_exports(sweep)
    sweeps = commands.add_parser("sweeps", help="list sweeps, or remove one", description=_SWEEPS, formatter_class=raw)
    sweeps.add_argument("--all", action="store_true", help="not only the latest 20")
    sweeps.add_argument(
        "--remove", metavar="SWEEP", type=given_name, help="remove a sweep that does not run; files of its trials stay"
    )
    sweeps.set_defaults(command="sweep:sweeps")
    page = commands.add_parser("page", help="write the page of a report", description=_PAGE, formatter_class=raw)
    page.add_argument("--out", metavar="PATH.html", help="file to write; default: NAME.html here")
    page.set_defaults(command="results:draw")
    results = commands.add_parser(
        "results", help="print the trials of a report, the best first", description=_RESULTS, formatter_class=raw
    )
    results.add_argument("--csv", action="store_true", help="print the trials as CSV, with more columns")
    results.add_argument("--export-best", metavar="MODEL.npz", help="copy the model of the best trial to this file")
    _add_exports(results)
    results.set_defaults(command="results:results")
    for each in (page, results):
        each.add_argument(
            "report",
            metavar="REPORT.json|SWEEP",
            help="report of sweep, compare or simulate; or the name of a sweep (hscheduler sweeps), or of a service's",
        )
        each.add_argument(
            "--state",
            metavar="DIR",
            help="the directory of the service, which may have ended; default: EPS_HOME/hscheduler",
        )
        each.add_argument("--scheduler", metavar="HOST:PORT", help="address of the service")
    for each in (sweep, compare):
        each.add_argument("--quiet", action="store_true", help="print the table only")
    simulate.add_argument("--verbose", action="store_true", help="print every decision with its reason")
    simulate.set_defaults(command="simulate:run")
    fit = commands.add_parser("fit", help="fit models for simulate to real runs", description=_FIT, formatter_class=raw)
    fit.add_argument("reports", metavar="REPORT.json", nargs="+", help="reports of hscheduler sweep or compare")
    fit.add_argument("--model", metavar="PATH", help="write the model as JSON")
    fit.set_defaults(command="simulate:fit_command")
    _add_service(commands, names)
    _add_yarn_plugin(commands)
    return parser


def _add_exports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tensorboard", metavar="DIR", help="write loss curves for TensorBoard (extra tensorboard)")
    parser.add_argument(
        "--mlflow", metavar="URI", help="write the trials for MLflow: a folder, or http://HOST:PORT (extra mlflow)"
    )
    parser.add_argument(
        "--optuna-storage",
        metavar="URL",
        help="write the trials as a study of Optuna for optuna-dashboard, as in sqlite:///sweep.db (extra optuna)",
    )


def _add_yarn_plugin(commands: argparse._SubParsersAction[CommandParser]) -> None:
    plugin = commands.add_parser(
        "yarn-plugin",
        help="answer the plugin in a ResourceManager of YARN",
        description=_YARN_PLUGIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    plugin.add_argument(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="loopback address; default: a free port of 127.0.0.1",
    )
    plugin.add_argument(
        "--secret-file", required=True, metavar="FILE", help="secret shared with the plugin; created if missing"
    )
    plugin.add_argument(
        "--feedback-iteration",
        type=count,
        default=100,
        metavar="N",
        help="iteration from which jobs may shrink; default: 100",
    )
    plugin.add_argument(
        "--staging",
        default="",
        metavar="LOCATION",
        help="staging folder of jobs; default: the home folders of their users",
    )
    plugin.set_defaults(command="yarn_plugin:yarn_plugin")


def _add_service(commands: argparse._SubParsersAction[CommandParser], names: str) -> None:
    """Add the commands of a service and of its clients."""
    raw = argparse.RawDescriptionHelpFormatter
    serve = commands.add_parser(
        "serve", help="run a service for jobs and sweeps", description=_SERVE, formatter_class=raw
    )
    serve.add_argument("--policy", metavar="NAME", help=f"one of {names}; default: elastic")
    serve.add_argument("--nodes", type=int, metavar="N", help="simulated nodes; default: 0, as in a sweep's file")
    serve.add_argument("--vcores", type=int, metavar="N", help="vcores of a node; default: 4")
    serve.add_argument("--memory", metavar="AMOUNT", help="memory of a node; default: 16GiB")
    serve.add_argument("--container-vcores", type=int, metavar="N", help="vcores of a container; default: 1")
    serve.add_argument("--container-memory", metavar="AMOUNT", help="memory of a container; default: 4GiB")
    serve.add_argument("--on", metavar="NAME", help=_ON)
    serve.add_argument(
        "--threshold", type=int, metavar="N", help="most jobs in training; default: 0, as many as fit the cluster"
    )
    serve.add_argument(
        "--stop", metavar="RULE", help="stopping rule, as of sweep, if a sweep sets none; default: the policy's"
    )
    serve.add_argument(
        "--feedback-iteration",
        type=int,
        metavar="N",
        help="iteration of early feedback, if a sweep sets none; default: 100",
    )
    serve.add_argument("--kill-restart", type=float, metavar="SECONDS", help="least length of a restart (policy kill)")
    serve.add_argument("--seed", type=int, metavar="N", help="random seed of policies; default: 0")
    serve.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="accept clients on other hosts, with certificates; default: only your processes here",
    )
    serve.add_argument("--web", type=int, metavar="PORT", help="also serve a page; 0 picks a free port")
    serve.set_defaults(command="serve:serve")
    serve.add_argument(
        "--application",
        metavar="JOB.toml",
        help="with --on yarn: file with the application's queue, priority, lifetime, acl, tags, label, python, staging "
        "and container_timeout, as in a job's file",
    )
    serve.add_argument("--detach", action="store_true", help="with --on yarn: return once the service listens")
    submit = commands.add_parser("submit", help="submit a job to a service", description=_SUBMIT, formatter_class=raw)
    submit.add_argument("job", metavar="JOB.toml", help="settings of eps run")
    submit.add_argument("--name", type=given_name, help="id of the job; default: a new one")
    submit.add_argument("--sweep", metavar="NAME", help="rank the job within this sweep")
    submit.add_argument("--wait", action="store_true", help="wait for its end; exit code 1 if it did not finish")
    jobs = commands.add_parser("jobs", help="list the jobs of a service", description=_JOBS, formatter_class=raw)
    jobs.add_argument("sweep", nargs="?", metavar="SWEEP", help="only jobs of this sweep")
    jobs.add_argument("--all", action="store_true", help="also jobs that have ended")
    jobs.add_argument("--json", action="store_true", help="everything, as JSON")
    why = commands.add_parser("why", help="show the state of a job, and why", description=_WHY, formatter_class=raw)
    why.add_argument("job", metavar="JOB")
    kill = commands.add_parser(
        "kill", help="end a job of a service, or a sweep", description=_KILL, formatter_class=raw
    )
    kill.add_argument("name", metavar="JOB|SWEEP")
    sweep = commands.choices["sweep"]
    sweep.add_argument("--scheduler", metavar="HOST:PORT", help="run the sweep in the service at this address")
    sweep.add_argument("--state", metavar="DIR", help="run the sweep in the service with this directory")
    sweep.add_argument(
        "--name", type=given_name, help="name of the sweep; default: that of the file, with a number if it is in use"
    )
    sweep.add_argument("--detach", action="store_true", help="return once the service has accepted the sweep")
    for name, each in (("submit", submit), ("jobs", jobs), ("why", why), ("kill", kill)):
        each.set_defaults(command=f"remote:{name}")
        each.add_argument("--scheduler", metavar="HOST:PORT", help="address of the service; default: that in --state")
    for each in (serve, submit, jobs, why, kill):
        each.add_argument("--state", metavar="DIR", help="directory of the service; default: EPS_HOME/hscheduler")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hscheduler`` and return its exit code."""
    return run_program("hscheduler", build_parser, argv)
