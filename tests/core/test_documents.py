"""What the documents show of the code is what the code says."""

from __future__ import annotations

from pathlib import Path

from eps.core.reconfig import diagram


def test_architecture_shows_the_life_of_a_plan_as_the_table_draws_it() -> None:
    page = Path(__file__).parents[2] / "ARCHITECTURE.md"
    assert diagram() in page.read_text(encoding="utf-8")
