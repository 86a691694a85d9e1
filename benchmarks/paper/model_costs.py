"""Measure the computing time of the eight models of the paper, over that of logistic regression.

``hscheduler/simulator/paper.py`` has the results.

    python -m benchmarks.paper.model_costs

Each measurement is one call of ``loss_and_gradient``.  Rows are like those of kdd2012, the paper's data: 11 features of
a row are not zero (LIBSVM's page of that data).  Parameters of all columns do not fit a cache.  Softmax has the two
classes of that data, the DNN one hidden layer of 16.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.bench_common import machine, positive, say, spread
from benchmarks.paper.published import MODELS
from eps.ml.models import load_model

ROWS = 20_000
FEATURES = 200_000
NON_ZERO = 11
OPTIONS: dict[str, dict[str, Any]] = {"dnn": {"hidden": "16"}}


def data(rows: int) -> Any:
    """Return random rows, shape (``rows``, FEATURES)."""
    draw = np.random.default_rng(0)
    columns = np.sort(draw.integers(0, FEATURES, (rows, NON_ZERO)), axis=1).astype(np.int32)
    offsets = np.arange(0, rows * NON_ZERO + 1, NON_ZERO, dtype=np.int32)
    return sparse.csr_matrix((np.ones(rows * NON_ZERO, np.float32), columns.ravel(), offsets), (rows, FEATURES))


def seconds(name: str, X: Any, repeats: int) -> list[float]:
    """Return the seconds of each call of a model's gradient."""
    kind = load_model(name)
    options = OPTIONS.get(name, {})
    task = kind.task_for(options)
    model = kind(FEATURES, 1 if task == "regression" else 2, **options)
    draw = np.random.default_rng(1)
    y = draw.integers(0, 2, X.shape[0]).astype(np.float32 if task == "regression" else np.int32)
    params = {spec.name: draw.normal(0, 0.01, spec.shape).astype(np.float32) for spec in model.tensors()}
    found = []
    for _ in range(repeats + 1):
        began_s = time.perf_counter()
        model.loss_and_gradient(params, X, y)
        found.append(time.perf_counter() - began_s)
    # The first one touches memory for the first time.
    return found[1:]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=positive, default=15)
    args = parser.parse_args()
    X = data(ROWS)
    taken = {name: spread(seconds(name, X, args.repeats)) for name in MODELS}
    base = taken["logistic"]["median"]
    over = {name: round(values["median"] / base, 2) for name, values in taken.items()}
    for name in MODELS:
        say(f"{name:9} {1000 * taken[name]['median']:7.2f} ms   {over[name]:5.2f} of logistic regression")
    print(json.dumps({"machine": machine(), "over_logistic": over, "seconds": taken}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
