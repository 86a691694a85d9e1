"""Sources of the sweeps in the figures: real runs of compare.py, or the simulator at the paper's size."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.paper import published, scaled
from eps.errors import ConfigError
from hscheduler.simulator import paper
from hscheduler.simulator.models import Costs, SpeedModel

Report = Mapping[str, Any]


class Source(Protocol):
    """Reports of sweeps by model and by policy."""

    #: ``real`` or ``simulated``: part of the names of files.
    kind: str
    #: Seconds of a unit of the time axis, and its name.
    unit_s: float
    unit: str
    #: Policies in drawing order.
    policies: Sequence[str]
    models: Sequence[str]
    #: The model of the pictures over time.
    shown_model: str

    @property
    def capacity(self) -> int:
        """Processors of the cluster."""

    @property
    def foot(self) -> str:
        """One or two lines about the source of the numbers."""

    def reports(self, model: str, policy: str) -> list[Report]:
        """Return the reports of all repeats."""

    def busy(self, report: Report) -> Callable[[int, int], float]:
        """Return a function of a job's workers and servers: the cores that they keep busy, averaged over an iteration.

        Within an iteration workers are busy while they compute, and servers while parameters are exchanged; for the
        rest of it they wait for each other.
        """


class Real:
    """Runs of compare.py.

    Parameters
    ----------
    path : Path
        Its output.

    Raises
    ------
    ConfigError
        The file is not an output of compare.py.
    """

    kind = "real"
    unit_s, unit = 1.0, "s"
    models = ("softmax",)
    shown_model = "softmax"

    def __init__(self, path: Path) -> None:
        try:
            self._found = json.loads(path.read_text(encoding="utf-8"))
            self.policies = [
                name
                for name in ("static", "static-stop", "kill", "kill-declared", "priority", "elastic")
                if any(run["name"] == name for run in self._found["runs"])
            ]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is not a result of benchmarks.paper.compare: {error}") from None

    @property
    def capacity(self) -> int:
        """As :class:`Source`."""
        cluster = self._found["settings"]["cluster"]
        return int(cluster["nodes"] * cluster["vcores"])

    @property
    def foot(self) -> str:
        """As :class:`Source`."""
        settings = self._found["settings"]
        sweep, cluster, job = settings["sweep"], settings["cluster"], settings["job"]
        repeats = max(run["repeat"] for run in self._found["runs"]) + 1
        return (
            f"REAL processes on {self._found['machine']['cpus']} cores: {cluster['nodes']} nodes of "
            f"{cluster['vcores']} (numbers only), {sweep['trials']} trials of {job['model']} on {job['data']}, "
            f"arrivals {sweep['arrival']}, threshold {sweep['threshold']};\n"
            f"a worker sleeps {job['stretch_s']} s for each of its splits ({job['splits']} in a job), under every "
            f"policy; declared delay of kill's restart {settings['declared_restart_s']:g} s; {repeats} repeat(s)"
        )

    def reports(self, model: str, policy: str) -> list[Report]:
        """As :class:`Source`."""
        # Repeated runs are last in the file.
        runs = sorted(self._found["runs"], key=lambda run: run["repeat"])
        return [run["report"] for run in runs if run["name"] == policy]

    def busy(self, report: Report) -> Callable[[int, int], float]:
        """As :class:`Source`; of measured iterations, in which computing is a sleep."""
        job = self._found["settings"]["job"]
        totals: dict[tuple[int, int], tuple[int, float]] = {}
        for trial in report["trials"]:
            for workers, servers, number, seconds in trial["speeds"]:
                before = totals.get((workers, servers), (0, 0.0))
                totals[workers, servers] = before[0] + number, before[1] + seconds
        ideal = SpeedModel(job["splits"], job["stretch_s"], fixed_s=0.0)

        def cores(workers: int, servers: int) -> float:
            number, seconds = totals.get((workers, servers), (1, ideal.iteration_s(workers, servers)))
            return float(job["splits"] * job["stretch_s"] * number / seconds)

        return cores


class Simulated:
    """Sweeps of :mod:`benchmarks.paper.scaled`, simulated at their first use.

    Parameters
    ----------
    seeds : int
        Repeats.  Source: EPS §6 (each evaluation runs ten times).
    papers_costs : bool
        Whether changes of size cost as much as in the paper, instead of as much as in EPS.
    """

    kind = "simulated"
    unit_s, unit = 60.0, "min"
    policies = ("static", "kill-declared", "priority-stop", "elastic")
    models = published.MODELS
    shown_model = "logistic"
    capacity = paper.NODES * scaled.NODE.vcores

    def __init__(self, seeds: int = 10, papers_costs: bool = False) -> None:
        self._seeds = seeds
        self._papers = papers_costs
        self._kept: dict[tuple[str, str], list[Report]] = {}

    @property
    def suffix(self) -> str:
        """Suffix of the names of its files."""
        return "simulated_papers_costs" if self._papers else "simulated"

    def costs(self) -> Costs:
        """Return the costs of changes of size."""
        return paper.PAPERS if self._papers else paper.OURS

    @property
    def foot(self) -> str:
        """As :class:`Source`."""
        costs = "those of the paper" if self._papers else "ours"
        return (
            f"SIMULATED: {paper.NODES} nodes of 4 vCPU and 16 GB, {paper.TRIALS} jobs of {paper.WORKERS} workers "
            f"and {paper.SERVERS} servers, {paper.ITERATIONS} iterations, exponential arrivals with a mean of "
            f"{paper.MEAN_GAP_S:g} s (§7.1: eleven jobs train at minute {paper.THRESHOLD_REACHED_MIN}), "
            f"threshold {paper.THRESHOLD};\n"
            f"iterations after EPS §2.3 and §7.1, costs of changes are {costs}, a restart of kill takes "
            f"{paper.RESTART_S:g} s and a start (§2.3); {self._seeds} seeds"
        )

    def reports(self, model: str, policy: str) -> list[Report]:
        """As :class:`Source`."""
        key = model, policy
        if key not in self._kept:
            self._kept[key] = [
                scaled.simulate(scaled.Experiment(model, seed), policy, self.costs()) for seed in range(self._seeds)
            ]
        return self._kept[key]

    def busy(self, report: Report) -> Callable[[int, int], float]:
        """As :class:`Source`; from the terms of an iteration."""
        speed = scaled.speed_of(self.shown_model)

        def cores(workers: int, servers: int) -> float:
            return (speed.split_s * speed.splits + speed.exchange_s) / speed.iteration_s(workers, servers)

        return cores
