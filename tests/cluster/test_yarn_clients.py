"""Which client asks a cluster."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from eps.cluster.yarn.clients import asked_at, client_kind, open_client
from eps.cluster.yarn.hadoop import client as hadoop_client
from eps.cluster.yarn.rest import RestClient
from eps.cluster.yarn.types import Launch, Resource, Submission
from eps.errors import ConfigError
from eps.hadoop import tokens
from eps.hadoop.conf import HadoopConf

SECURE = HadoopConf({"hadoop.security.authentication": "Kerberos"}, "/etc/hadoop")


@pytest.mark.parametrize(
    ("conf", "asked", "kind"),
    [
        (HadoopConf(), "auto", "rest"),
        (HadoopConf({"hadoop.security.authentication": "simple"}), "auto", "rest"),
        (SECURE, "auto", "java"),
        (SECURE, "rest", "rest"),
        (HadoopConf(), "java", "java"),
    ],
)
def test_the_one_that_was_asked_for_or_java_where_kerberos_is_wanted(conf: HadoopConf, asked: str, kind: str) -> None:
    assert client_kind(conf, asked) == kind


def test_people_are_told_where_the_one_that_asks_finds_its_resourcemanagers() -> None:
    ha = {"ha.enabled": "true", "ha.rm-ids": "a,b", "hostname.a": "rm-a", "hostname.b": "rm-b"}
    conf = HadoopConf({f"yarn.resourcemanager.{key}": value for key, value in ha.items()})
    assert asked_at(conf, "rest") == "http://rm-a:8088, http://rm-b:8088"
    assert asked_at(conf, "java") == "rm-a:8032, rm-b:8032"


def test_another_is_refused() -> None:
    with pytest.raises(ConfigError, match="yarn_client is 'c', but must be one of auto, java, rest"):
        client_kind(HadoopConf(), "c")


@pytest.mark.parametrize("asked", ["auto", "java", "rest"])
def test_without_a_configuration_the_variable_is_named(asked: str) -> None:
    pytest.importorskip("requests")
    with pytest.raises(ConfigError, match="HADOOP_CONF_DIR is not set"):
        open_client(HadoopConf(), asked)


def test_a_cluster_without_security_needs_no_java() -> None:
    pytest.importorskip("requests")
    conf = HadoopConf({"yarn.resourcemanager.hostname": "rm"}, "/etc/hadoop", {"HADOOP_USER_NAME": "ada"})
    client = open_client(conf)
    assert isinstance(client, RestClient)
    assert client.user == "ada" and client.obtain_tokens() == b""
    client.close()


def test_the_masters_label_is_not_that_of_containers_that_ask_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Hadoop's client: that of REST is asked for the same beside what it submits."""
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
