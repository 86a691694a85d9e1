"""``hscheduler sweep --on yarn --as one-application``: submits the application, and shows it until it has ended.

``hscheduler sweep --resume`` goes on with that where it was ended from outside, and ``hscheduler sweeps`` lists what
there is to go on with.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eps.cli.exits import EXIT_FAILED
from eps.cluster.yarn.application import Application, remove_staged
from eps.cluster.yarn.client import YarnClient
from eps.cluster.yarn.facade import Client
from eps.errors import ConfigError, EpsError, JobNotFoundError, StorageError
from eps.hadoop.conf import HadoopConf, environment_configuration, read_configuration
from eps.job.display import table
from eps.job.status import last_words
from eps.job.yarn.logs import fetch_logs
from eps.job.yarn.submit import end_submitted
from eps.job.yarn.sweeps import report_of
from eps.storage.api import Storage
from eps.storage.locations import open_storage
from eps.system import interrupt
from hscheduler.application.follow import Ended, Following, fetch_job
from hscheduler.application.known import KnownSweep, known_sweep, known_sweeps
from hscheduler.application.submit import submit_sweep
from hscheduler.cli.commands.common import (
    DEFAULT_POLICY,
    policies_of,
    report_path,
    tell_best,
    tell_failures,
    tell_interrupted,
    with_flags,
    write_results,
)
from hscheduler.live.checks import check_sweep
from hscheduler.live.on_yarn import placed
from hscheduler.reports.exporters import Export, exporters
from hscheduler.spec import Spec

#: YARN ends an application that was interrupted within this, or what it has on the cluster stays there.
KILL_S = 20.0
#: What has no name before it is submitted.
_NAME = "the sweep"


@dataclass(frozen=True)
class Wanted:
    """What whoever runs a sweep wants to have of it."""

    report: Path | None
    page: Path | None
    exports: Sequence[Export]
    quiet: bool

    @classmethod
    def of(cls, args: argparse.Namespace) -> Wanted:
        """Return what the flags say.  Raises ConfigError where that cannot be had."""
        target, drawn = report_path(args.report), report_path(args.page, "page")
        return cls(target, drawn, exporters(args.tensorboard, args.mlflow), args.quiet)

    def write(self, found: dict[str, Any]) -> None:
        """Write a report wherever it is wanted."""
        write_results(self.report, self.page, found)
        for export in self.exports:
            export(found)


def sweep(args: argparse.Namespace) -> int:
    """Run a sweep's file as one application; show it, print a table and the best point."""
    for flag in ("scheduler", "state", "name", "detach"):
        if getattr(args, flag):
            raise ConfigError(f"{flag} is for a sweep that a service runs; this one is an application of its own")
    _check_no_page(args)
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
    wanted = Wanted.of(args)
    with interrupt.before_submission(_NAME):
        spec = placed(spec, "yarn")
        check_sweep(spec)
        client = YarnClient(conf)
    try:
        # Nothing else stands for the application here, as an attendant stands for a job: it ends with this process.
        with interrupt.by_others_too():
            known = KnownSweep.new()
            with known.service.lock():
                application = _submitted(spec, policy, known, client, conf)
                try:
                    shared = open_storage(application.shared)
                except BaseException:
                    end_submitted(client, application, "nobody could follow it")
                    raise
                line = f"{application.application_id} runs the sweep: {_how(known, application)}"
                return _to_its_end(known, application, client, shared, wanted, line)
    finally:
        client.close()


def resume(args: argparse.Namespace) -> int:
    """Follow the application of a sweep again, or fetch what it has left; print as :func:`sweep` does."""
    for flag in ("spec", "policy", "on", "shape", "trials", "seed", "scheduler", "state", "name", "detach"):
        if getattr(args, flag) not in (None, False, ""):
            name = {"spec": "SPEC.toml", "shape": "as"}.get(flag, flag)
            raise ConfigError(f"{name} is for a sweep that begins; --resume goes on with one as it was submitted")
    _check_no_page(args)
    wanted, known = Wanted.of(args), known_sweep(args.resume)
    if known.service.is_running():
        raise ConfigError(f"resume is {args.resume!r}, but must be a sweep that no other process here follows")
    with known.service.lock():
        application = known.application()
        if application is None:
            raise JobNotFoundError(f"there is no sweep {args.resume!r} any more")
        if not application.shared or known.kept() is not None:
            return _told_again(known, application, wanted)
        os.environ["HADOOP_CONF_DIR"] = application.conf_dir
        client = YarnClient(read_configuration(Path(application.conf_dir)))
        try:
            shared = open_storage(application.shared)
            with interrupt.by_others_too():
                line = f"{application.application_id} is the sweep; while it runs: {_how(known, application)}"
                return _to_its_end(known, application, client, shared, wanted, line)
        finally:
            client.close()


def sweeps(args: argparse.Namespace) -> int:
    """List the sweeps that are applications, and were submitted from this machine."""
    rows = [("SWEEP", "APPLICATION", "STATE", "DONE", "RESULTS")]
    over = 0
    damaged: list[str] = []
    away: dict[tuple[str, str], str] = {}
    for known in known_sweeps():
        try:
            application, ended = known.application(), known.kept()
        except StorageError as error:
            # One that is damaged does not hide the others.
            rows.append((known.sweep_id, "-", "unreadable", "", ""))
            damaged.append(str(error))
            continue
        if application is None:
            continue
        name = known.sweep_id, application.application_id
        if application.shared and ended is None:
            kept = "followed" if known.service.is_running() else "to be fetched"
            rows.append((*name, *_state(application, away), kept))
        elif args.all:
            rows.append((*name, "" if ended is None else ended.state, "", "fetched"))
        else:
            over += 1
    print(table(rows, indent=""))
    for why in (*damaged, *dict.fromkeys(away.values())):
        print(f"hscheduler: {why}", file=sys.stderr)
    more = f"; {over} whose results are here are not shown (--all)" if over else ""
    print(f"hscheduler sweep --resume SWEEP follows one again, or fetches what it has left{more}")
    return 0


def _state(application: Application, away: dict[tuple[str, str], str]) -> tuple[str, str]:
    """Return YARN's word on an application, and how far it is; note where YARN cannot be asked, and why."""
    where = application.conf_dir, application.client
    if where not in away:
        try:
            found = report_of(application)
        except EpsError as error:
            away[where] = str(error)
        else:
            if found is None:
                return "unknown to YARN", ""
            return found.state.lower(), "" if found.ended else f"{found.progress:.0%}"
    return "YARN is away", ""


def _check_no_page(args: argparse.Namespace) -> None:
    if args.web is not None:
        raise ConfigError("web is not possible with one application, whose page YARN shows: its address is printed")


def _how(known: KnownSweep, application: Application) -> str:
    """Return what can be done with an application that is followed."""
    ends = f"Ctrl-C, or yarn application -kill {application.application_id}, ends it"
    shows = f"hscheduler jobs{known.service.flag} shows it"
    return f"{ends}; {shows}; {known.how_again} follows it again where this process is killed"


def _to_its_end(
    known: KnownSweep, application: Application, client: Client, shared: Storage, wanted: Wanted, line: str
) -> int:
    """Show an application until it has ended, from ``line`` on, and bring what it has left; return the exit code."""
    following = Following(application, client, known.service, shared, lambda line: _show(line, quiet=wanted.quiet))
    try:
        _show(line, quiet=False)
        ended = following.run()
    except KeyboardInterrupt:
        interrupt.let_go_of_closed()
        _interrupted(following, shared, known, wanted)
        raise
    except StorageError as error:
        told = f"what {application.application_id} has left cannot be read: {error}"
        raise StorageError(f"{told}; {known.how_again} tries again") from error
    if ended.report is not None:
        wanted.write(ended.report)
    code = _outcome(ended, application, wanted)
    is_here = _take_away(shared, ended, known)
    _bring_logs(ended, application, known)
    return code if is_here else EXIT_FAILED


def _told_again(known: KnownSweep, application: Application, wanted: Wanted) -> int:
    """Print and write once more what there is of a sweep that was fetched; return the exit code."""
    ended = known.kept()
    if ended is None:
        raise JobNotFoundError(f"nothing is left of sweep {known.sweep_id}, neither here nor on the cluster")
    _remove(known)
    if ended.report is not None:
        wanted.write(ended.report)
    return _outcome(ended, application, wanted)


def _interrupted(following: Following, shared: Storage, known: KnownSweep, wanted: Wanted) -> None:
    """End the application, bring what there is of it, and say so."""
    found = following.kill("interrupted")
    has_ended = following.ends_within(KILL_S)
    stays = f"what the sweep has left stays at {shared.describe('')}: {known.how_again} fetches it"
    try:
        # A master that hangs, or has just been lost, has left what there was before.
        found = following.left_report() if found is None else found
    except StorageError as error:
        print(f"interrupted; {error}; {stays}", file=sys.stderr)
        return
    if found is None:
        print("interrupted: no trial had ended", file=sys.stderr)
    else:
        write_results(wanted.report, wanted.page, found)
        tell_interrupted(found, wanted.report, wanted.page)
    if has_ended:
        _take_away(shared, Ended("killed", "interrupted", found), known)
    else:
        print(f"hscheduler: YARN has not ended it within {KILL_S:g} s: {stays}", file=sys.stderr)


def _submitted(spec: Spec, policy: str, known: KnownSweep, client: Client, conf: HadoopConf) -> Application:
    try:
        with interrupt.before_submission(_NAME):
            return submit_sweep(spec, policy, known.job, client, conf)
    except BaseException:
        if not known.job.is_on_yarn():
            # YARN has nothing of it.
            shutil.rmtree(known.path, ignore_errors=True)
        raise


def _show(line: str, *, quiet: bool) -> None:
    if not quiet:
        try:
            print(line, flush=True)
        except BrokenPipeError:
            # Whoever read has gone; this may be the thread of the news.
            interrupt.note()


def _take_away(shared: Storage, ended: Ended, known: KnownSweep) -> bool:
    """Fetch what a sweep leaves on the cluster, and remove it there where the sweep is over; return whether it is here.

    Nobody else knows of it: where it cannot be fetched, it is said how to do so later.
    """
    try:
        if ended.report is not None:
            _fetch(shared, ended.report)
        if not ended.is_over:
            told = f"what the sweep has left stays at {shared.describe('')}, for it may run"
            print(f"hscheduler: {told}: {known.how_again} looks again", file=sys.stderr)
            return True
        known.keep(ended)
    except EpsError as error:
        told = f"what the sweep has left stays at {shared.describe('')}, for it cannot be fetched: {error}"
        print(f"hscheduler: {told}; {known.how_again} fetches it", file=sys.stderr)
        return False
    _remove(known)
    return True


def _remove(known: KnownSweep) -> None:
    """Remove what a sweep has on the cluster, of which nothing is needed any more."""
    try:
        remove_staged(known.job)
    except EpsError as error:
        told = f"what the sweep has on the cluster stays there, for it cannot be removed: {error}"
        print(f"hscheduler: {told}; {known.how_again} tries again", file=sys.stderr)


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


def _outcome(ended: Ended, application: Application, wanted: Wanted) -> int:
    """Print how a sweep ended; return the exit code."""
    if ended.report is not None and wanted.quiet:
        tell_failures(ended.report)
    code = EXIT_FAILED if ended.report is None else tell_best(ended.report, wanted.page)
    if ended.state == "finished":
        return code
    print(f"hscheduler: {application.application_id} {ended.state}: {ended.reason}", file=sys.stderr)
    return EXIT_FAILED


def _bring_logs(ended: Ended, application: Application, known: KnownSweep) -> None:
    """Bring what containers wrote where something failed; print the last of it where nothing else is left."""
    failed = ended.report is not None and any(trial["phase"] == "failed" for trial in ended.report["trials"])
    if not failed and ended.state != "failed":
        return
    logs = known.job.logs
    try:
        fetch_logs(known.job)
        print(f"what the containers of {application.application_id} wrote is in {logs}", file=sys.stderr)
    except EpsError as error:
        print(f"hscheduler: {error}", file=sys.stderr)
    if ended.report is None:
        print("\n".join(last_words(known.job, "")), file=sys.stderr)
