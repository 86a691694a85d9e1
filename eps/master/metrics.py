"""A job's metrics for Prometheus, from its status."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from eps.errors import ResourceError
from eps.system.metrics_text import Family, metric, text_of

if TYPE_CHECKING:
    from eps.system.text_server import MetricsServer

logger = logging.getLogger(__name__)


def serve_metrics(port: int, status: Callable[[], Mapping[str, Any]]) -> MetricsServer | None:
    """Serve a job's metrics; return None where none are wanted, and where the port cannot be had, which is logged.

    Parameters
    ----------
    port : int
        0 takes any that is free; below 0 none are wanted.
    status : callable
        Called from any thread.
    """
    if port < 0:
        return None
    # Hardly any job needs it, and every job master would wait for it.
    from eps.system.text_server import MetricsServer

    try:
        server = MetricsServer(port, lambda: job_metrics(status()))
    except ResourceError as error:
        # Monitoring is no reason to stop.
        logger.error("M serves no metrics: %s", error)
        return None
    logger.info("M serves metrics at http://127.0.0.1:%d/metrics", server.port)
    return server


def job_metrics(status: Mapping[str, Any]) -> str:
    """Return what Prometheus reads of a job.

    Parameters
    ----------
    status : mapping
        As of :func:`eps.master.records.status`, with ``generation``.
    """
    job = str(status["name"])
    checkpoints = status["checkpoints"]
    families = [
        metric("eps_job_info", "gauge", "The job and its state.", 1, job=job, state=str(status["state"])),
        metric("eps_clock", "gauge", "Iterations completed.", status["clock"], job=job),
        metric("eps_iterations", "gauge", "Iterations to do.", status["iterations"], job=job),
        metric("eps_iteration_seconds", "gauge", "Seconds of an iteration, smoothed.", status["iteration_s"], job=job),
        metric("eps_elapsed_seconds", "gauge", "Seconds since the job began.", status["elapsed_s"], job=job),
        metric("eps_workers", "gauge", "Workers that take part.", status["workers"], job=job),
        metric("eps_servers", "gauge", "Servers that take part.", status["servers"], job=job),
        metric("eps_membership_version", "gauge", "Changes of members so far.", status["membership_version"], job=job),
        metric("eps_master_generation", "gauge", "Job masters that the job has had.", status["generation"], job=job),
        metric("eps_plans_waiting", "gauge", "Changes of size that wait.", len(status["queued"]), job=job),
        metric("eps_checkpoints_total", "counter", "Checkpoints that are whole.", checkpoints["complete"], job=job),
        metric("eps_checkpoints_failed_total", "counter", "Checkpoints that failed.", checkpoints["failed"], job=job),
        metric("eps_checkpoint_bytes", "gauge", "Size of the latest checkpoint.", checkpoints["size_bytes"], job=job),
    ]
    if status["loss"] is not None:
        families.append(metric("eps_loss", "gauge", "Training loss.", status["loss"], job=job))
    measured = tuple(
        ("", {"job": job, "metric": name}, float(value))
        for name, value in status["metrics"].items()
        if value is not None
    )
    if measured:
        families.append(Family("eps_test", "gauge", "Metrics of the test data.", measured))
    return text_of(families)
