"""Where a service keeps what it needs to be started again, and where its clients find it.

::

    EPS_HOME/hscheduler (--state chooses another)
    ├── lock            locked (flock) for as long as the service runs: two of them never own one cluster
    ├── token           what a caller must prove to know
    ├── service.json    {"host", "port", "pid"}
    └── journal.jsonl   every event, before anything was done about it
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from eps.core.types import Address
from eps.errors import ConfigError, JobExistsError, PeerUnavailableError, StorageError
from eps.rpc.security import JobToken, Security
from eps.storage.atomic import read_json, write_bytes_atomic, write_json_atomic
from eps.storage.jobdir import DIRECTORY_MODE, TOKEN_BYTES, JobLock, eps_home


@dataclass(frozen=True)
class ServiceDir:
    """The directory of one service."""

    path: Path

    @classmethod
    def of(cls, text: str | None) -> ServiceDir:
        """Return the one that a flag names; by default that under ``EPS_HOME``."""
        return cls(Path(text).expanduser().absolute() if text else eps_home() / "hscheduler")

    @property
    def journal(self) -> Path:
        """The events."""
        return self.path / "journal.jsonl"

    def lock(self) -> JobLock:
        """Make the directory, and hold it for as long as the lock is open.

        Raises
        ------
        ConfigError
            Another service holds it.
        StorageError
            It cannot be made or locked.
        """
        try:
            self.path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be made: {error.strerror or error}") from error
        try:
            return JobLock(self.path / "lock")
        except JobExistsError:
            raise ConfigError(
                f"{self.path} belongs to an H-scheduler that runs: stop it, or use another --state"
            ) from None

    def is_running(self) -> bool:
        """Return whether a service has this directory."""
        path = self.path / "lock"
        if not path.exists():
            return False
        try:
            JobLock(path).close()
        except JobExistsError:
            return True
        return False

    def security(self) -> Security:
        """Return what the service asks of its callers; the token is made where there is none.

        Raises
        ------
        StorageError
            The token cannot be read, written or used.
        """
        path = self.path / "token"
        try:
            if not path.exists():
                write_bytes_atomic(path, secrets.token_hex(TOKEN_BYTES).encode())
            return Security(JobToken.from_hex(path.read_text().strip()))
        except (OSError, ConfigError) as error:
            raise StorageError(f"{path}: {error}") from error

    def known_security(self) -> Security:
        """Return what a client proves to the service.

        Raises
        ------
        StorageError
            There is no token, or it cannot be used.
        """
        if not (self.path / "token").exists():
            raise StorageError(
                f"{self.path}/token is missing: it is made by hscheduler serve (--state says where), and a "
                "client on another host needs a copy of it"
            )
        return self.security()

    def say_where(self, address: Address, pid: int) -> None:
        """Say where the service listens."""
        write_json_atomic(self.path / "service.json", {"host": address.host, "port": address.port, "pid": pid})

    def last_port(self) -> int:
        """Return the port that the service last listened on; 0 where there was none."""
        return int((read_json(self.path / "service.json") or {}).get("port", 0))

    def address(self) -> Address:
        """Return where the service listens, or did when it was there.

        Raises
        ------
        PeerUnavailableError
            None ever ran here.
        """
        found = read_json(self.path / "service.json")
        if found is None:
            raise PeerUnavailableError(f"no H-scheduler runs in {self.path}: start one with hscheduler serve")
        return Address(str(found["host"]), int(found["port"]))


def parse_address(text: str) -> Address:
    """Return the address that ``HOST:PORT`` spells.

    Raises
    ------
    ConfigError
        It spells none.
    """
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigError(f"address is {text!r}, but must be HOST:PORT, as in 127.0.0.1:7070")
    return Address(host, int(port))
