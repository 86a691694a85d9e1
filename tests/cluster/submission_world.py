"""A cluster and an HDFS that take a submission, and a job to be submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from eps.hadoop.conf import HadoopConf
from eps.job.yarn.submit import start as start
from eps.spec.file import RunRequest
from eps.storage.jobdir import JobDir
from tests.fakes.patient_hdfs import hdfs as hdfs
from tests.fakes.webhdfs import FakeHdfs
from tests.fakes.yarn_client import FakeYarnClient

ROWS = "1 1:1 2:0.5\n-1 2:1\n" * 12


@pytest.fixture
def conf(tmp_path: Path) -> HadoopConf:
    return HadoopConf({}, str(tmp_path), {})


@pytest.fixture
def request_(hdfs: FakeHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conf: HadoopConf) -> RunRequest:
    """A job whose checkpoints go where EPS says; the cluster takes it."""
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HADOOP_CONF_DIR", conf.source)
    (tmp_path / "core-site.xml").write_text("<configuration></configuration>")
    (tmp_path / "rows.libsvm").write_text(ROWS)
    monkeypatch.setattr("eps.job.yarn.submit.check_job", lambda cluster, spec: None)
    staging = f"webhdfs://{hdfs.authority}/eps"
    data = str(tmp_path / "rows.libsvm")
    return RunRequest.from_values({"data": data, "iterations": 3, "on": "yarn", "name": "a9a", "staging": staging})


@pytest.fixture
def yarn(request_: RunRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeYarnClient:
    found = FakeYarnClient(directory=JobDir(tmp_path / "home" / "jobs" / "a9a"))
    monkeypatch.setattr("eps.job.yarn.submit.YarnClient", lambda conf: found)
    return found


def own(hdfs: FakeHdfs) -> list[str]:
    return [path for path in hdfs.nodes if path.startswith(("/eps/jobs/", "/eps/checkpoints/"))]
