"""Connections from one process to others, by address.  L2."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from eps.core.types import Address
from eps.net.arrays.api import Connection, Van


class Peers:
    """Connections by address, made when first needed."""

    def __init__(self, van: Van) -> None:
        self._van = van
        self._lock = threading.Lock()
        self._connections: dict[Address, Connection] = {}

    def to(self, address: Address) -> Connection:
        """Return an open connection.

        Raises
        ------
        PeerUnavailableError
            No process listens there.
        """
        with self._lock:
            found = self._connections.get(address)
            if found is not None and not found.closed:
                return found
        # Outside the lock: a peer that does not answer must not hold up those for other peers.
        made = self._van.connect(address)
        with self._lock:
            known = self._connections.get(address)
            found, surplus = (made, known) if known is None or known.closed else (known, made)
            self._connections[address] = found
        if surplus is not None:
            # One that broke still holds what it lent; or another thread was faster.
            surplus.close()
        return found

    def keep(self, addresses: Iterable[Address]) -> None:
        """Close the connections to everybody else."""
        wanted = set(addresses)
        with self._lock:
            gone = [self._connections.pop(address) for address in list(self._connections) if address not in wanted]
        for connection in gone:
            connection.close()

    def close(self) -> None:
        """Close them all."""
        self.keep(())
