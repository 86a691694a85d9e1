"""The sentences of all errors and warnings are those of tests/messages.txt."""

from __future__ import annotations

from tools.messages import GOLDEN, listed, messages_of


def test_each_sentence_is_the_reviewed_one() -> None:
    assert GOLDEN.read_text(encoding="utf-8") == listed(), "python tools/messages.py --write, and read the difference"


def test_values_stand_in_braces() -> None:
    source = 'raise ConfigError(f"{name} is {value!r}, must be > 0")\nlogger.warning("%s is slow", name)\nf("a b")'
    assert list(messages_of(source)) == ["ConfigError: {name} is {value}, must be > 0", "log: %s is slow"]
