"""Words that a command cannot use are refused in one sentence, by both programs: value, rule, and where help is."""

from __future__ import annotations

from pathlib import Path

import pytest

import eps.cli
import hscheduler.cli
from eps.errors import ConfigError
from eps.spec.file import RunRequest
from eps.spec.job_spec import SETTINGS

MAINS = {"eps": eps.cli.main, "hscheduler": hscheduler.cli.main}


@pytest.mark.parametrize(
    ("words", "told", "where"),
    [
        ("eps run --grow-back x", "--grow-back is 'x', but must be a number", "eps run"),
        ("eps submit --stretch-s=x", "--stretch is 'x', but must be a number", "eps submit"),
        ("eps resume a9a --workers 2.5", "--workers is '2.5', but must be a whole number", "eps resume"),
        ("eps cancel a9a soon", "PLAN is 'soon', but must be a whole number", "eps cancel"),
        ("eps list --last 0", "--last is '0', but must be a whole number, at least 1", "eps list"),
        ("eps devcluster start --nodes x", "--nodes is 'x', but must be a whole number", "eps devcluster start"),
        ("eps logs", "the following arguments are required: NAME", "eps logs"),
        ("eps predict --model", "--model: expected one argument", "eps predict"),
        ("eps --no-such list", "unknown flag --no-such", "eps"),
        ("eps nope", "unknown command 'nope'", "eps"),
        ("eps statsu a9a --json", "unknown command 'statsu'; did you mean status?", "eps"),
        ("eps devcluster strat", "unknown command 'strat'; did you mean start?", "eps devcluster"),
        ("eps help statsu", "unknown command 'statsu'; did you mean status?", "eps"),
        ("hscheduler sweep s.toml --trials x", "--trials is 'x', but must be a whole number", "hscheduler sweep"),
        ("hscheduler serve --kill-restart x", "--kill-restart is 'x', but must be a number", "hscheduler serve"),
        ("hscheduler compare s.toml --no-such", "unknown flag --no-such", "hscheduler compare"),
        ("eps run --iteration 3", "unknown flag --iteration; did you mean --iterations?", "eps run"),
        (
            "hscheduler compare s.toml --polici=x",
            "unknown flag --polici=x; did you mean --policies?",
            "hscheduler compare",
        ),
        ("hscheduler jobs --sta x", "unknown flag --sta", "hscheduler jobs"),
        ("hscheduler --vers jobs", "unknown flag --vers; did you mean --version?", "hscheduler"),
        (
            "hscheduler yarn-plugin --secret-file s --feedback-iteration 0",
            "--feedback-iteration is '0', but",
            "hscheduler yarn-plugin",
        ),
        ("hscheduler why a b", "why takes no further argument: b", "hscheduler why"),
        ("hscheduler sweeep s.toml", "unknown command 'sweeep'; did you mean sweep?", "hscheduler"),
    ],
)
def test_a_word_that_cannot_be_used_is_told_without_the_usage(
    words: str, told: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *rest = words.split()
    with pytest.raises(SystemExit) as ended:
        MAINS[program](rest)
    shown = capsys.readouterr()
    assert ended.value.code == 2 and not shown.out
    assert shown.err.startswith(f"{program}: {told}") and shown.err.endswith(f" (see {where} --help)\n")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("words", ["eps", "hscheduler", "eps devcluster"])
def test_help_is_printed_where_it_is_asked_for_and_where_no_command_is_given(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *rest = words.split()

    def ended(*more: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as exit_of:
            MAINS[program]([*more])
        shown = capsys.readouterr()
        return exit_of.value.code, shown.out, shown.err

    _, text, _ = asked = ended(*rest, "--help")
    assert text.startswith(f"usage: {words}")
    assert ended("help", *rest) == asked == (0, text, "")
    assert ended(*rest) == (2, "", text)


@pytest.mark.parametrize("command", ["run", "submit", "resume"])
def test_the_help_of_a_job_fits_a_screen_and_all_of_it_has_every_flag(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")

    def shown(word: str) -> str:
        with pytest.raises(SystemExit) as ended:
            eps.cli.main([command, word])
        assert ended.value.code == 0
        return capsys.readouterr().out

    short = shown("--help")
    assert 24 <= short.count("\n") <= 50 and "  --workers N" in short
    if command != "resume":
        every = shown("--help-all")
        flags = [f"  --{name.removesuffix('_s').replace('_', '-')}" for name in SETTINGS]
        assert [flag for flag in flags if flag not in every] == []
        assert "default adam" in short and "--van" not in short


@pytest.mark.parametrize("words", ["eps run", "eps submit", "hscheduler submit job.toml", "hscheduler sweep s.toml"])
def test_a_name_that_is_given_is_one(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *rest = words.split()
    with pytest.raises(SystemExit) as ended:
        MAINS[program]([*rest, "--name", ""])
    assert ended.value.code == 2
    told = "--name is '', but must not be empty: omit the flag and EPS chooses a name"
    assert capsys.readouterr().err == f"{program}: {told} (see {program} {rest[0]} --help)\n"


@pytest.mark.parametrize("tags", ["a,,b", "a,", ",", " "])
def test_a_tag_that_is_given_is_one(
    tags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path))
    rule = f"tags is {tags!r}, but must be tags joined by commas, none of them empty"
    assert eps.cli.main(["run", "--data", "sklearn:iris", "--tags", tags]) == 2
    assert capsys.readouterr().err == f"eps: --{rule}\n"
    with pytest.raises(ConfigError, match="must be tags joined by commas"):
        RunRequest.from_values({"data": "sklearn:iris", "tags": tags}, "job.toml")
    assert RunRequest.from_values({"data": "sklearn:iris", "tags": "a, b"}).spec.yarn.tags == "a, b"
