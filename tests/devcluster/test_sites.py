"""What a cluster is, as values: settings, site files, command lines, ports."""

from __future__ import annotations

import getpass
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from eps.cluster.devcluster.lifecycle import _free_ports, _make_home, read_cluster, start_cluster, write_cluster
from eps.cluster.devcluster.settings import Cluster, ClusterSettings, address_of, listens_of
from eps.cluster.devcluster.sites import (
    FORMAT,
    PREEMPTION_GRACE_S,
    daemon_command,
    daemon_environment,
    realm_files,
    script,
    site_files,
    site_of,
    to_xml,
)
from eps.cluster.yarn.attempt import PREEMPTION_WAIT, configuration
from eps.errors import ConfigError, StorageError

HOME = Path("/clusters/one")
SECURE = ClusterSettings(kerberos=True)


def values_of(xml: str) -> dict[str, str]:
    found = [(entry.findtext("name"), entry.findtext("value")) for entry in ElementTree.fromstring(xml)]
    assert len(dict(found)) == len(found)
    return dict(found)  # type: ignore[arg-type]


def cluster_of(settings: ClusterSettings, home: Path = HOME) -> Cluster:
    ports: dict[str, dict[str, int]] = {}
    for index, daemon in enumerate(settings.daemons):
        ports[daemon] = {purpose: 20_000 + 10 * index + i for i, purpose in enumerate(listens_of(daemon))}
    return Cluster(home, settings, ports, "/java", "/j.jar")


def class_path(daemon: str, settings: ClusterSettings) -> list[str]:
    return daemon_environment(cluster_of(settings), daemon, {})["CLASSPATH"].split(":")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"nodes": 0}, "nodes is 0, but must be 1 to 200"),
        ({"memory_mb": 100}, "memory is 100 MB"),
        ({"vcores": 0}, "vcores is 0"),
        (
            {"hadoop_version": "2.10.2"},
            r"hadoop version is '2\.10\.2', but must be a release of Hadoop 3, 3\.3\.0",
        ),
        ({"hadoop_version": "9.9.9"}, r"is '9\.9\.9', but .*: 3\.3\.6, 3\.4\.3, 3\.5\.0 were tried"),
        ({"no_preemption": ("other",)}, "queue is 'other', but must be one of default, batch"),
        ({"policies": ("a,b",)}, "policy is 'a,b', but must be the name of a Java class"),
        ({"properties": ((" a", "b"),)}, "property is ' a', but must be KEY=VALUE"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        ClusterSettings(**changes)  # type: ignore[arg-type]


def test_site_files_name_every_port_and_address() -> None:
    plan = cluster_of(ClusterSettings(nodes=2))
    everybody = [
        value for text in site_files(plan).values() if text.startswith("<?xml") for value in values_of(text).values()
    ]
    for daemon in ("namenode", "datanode", "resourcemanager"):
        for port in plan.ports[daemon].values():
            assert any(value.endswith(f"127.0.0.1:{port}") for value in everybody), (daemon, port)
    node = values_of(site_files(plan, 2)["yarn-site.xml"])
    assert {value for value in node.values() if value.startswith("127.0.0.12:")} == {
        f"127.0.0.12:{port}" for port in plan.ports["nodemanager-2"].values()
    }
    assert node["yarn.nodemanager.local-dirs"] == "/clusters/one/data/node-2/local"
    assert (
        node["yarn.resourcemanager.resource-tracker.address"] == f"127.0.0.1:{plan.ports['resourcemanager']['tracker']}"
    )


def test_resourcemanager_keeps_its_state_and_notices_lost_nodes_in_seconds() -> None:
    values = values_of(site_files(cluster_of(ClusterSettings()))["yarn-site.xml"])
    assert values["yarn.resourcemanager.recovery.enabled"] == "true"
    assert values["yarn.resourcemanager.work-preserving-recovery.enabled"] == "true"
    assert values["yarn.resourcemanager.store.class"].endswith(".FileSystemRMStateStore")
    assert values["yarn.resourcemanager.fs.state-store.uri"] == "file:///clusters/one/data/resourcemanager"
    assert int(values["yarn.nm.liveness-monitor.expiry-interval-ms"]) <= 10_000
    assert values["yarn.resourcemanager.nodemanagers.heartbeat-interval-ms"] == "200"
    # Containers are killed as fast as anywhere.
    assert not any("sleep-delay-before-sigkill" in key for key in values)


def test_job_masters_read_when_a_preempted_container_is_killed(tmp_path: Path) -> None:
    """What the ResourceManager goes by: also where somebody sets it otherwise, and without the scheduler's file."""

    def waits(settings: ClusterSettings, *names: str) -> str:
        files = site_files(cluster_of(settings))
        for name in names:
            (tmp_path / name).write_text(files[name])
        return configuration(str(tmp_path)).get(PREEMPTION_WAIT)

    assert waits(ClusterSettings(), "core-site.xml", "yarn-site.xml") == str(PREEMPTION_GRACE_S * 1000)
    otherwise = ClusterSettings(properties=((PREEMPTION_WAIT, "3000"),))
    assert waits(otherwise, "core-site.xml", "yarn-site.xml", "capacity-scheduler.xml") == "3000"


def test_settings_reach_the_files() -> None:
    settings = ClusterSettings(
        memory_mb=2048,
        vcores=2,
        no_preemption=("batch",),
        policies=("org.example.Ours",),
        properties=(
            ("yarn.scheduler.capacity.maximum-am-resource-percent", "0.5"),
            ("eps.url", "http://a/?b&c"),
            ("dfs.replication", "2"),
            ("io.file.buffer.size", "4096"),
        ),
    )
    files = {name: values_of(text) for name, text in site_files(cluster_of(settings)).items() if name.endswith(".xml")}
    assert files["yarn-site.xml"]["yarn.resourcemanager.scheduler.monitor.policies"].startswith(
        "org.example.Ours,org.apache"
    )
    assert files["yarn-site.xml"]["eps.url"] == "http://a/?b&c"
    assert files["hdfs-site.xml"]["dfs.replication"] == "2"
    assert files["core-site.xml"]["io.file.buffer.size"] == "4096"
    capacity = files["capacity-scheduler.xml"]
    assert capacity["yarn.scheduler.capacity.maximum-am-resource-percent"] == "0.5"
    assert capacity["yarn.scheduler.capacity.root.batch.disable_preemption"] == "true"
    assert "yarn.scheduler.capacity.root.default.disable_preemption" not in capacity
    node = values_of(site_files(cluster_of(settings), 1)["yarn-site.xml"])
    assert (node["yarn.nodemanager.resource.memory-mb"], node["yarn.nodemanager.resource.cpu-vcores"]) == ("2048", "2")
    assert node["yarn.scheduler.maximum-allocation-mb"] == "2048"


def test_queues_share_the_cluster_and_each_may_have_all_of_it() -> None:
    values = values_of(site_files(cluster_of(ClusterSettings()))["capacity-scheduler.xml"])
    assert values["yarn.scheduler.capacity.root.queues"] == "default,batch"
    for queue in ("default", "batch"):
        prefix = f"yarn.scheduler.capacity.root.{queue}"
        assert (values[f"{prefix}.capacity"], values[f"{prefix}.maximum-capacity"]) == ("50", "100")
        assert values[f"{prefix}.accessible-node-labels.transient.capacity"] == "50"


@pytest.mark.parametrize(
    ("key", "file"),
    [
        ("yarn.scheduler.capacity.root.queues", "capacity-scheduler.xml"),
        ("yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill", "capacity-scheduler.xml"),
        ("yarn.resourcemanager.scheduler.monitor.enable", "yarn-site.xml"),
        ("hscheduler.url", "yarn-site.xml"),
        ("dfs.blocksize", "hdfs-site.xml"),
        ("hadoop.tmp.dir", "core-site.xml"),
    ],
)
def test_property_stands_in_the_file_that_reads_it(key: str, file: str) -> None:
    assert site_of(key) == file


def test_xml_says_what_values_say() -> None:
    values = {"b": "1 < 2 & 3", "a": ""}
    assert values_of(to_xml(values)) == values


def test_only_namenode_and_datanode_see_the_empty_web_roots_and_only_the_resourcemanager_the_plugin() -> None:
    settings = ClusterSettings(rm_class_path=("/plugin.jar",))
    for daemon in ("namenode", "datanode", FORMAT):
        assert class_path(daemon, settings) == ["/clusters/one/conf", "/clusters/one/web", "/j.jar"]
    assert class_path("resourcemanager", settings) == ["/clusters/one/conf", "/plugin.jar", "/j.jar"]
    assert class_path("nodemanager-3", settings) == ["/clusters/one/conf/nodes/3", "/j.jar"]


def test_java_17_is_opened_for_releases_before_3_5_only() -> None:
    for version, opened in (("3.5.0", False), ("3.4.3", True), ("3.3.6", True)):
        line = daemon_command(cluster_of(ClusterSettings(hadoop_version=version)), "nodemanager-1")
        assert any("add-opens" in word for word in line) is opened
        assert line[-1] == "org.apache.hadoop.yarn.server.nodemanager.NodeManager"


def test_environment_of_another_hadoop_reaches_no_daemon() -> None:
    environ = {"PATH": "/bin", "HADOOP_HOME": "/a", "HADOOP_CONF_DIR": "/b", "YARN_CONF_DIR": "/c", "CLASSPATH": "/d"}
    expected = {
        "PATH": "/bin",
        "HADOOP_CONF_DIR": "/clusters/one/conf",
        "JAVA_HOME": "/java",
        "CLASSPATH": "/clusters/one/conf/nodes/1:/j.jar",
    }
    assert daemon_environment(cluster_of(ClusterSettings()), "nodemanager-1", environ) == expected
    realm = {"KRB5_CONFIG": "/etc/krb5.conf", "KRB5CCNAME": "FILE:/tmp/theirs", "KRB5_CLIENT_KTNAME": "/theirs"}
    assert daemon_environment(cluster_of(SECURE), "nodemanager-1", {**environ, **realm}) == {
        **expected,
        "KRB5_CONFIG": "/clusters/one/conf/krb5.conf",
    }


def test_a_cluster_with_kerberos_has_a_realm_that_is_there_first() -> None:
    secure = cluster_of(SECURE)
    assert SECURE.daemons[0] == "kdc" and "kdc" not in ClusterSettings().daemons
    line = daemon_command(secure, "kdc")
    assert line[-3:] == ["hadoop/localhost", "HTTP/127.0.0.1", getpass.getuser()]
    properties, krb5 = realm_files(secure).values()
    assert "kdc.port=20000\n" in properties and "kdc = 127.0.0.1:20000" in krb5
    option = "-Djava.security.krb5.conf=/clusters/one/conf/krb5.conf"
    assert all(option in daemon_command(secure, name) for name in (*SECURE.daemons, FORMAT))
    assert option in script(secure, "yarn")
    assert option not in daemon_command(cluster_of(ClusterSettings()), "namenode")


def test_with_kerberos_everybody_proves_who_they_are_and_without_nobody_does() -> None:
    plain, secure = (site_files(cluster_of(settings)) for settings in (ClusterSettings(), SECURE))
    assert not any("kerberos" in text.lower() for text in plain.values())
    values = {name: values_of(text) for name, text in secure.items() if text.startswith("<?xml")}
    assert values["core-site.xml"]["hadoop.security.authentication"] == "kerberos"
    assert values["hdfs-site.xml"]["dfs.namenode.kerberos.principal"] == "hadoop/localhost@EPS.DEV"
    # Pages ask who looks, but for those that say that it is ready; those of nodes do not.
    filters = "hadoop.http.filter.initializers"
    assert values["core-site.xml"]["hadoop.http.authentication.kerberos.endpoint.whitelist"] == "/jmx"
    assert values["core-site.xml"][filters].endswith(".AuthenticationFilterInitializer")
    node = values_of(site_files(cluster_of(SECURE), 1)["yarn-site.xml"])
    assert node[filters].endswith(".StaticUserWebFilter") and "KRB5_CONFIG" in node["yarn.nodemanager.env-whitelist"]


def test_script_knows_hadoops_words() -> None:
    cluster = cluster_of(SECURE)
    assert "fetchdt) class=org.apache.hadoop.hdfs.tools.DelegationTokenFetcher; shift" in script(cluster, "hdfs")
    for word in ("application", "logs", "node", "rmadmin", "classpath"):
        assert f"    {word}) " in script(cluster, "yarn")


# ---- ports, places, records


def test_ports_are_free_distinct_and_not_those_of_connections() -> None:
    settings = ClusterSettings()
    ports = _free_ports(settings, {})
    every = [port for by_purpose in ports.values() for port in by_purpose.values()]
    assert len(set(every)) == len(every) == 10 + 4 * 3
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(10_000 <= port < lowest for port in every)
    assert _free_ports(settings, ports) == ports, "a cluster is started again where it was"
    with socket.create_server((address_of("nodemanager-2"), ports["nodemanager-2"]["web"])):
        assert _free_ports(settings, ports) != ports


def test_a_record_is_what_was_written_and_another_format_is_refused(tmp_path: Path) -> None:
    assert read_cluster(tmp_path) is None
    settings = ClusterSettings(nodes=1, policies=("a.B",), properties=(("k", "v"),), kerberos=True)
    cluster = cluster_of(settings, tmp_path)
    write_cluster(cluster)
    assert read_cluster(tmp_path) == cluster
    (tmp_path / "cluster.json").write_text('{"format": 1}')
    with pytest.raises(StorageError, match=r"cluster\.json .*version"):
        read_cluster(tmp_path)


def test_home_that_hadoop_would_misread_is_refused(tmp_path: Path) -> None:
    for name in ("a b", "a:b", "a,b", "ä"):
        with pytest.raises(ConfigError, match="letters, digits"):
            _make_home(tmp_path / name)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be created"):
        _make_home(tmp_path / "file" / "below")


def test_plugin_that_is_not_there_is_said_before_anything_starts(home: Path) -> None:
    settings = ClusterSettings(rm_class_path=(f"{home.parent}/nothing.jar",))
    with pytest.raises(ConfigError, match=r"no .*/nothing\.jar"):
        start_cluster(home, settings, lambda text: None)
    assert not home.exists()


def test_a_disk_without_room_is_said_and_nothing_is_left_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free in (1_000, 10**9):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(total=10**12, free=free))
        with pytest.raises(ConfigError, match="MB free, too little"):
            _make_home(tmp_path / "far" / "home")
        assert not (tmp_path / "far").exists()
