"""``hscheduler sweep``, ``compare`` and ``sweeps``: sweeps of real jobs on this host, in a service or on YARN."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eps.cli.exits import EXIT_FAILED, EXIT_OK
from eps.errors import ConfigError, EpsError, StorageError
from eps.job.display import ago_text
from eps.job.display import table as columns
from eps.job.yarn.sweeps import report_of
from eps.storage.atomic import PUBLIC_MODE, write_json_atomic
from hscheduler.application.monitor import ApplicationDir, find_sweep, submitted_sweeps
from hscheduler.cli.commands.common import (
    DEFAULT_POLICY,
    client_of,
    flags_of,
    policies_of,
    policy_of,
    print_best,
    print_failures,
    print_interrupted,
    report_path,
    say,
    staged_tables,
    with_flags,
    write_results,
)
from hscheduler.cli.commands.sizes import beginnings, beginnings_text, best_of, check_flag
from hscheduler.cli.sweep_table import SweepTable
from hscheduler.cli.terminal import Screen, is_live
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.words import counted
from hscheduler.live.sweep import SWEEP, trial_prefix
from hscheduler.page import STOPPED, PageServer, Stops, write_page
from hscheduler.reports.exporters import Export, exporters
from hscheduler.reports.measures import Target, no_regret_text, with_regret, with_target
from hscheduler.reports.metrics import metrics_text
from hscheduler.reports.news import ends, failures
from hscheduler.reports.report import measures_table, sizes_text, table
from hscheduler.runners import (
    Here,
    InService,
    Interrupted,
    OnYarn,
    Outcome,
    Over,
    Resumed,
    ResumedHere,
    Runner,
    Viewers,
)
from hscheduler.service.recorded_sweep import RecordedSweep, SweepState, recorded_sweeps
from hscheduler.simulator.static_sizes import POLICY, with_static
from hscheduler.spec import Spec

#: Number of sweeps that are listed without --all.
LATEST_SWEEPS = 20
#: Flags that a kind of sweep does not support, and why.
_NOT_HERE = "is only for sweeps in a service: add --state DIR or --scheduler HOST:PORT"
_NOT_POSSIBLE: dict[str, dict[str, str]] = {
    "here": {"detach": _NOT_HERE},
    "service": {
        "web": "is not possible with a service: use hscheduler serve --web",
        "policy": "is not possible with a service: use hscheduler serve --policy",
        "on": "is not possible with a service: use hscheduler serve --on",
    },
    "yarn": {
        "web": "is not possible on YARN, which shows the sweep's page: its address is printed",
        "detach": "is only for sweeps in a service; on YARN each sweep is a separate application",
    },
    "resume": dict.fromkeys(
        ("spec", "policy", "stop", "on", "trials", "seed", "scheduler", "state", "name", "detach"),
        "is only for new sweeps: --resume continues a sweep as it was submitted",
    ),
}


@dataclass(frozen=True)
class Wanted:
    """The results that the user requests: report, page, exports, and output."""

    report: Path | None
    page: Path | None
    exports: Sequence[Export]
    quiet: bool
    target: Target | None

    @classmethod
    def of(cls, args: argparse.Namespace, metric: str) -> Wanted:
        """Return what the flags request.

        Parameters
        ----------
        args : Namespace
        metric : str
            That of the sweep; empty if it is not known here.

        Raises
        ------
        ConfigError
            A file cannot be written, or the sweep cannot reach the target.
        """
        target, drawn = report_path(args.report), report_path(args.page, "page")
        found = exporters(args.tensorboard, args.mlflow, args.optuna_storage)
        return cls(target, drawn, found, args.quiet, _target(args, metric))


def sweep(args: argparse.Namespace) -> int:
    """Run a sweep's file under a policy; show its progress, print a table and the best point."""
    if args.resume is not None:
        return _resume(args)
    if args.spec is None:
        raise ConfigError("SPEC.toml is missing: name the file of a sweep, or --resume SWEEP")
    if args.scheduler or args.state:
        return _in_service(args)
    spec = _spec(args)
    policy = policy_of(DEFAULT_POLICY if args.policy is None else args.policy)
    is_on_yarn = spec.job.get("on") == "yarn"
    _check_flags(args, "yarn" if is_on_yarn else "here")
    wanted = Wanted.of(args, spec.sweep.metric)
    if is_on_yarn:
        return _run(OnYarn(spec, policy, args.name or ""), wanted, _line_viewers(args))
    with RecordedSweep.create(args.name or "", Path(args.spec).stem) as place:
        return _here(args, lambda: Here(spec, policy, place=place, report=wanted.report), place, wanted)


def _resume(args: argparse.Namespace) -> int:
    """Continue a sweep, or show the results of one that has ended."""
    _check_flags(args, "resume")
    place = RecordedSweep.find(args.resume)
    if place is None:
        _check_flags(args, "yarn")
        return _run(Resumed(find_sweep(args.resume)), Wanted.of(args, ""), _line_viewers(args))
    with place.lock():
        wanted = Wanted.of(args, "" if args.target is None else place.settings()[1].sweep.metric)
        if place.has_ended():
            if args.web is not None:
                raise ConfigError(f"web is for sweeps that run, but {place.name} has ended: see hscheduler page")
            return _run(Over(place), wanted, _line_viewers(args))
        if not args.quiet:
            _say_how_far(place)
        return _here(args, lambda: ResumedHere(place, wanted.report), place, wanted)


def _say_how_far(place: RecordedSweep) -> None:
    """Say what an interrupted sweep has, by the last report that was written."""
    with suppress(StorageError):
        trials = (place.latest_report() or {}).get("trials", ())
        left = [trial for trial in trials if not Phase(trial["phase"]).ended]
        begun = sum(bool(trial["iterations"]) for trial in left)
        had = f"{counted(len(trials) - len(left), 'trial')} had ended, {begun} more had begun"
        say(f"sweep {place.name} continues: {had}; those resume from their latest checkpoints, if they have any")


def _here(args: argparse.Namespace, make: Callable[[], Here], place: RecordedSweep, wanted: Wanted) -> int:
    """Run the sweep that is made on this host to its end; show it as the flags say."""
    with ExitStack() as stack:
        made: list[Here] = []
        # First, because a port in use must leave no record.
        server = None
        if args.web is not None:
            server = PageServer(args.web, lambda: metrics_text(made[0].look()) if made else "")
            stack.callback(server.close)
        made.append(here := make())
        policy, screen = here.policy, stack.enter_context(ExitStack())
        if not args.quiet and not _is_shown_as_table(args):
            say(f"sweep {place.name}; if it is interrupted, {place.resume_command} continues it")
        if server is not None:
            print(f"the sweep's page, while it runs: {server.link}", flush=True)
            stops = Stops(
                lambda trial: here.stop_trial(trial, STOPPED), lambda name: here.stop(STOPPED), lambda: [place.name]
            )
            # There is no report before the start.
            server.show(lambda: {} if (found := here.report()) is None else {policy: found}, stops=stops)
        return _run(here, wanted, _viewers(screen, here, args), server, screen.close)


def _in_service(args: argparse.Namespace) -> int:
    """Run a sweep in a service; show it to its end, or return once it is accepted (``--detach``)."""
    _check_flags(args, "service")
    for flag in ("report", "page", "tensorboard", "mlflow", "optuna_storage", "target"):
        if args.detach and getattr(args, flag):
            raise ConfigError(f"{flag} is not possible with detach, which does not wait for results")
    spec = with_flags(Spec.read(Path(args.spec)), trials=args.trials, seed=args.seed, stop=args.stop)
    spec.check_rungs()
    wanted = Wanted.of(args, spec.sweep.metric)
    with client_of(args) as client:
        runner = InService(client, staged_tables(args, spec.tables()), flags_of(args), args.name or "")
        if not args.detach:
            return _run(runner, wanted, _line_viewers(args))
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


def _run(
    runner: Runner,
    wanted: Wanted,
    viewers: Viewers,
    server: PageServer | None = None,
    close_screen: Callable[[], None] = lambda: None,
) -> int:
    """Run a sweep to its end; write and print its results below the shown progress; return the exit code."""
    try:
        try:
            outcome = runner.run(viewers)
        finally:
            close_screen()
    except Interrupted as error:
        _print_interrupted(error.outcome, wanted, server)
        raise
    report = outcome.report
    if report is not None:
        report = with_target(report, wanted.target)
        if wanted.page is not None or server is not None:
            report = with_static(report)
        outcome = _written(outcome, report, wanted.report, wanted.page)
        if server is not None:
            server.end({report["policy"]: report})
        for export in wanted.exports:
            export(report)
        if wanted.quiet:
            print_failures(report)
    code = EXIT_FAILED if report is None else print_best(report, wanted.page)
    return EXIT_FAILED if _print_problems(outcome) else code


def _written(outcome: Outcome, report: dict[str, Any], target: Path | None, drawn: Path | None) -> Outcome:
    """Write a report and its page; return the outcome, with the problem if one cannot be written."""
    try:
        write_results(target, drawn, report)
    except StorageError as error:
        if not outcome.kept:
            raise
        return replace(outcome, problems=(*outcome.problems, f"{error}; {outcome.kept}"))
    return outcome


def _print_problems(outcome: Outcome) -> bool:
    """Print the problems and hints of a sweep; return whether there was a problem."""
    wrong = [*([] if outcome.error is None else [str(outcome.error)]), *outcome.problems]
    for sentence in wrong:
        print(f"hscheduler: {sentence}", file=sys.stderr)
    for sentence in outcome.hints:
        print(sentence, file=sys.stderr)
    return bool(wrong)


def _print_interrupted(outcome: Outcome, wanted: Wanted, server: PageServer | None) -> None:
    """Write, print and serve the results of an interrupted sweep, below the shown progress."""
    if (report := outcome.report) is not None:
        report = with_target(report, wanted.target)
        written = _written(outcome, report, wanted.report, wanted.page)
        print_interrupted(report, *((wanted.report, wanted.page) if written is outcome else (None, None)))
        if server is not None:
            server.end({report["policy"]: report})
        outcome = written
    _print_problems(outcome)


def _line_viewers(args: argparse.Namespace) -> Viewers:
    """Return viewers that print lines; with ``--quiet`` without news."""
    return Viewers(say, (lambda line: None) if args.quiet else say)


def _is_shown_as_table(args: argparse.Namespace) -> bool:
    return not args.quiet and not args.plain and is_live(sys.stdout)


def _viewers(stack: ExitStack, here: Here, args: argparse.Namespace) -> Viewers:
    """Return viewers for standard output: a live table on a terminal, else lines."""
    if not _is_shown_as_table(args):
        return _line_viewers(args)
    screen = Screen(sys.stdout, lambda: SweepTable(here.look()))
    stack.callback(screen.close)

    def tell(now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        # The jobs that end with the sweep are not listed one by one.
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
    aim = _target(args, spec.sweep.metric)
    check_flag(args.size, policies, spec)
    runner: type[OnYarn] | type[Here] = OnYarn if spec.job.get("on") == "yarn" else Here
    runners: dict[str, Runner] = {policy: runner(spec, policy) for policy in policies}
    if spec.sweep.algorithm != "random" and spec.space:
        told = f"{spec.sweep.algorithm} learns from finished trials, so each policy tries different points"
        print(f'{told}; use algorithm = "random" for the same points', file=sys.stderr)
    reports: dict[str, Any] = {}
    ratios: dict[str, float] = {}

    def write() -> None:
        # Called after each policy, so that an interrupt keeps the reports so far.
        if reports and target is not None:
            over = {"of": policies[0], **ratios}
            summary = {"policies": reports, "makespan_over": over, "begins_with": beginnings(spec, reports)}
            write_json_atomic(target, summary, mode=PUBLIC_MODE)
        if reports and drawn is not None:
            write_page(drawn, reports)

    has_failed = False
    for policy, each in runners.items():
        if not args.quiet:
            print(f"--- {policy}", flush=True)
        try:
            if policy == POLICY and args.size:
                outcome = _at_best_size(args, spec, aim)
            else:
                outcome = each.run(_line_viewers(args))
        except Interrupted as error:
            found = error.outcome.report
            if found is not None:
                reports[policy] = with_target(found, aim)
                print_interrupted(found, target, drawn)
            write()
            _print_problems(error.outcome)
            raise
        has_failed |= _print_problems(outcome)
        if outcome.report is None:
            return EXIT_FAILED
        reports[policy] = with_target(outcome.report, aim)
        reports.update(with_regret(reports))
        ratios[policy] = round(reports[policy]["makespan_s"] / reports[policies[0]]["makespan_s"], 4)
        write()
    if args.quiet:
        for found in reports.values():
            print_failures(found)
    print(table(list(reports.values())))
    print(measures_table(list(reports.values())))
    if told := no_regret_text(reports):
        print(told)
    for found in reports.values():
        if "sizes" in found:
            print(sizes_text(found))
    if told := beginnings_text(beginnings(spec, reports)):
        print(told)
    print(f"makespan over {policies[0]}'s: " + ", ".join(f"{policy} {ratio:.2f}" for policy, ratio in ratios.items()))
    barren = [policy for policy, found in reports.items() if found["best"] is None]
    if barren:
        print(f"no trial finished under {', '.join(barren)}", file=sys.stderr)
    return EXIT_FAILED if barren or has_failed else EXIT_OK


def _at_best_size(args: argparse.Namespace, spec: Spec, aim: Target | None) -> Outcome:
    """Return the outcome of the best fixed size, with what the others found.  Raises as :meth:`Runner.run`."""
    problems: list[str] = []
    last = Outcome(None)

    def run(size: str, sized: Spec) -> dict[str, Any] | None:
        nonlocal last
        if not args.quiet:
            print(f"--- {POLICY}, {size}", flush=True)
        last = Here(sized, POLICY).run(_line_viewers(args))
        problems.extend(f"{size}: {problem}" for problem in last.problems)
        return None if last.report is None else with_target(last.report, aim)

    found = best_of(spec, run)
    return last if found is None else Outcome(found, last.error, tuple(problems), last.hints)


def sweeps(args: argparse.Namespace) -> int:
    """List the sweeps of this machine, here and on YARN, or remove one."""
    if args.remove is not None:
        return _remove(args.remove)
    rows: list[tuple[str, ...]] = [("SWEEP", "WHERE", "STATE", "DONE", "RESULTS", "BEST", "CHANGED", "FOLDER")]
    problems: list[str] = []
    known: list[RecordedSweep | ApplicationDir] = [*recorded_sweeps(), *submitted_sweeps()]
    known.sort(key=lambda each: -each.changed_s())
    shown = known if args.all else known[:LATEST_SWEEPS]
    for each in shown:
        row, problem = _row_here(each) if isinstance(each, RecordedSweep) else _row_on_yarn(each)
        rows.append((*row, ago_text(each.changed_s()), str(each.path)))
        problems += [problem] if problem else []
    if shown:
        print(columns(rows, indent=""))
        more = f"; {len(known) - len(shown)} earlier ones are not shown (--all)" if len(known) > len(shown) else ""
        print(f"hscheduler sweep --resume SWEEP continues one, or writes its results{more}")
    else:
        print("no sweep was run here, or submitted to YARN from here")
    for why in dict.fromkeys(problems):
        print(f"hscheduler: {why}", file=sys.stderr)
    return EXIT_OK


def _row_here(known: RecordedSweep) -> tuple[tuple[str, ...], str]:
    """Return the first columns of a sweep on this host, and the problem with its files, if any."""
    try:
        found = known.latest_report()
        return (known.name, "here", str(known.state()), *_done_and_best(found, "here")), ""
    except StorageError as error:
        # A damaged report does not hide the other sweeps.
        return (known.name, "here", "unreadable", "", "", ""), str(error)


def _row_on_yarn(known: ApplicationDir) -> tuple[tuple[str, ...], str]:
    """Return the first columns of a sweep on YARN, and why something of it is unknown, if it is."""
    name, state, done, results = "-", "unreadable", "", ""
    try:
        application, ended = known.application(), known.saved()
        if application is None:
            return (known.sweep_id, name, "removed", "", "", ""), ""
        name, state = application.application_id, "" if ended is None else ended.state
        if ended is not None or not application.shared:
            report = None if ended is None else ended.reports.get(SWEEP)
            return (known.sweep_id, name, state, *_done_and_best(report, "fetched")), ""
        state, results = "YARN unreachable", "followed" if known.service.is_running() else "to be fetched"
        found = report_of(application)
        if (found is None or found.ended) and (report := known.saved_reports().get(SWEEP)) is not None:
            # Its application ended before it.
            return (known.sweep_id, name, str(SweepState.INTERRUPTED), *_done_and_best(report, "fetched")), ""
        state = "unknown to YARN" if found is None else found.state.lower()
        done = "" if found is None or found.ended else f"{found.progress:.0%}"
    except EpsError as error:
        # A damaged record or an unreachable cluster does not hide the other sweeps.
        return (known.sweep_id, name, state, done, results, ""), str(error)
    return (known.sweep_id, name, state, done, results, ""), ""


def _done_and_best(report: Mapping[str, Any] | None, where: str) -> tuple[str, str, str]:
    """Return how many trials of all are over, where the results are, and the best one, as of a report."""
    if report is None:
        return "", where, ""
    over = sum(report["phases"].values())
    settings = (report.get("spec") or {}).get("sweep", {})
    best = report["best"]
    shown = "" if best is None else f"{best['metric']} {best['loss']:.6g} ({best['job_id']})"
    return f"{over}/{max(len(report['trials']), settings.get('trials', 0))}", where, shown


def _remove(name: str) -> int:
    """Remove the folder of a sweep on this host, unless it runs; its jobs stay."""
    known = RecordedSweep.find(name)
    if known is None:
        found = find_sweep(name)
        raise ConfigError(
            f"remove is {name!r}, but must be a sweep on this host: eps prune sweeps/{found.sweep_id} removes it"
        )
    jobs = known.jobs()
    known.remove()
    # An interrupted trial can be resumed as a job, by its checkpoint.
    told = (
        f"; models and checkpoints of its trials stay: eps prune {trial_prefix(name)} --resumable removes them"
        if jobs
        else ""
    )
    print(f"sweep {name} is removed{told}")
    return EXIT_OK


def _spec(args: argparse.Namespace) -> Spec:
    """Return a sweep's file with the flags in place of its settings."""
    spec = with_flags(Spec.read(Path(args.spec)), trials=args.trials, seed=args.seed, stop=args.stop)
    spec.check_rungs()
    return spec if args.on is None else dataclasses.replace(spec, job={**spec.job, "on": args.on})


def _target(args: argparse.Namespace, metric: str) -> Target | None:
    """Return the target that the flags name, before anything runs.

    Raises
    ------
    ConfigError
        A sweep with this metric cannot reach it; if the metric is empty, it is not known here.
    """
    if args.target is None:
        return None
    target = Target.of(args.target)
    if metric:
        target.check(metric)
    return target
