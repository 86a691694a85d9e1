"""List the messages of all errors and warnings; tests/messages.txt is this list.

    python tools/messages.py [--write]

A message is the text of a raised error or of a logged warning or error, with values in braces.  The list is made from
the source, so that the diff of one file shows every changed message.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "messages.txt"
_LOGGED = frozenset({"warning", "error", "exception", "critical"})


def text_of(node: ast.expr) -> str | None:
    """Return the text of a literal, with the values of an f-string in braces; None for any other expression."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                "{" + ast.unparse(part.value) + "}" if isinstance(part, ast.FormattedValue) else str(part.value)
                for part in parts
                if isinstance(part, (ast.FormattedValue, ast.Constant))
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = text_of(left), text_of(right)
            return None if texts == (None, None) else "".join(text or "{...}" for text in texts)
        case ast.IfExp(body=body, orelse=other):
            texts = [text for text in (text_of(body), text_of(other)) if text is not None]
            return " | ".join(texts) or None
    return None


def messages_of(source: str) -> Iterator[str]:
    """Yield the messages of a module, each as one line."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id=name) if name.endswith("Error"):
                kind = name
            case ast.Attribute(value=ast.Name(id="logger"), attr=name) if name in _LOGGED:
                kind = "log"
            case _:
                continue
        text = next((found for found in map(text_of, node.args) if found is not None), None)
        if text is not None and " " in text:
            yield f"{kind}: {' '.join(text.split())}"


def listed() -> str:
    """Return the messages of both packages, sorted, below the names of their modules."""
    lines: list[str] = []
    for package in ("eps", "hscheduler"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "pb" in path.relative_to(ROOT).parts:
                continue
            if found := sorted(set(messages_of(path.read_text(encoding="utf-8")))):
                lines += ["", path.relative_to(ROOT).as_posix(), *(f"    {message}" for message in found)]
    return "\n".join(lines[1:]) + "\n"


def main() -> int:
    """Print the list, or write it to tests/messages.txt."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write tests/messages.txt")
    if parser.parse_args().write:
        GOLDEN.write_text(listed(), encoding="utf-8")
    else:
        sys.stdout.write(listed())
    return 0


if __name__ == "__main__":
    sys.exit(main())
