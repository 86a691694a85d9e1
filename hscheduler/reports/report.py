"""The report of a sweep, for real and simulated jobs.

Times are seconds since the sweep began, without those in which no scheduler ran.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import Any

from hscheduler.core.decisions import Action, Grow, Kill, Restart, Shrink, Start, needs_of
from hscheduler.core.jobs import Direction, Phase, best, end_text
from hscheduler.core.resources import Role
from hscheduler.core.thinned import Thinned
from hscheduler.core.timeline import Timeline, TrialRecord
from hscheduler.core.use import Use
from hscheduler.policies import POLICIES
from hscheduler.reports import measures
from hscheduler.spec import Spec

#: Maps a time of the scheduler to that of a report.
Clock = Callable[[float], float]

#: Digits of seconds in a report.
_DIGITS = 6
#: Keys of a report and of its trials, by which it is known.
_OF_REPORT = {"policy", "metric", "direction", "end_s", "trials", "decisions", "phases", "summary"}
_OF_TRIAL = {"job_id", "latest", "curve", "values", "containers", "speeds"}

#: State of a sweep that was interrupted, and how its unfinished trials are shown.
INTERRUPTED = "interrupted"


def report(
    record: Timeline,
    *,
    policy: str,
    direction: Direction | None,
    losses: Mapping[str, float],
    points: Mapping[str, Mapping[str, Any]],
    leaked: int,
    names: Mapping[str, str] | None = None,
    waiting: Mapping[str, str] | None = None,
    metric: str = "loss",
    attempts: Mapping[str, Sequence[str]] | None = None,
    sweep: str = "",
    began_s: float = 0.0,
    began_at: float | None = None,
    spec: Spec | None = None,
    stop: str = "",
) -> dict[str, Any]:
    """Return the report of a sweep, as of now.

    Times count from the begin of the sweep and leave out those at which no scheduler ran; ``down`` has from when to
    when these were, by a clock that leaves out nothing.  ``end_s`` is the same as ``makespan_s``.

    ``useful_share``, ``waiting_share`` and ``idle_share`` divide the containers of the cluster, from the begin of the
    sweep to its end, by what they did (:mod:`hscheduler.core.use`); ``container_s`` has the seconds.  In a service that
    other sweeps share, only the first is of the sweep: the others are of the whole scheduler.

    Parameters
    ----------
    record : Timeline
    policy : str
    direction : Direction or None
        Which loss is better; None if losses cannot be compared: then the report has no best trial.
    losses : mapping
        Job -> its final loss, for completed jobs.
    points : mapping
        Job -> its hyperparameters.
    leaked : int
        Number of containers still held when no job runs.
    names : mapping, optional
        Job -> its name under ``EPS_HOME``, for real jobs.
    waiting : mapping, optional
        Queued job -> why it waits.
    metric : str
        Name of the metric of early feedback and losses.
    attempts : mapping, optional
        Trial -> its jobs; the first has the trial's id.  A trial that is missing here has one job.
    sweep : str
        Report only this sweep of a scheduler with several; empty: all.
    began_s : float
        Start of the sweep on the scheduler's clock.  Utilisation and job numbers cover the whole scheduler.
    began_at : float, optional
        The same, in seconds since 1970; None: it is simulated.
    spec : Spec, optional
        The sweep's settings, to include in the report.
    stop : str
        The stopping rule, if a scheduler has one for sweeps that name none; empty: the sweep's, else the policy's.
    """
    names, waiting, attempts = names or {}, waiting or {}, attempts or {}
    ran_before_s = record.ran_s(began_s)

    def since(at_s: float) -> float:
        return record.ran_s(at_s) - ran_before_s

    others = {job_id for jobs in attempts.values() for job_id in jobs[1:]}
    records = {
        job_id: _timed(trial, since)
        for job_id, trial in list(record.trials.items())
        if not sweep or trial.sweep == sweep
    }
    tried = {
        job_id: [records[each] for each in attempts.get(job_id) or (job_id,) if each in records]
        for job_id in records
        if job_id not in others
    }
    trials = [_as_one(jobs) for jobs in tried.values()]
    completed = [trial for trial in trials if trial.phase is Phase.FINISHED]
    end_s = _end_s(records.values(), sweep, since(record.end_s))
    down = [(at_s, until_s) for at_s, until_s in record.down if until_s > began_s and since(at_s) < end_s]
    tries = [replace(job, job_id=jobs[0].job_id) for jobs in tried.values() for job in jobs]
    found = measures.anytime(tries, losses, metric, direction)
    return {
        "policy": policy,
        "is_callable": spec is not None and spec.is_callable,
        "metric": metric,
        "direction": str(direction or ""),
        "began_at": began_at,
        "makespan_s": round(end_s, _DIGITS),
        "end_s": round(end_s, _DIGITS),
        "down": [[_seconds(at_s - began_s), _seconds(until_s - began_s)] for at_s, until_s in down],
        "spec": None if spec is None else spec.tables(),
        "best": _best(completed, losses, points, direction, metric),
        "completed": len(completed),
        "phases": {phase: sum(t.phase is phase for t in trials) for phase in Phase if phase.ended},
        "summary": _summary(trials, records.values()),
        "utilisation": round(record.utilisation(), _DIGITS),
        "stop": stop or stopping_rule(policy, spec),
        "overshoot": sum(job.overshoot for job in records.values()),
        "iterations_trained": measures.iterations_trained(records.values()),
        **_uses(record, records.values(), end_s, spec),
        "anytime": [[_seconds(at_s), _short(value), job_id] for at_s, value, job_id in found],
        "target": None,
        "time_to_target_s": None,
        "regret": None,
        "resources": {"leaked": leaked},
        "trials": [
            {
                **_trial(trial, metric, losses, points, waiting, _cores(spec), end_s),
                "name": names.get(trial.job_id, ""),
                "attempts": [_attempt(job) for job in tried[trial.job_id]],
            }
            for trial in trials
        ],
        "cluster": {"history": [[_seconds(since(at_s)), round(share, 4)] for at_s, share in record.cluster.points()]},
        "numbers": [[_seconds(since(at_s)), *numbers] for at_s, *numbers in record.numbers],
        "decisions": _decisions(record, records, sweep, since),
    }


def _cores(spec: Spec | None) -> int:
    """Return the cores of a container; 1 if its size is unknown."""
    return 1 if spec is None else spec.cluster.container_vcores


def stopping_rule(policy: str, spec: Spec | None) -> str:
    """Return the stopping rule: the sweep's, else the policy's; empty if neither is known."""
    named = "" if spec is None else spec.sweep.stop
    return named or (needs_of(POLICIES[policy]).stop if policy in POLICIES else "")


def _uses(record: Timeline, jobs: Iterable[TrialRecord], ran_s: float, spec: Spec | None) -> dict[str, Any]:
    """Return the shares of the cluster's containers that computed, waited and were idle, and their seconds."""
    held_s, all_s = record.core_s()
    all_ran_s = record.ran_s(record.end_s)
    if not all_s or all_ran_s <= 0 or ran_s <= 0:
        return {"useful_share": 0.0, "waiting_share": 0.0, "idle_share": 0.0, "container_s": None}
    # Of a sweep in a service: what the cluster had, on average, while it ran.
    of_sweep_s = all_s * ran_s / all_ran_s
    computed_s = sum(job.use.computed_s for job in jobs)
    useful, held = computed_s / of_sweep_s, held_s / all_s
    waiting = max(0.0, held - useful)
    cores = _cores(spec)
    return {
        "useful_share": round(useful, _DIGITS),
        "waiting_share": round(waiting, _DIGITS),
        "idle_share": round(1 - held, _DIGITS),
        "container_s": {
            "computing": _seconds(computed_s / cores),
            "waiting": _seconds(waiting * of_sweep_s / cores),
            "idle": _seconds((1 - held) * of_sweep_s / cores),
        },
    }


def is_report(value: object) -> bool:
    """Return whether a value from a file is a report of this version."""
    if not isinstance(value, Mapping) or not value.keys() >= _OF_REPORT:
        return False
    return all(isinstance(trial, Mapping) and trial.keys() >= _OF_TRIAL for trial in value["trials"])


def shown_phase(phase: str, state: str) -> str:
    """Return the phase of a trial as it is shown: that of one which an interrupt ended is ``interrupted``.

    A report keeps the phase of the last moment, from which the trial resumes.

    Parameters
    ----------
    phase : str
    state : str
        State of the sweep; empty if its report has none.
    """
    waits = phase in (Phase.QUEUED, Phase.PAUSED)
    return phase if state != INTERRUPTED or waits or Phase(phase).ended else INTERRUPTED


def closed(report: Mapping[str, Any], why: str) -> dict[str, Any]:
    """Return the final report of a scheduler that was killed: unfinished trials count as killed."""

    def ended(each: Mapping[str, Any]) -> dict[str, Any]:
        return {**each} if Phase(each["phase"]).ended else {**each, "phase": str(Phase.KILLED), "why": why}

    trials = [{**ended(trial), "attempts": [ended(each) for each in trial["attempts"]]} for trial in report["trials"]]
    phases = Counter(trial["phase"] for trial in trials)
    return {**report, "trials": trials, "phases": {phase: phases[phase] for phase in Phase if phase.ended}}


def _decisions(record: Timeline, trials: Mapping[str, TrialRecord], sweep: str, since: Clock) -> list[dict[str, Any]]:
    """Return decisions, and failed or killed jobs without a decision (with an empty plan), in order of time."""
    decided = [
        {
            "at_s": _seconds(since(decision.at_s)),
            "sentence": decision.sentence,
            "jobs": list(decision.jobs),
            "plan": [_action(action) for action in decision.actions],
        }
        for decision in record.decisions
        # Decisions without jobs are about the cluster and concern every sweep.
        if not sweep or not decision.jobs or not trials.keys().isdisjoint(decision.jobs)
    ]
    known = {decision["sentence"] for decision in decided}
    # A decision about several jobs has a reason for each.
    known |= {each.why for decision in record.decisions for each in decision.actions if isinstance(each, Kill)}
    ended = [
        {
            "at_s": _seconds(trial.finished_s),
            "sentence": end_text(trial.job_id, trial.phase, trial.why),
            "jobs": [trial.job_id],
            "plan": [],
        }
        for trial in trials.values()
        if trial.phase in (Phase.KILLED, Phase.FAILED) and trial.finished_s is not None and trial.why not in known
    ]
    return sorted([*decided, *ended], key=lambda each: each["at_s"])


def _timed(trial: TrialRecord, since: Clock) -> TrialRecord:
    """Return a trial with the times of a report."""

    def known(at_s: float | None) -> float | None:
        return None if at_s is None else since(at_s)

    return replace(
        trial,
        arrived_s=since(trial.arrived_s),
        started_s=known(trial.started_s),
        first_iteration_s=known(trial.first_iteration_s),
        feedback_s=known(trial.feedback_s),
        finished_s=known(trial.finished_s),
        last_iteration_s=known(trial.last_iteration_s),
        rests_since_s=known(trial.rests_since_s),
        sizes=[(since(at_s), workers, servers) for at_s, workers, servers in trial.sizes],
        curve=trial.curve.mapped(lambda point: (since(point[0]), *point[1:])),
        rungs=[(since(at_s), iteration, value) for at_s, iteration, value in trial.rungs],
        use=replace(trial.use, steps=[(since(at_s), cores) for at_s, cores in trial.use.steps]),
        values=trial.values.mapped(lambda point: (since(point[0]), *point[1:])),
    )


def _end_s(trials: Iterable[TrialRecord], sweep: str, now_s: float) -> float:
    """Return when a sweep ended, or the time so far."""
    ends = [trial.finished_s for trial in trials]
    known = [end_s for end_s in ends if end_s is not None]
    return max(known) if sweep and known and len(known) == len(ends) else now_s


def _best(
    completed: Sequence[TrialRecord],
    losses: Mapping[str, float],
    points: Mapping[str, Mapping[str, Any]],
    direction: Direction | None,
    metric: str,
) -> dict[str, Any] | None:
    first = None if direction is None else best([losses.get(trial.job_id) for trial in completed], direction)
    if first is None:
        return None
    job_id = completed[first].job_id
    return {"job_id": job_id, "loss": losses[job_id], "metric": metric, "point": dict(points.get(job_id, {}))}


def _action(action: Action) -> dict[str, Any]:
    """Return an action of a plan for the report: its kind, its job, and its containers."""
    found: dict[str, Any] = {"do": type(action).__name__.lower(), "job_id": action.job_id}
    match action:
        case Start(_, places) | Grow(_, places):
            for role in (Role.WORKER, Role.SERVER):
                found[f"{role}s"] = sum(place.role is role for place in places)
        case Shrink(_, containers, undoes):
            found |= {"containers": list(containers), "undoes_growth": undoes}
        case Restart(_, workers, servers, undoes):
            found |= {"workers": workers, "servers": servers, "undoes_growth": undoes}
    return found


def _as_one(jobs: Sequence[TrialRecord]) -> TrialRecord:
    """Merge the records of a trial's attempts, which ran one after the other."""
    if len(jobs) == 1:
        return jobs[0]
    starts = [job.started_s for job in jobs if job.started_s is not None]
    firsts = [job.first_iteration_s for job in jobs if job.first_iteration_s is not None]
    fed = next((job for job in jobs if job.feedback_s is not None), jobs[-1])
    return replace(
        jobs[-1],
        job_id=jobs[0].job_id,
        arrived_s=jobs[0].arrived_s,
        started_s=min(starts, default=None),
        first_iteration_s=min(firsts, default=None),
        feedback_s=fed.feedback_s,
        feedback=fed.feedback,
        sizes=[size for job in jobs for size in job.sizes],
        resize_pause_s=sum(job.resize_pause_s for job in jobs),
        restarts=sum(job.restarts for job in jobs),
        resizes=sum(job.resizes for job in jobs),
        pauses=sum(job.pauses for job in jobs),
        rested_s=sum(job.rested_s for job in jobs),
        overshoot=sum(job.overshoot for job in jobs),
        use=Use(
            computed_s=sum(job.use.computed_s for job in jobs),
            changed_s=sum(job.use.changed_s for job in jobs),
            steps=[step for job in jobs for step in job.use.steps],
        ),
    )


def _attempt(job: TrialRecord) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "phase": str(job.phase),
        "why": job.why,
        "started_s": _seconds(job.started_s),
        "finished_s": _seconds(job.finished_s),
    }


def _trial(
    trial: TrialRecord,
    metric: str,
    losses: Mapping[str, float],
    points: Mapping[str, Mapping[str, Any]],
    waiting: Mapping[str, str],
    cores: int,
    end_s: float,
) -> dict[str, Any]:
    return {
        "job_id": trial.job_id,
        "point": dict(points.get(trial.job_id, {})),
        "phase": str(trial.phase),
        "why": trial.why or waiting.get(trial.job_id, ""),
        "arrived_s": _seconds(trial.arrived_s),
        "started_s": _seconds(trial.started_s),
        "first_iteration_s": _seconds(trial.first_iteration_s),
        "early_feedback_s": _seconds(trial.early_feedback_s),
        "feedback": _finite(trial.feedback),
        "finished_s": _seconds(trial.finished_s),
        # The metric of the sweep.  The older key, loss, has the same value, whatever the metric.
        "value": _finite(losses.get(trial.job_id)),
        "loss": _finite(losses.get(trial.job_id)),
        "latest": _finite(trial.latest(metric, losses.get(trial.job_id))),
        "containers": [[_seconds(at), workers, servers] for at, workers, servers in trial.sizes],
        "resize_pause_s": _seconds(trial.resize_pause_s),
        "restarts": trial.restarts,
        "curve": _curve(trial.curve),
        "values": _curve(trial.values),
        "rungs": [[_seconds(at_s), iteration, _finite(value)] for at_s, iteration, value in trial.rungs],
        "pauses": trial.pauses,
        # Seconds for which the stopping rule had paused it.
        "rested_s": _seconds(trial.resting_s(end_s)),
        "overshoot": trial.overshoot,
        "container_s": _seconds(trial.use.computed_s / cores),
        "computing": [[_seconds(at_s), number / cores] for at_s, number in trial.use.steps],
        "resizes": trial.resizes,
        "iterations": trial.iteration,
        "last_iteration_s": _seconds(trial.last_iteration_s),
        # A copy: the scheduler's thread may add a size meanwhile.
        "speeds": [[*size, number, _seconds(seconds)] for size, (number, seconds) in list(trial.speeds.items())],
    }


def _curve(points: Thinned[tuple[float, int, float]]) -> list[list[float]]:
    return [[round(at, 3), iteration, _short(value)] for at, iteration, value in points.points()]


def _finite(value: float | None) -> float | None:
    """Return a value for JSON: None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None


def _short(value: float) -> float:
    """Return a value rounded to the six digits that a chart shows."""
    return float(f"{value:.6g}")


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


def _summary(trials: Sequence[TrialRecord], jobs: Iterable[TrialRecord]) -> dict[str, float | None]:
    """Return the figures for comparing policies; ``jobs`` are all attempts of the trials.

    ``resizing_share`` is the time that changes of size paused jobs, ``changing_share`` the time that these changes took
    while training may have gone on; both are over the runtime of all jobs, without the time for which the stopping rule
    had paused them.

    Source: EPS §2.3 (queueing delay, early feedback latency), §7.4 Table 2 (total time spent on removing and adding
    workers and servers, over the total runtime of all jobs: ``changing_share``).
    """
    queueing = [t.queueing_s for t in trials if t.queueing_s is not None]
    first = [t.first_iteration_s - t.arrived_s for t in trials if t.first_iteration_s is not None]
    feedback = [t.early_feedback_s for t in trials if t.early_feedback_s is not None]
    ran = [
        job.finished_s - job.started_s - job.resting_s(job.finished_s)
        for job in jobs
        if job.finished_s is not None and job.started_s is not None
    ]
    paused, changed = sum(t.resize_pause_s for t in trials), sum(t.use.changed_s for t in trials)
    first_median, first_max = measures.spread(first)
    feedback_median, feedback_max = measures.spread(feedback)
    return {
        "queueing_mean_s": _seconds(mean(queueing)) if queueing else None,
        "queueing_median_s": _seconds(median(queueing)) if queueing else None,
        "first_iteration_median_s": _seconds(first_median),
        "first_iteration_max_s": _seconds(first_max),
        "early_feedback_mean_s": _seconds(mean(feedback)) if feedback else None,
        "early_feedback_median_s": _seconds(feedback_median),
        "early_feedback_max_s": _seconds(feedback_max),
        "resizing_share": round(paused / sum(ran), _DIGITS) if sum(ran) else None,
        "changing_share": round(changed / sum(ran), _DIGITS) if sum(ran) else None,
    }


def table(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return a text table with one row for each report; the reports have the same metric, as those of one sweep."""
    columns = (
        ("policy", lambda r: r["policy"]),
        ("makespan", lambda r: f"{r['makespan_s']:.1f} s"),
        (f"best {reports[0]['metric']}", lambda r: "-" if r["best"] is None else f"{r['best']['loss']:.4g}"),
        ("finished", lambda r: str(r["completed"])),
        ("killed", lambda r: str(r["phases"]["killed"])),
        ("failed", lambda r: str(r["phases"]["failed"])),
        ("queued (median)", lambda r: _in_s(r["summary"]["queueing_median_s"])),
        ("feedback (mean)", lambda r: _in_s(r["summary"]["early_feedback_mean_s"])),
        ("utilisation", lambda r: f"{100 * r['utilisation']:.1f} %"),
        ("resizing", lambda r: _percent(r, "resizing_share")),
    )
    rows = [[name for name, _ in columns], *([show(each) for _, show in columns] for each in reports)]
    return aligned(rows)


def measures_table(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return a text table of what containers did and when results were known, with one row for each report."""
    columns: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
        ("policy", lambda r: str(r["policy"])),
        ("stop", lambda r: str(r["stop"]) or "-"),
        ("iterations", lambda r: str(r["iterations_trained"])),
        ("computing", lambda r: f"{100 * r['useful_share']:.1f} %"),
        ("waiting", lambda r: f"{100 * r['waiting_share']:.1f} %"),
        ("idle", lambda r: f"{100 * r['idle_share']:.1f} %"),
        ("first iteration (median, most)", lambda r: _two(r, "first_iteration")),
        ("feedback (median, most)", lambda r: _two(r, "early_feedback")),
        ("changing size", lambda r: _percent(r, "changing_share")),
        ("regret", lambda r: "-" if r["regret"] is None else f"{r['regret']:.3g}"),
        ("to target", _to_target),
    )
    known = {
        "regret": any(each["regret"] is not None for each in reports),
        "to target": any(r["target"] for r in reports),
    }
    shown = [column for column in columns if known.get(column[0], True)]
    return aligned([[name for name, _ in shown], *([show(each) for _, show in shown] for each in reports)])


def static_text(report: Mapping[str, Any]) -> str:
    """Return the time of a sweep beside that of the static size asked for, which is simulated; empty if unknown."""
    static = next((each for each in (report.get("static") or {}).get("sizes", ()) if each["asked"]), None)
    if static is None:
        return ""
    feedback = feedback_s(report), static["early_feedback_mean_s"]
    told = "" if None in feedback else f", early feedback {_in_s(feedback[0])} against {_in_s(feedback[1])}"
    finished = "" if static["finished"] == report["completed"] else f"; {static['finished']} trials finish there"
    times = (
        f"{report['policy']} {_in_s(report['makespan_s'])}, static {_in_s(static['makespan_s'])} (simulated{finished})"
    )
    return f"{times}{told}"


def feedback_s(report: Mapping[str, Any]) -> float | None:
    """Return the mean seconds to early feedback, to compare policies.

    From the arrival of a trial; from the start of the sweep if trials arrive when they can start, which depends on the
    policy.
    """
    if report["spec"]["sweep"].get("arrival", "") not in ("", "burst"):
        found: float | None = report["summary"]["early_feedback_mean_s"]
        return found
    known = [trial for trial in report["trials"] if trial["early_feedback_s"] is not None]
    return float(mean(trial["arrived_s"] + trial["early_feedback_s"] for trial in known)) if known else None


def sizes_text(report: Mapping[str, Any]) -> str:
    """Return the makespan of each fixed size that was tried, and which one is the best."""
    tried = ", ".join(f"{each['size']} {each['makespan_s']:.1f} s" for each in report["sizes"])
    return f"{report['policy']} is best with {report['size']}: {tried}"


def _two(one: Mapping[str, Any], name: str) -> str:
    return f"{_in_s(one['summary'][f'{name}_median_s'])}, {_in_s(one['summary'][f'{name}_max_s'])}"


def _to_target(one: Mapping[str, Any]) -> str:
    return "never" if one["target"] and one["time_to_target_s"] is None else _in_s(one["time_to_target_s"])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned text: the first column flush left, others flush right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def point_text(point: Mapping[str, Any]) -> str:
    """Return a point as text: ``learning_rate = 0.1, l2 = 0``."""
    return ", ".join(
        f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}" for name, value in point.items()
    )


def _percent(one: Mapping[str, Any], name: str) -> str:
    share = one["summary"][name]
    return "-" if share is None else f"{100 * share:.2f} %"


def _in_s(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
