"""``sim_seed``: one test for each seed of the run; ``crash_seed``: a fifth of them; ``eviction_seed``: a twentieth."""

from __future__ import annotations

import os

import pytest

from tests.tiers import seeds


@pytest.fixture(autouse=True)
def disk_that_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls a plug here: what a simulated master has written is there for the next one without a sync."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, share in (("sim_seed", 1), ("crash_seed", 5), ("eviction_seed", 20)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, seeds(metafunc.config, share))
