"""Start and end of an application master's process, which is one attempt of an application."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from eps.cluster.yarn.allocation import Limits
from eps.cluster.yarn.application import ORDERS, MasterOrders, resource_of
from eps.cluster.yarn.facade import AmClient, NmClient
from eps.cluster.yarn.headroom import Home
from eps.cluster.yarn.outcome import REASON_PREFIX
from eps.cluster.yarn.proxied import viewer_of
from eps.errors import ConfigError, EpsError
from eps.hadoop.conf import FILES, SCHEDULER_FILE, HadoopConf, read_configuration
from eps.net.arrays.memory import raise_descriptor_limit, tune_malloc
from eps.spec.job_spec import JobSpec
from eps.system.logs import set_up_logging

if TYPE_CHECKING:
    from eps.hadoop.session import HadoopSession

logger = logging.getLogger(__name__)

#: Environment variables with the NodeManager's host and port.
NODE_HOST, NODE_PORT = "NM_HOST", "NM_PORT"
#: Environment variable with the time of the application's submission, in milliseconds of Unix time.
SUBMITTED_MS = "APP_SUBMIT_TIME_ENV"
#: Setting of the ResourceManager: milliseconds from a preemption message to the kill.
PREEMPTION_WAIT = "yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill"
#: Exit code of an attempt that a later one has replaced, or that YARN has ended.
SUPERSEDED = 71
#: Exit code of an attempt that cannot start, for example without orders.
CANNOT_START = 2


@dataclass(frozen=True)
class Yarn:
    """An application master's clients of YARN, and the cluster's settings that it needs."""

    #: The master's resource manager closes both.
    am: AmClient
    nm: NmClient
    #: Tokens for the containers, in Hadoop's format; empty: none.
    credentials: bytes = dataclasses.field(default=b"", repr=False)
    #: The cluster's value of :data:`PREEMPTION_WAIT`; empty: it has none.
    preemption_wait_ms: str = ""
    #: User who may view the application's pages; see :func:`eps.cluster.yarn.proxied.viewer_of`.
    viewer: str | None = None
    #: ``is_in_acl(acl, user)`` returns whether an access control list names a user.
    is_in_acl: Callable[[str, str], bool] = lambda acl, user: False
    #: When the application was submitted, in seconds of Unix time; 0 if unknown.
    submitted_s: float = 0.0

    @classmethod
    def of_hadoop(cls, session: HadoopSession) -> Yarn:
        """Return the clients of Hadoop.

        Raises
        ------
        EpsError
            YARN cannot be reached, or the configuration of this container cannot be read.
        """
        # Imported here, so that importing this module needs no Java.
        from eps.cluster.yarn.hadoop.master import open_master
        from eps.hadoop.tokens import tokens_for_containers

        am, nm = open_master(session)
        conf = configuration(os.environ["HADOOP_CONF_DIR"])
        submitted_ms = os.environ.get(SUBMITTED_MS, "")
        submitted_s = int(submitted_ms) / 1000.0 if submitted_ms.isdecimal() else 0.0
        return cls(
            am,
            nm,
            tokens_for_containers(session),
            conf.get(PREEMPTION_WAIT),
            viewer_of(conf, os.environ),
            session.is_in,
            submitted_s,
        )

    def limits(self, spec: JobSpec) -> Limits:
        """Return the timeouts for a job's containers."""
        # A preemption message does not say how long it leaves the container.
        limits = Limits(grant_s=spec.containers.container_timeout_s or None, quiet_s=spec.yarn.grow_back_s)
        if self.preemption_wait_ms.isdecimal():
            limits = dataclasses.replace(limits, preemption_s=int(self.preemption_wait_ms) / 1000.0)
        return limits

    @staticmethod
    def home(spec: JobSpec) -> Home | None:
        """Return node and size of the job master's container; None if no NodeManager started this process."""
        host, port = os.environ.get(NODE_HOST, ""), os.environ.get(NODE_PORT, "")
        return Home(f"{host}:{port}", resource_of(spec, "master")) if host and port else None


def configuration(conf_dir: str) -> HadoopConf:
    """Return the cluster's configuration as a ResourceManager reads it, including ``capacity-scheduler.xml``.

    Parameters
    ----------
    conf_dir : str
        Folder that the client uploaded; it may lack that file.

    Raises
    ------
    ConfigError
        The configuration cannot be read.
    """
    return read_configuration(Path(conf_dir), files=(*FILES, SCHEDULER_FILE))


def exit_superseded(reason: str) -> None:
    """Exit at once: the next attempt is responsible for the job, or the application has ended."""
    logger.critical("M %s: this attempt exits", reason)
    _print_reason(reason)
    sys.stderr.flush()
    os._exit(SUPERSEDED)


def _print_reason(reason: object) -> None:
    """Print why this attempt ends; YARN quotes the end of stderr in an application's diagnostics."""
    print(f"{REASON_PREFIX}{reason}", file=sys.stderr)


def run_attempt(run: Callable[[MasterOrders, str], int]) -> int:
    """Run an application master with the orders of the environment; return its exit code.

    Parameters
    ----------
    run : callable
        Called with the orders and this host's name.  Returns the exit code; raises an EpsError if it cannot start.
    """
    set_up_logging()
    tune_malloc()
    raise_descriptor_limit()
    try:
        orders = MasterOrders.from_text(os.environ.get(ORDERS, ""))
        host = os.environ.get(NODE_HOST, "")
        if not host:
            raise ConfigError(f"the variable {NODE_HOST} is not set: this process is no YARN container")
        return run(orders, host)
    except EpsError as error:
        logger.exception("M cannot start")
        _print_reason(error)
        return CANNOT_START


def exit_process(code: int) -> NoReturn:
    """Exit this process, with its streams flushed."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Not ``sys.exit``, which would wait for threads that are inside Java.
    os._exit(code)
