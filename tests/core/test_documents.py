"""What the documents show of the code is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from eps.core.reconfig import diagram

ROOT = Path(__file__).resolve().parents[2]


def test_architecture_shows_the_life_of_a_plan_as_the_table_draws_it() -> None:
    assert diagram() in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_tests_that_the_table_of_faults_names_are_there() -> None:
    page = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    named = set(re.findall(r"`(?:tests/[\w/]*)?(test_\w+)(?:\.py)?`", page))
    assert len(named) > 30
    for name in named:
        assert f"{name}.py" in files or any(f"def {name}(" in text for text in files.values()), name


def test_files_that_the_map_names_are_there() -> None:
    inside = re.compile(r"`((?:eps|hscheduler|tests|tools|proto|docs)/[\w/.-]+)`")
    for page in ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/internals.md"):
        for name in set(inside.findall((ROOT / page).read_text(encoding="utf-8"))):
            assert (ROOT / name).exists(), f"{page}: {name}"
