"""The key sets that workers registered: sets of keys that later messages name by their digest.

Source: Li et al. 2014 (Parameter Server), section 3.4 (key caching).
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from eps.errors import ProtocolError
from eps.net.messages.exchange import PullPart, PushPart

#: Bytes of key sets that a server remembers; a worker whose set was forgotten sends it again.
MOST_KEYSET_BYTES = 512 << 20


class KeySets:
    """Key sets by partition and digest.  Not thread-safe; the server's lock guards it."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, bytes], np.ndarray] = OrderedDict()
        self._size_bytes = 0

    def fill_in(self, part: PushPart | PullPart) -> bool:
        """Give a part the keys of its key set; return False where the set is not known.

        Raises
        ------
        ProtocolError
            Keys without a digest.
        """
        if part.keys is not None and not part.keyset:
            raise ProtocolError(f"a part of partition {part.partition} has keys but no digest of them")
        if not part.keyset:
            return True
        name = part.partition, part.keyset
        if name not in self._known:
            if part.keys is None:
                return False
            self.register(*name, part.keys)
        self._known.move_to_end(name)
        part.keys = self._known[name]
        return True

    def register(self, partition: int, digest: bytes, keys: np.ndarray) -> None:
        """Remember a key set; where there are too many, forget the ones that were unused for longest."""
        if (partition, digest) in self._known:
            return
        # A copy: the received array would keep its whole message in memory.
        self._known[partition, digest] = keys.copy()
        self._size_bytes += keys.nbytes
        while self._size_bytes > MOST_KEYSET_BYTES and len(self._known) > 1:
            _, forgotten = self._known.popitem(last=False)
            self._size_bytes -= forgotten.nbytes

    def of(self, partition: int) -> dict[bytes, np.ndarray]:
        """Return the key sets of a partition, by digest."""
        return {digest: keys for (owner, digest), keys in self._known.items() if owner == partition}

    def forget(self, partition: int) -> None:
        """Forget the key sets of a partition."""
        for name in [name for name in self._known if name[0] == partition]:
            self._size_bytes -= self._known.pop(name).nbytes
