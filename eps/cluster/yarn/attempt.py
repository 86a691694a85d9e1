"""What every application master of EPS begins and ends with: one attempt of an application, as a process."""

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
from eps.cluster.yarn.outcome import OUR_WORD
from eps.cluster.yarn.proxied import viewer_of
from eps.errors import ConfigError, EpsError
from eps.hadoop.conf import FILES, SCHEDULER_FILE, HadoopConf, read_configuration
from eps.net.arrays.memory import raise_descriptor_limit, tune_malloc
from eps.spec.job_spec import JobSpec
from eps.system.logs import set_up_logging

if TYPE_CHECKING:
    from eps.hadoop.session import HadoopSession

logger = logging.getLogger(__name__)

#: Set by a NodeManager: what YARN calls it.
NODE_HOST, NODE_PORT = "NM_HOST", "NM_PORT"
#: Set by the ResourceManager: when the application was submitted, in milliseconds of Unix time.
SUBMITTED_MS = "APP_SUBMIT_TIME_ENV"
#: Setting of the ResourceManager: milliseconds from a preemption message to the end of the container.
PREEMPTION_WAIT = "yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill"
#: Exit code of an attempt that finds that a later one has taken over, or that YARN has ended it.
SUPERSEDED = 71
#: Exit code of one that is not told what it must know.
CANNOT_START = 2


@dataclass(frozen=True)
class Yarn:
    """YARN as an application master has it: both sides of the facade, and what the cluster says of itself."""

    #: Closed by whoever the master's resource manager is.
    am: AmClient
    nm: NmClient
    #: Tokens for the containers, in Hadoop's format; empty: none.
    credentials: bytes = dataclasses.field(default=b"", repr=False)
    #: What the cluster says of :data:`PREEMPTION_WAIT`; empty: nothing.
    preemption_wait_ms: str = ""
    #: Who is shown the pages of the application, as of :func:`eps.cluster.yarn.proxied.viewer_of`.
    viewer: str | None = None
    #: Returns whether an access control list, the first, names a user, the second.
    is_in_acl: Callable[[str, str], bool] = lambda acl, user: False
    #: When the application was submitted, in seconds of Unix time; 0 where that is not known.
    submitted_s: float = 0.0

    @classmethod
    def of_hadoop(cls, session: HadoopSession) -> Yarn:
        """Return Hadoop's.

        Raises
        ------
        EpsError
            It cannot be reached, or the configuration of this container cannot be read.
        """
        # Whoever only looks into this module needs no Java.
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
        """Return how long things may take for a job."""
        # The ResourceManager does not tell what it leaves whom it preempts.
        limits = Limits(grant_s=spec.containers.container_timeout_s or None, quiet_s=spec.yarn.grow_back_s)
        if self.preemption_wait_ms.isdecimal():
            limits = dataclasses.replace(limits, preemption_s=int(self.preemption_wait_ms) / 1000.0)
        return limits

    @staticmethod
    def home(spec: JobSpec) -> Home | None:
        """Return where the master of a job has its container; None where no NodeManager started it."""
        host, port = os.environ.get(NODE_HOST, ""), os.environ.get(NODE_PORT, "")
        return Home(f"{host}:{port}", resource_of(spec, "master")) if host and port else None


def configuration(conf_dir: str) -> HadoopConf:
    """Return the cluster's configuration as a ResourceManager reads it: with ``capacity-scheduler.xml``, the last.

    Parameters
    ----------
    conf_dir : str
        The folder that the submitting host brought; it may lack that file.

    Raises
    ------
    ConfigError
        It cannot be read.
    """
    return read_configuration(Path(conf_dir), files=(*FILES, SCHEDULER_FILE))


def leave(reason: str) -> None:
    """End this process at once: whatever it still did, the next attempt does already, or nobody wants any more."""
    logger.critical("M %s: this one ends", reason)
    _last_word(reason)
    sys.stderr.flush()
    os._exit(SUPERSEDED)


def _last_word(reason: object) -> None:
    """Write what YARN shows the end of to whoever asks why the application failed."""
    print(f"{OUR_WORD}{reason}", file=sys.stderr)


def begin(run: Callable[[MasterOrders, str], int]) -> int:
    """Run the application master of the environment; return its exit code.

    Parameters
    ----------
    run : callable
        Called with the orders and with the name of this host; returns the exit code, or raises an EpsError where it
        cannot begin.
    """
    set_up_logging()
    tune_malloc()
    raise_descriptor_limit()
    try:
        orders = MasterOrders.from_text(os.environ.get(ORDERS, ""))
        host = os.environ.get(NODE_HOST, "")
        if not host:
            raise ConfigError(f"{NODE_HOST} is not set: this is no container of YARN")
        return run(orders, host)
    except EpsError as error:
        logger.exception("M cannot begin")
        _last_word(error)
        return CANNOT_START


def end(code: int) -> NoReturn:
    """End this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Not ``sys.exit``: a thread that Java holds must not hold this process.
    os._exit(code)
