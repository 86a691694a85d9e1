"""The command line: words to commands, errors to exit codes.

Almost everything is imported when needed and under one ``try``: Ctrl-C at once gives no traceback either.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from eps.cli.exits import EXIT_INTERRUPTED, EXIT_OK, exit_code
from eps.system import interrupt

if TYPE_CHECKING:
    from argparse import Namespace

#: Commands of which it is not plain whether they have begun something.
STARTING = (["run"], ["submit"], ["resume"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``eps`` and return its exit code."""
    try:
        with interrupt.noted():
            return _run(argv)
    except KeyboardInterrupt as error:
        # What was interrupted may say what became of it.
        for note in getattr(error, "__notes__", ()):
            print(f"eps: {printable(note)}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read has gone, as in `eps logs NAME | head`; the flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def _run(argv: Sequence[str] | None) -> int:
    try:
        command, args = _chosen(argv)
    except KeyboardInterrupt as error:
        if list(sys.argv[1:] if argv is None else argv)[:1] in STARTING:
            error.add_note("interrupted: nothing was begun")
        raise
    from eps.errors import EpsError

    try:
        return int(command(args))
    except EpsError as error:
        print(f"eps: {printable(error_text(error))}", file=sys.stderr)
        return exit_code(error)


def _chosen(argv: Sequence[str] | None) -> tuple[Callable[[Namespace], int], Namespace]:
    """Return the function of a command, and what it is told."""
    from importlib import import_module

    from eps.cli.parser import build_parser

    args = build_parser().parse_args(argv)
    module, _, function = args.command.partition(":")
    return getattr(import_module(f"eps.cli.commands.{module}"), function), args


def error_text(error: Exception) -> str:
    """Return the message of ``error``, without the number that Python puts before that of an OSError."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def printable(text: str) -> str:
    """Return ``text`` with what a terminal would not show, or would obey, escaped; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)
