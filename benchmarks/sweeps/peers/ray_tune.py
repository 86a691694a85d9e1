"""A sweep with Ray Tune's ASHA, in Ray's own environment; only Ray and the standard library are imported.

    python ray_tune.py TASK.json RESULT.json

A trial emulates its iterations: it sleeps for the measured time of an iteration at its width, and reports the recorded
metric of its point.  The clock starts when the first trials' actors are up, so that their start counts for nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, ResourceChangingScheduler
from ray.tune.schedulers.resource_changing_scheduler import DistributeResources

METRIC, TIME = "value", "iterations_done"
START_TIMEOUT_S = 300.0


class Emulated(tune.Trainable):
    """A trial: it sleeps instead of computing."""

    def setup(self, config: dict[str, Any]) -> None:
        """Read the task; wait until all actors of the first trials are up."""
        self.task = json.loads(Path(config["task"]).read_text(encoding="utf-8"))
        self.number, self.done = config["number"], 0
        self._wait_for_the_others(Path(config["folder"]))

    def _wait_for_the_others(self, folder: Path) -> None:
        (folder / f"up-{self.number}").touch()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (folder / "go").exists():
            if len(list(folder.glob("up-*"))) >= self.task["first"]:
                (folder / "go").touch()
            if time.monotonic() > deadline:
                raise RuntimeError("the first trials' actors did not start")
            time.sleep(0.02)

    def step(self) -> dict[str, Any]:
        """Train to the next report."""
        target = next(at for at in self.task["reports"] if at > self.done)
        width = round(self.trial_resources.required_resources["CPU"])
        time.sleep(self.task["iteration_s"][str(width)] * (target - self.done))
        self.done = target
        value = self.task["values"][self.number][self.task["reports"].index(target)]
        return {TIME: self.done, METRIC: value, "width": width, "number": self.number, "at_s": time.time()}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial in the same actor."""
        self.number, self.done = new_config["number"], 0
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Keep what is trained."""
        (Path(checkpoint_dir) / "done").write_text(str(self.done), encoding="utf-8")

    def load_checkpoint(self, checkpoint: str) -> None:
        """Go on from what was kept."""
        self.done = int((Path(checkpoint) / "done").read_text(encoding="utf-8"))


class Reports(tune.Callback):
    """Keeps all reports."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        """Keep a report."""
        self.found.append({name: result[name] for name in (TIME, METRIC, "width", "number", "at_s")})


def main() -> None:
    """Run the sweep of a task."""
    path = Path(sys.argv[1]).resolve()
    task = json.loads(path.read_text(encoding="utf-8"))
    folder = path.parent
    ray.init(
        num_cpus=task["cpus"],
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
        _temp_dir=os.environ["SWEEPS_RAY_FOLDER"],
    )
    rungs = task["rungs"]
    asha: Any = ASHAScheduler(
        time_attr=TIME, max_t=rungs[-1], grace_period=rungs[0], reduction_factor=task["eta"], brackets=1
    )
    if task["resizes"]:
        asha = ResourceChangingScheduler(asha, DistributeResources())
    reports = Reports()
    tuner = tune.Tuner(
        tune.with_resources(Emulated, {"cpu": task["width"]}),
        param_space={
            "number": tune.grid_search(list(range(task["trials"]))),
            "task": str(path),
            "folder": str(folder),
        },
        tune_config=tune.TuneConfig(
            metric=METRIC, mode="min", scheduler=asha, num_samples=1, reuse_actors=not task["resizes"]
        ),
        run_config=tune.RunConfig(storage_path=str(folder / "results"), verbose=0, callbacks=[reports]),
    )
    grid = tuner.fit()
    ended_s = time.time()
    began_s = (folder / "go").stat().st_mtime
    if grid.errors:
        raise SystemExit(f"trials failed: {grid.errors[0]}")
    trained: dict[int, int] = {}
    for each in reports.found:
        trained[each["number"]] = max(trained.get(each["number"], 0), each[TIME])
    document = {
        "makespan_s": ended_s - began_s,
        "began_s": began_s,
        "ended_s": ended_s,
        "iterations_trained": sum(trained.values()),
        "reports": [
            [round(each["at_s"] - began_s, 3), each["number"], each[TIME], each[METRIC], each["width"]]
            for each in reports.found
        ],
    }
    Path(sys.argv[2]).write_text(json.dumps(document), encoding="utf-8")
    ray.shutdown()


if __name__ == "__main__":
    main()
