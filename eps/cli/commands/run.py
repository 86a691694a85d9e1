"""``eps run``, ``eps submit`` and ``eps resume``: train a job and show its progress, or start it and return."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from enum import Enum, auto
from pathlib import Path
from typing import Any, TextIO

from eps.cli.exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from eps.errors import ConfigError, DeadlineError, EpsError
from eps.job.client import Job, continue_fold, find_directory
from eps.job.display import ChangeNews, Display, PlainDisplay, TerminalDisplay, how_to_resume, summary_text
from eps.job.page import JobPageServer
from eps.job.status import LOGS_COMMAND, UNREACHABLE, application_id_of, check_stopped, is_on_yarn, last_log_lines
from eps.spec.file import OF_YARN, RunRequest, read_job_file
from eps.spec.job_spec import JobSpec
from eps.spec.results import (
    check_results,
    deliver_results,
    keep_places,
    replaced_by_results,
    wanted_of,
    with_kept_places,
)
from eps.storage.jobdir import JobDir, jobs_dir
from eps.system import interrupt

#: A step that takes longer prints a notice.
NOTICED_S = 0.5
#: Interval between checks for an interrupt.
LOOK_S = 1.0
_OWN_FLAGS = ("command", "job_file", "detach", "quiet", "verbose", "web")


class Detail(Enum):
    """How much a command prints."""

    QUIET = auto()
    PROGRESS = auto()
    #: Also the phases of changes of size.
    PHASES = auto()

    @classmethod
    def of(cls, args: argparse.Namespace) -> Detail:
        """Return what the flags choose."""
        if getattr(args, "quiet", False):
            return cls.QUIET
        return cls.PHASES if getattr(args, "verbose", False) else cls.PROGRESS


def request_of(args: argparse.Namespace) -> RunRequest:
    """Return the settings of the job file, overridden by the flags.

    Raises
    ------
    ConfigError
        A setting is unknown or invalid.
    """
    flags = {name: value for name, value in vars(args).items() if name not in _OWN_FLAGS}
    path = getattr(args, "job_file", None)
    if path is None:
        return RunRequest.from_values(flags)
    from_file = read_job_file(Path(path))
    # Checked alone first, so that an error names the file.
    RunRequest.from_values(from_file, path)
    request = RunRequest.from_values({**from_file, **flags})
    # A file may be used for jobs on YARN and elsewhere: elsewhere only flags of YARN are refused, not keys.
    return dataclasses.replace(request, given=request.given - (OF_YARN - flags.keys()))


def run(args: argparse.Namespace) -> int:
    """Train a job, or with ``--detach`` start it; return the exit code."""
    request = request_of(args)
    check_results(request)
    detach, detail = getattr(args, "detach", False), Detail.of(args)
    web = getattr(args, "web", None)
    if web is not None and (detach or (request.spec.folds and request.spec.fold < 0)):
        what = "--detach, after which no process of yours serves it" if detach else "folds, which are several jobs"
        raise ConfigError(f"web is {web}, but a page is not possible with {what}")
    if request.spec.folds and request.spec.fold < 0:
        if detach:
            raise ConfigError("detach is set, but folds are trained one after the other by this command: omit --detach")
        return _run_folds(request, detail)
    if detach:
        return _leave(_started(dataclasses.replace(request, detached=True), sys.stderr, detail, detach=True))
    with _page(web) as page:
        report, code = _attached(request, sys.stdout, detail, page)
    _tell_why(report, code)
    return code


@contextmanager
def _page(port: int | None) -> Iterator[JobPageServer | None]:
    """Serve the page of a job; None serves none.  Raises as :class:`JobPageServer`."""
    if port is None:
        yield None
        return
    page = JobPageServer(port)
    try:
        print(f"the job's page, while it trains: {page.address}", flush=True)
        yield page
    finally:
        page.close()


def submit(args: argparse.Namespace) -> int:
    """Submit a job to YARN; return the exit code."""
    request = request_of(args)
    if request.spec.on != "yarn":
        if "on" in vars(args):
            raise ConfigError(f"on is {request.spec.on!r}, but eps submit starts jobs on yarn only: use eps run")
        request = request.with_spec(on="yarn")
    if request.spec.folds and request.spec.fold < 0:
        raise ConfigError("eps submit starts one job: choose a fold with --fold, or train all folds with eps run")
    check_results(request)
    detail = Detail.of(args)
    with _started(dataclasses.replace(request, detached=True), sys.stderr, detail, detach=True) as job:
        print(f"{job.name}: {application_id_of(job.directory)}; follow it with: eps status {job.name}")
        report, model = request.report or job.directory.report, request.export or job.directory.model
        print(f"when it has ended, eps fetch {job.name} downloads its report to {report} and its model to {model}")
    return EXIT_OK


def _leave(started: Job) -> int:
    """Wait until a detached job trains, then close its client; return the exit code."""
    with started as job:
        job.wait_until_trains()
        status = job.status()
        if status["state"] in ("failed", "killed"):
            print(f"eps: job {job.name!r} {status['state']}: {status['reason'] or 'no reason'}", file=sys.stderr)
            return EXIT_FAILED
        print(f"{job.name}: {status['state']}; follow it with: eps status {job.name}, eps logs {job.name} --follow")
    return EXIT_OK


def _run_folds(request: RunRequest, detail: Detail) -> int:
    from eps.job.folds import (
        check_folds,
        combine_folds,
        fold_requests,
        left_folds,
        name_of,
        named_by,
        write_folds,
    )

    check_folds(request)
    named, reports = request, []
    left = left_folds(fold_requests(request))
    for number in range(request.spec.folds):
        fold = fold_requests(named)[number]
        with _heard(request.spec.on):
            job = _continued(fold, detail) if fold.name in left else _started(fold, sys.stdout, detail)
            report, code = _to_its_end(job, fold, sys.stdout, detail)
        if code != EXIT_OK:
            name = name_of(job.name)
            print(f"eps: {job.name} {report['state']}: {report.get('reason') or 'no reason'}", file=sys.stderr)
            print(f"eps: to continue: the same command with --name {name}", file=sys.stderr)
            return code
        reports.append(report)
        named = named_by(named, job.name)
    combined = combine_folds(request.name, reports)
    if detail is not Detail.QUIET:
        print(summary_text(combined), flush=True)
    write_folds(request, combined)
    return EXIT_OK


def _continued(fold: RunRequest, detail: Detail) -> Job:
    """Return the job of a fold that an earlier run has left, resumed unless it has finished."""

    def begin(text: str, warnings: Sequence[str]) -> None:
        for warning in warnings:
            print(f"eps: warning: {warning}", file=sys.stderr)
        if detail is not Detail.QUIET:
            print(text, flush=True)

    with _told_of_start(fold.name, fold.spec.on, detach=False):
        return continue_fold(fold.name, begin)


def _attached(
    request: RunRequest, stream: TextIO, detail: Detail, page: JobPageServer | None = None
) -> tuple[dict[str, Any], int]:
    """Train one job to its end; return its report and the exit code."""
    with _heard(request.spec.on):
        return _to_its_end(_started(request, stream, detail), request, stream, detail, page)


def _heard(runs_on: str) -> AbstractContextManager[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C for a job on YARN, which would outlive this process."""
    return interrupt.interrupt_on_signals() if runs_on == "yarn" else nullcontext()


def resume(args: argparse.Namespace) -> int:
    """Resume a stopped job; return the exit code."""

    def begin(text: str, warnings: Sequence[str]) -> None:
        # Before the job continues, because it may end at once.
        keep_places(directory, request)
        for warning in [*warnings, *replaced]:
            print(f"eps: warning: {warning}", file=sys.stderr)
        if not args.quiet:
            print(text, flush=True)
            for result, place in wanted_of(request):
                print(f"{args.name}: its {result.what} goes to {place}", flush=True)

    directory = find_directory(args.name)
    # Before results are checked: if the job runs, that is the error to report.
    check_stopped(directory)
    request = RunRequest(JobSpec(), args.name, args.report, args.export, detached=args.detach)
    request = with_kept_places(directory, request)
    replaced = replaced_by_results(directory, request)
    for name, value in (("workers", args.workers), ("servers", args.servers)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}, but must be at least 1")
    workers, servers = args.workers or 0, args.servers or 0
    runs_on = "yarn" if is_on_yarn(directory) else ""
    with _heard("" if args.detach else runs_on):
        with _told_of_start(args.name, runs_on, detach=args.detach):
            job = Job.resume(
                args.name, workers=workers, servers=servers, python=args.python, detach=args.detach, on_begin=begin
            )
        if args.detach:
            return _leave(job)
        report, code = _to_its_end(job, request, sys.stdout, Detail.of(args))
    _tell_why(report, code)
    return code


def _to_its_end(
    job: Job, request: RunRequest, stream: TextIO, detail: Detail, page: JobPageServer | None = None
) -> tuple[dict[str, Any], int]:
    """Show the progress of a started job until it has ended; return its report and the exit code."""
    try:
        _show(job, stream, detail, page)
        report = _ended(job)
        if page is not None:
            page.end(job.status())
    except KeyboardInterrupt:
        report = _interrupted(job, request, stream)
        if page is not None:
            page.end(job.status())
        return report, EXIT_INTERRUPTED
    finally:
        job.close()
    # The summary is printed before the delivery, which may take long or fail.
    if detail is Detail.QUIET:
        deliver_results(job.directory, request)
    else:
        print(summary_text(report), file=stream, flush=True)
        deliver_results(job.directory, request, _teller(job, stream))
    return report, EXIT_OK if report["state"] == "finished" else EXIT_FAILED


def _tell_why(report: Mapping[str, Any], code: int) -> None:
    """Print why a job failed, and how to resume it."""
    if code == EXIT_FAILED:
        print(f"eps: job {report['name']!r} {report['state']}: {report.get('reason') or 'no reason'}", file=sys.stderr)
    directory = JobDir(jobs_dir() / report["name"])
    if report["state"] == "failed":
        for line in last_log_lines(directory, report.get("reason") or ""):
            print(f"eps: {line}", file=sys.stderr)
        if application_id := application_id_of(directory):
            print(f"eps: logs of its containers: {LOGS_COMMAND.format(application_id)}", file=sys.stderr)
    # Its directory may have been removed meanwhile.
    if code != EXIT_OK and report["state"] != UNREACHABLE and directory.job_json.exists():
        print(f"eps: {how_to_resume(report['name'], report.get('reason') or '')}", file=sys.stderr)


def _started(request: RunRequest, stream: TextIO, detail: Detail, *, detach: bool = False) -> Job:
    """Start a job; print a notice if a step takes long, and the outcome if the user interrupts it."""
    on_yarn, conf = request.spec.on == "yarn", os.environ.get("HADOOP_CONF_DIR")
    asks = _notice(f"asking YARN (HADOOP_CONF_DIR={conf}) ...", stream)
    prepares = _notice(f"preparing {request.spec.data}{', then submitting the job' if on_yarn else ''} ...", stream)

    def before_data() -> None:
        asks.cancel()
        prepares.start()

    try:
        with _told_of_start(request.name, request.spec.on, detach=detach):
            if on_yarn and conf and detail is not Detail.QUIET:
                asks.start()
            return Job.start_request(
                request, detach=detach, before_data=None if detail is Detail.QUIET else before_data
            )
    finally:
        asks.cancel()
        prepares.cancel()


def _notice(text: str, stream: TextIO) -> threading.Timer:
    """Return a timer that prints ``text`` if a step takes longer than :data:`NOTICED_S`."""
    notice = threading.Timer(NOTICED_S, print, (text,), {"file": stream, "flush": True})
    notice.daemon = True
    return notice


def _told_of_start(name: str, runs_on: str, *, detach: bool) -> AbstractContextManager[None]:
    who = name or "the job"
    if runs_on == "yarn":
        return interrupt.before_submission(who)
    shown = f"{f'eps status {name}' if name else 'eps list'} shows whether it runs"
    # Unless detached, the job ends with this process.
    return interrupt.telling(f"{who}: interrupted while it was started; {shown if detach else 'it does not run'}")


def _show(job: Job, stream: TextIO, detail: Detail, page: JobPageServer | None = None) -> None:
    if detail is Detail.QUIET and page is None:
        return
    display: Display | None = None
    if detail is not Detail.QUIET:
        news = ChangeNews(with_phases=detail is Detail.PHASES)
        display = TerminalDisplay(stream, news) if stream.isatty() else PlainDisplay(stream, news)
    try:
        for progress in job.watch(is_patient=True):
            interrupt.check()
            if display is not None:
                display.show(progress.status)
            if page is not None:
                page.take(progress.status, progress.history)
    finally:
        if display is not None:
            display.close()


def _ended(job: Job) -> dict[str, Any]:
    """Wait until a job has ended; return its report."""
    while True:
        interrupt.check()
        with suppress(DeadlineError):
            return job.wait(LOOK_S)


def _interrupted(job: Job, request: RunRequest, stream: TextIO) -> dict[str, Any]:
    """End a job after Ctrl-C and wait for its processes.  A second Ctrl-C kills them.

    Raises
    ------
    KeyboardInterrupt
        The job runs on YARN and has not ended in time.  YARN was asked to kill it, if it could be reached.
    """
    on_yarn = is_on_yarn(job.directory)
    again = "to leave that to YARN" if on_yarn else "to kill them"
    print(f"\n{job.name}: interrupted; ending its processes (Ctrl-C again {again})", file=stream, flush=True)
    try:
        job.kill("interrupted", tell=_teller(job, stream))
    except (KeyboardInterrupt, EpsError) as error:
        if not job.kill_at_once():
            interrupted = KeyboardInterrupt()
            interrupted.add_note(str(error) or f"{job.name}: is being killed; see eps status {job.name}")
            raise interrupted from None
    report = job.wait(5.0)
    deliver_results(job.directory, request, _teller(job, stream))
    return report


def _teller(job: Job, stream: TextIO) -> Callable[[str], None]:
    return lambda text: print(f"{job.name}: {text}", file=stream, flush=True)
