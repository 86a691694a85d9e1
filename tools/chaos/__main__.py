"""``python -m tools.chaos JOB.toml``: run jobs under random failures drawn from a seed, and judge them."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from eps.cli.exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, exit_code
from eps.errors import ConfigError, EpsError
from eps.spec.file import RunRequest, read_job_file
from eps.storage.atomic import PUBLIC_MODE, write_json_atomic
from eps.system import interrupt
from tools.chaos.network import NamespaceNetwork
from tools.chaos.run import COMMAND, Chaos, ChaosRequest, optimizers_of
from tools.chaos.schedule import NETWORK_KINDS, PLAIN_KINDS, parse_kinds
from tools.chaos.verdict import Verdict, summary_of, table_head, table_row

_DESCRIPTION = """\
Train a job undisturbed, then again under failures drawn from a seed: workers, servers
and the job master are killed, stopped, added and removed, and the whole job is killed
and resumed.  Jobs run one after the other until there were enough events.
Each job must end in time, with the undisturbed model (under BSP), no update lost or
applied twice, and no process or file left behind.  Otherwise the command that repeats
the job is printed, its directory is kept, and the exit code is 1.

The seed determines the events and their clocks.  Their effects depend on timing, so
counts differ from run to run.  Jobs are never cut short, so more events may happen
than requested.

Columns: events that happened; events refused (there was no such process, or the job
refused); recoveries (other members took over); rollbacks (the only copy was lost: the
job restored a checkpoint or restarted from its seed); masters (restarts of the job
master); longest (longest time between two completed iterations); lasted; updates lost
and applied twice; the model's hash; the verdict.  The JSON also has the hash of the
undisturbed model.
"""

_EXAMPLES = """\
examples:
  python -m tools.chaos benchmarks/chaos.toml --seed 7 --events 20
  python -m tools.chaos benchmarks/chaos.toml --events 1000 --optimizers all --json chaos.json
"""


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job_file", metavar="JOB.toml", help="file with the job's settings, as for eps run")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the first job; each later job adds 1 (default 0)"
    )
    parser.add_argument(
        "--events", type=int, default=10, metavar="N", help="number of events, over all jobs (default 10)"
    )
    parser.add_argument(
        "--kinds",
        default=",".join(PLAIN_KINDS),
        metavar="KINDS",
        help="kill, stop, add, remove, evict, resume, delay, partition, joined by commas (default: the first six). "
        "evict kills a container after a warning. resume kills the supervisor and resumes the job. delay and partition "
        "need root, and run the job in a network namespace, over TCP unless its file sets van",
    )
    parser.add_argument(
        "--per-job", type=int, default=0, metavar="N", help="events for each job (default: one for ten iterations)"
    )
    parser.add_argument(
        "--optimizers",
        default="",
        metavar="NAMES",
        help="optimizers that the jobs use in turn, joined by commas, or all (default: the job's)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the directories of all jobs; each has a chaos.json")
    parser.add_argument("--json", default="", metavar="PATH", help="write the results here as JSON, after each job")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit codes are those of ``eps``."""
    try:
        with interrupt.noted():
            return play(parse_arguments(argv))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except EpsError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return exit_code(error)


def play(args: argparse.Namespace) -> int:
    """Run the jobs; return 0 if every one passed."""
    request, kinds = RunRequest.from_values(read_job_file(Path(args.job_file)), args.job_file), parse_kinds(args.kinds)
    network = None
    if any(kind in NETWORK_KINDS for kind in kinds):
        # Before any thread starts: a thread would stay in the old namespace.
        network = NamespaceNetwork(kinds)
        if request.spec.network.van == "auto":
            # The only transport over the network.
            request = request.with_spec(van="tcp")
    asked = ChaosRequest(
        request,
        seed=args.seed,
        events=args.events,
        kinds=kinds,
        per_job=args.per_job,
        optimizers=optimizers_of(args.optimizers),
        job_file=args.job_file,
        keep=args.keep,
    )
    verdicts: list[Verdict] = []
    if args.json and not os.access(Path(args.json).absolute().parent, os.W_OK):
        raise ConfigError(f"json is {args.json!r}, but must be in a directory that can be written to")

    def note() -> None:
        if args.json:
            summary = summary_of(verdicts)
            record = {"command": asked_command(args), "summary": summary, "jobs": [v.to_dict() for v in verdicts]}
            write_json_atomic(Path(args.json), record, mode=PUBLIC_MODE, sync=False)

    print(f"{'done':>11}  {table_head()}", flush=True)
    for verdict in Chaos(asked, network).run(lambda text: print(text, file=sys.stderr, flush=True)):
        verdicts.append(verdict)
        note()
        done = sum(v.num_events for v in verdicts)
        print(f"{f'{done}/{asked.events}':>11}  {table_row(verdict)}", flush=True)
        for fault in verdict.faults:
            print(f"  {fault}", flush=True)
    bad = [verdict for verdict in verdicts if not verdict.ok]
    for verdict in bad:
        print(f"its files: {verdict.directory}\nrepeat it: {verdict.repeat}", flush=True)
    summary = summary_of(verdicts)
    print(", ".join(f"{count} {name}" for name, count in summary.items()), flush=True)
    return EXIT_FAILED if bad else EXIT_OK


def asked_command(args: argparse.Namespace) -> str:
    """Return the command line without ``--json`` and ``--keep``, for the results file."""
    words = [*COMMAND.split(), args.job_file, "--seed", str(args.seed), "--events", str(args.events)]
    words += ["--kinds", args.kinds]
    words += ["--per-job", str(args.per_job)] if args.per_job else []
    words += ["--optimizers", args.optimizers] if args.optimizers else []
    return shlex.join(words)


if __name__ == "__main__":
    sys.exit(main())
