from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WantedContainer(_message.Message):
    __slots__ = ("container_id", "role", "memory_mb", "vcores", "env", "tier")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    VCORES_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    role: str
    memory_mb: int
    vcores: int
    env: _containers.ScalarMap[str, str]
    tier: str
    def __init__(self, container_id: _Optional[str] = ..., role: _Optional[str] = ..., memory_mb: _Optional[int] = ..., vcores: _Optional[int] = ..., env: _Optional[_Mapping[str, str]] = ..., tier: _Optional[str] = ...) -> None: ...

class ContainerWish(_message.Message):
    __slots__ = ("number", "want", "release", "kill", "end_all")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    KILL_FIELD_NUMBER: _ClassVar[int]
    END_ALL_FIELD_NUMBER: _ClassVar[int]
    number: int
    want: WantedContainer
    release: str
    kill: str
    end_all: bool
    def __init__(self, number: _Optional[int] = ..., want: _Optional[_Union[WantedContainer, _Mapping]] = ..., release: _Optional[str] = ..., kill: _Optional[str] = ..., end_all: _Optional[bool] = ...) -> None: ...

class ContainerRunning(_message.Message):
    __slots__ = ("pid", "host")
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    pid: int
    host: str
    def __init__(self, pid: _Optional[int] = ..., host: _Optional[str] = ...) -> None: ...

class ContainerExited(_message.Message):
    __slots__ = ("code", "reason", "taken")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    taken: bool
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., taken: _Optional[bool] = ...) -> None: ...

class ContainerWarned(_message.Message):
    __slots__ = ("deadline_s", "reason", "for_others")
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FOR_OTHERS_FIELD_NUMBER: _ClassVar[int]
    deadline_s: float
    reason: str
    for_others: bool
    def __init__(self, deadline_s: _Optional[float] = ..., reason: _Optional[str] = ..., for_others: _Optional[bool] = ...) -> None: ...

class ContainerNews(_message.Message):
    __slots__ = ("number", "container_id", "allocated", "running", "exited", "warned")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    WARNED_FIELD_NUMBER: _ClassVar[int]
    number: int
    container_id: str
    allocated: bool
    running: ContainerRunning
    exited: ContainerExited
    warned: ContainerWarned
    def __init__(self, number: _Optional[int] = ..., container_id: _Optional[str] = ..., allocated: _Optional[bool] = ..., running: _Optional[_Union[ContainerRunning, _Mapping]] = ..., exited: _Optional[_Union[ContainerExited, _Mapping]] = ..., warned: _Optional[_Union[ContainerWarned, _Mapping]] = ...) -> None: ...

class OpenContainersRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class OpenContainersReply(_message.Message):
    __slots__ = ("adopted",)
    class AdoptedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    adopted: _containers.ScalarMap[str, int]
    def __init__(self, adopted: _Optional[_Mapping[str, int]] = ...) -> None: ...

class WishContainersRequest(_message.Message):
    __slots__ = ("session", "wishes")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    WISHES_FIELD_NUMBER: _ClassVar[int]
    session: str
    wishes: _containers.RepeatedCompositeFieldContainer[ContainerWish]
    def __init__(self, session: _Optional[str] = ..., wishes: _Optional[_Iterable[_Union[ContainerWish, _Mapping]]] = ...) -> None: ...

class WishContainersReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HearContainersRequest(_message.Message):
    __slots__ = ("session", "after", "wait_s")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    session: str
    after: int
    wait_s: float
    def __init__(self, session: _Optional[str] = ..., after: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class HearContainersReply(_message.Message):
    __slots__ = ("news",)
    NEWS_FIELD_NUMBER: _ClassVar[int]
    news: _containers.RepeatedCompositeFieldContainer[ContainerNews]
    def __init__(self, news: _Optional[_Iterable[_Union[ContainerNews, _Mapping]]] = ...) -> None: ...
