"""Check the figures in documents against the results of the benchmarks.

A comment after a paragraph or a table names the source of its figures:

    <!-- figures
    from yarn/compare.json
    1.74 = policies.static.makespan_s / policies.elastic.makespan_s
    given 8 0.9
    -->

``from`` names a file in ``benchmarks/results``.  Each later line has a figure as in the text, and an expression over
the keys of that file with the same rounded value.  In it, ``bar("NAME")`` is the measured value of a bar.  ``given``
lists numbers that are settings, bars or the paper's.  The comment covers the text since the heading or the
comment before it.  In that text, every number with a decimal point or one of UNITS must be listed.

``python -m tools.figures`` prints the faults; the exit code is 1 if there are any.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
#: Documents in which every figure must be listed, also in text without a comment.  The reference is generated.
PAGES = (
    "README.md", "benchmarks/README.md", "benchmarks/peers/README.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "reference.md"),
)  # fmt: skip

UNITS = r" ?(?:%|ms|us|s|MB|GB|GB/s|MiB|GiB)(?!\w)| (?:times|percent)\b"
_NUMBER = re.compile(rf"(?<![\w.,/-])-?\d[\d,]*(\.\d+(?:e-?\d+)?)?(?![\d.]*\.\d)(?P<unit>{UNITS})?")
_BLOCK = re.compile(r"<!-- figures\n(.*?)\n-->", re.DOTALL)
#: Text without figures: code, links, comments and version numbers.
_CODE = re.compile(
    r"```.*?```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|^    .*?$|\b(?:Python|Hadoop|TLS) \d[\d.]*(?: to \d[\d.]*)?",
    re.DOTALL | re.MULTILINE,
)


class Figure(NamedTuple):
    """A number in a document and its source."""

    text: str
    file: str
    expression: str


class Keys(dict[str, Any]):
    """A JSON object whose keys are attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no key {name!r}; there are {', '.join(self)}") from None


@cache
def loaded(path: Path) -> Any:
    """Return the JSON of a file."""
    return json.loads(path.read_text(encoding="utf-8"), object_hook=Keys)


def value(figure: Figure, results: Path = RESULTS) -> float:
    """Evaluate the expression of a figure."""
    found = loaded(results / figure.file)
    names: dict[str, Any] = {"median": statistics.median, "mean": statistics.fmean, "file": found}
    names["bar"] = lambda name: next(bar.measured for bar in found.bars if bar.name == name)
    if isinstance(found, dict):
        names |= found
    return float(eval(figure.expression, names))


def agrees(text: str, number: float) -> bool:
    """Return whether ``text`` is ``number``, rounded to the digits that ``text`` has."""
    plain = text.replace(",", "")
    if "e" in plain:
        digits = len(plain.partition("e")[0].partition(".")[2])
        return f"{number:.{digits}e}" == f"{float(plain):.{digits}e}"
    half = 0.5 * 10.0 ** -len(plain.partition(".")[2])
    return abs(float(plain) - number) <= half * (1 + 1e-9)


def read(block: str) -> tuple[list[Figure], set[str]]:
    """Return the figures and the given numbers of a comment."""
    figures: list[Figure] = []
    given: set[str] = set()
    file = ""
    for line in block.splitlines():
        word, _, rest = line.partition(" ")
        if word == "from":
            file = rest
        elif word == "given":
            given.update(rest.split())
        elif rest.startswith("= ") and file:
            figures.append(Figure(word, file, rest.removeprefix("= ")))
        else:
            raise ValueError(f"{line!r} is neither 'from FILE', 'given NUMBERS' nor 'FIGURE = EXPRESSION'")
    return figures, given


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield (text, comment that covers it) for all of a document; the comment may be empty."""
    for part in re.split(r"^(?=#+ )", _fenced(text), flags=re.MULTILINE):
        before = 0
        for block in _BLOCK.finditer(part):
            yield part[before : block.start()], block[1]
            before = block.end()
        yield part[before:], ""


def _fenced(text: str) -> str:
    """Return the text without blocks of code, whose lines may look like headings."""
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def numbers(text: str) -> set[str]:
    """Return the figures in a text, outside of code and links."""
    found = _NUMBER.finditer(_CODE.sub(" ", text))
    return {each[0].removesuffix(each["unit"] or "").rstrip(",") for each in found if each[1] or each["unit"]}


def faults(text: str, *, every: bool = True, results: Path = RESULTS) -> list[str]:
    """Return the faults of a document's figures.

    Parameters
    ----------
    text : str
    every : bool
        Whether figures in text without a comment are faults.
    results : Path
    """
    found = []
    for part, block in sections(text):
        figures, given = read(block) if block else ([], set())
        for figure in figures:
            try:
                number = value(figure, results)
            except Exception as error:
                found.append(f"{figure.text}: {figure.file}: {figure.expression}: {error}")
                continue
            if not agrees(figure.text, number):
                found.append(f"{figure.text}: {figure.file} has {number:.6g} ({figure.expression})")
            if not re.search(rf"(?<![\d.,]){re.escape(figure.text)}(?![\d]|[.,]\d)", part):
                found.append(f"{figure.text}: is not in the text above the comment")
        if block or every:
            listed = given | {figure.text for figure in figures}
            heading = part.strip().splitlines()[:1]
            found += [f"{each}: has no source (below {heading})" for each in sorted(numbers(part) - listed)]
    return found


def main() -> int:
    """Print the faults of all documents."""
    some = False
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]):
        name = str(path.relative_to(ROOT))
        for fault in faults(path.read_text(encoding="utf-8"), every=name in PAGES):
            some = True
            print(f"{name}: {fault}")
    return int(some)


if __name__ == "__main__":
    sys.exit(main())
