"""``hscheduler yarn-queue``: makes room in queues of YARN and gives it back, in the foreground, until told to end."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing

from eps.cli.exits import EXIT_OK
from eps.cluster.yarn.rest import RestClient
from eps.errors import ConfigError, RpcError
from eps.hadoop.conf import environment_configuration, resourcemanager_web_addresses
from eps.job.yarn.elsewhere import StagedJobs
from hscheduler.live.watched_queues import watching
from hscheduler.live.yarn_facts import Masters
from hscheduler.live.yarn_queue import QueueScheduler, Tell

LEAST_EVERY_S, MOST_EVERY_S = 0.1, 3600.0
MOST_GIVE_BACK_S = 24 * 3600.0


def yarn_queue(args: argparse.Namespace) -> int:
    """Go round until SIGTERM or Ctrl-C; with ``--dry-run`` once."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    if not LEAST_EVERY_S <= args.every <= MOST_EVERY_S:
        raise ConfigError(f"every is {args.every:g} s, but must be between {LEAST_EVERY_S:g} and {MOST_EVERY_S:g}")
    if not 0.0 <= args.give_back <= MOST_GIVE_BACK_S:
        raise ConfigError(f"give_back is {args.give_back:g} s, but must be between 0 (never) and {MOST_GIVE_BACK_S:g}")
    settle_s = args.give_back or None
    if settle_s is not None and args.dry_run:
        # Who looks once cannot know for how long it has been so.
        settle_s = 0.0
    queues = args.queue or ["default"]
    tell = tell_as_json if args.json else tell_as_text
    conf = environment_configuration()
    with closing(RestClient(conf)) as client:
        masters = Masters(StagedJobs(conf, args.staging), lambda text: tell(text, ""), 1 if args.dry_run else 2)
        with closing(masters):

            def scheduler() -> QueueScheduler:
                return QueueScheduler(
                    client,
                    queues,
                    masters,
                    args.feedback_iteration,
                    tell,
                    settle_s=settle_s,
                    every_s=args.every,
                    acts=not args.dry_run,
                )

            if args.dry_run:
                plan = scheduler().round()
                if plan is None or not plan.sentences:
                    told_of = f"nobody waits in {', '.join(queues)}"
                    if args.json:
                        tell(told_of, "")
                    else:
                        print(told_of, file=sys.stderr)
                return EXIT_OK
            with watching(resourcemanager_web_addresses(conf), queues):
                told = threading.Event()
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, lambda *_: told.set())
                print(f"H-scheduler makes room in {', '.join(queues)}", file=sys.stderr, flush=True)
                go_round(scheduler, args.every, told, tell)
    return EXIT_OK


def go_round(make: Callable[[], QueueScheduler], every_s: float, told: threading.Event, tell: Tell) -> None:
    """Go round until told to end; a ResourceManager that does not answer is waited for.

    Parameters
    ----------
    make : callable
        Makes the scheduler, as soon as the ResourceManager answers.
    every_s : float, seconds
    told : Event
    tell : callable
    """
    scheduler: QueueScheduler | None = None
    away = False
    try:
        while not told.is_set():
            try:
                if scheduler is None:
                    scheduler = make()
                scheduler.round()
                if away:
                    tell("the ResourceManager answers again", "")
                away = False
            except RpcError as error:
                if not away:
                    tell(f"{error}; it is waited for", "")
                away = True
            told.wait(every_s)
    finally:
        if scheduler is not None:
            scheduler.close()


def tell_as_text(sentence: str, application_id: str) -> None:
    """Print a sentence."""
    print(sentence, flush=True)


def tell_as_json(sentence: str, application_id: str) -> None:
    """Print a sentence as an object, with when it was said and about which application."""
    line = {"time_s": round(time.time(), 3), "application": application_id, "sentence": sentence}
    print(json.dumps(line), flush=True)
