"""``hscheduler page`` and ``hscheduler results``: show an ended sweep from its report."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from eps.cli.exits import EXIT_OK
from eps.errors import ConfigError, JobNotFoundError, StorageError
from eps.job.display import number_text, ordered_metrics, table
from eps.storage.jobdir import job_dir, readable
from hscheduler.application.monitor import ApplicationDir, submitted_sweeps
from hscheduler.cli.commands.common import client_of, report_path
from hscheduler.core.jobs import reason_of
from hscheduler.live.job_results import export_best
from hscheduler.live.sweep import SWEEP
from hscheduler.page import write_page
from hscheduler.reports.exporters import exporters
from hscheduler.reports.report import is_report, point_text, shown_phase
from hscheduler.service.directory import ServiceDir
from hscheduler.service.main import past_report
from hscheduler.service.recorded_sweep import RecordedSweep, SweepState
from hscheduler.simulator.static_sizes import with_static

#: Columns of the CSV file, besides those of the point; ``value`` is named after the metric.
_COLUMNS = (
    "job_id", "name", "phase", "value", "latest", "feedback", "iterations", "arrived_s", "started_s",
    "first_iteration_s", "early_feedback_s", "finished_s", "resize_pause_s", "restarts", "why",
)  # fmt: skip


def draw(args: argparse.Namespace) -> int:
    """Write the page of a report."""
    reports, target = reports_of(args), report_path(args.out or f"{_stem(args)}.html", "out")
    assert target is not None
    if len(reports) == 1:
        reports = {policy: each if "static" in each else with_static(each) for policy, each in reports.items()}
    write_page(target, reports)
    print(f"page: {target}")
    return EXIT_OK


def results(args: argparse.Namespace) -> int:
    """Print the trials of a report, the best first; run the requested exports."""
    reports = reports_of(args)
    exports = exporters(args.tensorboard, args.mlflow, args.optuna_storage)
    found = list(reports.values())
    if args.export_best and len(found) != 1:
        raise ConfigError(
            f"{args.report} has the reports of {', '.join(reports)}, but --export-best needs a single sweep"
        )
    if args.csv:
        sys.stdout.write(csv_text(reports))
    for report in found:
        if not args.csv:
            print(results_text(report, are_here=not args.scheduler))
        for export in exports:
            export(report)
    if args.export_best:
        print(f"model of {_export_best(args, found[0])}: {args.export_best}", file=sys.stderr)
    return EXIT_OK


def _export_best(args: argparse.Namespace, report: Mapping[str, Any]) -> str:
    """Copy the model of a report's best trial to ``--export-best``; return the trial."""
    directory = ServiceDir.of(args.state)
    is_here = _is_file(args) or not directory.is_application() or not _runs(directory) or _of_sweep(args) is not None
    if not args.scheduler and is_here:
        return export_best(report, args.export_best)
    # The jobs run on YARN or on another host, not under EPS_HOME of this one: ask the service.
    if report["best"] is None:
        raise ConfigError("no trial finished: there is no best model")
    best = str(report["best"]["job_id"])
    job = next(trial["attempts"][-1]["job_id"] for trial in report["trials"] if trial["job_id"] == best)
    with client_of(args) as client:
        client.save_model(job, str(Path(args.export_best).absolute()))
    return best


def reports_of(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the reports of a file, or that of a sweep, here, on YARN or of a service, which may have ended.

    Raises
    ------
    EpsError
        As :func:`read_reports`, :func:`past_report` and the client's methods.
    """
    if _is_file(args):
        return read_reports(Path(args.report))
    if (found := _of_sweep(args)) is not None:
        return {found["policy"]: found}
    directory = ServiceDir.of(args.state)
    # Reports of earlier applications with this directory.
    kept = ApplicationDir(directory.path).saved_reports()
    if args.scheduler or _runs(directory):
        try:
            with client_of(args) as client:
                found, ended = client.report(args.report)
            state = SweepState.ENDED if ended else SweepState.RUNNING
            found = {**found, "name": args.report, "state": str(state)}
        except JobNotFoundError:
            if args.report not in kept:
                raise
            found = kept[args.report]
    elif args.report in kept:
        found = kept[args.report]
    elif directory.is_application() and not directory.record.exists():
        raise ConfigError(f"sweep is {args.report!r}, but must be one of {', '.join(kept) or 'none'}")
    else:
        found = past_report(directory, args.report)
    return {found["policy"]: found}


def _of_sweep(args: argparse.Namespace) -> dict[str, Any] | None:
    """Return the report of a sweep of ``hscheduler sweep``; None if none has the name, or a service is named.

    Raises
    ------
    ConfigError
        It ran on YARN, and its results were not fetched.
    """
    if args.state or args.scheduler:
        return None
    if (place := RecordedSweep.find(args.report)) is not None:
        return place.report()
    for each in submitted_sweeps():
        if each.sweep_id != args.report:
            continue
        if (found := each.saved_reports().get(SWEEP)) is None:
            raise ConfigError(f"the results of {args.report} are not here yet: {each.follow_command} fetches them")
        return found
    return None


def _stem(args: argparse.Namespace) -> str:
    return Path(args.report).stem if _is_file(args) else str(args.report)


def _is_file(args: argparse.Namespace) -> bool:
    """Return whether the argument names a file rather than the sweep of a service."""
    if args.state or args.scheduler:
        return False
    path = Path(args.report)
    return path.suffix == ".json" or len(path.parts) > 1 or path.is_file()


def _runs(directory: ServiceDir) -> bool:
    """Return whether a service runs in a directory; one on YARN counts until its results are fetched."""
    is_on_yarn = directory.is_application() and ApplicationDir(directory.path).saved() is None
    return is_on_yarn or directory.is_running()


def read_reports(path: Path) -> dict[str, dict[str, Any]]:
    """Return the reports of a file of ``sweep``, ``compare`` or ``simulate``, by policy.

    Raises
    ------
    ConfigError
        There is no such file, or it has no reports.
    StorageError
        The file cannot be read.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not a report of hscheduler: it is not JSON ({error})") from None
    if isinstance(found, Mapping):
        found = {found["policy"]: found} if isinstance(found.get("policy"), str) else found.get("policies", found)
    if not isinstance(found, Mapping) or not found or not all(is_report(each) for each in found.values()):
        raise ConfigError(f"{path} is not a report of this version of hscheduler sweep, compare or simulate")
    return dict(found)


def ranked(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the trials of a report, the best first: the finished ones, then the others by their latest value."""
    sign = -1.0 if report["direction"] == "maximize" else 1.0

    def key(trial: Mapping[str, Any]) -> tuple[bool, float]:
        return trial["phase"] != "finished", math.inf if trial["latest"] is None else sign * trial["latest"]

    return sorted(report["trials"], key=key)


def results_text(report: Mapping[str, Any], are_here: bool) -> str:
    """Return the trials of a report as a table, the best first; their jobs may be under ``EPS_HOME`` of this host."""
    tests = {trial["job_id"]: _test_metrics(trial) if are_here else {} for trial in report["trials"]}
    measured = ordered_metrics({name: 0.0 for test in tests.values() for name in test})
    # The first that says more than the sweep's own metric.
    shown = [name for name, _ in measured if report["metric"] not in (name, f"test_{name}")][:1]
    heads = [report["metric"].upper(), "FEEDBACK", *(f"TEST {name.upper()}" for name in shown)]
    rows = [["TRIAL", "PHASE", *heads, "POINT", "WHY"]]
    for trial in ranked(report):
        why = "" if trial["phase"] == "finished" else reason_of(trial["job_id"], trial["why"])
        numbers = [
            trial["latest"],
            trial["feedback"],
            *(tests[trial["job_id"]].get(name) for name in shown),
        ]
        phase = shown_phase(trial["phase"], report.get("state", ""))
        rows.append([trial["job_id"], phase, *map(number_text, numbers), point_text(trial["point"]), why])
    return f"{report['policy']}: {report['completed']} of {len(report['trials'])} finished\n{table(rows)}"


def _test_metrics(trial: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the test metrics of a trial, from the report of its job; empty if that is not under ``EPS_HOME``."""
    found: Mapping[str, Any] = {}
    if trial.get("name"):
        with suppress(ConfigError):
            found = readable(job_dir(trial["name"]).report).get("metrics", {}).get("test", {})
    return found


def csv_text(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the trials of reports as CSV, the best of each policy first."""
    names = list(dict.fromkeys(name for report in reports.values() for t in report["trials"] for name in t["point"]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    metrics = {report["metric"] for report in reports.values()}
    heads = {"value": metrics.pop()} if len(metrics) == 1 else {}
    writer.writerow(["policy", *(heads.get(name, name) for name in _COLUMNS), *names])
    for policy, report in reports.items():
        for trial in ranked(report):
            shown = {**trial, "phase": shown_phase(trial["phase"], report.get("state", ""))}
            writer.writerow([policy, *(shown[name] for name in _COLUMNS), *(trial["point"].get(n) for n in names)])
    return text.getvalue()
