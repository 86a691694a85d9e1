"""From a sweep's file to one application on YARN."""

from __future__ import annotations

import dataclasses
import io
import logging
import secrets
from pathlib import Path
from typing import Any

from eps.cluster.yarn.application import Application
from eps.cluster.yarn.checks import Cluster, check_job
from eps.cluster.yarn.clients import client_kind
from eps.cluster.yarn.facade import Client
from eps.cluster.yarn.shipping import packed
from eps.cluster.yarn.staging import check_file_systems, file_systems_of, home_of
from eps.cluster.yarn.types import LocalFile, Resource, Submission, Visibility
from eps.errors import ConfigError
from eps.hadoop.conf import HadoopConf
from eps.job.yarn.submit import (
    FAILURES_VALID_S,
    MOST_ATTEMPTS,
    common_orders,
    launch_of,
    put_file,
    remove_shared,
    submit_noted,
)
from eps.net.security.credentials import TlsFiles
from eps.spec.job_spec import JobSpec
from eps.storage.jobdir import JobDir
from eps.storage.locations import RemotePath
from hscheduler.application.inputs import staged
from hscheduler.application.orders import APPLICATION_TYPE, SWEEP_FILE, SWEEP_FOLDER, SweepOrders
from hscheduler.live.checks import working
from hscheduler.spec import Spec, memory_mb

logger = logging.getLogger(__name__)

#: Of the application's master: what it needs itself, with Java and room for models that are being exported, and what
#: each job adds, in MiB.  Measured: 3.5 in the process of its master, 1.2 in the scheduler's
#: (benchmarks/yarn/masters.py).
BASE_MB, JOB_MB = 896, 8
#: Where neither the sweep nor its file says when jobs write checkpoints.
CHECKPOINT_EVERY = "30s"
MODULE = "hscheduler.application.am"
#: Folder in the cluster's file system, beside those of jobs: one folder for each sweep.
SWEEPS = "sweeps"


def most_at_once(spec: Spec) -> int:
    """Return how many trials may run at the same time: as many as the sweep allows, and as fit the cluster."""
    cluster, limit = spec.cluster, spec.sweep.trials
    if spec.sweep.parallelism:
        limit = min(limit, spec.sweep.parallelism)
    # One has its master, a worker and a server at least, and no container is smaller than those.
    containers = cluster.nodes * (cluster.vcores // cluster.container_vcores)
    return max(1, min(limit, containers // 3))


def master_resource(spec: Spec, granted: Resource | None = None) -> Resource:
    """Return the container of the application's master, which the masters of all jobs are in.

    It has what the scheduler counts for one job's master at least, so that it never plans with what this takes.

    Parameters
    ----------
    spec : Spec
    granted : Resource, optional
        The largest container that YARN grants; default: as large as a node.
    """
    size, largest = spec.cluster.container(), memory_mb(spec.cluster.memory)
    if granted is not None:
        largest = min(largest, granted.memory_mb)
    wanted = BASE_MB + JOB_MB * most_at_once(spec)
    return Resource(min(largest, max(size.memory_mb, wanted)), size.vcores)


def submit_sweep(spec: Spec, policy: str, directory: JobDir, client: Client, conf: HadoopConf) -> Application:
    """Bring what a sweep needs to the cluster, and submit its application, which its directory knows from before on.

    One whose submission is cut short is ended, as of :func:`eps.job.yarn.submit.submit_noted`.

    Parameters
    ----------
    spec : Spec
        With the cluster that there is; see :func:`hscheduler.live.on_yarn.placed`.
    policy : str
    directory : JobDir
        With the certificates by which the scheduler and its clients know each other.
    client : Client
    conf : HadoopConf

    Raises
    ------
    ConfigError
        The cluster cannot run it: the message says why.
    ResourceError
        YARN refuses.
    RpcError
        The cluster cannot be reached.
    StorageError
        Its file system cannot be used.
    """
    # Whoever has placed it has told the user.
    job, cluster = spec.job_spec(), Cluster(client, warns=False)
    queue = cluster.queue(job.queue)
    resource = master_resource(spec, None if queue is None else queue.largest)
    working(spec, lambda job: check_job(cluster, dataclasses.replace(job, memory_mb=_sizes(job, resource))))
    check_file_systems(conf, job, client)
    home = home_of(conf, job, client)
    shared = home / SWEEPS / secrets.token_hex(8)
    tables, models = staged(_with_checkpoints(spec), home / "cache")
    try:
        orders = common_orders(conf, job, shared, client)
        tokens = client.obtain_tokens(file_systems_of(home, job))
        sweep = _bring(shared, SweepOrders(policy, tables), TlsFiles.within(directory.tls), models)
        submission = Submission(
            name=f"sweep-{shared.name[:6]}",
            launch=launch_of(MODULE, orders, {**orders.files, SWEEP_FOLDER: sweep}, tokens),
            resource=resource,
            queue=job.queue,
            tags=tuple(tag.strip() for tag in job.tags.split(",") if tag.strip()),
            application_type=APPLICATION_TYPE,
            label=job.by_role("label", "master"),
            # The processes that would be their jobs' masters end with the application's.
            keep_containers=False,
            max_attempts=MOST_ATTEMPTS,
            failures_valid_s=FAILURES_VALID_S,
        )
        kind = client_kind(conf, job.yarn_client)
        application = Application(client.new_application(), str(shared), conf.source, kind)
        ends = f"yarn application -kill {application.application_id}"
        submit_noted(client, directory, application, submission, ends)
    except BaseException:
        remove_shared(shared)
        raise
    return application


def _sizes(job: JobSpec, master: Resource) -> str:
    """Return the setting of a job like this whose master is the application's."""
    sizes = {role: job.number_by_role("memory_mb", role) for role in ("worker", "server")}
    return ",".join(f"{role}={size}" for role, size in {**sizes, "master": master.memory_mb}.items())


def _with_checkpoints(spec: Spec) -> dict[str, Any]:
    """Return a sweep's tables with checkpoints: from them trials go on where the application's master was lost."""
    tables = spec.tables()
    if "checkpoint_every" not in {*tables["job"], *tables["space"]}:
        tables["job"] = {**tables["job"], "checkpoint_every": CHECKPOINT_EVERY}
    return tables


def _bring(shared: RemotePath, orders: SweepOrders, tls: TlsFiles, models: dict[str, Path]) -> LocalFile:
    """Bring to the cluster what is for the application's master alone."""
    try:
        members = [(SWEEP_FILE, orders.to_bytes(), 0o600)]
        members += [(name, content, 0o600) for name, content in tls.contents().items()]
        members += [(name, path.read_bytes(), 0o600) for name, path in models.items()]
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from None
    return put_file(shared, f"{SWEEP_FOLDER}.zip", io.BytesIO(packed(members).content), Visibility.APPLICATION)
