"""Events and commands of :class:`eps.core.server_state.ServerState`.

``request`` is an opaque key: the shell keeps the arrays of a message under it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.types import MemberId

Request = Hashable

# ---- events


@dataclass(frozen=True, slots=True)
class Counters:
    """The progress of a partition."""

    #: Per split, the next clock that is due.
    next_clock: tuple[int, ...]
    #: Contributions, one for each (clock, split), added to the parameters.
    applied: int = 0
    duplicates_refused: int = 0

    @property
    def completed(self) -> int:
        """The number of clocks that every split has contributed."""
        return min(self.next_clock)


@dataclass(frozen=True, slots=True)
class MembershipArrived:
    """The master announced a membership."""

    plan_id: int
    membership: Membership
    #: Partition -> its progress in the checkpoint to which the membership rolls back; empty for the seed.
    counters: Mapping[int, Counters] = field(default_factory=dict)


# Classes with an instance per partition and clock are not frozen: creating frozen ones takes four times as long.


@dataclass(slots=True, unsafe_hash=True)
class PushArrived:
    """Contributions of ``splits`` to ``clock`` of a partition, summed by the sender."""

    request: Request
    partition: int
    clock: int
    splits: tuple[int, ...]


@dataclass(slots=True, unsafe_hash=True)
class PullArrived:
    """A read of a partition once it has completed ``min_clock`` clocks (BSP: exactly that version)."""

    request: Request
    partition: int
    min_clock: int


@dataclass(frozen=True, slots=True)
class ExchangeArrived:
    """The pushes and pulls of one message, at most one of each for a partition.

    Equivalent to handling them one after the other, except that all sums and steps come first.
    """

    pushes: tuple[PushArrived, ...]
    pulls: tuple[PullArrived, ...]


@dataclass(frozen=True, slots=True)
class SendOrdered:
    """The master ordered a partition to be sent to another server."""

    plan_id: int
    partition: int
    to: MemberId


@dataclass(frozen=True, slots=True)
class SnapshotArrived:
    """A donor's snapshot of a partition."""

    request: Request
    plan_id: int
    partition: int
    sequence: int
    counters: Counters
    #: Of the arrays as they arrived.
    checksum: str


@dataclass(frozen=True, slots=True)
class UpdateArrived:
    """An update that the owner applied after the snapshot."""

    request: Request
    plan_id: int
    partition: int
    sequence: int
    clock: int
    splits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromoteArrived:
    """The old owner has stopped applying updates (SSP, ASP): no update from ``sequence`` on is its own."""

    request: Request
    plan_id: int
    partition: int
    sequence: int


@dataclass(frozen=True, slots=True)
class UpdateAcked:
    """A follower has everything of a partition before ``sequence``: it acknowledged its snapshot or an update.

    ``plan_id`` is that of the sending command, because updates of an aborted plan may be acknowledged late.
    """

    plan_id: int
    partition: int
    follower: MemberId
    sequence: int
    #: Snapshots only: the report for the job master, due once the follower has all that workers were served or told.
    sent: m.PartitionSent | None = None


@dataclass(frozen=True, slots=True)
class SendingFailed:
    """A follower cannot be reached, does not answer in time, or refuses what a plan sends to it."""

    plan_id: int
    follower: MemberId
    why: str


@dataclass(frozen=True, slots=True)
class ResultsArrived:
    """Results that a worker measured at a clock; sent to servers, too, in case the worker is lost before it reports."""

    report: m.ClockReported


@dataclass(frozen=True, slots=True)
class PlanAborted:
    """The master aborted a plan."""

    plan_id: int


@dataclass(frozen=True, slots=True)
class PlanReleaseOrdered:
    """The master released a plan."""

    plan_id: int


@dataclass(frozen=True, slots=True)
class CheckpointOrdered:
    """The master ordered a checkpoint of every partition at a clock."""

    checkpoint_id: int
    clock: int


@dataclass(frozen=True, slots=True)
class CutOrdered:
    """The master ordered a cut: a copy of every partition at a clock, kept here and sent to its BackupPS."""

    cut_id: int
    clock: int
    #: Clock of the latest committed cut; -1 if there is none.
    kept: int


@dataclass(frozen=True, slots=True)
class CutArrived:
    """An owner's partition of a cut; this server is its BackupPS."""

    request: Request
    incarnation: int
    cut_id: int
    partition: int
    clock: int
    #: See :class:`CutOrdered`.
    kept: int
    counters: Counters


@dataclass(frozen=True, slots=True)
class CutsDropped:
    """The master needs no cut any more."""

    #: The latest that it ordered.
    cut_id: int


ServerEvent = (
    MembershipArrived
    | PushArrived
    | PullArrived
    | ExchangeArrived
    | SendOrdered
    | SnapshotArrived
    | UpdateArrived
    | PromoteArrived
    | UpdateAcked
    | SendingFailed
    | ResultsArrived
    | PlanAborted
    | PlanReleaseOrdered
    | CheckpointOrdered
    | CutOrdered
    | CutArrived
    | CutsDropped
)

# ---- commands


@dataclass(frozen=True, slots=True)
class CreatePartition:
    """Initialise a partition from the seed, or from the checkpoint or cut to which the membership rolls back."""

    partition: int
    #: Clock of the cut whose copy here is used, and stays; None if it is no cut.
    cut: int | None = None


@dataclass(slots=True, unsafe_hash=True)
class Accumulate:
    """Add a push to the clock's sum; the first push of a clock frees the version before."""

    request: Request
    partition: int
    clock: int
    splits: tuple[int, ...]
    first_of_clock: bool


@dataclass(slots=True, unsafe_hash=True)
class StepPartition:
    """Take one optimizer step, because the clock is complete."""

    partition: int
    clock: int
    #: Whether ``SendUpdate`` commands follow, which need the step.
    followed: bool = False


@dataclass(frozen=True, slots=True)
class ApplyPush:
    """SSP and ASP: take one optimizer step with this push alone."""

    request: Request
    partition: int
    clock: int
    splits: tuple[int, ...]
    #: See :class:`StepPartition`.
    followed: bool = False


@dataclass(slots=True, unsafe_hash=True)
class AckPush:
    """Answer a push.  Splits in ``have`` were applied before.  Not ``accepted`` if the sum mixes old and new splits."""

    request: Request
    partition: int
    have: tuple[int, ...]
    accepted: bool = True


@dataclass(slots=True, unsafe_hash=True)
class AnswerPull:
    """Answer a pull with the parameters of ``clock``."""

    request: Request
    partition: int
    clock: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer that the request violates the protocol."""

    request: Request
    why: str


@dataclass(frozen=True, slots=True)
class RefusePassed:
    """Answer that the requested clock is complete everywhere, so that it need not be computed."""

    request: Request


@dataclass(frozen=True, slots=True)
class RefuseStale:
    """Answer with the newest membership, because the partition is elsewhere; the worker resends to the new owner."""

    request: Request


@dataclass(frozen=True, slots=True)
class SendSnapshot:
    """Copy the partition now and send the copy."""

    plan_id: int
    partition: int
    to: MemberId
    sequence: int
    counters: Counters


@dataclass(frozen=True, slots=True)
class SendUpdate:
    """Send the update that was just applied to a follower."""

    plan_id: int
    partition: int
    to: MemberId
    sequence: int
    clock: int
    splits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendPromote:
    """Tell a follower that it owns the partition from ``sequence`` on."""

    plan_id: int
    partition: int
    to: MemberId
    sequence: int


@dataclass(frozen=True, slots=True)
class StopSending:
    """Stop sending updates of a partition to a follower."""

    plan_id: int
    partition: int
    to: MemberId


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Make the received snapshot the partition's arrays."""

    request: Request
    partition: int


@dataclass(frozen=True, slots=True)
class ApplyUpdate:
    """Apply an owner's update to the follower's arrays and acknowledge it."""

    request: Request
    partition: int
    clock: int
    splits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DropUpdate:
    """Acknowledge an update that has no effect."""

    request: Request


@dataclass(frozen=True, slots=True)
class RefuseUpdate:
    """Answer that the sender no longer owns the partition."""

    request: Request


@dataclass(frozen=True, slots=True)
class DropPartition:
    """Free the partition's arrays."""

    partition: int


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Copy the partition before anything changes it, and write the copy to a checkpoint."""

    checkpoint_id: int
    partition: int
    counters: Counters


@dataclass(frozen=True, slots=True)
class SkipSnapshot:
    """Report that the partition was already past the checkpoint's clock when the order arrived."""

    checkpoint_id: int
    partition: int
    why: str


@dataclass(frozen=True, slots=True)
class CopyForCut:
    """Copy the partition before anything changes it, keep the copy, and send it to its BackupPS."""

    cut_id: int
    partition: int
    clock: int
    counters: Counters


@dataclass(frozen=True, slots=True)
class SkipCut:
    """Report that the partition was already past the cut's clock when the order arrived."""

    cut_id: int
    partition: int
    why: str


@dataclass(frozen=True, slots=True)
class StoreCut:
    """Keep an owner's copy of a partition."""

    request: Request
    partition: int
    clock: int


@dataclass(frozen=True, slots=True)
class DropCut:
    """Free the copy of a partition at the clock of a cut."""

    partition: int
    clock: int


@dataclass(frozen=True, slots=True)
class ReportToMaster:
    """Send a report to the job master."""

    report: m.Report


ServerCommand = (
    CreatePartition
    | Accumulate
    | StepPartition
    | ApplyPush
    | AckPush
    | AnswerPull
    | Fail
    | RefuseStale
    | RefusePassed
    | SendSnapshot
    | SendUpdate
    | SendPromote
    | StopSending
    | InstallSnapshot
    | ApplyUpdate
    | DropUpdate
    | RefuseUpdate
    | DropPartition
    | TakeSnapshot
    | SkipSnapshot
    | CopyForCut
    | SkipCut
    | StoreCut
    | DropCut
    | ReportToMaster
)
