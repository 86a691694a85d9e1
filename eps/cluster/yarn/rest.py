"""Query YARN and kill applications over its web interface, without Java.

Every ResourceManager serves this interface beside its web pages (``/ws/v1/cluster``), so ``HADOOP_CONF_DIR`` suffices.
On a cluster without security a parameter names the user; with security, the caller passes an ``auth``.

Source: Hadoop 3.5.0, "ResourceManager REST API's": Cluster Applications API, Cluster Application State API, Cluster
Nodes API, Cluster Scheduler API.
"""

from __future__ import annotations

import getpass
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from eps.cluster.yarn.queues import CALCULATOR, counts_cores, may_submit, queue_in, report_of_queue
from eps.cluster.yarn.types import (
    ApplicationReport,
    ClusterNode,
    QueueReport,
    Resource,
)
from eps.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineError,
    EpsError,
    JobNotFoundError,
    PeerUnavailableError,
    RpcError,
)
from eps.hadoop.conf import (
    NOT_SET,
    HadoopConf,
    resourcemanager_web_addresses,
    scheduler_setting,
)
from eps.hadoop.errors import HadoopPlace, JavaError, explain
from eps.hadoop.kerberos import KEYTAB_VARIABLE
from eps.storage.webhdfs import innermost

#: Timeout for a ResourceManager's answer, in seconds.
TIMEOUT_S = 10.0
#: Paths of one application.
_APPLICATION = re.compile(r"apps/")


class RestClient:
    """The methods of :class:`eps.cluster.yarn.facade.Client` that need no Java.

    Parameters
    ----------
    conf : HadoopConf
    timeout_s : float
        Timeout for the answer of each ResourceManager.
    auth : callable, optional
        For ``requests.Session.auth``: authenticates requests on a cluster with Kerberos.

    Raises
    ------
    ConfigError
        A package is missing, or the configuration names no ResourceManager.
    """

    def __init__(self, conf: HadoopConf, timeout_s: float = TIMEOUT_S, auth: Any = None) -> None:
        try:
            import requests
        except ImportError:
            raise ConfigError("YARN needs the package requests: pip install '.[yarn]' in EPS's folder") from None
        if not conf.source:
            raise ConfigError(NOT_SET)
        self._requests = requests
        self._timeout_s = timeout_s
        self._conf = conf
        self._addresses = list(resourcemanager_web_addresses(conf))
        self._lock = threading.Lock()
        self._session = requests.Session()
        # A proxy from the environment is for the world outside, not for the cluster.
        self._session.trust_env = False
        self._parameters: dict[str, str] = {}
        self._session.auth = auth
        if auth is None:
            self._parameters["user.name"] = self.user

    @property
    def user(self) -> str:
        """Name of the user for a cluster without security."""
        return user_name(self._conf.environ)

    @property
    def address(self) -> str:
        """Addresses of the ResourceManagers, for messages."""
        return ", ".join(self._addresses)

    def report(self, application_id: str) -> ApplicationReport:
        """Return YARN's report on an application.

        Raises
        ------
        JobNotFoundError
            YARN does not know that id.
        """
        what = f"ask after {application_id}"
        found = self._call("GET", f"apps/{application_id}", what)
        with _checking_format(what):
            return report_of(found["app"])

    def applications(
        self, application_type: str = "EPS", states: Sequence[str] = (), tags: Sequence[str] = ()
    ) -> list[ApplicationReport]:
        """Return applications of a type; see :class:`~eps.cluster.yarn.facade.Client`."""
        query = {"applicationTypes": application_type}
        if states:
            query["states"] = ",".join(states)
        if tags:
            query["applicationTags"] = ",".join(tag.lower() for tag in tags)
        what = "list the applications"
        found = self._call("GET", "apps", what, query=query)
        with _checking_format(what):
            reports = [report_of(app) for app in ((found.get("apps") or {}).get("app") or [])]
        return sorted(reports, key=lambda report: (report.started_ms, report.application_id))

    def kill(self, application_id: str, diagnostics: str = "") -> None:
        """Kill an application; does nothing if it has ended."""
        body: dict[str, Any] = {"state": "KILLED"}
        if diagnostics:
            body["diagnostics"] = diagnostics
        self._call("PUT", f"apps/{application_id}/state", f"end {application_id}", body)

    def nodes(self, states: Sequence[str] = ("RUNNING",)) -> list[ClusterNode]:
        """Return the nodes in some states, sorted by name."""
        what = "list the nodes"
        found = self._call("GET", "nodes", what, query={"states": ",".join(states)})
        with _checking_format(what):
            nodes = [_node_of(node) for node in ((found.get("nodes") or {}).get("node") or [])]
        return sorted(nodes, key=lambda node: node.node)

    def queue(self, name: str) -> QueueReport | None:
        """Return YARN's report on a queue for this user; None if no queue has that name."""
        what = "look at the queues"
        found = self._call("GET", "scheduler", what)
        with _checking_format(what):
            info = found["scheduler"]["schedulerInfo"]
            way = queue_in(info, name)
            if not way:
                return None
            is_open = not self._conf.get_bool("yarn.acl.enable") or may_submit(way, self.user)
            counts = counts_cores(info, scheduler_setting(self._conf, CALCULATOR))
            return report_of_queue(way, may_submit=is_open, counts_cores=counts)

    def close(self) -> None:
        """Close the connections to the ResourceManagers.  Idempotent."""
        self._session.close()

    def _call(
        self,
        method: str,
        path: str,
        what: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Ask the ResourceManagers in turn, beginning with the last one that answered; return the answer's object."""
        reasons: list[str] = []
        for address in list(self._addresses):
            try:
                answer = self._session.request(
                    method,
                    f"{address}/ws/v1/cluster/{path}",
                    params={**self._parameters, **(query or {})},
                    json=body,
                    headers={"Accept": "application/json"},
                    timeout=self._timeout_s,
                    # A standby redirects to the active one, also by a page that refreshes.
                    allow_redirects=False,
                )
            except self._requests.Timeout:
                reasons.append(f"{address} did not answer within {self._timeout_s:g} s")
                continue
            except self._requests.RequestException as error:
                reasons.append(f"{address}: {innermost(error)}")
                continue
            if answer.status_code in (302, 307) or "Refresh" in answer.headers:
                reasons.append(f"{address} is a standby")
                continue
            with self._lock:
                self._addresses.sort(key=lambda known: known != address)
            return _object_of(answer, what, _APPLICATION.match(path) is not None)
        if reasons and all("did not answer" in reason for reason in reasons):
            raise DeadlineError(f"{what}: {'; '.join(reasons)}")
        raise PeerUnavailableError(
            f"{what}: no ResourceManager can be reached ({'; '.join(reasons)}); check its address in "
            f"{self._conf.source}/yarn-site.xml"
        )


def user_name(environ: Mapping[str, str]) -> str:
    """Return the name of this process's user for a cluster without security."""
    return environ.get("HADOOP_USER_NAME") or getpass.getuser()


@contextmanager
def _checking_format(what: str) -> Iterator[None]:
    """Raise an RpcError if the block finds that an answer is not a ResourceManager's."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise RpcError(f"{what}: the server is no ResourceManager ({type(error).__name__}: {error})") from None


def _object_of(answer: Any, what: str, may_miss: bool) -> dict[str, Any]:
    """Return the JSON object of an answer; raise the error that the answer reports."""
    status, text = answer.status_code, answer.text
    if status == 401:
        raise AuthenticationError(
            f"{what}: the ResourceManager refuses a request without a valid Kerberos ticket: run kinit (klist shows "
            f"your tickets), or set {KEYTAB_VARIABLE} to a keytab"
        )
    try:
        found = answer.json() if text else {}
    except ValueError:
        found = None
    if status < 300 and isinstance(found, dict):
        return found
    said = ""
    if isinstance(found, dict):
        told = found.get("RemoteException")
        said = str((told if isinstance(told, dict) else found).get("message") or "")
    said = refusal(said or " ".join(text.split())[:300] or f"HTTP status {status}")
    # For other paths, 404 means that the server is no ResourceManager, or is still starting.
    if status == 404 and may_miss:
        raise JobNotFoundError(f"{what}: {said}")
    if status in (400, 403):
        raise _refused(what, said)
    raise RpcError(f"{what}: the ResourceManager answered {status}: {said}")


def _refused(what: str, said: str) -> EpsError:
    """Return the error for a refused request; Hadoop's own client reports the same text."""
    return explain([JavaError("", said)], what, HadoopPlace())


def refusal(text: str) -> str:
    """Return the first sentence of YARN's text, without class names."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason was given")
    while True:
        head, colon, rest = line.partition(": ")
        # ``org.apache.hadoop.yarn.exceptions.YarnException: Failed to ...``
        if not colon or not head.replace(".", "").replace("$", "").isalnum() or "." not in head or not rest:
            return line
        line = rest.strip()


def report_of(app: Mapping[str, Any]) -> ApplicationReport:
    """Return the report on an application from an object of the Cluster Application API."""
    host, _, port = str(app.get("amRPCAddress") or "").rpartition(":")
    return ApplicationReport(
        application_id=str(app["id"]),
        name=str(app.get("name", "")),
        application_type=str(app.get("applicationType", "")),
        user=str(app.get("user", "")),
        queue=str(app.get("queue", "")),
        state=str(app["state"]),
        final_status=str(app.get("finalStatus", "UNDEFINED")),
        diagnostics=str(app.get("diagnostics") or "").strip(),
        host=host if port.isdigit() else "",
        rpc_port=int(port) if host and port.isdigit() else -1,
        tracking_url=str(app.get("trackingUrl") or ""),
        progress=float(app.get("progress") or 0.0) / 100.0,
        tags=tuple(tag for tag in str(app.get("applicationTags") or "").split(",") if tag),
        attempt=int(str(app.get("currentAppAttemptId") or "_0").rpartition("_")[2] or 0),
        started_ms=int(app.get("startedTime") or 0),
        finished_ms=int(app.get("finishedTime") or 0),
    )


def _node_of(node: Mapping[str, Any]) -> ClusterNode:
    memory_mb = int(node.get("usedMemoryMB", 0)) + int(node.get("availMemoryMB", 0))
    vcores = int(node.get("usedVirtualCores", 0)) + int(node.get("availableVirtualCores", 0))
    return ClusterNode(
        node=str(node["id"]),
        http_address=str(node.get("nodeHTTPAddress", "")),
        capacity=Resource(memory_mb, vcores),
        labels=tuple(node.get("nodeLabels") or ()),
        num_containers=int(node.get("numContainers", 0)),
        state=str(node.get("state", "RUNNING")),
    )
