"""``hscheduler serve``: the service in this process, until it is told to end; or as an application of YARN."""

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
from hscheduler.application.follow import ApplicationDir, Ended, Following, bring, remove
from hscheduler.application.submit import submit_service
from hscheduler.cli.commands.common import policies_of, say
from hscheduler.live.job import ENDS
from hscheduler.live.placement import PLACES, cluster_of, container_settings
from hscheduler.page import PageServer
from hscheduler.reports.metrics import metrics_text
from hscheduler.reports.view import SweepView
from hscheduler.service.directory import ServiceDir, parse_address
from hscheduler.service.main import Service, ServiceSettings, forget
from hscheduler.spec import ClusterSpec

#: How often it is looked whether the scheduler is well.
LOOK_S = 1.0


def _settings(args: argparse.Namespace, **cluster: Any) -> ServiceSettings:
    """Return what the flags say of a service, of a cluster that is given."""
    return ServiceSettings(
        policy=None if args.policy is None else policies_of(args.policy)[0],
        seed=args.seed,
        threshold=args.threshold,
        feedback_iteration=args.feedback_iteration,
        kill_restart_s=args.kill_restart,
        **cluster,
    )


def _container_size(args: argparse.Namespace) -> dict[str, Any]:
    size = {"container_vcores": args.container_vcores, "container_memory": args.container_memory}
    return {name: value for name, value in size.items() if value is not None}


def settings_here(args: argparse.Namespace) -> ServiceSettings:
    """Return the settings of a service in this process, with the cluster that the flags ask for.

    Raises
    ------
    ConfigError
        The flags contradict each other.
    """
    size, job_settings = _container_size(args), None
    if args.on == "docker":
        # Its jobs name their images, which are looked for as each begins.
        job_settings = container_settings(ClusterSpec(**size), args.on)
    elif size:
        raise ConfigError(f"{next(iter(size))} is for containers: add --on docker or --on yarn")
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
    """Serve until SIGTERM (jobs go on, for the next one) or Ctrl-C (jobs end); on YARN, follow the application."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    if args.on not in (None, *PLACES):
        raise ConfigError(f"on is {args.on!r}, but must be one of {', '.join(PLACES)}")
    if args.on == "yarn":
        return _on_yarn(args)
    for flag in ("detach", "application"):
        if getattr(args, flag):
            raise ConfigError(f"{flag} is for a service that is an application: add --on yarn")
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
    if args.forget:
        print(f"H-scheduler begins anew: {forget(directory)}", flush=True)
    views: list[SweepView] = []
    with ExitStack() as undo:
        page = None
        if args.web is not None:
            # Before there is a record, with whose settings every later start has to agree.
            page = PageServer(args.web, lambda: metrics_text(views[0].look()) if views else "")
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
        views.append(service.observer.view)
        if page is not None:
            page.show(lambda: {service.scheduler.settings.policy: service.sweeps.report("")})
            print(f"its page: {page.address} (metrics for Prometheus at {page.address}metrics)", flush=True)
        while not told.wait(LOOK_S):
            try:
                service.scheduler.check()
            except RuntimeError as error:
                service.leave()
                print(f"hscheduler: {error}; its jobs go on: start it again", file=sys.stderr)
                return EXIT_FAILED
        if signals[0] == signal.SIGTERM:
            service.leave()
            print("H-scheduler stops; its jobs go on, and the next one with this state takes them up", flush=True)
        else:
            print(f"H-scheduler ends, and its jobs with it; {_results(directory)}", flush=True)
    return EXIT_OK


def _results(directory: ServiceDir) -> str:
    return f"hscheduler results SWEEP{directory.flag} shows a sweep's results"


# ---- on YARN

#: Flags that a service on YARN does not have, and why.
_NOT_ON_YARN = {
    **dict.fromkeys(("nodes", "vcores", "memory"), "the nodes are those of the cluster"),
    "listen": "the service listens on the node of its application's master",
    "web": "its page is the tracking URL, which is printed",
    "forget": "each application begins with a record of its own",
}
#: Settings of a job's file that the application has.
_OF_APPLICATION = (
    "queue", "priority", "lifetime_s", "acl", "tags", "label", "python", "staging", "container_timeout_s",
)  # fmt: skip


def _check_no_application(directory: ServiceDir) -> None:
    """Refuse the directory of a service on YARN that has not ended, or whose results are not here."""
    if not directory.is_application():
        return
    known = ApplicationDir(directory.path)
    application = known.application()
    if application is not None and application.shared and known.kept() is None:
        raise ConfigError(
            f"{directory.path} belongs to {application.application_id} on YARN: {known.how_again} follows it, and "
            "Ctrl-C ends it then; or use another --state"
        )


def _application_settings(path: str | None) -> JobSpec:
    """Return the settings of the application that a file asks for.

    Raises
    ------
    ConfigError
        There is no such file, or it has settings of jobs.
    """
    values = {} if path is None else read_job_file(Path(path))
    for name in values:
        if name not in _OF_APPLICATION:
            raise ConfigError(f"{path}: {name} is a setting of jobs; an application has {', '.join(_OF_APPLICATION)}")
    return JobSpec.from_dict(values, path or "settings")


def _on_yarn(args: argparse.Namespace) -> int:
    """Be the client of a service that is an application: submit it, unless it runs, and follow it."""
    for flag, why in _NOT_ON_YARN.items():
        given = getattr(args, flag)
        if given is not None and given is not False:
            raise ConfigError(f"{flag} is {given}, but on YARN {why}")
    job, conf = _application_settings(args.application), environment_configuration()
    directory = ServiceDir.of(args.state)
    if directory.record.exists():
        raise ConfigError(f"{directory.path} belongs to a service of this host: use another --state")
    known = ApplicationDir(directory.path)
    if directory.is_sweep:
        raise ConfigError(f"{directory.path} belongs to a sweep: {known.how_again} follows it; or use another --state")
    with directory.lock(), closing(YarnClient(conf)) as client:
        application = known.application()
        if application is None or not application.shared or known.kept() is not None:
            application = _begun(args, job, known, client, conf)
        shared = open_storage(application.shared, conf=conf)
        following = Following(application, client, known.service, shared, say, sweep=None)
        return _followed(following, known, detach=args.detach)


def _begun(
    args: argparse.Namespace, job: JobSpec, known: ApplicationDir, client: Client, conf: HadoopConf
) -> Application:
    """Submit an application; return it."""
    name = "the service"
    with interrupt.before_submission(name):
        cluster = cluster_of(ClusterSpec(**_container_size(args)), client.nodes())
        size = {"nodes": cluster.nodes, "vcores": cluster.vcores, "memory": cluster.memory}
        settings = _settings(args, **size, job_settings=container_settings(cluster))
        known.service.security(between_hosts=True)
        # Of one that has ended, and whose results are here.
        remove(known)
        known.job.job_json.unlink(missing_ok=True)
        application = submit_service(settings, job, cluster, known.job, client, conf)
    say(f"{application.application_id} is H-scheduler: {_how(known, application.application_id)}")
    return application


def _how(known: ApplicationDir, application_id: str) -> str:
    return f"Ctrl-C, or yarn application -kill {application_id}, ends it, and its jobs with it; state in {known.path}"


def _followed(following: Following, known: ApplicationDir, *, detach: bool) -> int:
    """Follow a service's application until it has ended, or as soon as it listens; return the exit code."""
    name = following.application.application_id
    try:
        ended = following.until_it_listens()
        if ended is None:
            say(f"H-scheduler listens on {following.place}; its page: {following.page}")
            if detach:
                say(f"{name} goes on: {known.how_again} follows it again, and Ctrl-C ends it then")
                return EXIT_OK
            ended = following.run()
    except KeyboardInterrupt:
        interrupt.discard_closed_output()
        with interrupt.interrupt_on_signals():
            ended = following.end(ENDS)
            is_here = _brought(following, known, ended)
        if ended.is_over:
            say(f"H-scheduler has ended, and its jobs with it; {_results(known.service)}")
        return EXIT_OK if is_here else EXIT_FAILED
    _brought(following, known, ended)
    print(f"hscheduler: {name} {ended.state}: {ended.reason}", file=sys.stderr)
    if ended.state == "failed":
        print(f"what its containers wrote: yarn logs -applicationId {name}", file=sys.stderr)
    say(f"{_results(known.service)}; {known.how_again} begins another")
    return EXIT_FAILED


def _brought(following: Following, known: ApplicationDir, ended: Ended) -> bool:
    """Fetch an application's results; where they cannot be fetched, print where they are, and return False."""
    problem = bring(known, following.shared, ended)
    if problem:
        print(f"hscheduler: {problem}", file=sys.stderr)
    return not problem
