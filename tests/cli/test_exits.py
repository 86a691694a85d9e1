"""Exit codes: which says that a job, or its cluster, cannot be reached."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from eps.cli import main
from eps.cli.exits import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_NOT_FOUND, EXIT_REFUSED, exit_code
from eps.errors import (
    AuthenticationError,
    ConfigError,
    DataError,
    PlanError,
    ResourceAwayError,
    ResourceError,
    StorageDeniedError,
    StorageError,
)
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.spec.results import deliver_results
from eps.storage.jobdir import JobDir
from tests.fakes.webhdfs import FakeHdfs, refusing_connections

RUN = ["run", "--quiet", "--model", "softmax"]


@pytest.fixture
def nobody(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address on which no process listens, now or later."""
    monkeypatch.setenv("EPS_HDFS_PATIENCE_S", "0")
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize(
    "command",
    [
        [*RUN, "--data", "webhdfs://{}/x.csv"],
        [*RUN, "--data", "sklearn:iris", "--init", "webhdfs://{}/m.npz"],
        [*RUN, "--data", "sklearn:iris", "--export", "webhdfs://{}/m.npz"],
        [*RUN, "--data", "sklearn:iris", "--checkpoint-dir", "webhdfs://{}/c"],
        ["predict", "--model", "webhdfs://{}/m.npz", "--data", "sklearn:iris"],
    ],
    ids=lambda command: " ".join(word for word in command if word.startswith("--") or word == "predict"),
)
def test_hdfs_that_is_away_is_not_bad_input_nor_a_job_that_failed(
    command: list[str], nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(nobody) for word in command]) == EXIT_NOT_FOUND
    assert f"{nobody} cannot be reached" in capsys.readouterr().err


USES = [
    [*RUN, "--data"],
    [*RUN, "--data", "sklearn:iris", "--init"],
    ["predict", "--data", "sklearn:iris", "--model"],
]


@pytest.mark.parametrize("command", USES, ids=lambda command: f"{command[0]} {command[-1]}")
@pytest.mark.parametrize("is_remote", [False, True], ids=["here", "hdfs"])
def test_a_file_to_read_that_is_missing_or_a_folder_is_bad_input_wherever_it_is(
    command: list[str], is_remote: bool, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    with FakeHdfs() as fake:
        fake.make_folders("/folder", "755")
        root = f"webhdfs://{fake.authority}" if is_remote else str(tmp_path)
        for name, told in (("none", "no such file"), ("folder", "s a (folder|directory)")):
            assert main([*command, f"{root}/{name}"]) == EXIT_BAD_INPUT
            assert re.search(rf"{root}/{name}: .*{told}", capsys.readouterr().err)


@pytest.mark.parametrize(
    "options",
    [
        ["--data", "webhdfs://{}/x.csv"],
        ["--data", "sklearn:iris", "--init", "webhdfs://{}/m.npz"],
        ["--data", "sklearn:iris", "--export", "webhdfs://{}/m.npz"],
        ["--data", "sklearn:iris", "--checkpoint-dir", "webhdfs://{}/c"],
    ],
    ids=lambda options: options[-2],
)
def test_a_token_that_hdfs_refuses_is_told_like_one_that_is_none(
    options: list[str], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeHdfs() as fake:
        command = [*RUN, *(word.format(fake.authority) for word in options)]
        for name, told in (("InvalidToken", "refuses the credentials"), ("AccessControlException", "for permission")):
            fake.fault("*", "error", name=name, message="not you", left=1000)
            assert main(command) == EXIT_BAD_INPUT
            assert told in capsys.readouterr().err
            fake.faults.clear()
        monkeypatch.setenv("EPS_HDFS_TOKEN", "none")
        assert main(command) == EXIT_BAD_INPUT
        assert "expected a Hadoop delegation token" in capsys.readouterr().err


def test_who_answers_in_the_place_of_hdfs_is_as_good_as_nobody(
    nobody: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            assert main([*RUN, "--data", f"webhdfs://127.0.0.1:{server.server_port}/x.csv"]) == EXIT_NOT_FOUND
        finally:
            server.shutdown()
    assert "is not WebHDFS's" in capsys.readouterr().err
    monkeypatch.setattr(socket, "getaddrinfo", _knows_nobody)
    assert main([*RUN, "--data", "webhdfs://nowhere:9870/x.csv"]) == EXIT_NOT_FOUND


def _knows_nobody(*_: object, **__: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_a_resourcemanager_that_is_away_is_like_hdfs(
    nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"yarn.resourcemanager.webapp.address": nobody, "fs.defaultFS": f"hdfs://{nobody}"}
    told = "".join(f"<property><name>{name}</name><value>{value}</value></property>" for name, value in values.items())
    for name in ("core-site.xml", "yarn-site.xml"):
        (tmp_path / name).write_text(f"<configuration>{told}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert main([*RUN, "--data", "sklearn:iris", "--on", "yarn"]) == EXIT_NOT_FOUND
    assert "no ResourceManager can be reached" in capsys.readouterr().err


def test_results_that_cannot_be_written_for_hdfs_is_away_are_told_by_what_they_come_from(
    nobody: str, tmp_path: Path
) -> None:
    job = JobDir(tmp_path / "job")
    job.path.mkdir()
    job.model.write_bytes(b"model")
    with FakeHdfs() as fake, refusing_connections(fake), pytest.raises(StorageError, match="what it was to") as caught:
        deliver_results(job, RunRequest(JobSpec(), export=f"webhdfs://{fake.authority}/m.npz"))
    assert exit_code(caught.value) == EXIT_NOT_FOUND


def test_what_is_there_and_refuses_is_told_by_what_it_refuses() -> None:
    for error, code in (
        (ConfigError(""), EXIT_BAD_INPUT),
        (DataError(""), EXIT_BAD_INPUT),
        (AuthenticationError(""), EXIT_BAD_INPUT),
        (StorageDeniedError(""), EXIT_BAD_INPUT),
        (PlanError(""), EXIT_REFUSED),
        (StorageError(""), EXIT_FAILED),
        (ResourceError(""), EXIT_FAILED),
        (ResourceAwayError(""), EXIT_NOT_FOUND),
    ):
        assert exit_code(error) == code
