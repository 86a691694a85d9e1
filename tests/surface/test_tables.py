"""These tests see nothing but the surface, so that everything inside may move."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

from tests.surface.table_python import MODULES

FILES = sorted(Path(__file__).parent.glob("*.py"))
OTHERS = {"numpy", "pandas", "pytest", "hyperopt", "optuna"}


def breaches(source: str) -> list[str]:
    """Return what a test of this folder does that needs more than the surface."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if not may_import(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for alias in node.names:
                # A name of a module of the table, or a module of the table itself.
                is_name = may_import(module) and (module not in MODULES or alias.name in MODULES[module])
                if node.level or not (is_name or f"{module}.{alias.name}" in MODULES):
                    found.append(f"{module}.{alias.name}")
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            found.append(f".{node.attr}")
    return found


def may_import(module: str) -> bool:
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names or top in OTHERS or module.startswith("tests.surface") or module in MODULES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_of_this_folder_needs_the_surface_only(path: Path) -> None:
    assert not breaches(path.read_text())


def test_what_needs_more_is_found() -> None:
    for line in (
        "import eps.client",
        "from eps.client import Job",
        "from eps import client",
        "from eps.storage.jobdir import JobDir",
        "from hscheduler.core import events",
        "from hscheduler.service.client import News",
        "from tests.fakes.webhdfs import FakeHdfs",
        "from . import conftest",
        "job._directory",
    ):
        assert breaches(line), line
    for line in ("import eps", "from eps import errors", "from eps import Job", "import eps.cli", "job.__class__"):
        assert not breaches(line), line


def test_the_modules_of_the_table_are_there() -> None:
    for name, names in MODULES.items():
        module = importlib.import_module(name)
        assert not [each for each in names if not hasattr(module, each)]
