"""Control messages between the job master and the members, as values.

``eps.net.messages.codec`` carries them over gRPC field by field (``proto/eps/pb/control.proto`` has a message of the
same name and fields for each); tests and the simulator pass them as they are.  Every message is idempotent: applying
one twice, or an old one late, changes nothing.

Source: EPS §3.1.3 (the transmission signal and the dependency update signal of the master), §5.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from eps.core.membership import Membership
from eps.core.types import Address, MemberId, Role


@dataclass(frozen=True, slots=True)
class SplitResult:
    """What one split contributed at one clock, measured at the parameters of that clock."""

    split: int
    #: Rows that took part.
    samples: int
    #: Sum of the loss over those rows, without penalties.
    loss_sum: float
    #: Additive evaluation sums of the split's test piece (``eps.ml.metrics``); empty when not evaluated.
    evaluation: tuple[float, ...] = ()


# ---- member -> master


@dataclass(frozen=True, slots=True)
class MembershipAcked:
    """The member's lists are those of this version (EPS barrier 4 counts these)."""

    name: MemberId
    version: int


@dataclass(frozen=True, slots=True)
class ListsUpdated:
    """The member knows the addresses of the members that a plan adds (EPS barrier 3)."""

    name: MemberId
    plan_id: int


@dataclass(frozen=True, slots=True)
class ClockReported:
    """A worker computed these splits of a clock; their push is on its way."""

    name: MemberId
    clock: int
    results: tuple[SplitResult, ...]
    #: Incarnation of the membership under which they were computed.
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class PartitionSent:
    """A donor has sent the snapshot of a partition; updates follow from now on."""

    name: MemberId
    plan_id: int
    partition: int
    size_bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class PartitionCaughtUp:
    """A follower holds the partition and applies its updates; the checksum is of the snapshot it received."""

    name: MemberId
    plan_id: int
    partition: int
    checksum: str


@dataclass(frozen=True, slots=True)
class SplitReceived:
    """A worker has a split that a plan makes active there, checked and in memory."""

    name: MemberId
    plan_id: int
    split: int
    size_bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """A donor could not send, or a receiver not take, what a plan moves: the plan cannot go on."""

    name: MemberId
    plan_id: int
    message: str
    #: Whom it could not be sent to.
    target: MemberId = ""


@dataclass(frozen=True, slots=True)
class PartitionPromoted:
    """A follower became the owner of a partition."""

    name: MemberId
    plan_id: int
    partition: int


@dataclass(frozen=True, slots=True)
class PlanReleased:
    """The member dropped what the plan took from it; a removed member is drained."""

    name: MemberId
    plan_id: int


@dataclass(frozen=True, slots=True)
class MemberFailed:
    """A member met an error that it cannot mend; the job cannot go on with it."""

    name: MemberId
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """What a server is to a partition, and how far it is."""

    partition: int
    #: A value of :class:`eps.core.partition_state.Holding`.
    holding: str
    #: Per split, the next clock that it contributes.
    next_clock: tuple[int, ...]
    #: BSP: the first clock whose parameters can still be read; the version before the newest one is not everywhere.
    oldest_clock: int = -1


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a member holds and how far it is, after others were lost."""

    name: MemberId
    #: Number of the recovery that asked.
    recovery: int
    #: A worker: the last clock whose parameters it has read completely.
    read_clock: int = 0
    #: A server: the partitions whose arrays it has.
    partitions: tuple[HeldPartition, ...] = ()
    #: A server: results of the latest clocks, as workers sent them along with their pushes.
    results: tuple[ClockReported, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointPartWritten:
    """A server wrote its partition of a checkpoint; it would survive a loss of power."""

    name: MemberId
    checkpoint_id: int
    partition: int
    file: str
    size_bytes: int
    checksum: str
    #: Per split, the next clock that it contributes.
    next_clock: tuple[int, ...]
    applied: int
    duplicates_refused: int

    @property
    def clock(self) -> int:
        """Clocks that every split has contributed."""
        return min(self.next_clock)


@dataclass(frozen=True, slots=True)
class CheckpointPartFailed:
    """A server could not write its partition of a checkpoint; training goes on."""

    name: MemberId
    checkpoint_id: int
    partition: int
    message: str
    #: The partition was past the clock when the order came.
    late: bool


@dataclass(frozen=True, slots=True)
class CheckpointPartWaits:
    """A server waits for where checkpoints are, to write its partition; said again every few seconds."""

    name: MemberId
    checkpoint_id: int
    partition: int
    message: str


@dataclass(frozen=True, slots=True)
class CheckpointUnusable:
    """A server cannot read the checkpoint that the job goes back to; it is still where it was."""

    name: MemberId
    checkpoint: str
    message: str


@dataclass(frozen=True, slots=True)
class PeerReached:
    """The member has connected to another; for people, who look here first when a job is slow."""

    name: MemberId
    peer: Address
    #: ``shm``, ``unix``, ``tcp`` or ``grpc``.
    way: str


Report = (
    MembershipAcked
    | ListsUpdated
    | ClockReported
    | PartitionSent
    | PartitionCaughtUp
    | SplitReceived
    | TransferFailed
    | PartitionPromoted
    | PlanReleased
    | MemberFailed
    | Inventory
    | CheckpointPartWritten
    | CheckpointPartFailed
    | CheckpointPartWaits
    | CheckpointUnusable
    | PeerReached
)

# ---- master -> member


@dataclass(frozen=True, slots=True)
class Target:
    """One item of a transfer order: which partition or split goes to whom."""

    item: int
    target: MemberId
    address: Address


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A member that a plan adds, before it is part of a membership."""

    name: MemberId
    address: Address
    roles: frozenset[Role]


@dataclass(frozen=True, slots=True)
class UpdateLists:
    """Put these members into the address lists, before anything is sent to them."""

    plan_id: int
    added: tuple[Newcomer, ...]
    #: Partitions that the receiver, one of those added, will be sent: it gets their memory ready before it answers.
    coming: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateMembership:
    """A membership that holds.  ``plan_id`` is 0 where no plan made it: at the start, and after members were lost."""

    plan_id: int
    membership: Membership


@dataclass(frozen=True, slots=True)
class GrantHorizon:
    """No worker starts a clock beyond ``horizon``; results of clocks below ``completed`` are recorded."""

    horizon: int
    completed: int
    #: Membership that the receiver must hold before it goes beyond that membership's first clock.
    membership_version: int


@dataclass(frozen=True, slots=True)
class SendPartitions:
    """Send these partitions: a snapshot, then every update, until the plan is released or aborted."""

    plan_id: int
    transfers: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class SendSplits:
    """Send copies of these splits; they stay active here until a membership says otherwise."""

    plan_id: int
    transfers: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class LoadSplits:
    """Read these splits of the inactive dataset into memory: a plan makes them active here (EPS Fig. 11).

    Answered with ``SplitReceived`` of 0 bytes for each.
    """

    plan_id: int
    splits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AbortPlan:
    """Forget everything that this plan brought."""

    plan_id: int


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """All members have moved on: drop what this plan took away; answered with ``PlanReleased``."""

    plan_id: int


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Write each partition that you own when it has completed ``clock`` clocks; say again what you said of this one."""

    checkpoint_id: int
    clock: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End the process."""

    reason: str


@dataclass(frozen=True, slots=True)
class TakeInventory:
    """Members were lost: say what you hold.  Answered with ``Inventory``."""

    recovery: int
    #: The first clock of which the job master lacks results.
    from_clock: int


Order = (
    UpdateLists
    | UpdateMembership
    | GrantHorizon
    | SendPartitions
    | SendSplits
    | LoadSplits
    | AbortPlan
    | ReleasePlan
    | TakeCheckpoint
    | Shutdown
    | TakeInventory
)


#: (member, order) pairs.
Orders = list[tuple[MemberId, Order]]
