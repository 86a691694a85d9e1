"""A worker or server as a Docker container: its configuration, name and labels."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eps.cluster.api import ContainerRequest
from eps.cluster.docker.engine import Found
from eps.cluster.supervisor.process import CONTAINER_ID, HOST, JOB_DIR, ROLE, TIED, passed_on
from eps.core.evictions import NOTICE_S
from eps.errors import EpsError
from eps.storage.jobdir import JobDir

#: Advice if a container ends because of its image.
CHECK_IMAGE = "the image must have Python with EPS, and what the model imports (docker/README.md)"
#: From the signal that ends a container to SIGKILL, as for the supervisor.
GRACE_S = 3.0
#: Labels of a container.
JOB, INSTANCE, CONTAINER, BOOT = "eps.job", "eps.instance", "eps.container", "eps.boot"
#: The arguments are the command; the shell redirects its output to the log before it starts.
_TO_LOG = 'umask 077; exec "$@" >>"$EPS_LOG_FILE" 2>&1 </dev/null'


@dataclass(frozen=True)
class DockerSettings:
    """Settings of a job's containers."""

    image: str
    #: Python command in the image.
    python: str = "python3"
    #: Directories to mount at the same path, read only.
    mounts: tuple[Path, ...] = ()
    #: Directories to mount at the same path, besides the job's.
    writable: tuple[Path, ...] = ()
    #: Environment variables of every container.
    env: Mapping[str, str] = field(default_factory=dict)
    #: From the signal that ends a container to SIGKILL, in seconds.
    grace_s: float = GRACE_S
    #: How long the engine may not respond before the job fails; also the limit for the retries of one launch.  Seconds.
    engine_timeout_s: float = 300.0
    #: Role -> ``module:function``: the function that a container runs.
    entry_points: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobLabels:
    """The labels and names of a job's containers."""

    job: Path
    #: Differs between jobs of the same name, and between a job and its resumption.
    instance: str
    #: Identifies the boot and mount namespace: processes with an equal value see the same directories and locks.
    boot: str

    @property
    def label(self) -> str:
        """The label, with its value, of this run's containers only."""
        return f"{INSTANCE}={self.instance}"

    @classmethod
    def of(cls, job: JobDir) -> JobLabels:
        """Return the labels of a job's run.

        Raises
        ------
        StorageError
            The job's token cannot be read.
        """
        # Each run has its own token; the hash does not reveal it.
        digest = hashlib.sha256(f"eps containers {job.read_token()}".encode())
        return cls(job.path, digest.hexdigest()[:12], _boot())

    def name(self, container_id: str) -> str:
        """Return the name of a container."""
        return f"eps-{self.job.name}-{self.instance}-{container_id}"

    def is_stray(self, found: Found) -> bool:
        """Return whether a container belongs to a run that is over, of this job or another."""
        if found.labels.get(INSTANCE) == self.instance or found.labels.get(BOOT) != self.boot:
            return False
        job = JobDir(Path(found.labels.get(JOB, "/")))
        # An unreadable directory belongs to another user.
        with suppress(EpsError):
            return job.path == self.job or not job.is_running()
        return False


def build_container(
    request: ContainerRequest, settings: DockerSettings, labels: JobLabels, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the configuration of a requested container, as the Docker Engine API takes it (``POST
    /containers/create``).

    Parameters
    ----------
    request : ContainerRequest
    settings : DockerSettings
    labels : JobLabels
    environ : mapping
        Environment of the job master.
    """
    job = JobDir(labels.job)
    environment = {
        **passed_on(environ),
        **settings.env,
        **request.env,
        ROLE: request.role,
        CONTAINER_ID: request.container_id,
        JOB_DIR: str(labels.job),
        HOST: "127.0.0.1",
        TIED: "1",
        "EPS_LOG_FILE": str(job.log(request.container_id)),
        # The user has no home directory in the image.
        "HOME": str(job.scratch(request.container_id)),
    }
    command = [settings.python, "-P", "-m", "eps.cluster.container"]
    for role, entry in sorted(settings.entry_points.items()):
        command += ["--entry", f"{role}={entry}"]
    memory_bytes = request.memory_mb << 20
    return {
        "Image": settings.image,
        "Entrypoint": ["/bin/sh", "-c", _TO_LOG, "sh"],
        "Cmd": command,
        "Env": [f"{key}={value}" for key, value in sorted(environment.items())],
        "Labels": {
            JOB: str(labels.job),
            INSTANCE: labels.instance,
            CONTAINER: request.container_id,
            BOOT: labels.boot,
            "eps.role": request.role,
            **({"eps.tier": request.tier} if request.tier else {}),
        },
        # From SIGTERM, which ``docker stop`` sends, to SIGKILL.
        "StopTimeout": int(NOTICE_S),
        # Only the job's user can read its files, such as the token.
        "User": f"{os.getuid()}:{os.getgid()}",
        "WorkingDir": "/",
        "HostConfig": {
            "NetworkMode": "host",
            # Members send each other signals by the pids that they report.
            "PidMode": "host",
            "Mounts": [
                *(_mount(path, read_only=True) for path in settings.mounts),
                *(_mount(path) for path in (*settings.writable, labels.job)),
            ],
            "Memory": memory_bytes,
            # Equal to Memory: no swap.
            "MemorySwap": memory_bytes,
            "NanoCpus": request.vcores * 1_000_000_000,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
        },
    }


def _mount(path: Path, *, read_only: bool = False) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(path), "Target": str(path), "ReadOnly": read_only}


def _boot() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.stat('/proc/self/ns/mnt').st_ino}"
    except OSError:
        # Unknown: matches no other process.
        return ""
