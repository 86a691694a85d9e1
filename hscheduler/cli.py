"""The command line of H-scheduler.  Exit codes are those of ``eps``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

_TEXT = """\
H-scheduler decides which running job gets and gives workers and servers, so that
new jobs start at once and nothing idles (EPS sections 4 and 6).

This release has its policies, and a simulator that runs sweeps with them in virtual
time.  Sweeps of real jobs are not part of it: `eps add-workers`, `add-servers`,
`remove-workers` and `remove-servers` change the size of a running job by hand.
"""

_SIMULATE = """\
Run a sweep in virtual time: the policies and the state are those of the scheduler,
jobs are models of their speed.  Prints a table with a row for each policy.

A job's iteration takes 5 ms and stretch_s for each active split of its worker with
most; early feedback and losses are drawn from the seed, and agree with each other as
they do in sweeps: roughly.  What changes of size and restarts cost is declared
(hscheduler/simulator/models.py; kill_restart_s in [sweep] replaces the restart's).
"""

_EXAMPLES = """\
examples:
  hscheduler simulate sweep.toml --policy elastic,static,kill --report report.json
  hscheduler simulate sweep.toml --trials 75 --seed 3 --verbose
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    from eps import __version__
    from hscheduler.policies import POLICIES

    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("hscheduler", description=_TEXT, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"hscheduler {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    simulate = commands.add_parser(
        "simulate", help="run a sweep in virtual time", description=_SIMULATE, epilog=_EXAMPLES, formatter_class=raw
    )
    simulate.add_argument("spec", metavar="SPEC.toml", help="the sweep's file")
    simulate.add_argument(
        "--policy", default="elastic", metavar="NAME,...", help=f"of {', '.join(POLICIES)}; default: elastic"
    )
    simulate.add_argument("--trials", type=int, metavar="N", help="points to try, instead of the file's")
    simulate.add_argument("--seed", type=int, metavar="N", help="of all that is drawn, instead of the file's")
    simulate.add_argument("--report", metavar="PATH", help="write what happened as JSON")
    simulate.add_argument("--verbose", action="store_true", help="print every decision with its reason")
    simulate.set_defaults(command="simulate:run")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hscheduler`` and return its exit code."""
    try:
        return _run(argv)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read has gone; the flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(argv: Sequence[str] | None) -> int:
    from importlib import import_module

    from eps.errors import ConfigError, EpsError

    args = build_parser().parse_args(argv)
    module, _, function = args.command.partition(":")
    try:
        return int(getattr(import_module(f"hscheduler.commands.{module}"), function)(args))
    except EpsError as error:
        print(f"hscheduler: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT if isinstance(error, ConfigError) else EXIT_FAILED
