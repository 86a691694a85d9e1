"""``hscheduler sweep``, ``compare`` and ``sweeps``: sweeps of real jobs on this host, in a service, on YARN."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eps.cli.exits import EXIT_FAILED, EXIT_OK
from eps.errors import ConfigError, EpsError
from eps.job.display import table as columns
from eps.job.yarn.sweeps import report_of
from eps.storage.atomic import PUBLIC_MODE, write_json_atomic
from hscheduler.application.follow import known_sweep, known_sweeps
from hscheduler.cli.commands.common import (
    DEFAULT_POLICY,
    client_of,
    flags_of,
    policies_of,
    report_path,
    say,
    tell_best,
    tell_failures,
    tell_interrupted,
    travelling,
    with_flags,
    write_results,
)
from hscheduler.cli.terminal import Screen, lines_of
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction
from hscheduler.page import PageServer, write_page
from hscheduler.reports.exporters import Export, exporters
from hscheduler.reports.metrics import metrics_text
from hscheduler.reports.news import ends, failures
from hscheduler.reports.report import table
from hscheduler.reports.view import SweepView
from hscheduler.runners import Again, Here, InService, Interrupted, OnYarn, Outcome, Runner, Viewers
from hscheduler.spec import Spec

#: Flags that a sweep does not have in some place, and why.
_NOT_HERE = "is for a sweep that a service runs: add --state DIR, or --scheduler HOST:PORT"
_NOT_POSSIBLE: dict[str, dict[str, str]] = {
    "here": {"detach": _NOT_HERE, "name": _NOT_HERE},
    "service": {
        "web": "is not possible with a service, which has a page of its own: hscheduler serve --web",
        "policy": "is not possible with a service, which has one of its own: hscheduler serve --policy",
    },
    "yarn": {
        "web": "is not possible on YARN, which shows the sweep's page: its address is printed",
        **dict.fromkeys(
            ("detach", "name"), "is for a sweep that a service runs; on YARN the sweep is an application of its own"
        ),
    },
    "again": {
        **dict.fromkeys(
            ("spec", "policy", "on", "trials", "seed", "scheduler", "state", "name", "detach"),
            "is for a sweep that begins; --resume goes on with one as it was submitted",
        ),
        "web": "is not possible on YARN, which shows the sweep's page: its address is printed",
    },
}


@dataclass(frozen=True)
class Wanted:
    """What the user of a sweep wants to have of it."""

    report: Path | None
    page: Path | None
    exports: Sequence[Export]
    quiet: bool

    @classmethod
    def of(cls, args: argparse.Namespace) -> Wanted:
        """Return what the flags say.  Raises ConfigError where that cannot be had."""
        target, drawn = report_path(args.report), report_path(args.page, "page")
        return cls(target, drawn, exporters(args.tensorboard, args.mlflow), args.quiet)


def sweep(args: argparse.Namespace) -> int:
    """Run a sweep's file under a policy; show it, print a table and the best point."""
    if args.resume is not None:
        _check_flags(args, "again")
        return _to_its_end(Again(known_sweep(args.resume)), Wanted.of(args), _lines(args))
    if args.spec is None:
        raise ConfigError("SPEC.toml is missing: name the file of a sweep, or --resume SWEEP")
    if args.scheduler or args.state:
        return _in_service(args)
    spec, policy = _spec(args), _one(policies_of(DEFAULT_POLICY if args.policy is None else args.policy))
    if spec.job.get("on") == "yarn":
        _check_flags(args, "yarn")
        return _to_its_end(OnYarn(spec, policy), Wanted.of(args), _lines(args))
    _check_flags(args, "here")
    wanted, here = Wanted.of(args), Here(spec, policy)
    with ExitStack() as stack:
        view, server, screen = view_of(here, policy), None, stack.enter_context(ExitStack())
        here.viewers.append(lambda now_s, event, commands: view.take(now_s, event, commands, here.sweep.state))
        if args.web is not None:
            server = PageServer(args.web, lambda: metrics_text(view.look()))
            stack.callback(server.close)
            print(f"the sweep's page, while it runs: {server.address}", flush=True)
            # Before it has begun there is none.
            server.show(lambda: {} if (found := here.report()) is None else {policy: found})
        return _to_its_end(here, wanted, _shown(screen, view, here, args), server, screen.close)


def _in_service(args: argparse.Namespace) -> int:
    """Have a service run a sweep; return as soon as it has it, or show it to its end."""
    _check_flags(args, "service")
    for flag in ("report", "page", "tensorboard", "mlflow"):
        if args.detach and getattr(args, flag):
            raise ConfigError(f"{flag} is not possible with detach, which waits for nothing to write")
    wanted = Wanted.of(args)
    spec = with_flags(Spec.read(Path(args.spec)), trials=args.trials, seed=args.seed)
    with client_of(args) as client:
        runner = InService(client, travelling(args, spec.tables()), flags_of(args), args.name or "")
        if not args.detach:
            return _to_its_end(runner, wanted, _lines(args))
    if runner.was_over:
        print(runner.was_over, file=sys.stderr)
        print(f"its results: hscheduler results {runner.name}{flags_of(args)}")
    else:
        print(f"the service runs sweep {runner.name}; {runner.where}")
    return EXIT_OK


def _check_flags(args: argparse.Namespace, place: str) -> None:
    for flag, why in _NOT_POSSIBLE[place].items():
        given = getattr(args, flag)
        if given is not None and given is not False and given != "":
            raise ConfigError(f"{'SPEC.toml' if flag == 'spec' else flag} {why}")


def _to_its_end(
    runner: Runner,
    wanted: Wanted,
    viewers: Viewers,
    server: PageServer | None = None,
    close_screen: Callable[[], None] = lambda: None,
) -> int:
    """Run a sweep, and write and print what it has brought, below what was shown; return the exit code."""
    try:
        try:
            outcome = runner.run(viewers)
        finally:
            close_screen()
    except Interrupted as error:
        _tell_interrupted(error.outcome, wanted.report, wanted.page)
        raise
    report = outcome.report
    if report is not None:
        write_results(wanted.report, wanted.page, report)
        if server is not None:
            server.end({report["policy"]: report})
        for export in wanted.exports:
            export(report)
        if wanted.quiet:
            tell_failures(report)
    code = EXIT_FAILED if report is None else tell_best(report, wanted.page)
    return EXIT_FAILED if _tell_problems(outcome) else code


def _tell_problems(outcome: Outcome) -> bool:
    """Print what went wrong with a sweep, and what there is to know; return whether anything went wrong."""
    wrong = [*([] if outcome.error is None else [str(outcome.error)]), *outcome.problems]
    for sentence in wrong:
        print(f"hscheduler: {sentence}", file=sys.stderr)
    for sentence in outcome.hints:
        print(sentence, file=sys.stderr)
    return bool(wrong)


def _tell_interrupted(outcome: Outcome, target: Path | None, drawn: Path | None) -> None:
    """Write and print what there is of a sweep that was interrupted, below all that was shown."""
    if outcome.report is not None:
        write_results(target, drawn, outcome.report)
        tell_interrupted(outcome.report, target, drawn)
    _tell_problems(outcome)


def view_of(here: Here, policy: str) -> SweepView:
    """Return the view of a sweep that has not begun."""
    sweep = here.sweep
    settings = sweep.spec.sweep
    return SweepView(
        policy,
        settings.metric,
        Direction(settings.direction),
        settings.trials,
        lambda job_id: sweep.iterations.get(job_id, 0),
        sweep.result_of,
        sweep.trial_of,
    )


def _lines(args: argparse.Namespace) -> Viewers:
    """Return what prints where a sweep runs, and what happens unless that is not wanted."""
    return Viewers(say, (lambda line: None) if args.quiet else say)


def _shown(stack: ExitStack, view: SweepView, here: Here, args: argparse.Namespace) -> Viewers:
    """Return what shows a sweep on standard output: a table where that is a terminal, lines where it is none."""
    if args.quiet or args.plain or not sys.stdout.isatty():
        return _lines(args)
    screen = Screen(sys.stdout, lambda width, height: lines_of(view.look(), width, height))
    stack.callback(screen.close)

    def tell(now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        # Those that end with the sweep are told as one.
        scheduler = here.sweep.scheduler
        over = [] if scheduler is not None and scheduler.has_ended else ends(commands)
        if lines := failures(commands, here.sweep.name_of) + over:
            screen.tell(lines)

    here.viewers.append(tell)
    return Viewers(say, lambda line: None)


def compare(args: argparse.Namespace) -> int:
    """Run a sweep's file under each policy in turn; print one table, and each makespan over that of the first."""
    policies = policies_of(args.policies)
    spec, target, drawn = _spec(args), report_path(args.report), report_path(args.page, "page")
    runner: type[OnYarn] | type[Here] = OnYarn if spec.job.get("on") == "yarn" else Here
    runners: dict[str, Runner] = {policy: runner(spec, policy) for policy in policies}
    if spec.sweep.algorithm != "random" and spec.space:
        told = f"{spec.sweep.algorithm} learns from what a policy lets finish, so each policy tries points of its own"
        print(f'{told}; with algorithm = "random" all try the same', file=sys.stderr)
    reports: dict[str, Any] = {}
    ratios: dict[str, float] = {}

    def write() -> None:
        # Also where a policy is interrupted: what there is, the ones before it above all.
        if reports and target is not None:
            summary = {"policies": reports, "makespan_over": {"of": policies[0], **ratios}}
            write_json_atomic(target, summary, mode=PUBLIC_MODE)
        if reports and drawn is not None:
            write_page(drawn, reports)

    has_failed = False
    for policy, each in runners.items():
        if not args.quiet:
            print(f"--- {policy}", flush=True)
        try:
            outcome = each.run(_lines(args))
        except Interrupted as error:
            found = error.outcome.report
            if found is not None:
                reports[policy] = found
                tell_interrupted(found, target, drawn)
            write()
            _tell_problems(error.outcome)
            raise
        has_failed |= _tell_problems(outcome)
        if outcome.report is None:
            return EXIT_FAILED
        reports[policy] = outcome.report
        ratios[policy] = round(reports[policy]["makespan_s"] / reports[policies[0]]["makespan_s"], 4)
        write()
    if args.quiet:
        for found in reports.values():
            tell_failures(found)
    print(table(list(reports.values())))
    print(f"makespan over {policies[0]}'s: " + ", ".join(f"{policy} {ratio:.2f}" for policy, ratio in ratios.items()))
    barren = [policy for policy, found in reports.items() if found["best"] is None]
    if barren:
        print(f"no trial finished under {', '.join(barren)}", file=sys.stderr)
    return EXIT_FAILED if barren or has_failed else EXIT_OK


def sweeps(args: argparse.Namespace) -> int:
    """List the sweeps that were submitted to YARN from this machine."""
    rows = [("SWEEP", "APPLICATION", "STATE", "DONE", "RESULTS")]
    over, problems = 0, []
    for known in known_sweeps():
        name, state, done, results = "-", "unreadable", "", ""
        try:
            application, ended = known.application(), known.kept()
            if application is None:
                continue
            name, state = application.application_id, "" if ended is None else ended.state
            if ended is not None or not application.shared:
                over += not args.all
                if args.all:
                    rows.append((known.sweep_id, name, state, "", "fetched"))
                continue
            state, results = "YARN is away", "followed" if known.service.is_running() else "to be fetched"
            found = report_of(application)
            state = "unknown to YARN" if found is None else found.state.lower()
            done = "" if found is None or found.ended else f"{found.progress:.0%}"
        except EpsError as error:
            # One that is damaged, or whose cluster is away, does not hide the others.
            problems.append(str(error))
        rows.append((known.sweep_id, name, state, done, results))
    more = f"{over} whose results are here are not shown (--all)" if over else ""
    if rows[1:]:
        print(columns(rows, indent=""))
        print(f"hscheduler sweep --resume SWEEP follows one again, or fetches its results{more and f'; {more}'}")
    else:
        print(f"no sweep on YARN to follow or fetch{more and f'; {more}'}")
    for why in dict.fromkeys(problems):
        print(f"hscheduler: {why}", file=sys.stderr)
    return EXIT_OK


def _spec(args: argparse.Namespace) -> Spec:
    """Return a sweep's file with what flags replace of it, where its jobs run among that."""
    spec = with_flags(Spec.read(Path(args.spec)), trials=args.trials, seed=args.seed)
    return spec if args.on is None else dataclasses.replace(spec, job={**spec.job, "on": args.on})


def _one(policies: list[str]) -> str:
    if len(policies) != 1:
        raise ConfigError(f"policy is {','.join(policies)!r}, but a sweep has one; compare takes several")
    return policies[0]
