"""``tools/attack.py``: a process of another user attacks a job and its scheduler; and the script notices a breach."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import lacks, require
from tests.integration.conftest import processes_with
from tests.tiers import of_tier
from tools.rogue import MARK
from tools.victims import Facts, judge_report, scan

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "attack.py"
TIMEOUT_S = 600.0
#: The least number of attempts of a run, on a busy machine.
FEWEST_KINDS, FEWEST_ATTEMPTS = 10, 20
LEDGER = {"lost": 0, "applied_twice": 0, "applied": 12, "expected": 12}


@pytest.fixture
def attack(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the command; at the end no process and no file of it may be left."""
    # The command starts a process of another user.
    require("root")
    probe = [sys.executable, "-c", "from tools.attack import isolate; isolate()"]
    if subprocess.run(probe, cwd=SCRIPT.parents[1], capture_output=True, timeout=TIMEOUT_S).returncode:
        lacks("root", "this one may not make network namespaces (CAP_SYS_ADMIN)")
    # Its own, because another run of this test may be attacking; the other user must reach it.
    with tempfile.TemporaryDirectory(prefix="eps-") as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setenv("TMPDIR", folder)
        yield [sys.executable, str(SCRIPT)]
        assert not os.listdir(folder)
        assert not processes_with(folder)


def test_a_process_of_another_user_is_refused_and_stops_nothing(attack: list[str], pytestconfig: pytest.Config) -> None:
    seconds = of_tier(pytestconfig, "8", "15")
    run = subprocess.run([*attack, "--seconds", seconds, "--json"], capture_output=True, timeout=TIMEOUT_S)
    assert run.stdout, run.stderr.decode()
    found = json.loads(run.stdout)
    assert (found["believed"], found["stopped"]) == ([], [])
    assert (found["lost"], found["applied_twice"], found["other_models"]) == (0, 0, 0)
    assert run.returncode == 0, run.stderr.decode()
    assert len(found["attempts"]) >= FEWEST_KINDS, found["attempts"]
    assert sum(sum(counts.values()) for counts in found["attempts"].values()) >= FEWEST_ATTEMPTS
    for name in ("jobs", "masters killed", "honest answers", "changes asked", "pages answered", "trials finished"):
        assert found["done"].get(name), found["done"]


def test_an_attack_that_is_interrupted_leaves_nothing(attack: list[str]) -> None:
    process = subprocess.Popen([*attack, "--seconds", "60"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("job 1,"):
            process.send_signal(signal.SIGINT)
            break
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130


def test_users_other_than_root_are_refused() -> None:
    code = f"import os, runpy; os.geteuid = lambda: 1000; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert run.returncode == 2 and "root" in run.stderr and not run.stdout


def found_of(**changes: Any) -> Facts:
    facts = Facts()
    report = {"state": "finished", "model_sha256": "a" * 64, "ledger": LEDGER, "reason": ""}
    judge_report(facts, {**report, **changes}, "a" * 64)
    return facts


def test_the_verdict_follows_from_the_end_of_the_job(tmp_path: Path) -> None:
    assert found_of().holds
    assert found_of(state="failed").stopped
    assert found_of(model_sha256="b" * 64).other_models == 1
    assert found_of(ledger={**LEDGER, "lost": 2}).lost == 2
    assert found_of(ledger={**LEDGER, "applied_twice": 1}).applied_twice == 1
    assert found_of(ledger={**LEDGER, "applied": 11}).stopped
    for facts in (found_of(state="failed"), found_of(model_sha256="b" * 64), found_of(ledger={**LEDGER, "lost": 2})):
        assert not facts.holds


def test_an_accepted_forgery_is_found(tmp_path: Path) -> None:
    facts = Facts()
    facts.hear("a client", {"name": "victim", "state": "running"})
    (tmp_path / "honest.log").write_text("all is well\n")
    scan(facts, tmp_path)
    assert facts.holds
    facts.hear("a client", {"name": MARK, "state": "finished"})
    (tmp_path / "worker.log").write_text(f"all is well\nM ends: {MARK}\n")
    scan(facts, tmp_path)
    assert len(facts.believed) == 2 and "worker.log" in facts.believed[1] and not facts.holds
