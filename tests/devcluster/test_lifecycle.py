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
from eps.cluster.devcluster import lifecycle, probe
from eps.cluster.devcluster.cluster import Cluster, DaemonEndedError
from eps.cluster.devcluster.daemons import mark_of
from eps.cluster.devcluster.lifecycle import restart_daemon, restart_daemons, start_cluster, stop_cluster
from eps.cluster.devcluster.places import Places
from eps.cluster.devcluster.ports import Ports, are_free, choose_ports
from eps.cluster.devcluster.processes import Process, kill_all, marked, spawn, started_at
from eps.cluster.devcluster.record import read_record, write_record
from eps.cluster.devcluster.settings import ClusterSettings, daemons_of
from eps.errors import ConfigError, DeadlineError, JobNotFoundError, ResourceError
from eps.hadoop.kerberos import first_principal
from eps.system.waits import wait_for
from tests.devcluster.conftest import JARS

ONE_NODE, TWO_NODES = ClusterSettings(nodes=1), ClusterSettings(nodes=2)
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


def changed(before: Cluster, after: Cluster) -> set[str]:
    """Return the daemons that are another process now; all run."""
    processes = after.record.processes
    assert all(processes[name].is_alive() for name in after.daemons)
    return {name for name in after.daemons if processes[name] != before.record.processes[name]}


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


def test_start_where_a_part_runs_starts_the_rest_where_it_was(home: Path) -> None:
    """Jobs go on meanwhile: nobody else is touched."""
    first = start(home, TWO_NODES)
    dead = {"datanode", "nodemanager-1"}
    kill_all([first.record.processes[name] for name in dead])
    written = {path: path.read_bytes() for path in first.conf_dir.rglob("*.xml")}
    said = Said()
    second = start_cluster(home, TWO_NODES, said, PATIENCE_S)
    assert changed(first, second) == dead
    assert second.record.ports == first.record.ports
    assert {path: path.read_bytes() for path in first.conf_dir.rglob("*.xml")} == written
    assert said.texts[0] == "starting datanode, nodemanager-1 again"
    assert [one.state for one in Cluster.at(home).status()] == ["running"] * 5
    assert len(marked(mark_of(Places(home)))) == 5
    stop(home)


def test_start_where_a_part_runs_needs_no_option_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was refused, as of a cluster with other settings, and nothing was started."""
    command = ["devcluster", "start", f"--home={home}"]
    assert main([*command, "--nodes=1", "--vcores=7", "--policy=a.Policy", "--property=a.b=c"]) == 0
    first = Cluster.at(home)
    kill_all([first.record.processes["datanode"]])
    capsys.readouterr()
    for options in ([], ["--vcores=7"]):
        assert main([*command, *options]) == 0
    second, told = Cluster.at(home), capsys.readouterr()
    assert changed(first, second) == {"datanode"} and second.settings == first.settings
    assert second.settings.vcores == 7 and "starting datanode again" in told.err
    assert main([*command, "--vcores=8"]) == 2
    assert "without options, start starts again what has ended of it" in capsys.readouterr().err
    stop(home)
    assert main(command) == 0
    assert Cluster.at(home).settings == ClusterSettings(), "what has been stopped begins as is said"
    stop(home)


def test_start_where_a_part_runs_refuses_other_settings_and_touches_nothing(home: Path) -> None:
    first = start(home)
    kill_all([first.record.processes["datanode"]])
    with pytest.raises(ConfigError, match="other settings"):
        start(home, replace(ONE_NODE, vcores=7))
    assert len(marked(mark_of(Places(home)))) == 3
    stop(home)


def test_a_daemon_that_does_not_come_back_leaves_the_others_running(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(home)
    kill_all([first.record.processes["datanode"]])
    monkeypatch.setenv("FAKE_JAVA", "datanode=dies")
    with pytest.raises(DaemonEndedError, match=r"datanode ended by itself(.|\n)*something is wrong with it"):
        start(home)
    assert len(marked(mark_of(Places(home)))) == 3
    monkeypatch.delenv("FAKE_JAVA")
    assert changed(first, start(home)) == {"datanode"}
    stop(home)


def test_of_a_start_that_fails_nothing_is_left_but_what_ran_before(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(home, TWO_NODES)
    kill_all([first.record.processes[name] for name in ("resourcemanager", "datanode", "nodemanager-1")])
    monkeypatch.setenv("FAKE_JAVA", "datanode=dies")
    with pytest.raises(DaemonEndedError, match="datanode ended by itself"):
        start(home, TWO_NODES)
    left = {first.record.processes[name] for name in ("namenode", "nodemanager-2")}
    assert set(marked(mark_of(Places(home)))) == left
    monkeypatch.delenv("FAKE_JAVA")
    assert changed(first, start(home, TWO_NODES)) == {"resourcemanager", "datanode", "nodemanager-1"}
    stop(home)


def test_the_port_of_a_dead_daemon_that_somebody_took_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_PORTS_S", 0.0)
    first = start(home)
    kill_all([first.record.processes["datanode"]])
    port = first.record.ports["datanode"]["ipc"]
    taken = rf"datanode cannot be started: another program has taken one of its ports \(.*{port}.* of 127\.0\.0\.1\)"
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ResourceError, match=taken):
        start(home)
    assert changed(first, start(home)) == {"datanode"}
    stop(home)


def test_ports_of_a_daemon_that_is_still_dying_are_waited_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(home)
    kill_all([first.record.processes["datanode"]])
    dying = socket.create_server(("127.0.0.1", first.record.ports["datanode"]["ipc"]))
    seen: list[bool] = []

    def look(ports: Ports) -> bool:
        seen.append(are_free(ports))
        dying.close()
        return seen[-1]

    monkeypatch.setattr(lifecycle, "are_free", look)
    assert changed(first, start(home)) == {"datanode"} and seen == [False, True]
    stop(home)


def test_with_its_realm_a_cluster_is_started_anew(home: Path) -> None:
    """The keys of all others have ended with it."""
    settings = ClusterSettings(nodes=1, kerberos=True)
    first = start(home, settings)
    kill_all([first.record.processes["datanode"]])
    second = start(home, settings)
    assert changed(first, second) == {"datanode"}
    kill_all([second.record.processes["kdc"]])
    third = start(home, settings)
    assert changed(second, third) == set(third.daemons)
    with pytest.raises(ConfigError, match="its keys end with it, and all others need them: eps devcluster stop"):
        restart_daemons(home, ["kdc"], Said(), PATIENCE_S)
    stop(home)


def test_a_cluster_that_nobody_wrote_down_is_ended_and_started_anew(home: Path) -> None:
    first = start(home)
    first.places.record.unlink()
    assert not pids(first) & pids(start(home))
    stop(home)


def test_a_daemon_that_nobody_wrote_down_is_ended_for_another(home: Path) -> None:
    """Its starter was killed before it could."""
    first = start(home)
    kept = {name: process for name, process in first.record.processes.items() if name != "namenode"}
    write_record(first.places, replace(first.record, processes=kept))
    assert changed(first, start(home)) == {"namenode"}
    assert not first.record.processes["namenode"].is_alive()
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
    assert {name for name in cluster.daemons if record.processes[name] != before[name]} == {"resourcemanager"}
    assert [one.state for one in Cluster.at(home).status()] == ["running"] * 4
    stop(home)


def test_a_nodemanager_that_hangs_does_not_keep_the_resourcemanager_from_coming_back(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_TIMEOUT_S", 1.0)
    cluster = start(home, TWO_NODES)
    hung = cluster.record.processes["nodemanager-1"]
    log = cluster.places.log("resourcemanager")
    labelled = log.read_text().count("replace-labels")
    hung.send(signal.SIGSTOP)
    restart_daemon(cluster, "resourcemanager", Said(), PATIENCE_S)
    assert log.read_text().count("replace-labels") == labelled + 1
    assert {one.name: one.state for one in cluster.status()}["nodemanager-1"] == "not answering"
    hung.send(signal.SIGCONT)
    stop(home)


def test_a_daemon_whose_master_has_ended_is_not_started_in_vain(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, flags = start(home), ["--home", str(home)]
    kill_all([first.record.processes[name] for name in ("namenode", "resourcemanager")])
    for name, master in (("nodemanager-1", "resourcemanager"), ("datanode", "namenode")):
        capsys.readouterr()
        assert main(["devcluster", "restart", name, *flags]) == 2
        words = f"eps devcluster restart --home {home} {master} {name}"
        assert capsys.readouterr().err == (
            f"eps: daemon is '{name}', but it registers at the {master}, which has ended: {words} starts both\n"
        )
        assert first.is_running(name)
        # What it says can be run, word for word.
        assert main(words.split()[1:]) == 0
    assert [one.state for one in Cluster.at(home).status()] == ["running"] * 4
    stop(home)


def test_daemons_are_restarted_by_name_whether_they_run_or_not(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, flags = start(home, TWO_NODES), ["--home", str(home)]
    kill_all([first.record.processes["nodemanager-2"]])
    assert main(["devcluster", "restart", "nodemanager-2", "namenode", *flags]) == 0
    assert "starting namenode, nodemanager-2 again" in capsys.readouterr().err
    second = Cluster.at(home)
    assert changed(first, second) == {"namenode", "nodemanager-2"}
    assert [one.state for one in second.status()] == ["running"] * 5
    assert "format" not in {*second.record.processes} - {*first.record.processes}
    stop(home)


def test_what_cannot_be_restarted_is_told_with_what_can(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--home", str(home)]
    assert main(["devcluster", "restart", "datanode", *flags]) == 4
    assert f"there is no cluster at {home}: eps devcluster start makes one" in capsys.readouterr().err
    assert not home.exists()
    first = start(home)
    assert main(["devcluster", "restart", "nodemanager-2", *flags]) == 2
    assert capsys.readouterr().err == (
        f"eps: daemon is 'nodemanager-2', but the cluster at {home} has namenode, resourcemanager, datanode, "
        "nodemanager-1; did you mean nodemanager-1?\n"
    )
    assert main(["devcluster", "restart", "datanode", "--timeout=0", *flags]) == 2
    assert "timeout is 0, but must be more than 0 seconds" in capsys.readouterr().err
    assert pids(Cluster.at(home)) == pids(first)
    stop(home)
    assert main(["devcluster", "restart", "datanode", *flags]) == 2
    assert f"nothing runs at {home}: eps devcluster start starts all of it" in capsys.readouterr().err


def test_status_names_what_is_dead_and_what_to_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, flags = start(home, TWO_NODES), ["--home", str(home)]

    def advice() -> str:
        assert main(["devcluster", "status", *flags]) == 1
        table, _, said = capsys.readouterr().out.partition("\n\n")
        assert len(table.splitlines()) == 6
        return said

    processes = cluster.record.processes
    kill_all([processes["datanode"]])
    # What it says can be run, word for word.
    words = f"eps devcluster restart --home {home} datanode"
    assert advice() == f"datanode has ended: {words}\n"
    kill_all([processes["nodemanager-2"]])
    assert advice().startswith(f"datanode, nodemanager-2 have ended: {words} nodemanager-2\n")
    assert main(words.split()[1:]) == 0
    capsys.readouterr()
    assert advice().startswith("nodemanager-2 has ended: ")
    kill_all([process for process in Cluster.at(home).record.processes.values() if process.is_alive()])
    options = ", with the options that it was started with"
    assert advice() == f"nothing runs: eps devcluster start --home {home}{options}\n"
    stop(home)


def test_status_names_a_daemon_that_hangs(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_TIMEOUT_S", 0.5)
    process = start(home).record.processes["namenode"]
    process.send(signal.SIGSTOP)
    assert main(["devcluster", "status", "--home", str(home)]) == 1
    words = "namenode hangs, or has just been started: eps devcluster restart --home"
    assert words in capsys.readouterr().out
    process.send(signal.SIGCONT)
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
        "import sys; from eps.cluster.devcluster import lifecycle; "
        "lifecycle.class_path_of_jars = lambda *_, **__: '/a.jar'; "
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


def test_a_node_that_is_let_go_stays_so_until_it_is_taken_back(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, flags = start(home, TWO_NODES), ["--home", str(home)]
    assert main(["devcluster", "decommission", "nodemanager-2", "--within", "60", *flags]) == 0
    back = f"eps devcluster recommission --home {home}"
    assert (
        capsys.readouterr().out == f"node 127.0.0.12 is decommissioned within 60 s: {back} 127.0.0.12 takes it back\n"
    )
    assert cluster.places.exclude.read_text() == "127.0.0.12\n"
    # YARN has its NodeManager end itself: nobody starts that again, or waits for it.
    kill_all([cluster.record.processes["nodemanager-2"]])
    start(home, TWO_NODES)
    assert not Cluster.at(home).is_running("nodemanager-2")
    assert main(["devcluster", "restart", "resourcemanager", *flags]) == 0
    capsys.readouterr()
    assert main(["devcluster", "status", *flags]) == 0
    assert capsys.readouterr().out.endswith(f"\n\nnodemanager-2 is decommissioned: {back} nodemanager-2\n")
    assert main(["devcluster", "restart", "nodemanager-2", *flags]) == 2
    assert f"its node was decommissioned: {back} nodemanager-2 takes it back" in capsys.readouterr().err
    before = pids(Cluster.at(home))
    assert main([*back.split()[1:], "127.0.0.12"]) == 0
    assert capsys.readouterr().out == "node 127.0.0.12 is there\n"
    assert cluster.places.exclude.read_text() == "" and len(pids(Cluster.at(home)) - before) == 1
    # One that works on is not ended.
    before = pids(Cluster.at(home))
    assert main(["devcluster", "decommission", "127.0.0.11", "--within", "0", *flags]) == 0
    assert "127.0.0.11 is decommissioned at once" in capsys.readouterr().out
    assert main(["devcluster", "recommission", "127.0.0.11", *flags]) == 0
    assert pids(Cluster.at(home)) == before
    assert main(["devcluster", "decommission", "nodemanager-1", *flags]) == 0
    stop(home)
    start(home, TWO_NODES)
    assert cluster.places.exclude.read_text() == "", "a cluster that is started anew has all its nodes"
    stop(home)


def test_a_node_that_cannot_be_let_go_is_told_with_those_that_can(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--home", str(home)]
    cluster = start(home, TWO_NODES)

    def refused(*words: str, code: int = 2) -> str:
        assert main(["devcluster", *words, *flags]) == code
        return capsys.readouterr().err

    assert refused("decommission", "nodemanager-3") == (
        f"eps: node is 'nodemanager-3', but the cluster at {home} has nodemanager-1 to nodemanager-2, "
        "which are 127.0.0.11 to 127.0.0.12\n"
    )
    assert "within is -1, but must be at least 0 seconds" in refused("decommission", "nodemanager-1", "--within=-1")
    monkeypatch.setenv("FAKE_JAVA", "rmadmin=refuses")
    assert "the resourcemanager refuses: -refreshNodes -g 60 -server" in refused(
        "decommission", "nodemanager-1", "--within=60", code=1
    )
    assert cluster.places.exclude.read_text() == ""
    kill_all([cluster.record.processes["resourcemanager"]])
    assert "eps devcluster restart --home" in refused("recommission", "nodemanager-1")
    stop(home)
