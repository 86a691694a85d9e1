"""What a scheduler knows of its events, whoever carries out its orders: what a journal is begun anew with.

Jobs that are over are forgotten, but for the latest: no decision depends on them any more, and
:mod:`hscheduler.live.past` has them.  What stays of each is its early feedback, where it finished (a stopping rule may
count those); of a sweep how its jobs are ranked, and its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eps._version import __version__
from hscheduler.core import events as e
from hscheduler.core.decisions import Policy
from hscheduler.core.outstanding import Outstanding
from hscheduler.core.record import Record
from hscheduler.core.snapshot import OtherVersionError, restore, take
from hscheduler.core.state import Scheduler
from hscheduler.live.past import Past
from hscheduler.live.submission import Submission

#: Jobs that are over and not forgotten.
LATEST_OVER = 100
_OF_THE_CORE = ("state", "record", "outstanding", "sweeps", "opened_s", "closed", "ended", "cancelled")


@dataclass
class Known:
    """What follows from a scheduler's events."""

    state: Scheduler
    record: Record = field(default_factory=Record)
    outstanding: Outstanding = field(default_factory=Outstanding)
    #: What sweeps said of how their jobs are ranked.
    sweeps: dict[str, e.SweepOpened] = field(default_factory=dict)
    #: When sweeps were opened.
    opened_s: dict[str, float] = field(default_factory=dict)
    #: Sweeps of which no more jobs are wanted, and why.
    closed: dict[str, str] = field(default_factory=dict)
    #: Sweeps with a file whose trials are all over: nobody has to go on with them.
    ended: dict[str, None] = field(default_factory=dict)
    #: Jobs that somebody wanted to end.
    cancelled: set[str] = field(default_factory=set)
    #: Of sweeps that this process finds the points of: the tables of their files.
    tables: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    submissions: dict[str, Submission] = field(default_factory=dict)

    def snapshot(self) -> dict[str, Any]:
        """Return it as JSON says it; jobs and sweeps that were not taken yet are none."""
        return {
            "written_by": __version__,
            "core": take({name: getattr(self, name) for name in _OF_THE_CORE}),
            "tables": {name: tables for name, tables in self.tables.items() if name in self.sweeps},
            "submissions": [self.submissions[job_id].values() for job_id in self.record.trials],
        }

    @classmethod
    def of_snapshot(cls, snapshot: Mapping[str, Any], policy: Policy) -> Known:
        """Return what :meth:`snapshot` told of.

        Raises
        ------
        OtherVersionError
            Other code took it, of which it cannot be read.
        KeyError, TypeError, ValueError
            It is none.
        """
        try:
            core = restore(snapshot["core"], {"_policy": policy})
        except OtherVersionError as error:
            by = f"eps {snapshot['written_by']}" if "written_by" in snapshot else "an earlier version"
            raise OtherVersionError(f"{error}: {by} wrote it, and this is eps {__version__}") from error
        submissions = [Submission.of_values(values) for values in snapshot["submissions"]]
        return cls(
            **core,
            tables=dict(snapshot["tables"]),
            submissions={each.job_id: each for each in submissions},
        )

    def forget(self, past: Past) -> list[str]:
        """Move jobs that are over, but for the latest, and what was decided to ``past``; return these jobs.

        Raises
        ------
        StorageError
            They cannot be written; nothing is forgotten.
        """
        trials = self.record.trials
        ends = {job_id: trial.finished_s for job_id, trial in trials.items() if trial.finished_s is not None}
        for job_id in self.outstanding.there():
            # As where the node of its master was lost: it has not said that it ended.
            ends.pop(job_id, None)
        over = sorted(ends, key=ends.__getitem__)[: max(0, len(ends) - LATEST_OVER)]
        for job_id in over:
            self.submissions[job_id].iteration = trials[job_id].iteration
            self.submissions[job_id].arrived_s = trials[job_id].arrived_s
        # Those that were moved before concern jobs that may be forgotten by now; each is moved once.
        decisions = [
            (sweep, decision)
            for decision in self.record.decisions
            for sweep in sorted({trials[job_id].sweep for job_id in decision.jobs if job_id in trials})
        ]
        past.keep([(self.submissions[job_id], trials[job_id]) for job_id in over], decisions)
        self.record.forget(over, self.state)
        for job_id in over:
            if job_id in self.state.jobs:
                self.state.forget(job_id)
            del self.submissions[job_id]
            self.cancelled.discard(job_id)
        return over
