"""The ways to share a cluster, by name.

``elastic`` is EPS Algorithm 1; ``podium`` is ours; the others are what they are measured against (EPS §6).
"""

from __future__ import annotations

from hscheduler.core.decisions import Policy
from hscheduler.policies.elastic import elastic
from hscheduler.policies.kill import kill
from hscheduler.policies.podium import podium
from hscheduler.policies.priority import priority
from hscheduler.policies.static import static, static_stop

POLICIES: dict[str, Policy] = {
    "elastic": elastic,
    "static": static,
    "static-stop": static_stop,
    "kill": kill,
    "priority": priority,
    "podium": podium,
}
