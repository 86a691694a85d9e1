"""Fixtures of the tests of ``eps.data``."""

from __future__ import annotations

from pathlib import Path

import pytest

_SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data beside the checkout; tests that need it skip where it is absent."""
    if not _SHARED_DATA.is_dir():
        pytest.skip("real data is not here: expected in ../shared/data beside the checkout")
    return _SHARED_DATA
