"""What a job tells about itself: status, changes, history and the final report; its files for people; its metrics.

The values are plain JSON, read from the master's state, which nothing here changes.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from eps.core import evictions
from eps.core.events import ENDED_STATES
from eps.core.job import Job
from eps.core.membership import Membership
from eps.core.progress import ClockRecord, pause_and_slowdown
from eps.core.reconfig import Operation, Phase, Plan, Purpose
from eps.core.recovery import GoingBack, Loss
from eps.core.size import Borrower
from eps.core.types import Role
from eps.errors import ResourceError, StorageError
from eps.ml.metrics import EvalSums
from eps.spec.runtime import Runtime
from eps.storage.atomic import write_bytes_atomic, write_json_atomic
from eps.storage.jobdir import JobDir
from eps.storage.journal import Journal
from eps.system.metrics_text import Family, metric, text_of

if TYPE_CHECKING:
    from eps.system.text_server import MetricsServer

#: Changes that a status shows, the latest; the report has them all.
MOST_CHANGES = 20
#: What a status says of a resource manager that does not listen.
RESOURCES_HANG = (
    "the resource manager has been silent for {silent_s:.0f} s: until it answers, nobody is added or replaced, and a "
    "job master that is lost stays lost"
)
#: The status is left on disk this often, or after so many times as long as that took: it grows with the job.
NOTE_S, NOTE_TIMES = 2.0, 20
#: Where nothing has happened meanwhile, so much later.
QUIET_NOTE_S = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the servers counted, in units of (clock, split, partition)."""

    expected: int = 0
    applied: int = 0
    #: At the partitions' last owners; what an owner refused after it had handed a partition over is not in it.
    duplicates_refused: int = 0
    lost: int = 0
    applied_twice: int = 0

    def plus(self, applied: int, duplicates_refused: int, lost: int, applied_twice: int) -> Ledger:
        """Return the ledger with one partition's counts added."""
        return Ledger(
            self.expected,
            self.applied + applied,
            self.duplicates_refused + duplicates_refused,
            self.lost + lost,
            self.applied_twice + applied_twice,
        )


def number(value: float) -> float | None:
    """Return a value that JSON can say: None for one that is not finite."""
    return value if math.isfinite(value) else None


def metrics_of(runtime: Runtime, record: ClockRecord) -> dict[str, float | None]:
    """Return the test metrics of a clock by name; empty where it was not evaluated."""
    if not record.evaluation:
        return {}
    found = EvalSums.from_vector(runtime.model, record.evaluation).summary()
    return {name: number(value) for name, value in found.items()}


def history_entry(runtime: Runtime, record: ClockRecord, started_s: float) -> dict[str, Any]:
    """Return one line of the history; ``loss`` is that of training, of the test data it is ``test_loss``."""
    measured = metrics_of(runtime, record)
    return {
        "clock": record.clock,
        "loss": number(record.loss),
        "seconds": round(record.completed_s - started_s, 6),
        **{"test_loss" if name == "loss" else name: value for name, value in measured.items()},
    }


def loss_entry(loss: Loss) -> dict[str, Any]:
    """Return one member that was lost, and what came of it."""
    return {
        "name": loss.name,
        "reason": loss.reason,
        "clock": loss.clock,
        "seconds": round(loss.at_s, 6),
        "outcome": str(loss.outcome),
        "back_to_clock": loss.back_to,
    }


def went_back_entry(back: GoingBack) -> dict[str, Any]:
    """Return when the job went back, where to, and why."""
    return {
        "clock": back.clock,
        "to_clock": back.to,
        "seconds": round(back.at_s, 6),
        "lost": dict(back.lost),
        # Those of them whose parameters were lost with them.
        "servers": list(back.servers),
        "unreadable": back.unreadable,
    }


def evictions_entry(state: Job, most: int = 0) -> dict[str, Any]:
    """Return what was announced to be taken away, and what became of it; of ``most`` members, the latest, unless 0.

    ``drain_s`` has, for each plan that drained members, the seconds from when it was asked to its release.  ``given``:
    how many members of each role are missing because others were to get room that the job had.
    """
    plans = [p for p in state.plans.all.values() if p.change.operation is Operation.DRAIN and p.phase is Phase.RELEASED]
    taken = {str(p.plan_id): p.reached_s[Phase.RELEASED] - p.reached_s[Phase.QUEUED] for p in plans}
    return {
        **evictions.counts(state.evictions.all),
        "drain_s": {plan_id: round(seconds, 6) for plan_id, seconds in taken.items()},
        "given": {str(role): number for role, number in state.size.lent[Borrower.OTHERS].items()},
        "members": [_eviction_entry(eviction) for eviction in state.evictions.all[-most:]],
    }


def _eviction_entry(eviction: evictions.Eviction) -> dict[str, Any]:
    ended_s = eviction.ended_s
    return {
        "name": eviction.name,
        "container": eviction.container_id,
        "reason": eviction.reason,
        "outcome": str(eviction.outcome),
        "at_s": round(eviction.warned_s, 6),
        "deadline_s": round(eviction.deadline_s - eviction.warned_s, 6),
        "plan_id": eviction.plan_id,
        # Until its container had been given back, or was gone.
        "seconds": None if ended_s is None else round(ended_s - eviction.warned_s, 6),
    }


def change_entry(
    plan: Plan, completed_s: Sequence[float], now_s: float, went_back_s: Sequence[float] = ()
) -> dict[str, Any]:
    """Return one change of size: what was asked, how it went, what it cost."""
    asked_s = plan.reached_s[Phase.QUEUED]
    begin_s = plan.reached_s.get(Phase.PROPOSED, asked_s)
    ended = plan.reached_s.get(Phase.RELEASED, plan.reached_s.get(Phase.ABORTED, now_s))
    pause_s, slowdown_s = pause_and_slowdown(completed_s, begin_s, ended, went_back_s)
    return {
        "plan_id": plan.plan_id,
        "operation": str(plan.change.operation),
        "asked_by": "job" if plan.purpose.own else "user",
        # What for, where the job itself asked; else empty.
        "purpose": _purpose(plan),
        # The clock of one that was asked for beforehand.
        "asked_at": plan.asked_at,
        "asked": plan.change.asked,
        "names": [*plan.added, *plan.removed],
        "added": list(plan.added),
        "removed": list(plan.removed),
        "phase": str(plan.phase),
        "reason": plan.reason,
        "seconds": {str(phase): round(t - asked_s, 6) for phase, t in plan.reached_s.items()},
        "barriers": {name: round(t - asked_s, 6) for name, t in sorted(plan.barriers_s.items())},
        "committed_clock": plan.commit_clock,
        "bytes_moved": plan.bytes_moved,
        "pause_s": round(pause_s, 6),
        "slowdown_s": round(slowdown_s, 6),
        # No iteration has ended since: the one under way may have been held up for longer than is known yet.
        "settled": plan.ended and bool(completed_s) and completed_s[-1] >= ended,
    }


def _went_back_s(state: Job) -> list[float]:
    return [back.at_s for back in state.recovery.goings_back]


def _purpose(plan: Plan) -> str:
    """Return what the job itself asked for a change for; empty where a user or a scheduler did."""
    if not plan.purpose.own:
        return ""
    return str(Purpose.REPLACE if plan.purpose is Purpose.REGAIN else plan.purpose)


def live_entry(state: Job, plan: Plan, now_s: float) -> dict[str, Any]:
    """Return a change that is on its way, with what it waits for, and for how long it has been in its phase."""
    driver, waits_for = state.plans.flight.driver, ""
    if driver is not None and not plan.ended:
        waits_for = driver.waits_for() if driver.plan is plan else f"plan {driver.plan.plan_id}"
    waited_s = round(now_s - max(plan.reached_s.values()), 6)
    found = change_entry(plan, state.progress.history.completed_s, now_s, _went_back_s(state))
    return {**found, "waits_for": waits_for, "waited_s": waited_s}


def line_of(record: Mapping[str, Any]) -> str:
    """Return a record of the journal as a log line: ``plan plan_id=2 phase=copied``; no time, the log has its own."""
    told = {name: value for name, value in record.items() if name not in ("kind", "at_s") and value not in ("", [], ())}
    return " ".join([str(record["kind"]), *(f"{name}={_plain(value, ',')}" for name, value in told.items())])


def _plain(value: Any, between: str) -> str:
    """Return a value as one word; lists in a list are joined by colons."""
    return (between.join(_plain(each, ":") for each in value) or "-") if isinstance(value, list | tuple) else str(value)


def membership_entry(membership: Membership) -> dict[str, Any]:
    """Return one committed membership."""
    return {
        "version": membership.version,
        "from_clock": membership.from_clock,
        "workers": membership.holdings(Role.WORKER),
        "servers": membership.holdings(Role.SERVER),
    }


def status(runtime: Runtime, state: Job, started_s: float, now_s: float) -> dict[str, Any]:
    """Return what ``eps status`` shows."""
    progress, membership = state.progress, state.membership
    history, completed_s = progress.history, progress.history.completed_s
    went_back_s = _went_back_s(state)
    total = runtime.settings.iterations
    clock = max(0, min(progress.completed, total))
    evaluated = progress.evaluated
    recent = list(state.plans.all.values())[-MOST_CHANGES:]
    live = [p for p in recent if not p.ended]
    running = state.state not in ENDED_STATES
    held = {role: membership.holdings(role) for role in Role} if membership is not None else {}
    return {
        "name": runtime.name,
        "state": str(state.state),
        "reason": state.reason or (state.waits_for(now_s) if membership is None else ""),
        # Of a job that runs, they are of now.
        "as_of_s": None,
        "clock": clock,
        "iterations": total,
        "membership_version": membership.version if membership else 0,
        "workers": len(membership.workers) if membership else 0,
        "servers": len(membership.servers) if membership else 0,
        "members": [
            _member(state, name, role, held.get(role, {}).get(name, []), now_s, runtime.spec.on)
            for name in (sorted(state.members.by_name) if running else ())
            for role in Role
            if role in state.members.by_name[name].roles
        ],
        "plan": next((live_entry(state, p, now_s) for p in live if p.phase is not Phase.QUEUED), None),
        "queued": [live_entry(state, p, now_s) for p in live if p.phase is Phase.QUEUED],
        "changes": [change_entry(p, completed_s, now_s, went_back_s) for p in recent if p.ended],
        "losses": [loss_entry(loss) for loss in state.recovery.losses[-MOST_CHANGES:]],
        "went_back": [went_back_entry(back) for back in state.recovery.goings_back[-MOST_CHANGES:]],
        # Why no member takes over from those that were lost.
        "recovery_waits_for": state.waits_for(now_s) if membership is not None else "",
        "evictions": evictions_entry(state, MOST_CHANGES),
        # Members of each role that are missing because they were not granted in time at the start.
        "began_without": {str(role): number for role, number in state.size.lent[Borrower.START].items()},
        "loss": number(history[-1].loss) if history else None,
        "metrics": metrics_of(runtime, evaluated) if evaluated else {},
        "checkpoints": checkpoints_entry(state),
        "iteration_s": round(progress.iteration_s, 6),
        "eta_s": round((total - clock) * progress.iteration_s, 3) if running else 0.0,
        "elapsed_s": round(now_s - started_s, 3),
    }


def checkpoints_entry(state: Job) -> dict[str, Any]:
    """Return how checkpoints go: how many, the latest, what one waits for, and why the last one failed, if it did."""
    driver = state.checkpoints
    return {
        **driver.counts,
        "latest_clock": driver.latest_clock,
        "pending_clock": driver.pending.clock if driver.pending is not None else None,
        "waits": driver.pending.waits if driver.pending is not None else "",
        "error": driver.error,
        "size_bytes": driver.size_bytes,
        "seconds": round(driver.seconds, 6),
        "epoch": driver.epoch,
    }


def _outcomes(state: Job) -> list[dict[str, Any]]:
    return [dataclasses.asdict(outcome) for outcome in state.checkpoints.outcomes]


def _member(state: Job, name: str, role: Role, holds: list[int], now_s: float, runs_on: str) -> dict[str, Any]:
    """Return the entry of one role of a member."""
    record, eviction = state.members.by_name[name], state.evictions.of(name)
    return {
        "name": name,
        "role": str(role),
        "tier": str(record.tier),
        "container": record.container,
        # Below 0 where the deadline was not kept.
        "evicted_in_s": None if eviction is None else round(eviction.deadline_s - now_s, 3),
        # As words after the container's name.
        "evicted_because": "" if eviction is None else eviction.reason,
        # YARN does not tell it: until the process itself has, the number is one of its container's.
        "pid": record.pid if record.address or runs_on != "yarn" else 0,
        "host": record.address.host if record.address else "",
        "port": record.address.port if record.address else 0,
        "holds": holds,
        # Who else is there that it sends data to, and which way.
        "ways": {peer: way for peer, way in sorted(record.ways.items()) if peer in state.members.by_name},
    }


def ledger_entry(runtime: Runtime, ledger: Ledger | None) -> dict[str, int | None]:
    """Return the ledger; of a job that was not exported only what is expected: the servers were not asked."""
    if ledger is not None:
        return dataclasses.asdict(ledger)
    settings = runtime.settings
    expected = settings.iterations * settings.num_splits * settings.num_partitions
    return {**dict.fromkeys(dataclasses.asdict(Ledger()), None), "expected": expected}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of ``values`` lie (nearest rank); 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def report(
    runtime: Runtime,
    state: Job,
    ledger: Ledger | None,
    model_sha256: str,
    test_metrics: dict[str, float],
    started_s: float,
    now_s: float,
) -> dict[str, Any]:
    """Return the final report of a job."""
    history, completed_s = state.progress.history, state.progress.history.completed_s
    went_back_s = _went_back_s(state)
    lasted = [b - a for a, b in pairwise(completed_s)]
    final = history[-1] if history and history[-1].clock == runtime.settings.iterations else None
    metrics: dict[str, Any] = {"train_loss": number(final.loss) if final else None}
    if test_metrics:
        metrics["test"] = {name: number(value) for name, value in test_metrics.items()}
    elif (evaluated := state.progress.evaluated) is not None:
        # It ended early: the best that is known, as its status said.
        metrics["test"] = metrics_of(runtime, evaluated)
    return {
        "name": runtime.name,
        "state": str(state.state),
        "reason": state.reason,
        "clock": max(0, min(state.progress.completed, runtime.settings.iterations)),
        "metrics": metrics,
        "history": [history_entry(runtime, record, started_s) for record in history],
        "model_sha256": model_sha256,
        "changes": [change_entry(p, completed_s, now_s, went_back_s) for p in state.plans.all.values()],
        "losses": [loss_entry(loss) for loss in state.recovery.losses],
        "went_back": [went_back_entry(back) for back in state.recovery.goings_back],
        "evictions": evictions_entry(state),
        "generation": state.masters.generation,
        "checkpoints": {**checkpoints_entry(state), "outcomes": _outcomes(state)},
        "ledger": ledger_entry(runtime, ledger),
        "iteration_seconds": {
            "p50": round(percentile(lasted, 0.5), 6),
            "p99": round(percentile(lasted, 0.99), 6),
            "total": round(sum(lasted), 6),
        },
        # Unlike the above with what came before the first iteration and after the last.
        "elapsed_s": round(now_s - started_s, 3),
        "membership": [membership_entry(v) for v in state.members.memberships],
        # Of SSP and ASP sums are never reproducible.
        "settings": {**runtime.spec.values(), "reproducible": runtime.settings.reproducible},
    }


class Notes:
    """Files of a job's directory; what cannot be written does not stop the job, and is shown.

    Parameters
    ----------
    job_dir : JobDir
    """

    def __init__(self, job_dir: JobDir) -> None:
        self._job_dir = job_dir
        self._journal: Journal | None = None
        #: What cannot be written -> why.
        self.errors: dict[str, str] = {}
        self._status_due_s, self._num_news = 0.0, -1

    def status_is_due(self, num_news: int) -> bool:
        """Return whether the status is to be left on disk again; ``num_news`` counts what has happened to the job."""
        due_s = self._status_due_s if num_news != self._num_news else self._status_due_s + QUIET_NOTE_S
        if time.monotonic() < due_s:
            return False
        self._num_news = num_news
        return True

    def status(self, status: Mapping[str, Any]) -> None:
        """Leave the status on disk, for clients that ask after a job whose processes were killed."""
        began_s = time.monotonic()
        noted = json.dumps({**status, "as_of_s": round(time.time(), 3)}).encode("ascii")
        try:
            write_bytes_atomic(self._job_dir.status_json, noted, sync=False)
            self._note("status")
        except StorageError as error:
            self._note("status", error)
        ended_s = time.monotonic()
        self._status_due_s = ended_s + max(NOTE_S, NOTE_TIMES * (ended_s - began_s))

    def report(self, report: Mapping[str, Any]) -> None:
        """Leave the final report.

        Raises
        ------
        StorageError
            It cannot be written.
        """
        write_json_atomic(self._job_dir.report, report, sync=False)

    def journal(self, record: Mapping[str, Any], *, sync: bool) -> None:
        """Append a record to the journal."""
        try:
            if self._journal is None:
                self._journal = Journal(self._job_dir.journal)
            self._journal.append(record, sync)
            self._note("journal")
        except StorageError as error:
            self._note("journal", error)
            # Opened again, it knows what is on disk.
            self.close()

    def close(self) -> None:
        """Close the journal; the next record opens it again."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _note(self, what: str, error: StorageError | None = None) -> None:
        if error is None:
            self.errors.pop(what, None)
        elif what not in self.errors:
            logger.error("M goes on without the %s: %s", what, error)
            self.errors[what] = str(error)


def serve_metrics(port: int, status: Callable[[], Mapping[str, Any]]) -> MetricsServer | None:
    """Serve a job's metrics; return None where none are wanted, and where the port cannot be had, which is logged.

    Parameters
    ----------
    port : int
        0 takes any that is free; below 0 none are wanted.
    status : callable
        Called from any thread.
    """
    if port < 0:
        return None
    # Hardly any job needs it, and every job master would wait for it.
    from eps.system.text_server import MetricsServer

    try:
        server = MetricsServer(port, lambda: job_metrics(status()))
    except ResourceError as error:
        # Monitoring is no reason to stop.
        logger.error("M serves no metrics: %s", error)
        return None
    logger.info("M serves metrics at http://127.0.0.1:%d/metrics", server.port)
    return server


def job_metrics(status: Mapping[str, Any]) -> str:
    """Return what Prometheus reads of a job.

    Parameters
    ----------
    status : mapping
        As of :func:`status`, with ``generation``.
    """
    job = str(status["name"])
    checkpoints = status["checkpoints"]
    families = [
        metric("eps_job_info", "gauge", "The job and its state.", 1, job=job, state=str(status["state"])),
        metric("eps_clock", "gauge", "Iterations completed.", status["clock"], job=job),
        metric("eps_iterations", "gauge", "Iterations to do.", status["iterations"], job=job),
        metric("eps_iteration_seconds", "gauge", "Seconds of an iteration, smoothed.", status["iteration_s"], job=job),
        metric("eps_elapsed_seconds", "gauge", "Seconds since the job began.", status["elapsed_s"], job=job),
        metric("eps_workers", "gauge", "Workers that take part.", status["workers"], job=job),
        metric("eps_servers", "gauge", "Servers that take part.", status["servers"], job=job),
        metric("eps_membership_version", "gauge", "Changes of members so far.", status["membership_version"], job=job),
        metric("eps_master_generation", "gauge", "Job masters that the job has had.", status["generation"], job=job),
        metric("eps_plans_waiting", "gauge", "Changes of size that wait.", len(status["queued"]), job=job),
        metric("eps_checkpoints_total", "counter", "Checkpoints that are whole.", checkpoints["complete"], job=job),
        metric("eps_checkpoints_failed_total", "counter", "Checkpoints that failed.", checkpoints["failed"], job=job),
        metric("eps_checkpoint_bytes", "gauge", "Size of the latest checkpoint.", checkpoints["size_bytes"], job=job),
    ]
    if status["loss"] is not None:
        families.append(metric("eps_loss", "gauge", "Training loss.", status["loss"], job=job))
    measured = tuple(
        ("", {"job": job, "metric": name}, float(value))
        for name, value in status["metrics"].items()
        if value is not None
    )
    if measured:
        families.append(Family("eps_test", "gauge", "Metrics of the test data.", measured))
    return text_of(families)
