"""Find faults of a sweep before it starts; for the commands, ``hscheduler.sweep`` and a service.

A setting that the sweep searches may decide whether a job works.  So several points are checked: one corner of the
space, the corners that differ from it in one setting, and some random points.  A sweep is refused if none of them
works.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from eps.data.cut import check_inputs
from eps.data.settings import DataSettings
from eps.errors import ConfigError, DataError
from eps.job.launch import check_data, check_request, data_settings
from eps.ml.metrics import summary_names
from eps.ml.models import load_model
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import model_options
from hscheduler.core.decisions import Needs, needs_of
from hscheduler.core.jobs import JobRequest
from hscheduler.core.placement import FreeIndex, FreeSpace
from hscheduler.core.resources import NOTHING, Resources
from hscheduler.core.words import advice_to_fit, counted, request_text
from hscheduler.policies import POLICIES
from hscheduler.spec import LEARNING, Spec, request_of
from hscheduler.spec.space import num_points
from hscheduler.stopping.median import LEAST


def check_sweep(spec: Spec, *, reads_data: bool = True, has_space: bool = True) -> None:
    """Refuse a sweep of real jobs if none of its trials could be trained.

    Parameters
    ----------
    spec : Spec
    reads_data : bool
        Prepare the data, too, so that the trials find it in the cache; else only check that the files exist.
    has_space : bool
        Points come from the space; else from a function, and the space may be empty.

    Raises
    ------
    ConfigError
        All trials would be the same, or none can work: by the settings, the cluster, the metric, or the data.
    StorageError
        The cache of the data cannot be written.
    """
    if has_space and num_points(spec.space) == 1 and spec.sweep.trials > 1:
        what = "has one point" if spec.space else "is empty"
        raise ConfigError(
            f"[space] {what}, so all {spec.sweep.trials} trials would be the same: give it settings to search, as in "
            "learning_rate = { loguniform = [1e-3, 1] }, or set trials = 1"
        )
    if spec.is_callable:
        if spec.sweep.final_test:
            raise ConfigError(f"final_test is {spec.sweep.final_test!r}, but must be empty for a callable")
        check_sizes(spec)
        return
    if spec.sweep.final_test:
        _check_final_test(spec, on_this_host=reads_data and spec.job.get("on") != "yarn")
    jobs = working(
        spec,
        lambda job: _check_size(spec, job),
        lambda job: check_request(RunRequest.of_spec(job, manager="H-scheduler")),
        lambda job: check_inputs(data_settings(job)),
        lambda job: _check_metric(spec.sweep.metric, job),
    )
    if not reads_data:
        return
    refused: dict[DataSettings, ConfigError] = {}
    for job in jobs:
        data = data_settings(job)
        if data in refused:
            continue
        try:
            check_data(RunRequest.of_spec(job, manager="H-scheduler"))
            return
        except (ConfigError, DataError) as error:
            refused[data] = ConfigError(f"no trial can work: {error}")
    raise next(iter(refused.values()))


def check_sizes(spec: Spec, master: Resources = NOTHING) -> None:
    """Refuse a sweep of simulated or real jobs if the cluster is too small for one job.

    Parameters
    ----------
    spec : Spec
    master : Resources
        The container of the application master on YARN, which takes a part of one node.

    Raises
    ------
    ConfigError
        No job of it fits, or its request is invalid.
    """
    working(spec, lambda job: _check_size(spec, job, master))


def working(spec: Spec, *checks: Callable[[JobSpec], None]) -> list[JobSpec]:
    """Return the jobs of those sampled points that may work.

    Parameters
    ----------
    spec : Spec
    *checks : callable
        Each raises a ConfigError or a DataError for a job that cannot work.

    Raises
    ------
    ConfigError
        No job works; the message has the fault of the first one.
    """
    found: dict[JobSpec, None] = {}
    first: ConfigError | None = None
    for point in spec.samples():
        try:
            job = spec.job_spec(point)
            for check in checks:
                check(job)
        except (ConfigError, DataError) as error:
            first = first or ConfigError(f"no trial can work: {error}")
        else:
            found[job] = None
    if not found:
        raise first or ConfigError("no trial can work")
    return list(found)


def _check_size(spec: Spec, job: JobSpec, master: Resources = NOTHING) -> None:
    cluster = spec.cluster
    request = request_of(job, "job", "sweep", cluster)

    def fits(asked: JobRequest) -> bool:
        room = FreeSpace(FreeIndex(cluster.capacities()))
        room.take_often([(master, 1)], 1)
        return room.take_often(asked.needs(), 1) > 0

    if not fits(request):
        beside = "" if master == NOTHING else f" beside the application master of {master}"
        raise ConfigError(
            f"a job has {request_text(request)}: more than the whole cluster holds{beside} (nodes = {cluster.nodes}, "
            f"vcores = {cluster.vcores}, memory = {cluster.memory}){advice_to_fit(request, fits)}"
        )


def _check_final_test(spec: Spec, *, on_this_host: bool) -> None:
    name = spec.sweep.final_test
    if not on_this_host:
        raise ConfigError(
            f"final_test is {name!r}, but must be empty for a sweep in a service or on YARN: use hscheduler results "
            "--export-best, then eps predict"
        )
    settings = data_settings(working(spec)[0])
    try:
        check_inputs(replace(settings, data=name, labels=None, test=None, test_labels=None))
    except DataError as error:
        raise ConfigError(f"final_test is {name!r}, but must be a file of test data with labels: {error}") from None


def _check_metric(metric: str, job: JobSpec) -> None:
    """Refuse a metric that a job's history will not have.  A user's own model may omit more; its jobs then fail."""
    known = ["loss"]
    if job.test or job.folds:
        task = load_model(job.model).task_for(model_options(job))
        known += ["test_loss" if name == "loss" else name for name in summary_names(task)]
    if metric not in known:
        raise ConfigError(f"metric is {metric!r}, but a job of {job.model} has {', '.join(sorted(known))}")


def warnings_of(spec: Spec, policy: str) -> list[str]:
    """Return what will probably not work as its user expects, as sentences; the sweep may start nevertheless."""
    return [*_of_space(spec), *_of_arrivals(spec), *_of_rule(spec.under(policy), policy), *_of_host(spec, policy)]


def _of_space(spec: Spec) -> list[str]:
    points, trials = num_points(spec.space), spec.sweep.trials
    if not spec.space or points >= trials:
        return []
    return [
        f"[space] has {points:g} points, so some of the {trials} trials are the same: set trials to at most {points:g}"
    ]


def _of_arrivals(spec: Spec) -> list[str]:
    sweep = spec.sweep
    if not (sweep.arrival and spec.space and sweep.algorithm in LEARNING):
        return []
    at_once = sweep.arrival == "burst" and not 0 < sweep.parallelism < sweep.trials
    early = "before the first result" if at_once else "before their trials can start"
    return [
        f"arrival is {sweep.arrival!r}, so points are drawn {early}, but algorithm {sweep.algorithm!r} learns from "
        "results: leave arrival out, and each point is drawn when its trial can start"
    ]


def _of_rule(spec: Spec, policy: str) -> list[str]:
    """Return why the stopping rule of a sweep can stop no trial; empty if it can."""
    sweep, needs = spec.sweep, needs_of(POLICIES[policy])
    rule = sweep.stop or needs.stop
    request = spec.coming("sweep")
    if rule == "none" or request is None:
        return []
    asked = bool(sweep.stop or sweep.threshold)
    nothing = "nothing would ever be stopped"
    fit = _most_at_once(spec, request, needs)
    threshold = sweep.threshold or _at_requested_size(spec, request)
    is_meant = asked or not spec.is_callable
    if rule == "threshold":
        if is_meant and sweep.feedback_iteration > spec.most_iterations():
            return [
                f"stop is {rule!r}, but a trial has {spec.most_iterations()} iterations and its early feedback "
                f"comes at iteration {sweep.feedback_iteration}: {nothing}; set feedback_iteration"
            ]
        limit = min(fit, sweep.parallelism or fit)
        if limit <= threshold < sweep.trials:
            those = f"{counted(fit, 'trial')} {'fits' if fit == 1 else 'fit'} at once"
            if limit < fit:
                those = f"parallelism is {limit}"
            return [f"stop is {rule!r}, but {those}, threshold {threshold}: {nothing}; {_remedy(limit)}"]
        if asked and sweep.trials <= threshold:
            return [f"stop is {rule!r}, but {counted(sweep.trials, 'trial')}, threshold {threshold}: {nothing}"]
    if rule == "median" and sweep.trials <= LEAST:
        trials = counted(sweep.trials, "trial")
        return [f"stop is 'median', which needs {LEAST + 1} trials, but the sweep has {trials}: {nothing}"]
    return []


def _of_host(spec: Spec, policy: str) -> list[str]:
    """Return that more containers would make no job faster, if this host has fewer cores than they may use."""
    cluster, cores = spec.cluster, len(os.sched_getaffinity(0))
    containers = cluster.num_containers()
    here = spec.job.get("on", "local") != "yarn" and not spec.is_callable and not spec.job.get("stretch_s")
    if not here or policy.startswith("static") or containers * cluster.container_vcores <= cores:
        return []
    has = f"[cluster] has {counted(containers, 'container')}, but this host {counted(cores, 'core')}"
    return [f"{has}: jobs that grow share them, and may become no faster; set nodes and vcores to what the host has"]


def _remedy(limit: int) -> str:
    lower = f"set threshold to at most {limit - 1}, or " if limit > 1 else ""
    return f"{lower}let more trials run at once (smaller trials, a larger cluster, more parallelism)"


def _at_requested_size(spec: Spec, request: JobRequest) -> int:
    """Return how many trials fit the empty cluster at the size that they request."""
    return FreeSpace(FreeIndex(spec.cluster.capacities())).take_often(request.needs(), spec.sweep.trials)


def _most_at_once(spec: Spec, request: JobRequest, needs: Needs) -> int:
    """Return how many trials can run at once, at most: under some policies the others shrink for the last one."""
    if not (needs.takes or needs.hosts):
        return _at_requested_size(spec, request)
    small = replace(request, workers=1, servers=min(1, request.servers))
    room = FreeSpace(FreeIndex(spec.cluster.capacities()))
    first = room.take_often((small if needs.hosts else request).needs(), 1)
    return first + room.take_often(small.needs(), spec.sweep.trials - first)
