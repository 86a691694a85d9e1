"""Atomic writes of files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from eps.errors import StorageError
from eps.storage.atomic import atomic_writer, read_json, write_bytes_atomic, write_json_atomic
from tests.fakes.storage import directories_cannot_be_synced


def test_a_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes_atomic(path, b"one")
    write_bytes_atomic(path, b"two", sync=False)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes_atomic(path, b"old")
    with pytest.raises(KeyboardInterrupt), atomic_writer(path) as file:
        file.write(b"ne")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_cannot_be_made_durable_is_an_error_and_leaves_a_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_bytes_atomic(path, b"old")
    directories_cannot_be_synced(monkeypatch)
    with pytest.raises(StorageError, match="cannot sync the directory"):
        write_bytes_atomic(path, b"new")
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def test_a_write_that_cannot_be_done_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="missing/file"):
        write_bytes_atomic(tmp_path / "missing" / "file", b"")


def test_json_survives(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json_atomic(path, {"a": [1, 0.1, None, "ü"]})
    assert read_json(path) == {"a": [1, 0.1, None, "ü"]}


def test_json_that_is_missing_is_none_and_json_that_is_not_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert read_json(path) is None
    for text in ("", "{", "[1]"):
        path.write_text(text)
        with pytest.raises(StorageError, match=r"x\.json"):
            read_json(path)


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()))
    reader.start()
    write_bytes_atomic(path, b"one")
    reader.join(10)
    assert found == [b"one"] and path.is_fifo()
