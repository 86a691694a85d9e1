"""What the job master and its supervisor say to each other: one JSON object per line.  L1.

::

    master -> supervisor   {"op":"launch","container_id":..,"role":"worker|server","env":{..},"log":..}
                           {"op":"kill","container_id":..,"signal":15}
                           {"op":"beat","progress":17,"patience_s":0.0}
                           {"op":"job-done","exit_code":0,"state":"finished","reason":""}
    supervisor -> master   {"event":"launched","container_id":..,"pid":..}
                           {"event":"exited","container_id":..,"code":..,"signal":..}
                           {"event":"refused","reason":..,"container_id":..}

Every launch is answered by one ``launched`` and later one ``exited``, or by one ``refused`` with its container id.
"""

from __future__ import annotations

import json
import re
import signal as signals
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eps.errors import ProtocolError

MAX_LINE_BYTES = 64 * 1024
#: No master is waited for longer than this.
MOST_PATIENCE_S = 3600.0
ROLES = ("server", "worker")
JOB_STATES = ("finished", "failed", "killed")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class LaunchProcess:
    """Fork a process and run the entry function of ``role`` in it."""

    container_id: str
    role: str
    env: Mapping[str, str] = field(default_factory=dict)
    #: Name of its log file in the job's log directory; empty for ``<container_id>.log``.
    log: str = ""


@dataclass(frozen=True, slots=True)
class KillProcess:
    """Send a signal; a process that SIGTERM does not end within the grace period is killed."""

    container_id: str
    signal: int = signals.SIGTERM


@dataclass(frozen=True, slots=True)
class Beat:
    """The job master lives, and this is how far the job is."""

    #: Anything that changes as the job does; below 0 where that is not known yet.
    progress: int
    #: Its next beat may take this long, where that is more than usual.
    patience_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobDone:
    """The job has ended: end every process, and exit with ``exit_code``."""

    exit_code: int
    #: ``finished``, ``failed`` or ``killed``.
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ProcessLaunched:
    """A process was forked."""

    container_id: str
    pid: int


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """A process ended: with an exit code, or by a signal; the other is None."""

    container_id: str
    code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A request that is malformed or cannot be done."""

    reason: str
    #: Empty where the request did not say one that can be read.
    container_id: str = ""


Request = LaunchProcess | KillProcess | Beat | JobDone
Notice = ProcessLaunched | ProcessExited | RequestRefused


def exit_reason(code: int | None, signal: int | None) -> str:
    """Return how a process ended, as words after its name."""
    if signal is not None:
        try:
            return f"was ended by {signals.Signals(signal).name}"
        except ValueError:
            return f"was ended by signal {signal}"
    return f"exited with code {code}"


def encode_request(request: Request) -> bytes:
    """Return the line of a request.

    Raises
    ------
    ProtocolError
        It is longer than a line may be.
    """
    match request:
        case LaunchProcess(container_id, role, env, log):
            value: dict[str, Any] = {
                "op": "launch", "container_id": container_id, "role": role, "env": dict(env), "log": log,
            }  # fmt: skip
        case KillProcess(container_id, signal):
            value = {"op": "kill", "container_id": container_id, "signal": int(signal)}
        case Beat(progress, patience_s):
            value = {"op": "beat", "progress": progress, "patience_s": patience_s}
        case JobDone(exit_code, state, reason):
            value = {"op": "job-done", "exit_code": exit_code, "state": state, "reason": reason}
    line = json.dumps(value).encode("ascii") + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(f"a {value['op']} request of {len(line)} bytes: at most {MAX_LINE_BYTES} are allowed")
    return line


def encode_notice(notice: Notice) -> bytes:
    """Return the line of a notice."""
    match notice:
        case ProcessLaunched(container_id, pid):
            value: dict[str, Any] = {"event": "launched", "container_id": container_id, "pid": pid}
        case ProcessExited(container_id, code, signal):
            value = {"event": "exited", "container_id": container_id, "code": code, "signal": signal}
        case RequestRefused(reason, container_id):
            value = {"event": "refused", "reason": reason[:4096], "container_id": container_id}
    return json.dumps(value).encode("ascii") + b"\n"


def decode_request(line: bytes) -> Request:
    """Return the request in a line.

    Raises
    ------
    ProtocolError
        It is malformed; the message says how.
    """
    value = _object(line)
    match value.get("op"):
        case "launch":
            env = _field(value, "env", _is_env, {})
            return LaunchProcess(
                container_id=_field(value, "container_id", _is_name),
                role=_field(value, "role", lambda role: role in ROLES),
                env=env,
                log=_field(value, "log", lambda log: log == "" or _is_name(log), ""),
            )
        case "kill":
            return KillProcess(
                container_id=_field(value, "container_id", _is_name),
                signal=_field(value, "signal", _is_signal, int(signals.SIGTERM)),
            )
        case "beat":
            return Beat(
                progress=_field(value, "progress", _is_int),
                patience_s=float(_field(value, "patience_s", _is_duration, 0.0)),
            )
        case "job-done":
            exit_code = _field(value, "exit_code", lambda code: _is_int(code) and 0 <= code <= 255)
            return JobDone(
                exit_code=exit_code,
                state=_field(value, "state", lambda s: s in JOB_STATES, "failed" if exit_code else "finished"),
                reason=_field(value, "reason", lambda reason: isinstance(reason, str), ""),
            )
    raise ProtocolError(f"op is {value.get('op')!r}, but must be launch, kill, beat or job-done")


def decode_notice(line: bytes) -> Notice:
    """Return the notice in a line.

    Raises
    ------
    ProtocolError
        It is malformed; the message says how.
    """
    value = _object(line)
    match value.get("event"):
        case "launched":
            return ProcessLaunched(_field(value, "container_id", _is_name), _field(value, "pid", _is_int))
        case "exited":
            return ProcessExited(
                container_id=_field(value, "container_id", _is_name),
                code=_field(value, "code", _is_optional_int, None),
                signal=_field(value, "signal", _is_optional_int, None),
            )
        case "refused":
            return RequestRefused(
                reason=_field(value, "reason", lambda reason: isinstance(reason, str)),
                container_id=_field(value, "container_id", lambda name: isinstance(name, str), ""),
            )
    raise ProtocolError(f"event is {value.get('event')!r}, but must be launched, exited or refused")


def refused_container(line: bytes) -> str:
    """Return the container id in a line that is otherwise malformed; empty if there is none."""
    try:
        return str(_field(_object(line), "container_id", _is_name))
    except ProtocolError:
        return ""


class LineBuffer:
    """Cuts a stream of bytes into lines, and holds no more of it than a line may have.

    A line that is too long comes out as None, once, and the stream goes on behind it.
    """

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.max_line_bytes = max_line_bytes
        self._partial = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """Take ``data`` in and return the lines that it completes, without their ends."""
        *complete, rest = (self._partial + data).split(b"\n")
        lines: list[bytes | None] = []
        for line in complete:
            if self._skipping:
                self._skipping = False
            else:
                lines.append(line if len(line) < self.max_line_bytes else None)
        if not self._skipping and len(rest) >= self.max_line_bytes:
            lines.append(None)
            self._skipping = True
        self._partial = b"" if self._skipping else rest
        return lines


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    # Deep nesting ends in a RecursionError.
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the line is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"the line holds a {type(value).__name__}, but must hold an object")
    return value


_REQUIRED = object()


def _field(value: Mapping[str, Any], name: str, accepts: Callable[[Any], bool], default: Any = _REQUIRED) -> Any:
    found = value.get(name, default)
    if found is _REQUIRED:
        raise ProtocolError(f"{name} is missing")
    if not accepts(found):
        raise ProtocolError(f"{name} is {str(found)[:200]!r}, which cannot be")
    return found


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_PATIENCE_S


def _is_optional_int(value: Any) -> bool:
    return value is None or _is_int(value)


def _is_signal(value: Any) -> bool:
    return _is_int(value) and value in signals.valid_signals()


def _is_env(value: Any) -> bool:
    return isinstance(value, dict) and all(
        name and "=" not in name and "\0" not in name and isinstance(text, str) and "\0" not in text
        for name, text in value.items()
    )
