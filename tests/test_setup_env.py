"""``setup-env.sh``, sourced in a terminal: it finds what is installed, and leaves the shell as it was."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: Where `false` and an unset name end a shell, nothing after them is printed.
SHELL = """\
before="$-:$(set +o | sha256sum)"
source "$1/setup-env.sh"
echo "status $?"
false
echo "unset:$nowhere"
[ "$before" = "$-:$(set +o | sha256sum)" ] && echo "settings as before"
pwd
echo "$PATH"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder in which everything is installed already."""
    found = tmp_path / "project"
    (found / ".venv" / "bin").mkdir(parents=True)
    for name in ("setup-env.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, found)
    digest = hashlib.sha256((found / "pyproject.toml").read_bytes()).hexdigest()[:16]
    for extras in ("data,dev", "data"):
        (found / ".venv" / f".installed-{extras}-{digest}").touch()
    return found


def sourced(project: Path, elsewhere: Path, script: str = SHELL, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "extras"}
    return subprocess.run(
        ["bash", "-c", script, "bash", str(project)],
        cwd=elsewhere,
        env={**environment, "PYTHON": sys.executable, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_shell_that_sources_it_goes_on_as_before_and_finds_the_environment(project: Path, tmp_path: Path) -> None:
    done = sourced(project, tmp_path)
    assert done.stdout.splitlines()[:4] == ["status 0", "unset:", "settings as before", str(tmp_path)], done.stderr
    assert done.stdout.splitlines()[4].startswith(f"{project}/.venv/bin:")


def test_a_shell_outlives_a_set_up_that_fails(project: Path, tmp_path: Path) -> None:
    old = tmp_path / "python-of-old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    done = sourced(project, tmp_path, PYTHON=str(old))
    assert done.stdout.startswith("status 2\n") and "settings as before" in done.stdout
    assert "needs Python 3.11" in done.stderr and f"{project}/.venv/bin" not in done.stdout


def test_a_script_says_which_extras_and_ends_where_it_fails(project: Path, tmp_path: Path) -> None:
    script = 'set -euo pipefail\nextras={} source "$1/setup-env.sh"\necho went on'
    assert sourced(project, tmp_path, script.format("data")).stdout == "went on\n"
    failed = sourced(project, tmp_path, script.format("data"), PYTHON="/nowhere/python")
    assert failed.returncode and "went on" not in failed.stdout
