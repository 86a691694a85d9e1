"""H-scheduler's state: the queue, the jobs, their containers; asks the policy after every event and says what to do.

Events in, commands out; knows no clock, no process and no socket.  The service drives it live, the simulator in
virtual time, tests by hand.

Source: EPS §4, §6; design section 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hscheduler.core import events as e
from hscheduler.core.counts import Counts
from hscheduler.core.decisions import Action, Decision, Grow, Kill, Place, Policy, Restart, Shrink, Start
from hscheduler.core.jobs import SLOWER, WATCHED_ITERATIONS, Direction, Job, JobRequest, Phase
from hscheduler.core.ledger import Hold, Ledger
from hscheduler.core.resources import Container, Resources, Role
from hscheduler.core.room import Room
from hscheduler.core.training import Training

#: Plans of one event, before it is an error: a policy that never ends.
MOST_PLANS = 100_000
#: The highest threshold that is found by counting how many jobs fit.
MOST_JOBS = 100_000


@dataclass(slots=True)
class _Pending:
    """Containers that were promised together and are used together."""

    containers: list[Container]
    #: Of those, promised still.
    missing: set[str]
    starts: bool
    #: That of the last container.
    number: int


class Scheduler:
    """The state of H-scheduler; also the view that policies have of it.

    Parameters
    ----------
    nodes : mapping
        Name -> capacity.
    policy : Policy
    seed : int
        Of policies that draw lots.
    threshold : int, optional
        Jobs in the training phase, of sweeps that do not say; by default as many as fit the cluster as they ask.
    """

    def __init__(
        self, nodes: Mapping[str, Resources], policy: Policy, seed: int = 0, threshold: int | None = None
    ) -> None:
        self.ledger = Ledger(nodes)
        self.jobs: dict[str, Job] = {}
        self.number_of_decision = 0
        self.seed = seed
        self._policy = policy
        self._threshold = threshold
        self._by_number: dict[int, Job] = {}
        self._queue: list[Job] = []
        self._running: dict[int, Job] = {}
        self._training = Training()
        #: Those in the training phase, and of them those that may have one more.
        self._by_count = {Role.WORKER: Counts(), Role.SERVER: Counts()}
        self._growable = {Role.WORKER: Counts(), Role.SERVER: Counts()}
        #: Jobs of which something has changed since it was looked whether they may grow.
        self._touched: dict[int, Job] = {}
        self._totals = {Role.WORKER: 0, Role.SERVER: 0}
        self._slowed: dict[int, Job] = {}
        #: Whether it is known since this event how a growth has worked.
        self._watch_ended = False
        self._pending: dict[str, _Pending] = {}
        #: Jobs of which all that is pending was granted.
        self._complete: dict[str, None] = {}
        #: Sweeps whose threshold is what fits the cluster, with a request of theirs.
        self._default_thresholds: dict[str, JobRequest] = {}
        #: What a job asks for -> whether it fits an empty cluster.
        self._fits: dict[tuple[object, ...], bool] = {}
        self._next_container = 0
        self._commands: list[e.Command] = []
        #: Nodes on which something has become free, or was promised, since promises were looked at.
        self._look_at: dict[str, None] = {}

    # ---- the view of policies

    @property
    def queue(self) -> Sequence[Job]:
        """Jobs that wait, the head first."""
        return self._queue

    @property
    def releasing(self) -> int:
        """How many containers are on their way out."""
        return self.ledger.num_releasing

    def room(self) -> Room:
        """Return a trial of placements."""
        return self.ledger.room()

    def containers(self, job: Job, role: Role) -> list[Container]:
        """Return a job's containers that it is not losing, the newest first."""
        return self.ledger.of_job(job.job_id, role, Hold.PROMISED, Hold.GRANTED)[::-1]

    def removable(self, role: Role) -> Iterator[Job]:
        """Yield running jobs with early feedback and more than one of a role, those with most of it first."""
        for number in self._by_count[role].descending():
            job = self._by_number[number]
            if job.count(role) < 2:
                return
            if job.no_shrink_from != job.size:
                yield job

    def growable(self, role: Role) -> Iterator[Job]:
        """Yield jobs in the training phase that may have one more of a role, those with least of it first."""
        for job in self._touched.values():
            for each, counts in self._growable.items():
                if job.may_have_one_more(each):
                    counts.put(job.number, job.count(each))
                else:
                    counts.drop(job.number)
        self._touched.clear()
        for number in self._growable[role].ascending():
            yield self._by_number[number]

    def running(self) -> Sequence[Job]:
        """Return the jobs that run, by arrival."""
        return [self._running[number] for number in sorted(self._running)]

    def in_training(self, sweep: str) -> Sequence[Job]:
        """Return a sweep's jobs in the training phase, by arrival."""
        return self._training.of(sweep)

    def worst_in_training(self, sweep: str) -> Job:
        """Return the job with the worst early feedback of a sweep that has jobs in the training phase."""
        return self._training.worst(sweep)

    def finished(self, sweep: str) -> Sequence[Job]:
        """Return a sweep's jobs that have finished and gave early feedback, in the order of their ends."""
        return self._training.finished(sweep)

    def sweeps(self) -> Sequence[str]:
        """Return the sweeps that have jobs in the training phase."""
        return self._training.sweeps()

    def crowded(self) -> Sequence[tuple[str, int]]:
        """Return the sweeps with more jobs in the training phase than their threshold, and how many they have."""
        return self._training.crowded()

    def threshold(self, sweep: str) -> int:
        """Return how many jobs of a sweep may be in the training phase."""
        return self._training.threshold(sweep)

    def direction(self, sweep: str) -> Direction:
        """Return which early feedback of a sweep is better."""
        return self._training.direction(sweep)

    def slowed(self) -> Sequence[Job]:
        """Return the jobs that a growth made slower."""
        return list(self._slowed.values())

    def totals(self) -> tuple[int, int]:
        """Return the number of workers and of servers in the cluster."""
        return self._totals[Role.WORKER], self._totals[Role.SERVER]

    # ---- events

    def step(self, event: e.Event) -> list[e.Command]:
        """Take an event; return what is to be done.

        Raises
        ------
        ValueError
            The event names a job or a container that was never there, or a job id is used again.
        """
        self._commands = []
        self._watch_ended = False
        self._take(event)
        if isinstance(event, e.Iterated) and not self._watch_ended and not self._slowed:
            # The most frequent one: nothing came or went, and nobody has become able to grow.
            return self._commands
        self._mend()
        self._grant()
        for _ in range(MOST_PLANS):
            decision = self._policy(self)
            for job_id, why in decision.waiting.items():
                self.jobs[job_id].why = why
            if not decision.actions:
                break
            self._carry_out(decision)
            self._grant()
        else:
            raise RuntimeError(f"the policy made {MOST_PLANS} plans without an end; the last: {decision.sentence}")
        return self._commands

    def is_idle_news(self, news: e.Iterated) -> bool:
        """Return whether nothing is, or will be, decided by news of a job but what later news of it tell too."""
        job = self.jobs.get(news.job_id)
        return job is not None and job.iteration > 0 and job.watched is None and not self._slowed

    def _take(self, event: e.Event) -> None:
        match event:
            case e.SweepOpened(sweep, direction, threshold):
                self._training.set_direction(sweep, direction)
                if threshold is not None:
                    self._training.set_threshold(sweep, threshold)
                    self._default_thresholds.pop(sweep, None)
            case e.SweepClosed():
                # Who submits its jobs has to know.
                pass
            case e.JobSubmitted(request):
                self._submit(request)
            case e.JobRefused(job_id, _, why):
                self._commands.append(e.JobOver(job_id, Phase.FAILED, why))
            case e.NodeCame(node, capacity):
                self.ledger.set_node(node, capacity)
                self._look_at[node] = None
                self._cluster_changed()
            case e.NodeLost(node):
                self._lose_node(node)
            case _:
                self._take_of_job(event, self._job(event.job_id))

    def _take_of_job(self, event: e.JobEvent, job: Job) -> None:
        if job.phase.ended:
            # It crossed with the news of the end.
            return
        self._touched[job.number] = job
        match event:
            case e.JobStarted():
                if job.phase is Phase.STARTING:
                    self._run(job)
            case e.Iterated(_, iteration, durations_s):
                job.iteration = max(job.iteration, iteration)
                self._watch(job, durations_s)
            case e.FeedbackGiven(_, value):
                if job.feedback is None:
                    job.feedback = value
                    if job.phase is Phase.EARLY_FEEDBACK:
                        self._enter(job, Phase.TRAINING)
            case e.GrowthDone():
                job.growing = False
            case e.GrowthFailed(_, containers, why):
                job.growing, job.watched = False, None
                self._note(job, why)
                self._lose(containers)
                # Not again and again: until something about the job or the cluster has changed.
                job.no_growth_from = job.size
            case e.ContainersGone(_, containers):
                self._lose(containers)
            case e.ShrinkFailed(_, containers, why):
                self._note(job, why)
                for name in containers:
                    if self.ledger.hold(name) is Hold.RELEASING:
                        self.ledger.keep(name)
                        self._count(job, self.ledger.container(name).role, 1)
                # Others may be able to: it is not asked again and again.
                job.no_shrink_from = job.size
            case e.MembersFound(_, members):
                job.members = dict(members)
            case e.CancelAsked(_, why):
                self._end(job, why)
            case e.JobEnded(_, phase, why, feedback, loss):
                job.loss = loss
                # Nobody has to go for one that has ended: it does not enter the training phase.
                job.feedback = feedback if job.feedback is None else job.feedback
                self._ended(job, phase, why)

    @staticmethod
    def _note(job: Job, why: str) -> None:
        """Note what went wrong with a job; of one that ends, why it ends is what counts."""
        if job.phase.runs:
            job.why = why

    def _submit(self, request: JobRequest) -> None:
        if request.job_id in self.jobs:
            raise ValueError(f"there has been a job {request.job_id}")
        job = Job(request, len(self._by_number))
        self.jobs[request.job_id] = self._by_number[job.number] = job
        if not self._fits_at_all(request):
            size = f"{request.workers} workers of {request.worker}, {request.servers} servers of {request.server}"
            why = f"it asks for {size} and a master of {request.master}: more than the whole cluster holds"
            self._over(job, Phase.FAILED, why)
            return
        if not self._training.has_threshold(request.sweep):
            self._training.set_threshold(request.sweep, self._threshold or self._fitting(request, MOST_JOBS))
            if self._threshold is None:
                self._default_thresholds[request.sweep] = request
        self._queue.append(job)

    def _fits_at_all(self, request: JobRequest) -> bool:
        shape = request.workers, request.servers, request.worker, request.server, request.master
        if shape not in self._fits:
            self._fits[shape] = self._fitting(request, 1) > 0
        return self._fits[shape]

    def _fitting(self, request: JobRequest, most: int) -> int:
        """Return how many such jobs fit an empty cluster, with their masters; at most so many are looked for.

        Source: EPS §6 (the threshold is 11 because of what jobs ask for and what the cluster has).
        """
        return self.ledger.empty().take_often(request.needs(), most)

    def _cluster_changed(self) -> None:
        """Forget what was found out about the cluster as it was."""
        self._fits.clear()
        for job in self._running.values():
            job.no_growth_from = job.no_shrink_from = None
            self._touched[job.number] = job
        for sweep, request in self._default_thresholds.items():
            self._training.set_threshold(sweep, max(1, self._fitting(request, MOST_JOBS)))
        for job in [job for job in self._queue if not self._fits_at_all(job.request)]:
            # It would let everybody behind it wait for ever.
            why = "it asks for more than what is left of the cluster holds"
            if job.phase is Phase.QUEUED and job.restart_size is None:
                self._unqueue(job)
                self._over(job, Phase.FAILED, why)

    def _lose_node(self, node: str) -> None:
        there = self.ledger.containers_on(node)
        masters = [self.jobs[container.job_id] for container in there if container.role is Role.MASTER]
        self._lose([container.container_id for container in there])
        self.ledger.drop_node(node)
        for job in masters:
            if not job.phase.ended and job.phase is not Phase.QUEUED:
                self._end(job, f"the node of its master, {node}, is lost")
        self._cluster_changed()

    # ---- phases

    def _enter(self, job: Job, phase: Phase) -> None:
        """Let a job change its phase; keep what is found by phase true."""
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
            for role, counts in self._by_count.items():
                counts.put(job.number, job.count(role))

    def _run(self, job: Job) -> None:
        job.why = ""
        self._enter(job, Phase.EARLY_FEEDBACK if job.feedback is None else Phase.TRAINING)

    def _end(self, job: Job, why: str) -> None:
        """End a job for good; its containers are on their way out, where it has any."""
        self._unqueue(job)
        if not self._give_all_back(job):
            self._over(job, Phase.KILLED, why)
        elif job.phase is not Phase.ENDING:
            job.why = why
            self._enter(job, Phase.ENDING)
            self._commands.append(e.EndJob(job.job_id, False, why))

    def _give_all_back(self, job: Job) -> bool:
        """Take all containers of a job back; return whether there are any that it uses, until it has ended."""
        pending = self._pending.pop(job.job_id, None)
        unused = set() if pending is None else {container.container_id for container in pending.containers}
        for container in self.ledger.of_job(job.job_id):
            self._take_container(job, container)
            if container.container_id in unused:
                self.ledger.gone(container.container_id)
                self._look_at[container.node] = None
        job.growing, job.watched = False, None
        self._undone(job)
        return bool(self.ledger.of_job(job.job_id))

    def _unqueue(self, job: Job) -> None:
        if job.phase in (Phase.QUEUED, Phase.RESTARTING) and job in self._queue:
            self._queue.remove(job)

    def _ended(self, job: Job, phase: Phase, why: str) -> None:
        again = job.phase is Phase.RESTARTING and phase is Phase.KILLED
        pending = self._pending.get(job.job_id)
        new = {container.container_id for container in pending.containers} if again and pending else set()
        for container in self.ledger.of_job(job.job_id):
            if container.container_id not in new:
                self._lose([container.container_id])
        if again:
            # It may have been promised its containers already.
            self._enter(job, Phase.QUEUED if job in self._queue else Phase.STARTING)
            return
        self._unqueue(job)
        self._pending.pop(job.job_id, None)
        self._over(job, phase, why or job.why)

    def _over(self, job: Job, phase: Phase, why: str) -> None:
        self._undone(job)
        self._enter(job, phase)
        if phase is Phase.FINISHED and job.feedback is not None:
            self._training.note_finished(job)
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
        """Note that containers are gone, whoever let go of them."""
        for name in names:
            hold = self.ledger.hold(name)
            if hold is None:
                continue
            container = self.ledger.container(name)
            job = self.jobs[container.job_id]
            if hold is not Hold.RELEASING:
                self._count(job, container.role, -1)
            self.ledger.gone(name)
            self._look_at[container.node] = None
            pending = self._pending.get(container.job_id)
            if pending is not None and container in pending.containers:
                self._revoke(job)

    def _grant(self) -> None:
        """Grant promises where there is room now; use those that are complete."""
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
                # It was promised something else since; or its first part has not ended.
                continue
            del self._pending[job_id], self._complete[job_id]
            if pending.starts:
                resumes = job.restart_size is not None
                self._commands.append(e.StartJob(job_id, tuple(pending.containers), resumes))
            else:
                self._commands.append(e.GrowJob(job_id, tuple(pending.containers)))

    def _mend(self) -> None:
        """Find other places for promises that nothing will become free for: somebody kept what was promised on."""
        for node in self.ledger.overdrawn():
            for container in reversed(self.ledger.promised_on(node)):
                if node not in self.ledger.overdrawn():
                    break
                if self.ledger.hold(container.container_id) is Hold.PROMISED:
                    self._revoke(self.jobs[container.job_id])

    def _revoke(self, job: Job) -> None:
        """Take back what a job was promised and has not used; a start is planned again, from the head of the queue."""
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
        self.number_of_decision += 1
        jobs = tuple(action.job_id for action in decision.actions)
        self._commands.append(e.Explain(self.number_of_decision, decision.sentence, jobs, decision.actions))
        for action in decision.actions:
            self._do(action, self._job(action.job_id), decision.sentence)

    def _do(self, action: Action, job: Job, sentence: str) -> None:
        self._touched[job.number] = job
        match action:
            case Start(_, places):
                self._leave_the_queue(job)
                if job.phase is Phase.QUEUED:
                    self._enter(job, Phase.STARTING)
                self._wait_for(job, self._promise(job, places), starts=True)
                job.why = sentence
            case Grow(_, places):
                if len(job.recent_s) == WATCHED_ITERATIONS:
                    job.watched = job.size, median(job.recent_s)
                job.recent_s.clear()
                job.growing = True
                self._wait_for(job, self._promise(job, places), starts=False)
            case Shrink(_, containers, undoes):
                self._shrink(job, containers)
                if undoes:
                    job.no_growth_from = job.size
                    self._undone(job)
            case Kill():
                self._end(job, sentence)
            case Restart(_, workers, servers, undoes):
                larger = workers + servers > job.workers + job.servers
                before = (job.size, median(job.recent_s)) if larger and job.recent_s else None
                self._give_all_back(job)
                self._enter(job, Phase.RESTARTING)
                job.restart_size, job.watched = (workers, servers), before
                job.recent_s.clear()
                if undoes:
                    job.no_growth_from = workers, servers
                self._queue.insert(0, job)
                self._commands.append(e.EndJob(job.job_id, True, sentence))

    def _leave_the_queue(self, job: Job) -> None:
        if self._queue[0] is not job:
            self._queue[0].passed += 1
        self._queue.remove(job)

    def _wait_for(self, job: Job, containers: list[Container], *, starts: bool) -> None:
        missing = {container.container_id for container in containers}
        self._pending[job.job_id] = _Pending(containers, missing, starts, self._next_container)
        self._complete.pop(job.job_id, None)

    def _shrink(self, job: Job, names: Sequence[str]) -> None:
        pending = self._pending.get(job.job_id)
        if pending is not None:
            # A growth that was not begun: what is left of it is not begun either.
            self._revoke(job)
        told = []
        for name in names:
            if self.ledger.hold(name) is not None:
                self._take_container(job, self.ledger.container(name))
                told.append(name)
        job.watched, job.no_growth_from = None, None
        job.recent_s.clear()
        if told:
            self._commands.append(e.ShrinkJob(job.job_id, tuple(told)))

    def _undone(self, job: Job) -> None:
        job.slowed = None
        self._slowed.pop(job.number, None)

    def _watch(self, job: Job, durations_s: Sequence[float]) -> None:
        """Look at a growth: the median of the first iterations after it, against that of those before.

        Source: EPS §4.2; the rule is ours: ten iterations on either side, 5 % longer.
        """
        # Of a part that ends, before a restart, late news may come.
        if job.growing or not job.phase.runs:
            return
        for duration_s in durations_s:
            if job.watched is not None and len(job.recent_s) == WATCHED_ITERATIONS:
                break
            job.recent_s.append(duration_s)
        if job.watched is None:
            del job.recent_s[:-WATCHED_ITERATIONS]
        elif len(job.recent_s) == WATCHED_ITERATIONS:
            before, before_s = job.watched
            factor = median(job.recent_s) / before_s
            job.watched = None
            self._watch_ended = True
            if factor > 1 + SLOWER and job.phase is Phase.TRAINING:
                job.slowed = before, factor
                self._slowed[job.number] = job

    def _job(self, job_id: str) -> Job:
        job = self.jobs.get(job_id)
        if job is None:
            raise ValueError(f"there is no job {job_id}")
        return job
