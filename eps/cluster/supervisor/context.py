"""What a forked process is told about itself.  L1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: Role, and container id, of the job master.
MASTER = "master"
#: Role whose entry function the supervisor calls before it forks, with the path of the job's settings.
SUPERVISOR = "supervisor"
#: Environment of a container that no supervisor forked; ``eps.cluster.container`` says what each is.
ROLE, CONTAINER_ID, JOB_DIR = "EPS_ROLE", "EPS_CONTAINER_ID", "EPS_JOB_DIR"
MASTER_ADDRESS, HOST, TIED = "EPS_MASTER_ADDRESS", "EPS_HOST", "EPS_TIED"


@dataclass(frozen=True)
class ContainerContext:
    """What an entry function gets."""

    #: Absolute.
    job_dir: Path
    #: ``master``, ``server`` or ``worker``.
    role: str
    container_id: str
    #: Of the job master's control plane, from ``EPS_MASTER_ADDRESS``; None for the master.
    master_address: str | None = None
    #: Open descriptor of the channel to the supervisor; the master has it, nobody else.
    supervisor_fd: int | None = None
    #: What the launch request asked to set, already in ``os.environ``.
    env: Mapping[str, str] = field(default_factory=dict)
    #: Containers that run already -> pid; only a master that takes over from another finds any.
    running: Mapping[str, int] = field(default_factory=dict)
    #: Role -> ``module:function``: what the processes of the job run, for a master that starts containers of a runtime.
    entry_points: Mapping[str, str] = field(default_factory=dict)
    #: The container's own directory; removed when the container ends.
    scratch_dir: Path | None = None
    #: The name or address by which others reach this container, and on which it listens where members use TCP.
    host: str = "127.0.0.1"
