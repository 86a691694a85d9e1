"""What clients ask of a service: ``submit``, ``sweep``, ``jobs``, ``why``, ``kill``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eps.cli.exits import EXIT_FAILED, EXIT_OK
from eps.errors import ConfigError
from eps.job.display import table
from eps.spec.file import RunRequest, read_job_file
from eps.spec.results import check_results, wanted_of
from hscheduler.cli.commands.common import report_path, tell_best, tell_failures, with_flags, write_results
from hscheduler.core.words import count_of
from hscheduler.live.results import deliver_results
from hscheduler.live.submission import Submission
from hscheduler.reports.exporters import Export, exporters
from hscheduler.service.client import SchedulerClient, number
from hscheduler.service.directory import ServiceDir
from hscheduler.spec import Spec


def client_of(args: argparse.Namespace) -> SchedulerClient:
    """Return the client that the flags name.  Raises as :class:`SchedulerClient`."""
    return SchedulerClient(ServiceDir.of(args.state), args.scheduler or "")


def flags_of(args: argparse.Namespace) -> str:
    """Return by which flags another command finds the same service."""
    return ServiceDir.of(args.state).flag + (f" --scheduler {args.scheduler}" if args.scheduler else "")


def submit(args: argparse.Namespace) -> int:
    """Submit a job's file; wait for its end if asked to."""
    # With whole names, as eps run has them: a service runs somewhere else.
    request = RunRequest.from_values(read_job_file(Path(args.job)), args.job)
    for result, place in wanted_of(request):
        if not args.wait:
            raise ConfigError(f"{result.name} is {place}, but is written when the job has ended: add --wait")
    check_results(request)
    with client_of(args) as client:
        submission = client.submit_job(args.name or request.name, request.spec, args.sweep or "")
        if submission.is_over:
            # It was submitted before, or can never fit the cluster.
            return _ended(submission, request, "is over: ")
        how = f"hscheduler why {submission.job_id}{flags_of(args)} says how it is"
        print(f"{submission.job_id} is submitted, for eps as {submission.name}; {how}", flush=True)
        if not args.wait:
            return EXIT_OK
        client.wait(submission)
        return _ended(submission, request)


def _ended(submission: Submission, request: RunRequest, first: str = "") -> int:
    """Print how a job ended, and bring what it has left to where its file says; return the exit code."""
    loss = "" if submission.loss is None else f" with {submission.loss:.6g}"
    why = f": {submission.why}" if submission.why else ""
    print(f"{submission.job_id} {first}{submission.phase}{loss}{why}")
    if any(wanted_of(request)) and (submission.has_started or submission.phase == "finished"):
        # Its directory is under the service's EPS_HOME, which this machine must share.
        deliver_results(submission, request)
    return EXIT_OK if submission.phase == "finished" else EXIT_FAILED


def sweep(args: argparse.Namespace) -> int:
    """Have a service run a sweep's file; print what happens until it has ended, unless nobody wants to see it."""
    if args.web is not None:
        raise ConfigError("web is not possible with a service, which has a page of its own: hscheduler serve --web")
    if args.policy is not None:
        raise ConfigError("policy is not possible with a service, which has one of its own: hscheduler serve --policy")
    for flag in ("report", "page", "tensorboard", "mlflow"):
        if args.detach and getattr(args, flag):
            raise ConfigError(f"{flag} is not possible with detach, which waits for nothing to write")
    exports = exporters(args.tensorboard, args.mlflow)
    target, drawn = report_path(args.report), report_path(args.page, "page")
    # With whole names: a service runs somewhere else.
    tables = with_flags(Spec.read(Path(args.spec)), trials=args.trials, seed=args.seed).tables()
    with client_of(args) as client:
        name = client.run_sweep(tables, args.name or "")
        flags = flags_of(args)
        if args.name and client.report(name)[1]:
            # The same file under the same name: its trials are not tried once more.
            print(f"sweep {name} was submitted before and is over; another --name runs it again", file=sys.stderr)
            if args.detach:
                print(f"its results: hscheduler results {name}{flags}")
                return EXIT_OK
            return _results(client, name, args, target, drawn, exports)
        where = f"hscheduler jobs {name}{flags} shows it, hscheduler kill {name}{flags} ends it"
        print(f"the service runs sweep {name}; {where}", flush=True)
        if args.detach:
            return EXIT_OK
        try:
            for news in client.watch(name):
                if not args.quiet:
                    print(f"{news.at_s:8.2f} s  {news.text}", flush=True)
        except KeyboardInterrupt:
            print(f"it goes on; {where}", file=sys.stderr)
            raise
        return _results(client, name, args, target, drawn, exports)


def _results(
    client: SchedulerClient,
    name: str,
    args: argparse.Namespace,
    target: Path | None,
    drawn: Path | None,
    exports: Sequence[Export],
) -> int:
    """Write and print what a sweep that is over has brought; return the exit code."""
    found, _ = client.report(name)
    write_results(target, drawn, found)
    for export in exports:
        export(found)
    if args.quiet:
        tell_failures(found)
    return tell_best(found, drawn)


def jobs(args: argparse.Namespace) -> int:
    """Print the jobs of a sweep, or all."""
    over = 0
    with client_of(args) as client:
        if args.json or args.all:
            shown, about = client.jobs(args.sweep or "")
        else:
            shown, about, over = client.jobs_going_on(args.sweep or "")
    if args.json:
        print(json.dumps({"scheduler": about, "jobs": shown}, indent=1))
        return EXIT_OK
    rows = [("JOB", "SWEEP", "PHASE", "WORKERS", "SERVERS", "ITERATION", "FEEDBACK", "LOSS", "WHY"), *map(_row, shown)]
    print(table(rows, indent=""))
    more = f"; {over} that are over are not shown (--all)" if over else ""
    print(f"{about['policy']}: {about['used_vcores']} of {about['vcores']} vcores are taken{more}")
    return EXIT_OK


def why(args: argparse.Namespace) -> int:
    """Say how a job is, or how it ended, and why, with what was decided about it, the latest last."""
    with client_of(args) as client:
        job = client.job(args.job)
    told = f": {job['why']}" if job["why"] else ""
    if job["is_over"]:
        loss = number(job["loss"])
        print(f"{job['job_id']} is over ({job['phase']}" + (f", {loss:.6g})" if loss is not None else ")") + told)
    elif job["phase"] == "queued":
        print(f"{job['job_id']} waits{told}")
    else:
        size = count_of(job["workers"], job["servers"])
        print(f"{job['job_id']} is in phase {job['phase']!r} at iteration {job['iteration']}, with {size}{told}")
    if job["name"]:
        print(f"its name for eps is {job['name']}, as in eps status {job['name']}")
    for at_s, sentence in job.get("decisions", ()):
        print(f"{at_s:8.2f} s  {sentence}")
    return EXIT_OK


def kill(args: argparse.Namespace) -> int:
    """End a job, or a sweep with all of its jobs."""
    with client_of(args) as client:
        ended = client.cancel(args.name, "killed on request")
    print(f"told to end: {', '.join(ended) or 'nothing of it was running or waiting'}")
    return EXIT_OK


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    loss, feedback = number(job["loss"]), number(job["feedback"])
    return (
        job["job_id"],
        job["sweep"],
        job["phase"],
        str(job["workers"]),
        str(job["servers"]),
        str(job["iteration"]),
        "-" if feedback is None else f"{feedback:.6g}",
        "-" if loss is None else f"{loss:.6g}",
        job["why"],
    )
