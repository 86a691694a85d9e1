"""How often Hadoop's own command for logs is run, and how long it is waited for.

Each run begins a Java virtual machine.  The command asks for its ResourceManager for many minutes, and says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from eps.cluster.yarn.application import Application
from eps.errors import PeerUnavailableError
from eps.hadoop.conf import HadoopConf, resourcemanager_addresses
from eps.job.master_link import NEXT_MASTER_S
from eps.job.yarn.inquiry import listens

#: A command that takes longer says what it waits for.
SLOW_S = 5.0
#: Of the looks after one that brought nothing new, so many at most do without the command.
MOST_PAUSE = 7


class Pace:
    """How often the command is run for whoever looks again and again: less often the longer it brings nothing new."""

    def __init__(self) -> None:
        self._pause = self._left = 0

    def is_due(self) -> bool:
        """Return whether this look takes a command."""
        due = self._left == 0
        self._left = max(0, self._left - 1)
        return due

    def note(self, *, is_new: bool) -> None:
        """Note what the command has brought."""
        self._pause = 0 if is_new else min(2 * self._pause + 1, MOST_PAUSE)
        self._left = self._pause


class Patience:
    """How long a ResourceManager is waited for that is not there: the command asks for minutes, and says nothing.

    Parameters
    ----------
    conf : HadoopConf
    application : Application
    check, tell : callable
        As of :func:`eps.job.yarn.logs.open_logs`.
    """

    def __init__(
        self, conf: HadoopConf, application: Application, check: Callable[[], None], tell: Callable[[str], None]
    ) -> None:
        self._addresses = resourcemanager_addresses(conf)
        self._what = f"the logs of {application.application_id}"
        self._check, self._tell = check, tell
        self._away_s: float | None = None
        self._began_s = 0.0
        self._said_slow = False

    def begin(self) -> None:
        """Begin to wait for a command; raises as :meth:`look`."""
        self._began_s, self._said_slow = time.monotonic(), False
        self.look()

    def look(self) -> None:
        """Look whether it may come to an end; raises what ``check`` does, and PeerUnavailableError where it may not."""
        self._check()
        if not any(map(_answers, self._addresses)):
            self._look_away()
            return
        self._away_s = None
        if not self._said_slow and time.monotonic() - self._began_s > SLOW_S:
            self._said_slow = True
            self._tell(f"{self._what}: waiting for YARN, which asks its nodes for them")

    def _look_away(self) -> None:
        now_s, where = time.monotonic(), ", ".join(self._addresses)
        if self._away_s is None:
            self._away_s = now_s
            self._tell(f"{self._what}: waiting for the ResourceManager at {where}, which does not answer")
        elif now_s - self._away_s > NEXT_MASTER_S:
            raise PeerUnavailableError(
                f"{self._what} cannot be had now: no ResourceManager answers at {where} for {NEXT_MASTER_S:g} s"
            )


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return port.isdecimal() and listens((host, int(port)))
