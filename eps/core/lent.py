"""What a job has lent: members that left at another's word so that others get their room, and are to come back.  L0.

Whoever makes room in a queue may be started again, and so may a job master.  So what a job is still to have follows
from the job's own plans, which outlive both, and is remembered nowhere else.

Source: EPS Algorithm 1 lines 17-27 (what is removed for a submitted job) and 29-40 (what is added when nothing waits).
"""

from __future__ import annotations

from collections.abc import Iterable

from eps.core.reconfig import Phase, Plan, Purpose
from eps.core.types import Role


def lent(plans: Iterable[Plan]) -> dict[Role, int]:
    """Return how many members of each role a job is still to have again.

    Who asks for members by hand has that many back: a job never has more by this than it had.  What its users removed
    themselves stays away, and what the job replaces by itself was not lent.

    Parameters
    ----------
    plans : iterable of Plan
        Of the job, oldest first.
    """
    found = dict.fromkeys(Role, 0)
    for plan in plans:
        if plan.phase is not Phase.RELEASED or plan.purpose.own:
            continue
        lends = plan.purpose is Purpose.QUEUE
        for role in Role:
            went, came = len(plan.going.of_role(role)), len(plan.coming.of_role(role))
            found[role] = max(0, found[role] + went * lends - came)
    return found
