"""A cluster that carries out H-scheduler's orders in any order and with faults, and checks the rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hscheduler.core import events as e
from hscheduler.core.decisions import Policy
from hscheduler.core.jobs import Job, JobRequest, Phase
from hscheduler.core.ledger import Hold
from hscheduler.core.resources import Resources, Role
from hscheduler.core.state import Scheduler
from hscheduler.policies.gain import gain
from hscheduler.policies.priority import priority
from hscheduler.stopping import RULES

UNIT = Resources(1, 4096)
NODE = Resources(4, 16384)


def request(
    job_id: str,
    workers: int = 2,
    servers: int = 1,
    *,
    sweep: str = "sweep",
    most_workers: int = 16,
    most_servers: int = 16,
    worker: Resources = UNIT,
    server: Resources = UNIT,
    master: Resources = UNIT,
) -> JobRequest:
    return JobRequest(job_id, sweep, workers, servers, worker, server, master, most_workers, most_servers)


def nodes(number: int, capacity: Resources = NODE) -> dict[str, Resources]:
    return {f"node{k}": capacity for k in range(number)}


@dataclass
class Toy:
    """A scheduler and jobs that obey it.

    Answers wait in :attr:`answers` until :meth:`settle` or :meth:`answer_one` gives them.
    """

    scheduler: Scheduler
    #: Chance that a job answers a growth or a shrink with a failure.
    faults: float = 0.0
    random: Random = field(default_factory=lambda: Random(0))
    #: Whether jobs may be shrunk before their early feedback: ``priority`` draws from all, ``gain`` takes from all.
    lots: bool = False
    answers: list[e.Event] = field(default_factory=list)
    #: All commands so far.
    commands: list[e.Command] = field(default_factory=list)
    over: dict[str, Phase] = field(default_factory=dict)
    #: Job -> ids of the containers of its processes.
    living: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, number: int, policy: Policy, **options: object) -> Toy:
        return cls(Scheduler(nodes(number), policy, RULES), lots=policy in (priority, gain), **options)  # type: ignore[arg-type]

    @property
    def sentences(self) -> list[str]:
        return [command.sentence for command in self.commands if isinstance(command, e.Explain)]

    def job(self, job_id: str) -> Job:
        return self.scheduler.jobs[job_id]

    def send(self, event: e.Event) -> list[e.Command]:
        """Give the scheduler an event; carry out its commands, and check the rules."""
        commands = self.scheduler.step(event)
        self.commands += commands
        for command in commands:
            if isinstance(command, e.ShrinkJob):
                self._may_be_shrunk(command)
            self._obey(command)
        self.check()
        return commands

    def submit(self, *requests: JobRequest) -> None:
        for asked in requests:
            self.send(e.JobSubmitted(asked))

    def settle(self) -> None:
        """Give all answers, the oldest first, until none is left."""
        while self.answers:
            self.send(self.answers.pop(0))

    def answer_one(self) -> None:
        """Give a random answer; those of one job keep their order."""
        chosen = self.random.choice(self.answers)
        first = next(a for a in self.answers if a.job_id == chosen.job_id)  # type: ignore[union-attr]
        self.answers.remove(first)
        self.send(first)

    def feed(self, job_id: str, value: float) -> None:
        """Give a job's early feedback."""
        self.send(e.FeedbackGiven(job_id, value))
        self.settle()

    def iterate(self, job_id: str, seconds: float, times: int = 10) -> None:
        """Complete iterations of a job."""
        self.iterate_now(job_id, seconds, times)
        self.settle()

    def iterate_now(self, job_id: str, seconds: float, times: int) -> None:
        """Complete iterations of a job while answers wait."""
        self.send(e.Iterated(job_id, self.job(job_id).iteration + times, (seconds,) * times))

    def finish(self, job_id: str) -> None:
        """End a job."""
        self.living.pop(job_id, None)
        self.send(e.JobEnded(job_id, Phase.FINISHED))
        self.settle()

    # ---- obeying

    def _obey(self, command: e.Command) -> None:
        match command:
            case e.StartJob(job_id, containers, _):
                assert not self.living.get(job_id), f"{job_id} starts while it lives"
                self.living[job_id] = {container.container_id for container in containers}
                self.answers.append(e.JobStarted(job_id))
            case e.GrowJob(job_id, containers):
                names = tuple(container.container_id for container in containers)
                if self.random.random() < self.faults:
                    self.answers.append(e.GrowthFailed(job_id, names, "it was given up"))
                else:
                    self.living[job_id] |= set(names)
                    self.answers.append(e.GrowthDone(job_id))
            case e.ShrinkJob(job_id, names):
                if self.random.random() < self.faults:
                    self.answers.append(e.ShrinkFailed(job_id, names, "it was given up"))
                else:
                    self.living[job_id] -= set(names)
                    self.answers.append(e.ContainersGone(job_id, names))
            case e.EndJob(job_id, _, _):
                self.living.pop(job_id, None)
                # A job that stops for a restart may be ordered to pause: it ends once.
                if e.JobEnded(job_id, Phase.KILLED) not in self.answers:
                    self.answers.append(e.JobEnded(job_id, Phase.KILLED))
            case e.JobOver(job_id, phase, _):
                assert job_id not in self.over, f"{job_id} is over twice"
                self.over[job_id] = phase
                self.answers = [answer for answer in self.answers if getattr(answer, "job_id", "") != job_id]

    # ---- rules

    def _may_be_shrunk(self, command: e.ShrinkJob) -> None:
        job = self.job(command.job_id)
        # All members of a role may have been lost with a node.
        for role in {self.scheduler.ledger.container(name).role for name in command.containers}:
            assert job.count(role) >= 1, f"{command.job_id} is left with {job.size}"
        assert job.phase.runs, f"{command.job_id} is shrunk while it is {job.phase}"
        assert job.feedback is not None or self.lots, f"{command.job_id} is shrunk before its early feedback"

    def check(self) -> None:
        """Check that no node is oversubscribed, and that the ledger is consistent."""
        ledger = self.scheduler.ledger
        ledger.check()
        for job_id, job in self.scheduler.jobs.items():
            kept = [c for c in ledger.of_job(job_id) if ledger.hold(c.container_id) is not Hold.RELEASING]
            counted = tuple(sum(c.role is role for c in kept) for role in (Role.WORKER, Role.SERVER))
            assert counted == job.size, (job_id, counted, job.size)
            if job.phase.ended:
                assert not ledger.of_job(job_id), f"{job_id} is {job.phase} and holds {ledger.of_job(job_id)}"
