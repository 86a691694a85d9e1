"""A wire under TLS on a link that is slow, but not dead."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from eps.errors import PeerUnavailableError
from eps.net.arrays import wires
from eps.net.arrays.api import Limits
from eps.net.arrays.wires import TlsWire, advanced
from eps.net.arrays.writer import StreamWriter
from eps.net.security.certificates import make_certificates
from eps.net.security.credentials import TLS_NAME, Security, TlsFiles
from tests.net.raw_peers import DEADLINE_S, TOKEN, receive

STALL_S = 0.8


class WithoutDescriptor:
    """A socket under TLS whose descriptor was given back."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.recv_into, self.send = sock.recv_into, sock.send

    def fileno(self) -> int:
        return -1


@pytest.fixture
def ends(tmp_path: Path) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    """Two ends of a socket pair that have shaken hands."""
    make_certificates(tmp_path / "tls")
    security = Security(TOKEN.token, TlsFiles.within(tmp_path / "tls"))
    client, server = security.ssl_context(server_side=False), security.ssl_context(server_side=True)
    assert client is not None and server is not None
    ours, theirs = socket.socketpair()
    wrapped = server.wrap_socket(theirs, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=wrapped.do_handshake)
    thread.start()
    sock = client.wrap_socket(ours, server_hostname=TLS_NAME)
    thread.join(DEADLINE_S)
    return sock, wrapped


def test_a_slow_link_is_alive_as_long_as_something_passes(
    ends: tuple[ssl.SSLSocket, ssl.SSLSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wires, "STALL_S", STALL_S)
    sock, peer = ends
    content = bytes(range(256)) * (8 << 10)
    found = bytearray()

    def read_slowly() -> None:
        pause = threading.Event()
        while len(found) < len(content):
            found.extend(peer.recv(16 << 10))
            pause.wait(0.02)

    wire = TlsWire(sock)
    # Little fits in between: the wire has to wait for the peer, longer for each of its pieces than a stall may be.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
    began_s = time.monotonic()
    with peer:
        thread = threading.Thread(target=read_slowly)
        thread.start()
        left = [memoryview(content)]
        sent = []
        while left:
            sent.append(wire.send_some(left))
            left = advanced(left, sent[-1])  # type: ignore[assignment]
        thread.join(DEADLINE_S)
    wire.close()
    assert bytes(found) == content
    assert time.monotonic() - began_s > 2 * STALL_S
    assert max(sent) <= 1 << 20


def test_a_peer_that_takes_nothing_is_lost(
    ends: tuple[ssl.SSLSocket, ssl.SSLSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wires, "STALL_S", STALL_S)
    sock, peer = ends
    wire = TlsWire(sock)
    with peer, pytest.raises(TimeoutError):
        while True:
            wire.send_some([bytes(1 << 20)])
    wire.close()


def test_a_wire_that_is_closed_meanwhile_has_lost_its_peer(
    ends: tuple[ssl.SSLSocket, ssl.SSLSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    sock, peer = ends
    wire = TlsWire(sock)
    # Its descriptor is given back between a call of OpenSSL and the wait for the socket.
    monkeypatch.setattr(wire, "_sock", WithoutDescriptor(sock))
    with peer:
        with pytest.raises(PeerUnavailableError):
            wire.receive(memoryview(bytearray(10)))
        with pytest.raises(OSError, match="closed"):
            while True:
                wire.send_some([bytes(1 << 20)])
    sock.close()


def test_a_wire_receives_with_the_patience_that_it_is_given(ends: tuple[ssl.SSLSocket, ssl.SSLSocket]) -> None:
    sock, peer = ends
    wire = TlsWire(sock)
    wire.wait_at_most(0.05)
    into = memoryview(bytearray(10))
    with peer:
        began_s = time.monotonic()
        assert wire.receive(into) == 0
        peer.sendall(b"half")
        assert wire.receive(into, whole=True) == 4
        assert 0.1 <= time.monotonic() - began_s < DEADLINE_S / 2
    wire.close()


def test_what_does_not_leave_at_once_leaves_later_and_in_order(ends: tuple[ssl.SSLSocket, ssl.SSLSocket]) -> None:
    sock, peer = ends
    wire = TlsWire(sock)
    writer = StreamWriter(wire, Limits(), "eps-van-test", lambda reason: None)
    peer.settimeout(DEADLINE_S)
    assert writer.send_frame(b"at once")
    assert writer._thread is None and receive(peer, 7) == b"at once"
    frames = [bytes([number % 256]) * 30_000 for number in range(200)]
    for frame in frames:
        assert writer.send_frame(frame)
    with peer:
        assert all(receive(peer, len(frame)) == frame for frame in frames)
    wire.shut_down()
    writer.close()
    wire.close()
