"""One run of EPS, in a process of its own: ``python -m benchmarks.sweeps.ours TASK.json RESULT.json``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench_common import end_in_order
from benchmarks.sweeps.between_rungs import between_rungs
from hscheduler.live.checks import check_sweep
from hscheduler.live.sweep import Sweep
from hscheduler.policies import POLICIES
from hscheduler.spec import Spec

#: Keys of a report that are kept.
_KEPT = (
    "makespan_s stop iterations_trained overshoot useful_share waiting_share idle_share container_s phases completed "
    "best utilisation summary anytime resources numbers"
).split()
_KEPT_OF_TRIAL = (
    "job_id phase arrived_s started_s first_iteration_s early_feedback_s finished_s iterations containers container_s "
    "resize_pause_s restarts resizes speeds"
).split()
#: Digits of times and shares.
_DIGITS = 4


def run(tables: Mapping[str, Any], policy: str, plan: Sequence[int]) -> dict[str, Any]:
    """Run a sweep; return what is kept of its report, and when it began and ended, in seconds of :func:`time.time`."""
    # Policies are found by name; this process runs nothing else.
    POLICIES["rungs"] = between_rungs(plan)
    spec = Spec.of(tables)
    check_sweep(spec)
    began_s = time.time()
    report = Sweep(spec, policy).run()
    return {**kept(report), "began_s": began_s, "ended_s": began_s + report["makespan_s"]}


def kept(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a report that the results keep: no curves, points or decisions."""
    found = {name: report[name] for name in _KEPT if name in report}
    found["failures"] = [trial["why"] for trial in report["trials"] if trial["phase"] == "failed"]
    found["decisions"] = len(report["decisions"])
    found["trials"] = [{name: trial[name] for name in _KEPT_OF_TRIAL if name in trial} for trial in report["trials"]]
    rounded: dict[str, Any] = _rounded(found)
    return rounded


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return round(value, _DIGITS)
        case dict():
            return {name: _rounded(each) for name, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
    return value


def main() -> int:
    """Run the task of the command line."""
    end_in_order()
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    found = run(task["tables"], task["policy"], task["plan"])
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
