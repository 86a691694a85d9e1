"""Jobs whose data, checkpoints and model are on a real HDFS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eps
from eps.job.predict import load, predict_file
from eps.spec.file import RunRequest
from eps.spec.model_file import read_model
from eps.storage.checkpoint import open_checkpoints
from eps.storage.locations import RemotePath, open_storage, write_public
from tests.integration.test_hdfs_safe_mode import start_published
from tests.integration.test_operations import TIMEOUT_S, wait_for_clock
from tests.integration.test_resume import kill_everything, resume, wait_for_checkpoints
from tests.yarn.hadoop import Hadoop

SETTINGS: dict[str, Any] = {
    "iterations": 120, "workers": 2, "servers": 2, "splits": 4, "partitions": 4, "learning_rate": 0.05,
}  # fmt: skip


@pytest.fixture
def folder(hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RemotePath]:
    """Return a folder on the HDFS of HADOOP_CONF_DIR with ``train.libsvm``, which is in ``tmp_path``, too."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))
    found = RemotePath.parse(f"hdfs:///jobs/{tmp_path.name}")
    draw = np.random.default_rng(0)
    X = draw.normal(size=(400, 30)).round(3)
    y = (X @ draw.normal(size=30) > 0).astype(int)
    rows = (f"{label} " + " ".join(f"{j + 1}:{x}" for j, x in enumerate(row)) for label, row in zip(y, X, strict=True))
    text = "\n".join(rows).encode()
    (tmp_path / "train.libsvm").write_bytes(text)
    write_public(found / "train.libsvm", text)
    yield found
    open_storage(found).remove("")


def test_data_checkpoints_and_model_on_hdfs_give_the_bits_of_a_local_job_across_a_kill(
    home: Path, hadoop: Hadoop, folder: RemotePath, tmp_path: Path
) -> None:
    data, export, places = folder / "train.libsvm", folder / "model.npz", folder / "c"
    here = eps.run(name="here", data=str(tmp_path / "train.libsvm"), **SETTINGS)
    settings = {"name": "there", "data": str(data), "checkpoint_dir": str(places), "checkpoint_every": "10"}
    job = start_published(RunRequest.from_values({**SETTINGS, **settings, "stretch_s": 0.02}), folder / "cache")
    wait_for_checkpoints(job, 1)
    kill_everything(job, home)
    assert not job.directory.checkpoints.exists()
    store = open_checkpoints(places / "there")
    (first, *_) = store.names()
    assert first.startswith("0001-") and store.verify(first).first_clock >= 10
    there = resume("there")
    assert there["model_sha256"] == here["model_sha256"]
    # It resumed from there, and wrote checkpoints of its own.
    assert store.names()[0].startswith("0002-")
    with eps.Job.find("there") as found:
        found.export(str(export))
    assert read_model(export).sha256 == here["model_sha256"]
    assert predict_file(load(str(export)), str(data)).metrics["accuracy"] > 0.9


def test_a_lost_datanode_costs_checkpoints_and_no_training(
    home: Path, hadoop: Hadoop, folder: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPS_HDFS_PATIENCE_S", "2")
    job = eps.Job.start(
        name="job", data=str(folder / "train.libsvm"), checkpoint_every="5", checkpoint_dir=str(folder / "c"),
        stretch_s=0.01, **{**SETTINGS, "iterations": 100_000},
    )  # fmt: skip
    try:
        wait_for_checkpoints(job, 1)
        hadoop.kill("datanode")
        try:
            hadoop.wait_until(lambda: job.status()["checkpoints"]["failed"] > 0, "a checkpoint to fail", TIMEOUT_S)
            told = job.status()["checkpoints"]["error"]
            assert "cannot be written" in told and "EPS_HDFS_PATIENCE_S" in told
            # No process waits for it.
            wait_for_clock(job, job.status()["clock"] + 20)
        finally:
            hadoop.restart("datanode")
        complete = job.status()["checkpoints"]["complete"]
        hadoop.wait_until(
            lambda: job.status()["checkpoints"]["complete"] > complete, "a checkpoint after the DataNode is back"
        )
        assert job.status()["state"] not in ("failed", "killed", "finished")
    finally:
        job.kill("seen")
        job.close()
