"""Random jobs and what is asked of them while they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from eps.core import events as e
from eps.core.reconfig import OPERATIONS, Change, Operation, Trigger
from eps.core.types import UNBOUNDED, CoreSettings, Role
from tests.fakes.network import RELIABLE, Faults
from tests.sim.faithful import Breaks
from tests.sim.job import CALM, Chaos, SimJob

#: Consistency models in turn: BSP with and without the grid clock, SSP, ASP.
MODELS = ((0, True), (0, True), (0, False), (1, False), (3, False), (UNBOUNDED, False))


def random_settings(random: Random, seed: int) -> CoreSettings:
    staleness, reproducible = MODELS[seed % len(MODELS)]
    return CoreSettings(
        num_splits=random.choice((2, 5, 9, 12)),
        num_partitions=random.choice((2, 4, 7, 8)),
        iterations=random.choice((1, 2, 4, 8, 16, 24)),
        staleness=staleness,
        reproducible=reproducible,
    )


def random_change(random: Random, job: SimJob) -> Change:
    operation = random.choice(OPERATIONS)
    members = job.master.membership.of_role(operation.role) if job.master.membership else ()
    if not operation.adds and members and random.random() < 0.5:
        names = tuple(random.sample(members, min(len(members), random.choice((1, 1, 2)))))
        return Change(operation, len(names), names)
    return Change(operation, random.choice((1, 1, 2, 3)))


def random_scale(random: Random, job: SimJob) -> Change:
    """Return a change of both roles in one plan."""
    asked = [Operation(f"{random.choice(('add', 'remove'))}-{role}s") for role in random.sample(tuple(Role), 2)]
    parts = tuple(Change(operation, random.choice((1, 1, 2))) for operation in asked)
    return Change(Operation.SCALE, sum(part.count for part in parts), parts=parts)


def schedule(random: Random, job: SimJob, change: Callable[[Random, SimJob], Change] = random_change) -> None:
    """Ask for changes at random times, several at once at times, and cancel some."""
    span_s = 0.8 + job.settings.iterations * 0.25
    for number in range(random.randint(1, 6)):
        at_s = random.uniform(0.7, span_s)

        def ask(number: int = number) -> None:
            job.ask(f"request-{number}", change(random, job))

        job.at(at_s, ask)
        if random.random() < 0.25:
            cancel = e.CancelRequested(f"cancel-{number}", random.randint(1, 4))
            job.at(at_s + random.uniform(0.0, 2.5), lambda c=cancel: job.on_event(c))


def random_triggers(random: Random, settings: CoreSettings) -> list[Trigger]:
    triggers = []
    for _ in range(random.choice((0, 0, 1, 2))):
        change = Change(random.choice(OPERATIONS), random.choice((1, 1, 2)))
        triggers.append(Trigger(random.randrange(settings.iterations), change))
    return triggers


def schedule_crashes(random: Random, job: SimJob) -> None:
    """Let members crash at random times, at times two at once."""

    def crash() -> None:
        membership = job.master.membership
        if membership is None:
            return
        for name in random.sample(membership.members, random.choice((1, 1, 1, min(2, len(membership.members))))):
            if name in job.master.members.by_name and job.process_of(name).alive:
                job.kill(name)

    for _ in range(random.choice((1, 1, 2, 4))):
        job.at(random.uniform(0.8, 1.5 + job.settings.iterations * 0.2), crash)


def hostile_job(
    seed: int, kind: Callable[..., SimJob] = SimJob, *, followers: int = 0, patient: bool = False
) -> SimJob:
    """Return a job on a network that loses and repeats messages."""
    random = Random(seed)
    settings = replace(random_settings(random, seed), followers=followers)
    triggers = random_triggers(random, settings)
    return kind(
        seed,
        settings,
        random.randint(1, min(4, settings.num_splits)),
        random.randint(1, min(4, settings.num_partitions)),
        triggers,
        faults=random.choice((RELIABLE, Faults(), Faults(), Faults(drop=0.1, duplicate=0.1, late=0.1))),
        chaos=random.choice((CALM, CALM, Chaos(never=0.0 if patient else 0.1, vanish=0.01, cancel=0.01))),
        iteration_s=random.choice((0.01, 0.05, 0.2)),
        # Standing followers hold what is asked of them: nobody may release a plan before it is past its commit clock.
        releases_at_once=random.random() >= 0.6 and not followers,
    )


def faithful_job(
    seed: int,
    *,
    followers: int = 0,
    patient: bool = False,
    kind: Callable[..., SimJob] = SimJob,
) -> SimJob:
    """Return a job whose processes send as the real ones do, on connections that break."""
    random = Random(seed + 1_000_000)
    settings = replace(random_settings(random, seed), followers=followers)
    triggers = random_triggers(random, settings)
    exchange, transfer = random.choice(((0.0, 0.0), (0.01, 0.02), (0.03, 0.02), (0.1, 0.1)))
    return kind(
        seed,
        settings,
        random.randint(1, min(4, settings.num_splits)),
        random.randint(1, min(4, settings.num_partitions)),
        triggers,
        faults=Faults(drop=0.0, duplicate=0.0, late=random.choice((0.0, 0.05, 0.2))),
        # Not together: where plans are cancelled at random, nobody waits long for what never comes.
        chaos=random.choice(
            (CALM, CALM, Chaos(never=0.0 if patient else 0.15, mute=0.15), Chaos(vanish=0.02, cancel=0.01))
        ),
        iteration_s=random.choice((0.01, 0.05, 0.2)),
        breaks=Breaks(exchange, transfer),
    )
