"""Hyperopt's ``fmin`` with ``Trials``, which trains one job after the other, and with ``HTrials``, under H-scheduler.

With one point at a time, both find the same points and losses, and bit-identical models, although the scheduler gives
each job all free resources.  With four points at a time the search takes other points.  Needs the extras ``sweep`` and
``data``.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np
from hyperopt import STATUS_OK, Trials, fmin, hp, tpe

import eps
from hscheduler import HTrials

SPACE = {
    "learning_rate": hp.loguniform("learning_rate", math.log(1e-3), 0.0),
    "l2": hp.choice("l2", [0.0, 1e-4]),
}


def objective(point: dict[str, Any]) -> dict[str, Any]:
    """Train one job; with HTrials, ``eps.run`` submits it to the scheduler."""
    report = eps.run(
        data="sklearn:digits", model="softmax", test="0.2", workers=2, servers=1, iterations=ITERATIONS, **point
    )
    return {"status": STATUS_OK, "loss": report["metrics"]["train_loss"], "model": report["model_sha256"]}


def search(name: str, trials: Trials) -> float:
    """Run ``fmin`` with ``trials``; return the best loss."""
    began_s = time.monotonic()
    best = fmin(
        objective,
        SPACE,
        algo=tpe.suggest,
        max_evals=POINTS,
        trials=trials,
        rstate=np.random.default_rng(SEED),
        show_progressbar=False,
    )
    result = trials.best_trial["result"]
    took_s = time.monotonic() - began_s
    print(f"{name:22} {took_s:6.1f} s  loss {result['loss']:.9f}  model {result['model'][:12]}  {best}", flush=True)
    return float(result["loss"])


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--points", type=int, default=8, metavar="N", help="number of points; default: 8")
    flags.add_argument("--iterations", type=int, default=100, metavar="N", help="iterations of each job; default: 100")
    flags.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the search; default: 0")
    asked = flags.parse_args()
    POINTS, ITERATIONS, SEED = asked.points, asked.iterations, asked.seed
    plain = search("Trials()", Trials())
    same = search("HTrials(parallelism=1)", HTrials(parallelism=1))
    search("HTrials(parallelism=4)", HTrials(parallelism=4))
    print("the same best loss" if plain == same else "DIFFERENT")
    raise SystemExit(plain != same)
