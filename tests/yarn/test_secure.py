"""A real Hadoop with Kerberos: jobs log in with a keytab or a ticket, their containers with tokens.

This Hadoop takes a minute to start, so only the tier ``all`` runs these tests.
"""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import eps
from eps.cluster.devcluster.lifecycle import find_cluster, processes
from eps.cluster.devcluster.settings import Cluster
from eps.cluster.devcluster.sites import SERVICE
from eps.hadoop.kerberos import keytab_for
from eps.job.client import Job
from eps.storage.atomic import read_json
from tests.yarn.conftest import READY_TIMEOUT_S, START_TIMEOUT_S, STOP_TIMEOUT_S, devcluster
from tests.yarn.hadoop import PATIENCE_S

pytestmark = pytest.mark.tier("all")

JOB: dict[str, Any] = {
    "data": "sklearn:digits", "model": "softmax", "test": "0.2", "iterations": 30, "workers": 2, "servers": 1,
    "memory_mb": "512",
}  # fmt: skip
WORDS = [f"--{key.replace('_', '-')}={value}" for key, value in JOB.items()]
USER = f"{getpass.getuser()}@EPS.DEV"


@dataclass(frozen=True)
class Secure:
    """The cluster, and an environment for logins."""

    cluster: Cluster
    env: Mapping[str, str]

    def eps(self, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run a command of EPS in another environment; empty variables are removed."""
        env = {name: value for name, value in {**self.env, **changes}.items() if value}
        line = [sys.executable, "-m", "eps", *words]
        return subprocess.run(line, capture_output=True, text=True, env=env, timeout=4 * PATIENCE_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("secure")
    words = ("--kerberos", "--nodes", "1", "--memory", "8192", "--vcores", "8", "--timeout", str(READY_TIMEOUT_S))
    try:
        started = subprocess.run(devcluster("start", home, *words), text=True, timeout=START_TIMEOUT_S, check=True,
                                 stdout=subprocess.PIPE)  # fmt: skip
        found = find_cluster(home)
        assert started.stdout.splitlines() == [f"export {name}={value}" for name, value in found.variables().items()]
        yield found
    finally:
        subprocess.run(devcluster("stop", home), timeout=STOP_TIMEOUT_S, check=True)
    assert not processes(home)


@pytest.fixture
def secure(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Secure:
    env = cluster.environment()
    for name in ("KRB5CCNAME", "HADOOP_USER_NAME", "HADOOP_TOKEN_FILE_LOCATION"):
        env.pop(name, None)
        monkeypatch.delenv(name, raising=False)
    env |= {"EPS_HOME": str(tmp_path / "home"), "KRB5CCNAME": f"FILE:{tmp_path}/none"}
    for name in ("EPS_HOME", "KRB5CCNAME", "HADOOP_CONF_DIR", "KRB5_CONFIG", "KRB5_CLIENT_KTNAME"):
        monkeypatch.setenv(name, env[name])
    return Secure(cluster, env)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the hash of the model that a local job trains."""
    before, os.environ["EPS_HOME"] = os.environ.get("EPS_HOME"), str(tmp_path_factory.mktemp("local"))
    try:
        return str(eps.run(**JOB)["model_sha256"])
    finally:
        if before is None:
            del os.environ["EPS_HOME"]
        else:
            os.environ["EPS_HOME"] = before


#: Reads HDFS with tokens, cancels them, and prints the result of the next read.
CANCELS = """
import base64, os, sys, tempfile
from eps.errors import StorageError
from eps.hadoop.conf import default_authority, environment_configuration
from eps.storage.hdfs import open_hdfs
from eps.cluster.yarn.client import MODULE
from eps.hadoop.process import HadoopProcess
conf = environment_configuration()
client = HadoopProcess(conf, MODULE)
packed = client.call("obtain_tokens", file_systems=[])
with tempfile.NamedTemporaryFile() as file:
    file.write(base64.b64decode(packed))
    file.flush()
    environ = {"HADOOP_TOKEN_FILE_LOCATION": file.name}
    storage = open_hdfs("hdfs", default_authority(conf), "/", conf, environ=environ, patience_s=20.0)
    storage.names("")
    client.call("cancel_tokens", tokens=packed)
    try:
        storage.names("")
    except StorageError as error:
        print(error)
client.close()
"""


def test_cancelled_tokens_are_refused(secure: Secure) -> None:
    line = [sys.executable, "-c", CANCELS]
    done = subprocess.run(line, capture_output=True, text=True, env=dict(secure.env), timeout=4 * PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "HDFS refuses the credentials" in done.stdout


def test_a_job_with_a_keytab_trains_to_the_local_hash(secure: Secure, local: str, tmp_path: Path) -> None:
    words = ["--name", "keytab", f"--report={tmp_path}/report.json"]
    done = secure.eps("run", "--on", "yarn", *words, *WORDS)
    assert done.returncode == 0, done.stderr
    report = read_json(tmp_path / "report.json")
    assert report is not None and report["model_sha256"] == local
    assert (report["ledger"]["lost"], report["ledger"]["applied_twice"]) == (0, 0)


def test_a_submitted_job_whose_master_is_killed_continues_with_its_tokens(secure: Secure, local: str) -> None:
    told = secure.eps("submit", "--name", "alone", "--stretch-s", "0.05", *WORDS)
    assert told.returncode == 0 and told.stdout.startswith("alone: application_"), told.stderr
    from tests.yarn.test_jobs_on_yarn import master_of, reach

    with Job.find("alone") as job:
        reach(job, 3)
        assert master_of(job).send(signal.SIGKILL)
        report = job.wait(2 * PATIENCE_S)
    assert report["state"] == "finished" and report["model_sha256"] == local and report["generation"] == 2


@pytest.mark.parametrize("view", ["", "view=hadoop"], ids=["its owner only", "its viewers"])
def test_the_page_of_a_job_is_shown_to_its_owner_and_the_users_of_its_acl(
    secure: Secure, tmp_path: Path, view: str
) -> None:
    if "GSS-API" not in subprocess.run(["curl", "--version"], capture_output=True, text=True).stdout:
        pytest.skip("curl without Kerberos")
    keys = secure.cluster.keytab.read_bytes()

    name = "mine-too" if view else "mine"

    def asked(principal: str, path: str) -> tuple[int, str]:
        # The proxy warns users other than the owner, until a cookie records the warning.
        keytab, warned = tmp_path / principal.partition("/")[0], f"checked_{application}=true"
        keytab.write_bytes(keytab_for(keys, principal))
        env = {**secure.env, "KRB5CCNAME": f"FILE:{keytab}.cache", "KRB5_CLIENT_KTNAME": str(keytab)}
        words = ["--silent", "--negotiate", "--user", ":", "--cookie", warned, "--write-out", "\n%{http_code}"]
        url = f"{secure.cluster.rm_url}/proxy/{application}/{path}"
        done = subprocess.run(["curl", *words, url], capture_output=True, text=True, env=env, timeout=PATIENCE_S)
        text, _, status = done.stdout.rpartition("\n")
        return int(status), text

    told = secure.eps("submit", "--name", name, *WORDS, "--iterations", "100000", *(["--acl", view] if view else []))
    assert told.returncode == 0, told.stderr
    application = told.stdout.split()[1]
    from tests.yarn.test_jobs_on_yarn import reach

    with Job.find(name) as job:
        reach(job, 1)
        status, text = asked(USER, "status.json")
        assert (status, json.loads(text)["name"]) == (200, name)
        for path in ("", "status.json", "metrics"):
            status, text = asked(SERVICE, path)
            if view:
                assert status == 200 and "mine" in text
            else:
                assert status == 403 and "mine" not in text, "though the proxy lets it through"
        job.kill("enough")
        assert job.wait(2 * PATIENCE_S)["state"] == "killed"


SWEEP = """
[cluster]
container_memory = "512MiB"
[sweep]
trials = 3
algorithm = "random"
feedback_iteration = 10
[space]
learning_rate = { loguniform = [1e-3, 1] }
[job]
data = "sklearn:digits"
model = "softmax"
test = "0.2"
iterations = 30
splits = 12
workers = 1
servers = 1
"""


def test_the_application_of_a_sweep_queries_yarn_with_its_token(secure: Secure, tmp_path: Path) -> None:
    file, report = tmp_path / "sweep.toml", tmp_path / "report.json"
    file.write_text(SWEEP)

    def sweep(*words: str) -> tuple[dict[str, Any], str]:
        code = "import sys; from hscheduler.cli import main; sys.exit(main(sys.argv[1:]))"
        line = [sys.executable, "-c", code, "sweep", str(file), "--report", str(report), "--plain", *words]
        done = subprocess.run(line, capture_output=True, text=True, env=dict(secure.env), timeout=4 * PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return json.loads(report.read_text()), done.stdout

    there, told = sweep("--on", "yarn")
    assert "trial-3 gives early feedback" in told
    here, _ = sweep("--quiet")
    assert [(t["phase"], t["loss"]) for t in there["trials"]] == [(t["phase"], t["loss"]) for t in here["trials"]]


def test_without_a_ticket_the_message_says_what_to_do(secure: Secure) -> None:
    done = secure.eps("run", "--on", "yarn", *WORDS, KRB5_CLIENT_KTNAME="")
    assert done.returncode == 2 and "run kinit" in done.stderr and "KRB5_CLIENT_KTNAME" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "\tat " not in done.stderr


def test_an_unknown_principal_is_named(secure: Secure, tmp_path: Path) -> None:
    keys = keytab_for(secure.cluster.keytab.read_bytes(), USER)
    name = getpass.getuser()
    stranger = tmp_path / "stranger.keytab"
    stranger.write_bytes(keys.replace(name.encode(), b"z" * len(name)))
    done = secure.eps("run", "--on", "yarn", *WORDS, KRB5_CLIENT_KTNAME=str(stranger))
    assert done.returncode == 2 and f"{'z' * len(name)}@EPS.DEV" in done.stderr, done.stderr
    assert "Kerberos does not know the user" in done.stderr and "Traceback" not in done.stderr


def test_a_ticket_is_valid_until_it_expires(secure: Secure, local: str, tmp_path: Path) -> None:
    ticket = tmp_path / "ticket"
    keys, env = secure.cluster.user_keytab, {**secure.env, "KRB5CCNAME": f"FILE:{ticket}"}
    made = [sys.executable, "-m", "tests.yarn.ticket", str(keys), USER, str(ticket)]
    subprocess.run(made, check=True, env=env, timeout=PATIENCE_S)
    with_ticket = {"KRB5_CLIENT_KTNAME": "", "KRB5CCNAME": env["KRB5CCNAME"]}
    words = ["--on", "yarn", "--name", "ticket", *WORDS]
    done = secure.eps("run", f"--report={tmp_path}/report.json", *words, **with_ticket)
    assert done.returncode == 0, done.stderr
    assert (read_json(tmp_path / "report.json") or {})["model_sha256"] == local
    subprocess.run([*made, "--expired"], check=True, env=env, timeout=PATIENCE_S)
    done = secure.eps("run", *words, **with_ticket)
    assert done.returncode == 2 and "no valid ticket: run kinit" in done.stderr, done.stderr
