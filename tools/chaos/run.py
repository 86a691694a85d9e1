"""Run jobs under chaos one after the other, and judge each."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eps.cluster.supervisor.process import MASTER
from eps.core.types import Role
from eps.errors import ConfigError, EpsError, TrainingError
from eps.job.client import Job
from eps.ml.optim import OPTIMIZERS
from eps.spec.file import RunRequest
from eps.spec.job_spec import SETTINGS
from eps.storage.atomic import write_json_atomic
from tools.chaos.master import chaos_master
from tools.chaos.play import Network, Player
from tools.chaos.processes import marked, with_mark
from tools.chaos.schedule import PLAIN_KINDS, ChaosEvent, Kind, draw
from tools.chaos.verdict import Verdict, count_recoveries, faults_of_report, longest_iteration_s

COMMAND = "python -m tools.chaos"
#: Iterations for each event, so that the job makes progress in between.
ITERATIONS_PER_EVENT = 10
#: Most time that an event may cost: twice the timeout for silence, and a restart.
EVENT_PATIENCE_S = 12.0
#: Time limit of a job: this, ten times its undisturbed duration, and the time of its events.
JOB_PATIENCE_S = 60.0
#: Time for processes to exit after SIGKILL.
GONE_S = 15.0
#: Most members above the job's own size.
MORE_MEMBERS = 2
#: After this many jobs in a row without an event, the test fails.
MOST_EMPTY = 3
#: Settings that belong to one optimizer only.
_OWN_SETTINGS = frozenset({"momentum", "beta1", "beta2"})


@dataclass(frozen=True)
class Undisturbed:
    """The result of the undisturbed job."""

    model_sha256: str
    lasts_s: float


@dataclass(frozen=True)
class ChaosRequest:
    """The options of a chaos test.

    Attributes
    ----------
    request : RunRequest
        The job.
    seed : int
        Seed of the first job; each later job adds 1.
    events : int
        Least number of events over all jobs.
    kinds : tuple of Kind
    per_job : int
        Events for each job; 0 for one in ten iterations.
    optimizers : tuple of str
        Optimizers that the jobs use in turn; empty for the job's own.
    job_file : str
        Shown in the command that repeats a job.
    keep : bool
        Whether to keep the directories of jobs that passed.
    """

    request: RunRequest
    seed: int = 0
    events: int = 1
    kinds: tuple[Kind, ...] = PLAIN_KINDS
    per_job: int = 0
    optimizers: tuple[str, ...] = ()
    job_file: str = "JOB.toml"
    keep: bool = False

    def __post_init__(self) -> None:
        if self.events < 1:
            raise ConfigError(f"events is {self.events}, but must be at least 1")
        if self.per_job < 0:
            raise ConfigError(f"per-job is {self.per_job}, but must be at least 0")

    def drawn_for_one(self) -> int:
        """Return the number of events for each job."""
        most = self.per_job or max(1, self.request.spec.iterations // ITERATIONS_PER_EVENT)
        return min(self.events, most)


class Chaos:
    """Runs jobs until there were enough events.

    Parameters
    ----------
    asked : ChaosRequest
    network : Network, optional
        Needed for delays and partitions.
    """

    def __init__(self, asked: ChaosRequest, network: Network | None = None) -> None:
        self._asked = asked
        self._network = network
        self._undisturbed: dict[str, Undisturbed] = {}
        #: Prefix of its jobs' names, unique so that several tests can run at once.
        self._prefix = f"chaos-{secrets.token_hex(3)}"

    def run(self, tell: Callable[[str], None] = lambda _: None) -> Iterator[Verdict]:
        """Yield the verdict of each job when it ends; stop after the first job that does not pass.

        Raises
        ------
        TrainingError
            The undisturbed job fails, or :data:`MOST_EMPTY` jobs in a row had no event.
        """
        asked = self._asked
        names = self._optimizers(tell)
        done, number, empty = 0, 0, 0
        while done < asked.events:
            verdict = self.play(asked.seed + number, names[number % len(names)], asked.drawn_for_one(), tell)
            number += 1
            done += verdict.num_events
            empty = 0 if verdict.num_events else empty + 1
            yield verdict
            if not verdict.ok:
                return
            if empty >= MOST_EMPTY:
                raise TrainingError(f"nothing happened to {empty} jobs in a row: raise iterations, or name other kinds")

    def _optimizers(self, tell: Callable[[str], None]) -> list[str]:
        """Return the requested optimizers that can train the job's model."""
        wanted = self._asked.optimizers or (self._asked.request.spec.optimizer,)
        found = []
        for name in wanted:
            try:
                self.undisturbed(name)
                found.append(name)
            except ConfigError as error:
                if len(wanted) == 1:
                    raise
                tell(f"optimizer {name} is skipped: {error}")
        if not found:
            raise ConfigError(f"none of the optimizers {', '.join(wanted)} trains this job")
        return found

    def _request(self, optimizer: str, name: str) -> RunRequest:
        request = self._asked.request
        if optimizer != request.spec.optimizer:
            own = {name: SETTINGS[name].default for name in _OWN_SETTINGS}
            request = dataclasses.replace(
                request.with_spec(optimizer=optimizer, **own), given=request.given - _OWN_SETTINGS
            )
        return dataclasses.replace(request, name=name, report="", export="")

    def undisturbed(self, optimizer: str) -> Undisturbed:
        """Return the result of the undisturbed job with an optimizer; it runs once.

        Raises
        ------
        TrainingError
            The job fails.
        """
        if optimizer not in self._undisturbed:
            begun_s = time.monotonic()
            with Job.start_request(self._request(optimizer, f"{self._prefix}-{optimizer}")) as job:
                try:
                    report = job.wait()
                except BaseException:
                    _forget(job)
                    raise
            if report["state"] != "finished":
                raise TrainingError(f"undisturbed, the job {report['state']}: {report.get('reason') or 'no reason'}")
            self._undisturbed[optimizer] = Undisturbed(report["model_sha256"], time.monotonic() - begun_s)
            shutil.rmtree(job.directory.path, ignore_errors=True)
        return self._undisturbed[optimizer]

    def play(self, seed: int, optimizer: str, events: int, tell: Callable[[str], None] = lambda _: None) -> Verdict:
        """Run one job under chaos and judge it; keep its directory if it does not pass."""
        spec = self._asked.request.spec
        schedule = draw(seed, events, spec.iterations, self._asked.kinds, spec.recovery.member_timeout_s)
        expected = self.undisturbed(optimizer)
        patience_s = JOB_PATIENCE_S + 10 * expected.lasts_s + EVENT_PATIENCE_S * len(schedule)
        segments = set(_shared_memory())
        begun_s = time.monotonic()
        with marked() as mark, chaos_master():
            player = Player(
                Job.start_request(self._request(optimizer, f"{self._prefix}-{seed}")),
                schedule,
                self._most(),
                self._network,
            )
            try:
                in_time = player.run(begun_s + patience_s)
                faults = []
                if not in_time:
                    where = _where(player.job)
                    faults.append(f"it hangs: it has not ended after {patience_s:.0f} s ({where})")
                    # The kept directory shows why.
                    player.job.kill_at_once()
                report = player.job.wait(GONE_S)
            except BaseException:
                _forget(player.job)
                raise
            finally:
                player.job.close()
        job = player.job
        if not faults:
            faults += faults_of_report(report, expected.model_sha256, bsp=spec.training.staleness() == 0)
        faults += self._left_behind(job, mark, segments)
        verdict = dataclasses.replace(
            self._verdict(seed, optimizer, job, player, report, faults, time.monotonic() - begun_s),
            hung=not in_time,
            undisturbed_sha256=expected.model_sha256,
        )
        if verdict.ok and not self._asked.keep:
            shutil.rmtree(job.directory.path, ignore_errors=True)
        else:
            self._keep(job, schedule, player, verdict)
        return verdict

    def _most(self) -> dict[str, int]:
        spec = self._asked.request.spec
        core = spec.core_settings()
        return {
            str(Role.WORKER): min(core.num_splits, spec.workers + MORE_MEMBERS),
            str(Role.SERVER): min(core.num_partitions, spec.servers + MORE_MEMBERS),
        }

    def _left_behind(self, job: Job, mark: str, segments: set[str]) -> list[str]:
        deadline_s = time.monotonic() + GONE_S
        while (left := with_mark(mark)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        found = [f"left behind: process {pid}" for pid in left]
        found += [f"left behind: shared memory {name}" for name in sorted(set(_shared_memory()) - segments)]
        directory = job.directory
        if directory.containers.exists():
            found += [f"left behind: scratch directory {path.name}" for path in directory.containers.iterdir()]
        live = (directory.master_json, directory.status_json)
        found += [f"left behind: {path.name}" for path in live if path.exists()]
        if directory.is_running():
            found.append("left behind: the lock is held")
        return found

    def _verdict(
        self,
        seed: int,
        optimizer: str,
        job: Job,
        player: Player,
        report: dict[str, Any],
        faults: list[str],
        lasted_s: float,
    ) -> Verdict:
        log = job.directory.log(MASTER)
        ledger = report.get("ledger") or {}
        return Verdict(
            seed=seed,
            optimizer=optimizer,
            events=dict(player.done),
            refused=player.refused,
            recoveries=count_recoveries(log.read_text(errors="replace")) if log.exists() else 0,
            rollbacks=len(report.get("went_back", ())),
            masters=report.get("generation", 1) - 1,
            longest_iteration_s=round(longest_iteration_s(report), 3),
            lasted_s=round(lasted_s, 3),
            lost=ledger.get("lost"),
            applied_twice=ledger.get("applied_twice"),
            model_sha256=report.get("model_sha256") or "",
            faults=tuple(faults),
            repeat=self._repeat(seed, optimizer),
            directory=str(job.directory.path) if faults else "",
        )

    def _repeat(self, seed: int, optimizer: str) -> str:
        asked = self._asked
        per_job = asked.drawn_for_one()
        words = [*COMMAND.split(), asked.job_file, "--seed", str(seed), "--events", str(per_job)]
        words += ["--per-job", str(per_job)]
        words += ["--kinds", ",".join(asked.kinds), "--optimizers", optimizer]
        return shlex.join(words)

    def _keep(self, job: Job, schedule: Sequence[ChaosEvent], player: Player, verdict: Verdict) -> None:
        write_json_atomic(
            job.directory.path / "chaos.json",
            {"verdict": verdict.to_dict(), "schedule": [str(event) for event in schedule], "story": player.story},
            sync=False,
        )


def optimizers_of(text: str) -> tuple[str, ...]:
    """Return the optimizers in a list joined by commas, or all of them for ``all``.

    Raises
    ------
    ConfigError
        An optimizer is unknown.
    """
    if text == "all":
        return tuple(OPTIMIZERS)
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in OPTIMIZERS:
            raise ConfigError(f"optimizer is {name!r}, but must be one of {', '.join(OPTIMIZERS)}, or all")
    return names


def _forget(job: Job) -> None:
    """Kill a job and remove its directory."""
    job.kill_at_once()
    deadline_s = time.monotonic() + GONE_S
    while job.running and time.monotonic() < deadline_s:
        time.sleep(0.02)
    shutil.rmtree(job.directory.path, ignore_errors=True)


def _shared_memory() -> list[str]:
    folder = Path("/dev/shm")
    return [name for name in os.listdir(folder) if "eps" in name] if folder.is_dir() else []


def _where(job: Job) -> str:
    """Return the progress of a hanging job, as text."""
    try:
        status = job.status(timeout_s=2.0)
    except EpsError as error:
        return str(error)
    plan = status.get("plan")
    return f"clock {status['clock']}" + (f", plan {plan['plan_id']} {plan['phase']}" if plan else "")
