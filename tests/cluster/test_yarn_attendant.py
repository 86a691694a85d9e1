"""What stands for a job on YARN on its client's machine: notes where the master is, ends it, fetches its results."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eps.cluster.yarn.application import COPY_BYTES, Application
from eps.cluster.yarn.types import ApplicationReport
from eps.errors import JobNotFoundError, PeerUnavailableError, StorageError
from eps.job.client import Job
from eps.job.display import plain_line, progress_line, status_text
from eps.job.status import FETCHING, UNREACHABLE, ended_status, waiting_status
from eps.job.yarn import attendant as module
from eps.job.yarn.am import Results
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.spec.results import keep_places
from eps.storage.atomic import read_json
from eps.storage.claims import REMOVE_S, Claim, owner_of
from eps.storage.hdfs import HdfsStorage
from eps.storage.jobdir import JobDir, can_be_resumed
from eps.storage.locations import RemotePath
from tests.cluster.attendant_world import (
    AWAY,
    FINISHED,
    ID,
    KILLED,
    PATIENCE_S,
    REPORT,
    RUNNING,
    Follow,
    ScriptedClient,
)
from tests.cluster.attendant_world import follow as follow
from tests.cluster.attendant_world import job as job
from tests.cluster.attendant_world import quick as quick
from tests.cluster.attendant_world import shared as shared
from tests.cluster.attendant_world import staged as staged
from tests.fakes.storage import MemoryStorage
from tests.fakes.webhdfs import FakeHdfs


def test_clients_find_the_master_and_then_what_it_left(job: JobDir, shared: MemoryStorage, follow: Follow) -> None:
    seen: list[Any] = []

    def look() -> None:
        seen.append((read_json(job.master_json), waiting_status(job)))

    shared.files["results/report.json"] = b'{"clock": 9}'
    shared.files["results/ended.json"] = b'{"state": "finished", "exit_code": 0, "reason": "done"}'
    waits = dataclasses.replace(REPORT, diagnostics="Application is added\n to the queue:  AM limit reached")
    assert follow(ScriptedClient(waits, look, RUNNING, look, FINISHED)) == 0
    (before, waiting), (after, none) = seen
    assert before is None and waiting is not None and waiting["state"] == "starting"
    assert waiting["reason"] == f"application {ID} is ACCEPTED: Application is added to the queue: AM limit reached"
    assert (waiting["workers"], waiting["servers"]) == (2, 1)
    assert after == {"host": "127.0.0.11", "port": 4711} and none is None
    assert read_json(job.report) == {"clock": 9} and job.model.read_bytes() == b"npz"
    ended = job.ended()
    assert ended is not None and (ended.state, ended.exit_code, ended.reason) == ("finished", 0, "done")
    assert not job.master_json.exists() and job.record().yarn.waiting is None and not job.record().pid


def test_a_submitted_job_has_its_results_brought_here_and_its_master_brings_those_that_go_to_hdfs(
    job: JobDir, shared: MemoryStorage, follow: Follow, tmp_path: Path
) -> None:
    places = {"report": str(tmp_path / "r.json"), "export": "webhdfs://nobody.invalid:1/m.npz"}
    keep_places(job, RunRequest(JobSpec(on="yarn"), detached=True, **places))
    shared.files["results/report.json"] = b'{"clock": 9}'
    shared.files["results/ended.json"] = b'{"state": "finished", "exit_code": 0, "reason": "done"}'
    assert follow(ScriptedClient(RUNNING, FINISHED)) == 0
    assert read_json(tmp_path / "r.json") == {"clock": 9}
    ended = job.ended()
    assert ended is not None and (ended.state, ended.reason) == ("finished", "done")


def test_what_cannot_be_brought_here_is_said_with_the_end_of_a_submitted_job(
    job: JobDir, shared: MemoryStorage, follow: Follow, tmp_path: Path
) -> None:
    keep_places(job, RunRequest(JobSpec(on="yarn"), export=str(tmp_path / "gone" / "m.npz"), detached=True))
    assert follow(ScriptedClient(RUNNING, FINISHED)) == 0
    ended = job.ended()
    assert ended is not None and ended.state == "finished" and job.model.read_bytes() == b"npz"
    assert f"{tmp_path}/gone/m.npz: cannot be written" in ended.reason and str(job.model) in ended.reason


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            "[Mon Nov 23 07:38:3{} +0000 2026] Application is added to the scheduler and is not yet activated. Queue's "
            "AM resource limit exceeded.  Details : AM Partition = <DEFAULT_PARTITION>; AM Resource Request = "
            "<memory:512, vCores:1>; Queue Resource Limit for AM = <memory:51{}, vCores:1>",
            "Application is added to the scheduler and is not yet activated. Queue's AM resource limit exceeded",
        ),
        (
            "[Mon Nov 23 07:38:3{} +0000 2026] Application is Activated, waiting for resources to be assigned for AM.  "
            "Details : AM Partition = transient ; Partition Resource = <memory:1228{}, vCores:12>",
            "Application is Activated, waiting for resources to be assigned for AM (nodes labelled 'transient')",
        ),
    ],
    ids=["limit", "label"],
)
def test_what_a_master_waits_for_is_said_without_what_changes_every_second(told: str, said: str) -> None:
    texts = {module.described(dataclasses.replace(REPORT, diagnostics=told.format(n, n))) for n in range(3)}
    assert texts == {f"application {ID} is ACCEPTED: {said}"}


def test_a_master_that_is_lost_is_waited_for_and_found_again(job: JobDir, follow: Follow) -> None:
    seen: list[Any] = []

    def look() -> None:
        seen.append((read_json(job.master_json), waiting_status(job) is None))

    again = dataclasses.replace(RUNNING, host="127.0.0.12", attempt=2)
    assert follow(ScriptedClient(RUNNING, look, REPORT, look, again, look, FINISHED)) == 0
    assert [waits_not for _, waits_not in seen] == [True, False, True]
    assert seen[2][0] == {"host": "127.0.0.12", "port": 4711}


def test_a_resourcemanager_that_is_away_is_asked_again(follow: Follow, caplog: pytest.LogCaptureFixture) -> None:
    away = PeerUnavailableError("no ResourceManager can be reached")
    assert follow(ScriptedClient(RUNNING, away, away, FINISHED)) == 0
    assert caplog.text.count("no ResourceManager can be reached") == 1


def test_a_resourcemanager_that_is_silent_is_told_of_and_what_was_known_last(
    job: JobDir, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    seen: list[Any] = []
    began_s = time.time()

    def look() -> None:
        seen.append(waiting_status(job))

    with socket.socket() as nobody:
        # Nobody else has that port meanwhile, and nobody listens there.
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        # A third of its iterations.
        runs = dataclasses.replace(RUNNING, host="127.0.0.1", rpc_port=port, progress=3 / 9)
        client = ScriptedClient(REPORT, AWAY, look, runs, AWAY, look, REPORT, look, runs, look, FINISHED)
        assert follow(client, address="http://rm:8088") == 0
    at_first, later, asked_again, back = seen
    assert (at_first["state"], later["state"], asked_again["state"], back) == (
        UNREACHABLE,
        UNREACHABLE,
        "starting",
        None,
    )
    told = (
        r"the ResourceManager at http://rm:8088 has not answered since [\d:]{{8}}{}, and is waited for; last known: {}"
    )
    assert re.fullmatch(told.format("", f"application {ID} was ACCEPTED"), at_first["reason"])
    master = f", nor does the job master at 127.0.0.1:{port}"
    assert re.fullmatch(told.format(master, f"application {ID} was RUNNING"), later["reason"])
    # What is known of how far it is stays, and of when that is.
    assert (at_first["clock"], later["clock"], asked_again["clock"]) == (0, 3, 3)
    assert all(began_s - 1 <= status["as_of_s"] <= time.time() for status in (at_first, later))
    assert asked_again["as_of_s"] is None
    text = status_text(later)
    assert "unreachable (the ResourceManager" in text and "what follows is what was known last: it is as of" in text
    assert "clock 3 of 9" in text and "to go" not in text


def test_a_master_that_answers_needs_no_resourcemanager_to_be_found(
    job: JobDir, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    seen: list[Any] = []

    def look() -> None:
        seen.append((read_json(job.master_json), waiting_status(job)))

    with socket.create_server(("127.0.0.1", 0)) as master:
        port = master.getsockname()[1]
        runs = dataclasses.replace(RUNNING, host="127.0.0.1", rpc_port=port)
        # Nor where it was away for a moment.
        assert follow(ScriptedClient(runs, AWAY, look, REPORT, look, runs, AWAY, look, FINISHED)) == 0
    (place, nothing), (_, waits), (again, nothing_again) = seen
    assert place == again == {"host": "127.0.0.1", "port": port}
    assert nothing is nothing_again is None and waits["state"] == "starting"


def test_a_slow_answer_is_no_silence(job: JobDir, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", PATIENCE_S)

    def look() -> None:
        assert job.record().yarn.waiting is None

    assert follow(ScriptedClient(RUNNING, AWAY, AWAY, look, FINISHED)) == 0


def test_what_yarn_says_is_the_reason_where_the_master_left_no_word(job: JobDir, follow: Follow) -> None:
    failed = dataclasses.replace(
        REPORT,
        state="FAILED",
        final_status="FAILED",
        diagnostics="AM Container exited with exitCode: 2\n at x\neps: no data\nmore",
    )
    assert follow(ScriptedClient(failed)) == 1
    status = ended_status(job)
    assert (status["state"], status["reason"]) == (
        "failed",
        "its application master could not go on: no data",
    )


def test_an_application_that_yarn_has_forgotten_has_ended(
    job: JobDir, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eps.job.yarn.inquiry.FORGOTTEN_S", 0.0)
    assert follow(ScriptedClient(RUNNING, JobNotFoundError("no such application"))) == 1
    assert ended_status(job)["reason"].startswith("YARN does not know the application any more")
    ended = job.ended()
    assert ended is not None and ended.yarn.is_forgotten, "it may run: who starts it again asks"


def test_what_one_that_is_forgotten_has_left_is_fetched(
    job: JobDir, shared: MemoryStorage, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eps.job.yarn.inquiry.FORGOTTEN_S", 0.0)
    shared.files["results/ended.json"] = b'{"state": "finished", "exit_code": 0, "reason": ""}'
    assert follow(ScriptedClient(JobNotFoundError("no such application"))) == 0
    assert ended_status(job)["state"] == "finished" and job.model.read_bytes() == b"npz"
    assert not job.is_forgotten(), "its master has said how it ended"


def test_one_that_it_does_not_know_for_a_moment_goes_on(follow: Follow) -> None:
    assert follow(ScriptedClient(RUNNING, JobNotFoundError("no such application"), RUNNING, FINISHED)) == 0


def lose_model(shared: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a job's model be there, and nobody able to read it."""
    read = shared.read

    def lost(path: str) -> Any:
        if path.endswith("model.npz"):
            raise StorageError(f"{path}: a block is missing")
        return read(path)

    monkeypatch.setattr(shared, "read", lost)


def test_results_that_cannot_be_fetched_are_said(
    job: JobDir, shared: MemoryStorage, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.files = {"results/report.json": b"{}"}

    def lost(path: str) -> Any:
        raise StorageError(f"{path}: every DataNode is gone")

    monkeypatch.setattr(shared, "read", lost)
    follow(ScriptedClient(FINISHED))
    ended = job.ended()
    assert ended is not None and "cannot be fetched: results/report.json: every DataNode is gone" in ended.reason
    assert ended.reason.endswith("; eps status a9a tries again") and not job.is_settled()


def test_the_masters_word_counts_though_other_results_cannot_be_fetched(
    job: JobDir, shared: MemoryStorage, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.files["results/ended.json"] = b'{"state": "failed", "exit_code": 3, "reason": "no memory"}'
    shared.files["results/report.json"] = b'{"state": "failed", "reason": "no memory", "clock": 9}'
    lose_model(shared, monkeypatch)
    assert follow(ScriptedClient(KILLED)) == 3
    ended = job.ended()
    assert ended is not None and (ended.state, ended.yarn.unfetched) == ("failed", "no memory")
    assert ended.reason.startswith("no memory; what it has left cannot be fetched: results/model.npz: a block is")
    assert read_json(job.report) == {"state": "failed", "reason": "no memory", "clock": 9}


def test_a_file_that_a_master_was_still_writing_is_none_of_its_results(
    job: JobDir, shared: MemoryStorage, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was lost meanwhile; or its job was killed, and such a file goes while it is looked at."""
    shared.files["results/ended.json"] = b'{"state": "killed", "exit_code": 1, "reason": "enough"}'
    shared.files["results/.model.npz.0a1b2c3d4e5f.tmp"] = b"np"
    names = shared.names

    def and_one_that_goes(folder: str) -> list[str]:
        return [".model.npz.f5e4d3c2b1a0.tmp", *names(folder)]

    monkeypatch.setattr(shared, "names", and_one_that_goes)
    assert follow(ScriptedClient(KILLED)) == 1
    ended = job.ended()
    assert ended is not None and (ended.state, ended.reason) == ("killed", "enough") and job.is_settled()
    assert not list(job.path.glob(".*")) and job.model.read_bytes() == b"npz"


@pytest.mark.parametrize("said", [FINISHED, KILLED])
def test_what_could_not_be_fetched_is_fetched_again_without_yarn(
    job: JobDir, shared: MemoryStorage, follow: Follow, staged: Application, monkeypatch: pytest.MonkeyPatch,
    said: ApplicationReport,
) -> None:  # fmt: skip
    if said is FINISHED:
        shared.files["results/ended.json"] = b'{"state": "finished", "exit_code": 0, "reason": "done"}'
    shared.files["results/model.npz"] = b"the only copy"

    def away(folder: str) -> list[str]:
        raise StorageError("the NameNode is in safe mode")

    runs, ended_s = dataclasses.replace(RUNNING, progress=3 / 9), set()
    for client in (ScriptedClient(runs, said), ScriptedClient(AssertionError("YARN has said how it ended"))):
        with monkeypatch.context() as patch:
            patch.setattr(shared, "names", away)
            follow(client)
        ended = job.ended()
        assert ended is not None and ended.state == said.final_status.lower().replace("succeeded", "finished")
        assert ended.reason.count("safe mode") == 1 and ended.yarn.progress == 3 / 9
        assert job.ended().yarn.unfetched is not None and "results/model.npz" in shared.files
        ended_s.add(ended.time_s)
    follow(ScriptedClient(AssertionError("YARN has said how it ended")))
    ended = job.ended()
    assert ended is not None and ended.reason == ("done" if said is FINISHED else KILLED.diagnostics)
    assert job.is_settled() and job.model.read_bytes() == b"the only copy" and shared.files == {}
    assert {*ended_s, ended.time_s} == {min(ended_s)}, "it ended once"


def test_of_one_that_yarn_has_forgotten_the_folder_stays_when_it_is_fetched_again(
    job: JobDir, shared: MemoryStorage, follow: Follow, staged: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eps.job.yarn.inquiry.FORGOTTEN_S", 0.0)
    shared.files["results/ended.json"] = b'{"state": "finished"}'
    follow(ScriptedClient(JobNotFoundError("no such application")))
    assert not job.is_settled()
    del shared.files["results/ended.json"]
    follow(ScriptedClient(AssertionError("asked")))
    assert job.is_settled() and "job.zip" in shared.files, "it may run"


def test_how_a_job_failed_is_noted_before_its_logs_come_which_may_be_larger_than_the_disk(
    job: JobDir, shared: MemoryStorage, follow: Follow, staged: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.files["results/ended.json"] = b'{"state": "failed", "exit_code": 1, "reason": "diverged"}'
    seen: list[Any] = []

    def bring(job: JobDir) -> list[str]:
        seen.append((job.is_settled(), job.ended().reason, dict(shared.files)))
        raise StorageError(f"{job.path}: No space left on device")

    monkeypatch.setattr("eps.job.yarn.logs.fetch_logs", bring)
    assert follow(ScriptedClient(RUNNING, FINISHED)) == 1
    assert seen == [(True, "diverged", {})] and job.is_settled()


def test_what_a_job_had_on_the_cluster_goes_when_its_results_are_here(
    job: JobDir, shared: MemoryStorage, follow: Follow, staged: Application
) -> None:
    def look() -> None:
        assert shared.files and Application.read(job) == staged

    follow(ScriptedClient(RUNNING, look, FINISHED))
    assert shared.files == {} and read_json(job.report) == {}
    assert Application.read(job) == dataclasses.replace(staged, shared="")


def test_who_removes_what_a_job_had_on_the_cluster_does_not_keep_others_waiting(
    job: JobDir, shared: MemoryStorage, follow: Follow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever waits for the job's end would wait until HDFS has left safe mode."""
    pytest.importorskip("hdfs")
    (tmp_path / "core-site.xml").write_text("<configuration></configuration>")
    asked: list[float] = []

    def remove(store: HdfsStorage, path: str) -> None:
        asked.append(store._web.patience_s)
        raise StorageError("the NameNode is in safe mode")

    monkeypatch.setattr(HdfsStorage, "remove", remove)
    place = Application(ID, "hdfs://nn:1/user/ada/.eps/jobs/a9a-1", str(tmp_path), "rest")
    place.write(job)
    assert follow(ScriptedClient(RUNNING, FINISHED)) == 0
    assert asked == [REMOVE_S] and Application.read(job) == place and job.is_settled()


def test_what_was_not_fetched_or_may_be_in_use_stays_on_the_cluster(
    job: JobDir, shared: MemoryStorage, follow: Follow, staged: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eps.job.yarn.inquiry.FORGOTTEN_S", 0.0)
    follow(ScriptedClient(JobNotFoundError("no such application")))
    assert "job.zip" in shared.files
    shared.files["results/ended.json"] = b'{"state": "finished"}'
    follow(ScriptedClient(FINISHED))
    assert "results/ended.json: does not say how the application ended" in ended_status(job)["reason"]
    assert "job.zip" in shared.files
    shared.files["results/ended.json"] = b'{"state": "finished", "exit_code": 0, "reason": ""}'
    shared.stuck.add("")
    assert follow(ScriptedClient(FINISHED)) == 0
    assert "job.zip" in shared.files and Application.read(job) == staged, "the next command finds it"


@pytest.mark.parametrize("state", ["finished", "failed", "killed", "unfetched"])
def test_checkpoints_of_its_own_go_with_a_job_that_has_finished(
    job: JobDir, shared: MemoryStorage, follow: Follow, staged: Application, tmp_path: Path, state: str
) -> None:
    """What ended otherwise may be gone on with; so may one whose model is not here."""
    pytest.importorskip("hdfs")
    (tmp_path / "core-site.xml").write_text("<configuration></configuration>")
    word = {"state": "finished"} if state == "unfetched" else {"state": state, "exit_code": 1, "reason": ""}
    shared.files["results/ended.json"] = json.dumps(word).encode()
    with FakeHdfs() as hdfs:
        place = RemotePath("webhdfs", hdfs.authority, "/eps/checkpoints/a9a")
        Claim(str(place), owner_of(job), str(tmp_path)).write(job)
        hdfs.put(f"{place.path}/owner.txt", f"{owner_of(job)}\n".encode())
        hdfs.put(f"{place.path}/0001-00000040/manifest.json", b"{}")
        follow(ScriptedClient(RUNNING, FINISHED))
        left = [path for path in hdfs.nodes if "a9a" in path]
    assert (left == []) == (state == "finished") == (job.record().yarn.claim is None)
    assert can_be_resumed(job) == (state in ("failed", "killed"))


@pytest.mark.parametrize("removed", [True, False])
def test_one_that_finished_and_whose_model_is_lost_is_made_again_from_its_checkpoints(
    job: JobDir, shared: MemoryStorage, follow: Follow, staged: Application, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, removed: bool,
) -> None:  # fmt: skip
    """Who wants to go on is told to remove what cannot be read; so it is as if it had never been left."""
    pytest.importorskip("hdfs")
    (tmp_path / "core-site.xml").write_text("<configuration></configuration>")
    shared.files["results/ended.json"] = b'{"state": "finished", "exit_code": 0, "reason": ""}'
    shared.files["results/report.json"] = b'{"state": "finished", "reason": "", "clock": 9}'
    with FakeHdfs() as hdfs:
        place = RemotePath("webhdfs", hdfs.authority, "/eps/checkpoints/a9a")
        Claim(str(place), owner_of(job), str(tmp_path)).write(job)
        hdfs.put(f"{place.path}/owner.txt", f"{owner_of(job)}\n".encode())
        hdfs.put(f"{place.path}/0001-00000040/manifest.json", b"{}")
        if removed:
            lose_model(shared, monkeypatch)
            assert follow(ScriptedClient(RUNNING, FINISHED)) == 0
            assert not job.is_settled() and "a block is missing" in job.ended().reason
        del shared.files["results/model.npz"]
        assert follow(ScriptedClient(RUNNING, FINISHED)) == 1
        assert f"{place.path}/0001-00000040/manifest.json" in hdfs.nodes
    assert job.is_settled() and can_be_resumed(job) and job.record().yarn.claim is not None
    told = ("failed", "it finished, but did not leave its model: eps resume a9a makes it again")
    assert (job.ended().state, job.ended().reason) == told
    assert read_json(job.report) == {"state": told[0], "reason": told[1], "clock": 9}
    assert shared.files == {}, "nothing of that is needed any more"


def test_who_asks_while_results_or_logs_come_is_told_so_and_waits_for_no_master(
    job: JobDir, shared: MemoryStorage, follow: Follow, staged: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master that listened there is gone for good."""
    shared.files["results/ended.json"] = b'{"state": "failed", "exit_code": 1, "reason": "diverged"}'
    shared.files["results/report.json"] = b'{"state": "failed", "reason": "diverged", "clock": 4}'
    names, seen = shared.names, []

    def look(what: Any) -> list[str]:
        with Job(job, patience_s=0.0) as asked:
            seen.append(asked.status())
        assert job.record().pid == os.getpid() and not job.master_json.exists()
        return names(what) if isinstance(what, str) else []

    monkeypatch.setattr(shared, "names", look)
    monkeypatch.setattr("eps.job.yarn.logs.fetch_logs", look)
    assert follow(ScriptedClient(dataclasses.replace(RUNNING, progress=3 / 9), FINISHED)) == 1
    results, logs = seen
    assert (results["state"], logs["state"]) == (FETCHING, FETCHING)
    assert results["reason"] == f"application {ID} has ended; what it has left is fetched from memory:results"
    assert logs["reason"] == f"application {ID} has ended; the logs of its containers are fetched"
    assert (results["clock"], logs["clock"]) == (3, 4) and results["as_of_s"] and logs["as_of_s"] is None
    for line in (progress_line(results), plain_line(results)):
        assert line == f"a9a: fetching: {results['reason']}"
    assert "what follows is older than its end" in status_text(results)
    assert job.record().yarn.waiting is None and not job.record().pid


def test_where_nothing_is_shared_any_more_nothing_is_fetched(
    job: JobDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Least of all from the folder in which a command was given."""
    (tmp_path / "yarn-site.xml").write_text("<configuration></configuration>")
    Application(ID, "", str(tmp_path), "rest").write(job)
    here = tmp_path / "here" / "results"
    here.mkdir(parents=True)
    (here / "model.npz").write_bytes(b"of another project")
    (here / "ended.json").write_text('{"state": "finished", "exit_code": 0, "reason": ""}')
    monkeypatch.chdir(here.parent)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setattr(module, "open_client", lambda conf, kind: ScriptedClient(KILLED))
    monkeypatch.setattr(module, "asked_at", lambda conf, kind: "")
    # The fixture holds the lock, as whoever starts an attendant does.
    monkeypatch.setattr(module, "JobLock", lambda path, fd: io.BytesIO())
    assert module.main([str(job.path)]) == 1
    ended = job.ended()
    assert ended is not None and ended.state == "killed" and not job.model.exists()
    assert sorted(path.name for path in here.iterdir()) == ["ended.json", "model.npz"]


def test_results_pass_through_in_pieces(
    shared: MemoryStorage, job: JobDir, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model may be larger than the memory of who brings it: the application master's container, the attendant's."""
    pieces: list[int] = []
    model = np.random.default_rng(1).bytes(3 * COPY_BYTES + 7)

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            assert size is not None and 0 <= size <= COPY_BYTES
            return super().read(size)

        def write(self, data: Any) -> int:
            pieces.append(len(data))
            return super().write(data)

    @contextmanager
    def write(path: str) -> Iterator[Any]:
        file = Watched()
        yield file
        shared.files[path] = file.getvalue()

    monkeypatch.setattr(shared, "write", write)
    job.model.write_bytes(model)
    results = Results(job, shared)
    results.leave_model()
    results.leave(0, "finished", "")
    assert shared.files["results/model.npz"] == model and max(pieces) == COPY_BYTES
    job.model.unlink()
    fetched = dict(shared.files)

    @contextmanager
    def read(path: str) -> Iterator[Any]:
        yield io.BytesIO(fetched[path]) if path.endswith("ended.json") else Watched(fetched[path])

    monkeypatch.setattr(shared, "read", read)
    assert follow(ScriptedClient(FINISHED)) == 0
    assert job.model.read_bytes() == model


def test_an_application_is_noted_in_the_jobs_directory(job: JobDir) -> None:
    assert Application.read(job) is None
    application = Application(ID, "hdfs://nn:1/user/ada/.eps/jobs/a9a-1", "/etc/hadoop", "java")
    application.write(job)
    assert Application.read(job) == application
