"""Messages on the results of an interrupted sweep, or of deleted jobs; and the demo exports a model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hscheduler import cli
from hscheduler.page import LiveReports
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60.0
TABLES: dict[str, Any] = {
    "sweep": {"trials": 4, "algorithm": "random"},
    "space": {"learning_rate": {"uniform": [0, 1]}},
    "job": {"iterations": 300},
}
SPEC = """
[sweep]
trials = 4
algorithm = "random"
"""


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return json.loads(json.dumps(simulate(Spec.of(TABLES), "elastic")))


class Interrupted:
    """A sweep that Ctrl-C interrupts."""

    def __init__(self, found: dict[str, Any], has_begun: bool) -> None:
        self.spec = Spec.of(TABLES)
        self.scheduler = SimpleNamespace(has_ended=True) if has_begun else None
        self.name_of = self.result_of = str
        self._found = found

    def run(self, record: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    def report(self) -> dict[str, Any]:
        return self._found


@pytest.mark.parametrize("finished", [4, 1, 0, None])
def test_an_interruption_reports_the_results(
    report: dict[str, Any],
    finished: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {**report, "completed": finished, "best": report["best"] if finished else None}
    running = Interrupted(found, finished is not None)
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    # Whether it can be trained does not matter here.
    monkeypatch.setattr("hscheduler.runners.check_sweep", lambda spec, **named: None)
    monkeypatch.setattr("hscheduler.runners.Sweep", lambda *given, **named: running)
    served: list[Any] = []
    monkeypatch.setattr(LiveReports, "end", lambda live, reports: served.extend(reports.values()))
    spec, target, page = tmp_path / "sweep.toml", tmp_path / "report.json", tmp_path / "page.html"
    spec.write_text(SPEC)
    assert cli.main(["sweep", str(spec), "--report", str(target), "--page", str(page), "--web", "0"]) == 130
    told = capsys.readouterr().err.splitlines()
    if finished is None:
        resumes = "hscheduler sweep --resume sweep continues it, with every result"
        assert told == ["interrupted: no trial had started", resumes] and not served
        return
    number = {4: "4 trials", 1: "1 trial", 0: "0 trials"}[finished]
    first = f"interrupted: {number} had finished, the others were ended"
    best = report["best"]
    rate = best["point"]["learning_rate"]
    of_best = f"{best['job_id']} with loss {best['loss']:.6g}: learning_rate = {rate:.6g}"
    if not finished:
        # No trial has finished: the best value that is known.
        _, value, job_id = report["anytime"][-1]
        of_best = f"{job_id} with loss {value:.6g}: "
    assert told[0].startswith(f"{first}; best so far: {of_best}")
    resumes = "hscheduler sweep --resume sweep continues it, with every result"
    assert told[1:] == [f"report: {target}", f"page: {page}", resumes]
    written = json.loads(target.read_text())
    assert written["completed"] == finished and page.exists()
    assert (written["name"], written["state"]) == ("sweep", "interrupted")
    assert [each["state"] for each in served] == ["interrupted"], "an open page shows the end"


def test_a_missing_model_is_reported_with_its_home(
    report: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path))
    path, best = tmp_path / "report.json", report["best"]["job_id"]
    trials = [{**trial, "name": f"sweep-0a1b2c-{trial['job_id']}"} for trial in report["trials"]]
    path.write_text(json.dumps({**report, "trials": trials}))
    assert cli.main(["results", str(path), "--export-best", str(tmp_path / "model.npz")]) == 4
    told = capsys.readouterr().err
    assert f"model is that of {best}, but its job 'sweep-0a1b2c-{best}' is not under EPS_HOME ({tmp_path})" in told
    assert "unless the job was deleted" in told


@pytest.mark.parametrize("own_report", [False, True])
def test_the_demo_keeps_the_best_model(tmp_path: Path, own_report: bool) -> None:
    shutil.copy(ROOT / "demo.sh", tmp_path)
    (tmp_path / "setup-env.sh").touch()
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "model.npz").write_text("of the run before")
    commands = tmp_path / "bin"
    commands.mkdir()
    command = commands / "hscheduler"
    command.write_text(
        "#!/bin/bash\nset -e\n"
        'if [ "$1" = sweep ]; then for last; do :; done; [ "$last" = mine.json ] || echo {} > demo/report.json\n'
        'else [ "$1 $2 $3" = "results demo/report.json --export-best" ]; echo model > "$4"; fi\n'
    )
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}
    arguments = ["--report", "mine.json"] if own_report else []
    subprocess.run([tmp_path / "demo.sh", *arguments], env=environment, check=True, timeout=TIMEOUT_S)
    model = tmp_path / "demo" / "model.npz"
    assert not model.exists() if own_report else model.read_text() == "model\n"
