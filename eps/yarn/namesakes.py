"""Applications of jobs that this machine knows nothing of, for who asks after such a job by name.  L3."""

from __future__ import annotations

from contextlib import closing

from eps.errors import EpsError
from eps.hadoop_conf import environment_configuration
from eps.yarn.rest import RestClient
from eps.yarn.types import ApplicationReport

#: Each ResourceManager has so long to answer: who mistyped a name waits for it.
PATIENCE_S = 2.0
#: States of applications that have not ended.
_LIVE = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING")


def namesakes(name: str) -> list[ApplicationReport]:
    """Return the applications that YARN has under a job's name and that have not ended, the oldest first.

    None where the cluster of ``HADOOP_CONF_DIR`` cannot be asked, or none is named: who asks is told something else.
    """
    try:
        # Without Java, which may wait for minutes for a ResourceManager that is away.
        with closing(RestClient(environment_configuration(), timeout_s=PATIENCE_S)) as client:
            return [found for found in client.applications(states=_LIVE) if found.name == name]
    except EpsError:
        return []


def namesakes_text(name: str) -> str:
    """Return as words that go on a sentence what YARN has under a job's name and how that is ended; empty for nothing.

    The job's directory is what is asked of a job that runs, and what remembers its folders on the cluster.
    """
    found = namesakes(name)
    if not found:
        return ""
    listed = ", ".join(f"{each.application_id} (of {each.user}, {each.state.lower()})" for each in found)
    ends = "; ".join(f"yarn application -kill {each.application_id}" for each in found)
    return (
        f"; but YARN has {listed} of that name, which may be a job whose directory was removed here, or one of another "
        f"machine: {ends} ends it, and what it has on HDFS (.eps/jobs/{name}-*, .eps/checkpoints/{name}) stays then"
    )
