"""H-scheduler beside a ResourceManager: what it takes from whom, what it says, and what it does not count on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from eps.errors import ConfigError, PeerUnavailableError, PlanError
from hscheduler.cli import main
from hscheduler.cli.commands.yarn_queue import go_round
from hscheduler.live.watched_queues import watching
from hscheduler.live.yarn_queue import LEAVES_WITHIN_S, REST_S, QueueScheduler
from tests.fakes.resourcemanager import FakeResourceManager, resourcemanager
from tests.hscheduler.yarn_web import App, FakeJob, FakeMasters, FakeWeb
from tests.hscheduler.yarn_world import container

TIMEOUT_S = 20.0
AM_LIMIT = "Application is added to the scheduler and is not yet activated. Queue's AM resource limit exceeded. Details"


class Run:
    """A scheduler over a YARN in memory."""

    def __init__(self, web: FakeWeb, *jobs: FakeJob, **options: Any) -> None:
        self.web = web
        self.told: list[str] = []
        self.now_s = 0.0
        masters = cast(Any, FakeMasters(*jobs))
        self.scheduler = QueueScheduler(
            web, ["eps"], masters, 100, lambda text, name: self.told.append(text), now_s=lambda: self.now_s, **options
        )

    def round(self) -> None:
        """Go round once."""
        self.scheduler.round()


def holder(number: int = 1, members: int = 7) -> App:
    """Return a job with its master on n1 and members on n1, then n2: by default all that there is."""
    places = ["n1:1"] * 3 + ["n2:1"] * 4
    return App(number, members={container(number, k + 2): places[k] for k in range(members)})


def waiter(number: int = 2, **changes: Any) -> App:
    """Return a job that waits for its master."""
    return App(number, master="", asks=1, **changes)


@pytest.mark.parametrize(("vcores", "gives"), [(7, True), (1, False)])
def test_nobody_gives_for_cores_where_memory_alone_counts(vcores: int, gives: bool) -> None:
    job, late = FakeJob(holder()), waiter(tags="")
    web = FakeWeb(job.app, late, memory_mb=2048)
    # What the calculator makes of the cores; the kinds of resources are told all the same.
    web.most, web.am_limit = 16, {"memory": 6554, "vCores": vcores}
    run = Run(web, job)
    run.round()
    assert bool(job.asked) == gives, run.told


def test_job_gives_by_name_and_what_yarn_has_not_freed_is_neither_promised_nor_taken_twice() -> None:
    job, late = FakeJob(holder()), waiter(tags="")
    run = Run(FakeWeb(job.app, late), job)
    run.round()
    assert job.asked == [("remove-workers", "worker-6")]
    assert run.web.priorities == [(late.id, 1)]
    assert run.told[0].startswith(f"{late.id} (job-2) waits for its job master")
    assert "job-1) gives 1 worker" in run.told[0]
    # It drains.
    run.round()
    # It has let go, YARN has not heard of it.
    (gone,) = job.drained()
    run.round()
    assert len(job.asked) == 1
    # YARN gives it to somebody else.
    del job.app.members[gone]
    thief = App(3, kind="SPARK", master="n2:1")
    run.web.apps.append(thief)
    run.round()
    assert job.asked[1:] == [("remove-workers", "worker-5")]
    (gone,) = job.drained()
    del job.app.members[gone]
    run.round()
    # There is room, and YARN grants it.
    late.master, late.asks = "n2:1", 0
    run.round()
    late.members = {container(2, 2): "n1:1"}
    run.round()
    assert len(job.asked) == 2
    assert run.web.priorities == [(late.id, 1), (late.id, 0)], "its own priority again, once it has a member"


def test_whole_job_is_made_room_for_and_servers_go_by_name_too() -> None:
    job = FakeJob(holder())
    job.names = {name: f"server-{k}" if k < 3 else f"worker-{k}" for k, name in enumerate(job.names)}
    run = Run(FakeWeb(job.app, waiter()), job)
    run.round()
    assert dict((operation, len(names)) for operation, *names in job.asked) == {
        "remove-workers": 2,
        "remove-servers": 1,
    }


def test_limit_that_is_no_lack_of_room_is_said_and_nobody_shrinks() -> None:
    job = FakeJob(holder())
    run = Run(FakeWeb(job.app, waiter(diagnostics=AM_LIMIT)), job)
    run.round()
    run.round()
    assert not job.asked and not run.web.priorities
    (told,) = run.told
    assert "AM limit" in told and "others shrinking would not help" in told


def test_victim_withdraws_what_it_asks_for_before_it_gives() -> None:
    job = FakeJob(holder())
    job.grow()
    job.app.asks = 1
    run = Run(FakeWeb(job.app, waiter(tags="")), job)
    run.round()
    assert job.asked == [("cancel", 7), ("remove-workers", "worker-6")]


@pytest.mark.parametrize(("phase", "asked_by"), [("copied", "user"), ("proposed", "job")])
def test_change_that_cannot_be_withdrawn_is_waited_for(phase: str, asked_by: str) -> None:
    job = FakeJob(holder())
    job.grow(phase, asked_by)
    run = Run(FakeWeb(job.app, waiter(tags="")), job)
    run.round()
    assert not job.asked


def test_growth_that_got_its_containers_meanwhile_is_not_shrunk_in_the_same_round() -> None:
    job = FakeJob(holder())
    job.grow()
    job.refusal = PlanError("plan 7 is committed at clock 12 and rolls forward")
    run = Run(FakeWeb(job.app, waiter(tags="")), job)
    run.round()
    assert not job.asked
    job.refusal, job.changes = None, []
    run.round()
    assert job.asked == [("remove-workers", "worker-6")]


def test_job_that_refuses_is_left_alone_for_a_while() -> None:
    job = FakeJob(holder())
    job.refusal = PlanError("no")
    run = Run(FakeWeb(job.app, waiter(tags="")), job)
    run.round()
    run.round()
    assert [text for text in run.told if "gives nothing" in text] == [f"{job.app.id} (job-1) gives nothing for now: no"]
    job.refusal = None
    run.round()
    assert not job.asked
    run.now_s += REST_S
    run.round()
    assert job.asked


def test_job_whose_size_is_anothers_to_decide_is_left_alone() -> None:
    job = FakeJob(holder(), manager="H-scheduler")
    run = Run(FakeWeb(job.app, waiter(tags="")), job)
    run.round()
    run.round()
    assert not job.asked
    assert run.told.count(f"{job.app.id} is left alone: only H-scheduler changes its size") == 1


@pytest.mark.parametrize("changes", [{"clock": 99}, {"state": "exporting"}])
def test_job_without_early_feedback_and_one_that_ends_give_nothing(changes: dict[str, Any]) -> None:
    job = FakeJob(holder(), **changes)
    run = Run(FakeWeb(job.app, waiter(tags="")), job)
    run.round()
    assert not job.asked
    assert run.told


def test_job_that_has_only_some_of_its_first_members_is_made_room_for() -> None:
    job = FakeJob(holder(members=5))
    starts = FakeJob(App(2, master="n2:1", members={container(2, 2): "n2:1"}, asks=1), state="starting", clock=0)
    run = Run(FakeWeb(job.app, starts.app), job, starts)
    assert run.web.used() == 8
    run.round()
    assert job.asked == [("remove-workers", "worker-4")]
    starts.state = "running"
    job.asked.clear()
    job.changes.clear()
    run.round()
    assert not job.asked, "whoever has started and asks for more makes nobody shrink"


def test_other_queues_and_other_kinds_of_applications_only_take_room() -> None:
    other = FakeJob(App(1, queue="batch", members=dict(holder().members)))
    spark = App(3, master="", asks=1, kind="SPARK")
    late = waiter(tags="")
    run = Run(FakeWeb(other.app, spark, late), other)
    run.round()
    assert not other.asked
    (told,) = run.told
    assert told.startswith(late.id)


def test_picture_of_several_moments_is_taken_again_and_never_acted_upon() -> None:
    job, late = FakeJob(holder()), waiter(tags="")
    run = Run(FakeWeb(job.app, late), job)

    def changes() -> None:
        late.asks += 1

    run.web.before["nodes"] = changes
    run.round()
    assert not job.asked
    assert late.asks == 4, "it was tried three times"
    run.web.before["nodes"] = lambda: run.web.before.clear() or changes()
    run.round()
    assert job.asked


def test_container_in_which_nobody_is_for_long_is_not_counted_on() -> None:
    job = FakeJob(holder())
    del job.names[container(1, 8)]
    run = Run(FakeWeb(job.app, waiter(tags="")), job)
    run.round()
    run.now_s += LEAVES_WITHIN_S - 1
    run.round()
    assert not job.asked
    run.now_s += 1
    run.round()
    assert job.asked


def test_where_applications_have_no_priorities_that_is_said_once() -> None:
    job = FakeJob(holder())
    web = FakeWeb(job.app, waiter(tags=""))
    web.most_priority = 0
    run = Run(web, job)
    run.round()
    assert job.asked and not web.priorities
    assert sum("max-application-priority is 0" in text for text in run.told) == 1


def test_priority_goes_above_every_other_application_of_the_queue() -> None:
    job, late = FakeJob(holder(members=6)), waiter(tags="")
    run = Run(FakeWeb(job.app, late, App(3, kind="SPARK", master="n2:1", priority=4)), job)
    run.round()
    assert run.web.priorities == [(late.id, 5)]
    run.scheduler.close()
    assert run.web.priorities[1:] == [(late.id, 0)]


def test_who_only_looks_changes_nothing() -> None:
    job = FakeJob(holder())
    run = Run(FakeWeb(job.app, waiter(tags="")), job, acts=False)
    run.round()
    assert not job.asked and not run.web.priorities
    assert "gives 1 worker" in run.told[0]


def test_queue_that_there_is_not_is_told_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"queue is 'nope', but YARN has root\.eps"):
        QueueScheduler(FakeWeb(), ["nope"], cast(Any, FakeMasters()), 100, lambda text, name: None)


@pytest.fixture
def over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeResourceManager]:
    """Give the same YARN over real HTTP, with a configuration that names it and no file system."""
    pytest.importorskip("requests")
    web = FakeWeb(holder(), waiter(tags=""))
    with resourcemanager() as rm:
        for path in ("apps", "nodes", "scheduler", "scheduler-overview"):
            rm.answers[f"GET {path}"] = 200, web.look(path, "", {"states": "ACCEPTED,RUNNING"})
        attempt = "appattempt_1700000000000_0001_000001"
        path = f"apps/{web.apps[0].id}/appattempts/{attempt}/containers"
        rm.answers[f"GET {path}"] = 200, web.look(path, "")
        name, address = "yarn.resourcemanager.webapp.address", rm.url.removeprefix("http://")
        site = f"<configuration><property><name>{name}</name><value>{address}</value></property></configuration>"
        (tmp_path / "yarn-site.xml").write_text(site)
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
        yield rm


def test_dry_run_says_why_as_json(over_http: FakeResourceManager, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["yarn-queue", "eps", "--dry-run", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [set(line) for line in told] == [{"time_s", "application", "sentence"}] * 2
    assert "(job-1) is left alone: 'hdfs:///user/ada/.eps' names no NameNode" in told[0]["sentence"]
    assert told[1]["application"] == waiter().id
    assert "nobody knows how job-1 is" in told[1]["sentence"]
    assert {method for method, *_ in over_http.asked} == {"GET"}


def test_dry_run_where_nobody_waits_says_so(over_http: FakeResourceManager, capsys: pytest.CaptureFixture[str]) -> None:
    over_http.answers["GET apps"] = 200, {"apps": {}}
    assert main(["yarn-queue", "eps", "--dry-run"]) == 0
    assert capsys.readouterr() == ("", "nobody waits in eps\n")
    assert main(["yarn-queue", "eps", "--dry-run", "--json"]) == 0
    told = capsys.readouterr()
    assert (json.loads(told.out)["sentence"], told.err) == ("nobody waits in eps", "")
    assert main(["yarn-queue", "eps", "--dry-run", "--staging", "/foo"]) == 2
    assert "staging: '/foo' is no location on HDFS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--every", "0"], "every is 0 s, but must be between 0.1 and 3600"),
        (["--give-back", "-1"], "give_back is -1 s, but must be between 0 (never) and 86400"),
        (["--give-back", "nan"], "give_back is nan s, but must be between 0 (never) and 86400"),
        (["nope", "--dry-run"], "queue is 'nope', but YARN has root.eps"),
    ],
)
def test_what_cannot_work_is_refused(
    over_http: FakeResourceManager, capsys: pytest.CaptureFixture[str], words: list[str], error: str
) -> None:
    assert main(["yarn-queue", *words]) == 2
    assert capsys.readouterr().err == f"hscheduler: {error}\n"


def test_second_process_in_a_queue_is_refused_and_told_of_the_first(
    over_http: FakeResourceManager, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = f"process {os.getpid()} on {socket.gethostname()} makes room in it already (hscheduler yarn-queue)"
    with watching([over_http.url.upper()], ["eps", "other"]):
        # By its path, too, and beside one that is free.
        for words, named in ((["eps"], "eps"), (["free", "root.eps"], "root.eps")):
            assert main(["yarn-queue", *words]) == 2
            assert capsys.readouterr() == ("", f"hscheduler: queue is {named!r}, but {mine}: end that first\n")
        assert main(["yarn-queue", "eps", "--dry-run"]) == 0, "who only looks disturbs nobody"
        # Another queue, the one that was let go of, and another cluster.
        with watching([over_http.url], ["free"]), watching(["http://n1:8088"], ["eps"]):
            pass
    for lock in (tmp_path / "home" / "yarn-queues").iterdir():
        lock.write_text("")
    with watching([over_http.url], ["eps"]):
        pass


def test_queue_is_free_as_soon_as_the_process_in_it_is_killed(
    over_http: FakeResourceManager, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys; from hscheduler.cli import main; sys.exit(main(['yarn-queue', 'eps', '--every', '60']))"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as first:
        try:
            assert first.stderr is not None and b"makes room in eps" in first.stderr.readline()
            assert main(["yarn-queue", "eps"]) == 2
            assert f"but process {first.pid} on " in capsys.readouterr().err
        finally:
            first.kill()
    with watching([over_http.url], ["eps"]):
        pass


def test_resourcemanager_that_is_away_is_waited_for_and_said_once() -> None:
    web, told, stop = FakeWeb(), [], threading.Event()
    made = QueueScheduler(web, ["eps"], cast(Any, FakeMasters()), 100, lambda text, name: told.append(text))
    tries: list[int] = []

    def make() -> QueueScheduler:
        tries.append(len(tries))
        if len(tries) < 3:
            raise PeerUnavailableError("no ResourceManager can be reached")
        return made

    def tell(text: str, name: str) -> None:
        told.append(text)
        if "again" in text:
            stop.set()

    watched = threading.Thread(target=go_round, args=(make, 0.001, stop, tell), daemon=True)
    watched.start()
    watched.join(TIMEOUT_S)
    assert not watched.is_alive()
    assert told == ["no ResourceManager can be reached; it is waited for", "the ResourceManager answers again"]
    assert len(tries) == 3
