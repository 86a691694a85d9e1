"""``hscheduler serve``: run the service in this process, or follow it as an application on YARN."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from eps.cli.exits import EXIT_FAILED, EXIT_OK
from eps.cluster.yarn.application import Application
from eps.cluster.yarn.client import YarnClient
from eps.cluster.yarn.facade import Client
from eps.core.types import Address
from eps.errors import ConfigError
from eps.hadoop.conf import HadoopConf, environment_configuration
from eps.spec.file import read_job_file
from eps.spec.job_spec import JobSpec
from eps.storage.locations import open_storage
from eps.system import interrupt
from eps.system.nearest import one_of
from hscheduler.application.monitor import ApplicationDir, Ended, Monitor, fetch_results, remove_remote_files
from hscheduler.application.submit import submit_service
from hscheduler.cli.commands.common import policy_of, say
from hscheduler.live.job import ENDS
from hscheduler.live.placement import PLACES, cluster_of, container_settings
from hscheduler.page import STOPPED, PageServer, Stops
from hscheduler.service.directory import ServiceDir, parse_address
from hscheduler.service.main import Service, ServiceSettings
from hscheduler.service.recorded_sweep import RecordedSweep
from hscheduler.spec import ClusterSpec

#: Seconds between two checks of the scheduler.
CHECK_S = 1.0


def _settings(args: argparse.Namespace, **cluster: Any) -> ServiceSettings:
    """Return the settings of a service from flags, with the given ones of its cluster."""
    return ServiceSettings(
        policy=None if args.policy is None else policy_of(args.policy),
        seed=args.seed,
        threshold=args.threshold,
        stop=args.stop,
        feedback_iteration=args.feedback_iteration,
        kill_restart_s=args.kill_restart,
        **cluster,
    )


def _container_size(args: argparse.Namespace) -> dict[str, Any]:
    size = {"container_vcores": args.container_vcores, "container_memory": args.container_memory}
    return {name: value for name, value in size.items() if value is not None}


def settings_here(args: argparse.Namespace) -> ServiceSettings:
    """Return the settings of a service in this process, with the cluster of the flags.

    Raises
    ------
    ConfigError
        The flags contradict each other.
    """
    size, job_settings = _container_size(args), None
    if args.on == "docker":
        # Each job names its image, which is checked when the job starts.
        job_settings = container_settings(ClusterSpec(**size), args.on)
    elif size:
        # Only the scheduler counts with it.
        job_settings = {name: value for name, value in container_settings(ClusterSpec(**size)).items() if name != "on"}
    address = parse_address(args.listen) if args.listen else Address("", 0)
    return _settings(
        args,
        nodes=args.nodes,
        vcores=args.vcores,
        memory=args.memory,
        job_settings=job_settings,
        host=address.host,
        port=address.port,
    )


def serve(args: argparse.Namespace) -> int:
    """Serve until SIGTERM (jobs continue) or Ctrl-C (jobs end); on YARN, follow the application."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    if args.on not in (None, *PLACES):
        raise ConfigError(f"on is {args.on!r}, but must be {one_of(args.on, PLACES)}")
    if args.on == "yarn":
        return _on_yarn(args)
    for flag in ("detach", "application"):
        if getattr(args, flag):
            raise ConfigError(f"{flag} is only for a service on YARN: add --on yarn")
    settings = settings_here(args)
    directory = ServiceDir.of(args.state)
    _check_no_application(directory)
    told = threading.Event()
    signals: list[int] = []

    def tell(number: int, frame: object) -> None:
        signals.append(number)
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, tell)
    services: list[Service] = []
    with ExitStack() as undo:
        page = None
        if args.web is not None:
            # First, because a bad port must not leave a record, which fixes the settings of later starts.
            page = PageServer(args.web, lambda: services[0].metrics() if services else "")
            undo.callback(page.close)
        service = Service(directory, settings)
        pages = undo.pop_all()
    # The page is closed first.
    with service, pages:
        if service.dropped:
            print(f"hscheduler: {service.dropped}", file=sys.stderr)
        cluster = service.cluster
        where = f"a socket in {directory.path}" if service.address.is_unix else str(service.address)
        print(
            f"H-scheduler listens on {where}: policy {service.scheduler.settings.policy}, {cluster.nodes} nodes of "
            f"{cluster.vcores} vcores and {cluster.memory}, state in {directory.path}",
            flush=True,
        )
        services.append(service)
        if page is not None:
            page.show(
                lambda: {service.scheduler.settings.policy: service.sweeps.report("")},
                stops=Stops(
                    lambda trial: service.scheduler.cancel_trial(trial, STOPPED),
                    lambda name: service.scheduler.close_sweep(name, STOPPED),
                    service.sweeps.running,
                ),
            )
            print(f"its page: {page.link} (metrics for Prometheus at {page.address}metrics)", flush=True)
        while not told.wait(CHECK_S):
            try:
                service.scheduler.check()
            except RuntimeError as error:
                service.leave()
                print(f"hscheduler: {error}; its jobs continue: start the service again", file=sys.stderr)
                return EXIT_FAILED
        if signals[0] == signal.SIGTERM:
            service.leave()
            print(
                "H-scheduler stops; its jobs continue, and the next service with this state controls them", flush=True
            )
        else:
            print(f"H-scheduler ends its jobs and exits; {_results(directory)}", flush=True)
    return EXIT_OK


def _results(directory: ServiceDir) -> str:
    return f"hscheduler results SWEEP{directory.flag} shows the results of a sweep"


# ---- on YARN

#: Flags that a service on YARN does not support, and why.
_NOT_ON_YARN = {
    **dict.fromkeys(("nodes", "vcores", "memory"), "the cluster has its own nodes"),
    "listen": "the service listens on the node of its application master",
    "web": "the page is at the tracking URL, which is printed",
}
#: Settings of a job's file that apply to the application.
_OF_APPLICATION = (
    "queue", "priority", "lifetime_s", "acl", "tags", "label", "python", "staging", "container_timeout_s",
)  # fmt: skip


def _check_no_application(directory: ServiceDir) -> None:
    """Reject the folder of a sweep, and the directory of a service on YARN until its results are fetched."""
    place = RecordedSweep(directory.path)
    if place.settings_path.exists():
        raise ConfigError(
            f"{directory.path} belongs to a sweep: {place.resume_command} continues it; or use another --state"
        )
    if not directory.is_application():
        return
    known = ApplicationDir(directory.path)
    application = known.application()
    if application is not None and application.shared and known.saved() is None:
        raise ConfigError(
            f"{directory.path} belongs to {application.application_id} on YARN: {known.follow_command} follows it "
            "(then Ctrl-C ends it); or use another --state"
        )


def _application_settings(path: str | None) -> JobSpec:
    """Return the settings of the application from a file.

    Raises
    ------
    ConfigError
        There is no such file, or it has other settings.
    """
    values = {} if path is None else read_job_file(Path(path))
    for name in values:
        if name not in _OF_APPLICATION:
            raise ConfigError(f"{path}: {name} does not apply to the application, only {', '.join(_OF_APPLICATION)} do")
    return JobSpec.from_dict(values, path or "settings")


def _on_yarn(args: argparse.Namespace) -> int:
    """Submit the service as an application, unless it runs already, and follow it."""
    for flag, why in _NOT_ON_YARN.items():
        given = getattr(args, flag)
        if given is not None and given is not False:
            raise ConfigError(f"{flag} is {given}, but not possible on YARN: {why}")
    job, conf = _application_settings(args.application), environment_configuration()
    directory = ServiceDir.of(args.state)
    if directory.record.exists():
        raise ConfigError(f"{directory.path} belongs to a service on this host: use another --state")
    known = ApplicationDir(directory.path)
    if directory.is_sweep:
        raise ConfigError(
            f"{directory.path} belongs to a sweep: {known.follow_command} follows it; or use another --state"
        )
    with directory.lock(), closing(YarnClient(conf)) as client:
        application = known.application()
        if application is None or not application.shared or known.saved() is not None:
            application = _submitted(args, job, known, client, conf)
        shared = open_storage(application.shared, conf=conf)
        monitor = Monitor(application, client, known.service, shared, say, sweep=None)
        return _follow(monitor, known, detach=args.detach)


def _submitted(
    args: argparse.Namespace, job: JobSpec, known: ApplicationDir, client: Client, conf: HadoopConf
) -> Application:
    """Submit the application of a service; return it."""
    name = "the service"
    with interrupt.before_submission(name):
        cluster = cluster_of(ClusterSpec(**_container_size(args)), client.nodes())
        size = {"nodes": cluster.nodes, "vcores": cluster.vcores, "memory": cluster.memory}
        settings = _settings(args, **size, job_settings=container_settings(cluster))
        known.service.security(between_hosts=True)
        # Files of an earlier application, whose results were fetched.
        remove_remote_files(known)
        known.job.job_json.unlink(missing_ok=True)
        application = submit_service(settings, job, cluster, known.job, client, conf)
    say(f"{application.application_id} is H-scheduler: {_how(known, application.application_id)}")
    return application


def _how(known: ApplicationDir, application_id: str) -> str:
    return f"Ctrl-C, or yarn application -kill {application_id}, ends it and its jobs; state in {known.path}"


def _follow(monitor: Monitor, known: ApplicationDir, *, detach: bool) -> int:
    """Follow a service's application to its end, or (``detach``) until it listens; return the exit code."""
    name = monitor.application.application_id
    try:
        ended = monitor.wait_until_listening()
        if ended is None:
            say(f"H-scheduler listens on {monitor.place}; its page: {monitor.page}")
            if detach:
                say(f"{name} continues: {known.follow_command} follows it again (then Ctrl-C ends it)")
                return EXIT_OK
            ended = monitor.run()
    except KeyboardInterrupt:
        interrupt.discard_closed_output()
        with interrupt.interrupt_on_signals():
            ended = monitor.end(ENDS)
            is_fetched = _fetch(monitor, known, ended)
        if ended.is_over:
            say(f"H-scheduler and its jobs have ended; {_results(known.service)}")
        return EXIT_OK if is_fetched else EXIT_FAILED
    _fetch(monitor, known, ended)
    print(f"hscheduler: {name} {ended.state}: {ended.reason}", file=sys.stderr)
    if ended.state == "failed":
        print(f"logs of its containers: yarn logs -applicationId {name}", file=sys.stderr)
    say(f"{_results(known.service)}; {known.follow_command} starts another service")
    return EXIT_FAILED


def _fetch(monitor: Monitor, known: ApplicationDir, ended: Ended) -> bool:
    """Fetch an application's results; return whether that worked.  If not, print the reason."""
    problem = fetch_results(known, monitor.shared, ended)
    if problem:
        print(f"hscheduler: {problem}", file=sys.stderr)
    return not problem
