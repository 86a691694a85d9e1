"""How much this process has said and heard on the data plane.  L2.

Messages are counted as what they are, header bytes and arrays, whatever their transport makes of them: the same job
counts the same over TCP, where they are copied, and over shared memory, where they stay where they lie.
"""

from __future__ import annotations

import time

from eps.net.arrays.api import Message


class Traffic:
    """Counters of messages and their bytes.

    On the way of every small message, so without a lock: an addition below is one step to CPython's interpreter lock.

    Attributes
    ----------
    messages_out, bytes_out, messages_in, bytes_in : int
    """

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "messages_out")

    def __init__(self) -> None:
        self.messages_out = self.bytes_out = self.messages_in = self.bytes_in = 0

    def sent(self, message: Message) -> None:
        """Count a request or a reply that leaves."""
        # Message.size_bytes, without its generator: this is on the way of every small message.
        size_bytes = len(message.header)
        for array in message.arrays:
            size_bytes += array.nbytes
        self.messages_out += 1
        self.bytes_out += size_bytes

    def received(self, message: Message) -> None:
        """Count a request or a reply that came."""
        # Message.size_bytes, without its generator: this is on the way of every small message.
        size_bytes = len(message.header)
        for array in message.arrays:
            size_bytes += array.nbytes
        self.messages_in += 1
        self.bytes_in += size_bytes

    def __str__(self) -> str:
        return (
            f"data plane: {self.messages_out} messages of {self.bytes_out} bytes out, {self.messages_in} of "
            f"{self.bytes_in} in; {time.process_time():.3f} s of processor time"
        )


#: Of this process.
TRAFFIC = Traffic()
