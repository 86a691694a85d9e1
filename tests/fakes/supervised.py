"""A job with a real supervisor, whose processes do what the test says.

The test listens; every process of the job connects to it, says what it is, and the master hands its channel over, so
that the test is the job master.  A connection ends with its process.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from eps.cluster.local import LocalResourceManager
from eps.cluster.supervisor.loop import HANDLED_SIGNALS
from eps.cluster.supervisor.process import END, ContainerContext
from eps.cluster.supervisor.start import SupervisorHandle, WarmSupervisor
from eps.cluster.supervisor.state import (
    MAX_BYTES,
    MEMBER_TIMEOUT_S,
    LaunchProcess,
    ProcessLaunched,
    Request,
    decode,
    encode,
)
from eps.storage.jobdir import JobDir, create_job_dir
from tests.fakes.records import note_settings

DEADLINE_S = 20.0
NoticeT = TypeVar("NoticeT")
ENTRIES = {
    "master": "tests.fakes.supervised:run_master",
    "server": "tests.fakes.supervised:run_member",
    "worker": "tests.fakes.supervised:run_member",
    "server+worker": "tests.fakes.supervised:run_member",
}

# ---- in the job's processes


def run_master(context: ContainerContext) -> int:
    connection = _dial(context)
    assert context.supervisor_fd is not None
    socket.send_fds(connection, [json.dumps(_facts(context, connection)).encode()], [context.supervisor_fd])
    order = connection.recv(64).decode()
    if order.startswith("exit"):
        return int(order.split()[1])
    if order == "raise":
        raise RuntimeError("the master was told to fail")
    _sleep_until_killed()
    return 0


def run_member(context: ContainerContext) -> int | None:
    behaviour = context.env.get("BEHAVIOUR", "sleep")
    connection = _dial(context)
    facts = _facts(context, connection)
    if behaviour == "ignore-end":
        signal.signal(END, signal.SIG_IGN)
    if behaviour == "start-another":
        facts["started_pid"] = subprocess.Popen(["sleep", "1000"]).pid
    connection.send(json.dumps(facts).encode())
    match behaviour.split():
        case ["exit", code]:
            return int(code)
        case ["raise"]:
            raise RuntimeError("the member was told to fail")
        case ["end"]:
            return None
    _sleep_until_killed()
    return 0


def stop_early(runtime: object) -> None:
    """Prepare a supervisor that gets a signal meanwhile."""
    os.kill(os.getpid(), signal.SIGTERM)


def client(home: str, tied: str) -> None:
    """Start a job, and stay while it is tied."""
    with SupervisedJob(Path(home), tied=tied == "tied", adopt_master=False) as job:
        print(job.handle.pid, flush=True)
        if job.tied:
            _sleep_until_killed()


def _dial(context: ContainerContext) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(_meeting_point(context.job_dir))
    return connection


def _meeting_point(job_dir: Path) -> str:
    # An abstract address: paths of sockets are short, those of temporary directories are not.
    return "\0eps-test-" + hashlib.sha256(str(job_dir).encode()).hexdigest()


def _facts(context: ContainerContext, connection: socket.socket) -> dict[str, Any]:
    print("the log gets stdout")
    death_signal = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(death_signal), 0, 0, 0)  # PR_GET_PDEATHSIG
    return {
        "container_id": context.container_id,
        "role": context.role,
        "pid": os.getpid(),
        "parent_pid": os.getppid(),
        "group": os.getpgid(0),
        "fds": [fd for fd in _open_fds() if fd != connection.fileno()],
        "supervisor_fd": context.supervisor_fd,
        "running": dict(context.running),
        "stdin": sys.stdin.read(),
        "death_signal": death_signal.value,
        "handlers_are_default": all(signal.getsignal(n) == signal.SIG_DFL for n in HANDLED_SIGNALS),
        "blocked_signals": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        "environ": dict(os.environ),
        "cwd": os.getcwd(),
        "scratch_is_there": context.scratch_dir is not None and context.scratch_dir.is_dir(),
        "modules": [name for name in ("numpy", "scipy.sparse", "grpc") if name in sys.modules],
        "num_threads": len(os.listdir("/proc/self/task")),
    }


def _open_fds() -> list[int]:
    found = []
    for text in os.listdir("/proc/self/fd"):
        # The listing names its own descriptor too, which is closed by now.
        with suppress(OSError):
            os.fstat(int(text))
            found.append(int(text))
    return sorted(found)


def _sleep_until_killed() -> None:
    while True:
        signal.pause()


# ---- in the test


@dataclass
class Peer:
    """A process of the job, as the test sees it."""

    connection: socket.socket
    facts: dict[str, Any]

    @property
    def pid(self) -> int:
        return int(self.facts["pid"])

    def order(self, text: str) -> None:
        self.connection.send(text.encode())


class SupervisedJob:
    """A job under test."""

    def __init__(
        self,
        home: Path,
        *,
        tied: bool = True,
        preload: Sequence[str] = (),
        grace_s: float = 3.0,
        adopt_master: bool = True,
        member_timeout_s: float = MEMBER_TIMEOUT_S,
    ) -> None:
        self.tied = tied
        self.dir, lock = create_job_dir("job", home)
        note_settings(self.dir, member_timeout_s=member_timeout_s)
        self._sockets: list[socket.socket] = []
        self.master: Peer | None = None
        if adopt_master:
            self.listener = listen(self.dir)
            self._sockets.append(self.listener)
        with lock:
            options = ["--preload", ",".join(preload), "--grace-s", str(grace_s)]
            self.handle: SupervisorHandle = WarmSupervisor(ENTRIES, options=options).give(self.dir.path, tied, lock)
        if adopt_master:
            try:
                self.accept_master()
            except BaseException:
                self.close()
                raise

    def accept_master(self) -> Peer:
        """Wait for a job master, the first or the next, and take its channel over."""
        fds: list[int] = []
        while not fds:
            # Members that nobody has waited for come first.
            self.master, fds = accept(self.listener, num_fds=1)
            self._sockets.append(self.master.connection)
        assert self.master is not None
        self.channel = socket.socket(fileno=fds[0])
        self._sockets.append(self.channel)
        return self.master

    def replace_master(self) -> Peer:
        """Kill the job master and wait for the next."""
        assert self.master is not None
        os.kill(self.master.pid, signal.SIGKILL)
        return self.accept_master()

    def accept(self) -> Peer:
        """Wait for the next process of the job to say what it is."""
        peer, _ = accept(self.listener)
        self._sockets.append(peer.connection)
        return peer

    def resources(self, max_containers: int = 0) -> LocalResourceManager:
        """Return a resource manager over the master's channel."""
        assert self.master is not None
        return LocalResourceManager(os.dup(self.channel.fileno()), max_containers, self.master.facts["running"])

    def say(self, request: Request) -> None:
        """Tell the supervisor something, as the job master."""
        self.channel.send(encode(request))

    def hear(self, kind: type[NoticeT]) -> NoticeT:
        """Return what the supervisor says next, which must be of this kind."""
        self.channel.settimeout(DEADLINE_S)
        packet = self.channel.recv(MAX_BYTES)
        assert packet, "the supervisor closed its channel"
        notice = decode(packet)
        assert isinstance(notice, kind), notice
        return notice

    def launch(self, container_id: str, behaviour: str = "sleep", role: str = "worker") -> Peer:
        """Launch a container and wait for it."""
        self.say(LaunchProcess(container_id, role, {"BEHAVIOUR": behaviour}))
        assert self.hear(ProcessLaunched).container_id == container_id
        return self.accept()

    def close(self) -> None:
        for s in self._sockets:
            s.close()
        if self.tied:
            self.handle.close()

    def __enter__(self) -> SupervisedJob:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


def listen(job: JobDir) -> socket.socket:
    """Return a socket to which the processes of a job connect."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(_meeting_point(job.path))
    listener.listen(64)
    listener.settimeout(DEADLINE_S)
    return listener


def accept(listener: socket.socket, num_fds: int = 0) -> tuple[Peer, list[int]]:
    """Wait for a process to connect and say what it is."""
    connection, _ = listener.accept()
    connection.settimeout(DEADLINE_S)
    data, fds, _, _ = socket.recv_fds(connection, 1 << 16, num_fds)
    return Peer(connection, json.loads(data)), list(fds)


class Watch:
    """Processes that are to end; watched by descriptor, so that a pid used again fools nobody."""

    def __init__(self, *pids: int) -> None:
        self._fds = {os.pidfd_open(pid): pid for pid in pids}

    def wait(self, timeout_s: float = DEADLINE_S) -> None:
        """Wait until every one of them has ended."""
        end_s = time.monotonic() + timeout_s
        try:
            while self._fds:
                poller = select.poll()
                for fd in self._fds:
                    poller.register(fd, select.POLLIN)
                ready = poller.poll(max(0, int((end_s - time.monotonic()) * 1000)))
                assert ready, f"still there after {timeout_s} s: {sorted(self._fds.values())}"
                for fd, _ in ready:
                    os.close(fd)
                    del self._fds[fd]
        finally:
            for fd in self._fds:
                os.close(fd)
