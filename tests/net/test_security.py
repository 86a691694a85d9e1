"""Authentication on one host: the folder of a job's sockets, and the job's token."""

from __future__ import annotations

import copy
import gc
import hashlib
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from eps.core.types import Address
from eps.errors import AuthenticationError, ConfigError, PeerUnavailableError, ProtocolError, StorageError
from eps.net.arrays.api import Message
from eps.net.arrays.negotiated import NegotiatedVan
from eps.net.calls import call as rpc
from eps.net.security.credentials import PROOF_BYTES, JobToken, Security
from eps.storage.jobdir import create_job_dir
from tests.conftest import require

DEADLINE_S = 20.0
SECRET = "0123456789abcdef0123456789abcdef"
TOKEN = JobToken.from_hex(SECRET)
OTHER_UID = 54321
#: Descriptors that gRPC may open meanwhile, for itself.
SPARE = 6
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
#: Longer than a path of a Unix socket may be.
LONG = "long" * 40
CONNECT = """
import os, socket, sys
os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
for place in sys.argv[3:]:
    for act in (socket.socket.connect, socket.socket.bind):
        try:
            act(socket.socket(socket.AF_UNIX), place)
            print("did")
        except OSError as error:
            print(type(error).__name__)
"""


def register(server: grpc.Server) -> None:
    """Add a method of each kind, which returns what it gets."""

    def behaviour(kind: str) -> Callable[[Any, Any], Any]:
        def run(request: Any, context: Any) -> Any:
            got = request if kind.startswith("unary") else b"".join(request)
            return iter([got]) if kind.endswith("stream") else got

        return run

    handlers = {kind: getattr(grpc, f"{kind}_rpc_method_handler")(behaviour(kind)) for kind in KINDS}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", handlers),))


def ask(address: Address | str, security: Security, kind: str = "unary_unary") -> bytes:
    """Call the method of that kind, and raise what it raises as our error."""
    with rpc.channel(address, security) as channel:
        request = b"x" if kind.startswith("unary") else iter([b"x"])
        try:
            reply = getattr(channel, kind)(f"/test.Service/{kind}")(request, timeout=DEADLINE_S)
            return b"".join(reply) if kind.endswith("stream") else bytes(reply)
        except grpc.RpcError as error:
            raise rpc.error_of(error, "ask") from error


@pytest.fixture(params=["short", LONG], ids=["short path", "long path"])
def ours(request: pytest.FixtureRequest, tmp_path: Path) -> Security:
    return Security(TOKEN, sockets=tmp_path / request.param / "sockets")


@pytest.fixture
def address(ours: Security) -> Iterator[Address]:
    """The address of a server in the folder."""
    assert ours.sockets is not None
    ours.sockets.parent.mkdir()
    server, found = rpc.serve(register, security=ours)
    yield found
    rpc.stop(server, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_can_enter_the_folder_call_each_other(address: Address, ours: Security, kind: str) -> None:
    assert ask(address, ours, kind) == b"x"
    assert ask(str(address), ours, kind) == b"x"


def test_members_exchange_arrays_in_the_folder_and_listen_nowhere_else(ours: Security) -> None:
    assert ours.sockets is not None
    ours.sockets.parent.mkdir()
    before = listening()
    listener = NegotiatedVan(ours).listen(lambda message, reply: reply.send(message))
    try:
        assert listening() - before == set()
        for way in ("shm", "unix"):
            connection = NegotiatedVan(ours, way).connect(listener.address, DEADLINE_S)
            assert connection.request(Message(b"header")).result(DEADLINE_S).header == b"header"
            assert connection.transport == way
            connection.close()
    finally:
        listener.close()
    with pytest.raises(ConfigError, match="tcp"):
        NegotiatedVan(ours, "tcp")


def listening() -> set[str]:
    """Return what this process listens on that has no file: TCP ports and abstract Unix sockets."""
    mine = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            mine.add(os.readlink(f"/proc/self/fd/{fd}"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in mine:
                found.add(words[1])
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[7].startswith("@") and f"socket:[{words[6]}]" in mine:
            found.add(words[7])
    return found


def test_another_user_can_neither_connect_nor_put_a_socket_in_the_place_of_one(tmp_path: Path) -> None:
    require("root")
    ours = Security(TOKEN, sockets=tmp_path / "sockets")
    server, address = rpc.serve(register, security=ours)
    path = ours.socket_path(address).text
    rpc.stop(server, 0)
    for folder in (tmp_path, *tmp_path.parents):
        # pytest's own folders are private, too: only the folder of the sockets is to hold.
        if folder.stat().st_mode & 0o005 != 0o005 and folder != folder.parent:
            folder.chmod(0o755)
    command = [sys.executable, "-S", "-c", CONNECT, "-", str(OTHER_UID), path, str(tmp_path / "sockets" / "another")]
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False, text=True, cwd="/")
    assert done.stdout.split() == ["PermissionError"] * 4, done.stderr


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_folder_that_others_can_enter_is_refused_by_both_ends(tmp_path: Path, mode: int) -> None:
    ours = Security(TOKEN, sockets=tmp_path / "sockets")
    server, address = rpc.serve(register, security=ours)
    try:
        (tmp_path / "sockets").chmod(mode)
        for use in (lambda: ask(address, ours), lambda: rpc.serve(register, security=ours)):
            with pytest.raises(StorageError, match="only user"):
                use()
        (tmp_path / "sockets").chmod(0o700)
        assert ask(address, ours) == b"x"
    finally:
        rpc.stop(server, 0)


def test_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    ours = Security(TOKEN, sockets=tmp_path / "sockets")
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "sockets").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError):
        rpc.serve(register, security=ours)
    with pytest.raises(StorageError):
        ask("unix:there", ours)


@pytest.mark.parametrize("name", ["", "../there", "a/b", ".hidden", "x" * 80, "\0", "@there"])
def test_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "sockets").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as there:
        there.bind(str(tmp_path / "there"))
        with pytest.raises(ProtocolError, match="not a socket"):
            ask(f"unix:{name}", Security(TOKEN, sockets=tmp_path / "sockets"))


def test_port_is_not_believed_by_a_job_that_has_no_certificates(tmp_path: Path) -> None:
    """A process of any user may listen there."""
    with socket.create_server(("127.0.0.1", 0)) as rogue:
        rogue.setblocking(False)
        with pytest.raises(AuthenticationError, match="cannot prove"):
            ask(Address(*rogue.getsockname()), Security(TOKEN, sockets=tmp_path))
        with pytest.raises(BlockingIOError):
            rogue.accept()


def test_long_path_costs_a_descriptor_only_while_it_is_used(tmp_path: Path) -> None:
    """A scheduler speaks to thousands of jobs, one after the other."""
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        ours = Security(TOKEN, sockets=tmp_path / LONG / str(number))
        ours.sockets.parent.mkdir(exist_ok=True)  # type: ignore[union-attr]
        with ours.socket_path(ours.new_socket()) as path:
            assert len(path) < 100 and len(os.listdir("/proc/self/fd")) <= before + 1 + SPARE
        rpc.channel(ours.new_socket(), ours).close()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + SPARE


def test_socket_that_nobody_listens_on_is_told_at_once(address: Address, ours: Security) -> None:
    with pytest.raises(PeerUnavailableError):
        ask("unix:another", ours)


def test_folder_that_was_made_again_is_the_one_that_counts(ours: Security) -> None:
    """A job of the same name comes in the place of one that a long-lived scheduler knew."""
    assert ours.sockets is not None
    ours.sockets.parent.mkdir()
    for _ in range(2):
        server, address = rpc.serve(register, security=ours)
        assert ask(address, ours) == b"x"
        rpc.stop(server, 0)
        shutil.rmtree(ours.sockets)


def test_proof_is_worth_nothing_for_another_role_or_other_parts() -> None:
    token = JobToken.from_hex(SECRET)
    proof = token.proof(b"role", b"ab", b"c")
    assert len(proof) == PROOF_BYTES and token.proves(proof, b"role", b"ab", b"c")
    for role, *parts in (
        (b"other", b"ab", b"c"),
        (b"role", b"a", b"bc"),
        (b"role", b"abc"),
        (b"role", b"ab", b"c", b""),
    ):
        assert not token.proves(proof, role, *parts)
    assert not JobToken.from_hex("f" * 32).proves(proof, b"role", b"ab", b"c")
    for wrong in (b"", proof[:-1], proof + b"\0", bytes(PROOF_BYTES)):
        assert not token.proves(wrong, b"role", b"ab", b"c")


def test_proof_is_the_one_of_the_standard() -> None:
    """HMAC-SHA256 over each part behind its length, by the definition of RFC 2104."""
    key = bytes.fromhex(SECRET).ljust(64, b"\0")
    message = b"\4\0\0\0\0\0\0\0role\2\0\0\0\0\0\0\0ab"
    inner = hashlib.sha256(bytes(k ^ 0x36 for k in key) + message).digest()
    expected = hashlib.sha256(bytes(k ^ 0x5C for k in key) + inner).digest()
    assert JobToken.from_hex(SECRET).proof(b"role", b"ab") == expected


def test_token_can_be_neither_shown_nor_pickled() -> None:
    token = JobToken.from_hex(SECRET)
    for shown in (repr(token), str(token), f"{token}", repr(Security(token)), repr([Security(token)])):
        assert SECRET not in shown and not re.search(r"[0-9a-f]{8}", shown) and r"\x" not in shown
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled"):
            copied(token)


@pytest.mark.parametrize("text", ["", "0123", "x" * 32, SECRET[:-1], SECRET[:-2]])
def test_what_is_no_token_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigError, match=r"hexadecimal|at least 16") as caught:
        JobToken.from_hex(text)
    assert not text or text not in str(caught.value)
    assert caught.value.__cause__ is None


def test_token_of_a_job_is_read_from_its_directory(tmp_path: Path) -> None:
    one, one_lock = create_job_dir("one", tmp_path)
    two, two_lock = create_job_dir("two", tmp_path)
    with one_lock, two_lock:
        assert one.token.stat().st_mode & 0o777 == 0o600 and one.path.stat().st_mode & 0o777 == 0o700
        first, again, other = (Security.of_job(job.path) for job in (one, one, two))
        assert first.token is not None and again.token is not None and other.token is not None
        assert again.token.proves(first.token.proof(b"role"), b"role")
        assert not other.token.proves(first.token.proof(b"role"), b"role")
        assert first.tls is None and first.channel_credentials() is None and first.server_credentials() is None
        assert first.ssl_context(server_side=True) is None
        one.token.write_text("my secret\n")
        with pytest.raises(StorageError, match="hexadecimal") as caught:
            Security.of_job(one.path)
        assert "my secret" not in str(caught.value)
        one.token.unlink()
        with pytest.raises(StorageError, match="token"):
            Security.of_job(one.path)
