"""Predict sweeps that the simulator has not seen: fit it to one real sweep, then predict others and run them.

    python -m benchmarks.out_of_sample --output out_of_sample.json      # some fifteen minutes; needs a quiet machine
    python -m benchmarks.out_of_sample --quick                          # small sweeps, to see whether it works
    python -m benchmarks.out_of_sample --only yarn --yarn compare.json --yarn again.json   # past runs on YARN: a second

The fit is that of ``hscheduler fit``, to a sweep of softmax regressions whose workers sleep instead of computing, under
``static``, ``elastic`` and ``kill``.  Sweeps to predict, each with other points and arrivals than the fit's:

- ``seed``: the same sweep.
- ``size``: twice the workers and servers for each trial.
- ``model``: a neural network.
- ``compute``: workers compute instead of sleeping, as many at a time as there are cores.
- ``compute-shared``: the same, with more workers than cores.
- ``yarn``: sweeps that ran on YARN, under policies and in runs that the fit has not seen.  Containers start slower
  there, so the fit is to the first sweep of the first file alone.

The speed of a job that the fit has not seen comes from two probes, which train some iterations alone: with one worker
and one server, and with the size that the trials ask for.  If jobs compute more than the machine's cores can in the
predicted time, their computing is stretched until they do not (:func:`contended`).  A prediction has the points,
arrivals and early feedback of the real run, as in ``hscheduler simulate --like``.  The bar is a makespan within a tenth
of the real one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import nnls

import eps
from benchmarks.bench_common import Bar, end_in_order, machine, new_file, say, write_json
from benchmarks.paper.declared import with_seed
from eps.errors import EpsError
from eps.spec.job_spec import JobSpec
from hscheduler.core.jobs import Size
from hscheduler.live.sweep import Sweep
from hscheduler.simulator.fit import Model, fit, reports_in, spec_of
from hscheduler.simulator.models import SpeedModel
from hscheduler.simulator.run import simulate_like
from hscheduler.spec import Spec

FITTED = ("static", "elastic", "kill")
PREDICTED = ("static", "elastic")
#: How far from 1 predicted / real may be.
WITHIN = 0.1
#: Iterations of a probe.
PROBED = 40
#: Rows and columns of the data of the sweeps that compute: a split takes milliseconds.
ROWS, COLUMNS, CLASSES = 24_000, 256, 10
#: Computing is stretched until the cores suffice, to this share.
_SLACK = 0.01
_MOST_ROUNDS = 40

Report = Mapping[str, Any]


def base(quick: bool) -> Spec:
    """Return the sweep that the simulator is fitted to."""
    trials, iterations = (6, 120) if quick else (16, 600)
    return Spec.of(
        {
            "cluster": {"nodes": 4, "vcores": 4},
            "sweep": {
                "trials": trials,
                "algorithm": "random",
                "arrival": "poisson:1s" if quick else "poisson:3s",
                "feedback_iteration": iterations // 10,
                "threshold": 3,
            },
            "space": {"learning_rate": {"loguniform": [1e-3, 0.5]}},
            "job": {
                "data": "sklearn:digits",
                "model": "softmax",
                "workers": 2,
                "servers": 1,
                "splits": 12,
                "iterations": iterations,
                "stretch_s": 0.0083,
            },
        }
    )


def of_job(spec: Spec, **settings: Any) -> Spec:
    """Return a sweep whose jobs have other settings."""
    return dataclasses.replace(spec, job={**spec.job, **settings})


def data_file(folder: Path, quick: bool) -> str:
    """Write the rows of the sweeps that compute; return the path."""
    draw = np.random.default_rng(0)
    rows = ROWS // (4 if quick else 1)
    X = draw.normal(0, 1, (rows, COLUMNS)).astype(np.float32)
    y = np.argmax(X[:, :CLASSES] + draw.normal(0, 1, (rows, CLASSES)), axis=1)
    path = folder / "rows.npz"
    np.savez(path, X=X, y=y)
    return str(path)


def sweeps(quick: bool, data: str) -> dict[str, Spec]:
    """Return the sweeps to predict, by name."""
    spec = with_seed(base(quick), 1)
    computes = of_job(spec, data=data, stretch_s=0.0, iterations=int(spec.job["iterations"]) // (4 if quick else 2))
    # One trial at a time, with a master: its two workers have a core each.
    alone = dataclasses.replace(computes.cluster, nodes=1, vcores=4)
    fewer = dataclasses.replace(computes.sweep, trials=computes.sweep.trials // 2, threshold=1)
    return {
        "seed": spec,
        "size": of_job(spec, workers=4, servers=2),
        "model": of_job(spec, model="dnn", hidden="32"),
        "compute": dataclasses.replace(computes, cluster=alone, sweep=fewer),
        "compute-shared": dataclasses.replace(computes, sweep=fewer),
    }


def run(spec: Spec, policy: str) -> dict[str, Any]:
    """Run a sweep of real jobs in a folder of its own; return its report."""
    with tempfile.TemporaryDirectory(prefix="eps-sample-") as home:
        os.environ["EPS_HOME"] = home
        return Sweep(spec, policy).run()


def probes(spec: Spec) -> dict[Size, float]:
    """Return the seconds of an iteration of a sweep's job, which does not sleep, by workers and servers."""
    asked = spec.job_spec()
    found = {}
    for workers, servers in ((1, 1), (asked.workers, asked.servers)):
        settings = {"splits": asked.splits, "workers": workers, "servers": servers, "stretch_s": 0.0}
        job = {**spec.job, **next(spec.points()), **settings, "iterations": PROBED}
        with tempfile.TemporaryDirectory(prefix="eps-sample-") as home:
            os.environ["EPS_HOME"] = home
            found[workers, servers] = float(eps.run(**job)["iteration_seconds"]["p50"])
    return found


def transferred(model: Model, of: str, job: JobSpec, probed: Mapping[Size, float]) -> Model:
    """Return a model of speeds with a job that was probed.

    What its iterations take beyond the terms of the model that it is transferred from is computing: a part that its
    workers share, and a part that they do not.

    Parameters
    ----------
    model : Model
    of : str
        The model of ``eps run`` that was fitted.
    job : JobSpec
    probed : mapping
        As :func:`probes` returns it.
    """
    terms = {**model.speeds[of], "split_s": 0.0}
    known = SpeedModel(job.splits, 0.0, terms["fixed_s"], terms["exchange_s"], terms["member_s"])
    more_s = [max(0.0, seconds - known.iteration_s(*size)) for size, seconds in probed.items()]
    most = [-(-job.splits // workers) for workers, _ in probed]
    (fixed_s, split_s), _ = nnls(np.array([[1.0, float(number)] for number in most]), np.array(more_s))
    terms |= {"fixed_s": terms["fixed_s"] + float(fixed_s), "split_s": float(split_s)}
    return dataclasses.replace(model, speeds={**model.speeds, job.model: terms})


def computed_s(report: Report, model: Model, job: JobSpec) -> float:
    """Return the core-seconds that a sweep computes, without sleeps."""
    return float(report["iterations_trained"]) * job.splits * model.speeds[job.model]["split_s"]


def contended(spec: Spec, real: Report, model: Model, cores: int) -> tuple[dict[str, Any], float]:
    """Return a predicted report, and by how much its computing was stretched, so that it fits the cores.

    All jobs are stretched alike, for the whole of the sweep: which of them compute at the same time is not simulated.
    """
    job, stretched = spec.job_spec(), 1.0
    terms = model.speeds[job.model]
    for _ in range(_MOST_ROUNDS):
        slower = {**model.speeds, job.model: {**terms, "split_s": terms["split_s"] * stretched}}
        found = simulate_like(spec, real, real["policy"], dataclasses.replace(model, speeds=slower))
        used = computed_s(found, model, job) / (cores * found["makespan_s"])
        if used <= 1 + _SLACK:
            break
        stretched *= used
    return found, stretched


def predicted(
    name: str, spec: Spec, real: Report, model: Model, of: str, probed: Mapping[Size, float] | None
) -> dict[str, Any]:
    """Return a predicted and the real makespan of a sweep."""
    job = spec.job_spec()
    known = model if probed is None else transferred(model, of, job, probed)
    cores = os.cpu_count() or 1
    found, stretched = contended(spec, real, known, cores)
    like = found["like"]
    return {
        "sweep": name,
        "policy": real["policy"],
        "probed_iteration_s": {f"{w}+{s}": round(seconds, 6) for (w, s), seconds in (probed or {}).items()},
        "computing_stretched_by": round(stretched, 3),
        "real_makespan_s": like["real_makespan_s"],
        "predicted_makespan_s": like["predicted_makespan_s"],
        "predicted_over_real": like["predicted_over_real"],
        "waiting_share": {"real": real.get("waiting_share"), "predicted": found["waiting_share"]},
        "speeds": {"real": iteration_s(real), "predicted": iteration_s(found)},
        "start_s": {"real": start_s(real), "predicted": start_s(found)},
        "within": abs(like["predicted_over_real"] - 1) <= WITHIN,
    }


def iteration_s(report: Report) -> dict[str, float]:
    """Return the mean seconds of an iteration by size, to see why a prediction is off."""
    totals: dict[str, tuple[int, float]] = {}
    for trial in report["trials"]:
        for workers, servers, number, seconds in trial["speeds"]:
            before = totals.get(f"{workers}+{servers}", (0, 0.0))
            totals[f"{workers}+{servers}"] = before[0] + number, before[1] + seconds
    return {size: round(seconds / number, 5) for size, (number, seconds) in sorted(totals.items())}


def start_s(report: Report) -> float | None:
    """Return the median seconds from a trial's containers to its first iteration."""
    found = [
        trial["first_iteration_s"] - trial["started_s"]
        for trial in report["trials"]
        if trial["first_iteration_s"] is not None
    ]
    return round(median(found), 4) if found else None


def measure(quick: bool, only: list[str]) -> dict[str, Any]:
    """Fit, predict and run; return everything for JSON."""
    spec = base(quick)
    fitted = []
    for policy in FITTED:
        say(f"fit: {policy}")
        fitted.append(run(spec, policy))
    model, of = fit(fitted), spec.job_spec().model
    results = []
    with tempfile.TemporaryDirectory(prefix="eps-rows-") as folder:
        wanted = sweeps(quick, data_file(Path(folder), quick))
        for name, sweep in wanted.items():
            if only and name not in only:
                continue
            # Sleeping jobs of the fitted model have the fitted speed at every size.
            probed = None if name in ("seed", "size") else probes(sweep)
            for policy in PREDICTED:
                results.append(predicted(name, sweep, run(sweep, policy), model, of, probed))
                _say(results[-1])
    fitted_to = {"spec": spec.tables(), "policies": list(FITTED)}
    return {"machine": machine(), "fitted_to": fitted_to, "model": model.as_dict(), "results": results}


def measure_yarn(paths: list[Path]) -> dict[str, Any]:
    """Fit to the first of some reports of sweeps on YARN, and predict the others; return everything for JSON."""
    (first, of_first), *others = [(path, real) for path in paths for real in reports_in(path)]
    model = fit([of_first])
    results = []
    for path, real in others:
        results.append(predicted(f"yarn: {path.name}", spec_of(real), real, model, "", None))
        _say(results[-1])
    fitted_to = {"file": first.name, "policies": [of_first["policy"]]}
    return {"fitted_to": fitted_to, "model": model.as_dict(), "results": results}


def with_bars(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return results with a bar for each prediction."""
    bars = [
        Bar(f"{each['sweep']}, {each['policy']}: makespan off by", off(each), WITHIN, False).as_dict()
        for each in found["results"]
    ]
    return {"kind": "simulated like real", **found, "within": WITHIN, "bars": bars}


def off(result: Mapping[str, Any]) -> float:
    """Return by which share a predicted makespan differs from the real one."""
    return round(abs(result["predicted_over_real"] - 1), 4)


def _say(result: Mapping[str, Any]) -> None:
    say(
        f"{result['sweep']}, {result['policy']}: {result['predicted_makespan_s']:.1f} s predicted, "
        f"{result['real_makespan_s']:.1f} s real: {result['predicted_over_real']:.3f}"
    )


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sweeps")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="NAME,...")
    parser.add_argument("--yarn", type=Path, action="append", default=[], metavar="REPORT.json")
    parser.add_argument("--output", type=new_file, metavar="FILE")
    args = parser.parse_args()
    end_in_order()
    try:
        found: dict[str, Any] = {}
        if args.only != ["yarn"]:
            found = with_bars(measure(args.quick, args.only))
        if args.yarn:
            found = {**found, "yarn": with_bars(measure_yarn(args.yarn))}
    except EpsError as error:
        say(f"out_of_sample: {error}")
        return 2
    text = json.dumps(found, indent=1)
    write_json(args.output, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
