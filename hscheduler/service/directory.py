"""Where a service keeps what it needs to be started again, and where its clients find it.

::

    EPS_HOME/hscheduler (--state chooses another)
    ├── lock            locked (flock) for as long as the service runs: two of them never own one cluster
    ├── sockets/        what it listens on, where only its user's processes on this host are to reach it
    ├── tls/            certificates, where others are as well (hscheduler serve --listen)
    ├── service.json    {"host", "port", "pid"}
    ├── record.sqlite   see hscheduler.record
    └── record-TAG.sqlite   one that was forgotten (hscheduler serve --forget); TAG is that of its jobs
"""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from eps.core.types import Address
from eps.errors import ConfigError, JobExistsError, PeerUnavailableError, StorageError
from eps.job.yarn.sweeps import sweeps_dir
from eps.net.security.certificates import make_certificates
from eps.net.security.credentials import Security, TlsFiles
from eps.storage.atomic import read_json, write_json_atomic
from eps.storage.jobdir import JobDir, JobLock
from eps.system.home import check_own, eps_home, make_private


@dataclass(frozen=True)
class ServiceDir:
    """The directory of one service."""

    path: Path

    @classmethod
    def of(cls, text: str | Path | None) -> ServiceDir:
        """Return the one that a flag names; by default that under ``EPS_HOME``."""
        if not text:
            return cls(eps_home() / "hscheduler")
        path = Path(text).expanduser().absolute()
        check_own(path, "state", "name another with --state")
        return cls(path)

    @property
    def flag(self) -> str:
        """How it is named to a command, with a space before it; empty where it is the default one."""
        return "" if self.path == ServiceDir.of(None).path else f" --state {shlex.quote(str(self.path))}"

    def not_running(self) -> str:
        """Return what to do where no service has this directory, as a sentence."""
        if self.is_application():
            how, then = f"hscheduler serve --on yarn{self.flag}", "begins another"
            if self.is_sweep:
                how, then = f"hscheduler sweep --resume {self.path.name}", "shows its results"
            if self._files.record().end is not None:
                return f"this H-scheduler on YARN has ended: {how} {then}"
            return f"H-scheduler on YARN does not answer: {how} says how it is"
        return f"no H-scheduler runs in {self.path}: start it with hscheduler serve{self.flag}"

    @property
    def _files(self) -> JobDir:
        """Its lock, certificates and sockets, which are those of a job's directory."""
        return JobDir(self.path)

    @property
    def tls(self) -> Path:
        """Certificates, where processes of other hosts are to reach the service."""
        return self._files.tls

    @property
    def record(self) -> Path:
        """What its scheduler goes on with."""
        return self.path / "record.sqlite"

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
            make_private(self.path)
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be made: {error.strerror or error}") from error
        try:
            lock = JobLock(self._files.lock)
        except JobExistsError:
            raise ConfigError(
                f"{self.path} belongs to an H-scheduler that runs: stop it, or use another --state"
            ) from None
        # Of one that was killed.
        shutil.rmtree(self._files.sockets, ignore_errors=True)
        return lock

    def is_running(self) -> bool:
        """Return whether a service has this directory."""
        return self._files.is_running()

    @property
    def is_sweep(self) -> bool:
        """Whether it is the folder of a sweep that was submitted to YARN."""
        return self.path.parent == sweeps_dir()

    def is_application(self) -> bool:
        """Return whether the service is, or was, an application of YARN; its record says which."""
        return self._files.job_json.exists()

    def application_id(self) -> str:
        """Return the application of YARN that the service is, or was; empty where it is none."""
        application = self._files.record().yarn.application
        return "" if application is None else str(application["application_id"])

    def security(self, *, between_hosts: bool) -> Security:
        """Return how the service listens: on a Unix socket, or with certificates, which are made where there are none.

        Raises
        ------
        ConfigError
            The package that makes certificates is missing.
        StorageError
            They cannot be written.
        """
        if not between_hosts:
            return Security(sockets=self._files.sockets)
        if not self.tls.is_dir():
            make_certificates(self.tls)
        return self.known_security()

    def known_security(self, *, between_hosts: bool = False) -> Security:
        """Return what client and service know each other by: the folder of sockets, or the certificates.

        Raises
        ------
        StorageError
            There are no certificates, which are needed between hosts.
        """
        if between_hosts and not self.tls.is_dir():
            raise StorageError(
                f"{self.tls} is missing: hscheduler serve --listen HOST:PORT{self.flag} makes it, and a client on "
                "another host needs a copy of it"
            )
        return Security(tls=TlsFiles.within(self.tls) if self.tls.is_dir() else None, sockets=self._files.sockets)

    def write_address(self, address: Address, pid: int) -> None:
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
            raise PeerUnavailableError(self.not_running())
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
