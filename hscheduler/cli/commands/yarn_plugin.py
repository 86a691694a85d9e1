"""``hscheduler yarn-plugin``: answer the plugin in a ResourceManager until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import logging
import signal
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

from eps.cli.exits import EXIT_OK
from eps.hadoop.conf import environment_configuration
from eps.job.yarn.staged_jobs import StagedJobs
from hscheduler.service.directory import parse_address
from hscheduler.yarn.endpoint import PluginServer, secret_of
from hscheduler.yarn.masters import AskedMasters, Masters
from hscheduler.yarn.plan import make_plan
from hscheduler.yarn.wire import Plan, Snapshot


def yarn_plugin(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    address = parse_address(args.listen)
    conf = environment_configuration()
    secret = secret_of(Path(args.secret_file).expanduser().absolute())
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    with (
        closing(Masters(StagedJobs(conf, args.staging))) as masters,
        closing(AskedMasters(args.feedback_iteration, masters.status)) as asked,
    ):

        def planned(snapshot: Snapshot) -> Plan:
            masters.keep(snapshot.applications)
            return make_plan(snapshot, asked.facts(snapshot.applications))

        with PluginServer(planned, secret, address.host, address.port, tell=partial(print, flush=True)) as server:
            print(f"H-scheduler answers the plugin at http://{address.host}:{server.port}", flush=True)
            told.wait()
    return EXIT_OK
