"""The contract of both clients of YARN, on a real cluster."""

from __future__ import annotations

import pytest

from tests.yarn import clients
from tests.yarn.in_java import InJava


@pytest.mark.parametrize("kind", ["master", "outside"])
def test_a_client_keeps_the_contract(kind: str, java: InJava) -> None:
    java(clients.contract, kind)


def test_a_client_outside_lists_and_ends_applications_and_reads_queues(java: InJava) -> None:
    java(clients.outside)
