"""Compare EPS with other systems: synchronous logistic regression on the same machine and data, in one run.

    python benchmarks/peers.py [--ps-lite DIR] [--rounds 4] [--iterations 60] [--output out.json] [--picture out.png]

Two workers and one server (all-reduce: two ranks), full batches, plain SGD, float32.  *dense*: one million parameters,
all exchanged at every iteration; *sparse*: ten million, of which each worker's rows touch 369 thousand.  EPS runs with
its defaults: elasticity, ledger and reproducible bits.  Every system must reach the loss that NumPy computes in one
process.  JSON goes to standard output, a table to standard error.

PyTorch and Ray are installed into an environment under ``--cache``.  ps-lite is compiled against the build in
``--ps-lite``.  A missing peer is reported with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# For the processes of the jobs, which import from this folder.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks import peers_setup as setup  # noqa: E402
from benchmarks import peers_systems as systems  # noqa: E402
from benchmarks.bench_common import new_file, positive  # noqa: E402
from benchmarks.peers_data import CASES, WORKERS, CaseFiles, oracle, prepare  # noqa: E402
from benchmarks.peers_watch import RunError, adopt_orphans, end_descendants, wait_until_quiet  # noqa: E402
from eps.errors import EpsError  # noqa: E402

EPS = "EPS"
#: Largest relative difference from the expected loss.
LOSS_TOLERANCE = 1e-4
#: A run is repeated if other processes used more than this many cores meanwhile.
MOST_FOREIGN_CORES = 0.3
#: Bar: iterations per second of EPS, relative to the fastest peer.
TARGET = 1.2
DRAW_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class System:
    """One compared system."""

    name: str
    version: str
    run: systems.Runner
    #: Names of its cases.
    cases: tuple[str, ...] = tuple(case.name for case in CASES)


def find_systems(arguments: argparse.Namespace, cache: Path) -> tuple[list[System], dict[str, str]]:
    """Install the peers; return the available systems, and why others are missing."""
    found = [System(EPS, _eps_version(), systems.eps_runner(dict(arguments.eps)))]
    absent: dict[str, str] = {}
    environment: setup.Environment | None = None

    def attempt(name: str, make: Callable[[], list[System]]) -> None:
        if not arguments.systems or name in arguments.systems:
            try:
                found.extend(make())
            except setup.AbsentError as error:
                absent[name] = str(error)
                _say(f"{name}: absent: {error}")

    def with_environment() -> setup.Environment:
        nonlocal environment
        environment = environment or setup.make_environment(cache)
        return environment

    def gloo() -> list[System]:
        there = with_environment()
        version = f"torch {setup.torch_version(there)}"
        return [
            System("gloo", version, systems.gloo_runner(there, pieces=1)),
            System("gloo 2 pieces", version, systems.gloo_runner(there, pieces=2)),
        ]

    def ray() -> list[System]:
        there = with_environment()
        return [System("ray", f"ray {setup.ray_version(there)}", systems.ray_runner(there))]

    def ps_lite() -> list[System]:
        program = setup.compile_ps_lite(arguments.ps_lite, cache)
        made = []
        for ending, lists, cases in (("", False, ("dense", "sparse")), (" lists", True, ("sparse",))):
            for sockets, local in (("", False), (" unix", True)):
                runner = systems.ps_lite_runner(program, lists, local)
                made.append(System(f"ps-lite{ending}{sockets}", "as given by path", runner, cases))
        return made

    attempt("gloo", gloo)
    attempt("ray", ray)
    attempt("ps-lite", ps_lite)
    return found, absent


def _eps_version() -> str:
    from eps._version import __version__

    return __version__


def measure_case(
    files: CaseFiles, chosen: Sequence[System], length: systems.Length, arguments: argparse.Namespace, home: Path
) -> dict[str, Any]:
    """Run the systems on one case, round by round, and return the results."""
    expected = oracle(files, length.total)
    samples: dict[str, list[dict[str, Any]]] = {system.name: [] for system in chosen}
    failed: dict[str, str] = {}
    for number in range(arguments.rounds):
        # The order alternates, so that drift affects all systems alike.
        for system in [*chosen[number % len(chosen) :], *chosen[: number % len(chosen)]]:
            if system.name in failed:
                continue
            try:
                sample = _quietest(system, files, length, arguments, home / f"{system.name}-{number}".replace(" ", "-"))
            except (RunError, EpsError, OSError, KeyError) as error:
                failed[system.name] = f"{type(error).__name__}: {error}"
                _say(f"{files.case.name} {system.name}: failed: {error}")
                continue
            samples[system.name].append(sample)
            _say(
                f"{files.case.name} round {number + 1} {system.name}: {1e3 * sample['iteration_s']:.2f} ms, "
                f"others used {sample['foreign_cores']:.2f} cores"
            )
    return case_result(files, {s.name: s.version for s in chosen}, samples, failed, expected)


def _quietest(
    system: System, files: CaseFiles, length: systems.Length, arguments: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Return the run with the least use of the machine by others, out of ``--tries``."""
    tries: list[dict[str, Any]] = []
    while len(tries) < arguments.tries:
        wait_until_quiet(arguments.patience)
        try:
            tries.append(systems.measure(system.run, files, length, folder.with_name(f"{folder.name}-{len(tries)}")))
        finally:
            end_descendants()
        if tries[-1]["foreign_cores"] <= MOST_FOREIGN_CORES:
            break
    return min(tries, key=lambda sample: float(sample["foreign_cores"]))


def case_result(
    files: CaseFiles,
    versions: dict[str, str],
    samples: dict[str, list[dict[str, Any]]],
    failed: dict[str, str],
    expected_loss: float,
) -> dict[str, Any]:
    """Return the results of one case as plain values."""
    case = files.case
    entries: dict[str, Any] = {}
    for name, found in samples.items():
        if not found:
            continue
        iteration_s = spread([sample["iteration_s"] for sample in found])
        error = max(abs(sample["loss"] / expected_loss - 1) for sample in found)
        entries[name] = {
            "version": versions[name],
            "iterations_per_s": round(1 / iteration_s["median"], 2),
            "iteration_s": iteration_s,
            "cpu_s_per_iteration": spread([sample["cpu_s_per_iteration"] for sample in found]),
            "foreign_cores": spread([sample["foreign_cores"] for sample in found]),
            "loss": found[-1]["loss"],
            "loss_error": float(f"{error:.3g}"),
            "loss_is_right": error <= LOSS_TOLERANCE,
        }
    result: dict[str, Any] = {
        "case": case.name,
        "features": case.num_features,
        "rows_per_worker": case.rows_per_worker,
        "touched_per_worker": list(files.touched),
        "touched_by_any": files.union,
        "expected_loss": expected_loss,
        "eps_exchanges": "all parameters" if systems.exchanges_all(case) else "touched keys",
        "systems": entries,
        "failed": failed,
    }
    peers = {name: entry for name, entry in entries.items() if name != EPS and entry["loss_is_right"]}
    if EPS in entries and peers:
        best = max(peers, key=lambda name: float(peers[name]["iterations_per_s"]))
        own_s = entries[EPS]["iteration_s"]
        result["best_peer"] = best
        result["eps_over_best_peer"] = round(peers[best]["iteration_s"]["median"] / own_s["median"], 3)
        result["eps_over"] = {
            name: round(entry["iteration_s"]["median"] / own_s["median"], 3) for name, entry in peers.items()
        }
    return result


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return median, interquartile range and values of some measurements."""
    low, high = (float(each) for each in np.percentile(values, [25, 75]))
    return {
        "median": round(statistics.median(values), 6),
        "iqr": round(high - low, 6),
        "values": [round(value, 6) for value in values],
    }


def table(results: Sequence[dict[str, Any]], absent: dict[str, str]) -> str:
    """Return the results as a table."""
    lines = [
        f"{'case':<7} {'system':<20} {'it/s':>7} {'ms/it':>7} {'iqr':>6} {'CPU ms/it':>9} {'others':>6} "
        f"{'loss':>9} {'EPS over it':>11}"
    ]
    for result in results:
        ordered = sorted(result["systems"].items(), key=lambda item: float(item[1]["iteration_s"]["median"]))
        for name, entry in ordered:
            ratio = result.get("eps_over", {}).get(name)
            lines.append(
                f"{result['case']:<7} {name:<20} {entry['iterations_per_s']:>7.1f} "
                f"{1e3 * entry['iteration_s']['median']:>7.2f} {1e3 * entry['iteration_s']['iqr']:>6.2f} "
                f"{1e3 * entry['cpu_s_per_iteration']['median']:>9.1f} {entry['foreign_cores']['median']:>6.2f} "
                f"{entry['loss']:>9.6f} {'' if ratio is None else ratio:>11}"
                f"{'' if entry['loss_is_right'] else '  wrong loss'}"
            )
        lines += [f"{result['case']:<7} {name:<20} failed: {reason}" for name, reason in result["failed"].items()]
        if "best_peer" in result:
            lines.append(
                f"{result['case']:<7} EPS does {result['eps_over_best_peer']:.2f} times the iterations of "
                f"the best peer, {result['best_peer']} (to reach: {TARGET})"
            )
        if result["case"] == "dense" and result["eps_exchanges"] != "all parameters":
            lines.append(f"{result['case']:<7} EPS exchanged touched keys only: no comparison")
    lines += [f"{name}: absent: {reason}" for name, reason in absent.items()]
    return "\n".join(lines)


def drawing_environment(cache: Path) -> setup.Environment:
    """Return the benchmark's own environment, with matplotlib.

    Raises
    ------
    AbsentError
        It cannot be created.
    """
    environment = setup.make_environment(cache)
    if not environment.version("matplotlib"):
        environment.install("matplotlib")
    return environment


def draw(summary_file: Path, picture: Path, cache: Path) -> None:
    """Draw a picture in the benchmark's own environment; print a message if that fails."""
    try:
        python = str(drawing_environment(cache).python)
        command = [python, str(setup.SCRIPTS / "draw.py"), str(summary_file), str(picture)]
        subprocess.run(command, check=True, timeout=DRAW_TIMEOUT_S)
    except (setup.AbsentError, subprocess.SubprocessError) as error:
        _say(f"no picture: {error}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE")
    with suppress(json.JSONDecodeError):
        return name, json.loads(value)
    return name, value


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line."""
    default_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eps-peers"
    parser = argparse.ArgumentParser(description="Measure EPS and its peers on logistic regression.")
    parser.add_argument("--rounds", type=positive, default=4, help="runs of each system, one after the other")
    parser.add_argument("--iterations", type=positive, default=60, help="measured iterations of a run")
    parser.add_argument("--warm-up", type=positive, default=10, help="iterations before them")
    parser.add_argument("--cases", default="dense,sparse", help="cases, joined by commas")
    parser.add_argument("--systems", default="", help="peers, joined by commas: gloo, ray, ps-lite; all by default")
    parser.add_argument("--ps-lite", type=Path, metavar="DIR", help="folder of ps-lite after its make")
    parser.add_argument(
        "--eps", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="a further setting of EPS's job"
    )
    parser.add_argument("--cache", type=Path, default=default_cache, help="folder for data and the peers' environment")
    parser.add_argument("--tries", type=positive, default=3, help="most attempts of a run while the machine is busy")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds to wait for a quiet machine before a run")
    parser.add_argument("--output", type=new_file, help="also write the JSON to this file")
    parser.add_argument("--picture", type=new_file, help="draw a picture")
    parser.add_argument("--quick", action="store_true", help="one short round: check that it works")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.rounds, arguments.iterations, arguments.tries, arguments.patience = 1, 20, 1, 0.0
    arguments.systems = tuple(filter(None, arguments.systems.split(",")))
    arguments.cases = tuple(arguments.cases.split(","))
    for name, given, known in (
        ("system", arguments.systems, ("gloo", "ray", "ps-lite")),
        ("case", arguments.cases, tuple(case.name for case in CASES)),
    ):
        for each in given:
            if each not in known:
                parser.error(f"{name} {each!r}: must be one of {', '.join(known)}")
    for name in ("rounds", "iterations", "warm_up", "tries"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return arguments


def summary(
    results: Sequence[dict[str, Any]], absent: dict[str, str], length: systems.Length, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return the results with a description of the machine."""
    return {
        "machine": {
            "cpus": os.cpu_count(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "load_5_minutes": os.getloadavg()[1],
        },
        "job": {
            "workers": WORKERS,
            "servers": 1,
            "warm_up": length.warm_up,
            "iterations": length.iterations,
            "rounds": arguments.rounds,
            "eps_settings": dict(arguments.eps),
        },
        "target": TARGET,
        "absent": absent,
        "results": list(results),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a system failed or reached another loss, 2 if no picture can be drawn."""
    arguments = parse_arguments(argv)
    cache = arguments.cache.absolute()
    length = systems.Length(arguments.warm_up, arguments.iterations)
    if arguments.picture:
        try:
            drawing_environment(cache)
        except setup.AbsentError as error:
            _say(f"pictures need matplotlib: {error}")
            return 2
    adopt_orphans()
    # SIGTERM ends the processes that this one started, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="eps-peers-", ignore_cleanup_errors=True) as scratch:
        home = Path(scratch)
        os.environ["EPS_HOME"] = str(home / "eps")
        try:
            found, absent = find_systems(arguments, cache)
            for case in CASES:
                if case.name in arguments.cases:
                    chosen = [system for system in found if case.name in system.cases]
                    results.append(
                        measure_case(prepare(case, cache), chosen, length, arguments, home / "runs" / case.name)
                    )
                    _say(table(results[-1:], {}))
        except KeyboardInterrupt:
            _say("interrupted")
            return 130
        finally:
            end_descendants()
        found_all = summary(results, absent, length, arguments)
        text = json.dumps(found_all, indent=1)
        written = arguments.output or home / "summary.json"
        written.write_text(text + "\n", encoding="utf-8")
        if arguments.picture:
            draw(written, arguments.picture, cache)
    _say(table(results, absent))
    print(text)
    failed = any(result["failed"] for result in results)
    wrong = any(not entry["loss_is_right"] for result in results for entry in result["systems"].values())
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
