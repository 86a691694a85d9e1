"""The settings of a job: one frozen value, checked once; its groups are the tables of a job file.

Flags of ``eps run``, keys of ``JOB.toml`` and arguments of ``eps.Job`` are the fields of :class:`JobSpec`; the help
texts live here with them.

Sources of defaults: EPS §2.3 (three workers and three servers), Fig. 4 (several partitions for each server and several
splits for each worker).
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eps.core.checkpoints import Schedule
from eps.core.reconfig import Trigger
from eps.core.types import MOST_MEMBERS, UNBOUNDED, CoreSettings
from eps.errors import ConfigError, PlanError
from eps.spec.changes import parse_change, whole_number
from eps.system.nearest import did_you_mean

OPTIMIZERS = ("sgd", "momentum", "adagrad", "adam", "ftrl")
NORMALIZATIONS = ("none", "l2", "standard", "tfidf", "binary")

#: As in ``eps.net.arrays.negotiated``.
VANS = ("auto", "shm", "unix", "tcp")
PUSHES = ("auto", "dense", "changes")
WIRES = ("float32", "float16")
#: Where the processes of a job can run.
BACKENDS = ("local", "docker", "yarn")
EXECUTIONS = ("guaranteed", "opportunistic")
ROLES = ("worker", "server", "master")
#: Largest bound of ssp; whoever wants more wants asp.
MOST_STALENESS = 1_000_000_000

#: Pieces into which data or parameters are cut, at most.
MOST_PIECES = 1_000_000
MOST_ITERATIONS = 2**31 - 1
#: Largest number that every part of a job can say.
MOST_NUMBER = 2**63 - 1

#: Partitions of a job that does not say how many: four for each of the three servers of EPS §2.3.
DEFAULT_PARTITIONS = 12

_EVERY = re.compile(r"(\d+)(s?)", re.ASCII)
#: What may be done with an application of YARN.
ACCESSES = ("view", "modify")
#: As YARN names resources: ``yarn.io/gpu``.
_RESOURCE = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]*/)?[A-Za-z][\w.-]*", re.ASCII)
#: Resources that have settings of their own.
_SIZES = {"memory": "memory_mb", "memory-mb": "memory_mb", "vcores": "vcores", "cpu": "vcores"}


def _option(default: Any, help_text: str, **extra: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **extra})


@dataclass(frozen=True)
class JobSpec:
    """Everything that a user says about a job."""

    # What is trained.
    model: str = _option(
        "logistic", "svm, logistic, linear, lasso, ridge, robust, softmax, dnn, mf or path.py:Class", metavar="NAME"
    )
    hidden: str = _option("128", "dnn: sizes of the hidden layers, as in 128,64", metavar="N,N")
    huber_delta: float = _option(1.0, "robust: residuals beyond this count linearly")
    rank: int = _option(0, "mf: factors of each user and item; 0 takes 16")
    model_options: str = _option("", "options of a user's own model as JSON, as in '{\"rank\": 8}'", metavar="JSON")
    intercept: bool = _option(True, "train an intercept; it is never penalised")
    # On what.
    data: str = _option(
        "", "training data: a file, several joined by commas, or sklearn:NAME", group="data", metavar="PATH"
    )
    labels: str = _option("", "file of labels, where they are not in the data", group="data", metavar="PATH")
    test: str = _option(
        "",
        "test data: a file, a part to hold out (0.2), or last rows (last:5000)",
        group="data",
        metavar="PATH|X|last:N",
    )
    test_labels: str = _option("", "file of the test data's labels", group="data", metavar="PATH")
    folds: int = _option(0, "cross-validate: K folds, one training after the other", group="data")
    fold: int = _option(-1, "train only this fold of --folds, counted from 0", group="data")
    format: str = _option(
        "auto",
        "auto, libsvm, csv, dense, npz, npy, idx, text (n-grams), ratings (user, item, rating) or sklearn",
        group="data",
        metavar="NAME",
    )
    features: int = _option(0, "number of features; 0 takes it from the data", group="data")
    label_column: str = _option(
        "auto",
        "column of the label in dense text: auto, first, last, a number or a name",
        group="data",
        metavar="NAME|N",
    )
    columns: str = _option(
        "", "columns to keep of dense text: names or numbers joined by commas", group="data", metavar="NAMES"
    )
    target_scale: float = _option(1.0, "divide a regression's labels by this", group="data")
    delimiter: str = _option("auto", "what divides the columns of dense text; auto finds it", group="data", metavar="C")
    index_base: str = _option(
        "auto", "number of the first feature of LIBSVM files: auto, 0 or 1", group="data", metavar="auto|0|1"
    )
    normalize: str = _option(
        "none",
        "none, l2 (rows), standard (columns), tfidf or binary",
        group="data",
        metavar="NAME",
    )
    splits: int = _option(12, "pieces of the data, the most workers a job can have", group="data")
    # How.
    iterations: int = _option(100, "iterations (clocks) to train", group="training")
    batch_size: str = _option("full", "samples of an iteration over all workers", group="training", metavar="N|full")
    optimizer: str = _option("adam", "sgd, momentum, adagrad, adam or ftrl", group="training", metavar="NAME")
    learning_rate: float = _option(0.1, "step size", group="training")
    momentum: float = _option(0.9, "momentum: share of the last step that goes on", group="training")
    beta1: float = _option(0.9, "adam: decay of the mean of gradients", group="training")
    beta2: float = _option(0.999, "adam: decay of the mean of squares", group="training")
    l1: float = _option(0.0, "L1 penalty", group="training")
    l2: float = _option(0.0, "L2 penalty", group="training")
    consistency: str = _option("bsp", "bsp, ssp:N (at most N clocks ahead) or asp", group="training", metavar="NAME")
    reproducible: bool = _option(
        True,
        "sums that do not depend on who computes what, so that the model is the same to the bit whatever the size of "
        "the job; off only under bsp saves a little time and the clock that sets the first grid",
        group="training",
    )
    seed: int = _option(0, "seed of the start, the batches and the splits", group="training")
    init: str = _option("", "start from this exported model (.npz)", group="training", metavar="PATH")
    eval_every: int = _option(
        0, "clocks between evaluations on the test data; 0 chooses about 100 in all", group="training"
    )
    exchange_timeout_s: float = _option(
        600.0, "seconds after which a worker gives up a clock that is not complete everywhere", group="recovery"
    )
    on_divergence: str = _option(
        "stop", "when the loss is not finite: stop or continue", group="training", metavar="stop|continue"
    )
    push: str = _option(
        "auto",
        "what is pushed and pulled: auto (the keys that a worker's splits touch, where the data is sparse; else all), "
        "dense (all), or changes (as auto, and of those only what is not zero)",
        group="network",
        metavar="NAME",
    )
    skip_unchanged: bool = _option(
        False, "do not send a worker the parameters of a partition that it has already", group="network"
    )
    wire: str = _option(
        "float32",
        "float32, or float16: half the bytes; not where sums are reproducible",
        group="network",
        metavar="float32|float16",
    )
    van: str = _option(
        "auto",
        "how data travels: auto (the best that two members share), shm, unix or tcp",
        group="network",
        metavar="NAME",
    )
    # With what.
    workers: int = _option(3, "workers at the start", group="size")
    servers: int = _option(3, "servers at the start", group="size")
    partitions: int = _option(
        0,
        "pieces the parameters are cut into, the most servers a job can have; 0 takes 12, fewer for a small model",
        group="size",
    )
    followers: int = _option(
        1,
        "copies of each partition on other servers, so that a server can be lost without going back; 0 or 1",
        group="recovery",
    )
    max_containers: int = _option(0, "containers that may run at once; 0 sets no limit", group="containers")
    start_with: float = _option(
        0.5,
        "part of its workers and of its servers with which a job begins when its cluster has granted nothing more for "
        "20 seconds; 1: all of them, 0: one of each",
        group="containers",
        metavar="PART",
    )
    at: tuple[str, ...] = _option(
        (),
        "change the size after clock K, as 40:workers=+2",
        group="size",
        metavar="K:CHANGE",
    )
    # What survives.
    checkpoint_every: str = _option(
        "",
        "take a checkpoint every so many iterations (10) or seconds (30s)",
        group="checkpoints",
        metavar="N|Ns",
    )
    keep: int = _option(2, "checkpoints that are kept", group="checkpoints")
    checkpoint_dir: str = _option(
        "",
        "folder in which the job's checkpoints get a folder of its name; a path or hdfs://...; default: in the job's "
        "directory",
        group="checkpoints",
        metavar="PATH",
    )
    # Where it runs.
    on: str = _option(
        "local",
        "local (processes), docker (containers of this machine) or yarn",
        group="containers",
        metavar="NAME",
    )
    image: str = _option("eps", "docker: image of the containers; it must have EPS", group="docker", metavar="NAME")
    memory_mb: str = _option(
        "1024,master=512",
        "MB of a container, or by role: 1024,server=4096",
        group="containers",
        metavar="N|ROLE=N",
    )
    vcores: str = _option(
        "1", "cores of a container: one number, or by role, as in 1,server=2", group="containers", metavar="N|ROLE=N"
    )
    resource: tuple[str, ...] = _option(
        (),
        "yarn: of another resource, how much a container has, as in yarn.io/gpu=1; or of a role, as in "
        "worker=yarn.io/gpu=1",
        group="yarn",
        metavar="[ROLE=]NAME=N",
    )
    queue: str = _option("default", "yarn: queue of the application", group="yarn", metavar="NAME")
    priority: int = _option(
        -1, "yarn: priority of the application in its queue, higher goes first; default: the queue's", group="yarn"
    )
    lifetime_s: float = _option(
        0.0, "yarn: seconds from the submission after which YARN ends the application; 0: never", group="yarn"
    )
    acl: tuple[str, ...] = _option(
        (),
        "yarn: who else may view the application and its page, or modify it, where the cluster checks that: users "
        "joined by commas, and groups after a blank, as in view=ann,bob or 'modify=ann operators'",
        group="yarn",
        metavar="view|modify=WHO",
    )
    tags: str = _option("", "yarn: tags of the application, joined by commas", group="yarn", metavar="TAGS")
    label: str = _option(
        "",
        "yarn: label of the nodes wanted: one for all, or by role, as in worker=transient",
        group="yarn",
        metavar="NAME|ROLE=NAME",
    )
    execution: str = _option(
        "guaranteed",
        "yarn: guaranteed or opportunistic (idle room, killed without warning); by role, as in worker=opportunistic",
        group="yarn",
        metavar="KIND|ROLE=KIND",
    )
    python: str = _option(
        "",
        "yarn: interpreter that every node has, or archive of an environment (of conda-pack; a file or hdfs://...); "
        "default: this interpreter's path",
        group="yarn",
        metavar="PATH",
    )
    staging: str = _option(
        "",
        "yarn: folder of the cluster's file system for the files of jobs; default: .eps in the user's home folder",
        group="yarn",
        metavar="URL",
    )
    container_timeout_s: float = _option(
        0.0,
        "yarn: seconds that a container is waited for: then a change of size that needs it is given up; a job that "
        "starts begins without it, or, where it has too few (--start-with), asks twice more and fails; 0, the default: "
        "for ever",
        group="containers",
    )
    engine_timeout_s: float = _option(
        300.0,
        "docker: seconds without an answer of the Docker engine after which the job fails, and eps resume continues "
        "it; one container is given up when its launch has not been answered for as long",
        group="docker",
    )
    grow_back_s: float = _option(
        15.0,
        "yarn: a job that was preempted asks for that room again when it has been free for so many seconds, above its "
        "queue's own share twice as many; longer than others take from the start of their master to their requests",
        group="yarn",
    )
    # To try things out.
    stretch_s: float = _option(
        0.0,
        "seconds that a worker sleeps for each of its splits in an iteration: a small job takes the time of a larger",
        group="experiments",
    )
    # Who watches.
    metrics_port: int = _option(
        -1,
        "serve metrics for Prometheus at /metrics of this port of the loopback interface; 0 takes a free one, which "
        "the job master's log names; -1: none",
        group="monitoring",
    )
    # When somebody does not answer.
    member_timeout_s: float = _option(
        3.0,
        "seconds of silence after which a worker or server counts as lost and is killed; raise it for hundreds of "
        "members, and where a model of your own holds the interpreter for as long",
        group="recovery",
    )
    master_timeout_s: float = _option(
        60.0,
        "seconds that workers and servers wait for the next job master before they stop",
        group="recovery",
    )
    # Among whom.
    tls: bool = _option(
        False,
        "let members talk over TCP with mutual TLS, by certificates made for the job; always so on YARN and with "
        "--van tcp; needs the extra tls",
        group="network",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", tuple(self.at))
        self._check_numbers()
        self._check_words()
        self._check_cluster()
        self.triggers()
        self.checkpoint_schedule()
        if self.fold >= 0 and not self.fold < self.folds:
            raise ConfigError(f"fold is {self.fold}, but folds is {self.folds}: expected 0 to folds - 1")
        if self.folds and self.test:
            raise ConfigError(f"test ({self.test}) and folds ({self.folds}) exclude each other")
        if self.folds == 1:
            raise ConfigError("folds is 1, but cross-validation needs at least 2")

    def _check_numbers(self) -> None:
        for name, least, most in (
            ("splits", 1, MOST_PIECES), ("iterations", 1, MOST_ITERATIONS), ("workers", 1, MOST_MEMBERS),
            ("servers", 1, MOST_MEMBERS), ("partitions", 0, MOST_PIECES), ("features", 0, MOST_NUMBER),
            ("folds", 0, MOST_PIECES), ("eval_every", 0, MOST_NUMBER), ("keep", 1, MOST_NUMBER),
            ("max_containers", 0, MOST_NUMBER), ("seed", 0, MOST_NUMBER), ("rank", 0, MOST_NUMBER),
        ):  # fmt: skip
            value = getattr(self, name)
            if not value >= least:
                raise ConfigError(f"{name} is {value}, but must be at least {least}")
            if value > most:
                raise ConfigError(f"{name} is above {most}, the most that a job can have")
        if not -1 <= self.metrics_port < 1 << 16:
            raise ConfigError(f"metrics_port is {self.metrics_port}, but must be -1 (none), 0 (any) or a port")
        if self.followers not in (0, 1):
            raise ConfigError(f"followers is {self.followers}, but must be 0 or 1")
        if not 0 <= self.stretch_s < float("inf"):
            raise ConfigError(f"stretch_s is {self.stretch_s}, but must be at least 0 and finite")
        if not 0 < self.exchange_timeout_s < float("inf"):
            raise ConfigError(f"exchange_timeout_s is {self.exchange_timeout_s}, but must be above 0 and finite")
        if not 1 <= self.member_timeout_s < float("inf"):
            raise ConfigError(f"member_timeout_s is {self.member_timeout_s}, but must be at least 1 and finite")
        if not self.member_timeout_s <= self.master_timeout_s < float("inf"):
            raise ConfigError(
                f"master_timeout_s is {self.master_timeout_s}, but must be at least member_timeout_s "
                f"({self.member_timeout_s}) and finite"
            )
        if self.target_scale == 0:
            raise ConfigError("target_scale is 0, but labels are divided by it")
        if self.workers > self.splits:
            raise ConfigError(f"{self.workers} workers would share {self.splits} splits: raise --splits")
        if 0 < self.max_containers < self.workers + self.servers:
            raise ConfigError(
                f"max_containers is {self.max_containers}, but {self.workers} workers and {self.servers} servers need "
                f"{self.workers + self.servers}: they would wait for ever"
            )
        if self.partitions and self.servers > self.partitions:
            raise ConfigError(f"{self.servers} servers would share {self.partitions} partitions: raise --partitions")
        if self.batch_size != "full" and not whole_number(self.batch_size):
            raise ConfigError(f"batch_size is {self.batch_size!r}, but must be full or a number from 1 on")

    def _check_words(self) -> None:
        for name, known in (
            ("optimizer", OPTIMIZERS), ("normalize", NORMALIZATIONS), ("on_divergence", ("stop", "continue")),
            ("push", PUSHES), ("van", VANS), ("wire", WIRES), ("on", BACKENDS),
        ):  # fmt: skip
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"{name} is {value!r}, but must be one of {', '.join(known)}")
        if self.staleness() == 0 and self.reproducible and self.wire == "float16":
            raise ConfigError(
                "wire is 'float16', but the sums of bsp are reproducible to the last bit, which float16 cannot be: "
                "add --no-reproducible, or use --wire float32"
            )

    def by_role(self, name: str, role: str) -> str:
        """Return what a setting that may differ by role says of one: ``1024,server=4096`` says 4096 of servers.

        Raises
        ------
        ConfigError
            It cannot be read, or names a role that there is not.
        """
        found = general = ""
        for part in (part.strip() for part in getattr(self, name).split(",") if part.strip()):
            key, equals, value = part.partition("=")
            if not equals:
                general = key
            elif key.strip() not in ROLES or not value.strip():
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}, but must be VALUE or ROLE=VALUE, joined by commas; roles are "
                    f"{', '.join(ROLES)}"
                )
            elif key.strip() == role:
                found = value.strip()
        return found or general

    def number_by_role(self, name: str, role: str) -> int:
        """Return the number that a setting says of a role.

        Raises
        ------
        ConfigError
            It says none, or one below 1.
        """
        number = whole_number(self.by_role(name, role))
        if not number:
            raise ConfigError(
                f"{name} is {getattr(self, name)!r}, but says no number from 1 on for a {role}: one without a role is "
                f"for all that are not named, as in {'1,server=2' if name == 'vcores' else '1024,server=4096'}"
            )
        return number

    def _check_cluster(self) -> None:
        for role in ROLES:
            for name in ("memory_mb", "vcores"):
                self.number_by_role(name, role)
            self.by_role("label", role)
            kind = self.by_role("execution", role) or EXECUTIONS[0]
            if kind not in EXECUTIONS:
                raise ConfigError(f"execution is {self.execution!r}, but must name {' or '.join(EXECUTIONS)}")
        if not 0 <= self.start_with <= 1:
            raise ConfigError(f"start_with is {self.start_with}, but must be from 0 to 1")
        if not 0 < self.engine_timeout_s < float("inf"):
            raise ConfigError(f"engine_timeout_s is {self.engine_timeout_s}, but must be above 0 and finite")
        for name in ("container_timeout_s", "grow_back_s", "lifetime_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                told = f"{name.removesuffix('_s')} is {getattr(self, name):g} s"
                raise ConfigError(f"{told}, but must be at least 0 s and finite")
        if not -1 <= self.priority < 1 << 31:
            raise ConfigError(f"priority is {self.priority}, but must be 0 to {(1 << 31) - 1}, or -1: the queue's own")
        self.resources_of(ROLES[0])
        self.access()
        if self.by_role("execution", "master") == "opportunistic":
            raise ConfigError(
                "execution of the master is opportunistic, but YARN starts application masters as guaranteed"
            )

    def resources_of(self, role: str) -> tuple[tuple[str, int], ...]:
        """Return what a container of a role has beside memory and cores, as (name, number), by name.

        Raises
        ------
        ConfigError
            ``resource`` cannot be read, or names a resource that has a setting of its own.
        """
        for_all: dict[str, int] = {}
        for_role: dict[str, int] = {}
        for text in self.resource:
            head, _, rest = text.partition("=")
            whose = head if head in ROLES else ""
            name, _, number = (rest if whose else text).partition("=")
            if name in _SIZES:
                raise ConfigError(f"resource is {text!r}, but of {name} the setting {_SIZES[name]} says how much")
            count = whole_number(number)
            if not _RESOURCE.fullmatch(name) or count is None or count > MOST_NUMBER:
                raise ConfigError(
                    f"resource is {text!r}, but must be NAME=N or ROLE=NAME=N with a whole number N, as in "
                    f"yarn.io/gpu=1; roles are {', '.join(ROLES)}"
                )
            if whose in ("", role):
                (for_role if whose else for_all)[name] = count
        return tuple(sorted((name, count) for name, count in {**for_all, **for_role}.items() if count))

    def access(self) -> dict[str, str]:
        """Return ``view`` and ``modify``, as far as they are given -> users and groups, as YARN writes them.

        Raises
        ------
        ConfigError
            ``acl`` cannot be read.
        """
        found: dict[str, str] = {}
        for text in self.acl:
            access, _, who = text.partition("=")
            if access not in ACCESSES or not who.strip() or who.count(" ") > 1 or not who.isprintable():
                raise ConfigError(
                    f"acl is {text!r}, but must be view=WHO or modify=WHO: users joined by commas, then, after a "
                    "blank, groups joined by commas; * is everybody"
                )
            if access in found:
                raise ConfigError(f"acl says twice who may {access} the application: {found[access]!r} and {who!r}")
            found[access] = who
        return found

    def viewers(self) -> list[str]:
        """Return whom ``acl`` lets view the application, as entries of HDFS: ``user:ann``, ``group:research``."""
        users, _, groups = self.access().get("view", "").partition(" ")
        named = [
            (kind, name.strip()) for kind, names in (("user", users), ("group", groups)) for name in names.split(",")
        ]
        return ["other:" if name == "*" else f"{kind}:{name}" for kind, name in named if name]

    @property
    def uses_tls(self) -> bool:
        """True where members talk over TCP: between hosts, or where the user wants it so."""
        return self.tls or self.on == "yarn" or self.van == "tcp"

    def staleness(self) -> int:
        """Return the staleness bound in clocks: 0 for BSP, :data:`~eps.core.types.UNBOUNDED` for ASP."""
        if self.consistency == "bsp":
            return 0
        if self.consistency == "asp":
            return UNBOUNDED
        kind, _, bound = self.consistency.partition(":")
        if kind == "ssp" and (clocks := whole_number(bound)) is not None and clocks <= MOST_STALENESS:
            return clocks
        raise ConfigError(
            f"consistency is {self.consistency!r}, but must be bsp, ssp:N with N at most {MOST_STALENESS}, or asp"
        )

    def core_settings(self) -> CoreSettings:
        """Return what the pure core needs of these settings."""
        staleness = self.staleness()
        return CoreSettings(
            num_splits=self.splits,
            num_partitions=self.partitions or DEFAULT_PARTITIONS,
            iterations=self.iterations,
            staleness=staleness,
            reproducible=staleness == 0 and self.reproducible,
            followers=self.followers,
        )

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
        """Return what ``checkpoint_every`` says: ``10`` (clocks) or ``30s`` (seconds); an empty text is never."""
        text = self.checkpoint_every
        if not text:
            return Schedule()
        found = _EVERY.fullmatch(text)
        if found is None or int(found[1]) < 1:
            raise ConfigError(
                f"checkpoint_every is {text!r}, but must be a number of iterations from 1 on, as in 10, or of seconds, "
                "as in 30s"
            )
        return Schedule(seconds=float(found[1])) if found[2] else Schedule(clocks=int(found[1]))

    def evaluate_at(self, clock: int) -> bool:
        """Return whether the test data is evaluated at the parameters of ``clock``."""
        every = self.eval_every or max(1, self.iterations // 100)
        return clock >= 0 and (clock % every == 0 or clock == self.iterations)

    def to_json(self) -> str:
        """Return all settings as JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "settings") -> JobSpec:
        """Return the settings in ``values``; dashes in keys stand for underscores, and a final ``_s`` may be left out.

        Raises
        ------
        ConfigError
            A key is unknown (the nearest known one is named) or a value has the wrong type.
        """
        known = {f.name: f for f in dataclasses.fields(cls)}
        checked: dict[str, Any] = {}
        for key, value in values.items():
            name = known_key(key, known, source)
            checked[name] = _typed(name, value, known[name].default, source)
        return cls(**checked)

    @classmethod
    def read_toml(cls, path: Path) -> dict[str, Any]:
        """Return the keys of a TOML file as they stand there, unchecked.

        Raises
        ------
        ConfigError
            The file is missing or is not TOML.
        """
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such file") from None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from None
        return values


def known_key(key: str, known: Collection[str], source: str) -> str:
    """Return the name of a setting among ``known`` that ``key`` stands for.

    Raises
    ------
    ConfigError
        There is none; the nearest one is named.
    """
    name = key.replace("-", "_")
    for spelling in (name, f"{name}_s"):
        # The flag of a setting in seconds goes without its unit.
        if spelling in known:
            return spelling
    raise ConfigError(f"{source}: unknown key {key!r}{did_you_mean(name, known)}")


def _typed(name: str, value: Any, default: Any, source: str) -> Any:
    """Return ``value`` as the type of the field's default, where that loses nothing."""
    if isinstance(default, tuple):
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list | tuple) and all(isinstance(v, str) for v in value):
            return tuple(value)
    elif isinstance(default, bool):
        if isinstance(value, bool):
            return value
    elif isinstance(default, str):
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, list) and all(isinstance(v, int | str) for v in value):
            return ",".join(str(v) for v in value)
        if isinstance(value, Path):
            return str(value)
    elif isinstance(default, float):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ConfigError(f"{source}: {name} is {value!r}, but must be of type {type(default).__name__}")
