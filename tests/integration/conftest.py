"""Real processes on this host: each test has its own EPS_HOME, and may leave no process behind."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import eps
from eps.system.waits import wait_for

#: Returns the report of an undisturbed job with these settings.
RunUndisturbed = Callable[..., dict[str, Any]]

#: Timeout for the exit of a process after SIGKILL, on a busy machine.
GONE_TIMEOUT_S = 20.0


def asked_phases(report: Mapping[str, Any]) -> list[str]:
    """Return the final phases of the changes that users requested.

    The job's own changes are left out: in the time between two changes, partitions that moved get followers.
    """
    return [change["phase"] for change in report["changes"] if change["asked_by"] == "user"]


def processes_with(text: str) -> list[int]:
    """Return the processes whose command line or environment names ``text``."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            blob = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in blob:
            found.append(int(entry.name))
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a fresh ``EPS_HOME``; at the end no process of its jobs and no shared memory may be left."""
    directory = tmp_path / "home"
    monkeypatch.setenv("EPS_HOME", str(directory))
    segments = set(os.listdir("/dev/shm"))
    yield directory
    wait_for(lambda: not processes_with(str(directory)), GONE_TIMEOUT_S, "the processes of the test's jobs to be gone")
    assert not [name for name in set(os.listdir("/dev/shm")) - segments if "eps" in name]
    for job in (directory / "jobs").glob("*"):
        assert not (job / "containers").exists() or not list((job / "containers").iterdir()), job


@pytest.fixture(scope="session")
def run_undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunUndisturbed:
    """Return a function that trains a job in a home of its own, once for all tests that compare with it."""
    reports: dict[str, dict[str, Any]] = {}

    def run(**settings: Any) -> dict[str, Any]:
        key = json.dumps(settings, sort_keys=True)
        if key not in reports:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("EPS_HOME", str(tmp_path_factory.mktemp("undisturbed")))
                report = eps.run(name="undisturbed", **settings)
            ledger = report["ledger"]
            assert report["state"] == "finished", report["reason"]
            assert (ledger["lost"], ledger["applied_twice"], ledger["applied"]) == (0, 0, ledger["expected"])
            reports[key] = report
        return reports[key]

    return run
