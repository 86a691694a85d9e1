"""``hscheduler simulate``: sweeps in virtual time; ``hscheduler fit``: models of speed and costs for them."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eps.cli.exits import EXIT_OK
from eps.errors import ConfigError
from eps.storage.atomic import PUBLIC_MODE, write_json_atomic
from hscheduler.cli.commands.common import DEFAULT_POLICY, policies_of, report_path, with_flags
from hscheduler.cli.commands.sizes import best_of, check_flag
from hscheduler.live.checks import check_sizes
from hscheduler.page import write_page
from hscheduler.reports.measures import Target, with_target
from hscheduler.reports.report import measures_table, sizes_text, table
from hscheduler.simulator import paper, pollux
from hscheduler.simulator.fit import Model, fit, is_simulated, reports_in, spec_of
from hscheduler.simulator.run import simulate, simulate_jobs, simulate_like
from hscheduler.simulator.static_sizes import POLICY
from hscheduler.simulator.traces import columns_of, read_philly, workload
from hscheduler.spec import Spec


def run(args: argparse.Namespace) -> int:
    """Simulate a sweep's file, a trace, a real run or the paper's sweeps; print a table, write the report."""
    target, drawn = report_path(args.report), report_path(args.page, "page")
    _one_workload(args)
    model = None if args.model is None else Model.read(Path(args.model))
    wanted = None if args.target is None else Target.of(args.target)
    if args.paper:
        return _paper(args, target, model)
    simulated = _like(args, model) if args.like else _trace(args) if args.trace else _sweep(args, model)
    reports = []
    for found in simulated:
        found = with_target(found, wanted)
        reports.append(found)
        if args.verbose:
            for decision in found["decisions"]:
                print(f"{found['policy']} {decision['at_s']:9.3f} s  {decision['sentence']}", file=sys.stderr)
    print(table(reports))
    print(measures_table(reports))
    for found in reports:
        if "sizes" in found:
            print(sizes_text(found))
    for found in reports:
        if "like" in found:
            print(_prediction(found))
    if target is not None:
        found = reports[0] if len(reports) == 1 else {each["policy"]: each for each in reports}
        write_json_atomic(target, found, mode=PUBLIC_MODE)
    if drawn is not None:
        write_page(drawn, {each["policy"]: each for each in reports})
    return EXIT_OK


def fit_command(args: argparse.Namespace) -> int:
    """Fit a model of speeds and costs to reports of real runs; print it, and write it."""
    target = report_path(args.model, "model")
    reports: list[dict[str, Any]] = []
    for path in args.reports:
        reports += reports_in(Path(path))
        if any(map(is_simulated, reports)):
            raise ConfigError(f"{path} has simulated jobs, but fit needs real ones: use a report of sweep or compare")
    model = fit(reports)
    print(f"fitted to {model.found['trials']} trials and {model.found['iterations']} iterations:")
    for name, terms in model.speeds.items():
        shown = ", ".join(f"{term} {1000 * seconds:.3f} ms" for term, seconds in terms.items() if seconds)
        error = 100 * model.found["relative_error"][name]
        print(f"{name}: {shown or 'nothing'} besides stretch_s; error {error:.1f} %")
    print(", ".join(f"{name} {seconds:.3f}" for name, seconds in dataclasses.asdict(model.costs).items()))
    if target is not None:
        write_json_atomic(target, model.as_dict(), mode=PUBLIC_MODE)
    return EXIT_OK


def _one_workload(args: argparse.Namespace) -> None:
    given = [name for name in ("trace", "like", "paper") if getattr(args, name)]
    if len(given) > 1:
        raise ConfigError(f"--{given[0]} and --{given[1]} exclude each other")
    if not given and args.spec is None:
        raise ConfigError("nothing to simulate: add a sweep's file, --trace, --like or --paper")
    if args.model and args.trace:
        raise ConfigError("--model is not possible with --trace, whose jobs have their own speeds")
    if args.paper and (args.spec or args.trials or args.page or args.verbose or args.target or args.stop):
        raise ConfigError("--paper allows only --policy, --seed, --model and --report")
    if args.size and given:
        raise ConfigError(f"--size is not possible with --{given[0]}, which names the sizes of its jobs")
    if args.like and args.trials:
        raise ConfigError("--trials is not possible with --like, which takes the trials of its report")


def _sweep(args: argparse.Namespace, model: Model | None) -> Iterator[dict[str, Any]]:
    spec = with_flags(Spec.read(Path(args.spec)), trials=args.trials, seed=args.seed, stop=args.stop)
    spec.check_rungs()
    check_sizes(spec)
    policies = policies_of(args.policy or DEFAULT_POLICY)
    check_flag(args.size, policies, spec)
    aim = None if args.target is None else Target.of(args.target)
    for policy in policies:
        if policy == POLICY and args.size:
            found = best_of(spec, lambda _, sized: with_target(simulate(sized, POLICY, model=model), aim))
            assert found is not None
            yield found
        else:
            yield simulate(spec, policy, model=model)


def _trace(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    policies, path = policies_of(args.policy or DEFAULT_POLICY), Path(args.trace)
    spec = with_flags(Spec() if args.spec is None else Spec.read(Path(args.spec)), seed=args.seed, stop=args.stop)
    sweep, container, master = spec.sweep, spec.cluster.container(), spec.cluster.master()
    if pollux.COLUMNS[0] in columns_of(path):
        jobs = pollux.read_pollux(path, container, sweep.seed, sweep.feedback_iteration, master)[: args.trials]
    else:
        jobs = list(workload(read_philly(path)[: args.trials], container, sweep.seed, master))
    for policy in policies:
        yield simulate_jobs(spec, jobs, policy)


def _like(args: argparse.Namespace, model: Model | None) -> Iterator[dict[str, Any]]:
    by_policy = {real["policy"]: real for real in reports_in(Path(args.like))}
    for policy in policies_of(args.policy or ",".join(by_policy)):
        if policy not in by_policy:
            raise ConfigError(f"policy is {policy!r}, but {args.like} has only {', '.join(by_policy)}")
        real = by_policy[policy]
        spec = spec_of(real) if args.spec is None else Spec.read(Path(args.spec))
        check_sizes(spec)
        spec = with_flags(spec, seed=args.seed, stop=args.stop)
        spec.check_rungs()
        yield simulate_like(spec, real, policy, model)


def _prediction(found: Mapping[str, Any]) -> str:
    like = found["like"]
    left_out = f"; without {like['left_out']} trials that never iterated" if like["left_out"] else ""
    return (
        f"{found['policy']}: {like['predicted_makespan_s']:.1f} s predicted, {like['real_makespan_s']:.1f} s real, "
        f"predicted / real {like['predicted_over_real']:.3f}{left_out}"
    )


def _paper(args: argparse.Namespace, target: Path | None, model: Model | None) -> int:
    policies = policies_of(args.policy or "elastic,static,kill,priority")
    by_model: dict[str, dict[str, Any]] = {}
    # The speeds are the paper's; a model replaces only the costs.
    setting = paper.MODEL if model is None else dataclasses.replace(paper.MODEL, costs=model.costs)
    for name in paper.MODELS:
        spec = paper.paper_spec(name, args.seed or 0)
        by_model[name] = {policy: simulate(spec, policy, model=setting) for policy in policies}
        print(f"--- {name}")
        print(table(list(by_model[name].values())))
    if target is not None:
        write_json_atomic(target, by_model, mode=PUBLIC_MODE)
    return EXIT_OK
