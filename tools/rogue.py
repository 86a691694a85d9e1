"""A rogue server: it binds ports that a job has freed and answers like the job's own processes.

It has no secret of the job.  Every false answer contains :data:`MARK`, so that the driver finds it in files and answers
of a process that believed it.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from eps.pb import control_pb2 as pb
from hscheduler.pb import scheduler_pb2 as spb

MARK = "rogue-says-so"
#: Key of the metadata by which the stranger and its rogue recognise each other.
MARK_KEY = "rogue"
#: Number of a plan that no honest master reaches.
ROGUE_PLAN = 424_242
#: Generation that no honest master reaches.
AHEAD = 1000
#: Interval between attempts to bind freed ports, and how long a port is kept: victims avoid one that is taken longer.
GRAB_S, KEEP_S = 0.002, 5.0
#: A port that has been closed for this long is no longer tried.
FORGET_S = 30.0
_MOST_PIPES = 64
_MOST_RECORDED_BYTES = 1 << 16

#: Takes kind, target, outcome and details of an attempt; "answered" means that a victim got a false answer.
Tell = Callable[[str, str, str, str], None]


@dataclass(frozen=True)
class HeardCall:
    """A call of an honest process to a port of the rogue."""

    method: str
    metadata: tuple[tuple[str, Any], ...]
    request: bytes


def _status() -> dict[str, Any]:
    return {
        "name": MARK, "state": "finished", "reason": MARK, "clock": 10**9, "iterations": 10**9, "generation": AHEAD,
        "members": [], "plan": None, "queued": [], "model_sha256": MARK, "storage_error": "", "resources_error": "",
    }  # fmt: skip


def _scheduled_job() -> str:
    return json.dumps(
        {
            "job_id": MARK, "sweep": "", "name": MARK, "phase": "finished", "is_over": True, "is_stopped": False,
            "has_started": True, "why": MARK, "loss": 0.0, "feedback": 0.0, "iteration": 10**9, "report": None,
        }
    )  # fmt: skip


def _plan() -> str:
    plan = {"plan_id": ROGUE_PLAN, "phase": "released", "operation": "add-workers", "names": [MARK], "reason": MARK}
    return json.dumps(plan)


def _orders(request: bytes) -> Iterator[bytes]:
    """Yield the orders of a false later master, which ends the job."""
    generation = AHEAD
    with suppress(Exception):
        generation += max((r.hello.generation for r in pb.Reports.FromString(request).reports), default=0)
    welcome = pb.Welcome(name=MARK, generation=generation, job_json="{}")
    yield pb.Order(welcome=welcome, generation=generation, step=1).SerializeToString()
    ended = pb.Shutdown(reason=MARK)
    yield pb.Order(shutdown=ended, generation=generation, step=2).SerializeToString()


def _lies(method: str, request: bytes) -> Iterator[bytes]:
    """Yield the false answers to a call."""
    service, _, name = method.rpartition("/")
    if name == "Attach":
        yield from _orders(request)
    elif service.endswith("HScheduler"):
        reply = {
            "ListJobs": spb.ListJobsReply(job_json=[_scheduled_job()], scheduler_json=json.dumps({"policy": MARK})),
            "GetJob": spb.JobReply(job_json=_scheduled_job()),
            "SubmitJob": spb.JobReply(job_json=_scheduled_job()),
            "RunSweep": spb.RunSweepReply(sweep=MARK),
            "Kill": spb.KillReply(job_ids=[MARK]),
            "GetReport": spb.GetReportReply(report_json=json.dumps({"name": MARK}), ended=True),
            "GetModel": spb.ModelPart(data=MARK.encode()),
            "Watch": spb.News(number=1, text=MARK, ended=True),
        }.get(name, spb.OpenSweepReply())
        yield reply.SerializeToString()
    else:
        answer = {
            "Status": pb.StatusReply(status_json=json.dumps(_status())),
            "GetPlan": pb.PlanReply(plan_json=_plan(), ended=True),
            "Kill": pb.KillReply(),
            "Watch": pb.ProgressUpdate(status_json=json.dumps(_status())),
        }.get(name, pb.ChangeReply(plan_id=ROGUE_PLAN, text=MARK))
        yield answer.SerializeToString()


def _calls() -> list[tuple[str, bytes]]:
    """Return (method, request) pairs for the job master and the scheduler that would do harm if accepted."""
    job, scheduler, more = "/eps.pb.JobMaster/", "/hscheduler.pb.HScheduler/", MARK
    hello = pb.Report(hello=pb.Hello(container_id="container-0001", pid=1, generation=1, name="worker-1"))
    killer = pb.Report(hello=pb.Hello(container_id=more, pid=1, generation=AHEAD, name="worker-9"))
    failed = pb.Report(member_failed=pb.MemberFailed(name="worker-1", kind="TrainingError", message=more))
    lost = pb.Report(clock_reported=pb.ClockReported(name="worker-1", clock=10**6))
    found: list[tuple[str, Any]] = [
        (job + "AddWorkers", pb.AddRequest(count=1, request_id=more)),
        (job + "AddServers", pb.AddRequest(count=1, request_id=more)),
        (job + "RemoveWorkers", pb.RemoveRequest(count=1, request_id=more)),
        (job + "RemoveServers", pb.RemoveRequest(count=1, request_id=more)),
        (job + "Cancel", pb.CancelRequest(plan_id=1)),
        (job + "Kill", pb.KillRequest(reason=more)),
        (job + "Status", pb.StatusRequest()),
        (job + "Watch", pb.WatchRequest()),
        (job + "GetPlan", pb.PlanRequest(plan_id=1, wait_s=3600.0)),
        ("/eps.pb.MemberSession/Attach", pb.Reports(reports=[hello, failed])),
        ("/eps.pb.MemberSession/Attach", pb.Reports(reports=[hello, lost])),
        ("/eps.pb.MemberSession/Attach", pb.Reports(reports=[killer])),
        (scheduler + "OpenSweep", spb.OpenSweepRequest(sweep=more, threshold=1)),
        (scheduler + "SubmitJob", spb.SubmitJobRequest(job_id=more, settings_json='{"data": "sklearn:digits"}')),
        (scheduler + "RunSweep", spb.RunSweepRequest(sweep=more, tables_json="{}")),
        (scheduler + "Kill", spb.KillRequest(name="trial-1", why=more)),
        (scheduler + "ListJobs", spb.ListJobsRequest()),
        (scheduler + "GetModel", spb.GetModelRequest(job_id="trial-1")),
        (scheduler + "Watch", spb.WatchRequest()),
    ]
    calls = [(method, message.SerializeToString()) for method, message in found]
    return [*calls, ("/eps.pb.Unknown/Method", b"\xff")]


#: (method, request) pairs.
CALLS = _calls()


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc,unused-ignore]
    def __init__(self, heard: Callable[[HeardCall], None]) -> None:
        self._heard = heard

    def service(self, details: Any) -> Any:
        """Return a handler for any method; the four kinds of gRPC methods look the same on the wire."""
        method, metadata = details.method, tuple((str(k), v) for k, v in details.invocation_metadata)

        def answer(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            first = next(requests, b"")
            context.send_initial_metadata(((MARK_KEY, "1"),))
            if MARK_KEY not in dict(metadata):
                self._heard(HeardCall(method, metadata, first))
            yield from _lies(method, first)

        return grpc.stream_stream_rpc_method_handler(answer)


class Rogue:
    """Binds every port that the victims free, and sends false answers there.

    Parameters
    ----------
    tell : Tell
    ports : callable
        Returns the TCP ports on which the victims listen.
    certificates : Path, optional
        Folder of certificates of another authority, for victims that use TLS.
    """

    def __init__(self, tell: Tell, ports: Callable[[], set[int]], certificates: Path | None) -> None:
        self._tell = tell
        self._ports = ports
        #: The latest calls of honest processes, for replays.
        self.heard: deque[HeardCall] = deque(maxlen=64)
        #: The first bytes of the latest connections, for replays.
        self.recorded: deque[bytes] = deque(maxlen=64)
        self.taken: set[int] = set()
        self._seen: dict[int, float] = {}
        self._pipes = threading.BoundedSemaphore(_MOST_PIPES)
        self._server = grpc.server(ThreadPoolExecutor(_MOST_PIPES), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((_Handler(self._note),))
        self._plain = self._server.add_insecure_port("127.0.0.1:0")
        self._tls = self._plain
        if certificates is not None:
            pair = tuple((certificates / f"{name}.pem").read_bytes() for name in ("key", "certificate"))
            self._tls = self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        self._server.start()
        threading.Thread(target=self._grab, name="grab", daemon=True).start()

    def _note(self, call: HeardCall) -> None:
        self.heard.append(call)
        self._tell("lie to who calls", call.method, "answered", "")

    def _grab(self) -> None:
        looked_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s - looked_s > 0.05:
                looked_s = now_s
                with suppress(OSError):
                    self._seen.update(dict.fromkeys(self._ports(), now_s))
                self._seen = {port: s for port, s in self._seen.items() if now_s - s < FORGET_S}
            for port in list(self._seen):
                if self.take(port, "take a freed port"):
                    del self._seen[port]
            time.sleep(GRAB_S)

    def take(self, port: int, kind: str) -> bool:
        """Listen on a free port; return whether that succeeded."""
        listening = socket.socket()
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(("127.0.0.1", port))
            listening.listen(64)
        except OSError:
            listening.close()
            return False
        self.taken.add(port)
        self._tell(kind, f"port {port}", "held", f"for {KEEP_S:g} s")
        threading.Thread(target=self._accept, args=(listening, port), daemon=True).start()
        return True

    def _accept(self, listening: socket.socket, port: int) -> None:
        deadline_s = time.monotonic() + KEEP_S
        with listening:
            while (left_s := deadline_s - time.monotonic()) > 0:
                listening.settimeout(left_s)
                try:
                    caller, _ = listening.accept()
                except OSError:
                    break
                if self._pipes.acquire(blocking=False):
                    threading.Thread(target=self._serve, args=(caller,), daemon=True).start()
                else:
                    caller.close()
        self.taken.discard(port)

    def _serve(self, caller: socket.socket) -> None:
        """Detect the protocol of a caller and answer."""
        try:
            with caller, suppress(OSError):
                caller.settimeout(KEEP_S)
                first = caller.recv(4, socket.MSG_PEEK)
                if first == b"EPSH":
                    # The data plane's handshake: a nonce and a proof, both made up.
                    self.recorded.append(caller.recv(4096))
                    caller.sendall(secrets.token_bytes(64))
                    caller.recv(4096)
                    self._tell("lie to who calls", "data plane", "answered", "")
                elif first:
                    self._pipe(caller, self._tls if first[0] == 0x16 else self._plain)
        finally:
            self._pipes.release()

    def _pipe(self, caller: socket.socket, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), 2.0) as liar:
            liar.settimeout(2 * KEEP_S)
            caller.settimeout(2 * KEEP_S)
            back = threading.Thread(target=_copy, args=(liar, caller, None), daemon=True)
            back.start()
            said = bytearray()
            _copy(caller, liar, said)
            self.recorded.append(bytes(said))
            back.join(2 * KEEP_S)


def _copy(source: socket.socket, target: socket.socket, said: bytearray | None) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            if said is not None and len(said) < _MOST_RECORDED_BYTES:
                said += data
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def listening_ports(owner: int) -> set[int]:
    """Return the TCP ports on which processes of ``owner`` listen, as any user can see them."""
    found = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text(encoding="utf-8").splitlines()[1:]:
                words = line.split()
                host, port = words[1].split(":")
                # 0A: listening.  The driver's recorder uses 127.0.0.2.
                if words[3] == "0A" and int(words[7]) == owner and host != "0200007F":
                    found.add(int(port, 16))
    return found


def unix_sockets() -> tuple[set[str], set[str]]:
    """Return (names of abstract sockets, paths of other sockets) that listen, as any user can see them."""
    names: set[str] = set()
    paths: set[str] = set()
    with suppress(OSError):
        for line in Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
            words = line.split(maxsplit=7)
            # The flag of a listening socket.
            if len(words) < 8 or int(words[3], 16) != 0x10000:
                continue
            (names if words[7].startswith("@") else paths).add(words[7])
    return names, {path for path in paths if os.path.isabs(path)}
