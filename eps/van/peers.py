"""Connections from one process to others, by address.  L2."""

from __future__ import annotations

import threading

from eps.core.types import Address
from eps.van.api import Connection, Van


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
            Nobody listens there.
        """
        with self._lock:
            found = self._connections.get(address)
            if found is None or found.closed:
                found = self._connections[address] = self._van.connect(address)
            return found

    def close(self) -> None:
        """Close them all."""
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()
