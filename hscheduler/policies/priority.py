"""Priority scheduling as in Litz: randomly chosen running jobs give a random number of workers to the new job.

Source: EPS §6 and §7.1 ("the number of workers to be removed is random and the running jobs are randomly selected"; too
few removed means another call, too many means idle resources; servers are never removed, nothing is added).
Deviations, where the paper is silent: workers are drawn again only after the last draw has been released; if no job has
a worker to give, smaller jobs may pass the head (:func:`~hscheduler.policies.placing.pass_the_head`); a job that
refused to shrink is not drawn for some iterations.
"""

from __future__ import annotations

from random import Random

from hscheduler.core.decisions import Action, Decision, Shrink, View, needing
from hscheduler.core.resources import Role
from hscheduler.core.words import counted, listed, words_of
from hscheduler.policies.placing import not_free, pass_the_head, start_in_what_is_free


@needing(takes=True)
def priority(view: View) -> Decision:
    """Start the head of the queue if it fits, else take random workers from random jobs."""
    if not view.queue:
        return Decision()
    head = view.queue[0]
    now = start_in_what_is_free(view, head)
    if now is not None:
        return now
    if view.releasing:
        on_the_way = f"{counted(view.releasing, 'container')} {'is' if view.releasing == 1 else 'are'}"
        return Decision(waiting={head.job_id: f"waits until {on_the_way} released"})
    jobs = [job for job in view.running() if job.workers > 1 and job.may_shrink]
    if not jobs:
        why = f"waits because {not_free(head)}, and no job can give a worker"
        return pass_the_head(view, why)
    draw = Random(f"{view.seed}:{view.number_of_decision}")
    actions: list[Action] = []
    given = []
    for job in draw.sample(jobs, draw.randint(1, len(jobs))):
        count = draw.randint(1, job.workers - 1)
        names = tuple(container.container_id for container in view.containers(job, Role.WORKER)[:count])
        actions.append(Shrink(job.job_id, names))
        given.append(f"{job.job_id} gives {words_of([Role.WORKER] * count, job.request.hosts)}")
    return Decision(tuple(actions), f"for {head.job_id}, at random: {listed(given)}")
