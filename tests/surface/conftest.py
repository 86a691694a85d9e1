"""A home and a few real runs, which all tests of this folder share."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import eps
from hscheduler.service.client import SchedulerClient
from tests.surface.programs import Ended, begin, end, processes_of, read_line, run, wait_until
from tests.surface.table_commands import CORE_FLAGS, RESULT_FLAGS
from tests.surface.table_files import SWEEP_FILE

#: A job that ends long after its tests.
ENDLESS: dict[str, Any] = {
    "model": "softmax", "workers": 2, "servers": 2, "splits": 6, "iterations": 1_000_000, "stretch_s": 0.01,
}  # fmt: skip


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with training data: 120 rows, five features, three classes."""
    found = tmp_path_factory.mktemp("surface")
    rows = []
    for row in range(120):
        values = [(row * (k + 3) % 7) / 7 + (k == row % 3) for k in range(5)]
        rows.append(f"{row % 3} {' '.join(f'{k + 1}:{value:.4f}' for k, value in enumerate(values))}\n")
    (found / "rows.svm").write_text("".join(rows))
    return found


@pytest.fixture(scope="package", autouse=True)
def home(folder: Path) -> Iterator[Path]:
    """A home of this folder's; afterwards no process of its jobs may be left."""
    found = folder / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPS_HOME", str(found))
        for name in ("HADOOP_CONF_DIR", "EPS_HDFS_TOKEN", "EPS_HDFS_PATIENCE_S"):
            patch.delenv(name, raising=False)
        yield found
    wait_until(lambda: not processes_of(found), f"the processes of {found} to be gone")


@pytest.fixture(scope="package")
def closed() -> Iterator[str]:
    """An address at which nothing listens, and nothing begins to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def hadoop_is_away(closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let HADOOP_CONF_DIR lead to nobody, and give that address."""
    values = {"yarn.resourcemanager.webapp.address": closed, "fs.defaultFS": f"hdfs://{closed}"}
    told = "".join(f"<property><name>{name}</name><value>{value}</value></property>" for name, value in values.items())
    for name in ("core-site.xml", "yarn-site.xml"):
        (tmp_path / name).write_text(f"<configuration>{told}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("EPS_HDFS_PATIENCE_S", "0")
    return closed


class Trained(NamedTuple):
    """A job that ``eps run`` has trained with all flags of CORE_FLAGS."""

    ended: Ended
    report: dict[str, Any]
    model: Path


@pytest.fixture(scope="package")
def trained(folder: Path) -> Trained:
    words = [word for flag in (*RESULT_FLAGS, *CORE_FLAGS) for word in flag.words]
    ended = run("eps", "run", *words, cwd=folder)
    assert ended.code == 0, ended
    return Trained(ended, json.loads((folder / "report.json").read_text()), folder / "model.npz")


@pytest.fixture(scope="package")
def live(folder: Path) -> Iterator[eps.Job]:
    """A job that trains until the tests have ended; whoever changes its size leaves two workers and two servers."""
    with eps.Job.start(name="live", data=folder / "rows.svm", **ENDLESS) as job:
        wait_until(lambda: job.status()["clock"] > 0, "the first iteration")
        yield job
        job.kill()
        assert not job.running


class Swept(NamedTuple):
    """A sweep that ``hscheduler sweep`` has run with all keys of SWEEP_FILE."""

    ended: Ended
    report: dict[str, Any]
    path: Path


def toml_of(tables: dict[str, dict[str, Any]]) -> str:
    """Return tables as TOML."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{key} = {text(inner)}" for key, inner in value.items()) + " }"
        return json.dumps(value)

    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {text(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="package")
def sweep_file(folder: Path) -> Path:
    path = folder / "sweep.toml"
    path.write_text(toml_of(SWEEP_FILE))
    return path


@pytest.fixture(scope="package")
def swept(folder: Path, sweep_file: Path) -> Swept:
    path = folder / "sweep.json"
    ended = run("hscheduler", "sweep", sweep_file, "--report", path, "--page", folder / "sweep.html", cwd=folder)
    assert ended.code == 0, ended
    return Swept(ended, json.loads(path.read_text()), path)


class Served(NamedTuple):
    """A service that ``hscheduler serve`` runs."""

    state: Path
    address: str

    def client(self) -> SchedulerClient:
        return SchedulerClient(self.state)


@pytest.fixture(scope="package")
def served(folder: Path) -> Iterator[Served]:
    state = folder / "service"
    words = ("--nodes", "2", "--web", "0", "--listen", "127.0.0.1:0")
    process = begin("hscheduler", "serve", "--state", state, *words)
    try:
        first = read_line(process, "listens on ")
        yield Served(state, first.partition("listens on ")[2].partition(": ")[0])
    finally:
        ended = end(process, signal.SIGINT)
    assert ended.code == 0, ended
