"""``sim_seed``: one test for each seed that ``--seeds`` asks for; ``crash_seed``: for a fifth of them."""

from __future__ import annotations

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sim_seed" in metafunc.fixturenames:
        metafunc.parametrize("sim_seed", range(metafunc.config.getoption("--seeds")))
    if "crash_seed" in metafunc.fixturenames:
        metafunc.parametrize("crash_seed", range(max(1, metafunc.config.getoption("--seeds") // 5)))
