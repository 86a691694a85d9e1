"""A sweep whose trials are applications of YARN, with H-scheduler's plugin in the ResourceManager and without it.

    python benchmarks/yarn/native.py [--interval 4] [--cases static,plugin] [--output native.json] [--quick]

The benchmark starts a cluster for each case (``eps devcluster``: 12 cores) and submits the trials of ``sweep.toml`` as
``eps submit`` does, one every ``--interval`` seconds (0: all at once).  Each trial requests 3 workers and 1 server
besides its application master, and waits in YARN's queue for them.  The queue may run four application masters, so two
trials may wait with theirs running.

static
    YARN alone.
plugin
    The ResourceManager loads the plugin, which Maven builds first, and ``hscheduler yarn-plugin`` answers it.  Waiting
    trials start in containers that YARN's PreemptionMessage takes from others.

If more trials than the threshold are in the training phase, the one with the worst early feedback is stopped; with YARN
alone this never happens.  ``first_iteration_s`` runs from the call that submits a trial to its first complete
iteration, ``feedback_s`` to its early feedback, both by the job masters' clocks.  At the end every finished trial is
trained once more, alone on this machine.  It must have the same model, and no update may be lost.  JSON goes to
standard output, a table to standard error.  Ctrl-C stops everything."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
sys.path.insert(0, str(ROOT))

import eps  # noqa: E402
from benchmarks.bench_common import (  # noqa: E402
    Bar,
    conclude,
    end_in_order,
    new_file,
    positive,
    ratio,
    run_to_the_end,
    say,
)
from eps.cluster.devcluster.jars import REPOSITORY_VARIABLE, find_maven  # noqa: E402
from eps.cluster.devcluster.lifecycle import start_cluster, stop_cluster  # noqa: E402
from eps.cluster.devcluster.settings import HADOOP_VERSION, ClusterSettings  # noqa: E402
from eps.errors import EpsError, ResourceError  # noqa: E402
from eps.job.client import Job  # noqa: E402
from eps.storage.jobdir import cache_dir  # noqa: E402
from hscheduler.spec import Spec, memory_mb  # noqa: E402
from hscheduler.yarn.endpoint import secret_of  # noqa: E402

PLUGIN = ROOT / "hscheduler" / "yarn-plugin"
POLICY = "hscheduler.yarn.HSchedulerPolicy"
MAIN = "import sys; from hscheduler.cli import main; sys.exit(main(sys.argv[1:]))"
CASES = ("static", "plugin")
#: Of 12 cores: four application masters.
MASTERS_SHARE = "0.34"
#: The plugin's defaults, with more time for an answer, since other programs may use the machine.
PLUGIN_SETTINGS = {"interval-ms": 500, "deadline-ms": 2000, "max-age-ms": 10_000, "grace-ms": 15_000}
LOOK_S, ASK_TIMEOUT_S = 0.25, 5.0
#: Timeouts of a case, of each wait at its start and end, and of Maven.
CASE_TIMEOUT_S, WAIT_S, BUILD_TIMEOUT_S = 3600.0, 60.0, 600.0


@dataclass
class Trial:
    """One application."""

    name: str
    settings: dict[str, Any]
    #: Its job, once YARN has started its application master.
    starts: Future[Job]
    #: Times of its submission and of the start of its job master, on the clock of this process.
    submitted_s: float
    began_s: float | None = None
    #: Loss of the early feedback; None before it.
    feedback: float | None = None
    #: Whether it was stopped because of its early feedback.
    stopped: bool = False
    ended_s: float | None = None
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def job(self) -> Job:
        """The started job; raises the error of a start that failed."""
        return self.starts.result(0.0)

    @property
    def in_training(self) -> bool:
        """Whether it continues after its early feedback."""
        return self.feedback is not None and self.ended_s is None and not self.stopped

    def seconds_to(self, clock: int) -> float | None:
        """Return the seconds from its submission until a clock was complete; None if it was not, or is not known."""
        found = [entry["seconds"] for entry in self.report.get("history", ()) if entry["clock"] == clock]
        if not found or self.began_s is None:
            return None
        return round(self.began_s + float(found[0]) - self.submitted_s, 3)

    def entry(self, feedback_iteration: int, began_s: float) -> dict[str, Any]:
        """Return its entry in the results."""
        report = self.report
        evictions, changes = report.get("evictions", {}), report.get("changes", ())
        ledger = report.get("ledger", {})
        return {
            "name": self.name,
            "point": {key: self.settings[key] for key in ("learning_rate", "l2") if key in self.settings},
            "state": "stopped" if self.stopped and report["state"] == "killed" else report["state"],
            "submitted_s": round(self.submitted_s - began_s, 3),
            "first_iteration_s": self.seconds_to(0),
            "feedback_s": self.seconds_to(feedback_iteration - 1),
            "ended_s": None if self.ended_s is None else round(self.ended_s - began_s, 3),
            "feedback_loss": self.feedback,
            "loss": report["metrics"]["train_loss"],
            "preempted": evictions.get("asked", 0),
            "evictions": {key: evictions.get(key, 0) for key in ("drained", "late", "lost", "withdrawn", "warned")},
            "drain_s": sorted(evictions.get("drain_s", {}).values()),
            "moves": sum(change["phase"] == "released" for change in changes),
            "bytes_moved": sum(change["bytes_moved"] for change in changes),
            "members_lost": len(report.get("losses", ())),
            "updates_lost": ledger.get("lost"),
            "updates_twice": ledger.get("applied_twice"),
            "model_sha256": report["model_sha256"],
        }


def worst_of(trials: Sequence[Trial], threshold: int) -> Trial | None:
    """Return the worst trial in the training phase if there are more than the threshold, else None.

    Source: EPS §6; as :func:`hscheduler.stopping.early_feedback.stop_the_worst`, of losses.
    """
    training = [trial for trial in trials if trial.in_training]
    if not threshold or len(training) <= threshold:
        return None
    return max(training, key=lambda trial: trial.feedback if trial.feedback is not None else 0.0)


# ---- plugin and cluster


def build_plugin(folder: Path) -> Path:
    """Build the plugin with Maven, as its README says; return the jar.

    Raises
    ------
    ResourceError
        Maven fails, or cannot be downloaded.
    """
    maven = find_maven(cache_dir() / "maven", lambda text: None)
    command = [maven, "-q", "-B", "-f", str(PLUGIN / "pom.xml"), f"-Dhadoop.version={HADOOP_VERSION}"]
    mirror = os.environ.get(REPOSITORY_VARIABLE)
    if mirror:
        one = f"<mirror><id>mirror</id><mirrorOf>central</mirrorOf><url>{mirror}</url></mirror>"
        (folder / "settings.xml").write_text(f"<settings><mirrors>{one}</mirrors></settings>", encoding="utf-8")
        command.append(f"--settings={folder / 'settings.xml'}")
    done = subprocess.run(
        [*command, f"-Dtarget={folder}", "package"], capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
    )
    if done.returncode:
        raise ResourceError(f"Maven cannot build the plugin:\n{done.stdout}{done.stderr}")
    return folder / "hscheduler-yarn-plugin.jar"


def cluster_settings(jar: Path | None, url: str, secret: Path) -> ClusterSettings:
    """Return the settings of a cluster of three nodes of four cores; without a ``jar`` it has no plugin."""
    properties = [("yarn.scheduler.capacity.maximum-am-resource-percent", MASTERS_SHARE)]
    if jar is None:
        return ClusterSettings(no_preemption=("default",), properties=tuple(properties))
    values = {"url": url, "secret-file": secret, **PLUGIN_SETTINGS}
    properties += [(f"eps.hscheduler.{key}", str(value)) for key, value in values.items()]
    return ClusterSettings(
        no_preemption=("default",), policies=(POLICY,), rm_class_path=(str(jar),), properties=tuple(properties)
    )


@contextlib.contextmanager
def hadoop(folder: Path, settings: ClusterSettings) -> Iterator[None]:
    """Run a cluster of equal nodes, to which HADOOP_CONF_DIR points."""
    home = folder / "hadoop"
    try:
        cluster = start_cluster(home, settings, lambda text: say(f"  {text}"))
        # Remove the label of the last node: trials request none, and so could not use its cores.
        command = [str(cluster.bin / "yarn"), "rmadmin", "-replaceLabelsOnNode", f"{cluster.nodes[-1]}="]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
        if done.returncode:
            raise ResourceError(f"a node keeps its label:\n{done.stdout}{done.stderr}")
        os.environ.update(cluster.environment())
        yield
    finally:
        stop_cluster(home, lambda text: None)


@contextlib.contextmanager
def scheduler(folder: Path, port: int, secret: Path, feedback_iteration: int) -> Iterator[Path]:
    """Run ``hscheduler yarn-plugin``; yield the file with its output."""
    told = folder / "hscheduler.log"
    words = ["--listen", f"127.0.0.1:{port}", "--secret-file", str(secret)]
    words += ["--feedback-iteration", str(feedback_iteration)]
    with told.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "yarn-plugin", *words],
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        end_s = time.monotonic() + WAIT_S
        while "answers the plugin" not in told.read_text(encoding="utf-8"):
            if process.poll() is not None or time.monotonic() > end_s:
                raise ResourceError(f"hscheduler yarn-plugin does not answer:\n{told.read_text(encoding='utf-8')}")
            time.sleep(LOOK_S)
        yield told
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


# ---- the sweep


class Sweep:
    """The trials of a file, submitted one after the other and watched until all have ended; a context manager.

    Parameters
    ----------
    spec : Spec
    interval_s : float
        From one submission to the next.
    """

    def __init__(self, spec: Spec, interval_s: float) -> None:
        self._spec = spec
        self._interval_s = interval_s
        self._began_s = 0.0
        # A call that submits returns only when the application master runs, so calls overlap.
        self._submitting = ThreadPoolExecutor(spec.sweep.trials)
        self.trials: list[Trial] = []

    def run(self) -> float:
        """Return the seconds from the first submission to the end of the last trial."""
        points = list(islice(self._spec.points(), self._spec.sweep.trials))
        self._began_s = time.monotonic()
        while len(self.trials) < len(points) or any(trial.ended_s is None for trial in self.trials):
            now_s = time.monotonic() - self._began_s
            if now_s > CASE_TIMEOUT_S:
                raise ResourceError(f"the sweep has not ended within {CASE_TIMEOUT_S:g} s")
            number = len(self.trials)
            if number < len(points) and now_s >= number * self._interval_s:
                self._submit(f"trial-{number + 1}", points[number])
            else:
                time.sleep(LOOK_S)
            for trial in self.trials:
                if trial.ended_s is None and trial.starts.done():
                    self._look(trial)
            worst = worst_of(self.trials, self._spec.sweep.threshold)
            if worst is not None:
                say(f"  {worst.name} is stopped: its early feedback {worst.feedback:g} is the worst")
                worst.stopped = True
                worst.job.kill("its early feedback was the worst")
        return max(trial.ended_s or 0.0 for trial in self.trials) - self._began_s

    def _submit(self, name: str, point: dict[str, Any]) -> None:
        settings = {**self._spec.job, **point}
        size = str(memory_mb(self._spec.cluster.container_memory))
        submitted_s = time.monotonic()
        starts = self._submitting.submit(Job.start, **settings, on="yarn", memory_mb=size, name=name)
        self.trials.append(Trial(name, settings, starts, submitted_s))
        say(f"  {name} submitted {submitted_s - self._began_s:.1f} s after the first")

    def _look(self, trial: Trial) -> None:
        if not trial.job.running:
            trial.ended_s, trial.report = time.monotonic(), trial.job.wait(WAIT_S)
            say(f"  {trial.name} {trial.report['state']} {trial.ended_s - self._began_s:.1f} s after the first")
            return
        try:
            status = trial.job.status(ASK_TIMEOUT_S)
            if status["state"] != "running":
                return
            trial.began_s = time.monotonic() - status["elapsed_s"]
            if trial.feedback is None and status["clock"] >= self._spec.sweep.feedback_iteration:
                loss = trial.job.history()[self._spec.sweep.feedback_iteration - 1]["loss"]
                # A loss that is not finite is the worst.
                trial.feedback = float("inf") if loss is None else float(loss)
        except EpsError:
            # The trial is ending.
            return

    def entries(self) -> list[dict[str, Any]]:
        """Return the entry of each trial in the results."""
        return [trial.entry(self._spec.sweep.feedback_iteration, self._began_s) for trial in self.trials]

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *error: object) -> None:
        self._submitting.shutdown(cancel_futures=True)
        for trial in self.trials:
            # Closing ends the jobs that still run: they are tied to this process.
            if not trial.starts.cancelled() and trial.starts.exception() is None:
                trial.job.close()


def run_case(case: str, spec: Spec, interval_s: float, jar: Path, folder: Path) -> dict[str, Any]:
    """Run the sweep in one case; return its results."""
    (folder / "home").mkdir(parents=True)
    # Share Hadoop's jars and prepared data with the user's cache.
    (folder / "home" / "cache").symlink_to(cache_dir().resolve())
    os.environ["EPS_HOME"] = str(folder / "home")
    port, secret = free_port(), folder / "secret"
    secret_of(secret)
    native = case == "plugin"
    settings = cluster_settings(jar if native else None, f"http://127.0.0.1:{port}", secret)
    with contextlib.ExitStack() as stack:
        stack.enter_context(hadoop(folder, settings))
        if native:
            told = stack.enter_context(scheduler(folder, port, secret, spec.sweep.feedback_iteration))
        say(f"{case}: a first job, which uploads EPS and the data")
        first = {**spec.job, "workers": 1, "iterations": 1, "stretch_s": 0.0, "memory_mb": "512"}
        eps.run(**first, on="yarn", name="first")
        sweep = stack.enter_context(Sweep(spec, interval_s))
        say(f"{case}: the sweep")
        load, makespan_s = os.getloadavg()[0], sweep.run()
        found = summary_of(makespan_s, sweep.entries())
        found |= {"load_at_start": round(load, 2), "load_at_end": round(os.getloadavg()[0], 2)}
        return found | {"decisions": told.read_text(encoding="utf-8").splitlines()[1:] if native else []}


def summary_of(makespan_s: float, trials: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the measures of a case."""

    def middle(name: str) -> float | None:
        values = [trial[name] for trial in trials if trial[name] is not None]
        return round(statistics.median(values), 3) if values else None

    drains = [seconds for trial in trials for seconds in trial["drain_s"]]
    finished = [trial for trial in trials if trial["state"] == "finished"]
    return {
        "makespan_s": round(makespan_s, 3),
        "first_iteration_median_s": middle("first_iteration_s"),
        "feedback_median_s": middle("feedback_s"),
        "finished": len(finished),
        "stopped": sum(trial["state"] == "stopped" for trial in trials),
        "best_loss": min((trial["loss"] for trial in finished if trial["loss"] is not None), default=None),
        "preempted": sum(trial["preempted"] for trial in trials),
        "drained": sum(trial["evictions"]["drained"] for trial in trials),
        "longest_drain_s": max(drains, default=None),
        "moves": sum(trial["moves"] for trial in trials),
        "lost": sum(
            trial["members_lost"] + (trial["updates_lost"] or 0) + (trial["updates_twice"] or 0) for trial in trials
        ),
        "trials": list(trials),
    }


def check_models(spec: Spec, cases: dict[str, dict[str, Any]]) -> int:
    """Train each finished trial once more, alone on this machine; return how many have another model."""
    alone: dict[str, str] = {}
    different = 0
    for found in cases.values():
        for trial in found["trials"]:
            if trial["state"] != "finished":
                continue
            if trial["name"] not in alone:
                settings = {**spec.job, **trial["point"], "stretch_s": 0.0}
                alone[trial["name"]] = eps.run(**settings, name=f"{trial['name']}-alone")["model_sha256"]
            trial["same_model"] = trial["model_sha256"] == alone[trial["name"]]
            different += not trial["same_model"]
    say(f"{len(alone)} models trained once more, alone: {different} differ")
    return different


# ---- the command


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return all measurements."""
    spec = Spec.read(Path(__file__).with_name("sweep.toml"))
    changes = {"trials": arguments.trials, "threshold": arguments.threshold}
    chosen = {name: value for name, value in changes.items() if value is not None}
    spec = dataclasses.replace(spec, sweep=dataclasses.replace(spec.sweep, **chosen))
    say("building the plugin")
    jar = build_plugin(folder)
    cases = {case: run_case(case, spec, arguments.interval, jar, folder / case) for case in arguments.cases}
    different = check_models(spec, cases)
    found: dict[str, Any] = {
        "interval_s": arguments.interval,
        "sweep": spec.tables(),
        "cases": cases,
        "other_models": different,
    }
    if set(CASES) <= set(cases):
        static, plugin = cases["static"], cases["plugin"]
        found["plugin_over_static"] = {
            name: ratio(plugin[name], static[name], 3)
            for name in ("makespan_s", "first_iteration_median_s", "feedback_median_s")
        }
    return found


def bars_of(found: dict[str, Any]) -> list[Bar]:
    """Return the bars with their measured values."""
    lost = sum(case["lost"] for case in found["cases"].values())
    bars = [
        Bar("members and updates lost", lost, 0, at_least=False),
        Bar("models that are others than those trained alone", found["other_models"], 0, at_least=False),
    ]
    if "plugin_over_static" in found:
        over = found["plugin_over_static"]
        bars.append(Bar("makespan, plugin over static", over["makespan_s"], 1.0, at_least=False))
        bars.append(Bar("containers preempted", found["cases"]["plugin"]["preempted"], 1, at_least=True))
    return bars


def _cases(text: str) -> tuple[str, ...]:
    named = tuple(text.split(","))
    if not named or set(named) - set(CASES):
        raise argparse.ArgumentTypeError(f"{text!r} must be some of {', '.join(CASES)}, joined by commas")
    return named


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interval", type=float, default=4.0, help="seconds from one submission to the next; 0: none")
    parser.add_argument("--cases", type=_cases, default=CASES, help="default: static,plugin")
    parser.add_argument("--trials", type=positive, help="default: those of the file, 12")
    parser.add_argument("--threshold", type=int, help="most trials in the training phase; 0: no limit; default: 2")
    parser.add_argument("--quick", action="store_true", help="three trials with the plugin, to see whether it works")
    parser.add_argument("--output", type=new_file, help="write the JSON there as well")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.trials, arguments.cases = 3, ("plugin",)
    end_in_order()
    try:
        with tempfile.TemporaryDirectory(prefix="eps-native-") as folder:
            found = measure(arguments, Path(folder))
    except EpsError as error:
        say(f"native: {error}")
        return 1
    bars = bars_of(found)
    return conclude("yarn native", found, bars, arguments.output, arguments.quick)


if __name__ == "__main__":
    run_to_the_end(main)
