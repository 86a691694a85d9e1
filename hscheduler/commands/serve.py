"""``hscheduler serve``: the service in the foreground, until it is told to end."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading

from hscheduler.commands.simulate import policies_of
from hscheduler.metrics import metrics_text
from hscheduler.page import PageServer
from hscheduler.service.directory import ServiceDir, parse_address
from hscheduler.service.main import Service, ServiceSettings

EXIT_FAILED = 1
#: How often it is looked whether the scheduler is well, and the page is drawn again.
LOOK_S = 1.0


def serve(args: argparse.Namespace) -> int:
    """Serve until SIGTERM (jobs go on, for the next one) or Ctrl-C (jobs end)."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    address = parse_address(args.listen)
    settings = ServiceSettings(
        policy=None if args.policy is None else policies_of(args.policy)[0],
        nodes=args.nodes,
        vcores=args.vcores,
        memory=args.memory,
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
    with Service(directory, settings) as service:
        if service.dropped:
            print(f"hscheduler: {service.dropped}", file=sys.stderr)
        cluster = service.cluster
        print(
            f"H-scheduler listens on {service.address}: policy {service.scheduler.settings.policy}, {cluster.nodes} "
            f"nodes of {cluster.vcores} vcores and {cluster.memory}, state in {directory.path}",
            flush=True,
        )
        view = service.observer.view
        page = None if args.web is None else PageServer(args.web, lambda: metrics_text(view.look()))
        try:
            if page is not None:
                print(f"its page: {page.address} (metrics for Prometheus at {page.address}metrics)", flush=True)
            while not told.wait(LOOK_S):
                try:
                    service.scheduler.check()
                except RuntimeError as error:
                    service.leave()
                    print(f"hscheduler: {error}; its jobs go on: start it again", file=sys.stderr)
                    return EXIT_FAILED
                if page is not None:
                    found = service.sweeps.report("")
                    page.show({found["policy"]: found})
        finally:
            if page is not None:
                page.close()
        if signals[0] == signal.SIGTERM:
            service.leave()
            print("H-scheduler stops; its jobs go on, and the next one with this state takes them up", flush=True)
        else:
            print("H-scheduler ends, and its jobs with it", flush=True)
    return 0
