"""Division of containers among jobs: who gets how many, so that the last job reaches its milestone soonest.

Source: water-filling.  The iterations of every job get shorter with more containers, by ever less, so the greedy choice
is optimal: each container goes to the job that would be the last.  Deviation from Optimus (EuroSys 2018), which gives
it to the job with the largest gain: that is best for the mean, not for the end of a sweep.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: A further container must bring more than this share of what it would with a perfect speed-up; less is noise.
WORTH = 0.05


@dataclass(frozen=True, slots=True)
class Need:
    """What a job still has to compute, and how fast it is."""

    #: Iterations until its milestone.
    iterations: float
    #: Seconds of an iteration by the number of containers.
    seconds: Callable[[int], float]
    least: int = 1
    most: int = 1 << 30
    #: Iterations after its milestone that count as well.
    further: float = 0.0

    def ends_s(self, size: int) -> float:
        """Return the seconds of all these iterations in ``size`` containers."""
        return (self.iterations + self.further) * self.seconds(size)

    def next_size(self, size: int, free: int) -> int:
        """Return the next larger size that is worth it, with at most ``free`` containers more; 0 if there is none."""
        now_s = self.seconds(size)
        # One more may not help, for example as long as the worker with most splits keeps as many.
        for more in range(1, min(free, self.most - size, size) + 1):
            if self.seconds(size + more) < now_s * (1 - WORTH * more / (size + more)):
                return size + more
        return 0


def divide(needs: Sequence[Need], containers: int) -> list[int]:
    """Return the size of each job, so that the last milestone comes soonest, then the second last, and so on.

    Parameters
    ----------
    needs : sequence of Need
    containers : int
        At least the sum of the jobs' least sizes.  Containers that shorten no job's iterations stay free.
    """
    sizes = [need.least for need in needs]
    free = containers - sum(sizes)
    assert free >= 0, f"{containers} containers are too few for {sum(sizes)}"
    heap = [(-need.ends_s(need.least), k) for k, need in enumerate(needs)]
    heapq.heapify(heap)
    while free and heap:
        _, k = heap[0]
        size = needs[k].next_size(sizes[k], free)
        if not size:
            heapq.heappop(heap)
            continue
        free -= size - sizes[k]
        sizes[k] = size
        heapq.heapreplace(heap, (-needs[k].ends_s(size), k))
    return sizes
