"""Logistic regression with PyTorch: each process is a replica; gloo's all-reduce sums gradients.

    python gloo_lr.py TASK.json RANK

In the sparse case the summed vector has the features that any worker touches, found once.  If the vector is cut into
pieces, one is applied while the next is sent.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from problem import Rows, Task, keep_memory


def main() -> None:
    """Train as one of the ranks."""
    task, rank = Task.read(Path(sys.argv[1])), int(sys.argv[2])
    keep_memory()
    torch.set_num_threads(1)
    rows = Rows.read(task, rank)
    if task.sparse:
        union = np.unique(np.concatenate([task.keys(r) for r in range(task.num_workers)]))
        rows.columns = np.searchsorted(union, task.keys(rank)).astype(np.int32)[rows.columns]
        rows.width = len(union)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{task.folder / 'meeting'}",
        rank=rank,
        world_size=task.num_workers,
        timeout=timedelta(seconds=task.deadline_s),
    )
    weights, gradient = torch.zeros(rows.width), torch.empty(rows.width)
    weights_array, gradient_array = weights.numpy(), gradient.numpy()
    gradient_pieces, weights_pieces = gradient.chunk(task.pieces), weights.chunk(task.pieces)
    labels = torch.from_numpy(rows.labels)
    step = -float(task.step)
    begin_s = time.monotonic()
    for i in range(task.warm_up + task.iterations):
        if i == task.warm_up:
            begin_s = time.monotonic()
        residuals = torch.from_numpy(rows.scores(weights_array)).sigmoid_().sub_(labels)
        rows.scatter(residuals.numpy(), gradient_array)
        sums = [dist.all_reduce(piece, async_op=True) for piece in gradient_pieces]
        for done, piece, part in zip(sums, gradient_pieces, weights_pieces, strict=True):
            done.wait()
            part.add_(piece, alpha=step)
    end_s = time.monotonic()
    task.report(rank, begin_s=begin_s, end_s=end_s, loss_sum=rows.loss(weights_array))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
