"""A sweep's metrics, as Prometheus' own parser reads them."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest

from eps.spec.job_spec import JobSpec
from eps.system.metrics_text import Family, metric, text_of
from eps.system.waits import wait_for
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.timeline import LATENCY_BOUNDS_S
from hscheduler.live.submission import Submission, attempt_before, attempts_of, trial_of
from hscheduler.page import PageServer
from hscheduler.reports.metrics import metrics_text
from hscheduler.reports.view import Look, Row
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from hscheduler.service.main import Service, ServiceSettings

TIMEOUT_S = 20.0

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client (of the extra dev) is not installed")

LOOK = Look(
    12.5,
    "elastic",
    "loss",
    trials=4,
    rows=[
        Row("a", 0.0, Phase.TRAINING, workers=3, servers=2, sweep="one"),
        Row("b", 0.0, Phase.TRAINING, workers=1, servers=1, sweep='t"wo'),
        Row("c", 0.0, sweep="one"),
        Row("d", 0.0, Phase.FINISHED, value=0.25, sweep="one"),
    ],
    num_queued=1,
    num_decisions=7,
    vcores=16,
    used_vcores=9,
    nodes=[('node"1\\', 4), ("node-2", 5)],
    latencies=[0, 1, 0, 2, *[0] * 9, 1],
    latency_sum_s=7_000.5,
    # One of the trials has two attempts.
    jobs={Phase.TRAINING: 2, Phase.QUEUED: 1, Phase.FAILED: 1},
)


def parsed(text: str) -> dict[str, Any]:
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def samples(family: Any) -> dict[tuple[str, ...], float]:
    return {(sample.name, *sample.labels.values()): sample.value for sample in family.samples}


def there(family: Any) -> dict[tuple[str, ...], float]:
    """Return the values other than 0, by labels."""
    return {tuple(sample.labels.values()): sample.value for sample in family.samples if sample.value}


def test_prometheus_reads_a_sweep() -> None:
    found = parsed(metrics_text(LOOK))
    assert samples(found["hscheduler_jobs"])["hscheduler_jobs", "training"] == 2.0
    assert samples(found["hscheduler_jobs"])["hscheduler_jobs", "queued"] == 1.0
    assert samples(found["hscheduler_jobs"])["hscheduler_jobs", "failed"] == 1.0
    assert len(found["hscheduler_jobs"].samples) == len(Phase)
    trials = found["hscheduler_trials"]
    assert trials.type == "gauge" and len(trials.samples) == 2 * len(Phase)
    assert there(trials) == {
        ("one", "training"): 1.0,
        ("one", "queued"): 1.0,
        ("one", "finished"): 1.0,
        ('t"wo', "training"): 1.0,
    }
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


def test_a_sweep_that_has_not_started_has_metrics_too() -> None:
    found = parsed(metrics_text(Look()))
    assert found["hscheduler_utilisation_ratio"].samples[0].value == 0.0
    assert "hscheduler_best" not in found


@pytest.mark.usefixtures("world")
def test_a_service_counts_the_jobs_and_the_trials_of_each_sweep(tmp_path: Path) -> None:
    directory = ServiceDir(tmp_path / "service")
    tables = {"sweep": {"trials": 1, "algorithm": "random", "retries": 1}, "job": {"data": __file__, "workers": 1}}

    def counted(service: Service, name: str) -> dict[tuple[str, ...], float]:
        return there(parsed(service.metrics())[name])

    with Service(directory, ServiceSettings(nodes=4)) as service, SchedulerClient(directory) as client:
        client.run_sweep(tables, "a")
        client.submit_job("alone", JobSpec(workers=1, servers=1))
        # A job whose user gave it the id of another one's second attempt.
        client.submit_job("alone-again-1", JobSpec(workers=1, servers=1, iterations=7))
        wait_for(lambda: client.job("a-trial-1")["phase"] == "early feedback", TIMEOUT_S, "the trial to run")
        service.scheduler._events.put(e.JobEnded("a-trial-1", Phase.FAILED, "a worker crashed"))
        wait_for(lambda: bool(service.scheduler.look_ups.submission("a-trial-1-again-1")), TIMEOUT_S, "the second try")
        wait_for(lambda: client.job("a-trial-1-again-1")["phase"] == "early feedback", TIMEOUT_S, "it to run")
        jobs = {("failed",): 1.0, ("early feedback",): 3.0}
        trials = {("a", "early feedback"): 1.0, ("jobs", "early feedback"): 2.0}
        assert counted(service, "hscheduler_jobs") == jobs and counted(service, "hscheduler_trials") == trials
        service.leave()
    # So does the next scheduler, from the record.
    with Service(directory, ServiceSettings()) as again:
        assert counted(again, "hscheduler_jobs") == jobs and counted(again, "hscheduler_trials") == trials


def test_metrics_and_reports_agree_on_a_jobs_trial() -> None:
    def made(*job_ids: str, **more: Any) -> list[Submission]:
        return [Submission(job_id, "sweep", "name", JobSpec(), more) for job_id in job_ids]

    known = [
        *made("a", "a-again-1", "a-again-2", "a-again-02", "a-again-4", "-again-1", "c-again-1"),
        *made("b", x=1),
        *made("b-again-1", x=2),
    ]
    by_id = {each.job_id: each for each in known}
    found: dict[str, list[str]] = {}
    for job_id in by_id:
        found.setdefault(trial_of(job_id, by_id.get), []).append(job_id)
    assert found == attempts_of(known)
    assert found["a"] == ["a", "a-again-1", "a-again-2"]
    before = {job_id: attempt_before(each, by_id.get) for job_id, each in by_id.items()}
    assert {job_id: each for job_id, each in before.items() if each} == {"a-again-1": "a", "a-again-2": "a-again-1"}


def test_labels_and_numbers_survive_a_round_trip() -> None:
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
