"""The choice of a job's resource backend, by its settings.

Only the chosen backend is imported, since backends other than the local one need optional packages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from eps.cluster.api import ResourceManager
from eps.errors import ConfigError
from eps.spec.job_spec import JobSpec
from eps.storage.jobdir import JobDir

if TYPE_CHECKING:
    from eps.spec.runtime import Runtime


def check_backend(spec: JobSpec) -> None:
    """Refuse settings whose backend cannot work on this machine, before anything is created for the job.

    Raises
    ------
    ConfigError
        A package or the Docker image is missing.
    ResourceError
        The Docker engine does not respond.
    """
    if spec.on == "docker":
        from eps.cluster.docker.engine import DockerEngine

        engine = DockerEngine()
        try:
            engine.check_image(spec.docker.image)
        finally:
            engine.close()


def open_resources(
    runtime: Runtime, job: JobDir, supervisor: ResourceManager, entry_points: Mapping[str, str]
) -> ResourceManager:
    """Return the resource manager of a job, for a job master that ``supervisor`` has forked.

    Such a master of a job on YARN shares its application with other jobs.

    Parameters
    ----------
    runtime : Runtime
    job : JobDir
    supervisor : ResourceManager
        Provides containers as processes of this host.  With another backend it only receives the heartbeats and the end
        of the job.
    entry_points : mapping
        Role -> ``module:function``: the function that a container of that role runs.

    Raises
    ------
    ConfigError
        A package is missing.
    ResourceError
        The Docker engine or the application's container broker does not respond.
    StorageError
        The job's token cannot be read, or the folder of its checkpoints belongs to another job.
    """
    spec = runtime.spec
    if spec.on == "yarn":
        from eps.cluster.broker.resources import open_brokered

        note = job.record().yarn.broker
        if note is None:
            raise ConfigError(
                f"{job.path}: the job has no YARN application with a broker, so its master cannot run on this host"
            )
        return open_brokered(note, job, supervisor)
    if spec.on == "docker":
        from eps.cluster.docker.container import DockerSettings
        from eps.cluster.docker.resources import open_docker
        from eps.storage.claims import restore_owner
        from eps.storage.locations import open_storage

        # Data on HDFS needs no mount, but Hadoop's configuration does.
        conf_dir = os.environ.get("HADOOP_CONF_DIR", "")
        wanted = [runtime.dataset_dir, *([Path(conf_dir).absolute()] if conf_dir else [])]
        writable: tuple[Path, ...] = ()
        if runtime.owner and isinstance(checkpoints := runtime.checkpoints, Path):
            # The user may have removed it since the job started; Docker mounts only what exists.
            restore_owner(open_storage(checkpoints), runtime.owner)
            writable = (checkpoints,)
        settings = DockerSettings(
            spec.docker.image,
            mounts=tuple(path for path in wanted if isinstance(path, Path) and path.is_dir()),
            writable=writable,
            env={"HADOOP_CONF_DIR": str(wanted[-1])} if conf_dir else {},
            engine_timeout_s=spec.docker.engine_timeout_s,
            entry_points=entry_points,
        )
        return open_docker(settings, job, spec.containers.max_containers, supervisor)
    return supervisor
