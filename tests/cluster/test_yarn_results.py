"""The files that a running job on YARN keeps in its folder, for the case that YARN kills it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eps.cluster.yarn.application import ENDED_FILE, PAGE_FILE, RESULTS
from eps.job.yarn import am, results
from eps.job.yarn.results import LEAST_S, REFRESH_S, Results, StatusRefresher
from eps.storage.atomic import write_json_atomic
from eps.storage.jobdir import MASTER_FILE, JobDir
from eps.storage.local import LocalStorage
from tests.cli.conftest import change_of, status_of

HISTORY = [{"clock": 0, "loss": 0.5}]


class World:
    """A job's directory, and its folder on the cluster."""

    def __init__(self, folder: Path) -> None:
        self.job, self.shared = JobDir(folder / "job"), LocalStorage(folder / "shared")
        self.job.path.mkdir()
        self.folder = folder / "shared"
        self.results = Results(self.job, self.shared)
        self.refresher = StatusRefresher(self.job, self.results, lambda most: HISTORY[:most])

    def says(self, **status: Any) -> None:
        write_json_atomic(self.job.status_json, status_of(**{"checkpoints": {"complete": 0}, **status}), sync=False)

    def left(self) -> dict[str, Any] | None:
        path = self.folder / RESULTS / "status.json"
        return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # Tests say when it looks.
    monkeypatch.setattr(results, "LOOK_S", 1e6)
    found = World(tmp_path)
    yield found
    found.refresher.close()


def clock_left(world: World, now_s: float) -> int | None:
    world.refresher.refresh(now_s)
    left = world.left()
    return None if left is None else left["clock"]


def test_the_status_is_left_now_and_then_and_sooner_with_a_checkpoint_or_a_change(world: World) -> None:
    assert clock_left(world, 0.0) is None, "there is none yet"
    world.says(clock=1)
    assert clock_left(world, 0.0) == 1
    left = world.left()
    assert left is not None and left["history"] == HISTORY
    world.says(clock=2)
    assert clock_left(world, REFRESH_S - 1) == 1 and clock_left(world, REFRESH_S) == 2
    world.says(clock=3, checkpoints={"complete": 1})
    assert clock_left(world, REFRESH_S + LEAST_S - 1) == 2 and clock_left(world, REFRESH_S + LEAST_S) == 3
    world.says(clock=4, checkpoints={"complete": 1}, changes=[change_of(1, "released")])
    assert clock_left(world, REFRESH_S + 2 * LEAST_S) == 4


def test_a_store_that_is_away_is_told_of_once_and_tried_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.says(clock=1)
    world.folder.write_text("in the way")
    for now_s in (0.0, REFRESH_S):
        world.refresher.refresh(now_s)
    assert caplog.text.count("the status cannot be uploaded") == 1
    world.folder.unlink()
    assert clock_left(world, 2 * REFRESH_S) == 1


def test_what_is_left_at_the_end_stays(world: World) -> None:
    world.says(clock=8)
    world.results.upload_results(0, "finished", "")
    assert {ENDED_FILE, PAGE_FILE, "status.json"} <= set(world.shared.names(RESULTS))
    world.says(clock=3)
    assert clock_left(world, time.monotonic()) == 8


def test_a_master_whose_successor_has_announced_itself_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LeftError(Exception):
        pass

    def leave(reason: str) -> None:
        raise LeftError(reason)

    monkeypatch.setattr(am, "exit_superseded", leave)
    world.says(clock=8)
    fenced = Results(world.job, world.shared, lambda: am.fence(world.job, world.shared, 2))
    for generation in (1, 2):
        (world.folder / MASTER_FILE).parent.mkdir(exist_ok=True)
        (world.folder / MASTER_FILE).write_text(json.dumps({"generation": generation}))
        fenced.upload_results(0, "finished", "")
    (world.folder / MASTER_FILE).write_text(json.dumps({"generation": 3}))
    with pytest.raises(LeftError, match="another job master"):
        fenced.upload_results(1, "failed", "it seemed so")
    assert json.loads((world.folder / RESULTS / ENDED_FILE).read_text())["state"] == "finished"


@pytest.mark.parametrize(("lifetime_s", "left_s"), [(3600.0, 3560.0), (40.0, 20.0), (8.0, 0.0), (1e300, 1e6)])
def test_a_job_ends_before_yarn_ends_its_application(lifetime_s: float, left_s: float) -> None:
    found = am.lifetime_left_s(lifetime_s, 1000.0, 1010.0)
    assert found == left_s if lifetime_s < 1e6 else found > left_s
