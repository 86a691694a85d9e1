from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class OpenSweepRequest(_message.Message):
    __slots__ = ("sweep", "direction", "threshold", "metric", "feedback_iteration", "stop", "eta", "grace_iterations", "max_iterations", "trials", "keep_diverged")
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_ITERATION_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    ETA_FIELD_NUMBER: _ClassVar[int]
    GRACE_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    KEEP_DIVERGED_FIELD_NUMBER: _ClassVar[int]
    sweep: str
    direction: str
    threshold: int
    metric: str
    feedback_iteration: int
    stop: str
    eta: int
    grace_iterations: int
    max_iterations: int
    trials: int
    keep_diverged: bool
    def __init__(self, sweep: _Optional[str] = ..., direction: _Optional[str] = ..., threshold: _Optional[int] = ..., metric: _Optional[str] = ..., feedback_iteration: _Optional[int] = ..., stop: _Optional[str] = ..., eta: _Optional[int] = ..., grace_iterations: _Optional[int] = ..., max_iterations: _Optional[int] = ..., trials: _Optional[int] = ..., keep_diverged: _Optional[bool] = ...) -> None: ...

class OpenSweepReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SubmitJobRequest(_message.Message):
    __slots__ = ("job_id", "sweep", "settings_json", "point_json")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    POINT_JSON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    sweep: str
    settings_json: str
    point_json: str
    def __init__(self, job_id: _Optional[str] = ..., sweep: _Optional[str] = ..., settings_json: _Optional[str] = ..., point_json: _Optional[str] = ...) -> None: ...

class JobReply(_message.Message):
    __slots__ = ("job_json",)
    JOB_JSON_FIELD_NUMBER: _ClassVar[int]
    job_json: str
    def __init__(self, job_json: _Optional[str] = ...) -> None: ...

class RunSweepRequest(_message.Message):
    __slots__ = ("sweep", "tables_json")
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    TABLES_JSON_FIELD_NUMBER: _ClassVar[int]
    sweep: str
    tables_json: str
    def __init__(self, sweep: _Optional[str] = ..., tables_json: _Optional[str] = ...) -> None: ...

class RunSweepReply(_message.Message):
    __slots__ = ("sweep",)
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    sweep: str
    def __init__(self, sweep: _Optional[str] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job_id", "wait_s")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    wait_s: float
    def __init__(self, job_id: _Optional[str] = ..., wait_s: _Optional[float] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("sweep", "going_on_only")
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    GOING_ON_ONLY_FIELD_NUMBER: _ClassVar[int]
    sweep: str
    going_on_only: bool
    def __init__(self, sweep: _Optional[str] = ..., going_on_only: _Optional[bool] = ...) -> None: ...

class ListJobsReply(_message.Message):
    __slots__ = ("job_json", "scheduler_json", "num_left_out")
    JOB_JSON_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_JSON_FIELD_NUMBER: _ClassVar[int]
    NUM_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    job_json: _containers.RepeatedScalarFieldContainer[str]
    scheduler_json: str
    num_left_out: int
    def __init__(self, job_json: _Optional[_Iterable[str]] = ..., scheduler_json: _Optional[str] = ..., num_left_out: _Optional[int] = ...) -> None: ...

class KillRequest(_message.Message):
    __slots__ = ("name", "why")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    name: str
    why: str
    def __init__(self, name: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class KillReply(_message.Message):
    __slots__ = ("job_ids",)
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetReportRequest(_message.Message):
    __slots__ = ("sweep", "wait_s")
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    sweep: str
    wait_s: float
    def __init__(self, sweep: _Optional[str] = ..., wait_s: _Optional[float] = ...) -> None: ...

class GetReportReply(_message.Message):
    __slots__ = ("report_json", "ended")
    REPORT_JSON_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    report_json: str
    ended: bool
    def __init__(self, report_json: _Optional[str] = ..., ended: _Optional[bool] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("sweep", "after")
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    sweep: str
    after: int
    def __init__(self, sweep: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class News(_message.Message):
    __slots__ = ("number", "at_s", "text", "ended")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    number: int
    at_s: float
    text: str
    ended: bool
    def __init__(self, number: _Optional[int] = ..., at_s: _Optional[float] = ..., text: _Optional[str] = ..., ended: _Optional[bool] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ModelPart(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
