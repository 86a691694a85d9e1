"""``hscheduler simulate``: a sweep in virtual time, under one policy or several."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

from eps.errors import ConfigError
from eps.storage.atomic import write_json_atomic
from hscheduler.policies import POLICIES
from hscheduler.report import table
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec


def run(args: argparse.Namespace) -> int:
    """Simulate a sweep's file; print a table and the reason of every decision, write the report."""
    policies = policies_of(args.policy)
    spec = with_flags(Spec.read(Path(args.spec)), trials=args.trials, seed=args.seed)
    target = report_path(args.report)
    reports = []
    for policy in policies:
        found = simulate(spec, policy)
        reports.append(found)
        if args.verbose:
            for decision in found["decisions"]:
                print(f"{policy} {decision['at_s']:9.3f} s  {decision['sentence']}", file=sys.stderr)
    print(table(reports))
    if target is not None:
        write_json_atomic(target, reports[0] if len(reports) == 1 else {each["policy"]: each for each in reports})
    return 0


def report_path(text: str | None) -> Path | None:
    """Return where a report goes; None where none is wanted.

    Raises
    ------
    ConfigError
        It could not be written there.
    """
    if text is None:
        return None
    path = Path(text)
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise ConfigError(f"report is {text!r}, but must be a file in a directory that can be written to")
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
