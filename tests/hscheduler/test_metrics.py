"""A sweep's metrics, as Prometheus' own parser reads them."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest

from eps.metrics_text import Family, metric, text_of
from hscheduler.core.jobs import Phase
from hscheduler.metrics import metrics_text
from hscheduler.page import PageServer
from hscheduler.view import LATENCY_BOUNDS_S, Look, Row

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client (of the extra dev) is not installed")

LOOK = Look(
    12.5,
    "elastic",
    "loss",
    4,
    [
        Row("a", 0.0, Phase.TRAINING, workers=3, servers=2),
        Row("b", 0.0, Phase.TRAINING, workers=1, servers=1),
        Row("c", 0.0),
    ],
    [("c", "it waits")],
    1,
    num_decisions=7,
    best=Row("d", 0.0, Phase.FINISHED, result=0.25),
    vcores=16,
    used_vcores=9,
    nodes=[('node"1\\', 4), ("node-2", 5)],
    latencies=[0, 1, 0, 2, *[0] * 9, 1],
    latency_sum_s=7_000.5,
)


def parsed(text: str) -> dict[str, Any]:
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def samples(family: Any) -> dict[tuple[str, ...], float]:
    return {(sample.name, *sample.labels.values()): sample.value for sample in family.samples}


def test_prometheus_reads_a_sweep() -> None:
    found = parsed(metrics_text(LOOK))
    assert samples(found["hscheduler_jobs"])["hscheduler_jobs", "training"] == 2.0
    assert samples(found["hscheduler_jobs"])["hscheduler_jobs", "queued"] == 1.0
    assert len(found["hscheduler_jobs"].samples) == len(Phase)
    assert samples(found["hscheduler_containers"]) == {
        ("hscheduler_containers", 'node"1\\'): 4.0,
        ("hscheduler_containers", "node-2"): 5.0,
    }
    values = {name: family.samples[0].value for name, family in found.items()}
    assert values["hscheduler_workers"] == 4 and values["hscheduler_servers"] == 3
    assert values["hscheduler_utilisation_ratio"] == 9 / 16
    assert values["hscheduler_queue_length"] == 1
    assert values["hscheduler_decisions"] == 7 and found["hscheduler_decisions"].type == "counter"
    assert values["hscheduler_best"] == 0.25
    latency = samples(found["hscheduler_early_feedback_seconds"])
    name = "hscheduler_early_feedback_seconds"
    assert found[name].type == "histogram"
    assert latency[f"{name}_bucket", "1.0"] == 1 and latency[f"{name}_bucket", "5.0"] == 3
    assert latency[f"{name}_bucket", "+Inf"] == latency[(f"{name}_count",)] == 4
    assert latency[(f"{name}_sum",)] == 7_000.5
    assert len(latency) == len(LATENCY_BOUNDS_S) + 3


def test_a_sweep_that_has_not_begun_has_metrics_too() -> None:
    found = parsed(metrics_text(Look()))
    assert found["hscheduler_utilisation_ratio"].samples[0].value == 0.0
    assert "hscheduler_best" not in found


def test_what_labels_and_numbers_hold_is_read_back() -> None:
    odd = 'a"b\\c\nd'
    text = text_of(
        [
            Family("x", "gauge", "help\nwith \\ lines", (("", {"k": odd}, float("nan")),)),
            metric("y", "gauge", "", float("-inf")),
        ]
    )
    found = parsed(text)
    assert found["x"].samples[0].labels == {"k": odd}
    assert found["x"].samples[0].value != found["x"].samples[0].value
    assert found["y"].samples[0].value == float("-inf")


def test_they_are_served_beside_the_page() -> None:
    server = PageServer(0, lambda: metrics_text(LOOK))
    try:
        with urllib.request.urlopen(f"{server.address}metrics", timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert "hscheduler_jobs" in parsed(answer.read().decode())
    finally:
        server.close()
