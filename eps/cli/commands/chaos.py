"""``eps chaos``: hit a job's processes from a seed, and judge what becomes of it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from eps.cli.exits import EXIT_FAILED, EXIT_OK
from eps.errors import ConfigError

if TYPE_CHECKING:
    from eps.chaos.verdict import Verdict


def chaos(args: argparse.Namespace) -> int:
    """Play a schedule against the job of a file; return 0 where every job did what it must."""
    from eps.chaos.run import Chaos, ChaosRequest, optimizers_of
    from eps.chaos.schedule import NETWORK_KINDS, parse_kinds
    from eps.chaos.verdict import summary_of, table_head, table_row
    from eps.spec.file import RunRequest, read_job_file
    from eps.storage.atomic import PUBLIC_MODE, write_json_atomic

    request, kinds = RunRequest.from_values(read_job_file(Path(args.job_file)), args.job_file), parse_kinds(args.kinds)
    network = None
    if any(kind in NETWORK_KINDS for kind in kinds):
        from eps.chaos.network import NamespaceNetwork

        # Before any thread is there: they would stay behind.
        network = NamespaceNetwork(kinds)
        if request.spec.van == "auto":
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
    words = ["eps", "chaos", args.job_file, "--seed", str(args.seed), "--events", str(args.events)]
    words += ["--kinds", args.kinds]
    words += ["--per-job", str(args.per_job)] if args.per_job else []
    words += ["--optimizers", args.optimizers] if args.optimizers else []
    return shlex.join(words)
