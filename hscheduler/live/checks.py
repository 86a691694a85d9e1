"""Find faults of a sweep before it starts; for the commands, ``hscheduler.sweep`` and a service.

A setting that the sweep searches may decide whether a job works.  So several points are checked: one corner of the
space, the corners that differ from it in one setting, and some random points.  A sweep is refused if none of them
works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from eps.data.cut import check_inputs
from eps.data.settings import DataSettings
from eps.errors import ConfigError, DataError
from eps.job.launch import check_data, check_request, data_settings
from eps.ml.metrics import summary_names
from eps.ml.models import load_model
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import model_options
from hscheduler.core.jobs import JobRequest
from hscheduler.core.placement import FreeIndex, FreeSpace
from hscheduler.core.words import advice_to_fit, request_text
from hscheduler.spec import Spec, request_of

#: Random points that are tried after the corners.
_DRAWN = 10


def check_sweep(spec: Spec, *, reads_data: bool = True) -> None:
    """Refuse a sweep of real jobs if none of its trials could be trained.

    Parameters
    ----------
    spec : Spec
    reads_data : bool
        Prepare the data, too, so that the trials find it in the cache; else only check that the files exist.

    Raises
    ------
    ConfigError
        All trials would be the same, or none can work: by the settings, the cluster, the metric, or the data.
    StorageError
        The cache of the data cannot be written.
    """
    if not spec.space and spec.sweep.trials > 1:
        raise ConfigError(
            f"[space] is empty, so all {spec.sweep.trials} trials would be the same: give it settings to search, as in "
            "learning_rate = { loguniform = [1e-3, 1] }, or set trials = 1"
        )
    if spec.sweep.final_test:
        _check_final_test(spec, on_this_host=reads_data and spec.job.get("on") != "yarn")
    jobs = working(
        spec,
        lambda job: _check_size(spec, job),
        lambda job: check_request(RunRequest.of_spec(job)),
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
            check_data(RunRequest.of_spec(job))
            return
        except (ConfigError, DataError) as error:
            refused[data] = ConfigError(f"no trial can work: {error}")
    raise next(iter(refused.values()))


def check_sizes(spec: Spec) -> None:
    """Refuse a sweep of simulated or real jobs if the cluster is too small for one job.

    Raises
    ------
    ConfigError
        No job of it fits, or its request is invalid.
    """
    working(spec, lambda job: _check_size(spec, job))


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
    for point in _points(spec):
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


def _check_size(spec: Spec, job: JobSpec) -> None:
    cluster = spec.cluster
    request = request_of(job, "job", "sweep", cluster)

    def fits(asked: JobRequest) -> bool:
        return FreeSpace(FreeIndex(cluster.capacities())).take_often(asked.needs(), 1) > 0

    if not fits(request):
        raise ConfigError(
            f"a job has {request_text(request)}: more than the whole cluster holds (nodes = {cluster.nodes}, "
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


def _points(spec: Spec) -> Iterator[dict[str, object]]:
    """Yield the first corner of a space, the corners that differ from it in one setting, and random points."""
    corners = {each.name: each.corners() for each in spec.space}
    first = {name: values[0] for name, values in corners.items()}
    yield first
    for name, values in corners.items():
        for value in values[1:]:
            yield {**first, name: value}
    if spec.space:
        yield from islice(spec.points(), _DRAWN)
