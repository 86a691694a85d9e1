"""The text format between the plugin in a ResourceManager and H-scheduler: round trips, and refusal of other text."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hscheduler.core.resources import Resources
from hscheduler.yarn.wire import (
    Plan,
    Queue,
    User,
    WireError,
    digest_of,
    parse_snapshot,
    plan_text,
    proof_of_answer,
    proof_of_request,
)
from tests.hscheduler.yarn_world import parse_plan, running, snapshot, snapshot_text, waiting

ODD = "a b\tc\nd%+é=\u2028&"
SNAPSHOT = snapshot(
    running(1, {"n1:1": 2, "n2:1": 1}, marked=(3,)),
    dataclasses.replace(waiting(2, tags=("x", "eps.workers=3")), name=ODD, diagnostics=ODD, host="h", port=7),
    free={"n2:1": Resources(-1, -512)},
    labels={"n2:1": "gpu"},
    queues=(Queue("eps", "gpu", Resources(1, 2), Resources(3, 4), False),),
    users=(User("eps", ODD, "gpu", Resources(1, 2), Resources(3, 4)),),
    counts_cores=False,
)
PLAN = Plan("life", 12, ("container_1", "container_2"), ("container_3",), ("because", ODD))


def test_snapshots_and_plans_survive_a_round_trip() -> None:
    assert parse_snapshot(snapshot_text(SNAPSHOT)) == SNAPSHOT
    assert parse_plan(plan_text(PLAN)) == PLAN
    assert parse_plan(plan_text(Plan("", 0))) == Plan("", 0)


def test_lines_of_an_application_may_follow_it_anywhere() -> None:
    """The plugin writes pending requests last: see its ``describe``."""
    first, *lines, end = snapshot_text(SNAPSHOT).splitlines(keepends=True)
    order = [b"app", b"container", b"node", b"queue", b"user", b"ask"]
    lines.sort(key=lambda line: order.index(line.partition(b"\t")[0]))
    assert parse_snapshot(b"".join([first, *lines, end])) == SNAPSHOT


def test_a_plan_has_the_plugins_format() -> None:
    assert plan_text(Plan("life", 12, ("c_1",), (), ("a b",))) == (
        b"hscheduler-plan\t3\nat\tlife\nat\t12\ntake\tc_1\nsay\ta+b\nend\n"
    )


def test_truncated_snapshots_are_refused() -> None:
    text = snapshot_text(SNAPSHOT)
    for end in range(len(text)):
        with pytest.raises(WireError):
            parse_snapshot(text[:end])


TEXT = snapshot_text(SNAPSHOT)


@given(st.lists(st.tuples(st.integers(0, len(TEXT) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_snapshots_are_read_or_refused_with_a_sentence(damage: list[tuple[int, int]]) -> None:
    damaged = bytearray(TEXT)
    for at, byte in damage:
        damaged[at] = byte
    try:
        found = parse_snapshot(bytes(damaged))
    except WireError as error:
        assert str(error)
    else:
        assert parse_snapshot(snapshot_text(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"end\n",
        b"hscheduler-yarn\t7\tlife\t1\ttrue\nend\n",
        b"hscheduler-yarn\t3\tlife\t1\tyes\nend\n",
        b"hscheduler-yarn\t3\tlife\t1\ttrue\nnode\tn1\nend\n",
        b"hscheduler-yarn\t3\tlife\t1\ttrue\nother\tn1\nend\n",
        b"hscheduler-yarn\t3\tlife\t1\ttrue\nask\tapp\tmaster\t1\t1\t1\t\nend\n",
        b"hscheduler-yarn\t3\tlife\t1\ttrue\n" + 2 * b"app\ta\tn\tRUNNING\tq\tu\t0\t0\t\th\t1\t\n" + b"end\n",
    ],
)
def test_text_that_is_no_snapshot_is_refused(text: bytes) -> None:
    with pytest.raises(WireError):
        parse_snapshot(text)


def test_a_proof_depends_on_every_part() -> None:
    request = proof_of_request(b"secret", digest_of(b"body"))
    others = {proof_of_request(b"other", digest_of(b"body")), proof_of_request(b"secret", digest_of(b"bodx"))}
    assert request not in others
    answer = proof_of_answer(b"secret", request, b"plan")
    assert answer not in {
        request,
        proof_of_answer(b"other", request, b"plan"),
        proof_of_answer(b"secret", "0", b"plan"),
        proof_of_answer(b"secret", request, b"pla"),
    }
