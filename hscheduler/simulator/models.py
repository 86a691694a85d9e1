"""How fast a simulated job is and what changing it costs.

Every number is a parameter: they are fitted from real runs (:mod:`hscheduler.simulator.fit`), or declared.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """Seconds of an iteration by the number of workers and servers.

    ``fixed_s + split_s * ceil(splits / workers) + exchange_s / servers + member_s * (workers + servers)``: an iteration
    waits for the worker with most splits; its parameters come from servers that share them; every member is one more
    to talk to.

    Source: EPS §2.2 (the steps of an iteration), §4.2 (communication can make a larger job slower).
    """

    splits: int
    split_s: float
    fixed_s: float = 0.005
    exchange_s: float = 0.0
    member_s: float = 0.0

    def iteration_s(self, workers: int, servers: int) -> float:
        """Return the seconds of an iteration."""
        most = -(-self.splits // max(1, workers))
        together = self.exchange_s / max(1, servers) + self.member_s * (workers + servers)
        return self.fixed_s + self.split_s * most + together


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that changes take, and for which a job stands still meanwhile."""

    #: From the grant of its containers to the beginning of a job's first iteration.
    start_s: float = 1.0
    #: From the order to add until the newcomers take part.
    add_s: float = 0.5
    #: From the order to remove until the containers are free.
    remove_s: float = 0.2
    #: The job stands still for so long, at every change of its size.
    pause_s: float = 0.02
    #: From the order to end until all containers are free.
    end_s: float = 0.2
    #: What a restart takes besides ``end_s`` and ``start_s``, or a declared delay.  Its checkpoint is of the iteration
    #: that it ends with: what a real job computes again is a part of this.
    restart_s: float = 0.5
    #: From a job's last iteration until its containers are free.
    finish_s: float = 0.0
