"""Control messages between the job master and the members, as values.

``eps.net.messages.codec`` encodes them for gRPC field by field; ``proto/eps/pb/control.proto`` has a message with the
same name and fields for each.  Tests and the simulator pass them as they are.  Every message is idempotent: applying
one twice, or an old one late, changes nothing.

Source: EPS §3.1.3 (the transmission signal and the dependency update signal of the master), §5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eps.core.membership import Membership
from eps.core.types import Address, MemberId, Role


@dataclass(frozen=True, slots=True)
class SplitResult:
    """The contribution of one split at one clock, measured at the parameters of that clock."""

    split: int
    #: Rows in the batch.
    samples: int
    #: Sum of the loss over those rows, without penalties.
    loss_sum: float
    #: Additive evaluation sums of the split's test piece (``eps.ml.metrics``); empty when not evaluated.
    evaluation: tuple[float, ...] = ()


# ---- member -> master


@dataclass(frozen=True, slots=True)
class MembershipAcked:
    """The member has installed the membership of this version (EPS barrier 4 counts these)."""

    name: MemberId
    version: int


@dataclass(frozen=True, slots=True)
class ListsUpdated:
    """The member knows the addresses of the members that a plan adds (EPS barrier 3)."""

    name: MemberId
    plan_id: int


@dataclass(frozen=True, slots=True)
class ClockReported:
    """A worker computed these splits of a clock and is pushing them."""

    name: MemberId
    clock: int
    results: tuple[SplitResult, ...]
    #: Incarnation of the membership under which they were computed.
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class PartitionSent:
    """A donor has sent the snapshot of a partition and now forwards its updates."""

    name: MemberId
    plan_id: int
    partition: int
    size_bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class PartitionCaughtUp:
    """A follower holds the partition and applies its updates; the checksum is that of the received snapshot."""

    name: MemberId
    plan_id: int
    partition: int
    checksum: str


@dataclass(frozen=True, slots=True)
class SplitReceived:
    """A worker has received a split that a plan makes active on it; it is checked and in memory."""

    name: MemberId
    plan_id: int
    split: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """A donor could not send, or a receiver could not store, what a plan moves: the plan cannot continue."""

    name: MemberId
    plan_id: int
    message: str
    #: The member to which it could not be sent.
    target: MemberId = ""


@dataclass(frozen=True, slots=True)
class PartitionPromoted:
    """A follower became the owner of a partition."""

    name: MemberId
    plan_id: int
    partition: int


@dataclass(frozen=True, slots=True)
class PlanReleased:
    """The member dropped what the plan moved away from it; a removed member is drained."""

    name: MemberId
    plan_id: int


@dataclass(frozen=True, slots=True)
class MemberFailed:
    """A member met an error that it cannot recover from; the job cannot continue with it."""

    name: MemberId
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """A server's holding of one partition, and its progress."""

    partition: int
    #: A value of :class:`eps.core.partition_state.Holding`.
    holding: str
    #: Per split, the next clock that is due.
    next_clock: tuple[int, ...]
    #: BSP: the first clock whose parameters this server still has; some servers lack the version before the newest.
    oldest_clock: int = -1


@dataclass(frozen=True, slots=True)
class KeptCut:
    """A copy of a partition at the clock of a cut."""

    partition: int
    clock: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """The holdings and the progress of a member; sent after other members were lost."""

    name: MemberId
    #: Number of the recovery that requested it.
    recovery: int
    #: Workers: the last clock whose parameters were read completely.
    read_clock: int = 0
    #: Servers: the partitions whose arrays they hold.
    partitions: tuple[HeldPartition, ...] = ()
    #: Servers: results of the latest clocks, which workers send along with their pushes.
    results: tuple[ClockReported, ...] = ()
    #: Servers: the copies that they keep for cuts, of their own partitions and as BackupPS.
    cuts: tuple[KeptCut, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointPartWritten:
    """A server wrote its partition of a checkpoint durably: it survives a power failure."""

    name: MemberId
    checkpoint_id: int
    partition: int
    file: str
    size_bytes: int
    checksum: str
    #: Per split, the next clock that is due.
    next_clock: tuple[int, ...]
    applied: int
    duplicates_refused: int

    @property
    def clock(self) -> int:
        """The number of clocks that every split has contributed."""
        return min(self.next_clock)


@dataclass(frozen=True, slots=True)
class CheckpointPartFailed:
    """A server could not write its partition of a checkpoint; training continues."""

    name: MemberId
    checkpoint_id: int
    partition: int
    message: str
    #: Whether the partition was already past the clock when the order arrived.
    late: bool


@dataclass(frozen=True, slots=True)
class CheckpointPartWaits:
    """A server waits for the checkpoint storage before it can write its partition; repeated every few seconds."""

    name: MemberId
    checkpoint_id: int
    partition: int
    message: str


@dataclass(frozen=True, slots=True)
class CheckpointUnusable:
    """A server cannot read the checkpoint to which the job rolls back; the server's state is unchanged."""

    name: MemberId
    checkpoint: str
    message: str


@dataclass(frozen=True, slots=True)
class CutStaged:
    """The owner's BackupPS has its partition of a cut."""

    name: MemberId
    cut_id: int
    partition: int
    #: The BackupPS; the owner itself if that is on a reliable container.
    holder: MemberId
    size_bytes: int
    #: The number of clocks that every split has contributed.
    clock: int


@dataclass(frozen=True, slots=True)
class CutFailed:
    """An owner could not copy or send its partition of a cut; training continues."""

    name: MemberId
    cut_id: int
    partition: int
    message: str


@dataclass(frozen=True, slots=True)
class PeerReached:
    """The member has connected to another; shown to users, to find slow connections."""

    name: MemberId
    peer: Address
    #: The transport: ``shm``, ``unix``, ``tcp`` or ``grpc``.
    way: str


@dataclass(frozen=True, slots=True)
class EvictionWarned:
    """The member's container will be taken away; it got a signal."""

    name: MemberId
    #: Seconds from the time of this report.
    notice_s: float
    #: Why, as a phrase that follows the container's name.
    reason: str


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
    | CutStaged
    | CutFailed
    | PeerReached
    | EvictionWarned
)

# ---- master -> member


@dataclass(frozen=True, slots=True)
class Target:
    """One item of a transfer order: a partition or split, and the member that receives it."""

    item: int
    target: MemberId
    address: Address


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A member that a plan adds and that is not yet in a membership."""

    name: MemberId
    address: Address
    roles: frozenset[Role]


@dataclass(frozen=True, slots=True)
class UpdateLists:
    """Add these members to the address lists, before anything is sent to them."""

    plan_id: int
    added: tuple[Newcomer, ...]
    #: Partitions that the receiver will be sent, if it is one of those added: it allocates them before it answers.
    coming: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateMembership:
    """Install a membership.  ``plan_id`` is 0 if no plan made it: at the start, and after a loss of members."""

    plan_id: int
    membership: Membership


@dataclass(frozen=True, slots=True)
class GrantHorizon:
    """No worker starts a clock beyond ``horizon``; the results of clocks below ``completed`` are recorded."""

    horizon: int
    completed: int
    #: The receiver goes beyond the first clock of this membership only if it has installed it.
    membership_version: int


@dataclass(frozen=True, slots=True)
class SendPartitions:
    """Send a snapshot of these partitions, then every update, until the plan is released or aborted."""

    plan_id: int
    transfers: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class SendSplits:
    """Send copies of these splits; they stay active on the sender until a membership moves them."""

    plan_id: int
    transfers: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class LoadSplits:
    """Load these splits of the inactive dataset into memory: a plan makes them active here (EPS Fig. 11).

    Each is answered with a ``SplitReceived`` of 0 bytes.
    """

    plan_id: int
    splits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AbortPlan:
    """Discard everything that this plan brought."""

    plan_id: int


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """Drop what this plan moved away: all members have switched.  Answered with ``PlanReleased``."""

    plan_id: int


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Write each owned partition when it has completed ``clock`` clocks; if it was already reported, report again."""

    checkpoint_id: int
    clock: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TakeCut:
    """Send each owned partition to its BackupPS when it has completed ``clock`` clocks; if it was reported, again.

    The receiver drops its copies of all other cuts, except those of the clock ``kept``.
    """

    cut_id: int
    clock: int
    #: Clock of the latest committed cut; -1 if there is none.
    kept: int
    #: The BackupPSs, numbered from 0; :func:`backup_of` says which of them takes a partition.
    backups: tuple[Target, ...]


def backup_of(partition: int, owner: MemberId, backups: Sequence[Target]) -> Target:
    """Return the BackupPS of a partition: its owner if that is one itself, else one of them in turns."""
    own = next((target for target in backups if target.target == owner), None)
    return own if own is not None else backups[partition % len(backups)]


@dataclass(frozen=True, slots=True)
class DropCuts:
    """Drop all copies for cuts: no container that can be taken away owns a partition any more."""

    #: The latest cut that was ordered; what arrives of it is refused from now on.
    cut_id: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End the process."""

    reason: str


@dataclass(frozen=True, slots=True)
class TakeInventory:
    """Report what you hold, because members were lost.  Answered with ``Inventory``."""

    recovery: int
    #: The first clock whose results the job master lacks.
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
    | TakeCut
    | DropCuts
    | Shutdown
    | TakeInventory
)


#: (member, order) pairs.
Orders = list[tuple[MemberId, Order]]
