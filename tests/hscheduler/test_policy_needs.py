"""The scheduler provides what a policy declares to need; and the built-in policies declare theirs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eps.spec.job_spec import JobSpec
from hscheduler.core import events as e
from hscheduler.core.decisions import Decision, Policy, View, needing, needs_of
from hscheduler.core.jobs import Job
from hscheduler.core.rungs import Rungs, Stopping
from hscheduler.live import scheduler as live
from hscheduler.live.scheduler import CHECKPOINT_EVERY, RECORDED_EVERY, LiveScheduler, LiveSettings, checkpoints_at
from hscheduler.policies import POLICIES
from hscheduler.policies.static import static
from hscheduler.record.sqlite import SqliteRecord
from hscheduler.simulator.engine import Simulation
from hscheduler.simulator.models import Costs, SpeedModel
from hscheduler.simulator.run import simulate
from hscheduler.simulator.workload import SimulatedJob
from hscheduler.spec import Spec
from tests.hscheduler.toy import nodes, request
from tests.hscheduler.world import FakeLive, World

TIMEOUT_S = 20.0
SPEC: dict[str, Any] = {
    "sweep": {"trials": 14, "threshold": 3, "arrival": "poisson:2s"},
    "job": {"workers": 2, "servers": 1, "iterations": 400, "stretch_s": 0.004},
}


def seen_by(declare: Callable[[Policy], Policy]) -> list[int]:
    """Return the first job's progress, as the policy sees it whenever the second job is the head of the queue."""
    seen: list[int] = []

    @declare
    def policy(view: View) -> Decision:
        if view.queue and view.queue[0].job_id == "b":
            seen.extend(job.iteration for job in view.running())
        return static(view)

    speed = SpeedModel(12, 0.125, 0.0)
    jobs = [SimulatedJob(at_s, request(name), 40, speed, 0.5, 0.25) for name, at_s in (("a", 0.0), ("b", 20.0))]
    Simulation(nodes(1), policy, jobs, Costs(start_s=1.0), 10).run()
    return seen


def test_a_policy_that_needs_progress_sees_it() -> None:
    # Each iteration takes 0.75 s since the job started.
    assert seen_by(needing(progress=True))[0] == int((20.0 - 1.0) / 0.75)
    assert seen_by(lambda policy: policy)[0] == 10, "its speed was known after ten iterations"


@pytest.mark.parametrize("where", ("local", "yarn"))
@pytest.mark.parametrize("declares", (True, False))
def test_the_jobs_of_a_policy_that_restarts_them_have_checkpoints(
    declares: bool, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def policy(view: View) -> Decision:
        return static(view)

    specs: dict[str, JobSpec] = {}

    def fake(job_id: str, launch: Any, metric: str, iteration: int, say: Any, *rest: Any) -> Any:
        specs[job_id] = launch.spec
        return FakeLive(World(0), job_id, say)

    monkeypatch.setattr(live, "LiveJob", fake)
    # As in an application master.
    monkeypatch.setattr(live, "check_place", lambda job, settings: None)
    monkeypatch.setitem(POLICIES, "mine", needing(checkpoints=True)(policy) if declares else policy)
    with LiveScheduler(nodes(2), LiveSettings("mine", job_settings={"on": where})) as scheduler:
        for name, every in (("t1", ""), ("t2", "7")):
            scheduler.submit(e.JobSubmitted(request(name)), JobSpec(checkpoint_every=every))
        scheduler.settle(TIMEOUT_S)
    usual = RECORDED_EVERY if where == "yarn" else CHECKPOINT_EVERY
    assert {name: spec.checkpoint_every for name, spec in specs.items()} == {
        "t1": usual if declares else "",
        "t2": "7",
    }


def test_a_trial_is_evaluated_when_it_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    specs: dict[str, JobSpec] = {}

    def fake(job_id: str, launch: Any, metric: str, iteration: int, say: Any, *rest: Any) -> Any:
        specs[job_id] = launch.spec
        return FakeLive(World(0), job_id, say)

    monkeypatch.setattr(live, "LiveJob", fake)
    with LiveScheduler(nodes(3), LiveSettings("static")) as scheduler:
        scheduler.open_sweep(e.SweepOpened("sweep", metric="accuracy", feedback_iteration=12))
        for name, settings in (("t1", {}), ("t2", {"eval_every": 5}), ("t3", {"iterations": 250})):
            spec = JobSpec.from_dict({"iterations": 1000, "test": "0.2", **settings})
            scheduler.submit(e.JobSubmitted(request(name)), spec)
        scheduler.settle(TIMEOUT_S)
    assert [specs[name].evaluation_clocks for name in ("t1", "t2", "t3")] == [6, 5, 2]
    assert specs["t1"].evaluate_at(11) and not specs["t1"].evaluate_at(12), "iteration 12 is clock 11"


def test_a_trial_that_pauses_takes_checkpoints_at_its_rungs_alone() -> None:
    assert checkpoints_at(Rungs(12, 3), 324, restarts=False) == "12,36,108"
    assert checkpoints_at(Rungs(12, 3, 100), 324, restarts=False) == "12,36"
    assert checkpoints_at(Rungs(30, 3), 324, restarts=True) == "3", "from which it restarts with another size"


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_each_policy_declares_what_it_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    decides: list[bool] = []
    at = Job.iteration
    restarts = 0

    class Watched(Job):
        """A job that notes when a policy reads its progress."""

        @property
        def iteration(self) -> int:
            if decides:
                looked.append(name)
            return int(at.__get__(self))

        @iteration.setter
        def iteration(self, value: int) -> None:
            at.__set__(self, value)

        @property
        def may_shrink(self) -> bool:
            # It is notified of changes.
            return self.no_shrink_from != self.size or int(at.__get__(self)) >= self.no_shrink_before

    monkeypatch.setattr("hscheduler.core.state.Job", Watched)
    policy = POLICIES[name]

    def watched(view: View) -> Decision:
        decides.append(True)
        try:
            return policy(view)
        finally:
            decides.clear()

    monkeypatch.setitem(POLICIES, name, needing(progress=needs_of(policy).progress)(watched))
    for seed in range(3):
        found = simulate(Spec.of({**SPEC, "sweep": {**SPEC["sweep"], "seed": seed}}), name)
        restarts += sum(trial["restarts"] for trial in found["trials"])
    assert needs_of(policy).checkpoints == bool(restarts)
    assert needs_of(policy).progress == bool(looked)


@pytest.mark.parametrize(
    ("first", "every"), [(12, f"12,36,108,{RECORDED_EVERY}"), (200, f"200,{RECORDED_EVERY}"), (400, RECORDED_EVERY)]
)
def test_a_recorded_sweep_whose_trials_pause_loses_no_more_than_another(
    first: int, every: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs: dict[str, JobSpec] = {}

    def fake(job_id: str, launch: Any, metric: str, iteration: int, say: Any, *rest: Any) -> Any:
        specs[job_id] = launch.spec
        return FakeLive(World(0), job_id, say)

    monkeypatch.setattr(live, "LiveJob", fake)
    with LiveScheduler(nodes(2), LiveSettings("static"), record=SqliteRecord(tmp_path / "record")) as scheduler:
        scheduler.open_sweep(e.SweepOpened("sweep", stopping=Stopping("sha", 3, first), feedback_iteration=12))
        scheduler.submit(e.JobSubmitted(request("t")), JobSpec(iterations=324))
        scheduler.settle(TIMEOUT_S)
    assert specs["t"].checkpoint_every == every
