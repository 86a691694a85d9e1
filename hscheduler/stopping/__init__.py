"""The stopping rules of sweeps, by name: pure functions of a sweep's trials.

A policy shares containers; a rule decides which trials go on.  Each works with each policy.
"""

from __future__ import annotations

from hscheduler.core.cohort import Rule
from hscheduler.stopping.early_feedback import stop_nothing, stop_the_worst
from hscheduler.stopping.halving import asha, geometric, sha
from hscheduler.stopping.median import evenly, median_rule

RULES: dict[str, Rule] = {
    "none": Rule(stop_nothing),
    "threshold": Rule(stop_the_worst, by_feedback=True),
    "median": Rule(median_rule, evenly),
    "sha": Rule(sha, geometric, pauses=True),
    "asha": Rule(asha, geometric, pauses=True),
}
