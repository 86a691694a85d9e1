"""What a job tells about itself in its log."""

from __future__ import annotations

from typing import Any

import pytest

from eps.master.records import line_of


@pytest.mark.parametrize(
    ("record", "line"),
    [
        ({"kind": "ended", "state": "killed", "reason": "", "at_s": 1.5}, "ended state=killed"),
        (
            {"kind": "proposed", "plan": 1, "added": ["worker-3", "worker-4"], "removed": []},
            "proposed plan=1 added=worker-3,worker-4",
        ),
        ({"kind": "proposed", "moves": [[0, "server-1", "server-2"], []]}, "proposed moves=0:server-1:server-2,-"),
    ],
)
def test_a_line_of_the_log_is_words_and_values(record: dict[str, Any], line: str) -> None:
    assert line_of(record) == line
