"""No call without the job's token: what proves it, what does not, and that nothing of a refused call is read."""

from __future__ import annotations

import copy
import hashlib
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from eps.rpc.authentication import (
    CLOCK_WINDOW_S,
    PROOF_KEY,
    CallMemory,
    Metadata,
    TokenInterceptor,
    call_metadata,
)

from eps.core.types import Address
from eps.errors import AuthenticationError, ConfigError, ProtocolError, StorageError
from eps.pb import control_pb2 as pb
from eps.rpc import call as rpc
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
    port: int = 0
    read: list[bytes] = field(default_factory=list)
    handled: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server, port = rpc.serve(self._register, port=self.port, security=self.security)
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

    def recorded(
        self,
        method: str = ECHO,
        security: Security = SECURITY,
        request: bytes | None = b"x",
        now_s: float | None = None,
    ) -> Metadata:
        """Return what goes with a call of this server, as somebody on the way sees it."""
        return call_metadata(security, method, self.address.port, request, now_s)


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()
    yield found
    rpc.stop(found.server, 0)


@pytest.fixture
def elsewhere() -> Iterator[Served]:
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
    assert len({served.recorded()[0][1] for _ in range(20)}) == 20


def test_method_that_does_not_exist_is_not_told_to_strangers(served: Served) -> None:
    with rpc.channel(served.address) as channel, pytest.raises(AuthenticationError):
        rpc.call(channel.unary_unary("/test.Service/None"), b"x", DEADLINE_S, "ask")
    with rpc.channel(served.address, SECURITY) as channel, pytest.raises(ProtocolError, match="UNIMPLEMENTED"):
        rpc.call(channel.unary_unary("/test.Service/None"), b"x", DEADLINE_S, "ask")


def test_replayed_call_is_refused(served: Served) -> None:
    metadata = served.recorded()
    assert served.ask("unary_unary", metadata=metadata) == b"x"
    with pytest.raises(AuthenticationError, match="used before"):
        served.ask("unary_unary", metadata=metadata)
    assert served.handled == ["unary_unary"]


@pytest.mark.parametrize("kind", KINDS)
def test_call_recorded_on_its_way_to_one_member_is_refused_by_another(
    served: Served, elsewhere: Served, kind: str
) -> None:
    metadata = served.recorded(f"/test.Service/{kind}", request=b"x" if kind.startswith("unary") else None)
    with pytest.raises(AuthenticationError, match="the proof is wrong"):
        elsewhere.ask(kind, metadata=metadata)
    assert (elsewhere.read, elsewhere.handled) == ([], [])
    assert served.ask(kind, metadata=metadata) == b"x"


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
@pytest.mark.parametrize("request_", [b"another", b"", None], ids=["another", "empty", "stream"])
def test_proof_of_another_request_is_refused_before_the_request_is_parsed(
    served: Served, kind: str, request_: bytes | None
) -> None:
    with pytest.raises(AuthenticationError, match="of another request"):
        served.ask(kind, metadata=served.recorded(f"/test.Service/{kind}", request=request_))
    assert (served.read, served.handled) == ([], [])


@pytest.mark.parametrize("kind", KINDS)
def test_call_recorded_before_a_restart_is_refused_by_the_next_process_at_the_same_place(kind: str) -> None:
    before = Served()
    metadata = before.recorded(f"/test.Service/{kind}", request=b"x" if kind.startswith("unary") else None)
    assert before.ask(kind, metadata=metadata) == b"x"
    rpc.stop(before.server, 0)
    after = Served(port=before.address.port)
    try:
        with pytest.raises(AuthenticationError, match="older than what this process can remember"):
            after.ask(kind, metadata=metadata)
        assert (after.read, after.handled) == ([], [])
        assert after.ask(kind, SECURITY) == b"x"
    finally:
        rpc.stop(after.server, 0)


def test_proof_counts_from_the_moment_on_that_the_server_began() -> None:
    interceptor = TokenInterceptor(SECURITY, now_s=lambda: 1000.0)
    for made_s, objection in ((999.999, "remember"), (900.0, "remember"), (1000.0, ""), (1200.0, "")):
        said, _ = interceptor.judge(ECHO, call_metadata(SECURITY, ECHO, interceptor.port, b"x", made_s))
        assert objection in said and bool(objection) == bool(said)


def test_request_that_is_no_message_is_told_to_its_caller() -> None:
    def register(server: grpc.Server) -> None:
        parse = pb.KillRequest.FromString
        handler = grpc.unary_unary_rpc_method_handler(lambda request, context: b"", request_deserializer=parse)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", {"Parse": handler}),))

    server, port = rpc.serve(register, security=SECURITY)
    with rpc.channel(Address("127.0.0.1", port), SECURITY) as channel:
        method = channel.unary_unary("/test.Service/Parse")
        assert rpc.call(method, b"", DEADLINE_S, "ask") == b""
        with pytest.raises(ProtocolError, match=r"/test\.Service/Parse: the request is no message"):
            rpc.call(method, b"\xff", DEADLINE_S, "ask")
    rpc.stop(server, 0)


def test_every_way_to_call_a_method_has_a_proof(served: Served) -> None:
    with rpc.channel(served.address, SECURITY) as channel:
        method = channel.unary_unary(ECHO, request_serializer=str.encode)
        assert method("one", timeout=DEADLINE_S) == b"one"
        assert method.with_call("two", timeout=DEADLINE_S)[0] == b"two"
        assert method.future("three", timeout=DEADLINE_S, metadata=(("more", "said"),)).result(DEADLINE_S) == b"three"
    assert served.read == [b"one", b"two", b"three"]


def test_proof_of_another_method_is_refused(served: Served) -> None:
    with pytest.raises(AuthenticationError, match="the proof is wrong"):
        served.ask("unary_unary", metadata=served.recorded("/test.Service/unary_stream"))


def test_proof_of_another_time_is_refused_where_it_is_outside_the_window() -> None:
    now_s = 1e9
    interceptor = TokenInterceptor(SECURITY, now_s=lambda: now_s, memory=CallMemory())
    for away_s in (-CLOCK_WINDOW_S - 5, CLOCK_WINDOW_S + 5):
        said, _ = interceptor.judge(ECHO, call_metadata(SECURITY, ECHO, 0, b"x", now_s + away_s))
        assert re.search(r"305 s (ahead of|before).* within 300 s", said)
    for away_s in (-CLOCK_WINDOW_S + 60, CLOCK_WINDOW_S - 60):
        assert interceptor.judge(ECHO, call_metadata(SECURITY, ECHO, 0, b"x", now_s + away_s))[0] == ""


def test_stranger_does_not_learn_how_the_clocks_differ(served: Served) -> None:
    with pytest.raises(AuthenticationError, match="the proof is wrong"):
        served.ask("unary_unary", metadata=served.recorded(security=OTHER, now_s=0.0))


def garbage(served: Served) -> Iterator[tuple[tuple[str, Any], ...]]:
    """Yield metadata that is nearly right."""
    entry = str(served.recorded()[0][1])
    time_ms, nonce, digest, proof = entry.split(".")
    rest = f"{digest}.{proof}"
    for value in (
        "", ".", "..", "x" * 30_000, entry[:-1], entry + "0", entry.upper(), f" {entry}  x", f"{time_ms}.{nonce}",
        f"-{entry}", f"1e9.{nonce}.{rest}", f"{'9' * 15}.{nonce}.{rest}", f"{'9' * 400}.{nonce}.{rest}",
        f"{time_ms}.{nonce}.{digest}.{'0' * 64}", f"{time_ms}.{'0' * 32}.{rest}", f"{int(time_ms) + 1}.{nonce}.{rest}",
        f"{time_ms}.{nonce}.{'0' * 64}.{proof}", f"{time_ms}.{nonce}..{proof}", f"{time_ms}.{nonce}.{proof}", SECRET,
    ):  # fmt: skip
        yield ((PROOF_KEY, value),)
    yield (PROOF_KEY, entry), (PROOF_KEY, entry)
    yield (("eps-proof-bin", entry.encode()),)
    yield (("eps-token", SECRET),)


def test_garbage_in_the_place_of_a_proof_is_refused(served: Served) -> None:
    for metadata in garbage(served):
        with pytest.raises(AuthenticationError, match=r"the proof is wrong|malformed|carries no eps-proof"):
            served.ask("unary_unary", metadata=metadata)
    assert (served.read, served.handled) == ([], [])


def test_garbage_that_grpc_would_not_send_is_refused() -> None:
    interceptor = TokenInterceptor(SECURITY)
    for value in (b"\xff" * 10, "ü" * 200, "٣" * 13 + "." + "0" * 32 + "." + "0" * 64, None, 7):
        assert "malformed" in interceptor.judge(ECHO, ((PROOF_KEY, value),))[0]


def test_refusals_fill_neither_memory_nor_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    memory = CallMemory()
    interceptor = TokenInterceptor(SECURITY, memory=memory)
    for _ in range(100):
        assert interceptor.judge(ECHO, call_metadata(OTHER, ECHO, interceptor.port, b"x"))[0]
    assert len(memory) == 0
    assert interceptor.judge(ECHO, call_metadata(SECURITY, ECHO, interceptor.port, b"x"))[0] == ""
    assert len(memory) == 1
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
