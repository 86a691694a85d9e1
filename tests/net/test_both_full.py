"""Two ends that both send more than a connection holds: who waits for room goes on taking what comes."""

from __future__ import annotations

import time

import numpy as np
import pytest

from eps.errors import EpsError
from eps.net.arrays.api import MIB, Limits, Message, ReplyTo
from eps.net.arrays.connection import Replies
from eps.net.arrays.sockets import SocketVan
from tests.net.raw_peers import DEADLINE_S, TOKEN, nothing_left, still_works

#: Below what is lent where there is shared memory.
ARRAY_BYTES = 16 * 1024
#: Far more together than the buffers of both sockets and the limits of both ends.
MESSAGE_BYTES, MESSAGES = 2 * MIB, 40
LIMITS = Limits(max_outgoing_bytes=4 * MIB)
#: What a job can do meanwhile; the limit of a peer that takes nothing is longer.
SOON_S = 10.0


def large(mark: int) -> Message:
    arrays = tuple(np.full(ARRAY_BYTES, mark, np.uint8) for _ in range(MESSAGE_BYTES // ARRAY_BYTES))
    return Message(b"%d" % mark, arrays)


def give_as_much(message: Message, reply: ReplyTo) -> None:
    reply.send(message.copied())


@pytest.mark.parametrize("way", ["tcp", "unix", "shm"])
def test_requests_and_replies_beyond_the_limits_of_both_ends_pass(way: str) -> None:
    with nothing_left(spare_descriptors=16):
        van = SocketVan(way, TOKEN, LIMITS)
        listener = van.listen(give_as_much)
        connection = van.connect(listener.address, DEADLINE_S)
        # Of an end that does not take what comes, this would be the end; the usual patience would only delay it.
        connection._writer._patience_s = SOON_S
        replies: Replies[int] = Replies()
        began_s = time.monotonic()
        try:
            for number in range(MESSAGES):
                # No thread reads replies before all requests are posted, as in a worker.
                replies.request(number, connection, large(number))
            found = {}
            while (answer := replies.next(SOON_S)) is not None:
                number, future = answer
                found[number] = all(bool((array == number).all()) for array in future.result().arrays)
            assert found == dict.fromkeys(range(MESSAGES), True)
            assert time.monotonic() - began_s < SOON_S
            # The reader thread reads for no blocked sender any more: a thread that waits reads its own reply again.
            still_works(connection)
            assert not connection.replies._blocked_senders
        except EpsError as error:
            pytest.fail(f"after {time.monotonic() - began_s:.1f} s: {error}")
        finally:
            connection.close()
            listener.close()
