"""Jobs on YARN that were submitted from anywhere: what their callers must know is where they were staged."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from eps.cluster.yarn.application import JOB_ARCHIVE
from eps.cluster.yarn.shipping import packed
from eps.core.types import Address
from eps.errors import ConfigError, StorageError
from eps.hadoop.conf import HadoopConf
from eps.job.yarn.am import with_grants, with_why
from eps.job.yarn.staged_jobs import StagedJobs
from eps.net.security.credentials import Security
from eps.storage.atomic import read_json
from eps.storage.jobdir import JobDir
from tests.fakes.webhdfs import FakeHdfs

pytest.importorskip("hdfs")

ID = "application_1700000000000_0001"
TOKEN, OTHERS = b"0123456789abcdef" * 2, b"fedcba9876543210" * 2
MASTER = Address("127.0.0.11", 4711)
TLS = ("tls/ca.pem", "tls/certificate.pem", "tls/key.pem")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHdfs]:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with FakeHdfs() as found:
        yield found


@pytest.fixture
def staged(fake: FakeHdfs) -> Iterator[StagedJobs]:
    found = StagedJobs(HadoopConf(), f"webhdfs://{fake.authority}/staging/")
    yield found
    found.close()


def stage(fake: FakeHdfs, token: bytes, more: tuple[str, ...] = (), application: str = ID) -> None:
    """Stage a job, as its submission does."""
    files = [("job.json", b"{}", 0o600), ("token", token + b"\n", 0o600), *((name, b"pem", 0o600) for name in more)]
    fake.put(f"/staging/jobs/a9a-{application}/{JOB_ARCHIVE}", packed(files).content)


def token_of(job: JobDir) -> bytes:
    return job.token.read_bytes().strip()


def test_job_is_found_by_its_application(fake: FakeHdfs, staged: StagedJobs) -> None:
    stage(fake, OTHERS, application="application_1700000000000_0002")
    stage(fake, TOKEN)
    job = staged.directory(ID, "a9a", "ada", MASTER)
    assert (job.name, token_of(job)) == ("a9a", TOKEN)
    assert read_json(job.master_json) == {"host": MASTER.host, "port": MASTER.port}
    assert {path.name for path in job.path.iterdir()} == {"token", "master.json"}, "nothing else is brought"
    assert stat.S_IMODE(job.token.stat().st_mode) == 0o600
    assert stat.S_IMODE(job.path.parent.parent.stat().st_mode) == 0o700
    assert Security.of_job(job.path).tls is None


def test_next_master_is_known_without_looking_again(fake: FakeHdfs, staged: StagedJobs) -> None:
    stage(fake, TOKEN)
    staged.directory(ID, "a9a", "ada", MASTER)
    asked = len(fake.requests)
    job = staged.directory(ID, "a9a", "ada", Address("127.0.0.12", 5000))
    assert read_json(job.master_json) == {"host": "127.0.0.12", "port": 5000}
    assert len(fake.requests) == asked


def test_certificates_come_with_the_token(fake: FakeHdfs, staged: StagedJobs) -> None:
    stage(fake, TOKEN, more=TLS)
    job = staged.directory(ID, "a9a", "ada", MASTER)
    assert {str(path.relative_to(job.path)) for path in job.tls.iterdir()} == set(TLS)
    assert Security.of_job(job.path).tls is not None


def test_job_that_cannot_be_read_is_told_with_why(fake: FakeHdfs, staged: StagedJobs) -> None:
    with pytest.raises(StorageError, match=f"a9a-{ID}"):
        staged.directory(ID, "a9a", "ada", MASTER)
    stage(fake, TOKEN)
    fake.fault("OPEN", "error", name="AccessControlException", message="Permission denied: user=eva")
    with pytest.raises(StorageError, match="denied: user=eva"):
        staged.directory(ID, "a9a", "ada", MASTER)
    fake.put(f"/staging/jobs/a9a-{ID}/{JOB_ARCHIVE}", b"no archive")
    with pytest.raises(StorageError, match="no archive"):
        staged.directory(ID, "a9a", "ada", MASTER)


@pytest.mark.parametrize(("application_id", "name"), [("../x", "a9a"), (ID, "../../x"), (ID, "")])
def test_names_that_lead_elsewhere_are_refused(staged: StagedJobs, application_id: str, name: str) -> None:
    with pytest.raises(ConfigError):
        staged.directory(application_id, name, "ada", MASTER)


def test_what_is_kept_is_forgotten(fake: FakeHdfs, staged: StagedJobs) -> None:
    stage(fake, TOKEN)
    job = staged.directory(ID, "a9a", "ada", MASTER)
    staged.forget(ID)
    staged.forget("application_1_1")
    assert not job.path.exists()
    assert token_of(staged.directory(ID, "a9a", "ada", MASTER)) == TOKEN


def test_status_tells_yarns_names_of_containers() -> None:
    status = {
        "clock": 3,
        "members": [{"name": "worker-1", "container": "c-1"}, {"name": "worker-2", "container": "c-2"}],
    }
    found = with_grants(status, {"c-1": "container_1"})
    assert [member["granted"] for member in found["members"]] == ["container_1", ""]
    assert (found["clock"], "granted" in status["members"][0]) == (3, False)  # type: ignore[index]


def test_status_of_a_job_that_starts_tells_what_yarn_has_said_of_the_container_that_it_waits_for() -> None:
    status = {
        "state": "starting",
        "reason": "waits for 1 container, asked for 65 s ago: server-3",
        "members": [{"name": "worker-1", "container": "c-1"}, {"name": "server-3", "container": "c-6"}],
    }
    why = {"c-6": "it asks for 1024 MB and 1 vcore"}
    assert with_why(status, why)["reason"] == f"{status['reason']}; it asks for 1024 MB and 1 vcore"
    assert with_why(status, {}) == status and with_why({**status, "reason": ""}, why)["reason"] == ""
    assert with_why({**status, "state": "failed"}, why)["reason"] == status["reason"]
    stands = {**status, "state": "running", "reason": "", "recovery_waits_for": status["reason"]}
    assert with_why(stands, why)["recovery_waits_for"] == f"{status['reason']}; it asks for 1024 MB and 1 vcore"
    assert with_why({**stands, "recovery_waits_for": ""}, why)["recovery_waits_for"] == ""
