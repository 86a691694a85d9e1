"""The default parameter server: a job starts once the size it asks for is free, and keeps it to its end.

Source: EPS §6 ("the default PS"), §2.3 Fig. 2(a).
"""

from __future__ import annotations

from hscheduler.core.decisions import Decision, View, needing
from hscheduler.core.words import count_of
from hscheduler.policies.placing import pass_the_head, size_of, start_in_what_is_free


def static(view: View) -> Decision:
    """Start the head of the queue if it fits."""
    if not view.queue:
        return Decision()
    head = view.queue[0]
    why = f"queued because {count_of(*size_of(head))} and a master are not free together"
    return start_in_what_is_free(view, head) or pass_the_head(view, why)


@needing(stop="threshold")
def static_stop(view: View) -> Decision:
    """Decide like :func:`static`, with a stopping rule: separates the gain of elasticity from that of the rule."""
    return static(view)
