"""Options and fixtures for all tests."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Whoever runs the suite in the background of a script has told it, and all that it starts, to ignore interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Runs of a whole job that ``tests/sim`` plays where ``--seeds`` does not say otherwise.
DEFAULT_SEEDS = 300
#: Where the tests of whole jobs are, here and on a real Hadoop: real processes, several at a time.
JOBS = ("tests/integration/", "tests/yarn/")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds", type=int, default=DEFAULT_SEEDS, help="how many seeds the simulated jobs of tests/sim play"
    )
    parser.addoption(
        "--every-kill",
        action="store_true",
        help="tests/integration/test_kill_in_plans.py: every victim in every phase of every plan, not a selection",
    )
    parser.addoption(
        "--every-fault",
        action="store_true",
        help="tests/yarn: those marked every_fault as well, which take long: nodes and masters that YARN has to miss",
    )
    parser.addoption(
        "--every-hadoop",
        action="store_true",
        help="build the plugin against every line of Hadoop, not only the oldest; rare events on a real YARN, too",
    )
    parser.addoption(
        "--members", type=int, default=200, help="tests/master/test_many_members.py: how many members its job has"
    )
    parser.addoption(
        "--kerberos", action="store_true", help="tests/yarn/test_secure.py: start a second Hadoop, which wants Kerberos"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let all tests of whole jobs run one after the other on one worker; others file by file beside them.

    A job's processes use every core for moments only: what computes in one process fits in between, a second job would
    not.  Those on a real Hadoop wait for its daemons most of the time, so they are among the others, on one worker.
    """
    from xdist.scheduler import LoadScopeScheduling

    class OneJobAtATime(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((folder for folder in JOBS if file.startswith(folder)), file)

    # In the order of pytest_collection_modifyitems.
    config.option.loadscopereorder = False
    return OneJobAtATime(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest where tests run side by side; leave out what is only played when asked for."""
    if not config.getoption("--every-fault"):
        left_out = [item for item in items if item.get_closest_marker("every_fault")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: [not item.nodeid.startswith(folder) for folder in JOBS])


def pytest_collection_finish() -> None:
    """Let collections of garbage pass over what is there for good: thousands of tests, and all modules."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data sets, kept beside the repository; tests that need them are skipped visibly where they are not."""
    found = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not found.is_dir():
        pytest.skip(f"no data at {found.parent.name}/{found.name} beside the repository")
    return found


def children() -> dict[int, str]:
    """Return the processes that this process has started and that are not waited for: pid -> command line."""
    try:
        pids = [pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        # A thread has ended meanwhile: its children are another's now.
        return children()
    found: dict[int, str] = {}
    for pid in pids:
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
