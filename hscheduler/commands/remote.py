"""What clients ask of a service: ``submit``, ``sweep``, ``jobs``, ``why``, ``kill``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eps.config import JobSpec
from eps.errors import ConfigError
from eps.jobspec_file import RunRequest
from hscheduler.commands.simulate import report_path
from hscheduler.commands.sweep import tell_best, write_results
from hscheduler.service.client import SchedulerClient, number
from hscheduler.service.directory import ServiceDir
from hscheduler.spec import Spec

EXIT_NOT_FINISHED = 1


def client_of(args: argparse.Namespace) -> SchedulerClient:
    """Return the client that the flags name.  Raises as :class:`SchedulerClient`."""
    return SchedulerClient(ServiceDir.of(args.state), args.scheduler or "")


def submit(args: argparse.Namespace) -> int:
    """Submit a job's file; wait for its end if asked to."""
    request = RunRequest.from_values(whole_names(JobSpec.read_toml(Path(args.job))), args.job)
    with client_of(args) as client:
        submission = client.submit_job(args.name or request.name, request.spec, args.sweep or "")
        print(f"{submission.job_id} is submitted; hscheduler why {submission.job_id} says how it is", flush=True)
        if not args.wait:
            return 0
        client.wait(submission)
        loss = "" if submission.loss is None else f" with {submission.loss:.6g}"
        print(f"{submission.job_id} {submission.phase}{loss}" + (f": {submission.why}" if submission.why else ""))
        return 0 if submission.phase == "finished" else EXIT_NOT_FINISHED


def sweep(args: argparse.Namespace) -> int:
    """Have a service run a sweep's file; print what happens until it has ended, unless nobody wants to see it."""
    if args.web is not None:
        raise ConfigError("web is not possible with a service, which has a page of its own: hscheduler serve --web")
    target, drawn = report_path(args.report), report_path(args.page, "page")
    tables = _tables(args)
    with client_of(args) as client:
        name = client.run_sweep(tables, args.name)
        where = f"hscheduler jobs {name} shows it, hscheduler kill {name} ends it"
        print(f"the service runs sweep {name}; {where}", flush=True)
        if args.detach:
            return 0
        try:
            for news in client.watch(name):
                if not args.quiet:
                    print(f"{news.at_s:8.2f} s  {news.text}", flush=True)
        except KeyboardInterrupt:
            print(f"it goes on; {where}", file=sys.stderr)
            raise
        found, _ = client.report(name)
    write_results(target, drawn, found)
    return tell_best(found, str(tables.get("sweep", {}).get("metric", "loss")), drawn)


def _tables(args: argparse.Namespace) -> dict[str, Any]:
    """Return the tables of a sweep's file, with flags in their places and with files by their whole names."""
    path = Path(args.spec)
    tables: dict[str, Any] = dict(JobSpec.read_toml(path))
    given = {name: value for name in ("trials", "seed") if (value := getattr(args, name)) is not None}
    if given:
        tables["sweep"] = {**tables.get("sweep", {}), **given}
    try:
        Spec.of(tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return {**tables, "job": whole_names(tables.get("job", {}))}


def whole_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a job with the files that there are here named whole: a service runs somewhere else."""

    def whole(name: str, value: Any) -> Any:
        is_file = name in ("data", "test", "init") and isinstance(value, str) and value and Path(value).exists()
        return str(Path(value).absolute()) if is_file else value

    return {name: whole(name, value) for name, value in settings.items()}


def jobs(args: argparse.Namespace) -> int:
    """Print the jobs of a sweep, or all."""
    with client_of(args) as client:
        found, about = client.jobs(args.sweep or "")
    if args.json:
        print(json.dumps({"scheduler": about, "jobs": found}, indent=1))
        return 0
    shown = [each for each in found if args.all or not each["is_over"]]
    rows = [("JOB", "SWEEP", "PHASE", "WORKERS", "SERVERS", "ITERATION", "FEEDBACK", "LOSS", "WHY"), *map(_row, shown)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    over = len(found) - len(shown)
    more = f"; {over} that are over are not shown (--all)" if over else ""
    print(f"{about['policy']}: {about['used_vcores']} of {about['vcores']} vcores are taken{more}")
    return 0


def why(args: argparse.Namespace) -> int:
    """Say how a job is, and why."""
    with client_of(args) as client:
        job = client.job(args.job)
    told = f": {job['why']}" if job["why"] else ""
    if job["is_over"]:
        loss = number(job["loss"])
        print(f"{job['job_id']} is over ({job['phase']}" + (f", {loss:.6g})" if loss is not None else ")") + told)
    elif job["phase"] == "queued":
        print(f"{job['job_id']} waits{told}")
    else:
        print(
            f"{job['job_id']} is in phase {job['phase']!r} at iteration {job['iteration']}, with {job['workers']} "
            f"workers and {job['servers']} servers{told}"
        )
    return 0


def kill(args: argparse.Namespace) -> int:
    """End a job, or a sweep with all of its jobs."""
    with client_of(args) as client:
        ended = client.cancel(args.name, "killed on request")
    print(f"told to end: {', '.join(ended) or 'nothing of it was running or waiting'}")
    return 0


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
