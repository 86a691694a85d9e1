"""Commands of a service's client: ``submit``, ``jobs``, ``why`` (also for a trial of a sweep here), ``kill``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eps.cli.exits import EXIT_FAILED, EXIT_OK
from eps.errors import ConfigError, JobNotFoundError
from eps.job.display import table
from eps.spec.file import RunRequest, read_job_file
from eps.spec.job_spec import JobSpec
from eps.spec.results import check_results, wanted_of
from hscheduler.cli.commands.common import client_of, flags_of, staged_tables
from hscheduler.core.jobs import Phase, reason_of
from hscheduler.core.words import count_of
from hscheduler.live.submission import Submission
from hscheduler.live.sweep import trial_prefix
from hscheduler.reports.report import INTERRUPTED, shown_phase
from hscheduler.service.client import SchedulerClient, number
from hscheduler.service.directory import ServiceDir
from hscheduler.service.recorded_sweep import RecordedSweep


def submit(args: argparse.Namespace) -> int:
    """Submit a job's file; with ``--wait`` wait for its end."""
    # With absolute paths, as in eps run: a service has another working directory.
    request = RunRequest.from_values(read_job_file(Path(args.job)), args.job)
    for result, place in wanted_of(request):
        if not args.wait:
            raise ConfigError(f"{result.name} is {place}, but is written only with --wait: add --wait")
    check_results(request)
    with client_of(args) as client:
        settings = staged_tables(args, {"job": json.loads(request.spec.to_json()), "space": {}})["job"]
        submission = client.submit_job(
            args.name or request.name, JobSpec.from_dict(settings, args.job), args.sweep or ""
        )
        if submission.is_over:
            # It was submitted before, or can never fit the cluster.
            return _ended(client, submission, request)
        how = f"hscheduler why {submission.job_id}{flags_of(args)} shows its state"
        print(f"{submission.job_id} is submitted; {how}", flush=True)
        if not args.wait:
            return EXIT_OK
        client.wait(submission)
        return _ended(client, submission, request)


def _ended(client: SchedulerClient, submission: Submission, request: RunRequest) -> int:
    """Print how a job ended, and download report and model to the paths in its file; return the exit code."""
    print(state_text(client.job(submission.job_id)))
    if any(wanted_of(request)) and (submission.has_started or submission.phase == "finished"):
        client.deliver(submission, request)
    return EXIT_OK if submission.phase == "finished" else EXIT_FAILED


def jobs(args: argparse.Namespace) -> int:
    """Print the jobs of a sweep, or of all sweeps."""
    over = 0
    with client_of(args) as client:
        if args.json or args.all:
            shown, about = client.jobs(args.sweep or "")
        else:
            shown, about, over = client.unfinished_jobs(args.sweep or "")
    if args.json:
        print(json.dumps({"scheduler": about, "jobs": shown}, indent=1))
        return EXIT_OK
    print(jobs_table(shown))
    more = f"; ended jobs are not shown: {over} (--all)" if over else ""
    print(f"{about['policy']}: {about['used_vcores']} of {about['vcores']} vcores in use{more}")
    return EXIT_OK


def why(args: argparse.Namespace) -> int:
    """Print what a job or trial does, or how it ended, the reason, and all decisions about it, the latest last."""
    sweep = args.job.rpartition(trial_prefix(""))[0].removesuffix("-")
    if not (args.state or args.scheduler) and sweep and (place := RecordedSweep.find(sweep)) is not None:
        job = _of_report(place.report(), args.job)
        print(state_text(job))
        _print_decisions(job)
        return EXIT_OK
    with client_of(args) as client:
        job = client.job(args.job)
    print(state_text(job))
    if job["on"] != "yarn":
        print(f"more about its processes: eps status {job['name']}")
    elif application := ServiceDir.of(args.state).application_id():
        print(f"logs of its containers: yarn logs -applicationId {application}")
    _print_decisions(job)
    return EXIT_OK


def _print_decisions(job: Mapping[str, Any]) -> None:
    for at_s, sentence in job.get("decisions", ()):
        print(f"{at_s:8.2f} s  {sentence}")


def _of_report(report: Mapping[str, Any], job_id: str) -> dict[str, Any]:
    """Return what :func:`state_text` takes of the trial that a job tried, and the decisions about all its jobs."""
    trial = next((each for each in report["trials"] if job_id in _jobs_of(each)), None)
    if trial is None:
        raise JobNotFoundError(f"there is no trial {job_id!r} in sweep {report['name']}")
    _, workers, servers = trial["containers"][-1] if trial["containers"] else (0.0, 0, 0)
    return {
        **trial,
        "phase": shown_phase(trial["phase"], report["state"]),
        "is_over": Phase(trial["phase"]).ended,
        "workers": workers,
        "servers": servers,
        "iteration": trial["iterations"],
        "iterations": report["spec"]["job"].get("iterations", 0),
        "metric": report["metric"],
        "value": trial["latest"],
        "decisions": [
            (each["at_s"], each["sentence"])
            for each in report["decisions"]
            if not _jobs_of(trial).isdisjoint(each["jobs"])
        ],
    }


def _jobs_of(trial: Mapping[str, Any]) -> set[str]:
    """Return the ids of the jobs that tried a trial; the first has its id."""
    return {trial["job_id"], *(attempt["job_id"] for attempt in trial["attempts"])}


def kill(args: argparse.Namespace) -> int:
    """End a job, or a sweep with all of its jobs."""
    with client_of(args) as client:
        ended = client.cancel(args.name, "killed on request")
    print(f"ending: {', '.join(ended)}" if ended else f"nothing to stop: {args.name} had already ended")
    return EXIT_OK


def state_text(job: Mapping[str, Any]) -> str:
    """Return what a job of a service does and why, or how it ended, as a sentence.

    Parameters
    ----------
    job : mapping
        See :meth:`SchedulerClient.job`.
    """
    name, size, reason = job["job_id"], count_of(job["workers"], job["servers"]), reason_of(job["job_id"], job["why"])
    why = f": {reason}" if reason else ""
    at = f"iteration {job['iteration']}" + (f" of {job['iterations']}" if job["iterations"] else "")
    value = "" if (found := number(job["value"])) is None else f", {job['metric']} {found:.6g}"
    match Phase(job["phase"]) if job["phase"] in tuple(Phase) else None:
        case Phase.STARTING:
            # A report knows the size of a job only once it has started.
            return f"{name} is starting{f' with {size}' if job['workers'] else ''}{why}"
        case Phase.EARLY_FEEDBACK | Phase.TRAINING as phase:
            early = ", before its early feedback" if phase is Phase.EARLY_FEEDBACK else ""
            return f"{name} trains with {size}: {at}{value}{early}" + (f"; {reason}" if reason else "")
        case Phase.RESTARTING:
            return f"{name} stops and restarts from its checkpoint with another size{why}"
        case Phase.PAUSING:
            return f"{name} is pausing at {at}{why}"
        case Phase.PAUSED:
            return f"{name} is paused at {at} and holds no containers{why}"
        case Phase.ENDING:
            return f"{name} is ending{why}"
        case None if job["phase"] == INTERRUPTED:
            return f"{name} was interrupted at {at}{value}{why}"
        case phase if job["is_over"]:
            return f"{name} has ended ({phase}{value}){why}"
    return f"{name} is {job['phase']}{why}"


def jobs_table(jobs: Sequence[Mapping[str, Any]]) -> str:
    """Return the jobs of a service as a table; a column is named after the metric if all jobs have the same."""
    metrics = {job["metric"] for job in jobs}
    head = metrics.copy().pop().upper() if len(metrics) == 1 else "METRIC"
    rows = [("JOB", "SWEEP", "PHASE", "WORKERS", "SERVERS", "ITERATION", "FEEDBACK", head, "WHY")]
    for job in jobs:
        value, feedback = number(job["value"]), number(job["feedback"])
        shown = "-" if value is None else f"{value:.6g}"
        rows.append(
            (
                job["job_id"],
                job["sweep"],
                job["phase"],
                str(job["workers"]),
                str(job["servers"]),
                str(job["iteration"]),
                "-" if feedback is None else f"{feedback:.6g}",
                shown if len(metrics) == 1 or value is None else f"{job['metric']} {shown}",
                job["why"],
            )
        )
    return table(rows, indent="")
