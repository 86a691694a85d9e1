"""A job's application on YARN: its note in the job's directory here, its folder on the cluster, its master's orders."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import msgspec

from eps.cluster.supervisor.process import MASTER
from eps.cluster.yarn.allocation import Placement
from eps.cluster.yarn.launch import RoleTemplate
from eps.cluster.yarn.types import Execution, LocalFile, Resource
from eps.core.types import Role, Tier
from eps.errors import ConfigError
from eps.hadoop.conf import HadoopConf, default_authority
from eps.spec.job_spec import JobSpec
from eps.storage.api import Storage
from eps.storage.claims import open_cluster_folder
from eps.storage.jobdir import JobDir
from eps.storage.locations import RemotePath
from eps.storage.record import Phase

#: Names in a job's shared folder, beside its checkpoints.
JOB_ARCHIVE, STATE, RESULTS = "job.zip", "state", "results"
#: Folder with a folder for each job's checkpoints; in EPS's folder on a cluster, and in that of a sweep.
CHECKPOINTS = "checkpoints"
#: Result file with the job's outcome, which the master writes after all others.
ENDED_FILE = "ended.json"
#: Result file with the job's page.
PAGE_FILE = "page.html"
#: Uploads and downloads copy in parts of this size.
COPY_BYTES = 1 << 20
#: Environment variable with an application master's :class:`MasterOrders`, as text.
ORDERS = "EPS_YARN"


@dataclass(frozen=True)
class Application:
    """The application of a job on YARN, as noted in the job's record."""

    application_id: str
    #: Folder on the cluster that the job's processes share; empty once it was removed, with its secrets.
    shared: str
    #: Folder of the cluster's configuration.
    conf_dir: str

    def storage(self) -> Storage:
        """Return the store of the shared folder, with a short retry deadline.

        Raises
        ------
        ConfigError
            The cluster's configuration can no longer be read.
        """
        return open_cluster_folder(self.shared, self.conf_dir)

    def remove(self) -> None:
        """Remove the shared folder.  Idempotent.

        Raises
        ------
        ConfigError
            The cluster's configuration can no longer be read.
        StorageError
            The folder cannot be removed.
        """
        if self.shared:
            self.storage().remove("")

    def write(self, job: JobDir) -> None:
        """Note the application in the job's record; do so before submitting it."""
        job.note(phase=Phase.SUBMITTED, yarn={"application": asdict(self)})

    @classmethod
    def read(cls, job: JobDir) -> Application | None:
        """Return a job's application from its record; None for a job that does not run on YARN.

        Raises
        ------
        StorageError
            The record cannot be read.
        """
        found = job.record().yarn.application
        return None if found is None else cls(*(str(found[field.name]) for field in fields(cls)))


@dataclass(frozen=True)
class MasterOrders:
    """Orders to an application master: how to start the containers of its job."""

    shared: str
    #: Command that starts the interpreter in every container, for a shell.
    python: str
    #: Name in a container's folder -> file.
    files: Mapping[str, LocalFile]
    #: Environment of every container.
    env: Mapping[str, str]

    def to_text(self) -> str:
        """Return the orders as text for :meth:`from_text`, without characters that are special to a shell."""
        return base64.b64encode(msgspec.json.encode(self)).decode("ascii")

    @classmethod
    def from_text(cls, text: str) -> MasterOrders:
        """Return the orders that :meth:`to_text` wrote.

        Raises
        ------
        ConfigError
            The text is no orders.
        """
        try:
            return msgspec.json.decode(base64.b64decode(text, validate=True), type=cls)
        except (ValueError, msgspec.MsgspecError) as error:
            raise ConfigError(f"the variable {ORDERS} has no orders for an application master: {error}") from None


def remove_staged(job: JobDir) -> None:
    """Remove the shared folder of a job that has ended: its archive with its secrets, its log, its results.

    Checkpoints stay (:func:`eps.storage.claims.remove_claimed` removes them), and files that jobs share.  Idempotent.

    Parameters
    ----------
    job : JobDir
        The caller holds its lock.

    Raises
    ------
    ConfigError
        The cluster's configuration can no longer be read.
    StorageError
        The folder cannot be removed.
    """
    application = Application.read(job)
    if application is None or not application.shared:
        return
    application.remove()
    job.note(yarn={"application": asdict(replace(application, shared=""))})


def role_templates(orders: MasterOrders, spec: JobSpec, entry_points: Mapping[str, str]) -> dict[str, RoleTemplate]:
    """Return the template of each kind of container, which runs the entry point of its roles."""
    found = {}
    for kind in spec.first_containers:
        role = "+".join(roles_in(kind))
        found[kind] = RoleTemplate(
            command=f"{orders.python} -P -m eps.cluster.yarn.container --entry {role}={entry_points[role]}",
            env=orders.env,
            files=orders.files,
            placement=Placement(
                label=spec.yarn.label_of(kind),
                execution=Execution(spec.yarn.execution_of(kind)),
                # YARN grants reliable containers first, and preempts them last.
                priority=2 if kind == Tier.TRANSIENT else 1,
                size=resource_of(spec, kind),
            ),
            access=spec.yarn.access(),
        )
    return found


def roles_in(kind: str) -> tuple[str, ...]:
    """Return the roles of the members in a kind of container, sorted."""
    return tuple(sorted(Role)) if kind in tuple(Tier) else (kind,)


def resource_of(spec: JobSpec, kind: str) -> Resource:
    """Return the size of a kind of container: of other resources than memory and cores the most of its roles."""
    roles = roles_in(kind)
    others: dict[str, int] = {}
    for name, number in (each for role in roles for each in spec.yarn.resources_of(role)):
        others[name] = max(number, others.get(name, 0))
    size = spec.containers
    return Resource(size.memory_of(kind), size.vcores_of(kind), tuple(sorted(others.items())))


def tags_of(spec: JobSpec) -> tuple[str, ...]:
    """Return the tags of a job's application: the user's, and the job's size as a hint for schedulers.

    ``eps.workers=3 eps.servers=1 eps.worker=4096x1 eps.server=4096x1`` (memory in MB, cores).  A job on reliable and
    transient containers gives no hint.
    """
    own = tuple(tag.strip() for tag in spec.yarn.tags.split(",") if tag.strip())
    if spec.tiers.total:
        return own
    sizes = {role: resource_of(spec, role) for role in ("worker", "server")}
    ours = [f"eps.workers={spec.workers}", f"eps.servers={spec.servers}"]
    ours += [f"eps.{role}={size.memory_mb}x{size.vcores}" for role, size in sizes.items()]
    return (*own, *ours)


def result_files(job: JobDir) -> tuple[Path, ...]:
    """Return the files that a job's master uploads to the results at the end, beside the model."""
    return job.report, job.status_json, job.log(MASTER)


def staged_name(name: str, application_id: str) -> str:
    """Return the name of a job's shared folder on the cluster."""
    return f"{name}-{application_id}"


def staged_pattern(name: str) -> str:
    """Return a shell pattern that matches the shared folders of all jobs of this name only."""
    return f"{name}-application_*"


def home_location(conf: HadoopConf, user: str, staging: str = "") -> RemotePath:
    """Return EPS's folder on the cluster, which holds jobs and the files that they share.

    Parameters
    ----------
    conf : HadoopConf
    user : str
    staging : str
        The setting ``staging``; empty: ``.eps`` in the user's home folder.

    Raises
    ------
    ConfigError
        ``staging`` is no location on HDFS.
    """
    try:
        return RemotePath.parse(staging.rstrip("/") or f"hdfs://{default_authority(conf)}/user/{user}/.eps")
    except ConfigError as error:
        raise ConfigError(f"staging: {error}" if staging else str(error)) from None
