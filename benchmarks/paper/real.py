"""What the commands that measure real jobs share."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks.bench_common import end_in_order, machine, new_file, positive, write_json


def measured(about: str, measure: Callable[[int], dict[str, Any]], repeats: int) -> int:
    """Run a command that measures jobs which leave nothing behind; return its exit code.

    Parameters
    ----------
    about : str
        For its help.
    measure : callable
        Takes how many repeats are wanted, and returns what is printed.
    repeats : int
        Where nobody says otherwise.
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
