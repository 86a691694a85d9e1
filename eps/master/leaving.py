"""The last that a job master's process does.  L3."""

from __future__ import annotations

import logging
import os
import signal
import time

from eps.cluster.local import LocalResourceManager

#: How often a job master that is done looks whether its supervisor has heard of it.
LEAVE_POLL_S = 0.005

logger = logging.getLogger(__name__)


def leave_supervisor(resources: LocalResourceManager, patience_s: float) -> None:
    """Wait until the supervisor knows what it was told last; one that hangs is killed, and with it all that is left.

    The job has ended, and whoever waits for it waits for the supervisor: one that is stopped would hold them up for
    good.

    Parameters
    ----------
    resources : LocalResourceManager
    patience_s : float, seconds
    """
    supervisor, until_s = os.getppid(), time.monotonic() + patience_s
    while resources.silent_s() > 0.0:
        if time.monotonic() >= until_s:
            logger.error("M the supervisor hangs: it is killed")
            os.kill(supervisor, signal.SIGKILL)
            return
        time.sleep(LEAVE_POLL_S)
