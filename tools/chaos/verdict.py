"""Judge a job after a chaos test.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """The result of one job."""

    seed: int
    optimizer: str
    #: ``KIND-ROLE`` -> number of events.
    events: Mapping[str, int] = field(default_factory=dict)
    #: Events without a process to hit, or refused by the job.
    refused: int = 0
    #: Memberships in which other members took over from lost ones.
    recoveries: int = 0
    #: Restores of a checkpoint, or restarts from the seed, because the only copy was lost.
    rollbacks: int = 0
    #: Restarts of the job master.
    masters: int = 0
    #: Longest time between two completed iterations.
    longest_iteration_s: float = 0.0
    lasted_s: float = 0.0
    #: Updates lost and applied twice, by the ledger; None without a report.
    lost: int | None = None
    applied_twice: int | None = None
    #: Whether the job exceeded its time limit.
    hung: bool = False
    #: Hashes of its model and of the undisturbed one; under SSP and ASP they may differ.
    model_sha256: str = ""
    undisturbed_sha256: str = ""
    #: One sentence for each fault.
    faults: tuple[str, ...] = ()
    #: The command that repeats the job.
    repeat: str = ""
    directory: str = ""

    @property
    def ok(self) -> bool:
        """Whether the job passed."""
        return not self.faults

    @property
    def same_model(self) -> bool:
        """Whether its model is the undisturbed one."""
        return bool(self.model_sha256) and self.model_sha256 == self.undisturbed_sha256

    @property
    def num_events(self) -> int:
        """Number of events that happened."""
        return sum(self.events.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        derived = {"ok": self.ok, "num_events": self.num_events, "same_model": self.same_model}
        return {**asdict(self), "events": dict(self.events), **derived}


def summary_of(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Return the totals over all jobs; a job without a report counts no updates as lost or applied twice."""
    return {
        "jobs": len(verdicts),
        "events": sum(v.num_events for v in verdicts),
        "recoveries": sum(v.recoveries for v in verdicts),
        "rollbacks": sum(v.rollbacks for v in verdicts),
        "masters started again": sum(v.masters for v in verdicts),
        "updates lost": sum(v.lost or 0 for v in verdicts),
        "applied twice": sum(v.applied_twice or 0 for v in verdicts),
        "hung": sum(v.hung for v in verdicts),
        "models as undisturbed": sum(v.same_model for v in verdicts),
        "failed": sum(not v.ok for v in verdicts),
    }


def faults_of_report(report: Mapping[str, Any], expected_sha256: str, *, bsp: bool) -> list[str]:
    """Return the faults in the report of a job, one sentence each.

    Parameters
    ----------
    report : mapping
        The result of :meth:`eps.Job.wait`.
    expected_sha256 : str
        Hash of the undisturbed model.
    bsp : bool
        Whether the model must be the undisturbed one.
    """
    found = []
    if report["state"] != "finished":
        found.append(f"it {report['state']}: {report.get('reason') or 'no reason'}")
        return found
    if bsp and report["model_sha256"] != expected_sha256:
        found.append(f"its model is {report['model_sha256'][:12]}, undisturbed it is {expected_sha256[:12]}")
    ledger = report.get("ledger") or {}
    for name in ("lost", "applied_twice"):
        if ledger.get(name) != 0:
            found.append(f"ledger: {name} is {ledger.get(name)}")
    if ledger.get("applied") != ledger.get("expected"):
        found.append(f"ledger: {ledger.get('applied')} applied of {ledger.get('expected')}")
    return found


def longest_iteration_s(report: Mapping[str, Any]) -> float:
    """Return the longest time between two complete clocks."""
    seconds = [entry["seconds"] for entry in report.get("history", [])]
    return max((after - before for before, after in pairwise(seconds)), default=0.0)


def count_recoveries(log: str) -> int:
    """Return the number of recoveries in the log of a job's masters."""
    return log.count(": M taken-over ")


_COLUMNS = (
    "seed",
    "optimizer",
    "events",
    "refused",
    "recoveries",
    "rollbacks",
    "masters",
    "longest",
    "lasted",
    "lost",
    "twice",
    "model",
    "verdict",
)
_WIDTHS = (6, 9, 38, 7, 10, 9, 7, 8, 7, 4, 5, 12, 8)


def table_head() -> str:
    """Return the heading of the table."""
    return "  ".join(name.ljust(width) for name, width in zip(_COLUMNS, _WIDTHS, strict=True)).rstrip()


def table_row(verdict: Verdict) -> str:
    """Return the line of one job."""
    events = " ".join(f"{name}={count}" for name, count in sorted(verdict.events.items())) or "none"
    cells = (
        str(verdict.seed),
        verdict.optimizer,
        f"{verdict.num_events}: {events}",
        str(verdict.refused),
        str(verdict.recoveries),
        str(verdict.rollbacks),
        str(verdict.masters),
        f"{verdict.longest_iteration_s:.2f} s",
        f"{verdict.lasted_s:.1f} s",
        "-" if verdict.lost is None else str(verdict.lost),
        "-" if verdict.applied_twice is None else str(verdict.applied_twice),
        verdict.model_sha256[:12] or "-",
        "ok" if verdict.ok else "FAILED",
    )
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()
