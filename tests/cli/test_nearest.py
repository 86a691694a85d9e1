"""The known name that a misspelt one is nearest to."""

from __future__ import annotations

import pytest

from eps.system.nearest import did_you_mean

JOBS = ("digits-trial-1", "digits-trial-11", "digits-2-trial-1", "mine")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("trial-1", "; did you mean digits-trial-1 or digits-2-trial-1?"),
        ("mien", "; did you mean mine?"),
        ("digits-trail-11", "; did you mean digits-trial-11?"),
        ("other", ""),
        ("", ""),
    ],
)
def test_a_name_without_its_beginning_is_nearer_than_a_similar_one(word: str, hint: str) -> None:
    assert did_you_mean(word, JOBS) == hint
