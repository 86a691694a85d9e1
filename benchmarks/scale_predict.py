"""Predict the traffic of a dense synchronous iteration by a formula.

Each worker has one exchange with each server, split into messages of :data:`~eps.worker.push_pull.MESSAGE_BYTES`.  So a
worker's messages grow with the servers, a server's with the workers, and a worker's bytes with neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from eps.ml.layout import MAX_BLOCK_KEYS, MIN_BLOCKS
from eps.worker.push_pull import MESSAGE_BYTES

VALUE_BYTES = 4
#: Bytes for each block: its largest magnitude in a push (float32), its exponent in a pull (int16).
MAXIMUM_BYTES, EXPONENT_BYTES = 4, 2
#: Approximate bytes of the protobuf headers: of a message, and of each part (a push also names its splits).
MESSAGE_HEADER_BYTES = 4
PUSH_BYTES, PULL_BYTES, PUSHED_BYTES, PULLED_BYTES = 11, 6, 6, 8


@dataclass(frozen=True)
class Shape:
    """The size of a job."""

    parameters: int
    partitions: int
    splits: int
    workers: int
    servers: int


@dataclass(frozen=True)
class Traffic:
    """Traffic of a member in an iteration, on average over the members of its kind."""

    messages_out: float
    bytes_out: float
    messages_in: float
    bytes_in: float


def partition_sizes(shape: Shape) -> list[tuple[int, int]]:
    """Return (keys, blocks) of each partition: whole blocks, as even as possible."""
    block_keys = min(MAX_BLOCK_KEYS, max(1, -(-shape.parameters // MIN_BLOCKS)))
    num_blocks = -(-shape.parameters // block_keys)
    edges = [i * num_blocks // shape.partitions for i in range(shape.partitions + 1)]
    sizes = []
    for first, stop in pairwise(edges):
        keys = min(stop * block_keys, shape.parameters) - first * block_keys
        sizes.append((keys, stop - first))
    return sizes


def messages_to_one_server(keys: list[int]) -> int:
    """Return the number of messages in an exchange about partitions of these sizes."""
    messages, size_bytes = 0, MESSAGE_BYTES
    for count in keys:
        if size_bytes >= MESSAGE_BYTES:
            messages, size_bytes = messages + 1, 0
        size_bytes += count * VALUE_BYTES
    return messages


def predicted(shape: Shape) -> tuple[Traffic, Traffic]:
    """Return the traffic of a worker and of a server in an iteration.

    With P partitions of together n keys in b blocks, W workers, S servers, and c_s messages for server s::

        worker: messages = sum of c_s over S          out = 4 n + 4 b + headers    in = 4 n + 2 b + headers
        server: messages = W / S * sum of c_s         out = W / S * the workers' in, in = W / S * the workers' out

    This holds under BSP, for pushes as sums with all blocks on the grid, if every push is accepted at once.
    """
    sizes = partition_sizes(shape)
    edges = [i * shape.partitions // shape.servers for i in range(shape.servers + 1)]
    messages = sum(messages_to_one_server([keys for keys, _ in sizes[first:stop]]) for first, stop in pairwise(edges))
    blocks = sum(count for _, count in sizes)
    splits_named = shape.splits / shape.workers
    pushed = (
        VALUE_BYTES * shape.parameters
        + MAXIMUM_BYTES * blocks
        + shape.partitions * (PUSH_BYTES + splits_named + PULL_BYTES)
        + messages * MESSAGE_HEADER_BYTES
    )
    pulled = (
        VALUE_BYTES * shape.parameters
        + EXPONENT_BYTES * blocks
        + shape.partitions * (PUSHED_BYTES + PULLED_BYTES)
        + messages * MESSAGE_HEADER_BYTES
    )
    share = shape.workers / shape.servers
    worker = Traffic(messages, pushed, messages, pulled)
    return worker, Traffic(messages * share, pulled * share, messages * share, pushed * share)


def must_hold_bytes(parameters: int, slots: int) -> int:
    """Return the bytes that a server of a dense BSP job must hold: parameters, slots, a sum, the clock before."""
    return VALUE_BYTES * parameters * (3 + slots)
