"""A failed submission leaves no unknown application behind."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from eps.cluster.yarn.application import Application
from eps.cluster.yarn.launch import escaped
from eps.cluster.yarn.shipping import ENVIRONMENT
from eps.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineError,
    JobExistsError,
    PeerUnavailableError,
    StorageError,
)
from eps.hadoop.conf import HadoopConf
from eps.job.client import Job
from eps.job.launch import PreparedJob, prepare_job
from eps.job.resume import prepare_resume
from eps.job.status import ended_status
from eps.job.yarn.submit import start_prepared, submit
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.spec.results import keep_places
from eps.storage.claims import Claim
from eps.storage.jobdir import JobDir, list_jobs
from eps.storage.locations import RemotePath
from eps.system import interrupt
from tests.cluster.submission_world import ROWS, own, start
from tests.cluster.submission_world import conf as conf
from tests.cluster.submission_world import request_ as request_
from tests.cluster.submission_world import yarn as yarn
from tests.fakes.patient_hdfs import hdfs as hdfs
from tests.fakes.records import note_end
from tests.fakes.webhdfs import FakeHdfs
from tests.fakes.yarn_client import ID, FakeYarnClient

pytest.importorskip("hdfs")

#: More than anything here takes.
PATIENCE_S = 60.0


@pytest.fixture
def prepared(hdfs: FakeHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PreparedJob]:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    (tmp_path / "rows.libsvm").write_text(ROWS)
    settings = {"data": str(tmp_path / "rows.libsvm"), "iterations": 3, "on": "yarn", "name": "a9a"}
    settings |= {"workers": 1, "servers": 1}
    places = {"staging": f"webhdfs://{hdfs.authority}/eps", "checkpoint_dir": str(tmp_path / "checkpoints")}
    found = prepare_job(RunRequest.from_values({**settings, **places, "checkpoint_every": "9"}))
    yield found
    found.lock.close()


@pytest.fixture
def cluster(prepared: PreparedJob) -> FakeYarnClient:
    return FakeYarnClient(directory=prepared.directory)


def staged(hdfs: FakeHdfs) -> list[str]:
    return [path for path in hdfs.nodes if path.startswith("/eps/jobs/")]


def test_the_directory_knows_the_application_before_yarn_does(
    cluster: FakeYarnClient, prepared: PreparedJob, conf: HadoopConf, hdfs: FakeHdfs
) -> None:
    application = submit(prepared, cluster, conf)  # type: ignore[arg-type]
    assert cluster.noted == application == Application.read(prepared.directory)
    assert application.application_id == ID and staged(hdfs) and not cluster.killed


def test_the_master_is_told_where_results_go_and_has_a_token_for_it(
    cluster: FakeYarnClient, prepared: PreparedJob, conf: HadoopConf, hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"report": "/home/ada/r.json", "export": "hdfs://lake:8020/models/m.npz"}
    keep_places(prepared.directory, RunRequest(prepared.runtime.spec, detached=True, **places))
    asked: list[str] = []
    monkeypatch.setattr(cluster, "obtain_tokens", lambda file_systems: asked.extend(file_systems) or b"")
    submit(prepared, cluster, conf)  # type: ignore[arg-type]
    assert asked == ["hdfs://lake:8020"]
    (archive,) = [path for path in staged(hdfs) if path.endswith("/job.zip")]
    with zipfile.ZipFile(io.BytesIO(hdfs.find(archive).content)) as brought:
        results = json.loads(brought.read("job.json"))["results"]
    assert {**results, "since_s": 0} == {**places, "detached": True, "since_s": 0}


@pytest.mark.parametrize("kind", [lambda: DeadlineError("no answer"), KeyboardInterrupt])
@pytest.mark.parametrize("away", [None, PeerUnavailableError("no ResourceManager can be reached")])
def test_an_application_whose_submission_was_not_answered_is_ended_and_can_be_found(
    cluster: FakeYarnClient,
    prepared: PreparedJob,
    conf: HadoopConf,
    hdfs: FakeHdfs,
    kind: Callable[[], BaseException],
    away: BaseException | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost = kind()
    cluster.submitting, cluster.killing = lost, away
    with pytest.raises(type(lost)) as raised:
        submit(prepared, cluster, conf)  # type: ignore[arg-type]
    notes = [f"a9a: interrupted while {ID} was submitted: if it runs, end it with eps kill a9a"]
    assert getattr(raised.value, "__notes__", []) == notes * isinstance(lost, KeyboardInterrupt)
    assert cluster.killed == [ID] and staged(hdfs) == []
    noted = Application.read(prepared.directory)
    assert noted is not None and noted.application_id == ID, "for `eps kill`, and for who starts the job again"
    (said,) = caplog.messages
    assert said.startswith(f"{ID} may run" if away else f"{ID} does not run: its submission was cut short")


def test_of_one_that_yarn_refused_nothing_is_left(
    cluster: FakeYarnClient, prepared: PreparedJob, conf: HadoopConf, hdfs: FakeHdfs, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.refuses("no such queue")
    with pytest.raises(ConfigError, match="no such queue"):
        submit(prepared, cluster, conf)  # type: ignore[arg-type]
    assert Application.read(prepared.directory) is None and staged(hdfs) == [] and not caplog.messages


def test_one_that_a_queue_refused_is_told_as_refused_only(
    cluster: FakeYarnClient, prepared: PreparedJob, conf: HadoopConf, hdfs: FakeHdfs, caplog: pytest.LogCaptureFixture
) -> None:
    """YARN lists it as an application that has failed, and would say of one that is ended again that it is."""
    cluster.submitting, cluster.state = ConfigError("the queue takes no application now"), "FAILED"
    with pytest.raises(ConfigError, match="takes no application"):
        submit(prepared, cluster, conf)  # type: ignore[arg-type]
    assert Application.read(prepared.directory) is None and staged(hdfs) == []
    assert not cluster.killed and not caplog.messages


def test_one_that_yarn_has_though_its_client_was_refused_is_ended(
    cluster: FakeYarnClient, prepared: PreparedJob, conf: HadoopConf
) -> None:
    """As where a ticket expires while its client waits for it to be accepted."""
    cluster.submitting, cluster.state = AuthenticationError("a ticket that is valid is missing"), "ACCEPTED"
    with pytest.raises(AuthenticationError):
        submit(prepared, cluster, conf)  # type: ignore[arg-type]
    assert cluster.killed == [ID] and Application.read(prepared.directory) is not None


def test_an_interpreter_whose_path_a_shell_would_take_apart_is_started(
    cluster: FakeYarnClient, prepared: PreparedJob, conf: HadoopConf, tmp_path: Path
) -> None:
    """By the script that a NodeManager makes of a submission."""
    python = tmp_path / "it's my $HOME; `env`" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nfor word in "$@" "$ODD" "$PYTHONPATH"; do echo "$word"; done\n')
    python.chmod(0o755)
    spec = prepared.runtime.spec.with_settings(python=str(python))
    runtime = dataclasses.replace(prepared.runtime, spec=spec)
    submit(dataclasses.replace(prepared, runtime=runtime), cluster, conf)  # type: ignore[arg-type]
    assert cluster.launch is not None
    odd = "a \"b\" 'c' $HOME `d` \\ {e} %f"
    lines = [f'export {name}="{escaped(text)}"' for name, text in {**cluster.launch.env, "ODD": odd}.items()]
    command = escaped(cluster.launch.command).replace("<LOG_DIR>", str(tmp_path))
    script = "\n".join([*lines, f'exec /bin/bash -c "{command}"'])
    subprocess.run(["/bin/bash", "-c", script], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "stderr").read_text() == ""
    assert (tmp_path / "stdout").read_text().splitlines() == [
        "-P",
        "-m",
        "eps.job.yarn.am",
        odd,
        f"{tmp_path}/eps-code",
    ]


def test_a_job_has_a_folder_for_its_checkpoints_that_it_knows_to_be_its_own(
    request_: RunRequest, yarn: FakeYarnClient, hdfs: FakeHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(request_)
    (job,) = list_jobs()
    noted = Claim.read(job)
    assert noted is not None and noted.folder == f"webhdfs://{hdfs.authority}/eps/checkpoints/a9a"
    assert hdfs.nodes["/eps/checkpoints/a9a/owner.txt"].content == f"{noted.owner}\n".encode()
    assert f'"owner": "{noted.owner}"' in job.job_json.read_text()
    # One whose checkpoints are elsewhere takes its place; what nobody knows of any more goes.
    start(dataclasses.replace(request_.with_spec(checkpoint_dir=str(tmp_path / "mine")), anew=True))
    assert Claim.read(job) is None and (tmp_path / "mine" / "a9a" / "owner.txt").exists()
    assert "/eps/checkpoints/a9a" not in hdfs.nodes


@pytest.mark.parametrize("why", ["no archive", "no archive there", "queue", "hdfs", "interrupted", "model"])
@pytest.mark.parametrize("named", [False, True])
def test_of_a_job_that_was_refused_nothing_is_left(
    request_: RunRequest, yarn: FakeYarnClient, hdfs: FakeHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    why: str, named: bool,
) -> None:  # fmt: skip
    if named:
        request_ = request_.with_spec(checkpoint_dir=str(tmp_path / "mine"))
    refusal: type[BaseException] = ConfigError
    if why == "no archive":
        request_ = request_.with_spec(python=str(tmp_path / "env.tar.gz"))
    elif why == "no archive there":
        request_ = request_.with_spec(python=f"webhdfs://{hdfs.authority}/envs/env.tar.gz")
    elif why == "queue":
        yarn.refuses("no such queue")
    elif why == "hdfs":
        refusal = StorageError
        hdfs.fault("MKDIRS", "error", name="AccessControlException", message="Permission denied: user=eva", left=99)
    elif why == "model":
        (tmp_path / "mine.py").write_text("from eps.ml.models.softmax import Softmax as Mine\n")
        request_ = request_.with_spec(model=f"{tmp_path}/mine.py:Mine")

        def refuse(source: object, target: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("eps.job.launch.shutil.copyfile", refuse)
    else:
        refusal = KeyboardInterrupt
        monkeypatch.setattr("eps.job.yarn.submit.pack_code", _interrupt)
    with pytest.raises(refusal):
        start(request_)
    assert list_jobs() == [] and [path for path in own(hdfs) if "a9a" in path] == []
    assert not (tmp_path / "mine" / "a9a").exists()


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_who_interrupts_while_what_the_former_has_left_is_removed_leaves_no_job(
    request_: RunRequest, yarn: FakeYarnClient, hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(request_)
    with monkeypatch.context() as patched:
        patched.setattr(Application, "remove", lambda application: _interrupt())
        with pytest.raises(KeyboardInterrupt):
            start(dataclasses.replace(request_, anew=True))
    assert list_jobs() == [] and "/eps/checkpoints/a9a" not in hdfs.nodes
    start(request_)


@pytest.mark.parametrize("on", ["yarn", "local"])
@pytest.mark.parametrize("refused", [False, True])
def test_what_the_former_application_has_left_goes_with_the_job_whose_place_is_taken(
    request_: RunRequest, yarn: FakeYarnClient, hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch, on: str, refused: bool
) -> None:
    """Its token and key above all; also where the one that takes its place gets no further."""
    start(request_)
    (job,) = list_jobs()
    former = Application.read(job)
    assert former is not None and f"{RemotePath.parse(former.shared).path}/job.zip" in hdfs.nodes
    again = dataclasses.replace(on_backend(request_, on), anew=True)
    if refused:
        monkeypatch.setattr("eps.job.launch.noted_places", lambda request: _refuse())
    with pytest.raises(StorageError) if refused else nullcontext():
        start(again) if on == "yarn" else prepare_job(again).lock.close()
    folders = [path for path in staged(hdfs) if path.startswith(RemotePath.parse(former.shared).path)]
    assert folders == [] and list_jobs() == ([] if refused else [job])


def on_backend(request: RunRequest, on: str) -> RunRequest:
    """Return the request for a job elsewhere, where a folder for the files of jobs on YARN means nothing."""
    return request if on == "yarn" else dataclasses.replace(request, given=request.given - {"staging"}).with_spec(on=on)


def _refuse() -> None:
    raise StorageError("no space left")


def test_who_may_view_a_job_comes_to_what_it_leaves_and_to_nothing_else(
    request_: RunRequest, yarn: FakeYarnClient, hdfs: FakeHdfs
) -> None:
    start(request_.with_spec(acl=("view=ann,bob research", "modify=eve")))
    folder = f"/eps/jobs/a9a-{ID}"
    asked = {path: params["aclspec"] for op, path, params, _ in hdfs.requests if op == "MODIFYACLENTRIES"}
    assert asked == dict.fromkeys(("/eps", "/eps/jobs", folder), "user:ann:--x,user:bob:--x,group:research:--x")
    assert hdfs.find(f"{folder}/job.zip").mode == "600"


def test_a_job_whose_namenode_keeps_no_lists_is_submitted_and_says_who_cannot_read_what_it_leaves(
    request_: RunRequest, yarn: FakeYarnClient, hdfs: FakeHdfs, caplog: pytest.LogCaptureFixture
) -> None:
    hdfs.fault("MODIFYACLENTRIES", "error", name="AclException", message="Support for ACLs has been disabled")
    start(request_.with_spec(acl=("view=*",)))
    assert "acl is ('view=*',): viewers can see the job's page, but not its results on HDFS" in caplog.text
    assert "Support for ACLs has been disabled" in caplog.text and yarn.submission is not None


@pytest.mark.parametrize("on", ["yarn", "local"])
def test_a_job_whose_note_of_its_application_is_damaged_is_replaced_where_that_is_asked_for(
    request_: RunRequest, yarn: FakeYarnClient, monkeypatch: pytest.MonkeyPatch, on: str
) -> None:
    monkeypatch.setattr(PreparedJob, "start", lambda prepared, **_: prepared.lock.close() or _Handle())
    start(request_)
    (job,) = list_jobs()
    job.job_json.write_text("{")
    again = on_backend(request_, on)
    warm: Any = _Handle()
    with pytest.raises(JobExistsError, match=r"stopped before.*--anew"):
        Job.start_request(again, warm=warm)
    assert job.job_json.read_text() == "{"
    Job.start_request(dataclasses.replace(again, anew=True), warm=warm)
    (job,) = list_jobs()
    assert job.record().runs_on == on


class _Handle:
    """Of a process that nobody needs here."""

    def cancel(self) -> None:
        pass


def test_of_one_whose_submission_was_cut_short_stays_what_it_takes_to_find_it(
    request_: RunRequest, yarn: FakeYarnClient, hdfs: FakeHdfs
) -> None:
    yarn.submitting = DeadlineError("no answer")
    with pytest.raises(DeadlineError):
        start(request_)
    (job,) = list_jobs()
    assert Application.read(job) is not None and Claim.read(job) is not None
    assert "/eps/checkpoints/a9a/owner.txt" in hdfs.nodes


def test_an_interpreter_that_no_container_could_have_does_not_cost_the_job_whose_name_is_taken(
    request_: RunRequest, yarn: FakeYarnClient, hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(request_)
    (job,) = list_jobs()
    hdfs.put("/eps/checkpoints/a9a/0001-00000002/manifest.json", b"{}")
    for python in ("/nowhere/env.tar.gz", f"webhdfs://{hdfs.authority}/env.tar.gz", "python3"):
        with pytest.raises(ConfigError, match="python is"):
            start(dataclasses.replace(request_.with_spec(python=python), anew=True))
    assert job.job_json.exists() and "/eps/checkpoints/a9a/0001-00000002/manifest.json" in hdfs.nodes


def test_an_environment_on_the_file_system_of_the_configuration_is_brought_from_there(
    request_: RunRequest, yarn: FakeYarnClient, hdfs: FakeHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named as Hadoop's own commands print it, without a NameNode: as any other location."""
    values = {"fs.defaultFS": "hdfs://nn:9000", "dfs.namenode.http-address": hdfs.authority}
    properties = "".join(f"<property><name>{n}</name><value>{v}</value></property>" for n, v in values.items())
    (tmp_path / "core-site.xml").write_text(f"<configuration>{properties}</configuration>")
    hdfs.put("/envs/env.tar.gz", b"archive")
    start(request_.with_spec(python="hdfs:/envs/env.tar.gz"))
    assert yarn.launch is not None
    file = yarn.launch.files[ENVIRONMENT]
    assert (file.url, file.size_bytes) == ("hdfs://nn:9000/envs/env.tar.gz", 7)


@pytest.fixture
def stopped(request_: RunRequest, yarn: FakeYarnClient, hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    """A job that has failed, whose folder on the cluster could not be removed then."""
    start(request_)
    (job,) = list_jobs()
    note_end(job, "failed", "training diverged")
    job.report.write_text('{"state": "failed", "reason": "training diverged", "exit_code": 1}')
    job.model.write_bytes(b"npz")
    return job


def files_of(job: JobDir) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in job.path.rglob("*") if path.is_file() and path != job.history}


@pytest.mark.parametrize("listed", ["", "FAILED"])
def test_a_resumption_that_yarn_refuses_leaves_the_job_as_it_was(
    stopped: JobDir, yarn: FakeYarnClient, hdfs: FakeHdfs, listed: str
) -> None:
    """It lists what a queue refuses as an application that has failed."""
    before, there = files_of(stopped), staged(hdfs)
    yarn.refuses("the queue is full")
    yarn.state = listed
    with pytest.raises(ConfigError, match="the queue is full"):
        start_prepared(prepare_resume("a9a", python="/opt/other/python").prepared)
    assert yarn.noted is not None and yarn.noted.application_id == yarn.started
    assert files_of(stopped) == before and staged(hdfs) == there and not stopped.is_running()
    assert ended_status(stopped)["reason"] == "training diverged"
    assert Claim.read(stopped) is not None and "/eps/checkpoints/a9a/owner.txt" in hdfs.nodes


def test_of_a_resumption_whose_files_cannot_be_brought_nothing_is_left(
    stopped: JobDir, yarn: FakeYarnClient, hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, there = files_of(stopped), staged(hdfs)

    def cut_short(job: JobDir) -> None:
        former = stopped.record().former
        assert former is not None and former.end is not None, "who is killed now has lost nothing"
        assert stopped.model.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr("eps.job.yarn.submit.pack_job", cut_short)
    with pytest.raises(KeyboardInterrupt):
        start_prepared(prepare_resume("a9a").prepared)
    assert files_of(stopped) == before and staged(hdfs) == there and not stopped.is_running()


@pytest.mark.parametrize("resumed", [True, False])
def test_who_interrupts_when_yarn_has_it_is_told_so(
    stopped: JobDir, request_: RunRequest, yarn: FakeYarnClient, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    """Closing a client takes a while where it is Java's."""
    monkeypatch.setattr(yarn, "close", _interrupt)
    with pytest.raises(KeyboardInterrupt) as raised, interrupt.before_submission("a9a"):
        if resumed:
            start_prepared(prepare_resume("a9a").prepared)
        else:
            start(dataclasses.replace(request_, anew=True))
    told = f"a9a: interrupted while {yarn.started} was submitted: if it runs, end it with eps kill a9a"
    assert raised.value.__notes__ == [told]
    noted = Application.read(stopped)
    assert noted is not None and noted.application_id == yarn.started and not stopped.is_running()


def test_who_interrupts_a_refusal_while_the_client_is_closed_is_told_that_nothing_was_submitted(
    stopped: JobDir, yarn: FakeYarnClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    yarn.refuses("the queue is full")
    monkeypatch.setattr(yarn, "close", _interrupt)
    before = files_of(stopped)
    with pytest.raises(KeyboardInterrupt) as raised, interrupt.before_submission("a9a"):
        start_prepared(prepare_resume("a9a").prepared)
    assert raised.value.__notes__ == ["a9a: interrupted; nothing was submitted"] and files_of(stopped) == before


def test_a_resumption_that_yarn_may_have_is_the_job_from_then_on(
    stopped: JobDir, yarn: FakeYarnClient, hdfs: FakeHdfs
) -> None:
    former = Application.read(stopped)
    assert former is not None and RemotePath.parse(former.shared).path in hdfs.nodes
    yarn.submitting = DeadlineError("no answer")
    with pytest.raises(DeadlineError):
        start_prepared(prepare_resume("a9a").prepared)
    noted = Application.read(stopped)
    assert noted is not None and noted.application_id == yarn.started and yarn.killed == [yarn.started]
    assert stopped.ended() is None and not stopped.model.exists() and not stopped.report.exists()
    assert stopped.record().former is None and staged(hdfs) == [], "nothing else knows what the former has left"


def test_what_the_former_application_has_left_goes_when_the_job_was_resumed(
    request_: RunRequest, yarn: FakeYarnClient, hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(request_)
    (job,) = list_jobs()
    former = Application.read(job)
    assert former is not None
    start_prepared(prepare_resume("a9a").prepared)
    now = Application.read(job)
    assert now is not None and now.shared != former.shared
    jobs = {path.split("/")[3] for path in staged(hdfs)}
    assert jobs == {RemotePath.parse(now.shared).name}


@pytest.mark.parametrize("why", ["queue", "interpreter", "file system"])
def test_a_resumption_that_is_refused_leaves_what_the_job_has_brought(
    request_: RunRequest, yarn: FakeYarnClient, hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    start(request_)
    (job,) = list_jobs()
    note_end(job, "killed", "enough")
    job.report.write_text('{"state": "killed", "reason": "enough"}')
    job.model.write_bytes(b"npz")
    before = {path: path.read_bytes() for path in job.path.iterdir() if path.is_file()}
    asked: list[JobSpec] = []

    def refuse(*found: object) -> None:
        asked.extend(each for each in found if isinstance(each, JobSpec))
        raise ConfigError("refused")

    checks = {"queue": "check_job", "interpreter": "check_environment", "file system": "check_file_systems"}
    monkeypatch.setattr(f"eps.job.yarn.submit.{checks[why]}", refuse)
    with pytest.raises(ConfigError, match="refused"):
        Job.resume("a9a", workers=2)
    assert {path: path.read_bytes() for path in job.path.iterdir() if path.is_file()} == before
    assert not job.is_running() and all(spec.workers == 2 for spec in asked)


def test_a_job_of_this_machine_is_not_resumed_with_another_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    (tmp_path / "rows.libsvm").write_text(ROWS)
    prepare_job(RunRequest.from_values({"data": str(tmp_path / "rows.libsvm"), "name": "a9a"})).lock.close()
    with pytest.raises(ConfigError, match="python is '/opt/python'"):
        prepare_resume("a9a", python="/opt/python")


def test_a_job_that_failed_over_its_interpreter_goes_on_with_another(
    request_: RunRequest, yarn: FakeYarnClient, hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(request_.with_spec(python="/opt/wrong/python"))
    (job,) = list_jobs()
    before = job.job_json.read_bytes()
    monkeypatch.setattr("eps.job.yarn.remote.settle", lambda job: None)
    for python in ("/nowhere/env.tar.gz", "python3"):
        with pytest.raises(ConfigError, match="python is"):
            Job.resume("a9a", python=python)
    assert job.job_json.read_bytes() == before, "it is refused before anything is changed"
    Job.resume("a9a", python="/opt/good/python", detach=True).close()
    assert yarn.launch is not None
    assert "/opt/good/python" in yarn.launch.command and "wrong" not in yarn.launch.command
