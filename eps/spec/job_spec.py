"""The settings of a job: the everyday ones as fields, the others in tables; one frozen value, checked once.

Flags of ``eps run``, keys of ``JOB.toml`` and arguments of ``eps.run`` are names of settings: ``queue``.  A
spec has it in its table: ``spec.yarn.queue``.  :data:`SETTINGS` leads from one to the other.

Sources of defaults: EPS §2.3 (three workers and three servers), Fig. 4 (several partitions for each server and several
splits for each worker).
"""

# Annotations are values here, which msgspec reads: they are not left as text.
import json
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from msgspec import Meta
from msgspec.structs import fields

from eps.core.checkpoints import Schedule
from eps.core.reconfig import TAKINGS, Operation, Trigger
from eps.core.types import MOST_MEMBERS, CoreSettings, Role, Tier
from eps.errors import ConfigError, PlanError
from eps.spec.changes import parse_change, whole_number
from eps.spec.setting import Setting, Table, errors_of, settings_of
from eps.spec.tables import (
    MOST_NUMBER,
    Checkpoints,
    Containers,
    Docker,
    Monitoring,
    Network,
    Reading,
    Recovery,
    Tiers,
    Training,
    Yarn,
)
from eps.system.nearest import did_you_mean

#: Pieces into which data or parameters are cut, at most.
MOST_PIECES = 1_000_000
MOST_ITERATIONS = 2**31 - 1

#: Partitions of a job by default: four for each of the three servers of EPS §2.3.
DEFAULT_PARTITIONS = 12

_EVERY = re.compile(r"\d+(?:,\d+)*s?", re.ASCII)


class JobSpec(Table, frozen=True):
    """All settings of a job."""

    HEADINGS: ClassVar[Mapping[str, str]] = {
        "model": "model",
        "data": "data",
        "iterations": "training",
        "workers": "size",
        "on": "containers",
        "checkpoint_every": "checkpoints",
        "stretch_s": "experiments",
    }

    # What is trained.
    model: Annotated[
        str, "svm, logistic, linear, lasso, ridge, robust, softmax, dnn, mf, lda or path.py:Class", "NAME"
    ] = "logistic"
    hidden: Annotated[str, "dnn: sizes of the hidden layers, as in 128,64", "N,N"] = "128"
    huber_delta: Annotated[float, "robust: residuals beyond this count linearly"] = 1.0
    rank: Annotated[int, Meta(ge=0, le=MOST_NUMBER), "mf: factors of each user and item; 0 takes 16"] = 0
    topics: Annotated[int, Meta(ge=0, le=MOST_NUMBER), "lda: number of topics; 0 takes 20"] = 0
    model_options: Annotated[str, "options of a user's own model as JSON, as in '{\"rank\": 8}'", "JSON"] = ""
    intercept: Annotated[bool, "train an intercept; it is never penalised"] = True
    # On what.
    data: Annotated[str, "training data: a file, several joined by commas, or sklearn:NAME", "PATH"] = ""
    labels: Annotated[str, "file of labels, if the data has none", "PATH"] = ""
    test: Annotated[str, "test data: a file, a part to hold out (0.2), or last rows (last:5000)", "PATH|X|last:N"] = ""
    test_labels: Annotated[str, "file of the test data's labels", "PATH"] = ""
    folds: Annotated[int, Meta(ge=0, le=MOST_PIECES), "cross-validate with K folds, one after the other"] = 0
    fold: Annotated[int, "train only this fold of --folds, counted from 0"] = -1
    features: Annotated[int, Meta(ge=0, le=MOST_NUMBER), "number of features; 0 takes it from the data"] = 0
    normalize: Annotated[
        Literal["none", "l2", "standard", "tfidf", "binary"],
        "none, l2 (rows), standard (columns), tfidf or binary",
        "NAME",
    ] = "none"
    splits: Annotated[
        int,
        Meta(ge=1, le=MOST_PIECES),
        "pieces of the data; a job has at most as many workers",
    ] = 12
    reading: Reading = Reading()
    # How.
    iterations: Annotated[int, Meta(ge=1, le=MOST_ITERATIONS), "iterations (clocks) to train"] = 100
    batch_size: Annotated[str, "samples of an iteration, over all workers", "N|full"] = "full"
    optimizer: Annotated[
        Literal["sgd", "momentum", "adagrad", "adam", "ftrl"], "sgd, momentum, adagrad, adam or ftrl", "NAME"
    ] = "adam"
    learning_rate: Annotated[float, "step size"] = 0.1
    l1: Annotated[float, "L1 penalty"] = 0.0
    l2: Annotated[float, "L2 penalty"] = 0.0
    seed: Annotated[int, Meta(ge=0, le=MOST_NUMBER), "seed of initial values, batches and splits"] = 0
    training: Training = Training()
    recovery: Recovery = Recovery()
    network: Network = Network()
    # With what.
    workers: Annotated[int, Meta(ge=1, le=MOST_MEMBERS), "workers at the start"] = 3
    servers: Annotated[int, Meta(ge=1, le=MOST_MEMBERS), "servers at the start"] = 3
    partitions: Annotated[
        int,
        Meta(ge=0, le=MOST_PIECES),
        "pieces of the parameters; a job has at most as many servers; 0: 12, or one for each container of both tiers "
        "if those are more; fewer for a small model",
    ] = 0
    tiers: Tiers = Tiers()
    at: Annotated[
        tuple[str, ...],
        "change after clock K, as 40:workers=+2 or 40:evict=all",
        "K:CHANGE",
    ] = ()
    # Where it runs, and what survives.
    on: Annotated[
        Literal["local", "docker", "yarn"], "local (processes), docker (containers of this machine) or yarn", "NAME"
    ] = "local"
    containers: Containers = Containers()
    checkpoint_every: Annotated[str, "take a checkpoint every N iterations, Ns seconds, or at N,N,...,Ns", "N|Ns"] = ""
    checkpoints: Checkpoints = Checkpoints()
    docker: Docker = Docker()
    yarn: Yarn = Yarn()
    # To try things out.
    stretch_s: Annotated[
        float,
        Meta(ge=0),
        "seconds that a worker sleeps for each of its splits in an iteration, to imitate a larger job",
    ] = 0.0
    monitoring: Monitoring = Monitoring()

    def check(self) -> None:
        (workers, servers), most = self.first_size, self.containers.max_containers
        self.yarn.check_kinds(self.tiers)
        for trigger in self.triggers():
            for_tiers = trigger.change.operation in (*TAKINGS, Operation.TIERS)
            if for_tiers != bool(self.tiers.total):
                wants = "a job of --reliable and --transient" if for_tiers else "a job of --workers and --servers"
                raise ConfigError(f"at is '{trigger.clock}:{trigger.change}', but that is for {wants}")
        if workers > self.splits:
            raise ConfigError(f"{workers} workers would share {self.splits} splits: raise --splits")
        if 0 < most < (need := sum(self.first_containers.values())):
            tiers = self.tiers
            what = f"{tiers.reliable} reliable and {tiers.transient} transient containers"
            what = what if tiers.total else f"{workers} workers and {servers} servers"
            raise ConfigError(f"max_containers is {most}, but {what} need {need}: raise it")
        # A container without partitions only works.
        if self.partitions and servers > self.partitions and not self.tiers.total:
            raise ConfigError(
                f"{servers} servers would share {self.partitions} partitions: raise --partitions or lower --servers"
            )
        if self.batch_size != "full" and not whole_number(self.batch_size):
            raise ConfigError(f"batch_size is {self.batch_size!r}, but must be full or a number from 1 on")
        if self.core_settings().reproducible and self.network.wire == "float16":
            raise ConfigError(
                "wire is 'float16', but the sums of bsp are reproducible to the last bit, which float16 cannot be: "
                "add --no-reproducible, or use --wire float32"
            )
        self.checkpoint_schedule()
        if self.fold >= 0 and not self.fold < self.folds:
            raise ConfigError(f"fold is {self.fold}, but folds is {self.folds}: expected 0 to folds - 1")
        if self.folds and self.test:
            raise ConfigError(f"test ({self.test}) and folds ({self.folds}) exclude each other")
        if self.folds == 1:
            raise ConfigError("folds is 1, but cross-validation needs at least 2")

    @property
    def uses_tls(self) -> bool:
        """True if members use TLS: between hosts, over TCP, or on request."""
        return self.network.tls or self.on == "yarn" or self.network.van == "tcp"

    def core_settings(self) -> CoreSettings:
        """Return what the pure core needs of these settings."""
        staleness = self.training.staleness()
        return CoreSettings(
            num_splits=self.splits,
            num_partitions=self.partitions or DEFAULT_PARTITIONS,
            iterations=self.iterations,
            staleness=staleness,
            reproducible=staleness == 0 and self.training.reproducible,
            followers=self.recovery.followers,
        )

    @property
    def first_size(self) -> tuple[int, int]:
        """Workers and servers at the start."""
        return (self.tiers.total, self.tiers.reliable) if self.tiers.total else (self.workers, self.servers)

    @property
    def first_containers(self) -> dict[str, int]:
        """Kind of container -> number at the start: by tier if the job has tiers, else by role."""
        if self.tiers.total:
            return {Tier.RELIABLE: self.tiers.reliable, Tier.TRANSIENT: self.tiers.transient}
        return {Role.WORKER: self.workers, Role.SERVER: self.servers}

    def triggers(self) -> tuple[Trigger, ...]:
        """Return the changes of ``--at``, in the order given."""
        found = []
        for text in self.at:
            clock, colon, change = text.partition(":")
            if not colon or (at := whole_number(clock)) is None:
                raise ConfigError(f"at is {text!r}, but must be K:CHANGE, as in 40:add-workers=2")
            try:
                asked = parse_change(change)
            except (ConfigError, PlanError) as error:
                raise ConfigError(f"at is {text!r}: {error}") from None
            if at >= self.iterations:
                raise ConfigError(
                    f"at is {text!r}, but with {self.iterations} iterations K must be at most {self.iterations - 1}"
                )
            found.append(Trigger(at, asked))
        return tuple(found)

    def checkpoint_schedule(self) -> Schedule:
        """Return when checkpoints are due: every ``10`` (clocks) or ``30s`` (seconds), or at ``12,36,108`` (clocks).

        ``12,36,108,30s`` is at these clocks, and whenever there was none for 30 seconds.  Never for an empty text.
        """
        text = self.checkpoint_every
        if not text:
            return Schedule()
        found = _EVERY.fullmatch(text)
        numbers = [] if found is None else [int(number) for number in text.rstrip("s").split(",")]
        if found is None or min(numbers) < 1:
            raise ConfigError(
                f"checkpoint_every is {text!r}, but must be a number of iterations from 1 on, as in 10, or of seconds, "
                "as in 30s, or the iterations themselves, as in 12,36,108 or 12,36,108,30s"
            )
        seconds = float(numbers.pop()) if text.endswith("s") else 0.0
        if len(numbers) == 1 and not seconds:
            return Schedule(clocks=numbers[0])
        return Schedule(seconds=seconds, at=tuple(sorted(set(numbers))))

    def evaluate_at(self, clock: int) -> bool:
        """Return whether the test data is evaluated at ``clock``, which is iteration ``clock + 1``."""
        return clock >= 0 and ((clock + 1) % self.evaluation_clocks == 0 or clock in (0, self.iterations))

    @property
    def evaluation_clocks(self) -> int:
        """Clocks from one evaluation of the test data to the next."""
        return self.training.eval_every or max(1, self.iterations // 100)

    def values(self) -> dict[str, Any]:
        """Return the value of each setting, by the names of :data:`SETTINGS`."""
        holders = {"": self, **{table: getattr(self, table) for table in _TABLE_TYPES}}
        return {name: getattr(holders[setting.table], name) for name, setting in SETTINGS.items()}

    def to_json(self) -> str:
        """Return all settings as JSON."""
        return json.dumps(self.values(), sort_keys=True)

    def with_settings(self, **changes: Any) -> Self:
        """Return these settings with some changed, by name.  Raises as :meth:`from_dict`."""
        return self.from_dict({**self.values(), **changes})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "") -> Self:
        """Return the settings with these values.

        Keys may have dashes for underscores, and lack the final ``_s``.

        Raises
        ------
        ConfigError
            A key is unknown, or a value is invalid; the message begins with ``source``.
        """
        own: dict[str, Any] = {}
        tables: dict[str, dict[str, Any]] = {}
        with errors_of(source):
            for key, value in values.items():
                setting = SETTINGS[known_key(key, SETTINGS)]
                (tables.setdefault(setting.table, {}) if setting.table else own)[setting.name] = value
            own.update((table, _TABLE_TYPES[table](**inner)) for table, inner in tables.items())
            return cls(**own)


def known_key(key: str, known: Collection[str]) -> str:
    """Return the name among ``known`` that ``key`` spells.

    Raises
    ------
    ConfigError
        There is none; the nearest one is named.
    """
    name = key.replace("-", "_")
    for spelling in (name, f"{name}_s"):
        # The flag of a setting in seconds lacks the unit.
        if spelling in known:
            return spelling
    raise ConfigError(f"unknown key {key!r}{did_you_mean(name, known)}")


_FIELDS = {field.name: field.type for field in fields(JobSpec)}
#: Tables of the settings -> their types.
_TABLE_TYPES: dict[str, type[Table]] = {name: kind for name, kind in _FIELDS.items() if isinstance(kind, type)}
_OWN = {setting.name: setting for setting in settings_of(JobSpec)}
#: Each setting by its name, in the order of the help.
SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for name in _FIELDS
    for setting in ([_OWN[name]] if name in _OWN else settings_of(_TABLE_TYPES[name], name))
}
#: Tables of a job file.  The settings of other groups are at its top.
TABLES = tuple(dict.fromkeys(s.group for s in SETTINGS.values() if s.group not in SETTINGS))
