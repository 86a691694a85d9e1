"""The supervisor's loop: wait for the master, signals and the client, and carry out what the state decides.

One thread that uses ``poll``: every child would inherit further descriptors and locks.
"""

from __future__ import annotations

import os
import select
import shutil
import signal as signals
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType
from typing import cast

from eps.cluster.supervisor.process import MASTER, ContainerContext, run_child
from eps.cluster.supervisor.state import (
    GRACE_S,
    MAX_BYTES,
    MEMBER_TIMEOUT_S,
    Action,
    ChildEnded,
    ClientGone,
    DeadlinePassed,
    End,
    Event,
    Finish,
    Fork,
    Forked,
    ForkFailed,
    Notice,
    RemoveScratch,
    Request,
    Requested,
    SendSignal,
    Started,
    StopSignalled,
    SupervisorState,
    Tell,
    decode,
    encode,
)
from eps.storage import record
from eps.storage.jobdir import JobDir

STOP_SIGNALS = (signals.SIGTERM, signals.SIGINT, signals.SIGHUP)
HANDLED_SIGNALS = (*STOP_SIGNALS, signals.SIGCHLD)
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL


class Supervisor:
    """Run the processes of one job.

    Parameters
    ----------
    job : JobDir
        Its lock is held by this process.
    entry_points : mapping
        Role -> ``module:function``.
    tied_fd : int, optional
        Read end of the client's pipe; its end of file ends the job.
    grace_s : float, seconds
        Time from the signal that ends a process to SIGKILL.
    member_timeout_s : float, seconds
        A job master without a heartbeat for so long is killed and restarted.
    """

    def __init__(
        self,
        job: JobDir,
        entry_points: Mapping[str, str],
        tied_fd: int | None = None,
        grace_s: float = GRACE_S,
        member_timeout_s: float = MEMBER_TIMEOUT_S,
    ) -> None:
        self.job = job
        self.entry_points = entry_points
        self.state = SupervisorState(grace_s, member_timeout_s)
        self._tied_fd = tied_fd
        self._master_end: socket.socket | None = None
        self._channel: socket.socket | None = None
        self._unsent: deque[bytes] = deque()
        self._end: End | None = None
        self._signal_out, self._signal_in = os.pipe()
        os.set_blocking(self._signal_in, False)
        os.set_blocking(self._signal_out, False)

    def run(self) -> int:
        """Fork the job master, serve it until the job has ended, and return the job's exit code."""
        for number in HANDLED_SIGNALS:
            signals.signal(number, _ignore_signal)
        signals.set_wakeup_fd(self._signal_in, warn_on_full_buffer=False)
        # Signals were blocked during the imports; those that came then are delivered now.
        signals.pthread_sigmask(signals.SIG_UNBLOCK, HANDLED_SIGNALS)
        self._handle(Started())
        while self._end is None:
            self._wait()
        clean_up(self.job, self._end)
        return self._end.exit_code

    # ---- events

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._signal_out, select.POLLIN)
        if self._tied_fd is not None:
            poller.register(self._tied_fd, select.POLLIN)
        if self._channel is not None:
            poller.register(self._channel, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        ready = dict(poller.poll(self._timeout_ms()))
        if self._channel is not None and (happened := ready.get(self._channel.fileno())):
            if happened & select.POLLOUT:
                self._send_unsent()
            if happened & (select.POLLIN | _GONE):
                self._read_master()
        if self._signal_out in ready:
            self._read_signals()
        if self._tied_fd is not None and self._tied_fd in ready:
            self._read_tie(self._tied_fd)
        deadline_s = self.state.next_deadline_s
        if deadline_s is not None and deadline_s <= time.monotonic():
            self._handle(DeadlinePassed())

    def _timeout_ms(self) -> int | None:
        deadline_s = self.state.next_deadline_s
        if deadline_s is None:
            return None
        return max(0, int((deadline_s - time.monotonic()) * 1000) + 1)

    def _read_master(self) -> bool:
        """Read one message of the master; return whether there may be more."""
        if self._channel is None:
            return False
        try:
            packet = self._channel.recv(MAX_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            # The master ended with unread messages; the ones that it sent before come next.
            return True
        if not packet:
            self._channel.close()
            self._channel = None
            return False
        self._handle(Requested(cast(Request, decode(packet))))
        return True

    def _read_signals(self) -> None:
        got = b""
        with suppress(BlockingIOError):
            while chunk := os.read(self._signal_out, 4096):
                got += chunk
        for number in STOP_SIGNALS:
            if number in got:
                self._handle(StopSignalled(number))
        # On any signal: SIGCHLD is not written to a full pipe.
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            # Kill its process group too; the group id cannot be reused before the process is reaped.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signals.SIGKILL)
            _, status = os.waitpid(pid, 0)
            master = self.state.children.get(MASTER)
            if master is not None and master.pid == pid:
                while self._read_master():
                    pass
            code = os.waitstatus_to_exitcode(status)
            self._handle(ChildEnded(pid, code, None) if code >= 0 else ChildEnded(pid, None, -code))

    def _read_tie(self, fd: int) -> None:
        with suppress(OSError):
            if os.read(fd, 4096):
                return
        os.close(fd)
        self._tied_fd = None
        self._handle(ClientGone())

    # ---- actions

    def _handle(self, event: Event) -> None:
        events: deque[Event] = deque([event])
        while events:
            for action in self.state.step(events.popleft(), time.monotonic()):
                answer = self._do(action)
                if answer is not None:
                    events.append(answer)

    def _do(self, action: Action) -> Event | None:
        match action:
            case Fork():
                return self._fork(action)
            case SendSignal(pid, number):
                _send_signal(pid, number)
            case Tell(notice):
                self._tell(notice)
            case RemoveScratch(container_id):
                shutil.rmtree(self.job.scratch(container_id), ignore_errors=True)
            case Finish(end):
                self._end = end
        return None

    def _fork(self, action: Fork) -> Event:
        entry = self.entry_points.get(action.role)
        if entry is None:
            return ForkFailed(action.container_id, f"there is no entry point for the role {action.role}")
        is_master = action.container_id == MASTER
        if is_master:
            self._open_channel()
        context = ContainerContext(
            job_dir=self.job.path,
            role=action.role,
            container_id=action.container_id,
            master_address=action.env.get("EPS_MASTER_ADDRESS"),
            supervisor_fd=self._master_end.fileno() if is_master and self._master_end is not None else None,
            env=action.env,
            running=action.running,
            entry_points=self.entry_points,
            scratch_dir=self.job.scratch(action.container_id),
        )
        parent_pid = os.getpid()
        # The child would write unflushed text a second time.
        sys.stdout.flush()
        sys.stderr.flush()
        # The child starts with the supervisor's handlers, which would swallow a signal and write it to the shared pipe.
        signals.pthread_sigmask(signals.SIG_BLOCK, HANDLED_SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                run_child(
                    context,
                    entry,
                    log_path=self.job.log(action.container_id),
                    parent_pid=parent_pid,
                    reset_signals=HANDLED_SIGNALS,
                )
        except OSError as error:
            return ForkFailed(action.container_id, f"fork failed: {error.strerror}")
        finally:
            signals.pthread_sigmask(signals.SIG_UNBLOCK, HANDLED_SIGNALS)
        # Parent and child both do this, since either may run first; the child may also have ended already.
        with suppress(OSError):
            os.setpgid(pid, pid)
        if is_master and self._master_end is not None:
            self._master_end.close()
            self._master_end = None
        return Forked(action.container_id, pid)

    def _open_channel(self) -> None:
        """Open a channel for a new master; messages that the previous one did not receive are dropped."""
        if self._channel is not None:
            self._channel.close()
        self._channel, self._master_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        self._unsent.clear()

    def _tell(self, notice: Notice) -> None:
        if self._channel is not None:
            self._unsent.append(encode(notice))
            self._send_unsent()

    def _send_unsent(self) -> None:
        if self._channel is None:
            return
        try:
            while self._unsent:
                self._channel.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            pass
        except ConnectionError:
            self._unsent.clear()


def clean_up(job: JobDir, end: End) -> None:
    """Remove the files that only a running job has, and record how it ended.

    Raises
    ------
    StorageError
        The end cannot be recorded.
    """
    job.close(record.End(end.state, end.reason, end.exit_code, round(time.time(), 3)))


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing: the loop reads the signal from the wakeup pipe."""


def _send_signal(pid: int, number: int) -> None:
    # The process is not reaped yet, so its pid cannot be reused.
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        if number == signals.SIGKILL:
            os.killpg(pid, number)
