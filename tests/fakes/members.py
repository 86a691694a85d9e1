"""Many members of a job in one process, without arrays: they speak the real control protocol to a real job master.

``python -m tests.fakes.members BEAT_S CLOCKS_PER_S`` takes a container's id, the address of its job's master and the
folder of the job's certificates (or ``-``) from each line of its standard input, and attaches as the container's
process: it registers, acknowledges, and reports clocks as far as they are granted, at most so many a second.  It ends
with its standard input.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio

from eps.cluster.api import ContainerRequest
from eps.core import messages as m
from eps.core.types import Role
from eps.net.calls.call import CHANNEL_OPTIONS
from eps.net.messages.codec import report_to_pb
from eps.net.security.credentials import TLS_NAME, TlsFiles
from eps.pb import control_pb2 as pb
from eps.pb.control_pb2_grpc import MemberSessionStub
from tests.fakes.resources import FakeResourceManager

ROOT = Path(__file__).parents[2]
#: In the place of a folder of certificates.
NO_TLS = "-"


class FakeMember:
    """One process of a job, on the loop that all of them share."""

    def __init__(self, others: dict[str, FakeMember], container_id: str, beat_s: float, clock_s: float) -> None:
        self._others, self._container_id = others, container_id
        self._beat_s, self._clock_s = beat_s, clock_s
        self.name = ""
        self._reports: asyncio.Queue[pb.Report] = asyncio.Queue()
        #: Partitions that a plan brings here, and splits that are computed here.
        self._coming: list[int] = []
        self._splits: list[int] = []
        self._version, self._clock, self._horizon = 0, -2, -2
        self._granted = asyncio.Event()

    async def attend(self, address: str, tls: str) -> None:
        """Serve until the master ends the session."""
        async with _channel(address, tls) as channel:
            computes = asyncio.create_task(self._compute())
            with suppress(grpc.aio.AioRpcError):
                async for order in MemberSessionStub(channel).Attach(self._batches()):
                    self._obey(order)
            computes.cancel()

    async def _batches(self) -> AsyncIterator[pb.Reports]:
        number = int(self._container_id.rpartition("-")[2])
        hello = pb.Hello(container_id=self._container_id, pid=number)
        hello.address.host, hello.address.port = "10.0.0.1", number
        yield pb.Reports(reports=[pb.Report(hello=hello)])
        while True:
            batch = pb.Reports()
            with suppress(asyncio.TimeoutError):
                batch.reports.append(await asyncio.wait_for(self._reports.get(), self._beat_s))
            while not self._reports.empty():
                batch.reports.append(self._reports.get_nowait())
            yield batch

    def say(self, report: m.Report) -> None:
        self._reports.put_nowait(report_to_pb(report))

    def _obey(self, order: pb.Order) -> None:
        name, kind = self.name, order.WhichOneof("kind")
        if kind == "welcome":
            self.name = order.welcome.name
            self._others[self.name] = self
        elif kind == "update_membership":
            self._hold(order.update_membership.plan_id, order.update_membership.membership)
        elif kind == "grant_horizon":
            self._horizon = max(self._horizon, order.grant_horizon.horizon)
            self._clock = max(self._clock, order.grant_horizon.completed - 1)
            self._granted.set()
        elif kind == "update_lists":
            self._coming = list(order.update_lists.coming)
            self.say(m.ListsUpdated(name, order.update_lists.plan_id))
        elif kind == "send_partitions":
            plan_id = order.send_partitions.plan_id
            for each in order.send_partitions.transfers:
                self.say(m.PartitionSent(name, plan_id, each.item, 100, "sum"))
                self._others[each.target].say(m.PartitionCaughtUp(each.target, plan_id, each.item, "sum"))
        elif kind == "send_splits":
            for each in order.send_splits.transfers:
                plan_id = order.send_splits.plan_id
                self._others[each.target].say(m.SplitReceived(each.target, plan_id, each.item, 100))
        elif kind == "load_splits":
            for item in order.load_splits.splits:
                self.say(m.SplitReceived(name, order.load_splits.plan_id, item, 0))
        elif kind == "release_plan":
            self.say(m.PlanReleased(name, order.release_plan.plan_id))

    def _hold(self, plan_id: int, membership: pb.Membership) -> None:
        if membership.version > self._version:
            self._version = membership.version
            self._splits = [s for s, holder in enumerate(membership.splits.active) if holder == self.name]
        for partition in self._coming:
            self.say(m.PartitionPromoted(self.name, plan_id, partition))
        self.say(m.MembershipAcked(self.name, membership.version))

    async def _compute(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            await self._granted.wait()
            self._granted.clear()
            while self.name.startswith(Role.WORKER.value) and self._clock < self._horizon:
                due_s = max(due_s + self._clock_s, loop.time() - self._clock_s)
                await asyncio.sleep(due_s - loop.time())
                self._clock += 1
                results = tuple(m.SplitResult(split, 1, 1.0) for split in self._splits)
                self.say(m.ClockReported(self.name, self._clock, results))


def _channel(address: str, tls: str) -> grpc.aio.Channel:
    if tls == NO_TLS:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    ca, certificate, key = TlsFiles.within(Path(tls)).read()
    options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", TLS_NAME))
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca, key, certificate), options=options)


class Members:
    """A process of fake members.

    Parameters
    ----------
    beat_s : float, seconds
        Between two signs of life of each member.
    clocks_per_s : float
        That workers report at most.
    """

    def __init__(self, beat_s: float, clocks_per_s: float) -> None:
        command = [sys.executable, "-m", __name__, str(beat_s), str(clocks_per_s)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT)

    def attach(self, container_id: str, address: str, tls: Path | None = None) -> None:
        """Have a member attach as the process of a container."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{container_id} {address} {tls or NO_TLS}\n".encode())
        self._process.stdin.flush()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


class AttachingResources(FakeResourceManager):
    """Grants every request, and has a process of fake members attach in its container; parameters as of Members."""

    def __init__(self, beat_s: float = 10.0, clocks_per_s: float = 10.0) -> None:
        super().__init__()
        self._members = Members(beat_s, clocks_per_s)

    def request(self, request: ContainerRequest) -> None:
        super().request(request)
        self._members.attach(request.container_id, request.env["EPS_MASTER_ADDRESS"])

    def close(self) -> None:
        super().close()
        self._members.close()


async def attend(beat_s: float, clock_s: float) -> None:
    """Attach as the process of each container that standard input names, until its end."""
    #: Of each job, by the address of its master.
    members: dict[str, dict[str, FakeMember]] = defaultdict(dict)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    running = set()
    while line := await lines.readline():
        container_id, address, tls = line.decode().split()
        member = FakeMember(members[address], container_id, beat_s, clock_s)
        running.add(asyncio.create_task(member.attend(address, tls)))


if __name__ == "__main__":
    asyncio.run(attend(float(sys.argv[1]), 1 / float(sys.argv[2])))
