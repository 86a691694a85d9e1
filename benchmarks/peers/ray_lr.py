"""Logistic regression with Ray: worker actors and one server actor, arrays through the shared object store.

    python ray_lr.py TASK.json

The driver passes object references and never an array.  It submits all iterations at once, so no actor waits for the
driver.  From the start, the server has each worker's keys as positions in a table of the touched features.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from problem import Rows, Task, keep_memory

#: Environment of actors: they import this folder and run one thread each.
ENVIRONMENT = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}}
#: Small, so that its pages are soon reused.  With 1 GiB every array of a run uses new pages, and an iteration takes
#: 1.5 times as long.
STORE_BYTES = 100 << 20


@ray.remote(num_cpus=1)
class Worker:
    """Computes gradients of its rows."""

    def __init__(self, path: str, rank: int) -> None:
        keep_memory()
        self.rows = Rows.read(Task.read(Path(path)), rank)
        self.buffer = np.empty(self.rows.width, np.float32)

    def gradient(self, weights: np.ndarray) -> np.ndarray:
        """Return the gradient in a buffer that the next call overwrites; the store copies it."""
        self.rows.gradient(weights, self.buffer)
        return self.buffer

    def loss(self, weights: np.ndarray) -> float:
        """Return the loss summed over the rows."""
        return self.rows.loss(weights)


@ray.remote(num_cpus=1)
class Server:
    """Holds the parameters and applies one gradient of each worker a clock."""

    def __init__(self, path: str) -> None:
        keep_memory()
        self.task = Task.read(Path(path))
        self.positions: list[np.ndarray] = []
        width = self.task.num_features
        if self.task.sparse:
            keys = [self.task.keys(rank) for rank in range(self.task.num_workers)]
            union = np.unique(np.concatenate(keys))
            self.positions = [np.searchsorted(union, each) for each in keys]
            width = len(union)
        self.weights, self.sum = np.zeros(width, np.float32), np.empty(width, np.float32)
        self.clock_s: list[float] = []

    def pull(self) -> Any:
        """Return the parameters that each worker needs, or one array if each needs all."""
        if not self.positions:
            return self.weights
        return tuple(self.weights[where] for where in self.positions)

    def push_pull(self, *gradients: np.ndarray) -> Any:
        """Apply the gradients of a clock and return the result of :meth:`pull`."""
        if self.positions:
            for where, gradient in zip(self.positions, gradients, strict=True):
                # A worker's keys are unique.
                self.weights[where] -= self.task.step * gradient
        else:
            np.add(gradients[0], gradients[1], out=self.sum)
            for gradient in gradients[2:]:
                self.sum += gradient
            self.sum *= self.task.step
            self.weights -= self.sum
        self.clock_s.append(time.monotonic())
        return self.pull()

    def clocks(self) -> list[float]:
        """Return when each clock was applied."""
        return self.clock_s


def main() -> None:
    """Start the actors and drive them."""
    path = sys.argv[1]
    task = Task.read(Path(path))
    # One processor of this count is for the driver, which only passes references.
    ray.init(
        num_cpus=task.num_workers + 2,
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env=ENVIRONMENT,
        _temp_dir=os.environ.get("PEERS_RAY_FOLDER"),
    )
    try:
        server = Server.remote(path)
        workers = [Worker.remote(path, rank) for rank in range(task.num_workers)]
        answers = task.num_workers if task.sparse else 1

        def shares(found: Any) -> list[Any]:
            return list(found) if task.sparse else [found] * task.num_workers

        current = shares(server.pull.options(num_returns=answers).remote())
        for _ in range(task.warm_up + task.iterations):
            gradients = [w.gradient.remote(c) for w, c in zip(workers, current, strict=True)]
            current = shares(server.push_pull.options(num_returns=answers).remote(*gradients))
        ray.get(current, timeout=task.deadline_s)
        clocks = ray.get(server.clocks.remote(), timeout=task.deadline_s)
        losses = [w.loss.remote(c) for w, c in zip(workers, current, strict=True)]
        loss_sum = sum(ray.get(losses, timeout=task.deadline_s))
        task.report(0, begin_s=clocks[task.warm_up - 1], end_s=clocks[-1], loss_sum=loss_sum)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
