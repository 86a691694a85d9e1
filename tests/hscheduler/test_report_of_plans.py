"""A report has each plan with its sentence, and names the metric of its best loss."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec

SPEC: dict[str, Any] = {
    "sweep": {"trials": 14, "threshold": 3, "arrival": "poisson:2s", "seed": 3},
    "job": {"workers": 2, "servers": 1, "iterations": 400, "stretch_s": 0.004},
}
MORE = {"elastic": {"grow", "shrink"}, "kill": {"restart"}, "static": set()}


@pytest.mark.parametrize("policy", sorted(MORE))
def test_every_decision_has_its_plan(policy: str) -> None:
    report = simulate(Spec.of(SPEC), policy)
    done: Counter[str] = Counter()
    for decision in report["decisions"]:
        assert [action["job_id"] for action in decision["plan"]] == decision["jobs"]
        assert decision["sentence"]
        done.update(action["do"] for action in decision["plan"])
        for action in decision["plan"]:
            if action["do"] in ("start", "grow", "restart"):
                assert action["workers"] + action["servers"] >= 1
            elif action["do"] == "shrink":
                assert action["containers"] and not action["undoes_growth"]
    # A job that restarts starts again.
    assert done["start"] == 14 + done["restart"]
    assert MORE[policy] <= set(done) <= {"start", "kill"} | MORE[policy]
    assert report["best"]["metric"] == "loss"
    json.dumps(report, allow_nan=False)
