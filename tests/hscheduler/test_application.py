"""A sweep as one application: its uploads, what it keeps for the next attempt, and its broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hscheduler
from eps.cli import main as eps
from eps.cluster.yarn.application import ENDED_FILE, RESULTS, Application
from eps.cluster.yarn.types import Resource
from eps.core.types import Address
from eps.errors import ConfigError, JobNotFoundError, PeerUnavailableError, StorageError
from eps.job.yarn.shared_application import JOBS
from eps.job.yarn.sweeps import REPORTS, report_file
from eps.storage.jobdir import JobDir
from eps.storage.local import LocalStorage
from eps.storage.locations import RemotePath
from hscheduler.application.am import REPORT_S, Environment, Grants, attempt_of, outcome_of, page_of
from hscheduler.application.am import Application as AppMaster
from hscheduler.application.monitor import Monitor, fetch_job
from hscheduler.application.staged_files import (
    SERVICE_FILE,
    SERVICE_FOLDER,
    ServiceOrders,
    stage,
)
from hscheduler.application.submit import (
    BASE_MB,
    JOB_MB,
    master_resource,
    most_at_once,
    settings_of,
    trials_at_once,
)
from hscheduler.cli import main
from hscheduler.core import events as e
from hscheduler.core.jobs import JobRequest, Phase
from hscheduler.core.resources import Resources
from hscheduler.core.rungs import Stopping
from hscheduler.core.state import Scheduler
from hscheduler.live.sweep import SWEEP
from hscheduler.policies import POLICIES
from hscheduler.reports.metrics import metrics_text
from hscheduler.reports.view import Look
from hscheduler.service.directory import ServiceDir
from hscheduler.simulator.run import simulate
from hscheduler.spec import ClusterSpec, Spec
from hscheduler.stopping import RULES
from tests.fakes.storage import put
from tests.fakes.webhdfs import FakeHdfs
from tests.fakes.yarn_client import ID, FakeYarnClient, Word

pytest.importorskip("requests")
DEADLINE_S = 30.0
FILE = """
[cluster]
container_memory = "512MiB"
[sweep]
trials = 3
[space]
learning_rate = { choice = [0.1, 0.2, 0.3] }
[job]
data = "sklearn:digits"
model = "softmax"
workers = 1
servers = 1
"""


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[RemotePath]:
    """Return a folder of the cluster's file system."""
    monkeypatch.setenv("EPS_HDFS_PATIENCE_S", "20")
    with FakeHdfs() as fake:
        yield RemotePath("webhdfs", fake.authority, "/cache")


# ---- uploads


def test_local_files_are_uploaded_once_and_named_by_their_place_on_the_cluster(
    cache: RemotePath, tmp_path: Path
) -> None:
    for name in ("train", "other", "labels"):
        (tmp_path / name).write_text(f"content of {name}")
    (tmp_path / "mine.py").write_text("code")
    tables: dict[str, Any] = {
        "job": {
            "data": f"{tmp_path}/train,{tmp_path}/other",
            "labels": f"{tmp_path}/labels",
            "test": "0.2",
            "workers": 3,
        },
        "space": {
            "model": {"choice": ["softmax", f"{tmp_path}/mine.py:Mine"]},
            "l2": {"uniform": [0, 1]},
        },
    }
    found, models = stage(tables, cache)
    first, second = found["job"]["data"].split(",")
    assert first.startswith(str(cache)) and first.endswith("/train") and second.endswith("/other")
    assert RemotePath.parse(first).read_bytes() == b"content of train"
    assert RemotePath.parse(found["job"]["labels"]).read_bytes() == b"content of labels"
    assert found["job"]["test"] == "0.2" and found["job"]["workers"] == 3
    assert "checkpoint_every" not in found["job"], "the scheduler knows the rungs at which trials take one"
    assert found["space"]["model"] == {"choice": ["softmax", f"{SERVICE_FOLDER}/models/0/mine.py:Mine"]}
    assert models == {"models/0/mine.py": tmp_path / "mine.py"} and found["space"]["l2"] == {"uniform": [0, 1]}
    before = RemotePath.parse(first).status()
    again, _ = stage(tables, cache)
    assert again == found and RemotePath.parse(first).status() == before
    (tmp_path / "train").write_text("other content")
    assert stage(tables, cache)[0]["job"]["data"] != found["job"]["data"]


@pytest.mark.parametrize(
    ("name", "beside"),
    [("a-images-idx3-ubyte", "a-labels-idx1-ubyte"), ("docword.kos.txt", "vocab.kos.txt"), ("a.ldac", "vocab.txt")],
)
def test_files_read_with_another_are_uploaded_too_and_other_settings_stay(
    cache: RemotePath, tmp_path: Path, name: str, beside: str
) -> None:
    (tmp_path / name).write_bytes(b"data")
    (tmp_path / beside).write_bytes(b"beside")
    tables: dict[str, Any] = {"job": {"data": f"{tmp_path}/{name}"}, "space": {}}
    found, _ = stage(tables, cache)
    assert (RemotePath.parse(found["job"]["data"]).parent / beside).read_bytes() == b"beside"
    for data in ("sklearn:digits", "hdfs://n:1/x", str(tmp_path / "none")):
        assert stage({"job": {"data": data}, "space": {}}, cache)[0]["job"]["data"] == data


@pytest.mark.parametrize("has_sweep", [True, False])
def test_service_orders_survive_a_round_trip(tmp_path: Path, has_sweep: bool) -> None:
    spec = Spec.of({"job": {"data": "sklearn:digits"}})
    tables = json.loads(json.dumps(spec.tables())) if has_sweep else None
    orders = ServiceOrders(settings_of(spec, "static"), tables, 90.0)
    (tmp_path / "orders.json").write_bytes(orders.to_bytes())
    assert ServiceOrders.read(tmp_path) == orders
    with pytest.raises(ConfigError, match=r"orders\.json is not valid"):
        ServiceOrders.read(tmp_path / "none")


def test_the_masters_container_has_room_for_the_masters_of_all_jobs() -> None:
    cluster = ClusterSpec(nodes=3, vcores=4, memory="4096MiB", container_memory="512MiB")
    assert most_at_once(cluster) == 12, "each of them shrinks to one container"
    assert most_at_once(replace(cluster, master_container=True)) == 6
    assert [trials_at_once(Spec.of({"cluster": vars(cluster), "sweep": sweep, "job": {"data": "sklearn:iris"}}))
            for sweep in ({"trials": 9}, {"trials": 3}, {"trials": 9, "parallelism": 2})] == [9, 3, 2]  # fmt: skip
    assert master_resource(cluster, 4) == Resource(BASE_MB + 4 * JOB_MB, 1)
    small = ClusterSpec(nodes=3, vcores=4, memory="800MiB", container_memory="512MiB")
    assert master_resource(small, 4).memory_mb == 800, "no node has more"
    large = ClusterSpec(nodes=3, vcores=4, container_memory="4GiB", container_vcores=2)
    assert master_resource(large, 4) == Resource(4096, 2), "the scheduler's container of a job master"


def test_an_attempt_is_identified_by_its_container() -> None:
    assert attempt_of("container_1700_0001_02_000001") == "attempt-1700-0001-000002"
    assert attempt_of("container_e17_1700_0001_11_000001") == "attempt-1700-0001-000011"
    assert attempt_of("container_1700_0002_02_000001") != attempt_of("container_1700_0001_02_000001"), "resumed"
    with pytest.raises(ConfigError, match="must be the id of a YARN container"):
        attempt_of("")


def test_the_service_is_that_of_the_sweep_alone() -> None:
    spec = Spec.of({"cluster": {"container_memory": "512MiB"}, "sweep": {"seed": 7}, "job": {"data": "sklearn:iris"}})
    found = settings_of(spec, "kill")
    live = found.live(None)
    assert (live.policy, live.seed, live.restart_s) == ("kill", 7, 0.0)
    assert live.job_settings["on"] == "yarn" and found.cluster(None).capacities() == spec.cluster.capacities()


def test_an_application_without_a_trial_that_finished_has_failed() -> None:
    assert outcome_of({"best": None, "trials": []}) == (1, "failed", "no trial finished")
    report = {"best": {"job_id": "two"}, "trials": [{"job_id": "one"}, {"job_id": "two"}], "completed": 1}
    assert outcome_of(report) == (0, "finished", "1 of 2 trials finished")


# ---- containers


class FakeBroker:
    def __init__(self) -> None:
        self.leases: list[dict[str, int]] = []

    def lease(self, leases: Any) -> None:
        self.leases.append(dict(leases))


class FakePlace:
    def __init__(self, fails: str = "") -> None:
        self.told: list[Any] = []
        self.fails = fails

    def end(self, job: str) -> None:
        self.told.append(("end", job))

    def upload_results(self, job: JobDir, logs: bool) -> None:
        self._tell("leave", job.name, logs)

    def forget(self, job: JobDir) -> None:
        self._tell("forget", job.name)

    def _tell(self, what: str, *about: Any) -> None:
        self.told.append((what, *about))
        if what == self.fails:
            raise StorageError("no room")


@pytest.mark.parametrize("phase", [Phase.FINISHED, Phase.KILLED])
def test_the_broker_leases_a_job_what_the_scheduler_granted_it(phase: Phase) -> None:
    broker: Any = FakeBroker()
    grants = Grants(broker)
    size = Resources(1, 512)
    state = Scheduler({"n": Resources(12, 8192)}, POLICIES["static"], RULES)
    request = JobRequest("a", "s", 3, 1, size, size, size, 6, 4, iterations=10)

    def step(event: e.Event) -> list[e.Command]:
        commands = state.step(event)
        grants.take(0.0, event, commands, state)
        return commands

    step(e.SweepOpened("s"))
    assert broker.leases == [], "before it has begun"
    grants.begin(lambda job_id: f"job-{job_id}", state)
    (start,) = [each for each in step(e.JobSubmitted(request)) if isinstance(each, e.StartJob)]
    assert broker.leases[-1] == {"job-a": 4}, "three workers and a server; its master is in no container of its own"
    members = tuple((c.container_id, f"{c.role}-{n}") for n, c in enumerate(start.containers))
    step(e.MembersFound("a", members))
    assert grants.changed == {"s"}, "it is in the report from its arrival on"
    assert grants.ended == set()
    grants.changed.clear()
    step(e.JobEnded("a", phase, "why"))
    assert broker.leases[-1] == {} and grants.changed == {"s"}
    assert grants.ended == {"job-a"}


def test_a_job_that_is_killed_while_it_is_paused_has_ended_for_good() -> None:
    broker: Any = FakeBroker()
    grants, size = Grants(broker), Resources(1, 512)
    state = Scheduler({"n": Resources(12, 8192)}, POLICIES["static"], RULES)
    grants.begin(lambda job_id: f"job-{job_id}", state)

    def step(event: e.Event) -> None:
        grants.take(0.0, event, state.step(event), state)

    step(e.SweepOpened("s", stopping=Stopping("sha", 2, 5), trials=2))
    for name in "ab":
        step(e.JobSubmitted(JobRequest(name, "s", 1, 1, size, size, size, 1, 1, iterations=10)))
        step(e.JobStarted(name))
    step(e.RungReached("a", 5, 0.5))
    step(e.JobEnded("a", Phase.KILLED))
    assert grants.ended == set()
    step(e.RungReached("b", 5, 0.25))
    assert grants.ended == {"job-a"}


@pytest.mark.parametrize("phase", [Phase.FINISHED, Phase.FAILED, Phase.KILLED])
@pytest.mark.parametrize("fails", ["", "leave"])
def test_before_its_end_is_reported_a_job_releases_its_containers_and_uploads_its_results(
    tmp_path: Path, phase: Phase, fails: str
) -> None:
    broker: Any = FakeBroker()
    place: Any = FakePlace(fails)
    nothing: Any = None
    application = application_of(broker, place, LocalStorage(tmp_path), nothing)
    expected: list[Any] = [("end", "job-a"), ("leave", "job-a", phase is Phase.FAILED)]
    if fails == "leave":
        with pytest.raises(StorageError):
            application.before_end("job-a", phase)
    else:
        application.before_end("job-a", phase)
    assert place.told == expected


def application_of(broker: Any, place: Any, shared: Any, resources: Any) -> AppMaster:
    around = Environment("127.0.0.1", Path("folder"), shared, list, None, "attempt-000001")
    orders: Any = None
    return AppMaster(orders, resources, broker, place, around)


@pytest.mark.parametrize("fails", ["", "forget"])
def test_staged_files_of_ended_jobs_are_removed_once_the_record_has_their_end(tmp_path: Path, fails: str) -> None:
    broker: Any = FakeBroker()
    place: Any = FakePlace(fails)
    found = application_of(broker, place, LocalStorage(tmp_path), None)
    found._remove_ended()
    assert place.told == []
    found.before_end("job-a", Phase.KILLED)
    place.told.clear()
    found._remove_ended()
    assert place.told == [], "it may start again"
    found._grants.ended.add("job-a")
    found._remove_ended()
    found._remove_ended()
    assert place.told == [("forget", "job-a")]


def test_a_job_whose_results_cannot_be_uploaded_keeps_its_checkpoints(tmp_path: Path) -> None:
    broker: Any = FakeBroker()
    place: Any = FakePlace("leave")
    found = application_of(broker, place, LocalStorage(tmp_path), None)
    with pytest.raises(StorageError):
        found.before_end("job-a", Phase.FINISHED)
    place.told.clear()
    found._grants.ended.add("job-a")
    found._remove_ended()
    assert place.told == []


def test_changed_reports_are_uploaded_after_a_while_and_retried_on_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("hscheduler.application.am.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    broker: Any = FakeBroker()
    place: Any = FakePlace()
    asked: list[str] = []
    job = SimpleNamespace(is_over=False)
    service: Any = SimpleNamespace(
        scheduler=SimpleNamespace(look_ups=SimpleNamespace(current=lambda sweep: [job])),
        sweeps=SimpleNamespace(report=lambda sweep: asked.append(sweep) or {"n": len(asked)}),
    )
    shared = LocalStorage(tmp_path / "shared")
    found = application_of(broker, place, shared, None)
    found._store_reports(service)
    assert asked == []
    found._grants.changed.add("s")
    found._store_reports(service)
    assert json.loads((tmp_path / "shared" / report_file("s")).read_text()) == {"n": 1}
    found._grants.changed.add("s")
    found._store_reports(service)
    assert asked == ["s"], "not after each end"
    job.is_over = True
    with monkeypatch.context() as patched:
        patched.setattr(shared, "write", no_room)
        found._store_reports(service)
    assert asked == ["s"] * 2, "at once if no job runs any more: the user may end the application now"
    found._store_reports(service)
    assert asked == ["s"] * 2 and found._grants.changed == {"s"}, "a read-only file system is retried"
    now_s[0] += REPORT_S
    found._store_reports(service)
    assert json.loads((tmp_path / "shared" / report_file("s")).read_text()) == {"n": 3}
    assert found._grants.changed == set()


def no_room(path: str) -> None:
    raise StorageError("no room")


# ---- followers


def saying(*words: Word) -> FakeYarnClient:
    """Return a YARN that says this of its application, one after the other."""
    yarn = FakeYarnClient()
    yarn.lists(ID)
    yarn.said = list(words)
    return yarn


def put_report(folder: Path, content: str, encoding: str = "utf-8") -> None:
    (folder / "shared" / REPORTS).mkdir()
    (folder / "shared" / report_file(SWEEP)).write_text(content, encoding=encoding)


def following(client: Any, tmp_path: Path, told: list[str]) -> Monitor:
    directory = ServiceDir(tmp_path / "service")
    (tmp_path / "shared").mkdir(exist_ok=True)
    application = Application("application_1_0001", str(tmp_path / "shared"), "conf")
    return Monitor(application, client, directory, LocalStorage(tmp_path / "shared"), told.append)


def test_waiting_is_reported_once_and_results_are_the_masters_own(tmp_path: Path) -> None:
    told: list[str] = []
    waits = {"state": "ACCEPTED", "diagnostics": "waiting for\nAM container"}
    ended_there = {"state": "FINISHED", "final_status": "FAILED", "diagnostics": "x"}
    client = saying(waits, PeerUnavailableError("the ResourceManager is away"), waits, ended_there)
    found = following(client, tmp_path, told)
    put_report(tmp_path, '{"trials": [1]}')
    (tmp_path / "shared" / ENDED_FILE).write_text('{"state": "failed", "exit_code": 1, "reason": "no trial finished"}')
    ended = found.run()
    assert (ended.state, ended.reason, ended.reports) == ("failed", "no trial finished", {SWEEP: {"trials": [1]}})
    line = "application_1_0001 is ACCEPTED: waiting for AM container"
    assert told == [line, "the ResourceManager is away", line]


@pytest.mark.parametrize("content", ["", "[]", '{"state": "failed"}'])
def test_an_unreadable_outcome_is_reported_with_its_file(tmp_path: Path, content: str) -> None:
    found = following(saying("FINISHED"), tmp_path, [])
    (tmp_path / "shared" / ENDED_FILE).write_text(content)
    with pytest.raises(StorageError, match=f"{ENDED_FILE} does not say"):
        found.run()


@pytest.mark.parametrize("content", ["", "[]", '{"trials": [', "\xff"])
def test_an_unreadable_report_is_reported_with_its_file(tmp_path: Path, content: str) -> None:
    found = following(saying("FINISHED"), tmp_path, [])
    put_report(tmp_path, content, encoding="latin-1")
    with pytest.raises(StorageError, match=f"{report_file(SWEEP)}: not "):
        found.run()


@pytest.mark.parametrize("content", ["", "[]", '{"host": "n1"}', '{"host": "n1", "port": null}', "\xff"])
def test_an_unreadable_address_is_read_again(tmp_path: Path, content: str) -> None:
    told: list[str] = []
    found = following(saying("RUNNING", "FINISHED"), tmp_path, told)
    (tmp_path / "shared" / SERVICE_FILE).write_text(content, encoding="latin-1")
    assert found.run().state == "finished" and not told


UNKNOWN = JobNotFoundError("application_1_0001 is not known")
FOLLOWED = AssertionError("it is followed for ever")


@pytest.mark.parametrize("is_over", [False, True])
def test_a_sweep_that_yarn_forgot_ends_by_its_own_outcome_or_may_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    monkeypatch.setattr("eps.job.yarn.remote.FORGOTTEN_S", 0.1)
    found = following(saying(UNKNOWN, UNKNOWN, UNKNOWN, FOLLOWED), tmp_path, [])
    put_report(tmp_path, '{"trials": [1]}')
    if is_over:
        (tmp_path / "shared" / ENDED_FILE).write_text('{"state": "finished", "exit_code": 0, "reason": "all"}')
    ended = found.run()
    assert ended.reports == {SWEEP: {"trials": [1]}} and ended.is_over == is_over
    lost = "YARN no longer knows the application: its ResourceManager has lost its state"
    assert (ended.state, ended.reason) == (("finished", "all") if is_over else ("failed", lost))


def test_a_yarn_that_does_not_know_a_sweep_for_a_moment_is_polled_again(tmp_path: Path) -> None:
    client = saying(UNKNOWN, PeerUnavailableError("away"), UNKNOWN, "FINISHED")
    ended = following(client, tmp_path, []).run()
    assert (ended.state, ended.is_over) == ("finished", True)


def test_yarns_kill_keeps_the_results_so_far(tmp_path: Path) -> None:
    found = following(saying({"state": "KILLED", "diagnostics": "Application killed by user."}), tmp_path, [])
    trials = [{"job_id": f"t{n}", "phase": phase, "why": "", "attempts": [{"job_id": f"t{n}", "phase": phase}]}
              for n, phase in enumerate(("finished", "training", "queued", "failed"))]  # fmt: skip
    put_report(tmp_path, json.dumps({"trials": trials, "phases": {}}))
    ended = found.run()
    assert ended.state == "killed" and "killed by user" in ended.reason
    left = ended.reports[SWEEP]
    assert [trial["phase"] for trial in left["trials"]] == ["finished", "killed", "killed", "failed"]
    assert [trial["attempts"][0]["phase"] for trial in left["trials"]] == ["finished", "killed", "killed", "failed"]
    assert [trial["why"] for trial in left["trials"]] == ["", ended.reason, ended.reason, ""]
    assert left["phases"] == {"finished": 1, "killed": 2, "failed": 1}


def test_ending_a_sweep_kills_its_application(tmp_path: Path) -> None:
    client = saying()
    ended = following(client, tmp_path, []).end("interrupted")
    assert (ended.state, ended.reports, ended.is_over) == ("killed", {}, True)
    assert client.reports[ID].diagnostics == "interrupted"


class AnsweringService:
    """A service with a running job and a sweep whose jobs are all over."""

    def __init__(self, directory: ServiceDir, give_up_s: float) -> None:
        pass

    def __enter__(self) -> AnsweringService:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def unfinished_jobs(self) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
        return [{"sweep": "jobs"}], {}, 1

    def report(self, sweep: str) -> tuple[dict[str, Any], bool]:
        assert sweep == "jobs", "the other one is on the cluster"
        phases = {"a": "training", "b": "finished"}
        return {"trials": [{"job_id": job, "phase": phase, "attempts": []} for job, phase in phases.items()]}, False


def test_ending_a_sweep_returns_its_services_last_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hscheduler.application.monitor.SchedulerClient", AnsweringService)
    found = following(saying("KILLED"), tmp_path, [])
    found.place = Address("n1", 7)
    put_report(tmp_path, '{"trials": [], "phases": {}}')
    trials = found.end("H-scheduler ends").reports["jobs"]["trials"]
    assert [(each["phase"], each.get("why")) for each in trials] == [("killed", "H-scheduler ends"), ("finished", None)]


def test_results_of_a_job_are_downloaded_to_a_directory_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    shared = LocalStorage(tmp_path / "shared")
    # A crash of the application's master left a partial model.
    for name in ("report.json", "master.log", ".model.npz.0a1b2c3d4e5f.tmp", ".master.log.0a1b2c3d4e5f.tmp"):
        put(shared, f"{JOBS}/job-a/{RESULTS}/{name}", name.encode())
    found = fetch_job(shared, "job-a")
    assert found is not None
    assert sorted(path.name for path in found.rglob("*") if path.is_file()) == [
        "job.json",
        "lock",
        "master.log",
        "report.json",
    ]
    assert (found / "report.json").read_text() == "report.json"
    assert (found / "logs" / "master.log").read_text() == "master.log"
    assert fetch_job(shared, "job-b") is None


def test_a_trial_that_was_fetched_shows_the_iterations_of_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    shared = LocalStorage(tmp_path / "shared")
    report = {"state": "finished", "clock": 400, "settings": {"iterations": 400}}
    for name, content in (("job-a/report.json", json.dumps(report)), ("job-b/master.log", "was lost")):
        job, _, file_name = name.partition("/")
        with shared.write(f"{JOBS}/{job}/{RESULTS}/{file_name}") as file:
            file.write(content.encode())
        assert fetch_job(shared, job) is not None
    assert eps(["list"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert "400/400" in rows["job-a"] and not any("/" in word for word in rows["job-b"]), rows
    assert eps(["status", "job-a"]) == 0
    assert "clock 400 of 400" in capsys.readouterr().out
    assert eps(["status", "job-b"]) == 0
    assert "  clock 0\n" in capsys.readouterr().out, "their number is unknown"


def test_its_page_requests_only_its_own_figures() -> None:
    requests = pytest.importorskip("requests")
    simulated = simulate(Spec.of({"sweep": {"trials": 2}}), "static")
    service: Any = SimpleNamespace(
        scheduler=SimpleNamespace(settings=SimpleNamespace(policy="static")),
        sweeps=SimpleNamespace(report={SWEEP: simulated}.__getitem__),
        metrics=lambda: metrics_text(Look()),
    )
    page = page_of(service, SWEEP, "127.0.0.1", None)
    try:
        assert "trial-2" in requests.get(page.url, timeout=DEADLINE_S).text
        found = requests.get(page.url + "page.json", timeout=DEADLINE_S).json()
        assert found["live"] and [each["policy"] for each in found["reports"]] == ["static"]
        # YARN's proxy passes no POST.
        assert requests.post(page.url + "stop?sweep=", timeout=DEADLINE_S).status_code == 501
        assert "# TYPE" in requests.get(page.url + "metrics", timeout=DEADLINE_S).text
    finally:
        page.close()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--web", "0"], "web is not possible on YARN, which shows the sweep's page"),
        (["--detach"], "detach is only for sweeps in a service; on YARN each sweep is a separate application"),
        (["--policy", "elastic,kill"], "but must be a single policy"),
        ([], "HADOOP_CONF_DIR is not set"),
    ],
)
@pytest.mark.parametrize("by_file", [False, True])
def test_settings_that_a_sweep_on_yarn_cannot_have_are_refused(
    flags: list[str], reason: str, by_file: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    (tmp_path / "sweep.toml").write_text(FILE + ('on = "yarn"\n' if by_file else ""))
    on = [] if by_file else ["--on", "yarn"]
    assert main(["sweep", str(tmp_path / "sweep.toml"), *on, *flags]) == 2
    assert reason in capsys.readouterr().err


def test_a_sweep_on_yarn_from_python_has_its_scheduler_on_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    tables = {"sweep": {"trials": 1}, "job": {"data": "sklearn:digits", "on": "yarn"}}
    with pytest.raises(ConfigError, match="on_event"):
        hscheduler.sweep(tables, on_event=lambda now_s, event, commands: None)
    with pytest.raises(ConfigError, match="HADOOP_CONF_DIR"):
        hscheduler.sweep(tables)
