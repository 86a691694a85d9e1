"""Peers of a van that do not use the van: they send what a test wants, and record the reaction."""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from eps.core.types import Address
from eps.errors import PeerUnavailableError
from eps.net.arrays.api import DTYPES, Connection, Message, ReplyTo
from eps.net.arrays.connection import Replies
from eps.net.arrays.frames import Kind, whole
from eps.net.arrays.sockets import ANSWER_BYTES, CHALLENGE_BYTES, PROOF_BYTES, ConnectorHandshake, ListenerHandshake
from eps.net.security.credentials import JobToken, Security

DEADLINE_S = 20.0
TOKEN = Security(JobToken(b"the token of these tests"))
OTHER_TOKEN = Security(JobToken(b"the token of another job"))


def echo(message: Message, reply: ReplyTo) -> None:
    reply.send(message)


def frame_of(message: Message, request_id: int = 1, kind: Kind = Kind.REQUEST) -> bytes:
    """Return a message as the one frame that it is on a socket."""
    return b"".join(bytes(piece) for piece in whole(message, request_id, kind))


class Pieces:
    """A wire that gives bytes in pieces of given lengths, 0 where none come in time, then the rest; then it ends."""

    pending = False

    def __init__(self, content: bytes, lengths: Sequence[int] = ()) -> None:
        self._content = memoryview(content)
        self._lengths = list(lengths)

    def receive(self, into: memoryview, whole: bool = False) -> int:
        most = self._lengths.pop(0) if self._lengths else len(self._content)
        count = min(most, len(into), len(self._content))
        if not self._content:
            raise PeerUnavailableError("that was all")
        into[:count] = self._content[:count]
        self._content = self._content[count:]
        return count


HELLO = frame_of(Message(), 0, Kind.HELLO)

#: What a frame says: kind, request id, header bytes, and type, shape and bytes of each array.
Said = tuple[int, int, bytes, list[tuple[str, tuple[int, ...], bytes]]]


def said_by(frame: bytes, most_bytes: int = 1 << 20) -> Said | None:
    """Return what one frame says, read by the layout in :mod:`eps.net.arrays.frames` alone; None where it breaks it."""
    if len(frame) < 40:
        return None
    magic, version, kind, flags, request_id, body_bytes, zero = struct.unpack_from("<4sBBHQII", frame)
    header_bytes, num_arrays, payload_bytes = struct.unpack_from("<IIQ", frame, 24)
    start = 40 + 40 * num_arrays
    fits = body_bytes == len(frame) - 24 <= most_bytes and start + header_bytes + payload_bytes == len(frame)
    if (magic, version, flags, zero) != (b"EPSV", 1, 1, 0) or kind > 3 or not fits:
        return None
    payload, end, arrays = frame[start + header_bytes :], 0, []
    for at in range(40, start, 40):
        dtype, dims, place, zero, *lengths = struct.unpack_from("<BBHI4Q", frame, at)
        if dtype >= len(DTYPES) or dims > 4 or place or zero or any(lengths[dims:]):
            return None
        shape = tuple(lengths[:dims])
        size_bytes = DTYPES[dtype].itemsize
        for length in shape:
            size_bytes *= length
        end += -end % 64
        arrays.append((DTYPES[dtype].str, shape, payload[end : end + size_bytes]))
        end += size_bytes
    return (kind, request_id, frame[start : start + header_bytes], arrays) if end == payload_bytes else None


def ask(connection: Connection, message: Message) -> Message:
    """Send a request and return its reply, which this thread reads, as a worker's does."""
    replies: Replies[None] = Replies()
    replies.request(None, connection, message)
    answered = replies.next(DEADLINE_S)
    assert answered is not None, f"no reply within {DEADLINE_S} s"
    return answered[1].result()


def still_works(connection: Connection) -> None:
    sent = Message(b"still here", (np.arange(5), np.zeros(20_000)))
    received = ask(connection, sent)
    assert received.header == sent.header
    assert [a.tobytes() for a in received.arrays] == [a.tobytes() for a in sent.arrays]


def eventually(condition: Callable[[], bool], what: str, within_s: float = DEADLINE_S) -> None:
    """Wait for what another thread brings about and does not announce."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
        threading.Event().wait(0.005)


def shared_files() -> set[str]:
    """Return what is in shared memory under a name of ours; others may use it beside this process."""
    return {name for name in os.listdir("/dev/shm") if "eps" in name}


def descriptors() -> dict[str, str]:
    """Return the open descriptors of this process and what they are."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            # That of the listing itself, or one that was closed meanwhile.
            continue
    return found


def shared_mappings() -> list[str]:
    """Return the lines of this process's map that are segments of an arena, its own or a peer's."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return [line for line in maps if "memfd:eps-" in line]


@contextmanager
def nothing_left(spare_descriptors: int = 0) -> Iterator[None]:
    """Fail where the block leaves a thread or a descriptor behind."""
    threads, number = set(threading.enumerate()), len(descriptors())
    # A record that pytest keeps would keep an error, its frames, and what they hold.
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
    eventually(
        lambda: not [t for t in set(threading.enumerate()) - threads if t.is_alive()],
        f"no thread is left but those from before, now {[t.name for t in set(threading.enumerate()) - threads]}",
    )
    eventually(lambda: len(descriptors()) <= number + spare_descriptors, "the descriptors are given back")


def dial(address: Address) -> socket.socket:
    """Return a socket that is connected to a listener."""
    if not address.host.startswith("@"):
        return socket.create_connection((address.host, address.port), DEADLINE_S)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(DEADLINE_S)
    sock.connect("\0" + address.host[1:])
    return sock


def receive(sock: socket.socket, size_bytes: int) -> bytes:
    """Return the next bytes; fewer where the peer ends the connection."""
    content = bytearray()
    while len(content) < size_bytes:
        try:
            piece = sock.recv(size_bytes - len(content))
        except ConnectionError:
            break
        if not piece:
            break
        content += piece
    return bytes(content)


def rest(sock: socket.socket) -> bytes:
    """Return all that comes until the peer ends the connection, which it must do before the deadline."""
    content = b""
    while piece := receive(sock, 1 << 16):
        content += piece
    return content


def send(sock: socket.socket, content: bytes) -> None:
    """Send; a peer that has ended the connection already is what a test expects."""
    try:
        sock.sendall(content)
    except ConnectionError:
        return


def end_sending(sock: socket.socket) -> None:
    """Tell the peer that nothing more comes; what it sends can still be read."""
    try:
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        return


def shake_hands(sock: socket.socket, transport: str, security: Security = TOKEN) -> None:
    """Perform a connector's handshake."""
    handshake = ConnectorHandshake(security.token, transport)
    sock.sendall(handshake.challenge())
    sock.sendall(handshake.proof(receive(sock, ANSWER_BYTES)))
    assert receive(sock, len(HELLO)) == HELLO


def proven(address: Address, transport: str, security: Security = TOKEN) -> socket.socket:
    """Return a socket whose handshake is done."""
    sock = dial(address)
    shake_hands(sock, transport, security)
    return sock


def accept_handshake(sock: socket.socket, transport: str, security: Security = TOKEN, greets: bool = True) -> None:
    """Perform a listener's handshake."""
    handshake = ListenerHandshake(security.token, transport)
    sock.sendall(handshake.answer(receive(sock, CHALLENGE_BYTES)))
    handshake.check(receive(sock, PROOF_BYTES))
    if greets:
        sock.sendall(HELLO)


class RawListener:
    """Takes one connection on a thread and lets ``play`` do what it wants with it."""

    def __init__(self, play: Callable[[socket.socket], None], unix: bool = False) -> None:
        self._play = play
        if unix:
            self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            # No name: the kernel chooses one.
            self._listening.bind("")
            self._listening.listen()
            self.address = Address("@" + self._listening.getsockname()[1:].decode(), 0)
        else:
            self._listening = socket.create_server(("127.0.0.1", 0))
            self.address = Address("127.0.0.1", self._listening.getsockname()[1])
        self._listening.settimeout(DEADLINE_S)
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            sock, _ = self._listening.accept()
            with sock:
                sock.settimeout(DEADLINE_S)
                self._play(sock)
        except BaseException as error:
            self.failure = error

    def __enter__(self) -> RawListener:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(DEADLINE_S)
        self._listening.close()
        assert not self._thread.is_alive()
        assert self.failure is None, self.failure
