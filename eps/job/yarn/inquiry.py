"""What YARN says of one application, asked again and again by whoever follows it."""

from __future__ import annotations

import re
import socket
import time

from eps.cluster.yarn.facade import Client
from eps.cluster.yarn.types import ApplicationReport
from eps.core.types import Address
from eps.errors import EpsError, JobNotFoundError

#: An application that a ResourceManager which answers does not know is given up after this long.
FORGOTTEN_S = 30.0
#: A process that does not take a connection within this long does not listen.
CONNECT_S = 1.0
#: In the diagnostics of an application that waits: when they were written, and the label of its master.
_LOOKED_AT = re.compile(r"\[[^\[\]]*\b\d\d:\d\d:\d\d\b[^\[\]]*\]")
_LABEL = re.compile(r"AM Partition = ([\w-]+)")


class Inquiry:
    """Asks YARN after one application.

    Parameters
    ----------
    client : Client
    application_id : str
    """

    def __init__(self, client: Client, application_id: str) -> None:
        self._client = client
        self._application_id = application_id
        #: Since when it has not known the application in every answer, without one that failed to come.
        self._unknown_since_s: float | None = None
        self._is_unknown = False

    @property
    def is_unknown(self) -> bool:
        """Whether YARN did not know the application when it last answered: it may run all the same."""
        return self._is_unknown

    def report(self) -> ApplicationReport:
        """Return what YARN says; of an application that it has not known for :data:`FORGOTTEN_S`, that it has failed.

        A ResourceManager that is away meanwhile is another one when it is back, and has as long again.

        Raises
        ------
        JobNotFoundError
            YARN does not know it, for less than that: a ResourceManager that starts again may know it soon.
        EpsError
            YARN cannot be asked now.
        """
        try:
            found = self._client.report(self._application_id)
        except JobNotFoundError:
            now_s, self._is_unknown = time.monotonic(), True
            if self._unknown_since_s is None:
                self._unknown_since_s = now_s
            if now_s - self._unknown_since_s < FORGOTTEN_S:
                raise
            return _forgotten(self._application_id)
        except EpsError:
            self._unknown_since_s = None
            raise
        self._unknown_since_s, self._is_unknown = None, False
        return found


def _forgotten(application_id: str) -> ApplicationReport:
    said = "YARN does not know the application any more: its ResourceManager has lost its state"
    return ApplicationReport(application_id, "", "EPS", "", "", "FAILED", "FAILED", said, "", -1, "", 0.0, (), 0, 0, 0)


def why_waiting(diagnostics: str) -> str:
    """Return what YARN says an application waits for, in one line: a limit of its queue, or room for its master.

    YARN also tells when it last looked, and the figures of that moment: both change all the time.
    """
    said, _, details = " ".join(_LOOKED_AT.sub("", diagnostics).split()).partition(" Details :")
    label = _LABEL.search(details)
    return said.rstrip(".") + (f" (nodes labelled {label[1]!r})" if label is not None else "")


def place_of(report: ApplicationReport) -> Address | None:
    """Return where a job master listens, by YARN's word; None where none does."""
    if report.state != "RUNNING" or not report.host or report.rpc_port <= 0:
        return None
    return Address(report.host, report.rpc_port)


def described(report: ApplicationReport) -> str:
    """Return how an application is, with YARN's word on why."""
    why = why_waiting(report.diagnostics)
    return f"application {report.application_id} is {report.state}" + (f": {why}" if why else "")


def listens(place: Address) -> bool:
    """Return whether somebody listens at an address."""
    try:
        with socket.create_connection((place.host, place.port), CONNECT_S):
            return True
    except OSError:
        return False
