"""Which member runs in which container, and which containers the cluster has taken."""

from __future__ import annotations

from typing import Any

import pytest

from hscheduler.core.resources import Role
from hscheduler.live.job_state import Places
from tests.hscheduler.live_job_world import MEMBERS, SEATS, told_of


def places() -> Places:
    found = Places()
    found.set(SEATS)
    return found


def status(there: list[str], **gone: str) -> dict[str, Any]:
    """Return the status of a job with these members; ``gone`` has the outcome of each member's eviction."""
    evictions = [
        {"name": name.replace("_", "-"), "outcome": outcome, "reason": "is preempted"}
        for name, outcome in gone.items()
    ]  # fmt: skip
    members = told_of(there)
    return {"members": members, "evictions": {"members": evictions}, "plan": None, "queued": [], "changes": []}


def plan(asked_by: str, *added: str) -> dict[str, Any]:
    return {"asked_by": asked_by, "added": list(added)}


@pytest.mark.parametrize("outcome", ["drained", "late", "lost"])
def test_the_container_of_a_member_that_left_is_gone(outcome: str) -> None:
    found = places()
    assert found.take_away(status(["worker-1", "server-1"], worker_2=outcome)) == {
        "its container is preempted": ["c2"]
    }  # fmt: skip
    assert found.items() == (("c1", "worker-1"), ("c3", "server-1"))
    assert found.take_away(status(["worker-1", "server-1"], worker_2=outcome)) == {}, "it is reported once"


def test_a_member_that_still_runs_keeps_its_container() -> None:
    found = places()
    assert found.take_away(status(["worker-1", "worker-2", "server-1"], worker_2="drained")) == {}
    assert found.take_away(status(["worker-1", "server-1"], worker_2="warned")) == {}
    assert found.take_away(status(["worker-1", "server-1"], worker_2="withdrawn")) == {}
    assert dict(found.items()) == MEMBERS


def test_a_replacement_gets_the_container_of_the_lost_member() -> None:
    found = places()
    # The last server: the job itself replaces it.
    assert found.take_away(status(["worker-1", "worker-2"], server_1="lost")) == {}
    now = {**status(["worker-1", "worker-2", "server-2"], server_1="lost"), "plan": plan("job", "server-2")}
    assert found.take_away(now) == {}
    assert dict(found.items()) == {**MEMBERS, "c3": "server-2"}


def test_of_all_workers_the_job_replaces_one() -> None:
    found = places()
    now = {**status(["worker-3", "server-1"], worker_1="drained", worker_2="drained")}
    assert found.take_away({**now, "changes": [plan("job", "worker-3")]}) == {"its container is preempted": ["c2"]}
    assert dict(found.items()) == {"c1": "worker-3", "c3": "server-1"}


def test_a_member_that_the_scheduler_added_is_no_replacement() -> None:
    found = places()
    now = {**status(["worker-1", "worker-3", "server-1"], worker_2="drained"), "plan": plan("user", "worker-3")}
    assert found.take_away(now) == {"its container is preempted": ["c2"]}
    assert dict(found.items()) == {"c1": "worker-1", "c3": "server-1"}


def test_a_member_that_was_lost_without_a_warning_is_replaced_by_the_job() -> None:
    found = places()
    assert found.take_away(status(["worker-1", "worker-3", "server-1"])) == {}
    found.find_replacements(Role.WORKER, status(["worker-1", "worker-3", "server-1"]))
    assert dict(found.items()) == {**MEMBERS, "c2": "worker-3"}
