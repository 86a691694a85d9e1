"""The contract of clients of YARN, on the fake; tests/yarn/test_client_contract.py has it on a real one."""

from __future__ import annotations

import pytest

from eps.cluster.yarn.types import ClusterNode, Resource
from tests.contract import yarn_clients as suite
from tests.fakes.yarn_client import FakeYarnClient

SIZE = Resource(4096, 4)
MOST = {"": Resource(8192, 8), "transient": SIZE}


@pytest.fixture
def client() -> FakeYarnClient:
    labels = ((), (), ("transient",))
    nodes = [ClusterNode(f"127.0.0.1{k}:1", "", SIZE, each, 0) for k, each in enumerate(labels, 1)]
    return FakeYarnClient(nodes, largest=SIZE, most=MOST)


def test_the_fake_submits_and_reports(client: FakeYarnClient) -> None:
    suite.submits_and_reports(client, client.user, client.kill)
    suite.refuses_what_no_container_may_have(client)
    suite.closes_twice(client)


def test_the_fake_tells_what_there_is(client: FakeYarnClient) -> None:
    suite.tells_nodes(client)
    suite.tells_queues(client, MOST)


def test_the_fake_lists_and_kills(client: FakeYarnClient) -> None:
    suite.lists_and_kills(client)
