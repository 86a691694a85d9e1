"""What every process of a job derives from its settings: model, key space, optimizer, grid, ranges, batches.

Built from one JSON text (the job's settings and what its data set is like), so that members on other hosts need
nothing else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from eps.core.types import CoreSettings
from eps.errors import ConfigError, StorageError
from eps.ml import kernels, steps
from eps.ml.batches import batch_share, check_batch_size
from eps.ml.grid import Grid
from eps.ml.layout import KeySpace
from eps.ml.models import MODELS, Model, load_model
from eps.ml.optim import Add, Optimizer, OptimizerSettings, make_optimizer
from eps.net.messages.exchange import Lean
from eps.spec.job_spec import DEFAULT_PARTITIONS, SETTINGS, JobSpec
from eps.storage.checkpoint import place_of
from eps.storage.jobdir import JobDir
from eps.storage.locations import Location, location


@dataclass(frozen=True)
class DataShape:
    """What a job must know of its data set beside the splits themselves."""

    num_features: int
    #: 2 or more for classifiers, 1 for regressions, the number of tokens for topics.
    num_outputs: int
    #: Samples of each split: rows, or tokens for topics.
    split_rows: tuple[int, ...]
    sparse: bool
    #: Rows of the test set; 0 where there is none.
    test_rows: int
    #: CRC or digest of each split, as ``eps.data`` gives it.
    split_checksums: tuple[str, ...]


@dataclass(frozen=True)
class Start:
    """What a run of a job begins with; the default is the seed's parameters."""

    #: Name of the checkpoint; empty for none.
    checkpoint: str = ""
    #: The clock to go on with; None without a checkpoint.
    clock: int | None = None
    #: See :mod:`eps.storage.checkpoint`.
    epoch: int = 1
    #: Size at the start; 0 takes that of the settings.  Of a job on two tiers, the number of all containers and of the
    #: reliable ones.
    workers: int = 0
    servers: int = 0
    #: Changes of ``--at`` up to this clock were asked by an earlier run.
    triggers_asked: int = -1
    #: Number of the run's first container: an earlier run has left the log files of those before.
    first_container: int = 1


@dataclass(frozen=True)
class Runtime:
    """One job's settings with everything that follows from them."""

    name: str
    spec: JobSpec
    shape: DataShape
    #: Directory of the prepared data set, readable where workers start; may be on HDFS.
    dataset_dir: Location
    #: Directory of the job.
    job_dir: Path
    start: Start = Start()
    #: Who alone may change its size; empty: anybody.
    manager: str = ""
    #: Who has the folder of its checkpoints, as of :func:`eps.storage.claims.owner_of`; empty where it is the job's.
    owner: str = ""
    #: ``path.py:Class`` in the user's own file, of which ``spec`` names the job's copy; empty for the library's models.
    model_source: str = ""

    def to_json(self) -> str:
        """Return the text that :meth:`from_json` reads."""
        return json.dumps(self.to_values())

    def to_values(self) -> dict[str, Any]:
        """Return the job as its record holds it."""
        return {
            "name": self.name,
            "spec": json.loads(self.spec.to_json()),
            "shape": self.shape.__dict__,
            "dataset_dir": str(self.dataset_dir),
            "job_dir": str(self.job_dir),
            "start": self.start.__dict__,
            "manager": self.manager,
            "owner": self.owner,
            "model_source": self.model_source,
            # Known without the model's code: a user's own may do anything when it is imported.
            "num_keys": self.key_space.num_keys,
        }

    @classmethod
    def from_json(cls, text: str) -> Runtime:
        """Return the job that ``text`` describes."""
        return cls.from_values(json.loads(text))

    @classmethod
    def of_job(cls, job: JobDir) -> Runtime:
        """Return what the record of a job says.

        Raises
        ------
        StorageError
            Its record cannot be read, or has no settings.
        """
        values = job.record().runtime
        if values is None:
            raise StorageError(f"{job.job_json}: has no settings")
        return cls.from_values(values)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Runtime:
        """Return the job that :meth:`to_values` described."""
        shape = dict(values["shape"])
        for key in ("split_rows", "split_checksums"):
            shape[key] = tuple(shape[key])
        return cls(
            name=values["name"],
            spec=JobSpec.from_dict(values["spec"]),
            shape=DataShape(**shape),
            dataset_dir=location(values["dataset_dir"]),
            job_dir=Path(values["job_dir"]),
            start=Start(**values.get("start", {})),
            manager=values.get("manager", ""),
            owner=values.get("owner", ""),
            model_source=values.get("model_source", ""),
        )

    @property
    def checkpoints(self) -> Location:
        """Where its checkpoints are."""
        return place_of(self.spec.checkpoints.checkpoint_dir, self.name, JobDir(self.job_dir).checkpoints)

    def within(self, job_dir: Path) -> Runtime:
        """Return the job as a process sees it whose copy of the job's directory is ``job_dir``."""
        if job_dir == self.job_dir:
            return self
        spec = self.spec
        path, colon, name = spec.model.rpartition(":")
        if colon and Path(path).is_relative_to(self.job_dir):
            spec = spec.with_settings(model=f"{job_dir / Path(path).relative_to(self.job_dir)}:{name}")
        return dataclasses.replace(self, spec=spec, job_dir=job_dir)

    @cached_property
    def settings(self) -> CoreSettings:
        """What the pure core needs."""
        return dataclasses.replace(self.spec.core_settings(), resumed_clock=self.start.clock)

    @cached_property
    def model(self) -> Model:
        """The model, ready to compute."""
        return make_model(self.spec, self.shape.num_features, self.shape.num_outputs)

    @cached_property
    def key_space(self) -> KeySpace:
        """The global key space of the model's tensors."""
        return KeySpace(self.model.tensors())

    @cached_property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Key range [start, stop) of each partition."""
        return self.key_space.partition_ranges(self.settings.num_partitions)

    @cached_property
    def grid(self) -> Grid:
        """The grid of the reproducible sums."""
        return Grid(self.settings.num_splits, self.key_space.block_keys)

    @cached_property
    def optimizer(self) -> Optimizer:
        """The servers' update rule."""
        settings = optimizer_settings(self.spec)
        return Add(settings) if self.model.adds else make_optimizer(settings)

    def share_of(self, split: int, clock: int) -> int:
        """Return how many samples of a split are in the batch of a clock."""
        return batch_share(self.samples_per_clock, self._sample_bounds, split, clock)

    def samples_of(self, split: int) -> tuple[int, int]:
        """Return [start, stop) of a split's samples among those of all splits."""
        return self._sample_bounds[split], self._sample_bounds[split + 1]

    @cached_property
    def _sample_bounds(self) -> tuple[int, ...]:
        return tuple(accumulate(self.shape.split_rows, initial=0))

    @cached_property
    def longest_partition(self) -> int:
        """Keys of the largest partition."""
        return max(stop - start for start, stop in self.ranges)

    @property
    def first_size(self) -> tuple[int, int]:
        """Workers and servers at the start; of a job on two tiers, all containers and the reliable ones."""
        workers, servers = self.spec.first_size
        return self.start.workers or workers, self.start.servers or servers

    @cached_property
    def lean(self) -> Lean:
        """What is left out on the wire."""
        return Lean(self.spec.network.push == "changes", self.spec.network.wire == "float16")

    @cached_property
    def samples_per_clock(self) -> int:
        """Samples of a clock over all splits.  Raises ConfigError if these are more than there are."""
        total = self._sample_bounds[-1]
        if self.spec.batch_size == "full":
            return total
        size = int(self.spec.batch_size)
        check_batch_size(size, total)
        return size

    @cached_property
    def sparse(self) -> bool:
        """True where workers pull and push only the keys that their splits touch."""
        return self.shape.sparse and self.key_space.has_feature_rows and self.spec.network.push != "dense"


#: Settings that decide how a job runs, and not what it trains; of the data it is the content that counts.
_HOW_IT_RUNS = frozenset(
    "workers servers reliable transient stage_rule max_lag_s max_containers start_with at tls van "
    "exchange_timeout_s on_divergence eval_every checkpoint_every keep checkpoint_dir on image memory_mb vcores "
    "resource queue priority lifetime_s acl tags label execution python container_timeout_s engine_timeout_s "
    "grow_back_s member_timeout_s master_timeout_s data labels test test_labels".split()
)


def identity(runtime: Runtime) -> dict[str, Any]:
    """Return what must be the same for a checkpoint of one job to be one of another: settings, data, key space.

    Raises
    ------
    ConfigError
        The file of a user's own model cannot be read.
    """
    spec = runtime.spec.values()
    data = hashlib.sha256("".join(runtime.shape.split_checksums).encode("utf-8")).hexdigest()
    found = {name: value for name, value in spec.items() if name not in _HOW_IT_RUNS}
    for name in ("rank", "topics"):
        # Checkpoints of earlier versions do not have it.
        if not found[name]:
            del found[name]
    model = {"model": _model_of(runtime.spec)}
    return {**found, **model, "parameters": runtime.key_space.num_keys, "content of its splits": data}


def _model_of(spec: JobSpec) -> str:
    """Return what the model is; of a user's own what its file has, for each container has its copy elsewhere."""
    path, colon, name = spec.model.rpartition(":")
    if not colon:
        return spec.model
    try:
        content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"model file {path} cannot be read: {error.strerror or error}; put back the file that the job began with"
        ) from None
    return f"{Path(path).name}:{name}, SHA-256 {content[:16]}"


def settled(spec: JobSpec, num_features: int, num_outputs: int, *, lower_servers: bool = False) -> JobSpec:
    """Return the settings with what follows from the model filled in: the number of partitions.

    With ``lower_servers``, a model with few blocks of parameters also lowers the number of servers.

    Raises
    ------
    ConfigError
        The model has fewer blocks of parameters than the job would have servers, or than partitions were asked for.
    """
    space = make_model(spec, num_features, num_outputs).key_space()
    most = space.num_blocks
    # On two tiers, containers without partitions only work.
    if spec.servers > most and not (spec.partitions or spec.tiers.total):
        if not lower_servers:
            raise ConfigError(
                f"servers is {spec.servers}, but must be at most {most}, the number of blocks of the model's "
                f"parameters: use --servers {most}"
            )
        spec = spec.with_settings(servers=most)
    # Half of the transient containers are ActivePSs, each with several partitions.
    partitions = spec.partitions or min(max(DEFAULT_PARTITIONS, spec.tiers.total), most)
    space.partition_ranges(partitions)
    return spec.with_settings(partitions=partitions)


def optimizer_settings(spec: JobSpec) -> OptimizerSettings:
    """Return the optimizer's part of the settings."""
    return OptimizerSettings(
        name=spec.optimizer,
        learning_rate=spec.learning_rate,
        l1=spec.l1,
        l2=spec.l2,
        momentum=spec.training.momentum,
        beta1=spec.training.beta1,
        beta2=spec.training.beta2,
    )


def model_options(spec: JobSpec) -> dict[str, Any]:
    """Return the options of the settings' model, by the names that its class declares."""
    # A user's own class has defaults of its own.
    names = ("hidden", "huber_delta", "rank", "topics")
    known = {name: value for name in names if (value := getattr(spec, name)) != SETTINGS[name].default}
    if spec.model in MODELS:
        known.update(hidden=_hidden_sizes(spec.hidden), huber_delta=spec.huber_delta)
    options = {name: known[name] for name in load_model(spec.model).options if name in known}
    if spec.model_options:
        options.update(_own_options(spec.model_options))
    return options


def _hidden_sizes(text: str) -> tuple[int, ...]:
    sizes = [part.strip() for part in text.split(",")]
    if not all(size.isdecimal() and int(size) >= 1 for size in sizes):
        raise ConfigError(f"hidden is {text!r}, but must be whole numbers from 1 on joined by commas, as in 128,64")
    return tuple(int(size) for size in sizes)


def _own_options(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"model_options is {text!r}, but must be a JSON object: {error}") from None
    if not isinstance(options, dict):
        raise ConfigError(f'model_options is {text!r}, but must be a JSON object, as in {{"rank": 8}}')
    return options


def check_model(spec: JobSpec) -> None:
    """Refuse, before the data is known, a model that no data would make possible.

    Raises
    ------
    ConfigError
        The model is unknown or cannot be loaded, or has no such options.
    """
    cls, options = load_model(spec.model), model_options(spec)
    if spec.model in MODELS:
        outputs = {"binary": 2, "multiclass": 2}.get(cls.task_for(options), 1)
        make_model(spec, 1, outputs)
    elif cls.__init__ is Model.__init__:
        # One with an __init__ of its own may treat options in its own way, and may need the real sizes.
        cls.check_options(options)
    if cls.adds:
        _check_adds(spec)


def _check_adds(spec: JobSpec) -> None:
    """Refuse settings that a model with changes instead of a gradient cannot have."""
    for name, value, needed in (
        ("consistency", spec.training.consistency, "bsp"), ("reproducible", spec.training.reproducible, True),
        ("init", spec.training.init, ""), ("batch_size", spec.batch_size, "full"), ("test", spec.test, ""),
        ("folds", spec.folds, 0), ("normalize", spec.normalize, "none"), ("l1", spec.l1, 0.0), ("l2", spec.l2, 0.0),
    ):  # fmt: skip
        if value != needed:
            raise ConfigError(f"{name} is {value!r}, but must be {needed!r} for model {spec.model}: leave it out")


def memory_bytes(runtime: Runtime) -> int:
    """Return what the servers of a job hold at least: parameters, the optimizer's slots and the sums of a clock."""
    per_key = 4 * (1 + len(runtime.optimizer.slots)) + np.dtype(runtime.grid.dtype).itemsize
    return runtime.key_space.num_keys * per_key


def machine_memory_bytes() -> int:
    """Return the size of this machine's physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(runtime: Runtime, available_bytes: int) -> None:
    """Refuse a model that cannot fit into memory.

    Raises
    ------
    ConfigError
        The servers would need more than ``available_bytes``.
    """
    needed = memory_bytes(runtime)
    if needed > available_bytes:
        raise ConfigError(
            f"the model has {runtime.key_space.num_keys} parameters for {runtime.shape.num_features} features and "
            f"needs {needed} bytes (parameters, state of {runtime.spec.optimizer}, sums), but must fit into the "
            f"{available_bytes} bytes of this machine's memory: set --features to the width that the data should "
            "have, or use another data file"
        )


def descriptors_needed(num_members: int) -> int:
    """Return how many descriptors the process with the most of them needs, in a job of so many workers and servers.

    Counted in jobs with 2 to 16 members: 12 of its own, one for each worker and two for each other server, and one for
    each segment of shared memory, of which a large model has ten.  The rest is for changes of size.
    """
    return 24 + 2 * num_members


def check_descriptors(runtime: Runtime, limit: int) -> None:
    """Refuse a job whose processes could not open a connection to each of its members.

    Raises
    ------
    ConfigError
        They need more than ``limit``, the most that a process may have.
    """
    num_members = sum(runtime.first_size)
    needed = descriptors_needed(num_members)
    if needed > limit:
        raise ConfigError(
            f"{num_members} workers and servers need {needed} open files in one process, but the limit is {limit}: "
            f"raise it (ulimit -Hn {needed}; more where the job will grow), or begin with fewer"
        )


def make_model(spec: JobSpec, num_features: int, num_outputs: int) -> Model:
    """Return the model that the settings name, for data of this shape."""
    cls = load_model(spec.model)
    return cls(num_features, num_outputs, intercept=spec.intercept, **model_options(spec))


def compile_kernels(runtime: Mapping[str, Any]) -> None:
    """Compile what a large model needs, once for all processes that are forked from this one.

    Runs none of the model's code, and never raises: a process that needs the kernels fails in the same way and says so.
    """
    try:
        num_keys = int(runtime.get("num_keys", 0))
        if num_keys:
            spec = JobSpec.from_dict(runtime["spec"])
            kernels.use_for(num_keys)
            reproducible = spec.core_settings().reproducible
            dtype = Grid(spec.splits, 1).dtype if reproducible else np.dtype(np.float32)
            steps.prepare(make_optimizer(optimizer_settings(spec)), dtype)
    except Exception as error:
        print(f"no compiled kernels: {error}", file=sys.stderr)
