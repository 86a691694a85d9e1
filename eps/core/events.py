"""The events that ``Job.step`` takes and the commands that it returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from eps.core import messages as m
from eps.core.messages import CheckpointPartWritten, Order, Report
from eps.core.reconfig import Change
from eps.core.retries import Repeats
from eps.core.types import Address, MemberId, Role, Tier
from eps.errors import EpsError


class JobState(StrEnum):
    """The state of a job."""

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
    """The resource manager has granted a container; its process is about to start."""

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
    #: The cluster preempted or lost the container: the process did not fail.
    taken: bool = False


@dataclass(frozen=True, slots=True)
class ContainerWarning:
    """A container will be preempted."""

    container_id: str
    #: Seconds from now.
    deadline_s: float
    #: Why, as a phrase that follows the container's name.
    reason: str = ""
    #: Whether its resources go to other applications.
    for_others: bool = False


@dataclass(frozen=True, slots=True)
class ContainersWarned:
    """The resource manager will preempt containers; one plan drains all that it named together."""

    warnings: tuple[ContainerWarning, ...]


@dataclass(frozen=True, slots=True)
class RoomSeen:
    """The cluster has free capacity that no other application asks for (:attr:`eps.core.job.Job.looks_for_room`)."""

    #: For each role, how many containers would fit if the job asked for this role only.
    fits: Mapping[Role, int]


@dataclass(frozen=True, slots=True)
class MemberLost:
    """A container's process has been silent for too long and counts as ended."""

    #: Of one of its members.
    seat: str
    reason: str


@dataclass(frozen=True, slots=True)
class MemberRegistered:
    """A process is up, listens at ``address`` and waits for its name.

    A process that registers again has reconnected: the master resends its name and all unacknowledged orders.
    """

    #: Its container; with the role (:func:`eps.core.members.seat_of`) if two members share the container.
    seat: str
    address: Address
    pid: int
    #: From the latest order that it received: the generation of its master, and that master's event count.  0 if none.
    heard_generation: int = 0
    heard_step: int = 0


@dataclass(frozen=True, slots=True)
class ReportReceived:
    """A member sent a report."""

    report: Report
    #: Seconds since it was made; positive if it was batched with later reports.
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ChangeRequested:
    """A client requested a change; a repeated ``request_id`` gets the same answer."""

    request_id: str
    change: Change
    #: Only describe what would happen.
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A client asked to cancel a plan."""

    request_id: str
    plan_id: int


@dataclass(frozen=True, slots=True)
class KillRequested:
    """A client asked to kill the job."""

    reason: str


@dataclass(frozen=True, slots=True)
class ResourcesLost:
    """The resource manager is permanently lost."""

    reason: str


@dataclass(frozen=True, slots=True)
class ExportDone:
    """The model has been exported."""

    #: Results of the export for the report, as JSON values.
    found: Mapping[str, Any] | None = None
    #: Number of the export, from :class:`StartExport`.
    number: int = 1


@dataclass(frozen=True, slots=True)
class ExportFailed:
    """The export of the model failed."""

    message: str
    number: int = 1


@dataclass(frozen=True, slots=True)
class CheckpointDone:
    """A checkpoint is complete and visible under its final name."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A checkpoint whose parts were all written could not be completed."""

    checkpoint_id: int
    message: str


@dataclass(frozen=True, slots=True)
class CheckpointWaits:
    """The completion of a checkpoint waits for its storage; repeated every few seconds."""

    checkpoint_id: int
    message: str


@dataclass(frozen=True, slots=True)
class MasterRestarted:
    """A new master process has restored this state."""

    #: Of the new master; orders of earlier generations are void.
    generation: int
    #: Running containers -> pid.
    running: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    #: Seconds since the resource manager last answered; 0.0 while it answers.
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
    """Request a container from the resource manager."""

    container_id: str
    #: Roles of the members that will run in it.
    roles: frozenset[Role]
    #: None if the job does not tell its containers apart.
    tier: Tier | None = None


@dataclass(frozen=True, slots=True)
class ReleaseContainer:
    """Release a container, or cancel its request if it was not granted yet."""

    container_id: str


@dataclass(frozen=True, slots=True)
class KillContainer:
    """Kill the process of a lost container.  How it exits shows whether its machine is lost, too."""

    container_id: str


@dataclass(frozen=True, slots=True)
class Name:
    """Tell a registered process its name."""

    seat: str
    name: MemberId


@dataclass(frozen=True, slots=True)
class Send:
    """Send an order to a member."""

    to: MemberId
    order: Order


@dataclass(frozen=True, slots=True)
class Journal:
    """Log a record; with ``sync`` the state log is on disk before the next command runs."""

    record: Mapping[str, Any]
    sync: bool = False


def noted(kind: str, now_s: float, /, **record: Any) -> Journal:
    """Return the command that logs a record of this kind."""
    return Journal({"kind": kind, **record, "at_s": round(now_s, 6)})


def synced(kind: str, now_s: float, /, **record: Any) -> Journal:
    """Return the command that logs a record and syncs the state log to disk before the next command runs."""
    return Journal(noted(kind, now_s, **record).record, sync=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a request with a plan, the text of a dry run, or an error."""

    request_id: str
    plan_id: int = 0
    text: str = ""
    error: EpsError | None = None


@dataclass(frozen=True, slots=True)
class StartExport:
    """Write the model, read from the owners of the partitions."""

    number: int = 1


@dataclass(frozen=True, slots=True)
class FinishCheckpoint:
    """Complete a checkpoint: write its metadata and rename it into place.  The result comes back as an event."""

    checkpoint_id: int
    epoch: int
    clock: int
    parts: tuple[CheckpointPartWritten, ...]
    #: The job's requested size, all pending changes included.
    workers: int
    servers: int
    #: The latest clock up to which triggers have been requested.
    triggers_asked: int
    #: Complete checkpoints to keep beside this one when :class:`RemoveEarlier` runs: the latest that the job can roll
    #: back to, oldest first.
    kept: tuple[str, ...]

    @property
    def first_clock(self) -> int:
        """The clock from which a job continues that starts from this checkpoint."""
        return min(part.clock for part in self.parts)


@dataclass(frozen=True, slots=True)
class RemoveEarlier:
    """Remove the checkpoints that a newer, complete one makes superfluous."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint:
    """Remove the files of a checkpoint that was not completed."""

    epoch: int
    clock: int


@dataclass(frozen=True, slots=True)
class EndJob:
    """End the job; every member has received :class:`eps.core.messages.Shutdown`."""

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
    """The commands of the current step, in order, and the resend times of orders that have had no effect yet."""

    def __init__(self) -> None:
        #: The time of the step.
        self.now_s = 0.0
        self._commands: list[Command] = []
        self._repeats = Repeats()

    def begin(self, now_s: float) -> None:
        """Start a step."""
        self.now_s, self._commands = now_s, []

    def take(self) -> list[Command]:
        """Return the commands of the step and end it."""
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
        """Resend those outstanding orders whose resend time has come."""
        self.send(self._repeats.due(outstanding, self.now_s))

    def due_s(self, outstanding: list[tuple[MemberId, m.Order]]) -> float:
        """Return when :meth:`send_due` will send any of these orders; infinity if there are none."""
        return self._repeats.due_s(outstanding)

    def forget(self, name: MemberId | None = None) -> None:
        """Forget what was sent to a member that reconnected, or to all members after a restart of the master."""
        self._repeats.reset(name)

    def note(self, kind: str, **record: object) -> None:
        """Log a record."""
        self._commands.append(noted(kind, self.now_s, **record))

    def sync(self, kind: str, **record: object) -> None:
        """Log a record and sync the state log to disk before the next command runs."""
        self._commands.append(synced(kind, self.now_s, **record))
