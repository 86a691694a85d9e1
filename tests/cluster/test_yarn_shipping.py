"""Uploads to the cluster: the same files give the same bytes; files that YARN would refuse are refused before."""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from eps.cluster.api import ContainerRequest
from eps.cluster.yarn.application import MasterOrders, home_location, tags_of
from eps.cluster.yarn.container import own_job_dir
from eps.cluster.yarn.launch import build_launch
from eps.cluster.yarn.shipping import (
    CODE,
    ENVIRONMENT,
    JOB,
    PythonEnvironment,
    pack_code,
    pack_job,
    packed,
    python_environment,
)
from eps.cluster.yarn.types import FileKind, Grant, LocalFile, Resource, Visibility
from eps.errors import ConfigError
from eps.hadoop.conf import HadoopConf, read_configuration
from eps.job.yarn.am import template_of
from eps.job.yarn.submit import check_environment, file_systems_of, pack_conf
from eps.ml import kernels
from eps.spec.job_spec import JobSpec
from eps.storage.jobdir import JobDir, create_job_dir
from eps.storage.locations import RemotePath
from tests.fakes.full_disk import no_file_beyond
from tests.fakes.records import note_settings

pytest.importorskip("requests")


def names(content: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.namelist()


#: Says where a module comes from, where the rules for Java's log are, and what it would bring to others itself.
FROM_ARCHIVE = """
import eps.job.yarn.am, eps.job.member, hscheduler.page
from eps.hadoop.bridge import jvm_options
from eps.cluster.yarn.shipping import pack_code
print(eps.job.yarn.am.__file__)
print(next(each for each in jvm_options() if "log4j" in each).partition("=")[2])
print(pack_code().digest)
"""


def in_archive(folder: Path, content: bytes, code: str = FROM_ARCHIVE, **env: str) -> list[str]:
    """Return the lines that a process says which has our code from an archive, as those of containers have."""
    if content:
        (folder / CODE).write_bytes(content)
    environ = {**os.environ, "PYTHONPATH": str(folder / CODE), **env}
    command = [sys.executable, "-P", "-c", code]
    said = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    return said.stdout.splitlines()


def test_our_code_is_packed_to_the_same_bytes_each_time(tmp_path: Path) -> None:
    """Whoever packs it: nodes that have it take it for the same file."""
    mine = pack_code()
    assert len(mine.content) < 8 << 20 and mine.digest == hashlib.sha256(mine.content).hexdigest()
    found = names(mine.content)
    assert {"eps/__init__.py", "eps/job/yarn/am.py", "hscheduler/__init__.py", "eps/pb/control_pb2.py"} <= set(found)
    assert {name for name in found if name.endswith(".pyc")} == {f"{name}c" for name in found if name.endswith(".py")}
    say = "from eps.cluster.yarn.shipping import pack_code; print(pack_code().digest)"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    other = subprocess.run(
        [sys.executable, "-c", say], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert other.stdout.split() == [mine.digest]


def test_processes_run_from_the_archive_of_our_code_as_it_is(tmp_path: Path) -> None:
    """They take what is compiled, find the files that are no code, and bring others the same archive."""
    mine = pack_code()
    module, log4j, digest = in_archive(tmp_path, mine.content)
    assert module == str(tmp_path / CODE / "eps" / "job" / "yarn" / "am.pyc") and digest == mine.digest
    archive, _, name = log4j.removeprefix("jar:").partition("!/")
    assert archive == (tmp_path / CODE).as_uri() and name in names(mine.content)


def test_an_interpreter_of_another_version_takes_the_source(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(pack_code().content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    other = {name: b"\0\0\r\n" + content[4:] if name.endswith(".pyc") else content for name, content in members.items()}
    content = packed((name, each, 0o644) for name, each in other.items()).content
    assert in_archive(tmp_path, content)[0] == str(tmp_path / CODE / "eps" / "job" / "yarn" / "am.py")


def test_what_is_compiled_on_a_node_is_kept_there_for_other_containers(tmp_path: Path) -> None:
    """As from a folder: else every worker of a large model would compile for itself, for seconds."""
    pytest.importorskip("numba")
    code = """
from eps.ml import kernels
types = kernels.numba().types
accepted = types.void(kernels.given(types.uint32), kernels.given(types.int64), kernels.taken(types.uint32))
stats = kernels.build(kernels._largest, [accepted]).stats
print(stats.cache_path, sum(stats.cache_hits.values()))
"""
    node, containers = tmp_path / "node", [tmp_path / "one", tmp_path / "other"]
    node.mkdir()
    (node / "code.zip").write_bytes(pack_code().content)
    for folder in containers:
        folder.mkdir()
        (folder / CODE).symlink_to(node / "code.zip")
    (first, compiled), (second, taken) = [in_archive(folder, b"", code)[0].split() for folder in containers]
    assert first == second and Path(first).is_relative_to(node) and (compiled, taken) == ("0", "1")


def test_what_a_full_disk_does_not_take_of_a_module_leaves_nothing_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process of each job tries again."""
    source = b"def add(): ...\n" + 5000 * b"#"
    (tmp_path / "code.zip").write_bytes(packed([("in_archive_only.py", source, 0o644)]).content)
    monkeypatch.syspath_prepend(str(tmp_path / "code.zip"))
    add = importlib.import_module("in_archive_only").add
    with no_file_beyond(4096), pytest.raises(OSError, match="File too large"):
        kernels._give_file(add)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["code.zip"]
    kernels._give_file(add)
    (given,) = tmp_path.rglob("in_archive_only.py")
    assert given.read_bytes() == source and add.__code__.co_filename == str(given)
    del sys.modules["in_archive_only"]


def test_an_error_in_a_container_shows_its_line(tmp_path: Path) -> None:
    code = """
import traceback
from eps.spec.job_spec import JobSpec
try:
    JobSpec(workers=0)
except Exception:
    print(traceback.format_exc())
"""
    said = in_archive(tmp_path, pack_code().content, code)
    last = max(number for number, line in enumerate(said) if f'File "{CODE}/eps/' in line)
    assert said[last + 1].strip().startswith("raise ConfigError")


def test_a_job_is_packed_with_what_its_processes_read_and_nothing_else(tmp_path: Path) -> None:
    job, lock = create_job_dir("a9a", tmp_path)
    lock.close()
    note_settings(job)
    job.log("master").write_text("not this")
    (job.path / "model-code").mkdir()
    (job.path / "model-code" / "mine.py").write_text("class Mine: ...")
    assert names(pack_job(job).content) == ["job.json", "model-code/mine.py", "token"]


def test_each_process_has_a_directory_of_its_own_with_the_jobs_files(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(b""), "w"):
        (tmp_path / JOB / "tls").mkdir(parents=True)
    (tmp_path / JOB / "token").write_text("secret")
    job = own_job_dir(tmp_path)
    assert job.read_token() == "secret" and job.tls.is_dir() and job.logs.is_dir()
    job.master_json.write_text("{}")
    assert sorted(path.name for path in (tmp_path / JOB).iterdir()) == ["tls", "token"]
    assert own_job_dir(tmp_path) == job == JobDir(tmp_path / "job")


def test_the_interpreter_is_a_path_or_an_archive(tmp_path: Path) -> None:
    assert python_environment("") == PythonEnvironment(sys.executable)
    assert python_environment("/opt/py/bin/python") == PythonEnvironment("/opt/py/bin/python")
    archive = tmp_path / "env.tar.gz"
    with pytest.raises(ConfigError, match="no such archive"):
        python_environment(str(archive))
    archive.write_bytes(b"x")
    assert python_environment(str(archive)) == PythonEnvironment(f"./{ENVIRONMENT}/bin/python", str(archive))
    for remote in ("hdfs:///envs/a.zip", "hdfs:/envs/a.zip"):
        assert python_environment(remote).archive == remote
    with pytest.raises(ConfigError, match="absolute path"):
        python_environment("python3")


def test_what_this_machine_can_tell_of_an_interpreter_is_told_before_it_is_brought(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(name: object) -> str:
        with pytest.raises(ConfigError) as raised:
            check_environment(str(name))
        return str(raised.value).replace(f"python is {name}, ", "")

    script, text, folder = tmp_path / "script", tmp_path / "text", tmp_path
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    text.write_text("root:x:0:0\n")
    assert refused(script) == "but must be an interpreter: its test run failed (exit code 3)"
    assert refused(text) == "but must be an interpreter: it cannot be run (Permission denied)"
    assert refused(folder) == "but must be an interpreter, not a folder"
    for name in ("cut.tar.gz", "cut.tgz", "cut.tar", "cut.zip"):
        (tmp_path / name).write_bytes(b"")
        assert refused(tmp_path / name).startswith("which cannot be unpacked: ")
    for name, mode in (("none.tar.gz", "w:gz"), ("none.tar", "w")):
        tarfile.open(tmp_path / name, mode).close()
    zipfile.ZipFile(tmp_path / "none.zip", "w").close()
    for name in ("none.tar.gz", "none.tar", "none.zip"):
        assert refused(tmp_path / name) == "but that archive is empty: make it with conda-pack or venv-pack"
    # What may be right is left to the nodes.
    check_environment("")
    link = tmp_path / "python"
    link.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    link.chmod(0o755)
    check_environment(str(link))
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(text, "bin/python")
    check_environment(str(tmp_path / "env.tar.gz"))
    assert caplog.messages == []
    check_environment(str(tmp_path / "nowhere"))
    assert caplog.messages == [
        f"python is {tmp_path}/nowhere, which this machine does not have: check that every node has it"
    ]


def test_orders_survive_the_way_to_the_master() -> None:
    file = LocalFile("hdfs://nn:1/x.zip", 1, 2, FileKind.ARCHIVE, Visibility.PRIVATE)
    orders = MasterOrders("hdfs://nn:1/jobs/x", "/usr/bin/python", {"code": file}, {"A": "1"})
    text = orders.to_text()
    # The shell that sets it has no word in it.
    assert text.replace("=", "").replace("+", "").replace("/", "").isalnum()
    assert MasterOrders.from_text(text) == orders
    with pytest.raises(ConfigError, match="EPS_YARN"):
        MasterOrders.from_text("e30=")


def test_members_get_the_tokens_of_the_job() -> None:
    orders = MasterOrders("hdfs://nn:1/jobs/x", "/usr/bin/python", {}, {})
    runtime = SimpleNamespace(spec=JobSpec(on="yarn"))
    template = template_of(orders, runtime, b"tokens")  # type: ignore[arg-type]
    grant = Grant("container_1_0001_01_000002", "n1:1", 1, Resource(64, 1))
    assert build_launch(template, ContainerRequest("c", "worker"), grant).credentials == b"tokens"


def test_tokens_are_for_every_file_system_that_members_use() -> None:
    home = RemotePath.parse("hdfs://nn:1/user/ada/.eps")
    assert file_systems_of(home, JobSpec()) == ["hdfs://nn:1"]
    other = JobSpec().with_settings(checkpoint_dir="hdfs://lake/checkpoints")
    assert file_systems_of(home, other) == ["hdfs://lake", "hdfs://nn:1"]
    assert file_systems_of(home, JobSpec().with_settings(checkpoint_dir="/nfs/checkpoints")) == ["hdfs://nn:1"]


def test_files_of_jobs_are_in_the_users_home_unless_said_otherwise() -> None:
    conf = HadoopConf({"fs.defaultFS": "hdfs://lake"}, "/etc/hadoop")
    assert str(home_location(conf, "ada")) == "hdfs://lake/user/ada/.eps"
    assert str(home_location(conf, "ada", "hdfs://lake/teams/x/")) == "hdfs://lake/teams/x"


def test_containers_see_the_cluster_as_the_client_does(tmp_path: Path) -> None:
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    (tmp_path / "keystore.jks").write_text("not this")
    assert names(pack_conf(HadoopConf({}, str(tmp_path))).content) == ["core-site.xml"]
    (tmp_path / "eps-classpath.txt").write_text("/opt/hadoop/*")
    (tmp_path / "capacity-scheduler.xml").write_text("<configuration/>")
    found = names(pack_conf(HadoopConf({}, str(tmp_path))).content)
    assert set(found) == {"capacity-scheduler.xml", "core-site.xml", "eps-classpath.txt"}


def test_what_the_scheduler_alone_may_read_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("yarn-site.xml", "capacity-scheduler.xml"):
        (tmp_path / name).write_text("<configuration/>")
    monkeypatch.setattr("eps.job.yarn.submit.os.access", lambda path, mode: path.name != "capacity-scheduler.xml")
    assert names(pack_conf(HadoopConf({}, str(tmp_path))).content) == ["yarn-site.xml"]


def test_a_configuration_that_includes_files_is_whole_in_a_container(tmp_path: Path) -> None:
    """Whoever submits may have included what lies beside the files, or elsewhere on that host."""
    shared, conf, container = (tmp_path / name for name in ("shared", "conf", "container"))
    for folder in (shared, conf, container):
        folder.mkdir()
    value = "<configuration><property><name>fs.defaultFS</name><value>hdfs://lake</value></property></configuration>"
    (shared / "all.xml").write_text(value)
    include = f'<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="{shared}/all.xml"/>'
    (conf / "core-site.xml").write_text(f"<configuration>{include}</configuration>")
    content = pack_conf(read_configuration(conf)).content
    (shared / "all.xml").unlink()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(container)
    assert read_configuration(container).get("fs.defaultFS") == "hdfs://lake"


def test_an_application_says_what_it_will_ask_for() -> None:
    spec = JobSpec().with_settings(on="yarn", workers=3, servers=1, memory_mb="512,server=1024", tags="mine")
    assert tags_of(spec) == ("mine", "eps.workers=3", "eps.servers=1", "eps.worker=512x1", "eps.server=1024x1")
