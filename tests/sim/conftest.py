"""``sim_seed``: one test for each seed of the run; ``crash_seed``: a fifth of them; ``eviction_seed``: a twentieth."""

from __future__ import annotations

import os

import pytest

from tests.tiers import seeds


@pytest.fixture(autouse=True)
def disk_that_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip syncs: no simulated machine loses power, so the next master sees all writes."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, share in (("sim_seed", 1), ("crash_seed", 5), ("eviction_seed", 20)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, seeds(metafunc.config, share))
