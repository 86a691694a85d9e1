"""What proves that a peer belongs to the job: the job's token, and its TLS certificate where it has one.  L2.

The token is 128 random bits in a file of the job's directory that its user alone can read; it never travels.  A peer
sends an HMAC over what it asks for (:meth:`JobToken.proof`), and the other end computes the same.

With TLS, the job has a certificate authority of its own and one certificate with the name :data:`TLS_NAME` for all its
processes.  Both ends ask for it: whoever cannot read the job's directory cannot even shake hands.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import grpc

from eps.errors import ConfigError, StorageError
from eps.storage.jobdir import JobDir

if TYPE_CHECKING:
    import ssl

#: The name in the certificate of every job: members are known by the job's authority, not by where they run.
TLS_NAME = "eps-job"
#: Of :meth:`JobToken.proof`.
PROOF_BYTES = 32
#: Less can be guessed.
MIN_TOKEN_BYTES = 16


class JobToken:
    """The secret of one job; it can be used, but neither shown nor pickled.

    Parameters
    ----------
    secret : bytes
        At least :data:`MIN_TOKEN_BYTES`.

    Raises
    ------
    ConfigError
        It is too short.

    Source
    ------
    RFC 2104 (HMAC), with SHA-256.  Deviation: none.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) < MIN_TOKEN_BYTES:
            raise ConfigError(f"the job's token has {len(secret)} bytes: it must have at least {MIN_TOKEN_BYTES}")
        self._secret = secret

    @classmethod
    def from_hex(cls, text: str) -> JobToken:
        """Return the token that ``text`` spells.

        Raises
        ------
        ConfigError
            It is not hexadecimal, or too short; the message does not show it.
        """
        try:
            secret = bytes.fromhex(text)
        except ValueError:
            # Not chained: a traceback must not say how the text looks.
            raise ConfigError("the job's token must be hexadecimal digits") from None
        return cls(secret)

    def proof(self, role: bytes, *parts: bytes) -> bytes:
        """Return what only a holder of the token can compute about ``parts``.

        Parameters
        ----------
        role : bytes
            What the proof is for, so that one made for a purpose is worth nothing for another.
        parts : bytes
            Each goes in with its length, so that no two lists of parts look alike.

        Returns
        -------
        bytes
            :data:`PROOF_BYTES` of HMAC-SHA256.
        """
        message = b"".join(struct.pack("<Q", len(part)) + part for part in (role, *parts))
        return hmac.digest(self._secret, message, "sha256")

    def proves(self, proof: bytes, role: bytes, *parts: bytes) -> bool:
        """Return whether ``proof`` is the one for ``role`` and ``parts``; takes as long wherever it differs."""
        return hmac.compare_digest(proof, self.proof(role, *parts))

    def __repr__(self) -> str:
        return "JobToken(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a job's token is not pickled")


@dataclass(frozen=True)
class TlsFiles:
    """The PEM files of a job that uses TLS."""

    #: Certificate of the job's authority.
    ca: Path
    #: Certificate of every process of the job.
    certificate: Path
    #: Its private key.
    key: Path

    @classmethod
    def within(cls, directory: Path) -> TlsFiles:
        """Return the files of a job's ``tls`` directory."""
        return cls(directory / "ca.pem", directory / "certificate.pem", directory / "key.pem")

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return (authority, certificate, key).

        Raises
        ------
        StorageError
            One of them cannot be read.
        """
        try:
            return self.ca.read_bytes(), self.certificate.read_bytes(), self.key.read_bytes()
        except OSError as error:
            raise StorageError(f"{error.filename}: cannot be read: {error.strerror}") from error


@dataclass(frozen=True)
class Security:
    """What a process of a job shows to its peers and asks of them."""

    #: None: nobody is asked; for parts of the system that run alone.
    token: JobToken | None = None
    #: None: connections are not encrypted.
    tls: TlsFiles | None = None

    @classmethod
    def of_job(cls, job_dir: Path) -> Security:
        """Return the security of the job in ``job_dir``.

        Raises
        ------
        StorageError
            The token cannot be read, or is none.
        """
        directory = JobDir(job_dir)
        try:
            token = JobToken.from_hex(directory.read_token())
        except ConfigError as error:
            raise StorageError(f"{directory.token}: {error}") from error
        return cls(token, TlsFiles.within(directory.tls) if directory.tls.is_dir() else None)

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Return the credentials of a gRPC channel; None without TLS.

        The channel also needs the option ``grpc.ssl_target_name_override`` with :data:`TLS_NAME`.
        """
        if self.tls is None:
            return None
        authority, certificate, key = self.tls.read()
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """Return the credentials of a gRPC server, which asks for its clients' certificates; None without TLS."""
        if self.tls is None:
            return None
        authority, certificate, key = self.tls.read()
        return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)

    def ssl_context(self, server_side: bool) -> ssl.SSLContext | None:
        """Return the TLS 1.3 context of a plain socket; None without TLS.

        Both ends must show a certificate of the job's authority.  A client wraps its socket with
        ``server_hostname=TLS_NAME``.

        Raises
        ------
        StorageError
            The files cannot be read, or are not certificates.
        """
        if self.tls is None:
            return None
        # Only who uses TLS waits for the import.
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.check_hostname = not server_side
        # The default of later versions of Python.
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        try:
            context.load_verify_locations(self.tls.ca)
            context.load_cert_chain(self.tls.certificate, self.tls.key)
        except OSError as error:
            raise StorageError(f"{self.tls.ca.parent}: the job's certificates cannot be used: {error}") from error
        if server_side:
            # A connection lasts as long as its members do; tickets for the next one would only cost a write.
            context.num_tickets = 0
        return context


NO_SECURITY = Security()
