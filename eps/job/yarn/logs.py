"""Download the logs of a running job on YARN from the web servers of its nodes to the job's directory.

A node serves the logs of its running containers.  ``yarn logs`` shows logs of ended containers and lost nodes, if the
cluster aggregates logs.  The job master uploads the end of its own log to the job's results.

Source: Hadoop 3.5.0, "NodeManager REST API's": Container(s) API; ``NMWebServices`` (``containers/ID/logs``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eps.cluster.supervisor.process import MASTER
from eps.cluster.yarn.application import Application
from eps.cluster.yarn.client import YarnClient
from eps.cluster.yarn.rest import user_name
from eps.errors import ConfigError, PeerUnavailableError, StorageError
from eps.hadoop.conf import read_configuration
from eps.hadoop.kerberos import HttpAuth
from eps.job.status import LOGS_COMMAND, attempt_of
from eps.storage.atomic import atomic_writer
from eps.storage.jobdir import JobDir
from eps.storage.webhdfs import innermost
from eps.system.home import DIRECTORY_MODE

#: Timeout for a node's answer; the next download asks it again.
TIMEOUT_S = 3.0
#: Log files of a container, in the order in which they are joined: YARN's own, then the process's.
FILES = ("prelaunch.err", "stdout", "stderr")
_PIECE_BYTES = 1 << 16
#: In the header of a file: its length, and the line before its content.
_LENGTH, _BEGIN = re.compile(rb"^LogLength:\s*(\d+)", re.MULTILINE), b"LogContents:\n"
#: Line of the job master's log with a container id and YARN's name.
_PLACED = re.compile(r"M (\S+) is (container_\w+) on \S+")
#: YARN's name of the application master's container; the group is the attempt.
_MASTER_CONTAINER = re.compile(r"container_(?:e\d+_)?\d+_\d+_(\d+)_000001")


class LiveLogs:
    """Download the logs of a running job's containers, as often as :meth:`download` is called.

    Parameters
    ----------
    job : JobDir
        A job on YARN.

    Raises
    ------
    ConfigError
        A package is missing, or the cluster's configuration cannot be read.
    StorageError
        The job's record cannot be read.
    """

    def __init__(self, job: JobDir) -> None:
        application = Application.read(job)
        if application is None:
            raise ConfigError(f"job {job.name!r} does not run on YARN")
        conf = read_configuration(Path(application.conf_dir))
        self._job = job
        self._client = YarnClient(conf)
        import requests

        self._requests = requests
        self._session = requests.Session()
        self._session.trust_env = False
        self._parameters = {}
        if conf.wants_kerberos:
            self._session.auth = _kerberos(application.application_id)
        else:
            self._parameters = {"user.name": user_name(conf.environ)}
        self._scheme = "https" if conf.get("yarn.http.policy").upper() == "HTTPS_ONLY" else "http"
        number = application.application_id.removeprefix("application_")
        self._ours = re.compile(rf"container_(e\d+_)?{re.escape(number)}_\d+_\d+")
        #: Container -> sizes of its files at the last download.
        self._sizes: dict[str, dict[str, int]] = {}

    def download(self) -> int:
        """Download the logs that have changed since the last call; return the number of running containers.

        Raises
        ------
        RpcError
            The ResourceManager does not answer, or no node does.
        StorageError
            The logs cannot be written.
        """
        nodes = [node.http_address for node in self._client.nodes() if node.http_address]
        found: dict[str, str] = {}
        reasons = []
        for address in nodes:
            try:
                found |= dict(self._containers(f"{self._scheme}://{address}/ws/v1/node/containers"))
            except (self._requests.RequestException, KeyError, TypeError, ValueError) as error:
                reasons.append(f"{address}: {innermost(error)}")
        if len(reasons) == len(nodes):
            raise PeerUnavailableError(f"no node serves its logs ({'; '.join(reasons) or 'no node is running'})")
        try:
            self._job.logs.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
            # Masters first: their logs have the names of the other containers.
            for container in sorted(found, key=lambda name: (not _attempt(name), name)):
                self._download_container(container, found[container])
            self._remove_masters_after(max(map(_attempt, found), default=0))
        except (self._requests.RequestException, KeyError, TypeError, ValueError) as error:
            raise PeerUnavailableError(f"a node does not serve its logs: {innermost(error)}") from error
        except OSError as error:
            where = error.filename or self._job.logs
            raise StorageError(
                f"{where}: the logs of job {self._job.name!r} cannot be written: {error.strerror or error}"
            ) from error
        return len(found)

    def _containers(self, url: str) -> Iterator[tuple[str, str]]:
        told = self._ask(url).json()
        for entry in (told.get("containers") or {}).get("container") or ():
            if self._ours.fullmatch(str(entry["id"])):
                yield str(entry["id"]), f"{url}/{entry['id']}/logs"

    def _download_container(self, container: str, url: str) -> None:
        try:
            sizes = _sizes_of(self._ask(url).json())
            if sizes and sizes != self._sizes.get(container):
                with atomic_writer(self._job.log(self._name(container)), sync=False) as target:
                    for name in sizes:
                        with self._ask(f"{url}/{name}", stream=True) as answer:
                            for piece in contents(answer.iter_content(_PIECE_BYTES)):
                                target.write(piece)
                self._sizes[container] = sizes
        except self._requests.HTTPError as error:
            # The container has just ended.
            if error.response is None or error.response.status_code != 404:
                raise

    def _name(self, container: str) -> str:
        """Return a log's name: ``master``, ``master-N`` for attempt N, else the container id in the master's log."""
        if attempt := _attempt(container):
            return MASTER if attempt == 1 else f"{MASTER}-{attempt}"
        for path in self._job.logs.glob(f"{MASTER}*.log"):
            if attempt_of(path):
                with path.open(encoding="utf-8", errors="replace") as lines:
                    for line in lines:
                        if (placed := _PLACED.search(line)) and placed[2] == container:
                            return placed[1]
        return container

    def _remove_masters_after(self, attempt: int) -> None:
        """Remove logs of masters after this attempt: they are from an earlier run of the job."""
        for path in self._job.logs.glob(f"{MASTER}-*.log"):
            if attempt_of(path) > attempt > 0:
                path.unlink(missing_ok=True)

    def _ask(self, url: str, *, stream: bool = False) -> Any:
        accept = "text/plain" if stream else "application/json"
        answer = self._session.get(
            url, params=self._parameters, headers={"Accept": accept}, timeout=TIMEOUT_S, stream=stream
        )
        answer.raise_for_status()
        return answer

    def close(self) -> None:
        """Close the connections to the nodes and the ResourceManager."""
        self._session.close()
        self._client.close()


def _kerberos(application_id: str) -> HttpAuth:
    try:
        return HttpAuth()
    except ImportError:
        raise ConfigError(
            "the nodes of this cluster require Kerberos: pip install '.[kerberos]' in EPS's folder, or use "
            f"{LOGS_COMMAND.format(application_id)}"
        ) from None


def _attempt(container: str) -> int:
    """Return the attempt whose application master has a container; 0 for other containers."""
    match = _MASTER_CONTAINER.fullmatch(container)
    return 0 if match is None else int(match[1])


def _sizes_of(told: Mapping[str, Any]) -> dict[str, int]:
    """Return name -> size of a container's files that are not empty, in the order of :data:`FILES`."""
    infos = told["containerLogsInfo"]
    # A list if the cluster has aggregated some of them.
    listed = [
        file for info in (infos if isinstance(infos, list) else [infos]) for file in info.get("containerLogInfo") or ()
    ]
    sizes = {str(file["fileName"]): int(file["fileSize"]) for file in listed}
    return {name: sizes[name] for name in FILES if sizes.get(name)}


def contents(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield a log file's content from a node's answer, without header and footer; it may be larger than memory.

    Raises
    ------
    ValueError
        The header has no length.
    """
    held, left = b"", -1
    for piece in pieces:
        held += piece
        if left < 0:
            head, found, rest = held.partition(_BEGIN)
            if not found:
                continue
            length = _LENGTH.search(head)
            if length is None:
                raise ValueError("no length of the log")
            left, held = int(length[1]), rest
        yield held[:left]
        left, held = max(0, left - len(held)), b""
