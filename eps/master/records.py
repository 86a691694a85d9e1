"""Status, report, history and metrics of a job, as JSON from the master's state; files that show them.

Nothing here changes the state.
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
from eps.core.events import ENDED_STATES, JobState
from eps.core.job import Job
from eps.core.membership import Membership, cut_clock
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
from eps.system.metrics_text import CONTENT_TYPE, Family, metric, text_of

if TYPE_CHECKING:
    from eps.system.text_server import LocalServer

#: Number of latest changes in a status; a report has all of them.
MOST_CHANGES = 20
#: Number of latest sizes in a status and in a report.
MOST_SIZES = 200
#: Shown in the status if the resource manager does not respond.
RESOURCES_HANG = (
    "the resource manager has been silent for {silent_s:.0f} s: until it responds, no worker or server can be added or "
    "replaced, and a crashed job master is not restarted"
)
#: Interval between writes of the status file; at least ``NOTE_TIMES`` times as long as the last write took.
NOTE_S, NOTE_TIMES = 2.0, 20
#: Added to the interval while nothing happens.
QUIET_NOTE_S = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Counts of the servers, in units of (clock, split, partition)."""

    expected: int = 0
    applied: int = 0
    #: Counted by the last owners of the partitions; refusals by former owners are not included.
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
    """Return ``value``, or None if it is not finite, which JSON cannot express."""
    return value if math.isfinite(value) else None


def metrics_of(runtime: Runtime, record: ClockRecord) -> dict[str, float | None]:
    """Return the test metrics of a clock by name; empty if it was not evaluated."""
    if not record.evaluation:
        return {}
    found = EvalSums.from_vector(runtime.model, record.evaluation).summary()
    return {name: number(value) for name, value in found.items()}


def history_entry(runtime: Runtime, record: ClockRecord, started_s: float) -> dict[str, Any]:
    """Return one entry of the history; ``loss`` is the training loss, ``test_loss`` that of the test data."""
    measured = metrics_of(runtime, record)
    return {
        "clock": record.clock,
        "loss": number(record.loss),
        "seconds": round(record.completed_s - started_s, 6),
        **{"test_loss" if name == "loss" else name: value for name, value in measured.items()},
    }


def loss_entry(loss: Loss) -> dict[str, Any]:
    """Return the entry of one lost member, with the outcome of the recovery."""
    return {
        "name": loss.name,
        "reason": loss.reason,
        "clock": loss.clock,
        "seconds": round(loss.at_s, 6),
        "outcome": str(loss.outcome),
        "back_to_clock": loss.back_to,
    }


def went_back_entry(back: GoingBack) -> dict[str, Any]:
    """Return the entry of one rollback: when, to which clock, and why."""
    return {
        "clock": back.clock,
        "to_clock": back.to,
        "seconds": round(back.at_s, 6),
        "lost": dict(back.lost),
        # The lost members that held the only copy of parameters.
        "servers": list(back.servers),
        "unreadable": back.unreadable,
        "start": "seed" if not back.point else "checkpoint" if cut_clock(back.point) is None else "cut",
    }


def evictions_entry(state: Job, most: int = 0) -> dict[str, Any]:
    """Return the evictions of a job: announced preemptions and their outcomes.

    ``drain_s`` has the seconds from request to release of each plan that drained members.  ``given`` has the number of
    members of each role that the job has lent to other applications.

    Parameters
    ----------
    state : Job
    most : int
        Number of latest evictions in ``members``; 0 for all.
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
        # Until its container was released or had exited.
        "seconds": None if ended_s is None else round(ended_s - eviction.warned_s, 6),
    }


def change_entry(
    plan: Plan, completed_s: Sequence[float], now_s: float, went_back_s: Sequence[float] = ()
) -> dict[str, Any]:
    """Return the entry of one change of size: the request, its phases and its cost."""
    asked_s = plan.reached_s[Phase.QUEUED]
    begin_s = plan.reached_s.get(Phase.PROPOSED, asked_s)
    ended = plan.reached_s.get(Phase.RELEASED, plan.reached_s.get(Phase.ABORTED, now_s))
    pause_s, slowdown_s = pause_and_slowdown(completed_s, begin_s, ended, went_back_s, plan.commit_clock)
    return {
        "plan_id": plan.plan_id,
        "operation": str(plan.change.operation),
        "asked_by": "job" if plan.purpose.own else "user",
        # Why the job itself requested it; empty if a user did.
        "purpose": _purpose(plan),
        # The clock of a change that --at requested.
        "asked_at": plan.asked_at,
        "asked": plan.change.asked,
        # As the user wrote it.
        "text": str(plan.change),
        "names": [*plan.added, *plan.removed],
        "added": list(plan.added),
        "removed": list(plan.removed),
        **_containers(plan),
        "phase": str(plan.phase),
        "reason": plan.reason,
        "seconds": {str(phase): round(t - asked_s, 6) for phase, t in plan.reached_s.items()},
        "barriers": {name: round(t - asked_s, 6) for name, t in sorted(plan.barriers_s.items())},
        "committed_clock": plan.commit_clock,
        "bytes_moved": plan.bytes_moved,
        "pause_s": round(pause_s, 6),
        "slowdown_s": round(slowdown_s, 6),
        # False until an iteration has ended after the plan, because the current one may still be slowed down.
        "settled": plan.ended and bool(completed_s) and completed_s[-1] >= ended,
    }


def _containers(plan: Plan) -> dict[str, Any]:
    """Return the ``containers`` that a change requests and releases, for a job on reliable and transient containers."""
    if plan.change.operation is not Operation.TIERS:
        return {}
    return {"containers": {"added": list(plan.requested), "removed": list(plan.releases)}}


def _went_back_s(state: Job) -> list[float]:
    return [back.at_s for back in state.recovery.goings_back]


def _purpose(plan: Plan) -> str:
    """Return why the job itself requested a change; empty if a user or a scheduler did."""
    if not plan.purpose.own:
        return ""
    return str(Purpose.REPLACE if plan.purpose is Purpose.REGAIN else plan.purpose)


def live_entry(state: Job, plan: Plan, now_s: float) -> dict[str, Any]:
    """Return the entry of an unfinished change, with what it waits for and its seconds in the current phase."""
    driver, waits_for = state.plans.flight.driver, ""
    if driver is not None and not plan.ended:
        waits_for = driver.waits_for() if driver.plan is plan else f"plan {driver.plan.plan_id}"
    waited_s = round(now_s - max(plan.reached_s.values()), 6)
    found = change_entry(plan, state.progress.history.completed_s, now_s, _went_back_s(state))
    return {**found, "waits_for": waits_for, "waited_s": waited_s}


def line_of(record: Mapping[str, Any]) -> str:
    """Return a record of the core as a log line: ``plan plan_id=2 phase=copied``; no time, the log has its own."""
    told = {name: value for name, value in record.items() if name not in ("kind", "at_s") and value not in ("", [], ())}
    return " ".join([str(record["kind"]), *(f"{name}={_plain(value, ',')}" for name, value in told.items())])


def _plain(value: Any, between: str) -> str:
    """Return a value as one word; lists in a list are joined by colons."""
    return (between.join(_plain(each, ":") for each in value) or "-") if isinstance(value, list | tuple) else str(value)


def membership_entry(membership: Membership) -> dict[str, Any]:
    """Return the entry of one committed membership."""
    return {
        "version": membership.version,
        "from_clock": membership.from_clock,
        "workers": membership.holdings(Role.WORKER),
        "servers": membership.holdings(Role.SERVER),
    }


def sizes_entry(memberships: Sequence[Membership]) -> list[list[int]]:
    """Return [clock, workers, servers] from each change of size on, also those by losses.

    Sizes of clocks that the job has rolled back are left out; the latest :data:`MOST_SIZES` are returned.
    """
    found: list[list[int]] = []
    for membership in memberships:
        clock, size = max(0, membership.from_clock), [len(membership.workers), len(membership.servers)]
        while found and found[-1][0] >= clock:
            found.pop()
        if not found or found[-1][1:] != size:
            found.append([clock, *size])
    return found[-MOST_SIZES:]


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
        # None: the status of a running job is current.
        "as_of_s": None,
        "clock": clock,
        "iterations": total,
        "membership_version": membership.version if membership else 0,
        "workers": len(membership.workers) if membership else 0,
        "servers": len(membership.servers) if membership else 0,
        "sizes": sizes_entry(state.members.memberships),
        **tiers_entry(state, now_s),
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
        # Why the recovery of lost members waits.
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


def tiers_entry(state: Job, now_s: float) -> dict[str, Any]:
    """Return ``tiers`` of a job on reliable and transient containers, as the only key; nothing for other jobs."""
    if state.hosting is None:
        return {}
    hosting, cuts, membership = state.hosting, state.cuts, state.membership
    stages = [dataclasses.asdict(entry) for entry in hosting.stages]
    stage = stages[-1]["stage"] if stages else None
    ahead = "" if hosting.decided == stage else f"stage {hosting.decided} is next: "
    clocks_lost = sum(max(0, back.clock - max(0, back.to)) for back in state.recovery.goings_back)
    consistent = completed = max(0, min(state.progress.completed, state.settings.iterations))
    # In stage 1 nothing that is complete can be lost with a transient container.
    lags = membership is not None and hosting.is_exposed(membership.partitions.owners, state.members)
    lags = lags and state.state is not JobState.FINISHED
    if lags:
        consistent = cuts.consistent_clock
    lag_s = cuts.lag.seconds(now_s) if lags else 0.0
    return {
        "tiers": {
            "rule": str(hosting.rule),
            "stage": stage,
            "reason": ahead + hosting.reason,
            "stages": stages,
            "consistent_clock": consistent,
            "lag": completed - consistent,
            "lag_s": round(lag_s, 3),
            "largest_lag": cuts.lag.largest,
            "largest_lag_s": round(max(cuts.lag.largest_s, lag_s), 3),
            # The bound that the lag exceeds now, and why.
            "lag_missed": cuts.lag.missed(now_s) if lags else "",
            "cuts": cuts.count,
            "cut_bytes": cuts.size_bytes,
            "rolled_back": clocks_lost,
        }
    }


def checkpoints_entry(state: Job) -> dict[str, Any]:
    """Return the state of checkpoints: counts, the latest, what a pending one waits for, the latest error."""
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
    serves = None
    if state.hosting is not None and state.membership is not None and role is Role.SERVER:
        serves = state.hosting.server_tier(name, state.membership, state.members)
    return {
        "name": name,
        "role": str(role),
        "tier": str(record.tier),
        # Of a job on two tiers; empty for a spare server.
        "server_tier": str(serves or ""),
        "container": record.container,
        # Below 0 after the deadline.
        "evicted_in_s": None if eviction is None else round(eviction.deadline_s - now_s, 3),
        # Reads as a predicate of the container: "is preempted".
        "evicted_because": "" if eviction is None else eviction.reason,
        # YARN reports no process ids: known once the process has registered.
        "pid": record.pid if record.address or runs_on != "yarn" else 0,
        "host": record.address.host if record.address else "",
        "port": record.address.port if record.address else 0,
        "holds": holds,
        # Peer -> transport to it.
        "ways": {peer: way for peer, way in sorted(record.ways.items()) if peer in state.members.by_name},
    }


def ledger_entry(runtime: Runtime, ledger: Ledger | None) -> dict[str, int | None]:
    """Return the ledger; without an export, only the expected count is known."""
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
        # The job ended early: the latest evaluation.
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
        **tiers_entry(state, now_s),
        "generation": state.masters.generation,
        "checkpoints": {**checkpoints_entry(state), "outcomes": _outcomes(state)},
        "ledger": ledger_entry(runtime, ledger),
        "iteration_seconds": {
            "p50": round(percentile(lasted, 0.5), 6),
            "p99": round(percentile(lasted, 0.99), 6),
            "total": round(sum(lasted), 6),
        },
        # Includes the time before the first iteration and after the last.
        "elapsed_s": round(now_s - started_s, 3),
        "membership": [membership_entry(v) for v in state.members.memberships],
        # The record of an ended job keeps only the last membership.
        "sizes": sizes_entry(state.members.memberships),
        # Always false for SSP and ASP.
        "settings": {**runtime.spec.values(), "reproducible": runtime.settings.reproducible},
    }


class Notes:
    """Status and report in a job's directory.  A failed write of the status does not stop the job; the status shows it.

    Parameters
    ----------
    job_dir : JobDir
    """

    def __init__(self, job_dir: JobDir) -> None:
        self._job_dir = job_dir
        #: Why the status file cannot be written; empty if it can.
        self.error = ""
        self._status_due_s, self._num_news = 0.0, -1

    def status_is_due(self, num_news: int) -> bool:
        """Return whether to write the status again; ``num_news`` counts the events of the job."""
        due_s = self._status_due_s if num_news != self._num_news else self._status_due_s + QUIET_NOTE_S
        if time.monotonic() < due_s:
            return False
        self._num_news = num_news
        return True

    def status(self, status: Mapping[str, Any]) -> None:
        """Write the status file, which clients read after the job's processes were killed."""
        began_s = time.monotonic()
        noted = json.dumps({**status, "as_of_s": round(time.time(), 3)}).encode("ascii")
        try:
            write_bytes_atomic(self._job_dir.status_json, noted, sync=False)
            self.error = ""
        except StorageError as error:
            if not self.error:
                logger.error("M the status cannot be written; training continues: %s", error)
                self.error = str(error)
        ended_s = time.monotonic()
        self._status_due_s = ended_s + max(NOTE_S, NOTE_TIMES * (ended_s - began_s))

    def report(self, report: Mapping[str, Any]) -> None:
        """Write the final report.

        Raises
        ------
        StorageError
            The report cannot be written.
        """
        write_json_atomic(self._job_dir.report, report, sync=False)


def serve_metrics(port: int, status: Callable[[], Mapping[str, Any]]) -> LocalServer | None:
    """Serve a job's metrics for Prometheus; return None if disabled, or if the port cannot be used, which is logged.

    Parameters
    ----------
    port : int
        0 takes a free port; below 0 disables metrics.
    status : callable
        Called from any thread.
    """
    if port < 0:
        return None
    # Imported only if needed: it would slow the start of every job master.
    from eps.system.text_server import LocalServer, Text

    pages = {"/metrics": lambda: Text(CONTENT_TYPE, job_metrics(status()))}
    try:
        server = LocalServer(port, pages, setting="metrics_port")
    except ResourceError as error:
        # A job must not fail because of its monitoring.
        logger.error("M metrics are not served: %s", error)
        return None
    logger.info("M serves metrics at http://127.0.0.1:%d/metrics", server.port)
    return server


def job_metrics(status: Mapping[str, Any]) -> str:
    """Return the metrics of a job in the text format of Prometheus.

    Parameters
    ----------
    status : mapping
        The result of :func:`status`, with ``generation``.
    """
    job = str(status["name"])
    checkpoints = status["checkpoints"]
    families = [
        metric("eps_job_info", "gauge", "The job and its state.", 1, job=job, state=str(status["state"])),
        metric("eps_clock", "gauge", "Iterations completed.", status["clock"], job=job),
        metric("eps_iterations", "gauge", "Iterations of the job.", status["iterations"], job=job),
        metric("eps_iteration_seconds", "gauge", "Seconds of an iteration, smoothed.", status["iteration_s"], job=job),
        metric("eps_elapsed_seconds", "gauge", "Seconds since the job started.", status["elapsed_s"], job=job),
        metric("eps_workers", "gauge", "Workers that take part.", status["workers"], job=job),
        metric("eps_servers", "gauge", "Servers that take part.", status["servers"], job=job),
        metric("eps_membership_version", "gauge", "Changes of members so far.", status["membership_version"], job=job),
        metric("eps_master_generation", "gauge", "Job masters that the job has had.", status["generation"], job=job),
        metric("eps_plans_waiting", "gauge", "Queued changes of size.", len(status["queued"]), job=job),
        metric("eps_checkpoints_total", "counter", "Completed checkpoints.", checkpoints["complete"], job=job),
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
