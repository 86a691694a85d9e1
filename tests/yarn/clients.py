"""The contract of YARN's clients, on a real cluster; runs in the process with Java."""

from __future__ import annotations

import getpass
import os
from typing import TYPE_CHECKING

import requests

from eps.cluster.yarn.client import YarnClient
from eps.cluster.yarn.types import Launch, Resource, Submission
from eps.hadoop.conf import environment_configuration, resourcemanager_web_addresses
from tests.contract import yarn_clients as suite
from tests.yarn.in_java import kill

if TYPE_CHECKING:
    from eps.cluster.yarn.hadoop.client import HadoopClient


def opened(kind: str) -> HadoopClient | YarnClient:
    """Return Hadoop's own client, as an application master or as a process outside uses it."""
    from eps.cluster.yarn.hadoop.client import HadoopClient
    from eps.hadoop.session import HadoopSession

    return HadoopClient(HadoopSession()) if kind == "master" else YarnClient(environment_configuration())


def contract(kind: str) -> None:
    """Submit and query an application, and read the cluster."""
    client = opened(kind)
    try:
        suite.submits_and_reports(client, os.environ.get("HADOOP_USER_NAME", getpass.getuser()), kill)
        suite.refuses_what_no_container_may_have(client)
        suite.tells_nodes(client)
        _label(client)
    finally:
        suite.closes_twice(client)


def outside() -> None:
    """List and end applications, and read the queues."""
    client = YarnClient(environment_configuration())
    try:
        suite.lists_and_kills(client)
        # Two of the nodes have no label.
        suite.tells_queues(client, {"": Resource(8192, 8), "transient": Resource(4096, 4)})
    finally:
        client.close()


def _label(client: HadoopClient | YarnClient) -> None:
    """The master's label is not the application's, which would apply to all containers without a label."""
    application = client.new_application()
    client.submit(application, Submission("labelled", Launch("true"), Resource(128, 1), label="transient"))
    kill(application)
    (web,) = resourcemanager_web_addresses(environment_configuration())
    found = requests.get(f"{web}/ws/v1/cluster/apps/{application}", timeout=60.0).json()["app"]
    assert found["amNodeLabelExpression"] == "transient" and not found.get("appNodeLabelExpression"), found
