from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Address(_message.Message):
    __slots__ = ("host", "port")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class Names(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class PartitionTable(_message.Message):
    __slots__ = ("owners", "followers")
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    FOLLOWERS_FIELD_NUMBER: _ClassVar[int]
    owners: _containers.RepeatedScalarFieldContainer[str]
    followers: _containers.RepeatedCompositeFieldContainer[Names]
    def __init__(self, owners: _Optional[_Iterable[str]] = ..., followers: _Optional[_Iterable[_Union[Names, _Mapping]]] = ...) -> None: ...

class SplitTable(_message.Message):
    __slots__ = ("active", "inactive")
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    INACTIVE_FIELD_NUMBER: _ClassVar[int]
    active: _containers.RepeatedScalarFieldContainer[str]
    inactive: _containers.RepeatedCompositeFieldContainer[Names]
    def __init__(self, active: _Optional[_Iterable[str]] = ..., inactive: _Optional[_Iterable[_Union[Names, _Mapping]]] = ...) -> None: ...

class Membership(_message.Message):
    __slots__ = ("version", "from_clock", "workers", "servers", "partitions", "splits", "addresses", "split_clocks", "incarnation", "checkpoint", "goes_back", "recovery")
    class AddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Address
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Address, _Mapping]] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FROM_CLOCK_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    SPLIT_CLOCKS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    GOES_BACK_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    version: int
    from_clock: int
    workers: _containers.RepeatedScalarFieldContainer[str]
    servers: _containers.RepeatedScalarFieldContainer[str]
    partitions: PartitionTable
    splits: SplitTable
    addresses: _containers.MessageMap[str, Address]
    split_clocks: _containers.RepeatedScalarFieldContainer[int]
    incarnation: int
    checkpoint: str
    goes_back: bool
    recovery: int
    def __init__(self, version: _Optional[int] = ..., from_clock: _Optional[int] = ..., workers: _Optional[_Iterable[str]] = ..., servers: _Optional[_Iterable[str]] = ..., partitions: _Optional[_Union[PartitionTable, _Mapping]] = ..., splits: _Optional[_Union[SplitTable, _Mapping]] = ..., addresses: _Optional[_Mapping[str, Address]] = ..., split_clocks: _Optional[_Iterable[int]] = ..., incarnation: _Optional[int] = ..., checkpoint: _Optional[str] = ..., goes_back: _Optional[bool] = ..., recovery: _Optional[int] = ...) -> None: ...

class SplitResult(_message.Message):
    __slots__ = ("split", "samples", "loss_sum", "evaluation")
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    split: int
    samples: int
    loss_sum: float
    evaluation: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, split: _Optional[int] = ..., samples: _Optional[int] = ..., loss_sum: _Optional[float] = ..., evaluation: _Optional[_Iterable[float]] = ...) -> None: ...

class MembershipAcked(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class ListsUpdated(_message.Message):
    __slots__ = ("name", "plan_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    plan_id: int
    def __init__(self, name: _Optional[str] = ..., plan_id: _Optional[int] = ...) -> None: ...

class ClockReported(_message.Message):
    __slots__ = ("name", "clock", "results", "incarnation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    clock: int
    results: _containers.RepeatedCompositeFieldContainer[SplitResult]
    incarnation: int
    def __init__(self, name: _Optional[str] = ..., clock: _Optional[int] = ..., results: _Optional[_Iterable[_Union[SplitResult, _Mapping]]] = ..., incarnation: _Optional[int] = ...) -> None: ...

class PartitionSent(_message.Message):
    __slots__ = ("name", "plan_id", "partition", "size_bytes", "checksum")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    name: str
    plan_id: int
    partition: int
    size_bytes: int
    checksum: str
    def __init__(self, name: _Optional[str] = ..., plan_id: _Optional[int] = ..., partition: _Optional[int] = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[str] = ...) -> None: ...

class PartitionCaughtUp(_message.Message):
    __slots__ = ("name", "plan_id", "partition", "checksum")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    name: str
    plan_id: int
    partition: int
    checksum: str
    def __init__(self, name: _Optional[str] = ..., plan_id: _Optional[int] = ..., partition: _Optional[int] = ..., checksum: _Optional[str] = ...) -> None: ...

class SplitReceived(_message.Message):
    __slots__ = ("name", "plan_id", "split", "size_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    plan_id: int
    split: int
    size_bytes: int
    def __init__(self, name: _Optional[str] = ..., plan_id: _Optional[int] = ..., split: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class TransferFailed(_message.Message):
    __slots__ = ("name", "plan_id", "message", "target")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    name: str
    plan_id: int
    message: str
    target: str
    def __init__(self, name: _Optional[str] = ..., plan_id: _Optional[int] = ..., message: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class PartitionPromoted(_message.Message):
    __slots__ = ("name", "plan_id", "partition")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    name: str
    plan_id: int
    partition: int
    def __init__(self, name: _Optional[str] = ..., plan_id: _Optional[int] = ..., partition: _Optional[int] = ...) -> None: ...

class PlanReleased(_message.Message):
    __slots__ = ("name", "plan_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    plan_id: int
    def __init__(self, name: _Optional[str] = ..., plan_id: _Optional[int] = ...) -> None: ...

class MemberFailed(_message.Message):
    __slots__ = ("name", "kind", "message")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    message: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class HeldPartition(_message.Message):
    __slots__ = ("partition", "holding", "next_clock", "oldest_clock")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    NEXT_CLOCK_FIELD_NUMBER: _ClassVar[int]
    OLDEST_CLOCK_FIELD_NUMBER: _ClassVar[int]
    partition: int
    holding: str
    next_clock: _containers.RepeatedScalarFieldContainer[int]
    oldest_clock: int
    def __init__(self, partition: _Optional[int] = ..., holding: _Optional[str] = ..., next_clock: _Optional[_Iterable[int]] = ..., oldest_clock: _Optional[int] = ...) -> None: ...

class KeptCut(_message.Message):
    __slots__ = ("partition", "clock")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    partition: int
    clock: int
    def __init__(self, partition: _Optional[int] = ..., clock: _Optional[int] = ...) -> None: ...

class Inventory(_message.Message):
    __slots__ = ("name", "recovery", "read_clock", "partitions", "results", "cuts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    READ_CLOCK_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    recovery: int
    read_clock: int
    partitions: _containers.RepeatedCompositeFieldContainer[HeldPartition]
    results: _containers.RepeatedCompositeFieldContainer[ClockReported]
    cuts: _containers.RepeatedCompositeFieldContainer[KeptCut]
    def __init__(self, name: _Optional[str] = ..., recovery: _Optional[int] = ..., read_clock: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[HeldPartition, _Mapping]]] = ..., results: _Optional[_Iterable[_Union[ClockReported, _Mapping]]] = ..., cuts: _Optional[_Iterable[_Union[KeptCut, _Mapping]]] = ...) -> None: ...

class CheckpointPartWritten(_message.Message):
    __slots__ = ("name", "checkpoint_id", "partition", "file", "size_bytes", "checksum", "next_clock", "applied", "duplicates_refused")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    NEXT_CLOCK_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_REFUSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    checkpoint_id: int
    partition: int
    file: str
    size_bytes: int
    checksum: str
    next_clock: _containers.RepeatedScalarFieldContainer[int]
    applied: int
    duplicates_refused: int
    def __init__(self, name: _Optional[str] = ..., checkpoint_id: _Optional[int] = ..., partition: _Optional[int] = ..., file: _Optional[str] = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[str] = ..., next_clock: _Optional[_Iterable[int]] = ..., applied: _Optional[int] = ..., duplicates_refused: _Optional[int] = ...) -> None: ...

class CheckpointPartFailed(_message.Message):
    __slots__ = ("name", "checkpoint_id", "partition", "message", "late")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    checkpoint_id: int
    partition: int
    message: str
    late: bool
    def __init__(self, name: _Optional[str] = ..., checkpoint_id: _Optional[int] = ..., partition: _Optional[int] = ..., message: _Optional[str] = ..., late: _Optional[bool] = ...) -> None: ...

class CheckpointPartWaits(_message.Message):
    __slots__ = ("name", "checkpoint_id", "partition", "message")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    checkpoint_id: int
    partition: int
    message: str
    def __init__(self, name: _Optional[str] = ..., checkpoint_id: _Optional[int] = ..., partition: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class CheckpointUnusable(_message.Message):
    __slots__ = ("name", "checkpoint", "message")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    checkpoint: str
    message: str
    def __init__(self, name: _Optional[str] = ..., checkpoint: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class CutStaged(_message.Message):
    __slots__ = ("name", "cut_id", "partition", "holder", "size_bytes", "clock")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CUT_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    name: str
    cut_id: int
    partition: int
    holder: str
    size_bytes: int
    clock: int
    def __init__(self, name: _Optional[str] = ..., cut_id: _Optional[int] = ..., partition: _Optional[int] = ..., holder: _Optional[str] = ..., size_bytes: _Optional[int] = ..., clock: _Optional[int] = ...) -> None: ...

class CutFailed(_message.Message):
    __slots__ = ("name", "cut_id", "partition", "message")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CUT_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    cut_id: int
    partition: int
    message: str
    def __init__(self, name: _Optional[str] = ..., cut_id: _Optional[int] = ..., partition: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class PeerReached(_message.Message):
    __slots__ = ("name", "peer", "way")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    WAY_FIELD_NUMBER: _ClassVar[int]
    name: str
    peer: Address
    way: str
    def __init__(self, name: _Optional[str] = ..., peer: _Optional[_Union[Address, _Mapping]] = ..., way: _Optional[str] = ...) -> None: ...

class EvictionWarned(_message.Message):
    __slots__ = ("name", "notice_s", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NOTICE_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    notice_s: float
    reason: str
    def __init__(self, name: _Optional[str] = ..., notice_s: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("membership_acked", "lists_updated", "clock_reported", "partition_sent", "partition_caught_up", "split_received", "partition_promoted", "plan_released", "member_failed", "transfer_failed", "inventory", "checkpoint_part_written", "checkpoint_part_failed", "checkpoint_unusable", "peer_reached", "checkpoint_part_waits", "cut_staged", "cut_failed", "eviction_warned", "hello", "age_s")
    MEMBERSHIP_ACKED_FIELD_NUMBER: _ClassVar[int]
    LISTS_UPDATED_FIELD_NUMBER: _ClassVar[int]
    CLOCK_REPORTED_FIELD_NUMBER: _ClassVar[int]
    PARTITION_SENT_FIELD_NUMBER: _ClassVar[int]
    PARTITION_CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    SPLIT_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    PARTITION_PROMOTED_FIELD_NUMBER: _ClassVar[int]
    PLAN_RELEASED_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FAILED_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FAILED_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PART_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PART_FAILED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_UNUSABLE_FIELD_NUMBER: _ClassVar[int]
    PEER_REACHED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PART_WAITS_FIELD_NUMBER: _ClassVar[int]
    CUT_STAGED_FIELD_NUMBER: _ClassVar[int]
    CUT_FAILED_FIELD_NUMBER: _ClassVar[int]
    EVICTION_WARNED_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    membership_acked: MembershipAcked
    lists_updated: ListsUpdated
    clock_reported: ClockReported
    partition_sent: PartitionSent
    partition_caught_up: PartitionCaughtUp
    split_received: SplitReceived
    partition_promoted: PartitionPromoted
    plan_released: PlanReleased
    member_failed: MemberFailed
    transfer_failed: TransferFailed
    inventory: Inventory
    checkpoint_part_written: CheckpointPartWritten
    checkpoint_part_failed: CheckpointPartFailed
    checkpoint_unusable: CheckpointUnusable
    peer_reached: PeerReached
    checkpoint_part_waits: CheckpointPartWaits
    cut_staged: CutStaged
    cut_failed: CutFailed
    eviction_warned: EvictionWarned
    hello: Hello
    age_s: float
    def __init__(self, membership_acked: _Optional[_Union[MembershipAcked, _Mapping]] = ..., lists_updated: _Optional[_Union[ListsUpdated, _Mapping]] = ..., clock_reported: _Optional[_Union[ClockReported, _Mapping]] = ..., partition_sent: _Optional[_Union[PartitionSent, _Mapping]] = ..., partition_caught_up: _Optional[_Union[PartitionCaughtUp, _Mapping]] = ..., split_received: _Optional[_Union[SplitReceived, _Mapping]] = ..., partition_promoted: _Optional[_Union[PartitionPromoted, _Mapping]] = ..., plan_released: _Optional[_Union[PlanReleased, _Mapping]] = ..., member_failed: _Optional[_Union[MemberFailed, _Mapping]] = ..., transfer_failed: _Optional[_Union[TransferFailed, _Mapping]] = ..., inventory: _Optional[_Union[Inventory, _Mapping]] = ..., checkpoint_part_written: _Optional[_Union[CheckpointPartWritten, _Mapping]] = ..., checkpoint_part_failed: _Optional[_Union[CheckpointPartFailed, _Mapping]] = ..., checkpoint_unusable: _Optional[_Union[CheckpointUnusable, _Mapping]] = ..., peer_reached: _Optional[_Union[PeerReached, _Mapping]] = ..., checkpoint_part_waits: _Optional[_Union[CheckpointPartWaits, _Mapping]] = ..., cut_staged: _Optional[_Union[CutStaged, _Mapping]] = ..., cut_failed: _Optional[_Union[CutFailed, _Mapping]] = ..., eviction_warned: _Optional[_Union[EvictionWarned, _Mapping]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., age_s: _Optional[float] = ...) -> None: ...

class Reports(_message.Message):
    __slots__ = ("reports",)
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    reports: _containers.RepeatedCompositeFieldContainer[Report]
    def __init__(self, reports: _Optional[_Iterable[_Union[Report, _Mapping]]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("container_id", "address", "pid", "name", "generation", "heard_generation", "heard_step")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HEARD_GENERATION_FIELD_NUMBER: _ClassVar[int]
    HEARD_STEP_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    address: Address
    pid: int
    name: str
    generation: int
    heard_generation: int
    heard_step: int
    def __init__(self, container_id: _Optional[str] = ..., address: _Optional[_Union[Address, _Mapping]] = ..., pid: _Optional[int] = ..., name: _Optional[str] = ..., generation: _Optional[int] = ..., heard_generation: _Optional[int] = ..., heard_step: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("name", "generation", "job_json", "servers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    JOB_JSON_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    job_json: str
    servers: _containers.RepeatedCompositeFieldContainer[Address]
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., job_json: _Optional[str] = ..., servers: _Optional[_Iterable[_Union[Address, _Mapping]]] = ...) -> None: ...

class Target(_message.Message):
    __slots__ = ("item", "target", "address")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    item: int
    target: str
    address: Address
    def __init__(self, item: _Optional[int] = ..., target: _Optional[str] = ..., address: _Optional[_Union[Address, _Mapping]] = ...) -> None: ...

class Newcomer(_message.Message):
    __slots__ = ("name", "address", "roles")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: Address
    roles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., address: _Optional[_Union[Address, _Mapping]] = ..., roles: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdateLists(_message.Message):
    __slots__ = ("plan_id", "added", "coming")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    COMING_FIELD_NUMBER: _ClassVar[int]
    plan_id: int
    added: _containers.RepeatedCompositeFieldContainer[Newcomer]
    coming: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, plan_id: _Optional[int] = ..., added: _Optional[_Iterable[_Union[Newcomer, _Mapping]]] = ..., coming: _Optional[_Iterable[int]] = ...) -> None: ...

class UpdateMembership(_message.Message):
    __slots__ = ("plan_id", "membership")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    plan_id: int
    membership: Membership
    def __init__(self, plan_id: _Optional[int] = ..., membership: _Optional[_Union[Membership, _Mapping]] = ...) -> None: ...

class GrantHorizon(_message.Message):
    __slots__ = ("horizon", "completed", "membership_version")
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_VERSION_FIELD_NUMBER: _ClassVar[int]
    horizon: int
    completed: int
    membership_version: int
    def __init__(self, horizon: _Optional[int] = ..., completed: _Optional[int] = ..., membership_version: _Optional[int] = ...) -> None: ...

class SendPartitions(_message.Message):
    __slots__ = ("plan_id", "transfers")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    plan_id: int
    transfers: _containers.RepeatedCompositeFieldContainer[Target]
    def __init__(self, plan_id: _Optional[int] = ..., transfers: _Optional[_Iterable[_Union[Target, _Mapping]]] = ...) -> None: ...

class SendSplits(_message.Message):
    __slots__ = ("plan_id", "transfers")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    plan_id: int
    transfers: _containers.RepeatedCompositeFieldContainer[Target]
    def __init__(self, plan_id: _Optional[int] = ..., transfers: _Optional[_Iterable[_Union[Target, _Mapping]]] = ...) -> None: ...

class LoadSplits(_message.Message):
    __slots__ = ("plan_id", "splits")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    plan_id: int
    splits: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, plan_id: _Optional[int] = ..., splits: _Optional[_Iterable[int]] = ...) -> None: ...

class AbortPlan(_message.Message):
    __slots__ = ("plan_id",)
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    plan_id: int
    def __init__(self, plan_id: _Optional[int] = ...) -> None: ...

class ReleasePlan(_message.Message):
    __slots__ = ("plan_id",)
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    plan_id: int
    def __init__(self, plan_id: _Optional[int] = ...) -> None: ...

class TakeCheckpoint(_message.Message):
    __slots__ = ("checkpoint_id", "clock", "epoch")
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    clock: int
    epoch: int
    def __init__(self, checkpoint_id: _Optional[int] = ..., clock: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class TakeCut(_message.Message):
    __slots__ = ("cut_id", "clock", "kept", "backups")
    CUT_ID_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    BACKUPS_FIELD_NUMBER: _ClassVar[int]
    cut_id: int
    clock: int
    kept: int
    backups: _containers.RepeatedCompositeFieldContainer[Target]
    def __init__(self, cut_id: _Optional[int] = ..., clock: _Optional[int] = ..., kept: _Optional[int] = ..., backups: _Optional[_Iterable[_Union[Target, _Mapping]]] = ...) -> None: ...

class DropCuts(_message.Message):
    __slots__ = ("cut_id",)
    CUT_ID_FIELD_NUMBER: _ClassVar[int]
    cut_id: int
    def __init__(self, cut_id: _Optional[int] = ...) -> None: ...

class Shutdown(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class TakeInventory(_message.Message):
    __slots__ = ("recovery", "from_clock")
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    FROM_CLOCK_FIELD_NUMBER: _ClassVar[int]
    recovery: int
    from_clock: int
    def __init__(self, recovery: _Optional[int] = ..., from_clock: _Optional[int] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("update_lists", "update_membership", "grant_horizon", "send_partitions", "send_splits", "abort_plan", "release_plan", "shutdown", "load_splits", "take_inventory", "take_checkpoint", "take_cut", "drop_cuts", "welcome", "generation", "step")
    UPDATE_LISTS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    GRANT_HORIZON_FIELD_NUMBER: _ClassVar[int]
    SEND_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SEND_SPLITS_FIELD_NUMBER: _ClassVar[int]
    ABORT_PLAN_FIELD_NUMBER: _ClassVar[int]
    RELEASE_PLAN_FIELD_NUMBER: _ClassVar[int]
    SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    LOAD_SPLITS_FIELD_NUMBER: _ClassVar[int]
    TAKE_INVENTORY_FIELD_NUMBER: _ClassVar[int]
    TAKE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    TAKE_CUT_FIELD_NUMBER: _ClassVar[int]
    DROP_CUTS_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    update_lists: UpdateLists
    update_membership: UpdateMembership
    grant_horizon: GrantHorizon
    send_partitions: SendPartitions
    send_splits: SendSplits
    abort_plan: AbortPlan
    release_plan: ReleasePlan
    shutdown: Shutdown
    load_splits: LoadSplits
    take_inventory: TakeInventory
    take_checkpoint: TakeCheckpoint
    take_cut: TakeCut
    drop_cuts: DropCuts
    welcome: Welcome
    generation: int
    step: int
    def __init__(self, update_lists: _Optional[_Union[UpdateLists, _Mapping]] = ..., update_membership: _Optional[_Union[UpdateMembership, _Mapping]] = ..., grant_horizon: _Optional[_Union[GrantHorizon, _Mapping]] = ..., send_partitions: _Optional[_Union[SendPartitions, _Mapping]] = ..., send_splits: _Optional[_Union[SendSplits, _Mapping]] = ..., abort_plan: _Optional[_Union[AbortPlan, _Mapping]] = ..., release_plan: _Optional[_Union[ReleasePlan, _Mapping]] = ..., shutdown: _Optional[_Union[Shutdown, _Mapping]] = ..., load_splits: _Optional[_Union[LoadSplits, _Mapping]] = ..., take_inventory: _Optional[_Union[TakeInventory, _Mapping]] = ..., take_checkpoint: _Optional[_Union[TakeCheckpoint, _Mapping]] = ..., take_cut: _Optional[_Union[TakeCut, _Mapping]] = ..., drop_cuts: _Optional[_Union[DropCuts, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class AddRequest(_message.Message):
    __slots__ = ("count", "request_id", "dry_run", "manager")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    MANAGER_FIELD_NUMBER: _ClassVar[int]
    count: int
    request_id: str
    dry_run: bool
    manager: str
    def __init__(self, count: _Optional[int] = ..., request_id: _Optional[str] = ..., dry_run: _Optional[bool] = ..., manager: _Optional[str] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("count", "names", "request_id", "dry_run", "manager")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    MANAGER_FIELD_NUMBER: _ClassVar[int]
    count: int
    names: _containers.RepeatedScalarFieldContainer[str]
    request_id: str
    dry_run: bool
    manager: str
    def __init__(self, count: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., request_id: _Optional[str] = ..., dry_run: _Optional[bool] = ..., manager: _Optional[str] = ...) -> None: ...

class ScaleRequest(_message.Message):
    __slots__ = ("sizes", "request_id", "dry_run", "manager")
    SIZES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    MANAGER_FIELD_NUMBER: _ClassVar[int]
    sizes: str
    request_id: str
    dry_run: bool
    manager: str
    def __init__(self, sizes: _Optional[str] = ..., request_id: _Optional[str] = ..., dry_run: _Optional[bool] = ..., manager: _Optional[str] = ...) -> None: ...

class ChangeReply(_message.Message):
    __slots__ = ("plan_id", "text")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    plan_id: int
    text: str
    def __init__(self, plan_id: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("plan_id", "wait_s")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    plan_id: int
    wait_s: float
    def __init__(self, plan_id: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class PlanReply(_message.Message):
    __slots__ = ("plan_json", "ended")
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    plan_json: str
    ended: bool
    def __init__(self, plan_json: _Optional[str] = ..., ended: _Optional[bool] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("plan_id",)
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    plan_id: int
    def __init__(self, plan_id: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("status_json",)
    STATUS_JSON_FIELD_NUMBER: _ClassVar[int]
    status_json: str
    def __init__(self, status_json: _Optional[str] = ...) -> None: ...

class KillRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class KillReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("after_clock",)
    AFTER_CLOCK_FIELD_NUMBER: _ClassVar[int]
    after_clock: int
    def __init__(self, after_clock: _Optional[int] = ...) -> None: ...

class ProgressUpdate(_message.Message):
    __slots__ = ("status_json", "history_json")
    STATUS_JSON_FIELD_NUMBER: _ClassVar[int]
    HISTORY_JSON_FIELD_NUMBER: _ClassVar[int]
    status_json: str
    history_json: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status_json: _Optional[str] = ..., history_json: _Optional[_Iterable[str]] = ...) -> None: ...
