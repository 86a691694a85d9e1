"""The victims of ``attack.py``: a job, its scheduler, and honest clients that record what they are told."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import eps
from eps.core.reconfig import Operation
from eps.core.types import Address
from eps.errors import EpsError, JobNotFoundError
from eps.job.client import Job
from eps.net.calls.call import call, channel
from eps.net.security.credentials import Security
from eps.pb import control_pb2 as pb
from eps.pb.control_pb2_grpc import JobMasterStub
from eps.spec.job_spec import JobSpec
from eps.storage.atomic import read_json
from eps.system import interrupt
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from tools.chaos.processes import master_pid, send, with_mark
from tools.chaos.verdict import faults_of_report
from tools.rogue import MARK, ROGUE_PLAN, unix_sockets

VICTIM = "victim"
#: Added to each split in an iteration of the attacked job.
STRETCH_S = 0.02
TRIAL = {"data": "sklearn:digits", "model": "softmax", "test": "0.2", "workers": 1, "servers": 1, "iterations": 40}
TRIAL_STRETCH_S = 0.005
#: Seconds between kills and between changes of size; the clocks that a job must complete between two kills.
KILL_S, CHANGE_S, PROGRESS = (2.5, 5.0), (0.7, 2.0), 5
#: Share of kills that hit a worker or server instead of the job master.
MEMBER_PART = 0.25
#: Time of the first kill of the service, and pauses between kills; some floods end without one.
FIRST_SERVICE_KILL_S, SERVICE_KILL_S = 8.0, (10.0, 90.0)
#: Timeouts for the victims under attack.
ANSWER_S, START_S, TRIAL_S, JOB_S, END_S = 30.0, 60.0, 120.0, 120.0, 20.0
#: Time in which a page must answer, also during a flood, and the longest flood.
PAGE_S, FLOOD_S = 90.0, 60.0
#: Intervals between reads of the job's metrics, and between lists of processes sent to the stranger.
METRICS_S, NEWS_S = 2.0, 1.0


class Facts:
    """The findings of the test; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.believed: list[str] = []
        self.stopped: list[str] = []
        self.lost = self.applied_twice = self.other_models = 0
        self.done: Counter[str] = Counter()

    def believe(self, what: str) -> None:
        """Note that a victim believed the stranger."""
        with self._lock:
            self.believed.append(what)

    def stop(self, what: str) -> None:
        """Note that a victim stopped or did not answer."""
        with self._lock:
            self.stopped.append(what)

    def count(self, what: str, number: int = 1) -> None:
        """Count actions of honest clients, and kills."""
        with self._lock:
            self.done[what] += number

    def hear(self, what: str, told: Any) -> None:
        """Check the answer to an honest client for the rogue's mark."""
        self.count("honest answers")
        if MARK in (text := told if isinstance(told, str) else json.dumps(told, default=str)):
            self.believe(f"{what} was told {text[:120]}")

    @property
    def holds(self) -> bool:
        """Whether no attack succeeded."""
        return not (self.believed or self.stopped or self.lost or self.applied_twice or self.other_models)

    def verdict(self) -> str:
        """Return the verdict as one line."""
        model = "same bits" if not self.other_models else f"{self.other_models} with other bits"
        return (
            f"believed: {len(self.believed)}, lost updates: {self.lost}, applied twice: {self.applied_twice}, "
            f"stopped: {len(self.stopped)}, model: {model}"
        )


class Service:
    """A process of H-scheduler that is killed and restarted, and its honest clients."""

    def __init__(self, folder: Path, facts: Facts, chance: random.Random, *flags: str) -> None:
        self._flags = flags
        self._directory, self._facts, self._chance = ServiceDir(folder), facts, chance
        self._process: subprocess.Popen[str] | None = None
        self._page = ""
        #: The last lines of its output.
        self._said: deque[str] = deque()
        self.trials: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._use, name="service", daemon=True)

    def start(self) -> None:
        """Start the process, and then its clients."""
        self._launch()
        self._await_page()
        self._thread.start()

    def _launch(self) -> None:
        code = "import sys; from hscheduler.cli import main; sys.exit(main(sys.argv[1:]))"
        flags = ["serve", "--state", str(self._directory.path), "--nodes", "2", "--web", "0", *self._flags]
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _await_page(self) -> None:
        """Read the output of the service until it prints the address of its page."""
        assert self._process is not None and self._process.stdout is not None
        found, self._said = threading.Event(), deque(maxlen=20)
        said, output = self._said, self._process.stdout

        def read() -> None:
            for line in output:
                said.append(line)
                if page := re.search(r"http://127\.0\.0\.1:\d+/", line):
                    self._page = page[0]
                    found.set()
            found.set()

        threading.Thread(target=read, daemon=True).start()
        if not found.wait(START_S) or self._process.poll() is not None:
            self._facts.stop(f"the service does not start: {''.join(said)[-300:]}")

    def _use(self) -> None:
        """Act as the service's clients until the test ends."""
        next_kill_s = time.monotonic() + FIRST_SERVICE_KILL_S
        with SchedulerClient(self._directory, give_up_s=ANSWER_S) as client:
            while not self._over.wait(0.5):
                try:
                    if self._process is not None and (code := self._process.poll()) is not None:
                        self._facts.stop(f"the service ended with {code}: {''.join(self._said)[-300:]}")
                        next_kill_s = 0.0
                    if time.monotonic() >= next_kill_s:
                        self._kill(client)
                        next_kill_s = time.monotonic() + self._chance.uniform(*SERVICE_KILL_S)
                    self._facts.hear("a client of the scheduler", client.jobs())
                    self._next_trial(client)
                    self._look_at_page()
                except (EpsError, OSError) as error:
                    if not self._over.is_set():
                        self._facts.stop(f"the service: {error}")

    def _kill(self, client: SchedulerClient) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(END_S)
        # A client that asks now reaches the rogue on the freed port, or waits for the next service.
        answered = threading.Thread(target=lambda: self._ask(client), daemon=True)
        answered.start()
        time.sleep(0.2)
        self._launch()
        self._await_page()
        answered.join(ANSWER_S + 5.0)
        self._facts.count("services killed")

    def _ask(self, client: SchedulerClient) -> None:
        with suppress(EpsError):
            self._facts.hear("a client of a killed scheduler", client.jobs())

    def _next_trial(self, client: SchedulerClient) -> None:
        if self.trials:
            try:
                job = client.job(self.trials[-1])
            except JobNotFoundError as error:
                self._facts.stop(f"a trial that was submitted: {error}")
                self.trials.pop()
                return
            self._facts.hear("a client that waits for a trial", job)
            if not job["is_over"]:
                return
        name = f"trial-{len(self.trials) + 1}"
        client.submit_job(name, JobSpec.from_dict({**TRIAL, "stretch_s": TRIAL_STRETCH_S}))
        self.trials.append(name)

    def _look_at_page(self, *, to_the_end: bool = False) -> None:
        deadline_s, error = time.monotonic() + PAGE_S, ""
        while time.monotonic() < deadline_s:
            if self._over.is_set() and not to_the_end:
                return
            # A restarted service has another port.
            try:
                with urllib.request.urlopen(f"{self._page}metrics", timeout=5.0) as answer:
                    self._facts.hear("who looks at the page", answer.read().decode())
                self._facts.count("pages answered")
                return
            except (OSError, ValueError) as failure:
                error = str(failure)
                time.sleep(0.5)
        self._facts.stop(f"the page {self._page} does not answer for {PAGE_S:g} s: {error}")

    def finish(self) -> None:
        """Wait for the trials, judge them, and end the service."""
        self._over.set()
        self._thread.join(2 * ANSWER_S)
        self._look_at_page(to_the_end=True)
        with SchedulerClient(self._directory, give_up_s=ANSWER_S) as client:
            for name in self.trials:
                try:
                    self._judge_trial(client, name)
                except EpsError as error:
                    self._facts.stop(f"{name}: {error}")
                    if not isinstance(error, JobNotFoundError):
                        break
        self.end()

    def _judge_trial(self, client: SchedulerClient, name: str) -> None:
        deadline_s = time.monotonic() + TRIAL_S
        while not (job := client.job(name))["is_over"] and time.monotonic() < deadline_s:
            time.sleep(0.1)
        if job["phase"] != "finished":
            self._facts.stop(f"{name} is {job['phase']}: {job['why']}")
        self._facts.count("trials finished", job["phase"] == "finished")

    def end(self) -> None:
        """End the service and its jobs; idempotent."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(END_S)
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.kill()
            process.wait(END_S)


class Round:
    """One attacked job and its honest clients."""

    def __init__(
        self, settings: dict[str, Any], facts: Facts, tell: Callable[..., None], chance: random.Random
    ) -> None:
        self._facts, self._tell, self._chance = facts, tell, chance
        self._job = eps.Job.start(name=VICTIM, workers=2, servers=2, **settings)
        self._link = Job(self._job.directory, patience_s=ANSWER_S)
        #: Request id of an honest client -> number of its plan, 0 before an answer.
        self._asked: dict[str, int] = {}
        self._clock = self._killed_at = -1
        self._size = {"workers": 2, "servers": 2}
        self._members: list[dict[str, Any]] = []
        #: Number of requests for the job's metrics, and of answers.
        self._metrics: Counter[str] = Counter()

    def play(self, mark: str) -> dict[str, Any]:
        """Use the job and kill its masters until it has ended; return its report."""
        facts, job = self._facts, self._job
        deadline_s = time.monotonic() + JOB_S + 10 * STRETCH_S * self._iterations()
        next_kill_s, next_change_s, next_metrics_s, next_news_s, command = time.monotonic() + 1.0, 0.0, 0.0, 0.0, None
        try:
            while job.running and time.monotonic() < deadline_s:
                # Of an interrupt that was raised in a finaliser or a callback and got lost there.
                interrupt.check()
                if (now_s := time.monotonic()) >= next_news_s:
                    self._tell(pids=with_mark(mark))
                    next_news_s = now_s + NEWS_S
                self._status()
                now_s = time.monotonic()
                if now_s >= next_kill_s and self._clock >= self._killed_at + PROGRESS:
                    if command is None:
                        command = self._command()
                    self._kill()
                    next_kill_s = time.monotonic() + self._chance.uniform(*KILL_S)
                elif now_s >= next_change_s and self._clock >= 0:
                    self._change()
                    next_change_s = time.monotonic() + self._chance.uniform(*CHANGE_S)
                elif now_s >= next_metrics_s:
                    self._read_metrics()
                    next_metrics_s = time.monotonic() + METRICS_S
                check_sockets(facts)
                time.sleep(0.1)
            if job.running:
                facts.stop(f"job {VICTIM} has not ended within its time (clock {self._clock})")
                job.kill_at_once()
            report = job.wait(END_S)
        finally:
            self._link.close()
            job.close()
        if command is not None:
            self._judge_command(command)
        self._judge_changes(report)
        if self._metrics and not self._metrics["answered"]:
            facts.stop(f"the metrics of job {VICTIM} never answered, asked {self._metrics['asked']} times")
        return report

    def _iterations(self) -> int:
        return int(self._job.directory.record().spec.get("iterations", 0))

    def _status(self) -> None:
        with suppress(KeyError):
            try:
                status = self._link.status(timeout_s=ANSWER_S)
            except EpsError as error:
                if self._job.running:
                    self._facts.stop(f"a client's status: {error}")
                return
            self._facts.hear("a client that asks for the status", status)
            if status["name"] == VICTIM:
                self._clock, self._members = max(self._clock, status["clock"]), status["members"]

    def _read_metrics(self) -> None:
        """Read the metrics of the job from the address in its master's log."""
        with suppress(OSError, ValueError):
            log = self._job.directory.log("master").read_text(encoding="utf-8", errors="replace")
            if not (places := re.findall(r"http://127\.0\.0\.1:\d+/metrics", log)):
                return
            self._metrics["asked"] += 1
            with urllib.request.urlopen(places[-1], timeout=2.0) as answer:
                self._facts.hear("who reads the metrics", answer.read().decode())
            self._metrics["answered"] += 1
            self._facts.count("metrics answered")

    def _kill(self) -> None:
        """Kill a member, or the job master; after a master, query the status at once."""
        directory = self._job.directory
        members = [member["pid"] for member in self._members if member.get("pid")]
        if members and self._chance.random() < MEMBER_PART:
            self._facts.count("members killed", send(directory, self._chance.choice(members), signal.SIGKILL))
            self._killed_at = self._clock
        elif send(directory, master_pid(directory), signal.SIGKILL):
            self._facts.count("masters killed")
            self._killed_at = self._clock
            until_s = time.monotonic() + 0.5
            while time.monotonic() < until_s and self._job.running:
                self._status()

    def _command(self) -> subprocess.Popen[str]:
        code = "import sys; from eps.cli import main; sys.exit(main(sys.argv[1:]))"
        words = [sys.executable, "-c", code, "status", VICTIM, "--json"]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _judge_command(self, command: subprocess.Popen[str]) -> None:
        try:
            out, err = command.communicate(timeout=2 * ANSWER_S)
        except subprocess.TimeoutExpired:
            command.kill()
            command.communicate()
            self._facts.stop("eps status --json has not ended within its time")
            return
        self._facts.hear("eps status --json", out)
        if command.returncode != 0:
            self._facts.stop(f"eps status --json ended with {command.returncode}: {err[-200:]}")

    # ---- changes of size

    def _change(self) -> None:
        """Request a change, then again with the same id over a proxy that records the bytes for the stranger."""
        role = self._chance.choice(["workers", "servers"])
        operation = Operation(f"{'add' if self._size[role] == 2 else 'remove'}-{role}")
        request_id = uuid.uuid4().hex
        self._asked[request_id] = 0
        for attempt in (self._ask, self._ask_recorded):
            try:
                plan = attempt(operation, request_id)
            except (EpsError, OSError):
                # Refused, or the job has ended: the report shows whether it counted.
                continue
            if plan == ROGUE_PLAN:
                self._facts.believe(f"a client was told that {operation} is plan {plan}")
                continue
            if self._asked[request_id] not in (0, plan):
                self._facts.applied_twice += 1
            self._asked[request_id] = plan
            self._facts.count("changes asked")
        if self._asked[request_id]:
            self._size[role] = 2 if operation.adds is False else 3

    def _ask(self, operation: Operation, request_id: str) -> int:
        record = self._link.change(operation, 1, wait=False, request_id=request_id)
        self._facts.hear("a client that asks for a change", record)
        return int(record["plan_id"])

    def _ask_recorded(self, operation: Operation, request_id: str) -> int:
        """Request a change over a recording proxy, or without it if the master has no TCP port."""
        place = read_json(self._job.directory.master_json) or {}
        host, port = str(place.get("host", "")), int(place.get("port") or 0)
        if host != "127.0.0.1" or not port:
            return self._ask(operation, request_id)
        security = Security.of_job(self._job.directory.path)
        kind = pb.AddRequest if operation.adds else pb.RemoveRequest
        method = "".join(word.capitalize() for word in str(operation).split("-"))
        with Recorder(host, port) as recorder, channel(Address(recorder.host, port), security) as line:
            request = kind(count=1, request_id=request_id)
            reply = call(getattr(JobMasterStub(line), method), request, 5.0, str(operation))  # type: ignore[no-untyped-call,unused-ignore]
        self._tell(recorded=base64.b64encode(bytes(recorder.said)).decode())
        self._facts.count("calls recorded")
        return int(reply.plan_id)

    def _judge_changes(self, report: dict[str, Any]) -> None:
        made = [change for change in report.get("changes", []) if change["asked_by"] == "user"]
        self._facts.applied_twice += max(0, len(made) - len(self._asked))


class Recorder:
    """A proxy for one connection, on the same port of another loopback address, because a proof contains the port."""

    host = "127.0.0.2"

    def __init__(self, host: str, port: int) -> None:
        self.said = bytearray()
        self._target = host, port
        self._listening = socket.create_server((self.host, port))
        self._listening.settimeout(ANSWER_S)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            caller, _ = self._listening.accept()
            with caller, socket.create_connection(self._target, 5.0) as callee:
                for sock in (caller, callee):
                    sock.settimeout(10.0)
                back = threading.Thread(target=_copy, args=(callee, caller, bytearray()), daemon=True)
                back.start()
                _copy(caller, callee, self.said)
                back.join(10.0)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self._listening.close()
        self._thread.join(ANSWER_S)


def _copy(source: socket.socket, target: socket.socket, said: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            said += data
            target.sendall(data)
    for sock in (source, target):
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def check_sockets(facts: Facts) -> None:
    """Note sockets of the victims in folders that another user can write to."""
    for path in unix_sockets()[1]:
        with suppress(OSError):
            folder = os.stat(Path(path).parent)
            if os.stat(path).st_uid == os.geteuid() and (folder.st_uid != os.geteuid() or folder.st_mode & 0o077):
                facts.believe(f"{path} is in a folder that other users can access")


def judge_report(facts: Facts, report: dict[str, Any], expected_sha256: str) -> None:
    """Note the faults of an attacked job, by the criteria of :mod:`tools.chaos.verdict`."""
    facts.count("jobs")
    ledger = report.get("ledger") or {}
    facts.lost += int(ledger.get("lost") or 0)
    facts.applied_twice += int(ledger.get("applied_twice") or 0)
    faults = faults_of_report(report, expected_sha256, bsp=True)
    if report["state"] != "finished":
        facts.stop(f"the job: {faults[0]}")
    elif report["model_sha256"] != expected_sha256:
        facts.other_models += 1
    elif faults and not (ledger.get("lost") or ledger.get("applied_twice")):
        facts.stop(f"the job: {'; '.join(faults)}")


def scan(facts: Facts, home: Path, folder: str = "") -> None:
    """Note files of the victims that contain the mark: only a process that believed a lie writes it."""
    for path in sorted((home / folder).rglob("*")):
        if path.is_file() and not path.is_symlink():
            with suppress(OSError):
                for line in path.read_bytes().splitlines():
                    if MARK.encode() in line:
                        where = path.relative_to(home)
                        facts.believe(f"{where}: {line[:160].decode(errors='replace')}")
