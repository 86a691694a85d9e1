"""The entry point of each process of a job."""

from __future__ import annotations

from eps.cluster.supervisor.process import MASTER, SUPERVISOR

#: Role -> ``module:function``, called with the process's :class:`~eps.cluster.supervisor.process.ContainerContext`.
#: The function returns an exit code, or None for 0.  An exception goes to the container's log and gives exit code 1.
#: The supervisor's function prepares modules that all others share, before the first fork.
ENTRY_POINTS: dict[str, str] = {
    SUPERVISOR: "eps.spec.runtime:compile_kernels",
    MASTER: "eps.master.main:run",
    "server": "eps.job.member:run",
    "worker": "eps.job.member:run",
    "server+worker": "eps.job.member:run",
}
