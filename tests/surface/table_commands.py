"""Tables: the commands of both programs, their flags, and exit codes.

A row may be added freely.  Removing or changing one breaks scripts: say so in CHANGELOG.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Flag(NamedTuple):
    """A setting of a job: as a flag of ``eps run``, as a key of a job file and as an argument of the Python API."""

    flag: str
    #: On the command line; None for a flag without a value.
    word: str | None
    #: In a job file and in Python.
    value: Any
    #: A value that the command refuses before anything starts; None where there is no such value.
    bad: str | None = None
    default: Any = None

    @property
    def words(self) -> list[str]:
        """The flag with its value, as words of a command line."""
        return [self.flag] if self.word is None else [self.flag, self.word]

    @property
    def key(self) -> str:
        """The name of the setting in a job file and in Python."""
        return self.flag.removeprefix("--").removeprefix("no-").replace("-", "_")


#: Where results go, and the job's name: these are not settings of the job itself.
RESULT_FLAGS = (
    Flag("--name", "trained", "trained", ""),
    Flag("--report", "report.json", "report.json"),
    Flag("--export", "model.npz", "model.npz"),
)
#: One job is trained with all of these together.
CORE_FLAGS = (
    Flag("--data", "rows.svm", "rows.svm", default=""),
    Flag("--test", "0.25", 0.25, default=""),
    Flag("--model", "softmax", "softmax", default="logistic"),
    Flag("--features", "5", 5, "x", 0),
    Flag("--workers", "2", 2, "0", 3),
    Flag("--servers", "2", 2, "0", 3),
    Flag("--splits", "6", 6, "1.5", 12),
    Flag("--iterations", "30", 30, "many", 100),
    Flag("--batch-size", "40", 40, "some", "full"),
    Flag("--optimizer", "sgd", "sgd", "magic", "adam"),
    Flag("--learning-rate", "0.2", 0.2, "fast", 0.1),
    Flag("--l1", "0.001", 0.001, "x", 0.0),
    Flag("--l2", "0.0001", 0.0001, "x", 0.0),
    Flag("--seed", "5", 5, "-1", 0),
    Flag("--stretch", "0.002", 0.002, "-1", 0.0),
    Flag("--at", "5:add-workers=1", ["5:add-workers=1"], "5:add-workers", ()),
    Flag("--checkpoint-every", "10", "10", "often", ""),
    Flag("--on", "local", "local", "moon", "local"),
)
#: Shown in README.md and docs/.
MORE_FLAGS = (
    Flag("--labels", "labels.npy", "labels.npy", default=""),
    Flag("--test", "test.svm", "test.svm", default=""),
    Flag("--test", "last:20", "last:20", default=""),
    Flag("--test-labels", "labels.npy", "labels.npy", default=""),
    Flag("--folds", "5", 5, "1", 0),
    Flag("--format", "libsvm", "libsvm", default="auto"),
    Flag("--label-column", "first", "first", default="auto"),
    Flag("--normalize", "l2", "l2", "sideways", "none"),
    Flag("--hidden", "64,32", "64,32", default="128"),
    Flag("--rank", "8", 8, "x", 0),
    Flag("--topics", "8", 8, "x", 0),
    Flag("--no-intercept", None, False, default=True),
    Flag("--batch-size", "full", "full", default="full"),
    Flag("--momentum", "0.8", 0.8, "x", 0.9),
    Flag("--consistency", "bsp", "bsp", default="bsp"),
    Flag("--consistency", "ssp:3", "ssp:3", "ssp", "bsp"),
    Flag("--consistency", "asp", "asp", "async", "bsp"),
    Flag("--no-reproducible", None, False, default=True),
    Flag("--init", "model.npz", "model.npz", default=""),
    Flag("--partitions", "4", 4, "-1", 0),
    Flag("--followers", "0", 0, "2", 1),
    Flag("--checkpoint-every", "30s", "30s", "30h", ""),
    Flag("--keep", "1", 1, "0", 2),
    Flag("--checkpoint-dir", "checkpoints", "checkpoints", default=""),
    Flag("--on", "docker", "docker", default="local"),
    Flag("--on", "yarn", "yarn", default="local"),
    Flag("--image", "eps:1", "eps:1", default="eps"),
    Flag("--memory-mb", "1024,server=2048", "1024,server=2048", "little", "1024,master=512"),
    Flag("--vcores", "1,server=2", "1,server=2", "0", "1"),
    Flag("--queue", "research", "research", default="default"),
    Flag("--priority", "3", 3, "-2", -1),
    Flag("--lifetime", "3600", 3600.0, "-1", 0.0),
    Flag("--acl", "view=ann,bob", ["view=ann,bob"], "read=ann", ()),
    Flag("--resource", "worker=yarn.io/gpu=1", ["worker=yarn.io/gpu=1"], "yarn.io/gpu", ()),
    Flag("--tags", "a,b", "a,b", ",", ""),
    Flag("--label", "worker=transient", "worker=transient", "clerk=transient", ""),
    Flag("--python", "env.tar.gz", "env.tar.gz", default=""),
    Flag("--staging", "hdfs:///staging", "hdfs:///staging", default=""),
    Flag("--member-timeout", "5", 5.0, "0", 3.0),
    Flag("--metrics-port", "0", 0, "-2", -1),
    Flag("--tls", None, True, default=False),
)
#: Models, with what they need beside the data.
MODELS = {
    "svm": "",
    "logistic": "",
    "linear": "",
    "lasso": "--l1 0.1",
    "ridge": "--l2 0.1",
    "robust": "",
    "softmax": "",
    "dnn": "",
    "mf": "",
    "lda": "",
}
OPTIMIZERS = ("sgd", "momentum", "adagrad", "adam", "ftrl")
POLICIES = ("elastic", "static", "static-stop", "kill", "priority", "gain")


class Line(NamedTuple):
    """A command line that ends at once, and shows by that all its flags are understood.

    ``{missing}`` is a file that does not exist, ``{folder}`` an empty folder and ``{closed}`` an address at which
    nothing listens.
    """

    words: str
    code: int
    #: A value of the line that the command prints when it gets that far; empty where it succeeds.
    told: str = ""


NOBODY = "no-such-job"
EPS_LINES = (
    Line("run {missing} --anew --detach --quiet --verbose", 2, "{missing}"),
    Line("submit {missing} --name j --anew", 2, "{missing}"),
    Line("run --help-all", 0),
    Line("submit --help-all", 0),
    Line("help", 0),
    Line("help scale", 0),
    Line(f"status {NOBODY}", 4, NOBODY),
    Line(f"status {NOBODY} --json", 4, NOBODY),
    Line(f"scale {NOBODY} workers=+2 servers=-1", 4, NOBODY),
    Line(f"scale {NOBODY} containers=-container-2,container-3", 4, NOBODY),
    Line(f"scale {NOBODY} servers=+1 --dry-run --no-wait --request-id r", 4, NOBODY),
    Line(f"add-workers {NOBODY}", 4, NOBODY),
    Line(f"add-workers {NOBODY} 2 --dry-run", 4, NOBODY),
    Line(f"add-workers {NOBODY} 2 --no-wait --request-id r", 4, NOBODY),
    Line(f"add-servers {NOBODY} 2 --dry-run --no-wait --request-id r", 4, NOBODY),
    Line(f"remove-workers {NOBODY} 2 --dry-run --no-wait --request-id r", 4, NOBODY),
    Line(f"remove-workers {NOBODY} worker-1,worker-2", 4, NOBODY),
    Line(f"remove-servers {NOBODY} server-1 --dry-run --no-wait --request-id r", 4, NOBODY),
    Line(f"cancel {NOBODY}", 4, NOBODY),
    Line(f"cancel {NOBODY} 3", 4, NOBODY),
    Line(f"logs {NOBODY}", 4, NOBODY),
    Line(f"logs {NOBODY} worker-1 --follow", 4, NOBODY),
    Line(f"fetch {NOBODY}", 4, NOBODY),
    Line(f"kill {NOBODY}", 4, NOBODY),
    Line(
        f"resume {NOBODY} --workers 3 --servers 2 --python p --report r.json --export m.npz --quiet --verbose",
        4,
        NOBODY,
    ),
    Line(f"resume {NOBODY} --detach --verbose", 4, NOBODY),
    Line("list", 0),
    Line(f"list {NOBODY} --last 3 --state running,finished,killed,failed --json", 0),
    Line("prune --all --dry-run", 0),
    Line(f"prune {NOBODY} --state failed,killed --older-than 7d --resumable --dry-run", 0),
    Line("predict --model {missing} --data d.csv --labels l.npy --format csv --out o.txt --json", 2, "{missing}"),
    Line("devcluster status --home {folder} --json", 4, "{folder}"),
    Line("devcluster stop --home {folder}", 0),
    # That it prints `export HADOOP_CONF_DIR=` is shown where there is a Hadoop: tests/yarn/conftest.py.
    Line("devcluster start --home {folder} --memory 2048 --vcores 2 --timeout 60 --nodes 987654321", 2, "987654321"),
    Line("--version", 0),
)
HSCHEDULER_LINES = (
    Line(
        "sweep {missing} --policy elastic --on local --trials 3 --seed 2 --report r.json --page p.html --web 0 --plain "
        "--target loss=0.5 --quiet --tensorboard t --mlflow m --stop none",
        2,
        "{missing}",
    ),
    Line("sweep {missing} --state {folder} --name mine --detach", 2, "{missing}"),
    Line("sweep {missing} --scheduler {closed}", 2, "{missing}"),
    Line(f"sweep --resume {NOBODY}", 4, NOBODY),
    Line("sweeps --all", 0),
    Line(f"sweeps --remove {NOBODY}", 4, NOBODY),
    Line(
        "compare {missing} --policies elastic,static --on local --trials 3 --seed 2 --report r.json --page p.html "
        "--quiet --target loss=0.5 --size best --stop sha",
        2,
        "{missing}",
    ),
    Line(
        "simulate {missing} --policy elastic,static --trials 3 --seed 2 --report r.json --page p.html --verbose "
        "--target loss=0.5 --size best --stop asha",
        2,
        "{missing}",
    ),
    Line("simulate --like {missing} --seed 2", 2, "{missing}"),
    Line("simulate --trace {missing} --trials 2", 2, "{missing}"),
    Line("simulate --paper --model {missing}", 2, "{missing}"),
    Line("fit {missing} --model m.json", 2, "{missing}"),
    Line("results {missing} --csv --export-best m.npz --tensorboard t --mlflow m", 2, "{missing}"),
    Line("page {missing} --out p.html", 2, "{missing}"),
    Line(
        "serve --state {folder} --policy elastic --nodes 2 --vcores 4 --memory 8GiB --container-vcores 1 "
        "--container-memory 1GiB --on docker --threshold 2 --stop median --feedback-iteration 5 "
        "--kill-restart 1 --seed 3 --web 0 --listen nowhere",
        2,
        "nowhere",
    ),
    Line("submit {missing} --name j --sweep s --wait --state {folder} --scheduler {closed}", 2, "{missing}"),
    Line(
        "yarn-plugin --secret-file {folder}/secret --listen 0.0.0.0:0 --feedback-iteration 50 --staging hdfs://nn/staging",
        2,
        "0.0.0.0:0",
    ),
    Line("--version", 0),
)
#: Said of a running service, ``{state}`` being its directory and ``{address}`` where it listens.
SERVICE_LINES = (
    Line("jobs --state {state} --scheduler {address}", 0),
    Line(f"jobs {NOBODY} --all --json --state {{state}}", 4, NOBODY),
    Line(f"why {NOBODY} --state {{state}} --scheduler {{address}}", 4, NOBODY),
    Line(f"kill {NOBODY} --state {{state}} --scheduler {{address}}", 4, NOBODY),
    Line(f"results {NOBODY} --csv --state {{state}} --scheduler {{address}}", 4, NOBODY),
    Line(f"page {NOBODY} --out {{missing}} --state {{state}} --scheduler {{address}}", 4, NOBODY),
)

#: What happened -> the exit code; of ``eps`` where nothing else is said.
EXIT_CODES = {
    "the job finished": 0,
    "whoever read the output has gone": 0,
    "the job failed": 1,
    "another command killed the job": 1,
    "the report could not be written": 1,
    "there is no such command": 2,
    "there is no such flag": 2,
    "a flag is abbreviated": 2,
    "an argument is missing": 2,
    "the value of a flag is bad": 2,
    "the job file has an unknown key": 2,
    "the data is missing": 2,
    "a job of that name runs": 2,
    "HDFS refuses the token": 2,
    "the change was refused": 3,
    "there is no change to cancel": 3,
    "there is no such job": 4,
    "the job has no such log": 4,
    "HDFS is away": 4,
    "the ResourceManager is away": 4,
    "the Docker engine is away": 4,
    "the user pressed Ctrl-C": 130,
    "hscheduler: the sweep has a best point": 0,
    "hscheduler: the service was told to stop": 0,
    "hscheduler: the user pressed Ctrl-C in the service": 0,
    "hscheduler: no trial finished": 1,
    "hscheduler: the submitted job failed": 1,
    "hscheduler: no trial of a comparison finished": 1,
    "hscheduler: there is no such command": 2,
    "hscheduler: a flag is abbreviated": 2,
    "hscheduler: the sweep's file has an unknown key": 2,
    "hscheduler: there is no such policy": 2,
    "hscheduler: there is no such job": 4,
    "hscheduler: the service has ended": 4,
    "hscheduler: the ResourceManager is away": 4,
    "hscheduler: the user pressed Ctrl-C in a sweep": 130,
}
