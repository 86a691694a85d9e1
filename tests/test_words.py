"""What ``tools/words.py`` counts."""

from __future__ import annotations

from tools.words import count, document, long_sentences, places, source


def names(lines: list) -> list[tuple[int, str, str]]:
    return [(line.line, line.kind, name) for line, name in places(lines)]


def test_docstrings_comments_and_messages_are_told_apart() -> None:
    text = '"""Whoever reads."""\n\nx = 1  # nobody\nprint(f"somebody is there: {x}", "nobody")\n'
    found = names(list(source("eps/cli/a.py", text)))
    assert sorted(found) == [(1, "docstrings", "whoever"), (3, "comments", "nobody"), (4, "messages", "somebody")]


def test_code_in_a_document_does_not_count() -> None:
    text = "Nobody waits.\n\n```\nnobody\n```\n\n    nobody\n\n`nobody` and `--anew`\n"
    assert names(list(document("README.md", text))) == [(1, "documents", "nobody")]


def test_a_sentence_ends_at_its_mark_at_a_table_and_at_a_list() -> None:
    words = "word " * 20
    text = f"{words}\n{words.strip()}.\n\n- {words}\n- {words}\n| {words} | {words} |\n{words}:\n{words}\n"
    assert [(line.line, n) for line, n in long_sentences(list(document("a.md", text)))] == [(1, 40)]


def test_counts_are_by_folder_and_by_phrase() -> None:
    lines = list(source("eps/cli/a.py", '"""Whether nobody comes."""\n')) + list(document("docs/a.md", "What of it?\n"))
    counts = count(lines)
    assert counts["flagged_lines"] == 2
    assert counts["phrases"] == {"nobody": 1, "what of": 1}
    assert counts["folders"]["eps/cli"]["openings"] == 1
