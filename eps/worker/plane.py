"""Where a worker's contributions go, and where its parameters come from.

:mod:`eps.worker.push_pull` is the plane of today: parameters lie on servers.

Source: EPS §2.2 Fig. 1b; design section 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Protocol

from eps.core.membership import Membership
from eps.core.types import Address
from eps.core.worker_state import Kept
from eps.worker.compute import Computation


class Progress(Enum):
    """How far an exchange is."""

    UNDER_WAY = "under way"
    #: Everything is put, and everything has come.
    COMPLETE = "complete"
    #: The clock that was asked for is complete everywhere: a lost worker had put what was to be computed.
    PASSED = "passed"


class Exchange(Protocol):
    """Contributions that are put and parameters that are got, together."""

    @property
    def put(self) -> Sequence[Kept]:
        """The contributions."""

    @property
    def due_s(self) -> float:
        """When :meth:`advance` has something to do though no answer comes; by the worker's clock."""

    def advance(self) -> Progress:
        """Send what is due and take what has come; may wait for it, but not long.

        Raises
        ------
        ProtocolError
            A peer says that a part breaks the protocol.
        DeadlineError, PeerUnavailableError
            The exchange is given up; says what is missing.
        """


class ParameterPlane(Protocol):
    """Puts the contributions of one worker, and gets its parameters.  Used by the worker's thread, but for prepare."""

    def prepare(self, addresses: Iterable[Address]) -> None:
        """Begin to connect to peers, before an exchange waits for them; any thread."""

    def follow(self, membership: Membership) -> None:
        """Part from peers that are no members any more; between exchanges."""

    def exchange(self, put: Sequence[Kept], get: Computation | None, clock: int, min_clock: int) -> Exchange:
        """Begin an exchange; what is under way of the one before is void.

        Parameters
        ----------
        put : sequence of Kept
            What some peer may lack.
        get : Computation or None
            Where parameters go; None asks for none.
        clock : int
            Of those parameters.
        min_clock : int
            Clocks that must be complete in them.
        """

    def rest(self) -> None:
        """Give everything back that peers could use: nothing is exchanged, unless members are lost."""

    def close(self) -> None:
        """Close the connections."""
