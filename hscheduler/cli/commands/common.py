"""Shared by several commands: paths of results, meaning of flags, and summaries.

Does not import the simulator, so that commands of a service's client start fast.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eps.cli.exits import EXIT_FAILED, EXIT_OK
from eps.errors import ConfigError
from eps.storage.atomic import PUBLIC_MODE, write_json_atomic
from eps.system.nearest import one_of
from hscheduler.core.words import counted
from hscheduler.page import write_page
from hscheduler.policies import POLICIES
from hscheduler.reports.report import point_text, static_text, table
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from hscheduler.spec import Spec

DEFAULT_POLICY = "elastic"


def client_of(args: argparse.Namespace) -> SchedulerClient:
    """Return the client of the service that the flags name.  Raises as :class:`SchedulerClient`."""
    directory = ServiceDir.of(args.state)
    if not args.scheduler and directory.is_application():
        # Imported late: it is slow, and a service on this host does not need it.
        from hscheduler.application.monitor import write_address

        write_address(directory)
    return SchedulerClient(directory, args.scheduler or "")


def flags_of(args: argparse.Namespace) -> str:
    """Return the flags with which another command finds the same service."""
    return ServiceDir.of(args.state).flag + (f" --scheduler {args.scheduler}" if args.scheduler else "")


def staged_tables(args: argparse.Namespace, tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a sweep's tables with paths for the service; upload files if needed.  Raises as ``stage_for``."""
    directory = ServiceDir.of(args.state)
    # A service given by its address need not be the one of the directory.
    if args.scheduler or not directory.is_application():
        return tables
    from hscheduler.application.monitor import stage_for

    return stage_for(directory, tables)


def say(line: str) -> None:
    """Print a line and flush it."""
    print(line, flush=True)


def report_path(text: str | None, name: str = "report") -> Path | None:
    """Return the path of a report or page; None if none is wanted.

    Raises
    ------
    ConfigError
        The file cannot be written there.
    """
    if text is None:
        return None
    path = Path(text)
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise ConfigError(f"{name} is {text!r}, but must be a file in a writable directory")
    return path


def policies_of(text: str) -> list[str]:
    """Return the policies that a flag names, without duplicates.

    Raises
    ------
    ConfigError
        A policy is unknown, or none is named.
    """
    found = [name.strip() for name in text.split(",") if name.strip()]
    for name in found:
        if name not in POLICIES:
            raise ConfigError(f"policy is {name!r}, but must be {one_of(name, POLICIES)}")
    if not found:
        raise ConfigError(f"policy is {text!r}, but must be {one_of(text, POLICIES)}")
    return list(dict.fromkeys(found))


def policy_of(text: str) -> str:
    """Return the single policy that a flag names.  Raises as :func:`policies_of`, or if it names several."""
    found = policies_of(text)
    if len(found) != 1:
        raise ConfigError(f"policy is {text!r}, but must be a single policy; hscheduler compare takes several")
    return found[0]


def with_flags(spec: Spec, **flags: int | str | None) -> Spec:
    """Return a sweep with the given flags in place of settings of its file.

    Raises
    ------
    ConfigError
        A flag is invalid.
    """
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    return dataclasses.replace(spec, sweep=dataclasses.replace(spec.sweep, **given))


def write_results(target: Path | None, drawn: Path | None, found: dict[str, Any]) -> None:
    """Write a sweep's report and page to the given paths; None skips one."""
    if target is not None:
        write_json_atomic(target, found, mode=PUBLIC_MODE)
    if drawn is not None:
        write_page(drawn, {found["policy"]: found})


def print_failures(found: Mapping[str, Any]) -> None:
    """Print why trials of a report failed, once for each reason."""
    trials_of: dict[str, list[str]] = {}
    for trial in found["trials"]:
        if trial["phase"] == "failed":
            # Without its name, the same reason of another trial is equal.
            why = trial["why"].replace(trial["name"] or trial["job_id"], "it").replace(trial["job_id"], "it")
            trials_of.setdefault(why, []).append(trial["job_id"])
    for why, trials in trials_of.items():
        others = f" and {len(trials) - 1} others" if len(trials) > 2 else f" and {trials[1]}" if trials[1:] else ""
        print(f"{trials[0]}{others} failed: {why}", file=sys.stderr)


def print_best(found: Mapping[str, Any], drawn: Path | None) -> int:
    """Print a sweep's table, its best point, and the path of its page; return the exit code."""
    print(table([found]))
    best = found["best"]
    if best is None:
        print("no trial finished", file=sys.stderr)
        return EXIT_FAILED
    print(f"best: {best_text(best)}")
    if found.get("target"):
        print(target_text(found))
    if told := static_text(found):
        print(told)
    if drawn is not None:
        print(f"page: {drawn.absolute()}")
    return EXIT_OK


def target_text(found: Mapping[str, Any]) -> str:
    """Return when a report's sweep reached its target, as text."""
    target, at_s = found["target"], found["time_to_target_s"]
    when = "never reached" if at_s is None else f"reached after {at_s:.1f} s"
    return f"target {target['metric']} {target['value']:g}: {when}"


def best_text(best: Mapping[str, Any]) -> str:
    """Return a report's best trial as text."""
    tested = ", ".join(f"{name} {value:.6g}" for name, value in best.get("test", {}).items())
    shown = f"{best['job_id']} with {best['metric']} {best['loss']:.6g}: {point_text(best['point'])}"
    return f"{shown}; on final_test: {tested}" if tested else shown


def _best_so_far(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the best trial of a report; before one has finished, that with the best value."""
    best: dict[str, Any] | None = found["best"]
    if best is not None or not found["anytime"]:
        return best
    _, value, job_id = found["anytime"][-1]
    point: Mapping[str, Any] = next((trial["point"] for trial in found["trials"] if trial["job_id"] == job_id), {})
    return {"job_id": job_id, "metric": found["metric"], "loss": value, "point": point}


def print_interrupted(found: Mapping[str, Any], target: Path | None, drawn: Path | None) -> None:
    """Print the progress of an interrupted sweep, its best point, and the paths of report and page."""
    best = "" if (so_far := _best_so_far(found)) is None else f"; best so far: {best_text(so_far)}"
    told = f"{counted(found['completed'], 'trial')} had finished, the others were ended"
    print(f"interrupted: {told}{best}", file=sys.stderr)
    for name, path in (("report", target), ("page", drawn)):
        if path is not None:
            print(f"{name}: {path.absolute()}", file=sys.stderr)
