"""``python -m eps.cluster.container``: a process of a job that no supervisor forked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import eps
from eps.cluster.container import CANNOT_START, context_of
from eps.cluster.supervisor.process import ContainerContext
from eps.errors import ConfigError
from eps.storage.jobdir import create_job_dir

DEADLINE_S = 30.0
ENTRY = "worker=tests.cluster.test_container:run_worker"
ROLES = ("master", "server", "worker")

# ---- in the container


def run_worker(context: ContainerContext) -> int | None:
    print(json.dumps({
        "context": [context.role, context.container_id, str(context.job_dir), context.master_address, context.host],
        "env": dict(context.env),
        "supervisor_fd": context.supervisor_fd,
        "scratch": str(context.scratch_dir), "scratch_is_there": os.path.isdir(str(context.scratch_dir)),
        "blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        "blas_threads": os.environ["OPENBLAS_NUM_THREADS"],
    }))  # fmt: skip
    match os.environ["BEHAVIOUR"].split():
        case ["exit", code]:
            return int(code)
        case ["raise"]:
            raise RuntimeError("the worker was told to fail")
        case ["leave"]:
            sys.exit("the worker left")
    while True:
        signal.pause()


# ---- in the test


def environ_of(job_dir: Path, **values: str) -> dict[str, str]:
    told = {
        "EPS_ROLE": "worker",
        "EPS_CONTAINER_ID": "container-1",
        "EPS_JOB_DIR": str(job_dir),
        "EPS_MASTER_ADDRESS": "127.0.0.1:1",
    }
    return {**told, **values}


#: Starts a command as a careless runtime would.  In a process of its own: a ``preexec_fn`` would run gRPC's fork
#: handlers, which abort where another test's threads are in gRPC.
CARELESS = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
os.execv(sys.argv[1], sys.argv[1:])
"""


@contextmanager
def container(environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CARELESS, sys.executable, "-m", "eps.cluster.container", "--entry", ENTRY],
        cwd=Path(eps.__file__).parents[1],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    """Return what a container says when it begins, which leaves at once: who is killed must not take it along."""
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line, f"ended with {process.wait(DEADLINE_S)}: {process.stderr.read()}"
    return line


def test_a_container_runs_its_entry_function_and_sigterm_ends_it(tmp_path: Path) -> None:
    environ = environ_of(tmp_path, BEHAVIOUR="stay", EPS_HOST="worker.example")
    with container(environ) as process:
        said = json.loads(first_line(process))
        process.terminate()
        assert process.wait(DEADLINE_S) == -signal.SIGTERM
    assert said["context"] == ["worker", "container-1", str(tmp_path), "127.0.0.1:1", "worker.example"]
    assert said["env"]["EPS_ROLE"] == "worker" and "BEHAVIOUR" not in said["env"]
    assert said["supervisor_fd"] is None
    assert said["scratch"] == str(tmp_path / "containers" / "container-1") and said["scratch_is_there"]
    assert said["blocked"] == [] and said["blas_threads"] == "1"


@pytest.mark.parametrize(
    ("behaviour", "code", "words"),
    [("exit 7", 7, ""), ("exit 0", 0, ""), ("raise", 1, "told to fail"), ("leave", 1, "the worker left")],
)
def test_the_exit_code_says_how_the_entry_function_ended(tmp_path: Path, behaviour: str, code: int, words: str) -> None:
    with container(environ_of(tmp_path, BEHAVIOUR=behaviour)) as process:
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code
    assert words in errors


def test_an_environment_that_cannot_be_is_told_in_one_sentence(tmp_path: Path) -> None:
    with container(environ_of(tmp_path, EPS_MASTER_ADDRESS="")) as process:
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == CANNOT_START
    assert (
        errors
        == "eps.cluster.container: EPS_MASTER_ADDRESS is not set: the runtime that starts this container must set it\n"
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("EPS_ROLE", "", "EPS_ROLE is not set"),
        ("EPS_ROLE", "client", "EPS_ROLE is 'client', but must be one of master, server, worker"),
        ("EPS_CONTAINER_ID", "", "EPS_CONTAINER_ID is not set"),
        ("EPS_CONTAINER_ID", "../other", "EPS_CONTAINER_ID is '../other'"),
        ("EPS_JOB_DIR", "", "EPS_JOB_DIR is not set"),
        ("EPS_JOB_DIR", "job", "must be an absolute path"),
        ("EPS_JOB_DIR", "/nowhere/job", "no such directory in this container"),
        ("EPS_MASTER_ADDRESS", "host", "must be host:port"),
        ("EPS_MASTER_ADDRESS", ":80", "must be host:port"),
        ("EPS_MASTER_ADDRESS", "host:0", "must be host:port"),
        ("EPS_MASTER_ADDRESS", "host:65536", "must be host:port"),
        ("EPS_HOST", "a host", "EPS_HOST is 'a host'"),
    ],
)
def test_each_value_is_checked(tmp_path: Path, name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        context_of(environ_of(tmp_path, **{name: value}), ROLES)


def test_a_master_needs_no_master(tmp_path: Path) -> None:
    environ = environ_of(tmp_path, EPS_ROLE="master", EPS_MASTER_ADDRESS="")
    context = context_of(environ, ROLES)
    assert (context.role, context.master_address, context.host) == ("master", None, "127.0.0.1")


def test_an_address_of_the_sixth_version_is_one(tmp_path: Path) -> None:
    assert context_of(environ_of(tmp_path, EPS_MASTER_ADDRESS="[::1]:80"), ROLES).master_address == "[::1]:80"


def test_a_tied_container_ends_when_nobody_holds_the_jobs_lock(tmp_path: Path) -> None:
    job, lock = create_job_dir("job", tmp_path)
    with container(environ_of(job.path, BEHAVIOUR="stay", EPS_TIED="1")) as process:
        first_line(process)
        # Whoever looks holds it for an instant, and is nobody's end.
        assert job.is_running() and process.poll() is None
        (scratch,) = job.containers.iterdir()
        (scratch / "splits").mkdir()
        lock.close()
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 1
    assert "its lock was released" in errors
    # Nobody is left who would remove it.
    assert list(job.containers.iterdir()) == []


def test_a_tied_container_needs_a_lock(tmp_path: Path) -> None:
    with container(environ_of(tmp_path, BEHAVIOUR="stay", EPS_TIED="1")) as process:
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == CANNOT_START
    assert (
        errors
        == f"eps.cluster.container: EPS_TIED is set, but {tmp_path}/lock cannot be opened: No such file or directory\n"
    )
