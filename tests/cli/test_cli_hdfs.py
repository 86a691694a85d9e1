"""Results and checkpoints of a job on HDFS: what is refused before it starts, and whose a folder is."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from eps.cli import main
from eps.cli.commands import run as run_command
from eps.errors import ConfigError, DataError, JobExistsError, StorageError
from eps.job.client import Job
from eps.job.launch import prepare_job
from eps.spec.file import RunRequest, read_job_file
from eps.spec.job_spec import JobSpec
from eps.spec.model_file import read_model
from eps.spec.results import check_results, copy_result, deliver_results, keep_places, replaced_by_results
from eps.spec.runtime import Runtime, identity
from eps.storage.claims import OWNER, check_claim, claim
from eps.storage.hdfs import _Reader
from eps.storage.jobdir import JobDir
from eps.storage.locations import RemotePath, location, write_public
from eps.system import interrupt
from tests.fakes.patient_hdfs import hdfs as hdfs
from tests.fakes.records import note_end
from tests.fakes.webhdfs import FakeHdfs


@pytest.fixture
def remote(hdfs: FakeHdfs) -> RemotePath:
    """The root of the file system."""
    return RemotePath("webhdfs", hdfs.authority, "/")


def request_for(remote: RemotePath, name: str = "job", **rest: object) -> RunRequest:
    places = {"checkpoint_dir": str(remote / "checkpoints"), "checkpoint_every": "9"}
    return RunRequest.of_spec(JobSpec().with_settings(data="sklearn:iris", model="softmax", **places), name, **rest)


def test_results_that_cannot_be_written_are_refused_before_training(hdfs: FakeHdfs, remote: RemotePath) -> None:
    hdfs.put("/folder/file", b"")
    check_results(RunRequest(JobSpec(), export=str(remote / "folder/model.npz"), report=str(remote / "folder/file")))
    with pytest.raises(
        ConfigError,
        match=r"/none must exist: .*mkdir",
    ):
        check_results(RunRequest(JobSpec(), export=str(remote / "none/m")))
    with pytest.raises(ConfigError, match=r"/folder, .* be a file"):
        check_results(RunRequest(JobSpec(), report=str(remote / "folder")))


def with_results(folder: Path) -> JobDir:
    """Return the directory of an ended job with results."""
    job = JobDir(folder / "job")
    job.path.mkdir()
    job.model.write_bytes(b"model")
    job.report.write_bytes(b"{}")
    return job


def test_who_interrupts_the_wait_for_hdfs_is_told_where_what_was_trained_is(
    hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path
) -> None:
    job = with_results(tmp_path)
    (tmp_path / "m.npz").write_bytes(b"before")
    hdfs.make_folders("/models", "755")
    hdfs.fault("CREATE", "error", name="SafeModeException", message="in safe mode", left=99)

    def interrupt_it() -> None:
        if hdfs.asked("CREATE"):
            raise KeyboardInterrupt

    request = RunRequest(JobSpec(), report=str(tmp_path / "r.json"), export=str(remote / "models/m.npz"))
    with pytest.raises(KeyboardInterrupt) as raised, interrupt.stopped_by(interrupt_it):
        deliver_results(job, request)
    assert (tmp_path / "r.json").read_bytes() == b"{}"
    assert raised.value.__notes__ == [
        f"job: interrupted; {remote}models/m.npz is not written: what it was to hold is {job.model}"
    ]


def test_of_a_job_whose_results_cannot_be_brought_is_said_that_it_finished_and_where_they_are(
    hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path
) -> None:
    job = with_results(tmp_path)
    note_end(job, "finished")
    hdfs.make_folders("/models", "755")
    request = RunRequest(JobSpec(), report=str(remote / "models/r.json"), export=str(remote / "models/m.npz"))
    hdfs.fault("CREATE", "error", name="AccessControlException", message="Permission denied: user=eva")

    def damage(text: str) -> None:
        job.job_json.write_text("{")

    with pytest.raises(StorageError) as raised:
        # The message names the failed delivery, also if the job's directory vanishes meanwhile.
        deliver_results(job, request, damage)
    job.job_json.unlink()
    note_end(job, "finished")
    told = str(raised.value)
    assert told.startswith(
        f"job 'job' finished, but its report and its model could not be brought: {remote}models/r.json"
    )
    assert told.endswith(f"what it was to hold is {job.report}; {job.model} was to become {remote}models/m.npz")

    hdfs.fault("CREATE", "error", name="AccessControlException", message="Permission denied: user=eva", left=9)
    with pytest.raises(StorageError, match=r"'job' .*m\.npz: .*denied"):
        deliver_results(job, dataclasses.replace(request, report=""))


def test_a_result_that_is_written_to_hdfs_is_told_of_before_hdfs_is_asked(
    hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path
) -> None:
    """Otherwise a silent NameNode would delay the command without a message."""
    job = with_results(tmp_path)
    hdfs.make_folders("/models", "755")
    told: list[tuple[str, int]] = []
    request = RunRequest(JobSpec(), report=str(tmp_path / "r.json"), export=str(remote / "models/m.npz"))
    deliver_results(job, request, lambda text: told.append((text, len(hdfs.requests))))
    where = f"writes its model to {remote}models/m.npz; where HDFS does not answer, that is waited for"
    assert told == [(where, 0)] and hdfs.find("/models/m.npz").content == b"model"


def test_eps_run_says_that_it_writes_to_hdfs(
    hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = SimpleNamespace(name="job", directory=JobDir(tmp_path / "job"), close=lambda: None)
    job.directory.path.mkdir()
    job.directory.model.write_bytes(b"model")
    hdfs.make_folders("/models", "755")
    report = {"name": "job", "state": "finished"}
    monkeypatch.setattr(run_command, "_show", lambda *_: None)
    monkeypatch.setattr(run_command, "_ended", lambda _: report)
    monkeypatch.setattr(run_command, "summary_text", lambda _: "the summary")
    request = RunRequest(JobSpec(), export=str(remote / "models/m.npz"))
    for detail in (run_command.Detail.PROGRESS, run_command.Detail.QUIET):
        stream = io.StringIO()
        assert run_command._to_its_end(cast(Job, job), request, stream, detail) == (report, 0)
        lines = stream.getvalue().splitlines()
        assert [line.partition(" to ")[0] for line in lines] == (
            [] if detail is run_command.Detail.QUIET else ["the summary", "job: writes its model"]
        )


def test_a_file_on_hdfs_that_is_newer_than_a_stopped_job_is_said_to_be_replaced(
    hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path
) -> None:
    job = JobDir(tmp_path)
    request = RunRequest(JobSpec(), export=str(remote / "models/m.npz"))
    keep_places(job, request)
    hdfs.put("/models/m.npz", b"of somebody else")
    hdfs.find("/models/m.npz").modified_ms = 1
    assert replaced_by_results(job, request) == []
    hdfs.find("/models/m.npz").modified_ms = 1 << 42
    (told,) = replaced_by_results(job, request)
    assert told.startswith(f"{remote}models/m.npz is newer than job")
    job.model.write_bytes(b"of another length than that")
    assert replaced_by_results(job, request) == [told] and hdfs.asked("OPEN") == [], "its length says it"
    job.model.write_bytes(b"of somebody else")
    assert replaced_by_results(job, request) == []


def test_a_file_on_hdfs_is_compared_with_what_a_job_has_made_piece_by_piece(
    hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, request = JobDir(tmp_path), RunRequest(JobSpec(), export=str(remote / "models/m.npz"))
    keep_places(job, request)
    content = bytes(range(256)) * 9000
    job.model.write_bytes(content)
    asked: list[int] = []
    read = _Reader.read

    def noted(self: _Reader, size: int = -1) -> bytes:
        asked.append(size)
        return read(self, size)

    monkeypatch.setattr(_Reader, "read", noted)
    for there, num_replaced in ((content, 0), (b"x" + content[1:], 1), (content[:-1] + b"x", 1)):
        hdfs.put("/models/m.npz", there)
        hdfs.find("/models/m.npz").modified_ms = 1 << 42
        assert len(replaced_by_results(job, request)) == num_replaced
    assert set(asked) == {1 << 20}


def test_predictions_that_cannot_be_written_are_refused_before_they_are_made(
    hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hdfs.put("/folder/file", b"")
    for where in (remote / "folder", tmp_path):
        assert main(["predict", "--model", str(tmp_path / "none"), "--data", "x", "--out", str(where)]) == 2
        assert capsys.readouterr().err == f"eps: --out is {where}, but must be a file that can be written\n"


def test_a_result_is_copied_readable_for_everybody(hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path) -> None:
    (tmp_path / "model.npz").write_bytes(b"content")
    copy_result(tmp_path / "model.npz", remote / "m.npz", "missing")
    node = hdfs.nodes["/m.npz"]
    assert (node.content, node.mode) == (b"content", "644")
    hdfs.fault("CREATE", "error", name="AccessControlException", message="Permission denied: user=eva")
    with pytest.raises(StorageError, match=r"/m\.npz: .*model\.npz"):
        copy_result(tmp_path / "model.npz", remote / "m.npz", "missing")


def test_a_model_on_hdfs_that_is_none_is_told(hdfs: FakeHdfs, remote: RemotePath) -> None:
    write_public(remote / "x.npz", b"no model")
    with pytest.raises(DataError, match=r"/x\.npz: not a model"):
        read_model(remote / "x.npz")
    with pytest.raises(DataError, match=r"/y\.npz: .*no such"):
        read_model(remote / "y.npz")


def test_paths_in_a_job_file_that_are_on_hdfs_stay(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('data = "hdfs://lake/a,b.csv"\ntest = "hdfs:/t"\ncheckpoint-dir = "c"\n')
    found = read_job_file(tmp_path / "job.toml")
    assert found["data"] == ["hdfs://lake/a", str(tmp_path / "b.csv")]
    assert (found["test"], found["checkpoint_dir"]) == ("hdfs:/t", str(tmp_path / "c"))


# ---- where checkpoints go


def test_a_job_knows_where_its_checkpoints_are(tmp_path: Path) -> None:
    def runtime(**spec: str) -> Runtime:
        shape = dict(num_features=4, num_outputs=2, split_rows=(4,), sparse=False, test_rows=0, split_checksums=("",))
        text = {"name": "job", "spec": spec, "shape": shape, "dataset_dir": "/d", "job_dir": "/jobs/container"}
        return Runtime.from_json(json.dumps(text))

    assert runtime().checkpoints == Path("/jobs/container/checkpoints")
    assert runtime(checkpoint_dir="/c").checkpoints == Path("/c/job")
    there = runtime(checkpoint_dir="hdfs://lake/c")
    assert there.checkpoints == location("hdfs://lake/c/job")
    assert identity(there) == identity(runtime())


@pytest.mark.parametrize("place", ["s3://bucket/ck", "file:///ck"])
def test_checkpoints_on_another_file_system_are_refused_and_are_no_folder_here(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    known = f"checkpoint_dir: {place!r} is on no file system that EPS supports: expected a local path, or hdfs://, webhdfs://"
    for spec in (
        JobSpec().with_settings(data="sklearn:iris", model="softmax", checkpoint_dir=place),
        in_file(tmp_path / "job.toml", place),
    ):
        with pytest.raises(ConfigError) as raised:
            prepare_job(RunRequest(spec, "job"))
        assert str(raised.value).startswith(known)
    with pytest.raises(ConfigError, match="no file system"):
        check_results(RunRequest(JobSpec(), export=place))
    assert list(Path.cwd().iterdir()) == [] and not (home / "jobs" / "job").exists()


def in_file(path: Path, place: str) -> JobSpec:
    """Return the settings of a job file that names a folder for checkpoints."""
    path.write_text(f'data = "sklearn:iris"\nmodel = "softmax"\ncheckpoint-dir = "{place}"\n')
    return RunRequest.from_values(read_job_file(path), str(path)).spec


def test_a_folder_is_taken_once(hdfs: FakeHdfs, remote: RemotePath, tmp_path: Path) -> None:
    for folder in (remote / "c/job", tmp_path / "c" / "job"):
        claim(folder, "one:/jobs/job")
        with pytest.raises(JobExistsError, match="belongs to job one:"):
            claim(folder, "two:/jobs/job")
        write_public(folder / "left", b"")
        claim(folder, "one:/jobs/job")
        check_claim(folder, "one:/jobs/job")
    assert [p for p in hdfs.nodes if p.startswith("/c/job/")] == [f"/c/job/{OWNER}"]
    hdfs.put("/c/other/file", b"")
    with pytest.raises(JobExistsError, match="/c/other is not empty"):
        claim(remote / "c/other", "one:/jobs/other")


def test_checkpoints_of_another_home_are_not_touched_and_those_of_a_stopped_job_are_kept(
    hdfs: FakeHdfs, remote: RemotePath, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare_job(request_for(remote))
    first.lock.close()
    place = first.runtime.checkpoints
    assert (
        str(place) == f"{remote}checkpoints/job"
        and first.runtime.spec.checkpoints.checkpoint_dir == f"{remote}checkpoints"
    )
    hdfs.put(f"{place.path}/0001-00000040/manifest.json", b"{}")
    with pytest.raises(JobExistsError, match="'job' stopped"):
        prepare_job(request_for(remote))
    assert f"{place.path}/0001-00000040/manifest.json" in hdfs.nodes
    # While HDFS is unreachable, the owner of a folder is unknown.
    monkeypatch.setenv("EPS_HDFS_PATIENCE_S", "0")
    hdfs.fault("LISTSTATUS", "error", name="SafeModeException", message="in safe mode", left=3)
    with pytest.raises(StorageError, match="safe mode"):
        prepare_job(request_for(remote, anew=True))
    assert JobDir(home / "jobs" / "job").job_json.exists()
    hdfs.faults.clear()
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("EPS_HOME", str(tmp_path / "other"))
        with pytest.raises(JobExistsError, match=r"belongs to job .*/job:"):
            prepare_job(request_for(remote, anew=True))
    prepare_job(request_for(remote, anew=True)).lock.close()
    assert f"{place.path}/0001-00000040/manifest.json" not in hdfs.nodes


@pytest.fixture
def on_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Pretend to be another machine with its own EPS_HOME."""

    def go_on(hostname: str, home: str) -> None:
        monkeypatch.setattr("eps.storage.claims.socket.gethostname", lambda: hostname)
        monkeypatch.setenv("EPS_HOME", str(tmp_path / home))

    return go_on


def prepared_in(place: RemotePath, name: str = "", *, anew: bool = False) -> str:
    """Prepare a job whose checkpoints go where EPS says; return its name."""
    request = RunRequest.of_spec(JobSpec(data="sklearn:iris", model="softmax"), name, anew=anew)
    prepared = prepare_job(request, own_checkpoints=place)
    prepared.lock.close()
    return prepared.directory.name


def test_jobs_without_a_name_of_several_machines_share_no_folder(
    hdfs: FakeHdfs, remote: RemotePath, on_machine: Callable[[str, str], None]
) -> None:
    place = remote / "home/checkpoints"
    found = []
    for machine in ("laptop", "edge", "laptop", "edge"):
        on_machine(machine, machine)
        found.append(prepared_in(place))
    assert found == ["softmax-1", "softmax-2", "softmax-3", "softmax-4"]
    owners = [hdfs.nodes[f"/home/checkpoints/{name}/{OWNER}"].content.partition(b":")[0] for name in found]
    assert owners == [b"laptop", b"edge", b"laptop", b"edge"]
    # An explicit name is used as it is.
    with pytest.raises(JobExistsError, match=r"softmax-1 .* job laptop"):
        prepared_in(place, "softmax-1")


def test_names_of_others_are_asked_for_at_once(
    hdfs: FakeHdfs, remote: RemotePath, on_machine: Callable[[str, str], None]
) -> None:
    on_machine("laptop", "laptop")
    for number in range(1, 41):
        hdfs.put(f"/home/checkpoints/softmax-{number}/{OWNER}", b"edge:/home/ada/.eps/jobs/softmax\n")
    assert prepared_in(remote / "home/checkpoints") == "softmax-41"
    looked = {path for _, path, _, _ in hdfs.requests if path.startswith("/home/checkpoints")}
    assert looked and not [path for path in looked if path != "/home/checkpoints" and "softmax-41" not in path]


def test_a_machine_that_is_called_otherwise_has_its_folders_still(
    hdfs: FakeHdfs, remote: RemotePath, home: Path, on_machine: Callable[[str, str], None]
) -> None:
    place, owner = remote / "home/checkpoints", f"/home/checkpoints/job/{OWNER}"
    on_machine("before", "home")
    prepared_in(place, "job")
    on_machine("after", "home")
    prepared_in(place, "job", anew=True)
    assert hdfs.nodes[owner].content.startswith(b"after:")
    # The folder belongs to another job now, or never belonged to the job of that name.
    hdfs.put(owner, b"elsewhere:/jobs/job\n")
    hdfs.put(f"/home/checkpoints/other/{OWNER}", b"before:/jobs/other\n")
    for name in ("job", "other"):
        with pytest.raises(JobExistsError, match="belongs to job"):
            prepared_in(place, name, anew=True)
    assert hdfs.nodes[owner].content.startswith(b"elsewhere:")


def test_a_place_is_the_same_in_every_directory(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"checkpoint_dir": "here", "checkpoint_every": "9"}
    spec = JobSpec().with_settings(data="sklearn:iris", model="softmax", **places)
    prepared = prepare_job(RunRequest.of_spec(spec, "job"))
    prepared.lock.close()
    assert prepared.runtime.checkpoints == tmp_path / "here" / "job"
    assert (tmp_path / "here" / "job" / OWNER).exists()
