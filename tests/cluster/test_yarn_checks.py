"""Requests that YARN would refuse or never grant are found before any preparation; no others are refused."""

from __future__ import annotations

from typing import Any

import pytest

from eps.cluster.yarn.checks import Cluster, check_job
from eps.errors import EpsError
from eps.spec.job_spec import JobSpec
from tests.fakes.yarn_client import FakeYarnClient as Told


def check(told: Told, **settings: Any) -> None:
    check_job(Cluster(told), JobSpec().with_settings(on="yarn", **{"workers": 1, "servers": 1, **settings}))


@pytest.mark.parametrize(
    ("told", "settings", "reason"),
    [
        (Told(), {"queue": "nope"}, "queue is 'nope', but the cluster has no queue of that name"),
        (Told(state="STOPPED"), {}, "queue is 'default', but it is STOPPED"),
        (
            Told(children=("a", "b")),
            {},
            "queue is 'default', but it takes no applications itself: name a queue below it: a",
        ),
        (Told(may_submit=False), {}, "queue is 'default', but ada may not submit to it: ask its administrator"),
        (Told(nodes=()), {}, "no running node"),
        (
            Told(),
            {"memory_mb": "5000"},
            "memory_mb is '5000', which gives a master 5000, but must give it at most 3072: YARN grants at most 3072 "
            "MB and 8 vcores to one container",
        ),
        (
            Told(largest=None),
            {"vcores": "1,worker=64"},
            "vcores is '1,worker=64', which gives a worker 64, but must give it at most 8: no node has more",
        ),
        (
            Told(),
            {"memory_mb": "64,worker=3000", "vcores": "1,worker=5"},
            "memory_mb is '64,worker=3000' and vcores is '1,worker=5', which gives a worker 3000 MB and 5 vcores, "
            "but no node has both: lower one of them",
        ),
        (Told(), {"label": "gpu"}, "allows only: transient"),
        (Told(labels=("*",)), {"label": "gpu"}, "label is 'gpu', but no running node has it: see yarn node"),
        (
            Told(),
            {"label": "worker=transient", "memory_mb": "64,worker=3000"},
            "which gives a worker 3000, but must give it at most 2048: no node with label 'transient' has more",
        ),
        (
            Told(),
            {"reliable": 1, "transient": 2, "label": "reliable=ondemand,transient=transient"},
            "label is 'ondemand', but queue 'default' allows only: transient",
        ),
        (
            Told(labels=("*",)),
            {"reliable": 1, "transient": 2, "label": "reliable=transient,transient=spot"},
            "label is 'spot', but no running node has it: .*; running nodes have: transient",
        ),
        (
            Told(),
            {"reliable": 1, "transient": 2, "label": "transient=transient", "memory_mb": "512,server=2048"},
            "memory_mb is '512,server=2048', which gives a transient container 2560, but must give it at most 2048: no "
            "node with label 'transient' has more",
        ),
        (Told(), {"tags": "x" * 101}, "at most 10 tags, of which EPS needs 4, of at most 100 char"),
        (
            Told(),
            {"tags": "a b,\u00fc"},
            "tags is 'a b,\u00fc', but YARN allows ASCII characters only, which '\u00fc' is not",
        ),
    ],
)
def test_what_yarn_would_refuse_or_never_grant_is_refused(told: Told, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(EpsError, match=reason):
        check(told, **settings)


@pytest.mark.parametrize(
    ("told", "settings"),
    [
        (Told(), {"label": "worker=transient", "tags": "a, b"}),
        # What has a label is lent to who asks for none.
        (Told(), {"workers": 3, "servers": 2}),
        (Told(counts_cores=False), {"workers": 11, "servers": 1, "memory_mb": "64"}),
        (Told(), {"workers": 99, "splits": 99, "execution": "worker=opportunistic"}),
        (Told(), {"reliable": 1, "transient": 1, "label": "transient=transient", "memory_mb": "512"}),
        # A release that tells less.
        (Told(most={}, largest=None), {"workers": 99, "splits": 99, "memory_mb": "64,server=3500"}),
    ],
)
def test_what_yarn_takes_is_taken(told: Told, settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    check(told, **settings)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("told", "settings", "sentence"),
    [
        (
            Told(),
            {"workers": 4, "servers": 2},
            "4 workers, 2 servers and a master need 6656 MB and 7 vcores, but with the nodes that run now queue "
            "'default' has at most 6144 MB and 12 vcores: the job waits for a while, starts with at least 2 workers, "
            "1 server (start_with), and requests the rest when there are more nodes; to avoid the wait, use fewer or "
            "smaller containers (memory_mb), or another queue",
        ),
        (
            Told(),
            {"workers": 11, "servers": 1, "memory_mb": "64"},
            "need 832 MB and 13 vcores, but with the nodes that run now queue 'default' has at most 6144 MB and 12 v",
        ),
        (
            Told(),
            {"workers": 4, "servers": 2, "start_with": 1.0},
            ": the job waits for more nodes; to avoid the wait, use fewer or smaller containers",
        ),
        (
            Told(),
            {"workers": 40, "servers": 2, "splits": 40},
            ": the job waits for more nodes; to avoid the wait, use fewer or smaller containers",
        ),
        (
            Told(counts_cores=False),
            {"workers": 4, "servers": 2},
            "need 6656 MB, but with the nodes that run now queue 'default' has at most 6144 MB: ",
        ),
        (
            Told(),
            {"reliable": 1, "transient": 3, "label": "transient=transient", "memory_mb": "512", "splits": 12},
            "1 reliable container, 3 transient containers and a master need 3072 MB and 6 vcores of the nodes "
            "with label transient, but with the nodes that run now queue 'default' has at most 2048 MB and 8 vcores: "
            "the job waits for a while, starts with at least 1 reliable container (start_with), and requests",
        ),
        (
            Told(),
            {"label": "worker=transient", "workers": 3},
            "need 3072 MB and 3 vcores of the nodes with label transient, but with the nodes that run now queue "
            "'default' has at most 2048 MB",
        ),
    ],
)
def test_what_has_to_wait_for_more_nodes_is_told_and_taken(
    told: Told, settings: dict[str, Any], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    check(told, **settings)
    (said,) = caplog.messages
    assert sentence in said
    caplog.clear()
    # A job that is refused all the same is told of that alone.
    with pytest.raises(EpsError, match="at most 10"):
        check(told, tags="x" * 101, **settings)
    assert not caplog.messages


def test_of_many_jobs_alike_it_is_told_once_and_not_where_the_user_knows(caplog: pytest.LogCaptureFixture) -> None:
    job = JobSpec(on="yarn", workers=4, servers=2)
    for warns in (True, False):
        cluster = Cluster(Told(), warns=warns)  # type: ignore[arg-type]
        check_job(cluster, job)
        check_job(cluster, job)
        assert len(caplog.messages) == 1


def test_a_cluster_is_asked_once_for_many_jobs() -> None:
    told = Told()
    cluster = Cluster(told)  # type: ignore[arg-type]
    for workers in (1, 2, 3):
        check_job(cluster, JobSpec(on="yarn", workers=workers, servers=1))
    assert told.asked == ["default", "nodes"]
