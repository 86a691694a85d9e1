"""``hscheduler sweep`` and ``hscheduler compare``: sweeps of real jobs on this host."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from eps.cli.exits import EXIT_FAILED, EXIT_OK
from eps.errors import ConfigError
from eps.storage.atomic import PUBLIC_MODE, write_json_atomic
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
from hscheduler.cli.terminal import Screen, lines_of
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction
from hscheduler.live.checks import check_sweep
from hscheduler.live.on_yarn import placed
from hscheduler.live.scheduler import OnEvent
from hscheduler.live.sweep import Sweep
from hscheduler.page import PageServer, write_page
from hscheduler.reports.exporters import exporters
from hscheduler.reports.metrics import metrics_text
from hscheduler.reports.news import ends, failures, sentences
from hscheduler.reports.report import table
from hscheduler.reports.view import SweepView
from hscheduler.spec import Spec

#: What a sweep on YARN can be.
ONE_APPLICATION = "one-application"
SHAPES = ("applications", ONE_APPLICATION)


def sweep(args: argparse.Namespace) -> int:
    """Run a sweep's file under a policy; show it, print a table and the best point."""
    if args.resume is not None:
        from hscheduler.cli.commands import application

        return application.resume(args)
    if args.spec is None:
        raise ConfigError("SPEC.toml is missing: name the file of a sweep, or --resume SWEEP")
    if args.shape not in (None, *SHAPES):
        raise ConfigError(f"as is {args.shape!r}, but must be one of {', '.join(SHAPES)}")
    if args.shape == ONE_APPLICATION:
        from hscheduler.cli.commands import application

        return application.sweep(args)
    if args.scheduler or args.state:
        from hscheduler.cli.commands import remote

        return remote.sweep(args)
    for flag in ("detach", "name"):
        if getattr(args, flag):
            raise ConfigError(f"{flag} is for a sweep that a service runs: add --state DIR, or --scheduler HOST:PORT")
    (policy,) = _one(policies_of(DEFAULT_POLICY if args.policy is None else args.policy))
    spec, target, drawn = _spec(args), report_path(args.report), report_path(args.page, "page")
    if args.shape is not None and spec.job.get("on") != "yarn":
        raise ConfigError(f"as is {args.shape!r}, but that is for a sweep on YARN: add --on yarn")
    exports = exporters(args.tensorboard, args.mlflow)
    check_sweep(spec)
    viewers: list[OnEvent] = []
    running = Sweep(spec, policy, together(viewers))
    view = view_of(running, spec, policy)
    viewers.append(lambda now_s, event, commands: view.take(now_s, event, commands, running.state))
    with _interruption_told(running, target, drawn), ExitStack() as stack:
        server = None
        if args.web is not None:
            server = PageServer(args.web, lambda: metrics_text(view.look()))
            stack.callback(server.close)
            print(f"the sweep's page, while it runs: {server.address}", flush=True)
            # Before it has begun there is none.
            server.show(lambda: {} if running.scheduler is None else {policy: running.report()})
        if not args.quiet:
            viewers.append(_shown(stack, view, running, plain=args.plain))
        try:
            found = running.run()
        finally:
            # Also of a sweep that was interrupted: what there is.
            if running.scheduler is not None:
                write_results(target, drawn, running.report())
        if server is not None:
            server.end({policy: found})
    for export in exports:
        export(found)
    if args.quiet:
        tell_failures(found)
    return tell_best(found, drawn)


@contextmanager
def _interruption_told(running: Sweep, target: Path | None, drawn: Path | None) -> Iterator[None]:
    """Say what there is of a sweep that is interrupted, below all that was shown."""
    try:
        yield
    except KeyboardInterrupt:
        if running.scheduler is None:
            print("interrupted: no trial had begun", file=sys.stderr)
        else:
            tell_interrupted(running.report(), target, drawn)
        raise


def view_of(running: Sweep, spec: Spec, policy: str) -> SweepView:
    """Return the view of a sweep that has not begun."""
    settings = spec.sweep
    return SweepView(
        policy,
        settings.metric,
        Direction(settings.direction),
        settings.trials,
        lambda job_id: running.iterations.get(job_id, 0),
        running.result_of,
        running.trial_of,
    )


def _shown(stack: ExitStack, view: SweepView, running: Sweep, *, plain: bool) -> OnEvent:
    """Return what shows a sweep on standard output: a table where that is a terminal, lines where it is none."""
    if plain or not sys.stdout.isatty():
        return printer(running.name_of)
    screen = Screen(sys.stdout, lambda width, height: lines_of(view.look(), width, height))
    stack.callback(screen.close)

    def tell(now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        # Those that end with the sweep are told as one.
        over = [] if running.scheduler is not None and running.scheduler.has_ended else ends(commands)
        if lines := failures(commands, running.name_of) + over:
            screen.tell(lines)

    return tell


def compare(args: argparse.Namespace) -> int:
    """Run a sweep's file under each policy in turn; print one table, and each makespan over that of the first."""
    policies = policies_of(args.policies)
    spec, target, drawn = _spec(args), report_path(args.report), report_path(args.page, "page")
    check_sweep(spec)
    if spec.sweep.algorithm != "random" and spec.space:
        told = f"{spec.sweep.algorithm} learns from what a policy lets finish, so each policy tries points of its own"
        print(f'{told}; with algorithm = "random" all try the same', file=sys.stderr)
    reports: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for policy in policies:
        if not args.quiet:
            print(f"--- {policy}", flush=True)
        viewers: list[OnEvent] = []
        running = Sweep(spec, policy, together(viewers))
        viewers += [] if args.quiet else [printer(running.name_of)]
        with _interruption_told(running, target, drawn):
            try:
                reports[policy] = running.run()
                ratios[policy] = round(reports[policy]["makespan_s"] / reports[policies[0]]["makespan_s"], 4)
            finally:
                # Also where this policy was interrupted: what there is, the ones before it above all.
                if policy not in reports and running.scheduler is not None:
                    reports[policy] = running.report()
                if reports and target is not None:
                    summary = {"policies": reports, "makespan_over": {"of": policies[0], **ratios}}
                    write_json_atomic(target, summary, mode=PUBLIC_MODE)
                if reports and drawn is not None:
                    write_page(drawn, reports)
    if args.quiet:
        for found in reports.values():
            tell_failures(found)
    print(table(list(reports.values())))
    print(f"makespan over {policies[0]}'s: " + ", ".join(f"{policy} {ratio:.2f}" for policy, ratio in ratios.items()))
    barren = [policy for policy, found in reports.items() if found["best"] is None]
    if barren:
        print(f"no trial finished under {', '.join(barren)}", file=sys.stderr)
    return EXIT_FAILED if barren else EXIT_OK


def together(viewers: Sequence[OnEvent]) -> OnEvent:
    """Return what shows events to several."""

    def show(now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        for viewer in viewers:
            viewer(now_s, event, commands)

    return show


def printer(name_of: Callable[[str], str]) -> OnEvent:
    """Return what prints a line for whatever somebody may want to see of an event.

    Parameters
    ----------
    name_of : callable
        Trial -> its name under ``EPS_HOME``.
    """

    def show(now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        for line in failures(commands, name_of) + sentences(event, commands):
            print(f"{now_s:8.2f} s  {line}", flush=True)

    return show


def _spec(args: argparse.Namespace) -> Spec:
    return placed(with_flags(Spec.read(Path(args.spec)), trials=args.trials, seed=args.seed), args.on)


def _one(policies: list[str]) -> list[str]:
    if len(policies) != 1:
        raise ConfigError(f"policy is {','.join(policies)!r}, but a sweep has one; compare takes several")
    return policies
