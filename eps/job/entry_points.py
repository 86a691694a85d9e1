"""What each process of a job runs: the one table that names the processes, for those that start them."""

from __future__ import annotations

from eps.cluster.supervisor.process import MASTER, SUPERVISOR

#: Role -> ``module:function``, called with the process's :class:`~eps.cluster.supervisor.process.ContainerContext`.  It
#: returns an exit code, or None for 0; an exception is written to the container's log and ends the process with 1.
#: That of the supervisor only prepares what all others share, before the first is forked.
ENTRY_POINTS: dict[str, str] = {
    SUPERVISOR: "eps.spec.runtime:compile_kernels",
    MASTER: "eps.master.main:run",
    "server": "eps.server.main:run",
    "worker": "eps.worker.main:run",
    "server+worker": "eps.job.host:run",
}
