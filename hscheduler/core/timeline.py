"""The history of a scheduler, recorded event by event: the source of reports and pages, live and simulated.

Times are seconds since the scheduler began.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from hscheduler.core import events as e
from hscheduler.core.decisions import Action
from hscheduler.core.jobs import Job, Phase, Size
from hscheduler.core.state import Scheduler
from hscheduler.core.thinned import Thinned
from hscheduler.core.use import Use

#: Points of a trial's loss curve.
CURVE_POINTS = 200
#: Points of the cluster's history.
CLUSTER_POINTS = 400
#: Upper bounds of the histogram of early-feedback latencies, seconds.
LATENCY_BOUNDS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
#: Entries of the history of job numbers and of decisions that :meth:`Timeline.forget` keeps.
LATEST_NUMBERS = 2_000
LATEST_DECISIONS = 500


def _curve() -> Thinned[tuple[float, int, float]]:
    return Thinned(CURVE_POINTS)


@dataclass(slots=True)
class TrialRecord:
    """One job from its arrival to its end."""

    job_id: str
    sweep: str
    arrived_s: float
    phase: Phase = Phase.QUEUED
    #: When its first containers were granted.
    started_s: float | None = None
    first_iteration_s: float | None = None
    #: When the feedback iteration was complete.
    feedback_s: float | None = None
    feedback: float | None = None
    finished_s: float | None = None
    #: Why it ended.
    why: str = ""
    #: (time, workers, servers) whenever that changed.
    sizes: list[tuple[float, int, int]] = field(default_factory=list)
    #: Seconds for which changes of its size paused it, restarts included.
    resize_pause_s: float = 0.0
    restarts: int = 0
    #: (time, iterations complete, loss), thinned.
    curve: Thinned[tuple[float, int, float]] = field(default_factory=_curve)
    #: Completed changes of its size while it ran.
    resizes: int = 0
    #: (time, iteration, value of the metric) of each rung that it reached.
    rungs: list[tuple[float, int, float]] = field(default_factory=list)
    #: How often the stopping rule paused it, when it did so last (None once it has resumed), and the seconds until it
    #: resumed, of all pauses.
    pauses: int = 0
    rests_since_s: float | None = None
    rested_s: float = 0.0
    #: Iterations beyond the rungs at which the rule stopped it; ``iteration`` does not count them.
    overshoot: int = field(default=0, compare=False)
    #: Completed iterations, and when they were reported.  These and ``speeds`` are not compared: a restarted scheduler
    #: has missed reports that led to no decision.
    iteration: int = field(default=0, compare=False)
    last_iteration_s: float | None = field(default=None, compare=False)
    #: Size -> (number, total seconds) of the iterations measured at that size outside of changes.
    speeds: dict[Size, tuple[int, float]] = field(default_factory=dict, compare=False)
    #: (time, iterations complete, value) of the sweep's metric, thinned; empty if that is the training loss.
    values: Thinned[tuple[float, int, float]] = field(default_factory=_curve, compare=False)
    #: What its containers did.
    use: Use = field(default_factory=Use, compare=False)

    @property
    def early_feedback_s(self) -> float | None:
        """Seconds from its arrival to its early feedback.

        Source: EPS §2.3 (the queueing delay is a part of the early feedback latency).
        """
        return None if self.feedback_s is None else self.feedback_s - self.arrived_s

    def latest(self, metric: str, final: float | None) -> float | None:
        """Return its sweep's metric: the final value, else the latest, else that of its early feedback.

        Of a trial that the stopping rule stopped it is the value at its rung, though it may have trained on meanwhile.
        """
        curve = self.curve if metric == "loss" else self.values
        rung = self.rungs[-1][2] if self.rungs and self.rungs[-1][1] == self.iteration else None
        known = (final, rung, None if curve.last is None else curve.last[2], self.feedback)
        return next((value for value in known if value is not None), None)

    def resting_s(self, now_s: float) -> float:
        """Return the seconds for which the stopping rule had paused it, until ``now_s`` or its end."""
        if self.rests_since_s is None:
            return self.rested_s
        return self.rested_s + (now_s if self.finished_s is None else self.finished_s) - self.rests_since_s

    @property
    def queueing_s(self) -> float | None:
        """Seconds from its arrival to its start."""
        return None if self.started_s is None else self.started_s - self.arrived_s


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A plan and why it was made."""

    at_s: float
    sentence: str
    jobs: tuple[str, ...]
    actions: tuple[Action, ...] = ()


class Timeline:
    """The history of a scheduler, recorded event by event."""

    def __init__(self) -> None:
        self.trials: dict[str, TrialRecord] = {}
        self.decisions: list[DecisionRecord] = []
        #: (time, running jobs, queued jobs) at each change.
        self.numbers: list[tuple[float, int, int]] = []
        #: (time, share of the cluster's vcores that containers hold) at each change, thinned.
        self.cluster: Thinned[tuple[float, float]] = Thinned(CLUSTER_POINTS)
        self.end_s = 0.0
        #: From and to: times at which no scheduler ran.
        self.down: list[tuple[float, float]] = []
        #: Latencies of early feedback, also of forgotten jobs: how many by :data:`LATENCY_BOUNDS_S`, then those above
        #: all bounds; and their sum, seconds.
        self.latencies = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.latency_sum_s = 0.0
        self._busy_vcore_s = 0.0
        self._vcore_s = 0.0
        self._used = self._vcores = 0
        self._over = 0

    def take(self, now_s: float, event: e.Event, commands: Sequence[e.Command], scheduler: Scheduler) -> None:
        """Record an event and its commands; ``scheduler`` is in the state after the event."""
        self._pass_time(now_s, scheduler)
        match event:
            case e.JobSubmitted(request):
                self.trials[request.job_id] = TrialRecord(request.job_id, request.sweep, now_s)
            case e.JobRefused(job_id, sweep, _):
                self.trials[job_id] = TrialRecord(job_id, sweep, now_s)
            case e.SweepOpened() | e.SweepClosed() | e.NodeCame() | e.NodeLost() | e.NodeLeft():
                pass
            case _:
                self._take_of_job(now_s, event, scheduler)
        for command in commands:
            self._take_command(now_s, command, scheduler)
        if not isinstance(event, e.Iterated):
            self._count(now_s, scheduler)
            self._look_at_cluster(now_s, scheduler)

    def resume(self, now_s: float) -> None:
        """Note that a scheduler runs again: none did since the latest event."""
        if self.trials and now_s > self.end_s:
            self.down.append((self.end_s, now_s))
            for trial in self.trials.values():
                trial.use.skip(now_s - self.end_s)
            self.end_s = now_s

    def ran_s(self, at_s: float) -> float:
        """Return the seconds until ``at_s`` in which a scheduler ran."""
        return at_s - sum(min(at_s, until_s) - from_s for from_s, until_s in self.down if from_s < at_s)

    def paused(self, job_id: str, seconds: float) -> None:
        """Record that a change of its size paused a job."""
        self.trials[job_id].resize_pause_s += seconds
        self.trials[job_id].use.paused(seconds)

    def snapshot(self, sweep: str = "") -> Timeline:
        """Return a copy of the history so far, for use on another thread.

        Parameters
        ----------
        sweep : str
            Copy only the trials of this sweep; empty: all.
        """
        other = copy(self)
        other.trials = {
            job_id: replace(
                trial,
                sizes=list(trial.sizes),
                rungs=list(trial.rungs),
                curve=trial.curve.copy(),
                speeds=dict(trial.speeds),
                values=trial.values.copy(),
                use=replace(trial.use, steps=list(trial.use.steps)),
            )
            for job_id, trial in self.trials.items()
            if not sweep or trial.sweep == sweep
        }
        other.decisions, other.numbers = list(self.decisions), list(self.numbers)
        other.latencies = list(self.latencies)
        other.cluster, other.down = self.cluster.copy(), list(self.down)
        return other

    def forget(self, jobs: Collection[str], scheduler: Scheduler) -> None:
        """Drop ended jobs, and all but the latest numbers and decisions.  Call it before ``scheduler`` drops them."""
        for job_id in jobs:
            del self.trials[job_id]
            self._over -= job_id in scheduler.jobs
        del self.numbers[:-LATEST_NUMBERS]
        del self.decisions[:-LATEST_DECISIONS]

    def utilisation(self) -> float:
        """Return the share of the cluster's processors that containers held, averaged over time."""
        return self._busy_vcore_s / self._vcore_s if self._vcore_s else 0.0

    def core_s(self) -> tuple[float, float]:
        """Return the core-seconds that jobs held, and all of the cluster's."""
        return self._busy_vcore_s, self._vcore_s

    def _pass_time(self, now_s: float, scheduler: Scheduler) -> None:
        passed_s = now_s - self.end_s
        self._busy_vcore_s += passed_s * self._used
        self._vcore_s += passed_s * self._vcores
        self.end_s = now_s
        self._used = scheduler.ledger.used().vcores
        self._vcores = scheduler.ledger.total().vcores

    def _take_of_job(self, now_s: float, event: e.JobEvent, scheduler: Scheduler) -> None:
        trial, job = self.trials[event.job_id], scheduler.jobs[event.job_id]
        trial.phase = job.phase
        self._take_use(now_s, event, trial.use)
        if isinstance(event, e.JobEnded):
            if event.pause_s is not None:
                trial.resize_pause_s = event.pause_s + trial.use.stood_s
            if event.phase is Phase.KILLED and job.stopped_at is not None:
                trial.overshoot += max(0, trial.iteration - job.stopped_at)
                trial.iteration = min(trial.iteration, job.stopped_at)
        match event:
            case e.Iterated(job_id, iteration, durations_s, losses, values):
                if trial.first_iteration_s is None:
                    trial.first_iteration_s = now_s
                trial.iteration, trial.last_iteration_s = max(trial.iteration, iteration), now_s
                changes = job.growing or scheduler.ledger.is_releasing(job_id)
                # It ended before its start was reported.
                unseen = job.phase is Phase.STARTING
                if unseen:
                    self._note_size(now_s, trial, job)
                if durations_s and (job.phase.runs or unseen) and not changes:
                    number, seconds = trial.speeds.get(job.size, (0, 0.0))
                    trial.speeds[job.size] = number + len(durations_s), seconds + sum(durations_s)
                for ago_s, of, loss in losses:
                    # After a reconnect a job may report some losses twice.
                    if trial.curve.last is None or of > trial.curve.last[1]:
                        trial.curve.add((max(trial.arrived_s, now_s - ago_s), of, loss))
                for ago_s, of, value in values:
                    if trial.values.last is None or of > trial.values.last[1]:
                        trial.values.add((max(trial.arrived_s, now_s - ago_s), of, value))
            case e.FeedbackGiven(_, value):
                self._feedback_came(now_s, trial, value)
            case e.RungReached(_, iteration, value):
                # A job that was paused reports the rungs again that it passed before it stopped.
                if not trial.rungs or iteration > trial.rungs[-1][1]:
                    trial.rungs.append((now_s, iteration, value))
            case e.JobEnded(_, _, _, feedback) if feedback is not None and trial.feedback_s is None:
                self._feedback_came(now_s, trial, feedback)
                trial.sizes.append((now_s, *job.size))
            case e.GrowthDone() | e.ContainersGone() if job.phase.runs:
                trial.resizes += 1
                self._note_size(now_s, trial, job)
            case e.JobStarted() | e.GrowthDone() | e.GrowthFailed() | e.ContainersGone() | e.JobEnded():
                self._note_size(now_s, trial, job)

    def _feedback_came(self, now_s: float, trial: TrialRecord, value: float) -> None:
        if trial.feedback_s is None:
            trial.feedback_s, trial.feedback = now_s, value
            latency_s = self.ran_s(now_s) - self.ran_s(trial.arrived_s)
            self.latencies[bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1
            self.latency_sum_s += latency_s

    @staticmethod
    def _take_use(now_s: float, event: e.JobEvent, use: Use) -> None:
        match event:
            case e.Iterated(_, _, _, losses):
                use.iterated(now_s, max((ago_s for ago_s, _, _ in losses), default=0.0))
            case e.GrowthDone():
                use.joined(now_s)
            case e.GrowthFailed(_, containers):
                use.joined(now_s, containers)
            case e.ContainersGone(_, containers):
                use.gone(now_s, containers)
            case e.ShrinkFailed(_, containers):
                use.kept(now_s, containers)
            case e.JobEnded(_, _, _, _, _, pause_s):
                use.end(now_s, pause_s)

    @staticmethod
    def _note_size(now_s: float, trial: TrialRecord, job: Job) -> None:
        if not trial.sizes or trial.sizes[-1][1:] != job.size:
            trial.sizes.append((now_s, *job.size))

    def _take_command(self, now_s: float, command: e.Command, scheduler: Scheduler) -> None:
        match command:
            case e.StartJob(job_id, containers, resumes):
                trial = self.trials[job_id]
                trial.use.start(containers)
                trial.phase = Phase.STARTING
                if trial.rests_since_s is None:
                    trial.restarts += resumes
                else:
                    trial.rested_s += self.ran_s(now_s) - self.ran_s(trial.rests_since_s)
                    trial.rests_since_s = None
                if trial.started_s is None:
                    trial.started_s = now_s
            case e.GrowJob(job_id, containers):
                self.trials[job_id].use.grow(now_s, containers)
            case e.ShrinkJob(job_id, names):
                self.trials[job_id].use.shrink(now_s, names)
            case e.EndJob(job_id, restarts, _, after):
                # A pause at a rung is no change of its size.
                trial = self.trials[job_id]
                trial.phase = scheduler.jobs[job_id].phase
                trial.use.stop(now_s, restarts and not after)
                if after:
                    trial.pauses, trial.rests_since_s = trial.pauses + 1, now_s
            case e.JobOver(job_id, phase, why):
                trial = self.trials[job_id]
                trial.phase, trial.finished_s, trial.why = phase, now_s, why
                # The scheduler has no record of a rejected job.
                self._over += job_id in scheduler.jobs
            case e.Explain(sentence, jobs, actions):
                self.decisions.append(DecisionRecord(now_s, sentence, jobs, actions))
                # A plan may change a phase without an order: a promoted job waits in the queue.
                for job_id in jobs:
                    if (job := scheduler.jobs.get(job_id)) is not None:
                        self.trials[job_id].phase = job.phase

    def _count(self, now_s: float, scheduler: Scheduler) -> None:
        queued = len(scheduler.queue)
        numbers = (len(scheduler.jobs) - self._over - queued - scheduler.num_paused, queued)
        if not self.numbers or self.numbers[-1][1:] != numbers:
            self.numbers.append((now_s, *numbers))

    def _look_at_cluster(self, now_s: float, scheduler: Scheduler) -> None:
        ledger = scheduler.ledger
        share = ledger.used().vcores / (ledger.total().vcores or 1)
        if self.cluster.last is None or self.cluster.last[1] != share:
            self.cluster.add((now_s, share))
