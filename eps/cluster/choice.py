"""Which backend a job's containers come from, by its settings.

Every backend but the local one is imported only where it is chosen: its packages are extras.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from eps.cluster.api import ResourceManager
from eps.errors import ConfigError
from eps.spec.job_spec import JobSpec
from eps.storage.jobdir import JobDir
from eps.storage.locations import Location


def check_backend(spec: JobSpec) -> None:
    """Refuse settings whose containers cannot be had from this machine, before anything is made for the job.

    Raises
    ------
    ConfigError
        A package is missing, or the image is.
    ResourceError
        The Docker engine does not answer.
    """
    if spec.on == "docker":
        from eps.cluster.docker.engine import DockerEngine

        engine = DockerEngine()
        try:
            engine.check_image(spec.image)
        finally:
            engine.close()


def open_resources(
    spec: JobSpec, dataset_dir: Location, job: JobDir, supervisor: ResourceManager, entry_points: Mapping[str, str]
) -> ResourceManager:
    """Return where the containers of a job come from, for a job master that ``supervisor`` has forked.

    A job on YARN has such a master where it shares its application with others.

    Parameters
    ----------
    spec : JobSpec
    dataset_dir : Location
        Of the prepared data.
    job : JobDir
    supervisor : ResourceManager
        Containers that are processes of this host; where others are asked for, it only hears of the job master.
    entry_points : mapping
        Role -> ``module:function``: what a container of a runtime is to run.

    Raises
    ------
    ConfigError
        A package is missing.
    ResourceError
        The Docker engine does not answer, or the broker of the application's containers.
    StorageError
        The job's token cannot be read.
    """
    if spec.on == "yarn":
        from eps.cluster.broker.resources import open_brokered

        note = job.record().yarn.broker
        if note is None:
            raise ConfigError(f"{job.path}: the job has no application: its master is no process of this host")
        return open_brokered(note, job, supervisor)
    if spec.on == "docker":
        from eps.cluster.docker.container import DockerSettings
        from eps.cluster.docker.resources import open_docker

        # Data on HDFS needs no mount, but what says where HDFS is.
        conf_dir = os.environ.get("HADOOP_CONF_DIR", "")
        wanted = [dataset_dir, *([Path(conf_dir).absolute()] if conf_dir else [])]
        settings = DockerSettings(
            spec.image,
            mounts=tuple(path for path in wanted if isinstance(path, Path) and path.is_dir()),
            env={"HADOOP_CONF_DIR": str(wanted[-1])} if conf_dir else {},
            engine_timeout_s=spec.engine_timeout_s,
            entry_points=entry_points,
        )
        return open_docker(settings, job, spec.max_containers, supervisor)
    return supervisor
