"""A job's application on YARN, as its directory on the client's machine knows it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from eps.cluster.supervisor.process import MASTER
from eps.cluster.yarn.allocation import Placement
from eps.cluster.yarn.launch import RoleTemplate
from eps.cluster.yarn.types import Execution, LocalFile, Resource, local_file_of
from eps.errors import ConfigError
from eps.hadoop.conf import HadoopConf, default_authority
from eps.spec.job_spec import JobSpec
from eps.storage.api import Storage
from eps.storage.claims import open_kept
from eps.storage.jobdir import JobDir
from eps.storage.locations import RemotePath
from eps.storage.record import Phase

#: What the shared folder of a job holds, beside its checkpoints.
JOB_ARCHIVE, STATE, RESULTS = "job.zip", "state", "results"
#: Of what EPS has on a cluster, and of what a sweep has: a folder for each job with its checkpoints.
CHECKPOINTS = "checkpoints"
#: Of the results: what the job master leaves when it ends, after all others.
ENDED_FILE = "ended.json"
#: Of the results: what tells people how the job went.
PAGE_FILE = "page.html"
#: Of a file that is brought or fetched, so much is in memory at a time.
COPY_BYTES = 1 << 20
#: Name of the environment variable in which an application master finds its :class:`MasterOrders`, as text.
ORDERS = "EPS_YARN"


@dataclass(frozen=True)
class Application:
    """Where a job runs."""

    application_id: str
    #: Folder in the cluster's file system that the job's processes share; empty once it is gone, with its secrets.
    shared: str
    #: Folder of the cluster's configuration.
    conf_dir: str

    def storage(self) -> Storage:
        """Return the store of that folder, which is waited for shortly only.

        Raises
        ------
        ConfigError
            The configuration of its cluster cannot be read any more.
        """
        return open_kept(self.shared, self.conf_dir)

    def remove(self) -> None:
        """Remove that folder, of which nobody needs anything any more.  Harmless when repeated.

        Raises
        ------
        ConfigError
            The configuration of its cluster cannot be read any more.
        StorageError
            It cannot be removed.
        """
        if self.shared:
            self.storage().remove("")

    def write(self, job: JobDir) -> None:
        """Note it in the job's record, before YARN is asked to take it."""
        job.note(phase=Phase.SUBMITTED, yarn={"application": asdict(self)})

    @classmethod
    def read(cls, job: JobDir) -> Application | None:
        """Return what is noted of a job's application; None for a job that does not run on YARN.

        Raises
        ------
        StorageError
            The record cannot be read.
        """
        found = job.record().yarn.application
        return None if found is None else cls(*(str(found[field.name]) for field in fields(cls)))


@dataclass(frozen=True)
class MasterOrders:
    """What an application master is told: how to start the containers of its job."""

    shared: str
    #: What starts the interpreter in every container, for a shell.
    python: str
    #: Name in a container's folder -> file.
    files: Mapping[str, LocalFile]
    #: Environment of every container.
    env: Mapping[str, str]

    def to_text(self) -> str:
        """Return what :meth:`from_text` takes: nothing in it means anything to the shell that sets it."""
        return base64.b64encode(json.dumps(asdict(self)).encode("utf-8")).decode("ascii")

    @classmethod
    def from_text(cls, text: str) -> MasterOrders:
        """Return the orders that :meth:`to_text` wrote.

        Raises
        ------
        ConfigError
            It did not write this.
        """
        try:
            return cls._of(json.loads(base64.b64decode(text, validate=True)))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{ORDERS} does not say what this application master is to do: {error!r}") from None

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> MasterOrders:
        files = {name: local_file_of(file) for name, file in values["files"].items()}
        return cls(values["shared"], values["python"], files, dict(values["env"]))


def remove_staged(job: JobDir) -> None:
    """Remove what a job that has ended keeps on the cluster: its archive, with its secrets, its log, its results.

    Checkpoints stay (:func:`eps.storage.claims.remove_claimed`), and what jobs share.  Harmless when repeated.

    Parameters
    ----------
    job : JobDir
        Whose lock the caller holds.

    Raises
    ------
    ConfigError
        The configuration of its cluster cannot be read any more.
    StorageError
        It cannot be removed.
    """
    application = Application.read(job)
    if application is None or not application.shared:
        return
    application.remove()
    job.note(yarn={"application": asdict(replace(application, shared=""))})


def role_templates(orders: MasterOrders, spec: JobSpec, entry_points: Mapping[str, str]) -> dict[str, RoleTemplate]:
    """Return role -> how a job's containers of it are started; each runs the entry point of its role."""
    return {
        role: RoleTemplate(
            command=f"{orders.python} -P -m eps.cluster.yarn.container --entry {role}={entry_points[role]}",
            env=orders.env,
            files=orders.files,
            placement=Placement(
                label=spec.yarn.label_of(role),
                execution=Execution(spec.yarn.execution_of(role)),
                size=resource_of(spec, role),
            ),
            access=spec.yarn.access(),
        )
        for role in ("worker", "server")
    }


def resource_of(spec: JobSpec, role: str) -> Resource:
    """Return what a container of a role is to have."""
    memory_mb, vcores = spec.containers.memory_of(role), spec.containers.vcores_of(role)
    return Resource(memory_mb, vcores, spec.yarn.resources_of(role))


def tags_of(spec: JobSpec) -> tuple[str, ...]:
    """Return the tags of a job's application: the user's, and what it will ask for, which schedulers may want to know.

    ``eps.workers=3 eps.servers=1 eps.worker=4096x1 eps.server=4096x1`` (memory in MB, cores).
    """
    sizes = {role: resource_of(spec, role) for role in ("worker", "server")}
    ours = [f"eps.workers={spec.workers}", f"eps.servers={spec.servers}"]
    ours += [f"eps.{role}={size.memory_mb}x{size.vcores}" for role, size in sizes.items()]
    return (*(tag.strip() for tag in spec.yarn.tags.split(",") if tag.strip()), *ours)


def papers_of(job: JobDir) -> tuple[Path, ...]:
    """Return the files of a job that its master leaves in its results when it ends, beside the model."""
    return job.report, job.journal, job.status_json, job.log(MASTER)


def staged_name(name: str, application_id: str) -> str:
    """Return the name of the folder that the processes of a job share: by it the job is found on the cluster."""
    return f"{name}-{application_id}"


def staged_pattern(name: str) -> str:
    """Return a pattern for a shell that finds all such folders of a job, and none of a job of another name."""
    return f"{name}-application_*"


def home_location(conf: HadoopConf, user: str, staging: str = "") -> RemotePath:
    """Return the folder of the cluster's file system in which EPS keeps jobs and what they share.

    Parameters
    ----------
    conf : HadoopConf
    user : str
    staging : str
        What the user says; empty: ``.eps`` in the user's home folder.

    Raises
    ------
    ConfigError
        It is no location on HDFS.
    """
    try:
        return RemotePath.parse(staging.rstrip("/") or f"hdfs://{default_authority(conf)}/user/{user}/.eps")
    except ConfigError as error:
        raise ConfigError(f"staging: {error}" if staging else str(error)) from None
