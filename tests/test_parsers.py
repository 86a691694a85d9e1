"""What is read from users' texts: what is written comes back, and anything else is refused with an error of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eps.cli.commands.prune import _UNITS_S, _seconds
from eps.core.reconfig import OPERATIONS, Change
from eps.core.types import MOST_MEMBERS
from eps.errors import ConfigError, EpsError
from eps.spec.changes import parse_change
from eps.spec.file import RunRequest, read_job_file
from eps.spec.job_spec import SETTINGS, JobSpec
from hscheduler.spec import _UNITS_MB, Spec, memory_mb

FIELDS = list(SETTINGS)
NUMBERS = st.integers(1, 9)
#: What a key of a TOML file can have.
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["1", "0.5", "a,b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.sampled_from(OPERATIONS), st.integers(1, MOST_MEMBERS), st.lists(NUMBERS, min_size=1, max_size=4, unique=True)
)
def test_a_change_is_read_as_it_is_written(operation: Any, count: int, numbers: list[int]) -> None:
    assert parse_change(f" {operation}={count}") == Change(operation, count)
    if not operation.adds:
        names = tuple(f"{operation.role}-{number}" for number in numbers)
        assert parse_change(f"{operation}={','.join(names)}") == Change(operation, len(names), names)


@given(st.text() | st.builds("{}={}".format, st.sampled_from(OPERATIONS), st.text()))
@example("add-workers=" + "9" * 5000)
@example("remove-workers=worker-0")
def test_any_text_is_a_change_that_can_be_asked_for_or_refused(text: str) -> None:
    try:
        change = parse_change(text)
    except EpsError as error:
        assert str(error)
    else:
        assert 1 <= change.count <= MOST_MEMBERS and (not change.names or len(change.names) == change.count)


@given(st.integers(1, 10**6), st.sampled_from(sorted(_UNITS_MB)), st.sampled_from(["", " "]))
def test_an_amount_of_memory_is_read_as_it_is_written(number: int, unit: str, gap: str) -> None:
    assert memory_mb(f"{number}{gap}{unit}") == number * {"M": 1, "G": 1024, "T": 1024**2}[unit[0]]


@given(st.integers(0, 10**6), st.sampled_from(sorted(_UNITS_S)))
def test_a_duration_is_read_as_it_is_written(number: int, unit: str) -> None:
    assert _seconds(f"{number}{unit}") == number * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]


@given(st.text() | st.builds("{}{}".format, st.floats() | st.integers(), st.text(max_size=4)))
def test_any_text_is_an_amount_or_refused(text: str) -> None:
    for read in (memory_mb, _seconds):
        try:
            assert read(text) >= 0
        except ConfigError as error:
            assert repr(text) in str(error)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=3))
def test_settings_of_a_job_come_back_as_they_were_taken_or_are_refused(values: dict[str, Any]) -> None:
    try:
        request = RunRequest.from_values(values)
    except EpsError as error:
        assert str(error)
    else:
        assert JobSpec.from_dict(json.loads(request.spec.to_json())) == request.spec


TABLES = {
    "sweep": {"trials": 4, "metric": "loss"},
    "cluster": {"nodes": 2},
    "job": {"data": "sklearn:digits", "model": "softmax"},
    "space": {"learning_rate": {"loguniform": [0.01, 0.1]}},
}


@given(
    st.sampled_from(sorted(TABLES)), st.text(max_size=12) | st.sampled_from(["trials", "nodes", "data", "l2"]), VALUES
)
def test_tables_of_a_sweep_come_back_as_they_were_taken_or_are_refused(table: str, key: str, value: Any) -> None:
    try:
        spec = Spec.of({**TABLES, table: {**TABLES[table], key: value}})
    except EpsError as error:
        assert str(error)
    else:
        assert Spec.of(spec.tables()).tables() == spec.tables()


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode(errors="replace")))
def test_any_file_is_settings_or_refused_with_its_name(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "some.toml"
    path.write_bytes(content)
    for read in (read_job_file, Spec.read):
        try:
            read(path)
        except EpsError as error:
            assert path.name in str(error)
