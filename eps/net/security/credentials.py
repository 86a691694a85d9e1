"""Mutual authentication of a job's processes: by a private socket folder on one host, or by certificates between hosts.

On one host, the processes of a job listen on Unix sockets in a folder of the job's directory that only its user can
enter.  Another user can neither connect to such a socket nor replace it, so both ends are authenticated.

Between hosts they use mutual TLS.  The job has its own certificate authority and one certificate, with the name
:data:`TLS_NAME`, for all its processes.  A process that cannot read the job's directory fails the handshake at either
end.

Members of a TLS job that meet on one host use data-plane sockets outside that folder.  There both ends prove the job's
token: 128 random bits in a file that only the job's user can read (:mod:`eps.net.arrays.sockets`).
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
import struct
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import grpc

from eps.core.types import UNIX_SOCKET, Address
from eps.errors import ConfigError, PeerUnavailableError, ProtocolError, StorageError
from eps.storage.jobdir import JobDir
from eps.system.home import DIRECTORY_MODE

if TYPE_CHECKING:
    import ssl

#: Name in every job's certificate: peers verify the job's authority, not the host.
TLS_NAME = "eps-job"
#: Length of a proof; see :meth:`JobToken.proof`.
PROOF_BYTES = 32
#: A shorter token could be guessed.
MIN_TOKEN_BYTES = 16
#: Longest path of a Unix socket (unix(7), without the terminating byte).
_LONGEST_SOCKET_PATH = 107
_SOCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", re.ASCII)


class JobToken:
    """The secret of one job; it can be used but neither printed nor pickled.

    Parameters
    ----------
    secret : bytes
        At least :data:`MIN_TOKEN_BYTES`.

    Raises
    ------
    ConfigError
        The secret is too short.

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
        """Return the token with these hexadecimal digits.

        Raises
        ------
        ConfigError
            The text is not hexadecimal or too short; the message does not show it.
        """
        try:
            secret = bytes.fromhex(text)
        except ValueError:
            # Not chained: the traceback would reveal the text.
            raise ConfigError("the job's token must be hexadecimal digits") from None
        return cls(secret)

    def proof(self, role: bytes, *parts: bytes) -> bytes:
        """Return a proof about ``parts`` that only a holder of the token can compute.

        Parameters
        ----------
        role : bytes
            Purpose of the proof, so that it cannot be used for another.
        parts : bytes
            Each is hashed with its length, so that different lists never give the same input.

        Returns
        -------
        bytes
            :data:`PROOF_BYTES` of HMAC-SHA256.
        """
        message = b"".join(struct.pack("<Q", len(part)) + part for part in (role, *parts))
        return hmac.digest(self._secret, message, "sha256")

    def proves(self, proof: bytes, role: bytes, *parts: bytes) -> bool:
        """Return whether ``proof`` is that of ``role`` and ``parts``, in constant time."""
        return hmac.compare_digest(proof, self.proof(role, *parts))

    def __repr__(self) -> str:
        return "JobToken(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a job's token cannot be pickled")


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
        """Return the TLS files in a job's ``tls`` directory."""
        return cls(directory / "ca.pem", directory / "certificate.pem", directory / "key.pem")

    def contents(self) -> dict[str, bytes]:
        """Return file name -> content; errors are those of :meth:`read`."""
        return {
            path.name: content for path, content in zip((self.ca, self.certificate, self.key), self.read(), strict=True)
        }

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return the contents of (authority, certificate, key).

        Raises
        ------
        StorageError
            A file cannot be read.
        """
        try:
            return self.ca.read_bytes(), self.certificate.read_bytes(), self.key.read_bytes()
        except OSError as error:
            raise StorageError(f"{error.filename}: cannot be read: {error.strerror}") from error


@dataclass(frozen=True)
class SocketPath:
    """A path of a Unix socket, for use by this process until it is closed."""

    text: str
    #: Open descriptor of the folder, if the direct path is too long.
    fd: int | None = None

    def close(self) -> None:
        """Close the folder's descriptor."""
        if self.fd is not None:
            os.close(self.fd)

    def close_with(self, owner: object) -> None:
        """Close the path when ``owner``, which may use it until then, is garbage-collected."""
        if self.fd is not None:
            weakref.finalize(owner, os.close, self.fd)

    def __enter__(self) -> str:
        return self.text

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(frozen=True)
class Security:
    """The credentials of a job, by which its processes authenticate each other."""

    #: None: peers need no proof; for parts of the system that run alone.
    token: JobToken | None = None
    #: None: all processes are on one host.
    tls: TlsFiles | None = None
    #: Folder of the Unix sockets on which processes listen without TLS.
    sockets: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether all processes are on one host and use the socket folder."""
        return self.sockets is not None and self.tls is None

    def socket_path(self, address: Address) -> SocketPath:
        """Return the path of a Unix socket, short enough for the kernel; the caller closes it.

        Parameters
        ----------
        address : Address
            ``unix:NAME``.

        Raises
        ------
        PeerUnavailableError
            The folder does not exist: no process listens.
        StorageError
            Other users can enter the folder.
        ProtocolError
            The name is not valid for a file in the folder.
        """
        name = address.host.removeprefix(UNIX_SOCKET)
        if not _SOCKET_NAME.fullmatch(name) or self.sockets is None:
            raise ProtocolError(f"{address} is not a socket of this job")
        _check_private(self.sockets)
        path = f"{self.sockets}/{name}"
        if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
            return SocketPath(path)
        try:
            fd = os.open(self.sockets, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"{self.sockets}: cannot be used: {error.strerror}") from error
        return SocketPath(f"/proc/self/fd/{fd}/{name}", fd)

    def new_socket(self) -> Address:
        """Return a new address of a socket to listen on; create the folder.

        Raises
        ------
        StorageError
            The folder cannot be created.
        """
        assert self.sockets is not None
        try:
            self.sockets.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self.sockets}: cannot be created: {error.strerror}") from error
        return Address(f"{UNIX_SOCKET}{secrets.token_hex(8)}", 0)

    @classmethod
    def of_job(cls, job_dir: Path) -> Security:
        """Return the security of the job in ``job_dir``.

        Raises
        ------
        StorageError
            The token cannot be read or is invalid.
        """
        directory = JobDir(job_dir)
        try:
            token = JobToken.from_hex(directory.read_token())
        except ConfigError as error:
            raise StorageError(f"{directory.token}: {error}") from error
        return cls(token, TlsFiles.within(directory.tls) if directory.tls.is_dir() else None, directory.sockets)

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Return the credentials of a gRPC channel; None without TLS.

        The channel also needs the option ``grpc.ssl_target_name_override`` with :data:`TLS_NAME`.
        """
        if self.tls is None:
            return None
        authority, certificate, key = self.tls.read()
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """Return the credentials of a gRPC server, which requires client certificates; None without TLS."""
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
            The files cannot be read or are not certificates.
        """
        if self.tls is None:
            return None
        # Imported here: it is slow, and only TLS needs it.
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.check_hostname = not server_side
        # The default in later versions of Python.
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        try:
            context.load_verify_locations(self.tls.ca)
            context.load_cert_chain(self.tls.certificate, self.tls.key)
        except OSError as error:
            raise StorageError(f"{self.tls.ca.parent}: the job's certificates cannot be used: {error}") from error
        if server_side:
            # Connections last as long as their members, so session tickets would only cost a write.
            context.num_tickets = 0
        return context


NO_SECURITY = Security()


def _check_private(folder: Path) -> None:
    try:
        found = folder.lstat()
    except FileNotFoundError:
        # The first listener creates the folder; it is removed with the job.
        raise PeerUnavailableError(f"no process listens in {folder}") from None
    except OSError as error:
        raise StorageError(f"{folder}: cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StorageError(
            f"{folder}: is {stat.filemode(found.st_mode)} of user {found.st_uid}, but must be a folder that only user "
            f"{os.geteuid()} can enter (chmod 700)"
        )
