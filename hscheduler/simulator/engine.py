"""A discrete-event simulator that drives H-scheduler: it carries out the scheduler's commands on modelled jobs.

Between two events of a job its speed is constant, so its next milestone can be computed and nothing is sampled.  A
hundred thousand jobs take a few hundred thousand events.

The simulated scheduler, policies and stopping rules are the ones that run live.  A job stops exactly at the rung at
which a rule pauses it: the iterations that a real one trains past its rung meanwhile are not modelled.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hscheduler.core import events as e
from hscheduler.core.decisions import Policy, needs_of
from hscheduler.core.jobs import WATCHED_ITERATIONS, Phase, Size
from hscheduler.core.resources import Container, Resources, Role
from hscheduler.core.rungs import Stopping
from hscheduler.core.state import Scheduler
from hscheduler.core.timeline import Timeline
from hscheduler.simulator.models import Costs
from hscheduler.simulator.workload import SimulatedJob
from hscheduler.stopping import RULES

#: Tolerance for sums of fractions of an iteration.
_ROUNDING = 1e-6


@dataclass(slots=True)
class _Running:
    """A job that trains or is about to."""

    job: SimulatedJob
    iteration: float = 0.0
    #: Virtual time at which ``iteration`` was computed.
    as_of_s: float = 0.0
    #: Seconds of an iteration; 0.0 while the job does not train.
    iteration_s: float = 0.0
    #: Virtual time at which training continues after a pause.
    resumes_s: float = 0.0
    #: Containers of each growth in progress, the oldest first.
    coming: deque[tuple[Container, ...]] = field(default_factory=deque)
    #: Number of its starts; growths of an earlier one are void.
    starts: int = 0
    #: Containers whose members have joined; some may have been removed since.
    joined: set[str] = field(default_factory=set)
    #: Incremented by every change; events of earlier versions are ignored.
    version: int = 0
    #: Iterations whose durations the scheduler knows.  The job's current size dates from this iteration.
    told: float = 0.0
    #: The iteration at which the current size can be judged; None once it is.
    judged_at: float | None = None
    #: Whether it was ordered to end and has not started again, and whether the latest end was a pause.
    is_ended: bool = False
    is_paused: bool = False
    #: Whether all iterations are complete.  Commands no longer matter; the containers are about to be released.
    finishing: bool = False

    def advance(self, now_s: float) -> None:
        """Advance ``iteration`` to the time ``now_s``."""
        begin_s = max(self.as_of_s, self.resumes_s)
        if self.iteration_s and now_s > begin_s:
            self.iteration = min(self.job.iterations, self.iteration + (now_s - begin_s) / self.iteration_s)
        self.as_of_s = now_s


class Simulation:
    """One workload on one cluster under one policy.

    Parameters
    ----------
    nodes : mapping
        Name -> capacity.
    policy : Policy
    jobs : iterable of SimulatedJob
        In the order of arrival.
    costs : Costs
    feedback_iteration : int
        The iteration after which a job reports early feedback (EPS §6: the 100th).
    sweeps : iterable of SweepOpened
        Sweeps whose ranking or threshold is not the default.  If one has ``coming``, jobs arrive when they can start,
        and each is taken from ``jobs`` at that moment.
    seed : int
        Seed of randomized policies.
    parallelism : int
        Most jobs that are queued or running at once; the next one arrives when a job ends.  0 sets no limit.
    threshold : int, optional
        Threshold of sweeps that are not in ``sweeps``.
    stop : str
        Stopping rule of sweeps that are not in ``sweeps``; empty: that of the policy.
    """

    def __init__(
        self,
        nodes: Mapping[str, Resources],
        policy: Policy,
        jobs: Iterable[SimulatedJob],
        costs: Costs,
        feedback_iteration: int = 100,
        sweeps: Iterable[e.SweepOpened] = (),
        seed: int = 0,
        parallelism: int = 0,
        threshold: int | None = None,
        stop: str = "",
    ) -> None:
        stopping = Stopping(stop, grace_iterations=feedback_iteration)
        self.scheduler = Scheduler(nodes, policy, RULES, seed, threshold, stopping)
        self.record = Timeline()
        self.losses: dict[str, float] = {}
        #: Events processed so far, milestones of jobs included.
        self.num_events = 0
        self._costs = costs
        self._asks_how_far = needs_of(policy).progress
        self._feedback_iteration = feedback_iteration
        self._jobs = iter(jobs)
        self._parallelism = parallelism
        #: Whether the next arrival waits for a job to end.
        self._full = False
        self._running: dict[str, _Running] = {}
        #: Jobs that the stopping rule paused: they do not count as running or queued.
        self._paused: set[str] = set()
        #: (time, order, event or job id, version of the job; or with a growth the number of the job's starts).
        self._heap: list[tuple[float, int, e.Event | str, int]] = []
        self._order = 0
        self.now_s = 0.0
        opened = list(sweeps)
        #: Whether jobs arrive when they can start, and whether one is about to.
        self._draws, self._arrives = any(sweep.coming is not None for sweep in opened), False
        for sweep in opened:
            self._step(sweep)
        if not self._draws:
            self._next_arrival()

    def run(self) -> Timeline:
        """Run the simulation to its end; return the timeline.

        Raises
        ------
        RuntimeError
            Some jobs never end: no event is left for them.
        """
        while self._heap:
            self.now_s, _, what, version = heapq.heappop(self._heap)
            self.num_events += 1
            if isinstance(what, str):
                self._milestone(what, version)
            else:
                if isinstance(what, e.JobSubmitted):
                    self._arrives = False
                    if not self._draws:
                        self._next_arrival()
                self._happen(what, version)
        left = [name for name, job in self.scheduler.jobs.items() if not job.phase.ended]
        if left:
            raise RuntimeError(f"{len(left)} jobs wait for ever, as {left[0]}: {self.scheduler.jobs[left[0]].why}")
        return self.record

    def _at(self, time_s: float, what: e.Event | str, version: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._heap, (time_s, self._order, what, version))

    def _next_arrival(self) -> None:
        self._full = bool(self._parallelism) and len(self._running) - len(self._paused) >= self._parallelism
        job = None if self._full else next(self._jobs, None)
        if job is not None:
            self._arrives = True
            self._running[job.request.job_id] = _Running(job)
            restart_s = self._costs.end_s + self._costs.restart_s + self._costs.start_s
            request = dataclasses.replace(job.request, iterations=job.iterations, restart_s=restart_s)
            self._at(max(job.arrives_s, self.now_s), e.JobSubmitted(request))

    # ---- events

    def _happen(self, event: e.Event, starts: int) -> None:
        if isinstance(event, e.JobStarted | e.GrowthDone | e.ContainersGone):
            running = self._running.get(event.job_id)
            if running is None or (isinstance(event, e.GrowthDone) and starts != running.starts):
                return
            self._step(event)
            self._change_speed(event, running)
        else:
            self._step(event)

    def _tell_how_far(self) -> None:
        """Report each job's completed iterations to the scheduler, as real jobs do continuously."""
        for job_id, running in list(self._running.items()):
            begin_s = max(running.as_of_s, running.resumes_s)
            if running.iteration_s and not running.finishing and self.now_s > begin_s:
                iteration = int(running.iteration + (self.now_s - begin_s) / running.iteration_s)
                if 1 <= iteration < running.job.iterations:
                    self._step(e.Iterated(job_id, iteration))

    def _step(self, event: e.Event) -> None:
        if self._asks_how_far and not isinstance(event, e.Iterated):
            self._tell_how_far()
        commands = self.scheduler.step(event)
        self.record.take(self.now_s, event, commands, self.scheduler)
        for command in commands:
            self._obey(command)

    def _change_speed(self, event: e.Event, running: _Running) -> None:
        """Continue a job at its current size."""
        job_id = running.job.request.job_id
        job = self.scheduler.jobs[job_id]
        if not job.phase.runs:
            return
        if running.finishing:
            return
        running.advance(self.now_s)
        if not isinstance(event, e.ContainersGone):
            running.joined.update(container.container_id for container in running.coming.popleft())
        if running.iteration_s:
            running.resumes_s = self.now_s + self._costs.pause_s
            self.record.paused(job_id, self._costs.pause_s)
        running.told = running.iteration
        running.judged_at = running.told + WATCHED_ITERATIONS
        running.iteration_s = running.job.speed.iteration_s(*self._size(running))
        self._plan_milestone(running)

    def _size(self, running: _Running) -> Size:
        """Return how many workers and servers take part, without those that are joining or have left."""
        there = self.scheduler.ledger.of_job(running.job.request.job_id)
        roles = [container.role for container in there if container.container_id in running.joined]
        return roles.count(Role.WORKER), roles.count(Role.SERVER)

    def _plan_milestone(self, running: _Running) -> None:
        """Schedule the job's next milestone."""
        running.version += 1
        job_id = running.job.request.job_id
        targets = [float(running.job.iterations)]
        if self.scheduler.jobs[job_id].feedback is None:
            targets.append(float(min(self._feedback_iteration, running.job.iterations)))
        if running.iteration < 1 - _ROUNDING:
            targets.append(1.0)
        if (rung := self.scheduler.next_rung(self.scheduler.jobs[job_id])) is not None:
            targets.append(float(rung))
        if running.judged_at is not None:
            targets.append(min(running.judged_at, running.job.iterations))
        left = max(0.0, min(targets) - running.iteration)
        begin_s = max(self.now_s, running.resumes_s)
        self._at(begin_s + left * running.iteration_s, job_id, running.version)

    def _milestone(self, job_id: str, version: int) -> None:
        running = self._running.get(job_id)
        if running is None or running.version != version or not running.iteration_s:
            return
        if running.finishing:
            self._finish(running)
            return
        running.advance(self.now_s)
        # A sum of fractions may be off by rounding.
        iteration = int(running.iteration + _ROUNDING)
        whole = int(running.iteration - running.told + _ROUNDING)
        durations = (running.iteration_s,) * min(WATCHED_ITERATIONS, whole)
        running.told += whole
        if running.judged_at is not None and running.iteration + _ROUNDING >= running.judged_at:
            running.judged_at = None
        running.finishing = iteration >= running.job.iterations
        self._step(e.Iterated(job_id, iteration, durations))
        job = self.scheduler.jobs[job_id]
        if iteration >= self._feedback_iteration:
            # Also with its last iteration: a real job reports feedback before it ends.
            self._give_feedback(running)
        if self.scheduler.next_rung(job) == iteration:
            value = running.job.value(iteration, self._feedback_iteration)
            self._step(e.RungReached(job_id, iteration, value))
        if running.finishing:
            self._complete(running)
        elif job.phase.runs and running.version == version:
            self._plan_milestone(running)

    def _give_feedback(self, running: _Running) -> None:
        job = self.scheduler.jobs[running.job.request.job_id]
        if job.feedback is None:
            self._step(e.FeedbackGiven(job.job_id, running.job.feedback))

    def _complete(self, running: _Running) -> None:
        if self._costs.finish_s:
            running.version += 1
            self._at(self.now_s + self._costs.finish_s, running.job.request.job_id, running.version)
        else:
            self._finish(running)

    def _finish(self, running: _Running) -> None:
        job_id = running.job.request.job_id
        del self._running[job_id]
        self.losses[job_id] = running.job.loss
        feedback = running.job.feedback if self.scheduler.jobs[job_id].feedback is None else None
        self._step(e.JobEnded(job_id, Phase.FINISHED, "", feedback, running.job.loss))

    # ---- commands

    def _obey(self, command: e.Command) -> None:
        costs = self._costs
        match command:
            case e.StartJob(job_id, containers, resumes):
                running = self._running[job_id]
                # Growths of the run before the restart are void.
                running.coming, running.starts = deque([containers]), running.starts + 1
                self._paused.discard(job_id)
                running.is_ended = False
                self._at(self.now_s + costs.start_s, e.JobStarted(job_id))
                if resumes and not running.is_paused:
                    self.record.paused(job_id, self.now_s + costs.start_s - running.as_of_s)
            case e.GrowJob(job_id, containers):
                running = self._running[job_id]
                running.coming.append(containers)
                self._at(self.now_s + costs.add_s, e.GrowthDone(job_id), running.starts)
            case e.ShrinkJob(job_id, containers):
                self._at(self.now_s + costs.remove_s, e.ContainersGone(job_id, containers))
            case e.EndJob(job_id, restarts, _, after):
                running = self._running[job_id]
                if running.finishing:
                    # The command comes too late: the job has completed its iterations.
                    return
                running.advance(self.now_s)
                # It resumes from a checkpoint, which is taken between iterations.
                running.iteration, running.iteration_s = float(int(running.iteration)), 0.0
                running.version += 1
                running.judged_at = None
                running.is_paused = after > 0
                if not running.is_ended:
                    takes_s = costs.end_s + (costs.restart_s if restarts and not after else 0.0)
                    self._at(self.now_s + takes_s, e.JobEnded(job_id, Phase.KILLED))
                running.is_ended = True
                if after:
                    running.iteration = min(running.iteration, float(after))
                    self._paused.add(job_id)
                    self._arrive_if_full()
            case e.JobOver(job_id, _, _):
                self._running.pop(job_id, None)
                self._paused.discard(job_id)
                self._arrive_if_full()
            case e.TrialWanted() if not self._arrives:
                self._next_arrival()

    def _arrive_if_full(self) -> None:
        """Let the next job arrive if it waited for one to end or to be paused."""
        if self._full:
            self._next_arrival()
