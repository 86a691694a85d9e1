"""``hscheduler sweep`` and ``hscheduler compare``: sweeps of real jobs on this host."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from eps.errors import ConfigError
from eps.storage.atomic import write_bytes_atomic, write_json_atomic
from hscheduler.commands.simulate import PUBLIC_MODE, policies_of, report_path, with_flags
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.live.scheduler import OnEvent
from hscheduler.live.sweep import Sweep
from hscheduler.page import PageServer, page
from hscheduler.report import table
from hscheduler.spec import Spec

EXIT_NOTHING_FINISHED = 1
PUBLISHED_EVERY_S = 1.0


def sweep(args: argparse.Namespace) -> int:
    """Run a sweep's file under a policy; print what happens, a table and the best point."""
    (policy,) = _one(policies_of(args.policy))
    spec, target, drawn = _spec(args), report_path(args.report), report_path(args.page, "page")
    with ExitStack() as stack:
        viewers = [] if args.quiet else [printer()]
        running: list[Sweep] = []
        if args.web is not None:
            server = PageServer(args.web)
            stack.callback(server.close)
            print(f"the sweep's page, while it runs: {server.address}", flush=True)
            viewers.append(publisher(server, running))
        running.append(Sweep(spec, policy, together(viewers)))
        try:
            found = running[0].run()
        finally:
            # Also of a sweep that was interrupted: what there is.
            if running[0].scheduler is not None:
                write_results(target, drawn, running[0].report())
    print(table([found]))
    best = found["best"]
    if best is None:
        print("no trial finished", file=sys.stderr)
        return EXIT_NOTHING_FINISHED
    point = ", ".join(
        f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in best["point"].items()
    )
    print(f"best: {best['job_id']} with {spec.sweep.metric} {best['loss']:.6g}: {point}")
    return 0


def compare(args: argparse.Namespace) -> int:
    """Run a sweep's file under each policy in turn; print one table, and each makespan over that of the first."""
    policies = policies_of(args.policies)
    spec, target, drawn = _spec(args), report_path(args.report), report_path(args.page, "page")
    reports: dict[str, Any] = {}
    for policy in policies:
        if not args.quiet:
            print(f"--- {policy}", flush=True)
        reports[policy] = Sweep(spec, policy, None if args.quiet else printer()).run()
    first = reports[policies[0]]
    ratios = {policy: round(found["makespan_s"] / first["makespan_s"], 4) for policy, found in reports.items()}
    if target is not None:
        summary = {"policies": reports, "makespan_over": {"of": policies[0], **ratios}}
        write_json_atomic(target, summary, mode=PUBLIC_MODE)
    if drawn is not None:
        write_bytes_atomic(drawn, page(reports).encode(), mode=PUBLIC_MODE)
    print(table(list(reports.values())))
    print(f"makespan over {policies[0]}'s: " + ", ".join(f"{policy} {ratio:.2f}" for policy, ratio in ratios.items()))
    return 0


def write_results(target: Path | None, drawn: Path | None, found: dict[str, Any]) -> None:
    """Write a sweep's report and its page, where they are wanted."""
    if target is not None:
        write_json_atomic(target, found, mode=PUBLIC_MODE)
    if drawn is not None:
        write_bytes_atomic(drawn, page({found["policy"]: found}).encode(), mode=PUBLIC_MODE)


def together(viewers: Sequence[OnEvent]) -> OnEvent:
    """Return what shows events to several."""

    def show(now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        for viewer in viewers:
            viewer(now_s, event, commands)

    return show


def publisher(server: PageServer, running: Sequence[Sweep]) -> OnEvent:
    """Return what gives a sweep's report to its page, at most once a second."""
    shown_s = -PUBLISHED_EVERY_S

    def show(now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        nonlocal shown_s
        if now_s - shown_s >= PUBLISHED_EVERY_S:
            shown_s = now_s
            found = running[0].report()
            server.show({found["policy"]: found})

    return show


def printer() -> OnEvent:
    """Return what prints a line for whatever somebody may want to see of an event."""

    def show(now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        lines = [command.sentence for command in commands if isinstance(command, e.Explain)]
        match event:
            case e.FeedbackGiven(job_id, value):
                lines.insert(0, f"{job_id} gives early feedback: {value:.6g}")
            case e.JobEnded(job_id, Phase.FINISHED, _):
                lines.insert(0, f"{job_id} finished")
            case e.JobEnded(job_id, Phase.FAILED, why):
                lines.insert(0, f"{job_id} failed: {why}")
            case e.GrowthFailed(job_id, _, why) | e.ShrinkFailed(job_id, _, why):
                lines.insert(0, f"{job_id} keeps its size: {why}")
        for line in lines:
            print(f"{now_s:8.2f} s  {line}", flush=True)

    return show


def _spec(args: argparse.Namespace) -> Spec:
    return with_flags(Spec.read(Path(args.spec)), trials=args.trials, seed=args.seed)


def _one(policies: list[str]) -> list[str]:
    if len(policies) != 1:
        raise ConfigError(f"policy is {','.join(policies)!r}, but a sweep has one; compare takes several")
    return policies
