"""A sweep's metrics for Prometheus."""

from __future__ import annotations

import math
from collections import Counter

from eps.system.metrics_text import Family, metric, text_of
from hscheduler.core.jobs import Phase
from hscheduler.core.timeline import LATENCY_BOUNDS_S
from hscheduler.reports.view import Look


def metrics_text(look: Look) -> str:
    """Return a sweep's metrics in the text format of Prometheus."""
    workers, servers = sum(row.workers for row in look.rows), sum(row.servers for row in look.rows)
    share = look.used_vcores / look.vcores if look.vcores else 0.0
    families = [
        metric("hscheduler_info", "gauge", "The sweep's policy and metric.", 1, policy=look.policy, metric=look.metric),
        metric("hscheduler_seconds", "gauge", "Seconds since the sweep began.", look.now_s),
        Family(
            "hscheduler_jobs",
            "gauge",
            "Jobs by phase; a trial has as many as it was tried with.",
            tuple(("", {"phase": str(phase)}, look.jobs.get(phase, 0)) for phase in Phase),
        ),
        _trials(look),
        metric("hscheduler_queue_length", "gauge", "Jobs that wait for containers.", look.num_queued),
        metric("hscheduler_workers", "gauge", "Workers of all jobs, as planned.", workers),
        metric("hscheduler_servers", "gauge", "Servers of all jobs, as planned.", servers),
        Family(
            "hscheduler_containers",
            "gauge",
            "Containers by node.",
            tuple(("", {"node": node}, number) for node, number in look.nodes),
        ),
        metric("hscheduler_utilisation_ratio", "gauge", "Share of the vcores that containers have.", share),
        metric("hscheduler_decisions_total", "counter", "Plans that the policy has made.", look.num_decisions),
        _latency(look),
    ]
    if look.best is not None and look.best.value is not None:
        families.append(metric("hscheduler_best", "gauge", "The best result so far.", look.best.value))
    return text_of(families)


def _trials(look: Look) -> Family:
    """Return the number of trials by sweep and phase, including zeros, so that no series disappears."""
    counts = Counter(look.gone_trials)
    counts.update((row.sweep, row.phase) for row in look.rows)
    samples = tuple(
        ("", {"sweep": sweep, "phase": str(phase)}, counts[sweep, phase])
        for sweep in dict.fromkeys(sweep for sweep, _ in counts)
        for phase in Phase
    )
    text = "Trials by sweep and phase: that of the latest job where one was tried again; jobs of no sweep are of jobs."
    return Family("hscheduler_trials", "gauge", text, samples)


def _latency(look: Look) -> Family:
    samples: list[tuple[str, dict[str, str], float]] = []
    total = 0
    for bound_s, number in zip((*LATENCY_BOUNDS_S, math.inf), look.latencies, strict=True):
        total += number
        samples.append(("_bucket", {"le": "+Inf" if bound_s == math.inf else repr(bound_s)}, total))
    samples += [("_sum", {}, look.latency_sum_s), ("_count", {}, total)]
    text = "Seconds from a job's arrival to its early feedback."
    return Family("hscheduler_early_feedback_seconds", "histogram", text, tuple(samples))
