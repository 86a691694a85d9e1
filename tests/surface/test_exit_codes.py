"""Every situation of the table ends with its exit code."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import eps
from tests.surface.conftest import ENDLESS, Served, Swept, Trained, toml_of
from tests.surface.programs import begin, call, end, read_line, wait_until
from tests.surface.table_commands import EXIT_CODES, NOBODY

#: Makes what happens, and returns the exit code; by the words of the table.
SITUATIONS: dict[str, Callable[[pytest.FixtureRequest], int]] = {}
Situation = Callable[[pytest.FixtureRequest], int]

DIVERGES = {"model": "linear", "optimizer": "sgd", "learning_rate": 1e30, "workers": 1, "servers": 1, "iterations": 50}
SHORT = ("--model", "softmax", "--workers", "1", "--servers", "1", "--iterations", "3")
ENDLESS_WORDS = [word for key, value in ENDLESS.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def situation(name: str) -> Callable[[Situation], Situation]:
    def keep(make: Situation) -> Situation:
        SITUATIONS[name] = make
        return make

    return keep


def folder_of(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue("folder"))


@pytest.mark.parametrize("name", EXIT_CODES)
def test_a_situation_has_its_exit_code(name: str, request: pytest.FixtureRequest) -> None:
    assert SITUATIONS[name](request) == EXIT_CODES[name]


def test_no_situation_is_missing_from_the_table() -> None:
    assert SITUATIONS.keys() == EXIT_CODES.keys()


# ---- how a job ends


@situation("the job finished")
def _(request: pytest.FixtureRequest) -> int:
    trained: Trained = request.getfixturevalue("trained")
    return trained.ended.code


@situation("whoever read the output has gone")
def _(request: pytest.FixtureRequest) -> int:
    request.getfixturevalue("trained")
    process = begin("eps", "logs", "trained")
    assert process.stdout is not None and process.stderr is not None
    # Closed before anything is written: the program has not even begun to import.
    process.stdout.close()
    process.stdout = None
    ended = end(process)
    assert ended.err == ""
    return ended.code


@situation("the job failed")
def _(request: pytest.FixtureRequest) -> int:
    words = [word for key, value in DIVERGES.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    return call("eps", ["run", "--data", str(folder_of(request) / "rows.svm"), *words]).code


@situation("the report could not be written")
def _(request: pytest.FixtureRequest) -> int:
    words = ["--data", str(folder_of(request) / "rows.svm"), "--report", "/dev/full"]
    return call("eps", ["run", *words, *SHORT]).code


def begun(request: pytest.FixtureRequest, command: str, *words: str) -> Callable[[int | None], int]:
    """Start a command that trains the job ``stopped``; return what sends it a signal, and waits for its end."""
    process = begin("eps", command, *words, cwd=folder_of(request))

    def trains() -> bool:
        assert process.poll() is None, "it has ended before"
        found = json.loads(call("eps", ["list", "stopped", "--state", "running", "--json"]).out)
        return any(job["state"] == "running" and job["clock"] > 0 for job in found)

    try:
        wait_until(trains, "the job to train")
    except BaseException:
        end(process, signal.SIGKILL)
        raise
    return lambda number: end(process, number).code


@situation("the user pressed Ctrl-C")
def _(request: pytest.FixtureRequest) -> int:
    code = begun(request, "run", "--name", "stopped", "--anew", "--data", "rows.svm", *ENDLESS_WORDS)(signal.SIGINT)
    assert eps.Job.find("stopped").status()["state"] == "killed"
    return code


@situation("another command killed the job")
def _(request: pytest.FixtureRequest) -> int:
    if "stopped" not in call("eps", ["list"]).out:
        SITUATIONS["the user pressed Ctrl-C"](request)
    wait = begun(request, "resume", "stopped")
    killed = call("eps", ["kill", "stopped"]).code
    code = wait(None)
    assert killed == 0
    return code


# ---- what cannot be understood, or used


@situation("there is no such command")
def _(request: pytest.FixtureRequest) -> int:
    return call("eps", ["trian"]).code


@situation("there is no such flag")
def _(request: pytest.FixtureRequest) -> int:
    return call("eps", ["run", "--wrokers", "3"]).code


@situation("a flag is abbreviated")
def _(request: pytest.FixtureRequest) -> int:
    return call("eps", ["run", "--iter", "3"]).code


@situation("an argument is missing")
def _(request: pytest.FixtureRequest) -> int:
    return call("eps", ["status"]).code


@situation("the value of a flag is bad")
def _(request: pytest.FixtureRequest) -> int:
    return call("eps", ["run", "--workers", "0"]).code


@situation("the job file has an unknown key")
def _(request: pytest.FixtureRequest) -> int:
    path = folder_of(request) / "unknown.toml"
    path.write_text("wrokers = 3\n")
    return call("eps", ["run", str(path)]).code


@situation("the data is missing")
def _(request: pytest.FixtureRequest) -> int:
    return call("eps", ["run", "--data", str(folder_of(request) / "none.svm")]).code


@situation("a job of that name runs")
def _(request: pytest.FixtureRequest) -> int:
    live: eps.Job = request.getfixturevalue("live")
    return call("eps", ["run", "--name", live.name, "--data", str(folder_of(request) / "rows.svm"), *SHORT]).code


@situation("HDFS refuses the token")
def _(request: pytest.FixtureRequest) -> int:
    closed = request.getfixturevalue("hadoop_is_away")
    request.getfixturevalue("monkeypatch").setenv("EPS_HDFS_TOKEN", "none")
    return call("eps", ["run", "--data", f"webhdfs://{closed}/x.csv"]).code


# ---- changes of size


@situation("the change was refused")
def _(request: pytest.FixtureRequest) -> int:
    live: eps.Job = request.getfixturevalue("live")
    return call("eps", ["remove-servers", live.name, "100"]).code


@situation("there is no change to cancel")
def _(request: pytest.FixtureRequest) -> int:
    live: eps.Job = request.getfixturevalue("live")
    return call("eps", ["cancel", live.name, "1000"]).code


# ---- what is not there


@situation("there is no such job")
def _(request: pytest.FixtureRequest) -> int:
    return call("eps", ["status", NOBODY]).code


@situation("the job has no such log")
def _(request: pytest.FixtureRequest) -> int:
    live: eps.Job = request.getfixturevalue("live")
    return call("eps", ["logs", live.name, "worker-1000"]).code


@situation("HDFS is away")
def _(request: pytest.FixtureRequest) -> int:
    closed = request.getfixturevalue("hadoop_is_away")
    return call("eps", ["run", "--data", f"webhdfs://{closed}/x.csv"]).code


@situation("the ResourceManager is away")
def _(request: pytest.FixtureRequest) -> int:
    request.getfixturevalue("hadoop_is_away")
    return call("eps", ["submit", "--data", str(folder_of(request) / "rows.svm"), *SHORT]).code


@situation("the Docker engine is away")
def _(request: pytest.FixtureRequest) -> int:
    closed = request.getfixturevalue("closed")
    request.getfixturevalue("monkeypatch").setenv("DOCKER_HOST", f"tcp://{closed}")
    return call("eps", ["run", "--on", "docker", "--data", str(folder_of(request) / "rows.svm"), *SHORT]).code


# ---- hscheduler


@situation("hscheduler: the sweep has a best point")
def _(request: pytest.FixtureRequest) -> int:
    swept: Swept = request.getfixturevalue("swept")
    return swept.ended.code


@situation("hscheduler: no trial finished")
def _(request: pytest.FixtureRequest) -> int:
    path = folder_of(request) / "diverges.toml"
    path.write_text(toml_of({"sweep": {"trials": 1, "retries": 0}, "job": {"data": "rows.svm", **DIVERGES}}))
    return call("hscheduler", ["sweep", str(path), "--quiet"]).code


@situation("hscheduler: no trial of a comparison finished")
def _(request: pytest.FixtureRequest) -> int:
    path = folder_of(request) / "diverges-everywhere.toml"
    path.write_text(toml_of({"sweep": {"trials": 1, "retries": 0}, "job": {"data": "rows.svm", **DIVERGES}}))
    return call("hscheduler", ["compare", str(path), "--policies", "static", "--quiet"]).code


@situation("hscheduler: a flag is abbreviated")
def _(request: pytest.FixtureRequest) -> int:
    return call("hscheduler", ["jobs", "--stat", str(folder_of(request))]).code


@situation("hscheduler: the submitted job failed")
def _(request: pytest.FixtureRequest) -> int:
    served: Served = request.getfixturevalue("served")
    path = folder_of(request) / "failing.toml"
    path.write_text("".join(f"{key} = {value!r}\n" for key, value in {"data": "rows.svm", **DIVERGES}.items()))
    return call("hscheduler", ["submit", str(path), "--name", "failing", "--wait", "--state", str(served.state)]).code


@situation("hscheduler: there is no such command")
def _(request: pytest.FixtureRequest) -> int:
    return call("hscheduler", ["sweap"]).code


@situation("hscheduler: the sweep's file has an unknown key")
def _(request: pytest.FixtureRequest) -> int:
    path = folder_of(request) / "trails.toml"
    path.write_text("[sweep]\ntrails = 3\n")
    return call("hscheduler", ["sweep", str(path)]).code


@situation("hscheduler: there is no such policy")
def _(request: pytest.FixtureRequest) -> int:
    return call("hscheduler", ["simulate", str(request.getfixturevalue("sweep_file")), "--policy", "best"]).code


@situation("hscheduler: there is no such job")
def _(request: pytest.FixtureRequest) -> int:
    served: Served = request.getfixturevalue("served")
    return call("hscheduler", ["why", NOBODY, "--state", str(served.state)]).code


def stopped_service(request: pytest.FixtureRequest, number: int) -> int:
    """Return the exit code of a service that gets a signal; its directory is left."""
    process = begin("hscheduler", "serve", "--state", folder_of(request) / "ended-service", "--nodes", "1")
    try:
        read_line(process, "listens on ")
    finally:
        ended = end(process, number)
    return ended.code


@situation("hscheduler: the service was told to stop")
def _(request: pytest.FixtureRequest) -> int:
    return stopped_service(request, signal.SIGTERM)


@situation("hscheduler: the user pressed Ctrl-C in the service")
def _(request: pytest.FixtureRequest) -> int:
    return stopped_service(request, signal.SIGINT)


@situation("hscheduler: the service has ended")
def _(request: pytest.FixtureRequest) -> int:
    state = folder_of(request) / "ended-service"
    if not state.exists():
        stopped_service(request, signal.SIGTERM)
    return call("hscheduler", ["jobs", "--state", str(state)]).code


@situation("hscheduler: the ResourceManager is away")
def _(request: pytest.FixtureRequest) -> int:
    request.getfixturevalue("hadoop_is_away")
    return call("hscheduler", ["sweep", str(request.getfixturevalue("sweep_file")), "--on", "yarn"]).code


@situation("hscheduler: the user pressed Ctrl-C in a sweep")
def _(request: pytest.FixtureRequest) -> int:
    path, report = folder_of(request) / "endless.toml", folder_of(request) / "endless.json"
    path.write_text(toml_of({"sweep": {"trials": 1}, "job": {"data": "rows.svm", **ENDLESS}}))
    process = begin("hscheduler", "sweep", path, "--report", report)
    try:
        read_line(process, "trial-1 starts")
    finally:
        ended = end(process, signal.SIGINT)
    assert report.exists(), "what there was by then"
    return ended.code
