"""H-scheduler's state machine: takes an event, calls the policy, and returns commands.

It uses no clock, no process and no socket.  The service drives it live, the simulator in virtual time.

Source: EPS §4, §6; design section 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hscheduler.core import events as e
from hscheduler.core import replacements, watch
from hscheduler.core.cohort import Cohort
from hscheduler.core.decisions import (
    Action,
    Decision,
    Grow,
    Kill,
    Pause,
    Place,
    Promote,
    Restart,
    Shrink,
    Start,
    View,
    needs_of,
)
from hscheduler.core.jobs import WATCHED_ITERATIONS, Job, JobRequest, Phase
from hscheduler.core.ledger import Hold
from hscheduler.core.resources import Container, Role
from hscheduler.core.rungs import Stopping
from hscheduler.core.scheduler_view import Pending, SchedulerView
from hscheduler.core.words import advice_to_fit, counted, request_text, words_of

#: More plans after one event are an error: the policy does not terminate.
MOST_PLANS = 100_000
#: Upper limit of the default threshold, which counts how many jobs fit.
MOST_JOBS = 100_000
#: Why a job cannot run any more after the cluster has lost nodes.
_LEFT = "more than what is left of the cluster holds"
#: The wait between attempts to replace lost containers doubles at most this often.
MOST_DOUBLINGS = 5


def _nothing(view: View) -> Decision:
    return Decision()


def _back_off(job: Job, failures: int) -> int:
    """Return the iteration before which a job is not asked again, after some failures and one more."""
    return job.iteration + (WATCHED_ITERATIONS << min(failures, MOST_DOUBLINGS))


class Scheduler(SchedulerView):
    """The state machine of H-scheduler.

    Parameters
    ----------
    nodes : mapping
        Name -> capacity.
    policy : Policy
    rules : mapping
        Name -> stopping rule.
    seed : int
        Seed of randomised policies.
    threshold : int, optional
        Most jobs in the training phase, for sweeps without their own; by default as many as fit the cluster at their
        requested size.
    stopping : Stopping
        Stopping rule and parameters, for sweeps without their own.  An empty rule is that of the policy.
    """

    # ---- events

    def step(self, event: e.Event) -> list[e.Command]:
        """Process an event; return the commands that follow.

        Raises
        ------
        ValueError
            The event names an unknown job, or a submitted job id is already in use.
        """
        self._commands = []
        self._is_told = False
        self._take(event)
        if isinstance(event, e.Iterated) and not self._is_told and not self._slowed:
            # Fast path for the most frequent event: nothing changed that a decision could depend on.
            return self._commands
        self._mend()
        self._grant()
        before = self._wanted
        for _ in range(MOST_PLANS):
            decision = self._judge()
            if not decision.actions and self._jobs_short():
                decision = self._return()
            decision = decision if decision.actions else self._ask_policy()
            for job_id, why in decision.waiting.items():
                self.jobs[job_id].why = why
            if not decision.actions:
                break
            self._carry_out(decision)
            self._grant()
        else:
            raise RuntimeError(f"the policy made {MOST_PLANS} plans and did not stop; the last: {decision.sentence}")
        self._commands += [e.TrialWanted(sweep) for sweep in self._wanted if sweep not in before]
        return self._commands

    def rest(self) -> None:
        """Stop planning: all jobs are about to end, and none will replace them."""
        self._policy = _nothing
        self._jobs_short().clear()

    def _ask_policy(self) -> Decision:
        """Return the policy's plan; none once the next trial of a sweep could start, until that trial arrives.

        The policy is asked about trials that are not drawn yet as if they were queued behind all jobs.  So it leaves
        them room that running jobs would take otherwise, and each policy says by its own rules when a trial can start.
        """
        self._wanted = {}
        decision = self._policy(self) if self._queue else Decision()
        if decision.actions or not (coming := self._coming()):
            return decision if decision.actions or self._queue else self._policy(self)
        self._queue += coming.values()
        plan = self._policy(self)
        del self._queue[-len(coming) :]
        started = {action.job_id for action in plan.actions if isinstance(action, Start)}
        for job_id, job in coming.items():
            # A trial that never fits is drawn as well, and fails with the reason.
            if job_id in started or not self._fits_at_all(job.request, job.request.workers, job.request.servers):
                self._wanted[job.request.sweep] = None
        waiting = {job_id: why for job_id, why in plan.waiting.items() if job_id not in coming}
        return Decision(waiting=waiting) if self._wanted else replace(plan, waiting=waiting)

    def _coming(self) -> dict[str, Job]:
        """Return the next trial of each sweep that draws trials when they can start, by a job id that is not in use.

        Sweeps with fewer trials in the cluster come first.
        """
        if self._policy is _nothing:
            return {}
        cohorts = sorted((each for each in self._cohorts.values() if each.may_draw), key=lambda each: each.num_active)
        found = [Job(each.coming, self._arrived + k) for k, each in enumerate(cohorts) if each.coming is not None]
        return {job.job_id: job for job in found}

    def _judge(self) -> Decision:
        """Return what the stopping rules of the sweeps decide that have changed."""
        while self._to_judge and self._policy is not _nothing:
            sweep = next(iter(self._to_judge))
            cohort = self._cohorts[sweep]
            decision = self._rules[cohort.stopping.rule].judge(cohort)
            if decision.actions:
                return decision
            cohort.judged()
            del self._to_judge[sweep]
        return Decision()

    def _cohort(self, sweep: str) -> Cohort:
        """Return the trials of a sweep whose rule is to be asked, since they are about to change."""
        self._to_judge[sweep] = None
        if sweep not in self._cohorts:
            self._cohorts[sweep] = Cohort(sweep, self._training)
            self._set_rule(self._cohorts[sweep], e.SweepOpened(sweep))
        return self._cohorts[sweep]

    def _set_rule(self, cohort: Cohort, opened: e.SweepOpened) -> None:
        asked, own = opened.stopping, self._stopping
        stopping = Stopping(
            asked.rule or own.rule or needs_of(self._policy).stop,
            asked.eta,
            asked.grace_iterations or opened.feedback_iteration or own.grace_iterations,
            asked.max_iterations,
        )
        cohort.stopping, cohort.rungs = stopping, self._rules[stopping.rule].rungs(stopping)
        cohort.feedback_iteration = opened.feedback_iteration or own.grace_iterations
        cohort.trials = opened.trials
        cohort.coming, cohort.parallelism = opened.coming, opened.parallelism
        cohort.stops_diverged = opened.stop_diverged

    def is_idle_news(self, news: e.Iterated) -> bool:
        """Return whether a progress report can be skipped: no decision depends on it before the next report."""
        job = self.jobs.get(news.job_id)
        # A report of a job that has not reported its start is part of its history.
        if job is None or not job.iteration or job.phase is Phase.STARTING:
            return False
        return not watch.may_decide(job, news.iteration) and not self._slowed

    def _take(self, event: e.Event) -> None:
        match event:
            case e.SweepOpened(sweep, direction, threshold):
                cohort = self._cohort(sweep)
                self._training.set_direction(sweep, direction)
                self._set_rule(cohort, event)
                if threshold is not None:
                    self._training.set_threshold(sweep, threshold)
                    self._default_thresholds.pop(sweep, None)
            case e.SweepClosed(sweep, why):
                self._close(sweep, why)
            case e.JobSubmitted(request):
                self._submit(request)
            case e.JobRefused(job_id, sweep, why):
                self._cohort(sweep).refuse(self._arrived)
                self._arrived += 1
                self._wanted.pop(sweep, None)
                self._commands.append(e.JobOver(job_id, Phase.FAILED, why))
            case e.NodeCame(node, capacity):
                self.ledger.set_node(node, capacity)
                self._look_at[node] = None
                self._cluster_changed()
            case e.NodeLost(node):
                self._lose_node(node)
            case e.NodeLeft(node, why):
                self._retire(node, why)
            case _:
                self._take_of_job(event, self._job(event.job_id))

    def _take_of_job(self, event: e.JobEvent, job: Job) -> None:
        if job.phase.ended:
            # The event crossed with the job's end.
            return
        self._touched[job.number] = job
        match event:
            case e.JobStarted():
                if job.phase is Phase.STARTING:
                    self._run(job)
            case e.Iterated(_, iteration, durations_s):
                self._is_told = watch.ends_wait(job, iteration)
                if job.failed_returns and job.iteration < job.no_return_before <= iteration:
                    # A growth that failed may be tried again; one that made the job slower did not fail.
                    job.no_growth_from = None
                job.iteration = max(job.iteration, iteration)
                self._watch(job, durations_s)
            case e.FeedbackGiven(_, value):
                if job.feedback is None:
                    job.feedback = value
                    if job.phase is Phase.EARLY_FEEDBACK:
                        self._enter(job, Phase.TRAINING)
            case e.RungReached(_, iteration, value):
                # A job that pauses reports later rungs again when it resumes.
                reports = job.phase.runs or job.phase is Phase.RESTARTING
                if reports and self.next_rung(job) == iteration:
                    self._cohort(job.request.sweep).reach(job, value)
            case e.LossDiverged():
                if self._cohorts[job.request.sweep].stops_diverged and (job.phase.runs or job.phase is Phase.STARTING):
                    self._end_diverged(job, event)
            case e.GrowthDone(_, members):
                job.growing, job.members, job.failed_returns = False, dict(members) or job.members, 0
                self._speeds.end_change(job)
            case e.GrowthFailed(_, containers, why, members):
                job.growing, job.watched, job.members = False, None, dict(members) or job.members
                self._note(job, why)
                # A shrink aborted the growth, which might have succeeded.
                was_aborted = self.ledger.is_releasing(job.job_id)
                self._lose(containers)
                if not was_aborted:
                    job.no_growth_from = job.size
                if not was_aborted or any(job.lacking):
                    job.no_return_before = _back_off(job, job.failed_returns)
                    job.failed_returns += 1
            case e.ContainersGone(_, containers, why):
                if why:
                    self._note_taken(job, containers, why)
                self._lose(containers)
            case e.ShrinkFailed(_, containers, why):
                self._note(job, why)
                for name in containers:
                    if self.ledger.hold(name) is Hold.RELEASING:
                        self.ledger.keep(name)
                        self._count(job, self.ledger.container(name).role, 1)
                # Other jobs may be able to shrink: back off before this one is asked again.
                job.no_shrink_from = job.size
                job.no_shrink_before = _back_off(job, job.failed_shrinks)
                job.failed_shrinks += 1
            case e.MembersFound(_, members):
                job.members = dict(members)
            case e.CancelAsked(_, why):
                self._end(job, why)
            case e.JobEnded(_, phase, why, feedback, loss):
                job.has_diverged |= event.has_diverged
                job.loss = None if job.has_diverged else loss
                # It has ended, so it does not enter the training phase and displaces no other job.
                job.feedback = feedback if job.feedback is None else job.feedback
                self._ended(job, phase, why)

    def _close(self, sweep: str, why: str) -> None:
        """End a sweep and its jobs."""
        cohort = self._cohort(sweep)
        cohort.closed_because = cohort.closed_because or why
        for job in list(self.jobs.values()):
            if job.request.sweep == sweep and not job.phase.ended:
                self._end(job, why)

    def _end_diverged(self, job: Job, event: e.LossDiverged) -> None:
        job.has_diverged = True
        why = f"{job.job_id} is killed: {event.why}"
        self._carry_out(Decision((Kill(job.job_id),), why))

    def _note_taken(self, job: Job, names: Sequence[str], why: str) -> None:
        """Record containers that the cluster took: the job is restored to its size, at most to its requested size.

        Containers that it was releasing anyway are not replaced.
        """
        mine = [self.ledger.container(name) for name in names if self.ledger.hold(name) is Hold.GRANTED]
        if not mine or not (job.phase.runs or job.phase is Phase.STARTING):
            return
        asked, before = (job.request.workers, job.request.servers), job.due or (0, 0)
        sizes = zip(before, job.size, asked, strict=True)
        workers, servers = (max(due, min(now, most)) for due, now, most in sizes)
        job.due, job.taken_because = (workers, servers), why
        self._jobs_short()[job.number] = job
        self._explain(f"{job.job_id} loses {words_of((c.role for c in mine), job.request.hosts)}: {why}", (job.job_id,))

    def _jobs_short(self) -> dict[int, Job]:
        """Return the jobs that may have containers to replace."""
        if self._short is None:
            self._short = {number: job for number, job in sorted(self._by_number.items()) if job.due is not None}
        return self._short

    def _return(self) -> Decision:
        """Return the plan that replaces containers that the cluster took."""
        due = []
        for number, job in sorted(self._jobs_short().items()):
            if job.phase.ended or not (job.growing or any(job.lacking)):
                job.due = None
                del self._jobs_short()[number]
            elif replacements.may_replace(job, bool(self._queue) and needs_of(self._policy).takes):
                due.append(job)
        return replacements.replace_lost(self, due) if due else Decision()

    @staticmethod
    def _note(job: Job, why: str) -> None:
        """Record a problem of a running job; one that is ending keeps the reason of its end."""
        if job.phase.runs:
            job.why = why

    def _submit(self, request: JobRequest) -> None:
        if request.job_id in self.jobs:
            raise ValueError(f"job id {request.job_id} is already in use")
        job = Job(request, self._arrived)
        self._arrived += 1
        self.jobs[request.job_id] = self._by_number[job.number] = job
        cohort = self._cohort(request.sweep)
        cohort.arrive(job)
        self._wanted.pop(request.sweep, None)
        if cohort.closed_because:
            # It was submitted at the same time.
            self._over(job, Phase.KILLED, cohort.closed_because)
            return
        if not self._fits_at_all(request, request.workers, request.servers):
            self._over(job, Phase.FAILED, self._why_too_large(request, "more than the whole cluster holds"))
            return
        if not self._training.has_threshold(request.sweep):
            self._training.set_threshold(request.sweep, self._threshold or self._fitting(request, MOST_JOBS))
            if self._threshold is None:
                self._default_thresholds[request.sweep] = request
        self._queue.append(job)

    def _why_too_large(self, request: JobRequest, reason: str) -> str:
        advice = advice_to_fit(request, lambda other: self._fits_at_all(other, other.workers, other.servers))
        return f"it asks for {request_text(request)}: {reason}{advice}"

    def _fits_at_all(self, request: JobRequest, workers: int, servers: int) -> bool:
        shape = workers, servers, request.worker, request.server, request.master
        if shape not in self._fits:
            self._fits[shape] = self._fitting(replace(request, workers=workers, servers=servers), 1) > 0
        return self._fits[shape]

    def _fitting(self, request: JobRequest, most: int) -> int:
        """Return how many such jobs fit an empty cluster, masters included; counts up to ``most``.

        Source: EPS §6 (the threshold of 11 follows from the size of the jobs and of the cluster).
        """
        return self.ledger.empty().take_often(request.needs(), most)

    def _cluster_changed(self) -> None:
        """Drop conclusions that depend on the cluster's size; end queued jobs that no longer fit."""
        self._fits.clear()
        for job in self._running.values():
            job.no_growth_from = job.no_shrink_from = None
            job.no_return_before = job.failed_returns = 0
            self._touched[job.number] = job
        for sweep, request in self._default_thresholds.items():
            self._to_judge[sweep] = None
            self._training.set_threshold(sweep, max(1, self._fitting(request, MOST_JOBS)))
        for job in list(self._queue):
            asked = job.request.workers, job.request.servers
            fitting = [size for size in (job.restart_size or asked, asked) if self._fits_at_all(job.request, *size)]
            if not fitting:
                # It would block the queue for ever.
                self._end(job, self._why_too_large(job.request, _LEFT), Phase.FAILED)
            elif job.restart_size is not None:
                # Its restart size may no longer fit, while its requested size does.
                job.restart_size = fitting[0]

    def _lose_node(self, node: str) -> None:
        there = self.ledger.containers_on(node)
        masters = [self.jobs[container.job_id] for container in there if container.role is Role.MASTER]
        self._lose([container.container_id for container in there])
        self.ledger.drop_node(node)
        for job in masters:
            if not job.phase.ended and job.phase is not Phase.QUEUED:
                self._end(job, f"the node of its master, {node}, is lost")
        self._cluster_changed()

    def _retire(self, node: str, why: str) -> None:
        """Retire a node; revoke pending promises on it, so that they are planned again."""
        if node not in self.ledger.in_use():
            return
        self._explain(f"{why}: the cluster has {counted(len(self.ledger.in_use()) - 1, 'node')} left", ())
        for job_id, pending in list(self._pending.items()):
            if any(container.node == node for container in pending.containers):
                self._revoke(self.jobs[job_id])
        self.ledger.retire(node)
        self._cluster_changed()

    def forget(self, job_id: str) -> None:
        """Drop the record of an ended job.  Its id must not be used again."""
        job = self.jobs.pop(job_id)
        assert job.phase.ended, f"{job_id} is {job.phase}"
        del self._by_number[job.number]
        self._touched.pop(job.number, None)
        self._jobs_short().pop(job.number, None)
        for counts in self._growable.values():
            counts.drop(job.number)

    # ---- phases

    def _enter(self, job: Job, phase: Phase) -> None:
        """Change the phase of a job and update the tables by phase."""
        if job.phase is Phase.TRAINING:
            self._training.leave(job)
            for counts in self._by_count.values():
                counts.drop(job.number)
        self._touched[job.number] = job
        if phase.runs:
            self._running[job.number] = job
        else:
            self._running.pop(job.number, None)
        job.phase = phase
        if phase is Phase.TRAINING:
            self._training.enter(job)
            self._to_judge[job.request.sweep] = None
            for role, counts in self._by_count.items():
                counts.put(job.number, job.count(role))

    def _run(self, job: Job) -> None:
        job.why = ""
        self._enter(job, Phase.EARLY_FEEDBACK if job.feedback is None else Phase.TRAINING)

    def _end(self, job: Job, why: str, phase: Phase = Phase.KILLED) -> None:
        """End a job without restart; its containers are released."""
        self._unqueue(job)
        if not self._give_all_back(job):
            self._over(job, phase, why)
        elif job.phase is not Phase.ENDING:
            job.why = why
            self._enter(job, Phase.ENDING)
            self._commands.append(e.EndJob(job.job_id, False, why))

    def _give_all_back(self, job: Job) -> bool:
        """Take back all containers of a job; return whether it still uses some, which it releases when it ends."""
        pending = self._pending.pop(job.job_id, None)
        unused = set() if pending is None else {container.container_id for container in pending.containers}
        for container in self.ledger.of_job(job.job_id):
            self._take_container(job, container)
            if container.container_id in unused:
                self.ledger.gone(container.container_id)
                self._look_at[container.node] = None
        job.growing, job.watched, job.due = False, None, None
        self._undone(job)
        return bool(self.ledger.of_job(job.job_id))

    def _unqueue(self, job: Job) -> None:
        if job.phase in (Phase.QUEUED, Phase.RESTARTING) and job in self._queue:
            self._queue.remove(job)

    def _ended(self, job: Job, phase: Phase, why: str) -> None:
        again = job.phase is Phase.RESTARTING and phase is Phase.KILLED
        if job.stopped_at is not None and phase is Phase.KILLED:
            # It resumes from there.
            job.iteration = min(job.iteration, job.stopped_at)
        pending = self._pending.get(job.job_id)
        new = {container.container_id for container in pending.containers} if again and pending else set()
        for container in self.ledger.of_job(job.job_id):
            if container.container_id not in new:
                self._lose([container.container_id])
        if again:
            # Its new containers may be promised already; then it is not queued.
            self._enter(job, Phase.QUEUED if job in self._queue else Phase.STARTING)
            return
        if job.phase is Phase.PAUSING and phase is Phase.KILLED:
            self._enter(job, Phase.PAUSED)
            return
        self._unqueue(job)
        self._pending.pop(job.job_id, None)
        # A diverged job may complete its iterations before the order to end arrives.
        phase = Phase.KILLED if job.has_diverged else phase
        # A job that finished may have an older reason from an order to end; it does not apply.
        self._over(job, phase, "" if phase is Phase.FINISHED else why or job.why)

    def _over(self, job: Job, phase: Phase, why: str) -> None:
        self._undone(job)
        self._speeds.end(job)
        self._enter(job, phase)
        final = job.feedback if job.loss is None else job.loss
        self._cohort(job.request.sweep).end(job, final if phase is Phase.FINISHED else None)
        job.why = why
        self._commands.append(e.JobOver(job.job_id, phase, why))

    # ---- containers

    def _count(self, job: Job, role: Role, more: int) -> None:
        if role is Role.MASTER:
            return
        self._totals[role] += more
        if role is Role.WORKER:
            job.workers += more
        else:
            job.servers += more
        # They were measured at another size.
        job.recent_s.clear()
        self._touched[job.number] = job
        if job.phase is Phase.TRAINING:
            self._by_count[role].put(job.number, job.count(role))

    def _promise(self, job: Job, places: Sequence[Place]) -> list[Container]:
        promised = []
        for place in places:
            self._next_container += 1
            name = f"c{self._next_container}"
            container = Container(name, job.job_id, place.role, job.request.resources(place.role), place.node)
            self.ledger.promise(container)
            self._count(job, place.role, 1)
            self._look_at[place.node] = None
            promised.append(container)
        return promised

    def _take_container(self, job: Job, container: Container) -> Hold:
        held = self.ledger.take_back(container.container_id)
        if held is not Hold.RELEASING:
            self._count(job, container.role, -1)
        return held

    def _lose(self, names: Sequence[str]) -> None:
        """Remove containers that are gone, released or lost."""
        for name in names:
            hold = self.ledger.hold(name)
            if hold is None:
                continue
            container = self.ledger.container(name)
            job = self.jobs[container.job_id]
            if hold is not Hold.RELEASING:
                self._count(job, container.role, -1)
                job.watched = None
            self.ledger.gone(name)
            self._look_at[container.node] = None
            pending = self._pending.get(container.job_id)
            if pending is not None and container in pending.containers:
                self._revoke(job)

    def _grant(self) -> None:
        """Grant promises that fit now; start or grow the jobs whose promises are complete."""
        nodes, self._look_at = self._look_at, {}
        for container in self.ledger.grant_what_fits(nodes):
            pending = self._pending[container.job_id]
            pending.missing.discard(container.container_id)
            if not pending.missing:
                self._complete[container.job_id] = None
        self._complete = {name: None for name in self._complete if name in self._pending}
        for job_id in sorted(self._complete, key=lambda name: self._pending[name].number):
            job, pending = self.jobs[job_id], self._pending[job_id]
            if pending.missing or job.phase is Phase.RESTARTING:
                # It has newer promises, or has not stopped for its restart yet.
                continue
            del self._pending[job_id], self._complete[job_id]
            if pending.starts:
                self._commands.append(e.StartJob(job_id, tuple(pending.containers), job.resumes))
            else:
                self._commands.append(e.GrowJob(job_id, tuple(pending.containers)))

    def _mend(self) -> None:
        """Move containers off retired nodes, and revoke promises that cannot be granted since a release failed."""
        self.ledger.settle()
        for node in self.ledger.overdrawn():
            for container in reversed(self.ledger.promised_on(node)):
                if node not in self.ledger.overdrawn():
                    break
                if self.ledger.hold(container.container_id) is Hold.PROMISED:
                    self._revoke(self.jobs[container.job_id])

    def _revoke(self, job: Job) -> None:
        """Take back the pending containers of a job; a job that was to start returns to the head of the queue."""
        self._touched[job.number] = job
        pending = self._pending.pop(job.job_id)
        for container in pending.containers:
            if self.ledger.hold(container.container_id) is not None:
                self._take_container(job, container)
                self.ledger.gone(container.container_id)
                self._look_at[container.node] = None
        if not pending.starts:
            job.growing, job.watched = False, None
            return
        if job.phase is not Phase.RESTARTING:
            self._enter(job, Phase.QUEUED)
        self._queue.insert(0, job)

    # ---- plans

    def _carry_out(self, decision: Decision) -> None:
        self._explain(decision.sentence, tuple(action.job_id for action in decision.actions), decision.actions)
        for action in decision.actions:
            self._do(action, self._job(action.job_id), decision.sentence)

    def _explain(self, sentence: str, jobs: tuple[str, ...], actions: tuple[Action, ...] = ()) -> None:
        self.number_of_decision += 1
        self._commands.append(e.Explain(sentence, jobs, actions))

    def _do(self, action: Action, job: Job, sentence: str) -> None:
        self._touched[job.number] = job
        match action:
            case Start(_, places):
                self._leave_the_queue(job)
                if job.phase is Phase.QUEUED:
                    self._enter(job, Phase.STARTING)
                self._wait_for(job, self._promise(job, places), starts=True)
                job.why = sentence
            case Grow(_, places, replaces):
                job.watched = None if replaces else watch.baseline(job)
                job.growing = True
                self._speeds.begin_change(job)
                self._wait_for(job, self._promise(job, places), starts=False)
            case Shrink(_, containers, undoes):
                self._shrink(job, containers)
                if undoes:
                    job.no_growth_from = job.size
                    self._undone(job)
            case Kill(_, why):
                job.stopped_at = self._rung_of(job)
                self._cohort(job.request.sweep).end(job, None)
                self._end(job, why or sentence)
            case Pause():
                self._pause(job, sentence)
            case Promote():
                self._promote(job, sentence)
            case Restart(_, workers, servers, undoes):
                before = watch.baseline(job) if workers + servers > job.workers + job.servers else None
                self._give_all_back(job)
                self._enter(job, Phase.RESTARTING)
                job.restart_size, job.watched, job.resumes = (workers, servers), before, True
                if undoes:
                    job.no_growth_from = workers, servers
                self._queue.insert(0, job)
                self._commands.append(e.EndJob(job.job_id, True, sentence))

    def _rung_of(self, job: Job) -> int | None:
        """Return the rung at which a job is to be judged, in iterations; None if it may train on."""
        return self.rungs(job).at(len(job.rungs) - 1) if len(job.rungs) > job.rungs_passed else None

    def _pause(self, job: Job, sentence: str) -> None:
        self._cohort(job.request.sweep).pause(job)
        job.stopped_at = self._rung_of(job)
        assert job.stopped_at is not None, f"{job.job_id} is at no rung"
        # It may be restarting, and queued.
        self._unqueue(job)
        self._give_all_back(job)
        self._enter(job, Phase.PAUSING)
        job.resumes, job.why = True, sentence
        self._commands.append(e.EndJob(job.job_id, True, sentence, job.stopped_at))

    def _promote(self, job: Job, sentence: str) -> None:
        self._cohort(job.request.sweep).promote(job)
        size = job.restart_size or (job.request.workers, job.request.servers)
        if not self._fits_at_all(job.request, *size):
            self._end(job, self._why_too_large(job.request, _LEFT), Phase.FAILED)
            return
        self._enter(job, Phase.QUEUED if job.phase is Phase.PAUSED else Phase.RESTARTING)
        job.stopped_at, job.why = None, sentence
        # Behind trials of its rung and higher ones, before all others.
        behind = [at for at, other in enumerate(self._queue) if len(other.rungs) >= len(job.rungs)]
        self._queue.insert(behind[-1] + 1 if behind else 0, job)

    def _leave_the_queue(self, job: Job) -> None:
        if self._queue[0] is not job:
            self._queue[0].passed += 1
        self._queue.remove(job)

    def _wait_for(self, job: Job, containers: list[Container], *, starts: bool) -> None:
        missing = {container.container_id for container in containers}
        self._pending[job.job_id] = Pending(containers, missing, starts, self._next_container)
        self._complete.pop(job.job_id, None)

    def _shrink(self, job: Job, names: Sequence[str]) -> None:
        pending = self._pending.get(job.job_id)
        if pending is not None:
            # Cancel a growth that has not begun.
            self._revoke(job)
        told = []
        for name in names:
            if self.ledger.hold(name) is not None:
                self._take_container(job, self.ledger.container(name))
                told.append(name)
        job.watched, job.no_growth_from, job.due = None, None, None
        if told:
            self._commands.append(e.ShrinkJob(job.job_id, tuple(told)))

    def _undone(self, job: Job) -> None:
        job.slowed = None
        self._slowed.pop(job.number, None)

    def _watch(self, job: Job, durations_s: Sequence[float]) -> None:
        # During a change the durations belong to a temporary size.  Late reports may come before a restart.
        if job.growing or self.ledger.is_releasing(job.job_id) or not job.phase.runs:
            return
        self._speeds.note(job, durations_s)
        self._is_told |= watch.take(job, durations_s)
        if job.slowed is not None:
            self._slowed[job.number] = job

    def _job(self, job_id: str) -> Job:
        job = self.jobs.get(job_id)
        if job is None:
            raise ValueError(f"unknown job {job_id}")
        return job
