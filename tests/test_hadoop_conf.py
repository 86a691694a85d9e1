"""Configuration files of Hadoop, and where they say that services listen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from eps.errors import ConfigError
from eps.hadoop.conf import (
    HadoopConf,
    default_authority,
    environment_configuration,
    namenode_web_addresses,
    parse_configuration,
    read_configuration,
    resourcemanager_web_addresses,
    self_contained,
)
from eps.job.yarn.submit import MOST_ATTEMPTS


def write(path: Path, values: Mapping[str, str], *, final: str = "", before: str = "") -> None:
    finals = {final: "<final>true</final>"}
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value>{finals.get(name, '')}</property>"
        for name, value in values.items()
    )
    path.write_text(f'<?xml version="1.0"?>\n<configuration>{before}{properties}</configuration>\n')


def test_a_later_file_counts_unless_an_earlier_one_is_final(tmp_path: Path) -> None:
    write(tmp_path / "core-site.xml", {"a": "1", "b": "1", "c": " 1 "}, final="b")
    write(tmp_path / "yarn-site.xml", {"a": "2", "b": "2"})
    conf = read_configuration(tmp_path)
    assert [conf.get(name) for name in ("a", "b", "c", "d")] == ["2", "1", "1", ""]
    assert conf.get("d", "default") == "default" and conf.source == str(tmp_path)


def test_values_name_others_and_the_environment() -> None:
    conf = HadoopConf(
        {"dir": "${base}/dn", "base": "/data/${env.USER}", "loop": "${loop}x", "none": "${not.there}", "empty": ""},
        environ={"USER": "eva"},
    )
    assert conf.get("dir") == "/data/eva/dn" and conf.get("none") == "${not.there}"
    assert conf.get("missing", "${env.HOME:-/tmp}/x") == "/tmp/x" and conf.get("empty", "default") == ""
    assert conf.get("loop").startswith("${loop}x")


def test_lists_and_truth() -> None:
    conf = HadoopConf({"list": " a, b ,,c", "yes": "TRUE", "odd": "perhaps"})
    assert conf.get_list("list") == ("a", "b", "c") and conf.get_list("none") == ()
    assert conf.get_bool("yes") and conf.get_bool("odd", True) and not conf.get_bool("odd")


def test_a_file_that_includes_others_can_be_used_elsewhere(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    include = '<include xmlns="http://www.w3.org/2001/XInclude" href="{}"/>'
    write(here / "most.xml", {"a": "&lt;1&gt;", "b": "1"}, final="b")
    write(here / "more.xml", {"c": "${a}"}, before=include.format("most.xml"))
    write(here / "core-site.xml", {"b": "2", "d": " 2"}, before=include.format("more.xml"))
    write(here / "yarn-site.xml", {"b": "3", "d": "3"})
    for name in ("core-site.xml", "yarn-site.xml"):
        (there / name).write_bytes(self_contained(here / name))
    assert (there / "yarn-site.xml").read_bytes() == (here / "yarn-site.xml").read_bytes()
    found = read_configuration(there)
    assert found.values == read_configuration(here).values
    assert [found.get(name) for name in "abcd"] == ["<1>", "1", "<1>", "3"]
    (here / "most.xml").unlink()
    with pytest.raises(ConfigError, match=r"most\.xml: cannot be read"):
        self_contained(here / "core-site.xml")
    with pytest.raises(ConfigError, match=r"hdfs-site\.xml: "):
        self_contained(here / "hdfs-site.xml")


def test_a_file_includes_another(tmp_path: Path) -> None:
    include = '<include xmlns="http://www.w3.org/2001/XInclude" href="more.xml"/>'
    write(tmp_path / "more.xml", {"a": "1"})
    write(tmp_path / "core-site.xml", {"b": "2"}, before=include)
    conf = read_configuration(tmp_path)
    assert (conf.get("a"), conf.get("b")) == ("1", "2")
    (tmp_path / "more.xml").unlink()
    with pytest.raises(ConfigError, match=r"more\.xml"):
        read_configuration(tmp_path)


@pytest.mark.parametrize(("text", "why"), [("<configuration>", "is not XML"), ("<site/>", "root element is <site>")])
def test_what_is_no_configuration_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"core-site: .*{why}"):
        parse_configuration(text, "core-site")


def test_the_environment_names_the_folder(tmp_path: Path) -> None:
    assert environment_configuration({}) == HadoopConf()
    for folder, why in ((tmp_path, "it has none of these files"), (tmp_path / "nowhere", "there is no such folder")):
        with pytest.raises(ConfigError) as found:
            environment_configuration({"HADOOP_CONF_DIR": str(folder)})
        assert str(found.value) == (
            f"HADOOP_CONF_DIR is '{folder}', but must name the folder with core-site.xml, hdfs-site.xml and "
            f'yarn-site.xml of a cluster: {why}; eval "$(eps devcluster start)" starts a cluster on this machine and '
            "sets it"
        )
    (tmp_path / "core-site.xml").write_text("<site/>")
    with pytest.raises(ConfigError, match=r"core-site\.xml: .*<site>"):
        environment_configuration({"HADOOP_CONF_DIR": str(tmp_path)})
    (tmp_path / "core-site.xml").unlink()
    write(tmp_path / "hdfs-site.xml", {"a": "${env.X}"})
    assert environment_configuration({"HADOOP_CONF_DIR": str(tmp_path), "X": "y"}).get("a") == "y"


def test_the_compose_cluster_allows_the_attempts_that_jobs_ask_for() -> None:
    """YARN takes its own limit where somebody asks for more, and says so to nobody; by default that is 2."""
    conf = read_configuration(Path(__file__).parents[1] / "docker" / "conf")
    assert int(conf.get("yarn.resourcemanager.am.max-attempts", "2")) >= MOST_ATTEMPTS


HA = {
    "fs.defaultFS": "hdfs://lake",
    "dfs.nameservices": "lake, other",
    "dfs.ha.namenodes.lake": "nn1,nn2",
    "dfs.namenode.rpc-address.lake.nn1": "one:8020",
    "dfs.namenode.rpc-address.lake.nn2": "two:8020",
    "dfs.namenode.http-address.lake.nn1": "one:19870",
    "dfs.namenode.http-address.lake.nn2": "0.0.0.0:29870",
    "dfs.namenode.http-address.other": "alone:9870",
}


@pytest.mark.parametrize(
    ("values", "authority", "expected"),
    [
        ({}, "nn:8020", ["http://nn:9870"]),
        ({}, "nn", ["http://nn:9870"]),
        ({"dfs.http.policy": "HTTPS_ONLY"}, "nn:8020", ["https://nn:9871"]),
        ({"fs.defaultFS": "hdfs://nn:8020", "dfs.namenode.http-address": "web:81"}, "nn:8020", ["http://web:81"]),
        ({"fs.defaultFS": "hdfs://nn:8020", "dfs.namenode.http-address": "web:81"}, "nn", ["http://web:81"]),
        # What is configured is another cluster's NameNode.
        ({"fs.defaultFS": "hdfs://nn:8020", "dfs.namenode.http-address": "web:81"}, "far:8020", ["http://far:9870"]),
        ({"fs.defaultFS": "hdfs://nn:8020", "dfs.namenode.http-address": "0.0.0.0:81"}, "nn:8020", ["http://nn:81"]),
        (HA, "lake", ["http://one:19870", "http://two:29870"]),
        (HA, "other", ["http://alone:9870"]),
    ],
)
def test_namenodes_are_found(values: Mapping[str, str], authority: str, expected: list[str]) -> None:
    assert list(namenode_web_addresses(HadoopConf(values), authority)) == expected


def test_a_name_service_without_namenodes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"http-address\.lake"):
        namenode_web_addresses(HadoopConf({"dfs.nameservices": "lake"}), "lake")


def test_the_default_file_system() -> None:
    assert default_authority(HadoopConf(HA)) == "lake"
    assert default_authority(HadoopConf({"fs.defaultFS": "file:///"})) == default_authority(HadoopConf()) == ""


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ["http://localhost:8088"]),
        ({"hostname": "rm"}, ["http://rm:8088"]),
        ({"hostname": "rm", "webapp.address": "web:80"}, ["http://web:80"]),
        (
            {"ha.enabled": "true", "ha.rm-ids": "r1,r2", "hostname.r1": "a", "webapp.address.r2": "b:1"},
            ["http://a:8088", "http://b:1"],
        ),
    ],
)
def test_resourcemanagers_are_found(values: Mapping[str, str], expected: list[str]) -> None:
    conf = HadoopConf({f"yarn.resourcemanager.{name}": value for name, value in values.items()})
    assert list(resourcemanager_web_addresses(conf)) == expected


def test_a_cluster_that_wants_kerberos_says_so() -> None:
    conf = HadoopConf({"hadoop.security.authentication": " KERBEROS "}, "/etc/hadoop")
    assert conf.wants_kerberos and not HadoopConf().wants_kerberos
