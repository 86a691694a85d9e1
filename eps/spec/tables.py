"""The tables of a job's settings: what is seldom set, one frozen value for each table of a job file.

A setting is one field: its type, range, default and help text.  Its flag, its key in a job file, its argument in Python
and its row in the reference follow from that.
"""

# Annotations are values here, which msgspec reads: they are not left as text.
import re
from typing import Annotated, Literal

from msgspec import Meta

from eps.core.types import MOST_MEMBERS, UNBOUNDED, Role, Tier
from eps.errors import ConfigError
from eps.spec.changes import whole_number
from eps.spec.setting import Table

EXECUTIONS = ("guaranteed", "opportunistic")
ROLES = ("worker", "server", "master")
#: Kinds of containers of a job: with a member of one role, or, if it has tiers, with a worker and a server.
KINDS = (*ROLES, *Tier)
#: Largest bound of ssp; asp has none.
MOST_STALENESS = 1_000_000_000
#: Largest number that every part of a job can encode.
MOST_NUMBER = 2**63 - 1

#: Rights to an application of YARN.
ACCESSES = ("view", "modify")
#: As YARN names resources: ``yarn.io/gpu``.
_RESOURCE = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]*/)?[A-Za-z][\w.-]*", re.ASCII)
#: Resources with a setting of their own -> the setting.
_SIZES = {"memory": "memory_mb", "memory-mb": "memory_mb", "vcores": "vcores", "cpu": "vcores"}

MAX_LAG_S = 60.0


class Reading(Table, frozen=True):
    """How the data is read."""

    format: Annotated[
        str,
        "auto, libsvm, csv, dense, npz, npy, idx, text (n-grams), ratings (user, item, rating), docword, ldac (both "
        "counts of words) or sklearn",
        "NAME",
    ] = "auto"
    label_column: Annotated[
        str, "column with the label in dense text: auto, first, last, a number or a name", "NAME|N"
    ] = "auto"
    columns: Annotated[str, "columns of dense text to keep: names or numbers joined by commas", "NAMES"] = ""
    target_scale: Annotated[float, "divide a regression's labels by this"] = 1.0
    delimiter: Annotated[str, "column separator of dense text; auto detects it", "C"] = "auto"
    index_base: Annotated[str, "index of the first feature in LIBSVM files: auto, 0 or 1", "auto|0|1"] = "auto"

    def check(self) -> None:
        if self.target_scale == 0:
            raise ConfigError("target_scale is 0, but labels are divided by it")


class Training(Table, frozen=True):
    """How the model is trained, beside optimizer and step size."""

    momentum: Annotated[float, "momentum: fraction of the last step to keep"] = 0.9
    beta1: Annotated[float, "adam: decay of the mean of gradients"] = 0.9
    beta2: Annotated[float, "adam: decay of the mean of squares"] = 0.999
    consistency: Annotated[str, "bsp, ssp:N (at most N clocks ahead) or asp", "NAME"] = "bsp"
    reproducible: Annotated[
        bool,
        "compute sums that do not depend on which member adds what: the model is then bit-identical at any size of "
        "the job; applies to bsp only; --no-reproducible saves a little time",
    ] = True
    init: Annotated[str, "start from this exported model (.npz)", "PATH"] = ""
    eval_every: Annotated[
        int,
        Meta(ge=0, le=MOST_NUMBER),
        "evaluate on the test data in every N-th iteration, and in the first; 0: about 100 times",
    ] = 0
    on_divergence: Annotated[
        Literal["stop", "continue"], "when the loss is not finite: stop or continue", "stop|continue"
    ] = "stop"

    def check(self) -> None:
        self.staleness()

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


class Recovery(Table, frozen=True):
    """When a member counts as lost, and what replaces it."""

    exchange_timeout_s: Annotated[
        float, Meta(gt=0), "seconds after which a worker stops waiting for a clock to complete"
    ] = 600.0
    followers: Annotated[
        int,
        Meta(ge=0, le=1, description="0 or 1"),
        "copies of each partition on other servers, 0 or 1; with 1, the loss of a server costs no rollback",
    ] = 1
    member_timeout_s: Annotated[
        float,
        Meta(ge=1),
        "seconds of silence after which a worker or server counts as lost and is killed; raise it for hundreds of "
        "members, and if your own model holds the interpreter for as long",
    ] = 3.0
    master_timeout_s: Annotated[
        float, "seconds that workers and servers wait for the next job master before they stop"
    ] = 60.0

    def check(self) -> None:
        if self.master_timeout_s < self.member_timeout_s:
            raise ConfigError(
                f"master_timeout_s is {self.master_timeout_s}, but must be at least member_timeout_s "
                f"({self.member_timeout_s})"
            )


class Network(Table, frozen=True):
    """How members exchange data."""

    push: Annotated[
        Literal["auto", "dense", "changes"],
        "what workers push and pull: auto (with sparse data the keys that their splits touch, else all keys), dense "
        "(all keys) or changes (as auto, without zeros)",
        "NAME",
    ] = "auto"
    wire: Annotated[
        Literal["float32", "float16"],
        "float32, or float16: half the bytes, not with reproducible sums",
        "float32|float16",
    ] = "float32"
    #: As in ``eps.net.arrays.negotiated``.
    van: Annotated[
        Literal["auto", "shm", "unix", "tcp"],
        "transport: auto (the best that two members share), shm, unix or tcp",
        "NAME",
    ] = "auto"
    tls: Annotated[
        bool,
        "use mutual TLS between members over TCP, with certificates made for the job; always on with --on yarn and "
        "--van tcp; needs the extra tls",
    ] = False


class Containers(Table, frozen=True):
    """How many processes there may be, and how large they are."""

    max_containers: Annotated[int, Meta(ge=0, le=MOST_NUMBER), "most containers that run at once; 0: no limit"] = 0
    start_with: Annotated[
        float,
        Meta(ge=0, le=1),
        "fraction of its workers and of its servers with which a job starts if the cluster grants no more for 20 "
        "seconds; 1: all of them, 0: one of each",
        "PART",
    ] = 0.5
    #: Of a tier the number may be given, too; default: that of a worker and a server in sum.
    memory_mb: Annotated[str, "MB of a container, or by role: 1024,server=4096", "N|ROLE=N"] = "1024,master=512"
    vcores: Annotated[str, "cores of a container: one number, or by role, as in 1,server=2", "N|ROLE=N"] = "1"
    container_timeout_s: Annotated[
        float,
        Meta(ge=0),
        "yarn: seconds to wait for a container; then the master cancels the change of size that needs it; a job that "
        "starts begins without it or, with too few (--start-with), asks twice more and fails; 0: no limit",
    ] = 0.0

    def check(self) -> None:
        for kind in KINDS:
            self.memory_of(kind), self.vcores_of(kind)

    def memory_of(self, kind: str) -> int:
        """Return the MB of a container of a role or tier."""
        return _size_of("memory_mb", self.memory_mb, kind, "1024,server=4096")

    def vcores_of(self, kind: str) -> int:
        """Return the cores of a container of a role or tier."""
        return _size_of("vcores", self.vcores, kind, "1,server=2")


class Tiers(Table, frozen=True):
    """Containers that may be taken away, beside reliable ones."""

    reliable: Annotated[
        int,
        Meta(ge=0, le=MOST_MEMBERS),
        "containers that are not taken away, each for a worker and a server; instead of --workers and --servers",
    ] = 0
    transient: Annotated[
        int, Meta(ge=0, le=MOST_MEMBERS), "containers that may be taken away at any time, beside reliable ones"
    ] = 0
    stage_rule: Annotated[
        Literal["auto", "ratio", "1", "2", "3"],
        "what decides who serves the parameters: auto (numbers of containers, and measurements), ratio (numbers), or "
        "a fixed stage: 1 (reliable containers), 2 (half of the transient ones) or 3 (as 2, reliable ones do not work)",
        "NAME",
    ] = "auto"
    max_lag_s: Annotated[
        float,
        Meta(ge=0),
        "stages 2 and 3: most seconds of training that the job computes again if a transient container fails; the "
        "copies on reliable ones are updated often enough for that, if the network allows; 0: no limit",
    ] = MAX_LAG_S

    def check(self) -> None:
        for name, default in (("stage_rule", "auto"), ("max_lag_s", MAX_LAG_S)):
            value = getattr(self, name)
            if value != default and not self.reliable:
                raise ConfigError(
                    f"{name} is {value!r}, but reliable is 0: only a job on reliable and transient containers has "
                    "stages"
                )
        if self.transient and not self.reliable:
            raise ConfigError(
                f"transient is {self.transient}, but reliable is 0: a job needs at least one reliable container, which "
                "keeps its state"
            )

    @property
    def total(self) -> int:
        """Number of containers of both tiers; 0 for a job whose containers have one member each."""
        return self.reliable + self.transient


class Checkpoints(Table, frozen=True):
    """Where checkpoints are, and how many."""

    keep: Annotated[int, Meta(ge=1, le=MOST_NUMBER), "number of checkpoints to keep"] = 2
    checkpoint_dir: Annotated[
        str,
        "folder in which each job gets a folder for its checkpoints; a path or hdfs://...; default: in the job's "
        "directory",
        "PATH",
    ] = ""


class Docker(Table, frozen=True):
    """A job in containers of Docker."""

    image: Annotated[str, "docker: image of the containers; it must have EPS", "NAME"] = "eps"
    engine_timeout_s: Annotated[
        float,
        Meta(gt=0),
        "docker: seconds without an answer of the Docker engine after which a launch is abandoned, or the job fails; "
        "eps resume continues it",
    ] = 300.0


class Yarn(Table, frozen=True):
    """A job on YARN."""

    resource: Annotated[
        tuple[str, ...],
        "yarn: amount of another resource in each container, as in yarn.io/gpu=1; or by role, as in "
        "worker=yarn.io/gpu=1",
        "[ROLE=]NAME=N",
    ] = ()
    queue: Annotated[str, "yarn: queue of the application", "NAME"] = "default"
    priority: Annotated[
        int,
        Meta(ge=-1, le=2147483647, description="0 to 2147483647, or -1: the queue's own"),
        "yarn: priority of the application in its queue, higher goes first; default: the queue's",
    ] = -1
    lifetime_s: Annotated[
        float, Meta(ge=0), "yarn: seconds from the submission after which YARN ends the application; 0: never"
    ] = 0.0
    acl: Annotated[
        tuple[str, ...],
        "yarn: users and groups that may view the application and its page, or modify it, if the cluster checks "
        "ACLs: users joined by commas, a blank, groups joined by commas, as in view=ann,bob or 'modify=ann operators'",
        "view|modify=WHO",
    ] = ()
    tags: Annotated[str, "yarn: tags of the application, joined by commas", "TAGS"] = ""
    label: Annotated[
        str,
        "yarn: label of the nodes to use: one for all, or by role, as in worker=transient, or by tier, as in "
        "reliable=ondemand,transient=spot",
        "NAME|ROLE=NAME|TIER=NAME",
    ] = ""
    execution: Annotated[
        str,
        "yarn: guaranteed or opportunistic (idle capacity, killed without warning); by role, as in "
        "worker=opportunistic, or by tier, as in transient=opportunistic",
        "KIND|ROLE=KIND|TIER=KIND",
    ] = "guaranteed"
    python: Annotated[
        str,
        "yarn: path of an interpreter that every node has, or an archive by conda-pack (a file or hdfs://...); "
        "default: this interpreter's path",
        "PATH",
    ] = ""
    staging: Annotated[
        str,
        "yarn: folder for the files of jobs on the cluster's file system; default: .eps in the user's home folder",
        "URL",
    ] = ""
    grow_back_s: Annotated[
        float,
        Meta(ge=0),
        "yarn: seconds for which capacity must be free before a preempted job asks for it again; twice as many above "
        "its queue's own share; must exceed the time from the start of other applications' masters to their requests",
    ] = 15.0

    def check(self) -> None:
        for kind in KINDS:
            self.label_of(kind)
            if self.execution_of(kind) not in EXECUTIONS:
                raise ConfigError(f"execution is {self.execution!r}, but must name {' or '.join(EXECUTIONS)}")
        if self.execution_of("master") == "opportunistic":
            raise ConfigError(
                "execution of the master is opportunistic, but YARN starts application masters as guaranteed"
            )
        self.resources_of(ROLES[0])
        self.access()

    def check_kinds(self, tiers: Tiers) -> None:
        """Refuse placements of containers that a job with these tiers does not have.

        Raises
        ------
        ConfigError
            ``label`` or ``execution`` names a tier of a job without tiers, or a role of a job with tiers; or reliable
            containers are opportunistic.
        """
        others = tuple(Role) if tiers.total else tuple(Tier)
        for name, text in (("label", self.label), ("execution", self.execution)):
            for kind in (part.partition("=")[0].strip() for part in text.split(",") if "=" in part):
                if kind in others:
                    advice = "name tiers instead" if tiers.total else "add --reliable and --transient, or name roles"
                    raise ConfigError(f"{name} is {text!r}, but the job has no {kind} containers: {advice}")
        if tiers.total and self.execution_of(Tier.RELIABLE) == "opportunistic":
            raise ConfigError(
                f"execution is {self.execution!r}, but YARN kills opportunistic containers without warning, so "
                "reliable ones must be guaranteed: use transient=opportunistic"
            )

    def label_of(self, kind: str) -> str:
        """Return the label of the nodes that containers of a role or tier want; empty for none.

        The master wants that of reliable containers, if it has none of its own.
        """
        label = _by_role("label", self.label, kind, KINDS)
        return self.label_of(Tier.RELIABLE) if kind == "master" and not label else label

    def execution_of(self, kind: str) -> str:
        """Return the execution type of containers of a role or tier."""
        return _by_role("execution", self.execution, kind, KINDS) or EXECUTIONS[0]

    def resources_of(self, role: str) -> tuple[tuple[str, int], ...]:
        """Return the resources of a role's container beside memory and cores, as (name, number), sorted by name.

        Raises
        ------
        ConfigError
            ``resource`` is malformed, or names a resource with a setting of its own.
        """
        for_all: dict[str, int] = {}
        for_role: dict[str, int] = {}
        for text in self.resource:
            head, _, rest = text.partition("=")
            whose = head if head in ROLES else ""
            name, _, number = (rest if whose else text).partition("=")
            if name in _SIZES:
                raise ConfigError(f"resource is {text!r}, but {name} is set by {_SIZES[name]}")
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
        """Return ``view`` and ``modify``, if given -> users and groups, as YARN writes them.

        Raises
        ------
        ConfigError
            ``acl`` is malformed.
        """
        found: dict[str, str] = {}
        for text in self.acl:
            access, _, who = text.partition("=")
            if access not in ACCESSES or not who.strip() or who.count(" ") > 1 or not who.isprintable():
                raise ConfigError(
                    f"acl is {text!r}, but must be view=WHO or modify=WHO: users joined by commas, then, after a "
                    "blank, groups joined by commas; * means everybody"
                )
            if access in found:
                raise ConfigError(f"acl says twice who may {access} the application: {found[access]!r} and {who!r}")
            found[access] = who
        return found

    def viewers(self) -> list[str]:
        """Return the viewers of ``acl`` as entries of an ACL of HDFS: ``user:ann``, ``group:research``."""
        users, _, groups = self.access().get("view", "").partition(" ")
        named = [
            (kind, name.strip()) for kind, names in (("user", users), ("group", groups)) for name in names.split(",")
        ]
        return ["other:" if name == "*" else f"{kind}:{name}" for kind, name in named if name]


class Monitoring(Table, frozen=True):
    """Who may watch a job."""

    metrics_port: Annotated[
        int,
        Meta(ge=-1, le=65535, description="-1 (none), 0 (any) or a port"),
        "port of the loopback interface for Prometheus metrics, at /metrics; 0: a free one, which the job master's "
        "log names; -1: none",
    ] = -1


def _by_role(name: str, text: str, role: str, known: tuple[str, ...] = ROLES) -> str:
    """Return a role's part of a setting that may differ by role: 4096 for a server in ``1024,server=4096``.

    Parameters
    ----------
    known : tuple of str
        Those that the setting may name.

    Raises
    ------
    ConfigError
        It is malformed, or names an unknown role.
    """
    found = general = ""
    for part in (part.strip() for part in text.split(",") if part.strip()):
        key, equals, value = part.partition("=")
        if not equals:
            general = key
        elif key.strip() not in known or not value.strip():
            tiers = f"; tiers are {', '.join(Tier)}" if known is KINDS else ""
            raise ConfigError(
                f"{name} is {text!r}, but must be VALUE or ROLE=VALUE, joined by commas; roles are {', '.join(ROLES)}"
                f"{tiers}"
            )
        elif key.strip() == role:
            found = value.strip()
    return found or general


def _size_of(name: str, text: str, kind: str, example: str) -> int:
    """Return a container's number in a setting that may differ by role and by tier.

    Without a number of its own, a container of a tier has those of a worker and a server in sum.  Raises as
    :func:`_number_by_role`.
    """
    named = {part.partition("=")[0].strip() for part in text.split(",") if "=" in part}
    kinds = tuple(Role) if kind in tuple(Tier) and kind not in named else (kind,)
    return sum(_number_by_role(name, text, each, example) for each in kinds)


def _number_by_role(name: str, text: str, role: str, example: str) -> int:
    """Return a role's number in a setting that may differ by role.

    Raises
    ------
    ConfigError
        The role has none, or one below 1.
    """
    number = whole_number(_by_role(name, text, role, KINDS))
    if not number:
        raise ConfigError(
            f"{name} is {text!r}, but must have a number from 1 on for a {role}: a number without a role holds for all "
            f"other roles, as in {example}"
        )
    return number
