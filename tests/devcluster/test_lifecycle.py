"""Starting and stopping, with daemons that are scripts: what is found, what is ended, and what is said."""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from eps.cli import main
from eps.cluster.devcluster import lifecycle
from eps.cluster.devcluster.lifecycle import find_cluster, processes, start_cluster, status_of, stop_cluster
from eps.cluster.devcluster.settings import Cluster, ClusterSettings
from eps.errors import ConfigError, DeadlineError, ResourceError
from eps.hadoop.kerberos import first_principal
from eps.system.waits import wait_for
from tests.devcluster.conftest import JARS
from tests.processes import Process, kill_all

ONE_NODE, TWO_NODES = ClusterSettings(nodes=1), ClusterSettings(nodes=2)
PATIENCE_S = 60.0


def start(home: Path, settings: ClusterSettings = ONE_NODE, timeout_s: float = PATIENCE_S) -> Cluster:
    return start_cluster(home, settings, lambda text: None, timeout_s)


def stop(home: Path) -> list[str]:
    said: list[str] = []
    stop_cluster(home, said.append)
    return said


def kill(home: Path, *daemons: str) -> None:
    kill_all([Process.of(pid) for pid, name in processes(home).items() if name in daemons])


def test_started_cluster_runs_and_is_told_of_by_its_conf_dir(home: Path) -> None:
    cluster = start(home, TWO_NODES)
    assert [one.state for one in status_of(cluster)] == ["running"] * 5
    assert (cluster.conf_dir / "eps-classpath.txt").read_text() == f"{JARS}\n"
    assert cluster.hdfs_url in (cluster.conf_dir / "core-site.xml").read_text()
    asked = cluster.log("resourcemanager").read_text()
    assert "add-node-labels" in asked and "/nodes/127.0.0.12:0/replace-labels?labels=transient" in asked
    assert stop(home) == ["stopping 5 processes"]
    assert not processes(home)
    assert not stop_cluster(home, lambda text: None)


def test_a_cluster_that_stops_says_how_many_applications_that_ends(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_APPLICATIONS", "2")
    start(home)
    assert stop(home) == ["this ends 2 running YARN applications", "stopping 4 processes"]


def test_a_cluster_with_kerberos_leaves_its_user_a_key(home: Path) -> None:
    settings = replace(TWO_NODES, kerberos=True)
    cluster = start(home, settings)
    states = {one.name: one.state for one in status_of(cluster)}
    assert "kdc" in states and set(states.values()) == {"running"}
    variables = cluster.variables()
    assert sorted(variables) == ["HADOOP_CONF_DIR", "KRB5_CLIENT_KTNAME", "KRB5_CONFIG"]
    assert f"127.0.0.1:{cluster.ports['kdc']['kdc']}" in Path(variables["KRB5_CONFIG"]).read_text()
    keytab = Path(variables["KRB5_CLIENT_KTNAME"])
    assert first_principal(keytab.read_bytes()) == f"{getpass.getuser()}@EPS.DEV"
    assert len(keytab.read_bytes()) < len(cluster.keytab.read_bytes())
    assert {path.stat().st_mode & 0o777 for path in (keytab, cluster.keytab)} == {0o600}
    assert keytab.parent.stat().st_mode & 0o777 == 0o700
    # Nobody is let in without a proof, so nothing is labelled over HTTP.
    assert "add-node-labels" not in cluster.log("resourcemanager").read_text()
    kill(home, "kdc")
    with pytest.raises(ConfigError, match=r"realm .*devcluster stop"):
        start(home, settings)
    stop(home)


def test_start_where_it_runs_leaves_it_as_it_is_and_refuses_other_settings(home: Path) -> None:
    start(home)
    before = processes(home)
    start(home)
    assert processes(home) == before
    with pytest.raises(ConfigError, match="other settings"):
        start(home, replace(ONE_NODE, vcores=7))
    assert processes(home) == before
    stop(home)


def test_start_where_a_part_runs_starts_the_rest_where_it_was(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs go on meanwhile: nobody else is touched, and no option is needed again."""
    command = ["devcluster", "start", f"--home={home}"]
    assert main([*command, "--nodes=2", "--vcores=7", "--policy=a.Policy", "--property=a.b=c"]) == 0
    first, before = find_cluster(home), processes(home)
    kill(home, "datanode", "nodemanager-1")
    written = {path: path.read_bytes() for path in first.conf_dir.rglob("*.xml")}
    capsys.readouterr()
    assert main(command) == 0
    assert "starting datanode, nodemanager-1 of Hadoop 3.5.0" in capsys.readouterr().err
    second, after = find_cluster(home), processes(home)
    assert second == first and second.settings.vcores == 7
    assert sorted(before[pid] for pid in before.keys() - after.keys()) == ["datanode", "nodemanager-1"]
    assert sorted(after.values()) == sorted(first.settings.daemons)
    assert {path: path.read_bytes() for path in first.conf_dir.rglob("*.xml")} == written
    assert main([*command, "--vcores=8"]) == 2
    assert "eps devcluster start without options restarts its daemons" in capsys.readouterr().err
    stop(home)
    assert main(command) == 0
    assert find_cluster(home).settings == ClusterSettings(), "what has been stopped begins as is said"
    stop(home)


def test_hdfs_keeps_what_it_holds_and_one_that_was_half_formatted_is_formatted_again(home: Path) -> None:
    cluster = start(home)
    (cluster.data / "namenode" / "current" / "edits").touch()
    stop(home)
    assert start(home) == cluster, "with the same ports"
    assert (cluster.data / "namenode" / "current" / "edits").exists()
    stop(home)
    (cluster.data / "formatted").unlink()
    start(home)
    assert not (cluster.data / "namenode" / "current" / "edits").exists()
    stop(home)
    with pytest.raises(ConfigError, match=r"3\.5\.0, not 3\.4\.3"):
        start(home, replace(ONE_NODE, hadoop_version="3.4.3"))


def test_daemon_that_ends_is_shown_with_its_last_words_and_nothing_is_left(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_JAVA", "nodemanager-1=dies")
    with pytest.raises(ResourceError, match=r"nodemanager-1 (.|\n)*wrong"):
        start(home)
    assert not processes(home)


def test_a_start_that_fails_ends_nothing_that_ran_before(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(home, TWO_NODES)
    kill(home, "nodemanager-2")
    before = processes(home)
    monkeypatch.setenv("FAKE_JAVA", "nodemanager-2=dies")
    with pytest.raises(ResourceError, match="nodemanager-2"):
        start(home, TWO_NODES)
    assert processes(home) == before
    stop(home)


def test_cluster_that_is_not_ready_in_time_is_ended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_JAVA", "namenode=silent")
    with pytest.raises(DeadlineError, match=r"the cluster is not ready"):
        start(home, timeout_s=1.0)
    assert not processes(home)


def test_daemon_that_does_not_end_is_killed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_JAVA", "datanode=deaf")
    start(home)
    monkeypatch.setattr(lifecycle, "GRACE_S", 0.5)
    (pid,) = (pid for pid, name in processes(home).items() if name == "datanode")
    assert stop(home)[-1] == f"killing datanode (pid {pid}): it is still running 0.5 s after SIGTERM"


def test_stop_ends_what_a_killed_nodemanager_left_behind_and_nothing_of_another_cluster(home: Path) -> None:
    cluster = start(home)
    local = cluster.node_data(1) / "local"
    with (
        subprocess.Popen(["sleep", "600"], env={**os.environ, "LOCAL_DIRS": f"{local}/a"}) as container,
        subprocess.Popen(["sleep", "600"], env={**os.environ, "LOCAL_DIRS": f"{home}-other/data/a"}) as other,
        subprocess.Popen(["sh", "-c", "sleep 600; :", f"-Deps.devcluster={home}-other:namenode"]) as stranger,
    ):
        stop(home)
        assert container.wait(PATIENCE_S) == -signal.SIGKILL
        assert other.poll() is None and stranger.poll() is None
        other.kill()
        stranger.kill()


def test_a_start_at_the_same_time_waits_for_the_one_before(home: Path) -> None:
    code = (
        "import sys; from eps.cluster.devcluster import lifecycle; "
        f"lifecycle.class_path_of_jars = lambda *_, **__: {JARS!r}; "
        "from eps.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    line = [sys.executable, "-c", code, "devcluster", "start", "--nodes=1", "--home", str(home)]
    both = [subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [command.communicate(timeout=PATIENCE_S) for command in both]
    assert {out for out, _ in told} == {f"export HADOOP_CONF_DIR={home}/conf\n"}, told
    assert sorted(processes(home).values()) == sorted(ONE_NODE.daemons)
    stop(home)


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
        wait_for(lambda: "namenode" in processes(home).values(), PATIENCE_S, "the NameNode to be started")
        command.send_signal(number)
        out, err = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, out) == (130, ""), err
    assert not processes(home)


def test_commands_print_what_scripts_need(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--home", str(home)]
    assert main(["devcluster", "status", *flags]) == 4
    assert f"there is no cluster at {home}: eps devcluster start starts one" in capsys.readouterr().err
    assert main(["devcluster", "start", "--nodes=1", "--timeout=0", *flags]) == 2
    assert "timeout is 0, but must be more than 0 seconds" in capsys.readouterr().err
    assert main(["devcluster", "start", "--nodes", "1", *flags]) == 0
    assert capsys.readouterr().out == f"export HADOOP_CONF_DIR={home}/conf\n"
    assert main(["devcluster", "status", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [[name, "running"] for name in ONE_NODE.daemons]
    assert main(["devcluster", "stop", *flags]) == 0
    assert capsys.readouterr().out == "stopped\n"
    assert main(["devcluster", "stop", *flags]) == 0
    assert "nothing runs" in capsys.readouterr().out


def test_status_tells_how_each_daemon_is_and_what_to_run(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_ASK_TIMEOUT_S", 0.5)
    cluster, flags = start(home), ["--home", str(home)]
    kill(home, "datanode")
    (hung,) = (Process.of(pid) for pid, name in processes(home).items() if name == "namenode")
    hung.send(signal.SIGSTOP)
    assert main(["devcluster", "status", *flags, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["conf_dir"] == str(cluster.conf_dir)
    assert {one["name"]: one["state"] for one in told["daemons"]} == {
        "namenode": "not answering",
        "datanode": "ended",
        "resourcemanager": "running",
        "nodemanager-1": "running",
    }
    assert {one["name"] for one in told["daemons"] if one["pid"] == 0} == {"datanode"}
    assert main(["devcluster", "status", *flags]) == 1
    assert f"eps devcluster start --home {home} restarts daemons that have exited" in capsys.readouterr().out
    hung.send(signal.SIGCONT)
    stop(home)
    assert main(["devcluster", "status", *flags]) == 1
    assert capsys.readouterr().out.endswith(f"\nnothing runs; start it with: eps devcluster start --home {home}\n")


def test_hadoops_commands_are_given_its_files_and_their_words(home: Path) -> None:
    cluster = start(home)
    shell, cli = "org.apache.hadoop.fs.FsShell", "org.apache.hadoop.yarn.client.cli"

    def said(program: str, *words: str) -> str:
        return subprocess.run([str(cluster.bin / program), *words], stdout=subprocess.PIPE, text=True).stdout

    for program, words, expected in (
        ("yarn", ("rmadmin", "-refreshNodes"), f"{cli}.RMAdminCLI -refreshNodes"),
        ("yarn", ("application", "-list"), f"{cli}.ApplicationCLI application -list"),
        ("hdfs", ("dfs", "-ls"), f"{shell} -ls"),
        ("hadoop", ("fs", "-ls"), f"{shell} -ls"),
    ):
        out = said(program, *words)
        assert out.startswith(f"{cluster.conf_dir}:{JARS} ") and out.endswith(f" {expected}\n"), out
    assert said("hadoop", "classpath", "--glob") == f"{cluster.conf_dir}:{JARS}\n"
    unknown = subprocess.run([str(cluster.bin / "yarn"), "jar"], capture_output=True, text=True)
    assert (unknown.returncode, unknown.stdout) == (2, "") and "followed by one of application" in unknown.stderr
    stop(home)
