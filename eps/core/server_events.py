"""Events and commands of :class:`eps.core.server_state.ServerState`.

``request`` is an opaque key of the shell: the arrays that came with a message stay with the shell under it.
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
    """How far a partition is."""

    #: Per split, the next clock that it contributes.
    next_clock: tuple[int, ...]
    #: Contributions, one for each (clock, split), that were added to the parameters.
    applied: int = 0
    duplicates_refused: int = 0

    @property
    def completed(self) -> int:
        """Clocks that every split has contributed."""
        return min(self.next_clock)


@dataclass(frozen=True, slots=True)
class MembershipArrived:
    """The master announced a membership."""

    plan_id: int
    membership: Membership
    #: Partition -> how far the checkpoint is that the membership goes back to; empty for the seeded start.
    counters: Mapping[int, Counters] = field(default_factory=dict)


# What is made for every partition at every clock is not frozen, which would take four times as long; nobody changes it.


@dataclass(slots=True, unsafe_hash=True)
class PushArrived:
    """Contributions of ``splits`` to ``clock`` of a partition, summed by the sender."""

    request: Request
    partition: int
    clock: int
    splits: tuple[int, ...]


@dataclass(slots=True, unsafe_hash=True)
class PullArrived:
    """A read of a partition that has completed ``min_clock`` clocks (BSP: exactly that version)."""

    request: Request
    partition: int
    min_clock: int


@dataclass(frozen=True, slots=True)
class ExchangeArrived:
    """The pushes and pulls of one message, one push and one pull at most for each partition.

    The same as each of them alone, one after the other, but that all sums and steps come first.
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
    #: Of its arrays as they arrived.
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
    """The old owner stopped applying (SSP, ASP): everything before ``sequence`` is all there is."""

    request: Request
    plan_id: int
    partition: int
    sequence: int


@dataclass(frozen=True, slots=True)
class UpdateAcked:
    """A follower has everything of a partition before ``sequence``: its snapshot, or an update, is acknowledged.

    ``plan_id`` is that of the command which sent it: what was sent for an aborted plan may be acknowledged late.
    """

    plan_id: int
    partition: int
    follower: MemberId
    sequence: int
    #: Of a snapshot: what the job master is told once the follower has all that workers were served or told before.
    sent: m.PartitionSent | None = None


@dataclass(frozen=True, slots=True)
class SendingFailed:
    """A follower cannot be reached, does not answer in time, or refuses what it is sent for a plan."""

    plan_id: int
    follower: MemberId
    why: str


@dataclass(frozen=True, slots=True)
class ResultsArrived:
    """What a worker measured at a clock; it says so to servers too, in case that it cannot tell the master any more."""

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
)

# ---- commands


@dataclass(frozen=True, slots=True)
class CreatePartition:
    """Fill a partition with the job's initial values, or those of the checkpoint that the membership goes back to."""

    partition: int


@dataclass(slots=True, unsafe_hash=True)
class Accumulate:
    """Add a push to the clock's sum; with the first of a clock the version before is no longer needed."""

    request: Request
    partition: int
    clock: int
    splits: tuple[int, ...]
    first_of_clock: bool


@dataclass(slots=True, unsafe_hash=True)
class StepPartition:
    """The clock is complete: one optimizer step."""

    partition: int
    clock: int
    #: ``SendUpdate`` commands follow, which need the step.
    followed: bool = False


@dataclass(frozen=True, slots=True)
class ApplyPush:
    """SSP and ASP: one optimizer step with this push alone."""

    request: Request
    partition: int
    clock: int
    splits: tuple[int, ...]
    #: As of :class:`StepPartition`.
    followed: bool = False


@dataclass(slots=True, unsafe_hash=True)
class AckPush:
    """Answer a push.  ``have`` were applied before; ``accepted`` is False where the sum mixes old and new splits."""

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
    """Answer that the request breaks the protocol."""

    request: Request
    why: str


@dataclass(frozen=True, slots=True)
class RefusePassed:
    """Answer that the clock asked for is complete everywhere, so that nobody has to compute it any more."""

    request: Request


@dataclass(frozen=True, slots=True)
class RefuseStale:
    """Answer that the partition is elsewhere, with the newest membership, by which the worker sends it again."""

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
    """Tell a follower that it owns the partition from here on."""

    plan_id: int
    partition: int
    to: MemberId
    sequence: int


@dataclass(frozen=True, slots=True)
class StopSending:
    """The follower needs nothing more."""

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
    """Acknowledge an update that changes nothing."""

    request: Request


@dataclass(frozen=True, slots=True)
class RefuseUpdate:
    """Answer that the sender does not own the partition any more."""

    request: Request


@dataclass(frozen=True, slots=True)
class DropPartition:
    """Free the partition's arrays."""

    partition: int


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Keep the partition as it is now, before anything changes it, and write it to a checkpoint."""

    checkpoint_id: int
    partition: int
    counters: Counters


@dataclass(frozen=True, slots=True)
class SkipSnapshot:
    """Report that the partition was past the checkpoint's clock when its order came."""

    checkpoint_id: int
    partition: int
    why: str


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
    | ReportToMaster
)
