"""The settings of a job that the pure core needs.  L0."""

from __future__ import annotations

from dataclasses import dataclass

from eps.core.reconfig import Change
from eps.errors import ConfigError

#: Staleness of ASP: no bound.
UNBOUNDED = -1


@dataclass(frozen=True, slots=True)
class Trigger:
    """A change that is asked when ``clock`` iterations are complete (``--at K:...``)."""

    clock: int
    change: Change


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """What the states of master, servers and workers have in common; never depends on the size of the job."""

    num_splits: int
    num_partitions: int
    #: Clocks to train; clock ``iterations`` itself is the evaluation of the final parameters.
    iterations: int
    #: Staleness bound in clocks: 0 is BSP, n > 0 is SSP, :data:`UNBOUNDED` is ASP.
    staleness: int = 0
    #: Sums on the grid, so that the model does not depend on who computed what; only under BSP, and there by default.
    reproducible: bool = True
    #: Standing followers of each partition, where there is more than one server.
    followers: int = 0
    #: The clock that a job goes on with where it starts from a checkpoint; None where it starts from its seed.
    resumed_clock: int | None = None

    def __post_init__(self) -> None:
        if self.num_splits < 1 or self.num_partitions < 1 or self.iterations < 1:
            raise ConfigError(
                f"splits ({self.num_splits}), partitions ({self.num_partitions}) and iterations ({self.iterations}) "
                "must be at least 1"
            )
        if self.staleness < UNBOUNDED:
            raise ConfigError(f"staleness is {self.staleness}, but must be 0 (BSP), a bound, or {UNBOUNDED} (ASP)")
        if self.reproducible and self.staleness != 0:
            raise ConfigError("reproducible sums need BSP: under SSP and ASP the order of updates changes the result")

    @property
    def bsp(self) -> bool:
        """True under BSP."""
        return self.staleness == 0

    @property
    def first_clock(self) -> int:
        """The checkpoint's; else -1 where clock -1 only measures the maxima that set the first grid, else 0."""
        return self.seeded_clock if self.resumed_clock is None else self.resumed_clock

    @property
    def seeded_clock(self) -> int:
        """The first clock of a job that starts from its seed."""
        return -1 if self.reproducible else 0

    def min_clock_to_read(self, clock: int) -> int:
        """Return how many clocks a partition must have completed before a worker may compute ``clock``.

        Source: EPS §2.2 (BSP, SSP, ASP); design section 6 (b = 0 is BSP).  At the evaluation of the final
        parameters everything must have been applied, whatever the bound.
        """
        if clock >= self.iterations or self.staleness == 0:
            return clock
        if self.staleness == UNBOUNDED:
            return 0
        return max(0, clock - self.staleness)
