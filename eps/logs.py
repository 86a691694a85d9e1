"""How the processes of a job write their logs: one line for each state change, on standard error.  L2.

The supervisor sends standard error of each process to a file of its own; ``eps logs`` shows them.
"""

from __future__ import annotations

import logging
import os


def set_up_logging() -> None:
    """Write log lines to standard error; ``EPS_LOG`` sets the level (default info)."""
    level = os.environ.get("EPS_LOG", "info").upper()
    logging.basicConfig(
        level=getattr(logging, level, logging.INFO),
        format="%(asctime)s.%(msecs)03d %(levelname).1s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
