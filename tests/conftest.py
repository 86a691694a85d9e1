"""Options and fixtures for all tests."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

# Whoever runs the suite in the background of a script has told it, and all that it starts, to ignore interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Runs of a whole job that ``tests/sim`` plays where ``--seeds`` does not say otherwise.
DEFAULT_SEEDS = 300


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds", type=int, default=DEFAULT_SEEDS, help="how many seeds the simulated jobs of tests/sim play"
    )
    parser.addoption(
        "--every-kill",
        action="store_true",
        help="tests/integration/test_kill_in_plans.py: every victim in every phase of every plan, not a selection",
    )


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data sets, kept beside the repository; tests that need them are skipped visibly where they are not."""
    found = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not found.is_dir():
        pytest.skip(f"no data at {found.parent.name}/{found.name} beside the repository")
    return found


def children() -> dict[int, str]:
    """Return the processes that this process has started and that are not waited for: pid -> command line."""
    found: dict[int, str] = {}
    for task in Path("/proc/self/task").glob("*/children"):
        for pid in task.read_text().split():
            try:
                words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            found[int(pid)] = b" ".join(words).decode(errors="replace").strip()
    return found


@pytest.fixture
def no_leftovers() -> Iterator[None]:
    """Fail where a test leaves a child process or a thread that keeps the interpreter alive."""
    threads_before = set(threading.enumerate())
    children_before = set(children()) if os.path.exists("/proc/self/task") else None
    yield
    multiprocessing.active_children()
    if children_before is not None:
        left = {pid: line for pid, line in children().items() if pid not in children_before}
        assert not left, f"child processes are left: {left}"
    threads = [t.name for t in set(threading.enumerate()) - threads_before if t.is_alive() and not t.daemon]
    assert not threads, f"threads are left: {sorted(threads)}"
