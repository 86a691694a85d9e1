"""Every port of the data plane is fed what no member sends; it costs the sender its own connection and nobody else."""

from __future__ import annotations

import socket
import struct
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import numpy as np
import pytest

from eps.core.types import Address
from eps.errors import AuthenticationError, FrameError, PeerUnavailableError, ProtocolError
from eps.net.arrays.api import MAX_FRAME_BYTES, MIB, Connection, Limits, Message
from eps.net.arrays.frames import FRAME_HEADER, MAGIC, VERSION, Decoder, Kind, control
from eps.net.arrays.grpc_van import MEET_METHOD, GrpcListener, GrpcVan
from eps.net.arrays.handshake import ANSWER_BYTES, NONCE_BYTES, PROOF_BYTES, ConnectorHandshake
from eps.net.arrays.negotiated import NegotiatedVan
from eps.net.arrays.sockets import SocketVan
from eps.net.calls import call as rpc
from eps.net.security.credentials import NO_SECURITY
from eps.pb import data_pb2 as pb
from tests.van.raw_peers import (
    DEADLINE_S,
    HELLO,
    OTHER_TOKEN,
    TOKEN,
    RawListener,
    RawStream,
    accept_handshake,
    dial,
    echo,
    end_sending,
    frame_of,
    nothing_left,
    proven,
    receive,
    rest,
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


def read_as(frame: bytes, kind: Kind) -> tuple[int, bytes, list[tuple[object, ...]]] | None:
    """Return what a frame says, read without a socket; None where it is no message of that kind."""
    try:
        received = Decoder(LIMITS, (kind,)).feed(frame)
    except FrameError:
        return None
    if received is None:
        return None
    arrays: list[tuple[object, ...]] = [(a.dtype, a.shape, a.tobytes()) for a in received.message.arrays]
    return received.request_id, received.message.header, arrays


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
    others = [(way, TOKEN) for way in ("tcp", "unix", "shm", "grpc") if way != port.way]
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
        assert read_as(answer, Kind.REPLY) == read_as(changed, Kind.REQUEST), changed.hex()
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
                connection.call(REQUEST, DEADLINE_S)
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


# ---- gRPC


@pytest.fixture
def stream_listener() -> Iterator[GrpcListener]:
    # The transport gives its descriptors back on threads of its own.
    with nothing_left(spare_descriptors=4):
        van = GrpcVan(TOKEN, LIMITS)
        listener = van.listen(echo)
        good = van.connect(listener.address, DEADLINE_S)
        yield listener
        still_works(good)
        good.close()
        listener.close()


@pytest.fixture
def channel(stream_listener: GrpcListener) -> Iterator[grpc.Channel]:
    with rpc.channel(stream_listener.address, TOKEN) as channel:
        yield channel


def tell_stream(listener: GrpcListener, channel: grpc.Channel, *messages: bytes) -> int:
    """Send messages on a stream of its own; return how many came back until the listener ended it."""
    stream = RawStream(listener.address, channel=channel).greet()
    for message in messages:
        stream.send(message)
    stream.end_sending()
    count, _ = stream.outcome()
    stream.close()
    return count


def test_noise_at_the_port_of_streams_harms_nobody(stream_listener: GrpcListener) -> None:
    for noise in noises():
        with dial(stream_listener.address) as sock:
            send(sock, noise)
            end_sending(sock)
            rest(sock)


def test_a_stream_that_brings_no_frame_ends(stream_listener: GrpcListener, channel: grpc.Channel) -> None:
    strange = [noise for noise in (*noises(), HELLO + b"x") if read_as(noise, Kind.REQUEST) is None]
    assert len(strange) > 15
    for noise in strange:
        assert tell_stream(stream_listener, channel, noise, GOOD) == 0


def test_each_byte_of_a_streamed_request_matters_or_does_not_but_never_harms(
    stream_listener: GrpcListener, channel: grpc.Channel
) -> None:
    for changed in mutations(GOOD, 4):
        if tell_stream(stream_listener, channel, changed):
            assert read_as(changed, Kind.REQUEST) is not None, changed.hex()
    for length in range(0, len(GOOD), 5):
        assert tell_stream(stream_listener, channel, GOOD[:length]) == 0


def test_a_message_far_above_a_frame_is_not_taken_from_a_stream(
    stream_listener: GrpcListener, channel: grpc.Channel
) -> None:
    stream = RawStream(stream_listener.address, channel=channel).greet()
    stream.send(bytes(64 * MAX_FRAME_BYTES))
    _, error = stream.outcome()
    stream.close()
    # gRPC's own status: the message was never put together.
    assert error is not None and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_listener_of_streams_that_sends_garbage_is_refused() -> None:
    def garbage(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield np.random.default_rng(6).bytes(ANSWER_BYTES)

    def register(server: grpc.Server) -> None:
        methods = {"Stream": grpc.stream_stream_rpc_method_handler(garbage)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("eps.net.arrays", methods),))

    server, address = rpc.serve(register)
    with pytest.raises(FrameError):
        GrpcVan(TOKEN).connect(address, DEADLINE_S)
    rpc.stop(server, 0)


# ---- all the ports of a member


def test_every_port_of_a_member_stands_garbage() -> None:
    with nothing_left(spare_descriptors=4):
        van = NegotiatedVan(TOKEN, limits=LIMITS)
        listener = van.listen(echo)
        good = van.connect(listener.address, DEADLINE_S)
        with rpc.channel(listener.address, TOKEN) as channel:
            meet = channel.unary_unary(MEET_METHOD)
            for noise in noises():
                # The question has nothing in it that is looked at; the answer is the same.
                meeting = pb.Meeting.FromString(meet(noise, timeout=DEADLINE_S))
                assert {offer.transport for offer in meeting.offers} == {"shm", "unix", "tcp"}
        ports = [Address(o.host or listener.address.host, o.port) for o in meeting.offers]
        for address in [*ports, listener.address]:
            for noise in noises():
                with dial(address) as sock:
                    send(sock, noise)
                    end_sending(sock)
                    rest(sock)
            still_works(good)
        for offer, address in zip(meeting.offers, ports, strict=True):
            with proven(address, offer.transport) as sock:
                send(sock, GOOD + noises()[-3][:100] + b"garbage")
                end_sending(sock)
                rest(sock)
            still_works(good)
        good.close()
        listener.close()


@pytest.mark.parametrize("answer", [b"\xff" * 50, b"\x0a\x05ab", np.random.default_rng(8).bytes(500)])
def test_an_answer_that_is_no_meeting_is_an_error_of_ours(answer: bytes) -> None:
    listener = GrpcVan(TOKEN).listen(echo, meet=lambda request: answer)
    with pytest.raises(ProtocolError):
        NegotiatedVan(TOKEN).connect(listener.address, DEADLINE_S)
    listener.close()


def test_where_a_meeting_offers_nothing_grpc_is_taken() -> None:
    listener = GrpcVan(TOKEN).listen(echo, meet=lambda request: b"")
    connection = NegotiatedVan(TOKEN).connect(listener.address, DEADLINE_S)
    assert connection.transport == "grpc"
    still_works(connection)
    connection.close()
    listener.close()
