"""The documents agree with the code."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

import eps.cli.parser
import hscheduler.cli
from eps.core.reconfig import diagram
from tools import figures, reference, words

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("", "docs/", "benchmarks/", "benchmarks/peers/", "docker/", "eps/ml/models/", "hscheduler/yarn-plugin/")
PAGES = sorted(str(path.relative_to(ROOT)) for folder in FOLDERS for path in ROOT.glob(f"{folder}*.md"))
PARSERS = {"eps": eps.cli.parser.build_parser(), "hscheduler": hscheduler.cli.build_parser()}


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def test_architecture_shows_the_life_of_a_plan_as_the_table_draws_it() -> None:
    assert diagram() in text_of("ARCHITECTURE.md")


def test_tests_that_the_table_of_faults_names_are_there() -> None:
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    named = set(re.findall(r"`(?:tests/[\w/]*)?(test_\w+)(?:\.py)?`", text_of("docs/failures.md")))
    assert len(named) > 30
    for name in named:
        assert f"{name}.py" in files or any(f"def {name}(" in text for text in files.values()), name


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_are_there(page: str) -> None:
    inside = re.compile(r"`((?:eps|hscheduler|tests|tools|proto|docs|benchmarks|examples)/[\w/.-]+)`")
    for name in set(inside.findall(text_of(page))):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]*(?:#[^)]*)?)\)", text_of(page)):
        path, _, anchor = target.partition("#")
        found = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}, target


def commands_of(page: str) -> list[list[str]]:
    """Return the words of each command of ours in the page's blocks of code without a language."""
    inside, found = "", []
    for line in text_of(page).replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            inside = "" if inside else line
        elif inside == "```" and line.split(" ")[0] in PARSERS:
            words = shlex.split(line, comments=True)
            # Behind a flag "..." stands for its value, else for further words.
            found.append([word for before, word in pairwise(["", *words]) if word != "..." or before[:2] == "--"])
    return found


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_a_page_shows_can_be_parsed(page: str) -> None:
    for program, *rest in commands_of(page):
        try:
            PARSERS[program].parse_args(rest)
        except SystemExit:
            pytest.fail(f"{program} {' '.join(rest)}")


def test_pages_show_commands() -> None:
    assert sum(len(commands_of(page)) for page in PAGES) > 50


@pytest.mark.parametrize("page", PAGES)
def test_figures_of_a_page_are_those_of_the_results(page: str) -> None:
    assert figures.faults(text_of(page), every=page in figures.PAGES) == []


def test_the_reference_is_what_parsers_and_settings_say() -> None:
    assert reference.page() == text_of("docs/reference.md"), "run python -m tools.reference"


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/reference.md"])
def test_a_page_has_none_of_the_phrases_that_readers_stumble_over(page: str) -> None:
    lines = list(words.document(page, text_of(page)))
    assert [(line.line, name) for line, name in words.places(lines)] == []


def test_readme_and_map_are_short() -> None:
    assert len(text_of("README.md").encode()) <= 8_000
    assert len(text_of("ARCHITECTURE.md").encode()) <= 15_000


RESULTS = {"speeds": [{"name": "a", "per_s": 20}, {"name": "b", "per_s": 8.04}], "lost": 0.00123}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a does 2.5 times as much", ""),
        ("a does 2.6 times as much", "2.6: r.json has 2.48756 (speeds[0].per_s / speeds[1].per_s)"),
        ("a does twice as much", "2.5: is not in the text above the comment"),
        ("a does 2.5 times as much, in 3 s", "3: has no source (below ['# Title'])"),
        ("a does 2.5 times as much (`0.7`, [x](a/0.3))", ""),
    ],
)
def test_a_figure_must_be_that_of_its_source(text: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(RESULTS))
    factor = fault.partition(":")[0] if "r.json" in fault else "2.5"
    page = f"# Title\n\n{text}\n\n<!-- figures\nfrom r.json\n{factor} = speeds[0].per_s / speeds[1].per_s\n-->\n"
    assert figures.faults(page, results=tmp_path) == ([fault] if fault else [])


@pytest.mark.parametrize(
    ("text", "number", "same"),
    [
        ("1.2e-03", 0.00123, True),
        ("1.3e-03", 0.00123, False),
        ("8.0", 8.04, True),
        ("8", 8.04, True),
        ("8.1", 8.04, False),
    ],
)
def test_a_figure_is_compared_at_its_own_digits(text: str, number: float, same: bool) -> None:
    assert figures.agrees(text, number) is same


def test_a_figure_whose_source_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(RESULTS))
    page = "1.5 s\n\n<!-- figures\nfrom r.json\n1.5 = slow\n-->\n"
    (fault,) = figures.faults(page, results=tmp_path)
    assert "slow" in fault
