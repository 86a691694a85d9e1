"""Where a job's masters said that they listen, as the next one reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from eps.errors import StorageError
from eps.master.service import Announcements
from eps.storage.jobdir import JobDir
from tests.fakes.storage import MemoryStorage


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[]", "holds a list, but must hold an object"),
        (b'[["generation", 9]]', "holds a list, but must hold an object"),
        (b"3", "holds a int, but must hold an object"),
        (b"{", "is not JSON"),
    ],
)
def test_what_is_no_announcement_is_an_error_of_ours_wherever_it_is(tmp_path: Path, content: bytes, why: str) -> None:
    job, shared = JobDir(tmp_path), MemoryStorage()
    assert Announcements(job, shared).generation == 0
    shared.files["master.json"] = content
    with pytest.raises(StorageError, match=rf"master\.json: {why}"):
        Announcements(job, shared)
    job.master_json.write_bytes(content)
    with pytest.raises(StorageError, match=rf"{job.master_json}: {why}"):
        Announcements(job)
