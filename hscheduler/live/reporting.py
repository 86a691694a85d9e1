"""The report of a live scheduler at one moment, for any thread.

The scheduler's thread only copies the values that it keeps changing; the calling thread makes the report of the copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from eps.errors import StorageError
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, Phase
from hscheduler.core.state import Scheduler
from hscheduler.core.timeline import Timeline, TrialRecord
from hscheduler.live.registry import LookUps
from hscheduler.live.scheduler import LiveScheduler
from hscheduler.live.submission import Submission, attempts_of, trial_of
from hscheduler.reports.report import report
from hscheduler.reports.view import SHOWN_DECISIONS, Look, Row
from hscheduler.spec import Spec

#: Name of the trials' results if their sweeps have different metrics.
RESULT = "result"


@dataclass(frozen=True)
class _Seen:
    """A scheduler at one moment."""

    record: Timeline
    #: The jobs in the registry, in their order.
    jobs: Sequence[Submission]
    #: Job -> its final metric.
    losses: Mapping[str, float]
    #: Job -> why it waits.
    waiting: Mapping[str, str]
    leaked: int


def report_of(scheduler: LiveScheduler, sweep: str, spec: Spec | None = None) -> dict[str, Any]:
    """Return the report of a sweep, or of everything that is not forgotten if the name is empty.

    The report of everything has a best trial only if all sweeps have the same metric and direction.

    Parameters
    ----------
    scheduler : LiveScheduler
    sweep : str
    spec : Spec, optional
        The sweep's file, whose settings the report includes.

    Raises
    ------
    DeadlineError
        As :meth:`LiveScheduler.ask`.
    """
    seen = scheduler.ask(lambda: _look_at(scheduler, sweep))
    if sweep:
        # In this order: jobs that leave meanwhile are found in the table.
        seen = _with_past(seen, scheduler.look_ups, sweep)
    jobs, attempts = {each.job_id: each for each in seen.jobs}, attempts_of(seen.jobs)
    last = {trial_id: job_ids[-1] for trial_id, job_ids in attempts.items()}
    direction, metric = _ranked_by(scheduler, sweep)
    return report(
        seen.record,
        policy=scheduler.settings.policy,
        direction=direction,
        losses={trial_id: seen.losses[job_id] for trial_id, job_id in last.items() if job_id in seen.losses},
        points={trial_id: jobs[trial_id].point for trial_id in last},
        names={trial_id: jobs[job_id].name for trial_id, job_id in last.items()},
        waiting={trial_id: seen.waiting[job_id] for trial_id, job_id in last.items() if job_id in seen.waiting},
        metric=metric,
        attempts=attempts,
        leaked=seen.leaked,
        sweep=sweep,
        began_s=(began_s := scheduler.registry.opened_s.get(sweep, 0.0)),
        began_at=scheduler.began_at + began_s,
        spec=spec,
        stop=_asked_rule(scheduler, sweep) or scheduler.settings.stop,
    )


def look_of(scheduler: LiveScheduler, shown: Look, sweep: str = "", ended: dict[str, Row] | None = None) -> Look:
    """Return what a terminal or the metrics show now.

    Parameters
    ----------
    scheduler : LiveScheduler
    shown : Look
        What does not change: policy, metric, name, ...
    sweep : str
        Empty: jobs of all sweeps.
    ended : dict, optional
        Rows of ended jobs from earlier calls; filled here.  None: jobs that have left the registry are only counted.

    Raises
    ------
    DeadlineError
        As :meth:`LiveScheduler.ask`.
    """
    look = scheduler.ask(lambda: _look_now(scheduler, shown, sweep, ended))
    # On this thread, since it may read the record.
    rows: dict[str, Row] = {}
    for row in look.rows:
        trial = trial_of(row.job_id, scheduler.look_ups.submission)
        # That of its latest job, with the arrival of the first.
        rows[trial] = replace(row, job_id=trial, arrived_s=rows.get(trial, row).arrived_s)
    return replace(look, rows=list(rows.values()))


def _look_now(scheduler: LiveScheduler, shown: Look, sweep: str, ended: dict[str, Row] | None) -> Look:
    """Return a look with a row for each job."""
    registry, state, ledger = scheduler.registry, scheduler.state, scheduler.state.ledger
    ran_s = registry.timeline.ran_s
    here: dict[str, Row] = {}
    for trial in registry.timeline.trials.values():
        if not sweep or trial.sweep == sweep:
            row = None if ended is None else ended.get(trial.job_id)
            here[trial.job_id] = row or _row_of(trial, registry.submissions[trial.job_id], state, shown)
    gone, gone_trials = Counter[Phase](), Counter[tuple[str, Phase]]()
    if ended is None:
        gone, gone_trials = scheduler.look_ups.counts(sweep)
    else:
        ended.update({job_id: row for job_id, row in here.items() if row.phase.ended})
        # The record may be closed.
        with suppress(StorageError):
            if scheduler.look_ups.num_left(sweep) > len(ended.keys() - here.keys()):
                jobs = {each.job_id: each for each in scheduler.look_ups.past(sweep)}
                for trial in scheduler.look_ups.trials(sweep):
                    ended[trial.job_id] = _row_of(trial, jobs[trial.job_id], state, shown)
        here = dict(sorted({**ended, **here}.items(), key=lambda item: item[1].arrived_s))
    return replace(
        shown,
        now_s=ran_s(registry.timeline.end_s),
        rows=list(here.values()),
        num_queued=len(state.queue),
        decisions=[(ran_s(each.at_s), each.sentence) for each in registry.timeline.decisions[-SHOWN_DECISIONS:]],
        num_decisions=state.number_of_decision,
        vcores=ledger.total().vcores,
        used_vcores=ledger.used().vcores,
        nodes=[(node, ledger.num_on(node)) for node in ledger.capacity],
        latencies=list(registry.timeline.latencies),
        latency_sum_s=registry.timeline.latency_sum_s,
        jobs=gone + Counter(row.phase for row in here.values()),
        gone_trials=gone_trials,
    )


def _row_of(trial: TrialRecord, submission: Submission, state: Scheduler, shown: Look) -> Row:
    job, iterations = state.jobs.get(trial.job_id), submission.spec.iterations if shown.knows_iterations else 0
    return Row.of(trial, job, shown.metric, iterations, submission.loss, submission.point)


def _asked_rule(scheduler: LiveScheduler, sweep: str) -> str:
    """Return the stopping rule that a sweep names (without one: that all name); empty if there is none."""
    rules = {each.stopping.rule for name, each in scheduler.registry.sweeps.items() if sweep in ("", name)}
    return rules.pop() if len(rules) == 1 else ""


def _look_at(scheduler: LiveScheduler, sweep: str) -> _Seen:
    record = scheduler.registry.timeline.snapshot(sweep)
    # Jobs whose first event is still queued have nothing to report.
    jobs = [each for each in scheduler.look_ups.current(sweep) if each.job_id in record.trials]
    return _Seen(
        record,
        jobs,
        _losses(jobs),
        {job.job_id: job.why for job in scheduler.state.queue},
        scheduler.leaked(),
    )


def _losses(jobs: Iterable[Submission]) -> dict[str, float]:
    return {each.job_id: each.loss for each in jobs if each.loss is not None}


def _with_past(seen: _Seen, look_ups: LookUps, sweep: str) -> _Seen:
    """Return what was seen of a sweep, together with its jobs that have left."""
    record, trials = seen.record, {trial.job_id: trial for trial in look_ups.trials(sweep)} | dict(seen.record.trials)
    record.trials = dict(sorted(trials.items(), key=lambda item: item[1].arrived_s))
    record.decisions = list(dict.fromkeys([*look_ups.decisions(sweep), *record.decisions]))
    known = {each.job_id: each for each in (*look_ups.past(sweep), *seen.jobs)}
    jobs = [known[job_id] for job_id in record.trials]
    return replace(seen, jobs=jobs, losses={**_losses(jobs), **seen.losses})


def _ranked_by(scheduler: LiveScheduler, sweep: str) -> tuple[Direction | None, str]:
    """Return direction and metric of the ranking; the direction is None if the sweeps differ."""
    names = {each.sweep for each in scheduler.look_ups.current()} if not sweep else {sweep}
    opened = [scheduler.registry.sweeps.get(name, e.SweepOpened(name)) for name in sorted(names) or [sweep]]
    first, *others = dict.fromkeys((each.direction, each.metric or scheduler.settings.metric) for each in opened)
    return (None, RESULT) if others else first
