"""Starting and stopping, with daemons that are scripts: what is found, what is ended, and what is said."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from eps.cli import main
from eps.devcluster import lifecycle
from eps.devcluster.cluster import Cluster, DaemonEndedError
from eps.devcluster.daemons import mark_of
from eps.devcluster.lifecycle import restart_daemon, start_cluster, stop_cluster
from eps.devcluster.places import Places
from eps.devcluster.ports import choose_ports
from eps.devcluster.processes import Process, kill_all, marked, spawn, started_at
from eps.devcluster.record import read_record, write_record
from eps.devcluster.settings import ClusterSettings, daemons_of
from eps.errors import ConfigError, DeadlineError, JobNotFoundError
from eps.kerberos import first_principal
from eps.master_link import wait_for
from tests.devcluster.conftest import JARS

ONE_NODE = ClusterSettings(nodes=1)
PATIENCE_S = 60.0


class Said:
    """Remembers what was said."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str, step: bool) -> None:
        self.texts.append(text)


def start(home: Path, settings: ClusterSettings = ONE_NODE, timeout_s: float = PATIENCE_S) -> Cluster:
    return start_cluster(home, settings, Said(), timeout_s)


def stop(home: Path) -> list[str]:
    said = Said()
    stop_cluster(home, said)
    return said.texts


def pids(cluster: Cluster) -> set[int]:
    return {cluster.record.processes[name].pid for name in cluster.daemons}


def test_started_cluster_runs_and_is_told_of_by_its_conf_dir(home: Path) -> None:
    cluster = start(home, ClusterSettings(nodes=2))
    assert [one.state for one in cluster.status()] == ["running"] * 5
    assert (cluster.conf_dir / "eps-classpath.txt").read_text() == f"{JARS}\n"
    assert cluster.hdfs_url in (cluster.conf_dir / "core-site.xml").read_text()
    asked = cluster.places.log("resourcemanager").read_text()
    assert "add-node-labels" in asked and "/nodes/127.0.0.12:0/replace-labels?labels=transient" in asked
    assert stop(home) == ["stopping 5 processes"]
    assert not marked(mark_of(Places(home)))
    assert not stop_cluster(home, Said())


def test_a_cluster_with_kerberos_leaves_its_user_a_key(home: Path) -> None:
    cluster = start(home, ClusterSettings(nodes=2, kerberos=True))
    states = {one.name: one.state for one in cluster.status()}
    assert "kdc" in states and set(states.values()) == {"running"}
    variables = cluster.variables()
    assert sorted(variables) == ["HADOOP_CONF_DIR", "KRB5_CLIENT_KTNAME", "KRB5_CONFIG"]
    assert f"127.0.0.1:{cluster.record.ports['kdc']['kdc']}" in Path(variables["KRB5_CONFIG"]).read_text()
    keytab = Path(variables["KRB5_CLIENT_KTNAME"])
    assert first_principal(keytab.read_bytes()) == f"{getpass.getuser()}@EPS.DEV"
    assert len(keytab.read_bytes()) < len(cluster.places.keytab.read_bytes())
    assert {path.stat().st_mode & 0o777 for path in (keytab, cluster.places.keytab)} == {0o600}
    assert variables.items() <= cluster.environment().items()
    # Nobody is let in without a proof, so nothing is labelled over HTTP.
    assert "add-node-labels" not in cluster.places.log("resourcemanager").read_text()
    stop(home)


def test_start_where_it_runs_leaves_it_as_it_is(home: Path) -> None:
    first, second = start(home), start(home)
    assert pids(first) == pids(second)
    with pytest.raises(ConfigError, match="other settings"):
        start(home, replace(ONE_NODE, vcores=7))
    stop(home)


def test_start_on_a_half_started_home_begins_anew_and_keeps_the_data(home: Path) -> None:
    first = start(home)
    kill_all([first.record.processes["datanode"], first.record.processes["nodemanager-1"]])
    second = start(home)
    assert not pids(first) & pids(second)
    assert second.record.ports == first.record.ports
    assert "format" not in second.record.processes
    assert len(marked(mark_of(Places(home)))) == 4
    stop(home)


@pytest.mark.parametrize("lost", ["record", "entry"])
def test_daemons_that_nobody_wrote_down_are_found(home: Path, lost: str) -> None:
    first = start(home)
    if lost == "record":
        first.places.record.unlink()
    else:
        kept = {name: process for name, process in first.record.processes.items() if name != "namenode"}
        write_record(first.places, replace(first.record, processes=kept))
    second = start(home)
    assert not pids(first) & pids(second)
    stop(home)


def test_daemon_that_ends_is_shown_with_its_last_words_and_nothing_is_left(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_JAVA", "nodemanager-1=dies")
    with pytest.raises(DaemonEndedError, match=r"nodemanager-1 ended by itself(.|\n)*something is wrong with it"):
        start(home)
    assert not marked(mark_of(Places(home)))


def test_cluster_that_is_not_ready_in_time_is_ended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_JAVA", "namenode=silent")
    with pytest.raises(DeadlineError, match=r"the cluster is not ready"):
        start(home, timeout_s=1.0)
    assert not marked(mark_of(Places(home)))


def test_port_that_somebody_takes_meanwhile_is_given_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    with socket.socket() as somebody:

        def choose(settings: ClusterSettings) -> dict[str, dict[str, int]]:
            chosen.append(choose_ports(settings))
            if len(chosen) == 1:
                somebody.bind(("127.0.0.1", chosen[0]["resourcemanager"]["web"]))
                somebody.listen()
            return chosen[-1]

        monkeypatch.setattr(lifecycle, "choose_ports", choose)
        cluster = start(home)
    assert len(chosen) == 2
    assert cluster.record.ports == chosen[1]
    assert [one.state for one in cluster.status()] == ["running"] * 4
    stop(home)


def test_daemon_that_does_not_end_is_killed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_JAVA", "datanode=deaf")
    monkeypatch.setattr(lifecycle, "GRACE_S", 0.5)
    pid = start(home).record.processes["datanode"].pid
    assert stop(home)[-1] == f"datanode ({pid}) did not end by itself, and was killed"


def test_stop_harms_no_stranger_whose_pid_a_daemon_had(home: Path) -> None:
    cluster = start(home)
    with subprocess.Popen(["sleep", "600"]) as stranger:
        born = started_at(stranger.pid)
        assert born is not None
        taken = cluster.record.with_process("namenode", Process(stranger.pid, born - 1))
        write_record(cluster.places, taken)
        stop(home)
        assert stranger.poll() is None
        stranger.kill()


def test_stop_ends_what_a_killed_nodemanager_left_behind(home: Path) -> None:
    cluster = start(home)
    local = cluster.places.node_data(1) / "local"
    container = spawn(["sleep", "600"], {**os.environ, "LOCAL_DIRS": f"{local}/a"}, home / "log", home)
    other = spawn(["sleep", "600"], {**os.environ, "LOCAL_DIRS": f"{home}-other/a"}, home / "log", home)
    try:
        stop(home)
        assert not container.is_alive()
        assert other.is_alive()
    finally:
        kill_all([container, other])


def test_restarted_daemon_is_another_process_of_the_same_cluster(home: Path) -> None:
    cluster = start(home)
    before = dict(cluster.record.processes)
    kill_all([before["resourcemanager"]])
    restart_daemon(cluster, "resourcemanager", Said(), PATIENCE_S)
    record = read_record(cluster.places)
    assert record is not None
    changed = {name for name in cluster.daemons if record.processes[name] != before[name]}
    assert changed == {"resourcemanager"}
    assert [one.state for one in Cluster.at(home).status()] == ["running"] * 4
    stop(home)


def test_data_of_another_release_are_refused(home: Path) -> None:
    start(home)
    stop(home)
    with pytest.raises(ConfigError, match=r"written by Hadoop 3\.5\.0, not 3\.4\.3"):
        start(home, replace(ONE_NODE, hadoop_version="3.4.3"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_start_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    monkeypatch.setenv("FAKE_JAVA", "namenode=silent")
    # The jars of the child are names as well.
    code = (
        "import sys; from eps.devcluster import lifecycle; lifecycle.class_path_of_jars = lambda *_, **__: '/a.jar'; "
        "from eps.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    line = [sys.executable, "-c", code, "devcluster", "start", "--home", str(home)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        wait_for(lambda: "namenode" in read_names(home), PATIENCE_S, "the NameNode to be started")
        command.send_signal(number)
        out, err = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, out) == (130, ""), err
    assert not marked(mark_of(Places(home)))


def read_names(home: Path) -> set[str]:
    record = read_record(Places(home))
    return set(record.processes) if record else set()


def test_commands_print_what_scripts_need(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--home", str(home)]
    assert main(["devcluster", "status", *flags]) == 4
    assert "there is no cluster" in capsys.readouterr().err
    assert main(["devcluster", "start", "--nodes", "1", *flags]) == 0
    assert capsys.readouterr().out == f"export HADOOP_CONF_DIR={home}/conf\n"
    assert main(["devcluster", "status", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        [name, "running"] for name in daemons_of(ClusterSettings(nodes=1))
    ]
    kill_all([Cluster.at(home).record.processes["datanode"]])
    assert main(["devcluster", "status", *flags]) == 1
    assert main(["devcluster", "stop", *flags]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "stopped"
    assert main(["devcluster", "stop", *flags]) == 0
    assert "nothing runs" in capsys.readouterr().out


def test_hadoops_commands_are_given_its_files_and_their_words(home: Path) -> None:
    cluster = start(home)
    shell, cli = "org.apache.hadoop.fs.FsShell", "org.apache.hadoop.yarn.client.cli"
    for program, words, expected in (
        ("yarn", ("rmadmin", "-refreshNodes"), f"{cli}.RMAdminCLI -refreshNodes"),
        ("yarn", ("application", "-list"), f"{cli}.ApplicationCLI application -list"),
        ("hdfs", ("dfs", "-ls"), f"{shell} -ls"),
        ("hadoop", ("fs", "-ls"), f"{shell} -ls"),
    ):
        out = cluster.command(program, *words).stdout
        assert out.startswith(f"{cluster.conf_dir}:{JARS} ") and out.endswith(f" {expected}\n"), out
    assert cluster.command("hadoop", "classpath", "--glob").stdout == f"{cluster.conf_dir}:{JARS}\n"
    unknown = cluster.command("yarn", "jar")
    assert (unknown.returncode, unknown.stdout) == (2, "") and "followed by one of application" in unknown.stderr
    stop(home)


def test_home_without_a_cluster_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(JobNotFoundError, match="eps devcluster start makes one"):
        Cluster.at(tmp_path)
