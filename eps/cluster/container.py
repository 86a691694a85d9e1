"""``python -m eps.cluster.container``: one process of a job, in a container that no supervisor forked.

A container runtime (Docker, YARN) starts it and configures it by environment variables:

======================  ===============================================================
``EPS_ROLE``            one that an ``--entry`` names: ``worker``, ``server`` or ``master``
``EPS_CONTAINER_ID``    the container's id, by which the job master knows it
``EPS_JOB_DIR``         the job's directory as this container sees it; absolute
``EPS_MASTER_ADDRESS``  ``host:port`` of the job master's control plane, or ``unix:NAME`` on its host; not needed
                        by a master
``EPS_HOST``            name or address under which the job's other processes reach this one;
                        default ``127.0.0.1``
``EPS_TIED``            if not empty, this process ends when the job's lock is released;
                        the lock must be on this host
======================  ===============================================================

None of them is secret: the job's secrets are files in its directory.  The exit codes are those of a process that the
supervisor forked; :data:`CANNOT_START` says that the environment is invalid.

A container needs an init as its process 1: the kernel does not apply the default action of SIGTERM to process 1.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import signal as signals
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from eps.cluster.supervisor.process import (
    CONTAINER_ID,
    HOST,
    JOB_DIR,
    MASTER,
    MASTER_ADDRESS,
    ROLE,
    TIED,
    ContainerContext,
    buffer_lines,
    exit_with,
    prepare_environment,
    run_entry,
)
from eps.core.types import Address
from eps.errors import ConfigError
from eps.storage.jobdir import JobDir

#: Exit code if the environment is invalid.
CANNOT_START = 2
#: A runtime may have ignored or blocked these signals.
_RESET_SIGNALS = (signals.SIGTERM, signals.SIGINT, signals.SIGHUP)
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,253}", re.ASCII)


def context_of(environ: Mapping[str, str], roles: Collection[str]) -> ContainerContext:
    """Return the context that the environment of a container describes.

    Parameters
    ----------
    environ : mapping
        Variables as the module lists them.
    roles : collection of str
        Roles that have an entry function.

    Raises
    ------
    ConfigError
        A variable is missing or invalid; the message names the variable, its value and the rule.
    """
    role = _value(environ, ROLE)
    if role not in roles:
        raise ConfigError(f"{ROLE} is {role!r}, but must be one of {', '.join(sorted(roles))}")
    container_id = _value(environ, CONTAINER_ID)
    if not _ID.fullmatch(container_id):
        raise ConfigError(
            f"{CONTAINER_ID} is {container_id!r}, but must be 1 to 128 letters, digits, '.', '_' and '-', and not "
            "begin with '.'"
        )
    job = JobDir(Path(_value(environ, JOB_DIR)))
    if not job.path.is_absolute():
        raise ConfigError(f"{JOB_DIR} is {str(job.path)!r}, but must be an absolute path")
    if not job.path.is_dir():
        raise ConfigError(f"{JOB_DIR} is {str(job.path)!r}, but there is no such directory in this container")
    host = environ.get(HOST) or ContainerContext.host
    if not _HOST.fullmatch(host):
        raise ConfigError(f"{HOST} is {host!r}, but must be a host name or address")
    return ContainerContext(
        job_dir=job.path,
        role=role,
        container_id=container_id,
        master_address=None if role == MASTER else _address(_value(environ, MASTER_ADDRESS)),
        env={name: value for name, value in environ.items() if name.startswith("EPS_")},
        scratch_dir=job.scratch(container_id),
        host=host,
    )


def end_with(job: JobDir, scratch: Path) -> None:
    """End this process as soon as the job's lock is released, that is, when its supervisor has ended.

    This process also removes its scratch directory: the supervisor, which normally does, is gone.

    Raises
    ------
    ConfigError
        The job has no lock file.
    """
    try:
        fd = os.open(job.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{TIED} is set, but {job.lock} cannot be opened: {error.strerror}") from None

    def watch() -> None:
        # Blocks while the supervisor holds the lock exclusively.
        fcntl.flock(fd, fcntl.LOCK_SH)
        # The next run of the job may have a container of the same name.
        gone = scratch.with_name(f".{scratch.name}-{os.getpid()}")
        with suppress(OSError):
            scratch.rename(gone)
        fcntl.flock(fd, fcntl.LOCK_UN)
        print("eps.cluster.container: the job has ended: its lock was released", file=sys.stderr)
        shutil.rmtree(gone, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, name="job-lock", daemon=True).start()


def _value(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise ConfigError(f"{name} is not set: the runtime that starts this container must set it")
    return value


def _address(text: str) -> str:
    if Address(text, 0).is_unix:
        return text
    host, _, port = text.rpartition(":")
    if not _HOST.fullmatch(host.strip("[]")) or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{MASTER_ADDRESS} is {text!r}, but must be host:port or unix:NAME")
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the container's process; return only if it cannot start."""
    parser = argparse.ArgumentParser(prog="python -m eps.cluster.container", description="Run one process of a job.")
    parser.add_argument("--entry", action="append", default=[], metavar="ROLE=MODULE:FUNCTION", help="what a role runs")
    arguments = parser.parse_args(argv)
    entry_points = dict(text.split("=", 1) for text in arguments.entry)
    # Must come before anything imports NumPy or gRPC.
    prepare_environment(os.environ)
    buffer_lines()
    try:
        context = context_of(os.environ, entry_points)
        if os.environ.get(TIED):
            job = JobDir(context.job_dir)
            end_with(job, job.scratch(context.container_id))
    except ConfigError as error:
        print(f"eps.cluster.container: {error}", file=sys.stderr)
        return CANNOT_START
    exit_with(lambda: run_entry(context, entry_points[context.role], _RESET_SIGNALS))


if __name__ == "__main__":
    sys.exit(main())
