"""``sim_seed``: one test for each seed that ``--seeds`` asks for; ``crash_seed``: for a fifth of them;
``eviction_seed``: for a twentieth."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def disk_that_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls a plug here: what a simulated master has written is there for the next one without a sync."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sim_seed" in metafunc.fixturenames:
        metafunc.parametrize("sim_seed", range(metafunc.config.getoption("--seeds")))
    if "crash_seed" in metafunc.fixturenames:
        metafunc.parametrize("crash_seed", range(max(1, metafunc.config.getoption("--seeds") // 5)))
    if "eviction_seed" in metafunc.fixturenames:
        metafunc.parametrize("eviction_seed", range(max(1, metafunc.config.getoption("--seeds") // 20)))
