"""Updates and snapshots that cannot be what they say are refused before anything is counted or changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from eps.core import messages as m
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.types import Address
from eps.errors import EpsError, ProtocolError, TransferError
from eps.net.arrays.api import Message, Seal
from eps.net.arrays.in_process import InProcessVan
from eps.net.messages.exchange import simple
from eps.server.shell import ServerShell
from tests.server.test_shell import TIMEOUT_S, make_runtime

#: A partition that the server follows; another server owns it.
FOLLOWED = 1
HARMLESS_SEEDS = 300


class Follower:
    """A server that owns one partition and follows the other."""

    def __init__(self) -> None:
        self.runtime = make_runtime(servers=2)
        self.reports: list[m.Report] = []
        van = InProcessVan()
        self.shell = ServerShell(self.runtime, "server-1", van, self.reports.append)
        self.listener = van.listen(self.shell.handle)
        self.connection = van.connect(self.listener.address)
        table = PartitionTable(("server-1", "server-2"), (("server-2",), ("server-1",)))
        addresses = {"worker-1": Address("localhost", 1), "server-2": Address("localhost", 2)}
        membership = Membership(
            1,
            -1,
            ("worker-1",),
            ("server-1", "server-2"),
            table,
            SplitTable.of(("worker-1",) * 2),
            {**addresses, "server-1": self.listener.address},
        )
        self.shell.on_order(m.UpdateMembership(0, membership))
        self.state = self.shell._state.partitions[FOLLOWED]
        self.store = self.shell._partitions.stores[FOLLOWED]

    def send(self, header: bytes, *arrays: np.ndarray) -> None:
        self.connection.request(Message(header, arrays)).result(TIMEOUT_S)

    def update(self, **changed: Any) -> dict[str, Any]:
        """Return the fields of the update that is due, some of them changed."""
        due = dict(
            plan_id=0,
            partition=FOLLOWED,
            sequence=self.state.sequence,
            clock=-1,
            splits=(0, 1),
            rate_scale=1.0,
            sparse=False,
        )
        return {**due, **changed}

    def arrays(self) -> list[np.ndarray]:
        return [np.empty(0, np.float32), np.zeros_like(self.store.exponents)]

    def told(self) -> tuple[object, ...]:
        """Return the state that an applied or counted update would change."""
        state, store = self.state, self.store
        values = store.export().tobytes(), store.exponents.tobytes(), store.applications.tobytes()
        return (
            state.sequence,
            state.clocks.completed,
            tuple(state.clocks.next_clock),
            state.clocks.applied,
            store.clock,
            *values,
        )

    def failures(self) -> list[m.MemberFailed]:
        return [report for report in self.reports if isinstance(report, m.MemberFailed)]

    def close(self) -> None:
        self.connection.close()
        self.listener.close()
        self.shell.close()


@pytest.fixture
def follower() -> Iterator[Follower]:
    made = Follower()
    yield made
    made.close()


def test_the_update_that_is_due_is_applied(follower: Follower) -> None:
    before = follower.told()
    follower.send(simple("update", **follower.update()), *follower.arrays())
    assert follower.told() != before and follower.store.clock == 0


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"partition": 7}, "of partition 7; the job has 2"),
        ({"splits": (0, 999)}, r"splits \[0, 999\]; the job has 0 to 1"),
        ({"splits": (0, 0)}, "each named once"),
        ({"clock": -2}, "of clock -2"),
        ({"clock": 3}, "of clock 3; the job has -1 to 2"),
        ({"rate_scale": float("nan")}, "rate scale of nan"),
        ({"rate_scale": -1.0}, "rate scale of -1.0"),
        ({"sparse": True}, "came with 2 arrays; expected 3"),
        ({"clock": 0}, r"gradient float32\(0,\)"),
    ],
)
def test_update_that_the_job_cannot_have_is_refused(follower: Follower, changed: dict[str, Any], reason: str) -> None:
    before = follower.told()
    with pytest.raises(ProtocolError, match=reason):
        follower.send(simple("update", **follower.update(**changed)), *follower.arrays())
    assert follower.told() == before and not follower.failures()


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ([], "came with 0 arrays"),
        ([np.empty(0, np.float32), np.zeros(777, np.int16)], r"exponents int16\(777,\)"),
        ([np.empty(0, np.float32), np.zeros(1, np.int32)], "exponents int32"),
        ([np.empty(0, np.float64), np.zeros(1, np.int16)], "gradient float64"),
        ([np.empty(3, np.float32), np.zeros(1, np.int16)], r"gradient float32\(3,\)"),
    ],
)
def test_update_with_other_arrays_is_refused(follower: Follower, arrays: list[np.ndarray], reason: str) -> None:
    before = follower.told()
    with pytest.raises(ProtocolError, match=reason):
        follower.send(simple("update", **follower.update()), *arrays)
    assert follower.told() == before and not follower.failures()


@pytest.mark.parametrize("keys", [[-1, 0], [1, 0], [1, 1], [0, 10_000]])
def test_update_with_keys_that_are_not_the_partitions_is_refused(follower: Follower, keys: list[int]) -> None:
    follower.send(simple("update", **follower.update()), *follower.arrays())
    before = follower.told()
    fields = follower.update(clock=0, sparse=True)
    with pytest.raises(ProtocolError, match="not ascending"):
        exponents = np.zeros_like(follower.store.exponents)
        follower.send(simple("update", **fields), np.ones(2, np.float32), exponents, np.array(keys))
    assert follower.told() == before and not follower.failures()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"partition": 7}, "of partition 7; the job has 2"),
        ({"next_clock": (0,)}, "clocks of 1 splits; the job has 2"),
        ({"next_clock": (0, 99)}, "of clocks 0 to 99; the job has -1 to 3"),
        ({"completed": -5}, "of clocks -5 to 0"),
    ],
)
def test_snapshot_that_the_job_cannot_have_is_refused(follower: Follower, changed: dict[str, Any], reason: str) -> None:
    fields = dict(plan_id=1, partition=0, sequence=0, completed=0, next_clock=(0, 0), applied=0)
    with pytest.raises(ProtocolError, match=reason):
        follower.send(simple("snapshot", **{**fields, **changed}))
    assert not follower.failures()


@pytest.mark.parametrize(
    ("seal", "reason"),
    [
        (None, "without a checksum"),
        (Seal("0123456789abcdef"), "left with checksum 0123456789abcdef and arrived with "),
        (
            Seal("0123456789abcdef", "0123456789abcde0"),
            "left with checksum 0123456789abcdef and arrived with 0123456789abcde0",
        ),
        (Seal(), "left with checksum  and arrived with "),
    ],
    ids=["none", "of others", "of others on the way", "empty"],
)
def test_snapshot_whose_bytes_are_not_those_that_left_is_never_used(
    follower: Follower, seal: Seal | None, reason: str
) -> None:
    arrays, _ = follower.store.snapshot()
    before = follower.told()
    header = simple("snapshot", plan_id=1, partition=0, sequence=0, completed=0, next_clock=(0, 0), applied=0)
    with pytest.raises(TransferError, match=reason):
        follower.shell.handle(Message(header, arrays, seal), Unanswered())
    assert follower.told() == before and not follower.failures()


class Unanswered:
    """The reply of a request that is refused with an exception."""

    def send(self, message: Message) -> None:
        pytest.fail("it was acknowledged")

    def fail(self, error: EpsError) -> None:
        pytest.fail("it was answered")


def transfer(random: Random, follower: Follower) -> tuple[str, dict[str, Any], list[np.ndarray]]:
    """Return a message of which each part is right most of the time: its kind, its fields and its arrays."""

    def mostly(right: Any, *wrong: Any) -> Any:
        return right if random.random() < 0.8 else random.choice(wrong)

    def array() -> np.ndarray:
        dtype = random.choice([np.float32, np.int16, np.int64, np.float64])
        return np.full(random.choice([0, 1, 2, 4, 9]), random.choice([-1, 0, 3, 1 << 14]), dtype)

    kind = random.choice(["update", "snapshot", "promote"])
    due = follower.update()
    fields: dict[str, Any] = dict(plan_id=mostly(0, 1, 9), partition=mostly(FOLLOWED, 0, 2, 1 << 31))
    fields["sequence"] = mostly(due["sequence"], 1, 1 << 60)
    number = random.choice([-(1 << 40), -2, -1, 0, 1, 2, 3, 1 << 40])
    splits = mostly(due["splits"], tuple(random.choices([0, 1, 2, 1 << 31], k=random.randrange(4))))
    if kind == "update":
        scale = mostly(1.0, 0.0, float("inf"), -1.0)
        fields |= dict(clock=mostly(-1, number), splits=splits, rate_scale=scale, sparse=mostly(False, True))
    elif kind == "snapshot":
        fields |= dict(completed=number, next_clock=splits, applied=1, keysets=(b"k",) * random.randrange(2))
    return kind, fields, mostly(follower.arrays(), [array() for _ in range(random.randrange(5))])


def outcome(follower: Follower, seed: int) -> tuple[str, str]:
    """Tell a follower something; return its kind, and whether it was taken, refused or kept for later."""
    random = Random(seed)
    kind, fields, arrays = transfer(random, follower)
    before, due = follower.told(), follower.state.sequence
    seal = Seal() if random.random() < 0.5 else None
    answer = follower.connection.request(Message(simple(kind, **fields), tuple(arrays), seal))
    # One thread takes the messages of a connection: when this is answered, that one was taken, refused or kept.
    assert follower.connection.request(Message(simple("export_request", partition=0))).result(TIMEOUT_S).arrays
    assert not follower.failures()
    if not answer.done():
        assert kind != "snapshot" and fields["partition"] == FOLLOWED and fields["sequence"] > due
        assert follower.told() == before
        return kind, "kept"
    error = answer.exception()
    if error is not None:
        assert isinstance(error, ProtocolError | TransferError)
        assert follower.told() == before
        return kind, "refused"
    assert kind != "snapshot", "it was sent without its checksum"
    assert (follower.state.sequence - due, follower.told() == before) in ((1, False), (0, True))
    return kind, "taken"


def test_transfers_of_random_fields_and_arrays_fail_nobody() -> None:
    """Any message of an authenticated peer gets an error or an acknowledgement, and the server continues."""
    met: Counter[tuple[str, str]] = Counter()
    for seed in range(HARMLESS_SEEDS):
        follower = Follower()
        try:
            met[outcome(follower, seed)] += 1
        finally:
            follower.close()
    assert set(met) == {
        ("update", "taken"),
        ("update", "refused"),
        ("update", "kept"),
        ("snapshot", "refused"),
        ("promote", "taken"),
        ("promote", "kept"),
    }
