"""Sweeps need no extra: the packages of the extras are imported where they are used."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
for name in "cloudpickle docker hdfs hyperopt jpype mlflow numba optuna sklearn tensorboardX".split():
    sys.modules[name] = None
import hscheduler.cli.commands.results, hscheduler.cli.commands.serve, hscheduler.cli.commands.simulate
import hscheduler.cli.commands.sweep, hscheduler.service.main
from eps.errors import ConfigError
import hscheduler
try:
    hscheduler.sweep({"sweep": {"trials": 1}}, objective=print)
except ConfigError as error:
    print(error)
"""


def test_hscheduler_works_without_extras() -> None:
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    assert "objective needs cloudpickle" in found.stdout and "pip install '.[sweep]'" in found.stdout
