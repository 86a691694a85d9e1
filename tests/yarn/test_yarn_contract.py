"""The contract suite of resource managers, on a real YARN.

The application master is an unmanaged one, in the process that has Java; the containers are real.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.contract import test_resources_contract as suite
from tests.yarn import unmanaged
from tests.yarn.in_java import InJava

#: The tests that every backend must pass: those whose only fixture starts a backend.
NAMES = [
    name
    for name, test in inspect.getmembers(suite, inspect.isfunction)
    if name.startswith("test_") and list(inspect.signature(test).parameters) == ["start"]
]


def test_the_whole_suite_is_found() -> None:
    assert len(NAMES) >= 18


@pytest.mark.parametrize("name", NAMES)
def test_yarn_keeps_the_contract(name: str, java: InJava, tmp_path: Path) -> None:
    java(unmanaged.contract, name, tmp_path)
