"""The reference of the vans: the same bytes over a bare socket in Python, without ids, checks or threads."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable

import numpy as np

MIB = 1 << 20
#: A command: operation, bytes to move, most bytes in one call (0: no limit), whether one call waits for all of them.
_COMMAND = struct.Struct("<BQQB")
_PUSH, _PULL, _ECHO = 1, 2, 3
_LENGTH = struct.Struct("<I")
#: Variants as (most bytes in one call, wait for all); the best counts.
MODES = {"1 MB pieces": (MIB, False), "whole": (0, True)}
DEADLINE_S = 30.0


def connect(address: str | tuple[str, int]) -> socket.socket:
    """Connect to :func:`serve`; a string is the name of an abstract Unix socket."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.connect(address)
    _prepare(sock)
    return sock


def _prepare(sock: socket.socket) -> None:
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _send(sock: socket.socket, view: memoryview, most: int) -> None:
    if not most:
        sock.sendall(view)
        return
    for start in range(0, len(view), most):
        sock.sendall(view[start : start + most])


def _receive(sock: socket.socket, view: memoryview, most: int, wait: bool) -> None:
    got = 0
    while got < len(view):
        count = sock.recv_into(view[got : got + most] if most else view[got:], 0, socket.MSG_WAITALL if wait else 0)
        if not count:
            raise EOFError
        got += count


def push(sock: socket.socket, array: np.ndarray, mode: str) -> None:
    """Send an array and wait for a byte as acknowledgement."""
    most, wait = MODES[mode]
    sock.sendall(_COMMAND.pack(_PUSH, array.nbytes, most, wait))
    _send(sock, array.view(np.uint8).data, most)
    _receive(sock, memoryview(bytearray(1)), 0, False)


def pull(sock: socket.socket, into: np.ndarray, mode: str) -> None:
    """Request as many bytes as ``into`` has, and receive them there."""
    most, wait = MODES[mode]
    sock.sendall(_COMMAND.pack(_PULL, into.nbytes, most, wait))
    _receive(sock, into.view(np.uint8).data, most, wait)


class Echo:
    """A round trip of a length-prefixed frame with an array, with a deadline at both ends."""

    def __init__(self, sock: socket.socket) -> None:
        sock.sendall(_COMMAND.pack(_ECHO, 0, 0, False))
        sock.settimeout(DEADLINE_S)
        self._sock = sock

    def round_trip(self, array: np.ndarray) -> np.ndarray:
        """Send ``array`` and return the echo as a new array."""
        _send_frame(self._sock, array)
        return _receive_frame(self._sock)


def _send_frame(sock: socket.socket, array: np.ndarray) -> None:
    sock.sendmsg([_LENGTH.pack(array.nbytes), array.data])


def _receive_frame(sock: socket.socket) -> np.ndarray:
    prefix = bytearray(_LENGTH.size)
    _receive(sock, memoryview(prefix), 0, False)
    array = np.empty(_LENGTH.unpack(prefix)[0] // 4, np.float32)
    _receive(sock, array.view(np.uint8).data, 0, False)
    return array


def serve(listening: socket.socket, memory: Callable[[int], np.ndarray]) -> None:
    """Answer connections, each on a thread, until the process ends.

    Parameters
    ----------
    memory : callable
        Returns the array of so many bytes that pushes go into and pulls come from.
    """

    def accept() -> None:
        while True:
            sock, _ = listening.accept()
            _prepare(sock)
            threading.Thread(target=_answer, args=(sock, memory), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def _answer(sock: socket.socket, memory: Callable[[int], np.ndarray]) -> None:
    command = bytearray(_COMMAND.size)
    try:
        while True:
            _receive(sock, memoryview(command), 0, True)
            what, size_bytes, most, wait = _COMMAND.unpack(command)
            if what == _ECHO:
                sock.settimeout(DEADLINE_S)
                while True:
                    try:
                        _send_frame(sock, _receive_frame(sock))
                    except TimeoutError:
                        # Idle: other variants are being measured.
                        continue
            view = memory(size_bytes).view(np.uint8).data
            if what == _PUSH:
                _receive(sock, view, most, bool(wait))
                sock.sendall(b"k")
            else:
                _send(sock, view, most)
    except (EOFError, OSError):
        sock.close()
