"""The command line of H-scheduler: says what is there, and what is not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

_TEXT = """\
H-scheduler decides which running job gets and gives workers and servers, so that
new jobs start at once and nothing idles (EPS sections 4 and 6).

It is not part of this release: there is nothing to run here yet.  The operations
that it will use are: `eps add-workers`, `add-servers`, `remove-workers` and
`remove-servers` change the size of a running job by hand.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``hscheduler`` and return its exit code."""
    from eps import __version__

    parser = argparse.ArgumentParser(
        "hscheduler", description=_TEXT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"hscheduler {__version__}")
    parser.parse_args(argv)
    print("hscheduler: not part of this release; see hscheduler --help", file=sys.stderr)
    return 2
