"""The transport that two members agree on, and the refusal of members of other jobs."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from eps.core.types import Address
from eps.errors import AuthenticationError, ConfigError, EpsError, PeerUnavailableError, ProtocolError
from eps.net.arrays.api import Message, Van
from eps.net.arrays.negotiated import NegotiatedVan, host_id
from eps.net.arrays.sockets import SocketVan
from eps.net.security.certificates import make_certificates
from eps.net.security.credentials import NO_SECURITY, Security, TlsFiles
from eps.pb import data_pb2 as pb
from tests.net.raw_peers import DEADLINE_S, OTHER_TOKEN, TOKEN, RawListener, ask, echo, nothing_left, rest, still_works

WAYS = ["shm", "unix", "tcp"]
#: What an error may take, on a busy machine.
SOON_S = 8.0


def way_taken(van: Van, address: Address) -> str:
    return way_taken_within(van, address, DEADLINE_S)


def way_taken_within(van: Van, address: Address, timeout_s: float) -> str:
    connection = van.connect(address, timeout_s)
    try:
        still_works(connection)
        return connection.transport
    finally:
        connection.close()


@pytest.fixture
def member() -> Iterator[Address]:
    listener = NegotiatedVan(TOKEN).listen(echo)
    yield listener.address
    listener.close()


@contextmanager
def front(*offers: tuple[str, str, int], host: str | None = None) -> Iterator[Address]:
    """Yield the address of a member that listens on TCP, and says of itself what the test wants."""
    meeting = pb.Meeting(host_id=host_id() if host is None else host)
    for way, name, number in offers:
        meeting.offers.add(transport=way, host=name, port=number)
    listener = SocketVan("tcp", TOKEN).listen(echo, hello=meeting.SerializeToString())
    yield listener.address
    listener.close()


@contextmanager
def silent_port() -> Iterator[int]:
    """Yield a port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield silent.getsockname()[1]


def dead_port() -> int:
    with silent_port() as number:
        return number


def test_members_of_one_host_meet_in_shared_memory(member: Address) -> None:
    assert way_taken(NegotiatedVan(TOKEN), member) == "shm"


@pytest.mark.parametrize("way", WAYS)
def test_the_only_way_that_one_end_takes_is_taken(member: Address, way: str) -> None:
    assert way_taken(NegotiatedVan(TOKEN, way), member) == way
    listener = NegotiatedVan(TOKEN, way).listen(echo)
    assert way_taken(NegotiatedVan(TOKEN), listener.address) == way
    listener.close()


@pytest.mark.parametrize("way", WAYS)
def test_the_way_that_is_taken_is_told(member: Address, way: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "eps.net.arrays.negotiated"):
        way_taken(NegotiatedVan(TOKEN, way), member)
    assert [record.getMessage() for record in caplog.records] == [f"connected to {member} over {way}"]


@pytest.mark.parametrize("way", WAYS)
def test_whoever_wants_to_know_hears_the_way_of_each_connection(member: Address, way: str) -> None:
    van, heard = NegotiatedVan(TOKEN, way), []
    van.on_reached = lambda *what: heard.append(what)
    for _ in range(2):
        way_taken(van, member)
    with pytest.raises(PeerUnavailableError):
        van.connect(Address("127.0.0.1", dead_port()), DEADLINE_S)
    assert heard == [(member, way)] * 2


@pytest.mark.parametrize(("ours", "theirs"), [("tcp", "unix"), ("shm", "tcp"), ("unix", "shm")])
def test_members_without_a_way_in_common_do_not_meet(ours: str, theirs: str) -> None:
    listener = NegotiatedVan(TOKEN, theirs).listen(echo)
    with pytest.raises(PeerUnavailableError, match="offers no transport"):
        NegotiatedVan(TOKEN, ours).connect(listener.address, DEADLINE_S)
    listener.close()


def test_a_way_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="pigeon"):
        NegotiatedVan(TOKEN, "pigeon")


@pytest.mark.parametrize("name", ["@eps-nobody", "@", "@" + "x" * 200, "no-name", "@nul\0nul", ""])
def test_where_the_names_lead_nowhere_tcp_is_taken_and_that_is_told(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with front(("shm", name, 0), ("unix", name, 0), ("tcp", "", 0)) as address:
        with caplog.at_level(logging.INFO, "eps.net.arrays.negotiated"):
            assert way_taken(NegotiatedVan(TOKEN), address) == "tcp"
        told = caplog.records[-1].getMessage()
        assert told.startswith(f"connected to {address} over tcp, not shm: ") and "; unix: " in told


def test_a_socket_that_says_nothing_takes_only_a_share_of_the_time() -> None:
    with RawListener(lambda sock: bool(rest(sock)), unix=True) as silent:
        with front(("unix", silent.address.host, 0), ("tcp", "", 0)) as address:
            assert way_taken_within(NegotiatedVan(TOKEN), address, 2.0) == "tcp"


def test_offers_of_unknown_ways_are_passed_over() -> None:
    with front(*[(f"pigeon-{i}", "coop", i) for i in range(100)], ("tcp", "", 0)) as address:
        assert way_taken(NegotiatedVan(TOKEN), address) == "tcp"


def test_a_member_whose_data_takes_another_way_takes_none_where_members_meet() -> None:
    listener = NegotiatedVan(TOKEN, "unix").listen(echo)
    connection = SocketVan("tcp", TOKEN).connect(listener.address, DEADLINE_S)
    with pytest.raises(ProtocolError, match="takes no data over tcp"):
        ask(connection, Message(b"x"))
    connection.close()
    listener.close()


@pytest.mark.parametrize("host", ["", "another boot/another namespace"])
def test_a_member_of_another_host_is_not_sought_on_unix_sockets(host: str) -> None:
    listeners = {way: SocketVan(way, TOKEN).listen(echo) for way in ("shm", "unix")}
    offers = [(way, listeners[way].address.host, 0) for way in ("shm", "unix")]
    with front(*offers, ("tcp", "", 0), host=host) as address:
        assert way_taken(NegotiatedVan(TOKEN), address) == "tcp"
        with pytest.raises(PeerUnavailableError, match="offers no transport"):
            NegotiatedVan(TOKEN, "shm").connect(address, DEADLINE_S)
    with front(*offers, ("tcp", "", 0)) as address:
        assert way_taken(NegotiatedVan(TOKEN), address) == "shm"
    for listener in listeners.values():
        listener.close()


def test_where_nobody_listens_it_is_said_at_once() -> None:
    started_s = time.monotonic()
    for way in ("auto", "shm", "tcp"):
        with pytest.raises(PeerUnavailableError):
            NegotiatedVan(TOKEN, way).connect(Address("127.0.0.1", dead_port()), DEADLINE_S)
    assert time.monotonic() - started_s < SOON_S


@pytest.mark.parametrize("way", ["auto", *WAYS])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(TOKEN, OTHER_TOKEN), (TOKEN, NO_SECURITY), (NO_SECURITY, TOKEN)],
    ids=["another token", "no token here", "no token there"],
)
def test_members_of_different_jobs_refuse_each_other(way: str, theirs: Security, ours: Security) -> None:
    with nothing_left(spare_descriptors=6):
        listener = NegotiatedVan(theirs).listen(echo)
        with pytest.raises(AuthenticationError):
            NegotiatedVan(ours, way).connect(listener.address, DEADLINE_S)
        assert way_taken(NegotiatedVan(theirs), listener.address) == "shm"
        listener.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(TOKEN, OTHER_TOKEN), (TOKEN, NO_SECURITY), (NO_SECURITY, TOKEN)],
    ids=["another token", "no token here", "no token there"],
)
def test_sockets_of_different_jobs_refuse_each_other(way: str, theirs: Security, ours: Security) -> None:
    with nothing_left():
        listener = SocketVan(way, theirs).listen(echo)
        with pytest.raises(AuthenticationError, match="token"):
            SocketVan(way, ours).connect(listener.address, DEADLINE_S)
        listener.close()


# ---- TLS


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Security:
    directory = tmp_path_factory.mktemp("tls")
    make_certificates(directory)
    return Security(TOKEN.token, TlsFiles.within(directory))


@pytest.fixture(scope="module")
def tls_of_another_job(tmp_path_factory: pytest.TempPathFactory) -> Security:
    directory = tmp_path_factory.mktemp("other")
    make_certificates(directory)
    return Security(TOKEN.token, TlsFiles.within(directory))


@dataclass(frozen=True)
class Kind:
    """A van and the way in which it is asked for."""

    name: str

    def van(self, security: Security) -> Van:
        if self.name == "auto":
            return NegotiatedVan(security)
        return SocketVan(self.name, security)


KINDS = [Kind("tcp"), Kind("unix"), Kind("auto")]


def test_members_with_certificates_that_are_on_one_host_share_memory_without_encryption(
    tls: Security, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"TLS|tls"):
        SocketVan("shm", tls)
    # Each has a job's directory of its own, as containers of YARN do.
    theirs, ours = (replace(tls, sockets=tmp_path / name / "sockets") for name in ("theirs", "ours"))
    listener = NegotiatedVan(theirs).listen(echo)
    for way in ("auto", *WAYS):
        assert way_taken(NegotiatedVan(ours, way), listener.address) == (way if way != "auto" else "shm")
    listener.close()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("plain_listens", [True, False], ids=["plain listener", "plain connector"])
def test_who_speaks_tls_and_who_does_not_part_in_time(kind: Kind, plain_listens: bool, tls: Security) -> None:
    theirs, ours = (TOKEN, tls) if plain_listens else (tls, TOKEN)
    with nothing_left(spare_descriptors=6):
        listener = kind.van(theirs).listen(echo)
        started_s = time.monotonic()
        with pytest.raises(EpsError) as caught:
            kind.van(ours).connect(listener.address, DEADLINE_S)
        assert time.monotonic() - started_s < SOON_S
        assert isinstance(caught.value, PeerUnavailableError | AuthenticationError)
        assert str(listener.address) in str(caught.value)
        van = kind.van(theirs)
        way_taken(van, listener.address)
        listener.close()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_certificates_of_another_job_are_refused_in_time(
    kind: Kind, tls: Security, tls_of_another_job: Security
) -> None:
    with nothing_left(spare_descriptors=6):
        listener = kind.van(tls).listen(echo)
        started_s = time.monotonic()
        with pytest.raises(EpsError):
            kind.van(tls_of_another_job).connect(listener.address, DEADLINE_S)
        assert time.monotonic() - started_s < SOON_S
        way_taken(kind.van(tls), listener.address)
        listener.close()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_under_tls_the_token_is_asked_all_the_same(kind: Kind, tls: Security) -> None:
    with nothing_left(spare_descriptors=6):
        listener = kind.van(tls).listen(echo)
        with pytest.raises(AuthenticationError):
            kind.van(Security(OTHER_TOKEN.token, tls.tls)).connect(listener.address, DEADLINE_S)
        way_taken(kind.van(tls), listener.address)
        listener.close()


@pytest.mark.parametrize("way", WAYS)
def test_what_listens_in_another_way_is_closed_once_the_way_is_known(way: str) -> None:
    van = NegotiatedVan(TOKEN)
    listener = van.listen(echo)
    before = {other: found.address for other, found in listener._others.items()}
    assert before.keys() == {"shm", "unix"}
    van.restrict_to(way)
    for other, address in before.items():
        if other != way:
            with pytest.raises(PeerUnavailableError, match="no process listens"):
                SocketVan(other, TOKEN).connect(address)
    assert way_taken(van, listener.address) == way == way_taken(NegotiatedVan(TOKEN), listener.address)
    listener.close()
