"""The default parameter server: a job starts once the size it asks for is free, and keeps it to its end.

Source: EPS §6 ("the default PS"), §2.3 Fig. 2(a).
"""

from __future__ import annotations

from hscheduler.core.decisions import Decision, View, needing
from hscheduler.policies.placing import not_free, pass_the_head, start_in_what_is_free


def static(view: View) -> Decision:
    """Start the head of the queue if it fits."""
    if not view.queue:
        return Decision()
    head = view.queue[0]
    return start_in_what_is_free(view, head) or pass_the_head(view, f"waits because {not_free(head)}")


@needing(stop="threshold")
def static_stop(view: View) -> Decision:
    """Decide like :func:`static`, with a stopping rule: separates the gain of elasticity from that of the rule."""
    return static(view)
