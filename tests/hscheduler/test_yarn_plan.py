"""Plans for a snapshot of YARN: which jobs give, which never do, and which limit holds an application back."""

from __future__ import annotations

import dataclasses
import random

import pytest

from hscheduler.core.resources import Resources
from hscheduler.yarn.plan import Facts, make_plan, waits
from hscheduler.yarn.wire import Application, Ask, Plan, Queue, Snapshot, User
from tests.hscheduler.yarn_world import SIZE, container, facts, running, snapshot, waiting
from tests.tiers import rotating

TAGS = ("eps.workers=2", "eps.servers=1", "eps.worker=1024x1", "eps.server=1024x1")
AM_LIMIT = "Application is added to the scheduler and is not yet activated. {} AM resource limit exceeded. Details"


def planned(found: Snapshot, *known: tuple[Application, Facts]) -> Plan:
    """Return the plan for a snapshot with these facts."""
    return make_plan(found, {job.application_id: told for job, told in known})


def test_job_master_that_waits_gets_the_newest_worker_of_a_job_with_early_feedback() -> None:
    job = running(1, {"n1:1": 2, "n2:1": 2})
    plan = planned(snapshot(job, waiting(2)), (job, facts(job)))
    assert plan.takes == (container(1, 5),)
    assert plan.sentences == (
        "application_1700000000000_0002 (job-2) waits for its job master (1 vcore and 1024 MiB): "
        "application_1700000000000_0001 (job-1) gives 1 worker",
    )
    assert (plan.instance, plan.taken_ms) == ("life", 5000)


def test_a_plan_covers_all_that_the_tags_request() -> None:
    job = running(1, {"n1:1": 3, "n2:1": 3})
    plan = planned(snapshot(job, waiting(2, tags=(*TAGS, "mine"))), (job, facts(job, servers=2)))
    assert len(plan.takes) == 4
    assert "3 workers and 1 server" in plan.sentences[0]


@pytest.mark.parametrize("tags", [("eps.workers=2",), ("eps.workers=x", "eps.servers=1"), ("eps.worker=1x",)])
def test_incomplete_tags_are_ignored(tags: tuple[str, ...]) -> None:
    job = running(1, {"n1:1": 3, "n2:1": 3})
    assert len(planned(snapshot(job, waiting(2, tags=tags)), (job, facts(job))).takes) == 1


def test_containers_that_outlived_a_job_master_are_not_planned_again() -> None:
    kept = tuple(held for held in running(2, {"n2:1": 4}).containers if not held.is_master)
    again = dataclasses.replace(waiting(2, tags=TAGS), containers=kept)
    for places in ({"n1:1": 4, "n2:1": 3}, {"n1:1": 3}):
        job = running(1, places)
        plan = planned(snapshot(job, again), (job, facts(job)))
        assert len(plan.takes) == 1 and "waits for its job master (1 vcore and 1024 MiB):" in plan.sentences[0]


def test_marked_containers_are_spared_if_they_would_not_help() -> None:
    job = running(1, {"n1:1": 3, "n2:1": 2}, marked=(5, 6))
    plan = planned(snapshot(job, waiting(2, asks=(Ask(True, 1, Resources(90, 90_000)),))), (job, facts(job)))
    assert (plan.takes, plan.spares) == ((), (container(1, 5), container(1, 6)))


def test_a_plan_covers_members_that_a_job_waits_for_beside_its_master() -> None:
    job = running(1, {"n1:1": 3, "n2:1": 3})
    starts = dataclasses.replace(running(2, {}), asks=(Ask(False, 2, SIZE), Ask(False, 1, SIZE)))
    plan = planned(snapshot(job, starts), (job, facts(job, servers=2)))
    assert len(plan.takes) == 3
    assert "waits for 3 containers" in plan.sentences[0]


def test_the_role_of_containers_is_omitted_if_yarn_does_not_report_it() -> None:
    job = running(1, {"n1:1": 2})
    starts = dataclasses.replace(running(2, {}), asks=(Ask(False, 1, SIZE), Ask(False, 3, SIZE)))
    plan = planned(snapshot(job, starts, free={"n1:1": SIZE}), (job, facts(job, feedback=False)))
    assert plan.sentences == (
        "application_1700000000000_0002 (job-2) waits for 4 containers: there is no room for 3 containers, "
        "and jobs with early feedback can spare too little: 4 vcores and 4096 MiB are wanted, and beside what is free "
        "no container could be spared (job-1 has not given its early feedback)",
    )


TRIO = ("eps.workers=1", "eps.servers=1", "eps.worker=1024x1", "eps.server=1024x1")


def test_a_large_container_is_taken_for_several() -> None:
    job = larger(running(1, {"n1:1": 1, "n2:1": 4}))
    plan = planned(snapshot(job, waiting(2, tags=TRIO)), (job, facts(job)))
    assert plan.takes == (container(1, 6),), "it has all three"
    # A container that holds two, and the free space beside it.
    job = larger(running(1, {"n1:1": 1, "n2:1": 4}), 2)
    plan = planned(snapshot(job, waiting(2, tags=TRIO)), (job, facts(job)))
    assert plan.takes == (container(1, 5), container(1, 6))
    free = {"n1:1": SIZE}
    plan = planned(snapshot(job, waiting(2, tags=TRIO), free=free), (job, facts(job)))
    assert plan.takes == (container(1, 6),)


def test_a_plan_frees_memory_if_only_memory_is_missing() -> None:
    job = running(1, {"n1:1": 1, "n2:1": 2})
    held = (dataclasses.replace(c, size=Resources(1, 3072)) if not c.is_master else c for c in job.containers)
    job = dataclasses.replace(job, containers=tuple(held))
    plan = planned(snapshot(job, waiting(2, tags=TRIO), free={"n2:1": Resources(2, 0)}), (job, facts(job)))
    assert plan.takes == (container(1, 4),)


def test_fewer_large_containers_suffice() -> None:
    job = larger(running(1, {"n1:1": 1, "n2:1": 2}))
    plan = planned(snapshot(job, waiting(2, tags=TRIO)), (job, facts(job)))
    assert plan.takes == (container(1, 4),), "no other container can be spared"


def test_containers_that_turn_out_unneeded_are_left() -> None:
    small, big = running(1, {"n1:1": 9}), larger(running(3, {"n2:1": 3}))
    plan = planned(snapshot(small, big, waiting(2, tags=TRIO)), (small, facts(small)), (big, facts(big)))
    assert plan.takes == (container(3, 4),), "the larger job was asked first, for one that does not help"


def larger(job: Application, times: int = 3) -> Application:
    """Return a job whose members have containers this many times as large."""
    size = Resources(SIZE.vcores * times, SIZE.memory_mb * times)
    held = (c if c.is_master else dataclasses.replace(c, size=size) for c in job.containers)
    return dataclasses.replace(job, containers=tuple(held))


def test_a_plan_covers_a_job_that_has_not_started_even_if_it_has_members() -> None:
    job = running(1, {"n1:1": 3, "n2:1": 3})
    starts = dataclasses.replace(running(2, {"n2:1": 1}), asks=(Ask(False, 1, SIZE),))
    told = facts(starts, feedback=False, may_shrink=False)
    plan = planned(snapshot(job, starts), (job, facts(job)), (starts, dataclasses.replace(told, starting=True)))
    assert len(plan.takes) == 1 and plan.sentences[0].startswith(starts.application_id)
    assert not planned(snapshot(job, starts), (job, facts(job)), (starts, told)).takes


def test_a_growing_job_makes_no_other_shrink() -> None:
    grows = dataclasses.replace(running(2, {"n2:1": 1}), asks=(Ask(False, 1, SIZE),))
    job = running(1, {"n1:1": 3})
    assert not waits(grows)
    assert planned(snapshot(job, grows), (job, facts(job))) == Plan("life", 5000)


def test_jobs_without_early_feedback_or_status_or_in_a_change_give_nothing() -> None:
    young, unknown, changes = (running(k, {"n1:1": 3}) for k in (1, 2, 3))
    plan = planned(
        snapshot(young, unknown, changes, waiting(4)),
        (young, facts(young, feedback=False)),
        (changes, facts(changes, may_shrink=False)),
    )
    assert plan.takes == ()
    assert "job-1 has not given its early feedback" in plan.sentences[0]
    assert "nobody knows how job-2 is" in plan.sentences[0]


def test_last_worker_last_server_and_masters_stay() -> None:
    job = running(1, {"n1:1": 1, "n2:1": 2})
    plan = planned(snapshot(job, waiting(2, asks=(Ask(True, 1, Resources(3, 3072)),))), (job, facts(job)))
    assert plan.takes == ()
    assert "can spare too little" in plan.sentences[0]
    assert len(planned(snapshot(job, waiting(2)), (job, facts(job))).takes) == 1


def test_marked_containers_are_not_taken_twice_and_spared_without_a_waiting_job() -> None:
    job = running(1, {"n1:1": 2, "n2:1": 2}, marked=(5,))
    assert planned(snapshot(job, waiting(2)), (job, facts(job))) == Plan("life", 5000)
    assert planned(snapshot(job), (job, facts(job))).spares == (container(1, 5),)
    # Another application got it: the next plan takes another container.
    gone = dataclasses.replace(job, containers=job.containers[:-1])
    assert planned(snapshot(gone, waiting(2)), (gone, facts(gone))).takes == (container(1, 4),)


@pytest.mark.parametrize(
    ("diagnostics", "told"),
    [
        (AM_LIMIT.format("Queue's"), "maximum-am-resource-percent"),
        (AM_LIMIT.format("User's"), "user AM limit"),
        (
            "User capacity has reached its maximum limit. Details",
            "user ada has all that one user of",
        ),
    ],
)
def test_a_limit_of_yarn_is_reported_and_no_job_shrinks(diagnostics: str, told: str) -> None:
    job = running(1, {"n1:1": 4})
    plan = planned(snapshot(job, waiting(2, diagnostics=diagnostics)), (job, facts(job)))
    assert plan.takes == ()
    assert told in plan.sentences[0]
    assert "would not help" in plan.sentences[0]


def test_a_label_that_no_node_has_is_reported() -> None:
    job = running(1, {"n1:1": 4})
    plan = planned(snapshot(job, waiting(2, asks=(Ask(True, 1, SIZE, "gpu"),))), (job, facts(job)))
    assert plan.takes == ()
    assert "no node that runs has the label 'gpu'" in plan.sentences[0]


def test_only_containers_on_nodes_with_the_label_make_room() -> None:
    job = running(1, {"n1:1": 3, "n2:1": 2})
    plan = planned(snapshot(job, waiting(2), labels={"n2:1": "gpu"}), (job, facts(job)))
    # Newer ones are on n2.
    assert plan.takes == (container(1, 4),)
    there = waiting(2, asks=(Ask(True, 1, SIZE, "gpu"),))
    assert planned(snapshot(job, there, labels={"n2:1": "gpu"}), (job, facts(job))).takes == (container(1, 6),)


@pytest.mark.parametrize(
    ("label", "counts_cores", "told"),
    [
        ("", True, ": 5 vcores and 5120 MiB are wanted, and beside what is free 2 containers of "
         "2 vcores and 2048 MiB could be spared, 3 more on nodes labelled 'transient', which it does not ask for"),
        ("transient", True, ": 5 vcores and 5120 MiB are wanted, and beside what is free 4 containers of "
         "4 vcores and 4096 MiB could be spared, 1 more on nodes without the label 'transient'"),
        ("", False, ": 5120 MiB are wanted, and beside what is free 2 containers of 2048 MiB could be spared, 3 more "
         "on nodes labelled 'transient', which it does not ask for"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_free_enough_reports_both_amounts(label: str, counts_cores: bool, told: str) -> None:
    # A server and two workers at n1, four workers at n2: one of each role stays, preferably elsewhere.
    job = running(1, {"n1:1": 3, "n2:1": 4})
    asked = waiting(2, asks=(Ask(True, 1, Resources(5, 5120), label),))
    found = snapshot(job, asked, labels={"n2:1": "transient"}, free={"n1:1": SIZE}, counts_cores=counts_cores)
    plan = planned(found, (job, facts(job)))
    assert plan.takes == () and plan.sentences[0].endswith(f"can spare too little{told}"), plan.sentences


def test_a_plan_without_donors_is_reported() -> None:
    job = running(1, {"n1:1": 2})
    plan = planned(snapshot(job, waiting(2)), (job, facts(job)))
    assert plan.sentences[0].endswith(
        ": 1 vcore and 1024 MiB are wanted, and beside what is free no container could be spared"
    )


def test_a_user_at_the_limit_is_reported() -> None:
    job = running(1, {"n1:1": 4}, user="bob")
    full = User("eps", "ada", "", Resources(4, 4096), Resources(4, 4096))
    for free in ({}, {"n2:1": Resources(4, 4096)}):
        plan = planned(snapshot(job, waiting(2), users=(full,), free=free), (job, facts(job)))
        assert plan.takes == ()
        assert "user ada has 4 vcores and 4096 MiB of the 4 vcores and 4096 MiB" in plan.sentences[0]
    # If a job of the same user gives, the user stays below the limit.
    own = running(1, {"n1:1": 4})
    assert len(planned(snapshot(own, waiting(2), users=(full,)), (own, facts(own))).takes) == 1


def test_only_its_own_jobs_can_free_a_full_queue() -> None:
    room = {"n2:1": Resources(4, 4096)}
    full = Queue("eps", "", Resources(4, 4096), Resources(4, 4096), True)
    own, other = running(1, {"n1:1": 4}), running(3, {"n2:1": 8}, queue="other")
    plan = planned(
        snapshot(own, other, waiting(2), free=room, queues=(full,)), (own, facts(own)), (other, facts(other))
    )
    assert plan.takes == (container(1, 5),)
    plan = planned(snapshot(other, waiting(2), free=room, queues=(full,)), (other, facts(other)))
    assert plan.takes == ()
    assert "can spare too little" in plan.sentences[0]


def test_nothing_is_taken_from_a_queue_from_which_yarn_itself_preempts() -> None:
    fought, own = running(1, {"n1:1": 4}, queue="batch"), running(3, {"n1:1": 3})
    queues = tuple(Queue(name, "", Resources(0, 0), Resources(0, 0), name != "batch") for name in ("batch", "eps"))
    plan = planned(snapshot(fought, own, waiting(2), queues=queues), (fought, facts(fought)), (own, facts(own)))
    assert plan.takes == (container(3, 4),)
    assert plan.sentences[0].startswith("nothing is taken from queue batch: YARN's own preemption may take from it")
    assert "disable_preemption to true" in plan.sentences[0]
    plan = planned(snapshot(fought, waiting(2), queues=queues), (fought, facts(fought)))
    assert plan.takes == () and len(plan.sentences) == 2


def test_no_job_gives_while_there_is_free_space() -> None:
    job = running(1, {"n1:1": 4})
    plan = planned(snapshot(job, waiting(2), free={"n2:1": SIZE}), (job, facts(job)))
    assert plan.takes == ()
    assert "there is room, YARN has not granted it yet" in plan.sentences[0]
    # The next one in the queue does not count the same space.
    both = snapshot(job, waiting(2), waiting(3), free={"n2:1": SIZE})
    assert len(planned(both, (job, facts(job))).takes) == 1


def test_higher_priority_and_earlier_submission_go_first() -> None:
    job = running(1, {"n1:1": 4})
    plan = planned(snapshot(job, waiting(2), waiting(3, priority=5), waiting(4, priority=5)), (job, facts(job)))
    assert plan.sentences[0].startswith("application_1700000000000_0003")
    assert len(plan.takes) == 1


def test_cores_count_only_where_yarn_counts_them() -> None:
    job = running(1, {"n1:1": 4})
    memory = {"n2:1": Resources(0, 1024)}
    assert planned(snapshot(job, waiting(2), free=memory), (job, facts(job))).takes
    assert not planned(snapshot(job, waiting(2), free=memory, counts_cores=False), (job, facts(job))).takes


def test_no_plan_ever_takes_what_must_stay() -> None:
    plans = 0
    for seed in rotating(300):
        lots = random.Random(seed)
        jobs = [
            running(k, {"n1:1": lots.randint(0, 4), "n2:1": lots.randint(0, 4)}, marked=(lots.randint(2, 5),))
            for k in range(1, lots.randint(2, 6))
        ]
        told = {job.application_id: facts(job, lots.randint(0, 3), feedback=lots.random() < 0.7) for job in jobs}
        asks = (Ask(True, 1, Resources(lots.randint(1, 3), 1024 * lots.randint(1, 4))),)
        plan = make_plan(snapshot(*jobs, waiting(90, asks=asks)), told)
        taken = set(plan.takes)
        plans += bool(taken)
        assert len(taken) == len(plan.takes)
        for job in jobs:
            here = [held for held in job.containers if held.container_id in taken]
            assert not any(held.is_master or held.marked for held in here)
            known = told[job.application_id]
            assert known.early_feedback or not here
            if here:
                left = [known.roles[h.container_id] for h in job.containers if h.container_id in known.roles]
                for held in (h for h in job.containers if h.container_id in taken or h.marked):
                    left.remove(known.roles[held.container_id])
                for role in {known.roles[held.container_id] for held in here}:
                    assert role in left, (seed, role)
    assert plans > 50
