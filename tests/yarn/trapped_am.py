"""An application master that is killed in phases of plans: ``python -m tests.yarn.trapped_am FOLDER TRAPS``.

The folder records the traps that have sprung, over all attempts.
"""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path

from eps.cluster.yarn.attempt import exit_process
from eps.job.yarn import am
from tools.chaos.trap import Traps, parse

ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = """#!/bin/sh
case "$*" in
*eps.job.yarn.am*) PYTHONPATH="$PYTHONPATH":{root} exec {python} -P -m tests.yarn.trapped_am {folder} {traps} ;;
*) exec {python} "$@" ;;
esac
"""


def interpreter(folder: Path, traps: str) -> str:
    """Return a value of a job's setting ``python`` with which its application masters have traps."""
    path = folder / "python"
    words = {"root": ROOT, "python": sys.executable, "folder": folder, "traps": traps}
    path.write_text(_SCRIPT.format(**{name: shlex.quote(str(word)) for name, word in words.items()}), encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def main() -> int:
    """Run the application master of this environment."""
    traps = Traps(parse(sys.argv[2]), Path(sys.argv[1]))
    am.serve = partial(am.serve, watch=traps.look)  # type: ignore[assignment]
    return am.main()


if __name__ == "__main__":
    exit_process(main())
