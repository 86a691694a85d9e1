"""Count the phrases that a reader stumbles over, in documents, docstrings, comments and messages.

``python -m tools.words`` prints JSON on standard output and a table on standard error: lines with such phrases for
each folder, how often each phrase occurs, sentences of more than 25 words, and docstrings that do not open with a
verb.  ``--list`` prints the places instead; folders or files as arguments limit what is read.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("documents", "docstrings", "comments", "messages")
LONGEST_SENTENCE = 25

BE = r"(?:is|are|was|were|be|been|being)"

#: Each phrase by its name, under the rule that it breaks.
PHRASES = {
    "name the actor": {
        "whoever": r"\bwho(?:m|se)?(?:so)?ever\b",
        "whatever": r"\bwhatever\b",
        "nobody": r"\b(?:nobody|no one)\b(?!'s land)",
        "somebody": r"\b(?:somebody|anybody|everybody|somebody else)\b",
        "who is told": r"\b(?:who|whom|which) (?:is|are|was) told\b",
        "is told": rf"\b{BE} told (?:of|to|that|when|who|how|by|in|about)\b",
        "it is said": rf"\b(?:it {BE} said|{BE} said (?:that|so|to|by|of|when|how|at|in|until)|and said|says so)\b",
        "what of": r"\bwhat of\b|\bof what (?:is|was|are)\b",
        "what becomes of": r"\bwhat (?:has |had )?(?:becomes?|became|come|comes|came) of\b",
        "at the word of": r"\bat (?:\w+'s|the) word\b|\bby (?:\w+'s|its|their) word\b",
    },
    "use the field's words": {
        "go on with": r"\b(?:goes|go|going|gone|went) on with\b",
        "go back": r"\b(?:goes|go|gone|went|going) back\b",
        "give up room": r"\b(?:gives?|gave|given|giving) up (?:its|their|the|that) (?:room|place)\b",
        "take up": r"\b(?:takes?|took|taken|taking) (?:\w+ ){0,3}up\b",
        "let go of": r"\blet(?:s|ting)?(?: \w+)? go(?: of)?\b",
        "is brought": rf"\b{BE} brought\b|\bbring(?:s|ing)? (?:\w+ ){{0,3}}(?:to|here|back|along)\b",
        "anew": r"(?<!-)\banew\b",
        "keep back": r"\b(?:keeps?|kept|keeping) back\b",
        "give way": r"\b(?:gives?|gave|given|giving|makes?|made|making) way\b",
        "do without": r"\b(?:does|do|done|did|goes|go|going) without\b",
        "whole or not at all": r"\bwhole or not at all\b",
        "be away": r"\b(?:is|are|was|were|stays?) away\b",
        "is waited for": rf"\b{BE} waited for\b",
        "door": r"\bown door\b|(?<!next )\bdoor\b",
        "asks": r"\bits own asks\b|\bits asks\b|\bnew asks\b|\bthe asks\b",
        "attend": r"\battend(?:s|ed|ing)? to\b|\battendant\b",
        "turn": r"\b(?:its|their|whose) turn\b",
        "bell": r"\bbells?\b",
        "errand": r"\berrands?\b",
        "get further": r"\b(?:gets?|got|getting|further) (?:no )?further\b|\bbrings? \w+ \w* ?no further\b",
        "by itself": r"\bended by themselves\b",
        "which cannot be": r"\bwhich cannot be\b",
        "live": r"\bjobs can live\b",
        "room": r"\broom (?:that|for others|is there|was free|of others)\b|\b(?:there is|get their) (?:no )?room\b",
        "what is to be": r"\bwhat is to be\b|\bwhat there (?:is|was|are)\b|\bthere is whole\b",
        "by lot": r"\bby lot\b",
        "parent of all": r"\bparent of all\b",
        "free and changes nothing": r"\bis free and changes nothing\b",
    },
}
SEARCH = {name: re.compile(text, re.IGNORECASE) for names in PHRASES.values() for name, text in names.items()}

#: Words with which a docstring opens that describes instead of saying what is returned or done.
OPENINGS = frozenset(
    "What Who Whose Whom Whether Where When How Why Is Are Has Have Does Do Of That If Which As With Without Can May "
    "Must Nothing Nobody All Each Every".split()
)


class Text(NamedTuple):
    """One line of what people read."""

    path: str
    line: int
    kind: str
    text: str


def read(paths: Iterable[Path]) -> Iterator[Text]:
    """Yield the lines of all files below ``paths``."""
    for top in paths:
        for path in sorted(top.rglob("*") if top.is_dir() else [top]):
            name = str(path.relative_to(ROOT))
            if any(part.startswith(".") or part == "results" for part in Path(name).parts) or "_pb2" in name:
                continue
            if path.suffix == ".md":
                yield from document(name, path.read_text(encoding="utf-8"))
            elif path.suffix == ".py" and path != Path(__file__).resolve():
                yield from source(name, path.read_text(encoding="utf-8"))


def document(path: str, text: str) -> Iterator[Text]:
    """Yield the lines of a document, without blocks of code, quoted code and comments."""
    fenced = hidden = False
    for number, line in enumerate(text.splitlines(), 1):
        if hidden or line.startswith("<!--"):
            hidden = "-->" not in line
        elif line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield Text(path, number, "documents", re.sub(r"`[^`]*`", "``", line))


def source(path: str, text: str) -> Iterator[Text]:
    """Yield the docstrings, comments and messages of a module; a message is a string of three words or more."""
    tree = ast.parse(text)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.add(id(first.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            kind = "docstrings" if id(node) in docstrings else "messages"
            if kind == "docstrings" or len(node.value.split()) > 2:
                for number, line in enumerate(node.value.splitlines()):
                    yield Text(path, node.lineno + number, kind, line)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Text(path, token.start[0], "comments", token.string)


def folder(path: str) -> str:
    """Return the folder under which a file is counted: a room of a package, or the top folder."""
    parts = path.split("/")
    if len(parts) == 1:
        return "."
    return "/".join(parts[:2]) if parts[0] in ("eps", "hscheduler") and len(parts) > 2 else parts[0]


def sentences(lines: Iterable[Text]) -> Iterator[tuple[Text, int]]:
    """Yield where each sentence of running text begins, and its words.

    A list, a table, a heading, an empty line and another file end a sentence, too.
    """
    begin: Text | None = None
    words = 0
    before: Text | None = None
    for line in lines:
        text = line.text.strip()
        breaks = not text or text[0] in "|#*->=" or re.match(r"\d+\. ", text) is not None
        other = before is None or before.path != line.path or line.line > before.line + 1
        if (breaks or other) and begin is not None and words:
            yield begin, words
            begin, words = None, 0
        before = line
        if not text or text[0] in "|#=":
            continue
        for part in re.split(r"(?<=[.?!])\s+", text):
            begin = begin or line
            words += len(re.findall(r"[^\W_]+(?:[-'.][^\W_]+)*", part))
            if re.search(r"[.?!][)*_`]*$|:$", part):
                yield begin, words
                begin, words = None, 0
    if begin is not None and words:
        yield begin, words


def places(lines: list[Text]) -> Iterator[tuple[Text, str]]:
    """Yield each line that breaks a rule, with the name of the phrase or rule."""
    for line in lines:
        for name, pattern in SEARCH.items():
            for _ in pattern.finditer(line.text):
                yield line, name


def openings(lines: list[Text]) -> Iterator[Text]:
    """Yield first lines of docstrings that open with a word of OPENINGS."""
    before: Text | None = None
    for line in lines:
        if line.kind == "docstrings":
            begins = before is None or before.path != line.path or before.line != line.line - 1
            if begins and line.text.split(" ", 1)[0].rstrip("?,") in OPENINGS:
                yield line
            before = line


def count(lines: list[Text]) -> dict[str, Any]:
    """Return the counts for the table."""
    flagged = {(line.path, line.line, line.kind) for line, _ in places(lines)}
    folders: dict[str, Counter[str]] = {}
    for path, _, kind in sorted(flagged):
        folders.setdefault(folder(path), Counter())[kind] += 1
    for key, found in (
        ("long_sentences", [line for line, words in long_sentences(lines)]),
        ("openings", list(openings(lines))),
    ):
        for line in found:
            folders.setdefault(folder(line.path), Counter())[key] += 1
    columns = (*KINDS, "long_sentences", "openings")
    table = {name: {column: folders[name][column] for column in columns} for name in sorted(folders)}
    phrases = Counter(name for _, name in places(lines))
    return {
        "flagged_lines": len(flagged),
        "folders": table,
        "total": {column: sum(row[column] for row in table.values()) for column in columns},
        "phrases": dict(phrases.most_common()),
    }


def long_sentences(lines: list[Text]) -> list[tuple[Text, int]]:
    """Return the sentences of documents and docstrings with more words than LONGEST_SENTENCE."""
    running = [line for line in lines if line.kind in ("documents", "docstrings")]
    return [(line, words) for line, words in sentences(running) if words > LONGEST_SENTENCE]


def main() -> int:
    """Print the counts, or the places."""
    parser = argparse.ArgumentParser(prog="python -m tools.words", description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="folders or files (default: the whole project)")
    parser.add_argument("--list", action="store_true", help="print the places instead of the counts")
    options = parser.parse_args()
    paths = [path.resolve() for path in options.paths] or sorted(ROOT.iterdir())
    lines = list(read(paths))
    if options.list:
        found = [(line, f"[{name}]") for line, name in places(lines)]
        found += [(line, f"[{words} words]") for line, words in long_sentences(lines)]
        found += [(line, "[opening]") for line in openings(lines)]
        for line, why in sorted(found):
            print(f"{line.path}:{line.line}: {why} {line.text.strip()[:120]}")
        return 0
    counts = count(lines)
    print(json.dumps(counts, indent=1))
    columns = list(counts["total"])
    print(f"{'':28}" + "".join(f"{column.replace('_', ' '):>16}" for column in columns), file=sys.stderr)
    for name, row in {**counts["folders"], "total": counts["total"]}.items():
        print(f"{name:28}" + "".join(f"{row[column]:16}" for column in columns), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
