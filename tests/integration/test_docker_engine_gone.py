"""A job whose Docker engine disappears for good: its processes are real, the engine and its containers are not."""

from __future__ import annotations

from pathlib import Path

import pytest

import eps
from eps.system.waits import wait_for
from tests.docker_host import no_engine
from tests.fakes.docker_engine import FakeDockerEngine

TIMEOUT_S = 60.0

#: The SDK does not close sockets whose connection failed.
pytestmark = pytest.mark.filterwarnings("ignore:.*socket:ResourceWarning")


def test_the_job_fails_in_time_says_what_to_do_and_can_be_resumed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeDockerEngine(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    engine.breaks_at = "/containers/create"
    job = {"data": "sklearn:digits", "model": "softmax", "workers": 1, "servers": 1, "splits": 2, "partitions": 2}
    try:
        with eps.Job.start(name="left", on="docker", engine_timeout_s=1.0, **job) as found:
            ended = found.wait(TIMEOUT_S)
        assert ended["state"] == "failed"
        assert ended["reason"].startswith(f"the Docker engine at {engine.url} has not answered for ")
        assert ended["reason"].endswith(
            " s (engine_timeout_s is 1): start it, then eps resume left restarts from the latest checkpoint, or from "
            "the seed if there is none"
        )
        engine.come_back()
        with eps.Job.resume("left") as found:
            wait_for(lambda: num_running(engine) == 2, TIMEOUT_S, "the resumed job's containers")
            found.kill()
    finally:
        with no_engine():
            engine.close()


def num_running(engine: FakeDockerEngine) -> int:
    with engine.changed:
        return sum(container.is_running for container in engine.containers.values())
