"""TLS between the processes of a job: both ends show a certificate of the job's own authority."""

from __future__ import annotations

import datetime
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from eps.core.types import Address
from eps.errors import ConfigError, PeerUnavailableError, StorageError
from eps.job.launch import prepare_job
from eps.net.calls import call as rpc
from eps.net.security.certificates import VALID_DAYS, make_certificates
from eps.net.security.credentials import NO_SECURITY, TLS_NAME, JobToken, Security, TlsFiles
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec

DEADLINE_S = 20.0
METHOD = "/test.Service/Echo"
TOKEN = JobToken.from_hex("0123456789abcdef" * 2)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_certificates(tmp_path_factory.mktemp("ours") / "tls")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_certificates(tmp_path_factory.mktemp("others") / "tls")


@pytest.fixture
def address(ours: TlsFiles) -> Iterator[Address]:
    """The address of a server with TLS."""
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    service = grpc.method_handlers_generic_handler("test.Service", {"Echo": handler})
    server, found = rpc.serve(
        lambda server: server.add_generic_rpc_handlers((service,)), security=Security(TOKEN, ours)
    )
    yield found
    rpc.stop(server, 0)


def ask(address: Address, security: Security) -> bytes:
    with rpc.channel(address, security) as channel:
        reply = rpc.call(channel.unary_unary(METHOD), b"x", DEADLINE_S, "ask")
        assert isinstance(reply, bytes)
        return reply


def test_call_with_the_jobs_certificate_is_answered(address: Address, ours: TlsFiles) -> None:
    assert ask(address, Security(TOKEN, ours)) == ask(address, Security(None, ours)) == b"x"


def test_client_does_not_believe_a_server_that_has_another_certificate(ours: TlsFiles, others: TlsFiles) -> None:
    """It took the port of a master that was killed, and says what it likes: its client hears nothing of it."""
    heard: list[bytes] = []

    def answer(request: bytes, context: object) -> bytes:
        heard.append(request)
        return b"finished"

    service = grpc.method_handlers_generic_handler(
        "test.Service", {"Echo": grpc.unary_unary_rpc_method_handler(answer)}
    )
    for security in (Security(TOKEN, others), NO_SECURITY):
        server, found = rpc.serve(lambda server: server.add_generic_rpc_handlers((service,)), security=security)
        with pytest.raises(PeerUnavailableError):
            ask(found, Security(TOKEN, ours))
        rpc.stop(server, 0)
    assert heard == []


def test_client_without_a_certificate_is_refused(address: Address, ours: TlsFiles) -> None:
    with pytest.raises(PeerUnavailableError):
        ask(address, NO_SECURITY)
    # One that trusts the job's authority, but has nothing to show.
    options = (*rpc.CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", TLS_NAME))
    credentials = grpc.ssl_channel_credentials(ours.ca.read_bytes())
    with (
        grpc.secure_channel(str(address), credentials, options=options) as channel,
        pytest.raises(PeerUnavailableError),
    ):
        rpc.call(channel.unary_unary(METHOD), b"x", DEADLINE_S, "ask")


@pytest.mark.parametrize("trusts", ["its own authority", "ours"])
def test_client_with_the_certificate_of_another_job_is_refused(
    address: Address, ours: TlsFiles, others: TlsFiles, trusts: str
) -> None:
    authority = ours.ca if trusts == "ours" else others.ca
    with pytest.raises(PeerUnavailableError):
        ask(address, Security(TOKEN, TlsFiles(authority, others.certificate, others.key)))


def shake_hands(server: Security, client: Security, name: str = TLS_NAME) -> str:
    """Connect two plain sockets by TLS, send a byte back and forth, and return the version of TLS.

    Raises
    ------
    ssl.SSLError
        One of the ends refuses the other.
    """
    ours, theirs = socket.socketpair()
    server_context, client_context = server.ssl_context(server_side=True), client.ssl_context(server_side=False)
    assert server_context is not None and client_context is not None
    refusals: list[ssl.SSLError] = []

    def serve() -> None:
        with ours, suppress(ConnectionError):
            try:
                with server_context.wrap_socket(ours, server_side=True) as wrapped:
                    wrapped.sendall(wrapped.recv(1))
            except ssl.SSLError as error:
                refusals.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with theirs, client_context.wrap_socket(theirs, server_hostname=name) as wrapped:
            with suppress(ConnectionError):
                wrapped.sendall(b"x")
                if wrapped.recv(1) == b"x":
                    return str(wrapped.version())
    finally:
        theirs.close()
        thread.join(DEADLINE_S)
    raise refusals[0]


def test_plain_sockets_speak_the_newest_tls(ours: TlsFiles) -> None:
    assert shake_hands(Security(tls=ours), Security(tls=ours)) == "TLSv1.3"


def test_plain_sockets_refuse_another_job_in_either_place(ours: TlsFiles, others: TlsFiles) -> None:
    stranger = TlsFiles(ours.ca, others.certificate, others.key)
    for server, client in ((stranger, ours), (ours, stranger), (others, ours), (ours, others)):
        with pytest.raises(ssl.SSLError):
            shake_hands(Security(tls=server), Security(tls=client))


def test_client_refuses_a_server_of_another_name(ours: TlsFiles) -> None:
    with pytest.raises(ssl.SSLError, match="mismatch"):
        shake_hands(Security(tls=ours), Security(tls=ours), "127.0.0.1")


def test_certificates_end(tmp_path: Path) -> None:
    long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=VALID_DAYS)
    old = Security(tls=make_certificates(tmp_path / "tls", long_ago))
    with pytest.raises(ssl.SSLError, match="expired"):
        shake_hands(old, old)


def test_files_are_for_their_user_alone_and_the_key_of_the_authority_is_not_kept(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "tls")
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "tls").iterdir()} == {
        "ca.pem": 0o600, "certificate.pem": 0o600, "key.pem": 0o600,
    }  # fmt: skip
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700
    authority, certificate = (
        x509.load_pem_x509_certificate(path.read_bytes()) for path in (files.ca, files.certificate)
    )
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [TLS_NAME]
    now = datetime.datetime.now(datetime.UTC)
    assert certificate.not_valid_before_utc < now - datetime.timedelta(minutes=59)
    assert now + datetime.timedelta(days=3649) < certificate.not_valid_after_utc < now + datetime.timedelta(days=3650)


def test_missing_or_broken_files_are_a_storage_error(tmp_path: Path, ours: TlsFiles) -> None:
    missing = Security(tls=TlsFiles.within(tmp_path))
    with pytest.raises(StorageError, match=r"ca\.pem"):
        missing.channel_credentials()
    (tmp_path / "broken.pem").write_text("no certificate")
    broken = Security(tls=TlsFiles(tmp_path / "broken.pem", ours.certificate, ours.key))
    for security in (missing, broken):
        with pytest.raises(StorageError, match="cannot be used"):
            security.ssl_context(server_side=True)
    assert NO_SECURITY.tls is None


def test_tls_without_its_package_is_refused_before_the_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    # What an import finds where a package is not installed.
    monkeypatch.setitem(sys.modules, "cryptography", None)
    told: list[str] = []
    request = RunRequest.from_values({"data": "sklearn:iris", "model": "softmax", "tls": True})
    with pytest.raises(ConfigError, match=r"pip install '.\[tls\]'"):
        prepare_job(request, before_data=lambda: told.append("data"))
    assert told == [] and not (tmp_path / "home" / "jobs").exists()
    assert JobSpec().network.tls is False


def test_certificates_take_the_place_of_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    """As after a power cut while they were written, which now leaves none, or all of them."""
    files = make_certificates(tmp_path / "tls")
    files.key.write_bytes(b"")
    with pytest.raises(StorageError):
        Security(tls=files).ssl_context(server_side=True)
    assert make_certificates(tmp_path / "tls") == files
    assert Security(tls=files).ssl_context(server_side=True) is not None
    assert [path.name for path in tmp_path.iterdir()] == ["tls"]
