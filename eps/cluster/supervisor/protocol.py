"""What the job master and its supervisor say to each other: one message a packet, as JSON.  L1.

Every launch is answered by one :class:`ProcessLaunched` and later one :class:`ProcessExited`, or by one
:class:`RequestRefused`.  Both ends run the same code, since one forked the other.
"""

from __future__ import annotations

import json
import signal as signals
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from eps.errors import ProtocolError

#: Of a message.
MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class LaunchProcess:
    """Fork a process and run the entry function of ``role`` in it."""

    container_id: str
    role: str
    env: Mapping[str, str] = field(default_factory=dict)


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
    """A request that the supervisor cannot carry out."""

    reason: str
    container_id: str


Request = LaunchProcess | KillProcess | Beat | JobDone
Notice = ProcessLaunched | ProcessExited | RequestRefused
Message = Request | Notice

_TYPES: Mapping[str, type[Message]] = {
    kind.__name__: kind
    for kind in (LaunchProcess, KillProcess, Beat, JobDone, ProcessLaunched, ProcessExited, RequestRefused)
}


def encode(message: Message) -> bytes:
    """Return the packet of a message.

    Raises
    ------
    ProtocolError
        It is longer than :data:`MAX_BYTES`.
    """
    kind = type(message).__name__
    packet = json.dumps([kind, asdict(message)]).encode("ascii")
    if len(packet) > MAX_BYTES:
        raise ProtocolError(f"a {kind} of {len(packet)} bytes: at most {MAX_BYTES} are allowed")
    return packet


def decode(packet: bytes) -> Message:
    """Return the message in a packet.

    Raises
    ------
    ProtocolError
        There is none.
    """
    try:
        kind, fields = json.loads(packet)
        return _TYPES[kind](**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"{packet[:200]!r} is no message of a supervisor or its job master: {error}") from None


def exit_reason(code: int | None, signal: int | None) -> str:
    """Return how a process ended, as words after its name."""
    if signal is not None:
        try:
            return f"was ended by {signals.Signals(signal).name}"
        except ValueError:
            return f"was ended by signal {signal}"
    return f"exited with code {code}"
