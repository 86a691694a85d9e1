"""Garbage on every port of the data plane costs the sender its own connection, and no other member."""

from __future__ import annotations

import socket
import struct
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from eps.core.types import Address
from eps.errors import AuthenticationError, PeerUnavailableError, ProtocolError
from eps.net.arrays.api import MIB, Connection, Limits, Message
from eps.net.arrays.frames import FRAME_HEADER, MAGIC, VERSION, Kind, control
from eps.net.arrays.negotiated import NegotiatedVan
from eps.net.arrays.sockets import ANSWER_BYTES, NONCE_BYTES, PROOF_BYTES, ConnectorHandshake, SocketVan
from eps.net.security.credentials import NO_SECURITY
from eps.pb import data_pb2 as pb
from tests.net.raw_peers import (
    DEADLINE_S,
    HELLO,
    OTHER_TOKEN,
    TOKEN,
    RawListener,
    accept_handshake,
    ask,
    dial,
    echo,
    end_sending,
    frame_of,
    nothing_left,
    proven,
    receive,
    rest,
    said_by,
    send,
    still_works,
)

LIMITS = Limits(max_message_bytes=MIB)
REQUEST = Message(b"head", (np.arange(3, dtype=np.int32), np.arange(4.0)))
GOOD = frame_of(REQUEST)
UNKNOWN_LENGTH = 0xFFFF_FFFF


def noises() -> list[bytes]:
    """Return what strangers send: nothing, bytes at random, other protocols, frames."""
    rng = np.random.default_rng(11)
    return [
        b"",
        *(rng.bytes(int(size)) for size in rng.integers(1, 300, size=12)),
        rng.bytes(200_000),
        bytes(1000),
        b"\xff" * 1000,
        b"GET / HTTP/1.1\r\nHost: eps\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.bytes(100),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.bytes(508),
        GOOD,
        GOOD * 50,
        HELLO,
    ]


def mutations(content: bytes, seed: int) -> Iterator[bytes]:
    """Yield ``content`` with each of its bytes replaced by another one."""
    rng = np.random.default_rng(seed)
    for position in range(len(content)):
        changed = bytearray(content)
        # Small differences find neighbouring values, the others the ends of the range.
        changed[position] ^= int(rng.choice([1, 2, 128, 255, int(rng.integers(1, 256))]))
        yield bytes(changed)


@dataclass
class Port:
    """A listener on a socket, and a connection from before the attack."""

    way: str
    address: Address
    good: Connection

    def tell(self, content: bytes, proven_first: bool = True) -> bytes:
        """Send ``content`` on a connection of its own; return all that the listener answers until it ends it."""
        with proven(self.address, self.way) if proven_first else dial(self.address) as sock:
            send(sock, content)
            end_sending(sock)
            return rest(sock)


def ports(way: str) -> Iterator[Port]:
    van = SocketVan(way, TOKEN, LIMITS)
    listener = van.listen(echo)
    good = van.connect(listener.address, DEADLINE_S)
    yield Port(way, listener.address, good)
    still_works(good)
    good.close()
    listener.close()


@pytest.fixture(params=["tcp", "unix", "shm"])
def port(request: pytest.FixtureRequest) -> Iterator[Port]:
    with nothing_left():
        # The van, whose shared memory is its own, goes with the inner generator.
        yield from ports(request.param)


def description(*arrays: tuple[int, ...], header: int = 0, payload: int = 0, num_arrays: int | None = None) -> bytes:
    count = len(arrays) if num_arrays is None else num_arrays
    return struct.pack("<IIQ", header, count, payload) + b"".join(struct.pack("<BBHI4Q", *array) for array in arrays)


def frame_with(body: bytes, body_bytes: int | None = None, kind: int = Kind.REQUEST) -> bytes:
    announced = len(body) if body_bytes is None else body_bytes
    return FRAME_HEADER.pack(MAGIC, VERSION, kind, 1, 1, announced, 0) + body


def test_noise_is_not_a_handshake(port: Port) -> None:
    for noise in noises():
        assert port.tell(noise, proven_first=False) == b""
        still_works(port.good)


def test_noise_after_the_handshake_is_not_answered(port: Port) -> None:
    for noise in [each for each in noises() if not each.startswith(GOOD)]:
        assert port.tell(noise) == b""
        assert port.tell(GOOD + noise) == frame_of(REQUEST, kind=Kind.REPLY)
    still_works(port.good)


def test_a_handshake_is_right_in_each_of_its_bytes(port: Port) -> None:
    handshake = ConnectorHandshake(TOKEN.token, port.way)
    for challenge in list(mutations(handshake.challenge(), 1))[:8]:
        assert port.tell(challenge + bytes(PROOF_BYTES), proven_first=False) == b""
    for position in range(PROOF_BYTES):
        with dial(port.address) as sock:
            handshake = ConnectorHandshake(TOKEN.token, port.way)
            send(sock, handshake.challenge())
            proof = handshake.proof(receive(sock, ANSWER_BYTES))
            send(sock, list(mutations(proof, position))[position] + GOOD)
            assert rest(sock) == b""
    still_works(port.good)


def test_a_handshake_that_is_cut_anywhere_ends(port: Port) -> None:
    whole_challenge = ConnectorHandshake(TOKEN.token, port.way).challenge()
    for length in range(len(whole_challenge)):
        assert port.tell(whole_challenge[:length], proven_first=False) == b""
    for length in range(PROOF_BYTES):
        with dial(port.address) as sock:
            handshake = ConnectorHandshake(TOKEN.token, port.way)
            send(sock, handshake.challenge())
            send(sock, handshake.proof(receive(sock, ANSWER_BYTES))[:length])
            end_sending(sock)
            assert rest(sock) == b""
    still_works(port.good)


def test_a_recorded_handshake_is_refused_on_another_connection(port: Port) -> None:
    handshake = ConnectorHandshake(TOKEN.token, port.way)
    challenge = handshake.challenge()
    with dial(port.address) as sock:
        send(sock, challenge)
        proof = handshake.proof(receive(sock, ANSWER_BYTES))
        send(sock, proof + GOOD)
        end_sending(sock)
        assert rest(sock) == HELLO + frame_of(REQUEST, kind=Kind.REPLY)
    answered = port.tell(challenge + proof + GOOD, proven_first=False)
    assert len(answered) == ANSWER_BYTES
    still_works(port.good)


def test_what_the_listener_proved_is_not_taken_back_as_a_proof(port: Port) -> None:
    with dial(port.address) as sock:
        send(sock, ConnectorHandshake(TOKEN.token, port.way).challenge())
        send(sock, receive(sock, ANSWER_BYTES)[NONCE_BYTES:] + GOOD)
        assert rest(sock) == b""
    # The listener's nonce, given back as a challenge of one's own, brings a proof for another role.
    with dial(port.address) as first, dial(port.address) as second:
        challenge = ConnectorHandshake(TOKEN.token, port.way).challenge()
        send(first, challenge)
        answer = receive(first, ANSWER_BYTES)
        send(second, challenge[:-NONCE_BYTES] + answer[:NONCE_BYTES])
        send(first, receive(second, ANSWER_BYTES)[NONCE_BYTES:])
        assert rest(first) == b""
    still_works(port.good)


def test_a_proof_for_another_transport_or_token_is_refused(port: Port) -> None:
    others = [(way, TOKEN) for way in ("tcp", "unix", "shm") if way != port.way]
    for way, security in [*others, (port.way, OTHER_TOKEN), (port.way, NO_SECURITY)]:
        with dial(port.address) as sock:
            handshake = ConnectorHandshake(security.token, way)
            send(sock, handshake.challenge())
            with pytest.raises(AuthenticationError):
                handshake.proof(receive(sock, ANSWER_BYTES))
            send(sock, bytes(PROOF_BYTES))
            assert rest(sock) == b""
    still_works(port.good)


def test_each_byte_of_a_request_matters_or_does_not_but_never_harms(port: Port) -> None:
    answered = 0
    for changed in mutations(GOOD, 2):
        answer = port.tell(changed)
        asked, found = said_by(changed, LIMITS.max_message_bytes), said_by(answer)
        if asked is None or asked[0] != Kind.REQUEST:
            assert answer == b"", changed.hex()
        else:
            assert found == (Kind.REPLY, *asked[1:]), changed.hex()
        answered += bool(answer)
    assert len(REQUEST.header) < answered < len(GOOD)
    still_works(port.good)


def test_a_request_that_is_cut_anywhere_is_not_answered(port: Port) -> None:
    for length in range(len(GOOD)):
        assert port.tell(GOOD[:length]) == b""
    still_works(port.good)


def test_a_request_that_is_sent_again_is_answered_again(port: Port) -> None:
    assert port.tell(GOOD * 3) == frame_of(REQUEST, kind=Kind.REPLY) * 3


def test_nothing_is_reserved_for_what_is_announced_beyond_the_limits(port: Port) -> None:
    far = 1 << 40
    announcements = [
        frame_with(b"", UNKNOWN_LENGTH),
        frame_with(description(header=UNKNOWN_LENGTH), UNKNOWN_LENGTH),
        frame_with(description(num_arrays=UNKNOWN_LENGTH), UNKNOWN_LENGTH),
        frame_with(description(payload=far), UNKNOWN_LENGTH),
        frame_with(description((0, 1, 0, 0, far, 0, 0, 0), payload=far), 56),
        frame_with(description((0, 1, 0, 0, far, 0, 0, 0), payload=far), UNKNOWN_LENGTH),
        frame_with(description((6, 2, 0, 0, 1 << 32, 1 << 32, 0, 0)), 56),
        frame_with(description((6, 2, 1, 0, 1 << 32, 1 << 32, 0, 0), payload=24) + bytes(24)),
        frame_with(description((0, 1, 0, 0, 2 * MIB, 0, 0, 0), payload=2 * MIB), 56 + 2 * MIB),
        *(frame_with(bytes(8), UNKNOWN_LENGTH, kind) for kind in (Kind.SEGMENT, Kind.FORGET, Kind.RELEASE)),
    ]
    tracemalloc.start()
    try:
        for announcement in announcements:
            assert port.tell(announcement) == b""
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2 * MIB
    still_works(port.good)


def test_frames_of_a_listener_are_not_taken_from_a_connector(port: Port) -> None:
    for kind in (Kind.HELLO, Kind.REPLY, Kind.ERROR):
        assert port.tell(frame_of(Message(b"x"), 1, kind) + GOOD) == b""
    still_works(port.good)


def test_a_listener_that_sends_garbage_costs_its_connector_one_connection(port: Port) -> None:
    """The port of this end is the one that it connects from."""
    reply = frame_of(Message(b"yes"), 1, Kind.REPLY)
    contents = [
        *[noise for noise in noises() if noise],
        HELLO,
        frame_of(Message(b"unknown"), 7, Kind.REPLY),
        frame_of(Message(b"not an error"), 1, Kind.ERROR),
        frame_with(b"", UNKNOWN_LENGTH, Kind.REPLY),
        frame_with(description(payload=1 << 40), UNKNOWN_LENGTH, Kind.REPLY),
        reply[:-1],
        control(Kind.SEGMENT, struct.pack("<QQ", 1, 4096)),
        control(Kind.RELEASE, bytes(8)),
    ]
    van = SocketVan(port.way, TOKEN, LIMITS)
    for content in contents:

        def play(sock: socket.socket, content: bytes = content) -> None:
            accept_handshake(sock, port.way)
            receive(sock, len(GOOD))
            send(sock, content)
            end_sending(sock)
            rest(sock)

        with RawListener(play, unix=port.way != "tcp") as listener:
            connection = van.connect(listener.address, DEADLINE_S)
            with pytest.raises(PeerUnavailableError):
                ask(connection, REQUEST)
            assert connection.closed
            connection.close()
    still_works(port.good)


@pytest.mark.parametrize("way", ["tcp", "unix", "shm"])
def test_a_listener_that_does_not_prove_the_token_is_refused(way: str) -> None:
    rng = np.random.default_rng(5)
    answers = [b"", rng.bytes(ANSWER_BYTES), bytes(ANSWER_BYTES), rng.bytes(ANSWER_BYTES - 1), HELLO * 2]
    van = SocketVan(way, TOKEN)
    with nothing_left():
        for answer in answers:

            def play(sock: socket.socket, answer: bytes = answer) -> None:
                receive(sock, 40)
                send(sock, answer)
                end_sending(sock)
                rest(sock)

            with RawListener(play, unix=way != "tcp") as listener:
                expected = AuthenticationError if len(answer) >= ANSWER_BYTES else PeerUnavailableError
                with pytest.raises(expected):
                    van.connect(listener.address, DEADLINE_S)
        # Its own challenge, sent back to it, proves nothing.
        with RawListener(lambda sock: send(sock, receive(sock, 40)[8:] + bytes(PROOF_BYTES)), way != "tcp") as listener:
            with pytest.raises(AuthenticationError):
                van.connect(listener.address, DEADLINE_S)


# ---- all the ports of a member


def test_every_port_of_a_member_stands_garbage() -> None:
    with nothing_left(spare_descriptors=4):
        van = NegotiatedVan(TOKEN, limits=LIMITS)
        listener = van.listen(echo)
        good = van.connect(listener.address, DEADLINE_S)
        greeted, hello = SocketVan("tcp", TOKEN).meet(listener.address, DEADLINE_S)
        meeting = pb.Meeting.FromString(hello)
        greeted.close()
        ways = {offer.transport: Address(offer.host, offer.port) for offer in meeting.offers}
        assert ways.keys() == {"shm", "unix", "tcp"}
        for way, address in {**ways, "tcp": listener.address}.items():
            for noise in noises():
                with dial(address) as sock:
                    send(sock, noise)
                    end_sending(sock)
                    assert rest(sock) == b"", "a stranger is answered nothing"
            with proven_to(address, way) as sock:
                send(sock, GOOD + GOOD[:100] + b"garbage")
                end_sending(sock)
                assert rest(sock) == frame_of(REQUEST, kind=Kind.REPLY), "what came before the garbage is answered"
            still_works(good)
        good.close()
        listener.close()


def proven_to(address: Address, way: str) -> socket.socket:
    """Return a socket whose handshake is done, to a listener that greets with a meeting or without."""
    sock = dial(address)
    handshake = ConnectorHandshake(TOKEN.token, way)
    send(sock, handshake.challenge())
    send(sock, handshake.proof(receive(sock, ANSWER_BYTES)))
    head = receive(sock, 40)
    assert head[:8] == HELLO[:8]
    receive(sock, struct.unpack_from("<I", head, 24)[0])
    return sock


@pytest.mark.parametrize("answer", [b"\xff" * 50, b"\x0a\x05ab", np.random.default_rng(8).bytes(500)])
def test_a_greeting_that_is_no_meeting_is_an_error_of_ours(answer: bytes) -> None:
    with nothing_left():
        listener = SocketVan("tcp", TOKEN).listen(echo, hello=answer)
        with pytest.raises(ProtocolError, match=r"greeting .* malformed"):
            NegotiatedVan(TOKEN).connect(listener.address, DEADLINE_S)
        listener.close()


@pytest.mark.parametrize("way", ["tcp", "unix", "shm"])
def test_a_greeting_is_right_in_each_of_its_bytes_and_bounded(way: str) -> None:
    greeting = frame_of(Message(b"a meeting"), 0, Kind.HELLO)
    changed = [
        *list(mutations(greeting, 3))[: len(HELLO)],
        greeting[:-1],
        frame_of(Message(bytes(1 << 20)), 0, Kind.HELLO),
    ]
    van = SocketVan(way, TOKEN)
    for bad in changed:

        def play(sock: socket.socket, bad: bytes = bad) -> None:
            accept_handshake(sock, way, greets=False)
            send(sock, bad)
            end_sending(sock)
            rest(sock)

        with RawListener(play, unix=way != "tcp") as listener:
            with pytest.raises((ProtocolError, PeerUnavailableError)):
                van.connect(listener.address, DEADLINE_S)
