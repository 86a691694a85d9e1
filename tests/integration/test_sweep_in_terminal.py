"""A sweep of real jobs in a pseudo-terminal: a table that is redrawn, logs of failures above it, a clean end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.slow_model import NO_GRADIENT, broken_model
from tests.terminal import TIMEOUT_S, Terminal

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("home", "no_leftovers")

FILE = """
[cluster]
nodes = 2
[sweep]
trials = 2
algorithm = "random"
feedback_iteration = 5
retries = 0
seed = 1
[space]
learning_rate = { choice = RATES }
[job]
data = "sklearn:diabetes"
model = "MODEL"
optimizer = "sgd"
workers = 2
servers = 1
iterations = ITERATIONS
"""


@contextmanager
def sweep(
    tmp_path: Path, terminal: Terminal, rates: str, iterations: int, *flags: str, model: str = "linear"
) -> Iterator[subprocess.Popen[bytes]]:
    path = tmp_path / "sweep.toml"
    path.write_text(FILE.replace("RATES", rates).replace("ITERATIONS", str(iterations)).replace("MODEL", model))
    code = "import sys; from hscheduler.cli import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "sweep", str(path), *flags],
        stdin=terminal.stream,
        stdout=terminal.stream,
        stderr=terminal.stream,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
        terminal.close()


def test_the_log_of_a_failed_trial_stays_above_the_table(tmp_path: Path) -> None:
    terminal = Terminal(120, 40)
    with sweep(tmp_path, terminal, "[1e-3, 2e-3]", 50, model=broken_model(tmp_path)) as process:
        assert process.wait(TIMEOUT_S) == 1
    rows = terminal.lines()
    (head,) = (k for k, line in enumerate(rows) if line.startswith("trial "))
    assert sum(line.startswith("sweep  elastic, threshold  ") for line in rows) == 1, "it is redrawn in place"
    above = "\n".join(rows[:head])
    for trial in ("sweep-trial-1", "sweep-trial-2"):
        assert f"{trial} failed: worker-" in above
    assert above.count("the last lines of the log of worker-") == 2
    assert above.count(NO_GRADIENT) >= 4, "of the reason, and of the log"
    assert "no trial finished" in "\n".join(rows[head:])


def test_an_interrupt_restores_the_terminal(tmp_path: Path) -> None:
    terminal = Terminal(100, 24)
    before = termios.tcgetattr(terminal.stream.fileno())
    with sweep(tmp_path, terminal, "[1e-3, 2e-3]", 1_000_000) as process:
        terminal.wait_for("  training")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130
        assert termios.tcgetattr(terminal.stream.fileno()) == before
    rows = terminal.lines()
    assert sum(line.startswith("sweep  elastic, threshold  ") for line in rows) == 1
    assert sum(line.startswith("trial ") for line in rows) == 1
    assert rows[-1] == "", "the next output begins on a new line"
    assert any(line.startswith("interrupted: 0 trials had finished, the others were ended; best so") for line in rows)
    assert not any("was killed" in line for line in rows), "jobs that end with the sweep are reported as one"
    assert not any("Traceback" in line for line in rows)
    assert terminal.sequences <= {"A", "K", "J", "m"}, "nothing to undo"


def test_plain_prints_lines_without_a_table(tmp_path: Path) -> None:
    terminal = Terminal(200, 24)
    with sweep(tmp_path, terminal, "[1e-3, 2e-3]", 20, "--plain") as process:
        assert process.wait(TIMEOUT_S) == 0
    rows = terminal.lines()
    assert terminal.sequences == set()
    assert any("sweep-trial-1 starts with 2 workers and 1 server" in line for line in rows)
    assert any(line.startswith("best: sweep-trial-") for line in rows)
