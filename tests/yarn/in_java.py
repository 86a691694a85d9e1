"""A process with a Java virtual machine, shared by all tests of a session.

A machine takes a second to start, stays as long as its process, and must not be forked, so pytest's own process has
none.  Calls name a function of a module, with arguments that can be pickled; exceptions are raised here.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eps.cluster.yarn.hadoop.client import HadoopClient
    from eps.hadoop.session import HadoopSession

#: Timeout of each wait, on a busy machine.
DEADLINE_S = 240.0


class InJava:
    """The process.

    Parameters
    ----------
    env : mapping
        Its environment, with ``HADOOP_CONF_DIR``.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (dict(env),))

    def __call__(self, work: Callable[..., Any], *args: Any) -> Any:
        """Return the result of ``work`` in the process."""
        return self._pool.submit(work, *args).result(DEADLINE_S)

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown()


# ---- in the process


def _begin(env: dict[str, str]) -> None:
    os.environ.update(env)
    logging.basicConfig(level=logging.INFO)


@lru_cache
def session() -> HadoopSession:
    """Return the process's session with the cluster."""
    from eps.hadoop.session import HadoopSession

    return HadoopSession()


@lru_cache
def client() -> HadoopClient:
    """Return the process's client of YARN."""
    from eps.cluster.yarn.hadoop.client import HadoopClient

    return HadoopClient(session())


def kill(application: str, diagnostics: str = "") -> None:
    """Kill an application from outside, without Hadoop's own client."""
    from eps.cluster.yarn.rest import RestClient
    from eps.hadoop.conf import environment_configuration

    with closing(RestClient(environment_configuration())) as outside:
        outside.kill(application, diagnostics)


def rmadmin(*words: str) -> None:
    """Run a command of YARN's administration, without a process of its own."""
    from eps.hadoop.bridge import jarray, java

    conf = session().java_conf
    command = java("org.apache.hadoop.yarn.client.cli.RMAdminCLI")(conf)
    assert command.run(jarray(java("java.lang.String"), words)) == 0, words


def dfsadmin(*words: str) -> None:
    """Run a command of HDFS's administration, without a process of its own."""
    from eps.hadoop.bridge import jarray, java

    conf = session().java_conf
    command = java("org.apache.hadoop.hdfs.tools.DFSAdmin")(conf)
    assert command.run(jarray(java("java.lang.String"), words)) == 0, words
