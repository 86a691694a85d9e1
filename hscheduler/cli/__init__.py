"""The command line of H-scheduler.  Exit codes are those of ``eps``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from eps.cli.arguments import CommandParser, count, given_name
from eps.cli.exits import EXIT_CODES, run_program

_ON = "where jobs run: local, docker (containers of this host), or yarn (in one application on HADOOP_CONF_DIR's nodes)"

_TEXT = """\
H-scheduler decides which running job gets and gives workers and servers, so that
new jobs start at once and nothing idles (EPS sections 4 and 6).

A sweep tries points of a space of settings, each with a job of its own, on a cluster
whose nodes are simulated: the jobs are real, and all of them run on this host.
"""

_SWEEP = """Run a sweep's file: jobs come, start, give early feedback, grow, shrink and end as the
policy decides.  A terminal shows a table of the trials, which is drawn again as they go on;
without one (or with --plain) every decision is printed with its reason.  What a trial that
failed wrote last is printed with the failure.  Ctrl-C ends all of them.

With --on yarn the sweep is one application of YARN: the scheduler is its master, and the
workers and servers of all trials are in its containers.  Its page is the application's
tracking URL, and yarn application -kill ends it.  If its master is lost, YARN starts
it again, and trials that were not over go on from their checkpoints (checkpoint_every, else 30s).
Where this command is killed, the sweep goes on: --resume follows it again, or fetches what it has
left when it has ended.

SPEC.toml has the sections [cluster] (nodes, vcores, memory; container_vcores = 1 and
container_memory = "4GiB" of each worker, server and job master; on YARN the nodes are YARN's),
[sweep] (trials, arrival, threshold, feedback_iteration, metric, direction (needed unless metric
is a loss), seed, ...), [space] (settings to search, as in learning_rate =
{ loguniform = [1e-4, 1] }) and [job] (settings of `eps run` that all trials share); paths count
from its folder.  Defaults of [sweep]:
threshold = 0 (as many jobs go on as fit the cluster as they ask), parallelism = 0 (no limit to
the points tried at once), trial_timeout_s = 0 (no limit), kill_restart_s = -1 (below 0 a restart
under the policy kill takes what it takes; else so many seconds at least).
"""

_SWEEPS = """List the sweeps that were submitted to YARN from here and whose results are not here yet:
`hscheduler sweep --resume SWEEP` follows one again, or fetches them.
"""

_COMPARE = """Run a sweep's file under several policies, one after the other, with arrivals at the same
times.  Prints a row for each, and its makespan over that of the first.  With algorithm = "random"
all try the same points; the default, tpe, and optuna learn from what a policy lets finish, so with
them each policy tries points of its own.  Report and page are written after each policy.
The exit code is 1 where no trial of some policy finished.
"""

_SIMULATE = """\
Run a sweep in virtual time: the policies and the state are those of the scheduler,
jobs are models of their speed.  Prints a table with a row for each policy.

A job's iteration takes 5 ms and stretch_s for each active split of its worker with
most; early feedback and losses are drawn from the seed, and agree with each other as
they do in sweeps: roughly.  What changes of size and restarts cost is declared
(hscheduler/simulator/models.py; kill_restart_s in [sweep] replaces the restart's).
A --model that `hscheduler fit` found in real runs replaces what is declared; --like takes
the points, arrivals, early feedback and losses of a real run, and prints the makespan
that it predicts beside the real one; --paper simulates the eight sweeps of the paper.
How jobs of a trace become sweeps is said in hscheduler/simulator/traces.py (Philly) and
pollux.py.
"""

_FIT = """\
Fit models of speed and of what changes cost to reports that sweep and compare wrote,
for `hscheduler simulate --model`: how is said in hscheduler/simulator/fit.py.
"""

_PAGE = "Draw the page of a sweep that has ended, from its report: one file that needs no others."

_RESULTS = """Print the trials of a sweep that has ended, the best first.  The best trial's model is
copied from the directory of its job, which is kept under EPS_HOME.
"""

_SERVE = """\
Own a cluster: jobs and sweeps are submitted to this service, which decides by its
policy.  Everything that happens is in its record: after kill -9, or SIGTERM, the
same command takes up the jobs, which go on meanwhile.  Ctrl-C ends the service with its
jobs, which is no failure: the exit code is 0.

A client on this host finds the service by its directory (--state).  For one on another
host, start the service with --listen HOST:PORT; the client needs --scheduler HOST:PORT
and a copy of the directory's folder tls.  What was begun with
one policy and cluster goes on with these.  While the disk is full, jobs go on, and what
is submitted is refused.

A record that this version cannot go on with is refused, with the jobs of it that run.
--forget ends these (eps resume goes on with one), moves the record aside, and begins.

With --on yarn the service is an application of YARN: the scheduler is its master, and the
workers and servers of all jobs are in its containers.  This command submits and follows it:
Ctrl-C ends it, and brings the reports of its sweeps with the best model of each, and what jobs
of no sweep have left.  Where this command is killed, or with --detach, it goes on; the same
command with the same --state follows it again.  If its master is lost, YARN starts it again, and
jobs that were not over go on from their checkpoints.
"""

_YARN_PLUGIN = """\
Tell the plugin in a ResourceManager (hscheduler/yarn-plugin) which containers of EPS jobs
are to be given back so that an application that waits can start.  Only jobs that have given
their early feedback give, never their last worker or server, never a job master; what holds an
application back that is no lack of room is said, and nothing is taken for it.  Every sentence
is printed.  It runs on the ResourceManager's host.  In which queues it takes containers, and of
which users, stands in yarn-site.xml (eps.hscheduler.queues, eps.hscheduler.users).  From a queue
of which YARN's own preemption is not off nothing is taken.
"""

_SUBMIT = """\
Submit one job to a service, which starts it when its policy finds room.  Returns as soon as
the service has it; --wait waits for its end, and then writes the report and export of the
file.  What can never fit the cluster fails at once: `hscheduler why` says so, and so does the
exit code with --wait.
"""
_JOBS = "List the jobs of a service that are not over: phase, containers, iteration, loss, and why they wait."
_WHY = "Say how a job of a service is, or how it ended, and which decisions were made about it."
_KILL = """\
End a job of a service, or a sweep with all of its jobs.  Their reports are kept.  A job of this
host keeps its checkpoints, too: eps resume continues it by itself.
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

    raw, epilog = argparse.RawDescriptionHelpFormatter, f"{_EXAMPLES}\n{EXIT_CODES}"
    parser = CommandParser("hscheduler", description=_TEXT, epilog=epilog, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"hscheduler {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    names = ", ".join(POLICIES)
    sweep = commands.add_parser("sweep", help="run a sweep", description=_SWEEP, formatter_class=raw)
    sweep.add_argument("--policy", metavar="NAME", help=f"one of {names}; default: elastic")
    sweep.set_defaults(command="sweep:sweep")
    compare = commands.add_parser(
        "compare", help="run a sweep under several policies", description=_COMPARE, formatter_class=raw
    )
    compare.add_argument("--policies", default=",".join(POLICIES), metavar="NAME,...", help=f"of {names}; default: all")
    compare.set_defaults(command="sweep:compare")
    simulate = commands.add_parser(
        "simulate", help="run a sweep in virtual time", description=_SIMULATE, formatter_class=raw
    )
    simulate.add_argument(
        "--policy", metavar="NAME,...", help=f"of {names}; default: elastic, with --like that of the report"
    )
    simulate.add_argument("spec", metavar="SPEC.toml", nargs="?", help="the sweep's file; of a trace, its cluster")
    simulate.add_argument("--trace", metavar="FILE.csv", help="jobs of a real cluster: Philly, or a workload of Pollux")
    simulate.add_argument(
        "--model", metavar="MODEL.json", help="speeds and costs that `hscheduler fit` found; of --paper the costs only"
    )
    simulate.add_argument(
        "--like", metavar="REPORT.json", help="the trials of a real run; its sweep, without SPEC.toml"
    )
    simulate.add_argument("--paper", action="store_true", help="the eight sweeps of 75 jobs of the paper")
    sweep.add_argument("spec", metavar="SPEC.toml", nargs="?", help="the sweep's file")
    compare.add_argument("spec", metavar="SPEC.toml", help="the sweep's file")
    for each in (sweep, compare):
        each.add_argument("--on", metavar="NAME", help=_ON)
    sweep.add_argument(
        "--resume",
        metavar="SWEEP",
        help="instead of SPEC.toml: follow a sweep on YARN again, or fetch what it has left; by its id, which "
        "hscheduler sweeps lists, or its application's",
    )
    for each in (sweep, compare, simulate):
        each.add_argument("--trials", type=int, metavar="N", help="points to try, instead of the file's")
        each.add_argument("--seed", type=int, metavar="N", help="of all that is drawn, instead of the file's")
        each.add_argument("--report", metavar="PATH", help="write what happened as JSON")
        each.add_argument("--page", metavar="PATH.html", help="draw what happened: one file that needs no others")
    sweep.add_argument(
        "--web", type=int, metavar="PORT", help="serve the page while the sweep runs; 0 takes a free port"
    )
    sweep.add_argument("--plain", action="store_true", help="print lines, also where there is a terminal to draw on")
    _add_exports(sweep)
    sweeps = commands.add_parser(
        "sweeps", help="list the sweeps that were submitted to YARN", description=_SWEEPS, formatter_class=raw
    )
    sweeps.add_argument("--all", action="store_true", help="those whose results are here, too")
    sweeps.set_defaults(command="sweep:sweeps")
    page = commands.add_parser("page", help="draw the page of a report again", description=_PAGE, formatter_class=raw)
    page.add_argument("--out", metavar="PATH.html", required=True, help="where the page goes")
    page.set_defaults(command="results:draw")
    results = commands.add_parser(
        "results", help="print the trials of a report, the best first", description=_RESULTS, formatter_class=raw
    )
    results.add_argument("--csv", action="store_true", help="print all columns as CSV")
    results.add_argument("--export-best", metavar="MODEL.npz", help="copy the model of the best trial there")
    _add_exports(results)
    results.set_defaults(command="results:results")
    for each in (page, results):
        each.add_argument(
            "report", metavar="REPORT.json|SWEEP", help="of sweep, compare, simulate; or the name of a service's sweep"
        )
        each.add_argument(
            "--state",
            metavar="DIR",
            help="the directory of the sweep's service, which need not run; default: EPS_HOME/hscheduler",
        )
        each.add_argument("--scheduler", metavar="HOST:PORT", help="where the sweep's service listens")
    for each in (sweep, compare):
        each.add_argument("--quiet", action="store_true", help="print the table only")
    simulate.add_argument("--verbose", action="store_true", help="print every decision with its reason")
    simulate.set_defaults(command="simulate:run")
    fit = commands.add_parser(
        "fit", help="learn from real runs what simulate needs", description=_FIT, formatter_class=raw
    )
    fit.add_argument("reports", metavar="REPORT.json", nargs="+", help="of hscheduler sweep or compare")
    fit.add_argument("--model", metavar="PATH", help="write what was found as JSON")
    fit.set_defaults(command="simulate:fit_command")
    _add_service(commands, names)
    _add_yarn_plugin(commands)
    return parser


def _add_exports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tensorboard", metavar="DIR", help="write loss curves for TensorBoard (extra tensorboard)")
    parser.add_argument(
        "--mlflow", metavar="URI", help="write the trials for MLflow: a folder, or http://HOST:PORT (extra mlflow)"
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
        help="on the loopback interface; default: a free port of 127.0.0.1",
    )
    plugin.add_argument(
        "--secret-file", required=True, metavar="FILE", help="what it shares with the plugin; made where there is none"
    )
    plugin.add_argument(
        "--feedback-iteration", type=count, default=100, metavar="N", help="from it on jobs may shrink; default: 100"
    )
    plugin.add_argument(
        "--staging", default="", metavar="LOCATION", help="where jobs are staged, if not in their users' home folders"
    )
    plugin.set_defaults(command="yarn_plugin:yarn_plugin")


def _add_service(commands: argparse._SubParsersAction[CommandParser], names: str) -> None:
    """Add the commands of a service and of its clients."""
    raw = argparse.RawDescriptionHelpFormatter
    serve = commands.add_parser(
        "serve", help="be a service that jobs and sweeps are submitted to", description=_SERVE, formatter_class=raw
    )
    serve.add_argument("--policy", metavar="NAME", help=f"one of {names}; default: elastic")
    serve.add_argument("--nodes", type=int, metavar="N", help="simulated nodes; default: 4")
    serve.add_argument("--vcores", type=int, metavar="N", help="of each node; default: 4")
    serve.add_argument("--memory", metavar="AMOUNT", help="of each node; default: 16GiB")
    serve.add_argument("--container-vcores", type=int, metavar="N", help="of a worker, server or master; default: 1")
    serve.add_argument("--container-memory", metavar="AMOUNT", help="of a worker, a server or a master; default: 4GiB")
    serve.add_argument("--on", metavar="NAME", help=_ON)
    serve.add_argument(
        "--threshold", type=int, metavar="N", help="jobs in training; 0, the default, lets as many as fit the cluster"
    )
    serve.add_argument("--feedback-iteration", type=int, metavar="N", help="of sweeps that do not say; default: 100")
    serve.add_argument(
        "--kill-restart", type=float, metavar="SECONDS", help="declared length of restarts (policy kill)"
    )
    serve.add_argument("--seed", type=int, metavar="N", help="of policies that draw lots; default: 0")
    serve.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="let clients on other hosts in, by certificates; default: only your processes on this host",
    )
    serve.add_argument("--web", type=int, metavar="PORT", help="serve a page, too; 0 takes a free port")
    serve.add_argument(
        "--forget", action="store_true", help="end the jobs of a record that cannot be gone on with; keep it aside"
    )
    serve.set_defaults(command="serve:serve")
    serve.add_argument(
        "--application",
        metavar="JOB.toml",
        help="with --on yarn: the application's queue, priority, lifetime, acl, tags, label, python, staging and "
        "container_timeout, as in a job's file",
    )
    serve.add_argument("--detach", action="store_true", help="with --on yarn: return as soon as it listens")
    submit = commands.add_parser("submit", help="submit a job to a service", description=_SUBMIT, formatter_class=raw)
    submit.add_argument("job", metavar="JOB.toml", help="settings of eps run")
    submit.add_argument("--name", type=given_name, help="its id; by default one that is new")
    submit.add_argument("--sweep", metavar="NAME", help="rank it among the jobs of this sweep")
    submit.add_argument(
        "--wait", action="store_true", help="wait for its end; 1 is the exit code where it did not finish"
    )
    jobs = commands.add_parser("jobs", help="list the jobs of a service", description=_JOBS, formatter_class=raw)
    jobs.add_argument("sweep", nargs="?", metavar="SWEEP", help="of this sweep only")
    jobs.add_argument("--all", action="store_true", help="those that are over, too")
    jobs.add_argument("--json", action="store_true", help="everything, as JSON")
    why = commands.add_parser(
        "why", help="say how a job of a service is, and why", description=_WHY, formatter_class=raw
    )
    why.add_argument("job", metavar="JOB")
    kill = commands.add_parser(
        "kill", help="end a job of a service, or a sweep", description=_KILL, formatter_class=raw
    )
    kill.add_argument("name", metavar="JOB|SWEEP")
    sweep = commands.choices["sweep"]
    sweep.add_argument(
        "--scheduler", metavar="HOST:PORT", help="have a service run it, which decides by its own policy"
    )
    sweep.add_argument("--state", metavar="DIR", help="the same, by the service's directory")
    sweep.add_argument("--name", type=given_name, help="of the sweep at the service; by default one that is new")
    sweep.add_argument("--detach", action="store_true", help="return as soon as the service has it")
    for name, each in (("submit", submit), ("jobs", jobs), ("why", why), ("kill", kill)):
        each.set_defaults(command=f"remote:{name}")
        each.add_argument("--scheduler", metavar="HOST:PORT", help="where it listens; by default as --state says")
    for each in (serve, submit, jobs, why, kill):
        each.add_argument("--state", metavar="DIR", help="the service's directory; default: EPS_HOME/hscheduler")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hscheduler`` and return its exit code."""
    return run_program("hscheduler", build_parser, argv)
