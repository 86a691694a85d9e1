"""Whether YARN counts cores, by its reported limits, else by the client's configuration."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from eps.cluster.yarn.checks import Cluster, check_job
from eps.cluster.yarn.queues import CALCULATOR, counts_cores
from eps.cluster.yarn.rest import RestClient
from eps.errors import ConfigError
from eps.spec.job_spec import JobSpec
from tests.fakes.resourcemanager import resourcemanager
from tests.fakes.yarn_client import FakeYarnClient

pytest.importorskip("requests")

_PACKAGE = "org.apache.hadoop.yarn.util.resource"
DEFAULT, DOMINANT = f"{_PACKAGE}.DefaultResourceCalculator", f"{_PACKAGE}.DominantResourceCalculator"
#: As Hadoop 3.5.0 tells of both calculators.
OVERVIEW = {"scheduler": {"schedulingResourceType": "memory-mb (unit=Mi),vcores"}}


def size(memory_mb: int, vcores: int) -> dict[str, int]:
    return {"memory": memory_mb, "vCores": vcores}


def root(am_limit: dict[str, int], *, least: int = 8, share: float = 50.0, name: str = "default") -> dict[str, Any]:
    """Return ``schedulerInfo`` with one queue, without a list around what there is one of, as by some releases."""
    part = {"partitionName": "", "maxAMLimitPercentage": share, "effectiveMinResource": size(65536, least)}
    queue = {
        "queueName": name,
        "maximumAllocation": size(8192, 4),
        "capacities": {"queueCapacitiesByPartition": {**part, "effectiveMaxResource": size(65536, 8)}},
        "resources": {"resourceUsagesByPartition": {"partitionName": "", "amLimit": am_limit}},
    }
    return {"queueName": "root", "queues": {"queue": queue}}


@pytest.mark.parametrize(
    ("info", "configured", "expected"),
    [
        # Four of eight cores, of which the default calculator makes one.
        (root(size(32768, 4)), "", True),
        (root(size(32768, 4)), DEFAULT, True),
        (root(size(32768, 1)), "", False),
        (root(size(32768, 1)), DOMINANT, False),
        # Too few cores to tell, or nothing has been counted yet.
        (root(size(6554, 1), share=10.0), DOMINANT, True),
        (root(size(6554, 1), share=10.0), DEFAULT, False),
        (root(size(6554, 1), share=10.0), "", False),
        (root(size(0, 0)), DOMINANT, True),
        (root(size(0, 0)), "org.example.OurCalculator", True),
        # A release that tells less.
        ({"queueName": "root", "queues": {"queue": [{"queueName": "default"}]}}, "", False),
        ({}, DOMINANT, True),
    ],
)
def test_limits_of_job_masters_show_what_counts(info: dict[str, Any], configured: str, expected: bool) -> None:
    assert counts_cores(info, configured) is expected


def test_another_queue_can_tell() -> None:
    small, large = root(size(6554, 1), share=10.0), root(size(32768, 4), name="batch")
    info = {"queueName": "root", "queues": {"queue": [small["queues"]["queue"], large["queues"]["queue"]]}}
    assert counts_cores(info, "") and not counts_cores(small, "")


def test_cores_of_a_job_are_compared_with_those_of_the_queue_where_they_count(caplog: pytest.LogCaptureFixture) -> None:
    spec = JobSpec(on="yarn", workers=8, servers=2, splits=8)
    node = {"id": "n1:1", "usedMemoryMB": 0, "availMemoryMB": 32768, "availableVirtualCores": 4}
    with resourcemanager() as rm:
        rm.answers["GET scheduler-overview"] = (200, OVERVIEW)
        rm.answers["GET nodes"] = (200, {"nodes": {"node": [node, {**node, "id": "n2:1"}]}})
        rm.answers["GET scheduler"] = (200, {"scheduler": {"schedulerInfo": root(size(32768, 1))}})
        client = RestClient(rm.conf)
        check_job(Cluster(client), spec)
        assert not caplog.messages
        rm.answers["GET scheduler"] = (200, {"scheduler": {"schedulerInfo": root(size(32768, 4))}})
        check_job(Cluster(client), spec)
        assert "need 10752 MB and 11 vcores" in caplog.text
        client.close()


@pytest.mark.parametrize("calculator", [DEFAULT, DOMINANT])
def test_where_limits_do_not_tell_the_scheduler_file_of_the_client_does(tmp_path: Path, calculator: str) -> None:
    with resourcemanager() as rm:
        rm.answers["GET scheduler"] = (200, {"scheduler": {"schedulerInfo": root(size(0, 0))}})
        text = "<configuration><property><name>{}</name><value>{}</value></property></configuration>"
        (tmp_path / "capacity-scheduler.xml").write_text(text.format(CALCULATOR, calculator), encoding="utf-8")
        client = RestClient(dataclasses.replace(rm.conf, source=str(tmp_path)))
        queue = client.queue("default")
        client.close()
        assert queue is not None and queue.counts_cores == (calculator == DOMINANT)
        # On many a client it is there, and not for everybody: the others count then.
        (tmp_path / "capacity-scheduler.xml").write_text("<", encoding="utf-8")
        conf = dataclasses.replace(rm.conf, source=str(tmp_path), values={**rm.conf.values, CALCULATOR: calculator})
        client = RestClient(conf)
        queue = client.queue("default")
        client.close()
        assert queue is not None and queue.counts_cores == (calculator == DOMINANT)


def test_a_container_fits_by_memory_where_memory_alone_counts() -> None:
    lopsided = {"memory_mb": "64,worker=3000", "vcores": "1,worker=5"}
    labelled = {"label": "worker=wide", "vcores": "1,worker=8"}
    nodes = [
        dataclasses.replace(node, labels=(name,))
        for node, name in zip(FakeYarnClient().nodes(), ("wide", "deep"), strict=True)
    ]
    for settings in (lopsided, labelled):
        for counts in (True, False):
            told = FakeYarnClient(nodes, labels=("wide", "deep"), most={}, counts_cores=counts)
            spec = JobSpec().with_settings(on="yarn", workers=1, servers=1, **settings)
            if not counts:
                check_job(Cluster(told), spec)  # type: ignore[arg-type]
                continue
            with pytest.raises(ConfigError, match=r"at most 4: no|has both"):
                check_job(Cluster(told), spec)  # type: ignore[arg-type]
    told = FakeYarnClient(largest=None, counts_cores=False)
    with pytest.raises(ConfigError, match="gives a worker 9, but must give it at most 8: no node has more"):
        check_job(Cluster(told), JobSpec().with_settings(on="yarn", workers=1, servers=1, vcores="1,worker=9"))
