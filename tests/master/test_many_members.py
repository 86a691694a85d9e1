"""A large job starts, iterates and changes its size, and what its master needs for that stays in proportion.

Members are fakes that speak the control protocol; the job master is real, with its log on disk.  ``--members 1000``
plays a larger job than the suite does.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.reconfig import Change, Operation, Phase
from eps.core.retries import RESEND_S
from eps.core.types import MemberId
from eps.master import main, sessions
from eps.master.main import Master
from eps.master.state_log import StateLog
from eps.net.arrays.memory import raise_descriptor_limit
from eps.pb import control_pb2 as pb
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import DataShape, Runtime
from eps.storage.jobdir import JobDir
from eps.system.waits import wait_for
from tests.fakes.members import AttachingResources

TIMEOUT_S = 300.0
#: Of the process, whatever the number of members; and of each member, two threads and a connection included.
MOST_BYTES, MOST_BYTES_A_MEMBER = 64 << 20, 400 << 10


def resident_bytes() -> int:
    """Return how much memory this process has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


class LargeJob:
    """A job of a few servers for each worker, and its master in this process.

    Parameters
    ----------
    path : Path
    num_members : int
    """

    def __init__(self, path: Path, num_members: int) -> None:
        self.num_added = max(1, num_members // 50)
        servers = num_members // 5
        workers = num_members - servers
        settings = {"model": "linear", "optimizer": "sgd", "iterations": 1 << 20, "member_timeout_s": 60.0}
        splits = workers + self.num_added
        size = {"workers": workers, "servers": servers, "splits": splits, "partitions": servers}
        shape = DataShape(7, 1, (10,) * splits, sparse=False, test_rows=0, split_checksums=("",) * splits)
        runtime = Runtime("large", JobSpec.from_dict({**settings, **size}), shape, path, path)
        self.directory = JobDir(path)
        self.resources = AttachingResources(beat_s=10.0, clocks_per_s=1.0)
        self.master = Master(runtime, self.directory, self.resources)
        self.state = self.master._job.state
        self._thread = threading.Thread(target=self.master.run, name="owner", daemon=True)
        self._thread.start()

    def ask(self, change: Change) -> Phase:
        """Ask for a change, and return how it ended."""
        answer = self.master._requests.ask(e.ChangeRequested("change", change, False), "change", TIMEOUT_S)
        plan = self.state.plans.all[answer.plan_id]
        wait_for(lambda: plan.ended, TIMEOUT_S, "the end of the plan")
        return plan.phase

    def close(self) -> None:
        self.master.events.put(e.KillRequested("enough"))
        self._thread.join(TIMEOUT_S)
        self.resources.close()
        # Who was told to end does; their streams' threads end with them.
        wait_for(lambda: not session_threads(), TIMEOUT_S, "the end of the sessions")


def session_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name in ("eps-rpc", "reports")]


@pytest.fixture
def serialised(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """How often each membership was serialised, by plan and version."""
    found: Counter[tuple[int, int]] = Counter()

    def counting(order: m.Order, generation: int, step: int) -> pb.Order:
        if isinstance(order, m.UpdateMembership):
            found[order.plan_id, order.membership.version] += 1
        return as_ever(order, generation, step)

    as_ever = sessions.order_to_pb
    monkeypatch.setattr(sessions, "order_to_pb", counting)
    return found


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[MemberId, str, int]]:
    """How often each member was told each membership, and each order of a plan."""
    found: Counter[tuple[MemberId, str, int]] = Counter()

    def counting(self: sessions.Sessions, to: MemberId, order: m.Order) -> None:
        if not isinstance(order, m.GrantHorizon):
            number = order.membership.version if isinstance(order, m.UpdateMembership) else 0
            found[to, type(order).__name__, number] += 1
        as_ever(self, to, order)

    as_ever = sessions.Sessions.send
    monkeypatch.setattr(sessions.Sessions, "send", counting)
    return found


@pytest.fixture
def job(tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[LargeJob]:
    monkeypatch.setattr(main, "FAREWELL_S", 0.0)
    raise_descriptor_limit()
    made = LargeJob(tmp_path / "job", pytestconfig.getoption("--members"))
    yield made
    made.close()


def test_large_job_starts_and_changes_its_size_within_bounds(
    serialised: Counter[tuple[int, int]],
    said: Counter[tuple[MemberId, str, int]],
    pytestconfig: pytest.Config,
    request: pytest.FixtureRequest,
) -> None:
    num_members = pytestconfig.getoption("--members")
    began_s, began_bytes, others = time.monotonic(), resident_bytes(), set(session_threads())
    job = request.getfixturevalue("job")
    wait_for(lambda: job.state.progress.completed > 0, TIMEOUT_S, "the first iteration")
    phase = job.ask(Change(Operation.ADD_WORKERS, job.num_added))
    threads, grown_bytes = set(session_threads()) - others, resident_bytes() - began_bytes
    lasted_s = time.monotonic() - began_s

    assert phase is Phase.RELEASED and not job.state.recovery.losses
    membership = job.state.membership
    assert membership is not None and len(membership.members) == num_members + job.num_added
    # Version 1 by no plan, version 2 by plan 1: each serialised once, whoever was told how often.
    assert serialised == {(0, 1): 1, (1, 2): 1}
    assert {to for to, kind, _ in said if kind == "UpdateMembership"} == set(membership.members)
    # Nothing was lost.  On a machine that is slower than the first pause, pauses that double leave room for so many.
    assert max(said.values()) <= 1 + math.log2(1 + lasted_s / RESEND_S)
    assert len(threads) <= 2 * len(membership.members)
    assert grown_bytes <= MOST_BYTES + num_members * MOST_BYTES_A_MEMBER

    job.master.events.put(e.KillRequested("enough"))
    wait_for(lambda: job.resources.ended is not None, TIMEOUT_S, "the end of the job")
    log = StateLog(job.directory.state)
    restored = log.restore()
    log.close()
    assert restored is not None and restored.state.membership == membership
