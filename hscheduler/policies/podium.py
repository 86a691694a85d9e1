"""Algorithm 1 with a stricter stopping rule (not from the paper): finished jobs count, too."""

from __future__ import annotations

from hscheduler.core.decisions import Decision, View, needing
from hscheduler.policies.elastic import elastic


@needing(takes=True, stop="podium")
def podium(view: View) -> Decision:
    """Decide like :func:`~hscheduler.policies.elastic.elastic`, with the rule ``podium``."""
    return elastic(view)
