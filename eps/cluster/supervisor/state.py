"""The supervisor's decisions, and the messages between it and the job master.  Pure.

Events in, actions out: it does not fork, signal or read a clock.  A job master that exits before its job has ended is
restarted.  One without heartbeats is killed and restarted.  Silence counts only while the supervisor itself can listen:
not while it is stopped, waits for a processor, or forks many processes.

Contract with the loop:

1. One event at a time; actions in order.
2. Every :class:`Fork` is answered by one :class:`Forked` or :class:`ForkFailed` before the next event.
3. Messages that the master sent before it ended come before its end.
4. :class:`DeadlinePassed` comes once :attr:`SupervisorState.next_deadline_s` has passed.

Master and supervisor send one message per packet, as JSON.  Every launch is answered by one :class:`ProcessLaunched`
and later one :class:`ProcessExited`, or by one :class:`RequestRefused`.  Both ends run the same code, since one forked
the other.
"""

from __future__ import annotations

import json
import signal as signals
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum, auto

from eps.cluster.supervisor.process import END, MASTER
from eps.errors import ProtocolError

#: Maximum size of a packet between master and supervisor.
MAX_BYTES = 64 * 1024
#: A process that is still running this long after it was ended is killed.
GRACE_S = 3.0
#: A process without a heartbeat for this long counts as hung.
MEMBER_TIMEOUT_S = 3.0
#: Time until the first heartbeat of a new master.
FIRST_BEAT_S = 30.0
#: Interval of checks for heartbeats.  A gap of more than twice this means that the supervisor itself could not listen.
LOOK_S = 0.5
#: Maximum number of master restarts without progress of the job.
MOST_RESTARTS = 5

# ---- messages between master and supervisor


@dataclass(frozen=True, slots=True)
class LaunchProcess:
    """Fork a process and run the entry function of ``role`` in it."""

    container_id: str
    role: str
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KillProcess:
    """Send a signal; a process that :data:`END` does not end within the grace period is killed."""

    container_id: str
    signal: int = END


@dataclass(frozen=True, slots=True)
class Beat:
    """The job master's heartbeat, with its progress."""

    #: Changes whenever the job makes progress; negative while unknown.
    changes: int
    #: How long the next heartbeat may take, if longer than usual.
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
    """A process ended with an exit code or by a signal; the other one is None."""

    container_id: str
    code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """The supervisor cannot carry out a request."""

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
        The packet is longer than :data:`MAX_BYTES`.
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
        The packet holds no valid message.
    """
    try:
        kind, fields = json.loads(packet)
        return _TYPES[kind](**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"{packet[:200]!r} is not a message of a supervisor or job master: {error}") from None


def exit_reason(code: int | None, signal: int | None) -> str:
    """Return how a process ended, to follow its name in a sentence."""
    if signal is not None:
        try:
            return f"was ended by {signals.Signals(signal).name}"
        except ValueError:
            return f"was ended by signal {signal}"
    return f"exited with code {code}"


# ---- events


@dataclass(frozen=True, slots=True)
class Started:
    """The supervisor is ready to fork."""


@dataclass(frozen=True, slots=True)
class Requested:
    """The job master sent a request."""

    request: Request


@dataclass(frozen=True, slots=True)
class Forked:
    """A process was forked."""

    container_id: str
    pid: int


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """A process could not be forked."""

    container_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A process ended with a code or by a signal; the other one is None."""

    pid: int
    code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client of a tied job closed its end of the pipe, or died."""


@dataclass(frozen=True, slots=True)
class StopSignalled:
    """The supervisor received a signal that ends the job."""

    signal: int


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """A deadline may have passed."""


Event = Started | Requested | Forked | ForkFailed | ChildEnded | ClientGone | StopSignalled | DeadlinePassed

# ---- actions


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork a process for a container."""

    container_id: str
    role: str
    env: Mapping[str, str] = field(default_factory=dict)
    #: For the master: running containers -> pid.
    running: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SendSignal:
    """Send a signal to a process; SIGKILL also goes to its process group."""

    pid: int
    signal: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a notice to the job master."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class RemoveScratch:
    """Remove the scratch directory of a container that has ended."""

    container_id: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Every process has ended: record how the job ended, and exit."""

    end: End


@dataclass(frozen=True, slots=True)
class End:
    """How a job ends."""

    #: ``finished``, ``failed`` or ``killed``.
    state: str
    exit_code: int
    reason: str


Action = Fork | SendSignal | Tell | RemoveScratch | Finish


@dataclass(slots=True)
class Child:
    """A process of the job."""

    container_id: str
    role: str
    pid: int = 0
    #: When to send SIGKILL; None if not planned.
    kill_at_s: float | None = None


class MasterWatch(Enum):
    """How the supervisor treats silence of the job master."""

    #: There is no master, or the job is ending.
    OFF = auto()
    #: A master without heartbeats is killed.
    ON = auto()
    #: The master was killed because of its silence and has not exited yet.
    HUNG = auto()


class SupervisorState:
    """The processes of a job, and whether the job is ending.

    Parameters
    ----------
    grace_s : float, seconds
        Time from :data:`END` to SIGKILL.
    member_timeout_s : float, seconds
        A master without a heartbeat for so long is killed and restarted.
    most_restarts : int
        Maximum number of master restarts without progress of the job.
    """

    def __init__(
        self,
        grace_s: float = GRACE_S,
        member_timeout_s: float = MEMBER_TIMEOUT_S,
        most_restarts: int = MOST_RESTARTS,
    ) -> None:
        self.grace_s = grace_s
        self.member_timeout_s = member_timeout_s
        self.most_restarts = most_restarts
        #: By container id; includes the job master.
        self.children: dict[str, Child] = {}
        self.end: End | None = None
        #: Master restarts since the job last made progress.
        self.restarts = 0
        #: The last known progress in a heartbeat.
        self._changes: int | None = None
        self._watch = MasterWatch.OFF
        #: When the master counts as hung; valid while it is watched.
        self._silent_at_s = 0.0
        self._looked_s = 0.0
        self._out: list[Action] = []

    @property
    def next_deadline_s(self) -> float | None:
        """When the next process is to be killed, or the master's heartbeat checked; None if never."""
        deadlines = [c.kill_at_s for c in self.children.values() if c.kill_at_s is not None]
        if self._watch is MasterWatch.ON:
            deadlines.append(min(self._silent_at_s, self._looked_s + LOOK_S))
        return min(deadlines, default=None)

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Process one event and return the actions, in order."""
        self._out = []
        match event:
            case Started():
                self._fork(MASTER, MASTER)
            case Requested(request):
                self._on_request(request, now_s)
            case Forked(container_id, pid):
                self.children[container_id].pid = pid
                if container_id != MASTER:
                    self._out.append(Tell(ProcessLaunched(container_id, pid)))
                elif self.end is None:
                    self._watch = MasterWatch.ON
                    self._silent_at_s = now_s + max(FIRST_BEAT_S, self.member_timeout_s)
                    self._looked_s = now_s
            case ForkFailed(container_id, reason):
                self._on_fork_failed(container_id, reason, now_s)
            case ChildEnded(pid, code, signal):
                self._on_child_ended(pid, code, signal, now_s)
            case ClientGone():
                self._begin_end(End("killed", 128 + signals.SIGHUP, "the client has gone"), now_s)
            case StopSignalled(signal):
                name = signals.Signals(signal).name
                self._begin_end(End("killed", 128 + signal, f"the supervisor got {name}"), now_s)
            case DeadlinePassed():
                self._on_deadline(now_s)
        return self._out

    def _fork(
        self,
        container_id: str,
        role: str,
        env: Mapping[str, str] | None = None,
        running: Mapping[str, int] | None = None,
    ) -> None:
        self.children[container_id] = Child(container_id, role)
        self._out.append(Fork(container_id, role, env or {}, running or {}))

    def _on_request(self, request: Request, now_s: float) -> None:
        match request:
            case LaunchProcess(container_id, role, env):
                if self.end is not None:
                    self._refuse(f"{container_id} cannot be launched: the job is ending", container_id)
                elif container_id in self.children:
                    self._refuse(f"{container_id} is running: a container is launched once", container_id)
                else:
                    self._fork(container_id, role, env)
            case KillProcess(container_id, signal):
                child = self.children.get(container_id)
                if child is None or container_id == MASTER:
                    self._refuse(f"no container {container_id} is running", container_id)
                    return
                self._out.append(SendSignal(child.pid, signal))
                if signal == END and child.kill_at_s is None:
                    child.kill_at_s = now_s + self.grace_s
            case Beat(changes, patience_s):
                self._on_beat(changes, patience_s, now_s)
            case JobDone(exit_code, state, reason):
                self._begin_end(End(state, exit_code, reason), now_s, spare_master=True)

    def _on_beat(self, changes: int, patience_s: float, now_s: float) -> None:
        # Heartbeats of a killed master, or during the end of the job, do not count.
        if self._watch is MasterWatch.ON:
            self._silent_at_s = now_s + max(self.member_timeout_s, patience_s)
        if changes >= 0 and changes != self._changes:
            self._changes = changes
            self.restarts = 0

    def _refuse(self, reason: str, container_id: str) -> None:
        self._out.append(Tell(RequestRefused(reason, container_id)))

    def _on_fork_failed(self, container_id: str, reason: str, now_s: float) -> None:
        del self.children[container_id]
        if container_id == MASTER:
            self._begin_end(End("failed", 1, f"the job master could not be started: {reason}"), now_s)
        else:
            self._refuse(f"{container_id} could not be launched: {reason}", container_id)

    def _on_child_ended(self, pid: int, code: int | None, signal: int | None, now_s: float) -> None:
        child = next((c for c in self.children.values() if c.pid == pid), None)
        if child is None:
            return
        del self.children[child.container_id]
        self._out.append(RemoveScratch(child.container_id))
        if child.role != MASTER:
            self._out.append(Tell(ProcessExited(child.container_id, code, signal)))
        elif self.end is None:
            self._on_master_exit(code, signal, now_s)
            return
        self._finish_if_alone()

    def _on_master_exit(self, code: int | None, signal: int | None, now_s: float) -> None:
        """Start another master, unless several in a row made no progress.

        Deviation: the usual limit counts restarts within a time.  Here only progress resets the count, since a master
        that fails because of the job's state fails again at the same place.
        """
        hung, self._watch = self._watch is MasterWatch.HUNG, MasterWatch.OFF
        if self.restarts < self.most_restarts:
            self.restarts += 1
            running = {c.container_id: c.pid for c in self.children.values() if c.pid}
            self._fork(MASTER, MASTER, running=running)
            return
        how = f"was silent for {self.member_timeout_s:g} s" if hung else exit_reason(code, signal)
        reason = f"the job master {how} before the job had ended"
        if self.restarts:
            reason += f"; it was restarted {self.restarts} times without progress of the job"
        self._begin_end(End("failed", 1, reason), now_s)

    def _begin_end(self, end: End, now_s: float, *, spare_master: bool = False) -> None:
        """End every process; the first reason for the end is kept."""
        if self.end is not None:
            return
        self.end = end
        self._watch = MasterWatch.OFF
        for child in self.children.values():
            if child.kill_at_s is None:
                child.kill_at_s = now_s + self.grace_s
                # A master that reported the end of the job exits by itself.
                if not (spare_master and child.role == MASTER):
                    self._out.append(SendSignal(child.pid, END))
        self._finish_if_alone()

    def _on_deadline(self, now_s: float) -> None:
        for child in self.children.values():
            if child.kill_at_s is not None and child.kill_at_s <= now_s:
                child.kill_at_s = None
                self._out.append(SendSignal(child.pid, signals.SIGKILL))
        if self._watch is not MasterWatch.ON:
            return
        if now_s - self._looked_s > 2 * LOOK_S:
            # The supervisor was stopped or busy: heartbeats may be unread.
            self._silent_at_s = max(self._silent_at_s, now_s + self.member_timeout_s)
        self._looked_s = now_s
        if self._silent_at_s <= now_s:
            self._watch = MasterWatch.HUNG
            self._out.append(SendSignal(self.children[MASTER].pid, signals.SIGKILL))

    def _finish_if_alone(self) -> None:
        if self.end is not None and not self.children:
            self._out.append(Finish(self.end))
