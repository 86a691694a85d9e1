"""Successive halving: at each rung one trial in ``eta`` goes on.  ``sha`` waits for all trials of a rung, ``asha`` not.

``sha``: of n trials the best ``n // eta`` at the first rung go on, of these the best ``n // eta // eta`` at the second,
and so on; at least one.  A trial at a rung is paused until its place is certain, so which trials go on depends neither
on the order in which they get there nor on the policy.  Source: Jamieson and Talwalkar, "Non-stochastic best arm
identification and hyperparameter optimization" (AISTATS 2016), Algorithm 1; Li et al., "Hyperband" (JMLR 2018),
Algorithm 1 (one bracket).  Deviation: the paper trains the survivors of a rung as one batch; here a trial whose place
is certain goes on, or ends, before the others are there.

``asha``: a trial is promoted from a rung while it is among the best ``1 / eta`` of the trials that have reached that
rung, and paused otherwise; later results may promote it.  Source: Li et al., "A System for Massively Parallel
Hyperparameter Tuning" (MLSys 2020), Algorithm 2.  Deviations: a trial that is promoted at once is not paused first; all
promotable trials enter the queue, where the paper promotes one for each idle worker; above the last rung a trial trains
to its end; if all trials are paused and none has finished, the best one of the highest rung is promoted.

A trial that failed, or that a user ended, counts as the worst at its next rung, under ``sha`` at all further ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hscheduler.core.cohort import Cohort
from hscheduler.core.decisions import Action, Decision, Kill, Pause, Promote
from hscheduler.core.jobs import Job
from hscheduler.core.rungs import Rungs, Stopping
from hscheduler.core.words import counted, listed


def geometric(stopping: Stopping) -> Rungs:
    """Return the rungs: each is ``eta`` times the one before."""
    return Rungs(stopping.grace_iterations, stopping.eta, stopping.max_iterations)


def sha(cohort: Cohort) -> Decision:
    """Promote or kill the trials whose place at their rung is certain; pause the others."""
    fresh, paused = _by_rung(cohort.fresh()), _by_rung(cohort.paused())
    places = cohort.total
    for rung in range(cohort.num_rungs()):
        places = max(1, places // cohort.stopping.eta)
        if rung in fresh or rung in paused:
            decision = _place(cohort, rung, places, fresh.get(rung, []), paused.get(rung, []))
            if decision.actions:
                return decision
    return Decision()


def asha(cohort: Cohort) -> Decision:
    """Promote the trials that are among the best ``1 / eta`` of their rung; pause those that are not."""
    fresh, paused = _by_rung(cohort.fresh()), _by_rung(cohort.paused())
    for rung in reversed(range(cohort.num_rungs())):
        if rung in fresh or rung in paused:
            contenders = cohort.contenders(rung)
            best = contenders[: len(contenders) // cohort.stopping.eta]
            among = f"the best {len(best)} of {len(contenders)} at iteration {cohort.rungs.at(rung)}"
            among += cohort.tie(rung, contenders, len(best))
            promoted = [job for job in _ranked(paused.get(rung, ()), contenders) if job.number in best]
            stopped = [job for job in fresh.get(rung, ()) if job.number not in best]
            if promoted or stopped:
                sentences = [_promotion(promoted, among)] if promoted else []
                sentences += [
                    f"{job.job_id} is paused: its {job.rungs[rung]:g} is not among {among}" for job in stopped
                ]
                return _decision(promoted, stopped, sentences)
    return _last(cohort, paused) if paused and cohort.gets_no_more and not cohort.num_active else Decision()


def _place(cohort: Cohort, rung: int, places: int, fresh: Sequence[Job], paused: Sequence[Job]) -> Decision:
    ranking = cohort.ranking(rung)
    unknown, iteration = cohort.total - len(ranking), cohort.rungs.at(rung)
    safe, out = set(ranking[: max(0, places - unknown)]), set(ranking[places:])
    among = f"the best {places} of {cohort.total} at iteration {iteration}" + cohort.tie(rung, ranking, places)
    promoted = _ranked([job for job in paused if job.number in safe], ranking)
    stopped = [job for job in fresh if job.number not in safe | out]
    sentences = [_promotion(promoted, among)] if promoted else []
    behind = f"{counted(unknown, 'other trial')} may be better"
    sentences += [f"{job.job_id} is paused at iteration {iteration}: {behind}" for job in stopped]
    kills = []
    for job in _ranked([job for job in (*fresh, *paused) if job.number in out], ranking):
        kills.append(Kill(job.job_id, f"{job.job_id} is killed: its {job.rungs[rung]:g} is not among {among}"))
        sentences.append(kills[-1].why)
    return _decision(promoted, stopped, sentences, kills)


def _last(cohort: Cohort, paused: Mapping[int, Sequence[Job]]) -> Decision:
    """Decide when no trial runs or will arrive: end the paused ones, but let one train to its end."""
    highest = max(paused)
    iteration = cohort.rungs.at(highest)
    if not cohort.has_finished:
        best = _ranked(paused[highest], cohort.contenders(highest))[0]
        return _decision(
            [best], [], [f"{best.job_id} resumes: it is the best at iteration {iteration}, and none has finished"]
        )
    jobs = [job for _, each in sorted(paused.items()) for job in each]
    why = "no trial is left whose result could promote it"
    kills = [Kill(job.job_id, f"{job.job_id} is killed: {why}") for job in jobs]
    names = listed([job.job_id for job in jobs])
    return _decision([], [], [f"{names} {'is' if len(jobs) == 1 else 'are'} killed: {why}"], kills)


def _decision(
    promoted: Sequence[Job], stopped: Sequence[Job], sentences: Sequence[str], kills: Sequence[Kill] = ()
) -> Decision:
    actions: list[Action] = [
        *(Promote(job.job_id) for job in promoted),
        *(Pause(job.job_id) for job in stopped),
        *kills,
    ]
    return Decision(tuple(actions), listed(sentences, "; "))


def _promotion(jobs: Sequence[Job], among: str) -> str:
    verb = "resumes: it is" if len(jobs) == 1 else "resume: they are"
    return f"{listed([job.job_id for job in jobs])} {verb} among {among}"


def _ranked(jobs: Iterable[Job], ranking: Sequence[int]) -> list[Job]:
    """Return jobs in the order of a ranking, which is their order in the queue."""
    places = {number: place for place, number in enumerate(ranking)}
    return sorted(jobs, key=lambda job: places[job.number])


def _by_rung(jobs: Iterable[Job]) -> dict[int, list[Job]]:
    found: dict[int, list[Job]] = {}
    for job in jobs:
        found.setdefault(len(job.rungs) - 1, []).append(job)
    return found
