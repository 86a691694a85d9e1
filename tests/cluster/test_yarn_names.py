"""A name that a job on YARN still has, though nothing on this machine knows of it any more."""

from __future__ import annotations

import dataclasses
import re
import shutil

import pytest

from eps.errors import ConfigError, JobExistsError
from eps.spec.file import RunRequest
from eps.storage.jobdir import jobs_dir, list_jobs
from tests.cluster.submission_world import conf as conf
from tests.cluster.submission_world import request_ as request_
from tests.cluster.submission_world import start
from tests.cluster.submission_world import yarn as yarn
from tests.fakes.patient_hdfs import hdfs as hdfs
from tests.fakes.webhdfs import FakeHdfs
from tests.fakes.yarn_client import ID, FakeYarnClient

pytest.importorskip("hdfs")

CHECKPOINT = "/eps/checkpoints/a9a/0001-00000002/manifest.json"


@pytest.fixture
def lost(request_: RunRequest, yarn: FakeYarnClient, hdfs: FakeHdfs) -> FakeYarnClient:
    """A cluster with a job that has a checkpoint, and whose directory here somebody has removed."""
    start(request_)
    hdfs.put(CHECKPOINT, b"{}")
    shutil.rmtree(jobs_dir() / "a9a")
    return yarn


def runs(yarn: FakeYarnClient, **told: str) -> None:
    """Have the cluster run an application of the name."""
    yarn.lists(ID, **{"name": "a9a", "state": "RUNNING", **told})
    yarn.lists("application_1_0000", name="a9a", state="FINISHED")


def test_a_job_that_runs_keeps_its_name_and_its_checkpoints(
    lost: FakeYarnClient, request_: RunRequest, hdfs: FakeHdfs
) -> None:
    runs(lost)
    with pytest.raises(JobExistsError, match=f"{ID}, .*eps kill a9a"):
        start(request_)
    assert CHECKPOINT in hdfs.nodes and list_jobs() == []


@pytest.mark.parametrize("told", [{"name": "other"}, {"user": "grace"}])
def test_another_job_keeps_nobody_from_the_name(
    lost: FakeYarnClient, request_: RunRequest, hdfs: FakeHdfs, told: dict[str, str]
) -> None:
    runs(lost, **told)
    start(request_)
    assert CHECKPOINT not in hdfs.nodes and [job.name for job in list_jobs()] == ["a9a"]


def test_a_name_that_no_job_may_have_is_told_as_such(yarn: FakeYarnClient, request_: RunRequest) -> None:
    with pytest.raises(ConfigError, match=re.escape("job name '../b'")):
        start(dataclasses.replace(request_, name="../b"))
