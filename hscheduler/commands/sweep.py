"""``hscheduler sweep`` and ``hscheduler compare``: sweeps of real jobs on this host."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from eps.errors import ConfigError
from eps.storage.atomic import write_bytes_atomic, write_json_atomic
from hscheduler.commands.simulate import PUBLIC_MODE, policies_of, report_path, with_flags
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction
from hscheduler.exporters import exporters
from hscheduler.live.scheduler import OnEvent
from hscheduler.live.sweep import Sweep
from hscheduler.metrics import metrics_text
from hscheduler.news import failures, sentences
from hscheduler.page import PageServer, page
from hscheduler.report import point_text, table
from hscheduler.spec import Spec
from hscheduler.terminal import Screen, lines_of
from hscheduler.view import SweepView

EXIT_NOTHING_FINISHED = 1
PUBLISHED_EVERY_S = 1.0


def sweep(args: argparse.Namespace) -> int:
    """Run a sweep's file under a policy; show it, print a table and the best point."""
    if args.scheduler or args.state:
        from hscheduler.commands import remote

        return remote.sweep(args)
    (policy,) = _one(policies_of(args.policy))
    spec, target, drawn = _spec(args), report_path(args.report), report_path(args.page, "page")
    exports = exporters(args.tensorboard, args.mlflow)
    viewers: list[OnEvent] = []
    running = Sweep(spec, policy, together(viewers))
    view = view_of(running, spec, policy)
    viewers.append(lambda now_s, event, commands: view.take(now_s, event, commands, running.state))
    with ExitStack() as stack:
        server = None
        if args.web is not None:
            server = PageServer(args.web, lambda: metrics_text(view.look()))
            stack.callback(server.close)
            print(f"the sweep's page, while it runs: {server.address}", flush=True)
            viewers.append(publisher(server, running))
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
    return tell_best(found, spec.sweep.metric, drawn)


def tell_best(found: Mapping[str, Any], metric: str, drawn: Path | None) -> int:
    """Print a sweep's table, its best point, and where its page is; return the exit code."""
    print(table([found]))
    best = found["best"]
    if best is None:
        print("no trial finished", file=sys.stderr)
        return EXIT_NOTHING_FINISHED
    print(f"best: {best['job_id']} with {metric} {best['loss']:.6g}: {point_text(best['point'])}")
    if drawn is not None:
        print(f"page: {drawn.absolute()}")
    return 0


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
    )


def _shown(stack: ExitStack, view: SweepView, running: Sweep, *, plain: bool) -> OnEvent:
    """Return what shows a sweep on standard output: a table where that is a terminal, lines where it is none."""
    if plain or not sys.stdout.isatty():
        return printer(running.name_of)
    screen = Screen(sys.stdout, lambda width, height: lines_of(view.look(), width, height))
    stack.callback(screen.close)

    def tell(now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        if lines := failures(commands, running.name_of):
            screen.tell(lines)

    return tell


def compare(args: argparse.Namespace) -> int:
    """Run a sweep's file under each policy in turn; print one table, and each makespan over that of the first."""
    policies = policies_of(args.policies)
    spec, target, drawn = _spec(args), report_path(args.report), report_path(args.page, "page")
    reports: dict[str, Any] = {}
    for policy in policies:
        if not args.quiet:
            print(f"--- {policy}", flush=True)
        viewers: list[OnEvent] = []
        running = Sweep(spec, policy, together(viewers))
        viewers += [] if args.quiet else [printer(running.name_of)]
        reports[policy] = running.run()
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


def publisher(server: PageServer, running: Sweep) -> OnEvent:
    """Return what gives a sweep's report to its page, at most once a second."""
    shown_s = -PUBLISHED_EVERY_S

    def show(now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        nonlocal shown_s
        if now_s - shown_s >= PUBLISHED_EVERY_S:
            shown_s = now_s
            found = running.report()
            server.show({found["policy"]: found})

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
    return with_flags(Spec.read(Path(args.spec)), trials=args.trials, seed=args.seed)


def _one(policies: list[str]) -> list[str]:
    if len(policies) != 1:
        raise ConfigError(f"policy is {','.join(policies)!r}, but a sweep has one; compare takes several")
    return policies
