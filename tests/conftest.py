"""What tests need of the machine, and fixtures for all of them."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

# Whoever runs the suite in the background of a script has told it, and all that it starts, to ignore interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Sweeps have by default as many containers as the host has cores, but at least 16: in tests 16 everywhere.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:16])

# As in a job's processes: products of matrices that take every core take them from the tests beside them.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

#: What tests need of the machine and skip without, joined by commas: where one of these is absent, its tests fail.
REQUIRE = "EPS_REQUIRE"
#: Beside the repository.
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def _why_no_java() -> str:
    there = os.environ.get("JAVA_HOME") or shutil.which("java")
    return "" if there else "there is no JDK: install one to test with Java (apt install openjdk-17-jdk-headless)"


def _why_no_docker() -> str:
    from tests.docker_host import why_no_docker

    return why_no_docker()


def _why_no_chromium() -> str:
    from tests.browser import PROGRAMS, find_browser

    return "" if find_browser() else f"none of {', '.join(PROGRAMS)} is installed"


def _why_no_data() -> str:
    return "" if DATA.is_dir() else f"there is no {DATA.parent.name}/{DATA.name} beside the repository"


def _why_no_root() -> str:
    return "" if os.geteuid() == 0 else "these tests run as root only"


#: By kind: returns why it is absent, or nothing.
KINDS = {
    "java": _why_no_java,
    "docker": _why_no_docker,
    "chromium": _why_no_chromium,
    "data": _why_no_data,
    "root": _why_no_root,
    # Packages that `pytest.importorskip` looks for.
    "extras": str,
}


def required() -> frozenset[str]:
    """Return the kinds that the environment requires.

    Raises
    ------
    pytest.UsageError
        It names a kind that there is not.
    """
    words = frozenset(filter(None, (word.strip() for word in os.environ.get(REQUIRE, "").split(","))))
    if unknown := words - KINDS.keys():
        raise pytest.UsageError(f"{REQUIRE} has {', '.join(sorted(unknown))}, but may have {', '.join(KINDS)}")
    return words


def lacks(kind: str, why: str) -> NoReturn:
    """Skip a test because something of a kind is absent; fail it where that is required."""
    if kind in required():
        pytest.fail(f"{kind} is required by {REQUIRE}: {why}", pytrace=False)
    pytest.skip(f"{kind}: {why}")


def require(kind: str) -> None:
    """Skip or fail a test, as :func:`lacks` does, unless this machine has what it needs."""
    if why := KINDS[kind]():
        lacks(kind, why)


def pytest_configure() -> None:
    """Refuse unknown words at once."""
    required()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a test fail that is skipped because a package is not installed, where extras are required."""
    report = yield
    if report.skipped and call.excinfo is not None and call.excinfo.traceback[-1].name == "importorskip":
        _fail_for_want_of_extras(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Do so with files: the only ones that are skipped whole lack a package."""
    report = yield
    if report.skipped:
        _fail_for_want_of_extras(report)
    return report


def _fail_for_want_of_extras(report: pytest.TestReport | pytest.CollectReport) -> None:
    if "extras" in required():
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"extras is required by {REQUIRE}: {reason}"


def pytest_collection_finish() -> None:
    """Let collections of garbage pass over what is there for good: thousands of tests, and all modules."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Give the folder of real data sets."""
    require("data")
    return DATA


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
