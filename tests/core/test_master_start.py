"""The job master until its first membership holds: what it waits for, and when that is given up."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.events import JobState
from eps.core.job import Job
from eps.core.plans import REGAIN_PATIENCE_S
from eps.core.reconfig import Operation
from eps.core.recovery import INCIDENT_S
from eps.core.size import (
    GANG_LONGEST_S,
    GANG_SPREAD,
    REQUEST_S,
    START_PATIENCE_S,
    START_TIMEOUT_S,
    Borrower,
    least_of,
)
from eps.core.types import Address, CoreSettings, Role, Tier
from eps.job.display import status_text
from eps.master import records
from eps.master.state_log import StateLog
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import DataShape, Runtime
from tests.core.scripted import ScriptedMaster, starting
from tests.core.test_evictions import carry_on, warn
from tests.core.test_room_for_others import regain


def begun(*granted: str) -> ScriptedMaster:
    """Return a job of three workers and two servers that starts, of which only some were granted their containers."""
    master = starting()
    master.request_containers()
    for name in granted:
        master.step(e.ContainerGranted(master.container_of(name)))
    return master


def test_job_that_starts_says_which_containers_it_waits_for_and_since_when() -> None:
    master = begun("worker-1", "worker-2", "server-1")
    at_once = master.state.waits_for(0.5)
    later = master.state.waits_for(65.0)
    master.step(e.ContainerGranted(master.container_of("worker-3")))

    assert at_once == ""
    assert later == "waits for 2 containers, asked for 65 s ago: worker-3, server-2"
    assert master.state.waits_for(90.0) == "waits for 1 container, asked for 90 s ago: server-2"
    for name in ("worker-1", "worker-2", "worker-3", "server-1", "server-2"):
        master.register(name)
    assert master.state.waits_for(90.0) == ""


def test_container_that_was_granted_late_has_all_of_its_time_to_register() -> None:
    master = ScriptedMaster(CoreSettings(6, 4, 100, reproducible=False), 3, 2, managed=True)
    master.request_containers()
    master.tick(after_s=2 * START_PATIENCE_S)
    master.launch("server-2")
    master.tick(after_s=START_PATIENCE_S / 2)
    patient = master.state.state
    master.tick(after_s=START_PATIENCE_S / 2)

    assert patient is JobState.STARTING
    assert (master.state.state, master.state.reason) == (JobState.FAILED, "server-2 did not register within 300 s")


def test_containers_that_are_given_up_together_are_asked_for_twice_more() -> None:
    master = begun("worker-1", "worker-2", "worker-3")
    for _ in range(2):
        master.now_s += INCIDENT_S
        for name in ("server-1", "server-2"):
            master.exit(name, "was not granted within 4 s")
    waiting = master.state.state
    master.now_s += INCIDENT_S
    master.exit("server-2", "was not granted within 4 s")

    assert waiting is JobState.STARTING
    assert master.state.state is JobState.FAILED and master.state.reason.startswith("server-2 was never granted")


def test_job_that_fails_for_lack_of_a_container_says_that_it_was_never_granted() -> None:
    master = begun()
    for _ in range(3):
        master.now_s += INCIDENT_S
        master.exit("server-1", "was not granted within 4 s: it asks for 1024 MB and 1 vcore")

    assert master.state.state is JobState.FAILED
    assert master.state.reason == (
        "server-1 was never granted a container: the last one requested was not granted within 4 s: "
        "it asks for 1024 MB and 1 vcore"
    )


def requested(master: ScriptedMaster) -> list[str]:
    """Return the containers that the latest event made the job request."""
    return [command.container_id for command in master.last if isinstance(command, e.RequestContainer)]


def exit_at_once(master: ScriptedMaster) -> int:
    """Let every process end 0.1 s after its launch until the job fails; return how many containers it requested."""
    count = 0
    while master.state.state is JobState.STARTING:
        coming = requested(master)
        count += len(coming)
        for container in coming:
            master.step(e.ContainerLaunched(container, 7))
        for container in coming:
            master.step(e.ContainerExited(container, "exited with code 3"))
            # Nothing is requested between the ends of two that end together.
            assert not requested(master)
        if master.state.state is JobState.STARTING:
            master.tick(after_s=0.1)
    return count


def test_containers_that_end_at_once_are_requested_again_together_after_growing_pauses() -> None:
    master = begun()
    (first, *_) = containers = list(master.state.members.containers)
    for container in containers:
        master.step(e.ContainerExited(container, "exited with code 3"))
    assert master.state.waits_for(master.now_s) == "5 containers ended before registering: requests them again in 0 s"
    assert exit_at_once(master) == 4 * len(containers) and master.now_s < 3 * INCIDENT_S
    assert "3 failures" in master.state.reason and f"{first} " not in master.state.reason


def test_a_container_of_two_members_that_ends_at_once_is_requested_after_a_pause() -> None:
    master = starting()
    master.state = Job(CoreSettings(6, 4, 100), 3, 3, tiers={Tier.RELIABLE: 2, Tier.TRANSIENT: 1})
    master.request_containers()
    containers = list(master.state.members.containers)
    for container in containers:
        master.step(e.ContainerExited(container, "exited with code 3"))
    assert exit_at_once(master) == 4 * len(containers) and "exited with code 3" in master.state.reason


def test_a_new_master_requests_at_once_and_once_what_waits() -> None:
    master = begun()
    master.exit("server-1", "exited with code 3")
    waiting = master.container_of("server-1")
    master.step(e.MasterRestarted(2, {}))
    assert requested(master).count(waiting) == 1
    master.tick(after_s=REQUEST_S)
    assert waiting not in requested(master)


def test_a_container_that_ended_after_it_had_registered_is_requested_at_once() -> None:
    master = begun()
    master.register("worker-1")
    master.exit("worker-1", "was ended by SIGKILL")
    assert requested(master) == [master.container_of("worker-1")]


def test_a_recovery_requests_its_newcomer_again_after_a_pause() -> None:
    master = ScriptedMaster(CoreSettings(6, 4, 100), 3, 1)
    master.start()
    master.exit("server-1", "was ended by SIGKILL")
    (first,) = requested(master)
    master.step(e.ContainerExited(first, "exited with code 3"))
    assert not requested(master)
    master.tick(after_s=REQUEST_S)
    assert len(requested(master)) == 1


# ---- with less than was asked for


def smaller(*, after_s: float = START_TIMEOUT_S) -> ScriptedMaster:
    """Return the same job when it has waited in vain for a worker and a server."""
    master = begun()
    for name in ("worker-1", "worker-2", "server-1"):
        master.register(name)
    master.tick(after_s=after_s)
    return master


def test_job_that_has_a_worker_and_a_server_begins_when_nothing_more_is_granted() -> None:
    master = smaller()
    waiting = [master.container_of(name) for name in ("worker-3", "server-2")]

    assert [e.ReleaseContainer(each) for each in waiting] == master.commands(e.ReleaseContainer)
    assert (master.membership.workers, master.membership.servers) == (("worker-1", "worker-2"), ("server-1",))
    master.acknowledge()
    assert master.state.state is JobState.RUNNING and not master.state.recovery.losses
    assert master.state.size.wanted == {Role.WORKER: 3, Role.SERVER: 2}, "its users asked for that"
    assert master.state.size.lent[Borrower.START] == {Role.WORKER: 1, Role.SERVER: 1}


def test_job_that_has_enough_begins_at_once_when_what_it_lacks_is_given_up() -> None:
    master = begun()
    for name in ("worker-1", "worker-2", "worker-3", "server-1"):
        master.register(name)
    master.exit("server-2", "was not granted within 4 s")

    assert (master.membership.workers, master.membership.servers) == (
        ("worker-1", "worker-2", "worker-3"),
        ("server-1",),
    )
    smaller = [c.record for c in master.commands(e.Journal) if c.record["kind"] == "smaller"]
    assert [record["without"] for record in smaller] == [["server-2"]]
    assert not master.commands(e.ReleaseContainer) and len(master.commands(e.RequestContainer)) == 5


def test_what_it_lacks_is_asked_for_one_role_after_the_other() -> None:
    master = smaller()
    master.acknowledge()
    for _ in range(10):
        master.tick()
    idle = master.state.plans.flight.driver
    for _ in Role:
        regain(master)
        carry_on(master)

    assert idle is None
    assert (master.membership.workers[-1], master.membership.servers[-1]) == ("worker-4", "server-3")
    assert not any(master.state.size.lent[Borrower.START].values())
    assert [p.change.operation for p in master.state.plans.all.values()] == [
        Operation.ADD_WORKERS,
        Operation.ADD_SERVERS,
    ]


def test_status_tells_what_was_not_granted_at_the_start_from_what_others_were_to_get() -> None:
    """``given`` counted both, and said of all of it that others were to get that room."""
    master = smaller()
    master.acknowledge()
    warn(master, "worker-2", for_others=True)
    carry_on(master)
    shape = DataShape(5, 2, (4, 4), False, 0, ("", ""))
    runtime = Runtime("job", JobSpec(model="logistic", splits=6), shape, Path("unused"), Path("unused"))
    entry = records.status(runtime, master.state, 0.0, master.now_s)
    told = status_text(entry)

    assert entry["began_without"] == {"worker": 1, "server": 1}
    assert entry["evictions"]["given"] == {"worker": 1, "server": 0}
    assert "; 1 not requested again yet: others need that capacity" in told
    assert "smaller than asked for: 1 worker and 1 server not granted in time at the start" in told


@pytest.mark.parametrize(("runs_on", "shown"), [("local", "7"), ("yarn", "-")])
def test_status_tells_a_process_not_the_number_of_a_container(runs_on: str, shown: str) -> None:
    """YARN tells of no process: until a member has registered, all that is known is a number of its container."""
    master = begun("worker-1")
    master.step(e.ContainerLaunched(master.container_of("worker-1"), 7))
    shape = DataShape(5, 2, (4, 4), False, 0, ("", ""))
    runtime = Runtime("job", JobSpec(model="logistic", splits=6, on=runs_on), shape, Path("unused"), Path("unused"))
    launched = status_text(records.status(runtime, master.state, 0.0, master.now_s))
    master.step(e.MemberRegistered(master.container_of("worker-1"), Address("there", 1), 4711))
    registered = status_text(records.status(runtime, master.state, 0.0, master.now_s))

    assert [line.split()[1] for line in launched.splitlines() if "worker-1 " in line] == [shown]
    assert [line.split()[1] for line in registered.splitlines() if "worker-1 " in line] == ["4711"]


def test_what_comes_is_in_the_place_of_what_has_been_missing_for_longer() -> None:
    master = smaller()
    master.acknowledge()
    warn(master, "worker-2", for_others=True)
    carry_on(master)
    plan = regain(master)
    master.step(e.ContainerGranted(master.container_of(plan.added[0])))
    master.tick(REGAIN_PATIENCE_S)
    carry_on(master)

    assert len(plan.added) == 1 and len(master.membership.workers) == 2
    assert master.state.size.lent[Borrower.START] == {Role.WORKER: 0, Role.SERVER: 1}
    assert master.state.size.lent[Borrower.OTHERS] == {Role.WORKER: 1, Role.SERVER: 0}


def test_while_the_resource_manager_does_not_answer_nothing_is_taken_back() -> None:
    """On an idle cluster whose ResourceManager fails over, all is granted when it is back."""
    master = smaller(after_s=START_TIMEOUT_S - 1)
    master.step(e.Tick(silent_s=START_TIMEOUT_S), START_TIMEOUT_S)
    master.tick(after_s=START_TIMEOUT_S - 1)
    waiting = master.state.membership
    for name in ("worker-3", "server-2"):
        master.register(name)

    assert waiting is None and not master.commands(e.ReleaseContainer)
    assert len(master.membership.members) == 5


def test_every_grant_is_a_reason_to_wait_for_the_next() -> None:
    master = begun()
    for name in ("worker-1", "server-1", "worker-2"):
        master.tick(after_s=START_TIMEOUT_S - 1)
        master.register(name)
    master.tick(after_s=START_TIMEOUT_S - 1)
    waiting = master.state.membership
    master.tick(after_s=1.0)

    assert waiting is None and master.membership.members == ("worker-1", "worker-2", "server-1")


def test_job_that_is_granted_nothing_waits() -> None:
    master = begun()
    master.tick(after_s=1000 * START_TIMEOUT_S)

    assert master.state.membership is None and not master.commands(e.ReleaseContainer)


# ---- what it cannot begin with


def waiting_gang(*granted: str) -> ScriptedMaster:
    """Return a job that has just given back what it had, for it could not begin with it."""
    master = begun(*granted)
    master.tick(after_s=START_TIMEOUT_S - 1)
    assert not master.commands(e.ReleaseContainer)
    master.tick(after_s=1.0)
    return master


@pytest.mark.parametrize(
    "granted", [("worker-1",), ("server-1",), ("worker-1", "server-2"), ("worker-1", "worker-2", "worker-3")]
)
def test_job_that_cannot_begin_with_what_it_has_leaves_it_to_others_and_then_asks_for_the_least(
    granted: tuple[str, ...],
) -> None:
    master = waiting_gang(*granted)
    given_back, words = master.commands(e.ReleaseContainer), master.state.waits_for(master.now_s)
    before = set(master.commands(e.RequestContainer))
    master.tick(after_s=START_TIMEOUT_S * min(GANG_SPREAD) - 1)
    meanwhile = set(master.commands(e.RequestContainer)) - before
    master.tick(after_s=START_TIMEOUT_S * max(GANG_SPREAD))
    least = sorted(master.state.members.by_name)

    assert [each.container_id for each in given_back] == [f"container-000{n}" for n in range(1, 6)]
    assert not meanwhile and "released its containers, which were too few to start with" in words
    assert least == ["server-3", "worker-4", "worker-5"], "half of three workers and two servers, and no name again"
    for name in least:
        master.register(name)
    assert sorted(master.membership.members) == least and not master.state.recovery.losses
    assert master.state.size.lent[Borrower.START] == {Role.WORKER: 1, Role.SERVER: 1}


def test_each_time_it_holds_longer_what_it_cannot_begin_with() -> None:
    """On a busy cluster the second container may come free long after the first."""
    master, held_s = begun("worker-1"), []
    for _ in range(10):
        begun_s = master.now_s
        while master.state.members.by_name:
            master.tick()
        held_s.append(master.now_s - begun_s)
        while not master.state.members.by_name:
            master.tick()
        master.step(e.ContainerGranted(next(iter(master.state.members.by_name.values())).container))

    pauses_s = [min(START_TIMEOUT_S * 2**k, GANG_LONGEST_S) for k in range(10)]
    assert held_s == pytest.approx(pauses_s, abs=2.0), "and not for ever"


def test_process_of_a_container_that_was_given_back_is_told_to_end_and_harms_nothing() -> None:
    master = begun()
    master.register("worker-1")
    old = master.container_of("worker-1")
    master.tick(after_s=2 * START_TIMEOUT_S)
    told = [to for to, order in master.sent(m.Shutdown)]
    late = master.step(e.MemberRegistered(old, master.address_of("x"), 1))
    master.step(e.ContainerExited(old, "was released"))
    master.tick(after_s=START_TIMEOUT_S * max(GANG_SPREAD))

    assert told == ["worker-1"] and late == [e.ReleaseContainer(old)]
    assert (
        old not in [master.container_of(name) for name in master.state.members.by_name]
        and not master.state.recovery.losses
    )
    assert master.step(e.ReportReceived(m.MemberFailed("worker-1", "EpsError", "late"))) == []
    assert master.state.state is JobState.STARTING, "another may fail without harm, for nobody has its name"


@pytest.mark.parametrize(("start_with", "least"), [(0.0, (1, 1)), (0.5, (2, 1)), (0.7, (3, 2)), (1.0, (3, 2))])
def test_job_begins_with_no_less_than_it_may(start_with: float, least: tuple[int, int]) -> None:
    settings = CoreSettings(6, 4, 100, reproducible=False)
    for workers, servers in ((w, s) for w in range(1, 4) for s in range(1, 3)):
        master = ScriptedMaster(settings, 3, 2, start_with=start_with)
        master.request_containers()
        for name in (*(f"worker-{i + 1}" for i in range(workers)), *(f"server-{i + 1}" for i in range(servers))):
            master.register(name)
        master.tick(after_s=START_TIMEOUT_S)
        begins = workers >= least[0] and servers >= least[1]
        assert (master.state.membership is not None) == begins, (workers, servers)


def test_part_with_which_a_job_may_begin_is_rounded_up_as_it_was_written() -> None:
    parts = [(wanted, percent) for wanted in range(1, 201) for percent in range(101)]
    found = {each: least_of(each[0], each[1] / 100) for each in parts}

    assert found == {each: max(1, -(-each[0] * each[1] // 100)) for each in parts}, "28 of 100 of 25 are 7, not 8"
    assert least_of(3, 1 / 3) == 1 and least_of(10**6, 1e-6) == 1 and least_of(3, 0.34) == 2


@pytest.mark.parametrize("fair", [True, False], ids=["fair", "first-come"])
@pytest.mark.parametrize(
    ("jobs", "slots", "workers", "servers"), [(2, 2, 1, 1), (2, 10, 3, 3), (6, 6, 3, 1), (20, 20, 4, 2), (12, 9, 2, 2)]
)
def test_jobs_that_start_together_on_too_few_containers_all_begin_in_the_end(
    jobs: int, slots: int, workers: int, servers: int, *, fair: bool
) -> None:
    for seed in range(3):
        pool = Pool(seed, jobs, slots, workers, servers, fair=fair)
        pool.run()


class Pool:
    """Jobs that start within the same seconds on containers of one size, and run for a minute when they have begun."""

    def __init__(self, seed: int, jobs: int, slots: int, workers: int, servers: int, *, fair: bool) -> None:
        self._random, self._free, self._fair = Random(seed), slots, fair
        settings = CoreSettings(16, 8, 1000, reproducible=False)
        self._jobs = [Job(settings, workers, servers, seed=f"{seed} {n}") for n in range(jobs)]
        self._asked: list[list[str]] = [[] for _ in self._jobs]
        self._have: list[set[str]] = [set() for _ in self._jobs]
        self._begun_s: dict[int, float] = {}
        self._now_s = 0.0
        for number, job in enumerate(self._jobs):
            self._do(number, job.start(0.0))

    def run(self) -> None:
        """Run until all jobs have begun, and fail where they do not within the hour."""
        while len(self._begun_s) < len(self._jobs):
            self._grant()
            self._now_s += 1.0
            assert self._now_s < 3600, f"begun: {sorted(self._begun_s)}; held: {[len(h) for h in self._have]}"
            for number, job in enumerate(self._jobs):
                self._step(number, e.Tick())
                if job.membership is not None:
                    self._begun_s.setdefault(number, self._now_s)
                if self._now_s - self._begun_s.get(number, self._now_s) > 60.0:
                    self._step(number, e.KillRequested("done"))

    def _step(self, number: int, event: e.Event) -> None:
        self._do(number, self._jobs[number].step(event, self._now_s))
        self._jobs[number].validate()

    def _do(self, number: int, commands: list[e.Command]) -> None:
        asked, have = self._asked[number], self._have[number]
        for command in commands:
            match command:
                case e.RequestContainer(container_id):
                    asked.append(container_id)
                case e.ReleaseContainer(container_id) if container_id in asked:
                    asked.remove(container_id)
                case e.ReleaseContainer(container_id) if container_id in have:
                    have.remove(container_id)
                    self._free += 1
                case e.EndJob():
                    self._free += len(have)
                    asked.clear()
                    have.clear()

    def _grant(self) -> None:
        while self._free and any(self._asked):
            waiting = [number for number, asked in enumerate(self._asked) if asked]
            number = min(waiting, key=lambda n: len(self._have[n])) if self._fair else waiting[0]
            container_id = self._asked[number].pop(self._random.randrange(len(self._asked[number])))
            self._free -= 1
            self._have[number].add(container_id)
            self._step(number, e.ContainerGranted(container_id))
            self._step(number, e.MemberRegistered(container_id, Address(f"{number}-{container_id}", 1), 1))


def test_job_whose_size_somebody_manages_waits_for_all() -> None:
    master = ScriptedMaster(CoreSettings(6, 4, 100, reproducible=False), 3, 2, managed=True)
    master.request_containers()
    for name in ("worker-1", "server-1"):
        master.register(name)
    master.tick(after_s=10 * START_TIMEOUT_S)

    assert master.state.membership is None


def test_who_has_a_container_is_waited_for_while_others_are_given_up() -> None:
    master = begun("worker-1", "worker-2", "server-1")
    master.tick(after_s=START_TIMEOUT_S)
    waiting = master.state.membership
    for name in ("worker-1", "worker-2", "server-1"):
        master.register(name)

    assert waiting is None and master.membership.members == ("worker-1", "worker-2", "server-1")


def test_container_that_is_granted_when_it_was_taken_back_is_given_back() -> None:
    master = smaller()
    late = master.container_of("server-2")
    master.step(e.ContainerGranted(late))
    registered = master.step(e.MemberRegistered(late, master.address_of("x"), 1))
    ended = master.step(e.ContainerExited(late, "was withdrawn"))

    assert (registered, ended) == ([e.ReleaseContainer(late)], [])


def test_request_that_is_given_up_for_a_job_that_can_begin_is_no_loss() -> None:
    master = begun()
    for name in ("worker-1", "worker-2", "server-1"):
        master.register(name)
    for name in ("worker-3", "server-2"):
        master.exit(name, "was not granted within 4 s")

    assert master.membership.members == ("worker-1", "worker-2", "server-1") and not master.state.recovery.losses
    assert master.state.size.lent[Borrower.START] == {Role.WORKER: 1, Role.SERVER: 1}


def test_next_master_asks_again_before_it_begins_with_less(tmp_path: Path) -> None:
    master = begun()
    for name in ("worker-1", "worker-2", "server-1"):
        master.register(name)
    log = StateLog(tmp_path / "state")
    log.begin(master.state, master.now_s)
    log.close()
    restored = StateLog(tmp_path / "state").restore()
    assert restored is not None
    running = {master.container_of(name): 1 for name in ("worker-1", "worker-2", "server-1")}
    restored.state.step(e.MasterRestarted(2, running), START_TIMEOUT_S)
    restored.state.step(e.Tick(), START_TIMEOUT_S + 1)
    waiting = restored.state.membership
    restored.state.step(e.Tick(), 2 * START_TIMEOUT_S)

    assert waiting is None
    assert restored.state.membership is not None
    assert restored.state.membership.members == ("worker-1", "worker-2", "server-1")


def test_next_master_waits_as_long_and_asks_again(tmp_path: Path) -> None:
    master = waiting_gang("worker-1")
    log = StateLog(tmp_path / "state")
    log.begin(master.state, master.now_s)
    log.close()
    restored = StateLog(tmp_path / "state").restore()
    assert restored is not None
    at_once = restored.state.step(e.MasterRestarted(2, {}), master.now_s)
    afterwards = restored.state.step(e.Tick(), master.now_s + START_TIMEOUT_S * max(GANG_SPREAD))

    assert not any(isinstance(command, e.RequestContainer) for command in at_once)
    assert sum(isinstance(command, e.RequestContainer) for command in afterwards) == 3
