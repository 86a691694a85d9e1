"""Time of a scheduler that is started again: the machine's monotonic clock, which nobody sets.

Between two starts of one machine it goes on, whichever process looks at it, so the time during which no scheduler was
there is counted: jobs went on meanwhile.  Where the machine was started again since, or that cannot be known, time goes
on where it was when the journal was written last.  The wall clock is never asked: setting it ends no trial.
"""

from __future__ import annotations

import time
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot() -> str:
    """Return which start of the machine this is; empty where that cannot be known."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def beginning_s(of_boot: str, began_s: float, last_s: float) -> float:
    """Return when a scheduler began, on this machine's monotonic clock.

    Parameters
    ----------
    of_boot : str
        The start of the machine that ``began_s`` is of.
    began_s : float, seconds
        When it began, on the monotonic clock of that.
    last_s : float, seconds
        The latest time after its beginning that is known: it never goes back behind that.
    """
    latest_s = time.monotonic() - last_s
    return min(began_s, latest_s) if of_boot and of_boot == boot() else latest_s
