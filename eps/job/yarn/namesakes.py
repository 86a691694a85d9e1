"""Applications of jobs that this machine knows nothing of, for who asks after such a job, or takes its name."""

from __future__ import annotations

from contextlib import closing

from eps.cluster.yarn.application import staged_pattern
from eps.cluster.yarn.facade import Client
from eps.cluster.yarn.rest import RestClient
from eps.cluster.yarn.types import ApplicationReport
from eps.errors import EpsError, JobExistsError
from eps.hadoop.conf import environment_configuration
from eps.storage.claims import owner_of, signed_by
from eps.storage.jobdir import job_dir
from eps.storage.locations import RemotePath, open_storage

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
            return _live(client, name)
    except EpsError:
        return []


def _live(client: Client, name: str) -> list[ApplicationReport]:
    return [found for found in client.applications(states=_LIVE) if found.name == name]


def check_not_running(name: str, checkpoints: RemotePath, client: Client) -> None:
    """Refuse a name that a job still has which YARN runs, though its directory here was removed.

    Its checkpoints would go with the name: whoever is to have them is taken for what it was here before.

    Parameters
    ----------
    name : str
    checkpoints : RemotePath
        Where EPS has the checkpoints of all jobs of this user.
    client : Client

    Raises
    ------
    ConfigError
        No job may have that name.
    JobExistsError
        There is such a job.
    RpcError, StorageError
        The cluster, or its file system, cannot be asked.
    """
    former = job_dir(name)
    if former.path.exists() or signed_by(open_storage(checkpoints / name)) != owner_of(former):
        return
    found = [each for each in _live(client, name) if each.user == client.user]
    if found:
        raise JobExistsError(
            f"job {name!r} runs as {found[-1].application_id}, though its directory {former.path} was removed, and has "
            f"its checkpoints in {checkpoints / name}: choose another name, or end it first: yarn application -kill "
            f"{found[-1].application_id}"
        )


def namesakes_text(name: str) -> str:
    """Return as words that go on a sentence what YARN has under a job's name and how that is ended; empty for nothing.

    The job's directory is what is asked of a job that runs, and what remembers its folders on the cluster.
    """
    found = namesakes(name)
    if not found:
        return ""
    listed = ", ".join(f"{each.application_id} (of {each.user}, {each.state.lower()})" for each in found)
    ends = "; ".join(f"yarn application -kill {each.application_id}" for each in found)
    # In quotes, as a shell must not take it for files here.
    theirs = f"'.eps/jobs/{staged_pattern(name)}' .eps/checkpoints/{name}"
    return (
        f"; but YARN has {listed} of that name, which may be a job whose directory was removed here, or one of another "
        f"machine: {ends} ends it, and what it has on HDFS ({theirs}) stays then"
    )
