"""``hscheduler serve``: the service in the foreground, until it is told to end."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from contextlib import ExitStack
from typing import Any

from eps.cli.exits import EXIT_FAILED, EXIT_OK
from eps.core.types import Address
from eps.errors import ConfigError
from hscheduler.cli.commands.common import policies_of
from hscheduler.live.on_yarn import PLACES, container_settings, yarn_cluster
from hscheduler.page import PageServer
from hscheduler.reports.metrics import metrics_text
from hscheduler.reports.view import SweepView
from hscheduler.service.directory import ServiceDir, parse_address
from hscheduler.service.main import Service, ServiceSettings, forget
from hscheduler.spec import ClusterSpec

#: How often it is looked whether the scheduler is well.
LOOK_S = 1.0


def placed_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the cluster that the flags ask for, and the settings of every job; on YARN it is the one that there is.

    Raises
    ------
    ConfigError
        The flags contradict each other.
    ResourceError, RpcError
        As :func:`hscheduler.live.on_yarn.yarn_cluster`.
    """
    size = {"container_vcores": args.container_vcores, "container_memory": args.container_memory}
    size = {name: value for name, value in size.items() if value is not None}
    flags = {"nodes": args.nodes, "vcores": args.vcores, "memory": args.memory}
    if args.on in (None, "local"):
        if size:
            raise ConfigError(f"{next(iter(size))} is for containers: add --on docker or --on yarn")
        return flags
    if args.on not in PLACES:
        raise ConfigError(f"on is {args.on!r}, but must be one of {', '.join(PLACES)}")
    if args.on == "docker":
        # Its jobs name their images, which are looked for as each begins.
        return {**flags, "job_settings": container_settings(ClusterSpec(**size), args.on)}
    for name, value in flags.items():
        if value is not None:
            raise ConfigError(f"{name} is {value}, but on YARN the nodes are those of the cluster")
    found = yarn_cluster(ClusterSpec(**size))
    return {
        "nodes": found.nodes,
        "vcores": found.vcores,
        "memory": found.memory,
        "job_settings": container_settings(found),
    }


def serve(args: argparse.Namespace) -> int:
    """Serve until SIGTERM (jobs go on, for the next one) or Ctrl-C (jobs end)."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    address = parse_address(args.listen) if args.listen else Address("", 0)
    asked = placed_settings(args)
    settings = ServiceSettings(
        policy=None if args.policy is None else policies_of(args.policy)[0],
        nodes=asked["nodes"],
        vcores=asked["vcores"],
        memory=asked["memory"],
        job_settings=asked.get("job_settings"),
        seed=args.seed,
        threshold=args.threshold,
        feedback_iteration=args.feedback_iteration,
        kill_restart_s=args.kill_restart,
        host=address.host,
        port=address.port,
    )
    directory = ServiceDir.of(args.state)
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
            # Before there is a journal, with whose settings every later start has to agree.
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
            print("H-scheduler ends, and its jobs with it", flush=True)
    return EXIT_OK
