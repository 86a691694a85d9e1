"""``hscheduler simulate``: a sweep in virtual time, under one policy or several."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

from eps.errors import ConfigError
from eps.storage.atomic import write_bytes_atomic, write_json_atomic
from hscheduler.page import page
from hscheduler.policies import POLICIES
from hscheduler.report import table
from hscheduler.simulator.run import simulate, simulate_trace
from hscheduler.simulator.traces import read_philly
from hscheduler.spec import Spec

#: Reports and pages may be read by everybody.
PUBLIC_MODE = 0o644


def run(args: argparse.Namespace) -> int:
    """Simulate a sweep's file; print a table and the reason of every decision, write the report."""
    policies = policies_of(args.policy)
    if args.spec is None and args.trace is None:
        raise ConfigError("nothing to simulate: give a sweep's file, a --trace, or both")
    spec = Spec() if args.spec is None else Spec.read(Path(args.spec))
    target, drawn = report_path(args.report), report_path(args.page, "page")
    jobs = None if args.trace is None else read_philly(Path(args.trace))[: args.trials]
    spec = with_flags(spec, trials=None if jobs else args.trials, seed=args.seed)
    reports = []
    for policy in policies:
        found = simulate(spec, policy) if jobs is None else simulate_trace(spec, jobs, policy)
        reports.append(found)
        if args.verbose:
            for decision in found["decisions"]:
                print(f"{policy} {decision['at_s']:9.3f} s  {decision['sentence']}", file=sys.stderr)
    print(table(reports))
    if target is not None:
        found = reports[0] if len(reports) == 1 else {each["policy"]: each for each in reports}
        write_json_atomic(target, found, mode=PUBLIC_MODE)
    if drawn is not None:
        write_bytes_atomic(drawn, page({each["policy"]: each for each in reports}).encode(), mode=PUBLIC_MODE)
    return 0


def report_path(text: str | None, name: str = "report") -> Path | None:
    """Return where a report, or a page, goes; None where none is wanted.

    Raises
    ------
    ConfigError
        It could not be written there.
    """
    if text is None:
        return None
    path = Path(text)
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise ConfigError(f"{name} is {text!r}, but must be a file in a directory that can be written to")
    return path


def policies_of(text: str) -> list[str]:
    """Return the policies that a flag names.

    Raises
    ------
    ConfigError
        One is unknown.
    """
    found = [name.strip() for name in text.split(",") if name.strip()]
    for name in found:
        if name not in POLICIES:
            raise ConfigError(f"policy is {name!r}, but must be one of {', '.join(POLICIES)}")
    if not found:
        raise ConfigError(f"policy is {text!r}, but must be one of {', '.join(POLICIES)}")
    return list(dict.fromkeys(found))


def with_flags(spec: Spec, **flags: int | None) -> Spec:
    """Return a sweep with the settings of its file that flags replace.

    Raises
    ------
    ConfigError
        One cannot work.
    """
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    return dataclasses.replace(spec, sweep=dataclasses.replace(spec.sweep, **given))
