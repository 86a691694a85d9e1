"""The policies that share a cluster among jobs, by name.

``elastic`` is EPS Algorithm 1, ``gain`` ours; the others are baselines (EPS §6).
"""

from __future__ import annotations

from hscheduler.core.decisions import Policy
from hscheduler.policies.elastic import elastic
from hscheduler.policies.gain import gain
from hscheduler.policies.kill import kill
from hscheduler.policies.priority import priority
from hscheduler.policies.static import static, static_stop

POLICIES: dict[str, Policy] = {
    "elastic": elastic,
    "static": static,
    "static-stop": static_stop,
    "kill": kill,
    "priority": priority,
    "gain": gain,
}
