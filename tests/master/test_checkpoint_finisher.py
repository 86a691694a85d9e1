"""Which checkpoints stay while the job master completes one, goes back, and ends."""

from __future__ import annotations

import queue
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eps.core import events as e
from eps.core.checkpoints import checkpoint_name
from eps.core.messages import CheckpointPartWritten
from eps.core.progress import ClockHistory
from eps.master.checkpoints import CheckpointFinisher
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import DataShape, Runtime
from eps.storage.api import tell
from eps.storage.checkpoint import PARTIAL, CheckpointStore, open_checkpoints, part_name
from eps.storage.claims import OWNER, claim, release

DEADLINE_S = 20.0
FIRST, SECOND = checkpoint_name(1, 10), checkpoint_name(1, 20)


class Rig:
    """A finisher on a store of its own."""

    def __init__(self, directory: Path, owner: str = "") -> None:
        shape = DataShape(5, 2, (4, 4), False, 0, ("", ""))
        spec = JobSpec(model="logistic", splits=2, workers=1)
        runtime = Runtime("job", spec, shape, directory, directory, owner=owner)
        self.store: CheckpointStore = open_checkpoints(directory)
        self._told: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
        self.finisher = CheckpointFinisher(runtime, self.store, lambda clock: ClockHistory(), self._told.put)

    def complete(self, checkpoint_id: int, clock: int, *told: e.Event) -> None:
        """Complete a checkpoint beside which none is to stay; ``told`` comes before that is told."""
        self._finish(checkpoint_id, clock)
        for event in (*told, e.CheckpointDone(checkpoint_id)):
            assert self._told.get(timeout=DEADLINE_S) == event

    def fail(self, checkpoint_id: int, clock: int) -> str:
        """Return why a checkpoint cannot be completed."""
        self._finish(checkpoint_id, clock)
        event = self._told.get(timeout=DEADLINE_S)
        assert isinstance(event, e.CheckpointFailed)
        return event.message

    def _finish(self, checkpoint_id: int, clock: int) -> None:
        file = part_name(0, "server-1")
        size_bytes, checksum = self.store.write_part(checkpoint_name(1, clock), file, [np.arange(clock)])
        part = CheckpointPartWritten("server-1", checkpoint_id, 0, file, size_bytes, checksum, (clock, clock), 0, 0)
        self.finisher.finish(e.FinishCheckpoint(checkpoint_id, 1, clock, (part,), 1, 1, 0, ()))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path)
    rig.complete(1, 10)
    rig.complete(2, 20)
    return rig


def test_the_one_before_stays_until_the_job_says_that_it_may_go(rig: Rig) -> None:
    assert rig.store.names() == [SECOND, FIRST]
    rig.finisher.remove_earlier(2)
    rig.finisher.close()
    assert rig.store.names() == [SECOND]


def test_what_the_job_went_back_to_stays(rig: Rig) -> None:
    rig.finisher.discard(e.DiscardCheckpoint(1, 20))
    rig.finisher.close()
    assert rig.store.names() == [SECOND, FIRST]


def test_a_job_that_ends_before_it_heard_of_its_last_checkpoint_leaves_no_more_than_it_keeps(rig: Rig) -> None:
    rig.finisher.close()
    assert rig.store.names() == [SECOND]


def test_what_the_store_waits_for_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = rig.store.finish

    def waiting(*args: Any) -> None:
        tell("hdfs://lake/manifest.json: cannot be written for now: why")
        finish(*args)

    monkeypatch.setattr(rig.store, "finish", waiting)
    rig.complete(3, 30, e.CheckpointWaits(3, "hdfs://lake/manifest.json: cannot be written for now: why"))
    rig.finisher.close()


def test_folder_that_was_removed_under_its_job_says_again_whose_it_is(tmp_path: Path) -> None:
    folder, owner = tmp_path / "a9a", "one:/jobs/a9a"
    claim(folder, owner)
    rig = Rig(folder, owner)
    rig.complete(1, 10)
    shutil.rmtree(folder)
    rig.complete(2, 20)
    assert rig.store.names() == [SECOND] and (folder / OWNER).read_text() == f"{owner}\n"
    assert release(rig.store.storage, owner) and not folder.exists()


def test_folder_that_is_somebody_elses_by_now_stays_so(tmp_path: Path) -> None:
    folder = tmp_path / "a9a"
    claim(folder, "one:/jobs/a9a")
    one = Rig(folder, "one:/jobs/a9a")
    one.complete(1, 10)
    shutil.rmtree(folder)
    claim(folder, "two:/jobs/a9a")
    two = Rig(folder, "two:/jobs/a9a")
    two.complete(1, 15)
    half = folder / f"{checkpoint_name(1, 20)}{PARTIAL}"
    half.mkdir()
    failed = one.fail(2, 20)
    assert "belongs to job two:/jobs/a9a now" in failed
    one.finisher.close()
    assert two.store.names() == [checkpoint_name(1, 15)] and half.is_dir()
    assert (folder / OWNER).read_text() == "two:/jobs/a9a\n"


def test_folder_of_the_job_itself_names_no_owner(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "checkpoints")
    rig.complete(1, 10)
    assert rig.store.storage.names("") == [FIRST]
