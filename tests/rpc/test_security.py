"""No call without the job's token: what proves it, what does not, and that nothing of a refused call is read."""

from __future__ import annotations

import copy
import hashlib
import pickle
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from eps.core.types import Address
from eps.errors import AuthenticationError, ConfigError, ProtocolError, StorageError
from eps.rpc import call as rpc
from eps.rpc.authentication import CLOCK_WINDOW_S, PROOF_KEY, CallMemory, TokenInterceptor, call_metadata
from eps.rpc.security import NO_SECURITY, PROOF_BYTES, JobToken, Security
from eps.storage.jobdir import create_job_dir

DEADLINE_S = 20.0
SECRET = "0123456789abcdef0123456789abcdef"
SECURITY = Security(JobToken.from_hex(SECRET))
OTHER = Security(JobToken.from_hex("f" * 32))
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
ECHO = "/test.Service/unary_unary"


@dataclass
class Served:
    """A server with one method of each kind, and what of it was reached."""

    security: Security = SECURITY
    read: list[bytes] = field(default_factory=list)
    handled: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server, port = rpc.serve(self._register, security=self.security)
        self.address = Address("127.0.0.1", port)

    def _register(self, server: grpc.Server) -> None:
        def parse(data: bytes) -> bytes:
            self.read.append(data)
            return data

        def behaviour(kind: str) -> Callable[[Any, Any], Any]:
            def run(request: Any, context: Any) -> Any:
                self.handled.append(kind)
                got = request if kind.startswith("unary") else b"".join(request)
                return iter([got]) if kind.endswith("stream") else got

            return run

        handlers = {
            kind: getattr(grpc, f"{kind}_rpc_method_handler")(behaviour(kind), request_deserializer=parse)
            for kind in KINDS
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", handlers),))

    def ask(self, kind: str, security: Security = NO_SECURITY, metadata: Any = None) -> bytes:
        """Call the method of that kind, and raise what it raises as our error."""
        with rpc.channel(self.address, security) as channel:
            method = getattr(channel, kind)(f"/test.Service/{kind}")
            request = b"x" if kind.startswith("unary") else iter([b"x"])
            try:
                reply = method(request, timeout=DEADLINE_S, metadata=metadata)
                return b"".join(reply) if kind.endswith("stream") else reply
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
                raise rpc.error_of(error, "ask") from error


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()
    yield found
    rpc.stop(found.server, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_call_with_the_token_is_answered(served: Served, kind: str) -> None:
    assert served.ask(kind, SECURITY) == b"x"
    assert (served.read, served.handled) == ([b"x"], [kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("security", [NO_SECURITY, OTHER], ids=["without", "another job's"])
def test_call_without_the_token_is_refused_before_anything_of_it_is_read(
    served: Served, kind: str, security: Security
) -> None:
    with pytest.raises(AuthenticationError, match="does not prove the job's token") as caught:
        served.ask(kind, security)
    assert isinstance(caught.value, ProtocolError)
    assert SECRET not in str(caught.value)
    assert (served.read, served.handled) == ([], [])


def test_every_call_has_a_proof_of_its_own(served: Served) -> None:
    with rpc.channel(served.address, SECURITY) as channel:
        method = channel.unary_unary(ECHO)
        assert [rpc.call(method, b"x", DEADLINE_S, "ask") for _ in range(20)] == [b"x"] * 20
    assert len({call_metadata(SECURITY, ECHO)[0][1] for _ in range(20)}) == 20


def test_method_that_does_not_exist_is_not_told_to_strangers(served: Served) -> None:
    with rpc.channel(served.address) as channel, pytest.raises(AuthenticationError):
        rpc.call(channel.unary_unary("/test.Service/None"), b"x", DEADLINE_S, "ask")
    with rpc.channel(served.address, SECURITY) as channel, pytest.raises(ProtocolError, match="UNIMPLEMENTED"):
        rpc.call(channel.unary_unary("/test.Service/None"), b"x", DEADLINE_S, "ask")


def test_replayed_call_is_refused(served: Served) -> None:
    metadata = call_metadata(SECURITY, ECHO)
    assert served.ask("unary_unary", metadata=metadata) == b"x"
    with pytest.raises(AuthenticationError, match="used before"):
        served.ask("unary_unary", metadata=metadata)
    assert served.handled == ["unary_unary"]


def test_proof_of_another_method_is_refused(served: Served) -> None:
    with pytest.raises(AuthenticationError, match="the proof is wrong"):
        served.ask("unary_unary", metadata=call_metadata(SECURITY, "/test.Service/unary_stream"))


def test_proof_of_another_time_is_refused_where_it_is_outside_the_window(served: Served) -> None:
    now_s = time.time()
    for away_s in (-CLOCK_WINDOW_S - 5, CLOCK_WINDOW_S + 5):
        with pytest.raises(AuthenticationError, match=r"30\d s (ahead of|before).* within 300 s"):
            served.ask("unary_unary", metadata=call_metadata(SECURITY, ECHO, now_s + away_s))
    for away_s in (-CLOCK_WINDOW_S + 60, CLOCK_WINDOW_S - 60):
        assert served.ask("unary_unary", metadata=call_metadata(SECURITY, ECHO, now_s + away_s)) == b"x"


def test_stranger_does_not_learn_how_the_clocks_differ(served: Served) -> None:
    with pytest.raises(AuthenticationError, match="the proof is wrong"):
        served.ask("unary_unary", metadata=call_metadata(OTHER, ECHO, 0.0))


def garbage() -> Iterator[tuple[tuple[str, Any], ...]]:
    """Yield metadata that is nearly right."""
    entry = str(call_metadata(SECURITY, ECHO)[0][1])
    time_ms, nonce, proof = entry.split(".")
    for value in (
        "", ".", "..", "x" * 30_000, entry[:-1], entry + "0", entry.upper(), f" {entry}  x", f"{time_ms}.{nonce}",
        f"-{entry}", f"1e9.{nonce}.{proof}", f"{'9' * 15}.{nonce}.{proof}", f"{'9' * 400}.{nonce}.{proof}",
        f"{time_ms}.{nonce}.{'0' * 64}", f"{time_ms}.{'0' * 32}.{proof}", f"{int(time_ms) + 1}.{nonce}.{proof}",
        SECRET,
    ):  # fmt: skip
        yield ((PROOF_KEY, value),)
    yield (PROOF_KEY, entry), (PROOF_KEY, entry)
    yield (("eps-proof-bin", entry.encode()),)
    yield (("eps-token", SECRET),)


def test_garbage_in_the_place_of_a_proof_is_refused(served: Served) -> None:
    for metadata in garbage():
        with pytest.raises(AuthenticationError, match=r"the proof is wrong|malformed|carries no eps-proof"):
            served.ask("unary_unary", metadata=metadata)
    assert (served.read, served.handled) == ([], [])


def test_garbage_that_grpc_would_not_send_is_refused() -> None:
    interceptor = TokenInterceptor(SECURITY)
    for value in (b"\xff" * 10, "ü" * 200, "٣" * 13 + "." + "0" * 32 + "." + "0" * 64, None, 7):
        assert "malformed" in interceptor.objection(ECHO, ((PROOF_KEY, value),))


def test_refusals_fill_neither_memory_nor_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    memory = CallMemory()
    interceptor = TokenInterceptor(SECURITY, memory=memory)
    for _ in range(100):
        assert interceptor.objection(ECHO, call_metadata(OTHER, ECHO))
    assert len(memory) == 0
    for _ in range(20):
        with pytest.raises(AuthenticationError):
            served.ask("unary_unary", OTHER)
    assert sum("refused a call" in line for line in caplog.messages) == 1
    assert SECRET not in caplog.text


def test_memory_forgets_what_the_window_refuses_anyway() -> None:
    memory = CallMemory(window_s=10)
    for now_ms in range(0, 100_000, 100):
        assert memory.objection(now_ms, now_ms.to_bytes(16), now_ms) == ""
    assert len(memory) <= 102


def test_full_memory_narrows_the_window_and_never_lets_a_replay_through() -> None:
    memory = CallMemory(window_s=1000, capacity=50)
    calls = [(time_ms, time_ms.to_bytes(16)) for time_ms in range(0, 2000, 10)]
    accepted = [call for call in calls if not memory.objection(*call, now_ms=2000)]
    assert accepted == calls and len(memory) == 50
    assert all(memory.objection(*call, now_ms=2000) for call in calls)
    assert "remember" in memory.objection(5, b"an older, new one", now_ms=2000)
    assert memory.objection(2001, b"a newer one", now_ms=2001) == ""
    assert memory.objection(*calls[-1], now_ms=2001) != ""


def test_call_that_is_older_than_a_full_memory_is_refused_and_forgets_nothing_newer() -> None:
    memory = CallMemory(window_s=1000, capacity=2)
    assert memory.objection(100, b"a", 100) == memory.objection(200, b"b", 200) == ""
    assert "remember" in memory.objection(50, b"c", 200)
    assert "used before" in memory.objection(200, b"b", 200)
    assert memory.objection(100, b"a", 200) != ""


def test_server_without_a_token_asks_nobody() -> None:
    found = Served(security=NO_SECURITY)
    try:
        assert found.ask("unary_unary") == found.ask("unary_unary", SECURITY) == b"x"
    finally:
        rpc.stop(found.server, 0)


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
    assert not OTHER.token.proves(proof, b"role", b"ab", b"c")  # type: ignore[union-attr]
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
    for shown in (repr(token), str(token), f"{token}", repr(SECURITY), repr([SECURITY])):
        assert SECRET not in shown and not re.search(r"[0-9a-f]{8}", shown) and r"\x" not in shown
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
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
