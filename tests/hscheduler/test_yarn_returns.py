"""What jobs gave so that others of their queue could start is given back: to whom, when, and no more than that."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from typing import Any, cast

import pytest

from eps.errors import JobFinishedError, PeerUnavailableError
from hscheduler.core.resources import Resources, Role
from hscheduler.live import yarn_queue
from hscheduler.live.yarn_facts import JobView
from hscheduler.live.yarn_queue import QueueScheduler
from hscheduler.live.yarn_reader import QueueReader
from hscheduler.live.yarn_returns import REST_S
from hscheduler.yarn.facts import Facts
from hscheduler.yarn.giving_back import Return, Settled, give_back
from hscheduler.yarn.snapshot import Application, Queue, Snapshot, User
from tests.hscheduler.yarn_lives import LivingJob, LivingYarn
from tests.hscheduler.yarn_world import facts, running, snapshot

SETTLE_S = 5.0
WORKER, SERVER = Role.WORKER, Role.SERVER


# ---- who gets how much


def owed(job: Application, servers: int = 1, **lent: int) -> Facts:
    """Say what a job gave."""
    return dataclasses.replace(facts(job, servers), lent={Role(role): number for role, number in lent.items()})


def given(found: Snapshot, *jobs: tuple[Application, Facts], carefully: frozenset[str] = frozenset()) -> list[Any]:
    """Return what is given back, as (number of the application, role, number)."""
    returns = give_back(found, {job.application_id: known for job, known in jobs}, carefully)
    assert all(isinstance(each, Return) for each in returns)
    return [(int(each.application_id[-4:]), each.role, each.number) for each in returns]


def free(n1: int = 0, n2: int = 0) -> dict[str, Resources]:
    return {"n1:1": Resources(n1, 1024 * n1), "n2:1": Resources(n2, 1024 * n2)}


def test_smallest_gets_first_one_each_and_none_gets_more_than_it_gave() -> None:
    small, large = running(1, {"n1:1": 3}), running(2, {"n1:1": 5})
    jobs = (large, owed(large, worker=3)), (small, owed(small, worker=2))
    assert given(snapshot(large, small, free=free(1)), *jobs) == [(1, WORKER, 1)]
    found = dict((name, number) for name, _, number in given(snapshot(large, small, free=free(3)), *jobs))
    assert found == {1: 2, 2: 1}
    found = dict((name, number) for name, _, number in given(snapshot(large, small, free=free(9, 9)), *jobs))
    assert found == {1: 2, 2: 3}


def test_one_role_at_a_time_and_at_most_twice_as_many_as_there_are() -> None:
    job = running(1, {"n1:1": 2})
    known = job, owed(job, worker=4, server=2)
    assert given(snapshot(job, free=free(9)), known) == [(1, WORKER, 1)]
    known = job, owed(job, server=2)
    assert given(snapshot(job, free=free(9)), known) == [(1, SERVER, 1)]


def test_nobody_gets_what_does_not_fit_a_node() -> None:
    job = running(1, {"n1:1": 3})
    large = tuple(dataclasses.replace(held, size=Resources(2, 2048)) for held in job.containers)
    job = dataclasses.replace(job, containers=large)
    assert given(snapshot(job, free=free(1, 1)), (job, owed(job, worker=2))) == []
    assert given(snapshot(job, free=free(1, 2)), (job, owed(job, worker=2))) == [(1, WORKER, 1)]


def test_job_with_large_containers_keeps_nobody_from_getting_small_ones() -> None:
    large, small = running(1, {"n1:1": 2}), running(2, {"n1:1": 4})
    sized = tuple(dataclasses.replace(held, size=Resources(3, 3072)) for held in large.containers)
    large = dataclasses.replace(large, containers=sized)
    jobs = (large, owed(large, worker=1)), (small, owed(small, worker=2))
    assert given(snapshot(large, small, free=free(2)), *jobs) == [(2, WORKER, 2)]
    assert given(snapshot(large, small, free=free(4)), *jobs) == [(1, WORKER, 1), (2, WORKER, 1)]


@pytest.mark.parametrize("counts_cores", [True, False])
def test_queue_and_user_have_no_more_than_they_may(counts_cores: bool) -> None:
    job = running(1, {"n1:1": 5})
    known = job, owed(job, worker=4)

    def with_left(of_queue: int, of_user: int) -> Snapshot:
        used = Resources(6, 6144)
        queue = Queue("eps", "", used, used + Resources(of_queue, 1024 * of_queue), False)
        user = User("eps", "ada", "", used, used + Resources(of_user, 1024 * of_user))
        # Crumbs on the first node are of no use to anybody.
        room = {"n1:1": Resources(9, 512), "n2:1": Resources(9, 9216)}
        return snapshot(job, free=room, queues=(queue,), users=(user,), counts_cores=counts_cores)

    assert given(with_left(2, 9), known) == [(1, WORKER, 2)]
    assert given(with_left(9, 3), known) == [(1, WORKER, 3)]
    assert given(with_left(0, 9), known) == []
    assert given(with_left(9, -1), known) == []
    assert given(with_left(9, 9), known) == [(1, WORKER, 4)]


def test_memory_alone_decides_where_cores_are_not_counted() -> None:
    job = running(1, {"n1:1": 3})
    found = snapshot(job, free={"n2:1": Resources(0, 1024)}, counts_cores=False)
    assert given(found, (job, owed(job, worker=2))) == [(1, WORKER, 1)]


def test_role_is_given_back_only_where_its_label_is() -> None:
    job = running(1, {"n2:1": 1, "n1:1": 2})
    known = job, owed(job, worker=2, server=2)
    labelled = {"n2:1": "transient"}
    assert given(snapshot(job, free=free(0, 2), labels=labelled), known) == [(1, SERVER, 1)]
    assert given(snapshot(job, free=free(2, 0), labels=labelled), known) == [(1, WORKER, 2)]


def test_role_that_asks_for_no_label_may_be_where_others_leave_it_room() -> None:
    job = running(1, {"n1:1": 1, "n2:1": 3})
    labelled = {"n2:1": "transient"}

    def returned(label: str | None, n1: int, n2: int) -> list[Any]:
        known = owed(job, worker=3)
        known = known if label is None else dataclasses.replace(known, labels={WORKER: label})
        return given(snapshot(job, free=free(n1, n2), labels=labelled), (job, known))

    # All of its workers are on nodes with a label.
    assert returned("", 1, 1) == [(1, WORKER, 2)] and returned("", 9, 9) == [(1, WORKER, 3)]
    assert returned("transient", 9, 1) == [(1, WORKER, 1)]
    assert returned(None, 9, 1) == [(1, WORKER, 1)], "an older job master does not tell"


def test_who_asked_in_vain_tries_one_and_who_cannot_be_seen_whole_none() -> None:
    job = running(1, {"n1:1": 5})
    careful = frozenset({job.application_id})
    assert given(snapshot(job, free=free(9)), (job, owed(job, worker=4)), carefully=careful) == [(1, WORKER, 1)]
    assert given(snapshot(job, free=free(9)), (job, owed(job, servers=0, worker=4))) == []
    assert given(snapshot(job, free=free(9)), (job, facts(job))) == []


# ---- what has been free all the while


def with_free(cores: int, used: int) -> Snapshot:
    queue = Queue("eps", "", Resources(used, used), Resources(9, 9), False)
    user = User("eps", "ada", "", Resources(used, used), Resources(9, 9))
    return snapshot(free=free(cores), queues=(queue,), users=(user,))


def test_free_is_what_was_free_all_the_while() -> None:
    seen = Settled(5.0, 1.0)
    assert seen.least(0.0) is None
    for now_s, cores in enumerate((4, 4, 2, 3, 3, 3)):
        seen.note(with_free(cores, 9 - cores), now_s)
        assert (seen.least(now_s) is None) == (now_s < 5)

    def least(now_s: float) -> tuple[int, int, int]:
        found = seen.least(now_s)
        assert found is not None
        return found.nodes[0].free.vcores, found.queues[0].used.vcores, found.users[0].used.vcores

    assert least(5.0) == (2, 7, 7)
    seen.note(with_free(3, 6), 7.5)
    assert least(7.5) == (2, 7, 7), "until the third second it was two"
    seen.note(with_free(3, 6), 8.0)
    assert least(8.0) == (3, 6, 6)
    seen.begin_again()
    seen.note(with_free(4, 5), 9.0)
    assert seen.least(13.9) is None
    seen.note(with_free(4, 5), 14.0)
    assert least(14.0) == (4, 5, 5)


def test_node_that_came_meanwhile_has_had_nothing_free() -> None:
    seen = Settled(1.0, 1.0)
    seen.note(dataclasses.replace(with_free(4, 5), nodes=with_free(4, 5).nodes[:1]), 0.0)
    seen.note(snapshot(free=free(4, 4)), 1.0)
    found = seen.least(1.0)
    assert found is not None and [n.free.vcores for n in found.nodes] == [4, 0]


@pytest.mark.parametrize(
    ("every_s", "apart_s", "settled"),
    [(1.0, 100.0, False), (1.0, 10.0, True), (60.0, 69.0, True), (60.0, 100.0, False)],
)
def test_what_was_free_while_a_look_took_long_nobody_knows(every_s: float, apart_s: float, settled: bool) -> None:
    seen = Settled(5.0, every_s)
    seen.note(with_free(4, 5), 0.0)
    seen.note(with_free(4, 5), apart_s)
    assert (seen.least(apart_s) is not None) == settled
    seen.note(with_free(4, 5), apart_s + 5.0)
    assert seen.least(apart_s + 5.0) is not None


# ---- a queue that is watched


class AskedInTurn:
    """Stands for :class:`hscheduler.yarn.together.AskedTogether`: nobody is late, however slow the machine is."""

    def __init__(self, ask: Any) -> None:
        self._ask = ask

    def __call__(self, applications: Iterable[Application]) -> dict[str, JobView]:
        """Return what is known."""
        found = {a.application_id: self._ask(a) for a in applications}
        return {name: view for name, view in found.items() if view is not None}

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture(autouse=True)
def nobody_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have masters asked one after the other."""
    monkeypatch.setattr(yarn_queue, "AskedTogether", AskedInTurn)


class Run:
    """H-scheduler over a YARN in memory, a round each second."""

    def __init__(self, yarn: LivingYarn, settle_s: float | None = SETTLE_S, *, acts: bool = True) -> None:
        self.yarn = yarn
        self.settle_s, self.acts = settle_s, acts
        self.told: list[str] = []
        self.begin()

    def begin(self) -> None:
        """Begin, or begin again with nothing known."""
        self.scheduler = QueueScheduler(
            self.yarn.web,
            ["eps"],
            cast(Any, self.yarn),
            50,
            lambda text, name: self.told.append(text),
            settle_s=self.settle_s,
            acts=self.acts,
            now_s=lambda: self.yarn.now_s,
        )

    def go(self, seconds: int = 1) -> None:
        """Let time pass."""
        for _ in range(seconds):
            self.yarn.step()
            self.scheduler.round()
            self.yarn.check()

    def until(self, what: Any, most_s: int = 60) -> int:
        """Let time pass until something is so; return the seconds."""
        for second in range(most_s):
            if what():
                return second
            self.go()
        raise AssertionError(f"not so after {most_s} s: {self.told}")


def shrunk(cores: int = 4) -> tuple[Run, LivingJob, LivingJob]:
    """Return a job with two servers that fills two nodes of so many cores, and gave so that another started."""
    yarn = LivingYarn(2, cores)
    job = yarn.submit(2 * cores - 3, 2)
    run = Run(yarn)
    run.go(20)
    late = yarn.submit(2, 1)
    run.until(lambda: late.state == "running")
    return run, job, late


def is_whole(job: LivingJob) -> bool:
    return all(job.count(role) == number for role, number in job.had.items())


def test_job_gets_back_what_it_gave_when_the_other_has_ended_and_not_before() -> None:
    run, job, late = shrunk()
    run.go(20)
    assert not is_whole(job) and not any(late.lent.values())
    assert sum(job.lent.values()) == 4, "one for its master, three for its members"
    late.app.over = True
    began_s = run.yarn.now_s
    run.until(lambda: any("gets" in text for text in run.told))
    assert run.yarn.now_s - began_s >= SETTLE_S
    run.until(lambda: is_whole(job))
    assert next(text for text in run.told if "gets" in text) == (
        f"{job.app.id} (job-1) gets 2 workers back: nobody waits, and there is room"
    )
    asked = list(job.asked)
    run.go(60)
    assert job.asked == asked and not any(job.lent.values())


@pytest.mark.parametrize("why", ["away", "unclear", "not looked"])
def test_room_that_nobody_saw_for_a_while_is_left_to_whoever_wants_it(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _, late = shrunk()
    run.go(20)
    late.app.over = True
    run.go(int(SETTLE_S) - 1)
    if why == "away":
        run.yarn.web.error = PeerUnavailableError("no ResourceManager can be reached")
        with pytest.raises(PeerUnavailableError):
            run.go()
        run.yarn.web.error = None
    elif why == "unclear":
        with monkeypatch.context() as patched:
            patched.setattr(QueueReader, "snapshot", lambda reader, apps: None)
            run.go()
    else:
        run.yarn.now_s += 100.0
    began_s = run.yarn.now_s
    run.until(lambda: any("gets" in text for text in run.told))
    assert run.yarn.now_s - began_s > SETTLE_S


def test_next_watcher_knows_what_the_last_one_took_and_gives_it_once() -> None:
    run, job, late = shrunk()
    late.app.over = True
    for _ in range(3):
        # Ended and started again before it has looked for long enough.
        run.begin()
        run.go(3)
    assert not is_whole(job)
    run.until(lambda: bool(job.coming) or job.plans[-1].change.operation.adds)
    run.begin()
    run.until(lambda: is_whole(job))
    run.begin()
    run.go(60)
    assert is_whole(job)


def test_two_watchers_at_once_give_no_more_than_one() -> None:
    run, job, late = shrunk()
    late.app.over = True
    other = Run(run.yarn)
    for _ in range(40):
        run.go()
        other.scheduler.round()
        run.yarn.check()
    assert is_whole(job)


def test_who_waits_comes_first_and_what_was_asked_for_is_withdrawn() -> None:
    run, job, late = shrunk(cores=6)
    late.app.over = True
    # Somebody takes most of what became free at the moment at which it is asked for.
    run.until(lambda: job.plans[-1].change.operation.adds)
    assert run.yarn.occupy(3) is not None
    run.go()
    assert job.app.asks == 2 and list(map(bool, job.coming.values())) == [True, False, False]
    newcomer = run.yarn.submit(1, 1)
    run.go()
    # The one that was granted goes with the change that it came by; the next two follow.
    assert [str(plan.change) for plan in job.plans[2:]] == ["add-workers=3", "remove-workers=worker-5,worker-6"]
    assert job.plans[2].reason == "cancelled" and not job.coming
    run.until(lambda: newcomer.state == "running", most_s=10)


def test_who_gives_nothing_for_the_one_that_waits_withdraws_what_it_asks_for_too() -> None:
    yarn = LivingYarn(2, 8)
    small, large = yarn.submit(4, 1), yarn.submit(8, 1)
    run = Run(yarn)
    run.go(20)
    late = yarn.submit(3, 3)
    run.until(lambda: late.state == "running")
    assert all(any(job.lent.values()) for job in (small, large))
    late.app.over = True
    run.until(lambda: all(job.plans[-1].change.operation.adds for job in (small, large)))
    assert run.yarn.occupy(run.yarn.free) is not None
    run.go()
    yarn.submit(1, 1)
    run.go()
    assert [job.plans[-1].change.operation.adds for job in (small, large)] == [True, False]
    assert small.plans[-1].reason == "cancelled"
    assert f"{small.app.id} (job-1) lets go of what it asks for: somebody waits" in run.told


def test_room_in_which_somebody_has_just_started_is_left_to_him_for_a_while() -> None:
    run, job, late = shrunk(cores=6)
    late.app.over = True
    run.go(int(SETTLE_S) - 1)
    newcomer = run.yarn.submit(1, 1)
    run.until(lambda: newcomer.state == "running")
    assert run.yarn.free and not job.plans[-1].change.operation.adds
    assert run.until(lambda: job.plans[-1].change.operation.adds) >= SETTLE_S


def test_what_one_asks_for_and_has_not_got_yet_is_not_given_to_another() -> None:
    yarn = LivingYarn(2, 8)
    small, large = yarn.submit(4, 1), yarn.submit(8, 1)
    run = Run(yarn)
    run.go(20)
    late = yarn.submit(3, 3)
    run.until(lambda: late.state == "running")
    late.app.over = True
    run.go(2)
    assert yarn.occupy(yarn.free - 1) is not None
    run.until(lambda: small.plans[-1].change.operation.adds)
    # YARN takes its time, and what is free is asked for.
    yarn.grants = False
    run.go(2)
    assert yarn.free == small.app.asks == 1 and not large.plans[-1].change.operation.adds
    yarn.grants = True
    run.go(2)
    assert small.plans[-1].ended and not small.plans[-1].reason


def test_what_is_not_granted_is_tried_again_later_one_by_one() -> None:
    run, job, late = shrunk()
    late.app.over = True
    run.until(lambda: job.plans[-1].change.operation.adds)
    other = run.yarn.occupy(4)
    assert other is not None
    run.until(lambda: job.plans[-1].ended)
    assert job.plans[-1].reason == "not granted in time" and not job.app.asks
    run.go()
    assert f"{job.app.id} (job-1) asks again in 10 s: what it asked for was not granted in time" in run.told
    plans = len(job.plans)
    other.over = True
    run.go(8)
    assert len(job.plans) == plans
    run.until(lambda: len(job.plans) > plans)
    assert job.plans[-1].change.count == 1
    run.until(lambda: is_whole(job))


def test_queue_that_may_have_no_more_gives_nothing_back() -> None:
    run, job, late = shrunk()
    late.app.over = True
    run.yarn.web.most = run.yarn.web.used()
    run.go(60)
    assert run.yarn.free == 4 and not is_whole(job)
    run.yarn.web.most += 1
    run.go(20)
    assert sum(job.lent.values()) == 3


def test_whoever_asked_for_members_by_hand_gets_them_once() -> None:
    run, job, late = shrunk()
    late.app.over = True
    operation = job.plans[0].change.operation
    job.change(type(operation)("add-workers"), job.lent[WORKER], wait=False, request_id="by hand")
    run.go(60)
    assert is_whole(job), "the servers by us"
    assert sum(plan.change.operation.adds for plan in job.plans) == 2


def test_job_that_has_no_iterations_left_is_left_alone_for_a_while() -> None:
    run, job, late = shrunk()
    late.app.over = True
    job.refusal = JobFinishedError("the last iteration has been granted already")
    run.go(int(REST_S))
    found = [text for text in run.told if "gets nothing back for now" in text]
    assert len(found) == 1 and "the last iteration" in found[0]


def test_who_only_looks_says_what_would_be_given_and_who_is_told_not_to_gives_nothing() -> None:
    run, job, late = shrunk()
    late.app.over = True
    looks = Run(run.yarn, 0.0, acts=False)
    looks.scheduler.round()
    assert looks.told == [f"{job.app.id} (job-1) gets 2 workers back: nobody waits, and there is room"]
    assert len(job.plans) == 2
    never = Run(run.yarn, None)
    never.go(60)
    assert len(job.plans) == 2 and not never.told


def test_limit_that_holds_somebody_keeps_no_room_idle() -> None:
    run, job, late = shrunk()
    late.app.over = True
    held = run.yarn.submit(1, 1)
    held.app.diagnostics = "Queue's AM resource limit exceeded."
    run.yarn.web.apps.remove(held.app)
    run.yarn.lives.remove(held)
    run.yarn.web.apps.append(held.app)
    run.until(lambda: is_whole(job))


def test_nobody_is_asked_where_nothing_is_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    yarn = LivingYarn()
    yarn.submit(2, 1)
    run = Run(yarn)
    run.go(10)
    monkeypatch.setattr(yarn, "status", lambda application: pytest.fail("asked"))
    monkeypatch.setattr(yarn.web, "_scheduler", lambda: pytest.fail("looked"))
    run.go(10)


# ---- by lot


def feasible(yarn: LivingYarn, job: LivingJob) -> bool:
    """Return whether there is room for all that a job lacks, with what others can give."""
    if not job.app.master:
        lacks = 1 + sum(job.had.values())
    else:
        lacks = sum(job.had.values()) - len(job.app.members)
    spare = sum(max(0, other.count(role) - 1) for other in yarn.running() if other.clock >= 50 for role in other.had)
    return lacks <= yarn.free + spare


@pytest.mark.parametrize("seed", range(6))
def test_whatever_arrives_and_ends_all_is_given_back_and_nobody_starves(seed: int) -> None:
    rng = random.Random(seed)
    yarn = LivingYarn(rng.randint(2, 4), rng.randint(4, 8))
    run = Run(yarn)
    others: list[tuple[float, Any]] = []
    waited: dict[str, int] = {}
    capacity = len(yarn.web.nodes) * yarn.web.cores
    # One that goes on has most of it, and others come and go.
    yarn.submit(capacity - 4, 2)
    for _ in range(300):
        waiting = [job for job in yarn.there() if job.state == "starting"]
        if rng.random() < 0.08 and len(waiting) < 2:
            workers, servers = rng.randint(1, capacity // 3), rng.randint(1, 3)
            yarn.submit(workers, servers, yarn.now_s + rng.randint(20, 150))
        if rng.random() < 0.03:
            app = yarn.occupy(rng.randint(1, 3))
            if app is not None:
                others.append((yarn.now_s + rng.randint(2, 30), app))
        for ends_s, app in others:
            app.over = app.over or yarn.now_s >= ends_s
        if rng.random() < 0.03:
            if rng.random() < 0.5:
                run.scheduler.close()
            run.begin()
        run.go()
        first = next((job for job in yarn.there() if job.state == "starting"), None)
        if first is not None:
            waited[first.app.id] = waited.get(first.app.id, 0) + 1 if feasible(yarn, first) else 0
            assert waited[first.app.id] < 40, (first.app.id, run.told[-5:])
    for _, app in others:
        app.over = True
    for job in yarn.there():
        if job.state == "starting":
            job.app.over = True
        job.ends_s = float("inf")
    left = yarn.there()
    while left:
        run.go(80)
        lacking = [job for job in left if not is_whole(job)]
        assert not lacking or not yarn.free, "no container idles while somebody lacks it"
        if len(left) == 1:
            assert is_whole(left[0])
        left.pop(rng.randrange(len(left))).app.over = True
    returns = sum(plan.change.operation.adds and not plan.reason for job in yarn.lives for plan in job.plans)
    assert returns, "or this has shown nothing"
