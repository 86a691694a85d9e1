"""``hscheduler.sweep(...)``: run a sweep from Python, as ``hscheduler sweep SPEC.toml`` does."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from eps.errors import ConfigError, ResourceError
from hscheduler.cli.commands.common import policy_of, report_path, say, with_flags, write_results
from hscheduler.core import events as e
from hscheduler.live.sweep import SWEEP
from hscheduler.page import write_page
from hscheduler.reports.report import table
from hscheduler.runners import Here, Interrupted, OnYarn, Outcome, Runner, Viewers
from hscheduler.service.recorded_sweep import RecordedSweep
from hscheduler.simulator.static_sizes import with_static
from hscheduler.spec import Spec

logger = logging.getLogger(__name__)


class SweepReport(dict[str, Any]):
    """The report of a sweep, as ``hscheduler sweep --report`` writes it; ``str(report)`` is the table of trials."""

    @property
    def best_point(self) -> dict[str, Any] | None:
        """Settings of the finished trial with the best metric; None if no trial finished."""
        return None if self["best"] is None else dict(self["best"]["point"])

    def write_page(self, path: str | Path) -> None:
        """Write the page of the sweep, as ``hscheduler sweep --page`` does.

        Raises
        ------
        StorageError
            The file cannot be written.
        """
        write_page(Path(path), {self["policy"]: self})

    def __str__(self) -> str:
        return table([self])


def sweep(
    spec: str | Path | Mapping[str, Any] | Spec,
    *,
    policy: str = "elastic",
    stop: str | None = None,
    trials: int | None = None,
    seed: int | None = None,
    study: Any = None,
    suggest: Callable[[Any], Mapping[str, Any]] | None = None,
    objective: Callable[[dict[str, Any]], Any] | None = None,
    on_event: Callable[[float, e.Event, list[e.Command]], None] | None = None,
    quiet: bool = True,
    report: str | Path | None = None,
    page: str | Path | None = None,
    name: str | None = None,
) -> SweepReport:
    """Run a sweep of real jobs.  It is recorded: after a crash or an interrupt it can be resumed.

    With ``on = "yarn"`` in the table ``job`` the sweep runs as one application on the cluster of ``HADOOP_CONF_DIR``.
    Otherwise its jobs run on this host.

    Parameters
    ----------
    spec : path, mapping or Spec
        The path of a sweep's file, its tables (``cluster``, ``sweep``, ``space``, ``job``), or a parsed file.
    policy : str
    stop : str, optional
        Stopping rule, as ``asha``; replaces the file's.
    trials, seed : int, optional
        Replace the values of the file.
    study : optuna.Study, optional
        Source of the points, instead of the file's algorithm; needs the extra ``optuna``.  Not on YARN.
    suggest : callable, optional
        Returns the settings of a point, given a trial of the study: ``trial.suggest_float(...)`` and the like, where
        later suggestions may depend on earlier ones.  It replaces ``space``, which must be empty.
    objective : callable, optional
        Trials are calls of this, each with its point (a dict) and in a process and a container of its own, instead of
        jobs of EPS.  It calls ``hscheduler.report(loss=..., iteration=...)``, or returns the metric.  The names in
        ``space`` are then free, and ``job`` has at most ``iterations``: how many it reports.  It is pickled with
        cloudpickle.  A sweep that is resumed calls it again for trials that had not ended.  Not on YARN.
    on_event : callable, optional
        Called after every event with the seconds since the start, the event (:mod:`hscheduler.core.events`) and the
        commands that followed.  It runs on the scheduler's thread and blocks it.  Not on YARN.
    quiet : bool
        Log events and the reason of every decision (``logging``, INFO) instead of printing them.
    report, page : path, optional
        Files for the report (JSON) and the page (HTML); an interrupted sweep writes them, too.
    name : str, optional
        Name under which the sweep is recorded: ``hscheduler sweep --resume NAME`` continues it if it was interrupted.
        Default: that of the file, or ``sweep``, with a number if it is taken.  A sweep with a ``study`` has no record.

    Returns
    -------
    SweepReport
        A dict with ``trials`` and ``best``, and the property ``best_point``.

    Raises
    ------
    ConfigError
        A setting is invalid.  Failures of trials are in the report; they are not raised.
    ResourceError, RpcError
        The cluster of the jobs (``on`` in ``job``) is unreachable or full, or the application failed.
    RuntimeError
        The scheduler failed.

    Examples
    --------
    ::

        found = hscheduler.sweep(
            {
                "sweep": {"trials": 8},
                "space": {"learning_rate": {"loguniform": [1e-3, 1]}},
                "job": {"data": "sklearn:digits", "model": "softmax", "workers": 2, "servers": 1, "iterations": 300},
            }
        )
        print(found.best_point)
    """
    read = with_flags(_spec_of(spec, objective is not None), trials=trials, seed=seed, stop=stop)
    read.check_rungs()
    if suggest is not None and (study is None or read.space):
        raise ConfigError("suggest needs a study, and replaces the table space: leave that out")
    policy = policy_of(policy)
    target = report_path(None if report is None else str(report))
    drawn = report_path(None if page is None else str(page), "page")
    if read.job.get("on") == "yarn":
        for name, value in (("study", study), ("objective", objective), ("on_event", on_event)):
            if value is not None:
                raise ConfigError(f"{name} is not possible on YARN: the scheduler runs in another process")
        return _run(OnYarn(read, policy, name or ""), quiet, target, drawn)
    points = None
    if study is not None:
        from hscheduler.live.points import OptunaPoints

        if name is not None:
            raise ConfigError("study is not possible with name: a sweep that is resumed has the algorithm of its file")
        points = OptunaPoints(read, study, suggest)
    pickled = None if objective is None else _pickled(objective)
    with ExitStack() as stack:
        stem = Path(spec).stem if isinstance(spec, str | Path) else SWEEP
        place = None if study is not None else stack.enter_context(RecordedSweep.create(name or "", stem))
        runner = Here(read, policy, points, place, target, pickled, has_space=suggest is None)
        runner.viewers += [] if on_event is None else [on_event]
        return _run(runner, quiet, target, drawn)


def _run(runner: Runner, quiet: bool, target: Path | None, drawn: Path | None) -> SweepReport:
    """Run a sweep to its end and write its results.  Raises as :func:`sweep`."""
    try:
        tell: Callable[[str], None] = logger.info if quiet else say
        outcome = runner.run(Viewers(tell, tell))
    except Interrupted as error:
        _write(error.outcome, target, drawn)
        # Without the traceback of the wait in here, which tells the user nothing.
        raise KeyboardInterrupt(
            "; ".join(error.outcome.hints) or "the sweep was interrupted, and what ran was ended"
        ) from None
    if drawn is not None and (found := outcome.report) is not None:
        outcome = dataclasses.replace(outcome, report=with_static(found))
    _write(outcome, target, drawn)
    if outcome.error is not None:
        raise outcome.error
    for problem in outcome.problems:
        logger.warning("%s", problem)
    if outcome.report is None:
        raise ResourceError("the sweep ended without a report")
    return SweepReport(outcome.report)


def _write(outcome: Outcome, target: Path | None, drawn: Path | None) -> None:
    if outcome.report is not None:
        write_results(target, drawn, outcome.report)


def _pickled(objective: Callable[[dict[str, Any]], Any]) -> bytes:
    # Imported late: other sweeps do not need cloudpickle.
    try:
        from hscheduler.live.objective import pickled_callable
    except ImportError as error:
        raise ConfigError(f"objective needs cloudpickle ({error}): pip install '.[sweep]' in EPS's folder") from None
    return pickled_callable(objective)


def _spec_of(spec: str | Path | Mapping[str, Any] | Spec, is_callable: bool) -> Spec:
    if is_callable and not isinstance(spec, Mapping):
        raise ConfigError(f"spec is {spec!r}, but must be a mapping with an objective, which replaces jobs of EPS")
    if isinstance(spec, Spec):
        return spec
    return Spec.given(spec, is_callable=is_callable) if isinstance(spec, Mapping) else Spec.read(Path(spec))
