"""Fixtures of more than one file."""

from __future__ import annotations

from typing import Any

import pytest

from hscheduler.live import scheduler as live
from tests.hscheduler.world import FakeLive, World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Replace the jobs of live schedulers by records in memory."""
    world = World(0)

    def fake(job_id: str, launch: Any, metric: str, iteration: int, say: Any, *rest: Any) -> Any:
        return FakeLive(world, job_id, say)

    monkeypatch.setattr(live, "LiveJob", fake)
    return world
