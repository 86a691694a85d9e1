"""The default parameter server: a job starts once the size it asks for is free, and keeps it to its end.

Source: EPS §6 ("the default PS"), §2.3 Fig. 2(a).
"""

from __future__ import annotations

from hscheduler.core.decisions import Decision, View
from hscheduler.policies.placing import not_free, pass_the_head, start_in_what_is_free
from hscheduler.policies.stopping import stop_the_worst


def static(view: View) -> Decision:
    """Start the head of the queue if it fits."""
    if not view.queue:
        return Decision()
    head = view.queue[0]
    return start_in_what_is_free(view, head) or pass_the_head(view, f"queued because {not_free(head)}")


def static_stop(view: View) -> Decision:
    """Decide like :func:`static`, with the stopping rule: separates the gain of elasticity from that of the rule."""
    stop = stop_the_worst(view)
    return stop if stop.actions else static(view)
