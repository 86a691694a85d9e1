"""Timeouts of peers that read too slowly or not at all, and other ends of a writer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from eps.net.arrays import wires, writer
from eps.net.arrays.api import MIB, Limits
from eps.net.arrays.wires import PlainWire
from eps.net.arrays.writer import Part, StreamWriter
from tests.net.raw_peers import DEADLINE_S

STALL_S = 0.8


class Lost:
    """Takes the reason why a connection broke."""

    def __init__(self) -> None:
        self.reason = ""
        self.noticed = threading.Event()

    def __call__(self, reason: str) -> None:
        self.reason = reason
        self.noticed.set()


@pytest.fixture(params=["tcp", "unix"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PlainWire, socket.socket]]:
    for module in (wires, writer):
        monkeypatch.setattr(module, "STALL_S", STALL_S)
    if request.param == "unix":
        ours, theirs = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            ours = socket.create_connection(listening.getsockname(), DEADLINE_S)
            theirs, _ = listening.accept()
    wire = PlainWire(ours)
    with theirs:
        yield wire, theirs
    wire.close()


def end(sender: StreamWriter, wire: PlainWire) -> None:
    wire.shut_down()
    sender.close()


def test_a_peer_that_takes_nothing_is_lost_soon_after_its_time(
    ends: tuple[PlainWire, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    wire, _ = ends
    lost = Lost()
    sender = StreamWriter(wire, Limits(), "eps-van-test", lost)
    began_s = time.monotonic()
    sender.send([Part([bytes(40 * MIB)])], 40 * MIB)
    assert lost.noticed.wait(DEADLINE_S)
    # What the system's buffers take is taken at first, and a look is a quarter of the time.
    assert STALL_S - 0.1 < time.monotonic() - began_s < 1.9 * STALL_S
    assert "less than" in lost.reason and f"{40 * MIB} unsent bytes" in caplog.text
    assert not sender.send([Part([b"more"])], 4)
    end(sender, wire)


def test_a_peer_that_takes_crumbs_is_lost(ends: tuple[PlainWire, socket.socket]) -> None:
    wire, theirs = ends
    lost, done = Lost(), threading.Event()
    sender = StreamWriter(wire, Limits(), "eps-van-test", lost)

    def nibble() -> None:
        while not done.wait(0.05):
            theirs.recv(100)

    nibbling = threading.Thread(target=nibble)
    nibbling.start()
    sender.send([Part([bytes(40 * MIB)])], 40 * MIB)
    assert lost.noticed.wait(DEADLINE_S)
    done.set()
    nibbling.join(DEADLINE_S)
    end(sender, wire)


def test_a_peer_that_goes_on_taking_is_kept(ends: tuple[PlainWire, socket.socket]) -> None:
    wire, theirs = ends
    lost = Lost()
    sender = StreamWriter(wire, Limits(), "eps-van-test", lost)
    theirs.settimeout(DEADLINE_S)
    size_bytes, taken = 24 * MIB, 0
    began_s = time.monotonic()
    sender.send([Part([bytes(size_bytes)])], size_bytes)
    pause = threading.Event()
    while taken < size_bytes:
        taken += len(theirs.recv(MIB // 2))
        pause.wait(0.04)
    assert time.monotonic() - began_s > 2 * STALL_S and not lost.noticed.is_set()
    end(sender, wire)


def test_a_writer_that_fails_in_any_way_ends_the_connection(
    ends: tuple[PlainWire, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, _ = ends
    lost = Lost()
    sender = StreamWriter(wire, Limits(max_outgoing_bytes=MIB), "eps-van-test", lost, patience_s=DEADLINE_S)

    def no_memory(pieces: object, descriptors: object = ()) -> int:
        raise MemoryError

    monkeypatch.setattr(wire, "send_some", no_memory)
    sender.send([Part([bytes(40 * MIB)])], 40 * MIB)
    assert lost.noticed.wait(DEADLINE_S) and "MemoryError" in lost.reason
    assert not sender.send([Part([b"more"])], 4)
    assert sender.waiting_bytes == 0
    end(sender, wire)
