"""Jobs that are refused before their processes start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eps.errors import ConfigError, DataError, ResourceError, StorageError
from eps.job import launch
from eps.job.client import Job
from eps.job.launch import PreparedJob, prepare_job
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.spec.model_file import write_model
from eps.spec.results import copy_result
from eps.spec.runtime import (
    DataShape,
    Runtime,
    Start,
    check_descriptors,
    check_memory,
    descriptors_needed,
    memory_bytes,
)
from eps.storage.jobdir import JobLock, list_jobs
from tests.fakes.records import note_end


def test_a_setting_of_checkpoints_that_are_not_taken_is_told(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = {"data": "sklearn:iris", "keep": 5, "model": "softmax"}
    for more, number in (({}, 1), ({"checkpoint_every": "2"}, 0)):
        caplog.clear()
        prepare_job(RunRequest.from_values({**given, **more})).discard()
        told = [text for text in caplog.messages if "so --keep has no effect: add --checkpoint-every" in text]
        assert len(told) == number


def test_memory_counts_parameters_slots_and_sums(tmp_path: Path) -> None:
    shape = DataShape(99, 2, (4, 4), True, 0, ("", ""))
    runtime = Runtime("job", JobSpec(splits=2, workers=1, optimizer="adam"), shape, tmp_path, tmp_path)
    # 100 keys (with the intercept): float32 values, two float32 slots, int32 sums.
    assert memory_bytes(runtime) == 100 * (4 + 8 + 4)
    check_memory(runtime, 1600)
    with pytest.raises(ConfigError, match=r"100 parameters .* 1600 "):
        check_memory(runtime, 1599)


def test_a_job_that_needs_more_open_files_than_there_may_be_is_refused(tmp_path: Path) -> None:
    shape = DataShape(99, 2, (4,) * 16, True, 0, ("",) * 16)
    spec = JobSpec(splits=16, workers=12, servers=4, partitions=16)
    runtime = Runtime("job", spec, shape, tmp_path, tmp_path)
    assert descriptors_needed(16) == 56
    check_descriptors(runtime, 56)
    with pytest.raises(ConfigError, match=r"56 .* 55: .*ulimit"):
        check_descriptors(runtime, 55)
    check_descriptors(replace(runtime, start=Start(workers=2, servers=1)), 55)
    with pytest.raises(ConfigError, match="18 workers and servers"):
        check_descriptors(replace(runtime, start=Start(workers=16, servers=2)), 55)


def test_the_limit_of_open_files_is_looked_at_before_a_job_is_made(home: Path) -> None:
    words = ["run", "--data", "sklearn:iris", "--model", "softmax", "--workers", "8", "--servers", "2", "--quiet"]
    begun = subprocess.run(
        ["bash", "-c", 'ulimit -n 40; exec "$@"', "bash", sys.executable, "-m", "eps", *words],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert begun.returncode == 2
    assert begun.stderr.startswith("eps: 10 workers and servers need 44 open files in one process, but the limit is 40")
    assert not (home / "jobs").exists()


def test_a_model_wider_than_the_machine_is_refused_before_its_job_is_made(home: Path, tmp_path: Path) -> None:
    data = tmp_path / "wide.svm"
    index = 2**52
    data.write_text("".join(f"{-1 if i % 2 else 1} 1:1 {index if i == 3 else 7}:2\n" for i in range(24)))
    with pytest.raises(ConfigError, match=f"{index + 1} .* {index} features"):
        prepare_job(RunRequest.from_values({"data": str(data)}))
    assert not (home / "jobs").exists()


@pytest.mark.parametrize("name", ["l1", "l2", "learning_rate"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_constants_of_the_optimizer_are_checked_before_the_data_is_read(home: Path, name: str, value: float) -> None:
    settings = {"data": "no such file", "model": "lasso" if name == "l1" else "svm", name: value}
    with pytest.raises(ConfigError, match=f"{name} is {value}, but must be finite{' and >' if value == -1 else ''}"):
        prepare_job(RunRequest.from_values(settings))


def test_checks_come_before_the_data_is_announced(home: Path) -> None:
    told: list[str] = []
    request = RunRequest.from_values({"data": "sklearn:iris", "model": "logistic", "model_options": '{"rank": 2}'})
    with pytest.raises(ConfigError, match="no option rank"):
        prepare_job(request, before_data=lambda: told.append("data"))
    assert told == []


def test_result_that_cannot_be_copied_is_named_where_it_is(tmp_path: Path) -> None:
    source = tmp_path / "model.npz"
    source.write_text("x")
    with pytest.raises(StorageError) as caught:
        copy_result(source, tmp_path / "gone" / "m.npz", "missing")
    assert "[Errno" not in str(caught.value)
    assert str(source) in str(caught.value)


@pytest.mark.parametrize("named", [False, True])
def test_of_a_job_whose_processes_cannot_be_started_nothing_is_left(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    class Warm:
        def give(self, *_: object) -> None:
            raise ResourceError("a supervisor cannot be started: no processes left")

        def cancel(self) -> None:
            pass

    values = {"data": "sklearn:iris", "model": "softmax", "name": "job"}
    places = {"checkpoint_dir": str(tmp_path / "mine"), "checkpoint_every": "9"} if named else {}
    for _ in range(2):
        with pytest.raises(ResourceError, match="no processes left"):
            Job.start_request(RunRequest.from_values({**values, **places}), warm=Warm())  # type: ignore[arg-type]
        assert list_jobs() == [] and not (tmp_path / "mine" / "job").exists()


def test_a_job_that_has_begun_is_not_taken_for_one_that_was_refused(home: Path) -> None:
    prepared = prepare_job(RunRequest.from_values({"data": "sklearn:iris", "model": "softmax", "name": "job"}))
    handed = JobLock(prepared.directory.lock, os.dup(prepared.lock.fileno()))
    prepared.discard()
    assert prepared.directory.job_json.exists() and prepared.directory.is_running()
    handed.close()
    prepared.discard()
    assert list_jobs() == []


@pytest.mark.parametrize("runs", [True, False])
def test_a_job_without_a_name_never_takes_the_place_of_another(home: Path, runs: bool) -> None:
    request = RunRequest.from_values({"data": "sklearn:iris", "model": "softmax", "anew": True})
    others: list[PreparedJob] = []

    def prepare_another() -> None:
        other = prepare_job(request)
        others.append(other)
        if not runs:
            note_end(other.directory, "finished")
            other.lock.close()

    mine = prepare_job(request, prepare_another)
    (other,) = others
    names = [prepared.directory.name for prepared in (other, mine)]
    assert names == [prepared.runtime.name for prepared in (other, mine)] == ["softmax-1", "softmax-2"]
    assert other.directory.job_json.exists() and mine.directory.is_running()
    for prepared in (other, mine):
        prepared.lock.close()


@pytest.mark.parametrize(
    ("columns", "settings", "servers"),
    [(1, {}, 2), (2, {"intercept": False}, 2), (2, {}, 3), (1, {"reliable": 3, "transient": 1}, 3)],
)
def test_a_small_model_lowers_the_servers_that_were_not_given(
    home: Path, tmp_path: Path, columns: int, settings: dict[str, object], servers: int
) -> None:
    request = RunRequest.from_values({"data": str(_table(tmp_path, columns)), "model": "linear", **settings})
    prepared = prepare_job(request)
    prepared.discard()
    assert prepared.runtime.first_size[1] == servers
    assert len(prepared.runtime.ranges) == prepared.runtime.key_space.num_blocks


@pytest.mark.parametrize("of_scheduler", [True, False])
def test_servers_that_were_given_are_not_lowered(home: Path, tmp_path: Path, of_scheduler: bool) -> None:
    settings = {"data": str(_table(tmp_path, 1)), "model": "linear", "servers": 3}
    request = RunRequest.from_values(settings)
    if of_scheduler:
        # Here 3, the default, does not count as given.
        request = RunRequest.of_spec(request.spec, manager="sweep")
    with pytest.raises(ConfigError, match=r"servers is 3, but must be at most 2, .*: use --servers 2"):
        prepare_job(request)
    prepare_job(RunRequest.from_values({**settings, "servers": 2})).discard()


def _table(folder: Path, columns: int) -> Path:
    data = folder / "table.csv"
    data.write_text("".join(",".join(str(i % (n + 3)) for n in range(columns + 1)) + "\n" for i in range(24)))
    return data


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ("a,b,y\n1,5,2\n8,2,3\n", {}, None),
        ("1,5,2\n8,2,3\n", {"label_column": "last"}, None),
        ("b,a,y\n1,5,2\n8,2,3\n", {}, "was trained with 'a' as column 1; this data has 'b'"),
        ("a,b,y\n1,5,2\n8,2,3\n", {"normalize": "none"}, "trained with normalize 'standard'; this job has 'none'"),
        ("a,b,y\n1,5,2\n8,2,3\n", {"target_scale": 10.0}, "trained with target_scale 1.0; this job has 10.0"),
    ],
)
def test_initial_weights_must_be_those_of_the_same_columns_and_scale(
    home: Path, tmp_path: Path, rows: str, settings: dict[str, object], message: str | None
) -> None:
    def request(name: str, rows: str, **settings: object) -> RunRequest:
        data = tmp_path / name
        data.write_text(rows + rows[rows.index("1,5") :] * 11)
        return RunRequest.from_values({"data": str(data), "model": "linear", "normalize": "standard", **settings})

    trained = prepare_job(request("trained.csv", "a,b,y\n1,5,2\n8,2,3\n"))
    trained.discard()
    init, runtime = tmp_path / "model.npz", trained.runtime
    write_model(init, runtime, runtime.key_space.unpack(np.ones(3, np.float32)))
    again = request("again.csv", rows, init=str(init), **settings)
    if message is None:
        prepare_job(again).discard()
        return
    with pytest.raises(DataError, match=re.escape(message)):
        prepare_job(again)


@pytest.mark.parametrize("model", ["lda", "softmax"])
def test_a_model_that_is_slow_without_numba_is_named_once(
    home: Path, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("eps.ml.kernels.are_missing", lambda: True)
    launch._warn_of_numba.cache_clear()
    data = tmp_path / "docs.ldac"
    data.write_text("2 0:1 1:2\n" * 12)
    for name in ("one", "two"):
        settings = {
            "data": str(data) if model == "lda" else "sklearn:iris",
            "model": model,
            "name": name,
            "workers": 1,
            "servers": 1,
        }
        prepare_job(RunRequest.from_values(settings)).discard()
    told = [record.getMessage() for record in caplog.records if "Numba" in record.getMessage()]
    assert len(told) == (model == "lda")
    assert all("lda takes about 100 times as long" in text and "pip install numba" in text for text in told)
