"""Every command and every flag of the tables is understood."""

from __future__ import annotations

from pathlib import Path

import pytest

import eps
from tests.surface.conftest import Served, Trained
from tests.surface.programs import Ended, call
from tests.surface.table_commands import (
    CORE_FLAGS,
    EPS_LINES,
    HSCHEDULER_LINES,
    MODELS,
    MORE_FLAGS,
    OPTIMIZERS,
    RESULT_FLAGS,
    SERVICE_LINES,
    Flag,
    Line,
)

FLAGS = (*RESULT_FLAGS, *CORE_FLAGS, *MORE_FLAGS)
#: Settings that are refused by ``eps submit``: it is for YARN, and for one job.
NOT_SUBMITTED = ("--on", "--folds")


@pytest.fixture(autouse=True)
def where(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def name_of(row: Flag | Line) -> str:
    return " ".join(row.words) if isinstance(row, Flag) else row.words


def asked(flag: Flag, words: list[str]) -> Ended:
    """Run a job whose report could not be written: that is found when all flags are read, before anything starts."""
    target = "--export" if flag.flag == "--report" else "--report"
    return call("eps", ["run", *words, target, "nowhere/at/all"])


@pytest.mark.parametrize("flag", FLAGS, ids=name_of)
def test_a_flag_of_run_is_understood(flag: Flag) -> None:
    ended = asked(flag, flag.words)
    assert ended.code == 2 and "nowhere/at/all" in ended.err, ended
    ended = asked(flag, [f"{flag.flag}x", *flag.words[1:]])
    assert ended.code == 2 and "nowhere/at/all" not in ended.err, "an unknown flag gets as far: this test shows nothing"


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.bad is not None], ids=name_of)
def test_a_bad_value_is_refused_before_anything_starts(flag: Flag) -> None:
    ended = asked(flag, [flag.flag, str(flag.bad)])
    assert ended.code == 2 and "nowhere/at/all" not in ended.err, ended


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.flag not in NOT_SUBMITTED], ids=name_of)
def test_a_flag_of_run_is_one_of_submit(flag: Flag) -> None:
    ended = call("eps", ["submit", *flag.words])
    assert ended.code == 2 and "HADOOP_CONF_DIR" in ended.err, ended
    assert "HADOOP_CONF_DIR" not in call("eps", ["submit", f"{flag.flag}x", *flag.words[1:]]).err


def test_flags_of_run_reach_the_job(trained: Trained) -> None:
    settings = trained.report["settings"]
    for flag in CORE_FLAGS:
        found = settings[flag.key] if flag.key in settings else settings[f"{flag.key}_s"]
        assert found in (flag.value, str(flag.value)), flag
    assert trained.report["name"] == "trained"


@pytest.mark.parametrize("flag", CORE_FLAGS + MORE_FLAGS, ids=name_of)
def test_a_setting_has_its_default(flag: Flag) -> None:
    settings = eps.JobSpec().values()
    found = settings[flag.key] if flag.key in settings else settings[f"{flag.key}_s"]
    assert found == flag.default and type(found) is type(flag.default)


def test_models_have_their_names() -> None:
    for name, needs in {**MODELS, "magic": ""}.items():
        # The model says what the data has to be; only then is the data looked for.
        ended = call("eps", ["run", "--model", name, *needs.split(), "--data", "missing.svm"])
        assert ended.code == 2 and ("missing.svm" in ended.err) == (name in MODELS), ended


def test_optimizers_have_their_names() -> None:
    for name in OPTIMIZERS:
        flag = Flag("--optimizer", name, name)
        ended = asked(flag, flag.words)
        assert ended.code == 2 and "nowhere/at/all" in ended.err, ended


def shown(program: str, line: Line, places: dict[str, str]) -> None:
    """Check a line of a table, and that it would fail with a flag that there is not."""
    words, told = line.words.format(**places).split(), line.told.format(**places)
    ended = call(program, words)
    assert ended.code == line.code and told in ended.err, ended
    for at, word in enumerate(words):
        if word.startswith("--"):
            wrong = call(program, [*words[:at], f"{word}x", *words[at + 1 :]])
            assert wrong.code == 2 and not (told and told in wrong.err), wrong


@pytest.fixture
def places(folder: Path, closed: str, tmp_path: Path) -> dict[str, str]:
    return {"missing": str(folder / "missing.file"), "folder": str(tmp_path), "closed": closed}


@pytest.mark.parametrize("line", EPS_LINES, ids=name_of)
def test_a_command_of_eps_understands_its_flags(line: Line, places: dict[str, str]) -> None:
    shown("eps", line, places)


@pytest.mark.parametrize("line", HSCHEDULER_LINES, ids=name_of)
def test_a_command_of_hscheduler_understands_its_flags(line: Line, places: dict[str, str]) -> None:
    shown("hscheduler", line, places)


@pytest.mark.parametrize("line", SERVICE_LINES, ids=name_of)
def test_a_command_about_a_service_understands_its_flags(line: Line, places: dict[str, str], served: Served) -> None:
    shown("hscheduler", line, {**places, "state": str(served.state), "address": served.address})
