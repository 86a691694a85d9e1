"""A job that was submitted, from the submitter's side: who waits for its end waits here."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eps.spec.job_spec import JobSpec
from hscheduler.core.codec import spelt
from hscheduler.core.jobs import Phase


@dataclass
class Submission:
    """A job that was submitted, from the submitter's side."""

    job_id: str
    sweep: str
    #: Of the job under ``EPS_HOME``.
    name: str
    spec: JobSpec
    #: Of the space that its sweep searches.
    point: Mapping[str, Any] = field(default_factory=dict)
    #: How it ended; None before.
    phase: Phase | None = None
    why: str = ""
    #: Its metric at the end, or None where it did not finish.
    loss: float | None = None
    #: Its metric at the feedback iteration, where it came so far.
    feedback: float | None = None
    #: The job's own report, where it ran and ended; see :func:`hscheduler.live.results.own_report`.
    report: dict[str, Any] | None = None
    #: Whether its processes were up once.
    has_started: bool = False
    #: Whether the policy ended it, for good.
    is_stopped: bool = False
    #: Iterations complete and when it arrived, of one that the scheduler's state has forgotten.
    iteration: int = 0
    arrived_s: float | None = None
    _over: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over, or its scheduler is; return False where neither is within ``timeout_s`` seconds."""
        return self._over.wait(timeout_s)

    @property
    def is_over(self) -> bool:
        """True once it has ended, however; not where only its scheduler has."""
        return self.phase is not None

    def end(self, phase: Phase) -> None:
        """Note how it ended, and let go of who waits for that."""
        self.phase = phase
        self._over.set()

    def values(self) -> dict[str, Any]:
        """Return all that is known of it but its report, as JSON says it; see :meth:`of_values`."""
        known = {name: getattr(self, name) for name in ("job_id", "sweep", "why", "has_started", "is_stopped")}
        numbers = {name: getattr(self, name) for name in ("loss", "feedback")}
        return {
            **known,
            **{name: None if value is None else spelt(value) for name, value in numbers.items()},
            **self.beside(),
            "phase": self.phase,
            "iteration": self.iteration,
            "arrived_s": self.arrived_s,
        }

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> Submission:
        """Return the one that :meth:`values` told of.

        Raises
        ------
        KeyError, TypeError, ValueError
            It is of another version.
        """
        known = {**values, "phase": None, "spec": JobSpec.from_dict(values["spec"], "journal")}
        for name in ("loss", "feedback"):
            known[name] = None if values[name] is None else float(values[name])
        found = cls(**known)
        if values["phase"] is not None:
            found.end(Phase(values["phase"]))
        return found

    def beside(self) -> dict[str, Any]:
        """Return what a journal needs to make it again."""
        return {"name": self.name, "spec": json.loads(self.spec.to_json()), "point": dict(self.point)}
