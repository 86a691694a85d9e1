"""Containers go where they shorten a sweep most, by the measured speed-up of each job (not from the paper).

- A new job starts at once, with one container as long as the speed-up of its sweep is unknown.  If none is free, the
  job that loses least gives one.
- Containers are divided so that the last job reaches its milestone soonest: the iteration at which the stopping rule
  judges it next, or its end (:mod:`hscheduler.core.division`).
- While trials of a sweep are still to arrive, those before their early feedback come first, the oldest before the next,
  as long as they use containers well.
- A job grows to at most twice the size that its sweep has measured, then by the curve (:mod:`hscheduler.core.speed`).
- A resize must pay for itself: the time until it takes effect is measured.  Containers move from one job to another
  only for a clear gain; free ones go to any job that becomes faster.
- A job that does not become faster with what it got gives it back.

Source: EPS §2.1 (early feedback decides which jobs go on), §4.2 (an addition that makes a job slower is undone).
HyperSched (SoCC 2019) prefers the trials that lead, within a deadline.  RubberBand (EuroSys 2021) plans a size for
each rung, by the profile of a job.  Optimus (EuroSys 2018) and Pollux (OSDI 2021) fit the speed of a job, as here, and
resize by a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hscheduler.core.decisions import Action, Decision, Grow, Shrink, Start, View, needing
from hscheduler.core.division import Need, divide
from hscheduler.core.jobs import WATCHED_ITERATIONS, Job
from hscheduler.core.resources import Container, Role
from hscheduler.core.words import counted, listed
from hscheduler.policies.elastic import undo_growth
from hscheduler.policies.kill import scaled
from hscheduler.policies.placing import first_of, interleaved, pass_the_head, place, roles_of

#: A job before its early feedback gets a container of others only if that adds this share of a container's own speed.
WORTH_OF_OTHERS = 0.4
#: Of others it gets no more than bring its feedback within this many times the seconds of a change.
PATIENCE = 3
#: Containers move between jobs if the last milestone then comes this much sooner.
WORTH_A_MOVE = 0.1
#: Of that they cost this many times the seconds of a change.
MOVE_COST = 2
#: Beyond its milestone a job counts with this share of its further iterations: some of the jobs will go on.
FORESIGHT = 1 / 3
#: A growth must bring a milestone nearer by this share.
WORTH_A_GROWTH = 0.02
#: Queued jobs that one plan considers.
MOST_STARTED = 100


@needing(progress=True, takes=True, stop="threshold", hosts=True)
def gain(view: View) -> Decision:
    """Decide by gain: undo a growth, start queued jobs, give free containers to jobs, or move some between jobs."""
    return first_of(view, undo_growth, _give_back, _share)


def _share(view: View) -> Decision:
    admission = _admit(view) if view.queue else Decision()
    return admission if admission.actions else replace(_resize(view), waiting=admission.waiting)


# ---- what jobs need


def _need(view: View, job: Job, least: int | None = None) -> Need:
    """Return what a job needs; it keeps at least ``least`` containers."""
    asked, size = job.request, job.workers + job.servers
    milestone = view.milestone(job) or asked.iterations
    # Without a milestone all jobs count alike.
    left = max(1, milestone - job.iteration) if milestone else 1
    further = 0.0 if _is_first(view, job) else FORESIGHT * max(0, asked.iterations - milestone)
    least = asked.least if least is None else least
    explored = view.explored(asked.sweep)
    most = min(asked.most_workers + asked.most_servers, max(2 * explored, size, asked.least))
    if size and (job.no_growth_from == job.size):
        most = min(most, size)
    return Need(left, view.curve(job).seconds, least, max(least, most), further)


def _is_first(view: View, job: Job) -> bool:
    """Return whether a job comes before others: its early feedback decides about trials that are still to come."""
    return job.feedback is None and view.awaits(job.request.sweep)


def _capped(job: Job, need: Need, change_s: float) -> Need:
    """Return a need that ends where a further container adds too little to be taken from others.

    It adds too little speed, or the milestone comes so soon that containers would be on their way most of the time.
    What a job has, it may keep.
    """
    size, alone = need.least, 1 / need.seconds(need.least) / need.least
    while (
        size < need.most
        and 1 / need.seconds(size + 1) - 1 / need.seconds(size) > WORTH_OF_OTHERS * alone
        and need.ends_s(size + 1) > PATIENCE * change_s
    ):
        size += 1
    return replace(need, most=max(size, _size(job)))


def _divide(view: View, jobs: Sequence[Job], needs: Sequence[Need], containers: int) -> list[int]:
    """Return the sizes of jobs: those that come first, the one with least to do before the next; then the others."""
    first = sorted((k for k, job in enumerate(jobs) if _is_first(view, job)), key=lambda k: (needs[k].iterations, k))
    rest = [k for k in range(len(jobs)) if k not in set(first)]
    sizes = [need.least for need in needs]
    parts = [([k], [_capped(jobs[k], needs[k], view.change_s())]) for k in first]
    parts += [(rest, [needs[k] for k in rest]), (first, [needs[k] for k in first])]
    for ks, wants in parts:
        mine = [replace(want, least=sizes[k]) for k, want in zip(ks, wants, strict=True)]
        left = containers - sum(sizes) + sum(sizes[k] for k in ks)
        for k, size in zip(ks, divide(mine, left), strict=True):
            sizes[k] = size
    return sizes


def _ends_s(view: View, jobs: Sequence[Job], needs: Sequence[Need], sizes: Sequence[int], first: bool) -> float:
    """Return the mean seconds to early feedback of the jobs before it (``first``), else those to the last milestone."""
    ends = [need.ends_s(sizes[k]) for k, need in enumerate(needs) if _is_first(view, jobs[k]) is first]
    return sum(ends) / max(1, len(ends)) if first else max(ends, default=0.0)


def _movable(view: View) -> list[Job]:
    """Return the jobs whose size may change now; the scheduler replaces lost containers itself."""
    settled = (job for job in view.running() if view.is_settled(job) and _size(job) >= job.request.least)
    return [job for job in settled if _goes_on(view, job)]


def _goes_on(view: View, job: Job) -> bool:
    """Return whether a job has iterations to its milestone; else the stopping rule is about to judge it."""
    milestone = view.milestone(job)
    return not milestone or job.iteration < milestone


def _size(job: Job) -> int:
    return job.workers + job.servers


def _free(view: View, jobs: Sequence[Job]) -> int:
    """Return how many containers of the smallest size among these jobs are free."""
    if not jobs:
        return 0
    smallest = min(min(job.request.worker, job.request.server) for job in jobs)
    room = view.room()
    return room.take_often([(smallest, 1)], room.num_free())


# ---- queued jobs


def _admit(view: View) -> Decision:
    """Start queued jobs in free containers and in those that running jobs can give."""
    movable = _movable(view)
    givers = [job for job in movable if job.may_shrink]
    queue = list(view.queue[:MOST_STARTED])
    free = _free(view, [*queue, *givers])
    spare = free + sum(_size(job) - job.request.least for job in givers if _size(job) > job.request.least)
    starting = []
    for job in queue:
        spare -= job.request.least + job.request.count(Role.MASTER)
        if spare < 0:
            break
        starting.append(job)
    if not starting:
        return _pass(view)
    jobs = [*givers, *starting]
    needs = [_need(view, job) for job in jobs]
    masters = sum(job.request.count(Role.MASTER) for job in starting)
    sizes = _divide(view, jobs, needs, free + sum(_size(job) for job in givers) - masters)
    wanted = sizes[len(givers) :]
    gives = _gifts(givers, needs, sizes, masters + sum(wanted) - free)
    return _starts(view, starting, wanted, gives) or _pass(view)


def _gifts(jobs: Sequence[Job], needs: Sequence[Need], sizes: Sequence[int], missing: int) -> dict[Job, int]:
    """Return how many containers each job gives: first the jobs that lose least."""
    losses = [
        (need.ends_s(size) - need.ends_s(_size(job)), job.number, job, size)
        for job, need, size in zip(jobs, needs, sizes, strict=False)
        if size < _size(job)
    ]
    gives: dict[Job, int] = {}
    for _, _, job, size in sorted(losses, key=lambda each: each[:2]):
        if missing <= 0:
            break
        gives[job] = min(missing, _size(job) - size)
        missing -= gives[job]
    return gives


def _starts(view: View, starting: Sequence[Job], wanted: Sequence[int], gives: Mapping[Job, int]) -> Decision | None:
    """Return the plan that starts jobs with these sizes, or smaller ones where nodes lack room; None if none fits."""
    room = view.room()
    taken = {job: _surplus(view, job, _size(job) - number) for job, number in gives.items()}
    for containers in taken.values():
        for container in containers:
            room.give(container.node, container.resources)
    starts: list[Action] = []
    sentences = []
    for job, size in zip(starting, wanted, strict=True):
        for members in range(size, job.request.least - 1, -1):
            trial = room.copy()
            places, left = place(trial, job.request, roles_of(job.request, *scaled(job.request, members)))
            if not left:
                room = trial
                starts.append(Start(job.job_id, tuple(places)))
                sentences.append(f"{job.job_id} starts in {counted(members, 'container')}")
                break
        else:
            # Jobs behind it wait with it, or pass it a bounded number of times.
            break
    if not starts:
        return None
    shrinks = [Shrink(job.job_id, tuple(c.container_id for c in containers)) for job, containers in taken.items()]
    source = f": {_gave(taken)}" if taken else ": nothing else uses them"
    return Decision((*shrinks, *starts), listed(sentences) + source)


def _gave(taken: Mapping[Job, Sequence[Container]]) -> str:
    return listed([f"{job.job_id} gives {counted(len(containers), 'container')}" for job, containers in taken.items()])


def _pass(view: View) -> Decision:
    head = view.queue[0]
    least = head.request.least + head.request.count(Role.MASTER)
    lacks = f"{counted(least, 'container')} {'is' if least == 1 else 'are'} not free"
    why = f"waits because {lacks}, and no job can give more"
    return pass_the_head(view, why, _start_small)


def _start_small(view: View, job: Job) -> Decision | None:
    """Return the plan that starts a job with its least size in free containers; None if these are too few."""
    return _starts(view, [job], [job.request.least], {})


# ---- running jobs


def _resize(view: View) -> Decision:
    """Give free containers to running jobs, or move containers between them if that is worth it."""
    jobs = _movable(view)
    if not jobs:
        return Decision()
    free = _free(view, jobs)
    now = [_size(job) for job in jobs]
    grown = _growths(view, jobs, free)
    if not view.queue and len(jobs) > 1:
        needs = [_need(view, job, None if job.may_shrink else _size(job)) for job in jobs]
        moved = _divide(view, jobs, needs, free + sum(now))
        if any(size < before for size, before in zip(moved, now, strict=True)) and _is_worth_it(
            view, jobs, needs, grown, moved
        ):
            return _change(view, jobs, moved)
    return _change(view, jobs, grown)


def _growths(view: View, jobs: Sequence[Job], free: int) -> list[int]:
    """Return the sizes of jobs if only free containers are given away, each where it pays."""
    sizes = [_size(job) for job in jobs]
    if not free:
        return sizes
    needs = [_need(view, job, _size(job)) for job in jobs]
    able = list(range(len(jobs)))
    while able:
        found = _divide(view, [jobs[k] for k in able], [needs[k] for k in able], free + sum(sizes[k] for k in able))
        idle = [
            k
            for k, size in zip(able, found, strict=True)
            if size > sizes[k] and not _pays(view, jobs[k], needs[k], size)
        ]
        if not idle:
            for k, size in zip(able, found, strict=True):
                sizes[k] = size
            break
        able = [k for k in able if k not in idle]
    return sizes


def _pays(view: View, job: Job, need: Need, size: int) -> bool:
    """Return whether a growth saves enough of the time to a milestone, or to later ones if a job goes on there."""
    iterations = need.iterations + (0.0 if view.pauses(job.request.sweep) else need.further)
    return _saved_s(view, job, iterations, size) > WORTH_A_GROWTH * iterations * need.seconds(_size(job))


def _saved_s(view: View, job: Job, iterations: float, size: int) -> float:
    """Return how many seconds sooner iterations end after a growth to ``size``, which takes its time."""
    curve, change_s = view.curve(job), view.change_s()
    before_s = curve.seconds(_size(job))
    meanwhile = min(iterations, change_s / before_s)
    return iterations * before_s - change_s - (iterations - meanwhile) * curve.seconds(size)


def _is_worth_it(
    view: View, jobs: Sequence[Job], needs: Sequence[Need], grown: Sequence[int], moved: Sequence[int]
) -> bool:
    """Return whether to move containers between jobs, rather than only give free ones away."""
    cost_s = MOVE_COST * view.change_s()
    for first in (True, False):
        stay_s, move_s = _ends_s(view, jobs, needs, grown, first), _ends_s(view, jobs, needs, moved, first)
        if move_s + cost_s < stay_s * (1 - WORTH_A_MOVE):
            return True
        if move_s > stay_s * (1 + WORTH_A_MOVE / 2):
            return False
    return False


def _change(view: View, jobs: Sequence[Job], sizes: Sequence[int]) -> Decision:
    """Return the plan that brings jobs to these sizes, as far as nodes have room."""
    room, taken = view.room(), {}
    for job, size in zip(jobs, sizes, strict=True):
        if size < _size(job):
            taken[job] = _surplus(view, job, size)
            for container in taken[job]:
                room.give(container.node, container.resources)
    grows: list[Action] = []
    sentences = []
    for job, size in zip(jobs, sizes, strict=True):
        if size > _size(job):
            places, _ = place(room, job.request, _lacking(job, size))
            if places:
                grows.append(Grow(job.job_id, tuple(places)))
                sentences.append(_growth(view, job, len(places)))
    if not grows:
        return Decision()
    shrinks = [Shrink(job.job_id, tuple(c.container_id for c in containers)) for job, containers in taken.items()]
    gave = f"; {_gave(taken)}" if taken else ""
    return Decision((*shrinks, *grows), listed(sentences) + gave)


def _growth(view: View, job: Job, more: int) -> str:
    what = "it ends" if view.milestone(job) in (0, job.request.iterations) else "it is judged"
    sooner_s = _saved_s(view, job, _need(view, job).iterations, _size(job) + more)
    reason = f": {what} {sooner_s:.3g} s sooner" if sooner_s > 0 else ""
    return f"{job.job_id} gets {counted(more, 'container')}{reason}"


def _lacking(job: Job, size: int) -> list[Role]:
    workers, servers = scaled(job.request, size)
    return interleaved(max(0, workers - job.workers), max(0, servers - job.servers))


def _surplus(view: View, job: Job, size: int) -> list[Container]:
    """Return the newest containers that a job has beyond a size."""
    workers, servers = scaled(job.request, size)
    beyond = [(Role.WORKER, job.workers - workers), (Role.SERVER, job.servers - servers)]
    found = [container for role, number in beyond for container in view.containers(job, role)[: max(0, number)]]
    return found[: _size(job) - size]


def _give_back(view: View) -> Decision:
    """Let a job give back containers that do not make it faster."""
    for job in _movable(view):
        size = _size(job)
        if size <= job.request.least or not job.may_shrink or len(job.recent_s) < WATCHED_ITERATIONS:
            continue
        (useful,) = divide([replace(_need(view, job), most=size)], size)
        if useful < size:
            names = tuple(container.container_id for container in _surplus(view, job, useful))
            sentence = f"{job.job_id} gives {counted(len(names), 'container')} back: it is as fast without"
            return Decision((Shrink(job.job_id, names, undoes_growth=True),), sentence)
    return Decision()
