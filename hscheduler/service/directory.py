"""The directory of a service: what a restart needs, and how clients find the service.

::

    EPS_HOME/hscheduler (--state chooses another)
    ├── lock            locked (flock) while the service runs, so that a directory has one service
    ├── sockets/        Unix sockets for the user's processes on this host
    ├── tls/            certificates for clients on other hosts (hscheduler serve --listen)
    ├── service.json    {"host", "port", "pid"}
    └── record.sqlite   see hscheduler.record
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
        """Return the directory that a flag names; None or empty: the one under ``EPS_HOME``."""
        if not text:
            return cls(eps_home() / "hscheduler")
        path = Path(text).expanduser().absolute()
        check_own(path, "state", "name another with --state")
        return cls(path)

    @property
    def flag(self) -> str:
        """The flag that names the directory to a command, with a leading space; empty for the default directory."""
        return "" if self.path == ServiceDir.of(None).path else f" --state {shlex.quote(str(self.path))}"

    def not_running(self) -> str:
        """Return a sentence for the user: no service answers in this directory, and what to do."""
        if self.is_application():
            how, ended, silent = f"hscheduler serve --on yarn{self.flag}", "starts another", "shows its state"
            if self.is_sweep:
                how = f"hscheduler sweep --resume {self.path.name}"
                # Another application continues it if its own is gone.
                ended, silent = "shows its results", "follows or continues it"
            if self._files.record().end is not None:
                return f"this H-scheduler on YARN has ended: {how} {ended}"
            return f"H-scheduler on YARN does not answer: {how} {silent}"
        return f"no H-scheduler runs in {self.path}: start it with hscheduler serve{self.flag}"

    @property
    def _files(self) -> JobDir:
        """Lock, certificates and sockets, with the layout of a job's directory."""
        return JobDir(self.path)

    @property
    def tls(self) -> Path:
        """Folder of the certificates for clients on other hosts."""
        return self._files.tls

    @property
    def record(self) -> Path:
        """File of the scheduler's record."""
        return self.path / "record.sqlite"

    def lock(self) -> JobLock:
        """Create the directory and lock it, until the lock is closed.

        Raises
        ------
        ConfigError
            Another service runs in the directory.
        StorageError
            The directory cannot be created or locked.
        """
        try:
            make_private(self.path)
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be created: {error.strerror or error}") from error
        try:
            lock = JobLock(self._files.lock)
        except JobExistsError:
            raise ConfigError(
                f"{self.path} belongs to a running H-scheduler: stop it, or use another --state"
            ) from None
        # Sockets of a service that was killed.
        shutil.rmtree(self._files.sockets, ignore_errors=True)
        return lock

    def is_running(self) -> bool:
        """Return whether a service runs in this directory."""
        return self._files.is_running()

    @property
    def is_sweep(self) -> bool:
        """Whether this is the folder of a sweep submitted to YARN."""
        return self.path.parent == sweeps_dir()

    def is_application(self) -> bool:
        """Return whether the service is, or was, an application on YARN."""
        return self._files.job_json.exists()

    def application_id(self) -> str:
        """Return the id of the service's application on YARN; empty if it has none."""
        application = self._files.record().yarn.application
        return "" if application is None else str(application["application_id"])

    def security(self, *, between_hosts: bool) -> Security:
        """Return the security with which the service listens: Unix sockets, or certificates (created if missing).

        Raises
        ------
        ConfigError
            The package that makes certificates is missing.
        StorageError
            The certificates cannot be written.
        """
        if not between_hosts:
            return Security(sockets=self._files.sockets)
        if not self.tls.is_dir():
            make_certificates(self.tls)
        return self.known_security()

    def known_security(self, *, between_hosts: bool = False) -> Security:
        """Return the security with which clients connect: the existing certificates, or the folder of sockets.

        Raises
        ------
        StorageError
            ``between_hosts`` is set, but the certificates are missing.
        """
        if between_hosts and not self.tls.is_dir():
            raise StorageError(
                f"{self.tls} is missing: copy it from the service's host, where hscheduler serve --listen "
                f"HOST:PORT{self.flag} creates it"
            )
        return Security(tls=TlsFiles.within(self.tls) if self.tls.is_dir() else None, sockets=self._files.sockets)

    def write_address(self, address: Address, pid: int) -> None:
        """Write the address of the service for its clients."""
        write_json_atomic(self.path / "service.json", {"host": address.host, "port": address.port, "pid": pid})

    def last_port(self) -> int:
        """Return the last port of the service; 0 if it never listened on one."""
        return int((read_json(self.path / "service.json") or {}).get("port", 0))

    def address(self) -> Address:
        """Return the last address of the service.

        Raises
        ------
        PeerUnavailableError
            No service ever ran in this directory.
        """
        found = read_json(self.path / "service.json")
        if found is None:
            raise PeerUnavailableError(self.not_running())
        return Address(str(found["host"]), int(found["port"]))


def parse_address(text: str) -> Address:
    """Parse ``HOST:PORT``.

    Raises
    ------
    ConfigError
        The text is not an address.
    """
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigError(f"address is {text!r}, but must be HOST:PORT, as in 127.0.0.1:7070")
    return Address(host, int(port))
