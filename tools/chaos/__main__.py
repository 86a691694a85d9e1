"""``python -m tools.chaos JOB.toml``, for maintainers: hit a job from a seed, and judge what becomes of it."""

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
Train a job undisturbed, then again while workers, servers and the job master are
killed, stopped, added and removed, and all of it killed and resumed, as drawn from a
seed.  As many jobs as the events need, one after the other.  Each must end with the
undisturbed model (under BSP), nothing lost, nothing applied twice, nothing left
behind, and in time.
Where one does not, the command that repeats it is printed, its directory is kept,
and the exit code is 1.

A seed draws what is to happen and when; what comes of it depends on how fast the
processes are at that moment, so that counts differ from run to run.  Whole jobs are
played: more events may happen than were asked for.

The columns: events that happened and those refused (nobody was there, or the job said
no); recoveries (others took over from lost members); rollbacks (the only copy of
something was lost: back to a checkpoint or the seed); masters (job masters started
again); longest (the longest time between two complete iterations); lasted; updates
lost and applied twice; the model's hash; the verdict.  The JSON has all of it, and the
hash of the undisturbed model.
"""

_EXAMPLES = """\
examples:
  python -m tools.chaos benchmarks/chaos.toml --seed 7 --events 20
  python -m tools.chaos benchmarks/chaos.toml --events 1000 --optimizers all --json chaos.json
"""


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's values."""
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job_file", metavar="JOB.toml", help="file with the job's settings, as of eps run")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the first job; the next has the next one (default 0)"
    )
    parser.add_argument(
        "--events", type=int, default=10, metavar="N", help="how many happen, over all jobs (default 10)"
    )
    parser.add_argument(
        "--kinds",
        default=",".join(PLAIN_KINDS),
        metavar="KINDS",
        help="kill, stop, add, remove, evict, resume, delay, partition, joined by commas (default: the first six; "
        "evict takes a container away after a warning; resume kills the supervisor, with which the job ends, and "
        "resumes it; the last two need root, and move the job into a network namespace, where its members use TCP "
        "unless its file says van = something else)",
    )
    parser.add_argument(
        "--per-job", type=int, default=0, metavar="N", help="events of one job (default: one in ten iterations)"
    )
    parser.add_argument(
        "--optimizers",
        default="",
        metavar="NAMES",
        help="optimizers in turn, joined by commas, or all (default: the job's)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the directories of all jobs, with chaos.json in each")
    parser.add_argument("--json", default="", metavar="PATH", help="write the results here, as JSON, after each job")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Play what the command line says; exit codes as of ``eps``."""
    try:
        with interrupt.noted():
            return play(parse_arguments(argv))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except EpsError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return exit_code(error)


def play(args: argparse.Namespace) -> int:
    """Play a schedule against the job of a file; return 0 where every job did what it must."""
    request, kinds = RunRequest.from_values(read_job_file(Path(args.job_file)), args.job_file), parse_kinds(args.kinds)
    network = None
    if any(kind in NETWORK_KINDS for kind in kinds):
        # Before any thread is there: they would stay behind.
        network = NamespaceNetwork(kinds)
        if request.spec.network.van == "auto":
            # Of all ways only this one is a network.
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
        print(f"what it left is in {verdict.directory}\nagain: {verdict.repeat}", flush=True)
    summary = summary_of(verdicts)
    print(", ".join(f"{count} {name}" for name, count in summary.items()), flush=True)
    return EXIT_FAILED if bad else EXIT_OK


def asked_command(args: argparse.Namespace) -> str:
    """Return the command that was given, but for where its results go; it does the same where it was given."""
    words = [*COMMAND.split(), args.job_file, "--seed", str(args.seed), "--events", str(args.events)]
    words += ["--kinds", args.kinds]
    words += ["--per-job", str(args.per_job)] if args.per_job else []
    words += ["--optimizers", args.optimizers] if args.optimizers else []
    return shlex.join(words)


if __name__ == "__main__":
    sys.exit(main())
