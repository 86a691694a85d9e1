"""The file of a sweep: the cluster, the sweep, the search space, and the job that trains each point.

::

    [cluster]
    nodes = 4
    vcores = 4
    memory = "16GiB"

    [sweep]
    trials = 24
    arrival = "poisson:4s"
    threshold = 4

    [space]
    learning_rate = { loguniform = [1e-4, 1] }
    l2 = { choice = [0, 1e-4] }

    [job]
    data = "sklearn:digits"
    model = "softmax"
    workers = 2
    servers = 1

Source: EPS §6 (37 nodes of 4 vCPU and 16 GB; 75 jobs with exponential arrivals; the 100th iteration; one vCPU and 4 GB
for a worker or server).
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from eps.errors import ConfigError
from eps.ml.metrics import MAXIMIZED, MINIMIZED
from eps.ml.models import MODELS
from eps.spec.file import located, named
from eps.spec.job_spec import MOST_ITERATIONS, SETTINGS, JobSpec
from eps.spec.setting import errors_of
from eps.spec.tables import MOST_NUMBER
from eps.system.nearest import did_you_mean, one_of
from hscheduler.core import events as e
from hscheduler.core.decisions import needs_of
from hscheduler.core.jobs import Direction, JobRequest
from hscheduler.core.resources import NOTHING, Resources
from hscheduler.core.rungs import Stopping
from hscheduler.policies import POLICIES
from hscheduler.spec.space import (
    Dimension,
    Space,
    corners,
    draw_point,
    duplicates,
    is_finite,
    is_number,
    samples,
    space_of,
)
from hscheduler.stopping import RULES

#: Upper bound for the nodes of a cluster and for the cores of a node.
MOST_NODES = 100_000
#: Nodes of a cluster that no file describes, at least.
LEAST_NODES = 4
MOST_TRIALS = 1_000_000
#: Splits of a trial by default: for each container of the cluster, so that its work is even at most sizes; at most.
SPLITS_OF_A_CONTAINER, MOST_DEFAULT_SPLITS = 3, 192
ALGORITHMS = ("tpe", "random", "optuna")
#: Algorithms that learn from results.
LEARNING = ("tpe", "optuna")
_UNITS_MB = {"MiB": 1, "MB": 1, "M": 1, "GiB": 1024, "GB": 1024, "G": 1024, "TiB": 1 << 20, "TB": 1 << 20}
#: Which values of the known metrics are better.
_DIRECTIONS = {
    **dict.fromkeys(MINIMIZED, Direction.MINIMIZE),
    **dict.fromkeys(MAXIMIZED, Direction.MAXIMIZE),
}
#: Settings of a job that are its size.
SIZES = frozenset(("workers", "servers", "reliable"))
#: Settings of a job that take whole numbers.  Two of them are text, because they take other values as well.
_WHOLE = {name for name, setting in SETTINGS.items() if type(setting.default) is int} | {"batch_size", "hidden"}
_KIND_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_Section = TypeVar("_Section")


def memory_mb(text: str, name: str = "memory") -> int:
    """Return an amount of memory such as ``16GiB`` in MiB.

    Raises
    ------
    ConfigError
        The text is not a number and a unit.
    """
    found = re.fullmatch(r"(\d+)\s*([A-Za-z]+)", text.strip())
    if found is None or found[2] not in _UNITS_MB or int(found[1]) < 1:
        raise ConfigError(f"{name} is {text!r}, but must be a number and a unit, as in 16GiB or 512MiB")
    return int(found[1]) * _UNITS_MB[found[2]]


def direction_of(direction: str, metric: str) -> Direction:
    """Return which values of a metric are better; an empty direction means that of a metric that EPS knows.

    Raises
    ------
    ConfigError
        The direction is unknown; or it is empty, and the metric is unknown.
    """
    if not direction and metric not in _DIRECTIONS:
        hint = did_you_mean(metric, tuple(_DIRECTIONS))
        raise ConfigError(
            f"metric is {metric!r}, and only {', '.join(_DIRECTIONS)} have a default direction: "
            f"set direction to one of {', '.join(Direction)}{hint}"
        )
    if direction and direction not in tuple(Direction):
        raise ConfigError(f"direction is {direction!r}, but must be {one_of(direction, Direction)}")
    return Direction(direction or _DIRECTIONS[metric])


def _check_count(name: str, value: int, least: int, most: int) -> None:
    if value < least:
        raise ConfigError(f"{name} is {value}, but must be at least {least}")
    if value > most:
        raise ConfigError(f"{name} is above {most}, the maximum")


def checked_stopping(rule: str, eta: int, grace_iterations: int, max_iterations: int) -> Stopping:
    """Return a stopping rule with its parameters; an empty rule is that of the policy.

    Raises
    ------
    ConfigError
        The rule is unknown, or a parameter is out of its range.
    """
    if rule and rule not in RULES:
        raise ConfigError(f"stop is {rule!r}, but must be {one_of(rule, RULES)}")
    _check_count("eta", eta, 2, MOST_TRIALS)
    _check_count("grace_iterations", grace_iterations, 0, MOST_ITERATIONS)
    _check_count("max_iterations", max_iterations, 0, MOST_ITERATIONS)
    if 0 < max_iterations <= grace_iterations:
        raise ConfigError(
            f"grace_iterations is {grace_iterations}, but must be below max_iterations, which is {max_iterations}"
        )
    return Stopping(rule, eta, grace_iterations, max_iterations)


@dataclass(frozen=True)
class ClusterSpec:
    """The nodes of a cluster, all of the same size, and the size of a container."""

    #: Number of simulated nodes; 0: 4, or more if this host has more cores.  Ignored on YARN, which has its own nodes.
    nodes: int = 0
    #: Cores of each node.
    vcores: int = 4
    #: Memory of each node.
    memory: str = "16GiB"
    #: Cores of a container: of a worker, a server, or both.
    container_vcores: int = 1
    #: Memory of a container.
    container_memory: str = "4GiB"
    #: Whether a job's master takes a container, as in the paper.  Here masters are processes of this host or of the
    #: application master.
    master_container: bool = False

    def __post_init__(self) -> None:
        _check_count("nodes", self.nodes, 0, MOST_NODES)
        for name in ("vcores", "container_vcores"):
            _check_count(name, getattr(self, name), 1, MOST_NODES)
        if not self.nodes:
            object.__setattr__(self, "nodes", max(LEAST_NODES, len(os.sched_getaffinity(0)) // self.vcores))
        memory_mb(self.memory)
        memory_mb(self.container_memory, "container_memory")

    def capacities(self) -> dict[str, Resources]:
        """Return the capacity of each node, by name."""
        capacity = Resources(self.vcores, memory_mb(self.memory))
        width = len(str(self.nodes))
        return {f"node-{number:0{width}}": capacity for number in range(1, self.nodes + 1)}

    def container(self) -> Resources:
        """Return the size of a container."""
        return Resources(self.container_vcores, memory_mb(self.container_memory))

    def master(self) -> Resources:
        """Return the size of a job master's container; nothing if it has none."""
        return self.container() if self.master_container else NOTHING

    def num_containers(self) -> int:
        """Return how many containers the nodes hold."""
        size = self.container()
        return self.nodes * min(self.vcores // size.vcores, memory_mb(self.memory) // size.memory_mb)


@dataclass(frozen=True)
class SweepSpec:
    """Settings of a sweep: how many points it tries, how it picks them, and when they arrive."""

    #: Points to try.
    trials: int = 20
    #: Source of the points: ``tpe`` (Hyperopt), ``random`` or ``optuna``.
    algorithm: str = "tpe"
    #: Seed of points and arrivals.
    seed: int = 0
    #: Most points tried at once; 0 sets no limit.
    parallelism: int = 0
    #: Empty: a trial arrives, and its point is drawn, when it can start.  For experiments: ``burst`` (all at once), or
    #: ``poisson:4s`` (exponential gaps with a mean of 4 s).
    arrival: str = ""
    #: ``loss`` is measured on the training data; ``test_loss``, ``accuracy``, ``auc``, ``rmse``, ... on the test data.
    #: Default of a model of EPS: ``test_loss`` with ``test`` or ``folds``.
    metric: str = "loss"
    #: ``minimize`` or ``maximize``; default: ``maximize`` for ``accuracy``, ``f1``, ``auc``, ``r2``, ``precision`` and
    #: ``recall``, ``minimize`` for ``loss``, ``test_loss``, ``rmse`` and ``mae``; required for other metrics.
    direction: str = ""
    #: Test data that no trial sees: the best trial's model is evaluated on it once, after the sweep.
    final_test: str = ""
    #: Iteration at which a trial reports its early feedback.
    feedback_iteration: int = 100
    #: Most jobs in the training phase; 0: as many as fit the cluster with the size that they request.
    threshold: int = 0
    #: Stopping rule: ``none``, ``threshold``, ``median``, ``sha`` or ``asha``; default: that of the policy.
    stop: str = ""
    #: End a trial whose training loss grows exponentially and is orders of magnitude above its first value.
    stop_diverged: bool = True
    #: ``sha`` and ``asha``: of the trials at a rung, one in ``eta`` goes on.
    eta: int = 3
    #: The first rung, at which ``median``, ``sha`` and ``asha`` judge a trial; 0: ``feedback_iteration``.
    grace_iterations: int = 0
    #: Rungs are below it; 0: below the iterations of a trial.
    max_iterations: int = 0
    #: Least seconds that a restart takes under the ``kill`` policy; below 0: no minimum.
    kill_restart_s: float = -1.0
    #: How often a failed trial is retried, as a new job.  A trial that diverged or cannot start is not retried.
    retries: int = 1
    #: Seconds for which a job may train before it is killed; 0.0 sets no limit.
    trial_timeout_s: float = 0.0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("trials", 1, MOST_TRIALS),
            ("seed", 0, MOST_NUMBER),
            ("parallelism", 0, MOST_TRIALS),
            ("feedback_iteration", 1, MOST_ITERATIONS),
            ("threshold", 0, MOST_TRIALS),
            ("retries", 0, MOST_TRIALS),
        ):
            _check_count(name, getattr(self, name), least, most)
        checked_stopping(self.stop, self.eta, self.grace_iterations, self.max_iterations)
        if self.algorithm not in ALGORITHMS:
            raise ConfigError(f"algorithm is {self.algorithm!r}, but must be {one_of(self.algorithm, ALGORITHMS)}")
        object.__setattr__(self, "direction", str(direction_of(self.direction, self.metric)))
        if not 0.0 <= self.trial_timeout_s < math.inf:
            raise ConfigError(f"trial_timeout_s is {self.trial_timeout_s}, but must be at least 0 (0: no limit)")
        if not math.isfinite(self.kill_restart_s):
            raise ConfigError(f"kill_restart_s is {self.kill_restart_s}, but must be finite (below 0: no minimum)")
        self.mean_gap_s()

    def stopping(self) -> Stopping:
        """Return the stopping rule and its parameters."""
        return Stopping(self.stop, self.eta, self.grace_iterations or self.feedback_iteration, self.max_iterations)

    def mean_gap_s(self) -> float:
        """Return the mean seconds between two arrivals; 0.0 if all arrive at once, or each when it can start."""
        if self.arrival in ("", "burst"):
            return 0.0
        found = re.fullmatch(r"poisson:(\d+(\.\d+)?)s?", self.arrival)
        if found is None or float(found[1]) <= 0:
            raise ConfigError(f"arrival is {self.arrival!r}, but must be burst or poisson:Ns, with N > 0, or left out")
        return float(found[1])


@dataclass(frozen=True)
class Spec:
    """The contents of a sweep's file."""

    cluster: ClusterSpec = field(default_factory=ClusterSpec)
    sweep: SweepSpec = field(default_factory=SweepSpec)
    space: Space = ()
    #: Settings of ``eps run`` shared by all points, by name.
    job: Mapping[str, Any] = field(default_factory=dict)
    #: Trials are calls of a callable, each in one container: points are its arguments, not settings of ``eps run``.
    is_callable: bool = False

    @classmethod
    def read(cls, path: Path) -> Spec:
        """Read a file.  Relative paths in it start at its folder, as in a job's file.

        Raises
        ------
        ConfigError
            The file cannot be read or is not TOML, or a setting is invalid.
        """
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from None
        try:
            return cls.given(_located(values, path.absolute().parent))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def given(cls, values: Mapping[str, Any], *, is_callable: bool = False) -> Spec:
        """Return the sweep of tables that a user wrote.

        Unlike :meth:`of`, check ``feedback_iteration`` against ``iterations`` if the tables set it; the default is not
        checked.  Raises as :meth:`read`.
        """
        spec = cls.of(values, is_callable=is_callable)
        spec.check_rungs()
        if "feedback_iteration" in values.get("sweep", {}):
            wanted, most = spec.sweep.feedback_iteration, spec.most_iterations()
            if wanted > most:
                raise ConfigError(
                    f"feedback_iteration is {wanted}, but must be at most iterations, which is {most}: a trial would "
                    "end before its early feedback"
                )
        return spec

    @classmethod
    def of(cls, values: Mapping[str, Any], *, is_callable: bool = False) -> Spec:
        """Return the sweep that these tables describe, of jobs or of calls of a callable.  Raises as :meth:`read`."""
        _known(values, ("cluster", "sweep", "space", "job"), "a section")
        for name, table in values.items():
            if not isinstance(table, Mapping):
                raise ConfigError(f"{name} is {table!r}, but must be a section")
        with errors_of("job"):
            job_settings = named(values.get("job", {}))
        spec = cls(
            _section(ClusterSpec, values.get("cluster", {}), "cluster"),
            _section(SweepSpec, values.get("sweep", {}), "sweep"),
            space_of(values.get("space", {})),
            job_settings,
            is_callable,
        )
        if twice := duplicates(spec.space):
            raise ConfigError(f"{twice[0]} is in [space] twice: a point would have both values")
        if is_callable:
            _known(job_settings, ("iterations",), "a setting of [job] for a callable")
            return spec
        for dimension in spec.leaves():
            _known((dimension.name,), tuple(SETTINGS), "a setting of eps run, which [space] searches")
            _check_whole(dimension)
        for name in sorted(spec.searched()):
            _known((name,), tuple(SETTINGS), "a setting of eps run, which [space] searches")
            if name in spec.job:
                raise ConfigError(f"{name} is in [space] and in [job]: remove it from one of them")
        for name, value in spec.job.items():
            if not is_finite(value):
                raise ConfigError(f"job.{name} is {value!r}, but must be finite")
        job, searched = spec.job_spec(), spec.searched()
        has_test_data = bool(job.test or job.folds or searched & {"test", "folds"})
        if has_test_data and "metric" not in values.get("sweep", {}) and job.model in MODELS:
            # The training loss would prefer whatever fits the training data best, such as no penalty.
            spec = dataclasses.replace(spec, sweep=dataclasses.replace(spec.sweep, metric="test_loss"))
        if "reliable" in {*spec.job, *searched} and (sizes := {"workers", "servers"} & {*spec.job, *searched}):
            raise ConfigError(f"reliable and {min(sizes)} exclude each other: remove one of them from [job] or [space]")
        if spec.sweep.metric != "loss" and not has_test_data:
            raise ConfigError(
                f"metric is {spec.sweep.metric!r}, but there is no test data: set test in [job], or metric to loss"
            )
        return spec

    def most_iterations(self) -> int:
        """Return the iterations of the longest trial."""
        points = [] if self.is_callable else list(corners(self.space))
        return max(int(point.get("iterations", self.job_spec().iterations)) for point in (points or [{}]))

    def check_rungs(self) -> None:
        """Raise ConfigError if the sweep's rule judges trials at rungs, and no trial would reach one."""
        stopping = self.sweep.stopping()
        first = RULES[stopping.rule].rungs(stopping).first if stopping.rule else 0
        given, most = stopping.max_iterations, self.most_iterations()
        if first and given > most:
            raise ConfigError(f"max_iterations is {given}, but must be at most iterations, which is {most}")
        for name, end in (("max_iterations", given), ("iterations", most)):
            if first and end and first >= end:
                own = self.sweep.grace_iterations
                told = f"grace_iterations is {first}" + ("" if own else " (the feedback iteration)")
                raise ConfigError(
                    f"{told}, but must be below {name}, which is {end}: else stop = {stopping.rule!r} judges no trial"
                )

    def tables(self) -> dict[str, Any]:
        """Return the tables that :meth:`of` reads."""
        return {
            "cluster": dataclasses.asdict(self.cluster),
            "sweep": dataclasses.asdict(self.sweep),
            "space": {each.name: each.table() for each in self.space},
            "job": dict(self.job),
        }

    def job_spec(self, point: Mapping[str, Any] | None = None) -> JobSpec:
        """Return the job of a point.

        Raises
        ------
        ConfigError
            A setting is invalid.
        """
        if self.is_callable:
            return JobSpec.from_dict({**self.job, "reliable": 1, "splits": 1, "partitions": 1}, "job")
        # Enough for a trial that grows to the whole cluster.
        splits = min(SPLITS_OF_A_CONTAINER * self.cluster.num_containers(), MOST_DEFAULT_SPLITS)
        default = {"splits": max(JobSpec().splits, splits)}
        return JobSpec.from_dict({**default, **self.job, **(point or {})}, "job")

    def under(self, policy: str) -> Spec:
        """Return the sweep as a policy runs it: under some, trials begin in one container, whatever the file asks for.

        Trials keep the size that the file asks for if it is searched, or if their settings exclude such containers.
        """
        if self.is_callable:
            return self
        if not needs_of(POLICIES[policy]).hosts or SIZES & self.searched():
            return self
        alone = {name: value for name, value in self.job.items() if name not in SIZES}
        found = dataclasses.replace(self, job={**alone, "reliable": 1})
        try:
            found.job_spec()
        except ConfigError:
            return self
        return found

    def points(self) -> Iterator[dict[str, Any]]:
        """Yield random points from the sweep's seed, without end."""
        draw = Random(f"points:{self.sweep.seed}")
        while True:
            yield draw_point(self.space, draw)

    def leaves(self) -> list[Dimension]:
        """Return the searched settings, also those of branches."""
        return [leaf for each in self.space for leaf in each.leaves()]

    def searched(self) -> set[str]:
        """Return the names of the settings that a point may have."""
        return {*(leaf.name for leaf in self.leaves()), *(name for each in self.space for name in each.fixed())}

    def samples(self) -> Iterator[dict[str, Any]]:
        """Yield corners of the space, and some random points."""
        return samples(self.space, Random(f"points:{self.sweep.seed}"))

    def opened(self, name: str) -> e.SweepOpened:
        """Return the event that opens the sweep."""
        sweep = self.sweep
        return e.SweepOpened(
            name,
            Direction(sweep.direction),
            sweep.threshold or None,
            sweep.metric,
            sweep.feedback_iteration,
            sweep.stopping(),
            sweep.trials,
            None if sweep.arrival else self.coming(name),
            sweep.parallelism,
            sweep.stop_diverged,
        )

    def coming(self, name: str) -> JobRequest | None:
        """Return what the next trial of a sweep will request, at least; None if no sampled point works."""
        found = []
        for point in self.samples():
            with suppress(ConfigError):
                found.append(self.request(f"the next trial of {name}", name, point))
        return min(found, key=lambda request: request.workers + request.servers, default=None)

    def request(self, job_id: str, sweep: str, point: Mapping[str, Any] | None = None) -> JobRequest:
        """Return the request of a point's job to the scheduler.

        Raises
        ------
        ConfigError
            A setting is invalid.
        """
        return request_of(self.job_spec(point), job_id, sweep, self.cluster)


def _located(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the tables of a file with relative paths resolved against ``folder``; values of a wrong type are kept."""

    def resolved(key: str, value: Any) -> Any:
        name = key.replace("-", "_")
        found = located(name, value, folder)
        # Every setting of a point is one text, so paths are joined.
        return ",".join(found) if name == "data" and isinstance(value, str) else found

    def resolved_choice(name: str, value: Any) -> Any:
        if not isinstance(value, Mapping) or not isinstance(value.get("choice"), list):
            return resolved(name, value)
        return {**value, "choice": [resolved_option(name, each) for each in value["choice"]]}

    def resolved_option(name: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return resolved(name, value)
        return {key: resolved_choice(key, each) for key, each in value.items()}

    tables = dict(values)
    for section, where in (("job", resolved), ("space", resolved_choice)):
        if isinstance(tables.get(section), Mapping):
            tables[section] = {name: where(name, value) for name, value in tables[section].items()}
    sweep = tables.get("sweep")
    if isinstance(sweep, Mapping) and "final_test" in sweep:
        tables["sweep"] = {**sweep, "final_test": located("test", sweep["final_test"], folder)}
    return tables


def request_of(job: JobSpec, job_id: str, sweep: str, cluster: ClusterSpec) -> JobRequest:
    """Return a job's request to the scheduler.

    The job may grow to one worker for each split and one server for each partition.

    Raises
    ------
    ConfigError
        The job schedules its own changes of size (``at``), is to run on transient containers, or has more servers than
        partitions.
    """
    if job.at:
        raise ConfigError(f"at is {', '.join(job.at)!r}, but must be empty: the scheduler decides the size of its jobs")
    if job.tiers.transient:
        raise ConfigError(
            f"transient is {job.tiers.transient}, but must be 0: the scheduler takes any container of a job when "
            "another job needs it; use reliable"
        )
    container, master = cluster.container(), cluster.master()
    if job.tiers.reliable:
        return JobRequest(job_id, sweep, job.tiers.reliable, 0, container, container, master, job.splits, 0)
    partitions = job.core_settings().num_partitions
    if job.servers > partitions:
        raise ConfigError(f"servers is {job.servers}, but must be at most partitions, which is {partitions}")
    return JobRequest(job_id, sweep, job.workers, job.servers, container, container, master, job.splits, partitions)


def _check_whole(dimension: Dimension) -> None:
    """Reject a dimension that draws fractions for a whole-number setting.

    Raises
    ------
    ConfigError
        The setting is a whole number, and the dimension draws fractions.
    """
    name, kind, a = dimension.name, dimension.kind, dimension.arguments
    if name in _WHOLE and (kind in ("uniform", "loguniform") or (kind == "quniform" and not isinstance(a[2], int))):
        low, high = math.ceil(a[0]), math.floor(a[1])
        raise ConfigError(
            f"space.{name}: {kind} draws fractions, but {name} is a whole number: use "
            f"randint = [{low}, {high + 1}] (without {high + 1}) or quniform = [{low}, {high}, 1]"
        )


def _known(names: Mapping[str, Any] | tuple[str, ...], known: tuple[str, ...], what: str) -> None:
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f": expected one of {', '.join(known[:12])}"
            raise ConfigError(f"{name!r} is not {what}{hint}")


def _section(cls: type[_Section], values: Mapping[str, Any], where: str) -> _Section:
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    _known(values, tuple(fields), f"a setting of [{where}]")
    checked: dict[str, Any] = {}
    for name, value in values.items():
        default = fields[name].default
        wanted = type(default)
        if wanted is float and is_number(value):
            value = float(value)
        if type(value) is not wanted:
            raise ConfigError(f"{where}.{name} is {value!r}, but must be {_KIND_NAMES[wanted]}")
        checked[name] = value
    try:
        return cls(**checked)
    except ConfigError as error:
        raise ConfigError(f"[{where}] {error}") from None
