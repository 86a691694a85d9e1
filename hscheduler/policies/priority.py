"""Priority scheduling in the way of Litz: running jobs, drawn by lot, give a random number of workers to the newcomer.

Source: EPS §6 and §7.1 ("the number of workers to be removed is random and the running jobs are randomly selected"; too
few removed means another call, too many means idle resources; servers are never removed, nothing is added).
Deviation: none; that lots are drawn again only when what was asked for before has come is ours, as the paper does not
say when "an extra call" is made.
"""

from __future__ import annotations

from random import Random

from hscheduler.core.decisions import Action, Decision, Shrink, View
from hscheduler.core.resources import Role
from hscheduler.policies.placing import count_of, counted, listed, pass_the_head, size_of, start_in_what_is_free


def priority(view: View) -> Decision:
    """Start the head of the queue where it fits, or take random workers from random jobs."""
    if not view.queue:
        return Decision()
    head = view.queue[0]
    size = count_of(*size_of(head))
    now = start_in_what_is_free(view, head)
    if now is not None:
        return now
    if view.releasing:
        on_the_way = counted(view.releasing, "container")
        return Decision(waiting={head.job_id: f"queued: {on_the_way} to come, then lots are drawn again"})
    jobs = [job for job in view.running() if job.workers > 1]
    if not jobs:
        return pass_the_head(view, f"queued because {size} and a master are not free, and every job has one worker")
    draw = Random(f"{view.seed}:{view.number_of_decision}")
    actions: list[Action] = []
    given = []
    for job in draw.sample(jobs, draw.randint(1, len(jobs))):
        count = draw.randint(1, job.workers - 1)
        names = tuple(container.container_id for container in view.containers(job, Role.WORKER)[:count])
        actions.append(Shrink(job.job_id, names))
        given.append(f"{job.job_id} gives {counted(count, 'worker')}")
    return Decision(tuple(actions), f"for {head.job_id}, by lot: {listed(given)}")
