"""The logs of an application that runs, from the web servers of its nodes: a look takes no Java virtual machine.

A node tells of the containers that it has, and of their logs in the form in which ``yarn logs`` prints them.  What
ended, or is on a node that is gone, it does not tell: that comes with the command (:mod:`eps.job.yarn.logs`).

Source: Hadoop 3.5.0, "NodeManager REST API's": Container(s) API; ``NMWebServices`` (``containers/ID/logs``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from eps.cluster.yarn.rest import RestClient, user_name
from eps.errors import ConfigError, PeerUnavailableError
from eps.hadoop.conf import HadoopConf
from eps.storage.webhdfs import innermost

#: A node that does not answer is looked at again with the next look.
TIMEOUT_S = 3.0
#: Of the files of a container, in the order in which they are read: what YARN said, what its process did.
FILES = ("prelaunch.err", "stdout", "stderr")
_PIECE_BYTES = 1 << 16


class LiveLogs:
    """Brings what has changed since the last look.

    Parameters
    ----------
    conf : HadoopConf
        Of a cluster that asks nobody for a proof.
    application_id : str

    Raises
    ------
    ConfigError
        As of :class:`~eps.cluster.yarn.rest.RestClient`.
    """

    def __init__(self, conf: HadoopConf, application_id: str) -> None:
        # Of one whose cluster names no web server there is an error by now.
        self._client = RestClient(conf)
        import requests

        self._requests = requests
        self._session = requests.Session()
        self._session.trust_env = False
        self._parameters = {"user.name": user_name(conf.environ)}
        self._scheme = "https" if conf.get("yarn.http.policy").upper() == "HTTPS_ONLY" else "http"
        number = application_id.removeprefix("application_")
        self._ours = re.compile(rf"container_(e\d+_)?{re.escape(number)}_\d+_\d+")
        #: Container -> sizes of its files at the last look.
        self._sizes: dict[str, dict[str, int]] = {}

    def print_to(self, printed: Path) -> None:
        """Write the logs that have changed into a file, as ``yarn logs`` prints them.

        Raises
        ------
        RpcError
            The ResourceManager does not answer, or none of its nodes.
        """
        nodes = [node.http_address for node in self._client.nodes() if node.http_address]
        reasons = []
        with printed.open("wb") as target:
            for address in nodes:
                try:
                    self._print_node(f"{self._scheme}://{address}/ws/v1/node/containers", target)
                except (self._requests.RequestException, KeyError, TypeError, ValueError) as error:
                    reasons.append(f"{address}: {innermost(error)}")
        if len(reasons) == len(nodes):
            raise PeerUnavailableError(f"no node tells its logs ({'; '.join(reasons) or 'there is none'})")

    def _print_node(self, url: str, target: Any) -> None:
        found = self._ask(url).json()
        for entry in (found.get("containers") or {}).get("container") or ():
            container = str(entry["id"])
            if not self._ours.fullmatch(container):
                continue
            try:
                self._print_container(container, f"{url}/{container}/logs", target)
            except self._requests.HTTPError as error:
                # It has just ended.
                if error.response is None or error.response.status_code != 404:
                    raise

    def _print_container(self, container: str, url: str, target: Any) -> None:
        sizes: dict[str, int] = {}
        told = self._ask(url).json()["containerLogsInfo"]
        # A list, where some of them were collected before.
        for info in told if isinstance(told, list) else [told]:
            for file in info.get("containerLogInfo") or ():
                if file["fileName"] in FILES and int(file["fileSize"]):
                    sizes[file["fileName"]] = int(file["fileSize"])
        if sizes == self._sizes.get(container):
            return
        for name in sizes:
            with self._ask(f"{url}/{name}", stream=True) as answer:
                # It may be larger than memory.
                for piece in answer.iter_content(_PIECE_BYTES):
                    target.write(piece)
            target.write(b"\n")
        self._sizes[container] = sizes

    def _ask(self, url: str, *, stream: bool = False) -> Any:
        accept = "text/plain" if stream else "application/json"
        answer = self._session.get(
            url, params=self._parameters, headers={"Accept": accept}, timeout=TIMEOUT_S, stream=stream
        )
        answer.raise_for_status()
        return answer

    def close(self) -> None:
        """Let go of the nodes and the ResourceManager."""
        self._session.close()
        self._client.close()


def open_live_logs(conf: HadoopConf, application_id: str) -> LiveLogs | None:
    """Return what brings the logs of an application that runs; None where nodes want a proof, or cannot be asked."""
    try:
        return None if conf.wants_kerberos else LiveLogs(conf, application_id)
    except ConfigError:
        return None
