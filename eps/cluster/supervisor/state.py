"""What the supervisor decides, and what it and the job master say to each other.  Pure.

Events in, actions out; it forks, signals and reads no clock itself.  A job master that ends before its job is started
again, and so is one that is silent: it is killed first.  Silence is counted only while the supervisor itself listens:
not while it is stopped, waits for a processor, or forks many others.

Contract with the loop: 1 one event at a time, actions in order; 2 every :class:`Fork` is answered by one
:class:`Forked` or :class:`ForkFailed` before the next event; 3 what the master said before it ended comes before its
end; 4 :class:`DeadlinePassed` comes when :attr:`SupervisorState.next_deadline_s` has come.

Master and supervisor send one message a packet, as JSON.  Every launch is answered by one :class:`ProcessLaunched` and
later one :class:`ProcessExited`, or by one :class:`RequestRefused`.  Both ends run the same code, since one forked the
other.
"""

from __future__ import annotations

import json
import signal as signals
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum, auto

from eps.cluster.supervisor.process import MASTER
from eps.errors import ProtocolError

#: Of a packet between master and supervisor.
MAX_BYTES = 64 * 1024
#: A process that SIGTERM has not ended after this long is killed.
GRACE_S = 3.0
#: A process that is silent for this long counts as hung.
MEMBER_TIMEOUT_S = 3.0
#: A new master beats first within this time.
FIRST_BEAT_S = 30.0
#: The supervisor looks at silence this often, so that it knows whether it could listen itself.
LOOK_S = 0.5
#: Masters that are started again, as long as the job gets no further.
MOST_RESTARTS = 5

# ---- what master and supervisor say to each other


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

    #: A number that changes as the job gets further; below 0 where that is not known yet.
    changes: int
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


# ---- events


@dataclass(frozen=True, slots=True)
class Started:
    """The supervisor is ready to fork."""


@dataclass(frozen=True, slots=True)
class Requested:
    """The job master asks for something."""

    request: Request


@dataclass(frozen=True, slots=True)
class Forked:
    """A process is there."""

    container_id: str
    pid: int


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """A process could not be made."""

    container_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A process ended: with a code, or by a signal; the other is None."""

    pid: int
    code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client that the job is tied to closed its end, or died."""


@dataclass(frozen=True, slots=True)
class StopSignalled:
    """The supervisor got a signal that ends the job."""

    signal: int


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """Time has come to look at the deadlines."""


Event = Started | Requested | Forked | ForkFailed | ChildEnded | ClientGone | StopSignalled | DeadlinePassed

# ---- actions


@dataclass(frozen=True, slots=True)
class Fork:
    """Make a process for a container."""

    container_id: str
    role: str
    env: Mapping[str, str] = field(default_factory=dict)
    #: Of the master: containers that run already -> pid.
    running: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SendSignal:
    """Signal a process; SIGKILL goes to all that it started as well."""

    pid: int
    signal: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the job master."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class RemoveScratch:
    """Remove the scratch directory of a container that has ended."""

    container_id: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Every process is gone: write how the job ended, and exit."""

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
    #: When it is killed, if it is still there.
    kill_at_s: float | None = None


class MasterWatch(Enum):
    """What the supervisor makes of a job master's silence."""

    #: There is no master to listen to, or the job ends.
    OFF = auto()
    #: One that does not beat in time is killed.
    ON = auto()
    #: It was killed because it was silent, and ends now.
    HUNG = auto()


class SupervisorState:
    """The processes of a job, and whether it is ending.

    Parameters
    ----------
    grace_s : float, seconds
        Between SIGTERM and SIGKILL.
    member_timeout_s : float, seconds
        A master that is silent for so long is killed and started again.
    most_restarts : int
        Masters that are started again before the job gets further.
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
        #: By container id; the job master is among them.
        self.children: dict[str, Child] = {}
        self.end: End | None = None
        #: Masters that were started again since the job last got further.
        self.restarts = 0
        #: What the master has beaten last that knew how far the job is.
        self._changes: int | None = None
        self._watch = MasterWatch.OFF
        #: When the master counts as hung, while it is watched.
        self._silent_at_s = 0.0
        self._looked_s = 0.0
        self._out: list[Action] = []

    @property
    def next_deadline_s(self) -> float | None:
        """When the next process is to be killed, or to be looked at."""
        deadlines = [c.kill_at_s for c in self.children.values() if c.kill_at_s is not None]
        if self._watch is MasterWatch.ON:
            deadlines.append(min(self._silent_at_s, self._looked_s + LOOK_S))
        return min(deadlines, default=None)

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Take one event in and return what to do, in order."""
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
                if signal == signals.SIGTERM and child.kill_at_s is None:
                    child.kill_at_s = now_s + self.grace_s
            case Beat(changes, patience_s):
                self._on_beat(changes, patience_s, now_s)
            case JobDone(exit_code, state, reason):
                self._begin_end(End(state, exit_code, reason), now_s, spare_master=True)

    def _on_beat(self, changes: int, patience_s: float, now_s: float) -> None:
        # What is still read of a master that was killed, or once the job ends, is no news.
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
        """Start another master, unless several in a row have brought the job no further.

        Deviation: the usual limit counts restarts within a time; here progress alone clears them, since a master that
        fails because of the job's state fails again at the same place.
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
            reason += f"; it was started again {self.restarts} times, and the job got no further"
        self._begin_end(End("failed", 1, reason), now_s)

    def _begin_end(self, end: End, now_s: float, *, spare_master: bool = False) -> None:
        """End every process; the first reason to end a job stays its reason."""
        if self.end is not None:
            return
        self.end = end
        self._watch = MasterWatch.OFF
        for child in self.children.values():
            if child.kill_at_s is None:
                child.kill_at_s = now_s + self.grace_s
                # A master that said that the job is done is about to exit by itself.
                if not (spare_master and child.role == MASTER):
                    self._out.append(SendSignal(child.pid, signals.SIGTERM))
        self._finish_if_alone()

    def _on_deadline(self, now_s: float) -> None:
        for child in self.children.values():
            if child.kill_at_s is not None and child.kill_at_s <= now_s:
                child.kill_at_s = None
                self._out.append(SendSignal(child.pid, signals.SIGKILL))
        if self._watch is not MasterWatch.ON:
            return
        if now_s - self._looked_s > 2 * LOOK_S:
            # It was stopped, or had much to do: beats may wait to be read.
            self._silent_at_s = max(self._silent_at_s, now_s + self.member_timeout_s)
        self._looked_s = now_s
        if self._silent_at_s <= now_s:
            self._watch = MasterWatch.HUNG
            self._out.append(SendSignal(self.children[MASTER].pid, signals.SIGKILL))

    def _finish_if_alone(self) -> None:
        if self.end is not None and not self.children:
            self._out.append(Finish(self.end))
