"""Models of a job's speed and of the cost of changing it.

All numbers are parameters: fitted from real runs (:mod:`hscheduler.simulator.fit`) or declared.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """Seconds of an iteration by the number of workers and servers.

    ``fixed_s + split_s * ceil(splits / workers) + exchange_s / servers + member_s * (workers + servers)``: an iteration
    waits for the worker with most splits, the servers share the exchange of parameters, and every member adds
    messages.

    Source: EPS §2.2 (the steps of an iteration), §4.2 (communication can make a larger job slower).
    """

    splits: int
    split_s: float
    fixed_s: float = 0.005
    exchange_s: float = 0.0
    member_s: float = 0.0

    def iteration_s(self, workers: int, servers: int) -> float:
        """Return the seconds of an iteration; with 0 servers each of the workers' containers hosts one, too."""
        servers = servers or workers
        most = -(-self.splits // max(1, workers))
        together = self.exchange_s / max(1, servers) + self.member_s * (workers + servers)
        return self.fixed_s + self.split_s * most + together


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that changes of a job take."""

    #: From the grant of its containers to the start of a job's first iteration.
    start_s: float = 1.0
    #: From the command to add members until they take part.
    add_s: float = 0.5
    #: From the command to remove members until their containers are free.
    remove_s: float = 0.2
    #: Pause of training at every change of size.
    pause_s: float = 0.02
    #: From the command to end a job until all its containers are free.
    end_s: float = 0.2
    #: Time of a restart besides ``end_s`` and ``start_s``, or a declared delay.  A simulated job loses no iterations
    #: at a restart, so this includes the time in which a real job computes iterations again.
    restart_s: float = 0.5
    #: From a job's last iteration until its containers are free.
    finish_s: float = 0.0
