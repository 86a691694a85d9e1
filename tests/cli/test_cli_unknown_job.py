"""Errors about a job that this machine does not know; its application may run nevertheless."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from eps.cli import main
from eps.cluster.yarn.application import staged_name
from eps.job.yarn import staged_jobs
from tests.fakes.resourcemanager import FakeResourceManager, resourcemanager

APP = "application_1700000000000_0007"
SITE = """<configuration><property><name>yarn.resourcemanager.webapp.address</name><value>{}</value></property>
</configuration>"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeResourceManager]:
    """A cluster that ``HADOOP_CONF_DIR`` names, and a home without jobs."""
    pytest.importorskip("requests")
    with resourcemanager() as found:
        conf = tmp_path / "conf"
        conf.mkdir()
        (conf / "yarn-site.xml").write_text(SITE.format(found.url.removeprefix("http://")))
        monkeypatch.setenv("HADOOP_CONF_DIR", str(conf))
        monkeypatch.setenv("HADOOP_USER_NAME", "ada")
        monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
        yield found


def has(cluster: FakeResourceManager, *names: str) -> None:
    apps = [
        {"id": f"{APP}{n or ''}", "name": name, "state": "RUNNING", "user": "ada", "startedTime": n}
        for n, name in enumerate(names)
    ]
    cluster.answers["GET apps"] = (200, {"apps": {"app": apps}})


@pytest.mark.parametrize("words", [["kill", "a9a"], ["status", "a9a"], ["logs", "a9a"], ["resume", "a9a"]], ids=str)
def test_job_whose_folder_was_removed_is_told_by_its_application(
    words: list[str], cluster: FakeResourceManager, capsys: pytest.CaptureFixture[str]
) -> None:
    has(cluster, "a9a", "a9a-2")
    assert main(words) == 4
    told = capsys.readouterr().err
    assert "no job 'a9a' in" in told and f"YARN has {APP} (of ada, running) of that name" in told
    assert f"To end it: yarn application -kill {APP}." in told and f"{APP}1" not in told
    (theirs,) = re.findall(r"Its files on HDFS \('\.eps/jobs/(\S+)' \.eps/checkpoints/a9a\) stay; .*--staging", told)
    # The command in the message must not match other jobs.
    assert [fnmatchcase(staged_name(name, APP), theirs) for name in ("a9a", "a9a-2", "a9a-2-b")] == [True, False, False]
    ((method, path, query, _),) = cluster.asked
    assert (method, path) == ("GET", "apps") and "RUNNING" in query and "FINISHED" not in query


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, {"apps": None}), "no application of YARN at {url} has that name"),
        ((500, "no"), "list the applications: the ResourceManager answered 500: no"),
        ((200, "no JSON"), "list the applications: "),
    ],
    ids=str,
)
def test_where_yarn_has_nothing_of_that_name_or_cannot_say_it_is_told_that_it_was_asked(
    answer: tuple[int, object], said: str, cluster: FakeResourceManager, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answers["GET apps"] = answer
    assert main(["kill", "a9a"]) == 4
    told = capsys.readouterr().err
    assert told.startswith(f"eps: no job 'a9a' in {os.environ['EPS_HOME']}/jobs; {said.format(url=cluster.url)}")
    assert len(cluster.asked) == 1


def test_without_a_configuration_of_hadoop_nobody_is_asked(
    cluster: FakeResourceManager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    has(cluster, "a9a")
    monkeypatch.delenv("HADOOP_CONF_DIR")
    assert main(["kill", "a9a"]) == 4
    assert "jobs; no cluster was asked: HADOOP_CONF_DIR is not set" in capsys.readouterr().err and not cluster.asked


def test_configuration_that_is_none_does_not_hide_that_there_is_no_such_job(
    cluster: FakeResourceManager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "nowhere"))
    assert main(["status", "a9a"]) == 4
    told = capsys.readouterr().err
    assert "no job 'a9a'" in told and "no cluster was asked: HADOOP_CONF_DIR" in told and "nowhere" in told


def test_cluster_that_is_silent_is_waited_for_shortly(
    cluster: FakeResourceManager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(staged_jobs, "FIND_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "conf" / "yarn-site.xml").write_text(SITE.format(address))
        assert main(["status", "a9a"]) == 4
    assert f"{address} did not answer within 0.05 s" in capsys.readouterr().err and not cluster.asked
