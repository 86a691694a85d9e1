"""Submit a sweep or a service to YARN as an application."""

from __future__ import annotations

import dataclasses
import io
import secrets
from collections.abc import Mapping
from pathlib import Path

from eps.cluster.yarn.application import Application
from eps.cluster.yarn.checks import Cluster, check_file_systems, check_job, file_systems_of, home_of
from eps.cluster.yarn.facade import Client
from eps.cluster.yarn.shipping import packed
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
    uploaded_file,
)
from eps.net.security.credentials import TlsFiles
from eps.spec.job_spec import JobSpec
from eps.storage.jobdir import JobDir
from eps.storage.locations import RemotePath
from hscheduler.application.staged_files import (
    ORDERS_FILE,
    SERVICE_FILE,
    SERVICE_FOLDER,
    SERVICE_TYPE,
    SWEEP_TYPE,
    ServiceOrders,
    stage,
)
from hscheduler.core.resources import Resources
from hscheduler.live.checks import check_sizes, working
from hscheduler.live.placement import container_settings, hosted
from hscheduler.service.main import ServiceSettings
from hscheduler.spec import ClusterSpec, Spec, memory_mb

#: Memory of the application master in MiB: for itself, with Java and models that are being exported, and for each job.
#: Measured for a job: 3.5 in the process of its master, 1.2 in the scheduler's (benchmarks/yarn/masters.py).
BASE_MB, JOB_MB = 896, 8
MODULE = "hscheduler.application.am"
#: Folder in the cluster's file system with a subfolder for each application.
SWEEPS = "sweeps"


def most_at_once(cluster: ClusterSpec, limit: int | None = None) -> int:
    """Return the most jobs that run at the same time: as many as fit the cluster, at most ``limit``."""
    # A job may shrink to one container, which hosts its worker and its server; its master may need another.
    fit = max(1, cluster.num_containers() // (1 + cluster.master_container))
    return fit if limit is None else max(1, min(limit, fit))


def trials_at_once(spec: Spec) -> int:
    """Return the most trials that a sweep runs at the same time."""
    trials, parallelism = spec.sweep.trials, spec.sweep.parallelism
    return most_at_once(spec.cluster, min(trials, parallelism) if parallelism else trials)


def master_resource(cluster: ClusterSpec, jobs: int, granted: Resource | None = None) -> Resource:
    """Return the size of the application master's container, in which the masters of all jobs run.

    It is at least as large as the container of one job master, which the scheduler reserves for it.

    Parameters
    ----------
    cluster : ClusterSpec
    jobs : int
        Most jobs at the same time.
    granted : Resource, optional
        The largest container that YARN grants; default: a whole node.
    """
    size, largest = cluster.container(), memory_mb(cluster.memory)
    if granted is not None:
        largest = min(largest, granted.memory_mb)
    return Resource(min(largest, max(size.memory_mb, BASE_MB + JOB_MB * jobs)), size.vcores)


def settings_of(spec: Spec, policy: str) -> ServiceSettings:
    """Return the settings of a service that runs one sweep, the same as for a sweep on this host."""
    cluster, sweep = spec.cluster, spec.sweep
    return ServiceSettings(
        policy=policy,
        nodes=cluster.nodes,
        vcores=cluster.vcores,
        memory=cluster.memory,
        seed=sweep.seed,
        kill_restart_s=max(0.0, sweep.kill_restart_s),
        job_settings=container_settings(cluster),
    )


def submit_sweep(spec: Spec, policy: str, directory: JobDir, client: Client, conf: HadoopConf) -> Application:
    """Upload the files of a sweep and submit its application, which is noted in its directory first.

    An interrupted submission is killed, see :func:`eps.job.yarn.submit.submit_noted`.

    Parameters
    ----------
    spec : Spec
        With the actual cluster; see :func:`hscheduler.live.placement.placed`.
    policy : str
    directory : JobDir
        Has the certificates of the scheduler and its clients.
    client : Client
    conf : HadoopConf

    Raises
    ------
    ConfigError
        The cluster cannot run the sweep; the message says why.
    ResourceError
        YARN rejects the application.
    RpcError
        The cluster is unreachable.
    StorageError
        The cluster's file system cannot be used.
    """
    # The caller has already shown the warnings.
    job, cluster = spec.job_spec(), Cluster(client, warns=False)
    resource = _master_in(cluster, job, spec.cluster, trials_at_once(spec))
    working(spec, lambda job: check_job(cluster, _with_master(job, resource)))
    check_sizes(spec.under(policy), Resources(resource.vcores, resource.memory_mb))
    check_file_systems(conf, job, client)
    tables, models = stage(spec.tables(), home_of(conf, job, client) / "cache")
    orders = ServiceOrders(settings_of(spec, policy), tables, job.containers.container_timeout_s)
    return _submit(orders, job, resource, directory, client, conf, models)


def submit_service(
    settings: ServiceSettings, job: JobSpec, cluster: ClusterSpec, directory: JobDir, client: Client, conf: HadoopConf
) -> Application:
    """Submit the application of a service.  Parameters and errors as of :func:`submit_sweep`.

    Parameters
    ----------
    settings : ServiceSettings
    job : JobSpec
        Settings of the application: queue, priority, lifetime, access, tags, label, interpreter, staging folder, and
        the timeout of containers.
    cluster : ClusterSpec
        The actual cluster.
    directory, client, conf
    """
    told = Cluster(client, warns=False)
    resource = _master_in(told, job, cluster, most_at_once(cluster))
    check_job(told, _with_master(job.with_settings(workers=1, servers=1), resource))
    check_file_systems(conf, job, client)
    orders = ServiceOrders(settings, None, job.containers.container_timeout_s)
    return _submit(orders, job, resource, directory, client, conf, {})


def _submit(
    orders: ServiceOrders,
    job: JobSpec,
    resource: Resource,
    directory: JobDir,
    client: Client,
    conf: HadoopConf,
    models: Mapping[str, Path],
) -> Application:
    shared = home_of(conf, job, client) / SWEEPS / secrets.token_hex(8)
    try:
        own = _upload_private(shared, orders, TlsFiles.within(directory.tls), models)
        return _submit_in(shared, own, orders, job, resource, directory, client, conf)
    except BaseException:
        remove_shared(shared)
        raise


def submit_again(ended: Application, directory: JobDir, client: Client, conf: HadoopConf) -> Application:
    """Submit an application that continues the sweep of one that ended before its sweep.

    It has the same folder on the cluster: its master reads the record there, as another attempt would.  If the ended
    one still ran after all, it could not write its record any more.

    Raises
    ------
    ConfigError
        The folder has no valid orders.
    EpsError
        As :func:`submit_sweep`.
    """
    shared = RemotePath.parse(ended.shared)
    storage, name = shared.storage(), f"{SERVICE_FOLDER}.zip"
    with storage.read(name) as file:
        orders = ServiceOrders.of_archive(file.read(), storage.describe(name))
    spec = Spec.of(orders.sweep or {})
    job = spec.job_spec()
    resource = _master_in(Cluster(client, warns=False), job, spec.cluster, trials_at_once(spec))
    # The address of the master that has ended.
    storage.remove(SERVICE_FILE)
    own = uploaded_file(shared, name, Visibility.APPLICATION)
    return _submit_in(shared, own, orders, job, resource, directory, client, conf)


def _submit_in(
    shared: RemotePath,
    own: LocalFile,
    orders: ServiceOrders,
    job: JobSpec,
    resource: Resource,
    directory: JobDir,
    client: Client,
    conf: HadoopConf,
) -> Application:
    """Submit an application with its folder on the cluster and the private files of its master."""
    kind = "scheduler" if orders.sweep is None else "sweep"
    common = common_orders(conf, job, shared, client)
    # Includes a token for the ResourceManager: the master asks it for the cluster's nodes.
    tokens = client.obtain_tokens(file_systems_of(home_of(conf, job, client), job))
    launch = launch_of(MODULE, common, {**common.files, SERVICE_FOLDER: own}, tokens)
    submission = Submission(
        name=f"{kind}-{shared.name[:6]}",
        launch=dataclasses.replace(launch, access=job.yarn.access()),
        resource=resource,
        queue=job.yarn.queue,
        priority=job.yarn.priority if job.yarn.priority >= 0 else None,
        lifetime_s=job.yarn.lifetime_s or None,
        tags=tuple(tag.strip() for tag in job.yarn.tags.split(",") if tag.strip()),
        application_type=SERVICE_TYPE if orders.sweep is None else SWEEP_TYPE,
        label=job.yarn.label_of("master"),
        # The job masters run in the application master, and end with it.
        keep_containers=False,
        max_attempts=MOST_ATTEMPTS,
        failures_valid_s=FAILURES_VALID_S,
    )
    application = Application(client.new_application(), str(shared), conf.source)
    ends = f"yarn application -kill {application.application_id}"
    submit_noted(client, directory, application, submission, ends)
    return application


def _master_in(told: Cluster, job: JobSpec, cluster: ClusterSpec, jobs: int) -> Resource:
    queue = told.queue(job.yarn.queue)
    return master_resource(cluster, jobs, None if queue is None else queue.largest)


def _with_master(job: JobSpec, master: Resource) -> JobSpec:
    """Return the job with the application master's memory for its master."""
    sizes = {role: job.containers.memory_of(role) for role in ("worker", "server")}
    text = ",".join(f"{role}={size}" for role, size in {**sizes, "master": master.memory_mb}.items())
    return hosted(job.with_settings(memory_mb=text))


def _upload_private(shared: RemotePath, orders: ServiceOrders, tls: TlsFiles, models: Mapping[str, Path]) -> LocalFile:
    """Upload the private files of the application master."""
    try:
        members = [(ORDERS_FILE, orders.to_bytes(), 0o600)]
        members += [(name, content, 0o600) for name, content in tls.contents().items()]
        members += [(name, path.read_bytes(), 0o600) for name, path in models.items()]
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from None
    return put_file(shared, f"{SERVICE_FOLDER}.zip", io.BytesIO(packed(members).content), Visibility.APPLICATION)
