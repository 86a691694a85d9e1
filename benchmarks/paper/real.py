"""The main function of commands that measure real jobs."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks.bench_common import end_in_order, machine, new_file, positive, write_json


def measured(about: str, measure: Callable[[int], dict[str, Any]], repeats: int) -> int:
    """Run a command that measures jobs in a temporary EPS_HOME; return its exit code.

    Parameters
    ----------
    about : str
        Help text.
    measure : callable
        Takes the number of repeats, returns the results.
    repeats : int
        Default of ``--repeats``.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=positive, default=repeats, metavar="N", help=f"default: {repeats}")
    parser.add_argument("--output", type=new_file, metavar="FILE")
    args = parser.parse_args()
    end_in_order()
    with tempfile.TemporaryDirectory(prefix="eps-paper-") as home:
        os.environ["EPS_HOME"] = home
        found = {"kind": "real", "machine": machine(), **measure(args.repeats)}
    text = json.dumps(found, indent=1)
    write_json(args.output, text)
    print(text)
    return 0
