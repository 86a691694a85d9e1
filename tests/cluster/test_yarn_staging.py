"""Folders of a job on YARN that lead nowhere are refused at once, with the setting that they are from."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from eps.cluster.yarn import checks
from eps.cluster.yarn.checks import check_file_systems
from eps.errors import ConfigError, StorageAwayError
from eps.hadoop.conf import HadoopConf
from eps.spec.job_spec import JobSpec

CLIENT: Any = SimpleNamespace(user="ada")


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address without a listener, now and later."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def namenode() -> Iterator[str]:
    """The web address of one that is there, whatever it says."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def conf_of(web: str, **values: str) -> HadoopConf:
    return HadoopConf({"fs.defaultFS": "hdfs://nn:9000", "dfs.namenode.http-address": web, **values}, "/etc/hadoop", {})


def test_an_address_that_leads_nowhere_is_named_with_its_setting(nobody: str, namenode: str) -> None:
    spec = JobSpec().with_settings(staging=f"webhdfs://{nobody}/x")
    with pytest.raises(StorageAwayError) as refused:
        check_file_systems(conf_of(namenode), spec, CLIENT)
    assert str(refused.value).startswith(
        f"staging is webhdfs://{nobody}/x, but its NameNode cannot be reached at http://{nobody} (Connection refused): "
    )
    with pytest.raises(StorageAwayError, match=rf"^checkpoint_dir is webhdfs://{nobody}/c, but its NameNode cannot"):
        check_file_systems(conf_of(namenode), JobSpec().with_settings(checkpoint_dir=f"webhdfs://{nobody}/c"), CLIENT)
    with pytest.raises(StorageAwayError, match=r"^fs.defaultFS of /etc/hadoop leads to hdfs://nn:9000/user/ada/"):
        check_file_systems(conf_of(nobody), JobSpec(), CLIENT)


def test_what_is_no_location_is_named_with_its_setting(namenode: str) -> None:
    for location, why in (("/nope", "'/nope' is not a location on HDFS: expected"), ("webhdfs:///x", "names no host")):
        with pytest.raises(ConfigError, match=f"^staging: .*{why}"):
            check_file_systems(conf_of(namenode), JobSpec().with_settings(staging=location), CLIENT)


def test_the_web_address_of_a_name_that_nobody_knows_is_told(monkeypatch: pytest.MonkeyPatch, namenode: str) -> None:
    def connect(address: tuple[str, int], timeout_s: float) -> None:
        assert address == ("nowhere", 9870) and timeout_s == checks.CONNECT_S
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(
        StorageAwayError, match=r"^staging is hdfs://nowhere:9000/x, but its .* at http://nowhere:9870 \(Name"
    ):
        check_file_systems(conf_of(namenode), JobSpec().with_settings(staging="hdfs://nowhere:9000/x"), CLIENT)


def test_a_namenode_that_is_there_or_has_a_twin_is_waited_for_by_whoever_uses_it(nobody: str, namenode: str) -> None:
    check_file_systems(conf_of(namenode), JobSpec(), CLIENT)
    twins = {"dfs.nameservices": "lake", "dfs.ha.namenodes.lake": "a,b"}
    web = {f"dfs.namenode.http-address.lake.{twin}": nobody for twin in "ab"}
    check_file_systems(conf_of(namenode, **twins, **web), JobSpec().with_settings(staging="hdfs://lake/x"), CLIENT)
