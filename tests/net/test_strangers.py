"""Connections without the token use neither log space nor a slot."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from eps.net.arrays.sockets import SocketVan
from eps.net.arrays.wires import peer_of
from eps.net.security.certificates import make_certificates
from eps.net.security.credentials import Security, TlsFiles
from eps.system.logs import LimitedLog
from tests.conftest import require
from tests.net.raw_peers import DEADLINE_S, TOKEN, dial, echo, rest, still_works

OTHER_UID = 54321
KNOCK = """
import os, socket, sys
os.setuid(int(sys.argv[3]))
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(20)
sock.connect("\\0" + sys.argv[1])
try:
    sock.sendall(bytes(int(sys.argv[2])))
    print(len(sock.recv(1)))
except ConnectionError:
    print(0)
"""


@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_refused_handshakes_share_a_line_of_the_log(way: str, caplog: pytest.LogCaptureFixture) -> None:
    van = SocketVan(way, TOKEN)
    listener = van.listen(echo)
    try:
        for _ in range(20):
            with dial(listener.address) as sock:
                sock.sendall(bytes(500))
                rest(sock)
        connection = van.connect(listener.address, DEADLINE_S)
        still_works(connection)
        connection.close()
    finally:
        listener.close()
    lines = [r.getMessage() for r in caplog.records if "was refused" in r.getMessage()]
    assert len(lines) == 1, lines


@pytest.mark.parametrize("way", ["tcp", "unix", "shm"])
def test_a_member_connects_while_silent_strangers_keep_all_the_places(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    van = SocketVan(way, TOKEN)
    listener = van.listen(echo)
    with ExitStack() as open_sockets:
        silent = [open_sockets.enter_context(dial(listener.address)) for _ in range(70)]
        # They have all been met: the first ones are ended for the last ones.
        assert [rest(sock) for sock in silent[:6]] == [b""] * 6
        for _ in range(3):
            connection = van.connect(listener.address, DEADLINE_S)
            still_works(connection)
            connection.close()
            # All places are taken again.
            open_sockets.enter_context(dial(listener.address))
        listener.close()
    assert "the oldest is closed for a new one" in caplog.text


def test_a_member_connects_under_tls_while_silent_strangers_keep_all_the_places(tmp_path: Path) -> None:
    make_certificates(tmp_path / "tls")
    van = SocketVan("tcp", Security(TOKEN.token, TlsFiles.within(tmp_path / "tls")))
    listener = van.listen(echo)
    with ExitStack() as open_sockets:
        silent = [open_sockets.enter_context(dial(listener.address)) for _ in range(70)]
        assert [rest(sock) for sock in silent[:6]] == [b""] * 6
        connection = van.connect(listener.address, DEADLINE_S)
        still_works(connection)
        connection.close()
        listener.close()


def test_a_limited_log_says_how_many_warnings_it_kept_back(caplog: pytest.LogCaptureFixture) -> None:
    now_and_then = LimitedLog(logging.getLogger("eps.test"), every_s=3600.0)
    always = LimitedLog(logging.getLogger("eps.test"), every_s=0.0)
    for n in range(3):
        now_and_then.warning("at %s: %s", "door", n)
        always.warning("each %s", n)
    found = [record.getMessage() for record in caplog.records]
    assert found == [
        "at door: 0 (0 more since the last such line)",
        "each 0 (0 more since the last such line)",
        "each 1 (0 more since the last such line)",
        "each 2 (0 more since the last such line)",
    ]


def test_the_user_of_a_unix_peer_is_known() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_of(ours) == (os.getpid(), os.geteuid())
    with socket.socket(socket.AF_INET) as sock:
        assert peer_of(sock) is None


@pytest.mark.parametrize("way", ["unix", "shm"])
def test_another_user_is_turned_away_before_anything_is_asked(way: str, caplog: pytest.LogCaptureFixture) -> None:
    # Only root can start a process of another user.
    require("root")
    listener = SocketVan(way, TOKEN).listen(echo)
    try:
        # What a handshake begins with, which a peer of ours would get an answer to.
        command = [sys.executable, "-S", "-c", KNOCK, listener.address.host[1:], "64", str(OTHER_UID)]
        done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False)
    finally:
        listener.close()
    assert done.stdout == b"0\n", done.stderr
    assert [r for r in caplog.records if f"as user {OTHER_UID}" in r.getMessage()]
