"""A client that submits to YARN and queries it: Java runs in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from eps.cluster.yarn.client import YarnClient
from eps.cluster.yarn.hadoop import client as hadoop_client
from eps.cluster.yarn.types import (
    FileKind,
    Launch,
    LocalFile,
    Resource,
    Submission,
    Visibility,
)
from eps.errors import ConfigError, ResourceError
from eps.hadoop import tokens
from eps.hadoop.conf import HadoopConf
from eps.system.waits import wait_for
from tests.fakes.resourcemanager import FakeResourceManager, resourcemanager

pytest.importorskip("requests")

SUBMISSION = Submission(
    name="a9a",
    launch=Launch(
        "exec python -m eps.job.yarn.am",
        {"B": "2", "A": "1"},
        {"eps-job": LocalFile("hdfs://nn:8020/x/job.zip", 12, 34, FileKind.ARCHIVE, Visibility.APPLICATION)},
        b"tokens",
    ),
    resource=Resource(512, 1),
    queue="batch",
    tags=("sweep-1",),
    label="fast",
    failures_valid_s=60.0,
)


@pytest.fixture
def rm(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeResourceManager]:
    monkeypatch.setattr("eps.cluster.yarn.client.MODULE", "tests.fakes.hadoop_process")
    with resourcemanager() as found:
        found.answers["GET apps/application_1_0001"] = (200, {"app": {"id": "application_1_0001", "state": "RUNNING"}})
        yield found


@pytest.fixture
def conf(rm: FakeResourceManager, tmp_path: Path) -> HadoopConf:
    return replace(rm.conf, source=str(tmp_path))


def said(tmp_path: Path) -> list[list[Any]]:
    """Return what Hadoop's client was told, each with the process."""
    path = tmp_path / "said"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_submission_travels_as_json() -> None:
    for submission in (SUBMISSION, Submission("x", Launch("true"), Resource(1, 1), priority=3)):
        assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(submission))), Submission) == submission


def test_who_only_looks_needs_no_java(conf: HadoopConf, tmp_path: Path) -> None:
    with closing(YarnClient(conf)) as client:
        assert client.report("application_1_0001").state == "RUNNING"
        assert client.user == "ada" and client.obtain_tokens() == b"" and client.address.startswith("http://127")
    assert said(tmp_path) == []


def test_a_process_of_its_own_submits_and_ends_with_the_client(conf: HadoopConf, tmp_path: Path) -> None:
    with closing(YarnClient(conf)) as client:
        client.prepare()
        assert client.new_application() == "application_1_0001"
        client.submit("application_1_0001", SUBMISSION)
    (first, *_), *_ = told = said(tmp_path)
    assert told == [[first, "opened"], [first, "submit", "application_1_0001", repr(SUBMISSION)]]
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    client.close()


def test_what_hadoop_refuses_is_an_error_of_its_kind(conf: HadoopConf, tmp_path: Path) -> None:
    with closing(YarnClient(conf)) as client:
        (tmp_path / "refuses").write_text("ConfigError: no such queue")
        with pytest.raises(ConfigError, match="no such queue"):
            client.submit("application_1_0001", SUBMISSION)
        (tmp_path / "refuses").unlink()
        client.submit("application_1_0001", SUBMISSION)
        (tmp_path / "dies").touch()
        with pytest.raises(ResourceError, match="Hadoop's client exited with code"):
            client.new_application()
        (tmp_path / "dies").unlink()
        assert client.new_application() == "application_1_0001", "the next one is another process"


def test_who_is_interrupted_has_nothing_submitted_afterwards(conf: HadoopConf, tmp_path: Path) -> None:
    (tmp_path / "takes long").touch()

    def interrupt() -> None:
        wait_for(lambda: any("submitting" in line for line in said(tmp_path)), 60.0, "the submission")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with closing(YarnClient(conf)) as client:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            client.submit("application_1_0001", SUBMISSION)
        thread.join()
        with pytest.raises(ProcessLookupError):
            os.kill(said(tmp_path)[0][0], 0)


def test_with_kerberos_a_token_says_who_asks_and_is_cancelled_at_the_end(
    rm: FakeResourceManager, conf: HadoopConf, tmp_path: Path
) -> None:
    secure = replace(conf, values={**conf.values, "hadoop.security.authentication": "kerberos"})
    with closing(YarnClient(secure)) as client:
        for _ in range(2):
            assert client.report("application_1_0001").state == "RUNNING"
        assert client.user == "ada"
    assert [line[1] for line in said(tmp_path)] == ["opened", "obtain", "cancel"]
    assert all("user.name" not in query for _, _, query, _ in rm.asked)


def test_without_a_configuration_the_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="HADOOP_CONF_DIR"):
        YarnClient(HadoopConf())


def test_the_masters_label_is_not_that_of_containers_that_ask_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """YARN would give the label of an application to those."""
    said: dict[str, Any] = {}

    class Context:
        def __getattr__(self, name: str) -> Callable[[Any], None]:
            return lambda value: said.update({name: value})

    def record(name: str) -> Any:
        made = Context() if name == "ApplicationSubmissionContext" else None
        return SimpleNamespace(newInstance=lambda *values: made or values, ANY="*")

    monkeypatch.setattr(hadoop_client, "record", record)
    for name in ("java_launch", "java_resource", "java_application_id", "java_set", "jint", "jbool", "jlong"):
        monkeypatch.setattr(hadoop_client, name, lambda value: value)
    hadoop_client._context("application_1_0001", Submission("x", Launch("true"), Resource(512, 1), label="fast"))
    assert said["setAMContainerResourceRequest"] == ((0,), "*", Resource(512, 1), 1, True, "fast")
    assert "setNodeLabelExpression" not in said
    said.clear()
    hadoop_client._context("application_1_0001", Submission("x", Launch("true"), Resource(512, 1)))
    assert said.keys() == {"setApplicationTags"}


def test_members_get_no_token_for_the_resource_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one of its user they could submit applications, and end others."""

    class Credentials:
        def __init__(self, *kinds: str) -> None:
            self.tokens = [SimpleNamespace(getKind=lambda kind=kind: kind, getService=lambda: "") for kind in kinds]

        def getAllTokens(self) -> list[Any]:
            return self.tokens

        def addToken(self, service: str, token: Any) -> None:
            self.tokens.append(token)

        def getAllSecretKeys(self) -> list[Any]:
            return []

    monkeypatch.setattr(tokens, "java", lambda name: Credentials)
    given = Credentials("YARN_AM_RM_TOKEN", "RM_DELEGATION_TOKEN", "HDFS_DELEGATION_TOKEN")
    kept = tokens.without_resource_manager(given)
    assert [token.getKind() for token in kept.getAllTokens()] == ["HDFS_DELEGATION_TOKEN"]
