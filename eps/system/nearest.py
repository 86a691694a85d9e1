"""The known name that a misspelt one is nearest to: of a command, a flag, a key."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Most names that a message suggests.
MOST_SUGGESTED = 3


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean NAME?``; empty where no known name is near.

    Names that end with the word, as ``digits-trial-7`` ends with ``trial-7``, are nearer than others.
    """
    names = list(known)
    ends = [name for name in names if name.endswith(f"-{word}")]
    near = ends[:MOST_SUGGESTED] or difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def one_of(word: str, known: Iterable[str]) -> str:
    """Return ``one of NAME, NAME; did you mean NAME?``: what a word must be."""
    names = list(known)
    return f"one of {', '.join(names)}{did_you_mean(word, names)}"
