"""An HDFS of one test, which is waited for as long as a busy machine may need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.webhdfs import FakeHdfs


@pytest.fixture
def hdfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHdfs]:
    """Give it; nothing is in it."""
    monkeypatch.setenv("EPS_HDFS_PATIENCE_S", "20")
    with FakeHdfs() as found:
        yield found
