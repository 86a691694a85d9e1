"""Bad input for a real YARN and HDFS: a sentence that says what to do, without Java's or Python's tracebacks."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from eps.cli import main
from eps.cluster.devcluster.settings import MASTER_ADDRESS
from eps.cluster.yarn.advice import CHECK_FILES
from eps.cluster.yarn.client import YarnClient
from eps.cluster.yarn.types import Submission
from eps.storage.locations import RemotePath, open_storage, write_public
from hscheduler.cli import main as hscheduler
from tests.yarn.hadoop import Hadoop
from tests.yarn.in_java import InJava, dfsadmin, rmadmin

#: An address without a listener.
NOWHERE = f"{MASTER_ADDRESS}:9"
JOB = ["--data=sklearn:digits", "--model=softmax", "--iterations=3", "--memory-mb=512", "--quiet"]

#: Runs the command with further arguments and returns its standard error; its exit code must be the first argument.
Refused = Callable[..., str]


@pytest.fixture
def refused(on_yarn: Hadoop, capsys: pytest.CaptureFixture[str]) -> Refused:
    def refused(code: int, *words: str) -> str:
        assert main(["run", "--on=yarn", *JOB, *words]) == code
        said = capsys.readouterr().err
        assert "Traceback" not in said and "Exception" not in said and "\tat " not in said, said
        return said

    return refused


def test_impossible_requests_are_refused_before_anything_is_done(refused: Refused, tmp_path: Path) -> None:
    for words, sentence in (
        (
            ["--memory-mb=900000"],
            "--memory-mb is '900000', which gives a master 900000, but must give it at most 4096: YARN grants at "
            "most 4096 MB and 4 vcores to one container",
        ),
        (
            ["--vcores=1,worker=64"],
            "vcores is '1,worker=64', which gives a worker 64, but must give it at most 4: YARN",
        ),
        (["--label=gold"], "label is 'gold', but queue 'default' allows only: "),
        (
            ["--reliable=1", "--transient=1", "--label=transient=spot"],
            "label is 'spot', but queue 'default' allows only: transient",
        ),
        (["--queue=nope"], "queue is 'nope', but the cluster has no queue of that name: see yarn queue -list"),
        (["--python=python3"], "python is 'python3', but must be the absolute path of an interpreter that every node"),
        (
            [f"--python={tmp_path}/env.tar.gz"],
            f"python is {tmp_path}/env.tar.gz, but there is no such archive: make it with conda-pack or venv-pack",
        ),
        (["--python=hdfs:///nowhere/env.tar.gz"], "python is hdfs:///nowhere/env.tar.gz, but there is no such archive"),
    ):
        said = refused(2, *words)
        assert said.startswith("eps: ") and said.count("\n") == 1 and sentence in said, said


def test_a_sweep_without_a_trial_that_yarn_accepts_is_refused_before_any_starts(
    on_yarn: Hadoop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for size, setting, sentence in (
        (
            "512MiB",
            'queue = "nope"',
            "queue is 'nope', but the cluster has no queue of that name: see yarn queue -list",
        ),
        ("512MiB", 'queue = "root"', "queue is 'root', but it takes no applications itself: name a queue below it: "),
        ("512MiB", 'label = "gold"', "label is 'gold', but queue 'default' allows only: "),
        ("900GiB", "", "a container of 1 vcore and 921600 MiB fits no node of 4 vcores and 4096 MiB"),
    ):
        file = tmp_path / "sweep.toml"
        job = f'[job]\ndata = "sklearn:digits"\nmodel = "softmax"\n{setting}\n'
        file.write_text(f'[cluster]\ncontainer_memory = "{size}"\n[sweep]\ntrials = 1\n{job}')
        assert hscheduler(["sweep", str(file), "--on", "yarn"]) == 2
        said = capsys.readouterr()
        assert not said.out and said.err.count("\n") == 1 and sentence in said.err, said


def test_a_configuration_of_an_unreachable_cluster_is_named(
    refused: Refused, on_yarn: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR")
    assert 'set: it must name the folder with the cluster\'s yarn-site.xml; eval "$(eps devcluster start)"' in refused(
        2
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "missing"))
    assert f"HADOOP_CONF_DIR is '{tmp_path}/missing', but must name the folder with core-site.xml, " in refused(2)
    for daemon, code, words in (
        ("resourcemanager", 4, ("no ResourceManager can be reached", NOWHERE, "yarn-site.xml")),
        ("namenode", 4, ("fs.defaultFS of ", NOWHERE, "cannot be reached", "HADOOP_CONF_DIR")),
    ):
        conf = tmp_path / daemon
        shutil.copytree(on_yarn.conf_dir, conf)
        for site in conf.glob("*-site.xml"):
            site.write_text(site.read_text().replace(on_yarn.cluster.address(daemon, "web"), NOWHERE))
        monkeypatch.setenv("HADOOP_CONF_DIR", str(conf))
        monkeypatch.setenv("EPS_HDFS_PATIENCE_S", "0.5")
        said = refused(code)
        assert all(word in said.splitlines()[-1] for word in words), said


def test_a_stopped_queue_and_a_read_only_hdfs_are_reported(
    refused: Refused, on_yarn: Hadoop, java: InJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = on_yarn.conf_dir / "capacity-scheduler.xml"
    before = site.read_text()
    stopped = "<property><name>yarn.scheduler.capacity.root.batch.state</name><value>STOPPED</value></property>"
    site.write_text(before.replace("</configuration>", f"{stopped}</configuration>"))
    try:
        java(rmadmin, "-refreshQueues")
        assert "queue is 'batch', but it is STOPPED: ask its administrator, or choose another" in refused(
            2, "--queue=batch"
        )
    finally:
        # A queue without settings keeps its old ones.
        site.write_text(site.read_text().replace("STOPPED", "RUNNING"))
        java(rmadmin, "-refreshQueues")
        site.write_text(before)
    monkeypatch.setenv("EPS_HDFS_PATIENCE_S", "0.5")
    java(dfsadmin, "-safemode", "enter")
    try:
        said = refused(4, "--name=safe").splitlines()[-1]
    finally:
        java(dfsadmin, "-safemode", "leave")
    assert said.startswith("eps: hdfs://") and "the NameNode is in safe mode" in said, said
    assert "wait until it leaves, or run hdfs dfsadmin -safemode leave; retried for 0.5 s" in said, said


@pytest.mark.usefixtures("no_leftovers")
def test_a_failed_start_is_reported_with_its_reason_and_its_log(refused: Refused) -> None:
    said = refused(1, "--name=fails", "--python=/nowhere/python")
    reason = said.splitlines()[0]
    assert reason.startswith("eps: job 'fails' failed: its application master ended with exit code 127: "), said
    assert "/nowhere/python" in reason and "No such file or directory" in reason
    assert "the setting python must name an interpreter with EPS's packages on every node" in reason
    assert "logs of its containers: yarn logs -applicationId application_" in said


@pytest.mark.tier("all")
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("why", ["gone", "no archive"])
def test_an_archive_that_nodes_cannot_download_is_named(
    refused: Refused, on_yarn: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """It existed when the job was submitted, and its content was not checked."""
    folder = RemotePath.parse(f"hdfs:///envs/{tmp_path.name}")
    write_public(folder / "env.tar.gz", b"nothing of the kind")
    submit = YarnClient.submit

    def submit_late(self: YarnClient, application_id: str, submission: Submission) -> None:
        open_storage(folder).remove("env.tar.gz")
        submit(self, application_id, submission)

    if why == "gone":
        monkeypatch.setattr(YarnClient, "submit", submit_late)
    name = f"unbrought-{secrets.token_hex(3)}"
    said = refused(1, f"--name={name}", f"--python={folder}/env.tar.gz")
    reason = said.splitlines()[0]
    assert reason.startswith(f"eps: job '{name}' failed: its application master could not be started by its node: ")
    assert reason.endswith(CHECK_FILES)
    assert why != "gone" or f"File does not exist: {on_yarn.hdfs_url}{folder.path}/env.tar.gz; " in reason
