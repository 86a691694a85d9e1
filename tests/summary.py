"""What is printed at the end of a run: the seconds of each folder beside its budget, and why tests were skipped."""

from __future__ import annotations

import os
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

BUDGETS = Path(__file__).with_name("budgets.toml")
_begun_s = time.monotonic()
#: Of this process and of those that it has waited for, at the end of the last phase of a test.
_cpu_s = 0.0
#: Folder -> seconds of its tests, those of a core that they and their processes used, and how many they are.
_spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
#: Test -> the same seconds.
_tests: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])


def folder_of(nodeid: str) -> str:
    """Return the folder of a test below ``tests``, or ``benchmarks``."""
    top, *words = nodeid.partition("::")[0].split("/")
    return top if top != "tests" else words[0] if len(words) > 1 else "."


def budgets() -> dict[str, float]:
    """Return folder -> seconds that the gate may take for it on two quiet cores."""
    return tomllib.loads(BUDGETS.read_text(encoding="utf-8"))["seconds"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", type=float, metavar="SECONDS", help="fail where the whole run takes longer")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Write into the report of a phase how much it has computed."""
    global _cpu_s
    report = yield
    now_s = sum(os.times()[:4])
    report.cpu_s, _cpu_s = now_s - _cpu_s, now_s
    return report


def pytest_sessionstart() -> None:
    global _begun_s, _cpu_s
    _begun_s, _cpu_s = time.monotonic(), sum(os.times()[:4])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for spent in (_spent[folder_of(report.nodeid)], _tests[report.nodeid]):
        spent[0] += report.duration
        spent[1] += getattr(report, "cpu_s", 0.0)
    _spent[folder_of(report.nodeid)][2] += report.when == "call"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep the seconds for the next run to look at; fail a run that was to be shorter."""
    if hasattr(session.config, "workerinput"):
        return
    limit_s = session.config.getoption("--budget")
    if limit_s is not None and time.monotonic() - _begun_s > limit_s and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    cache = getattr(session.config, "cache", None)
    if cache is not None:
        # In .pytest_cache/v/durations.
        for name, found in (("folders", _spent), ("tests", _tests)):
            slowest = sorted(found.items(), key=lambda entry: -entry[1][0])
            cache.set(f"durations/{name}", {where: [round(n, 2) for n in spent] for where, spent in slowest})


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    write, whole_s = terminalreporter.write_line, time.monotonic() - _begun_s
    reasons = Counter(_why(report) for report in terminalreporter.stats.get("skipped", ()))
    if reasons:
        terminalreporter.section("skipped")
        for reason, count in reasons.most_common():
            write(f"{count:5} {reason}")
    if not _spent or config.option.collectonly:
        return
    terminalreporter.section("seconds of each folder")
    allowed = budgets()
    write(f"{'folder':12} {'tests':>6} {'took':>7} {'of cpu':>7} {'budget':>7}")
    for name, (took_s, cpu_s, tests) in sorted(_spent.items(), key=lambda entry: -entry[1][0]):
        limit_s = allowed.get(name, 0.0)
        write(f"{name:12} {tests:6} {took_s:7.1f} {cpu_s:7.1f} {limit_s:7.0f}{'  over' * (took_s > limit_s)}")
    took_s, cpu_s = (sum(spent[place] for spent in _spent.values()) for place in (0, 1))
    write(f"{'all':12} {sum(spent[2] for spent in _spent.values()):6} {took_s:7.1f} {cpu_s:7.1f}  in {whole_s:.0f} s")
    limit_s = config.getoption("--budget")
    if limit_s is not None and whole_s > limit_s:
        write(f"The run took {whole_s:.0f} s, more than the {limit_s:.0f} s of --budget.", red=True)


def _why(report: Any) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")
