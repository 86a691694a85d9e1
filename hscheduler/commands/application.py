"""``hscheduler sweep --on yarn --as one-application``: submits the application, and shows it until it has ended."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from eps import interrupt
from eps.errors import ConfigError, EpsError, StorageError
from eps.hadoop_conf import HadoopConf, environment_configuration
from eps.last_words import last_words
from eps.storage.api import Storage
from eps.storage.atomic import write_json_atomic
from eps.storage.jobdir import DIRECTORY_MODE, JobDir
from eps.storage.locations import open_storage
from eps.yarn.application import Application, remove_staged
from eps.yarn.clients import AUTO, open_client
from eps.yarn.facade import Client
from eps.yarn.logs import fetch_logs
from eps.yarn.submit import end_submitted
from eps.yarn.sweeps import sweeps_dir
from hscheduler.application.follow import Ended, Following, fetch_job
from hscheduler.application.submit import submit_sweep
from hscheduler.checks import check_sweep
from hscheduler.commands.common import (
    DEFAULT_POLICY,
    policies_of,
    report_path,
    tell_best,
    tell_failures,
    tell_interrupted,
    with_flags,
    write_results,
)
from hscheduler.exporters import exporters
from hscheduler.on_yarn import placed
from hscheduler.service.directory import ServiceDir
from hscheduler.spec import Spec

EXIT_FAILED = 1
#: YARN ends an application that was interrupted within this, or what it has on the cluster stays there.
KILL_S = 20.0


def sweep(args: argparse.Namespace) -> int:
    """Run a sweep's file as one application; show it, print a table and the best point."""
    for flag in ("scheduler", "state", "name", "detach"):
        if getattr(args, flag):
            raise ConfigError(f"{flag} is for a sweep that a service runs; this one is an application of its own")
    if args.web is not None:
        raise ConfigError("web is not possible with one application, whose page YARN shows: its address is printed")
    (policy, *others) = policies_of(DEFAULT_POLICY if args.policy is None else args.policy)
    if others:
        raise ConfigError(f"policy is {args.policy!r}, but a sweep has one; compare takes several")
    spec = with_flags(Spec.read(Path(args.spec)), trials=args.trials, seed=args.seed)
    if (args.on or spec.job.get("on")) != "yarn":
        raise ConfigError("one application is one of YARN: add --on yarn")
    conf = environment_configuration()
    if conf.wants_kerberos:
        # The scheduler asks the ResourceManager for its nodes, which takes a ticket; containers have tokens.
        raise ConfigError("as is 'one-application', but the cluster wants Kerberos: leave --as out")
    target, drawn = report_path(args.report), report_path(args.page, "page")
    exports = exporters(args.tensorboard, args.mlflow)
    spec = placed(spec, "yarn")
    check_sweep(spec)
    directory = ServiceDir(sweeps_dir() / secrets.token_hex(6))
    # Commands that find the service by this directory wait for it, and nobody takes it away meanwhile.
    with closing(open_client(conf, str(spec.job.get("yarn_client", AUTO)))) as client, directory.lock():
        # Nothing else stands for the application here, as an attendant stands for a job: it ends with this process.
        with interrupt.by_others_too():
            application = _submitted(directory, spec, policy, client, conf)
            shared, following = _following(directory, application, client, quiet=args.quiet)
            name = application.application_id
            try:
                _show(
                    f"{name} runs the sweep: Ctrl-C, or yarn application -kill {name}, ends it; "
                    f"hscheduler jobs{directory.flag} shows it",
                    quiet=False,
                )
                ended = following.run()
            except KeyboardInterrupt:
                interrupt.let_go_of_closed()
                _interrupted(following, shared, directory, target, drawn)
                raise
        if ended.report is not None:
            write_results(target, drawn, ended.report)
            for export in exports:
                export(ended.report)
            if args.quiet:
                tell_failures(ended.report)
        _take_away(shared, ended, directory)
        return _tell(ended, application, directory, drawn)


def _interrupted(
    following: Following, shared: Storage, directory: ServiceDir, target: Path | None, drawn: Path | None
) -> None:
    """End the application, bring what there is of it, and say so."""
    found = following.kill("interrupted")
    has_ended = following.ends_within(KILL_S)
    try:
        # A master that hangs, or has just been lost, has left what there was before.
        found = following.left_report() if found is None else found
    except StorageError as error:
        print(f"interrupted; what the sweep has left stays at {shared.describe('')}: {error}", file=sys.stderr)
        return
    if found is None:
        print("interrupted: no trial had ended", file=sys.stderr)
    else:
        write_results(target, drawn, found)
        tell_interrupted(found, target, drawn)
    if has_ended:
        _take_away(shared, Ended("killed", "interrupted", found), directory)
    else:
        told = f"YARN has not ended it within {KILL_S:g} s"
        print(f"hscheduler: {told}: what the sweep has left stays at {shared.describe('')}", file=sys.stderr)


def _submitted(directory: ServiceDir, spec: Spec, policy: str, client: Client, conf: HadoopConf) -> Application:
    job = JobDir(directory.path)
    try:
        directory.security()
        return submit_sweep(spec, policy, job, client, conf)
    except BaseException:
        if not job.yarn_json.exists():
            # YARN has nothing of it.
            shutil.rmtree(directory.path, ignore_errors=True)
        raise


def _following(
    directory: ServiceDir, application: Application, client: Client, *, quiet: bool
) -> tuple[Storage, Following]:
    try:
        shared = open_storage(application.shared)
        return shared, Following(application, client, directory, shared, lambda line: _show(line, quiet=quiet))
    except BaseException:
        end_submitted(client, application, "nobody could follow it")
        raise


def _show(line: str, *, quiet: bool) -> None:
    if not quiet:
        try:
            print(line, flush=True)
        except BrokenPipeError:
            # Whoever read has gone; this may be the thread of the news.
            interrupt.note()


def _take_away(shared: Storage, ended: Ended, directory: ServiceDir) -> None:
    """Fetch what a sweep that has ended leaves on the cluster, and remove it there."""
    doing, job = "fetched", JobDir(directory.path)
    try:
        if ended.report is not None:
            _fetch(shared, ended.report)
        if not ended.is_over:
            told = f"what the sweep has left stays at {shared.describe('')}, for it may run"
            print(f"hscheduler: {told}", file=sys.stderr)
            return
        doing = "removed"
        write_json_atomic(job.ended_json, {"state": ended.state, "reason": ended.reason})
        remove_staged(job, shared)
    except EpsError as error:
        told = f"what the sweep has left stays at {shared.describe('')}, for it cannot be {doing}"
        print(f"hscheduler: {told}: {error}", file=sys.stderr)


def _fetch(shared: Storage, report: Mapping[str, Any]) -> None:
    """Bring the model of the best trial, and what trials that failed have left.

    Raises
    ------
    StorageError
        Of one it cannot be brought, or the best has left no model; of the others it was.
    """
    best = None if report["best"] is None else report["best"]["job_id"]
    wanted = [t for t in report["trials"] if t["name"] and (t["job_id"] == best or t["phase"] == "failed")]
    lost: list[str] = []
    for trial in wanted:
        try:
            fetch_job(shared, trial["name"], has_model=trial["job_id"] == best)
        except StorageError as error:
            lost.append(f"{trial['job_id']}: {error}")
    if lost:
        raise StorageError("; ".join(lost))


def _tell(ended: Ended, application: Application, directory: ServiceDir, drawn: Path | None) -> int:
    """Print how it ended, and bring what containers wrote where something failed; return the exit code."""
    name = application.application_id
    code = EXIT_FAILED if ended.report is None else tell_best(ended.report, drawn)
    failed = [] if ended.report is None else [t["job_id"] for t in ended.report["trials"] if t["phase"] == "failed"]
    if ended.state != "finished":
        print(f"hscheduler: {name} {ended.state}: {ended.reason}", file=sys.stderr)
    if failed or ended.state == "failed":
        job = JobDir(directory.path)
        job.logs.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        try:
            fetch_logs(job)
            print(f"what the containers of {name} wrote is in {job.logs}", file=sys.stderr)
        except EpsError as error:
            print(f"hscheduler: {error}", file=sys.stderr)
        if ended.report is None:
            print("\n".join(last_words(job, "")), file=sys.stderr)
    return code if ended.state == "finished" else EXIT_FAILED
