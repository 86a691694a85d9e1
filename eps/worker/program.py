"""How a worker computes a contribution: the model, the splits in memory, the batches.  It sends and awaits nothing.

Source: EPS §2.2 step 4, §3.1.4 (active and inactive dataset).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import numpy as np

from eps.core.messages import SplitResult
from eps.spec.runtime import Runtime
from eps.worker.compute import ActiveSet, Computation, Contribution, Parameters, compute, measure
from eps.worker.datasets import Datasets

logger = logging.getLogger(__name__)

#: Returns memory for what is pushed, given the number of values and their type.
Empty = Callable[[int, np.dtype], np.ndarray]


class Program:
    """The computation of one worker: from parameters, splits and a clock to a contribution.

    Parameters
    ----------
    runtime : Runtime
    datasets : Datasets
    empty : callable
        Where the sums lie that are pushed.
    """

    def __init__(self, runtime: Runtime, datasets: Datasets, empty: Empty) -> None:
        self._runtime = runtime
        self._datasets = datasets
        self._empty = empty
        self._active: ActiveSet | None = None
        #: The first call of :meth:`warm_up` takes it, and never releases it.
        self._cold = threading.Lock()

    @property
    def splits(self) -> tuple[int, ...]:
        """The splits that are ready to be computed with."""
        return () if self._active is None else tuple(self._active.splits)

    def load(self, splits: tuple[int, ...]) -> None:
        """Make the splits of a clock ready."""
        self._active = ActiveSet(self._runtime, {split: self._datasets.activate(split) for split in splits})

    def keep(self, splits: tuple[int, ...]) -> str:
        """Free the memory of all other splits; return one line for the log."""
        self._datasets.keep_active(splits)
        return self._datasets.describe()

    def begin(self, clock: int, epoch: int) -> Computation:
        """Return the computation of the loaded splits at a clock, whose parameters are still to come."""
        assert self._active is not None
        return self._computation(self._active, clock, epoch)

    def _computation(self, active: ActiveSet, clock: int, epoch: int) -> Computation:
        blocks = self._runtime.key_space.num_blocks if self._runtime.settings.reproducible else 0
        # Exponents that have not come yet are those of blocks that nothing was added to.
        parameters = Parameters(np.empty(active.size, np.float32), np.zeros(blocks, np.int16), epoch=epoch)
        return Computation(self._runtime, active, parameters, clock, empty=self._empty)

    def is_for(self, computation: Computation, clock: int) -> bool:
        """Return whether a computation is of a clock, with the splits that are loaded now."""
        return computation.clock == clock and computation.active is self._active

    def pause_s(self, splits: tuple[int, ...]) -> float:
        """Return how much longer than it takes the computation of a clock is to last, in seconds."""
        return self._runtime.spec.stretch_s * len(splits)

    def alone(self, contribution: Contribution, split: int) -> Contribution:
        """Return what one split gave to a contribution, computed again: a sum cannot be taken apart."""
        active, parameters = contribution.active, contribution.parameters
        return compute(self._runtime, active, parameters, contribution.clock, only=(split,), empty=self._empty)

    def measure(self, computation: Computation) -> tuple[SplitResult, ...]:
        """Return the loss of the final parameters over the loaded splits, and their evaluation."""
        return measure(self._runtime, computation.active, computation.parameters)

    def warm_up(self, split: int) -> None:
        """Compute a split once with made-up parameters, the first time that this is called.

        Memory and code are warm then at the first clock, where all members would wait: memory that the system must find
        first can take longer than an iteration of a large model.
        """
        if not self._cold.acquire(blocking=False):
            return
        active = ActiveSet(self._runtime, {split: self._datasets.activate(split)})
        # With what computing takes, as much as an iteration has: parameters, and those of the next clock.
        held = [self._computation(active, 0, 0) for _ in range(2)]
        for computation in held:
            computation.parameters.values.fill(0.0)
            # So large that everything is on the grid, as it usually is.
            computation.parameters.exponents.fill(60)
        try:
            held[0].finish()
        except Exception as error:
            # A user's model may not like parameters that are all zero; what matters shows at the first clock.
            logger.info("while warming up: %s", error)

    def forget(self) -> None:
        """Drop the splits that are loaded: nothing is computed, unless more members are lost."""
        self._active = None
