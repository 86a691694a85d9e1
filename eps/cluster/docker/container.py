"""A worker or server as a container of Docker: what the engine is asked for, and what it is known by."""

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
from eps.errors import EpsError
from eps.storage.jobdir import JobDir

#: What a user may do where a container ends because of its image.
CHECK_IMAGE = "the image must have Python with EPS, and what the model imports (docker/README.md)"
#: Between SIGTERM and SIGKILL, as the supervisor has it.
GRACE_S = 3.0
#: Labels of a container.
JOB, INSTANCE, CONTAINER, BOOT = "eps.job", "eps.instance", "eps.container", "eps.boot"
#: The arguments are the command; the shell gives it its log before it can say anything.
_TO_LOG = 'umask 077; exec "$@" >>"$EPS_LOG_FILE" 2>&1 </dev/null'


@dataclass(frozen=True)
class DockerSettings:
    """How a job's containers are."""

    image: str
    #: ``host``, or a network of the engine's on which containers find each other by their names.
    network: str = "host"
    #: Command of the image's Python.
    python: str = "python3"
    #: Directories that are mounted at the same path, read only.
    mounts: tuple[Path, ...] = ()
    #: Variables of every container.
    env: Mapping[str, str] = field(default_factory=dict)
    #: Between SIGTERM and SIGKILL, in seconds.
    grace_s: float = GRACE_S
    #: The job fails after so many seconds without an answer of the engine, and one launch is given up after as many.
    engine_timeout_s: float = 300.0
    #: Role -> ``module:function``: what a container runs.
    entry_points: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobLabels:
    """What a job's containers are known by."""

    job: Path
    #: Differs from one job to the next of the same name, and between a job and its resumption.
    instance: str
    #: Which processes see the same directories and locks.
    boot: str

    @property
    def label(self) -> str:
        """The label, with its value, that this run's containers alone have."""
        return f"{INSTANCE}={self.instance}"

    @classmethod
    def of(cls, job: JobDir) -> JobLabels:
        """Return those of a job's run.

        Raises
        ------
        StorageError
            Its token cannot be read.
        """
        # A run has a token of its own, of which this reveals nothing.
        digest = hashlib.sha256(f"eps containers {job.read_token()}".encode())
        return cls(job.path, digest.hexdigest()[:12], _boot())

    def name(self, container_id: str) -> str:
        """Return a container's name."""
        return f"eps-{self.job.name}-{self.instance}-{container_id}"

    def is_stray(self, found: Found) -> bool:
        """Return whether a container is left of a run that is over: of this job, or of another that runs no more."""
        if found.labels.get(INSTANCE) == self.instance or found.labels.get(BOOT) != self.boot:
            return False
        job = JobDir(Path(found.labels.get(JOB, "/")))
        # A directory that cannot be looked at is another user's.
        with suppress(EpsError):
            return job.path == self.job or not job.is_running()
        return False


def build_container(
    request: ContainerRequest, settings: DockerSettings, labels: JobLabels, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the container of a request, as the Docker Engine API takes it (``POST /containers/create``).

    Parameters
    ----------
    request : ContainerRequest
    settings : DockerSettings
        Its mounts are those of the job.
    labels : JobLabels
    environ : mapping
        Of the job master.
    """
    job, name = JobDir(labels.job), labels.name(request.container_id)
    shares_network = settings.network == "host"
    environment = {
        **passed_on(environ),
        **settings.env,
        **request.env,
        ROLE: request.role,
        CONTAINER_ID: request.container_id,
        JOB_DIR: str(labels.job),
        HOST: "127.0.0.1" if shares_network else name,
        TIED: "1",
        "EPS_LOG_FILE": str(job.log(request.container_id)),
        # The user has no home in the image.
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
        },
        # The job's files, its token among them, are its user's alone.
        "User": f"{os.getuid()}:{os.getgid()}",
        "WorkingDir": "/",
        "HostConfig": {
            "NetworkMode": settings.network,
            # Members say their pids, which others may send signals to.
            "PidMode": "host",
            "Mounts": [_mount(path, read_only=True) for path in settings.mounts] + [_mount(labels.job)],
            "Memory": memory_bytes,
            # As much with swap as without: none.
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
        # Nobody is known to see what we see.
        return ""
