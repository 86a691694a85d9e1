"""The known name that a misspelt one is nearest to: of a command, a flag, a key."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean NAME?``; empty where no known name is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def one_of(word: str, known: Iterable[str]) -> str:
    """Return ``one of NAME, NAME; did you mean NAME?``: what a word must be."""
    names = list(known)
    return f"one of {', '.join(names)}{did_you_mean(word, names)}"
