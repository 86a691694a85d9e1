"""Options of ``eps submit`` for the application: an unmodified ResourceManager applies them."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from eps.job.client import Job
from eps.job.yarn.remote import YarnJob
from tests.yarn.hadoop import Hadoop
from tests.yarn.test_jobs_on_yarn import JOB, application_of, reach

pytestmark = pytest.mark.usefixtures("no_leftovers")

LIFETIME_S = 40.0


def test_an_application_has_its_priority_and_ends_cleanly_before_its_lifetime(on_yarn: Hadoop) -> None:
    options = {"priority": 3, "lifetime_s": LIFETIME_S, "acl": ("view=ann,bob", "modify=ann operators")}
    with Job.start(**{**JOB, "iterations": 1_000_000, **options}, on="yarn", name="brief") as job:
        path = f"/ws/v1/cluster/apps/{application_of(job)}"
        assert on_yarn.rest(path)["app"]["priority"] == 3
        (timeout,) = on_yarn.rest(f"{path}/timeouts")["timeouts"]["timeout"]
        assert timeout["type"] == "LIFETIME" and 0 <= timeout["remainingTimeInSeconds"] <= LIFETIME_S
        reach(job, 1)
        report = job.wait(120.0)
        assert (report["state"], report["reason"]) == ("killed", f"its lifetime of {LIFETIME_S:g} s has passed")
        assert report["clock"] >= 1 and len(report["history"]) == report["clock"]
        assert on_yarn.rest(path)["app"]["finalStatus"] == "KILLED"
        shared = urlsplit(YarnJob(job.directory).application.shared).path
    for folder in (shared, shared.rpartition("/")[0]):
        rights = on_yarn.run_cli("hdfs", "dfs", "-getfacl", folder).split()
        assert {"user:ann:--x", "user:bob:--x", "other::---"} <= set(rights)
    listed = {line.split()[-1].rpartition("/")[2]: line[:10] for line in
              on_yarn.run_cli("hdfs", "dfs", "-ls", f"{shared}/results", shared).splitlines()}  # fmt: skip
    assert listed["report.json"] == listed["page.html"] == "-rw-r--r--" and listed["job.zip"] == "-rw-------"
