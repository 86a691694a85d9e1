"""The leak check of ``conftest.py`` finds what it is there for."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.conftest import children, no_leftovers


def test_leak_check_finds_a_child_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in children()
    finally:
        child.communicate(b"\n")
    assert child.pid not in children()


def test_leak_check_looks_again_where_a_thread_ends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    glob, ended = Path.glob, [Path("/proc/self/task/0/children")]
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [*glob(self, pattern), *(ended.pop() for _ in ended[:])])
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in children()
        child.communicate(b"\n")
    assert not ended


def test_leak_check_finds_a_thread_that_does_not_end() -> None:
    check = no_leftovers.__wrapped__()  # type: ignore[attr-defined]
    next(check)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="left-over")
    thread.start()
    try:
        with pytest.raises(AssertionError, match="left-over"):
            next(check)
    finally:
        ended.set()
        thread.join()


def test_leak_check_accepts_a_clean_test(no_leftovers: None) -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
