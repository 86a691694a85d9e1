"""Traps: the job master kills a process exactly when a plan enters a phase.

``EPS_TRAP`` holds traps joined by commas, each ``OPERATION:PHASE:VICTIM``, such as ``add-servers:committed:donor``, or
``job:STATE:VICTIM``, such as ``job:exporting:master``.  Each trap springs once in a job, over all its masters: a file
in the job's directory records the victim and the plan.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from eps.core.events import ENDED_STATES, JobState
from eps.core.job import Job
from eps.core.reconfig import Operation, Phase, Plan
from eps.core.types import MemberId
from eps.errors import ConfigError

ENVIRONMENT = "EPS_TRAP"
#: Folder of a job's directory, with a file for each trap that has sprung.
SPRUNG = "traps"
#: The job master, before it has executed any command of the step that enters the phase, or after all of them.
MASTER, MASTER_LATE = "master", "master-late"
#: A member that gives away a partition or split, one that receives one, one that takes no part in the plan.
DONOR, RECEIVER, BYSTANDER = "donor", "receiver", "bystander"
MASTERS = (MASTER, MASTER_LATE)
VICTIMS = (*MASTERS, DONOR, RECEIVER, BYSTANDER)
#: In place of an operation: the trap is for a state of the job.
JOB = "job"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trap:
    """A process to kill, and when."""

    #: None if ``phase`` is a state of the job.
    operation: Operation | None
    phase: Phase | JobState
    victim: str

    def __str__(self) -> str:
        return f"{self.operation or JOB}:{self.phase}:{self.victim}"

    def member(self, plan: Plan) -> MemberId | None:
        """Return the victim among the members of a plan; None if there is none."""
        transfer = plan.transfer
        assert transfer is not None
        moves = transfer.partition_moves + transfer.split_moves
        if self.victim == DONOR:
            return (*plan.removed, *(move.source for move in moves), None)[0]
        if self.victim == RECEIVER:
            return (*plan.added, *(move.target for move in moves), None)[0]
        busy = {name for move in moves for name in (move.source, move.target)} | {*plan.added, *plan.removed}
        # A worker that takes no part; if all do, a server.
        members = (*transfer.splits.active, *transfer.partitions.owners)
        return next((name for name in members if name not in busy), None)


def parse(text: str) -> tuple[Trap, ...]:
    """Return the traps in a text.

    Raises
    ------
    ConfigError
        The text does not consist of traps.
    """
    found = []
    for part in filter(None, text.split(",")):
        try:
            operation, phase, victim = part.split(":")
            if operation == JOB:
                trap = Trap(None, JobState(phase), victim)
            else:
                trap = Trap(Operation(operation), Phase(phase), victim)
        except ValueError as error:
            raise ConfigError(f"{ENVIRONMENT} has {part!r}, but must be OPERATION:PHASE:VICTIM ({error})") from None
        possible = MASTERS if trap.operation is None else VICTIMS
        if victim not in possible:
            raise ConfigError(f"{ENVIRONMENT} has {part!r}, but the victim must be one of {', '.join(possible)}")
        found.append(trap)
    return tuple(found)


class Traps:
    """The traps of one job master.

    Parameters
    ----------
    traps : tuple of Trap
    job_path : Path
        The job's directory.
    """

    def __init__(self, traps: tuple[Trap, ...], job_path: Path) -> None:
        self._folder = job_path / SPRUNG
        self._folder.mkdir(exist_ok=True)
        self._set = [trap for trap in traps if not (self._folder / str(trap)).exists()]

    def look(self, state: Job, said: bool) -> None:
        """Spring the traps that are due; ``said`` is whether the commands of this step were executed."""
        for trap in list(self._set):
            if said == (trap.victim == MASTER):
                continue
            if trap.operation is None:
                if state.state is trap.phase:
                    self._spring(trap, os.getpid(), "master")
                continue
            if state.state in ENDED_STATES:
                continue
            plan = next(
                (
                    p
                    for p in state.plans.all.values()
                    if p.change.operation is trap.operation and trap.phase in p.reached_s
                ),
                None,
            )
            if plan is None:
                continue
            if trap.victim in MASTERS:
                self._spring(trap, os.getpid(), "master", plan.plan_id)
                continue
            name = trap.member(plan)
            record = state.members.by_name.get(name) if name is not None else None
            # A new member is killed as soon as it has a process.
            if record is not None and record.pid:
                self._spring(trap, record.pid, record.name, plan.plan_id)
            elif record is None:
                self._set.remove(trap)

    def _spring(self, trap: Trap, pid: int, name: str, plan_id: int = 0) -> None:
        self._set.remove(trap)
        note = self._folder / str(trap)
        note.write_text(json.dumps({"victim": name, "plan": plan_id}), encoding="utf-8")
        logger.warning("M trap %s kills %s, process %d", trap, name, pid)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            # The process ended before the trap reached it.
            note.unlink()
