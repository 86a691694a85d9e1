"""Errors cross the control plane as the class that they are."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from eps import errors
from eps.core.types import Address
from eps.errors import (
    ConfigError,
    DeadlineError,
    EpsError,
    IllegalTransitionError,
    JobFinishedError,
    PeerUnavailableError,
    PlanError,
    RpcError,
)
from eps.net.calls import call as rpc
from eps.net.calls.error_codec import ERROR_CLASSES, MAX_TEXT_CHARS, decode_error, encode_error

DEADLINE_S = 20.0
#: Frames of RFC 9113: the first words of a server, and that it takes no more calls, nor has taken one.
SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
GOAWAY = bytes((0, 0, 8, 7, 0, 0, 0, 0, 0)) + bytes(8)

Behaviour = Callable[[bytes, Any], bytes]


class Served:
    """A server with one method whose behaviour the test sets."""

    def __init__(self) -> None:
        self.behaviour: Behaviour = lambda request, context: request
        self.server, self.address = rpc.serve(self._register)
        self.channel = rpc.channel(self.address)

    def _register(self, server: grpc.Server) -> None:
        def unary(request: bytes, context: Any) -> bytes:
            return self.behaviour(request, context)

        def stream(request: bytes, context: Any) -> Iterator[bytes]:
            yield b"first"
            yield self.behaviour(request, context)

        handlers = {
            "Unary": grpc.unary_unary_rpc_method_handler(unary),
            "Stream": grpc.unary_stream_rpc_method_handler(stream),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", handlers),))

    def ask(self, timeout_s: float = DEADLINE_S) -> bytes:
        return rpc.call(self.channel.unary_unary("/test.Service/Unary"), b"x", timeout_s, what="ask the test's server")

    def close(self) -> None:
        self.channel.close()
        rpc.stop(self.server)


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


def raising(error: Exception) -> Behaviour:
    def behaviour(request: bytes, context: Any) -> bytes:
        raise error

    return behaviour


def example(cls: type[EpsError]) -> EpsError:
    if cls is IllegalTransitionError:
        return IllegalTransitionError("a reason, ü", story=("first", "then"))
    return cls("a reason, ü")


@pytest.mark.parametrize("cls", ERROR_CLASSES.values(), ids=lambda cls: cls.__name__)
def test_an_error_of_a_servicer_is_raised_again_as_itself(served: Served, cls: type[EpsError]) -> None:
    sent = example(cls)
    served.behaviour = raising(sent)
    with pytest.raises(EpsError) as caught:
        served.ask()
    assert type(caught.value) is cls
    assert str(caught.value) == "a reason, ü"
    assert {k: v for k, v in vars(caught.value).items() if k != "__notes__"} == vars(sent)


def test_every_error_class_has_a_status_of_its_own_choice() -> None:
    assert {rpc.status_of(example(cls)) for cls in ERROR_CLASSES.values()}.isdisjoint({grpc.StatusCode.OK})
    assert rpc.status_of(JobFinishedError("")) is grpc.StatusCode.FAILED_PRECONDITION
    assert set(ERROR_CLASSES) == {
        name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, EpsError)
    }


def test_a_class_that_the_caller_does_not_know_arrives_as_its_base(served: Served) -> None:
    class OwnPlanError(PlanError):
        pass

    served.behaviour = raising(OwnPlanError("mine"))
    with pytest.raises(PlanError, match="mine") as caught:
        served.ask()
    assert type(caught.value) is PlanError


def test_a_long_reason_arrives_with_its_beginning_and_end(served: Served) -> None:
    served.behaviour = raising(PlanError("begin" + "x" * 100_000 + "end"))
    with pytest.raises(PlanError) as caught:
        served.ask()
    text = str(caught.value)
    assert len(text) <= MAX_TEXT_CHARS and text.startswith("begin") and text.endswith("end")


def test_an_error_in_the_middle_of_a_stream_is_raised_by_its_reader(served: Served) -> None:
    served.behaviour = raising(IllegalTransitionError("old", story=("first",)))
    stream = served.channel.unary_stream("/test.Service/Stream")(b"", timeout=DEADLINE_S)
    assert next(stream) == b"first"
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    error = rpc.error_of(caught.value, "read the stream")
    assert isinstance(error, IllegalTransitionError) and error.story == ("first",)


def test_a_bug_in_a_servicer_is_an_rpc_error_that_names_it(served: Served) -> None:
    served.behaviour = raising(ZeroDivisionError("by zero"))
    with pytest.raises(RpcError, match="ZeroDivisionError: by") as caught:
        served.ask()
    assert type(caught.value) is RpcError


def test_a_servicer_may_still_abort_by_itself(served: Served) -> None:
    served.behaviour = lambda request, context: context.abort(grpc.StatusCode.UNAVAILABLE, "shutting down")
    with pytest.raises(PeerUnavailableError, match="shutting down"):
        served.ask()


def test_a_deadline_says_what_was_waited_for(served: Served) -> None:
    release = threading.Event()
    served.behaviour = lambda request, context: request if release.wait(DEADLINE_S) else b""
    with pytest.raises(DeadlineError, match=r"test's server.*0\.05 s"):
        served.ask(timeout_s=0.05)
    release.set()


def test_threads_that_wait_for_grpc_are_not_woken_ten_times_a_second() -> None:
    """EPS sets a private number of gRPC for it, which another release may have elsewhere."""
    waits: list[float] = []
    grpc._common.wait(lambda timeout: waits.append(timeout), lambda: bool(waits))
    assert waits == [10.0]


def test_a_peer_that_is_not_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed_soon:
        address = Address("127.0.0.1", closed_soon.getsockname()[1])
    with rpc.channel(address) as channel, pytest.raises(PeerUnavailableError, match="greet nobody"):
        rpc.call(channel.unary_unary("/test.Service/Unary"), b"", DEADLINE_S, what="greet nobody")


def test_a_peer_that_ends_as_it_is_reached_is_unavailable() -> None:
    def end_at_once() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(SETTINGS + GOAWAY)
            # As a server that has calls to finish: the connection stays.
            while connection.recv(1 << 16):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE_S)
        address = Address("127.0.0.1", listener.getsockname()[1])
        peer = threading.Thread(target=end_at_once)
        peer.start()
        with rpc.channel(address) as channel, pytest.raises(PeerUnavailableError, match="greet who ends"):
            # A short deadline: a call that is begun again and again takes gigabytes in a longer one.
            rpc.call(channel.unary_unary("/test.Service/Unary"), b"", 2.0, what="greet who ends")
        peer.join(DEADLINE_S)
        assert not peer.is_alive()


def test_calls_that_wait_do_not_keep_others_waiting(served: Served) -> None:
    release, waiting = threading.Event(), threading.Semaphore(0)

    def behaviour(request: bytes, context: Any) -> bytes:
        if request == b"wait":
            waiting.release()
            release.wait(DEADLINE_S)
        return request

    served.behaviour = behaviour
    method = served.channel.unary_unary("/test.Service/Unary")
    futures = [method.future(b"wait", timeout=DEADLINE_S) for _ in range(50)]
    for _ in futures:
        assert waiting.acquire(timeout=DEADLINE_S)
    assert served.ask() == b"x"
    release.set()
    assert [future.result() for future in futures] == [b"wait"] * 50


def test_a_port_that_is_taken_is_a_config_error(served: Served) -> None:
    with pytest.raises(ConfigError, match=str(served.address.port)):
        rpc.serve(lambda server: None, port=served.address.port)


def test_no_thread_is_left_of_a_server_that_was_stopped() -> None:
    before = set(threading.enumerate())
    served = Served()
    served.ask()
    served.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), f"{thread.name} is left"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b"{}",
        b'{"name": 1, "message": "m"}',
        b'{"name": "IllegalTransitionError", "message": "m", "story": 7}',
        b'{"name": "IllegalTransitionError"}',
        b"[" * 100_000,
    ],
    ids=range(9),
)
def test_what_is_not_an_encoded_error_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not an encoded error"):
        decode_error(data)


def test_an_unknown_name_becomes_the_base_class() -> None:
    assert type(decode_error(b'{"name": "LaterError", "message": "m"}')) is EpsError
    assert type(decode_error(encode_error(PlanError("m")))) is PlanError


def test_whoever_connects_and_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(rpc.CHANNEL_OPTIONS)
    assert options["grpc.server_handshake_timeout_ms"] <= 5_000
    monkeypatch.setattr(rpc, "CHANNEL_OPTIONS", (*(options | {"grpc.server_handshake_timeout_ms": 500}).items(),))
    served = Served()
    with socket.create_connection((served.address.host, served.address.port), DEADLINE_S) as silent:
        # What the server says first, until it ends the connection.
        while silent.recv(4096):
            pass
    served.close()


def test_call_that_gets_no_thread_does_not_end_the_server(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system limits threads, and each call and stream has one of its own."""
    failed: list[str] = []
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == "eps-rpc" and not failed:
            failed.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(DeadlineError):
        served.ask(1.0)
    assert (served.ask(), failed) == (b"x", ["eps-rpc"])
