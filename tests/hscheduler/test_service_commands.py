"""Answers to clients of a service: that none runs, the state of a job and its reason, and the next command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eps.cluster.yarn.application import Application
from eps.errors import ConfigError, PeerUnavailableError
from eps.spec.job_spec import JobSpec
from eps.storage.jobdir import JobDir
from hscheduler import cli
from hscheduler.cli.commands.remote import state_text
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, Phase
from hscheduler.core.timeline import DecisionRecord
from hscheduler.live import scheduler as live
from hscheduler.policies.elastic import elastic
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from hscheduler.service.main import Service, ServiceSettings
from tests.hscheduler.toy import Toy, request
from tests.hscheduler.world import FakeLive, World

TIMEOUT_S = 20.0


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """Return a service whose jobs are records in memory."""
    world = World(0)

    def fake(job_id: str, launch: Any, metric: str, iteration: int, say: Any, *rest: Any) -> Any:
        return FakeLive(world, job_id, say)

    monkeypatch.setattr(live, "LiveJob", fake)
    with Service(ServiceDir(tmp_path / "service"), ServiceSettings(nodes=2, host="127.0.0.1")) as found:
        yield found


@pytest.fixture
def client(service: Service, tmp_path: Path) -> Iterator[SchedulerClient]:
    # A path names the service's directory.
    with SchedulerClient(tmp_path / "service") as found:
        yield found


@pytest.fixture
def gone(tmp_path: Path) -> ServiceDir:
    """Return the directory of a service that was killed."""
    directory = ServiceDir(tmp_path / "it was here")
    directory.lock().close()
    directory.write_address(directory.security(between_hosts=False).new_socket(), 1)
    return directory


@pytest.mark.parametrize("command", [["jobs"], ["why", "a"], ["kill", "a"]])
def test_a_missing_service_is_reported_at_once(
    gone: ServiceDir, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, "--state", str(gone.path)]) == 4
    told = f"no H-scheduler runs in {gone.path}: start it with hscheduler serve --state '{gone.path}'\n"
    assert capsys.readouterr().err.endswith(told)


def test_a_client_waits_for_a_service_that_runs_or_ran_a_moment_ago(gone: ServiceDir) -> None:
    with SchedulerClient(gone, give_up_s=0.3) as client:
        with gone.lock(), pytest.raises(PeerUnavailableError, match=r"for 0\.3 s"):
            client.jobs()
        client._connection._has_answered = True
        with pytest.raises(PeerUnavailableError, match=r"for 0\.3 s"):
            client.jobs()


def test_why_lists_the_decisions_about_a_job(
    service: Service, client: SchedulerClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.submit_job("a", JobSpec(workers=1, servers=1))
    before = DecisionRecord(0.0, "of a time that is forgotten", ("a",))
    other = DecisionRecord(0.0, "of another job", ("b",))
    scheduler = service.scheduler
    scheduler.settle(TIMEOUT_S)
    recorder = scheduler._recorder
    assert recorder is not None
    record: Any = recorder._record
    kept = [("jobs", before), ("jobs", other)]
    scheduler.ask(lambda: record.compact(recorder.header, scheduler.registry.snapshot(), [], kept))
    assert cli.main(["why", "a", "--state", str(record.path.parent)]) == 0
    first, second, *decisions = capsys.readouterr().out.splitlines()
    assert first == "a trains with 1 worker and 1 server: iteration 0 of 100, before its early feedback"
    assert second == "more about its processes: eps status a"
    assert decisions[0] == "    0.00 s  of a time that is forgotten"
    assert decisions[1].partition(" s  ")[2] == "a starts with 1 worker and 1 server: they are free"
    assert len(decisions) == 2


def test_the_latest_loss_of_a_running_job_is_listed(
    service: Service, client: SchedulerClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client.submit_job("a", JobSpec())
    service.scheduler._events.put(e.Iterated("a", 2, losses=((0.5, 1, 0.75), (0.0, 2, 0.25))))
    service.scheduler.settle(TIMEOUT_S)
    job = client.job("a")
    assert (job["loss"], job["value"], job["on"]) == (None, 0.25, "local")
    assert cli.main(["jobs", "--state", str(tmp_path / "service")]) == 0
    head, row, _ = capsys.readouterr().out.splitlines()
    assert dict(zip(head.split(), row.split(), strict=False))["PHASE"] == "early" and " 0.25" in row
    assert "LOSS" in head.split()


def test_the_column_of_jobs_is_named_after_their_metric(
    service: Service, client: SchedulerClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client.open_sweep(e.SweepOpened("s", Direction.MAXIMIZE, metric="accuracy"))
    client.submit_job("a", JobSpec(), "s")
    event = e.Iterated("a", 2, losses=((0.5, 1, 0.75), (0.0, 2, 0.25)), values=((0.0, 2, 0.875),))
    service.scheduler._events.put(event)
    service.scheduler.settle(TIMEOUT_S)
    job = client.job("a")
    assert (job["metric"], job["value"], job["loss"]) == ("accuracy", 0.875, None)
    state = str(tmp_path / "service")
    assert cli.main(["jobs", "--state", state]) == 0
    head, row, _ = capsys.readouterr().out.splitlines()
    assert "ACCURACY" in head.split() and "LOSS" not in head.split() and " 0.875" in row
    client.submit_job("b", JobSpec())
    assert cli.main(["jobs", "--state", state]) == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert "METRIC" in head.split() and " accuracy 0.875" in row, "jobs with several metrics"


def test_kill_says_that_a_job_has_ended(
    service: Service, client: SchedulerClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client.submit_job("a", JobSpec())
    service.scheduler._events.put(e.JobEnded("a", Phase.FINISHED, loss=0.5))
    service.scheduler.settle(TIMEOUT_S)
    assert cli.main(["kill", "a", "--state", str(tmp_path / "service")]) == 0
    assert capsys.readouterr().out == "nothing to stop: a had already ended\n"


@pytest.mark.parametrize("command", ["why", "kill"])
def test_a_misspelt_job_is_answered_with_the_nearest(
    command: str, service: Service, client: SchedulerClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client.submit_job("digits-trial-7", JobSpec())
    assert client.job("digits-trial-7")["name"] == "digits-trial-7", "its name in eps"
    assert cli.main([command, "trial-7", "--state", str(tmp_path / "service")]) == 4
    assert "'trial-7'; did you mean digits-trial-7?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("phase", "sentence"),
    [
        ("queued", "a is queued: it is"),
        ("submitted", "a is submitted: it is"),
        ("starting", "a is starting with 2 workers and 1 server: it is"),
        (
            "early feedback",
            "a trains with 2 workers and 1 server: iteration 7 of 9, f1 0.5, before its early feedback; it is",
        ),
        ("training", "a trains with 2 workers and 1 server: iteration 7 of 9, f1 0.5; it is"),
        ("restarting", "a stops and restarts from its checkpoint with another size: it is"),
        ("pausing", "a is pausing at iteration 7 of 9: it is"),
        ("paused", "a is paused at iteration 7 of 9 and holds no containers: it is"),
        ("ending", "a is ending: it is"),
        ("finished", "a has ended (finished, f1 0.25): it is"),
        ("killed", "a has ended (killed, f1 0.25): it is"),
        ("failed", "a has ended (failed, f1 0.25): it is"),
    ],
)
def test_every_phase_is_a_sentence(phase: str, sentence: str) -> None:
    is_over = phase in ("finished", "killed", "failed")
    job = {"job_id": "a", "phase": phase, "why": "it is", "is_over": is_over, "workers": 2, "servers": 1}
    job |= {"iteration": 7, "iterations": 9, "metric": "f1", "value": 0.25 if is_over else 0.5}
    assert state_text(job) == sentence
    assert state_text({**job, "iterations": 0}) == sentence.replace(" of 9", "")
    assert state_text({**job, "why": ""}) == sentence.removesuffix(": it is").removesuffix("; it is")


def test_a_job_of_unknown_size_is_starting() -> None:
    job = {"job_id": "a", "phase": "starting", "why": "", "is_over": False, "workers": 0, "servers": 0}
    assert state_text({**job, "iteration": 0, "iterations": 9, "metric": "f1", "value": None}) == "a is starting"


def test_the_hint_for_a_job_on_yarn_is_a_command_that_works(
    service: Service, client: SchedulerClient, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    client.submit_job("a", JobSpec())
    job = client.job("a")
    monkeypatch.setattr(SchedulerClient, "job", lambda self, job_id: {**job, "on": "yarn"})
    directory, state = JobDir(tmp_path / "service"), str(tmp_path / "service")
    Application("application_1_0001", "", "conf").write(directory)
    monkeypatch.setattr("hscheduler.application.monitor.write_address", lambda directory: None)
    assert cli.main(["why", "a", "--state", state]) == 0
    told = capsys.readouterr().out
    assert "logs of its containers: yarn logs -applicationId application_1_0001\n" in told
    assert "eps status" not in told


def test_a_job_that_finished_before_its_cancel_has_no_reason() -> None:
    toy = Toy.of(4, elastic)
    toy.submit(request("a"))
    toy.settle()
    toy.scheduler.step(e.CancelAsked("a", "a is killed: it is the worst"))
    # As a real job reports it.
    commands = toy.scheduler.step(e.JobEnded("a", Phase.FINISHED, "a is killed: it is the worst", loss=0.5))
    assert commands[0] == e.JobOver("a", Phase.FINISHED, "")
    assert toy.job("a").why == ""


def test_suggested_commands_find_the_same_service(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn", reason="the data is scikit-learn's")
    state = str(tmp_path / "service")
    job, sweep = tmp_path / "job.toml", tmp_path / "sweep.toml"
    job.write_text('data = "sklearn:digits"\nmodel = "softmax"\n')
    sweep.write_text('[sweep]\ntrials = 1\nalgorithm = "random"\n[job]\nmodel = "softmax"\ndata = "sklearn:digits"\n')
    assert cli.main(["submit", str(job), "--name", "j", "--state", state]) == 0
    assert capsys.readouterr().out == f"j is submitted; hscheduler why j --state {state} shows its state\n"
    large = tmp_path / "large.toml"
    large.write_text('data = "sklearn:digits"\nmodel = "softmax"\nworkers = 90\nsplits = 90\n')
    for _ in range(2):
        # A permanent fault is reported at once, also on a retry.
        assert cli.main(["submit", str(large), "--name", "large", "--state", state]) == 1
        assert capsys.readouterr().out.startswith("large has ended (failed): ")
    assert cli.main(["sweep", str(sweep), "--name", "s", "--state", state, "--detach"]) == 0
    where = f"hscheduler jobs s --state {state} shows it, hscheduler kill s --state {state} ends it"
    assert capsys.readouterr().out == f"the service runs sweep s; {where}\n"
    address = str(service.address)
    assert cli.main(["submit", str(job), "--name", "k", "--state", state, "--scheduler", address]) == 0
    assert f"hscheduler why k --state {state} --scheduler {address} shows" in capsys.readouterr().out


def test_the_default_directory_needs_no_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path))
    assert ServiceDir.of(None).flag == ""
    assert ServiceDir.of(tmp_path / "x").flag == f" --state {tmp_path / 'x'}"


@pytest.mark.parametrize("by_address", [False, True])
def test_fmin_finds_a_service_by_its_directory(service: Service, tmp_path: Path, by_address: bool) -> None:
    hyperopt = pytest.importorskip("hyperopt")
    from hscheduler.trials import HTrials

    address = str(service.address) if by_address else None
    trials = HTrials(address, parallelism=1, state=tmp_path / "service")
    space = hyperopt.hp.uniform("x", -5, 5)
    hyperopt.fmin(lambda x: x * x, space, hyperopt.rand.suggest, 2, trials=trials, verbose=False)
    assert len(trials) == 2
    assert [name.partition("-")[0] for name in service.scheduler.registry.sweeps] == ["fmin"]
    json.dumps(service.sweeps.report(""), allow_nan=False)


def test_a_directory_beside_a_client_is_refused(client: SchedulerClient, tmp_path: Path) -> None:
    pytest.importorskip("hyperopt")
    from hscheduler.trials import HTrials

    with pytest.raises(ConfigError, match="must be omitted"):
        HTrials(client, state=tmp_path)
