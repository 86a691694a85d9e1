"""Commands that change a running job: resize it, cancel a plan, kill it."""

from __future__ import annotations

import argparse
import sys

from eps.cli.exits import EXIT_INTERRUPTED, EXIT_OK
from eps.core.reconfig import UNCOMMITTED
from eps.core.types import MOST_MEMBERS
from eps.errors import ConfigError, DeadlineError, PlanError
from eps.job.client import ChangeRecord, Job
from eps.job.display import ChangeNews
from eps.job.master_link import NOTICED_S, waiting_text
from eps.job.status import WAITING_STATES
from eps.spec.changes import change_of, check_request_id, whole_number


def members_of(text: str | list[str], adds: bool) -> int | str | list[str]:
    """Return the number or the names in ``text``; join the sizes of ``eps scale`` with commas.

    Raises
    ------
    ConfigError
        The text is neither a number nor names.
    """
    if not isinstance(text, str):
        return ",".join(text)
    if text.isdecimal():
        count = whole_number(text)
        if count is None:
            raise ConfigError(
                f"{text[:20]}... has {len(text)} digits, but a job has at most {MOST_MEMBERS} members of a role"
            )
        return count
    names = [part.strip() for part in text.split(",") if part.strip()]
    if adds or not names or any(part.lstrip("-").isdecimal() for part in names):
        expected = "a number" if adds else "a number, or names joined by commas"
        raise ConfigError(f"{text!r} is not {expected}")
    return names


def change(args: argparse.Namespace) -> int:
    """Add or remove workers or servers."""
    members = members_of(args.members, args.operation.startswith("add-"))
    # Refuse bad input before the job is searched for and its start awaited.
    change_of(args.operation, members)
    check_request_id(args.request_id)
    job = Job.find(args.name)
    try:
        _wait_until_trains(job, args)
        if args.dry_run:
            print(job.dry_run(args.operation, members))
            return EXIT_OK
        if args.no_wait:
            record = job.change(args.operation, members, wait=False, request_id=args.request_id)
            print(f"plan {record['plan_id']}")
            return EXIT_OK
        return _change_and_wait(job, args, members)
    finally:
        job.close()


def _wait_until_trains(job: Job, args: argparse.Namespace) -> None:
    """Wait until the job trains and print what it waits for.

    With ``--no-wait`` the wait is short: :data:`~eps.job.master_link.NOTICED_S`.

    Raises
    ------
    PlanError
        With ``--no-wait``: the job does not train yet.
    """
    if not args.no_wait:
        job.wait_until_trains(tell=lambda text: print(text, file=sys.stderr, flush=True))
        return
    try:
        job.wait_until_trains(NOTICED_S)
    except DeadlineError:
        status = job.status()
        if status["state"] in WAITING_STATES:
            raise PlanError(
                f"{args.operation} refused: job {args.name!r} does not train yet: {waiting_text(status)}; without "
                "--no-wait the command waits until it does"
            ) from None


def _change_and_wait(job: Job, args: argparse.Namespace, members: int | str | list[str]) -> int:
    news = ChangeNews(with_phases=True)
    latest: ChangeRecord | None = None

    def tell(record: ChangeRecord) -> None:
        nonlocal latest
        latest = record
        for line in news.lines([record]):
            print(line, flush=True)

    try:
        job.change(args.operation, members, request_id=args.request_id, on_news=tell)
    except KeyboardInterrupt:
        if latest is not None:
            print(f"\n{_still_going(args.name, latest)}", file=sys.stderr)
        return EXIT_INTERRUPTED
    return EXIT_OK


def _still_going(name: str, record: ChangeRecord) -> str:
    text = f"plan {record['plan_id']} continues"
    if record["phase"] in UNCOMMITTED:
        text += f"; `eps cancel {name} {record['plan_id']}` aborts it"
    return text


def cancel(args: argparse.Namespace) -> int:
    """Abort a change."""
    job = Job.find(args.name)
    try:
        print(f"plan {job.cancel(args.plan)} aborted")
        return EXIT_OK
    finally:
        job.close()


def kill(args: argparse.Namespace) -> int:
    """End a job."""
    job = Job.find(args.name)
    try:
        was_running = job.running
        job.kill(tell=lambda text: print(f"{args.name}: {text}", flush=True))
        state = job.status()["state"]
        # It may have ended by itself just before the kill.
        ended_by_this = was_running and state == "killed"
        print(f"{args.name}: killed" if ended_by_this else f"{args.name}: already ended ({state})")
        return EXIT_OK
    finally:
        job.close()
