"""What happens to a job master, and what it does about it: the events and commands of ``Job.step``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from eps.core import messages as m
from eps.core.messages import CheckpointPartWritten, Order, Report
from eps.core.reconfig import Change
from eps.core.retries import Repeats
from eps.core.types import Address, MemberId, Role
from eps.errors import EpsError


class JobState(StrEnum):
    """Where a job is."""

    STARTING = "starting"
    RUNNING = "running"
    #: Trained and measured; the model is being exported.
    EXPORTING = "exporting"
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"


ENDED_STATES = (JobState.FINISHED, JobState.FAILED, JobState.KILLED)

# ---- events


@dataclass(frozen=True, slots=True)
class ContainerGranted:
    """The resource manager has given a container; its process is about to start."""

    container_id: str


@dataclass(frozen=True, slots=True)
class ContainerLaunched:
    """A container's process started."""

    container_id: str
    pid: int


@dataclass(frozen=True, slots=True)
class ContainerExited:
    """A container's process ended."""

    container_id: str
    reason: str
    #: The cluster took or lost it: its process has done nothing to end.
    taken: bool = False


@dataclass(frozen=True, slots=True)
class ContainerWarning:
    """A container will be taken away."""

    container_id: str
    #: Seconds from now.
    deadline_s: float
    #: Why, as words after the container's name.
    reason: str = ""
    #: Others are to get its room.
    for_others: bool = False


@dataclass(frozen=True, slots=True)
class ContainersWarned:
    """The resource manager will take containers away; those that it named together are drained by one plan."""

    warnings: tuple[ContainerWarning, ...]


@dataclass(frozen=True, slots=True)
class RoomSeen:
    """The cluster has room that no other application seems to want (:attr:`eps.core.job.Job.looks_for_room`)."""

    #: Containers of each role that fit, if no other were asked for.
    fits: Mapping[Role, int]


@dataclass(frozen=True, slots=True)
class MemberLost:
    """A container's process has been silent for too long: it counts as ended."""

    container_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class MemberRegistered:
    """A process is up, listens at ``address`` and waits for its name.

    One that registers again has opened its session again: it is told its name, and what it has not acknowledged.
    """

    container_id: str
    address: Address
    pid: int
    #: Of the last order that it has heard: its master's generation, and how many events that had taken in; 0 before.
    heard_generation: int = 0
    heard_step: int = 0


@dataclass(frozen=True, slots=True)
class ReportReceived:
    """A member reported."""

    report: Report
    #: How long ago, where it travelled together with later ones.
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ChangeRequested:
    """A client asked for a change; the same ``request_id`` again gets the same answer."""

    request_id: str
    change: Change
    #: Only say what would happen.
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A client asked to abort a plan."""

    request_id: str
    plan_id: int


@dataclass(frozen=True, slots=True)
class KillRequested:
    """A client asked to end the job."""

    reason: str


@dataclass(frozen=True, slots=True)
class ResourcesLost:
    """The resource manager is gone for good."""

    reason: str


@dataclass(frozen=True, slots=True)
class ExportDone:
    """The model is on disk."""

    #: What was found while it was written, for the report: JSON values.
    found: Mapping[str, Any] | None = None
    #: Of the export that was started.
    number: int = 1


@dataclass(frozen=True, slots=True)
class ExportFailed:
    """The model could not be written."""

    message: str
    number: int = 1


@dataclass(frozen=True, slots=True)
class CheckpointDone:
    """A checkpoint is complete and in its place."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A checkpoint whose parts were all written could not be completed."""

    checkpoint_id: int
    message: str


@dataclass(frozen=True, slots=True)
class CheckpointWaits:
    """The completion of a checkpoint waits for its store; said again every few seconds."""

    checkpoint_id: int
    message: str


@dataclass(frozen=True, slots=True)
class MasterRestarted:
    """Another process has taken this state over, where the one before left it."""

    #: Of the new one; orders of an older one are void.
    generation: int
    #: Containers whose processes run -> pid.
    running: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    #: For how long the resource manager has not answered; 0.0 where it does.
    silent_s: float = 0.0


Event = (
    ContainerGranted
    | ContainerLaunched
    | ContainerExited
    | ContainersWarned
    | RoomSeen
    | MemberLost
    | MemberRegistered
    | ReportReceived
    | ChangeRequested
    | CancelRequested
    | KillRequested
    | ResourcesLost
    | ExportDone
    | ExportFailed
    | CheckpointDone
    | CheckpointFailed
    | CheckpointWaits
    | MasterRestarted
    | Tick
)

# ---- commands


@dataclass(frozen=True, slots=True)
class RequestContainer:
    """Ask the resource manager for a container."""

    container_id: str
    #: Of the member that is to run in it.
    roles: frozenset[Role]


@dataclass(frozen=True, slots=True)
class ReleaseContainer:
    """Give a container back, by id; withdraws it if it was never granted."""

    container_id: str


@dataclass(frozen=True, slots=True)
class KillContainer:
    """End a container's process at once, for it is lost; its end tells whether its machine is, too."""

    container_id: str


@dataclass(frozen=True, slots=True)
class Name:
    """Tell a registered process its name."""

    container_id: str
    name: MemberId


@dataclass(frozen=True, slots=True)
class Send:
    """Send an order to a member."""

    to: MemberId
    order: Order


@dataclass(frozen=True, slots=True)
class Journal:
    """Append a record; ``sync`` records are on disk before the next command is executed."""

    record: Mapping[str, Any]
    sync: bool = False


def noted(kind: str, now_s: float, /, **record: Any) -> Journal:
    """Return the command to append a record of this kind."""
    return Journal({"kind": kind, **record, "at_s": round(now_s, 6)})


def synced(kind: str, now_s: float, /, **record: Any) -> Journal:
    """Return the command to append a record that is on disk before the next command is executed."""
    return Journal(noted(kind, now_s, **record).record, sync=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a request: with a plan, a dry run's text, or a refusal."""

    request_id: str
    plan_id: int = 0
    text: str = ""
    error: EpsError | None = None


@dataclass(frozen=True, slots=True)
class StartExport:
    """Write the model from the owners of the partitions."""

    number: int = 1


@dataclass(frozen=True, slots=True)
class FinishCheckpoint:
    """Write what belongs to the parts of a checkpoint and move it to its place; then say how that went."""

    checkpoint_id: int
    epoch: int
    clock: int
    parts: tuple[CheckpointPartWritten, ...]
    #: Size that the job is to have, after every change that was asked.
    workers: int
    servers: int
    #: Triggers up to this clock have been asked.
    triggers_asked: int
    #: Names of the complete checkpoints to keep beside it once :class:`RemoveEarlier` is commanded: the latest that the
    #: job can go back to, oldest first.
    kept: tuple[str, ...]

    @property
    def first_clock(self) -> int:
        """The clock that a job goes on with from it."""
        return min(part.clock for part in self.parts)


@dataclass(frozen=True, slots=True)
class RemoveEarlier:
    """Remove the checkpoints that one makes superfluous: it is complete, and the job can go back to it."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint:
    """Remove what was written of a checkpoint that did not become one."""

    epoch: int
    clock: int


@dataclass(frozen=True, slots=True)
class EndJob:
    """Every member has been told to end; end the job."""

    state: JobState
    reason: str


Command = (
    RequestContainer
    | ReleaseContainer
    | KillContainer
    | Name
    | Send
    | Journal
    | Answer
    | StartExport
    | FinishCheckpoint
    | RemoveEarlier
    | DiscardCheckpoint
    | EndJob
)


class CommandBuffer:
    """The commands of the step that is being taken, in order; and which orders are repeated for want of an effect."""

    def __init__(self) -> None:
        #: The time of the step.
        self.now_s = 0.0
        self._commands: list[Command] = []
        self._repeats = Repeats()

    def begin(self, now_s: float) -> None:
        """Begin a step."""
        self.now_s, self._commands = now_s, []

    def take(self) -> list[Command]:
        """Return the commands of the step, which has ended."""
        commands, self._commands = self._commands, []
        for command in commands:
            if isinstance(command, Send):
                self._repeats.note(command.to, command.order, self.now_s)
        return commands

    def say(self, command: Command) -> None:
        """Append one command."""
        self._commands.append(command)

    def add(self, commands: Iterable[Command]) -> None:
        """Append commands."""
        self._commands += commands

    def send(self, orders: Iterable[tuple[MemberId, m.Order]]) -> None:
        """Send orders."""
        self._commands += [Send(to, order) for to, order in orders]

    def send_due(self, outstanding: list[tuple[MemberId, m.Order]]) -> None:
        """Send those orders again that have had no effect for long."""
        self.send(self._repeats.due(outstanding, self.now_s))

    def due_s(self, outstanding: list[tuple[MemberId, m.Order]]) -> float:
        """Return when :meth:`send_due` will send any of these orders; infinity where there are none."""
        return self._repeats.due_s(outstanding)

    def forget(self, name: MemberId | None = None) -> None:
        """Forget what was sent to a member that connects again; or to all, where another master sent it."""
        self._repeats.reset(name)

    def note(self, kind: str, **record: object) -> None:
        """Append a record to the journal."""
        self._commands.append(noted(kind, self.now_s, **record))

    def sync(self, kind: str, **record: object) -> None:
        """Append a record to the journal that is on disk before the next command is executed."""
        self._commands.append(synced(kind, self.now_s, **record))
