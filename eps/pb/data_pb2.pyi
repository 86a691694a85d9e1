from eps.pb import control_pb2 as _control_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Pushes(_message.Message):
    __slots__ = ("clock", "splits", "samples", "partitions", "keysets", "sums", "maxima", "extras")
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    KEYSETS_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    MAXIMA_FIELD_NUMBER: _ClassVar[int]
    EXTRAS_FIELD_NUMBER: _ClassVar[int]
    clock: int
    splits: _containers.RepeatedScalarFieldContainer[int]
    samples: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    keysets: _containers.RepeatedScalarFieldContainer[bytes]
    sums: _containers.RepeatedScalarFieldContainer[int]
    maxima: _containers.RepeatedScalarFieldContainer[int]
    extras: _containers.RepeatedCompositeFieldContainer[PushExtra]
    def __init__(self, clock: _Optional[int] = ..., splits: _Optional[_Iterable[int]] = ..., samples: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., keysets: _Optional[_Iterable[bytes]] = ..., sums: _Optional[_Iterable[int]] = ..., maxima: _Optional[_Iterable[int]] = ..., extras: _Optional[_Iterable[_Union[PushExtra, _Mapping]]] = ...) -> None: ...

class PushExtra(_message.Message):
    __slots__ = ("index", "has_keys", "raw_splits", "raw_blocks", "raw_lengths", "form")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    HAS_KEYS_FIELD_NUMBER: _ClassVar[int]
    RAW_SPLITS_FIELD_NUMBER: _ClassVar[int]
    RAW_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RAW_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    index: int
    has_keys: bool
    raw_splits: _containers.RepeatedScalarFieldContainer[int]
    raw_blocks: _containers.RepeatedScalarFieldContainer[int]
    raw_lengths: _containers.RepeatedScalarFieldContainer[int]
    form: Form
    def __init__(self, index: _Optional[int] = ..., has_keys: _Optional[bool] = ..., raw_splits: _Optional[_Iterable[int]] = ..., raw_blocks: _Optional[_Iterable[int]] = ..., raw_lengths: _Optional[_Iterable[int]] = ..., form: _Optional[_Union[Form, _Mapping]] = ...) -> None: ...

class Form(_message.Message):
    __slots__ = ("length", "changed_only", "float16", "scale")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CHANGED_ONLY_FIELD_NUMBER: _ClassVar[int]
    FLOAT16_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    length: int
    changed_only: bool
    float16: bool
    scale: float
    def __init__(self, length: _Optional[int] = ..., changed_only: _Optional[bool] = ..., float16: _Optional[bool] = ..., scale: _Optional[float] = ...) -> None: ...

class Pulls(_message.Message):
    __slots__ = ("min_clock", "partitions", "keysets", "with_keys")
    MIN_CLOCK_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    KEYSETS_FIELD_NUMBER: _ClassVar[int]
    WITH_KEYS_FIELD_NUMBER: _ClassVar[int]
    min_clock: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    keysets: _containers.RepeatedScalarFieldContainer[bytes]
    with_keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, min_clock: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., keysets: _Optional[_Iterable[bytes]] = ..., with_keys: _Optional[_Iterable[int]] = ...) -> None: ...

class Exchange(_message.Message):
    __slots__ = ("pushes", "pulls", "incarnation", "results")
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    PULLS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    pushes: _containers.RepeatedCompositeFieldContainer[Pushes]
    pulls: _containers.RepeatedCompositeFieldContainer[Pulls]
    incarnation: int
    results: _containers.RepeatedCompositeFieldContainer[_control_pb2.ClockReported]
    def __init__(self, pushes: _Optional[_Iterable[_Union[Pushes, _Mapping]]] = ..., pulls: _Optional[_Iterable[_Union[Pulls, _Mapping]]] = ..., incarnation: _Optional[int] = ..., results: _Optional[_Iterable[_Union[_control_pb2.ClockReported, _Mapping]]] = ...) -> None: ...

class PushResult(_message.Message):
    __slots__ = ("partition", "have", "accepted", "refusal")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    partition: int
    have: _containers.RepeatedScalarFieldContainer[int]
    accepted: bool
    refusal: Refusal
    def __init__(self, partition: _Optional[int] = ..., have: _Optional[_Iterable[int]] = ..., accepted: _Optional[bool] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class PullResult(_message.Message):
    __slots__ = ("partition", "clock", "refusal", "form")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    partition: int
    clock: int
    refusal: Refusal
    form: Form
    def __init__(self, partition: _Optional[int] = ..., clock: _Optional[int] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., form: _Optional[_Union[Form, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("retry", "membership", "unknown_keyset", "error", "passed")
    RETRY_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_KEYSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    retry: bool
    membership: _control_pb2.Membership
    unknown_keyset: bool
    error: str
    passed: bool
    def __init__(self, retry: _Optional[bool] = ..., membership: _Optional[_Union[_control_pb2.Membership, _Mapping]] = ..., unknown_keyset: _Optional[bool] = ..., error: _Optional[str] = ..., passed: _Optional[bool] = ...) -> None: ...

class ExchangeReply(_message.Message):
    __slots__ = ("accepted", "pushes", "served", "served_clocks", "packed_values", "pulls", "packed_exponents")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    SERVED_CLOCKS_FIELD_NUMBER: _ClassVar[int]
    PACKED_VALUES_FIELD_NUMBER: _ClassVar[int]
    PULLS_FIELD_NUMBER: _ClassVar[int]
    PACKED_EXPONENTS_FIELD_NUMBER: _ClassVar[int]
    accepted: _containers.RepeatedScalarFieldContainer[int]
    pushes: _containers.RepeatedCompositeFieldContainer[PushResult]
    served: _containers.RepeatedScalarFieldContainer[int]
    served_clocks: _containers.RepeatedScalarFieldContainer[int]
    packed_values: _containers.RepeatedScalarFieldContainer[int]
    pulls: _containers.RepeatedCompositeFieldContainer[PullResult]
    packed_exponents: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, accepted: _Optional[_Iterable[int]] = ..., pushes: _Optional[_Iterable[_Union[PushResult, _Mapping]]] = ..., served: _Optional[_Iterable[int]] = ..., served_clocks: _Optional[_Iterable[int]] = ..., packed_values: _Optional[_Iterable[int]] = ..., pulls: _Optional[_Iterable[_Union[PullResult, _Mapping]]] = ..., packed_exponents: _Optional[_Iterable[int]] = ...) -> None: ...

class PartitionSnapshot(_message.Message):
    __slots__ = ("plan_id", "partition", "sequence", "completed", "next_clock", "applied", "duplicates_refused", "keysets", "changed_only", "kept", "checksum")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    NEXT_CLOCK_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_REFUSED_FIELD_NUMBER: _ClassVar[int]
    KEYSETS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_ONLY_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    plan_id: int
    partition: int
    sequence: int
    completed: int
    next_clock: _containers.RepeatedScalarFieldContainer[int]
    applied: int
    duplicates_refused: int
    keysets: _containers.RepeatedScalarFieldContainer[bytes]
    changed_only: bool
    kept: int
    checksum: str
    def __init__(self, plan_id: _Optional[int] = ..., partition: _Optional[int] = ..., sequence: _Optional[int] = ..., completed: _Optional[int] = ..., next_clock: _Optional[_Iterable[int]] = ..., applied: _Optional[int] = ..., duplicates_refused: _Optional[int] = ..., keysets: _Optional[_Iterable[bytes]] = ..., changed_only: _Optional[bool] = ..., kept: _Optional[int] = ..., checksum: _Optional[str] = ...) -> None: ...

class PartitionCut(_message.Message):
    __slots__ = ("incarnation", "cut_id", "partition", "clock", "kept", "next_clock", "applied", "duplicates_refused", "changed_only", "checksum")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CUT_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    NEXT_CLOCK_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_REFUSED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_ONLY_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    cut_id: int
    partition: int
    clock: int
    kept: int
    next_clock: _containers.RepeatedScalarFieldContainer[int]
    applied: int
    duplicates_refused: int
    changed_only: bool
    checksum: str
    def __init__(self, incarnation: _Optional[int] = ..., cut_id: _Optional[int] = ..., partition: _Optional[int] = ..., clock: _Optional[int] = ..., kept: _Optional[int] = ..., next_clock: _Optional[_Iterable[int]] = ..., applied: _Optional[int] = ..., duplicates_refused: _Optional[int] = ..., changed_only: _Optional[bool] = ..., checksum: _Optional[str] = ...) -> None: ...

class PartitionUpdate(_message.Message):
    __slots__ = ("plan_id", "partition", "sequence", "clock", "splits", "rate_scale", "sparse")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    RATE_SCALE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    plan_id: int
    partition: int
    sequence: int
    clock: int
    splits: _containers.RepeatedScalarFieldContainer[int]
    rate_scale: float
    sparse: bool
    def __init__(self, plan_id: _Optional[int] = ..., partition: _Optional[int] = ..., sequence: _Optional[int] = ..., clock: _Optional[int] = ..., splits: _Optional[_Iterable[int]] = ..., rate_scale: _Optional[float] = ..., sparse: _Optional[bool] = ...) -> None: ...

class PartitionPromote(_message.Message):
    __slots__ = ("plan_id", "partition", "sequence")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    plan_id: int
    partition: int
    sequence: int
    def __init__(self, plan_id: _Optional[int] = ..., partition: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class SplitCopy(_message.Message):
    __slots__ = ("plan_id", "split", "checksum")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    plan_id: int
    split: int
    checksum: str
    def __init__(self, plan_id: _Optional[int] = ..., split: _Optional[int] = ..., checksum: _Optional[str] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("partition",)
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    partition: int
    def __init__(self, partition: _Optional[int] = ...) -> None: ...

class ExportReply(_message.Message):
    __slots__ = ("clock", "applied", "duplicates_refused", "lost", "applied_twice")
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_REFUSED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    APPLIED_TWICE_FIELD_NUMBER: _ClassVar[int]
    clock: int
    applied: int
    duplicates_refused: int
    lost: int
    applied_twice: int
    def __init__(self, clock: _Optional[int] = ..., applied: _Optional[int] = ..., duplicates_refused: _Optional[int] = ..., lost: _Optional[int] = ..., applied_twice: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DataHeader(_message.Message):
    __slots__ = ("exchange", "exchange_reply", "snapshot", "update", "promote", "split_copy", "export_request", "export_reply", "done", "cut")
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_REPLY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    PROMOTE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_COPY_FIELD_NUMBER: _ClassVar[int]
    EXPORT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    EXPORT_REPLY_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    exchange: Exchange
    exchange_reply: ExchangeReply
    snapshot: PartitionSnapshot
    update: PartitionUpdate
    promote: PartitionPromote
    split_copy: SplitCopy
    export_request: ExportRequest
    export_reply: ExportReply
    done: Done
    cut: PartitionCut
    def __init__(self, exchange: _Optional[_Union[Exchange, _Mapping]] = ..., exchange_reply: _Optional[_Union[ExchangeReply, _Mapping]] = ..., snapshot: _Optional[_Union[PartitionSnapshot, _Mapping]] = ..., update: _Optional[_Union[PartitionUpdate, _Mapping]] = ..., promote: _Optional[_Union[PartitionPromote, _Mapping]] = ..., split_copy: _Optional[_Union[SplitCopy, _Mapping]] = ..., export_request: _Optional[_Union[ExportRequest, _Mapping]] = ..., export_reply: _Optional[_Union[ExportReply, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., cut: _Optional[_Union[PartitionCut, _Mapping]] = ...) -> None: ...

class Meeting(_message.Message):
    __slots__ = ("host_id", "offers")
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    host_id: str
    offers: _containers.RepeatedCompositeFieldContainer[Offer]
    def __init__(self, host_id: _Optional[str] = ..., offers: _Optional[_Iterable[_Union[Offer, _Mapping]]] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("transport", "host", "port")
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    transport: str
    host: str
    port: int
    def __init__(self, transport: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...
